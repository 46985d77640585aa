//! Data with a signal, and waiting for one.
//!
//! Source: put-with-signal and wait-until of OpenSHMEM 1.5. The data are visible to whoever has
//! seen the signal. On mapped memory: a copy, one atomic instruction, and a look at whether the
//! other sleeps; over messages two messages that arrive in order.

use super::{Segment, Shared};
use crate::check::AccessKind;
use crate::{Elem, Result, Unit};
use samite_fabric::{Atomic, Width};
use samite_mem::sync::Ordering;

/// How a signal changes its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalOp {
    /// The word becomes the value.
    Set,
    /// The value is added.
    Add,
}

/// A change of a word that somebody may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Index of the word.
    pub index: u64,
    /// How it changes.
    pub op: SignalOp,
    /// By what.
    pub value: u64,
}

/// What a wait wants of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The word is the value.
    Equal(u64),
    /// The word is not the value.
    Differs(u64),
    /// The word is the value or more.
    AtLeast(u64),
    /// The word is more than the value.
    MoreThan(u64),
    /// The word is the value or less.
    AtMost(u64),
    /// The word is less than the value.
    LessThan(u64),
}

impl Wanted {
    /// Whether a word is as wanted.
    #[inline(always)]
    pub fn holds(self, word: u64) -> bool {
        match self {
            Wanted::Equal(value) => word == value,
            Wanted::Differs(value) => word != value,
            Wanted::AtLeast(value) => word >= value,
            Wanted::MoreThan(value) => word > value,
            Wanted::AtMost(value) => word <= value,
            Wanted::LessThan(value) => word < value,
        }
    }
}

impl<T: Elem> Segment<T, Shared> {
    /// Puts `from` and then changes a word of `signals` at the same member. One-sided; locally
    /// complete when it returns. Whoever sees the signal sees the data.
    #[track_caller]
    pub fn put_signal(
        &self,
        rank: u32,
        index: u64,
        from: &[T],
        signals: &Segment<u64, Shared>,
        signal: Signal,
    ) -> Result<()> {
        // Requests to one member are carried out in order, so nothing is waited for in between.
        self.put_implicit(rank, index, from)?;
        signals.signal(rank, signal)
    }
}

impl Segment<u64, Shared> {
    /// Changes a word of a member that it may be waiting for ([`Segment::wait_until`]). One-sided;
    /// everything that this unit put to the member before is visible to whoever sees the change.
    #[track_caller]
    pub fn signal(&self, rank: u32, signal: Signal) -> Result<()> {
        let Signal { index, op, value } = signal;
        let unit = self.team().unit(rank)?;
        if self.parts.checked {
            // The data come before the signal: for whoever sees it they are complete.
            self.team().0.job.complete_for_signal(unit)?;
        }
        let remote = self.watched_part(rank, index, 1, AccessKind::Signal)?;
        let op = match op {
            SignalOp::Set => Atomic::Swap,
            SignalOp::Add => Atomic::Add,
        };
        let (offset, job) = (self.offset(index), &self.team().0.job);
        let wrong = |error| self.say(error, rank, index, 1);
        if remote.mapped().is_some() {
            // Messages to the member that are under way (its own memory, registered) come first.
            job.complete_implicit(Some(unit))?;
            remote
                .atomic(offset, op, Width::W64, value, 0)
                .map_err(wrong)?;
            job.bells[unit.index()].nudge();
        } else {
            let handle = remote.atomic_nb(offset, op, Width::W64, value, 0);
            job.leave_to_flush(unit, handle.map_err(wrong)?);
        }
        Ok(())
    }

    /// Waits until a word of this unit's own part is as wanted; the word. What came with the signal
    /// is visible then. Any member may send it: the wait ends early when one of them is lost.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`]; a lost member; the deadline.
    #[track_caller]
    pub fn wait_until(&self, index: u64, wanted: Wanted) -> Result<u64> {
        self.wait_from(index, wanted, self.team().peers())
    }

    /// As [`Segment::wait_until`], for a signal that only one member sends.
    #[track_caller]
    pub fn wait_until_from(&self, index: u64, wanted: Wanted, from: u32) -> Result<u64> {
        let peer = self.team().peer(from)?;
        self.wait_from(index, wanted, &[peer])
    }

    #[track_caller]
    fn wait_from(&self, index: u64, wanted: Wanted, whom: &[samite_fabric::PeerId]) -> Result<u64> {
        let (bytes, offset) = (&self.state.bytes, self.offset(index));
        if !bytes.contains(offset, 8) {
            let unit: Unit = self.team().0.job.me;
            return Err(super::out_of_range(unit, index, 1, self.len()));
        }
        let word = bytes.u64(offset);
        let seen = self.team().0.job.wait_until("a signal", whom, || {
            // ORDERING: Acquire pairs with the signal's atomic: what was put before it is visible.
            let word = word.load(Ordering::Acquire);
            wanted.holds(word).then_some(word)
        })?;
        let own = self.team().rank();
        self.watched_part(own, index, 1, AccessKind::Wait)?;
        self.seen(own, index)?;
        Ok(seen)
    }

    /// Whether a word of this unit's own part is as wanted; makes some progress.
    #[track_caller]
    pub fn test_signal(&self, index: u64, wanted: Wanted) -> Result<bool> {
        self.team().fabric().progress();
        Ok(wanted.holds(self.load(self.team().rank(), index)?))
    }
}
