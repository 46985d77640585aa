//! Ghost cells: copies of the neighbours' elements around the block of a rank.
//!
//! A *direction* is a step of -1, 0 or 1 along every dimension. A face has one step that is not 0,
//! an edge or corner has more. Cells that go in a direction lie at that side of the sender's block
//! and become ghost cells at the opposite side of the receiver's. They are packed and put into a
//! *slot* of the receiver's landing segment. The segment has two slots per direction, used in turn,
//! and a word that says which round has landed.
//!
//! A member waits for its neighbours only. Two slots are enough: a member that puts round `r + 2`
//! has finished round `r + 1`; for that, its neighbour had to start round `r + 1`, and so had
//! finished round `r`.

use super::layout::Layout;
use super::phase::OwnMut;
use super::{Array, ArrayError, Bounds, Pattern};
use crate::{Elem, Result, Segment, Signal, SignalOp, Team, Wanted};
use std::ops::Range;

/// The state that an array needs to exchange its ghost cells.
#[derive(Debug)]
pub(super) struct Exchange<T, const D: usize> {
    landing: Segment<T>,
    /// Per direction: the last round that has landed.
    landed: Segment<u64>,
    directions: Vec<Direction<D>>,
    /// The number of elements of all slots of one round.
    room: u64,
    round: u64,
    under_way: bool,
    packed: Vec<T>,
}

/// What this unit sends in one direction, and what it receives.
#[derive(Clone, Copy, Debug)]
struct Direction<const D: usize> {
    /// The rank to which this unit puts its cells, and which cells.
    to: Option<(u32, Bounds<D>)>,
    /// The rank that puts cells here, and which ghost cells they become.
    from: Option<(u32, Bounds<D>)>,
    /// The first element of the slot of even rounds.
    slot: u64,
}

impl<T: Elem, const D: usize> Exchange<T, D> {
    /// Frees this unit's slots. All members must have synchronised since they last used them.
    pub(super) fn release(self) {
        self.landing.release();
        self.landed.release();
    }

    /// Creates the exchange; `None` if there is nothing to exchange. Collective.
    pub(super) fn new(team: &Team, pattern: &Pattern<D>) -> Result<Option<Self>> {
        let halo = pattern.halo();
        let largest = pattern.local_extents(0);
        // The slots are sized by rank 0, which has most elements, so that they are symmetric.
        let mut room = 0;
        let mut directions = Vec::new();
        for step in halo.directions() {
            let edge = |d: usize| match step[d] {
                0 => largest[d],
                _ => halo.widths[d],
            };
            let back = step.map(|step: i8| -step);
            let cells = |towards| cells(pattern, team.rank(), towards);
            directions.push(Direction {
                to: pattern
                    .neighbour(team.rank(), step)
                    .map(|rank| (rank, cells(step).own)),
                from: pattern
                    .neighbour(team.rank(), back)
                    .map(|rank| (rank, cells(back).ghosts)),
                slot: room,
            });
            room += (0..D).map(edge).product::<u64>();
        }
        if directions.is_empty() {
            return Ok(None);
        }
        Ok(Some(Exchange {
            landing: team.allocate(2 * room)?,
            landed: team.allocate(directions.len() as u64)?,
            directions,
            room,
            round: 0,
            under_way: false,
            packed: Vec::new(),
        }))
    }

    fn slot(&self, direction: &Direction<D>) -> u64 {
        direction.slot + self.round % 2 * self.room
    }
}

/// The cells at one side of a block, in coordinates of its memory.
struct Cells<const D: usize> {
    /// The outermost elements.
    own: Bounds<D>,
    /// The ghost cells beyond them.
    ghosts: Bounds<D>,
}

fn cells<const D: usize>(pattern: &Pattern<D>, rank: u32, towards: [i8; D]) -> Cells<D> {
    let (len, widths) = (pattern.local_extents(rank), pattern.halo().widths);
    let ranges = |d: usize| {
        let (width, end) = (widths[d], widths[d] + len[d]);
        match towards[d] {
            0 => [width..end, width..end],
            1.. => [end.saturating_sub(width)..end, end..end + width],
            _ => [width..2 * width, 0..width],
        }
    };
    Cells {
        own: Bounds::from(std::array::from_fn(|d| ranges(d)[0].clone())),
        ghosts: Bounds::from(std::array::from_fn(|d| ranges(d)[1].clone())),
    }
}

