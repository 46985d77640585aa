//! How long a process has waited: time for which it was stopped does not count.

use std::time::{Duration, Instant};

/// If the clock is read this much later than expected, the process was stopped (Ctrl-Z, a debugger)
/// or starved, or the machine was suspended. During that time, the process did not wait for a peer.
const GAP: Duration = Duration::from_secs(2);
/// For a short deadline, the gap is this fraction of it: the clock is then read far more often.
pub(crate) const GAP_PART: u32 = 8;

/// How long a process has waited, by readings of a clock. For waits that consist of several waits
/// of the fabric and count the same way.
///
/// Only time counts in which this process ran: a gap between two readings counts as one reading
/// that was slightly late. A stopped process was usually stopped together with all others of its
/// job, and that does not delay what they owe each other. A stop counts for at most an eighth of
/// the deadline, and at most two seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waited {
    since: Option<Duration>,
    /// The last reading.
    now: Duration,
}

impl Waited {
    /// Records a reading of the clock: the time since an origin that is the same for all readings.
    /// Returns true if it was late.
    #[inline]
    pub fn look(&mut self, now: Duration, deadline: Duration) -> bool {
        let gap = gap(deadline);
        let passed = now.saturating_sub(self.now);
        self.now = now;
        match &mut self.since {
            None => {
                self.since = Some(now);
                false
            }
            Some(since) if passed > gap => {
                *since = now.min(*since + (passed - gap));
                true
            }
            Some(_) => false,
        }
    }

    /// Returns the time from the first reading to the last one.
    #[inline]
    pub fn so_far(&self) -> Duration {
        self.since
            .map_or(Duration::ZERO, |since| self.now.saturating_sub(since))
    }

    /// Records the end of a sleep that was due at `until`. An overrun becomes part of the gap
    /// before the next reading.
    pub(crate) fn woke(&mut self, now: Duration, until: Duration) {
        self.now = now.min(until);
    }
}

/// The time left of a deadline, for waits in the kernel: these read no clock of the fabric.
#[derive(Debug)]
pub(crate) struct Left {
    start: Instant,
    deadline: Duration,
    waited: Waited,
}

impl Left {
    pub(crate) fn new(deadline: Duration) -> Left {
        let mut left = Left {
            start: Instant::now(),
            deadline,
            waited: Waited::default(),
        };
        left.get();
        left
    }

    /// Returns how long it has waited.
    pub(crate) fn spent(&mut self) -> Duration {
        self.waited.look(self.start.elapsed(), self.deadline);
        self.waited.so_far()
    }

    pub(crate) fn get(&mut self) -> Duration {
        self.deadline.saturating_sub(self.spent())
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.get().is_zero()
    }

    /// Extends the deadline, so that at least so much time is left.
    pub(crate) fn at_least(&mut self, time: Duration) -> &mut Left {
        self.deadline = self.deadline.max(self.spent().saturating_add(time));
        self
    }

    /// Returns how long to wait in one piece: no longer than the gap after which the process counts
    /// as stopped.
    pub(crate) fn piece(&mut self) -> Duration {
        self.get().min(gap(self.deadline))
    }
}

/// Returns how late a reading of the clock may be; never zero, however short the deadline is.
pub(crate) fn gap(deadline: Duration) -> Duration {
    GAP.min(deadline / GAP_PART).max(Duration::from_nanos(1))
}
