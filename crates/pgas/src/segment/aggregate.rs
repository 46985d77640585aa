//! Irregular access, element by element, without a round trip for each.
//!
//! On mapped memory, the cost of a random element is the transfer of its cache line. The line of an
//! element is prefetched when the element is named and used some elements later, so that many
//! transfers are in flight at once. Over messages, the elements for one member are collected and
//! travel together. At most [`IN_FLIGHT`] batches are unanswered: a unit that sends faster than the
//! others answer waits.
//!
//! Source: exstack and conveyors of the bale programs (Maley and DeVinney, IA^3 2019).

use super::{Segment, Shared};
use crate::atomic::{self, AtomicElem, Update, width};
use crate::check::AccessKind;
use crate::{Elem, Error, Result};
use samite_fabric::{Atomic, Handle, Remote, WordUpdate};
use std::collections::VecDeque;

/// How many elements' lines are prefetched ahead: about what a core can have in flight, and more
/// because some of them hit.
const AHEAD: usize = 32;
/// The number of elements that travel to one member together.
const BATCH: usize = 1024;
/// The number of batches without an answer.
const IN_FLIGHT: usize = 8;

/// An element of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The rank of the member.
    pub rank: u32,
    /// The index of the element.
    pub index: u64,
}

/// Updates in flight; see [`Segment::updates`].
///
/// ```
/// # use samite_fabric::{Config, Fabric, Identity};
/// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
/// # let pgas = samite_pgas::Pgas::new(&fabric)?;
/// # let world = pgas.world();
/// use samite_pgas::{Location, Update};
/// let table = world.allocate::<u64>(1000)?;
/// let mut updates = table.updates(Update::BitXor);
/// for index in 0..1000 {
///     updates.push(0, index, 7)?; // collected, and sent in batches
/// }
/// updates.finish()?;
/// world.barrier()?;
/// let mut values = [0; 2];
/// let places = [Location { rank: 0, index: 5 }, Location { rank: 0, index: 999 }];
/// table.get_scattered(&places, &mut values)?;
/// # table.free()?;
/// # Ok::<(), samite_pgas::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "call finish: updates that are still collected are not done before"]
pub struct Updates<'s, T> {
    segment: &'s Segment<T, Shared>,
    update: Update,
    native: Option<Atomic>,
    /// On mapped memory: updates whose line is prefetched and that are not applied yet.
    near: Vec<(u32, WordUpdate)>,
    /// The position of the oldest of them, once there are [`AHEAD`].
    oldest: usize,
    /// By rank: the updates collected for it.
    far: Vec<Vec<WordUpdate>>,
    in_flight: VecDeque<Handle<u64>>,
}

impl<T: AtomicElem> Segment<T, Shared> {
    /// Begins many updates of elements anywhere, all of the same kind:
    /// `element = element op value`, each atomic, in no particular order. Local. They are complete
    /// when [`Updates::finish`] returns.
    pub fn updates(&self, update: Update) -> Updates<'_, T> {
        Updates {
            segment: self,
            update,
            native: T::native(update),
            near: Vec::with_capacity(AHEAD),
            oldest: 0,
            far: vec![Vec::new(); self.state.remotes.len()],
            in_flight: VecDeque::new(),
        }
    }
}