impl<T: Elem, const D: usize, P: OwnMut> Array<T, D, P> {
    /// Fills the ghost cells with the neighbours' elements as they are when the neighbours call
    /// this. Collective: every member calls it and waits for its neighbours only. It needs no other
    /// synchronisation.
    ///
    /// # Errors
    /// [`ArrayError::Exchange`] while another exchange is under way; a lost neighbour; the
    /// deadline.
    pub fn exchange_halo(&mut self) -> Result<()> {
        self.start_halo()?;
        self.finish_halo()
    }

    /// Sends this unit's border elements to its neighbours. Collective; does not wait. The elements
    /// may be changed as soon as it returns. The ghost cells get the neighbours' elements in
    /// [`Array::finish_halo`] and are untouched until then.
    ///
    /// # Errors
    /// [`ArrayError::Exchange`] while another exchange is under way; a lost neighbour.
    pub fn start_halo(&mut self) -> Result<()> {
        let layout = self.own_layout();
        let Some(exchange) = &mut self.exchange else {
            return Ok(());
        };
        if exchange.under_way {
            return Err(ArrayError::Exchange("is under way already; finish it first").into());
        }
        // The puts of the last round have arrived, because this unit's neighbours answered its
        // signals.
        exchange.landing.team().0.job.flush(None)?;
        exchange.under_way = true;
        exchange.round += 1;
        let mut packed = std::mem::take(&mut exchange.packed);
        for (number, direction) in exchange.directions.iter().enumerate() {
            let Some((neighbour, cells)) = direction.to else {
                continue;
            };
            packed.resize(cells.len() as usize, T::zeroed());
            match P::elements(&self.segment) {
                Some(own) => pieces(&layout, cells, |at, line| {
                    copy(&mut packed[at], &own[line]);
                    Ok(())
                })?,
                None => pieces(&layout, cells, |at, line| {
                    P::read(&self.segment, line.start as u64, &mut packed[at])
                })?,
            }
            exchange.landing.put_signal(
                neighbour,
                exchange.slot(direction),
                &packed,
                &exchange.landed,
                Signal {
                    index: number as u64,
                    op: SignalOp::Set,
                    value: exchange.round,
                },
            )?;
        }
        exchange.packed = packed;
        Ok(())
    }

    /// Waits for the neighbours' elements and copies them into the ghost cells. Collective.
    ///
    /// # Errors
    /// [`ArrayError::Exchange`] if no exchange was started; a lost neighbour; the deadline.
    pub fn finish_halo(&mut self) -> Result<()> {
        let layout = self.own_layout();
        let Some(exchange) = &mut self.exchange else {
            return Ok(());
        };
        if !exchange.under_way {
            return Err(ArrayError::Exchange("was not started").into());
        }
        let mut packed = std::mem::take(&mut exchange.packed);
        for (number, direction) in exchange.directions.iter().enumerate() {
            let Some((neighbour, ghosts)) = direction.from else {
                continue;
            };
            // The word is set after the put has landed, so the slot is complete.
            let round = Wanted::AtLeast(exchange.round);
            exchange
                .landed
                .wait_until_from(number as u64, round, neighbour)?;
            packed.resize(ghosts.len() as usize, T::zeroed());
            let slot = exchange.slot(direction);
            exchange.landing.read_local(slot, &mut packed)?;
            match P::elements_mut(&mut self.segment) {
                Some(own) => pieces(&layout, ghosts, |at, line| {
                    copy(&mut own[line], &packed[at]);
                    Ok(())
                })?,
                None => pieces(&layout, ghosts, |at, line| {
                    P::write(&mut self.segment, line.start as u64, &packed[at])
                })?,
            }
        }
        exchange.packed = packed;
        exchange.under_way = false;
        Ok(())
    }
}

/// Calls `each(range in a packed buffer, range in memory)` for the lines of a box.
fn pieces<const D: usize>(
    layout: &Layout<D>,
    cells: Bounds<D>,
    mut each: impl FnMut(Range<usize>, Range<usize>) -> Result<()>,
) -> Result<()> {
    let mut packed = 0;
    layout.lines(cells).try_for_each(|line| {
        let (first, len) = (line.offset as usize, line.len as usize);
        packed += len;
        each(packed - len..packed, first..first + len)
    })
}

/// Copies a line. Across a dimension, lines are only as long as the halo is wide, so a call would
/// take longer than the copy.
#[inline]
fn copy<T: Copy>(to: &mut [T], from: &[T]) {
    match (to, from) {
        ([to], [from]) => *to = *from,
        (to, from) => to.copy_from_slice(from),
    }
}
