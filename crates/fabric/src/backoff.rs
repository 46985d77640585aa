//! How a process waits: it spins, yields, sleeps, and gives up at its deadline.

use crate::transport::Transport;
use crate::waited::{Waited, gap};
use std::time::Duration;

/// How long a wait spins on an idle machine before it yields, and later sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// How long a wait yields: long enough that many processes on few cores all run without a futex.
const YIELD: Duration = Duration::from_micros(200);
/// Maximum sleep without a check of the deadline.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Maximum sleep while work is left whose progress rings no doorbell: a full ring that has space
/// again, or a helper that has copied its last piece.
const BUSY_SLEEP_MAX: Duration = Duration::from_micros(500);
/// Polls between two readings of the clock, unless one of them was late.
const POLLS_PER_LOOK: u32 = 64;

/// What a wait does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// It checks again at once.
    Spin,
    /// It yields to other processes.
    Yield,
    /// It sleeps from the given time on, for at most this long.
    Sleep {
        /// The time.
        from: Duration,
        /// The maximum duration.
        at_most: Duration,
    },
    /// Its deadline has passed.
    Over,
}

/// The state of a wait.
///
/// A process can also be stopped while it sleeps, so a stop counts for at most a quarter of the
/// deadline, and at most three seconds.
///
/// Turns can be slow too (a handler that computes). A few slow turns look like a stop if the clock
/// is not read between them, so after one late reading, a wait reads the clock after every turn.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    /// Polls since the last reading; after a late one, so many that the next poll reads the clock.
    polls: u32,
    was_late: bool,
    waited: Waited,
    idle_since: Option<Duration>,
}

impl Backoff {
    /// Something arrived: the idle time starts again.
    #[inline(always)]
    pub(crate) fn moved(&mut self) {
        self.idle_since = None;
    }

    /// The layer above has worked, which may have taken long: the clock is read after this turn.
    pub(crate) fn worked(&mut self) {
        self.polls = POLLS_PER_LOOK - 1;
    }

    /// Returns the time waited up to the last reading.
    pub(crate) fn waited(&self) -> Duration {
        self.waited.so_far()
    }

    /// Decides what to do after a turn in which nothing arrived. `is_busy`: the process has work
    /// left for which no doorbell rings.
    #[inline]
    pub(crate) fn rest(
        &mut self,
        transport: &impl Transport,
        spin: Option<Duration>,
        deadline: Duration,
        is_busy: bool,
    ) -> Rest {
        let oversubscribed = transport.oversubscribed();
        if !self.looks(oversubscribed) {
            return Rest::Spin;
        }
        let now = transport.now();
        let left = self.left(now, deadline);
        let idle = now - *self.idle_since.get_or_insert(now);
        let spin = spin.unwrap_or(if oversubscribed { Duration::ZERO } else { SPIN });
        if left.is_zero() {
            Rest::Over
        } else if idle < spin {
            Rest::Spin
        } else if idle < spin + YIELD {
            Rest::Yield
        } else {
            let at_most = sleep(left, deadline, is_busy);
            Rest::Sleep { from: now, at_most }
        }
    }

    /// Records the end of a sleep that was due at `until`. An overrun becomes part of the gap
    /// before the next reading.
    pub(crate) fn woke(&mut self, now: Duration, until: Duration) {
        self.waited.woke(now, until);
    }

    /// Counts a poll. Returns true if the clock is to be read after it.
    #[inline(always)]
    fn looks(&mut self, oversubscribed: bool) -> bool {
        self.polls += 1;
        oversubscribed || self.polls >= POLLS_PER_LOOK
    }

    /// Reads the clock and returns the time until the deadline.
    #[inline]
    pub(crate) fn left(&mut self, now: Duration, deadline: Duration) -> Duration {
        self.was_late |= self.waited.look(now, deadline);
        self.polls = if self.was_late { POLLS_PER_LOOK - 1 } else { 0 };
        deadline.saturating_sub(self.waited())
    }
}

/// Returns how long to sleep in one piece: no longer than a gap, because a stop during a sleep
/// counts for the whole sleep.
fn sleep(left: Duration, deadline: Duration, is_busy: bool) -> Duration {
    let longest = if is_busy { BUSY_SLEEP_MAX } else { SLEEP_MAX };
    longest.min(left).min(gap(deadline))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waited::GAP_PART;

    const S: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);
    const HOUR: Duration = Duration::from_secs(3600);

    /// A stopped process did not wait: its deadline runs only while it waits.
    #[test]
    fn who_was_stopped_goes_on_waiting() {
        for deadline in [30 * S, 8 * S, S, 800 * MS] {
            let gap = gap(deadline);
            assert!(gap <= 2 * S && gap <= deadline / 8, "{gap:?}");
            let mut now = 10 * S;
            let mut wait = Backoff::default();
            let mut left = wait.left(now, deadline);
            assert_eq!(left, deadline);
            // Stopped while it sleeps.
            let sleep = sleep(left, deadline, false);
            wait.waited.woke(now + HOUR, now + sleep);
            now += HOUR;
            left = wait.left(now, deadline);
            assert_eq!(left, deadline - sleep - gap);
            assert!(deadline - left <= (deadline / 4).min(3 * S), "{left:?}");
            // Stopped between readings, whether the next turn brings something or not.
            wait.moved();
            for _ in 0..2 {
                now += HOUR;
                left -= gap;
                assert_eq!(wait.left(now, deadline), left);
            }
            assert_eq!(wait.waited(), deadline - left);
            // The deadline ends the wait once the process did wait that long.
            while left > gap {
                wait.waited.woke(now + gap, now + gap);
                now += gap;
                left -= gap;
                assert_eq!(wait.left(now, deadline), left);
            }
            assert!(wait.left(now + gap, deadline).is_zero());
        }
    }

    /// A wait ends even if every reading is late.
    #[test]
    fn who_is_always_late_waits_to_its_end() {
        for deadline in [
            Duration::ZERO,
            Duration::from_nanos(1),
            Duration::from_nanos(7),
            MS,
            300 * MS,
            30 * S,
        ] {
            let mut wait = Backoff::default();
            let looks = (1..100).find(|look| wait.left(look * 5 * S, deadline).is_zero());
            let most = if deadline.is_zero() {
                1
            } else {
                1 + 15.max(GAP_PART)
            };
            assert!(
                looks.is_some_and(|looks| looks <= most),
                "{deadline:?}: {looks:?}"
            );
        }
    }

    /// Turns shorter than a gap count as waiting, except for those before the second reading of the
    /// clock.
    #[test]
    fn slow_turns_stretch_a_wait_once() {
        for (turn, deadline) in [(S, 30 * S), (10 * MS, 100 * MS)] {
            let mut wait = Backoff::default();
            let mut now = Duration::ZERO;
            let is_over = |_: &u32| {
                now += turn;
                wait.looks(false) && wait.left(now, deadline).is_zero()
            };
            let turns = (1..10_000).find(is_over);
            assert!(
                turns.is_some_and(|turns| turns * turn <= 2 * POLLS_PER_LOOK * turn + deadline),
                "{turn:?}: {turns:?}"
            );
        }
    }
}