impl<T: AtomicElem> Updates<'_, T> {
    /// Updates one element, at some time before [`Updates::finish`] returns. Waits while too many
    /// batches are unanswered.
    ///
    /// # Errors
    /// Out of range; [`Error::NoSuchUpdate`]; a lost unit.
    #[inline]
    #[track_caller]
    pub fn push(&mut self, rank: u32, index: u64, value: T) -> Result<()> {
        let offset = self.segment.offset(index);
        let word = WordUpdate {
            offset,
            value: value.to_word(),
        };
        if let (Some(op), Some(window)) = (self.native, self.segment.window(rank))
            && window.contains(offset, size_of::<T>() as u64)
        {
            window.prefetch_write_range(offset, 1);
            return self.do_later(op, (rank, word));
        }
        self.push_slowly((rank, index), value, word)
    }

    #[track_caller]
    fn push_slowly(&mut self, (rank, index): (u32, u64), value: T, word: WordUpdate) -> Result<()> {
        let remote = self
            .segment
            .watched_part(rank, index, 1, AccessKind::Update)?;
        let Some(op) = self.native else {
            // The update is not one operation anywhere, so it cannot be part of a batch.
            let fabric = self.segment.team().fabric();
            atomic::fetch_op(fabric, remote, word.offset, self.update, value)?;
            return Ok(());
        };
        self.segment.check_range(rank, index, 1)?;
        if remote.mapped().is_some() {
            return self.do_later(op, (rank, word));
        }
        let batch = &mut self.far[rank as usize];
        batch.push(word);
        if batch.len() == BATCH {
            self.send(rank, op)?;
        }
        Ok(())
    }

    /// Replaces the oldest update whose line was prefetched, which is applied now.
    #[inline(always)]
    fn do_later(&mut self, op: Atomic, update: (u32, WordUpdate)) -> Result<()> {
        if self.near.len() < AHEAD {
            self.near.push(update);
            return Ok(());
        }
        let oldest = std::mem::replace(&mut self.near[self.oldest], update);
        self.oldest = (self.oldest + 1) % AHEAD;
        self.do_now(op, oldest)
    }

    #[inline(always)]
    fn do_now(&self, op: Atomic, (rank, word): (u32, WordUpdate)) -> Result<()> {
        let values = (word.value, 0);
        if let Some(window) = self.segment.window(rank)
            && op
                .try_apply(window, word.offset, width::<T>(), values)
                .is_some()
        {
            return Ok(());
        }
        let remote = self.segment.remote(rank)?;
        remote.atomic(word.offset, op, width::<T>(), word.value, 0)?;
        Ok(())
    }

    #[cold]
    fn send(&mut self, rank: u32, op: Atomic) -> Result<()> {
        let batch = std::mem::take(&mut self.far[rank as usize]);
        let remote = self.segment.remote(rank)?;
        let handle = remote.update_batch(op, width::<T>(), &batch)?;
        self.in_flight.push_back(handle);
        if self.in_flight.len() > IN_FLIGHT
            && let Some(oldest) = self.in_flight.pop_front()
        {
            oldest.wait()?;
        }
        Ok(())
    }

    /// Waits until every update is complete at all members. One-sided.
    pub fn finish(mut self) -> Result<()> {
        if let Some(op) = self.native {
            for update in std::mem::take(&mut self.near) {
                self.do_now(op, update)?;
            }
            for rank in 0..self.far.len() as u32 {
                if !self.far[rank as usize].is_empty() {
                    self.send(rank, op)?;
                }
            }
        }
        samite_fabric::wait_all(self.in_flight.drain(..))?;
        Ok(())
    }
}

impl<T: Elem> Segment<T, Shared> {
    /// Copies the elements at `places`, anywhere in the segment, to `into`. One-sided; complete
    /// when it returns.
    #[track_caller]
    pub fn get_scattered(&self, places: &[Location], into: &mut [T]) -> Result<()> {
        if places.len() != into.len() {
            return Err(Error::WrongLength {
                what: "one element for each place",
                expected: places.len() as u64,
                found: into.len() as u64,
            });
        }
        let mut far: Vec<Vec<usize>> = vec![Vec::new(); self.state.remotes.len()];
        for (at, place) in places.iter().enumerate() {
            if let Some(next) = places.get(at + AHEAD / 2) {
                self.ask_for_line(*next);
            }
            let remote = self.watched_part(place.rank, place.index, 1, AccessKind::Get)?;
            if remote.mapped().is_some() {
                let into = std::slice::from_mut(&mut into[at]);
                let offset = self.offset(place.index);
                remote
                    .get(offset, crate::bytes_of_mut(into))
                    .map_err(|error| self.say(error, place.rank, place.index, 1))?;
            } else {
                self.check_range(place.rank, place.index, 1)?;
                far[place.rank as usize].push(at);
            }
        }
        self.get_far(places, &far, into)
    }

    #[inline(always)]
    fn ask_for_line(&self, place: Location) {
        let remote = self.state.remotes.get(place.rank as usize);
        if let Some(bytes) = remote.and_then(Remote::mapped) {
            bytes.prefetch(self.offset(place.index));
        }
    }

    /// Gets the elements `far[rank]` of `places`, in batches that go to all members at once.
    fn get_far(&self, places: &[Location], far: &[Vec<usize>], into: &mut [T]) -> Result<()> {
        let size = size_of::<T>() as u64;
        if size == 0 {
            return Ok(());
        }
        let mut in_flight: VecDeque<(&[usize], Handle<Vec<u8>>)> = VecDeque::new();
        let longest = far.iter().map(Vec::len).max().unwrap_or(0);
        let mut take = |which: &[usize], handle: Handle<Vec<u8>>| -> Result<()> {
            let elements = bytemuck::allocation::pod_collect_to_vec::<u8, T>(&handle.wait()?);
            for (at, element) in which.iter().zip(elements) {
                into[*at] = element;
            }
            Ok(())
        };
        // One batch per member and round, so that the members answer at the same time.
        for start in (0..longest).step_by(BATCH) {
            for (remote, which) in self.state.remotes.iter().zip(far) {
                let end = which.len().min(start + BATCH);
                let Some(batch) = which.get(start..end).filter(|batch| !batch.is_empty()) else {
                    continue;
                };
                let offset = |at: &usize| self.offset(places[*at].index);
                let offsets: Vec<u64> = batch.iter().map(offset).collect();
                in_flight.push_back((batch, remote.get_batch(size, &offsets)?));
                if in_flight.len() > IN_FLIGHT
                    && let Some((which, handle)) = in_flight.pop_front()
                {
                    take(which, handle)?;
                }
            }
        }
        for (which, handle) in in_flight {
            take(which, handle)?;
        }
        Ok(())
    }
}
