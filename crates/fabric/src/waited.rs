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

/// The shortest deadline by which [`Left`] tells a stop from a wait: the kernel wakes a process
/// some milliseconds late.
const BRIEF: Duration = Duration::from_millis(80);

/// The time left of a deadline, for waits in the kernel: these read no clock of the fabric. Whoever
/// waits reads it again after each [`Left::piece`].
#[derive(Debug)]
pub(crate) struct Left {
    start: Instant,
    deadline: Duration,
    /// A wait that has begun may take until then, even beyond the deadline.
    at_least: Duration,
    waited: Waited,
}

impl Left {
    pub(crate) fn new(deadline: Duration) -> Left {
        let mut left = Left {
            start: Instant::now(),
            deadline,
            at_least: Duration::ZERO,
            waited: Waited::default(),
        };
        left.spent();
        left
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns how long it has waited.
    pub(crate) fn spent(&mut self) -> Duration {
        let (now, deadline) = (self.start.elapsed(), self.deadline.max(BRIEF));
        self.waited.look(now, deadline);
        self.waited.so_far()
    }

    /// Returns true if the deadline is over: nothing is tried again.
    pub(crate) fn is_over(&mut self) -> bool {
        self.spent() >= self.deadline
    }

    /// Lets the next wait take so much time, even if less is left.
    pub(crate) fn at_least(&mut self, time: Duration) -> &mut Left {
        self.at_least = self.at_least.max(self.spent().saturating_add(time));
        self
    }

    /// Returns how long the present wait may still take.
    pub(crate) fn get(&mut self) -> Duration {
        let spent = self.spent();
        self.deadline.max(self.at_least).saturating_sub(spent)
    }

    /// As [`Left::get`], but in one piece: no longer than the gap after which the process counts as
    /// stopped.
    pub(crate) fn piece(&mut self) -> Duration {
        self.get().min(gap(self.deadline.max(BRIEF)))
    }
}

/// Returns how late a reading of the clock may be; never zero, however short the deadline is.
pub(crate) fn gap(deadline: Duration) -> Duration {
    GAP.min(deadline / GAP_PART).max(Duration::from_nanos(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A wait may take longer than what is left, and the deadline is over all the same.
    #[test]
    fn a_brief_wait_does_not_move_the_deadline() {
        for deadline in [Duration::ZERO, 2 * MS] {
            let mut left = Left::new(deadline);
            let mut tries = 0;
            while !left.is_over() {
                assert!(!left.at_least(MS).get().is_zero());
                std::thread::sleep(left.piece());
                tries += 1;
            }
            assert!(tries <= 2, "{tries}");
            assert!(!left.at_least(MS).piece().is_zero());
            assert!(left.is_over());
        }
    }

    #[test]
    fn no_deadline_is_too_long() {
        let mut left = Left::new(Duration::MAX);
        assert!(!left.at_least(Duration::MAX).is_over());
        assert_eq!(left.piece(), GAP);
    }
}
