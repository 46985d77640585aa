//! Collectives of few bytes: a single meeting, with the bytes in the slots.

use super::board::Board;
use crate::collective::combining::Combiner;
use crate::collective::shape::{Combine, Shape};
use crate::collective::{Input, Output};
use samite_mem::SharedBytes;

/// Returns true if a collective is one of these. All members decide alike.
#[inline]
pub(crate) fn fits(shape: &Shape, board: &Board) -> bool {
    shape
        .known_longest()
        .is_some_and(|longest| longest <= board.payload())
}

/// Writes what a member gives to a rank.
#[inline]
pub(crate) fn give(shape: &Shape, rank: u32, input: &Input<'_>) -> impl Fn(u32, &SharedBytes, u64) {
    move |to, slot, at| {
        let (from, len) = shape.gives(rank, to);
        if len > 0 {
            input.copy_to(from, slot, at, len);
        }
    }
}

/// The bytes that the others have given, after the exchange.
pub(crate) trait Slots {
    fn read(&self, from: u32, into: &mut [u8]);
    /// Copies the bytes of a rank into an output. `place`: offset and length.
    fn deliver(&self, from: u32, output: &mut Output<'_>, place: (u64, u64));
}

/// A board, and the sequence of the meeting.
impl Slots for (&Board, u64) {
    #[inline(always)]
    fn read(&self, from: u32, into: &mut [u8]) {
        self.0.read(self.1, from, into);
    }

    #[inline(always)]
    fn deliver(&self, from: u32, output: &mut Output<'_>, place: (u64, u64)) {
        self.0.deliver((self.1, from), output, place);
    }
}

/// Computes the result after the exchange.
#[inline]
pub(crate) fn finish<C: Combiner + ?Sized>(
    shape: &Shape,
    (me, size): (u32, u32),
    slots: &impl Slots,
    (input, output): (&Input<'_>, &mut Output<'_>),
    combiner: Option<&C>,
) {
    let Shape::Combines(combine, elements) = shape else {
        for from in 0..size {
            let take = shape.takes(me, from);
            match from == me {
                _ if take.len == 0 => {}
                true => output.copy_input(take.at, input, shape.gives(me, me).0, take.len),
                false => slots.deliver(from, output, (take.at, take.len)),
            }
        }
        return;
    };
    let ranks = match *combine {
        _ if !combine.gives_to(me) => return,
        Combine::Scan => 0..me + 1,
        Combine::ExScan => 0..me,
        _ => 0..size,
    };
    // On the stack, unless it is too long.
    let (bytes, mut few, mut many) = (elements.bytes as usize, [0; 256], Vec::new());
    if 2 * bytes > few.len() {
        many.resize(2 * bytes, 0);
    }
    let both = if many.is_empty() {
        &mut few[..2 * bytes]
    } else {
        &mut many[..]
    };
    let (sum, more) = both.split_at_mut(bytes);
    for rank in ranks {
        let with = if rank == 0 { &mut *sum } else { &mut *more };
        match rank == me {
            true => input.read(shape.gives(me, me).0, with),
            false => slots.read(rank, with),
        }
        if rank > 0
            && let Some(combiner) = combiner
        {
            combiner.append(sum, more);
        }
    }
    output.write(0, sum);
}
