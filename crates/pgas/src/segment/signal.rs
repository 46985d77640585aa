//! Data with a signal, and waiting for one.
//!
//! Source: put-with-signal and wait-until of OpenSHMEM 1.5. The data are visible to a unit that has
//! seen the signal. On mapped memory, this costs a copy, one atomic instruction, and a check
//! whether the other unit sleeps; otherwise two messages that arrive in order.

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

/// A change of a word for which a unit may wait.
///
/// ```
/// # use samite_fabric::{Config, Fabric, Identity};
/// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
/// # let pgas = samite_pgas::Pgas::new(&fabric)?;
/// # let world = pgas.world();
/// use samite_pgas::{Signal, SignalOp, Wanted};
/// let (rows, signals) = (world.allocate::<f64>(100)?, world.allocate::<u64>(1)?);
/// let right = (world.rank() + 1) % world.size();
/// let filled = Signal { index: 0, op: SignalOp::Add, value: 1 };
/// rows.put_signal(right, 0, &[0.5; 100], &signals, filled)?;
/// signals.wait_until(0, Wanted::AtLeast(1))?; // the row from the left has arrived
/// assert_eq!(rows.get_value(world.rank(), 99)?, 0.5);
/// # rows.free()?;
/// # signals.free()?;
/// # Ok::<(), samite_pgas::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// The index of the word.
    pub index: u64,
    /// How it changes.
    pub op: SignalOp,
    /// The operand.
    pub value: u64,
}

/// The condition for which a wait waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The word equals the value.
    Equal(u64),
    /// The word differs from the value.
    Differs(u64),
    /// The word is at least the value.
    AtLeast(u64),
    /// The word is greater than the value.
    MoreThan(u64),
    /// The word is at most the value.
    AtMost(u64),
    /// The word is less than the value.
    LessThan(u64),
}

impl Wanted {
    /// Returns true if a word satisfies the condition.
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
    /// complete when it returns. A unit that sees the signal sees the data.
    #[track_caller]
    pub fn put_signal(
        &self,
        rank: u32,
        index: u64,
        from: &[T],
        signals: &Segment<u64, Shared>,
        signal: Signal,
    ) -> Result<()> {
        // Requests to one member are executed in order, so no wait is needed in between.
        self.put_implicit(rank, index, from)?;
        signals.signal(rank, signal)
    }
}

impl Segment<u64, Shared> {
    /// Changes a word of a member that it may be waiting for ([`Segment::wait_until`]). One-sided.
    /// A unit that sees the change sees everything that this unit put to the member before.
    #[track_caller]
    pub fn signal(&self, rank: u32, signal: Signal) -> Result<()> {
        let Signal { index, op, value } = signal;
        let unit = self.team().unit(rank)?;
        if self.parts.checked {
            // The data come before the signal: a unit that sees the signal finds them complete.
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
            // Messages in flight to the member (for its own registered memory) come first.
            job.complete_implicit(Some(unit))?;
            remote
                .atomic(offset, op, Width::W64, value, 0)
                .map_err(wrong)?;
            job.nudge(unit);
        } else {
            let handle = remote.atomic_nb(offset, op, Width::W64, value, 0);
            job.leave_to_flush(unit, handle.map_err(wrong)?);
        }
        Ok(())
    }

    /// Waits until a word of this unit's own part satisfies `wanted`. Returns the word. What was
    /// put before the signal is then visible. Any member may send it: the wait ends early if one of
    /// them is lost.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`]; a lost member; the deadline.
    #[track_caller]
    pub fn wait_until(&self, index: u64, wanted: Wanted) -> Result<u64> {
        self.wait_from(index, wanted, self.team().peers())
    }

    /// Waits like [`Segment::wait_until`], for a signal that only the member `from` sends.
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
            let len = self.len();
            return Err(super::out_of_range(self.team(), unit, index, 1, len));
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

    /// Returns true if a word of this unit's own part satisfies `wanted`; makes some progress.
    #[track_caller]
    pub fn test_signal(&self, index: u64, wanted: Wanted) -> Result<bool> {
        self.team().fabric().progress();
        Ok(wanted.holds(self.load(self.team().rank(), index)?))
    }
}
