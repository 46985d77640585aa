//! Time as leases and deadlines count it: that in which this process ran.
//!
//! A process that is stopped (Ctrl-Z, a debugger) has usually been stopped with all others of its
//! job. What they owe each other is not late by that: a gap between two looks at the clock counts
//! as one look that was a little late.

use std::time::Duration;

/// Who looks at a clock does so more often than this, unless it is stopped.
const GAP: Duration = Duration::from_millis(1500);

/// How long this process has run since the clock was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    seen: Duration,
    ran: Duration,
}

impl Clock {
    /// `now`: time since any moment, the same one at each look.
    pub(crate) fn new(now: Duration) -> Clock {
        Clock {
            seen: now,
            ran: Duration::ZERO,
        }
    }

    /// The time that this process has run; never less than before.
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
