//! The time that counts for leases and deadlines: that in which this process ran.
//!
//! A process that was stopped (Ctrl-Z, a debugger) has usually been stopped with all others of its
//! job, which must not miss their deadlines by that. So a long gap between two looks at the clock
//! counts as a look that was slightly late.

use std::time::Duration;

/// A process reads the clock more often than this, unless it is stopped.
const GAP: Duration = Duration::from_millis(1500);

/// Returns a time as messages give it, in milliseconds.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Counts how long this process has run since the clock was created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    seen: Duration,
    ran: Duration,
}

impl Clock {
    /// Creates a clock. `now`: the time since any fixed moment, the same at each look.
    pub(crate) fn new(now: Duration) -> Clock {
        Clock {
            seen: now,
            ran: Duration::ZERO,
        }
    }

    /// Returns the time that this process has run. Never decreases.
    pub(crate) fn look(&mut self, now: Duration) -> Duration {
        self.ran += now.saturating_sub(self.seen).min(GAP);
        self.seen = now;
        self.ran
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_counts_as_one_look() {
        let begin = Duration::from_secs(77);
        let mut clock = Clock::new(begin);
        let at = |ms| begin + Duration::from_millis(ms);
        assert_eq!(clock.look(at(400)), Duration::from_millis(400));
        assert_eq!(clock.look(at(900)), Duration::from_millis(900));
        // Stopped for an hour.
        let hour = 3_600_000;
        let after = Duration::from_millis(900) + GAP;
        assert_eq!(clock.look(at(900 + hour)), after);
        let later = after + Duration::from_millis(100);
        assert_eq!(clock.look(at(1000 + hour)), later);
    }
}
