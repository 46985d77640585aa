//! Few bytes: one meeting, and they are in the slots.

use super::board::Board;
use crate::collective::combining::Combiner;
use crate::collective::shape::{Combine, Shape};
use crate::collective::{Input, Output};
use smallvec::SmallVec;

/// Whether a collective is one: all members decide alike.
#[inline]
pub(super) fn fits(shape: &Shape, board: &Board) -> bool {
    shape
        .known_longest()
        .is_some_and(|longest| longest <= board.payload())
}

/// What a member gives to a rank.
#[inline]
pub(super) fn give<'d>(shape: &Shape, rank: u32, data: &'d [u8]) -> impl Fn(u32) -> &'d [u8] {
    move |to| {
        let (at, len) = shape.gives(rank, to);
        &data[at as usize..][..len as usize]
    }
}

/// After the meeting: the result.
#[inline]
pub(super) fn finish<C: Combiner + ?Sized>(
    shape: &Shape,
    (board, sequence): (&Board, u64),
    input: &Input<'_>,
    output: &mut Output<'_>,
    combiner: Option<&C>,
) {
    let (me, size) = (board.rank, board.size());
    let Shape::Combines(combine, elements) = shape else {
        for from in 0..size {
            let take = shape.takes(me, from);
            match from == me {
                _ if take.len == 0 => {}
                true => output.copy_input(take.at, input, shape.gives(me, me).0, take.len),
                false => board.deliver((sequence, from), output, (take.at, take.len)),
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
    // On the stack, unless they are many.
    let room = || SmallVec::<[u8; 128]>::from_elem(0, elements.bytes as usize);
    let (sum, more) = (&mut room()[..], &mut room()[..]);
    for rank in ranks {
        let with = if rank == 0 { &mut *sum } else { &mut *more };
        match rank == me {
            true => input.read(shape.gives(me, me).0, with),
            false => board.read(sequence, rank, with),
        }
        if rank > 0
            && let Some(combiner) = combiner
        {
            combiner.append(sum, more);
        }
    }
    output.write(0, sum);
}
