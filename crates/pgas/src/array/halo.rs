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
    /// The number of directions in which this round's elements were sent; `None` between rounds.
    sent: Option<usize>,
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
            sent: None,
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
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let pgas = samite_pgas::Pgas::new(&fabric)?;
    /// # let world = pgas.world();
    /// use samite_pgas::array::{Array, Halo, Pattern};
    /// let pattern = Pattern::block([100], world.size())?.with_halo(Halo::new([1]))?;
    /// let mut rod = Array::<f64, 1>::new(world, pattern)?.into_local()?;
    /// rod.start_halo()?;
    /// // ... compute the cells that need no ghost cell
    /// rod.finish_halo()?;
    /// // ... compute those at the border
    /// # rod.free()?;
    /// # Ok::<(), samite_pgas::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ArrayError::Exchange`] while another exchange is under way; a lost neighbour; the
    /// deadline. If it fails, some neighbours may already have this round's elements. Another call
    /// sends the elements to the rest.
    pub fn start_halo(&mut self) -> Result<()> {
        let layout = self.own_layout();
        let Some(exchange) = &mut self.exchange else {
            return Ok(());
        };
        if exchange.sent == Some(exchange.directions.len()) {
            return Err(ArrayError::Exchange("is under way already; finish it first").into());
        }
        if exchange.sent.is_none() {
            // The puts of the last round have arrived, because this unit's neighbours answered its
            // signals.
            exchange.landing.team().0.job.flush(None)?;
            exchange.round += 1;
        }
        let mut packed = std::mem::take(&mut exchange.packed);
        let first = exchange.sent.unwrap_or(0);
        for (number, direction) in exchange.directions.iter().enumerate().skip(first) {
            // A neighbour that has its signal may be reading the slot: if a later direction fails,
            // this one is not sent again.
            exchange.sent = Some(number);
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
        exchange.sent = Some(exchange.directions.len());
        Ok(())
    }

    /// Waits for the neighbours' elements and copies them into the ghost cells. Collective.
    ///
    /// # Errors
    /// [`ArrayError::Exchange`] if no exchange was started, or [`Array::start_halo`] failed; a lost
    /// neighbour; the deadline.
    pub fn finish_halo(&mut self) -> Result<()> {
        let layout = self.own_layout();
        let Some(exchange) = &mut self.exchange else {
            return Ok(());
        };
        match exchange.sent {
            None => return Err(ArrayError::Exchange("was not started").into()),
            Some(sent) if sent < exchange.directions.len() => {
                let why = "has not sent to all neighbours; start it again";
                return Err(ArrayError::Exchange(why).into());
            }
            Some(_) => {}
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
        exchange.sent = None;
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

#[cfg(test)]
mod tests {
    use crate::Pgas;
    use crate::array::{Array, ArrayError, Halo, Pattern};
    use crate::tampered::{ALMOST_ALL, starve, starving};
    use samite_testkit::{check, same, simulate};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Duration;

    /// Unit 0 has no credit for its second neighbour when it starts an exchange. It cannot finish
    /// that exchange before it has started it again, and then no ghost cell is old.
    #[test]
    fn an_exchange_that_was_started_in_part_is_started_again() {
        let name = "array::halo::tests::an_exchange_that_was_started_in_part_is_started_again";
        let state = &Arc::new(AtomicU64::new(starving::IDLE));
        simulate(name, 3, 0..8, |fabric, _| {
            let pgas = Pgas::new(fabric)?;
            let world = pgas.world();
            let halo = Halo::new([1]).periodic([true]);
            let mut array = Array::<u64, 1>::new(world, Pattern::block([3], 3)?.with_halo(halo)?)?;
            let words = world.allocate::<u64>(1)?;
            let me = u64::from(world.rank());
            if me == 0 {
                state.store(starving::IDLE, Relaxed);
                starve(fabric, state);
            }
            for round in 1..6 {
                array.write_local(1, &[10 * round + me])?;
                if round == 2 && me == 0 {
                    state.store(starving::KEEPS, Relaxed);
                    for _ in 0..=ALMOST_ALL {
                        drop(words.put_nb(1, 0, &[1])?);
                    }
                    state.store(starving::IDLE, Relaxed);
                    let started = fabric.within(Duration::from_millis(50), || array.start_halo());
                    check!(started.is_err());
                    let again = "has not sent to all neighbours; start it again";
                    same!(array.finish_halo(), Err(ArrayError::Exchange(again).into()));
                    state.store(starving::STARVES, Relaxed);
                    words.put(2, 0, &[1])?;
                }
                array.exchange_halo()?;
                let mut cells = [0; 3];
                array.read_local(0, &mut cells)?;
                same!(
                    cells,
                    [(me + 2) % 3, me, (me + 1) % 3].map(|unit| 10 * round + unit)
                );
            }
            Ok(array.free()?)
        });
    }
}
