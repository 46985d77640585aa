//! How a process waits: it spins, lets others run, sleeps, and at its deadline it gives up.

use crate::transport::Transport;
use std::time::Duration;

/// How long a wait spins on an idle machine before it yields and then sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// How long it yields: long enough that a crowd on few cores gets round without a futex.
const YIELD: Duration = Duration::from_micros(200);
/// The longest sleep without a look at the deadline.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Nobody rings when a full ring has room again, or when a helper has copied its last piece.
const BUSY_SLEEP_MAX: Duration = Duration::from_micros(500);
/// A look at the clock that comes so much later than it should is that of a process that was
/// stopped (Ctrl-Z, a debugger), or starved, or of a machine that slept: such a process waited for
/// nobody then.
const GAP: Duration = Duration::from_secs(2);
/// With a shorter deadline already this part of it: it is looked at far more often.
const GAP_PART: u32 = 8;
/// Polls between two looks at the clock, as long as none of these was late.
const POLLS_PER_LOOK: u32 = 64;

/// How long somebody has waited, by looks at a clock: for waits that are made of several of the
/// fabric's, which all count alike.
///
/// Time counts as far as this process ran: a gap between two looks at the clock counts as one look
/// that was a little late. A process that is stopped has usually been stopped with all others of
/// its job, and what they owe each other is not late by that: a stop counts for an eighth of the
/// deadline, and never for more than two seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waited {
    since: Option<Duration>,
    /// The last look.
    now: Duration,
}

impl Waited {
    /// A look at the clock: the time since some moment, the same for all looks. Whether it was
    /// late.
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

    /// The time from the first look to the last one.
    #[inline]
    pub fn so_far(&self) -> Duration {
        self.since
            .map_or(Duration::ZERO, |since| self.now.saturating_sub(since))
    }

    /// A sleep that should have ended by `until` has: what it took longer is part of what the next
    /// look finds.
    fn woke(&mut self, now: Duration, until: Duration) {
        self.now = now.min(until);
    }
}

/// How a wait rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// It looks again at once.
    Spin,
    /// It lets others run.
    Yield,
    /// It sleeps for so long at most, from this moment on.
    Sleep {
        /// The moment.
        from: Duration,
        /// How long.
        at_most: Duration,
    },
    /// Its deadline is over.
    Over,
}

/// What a wait has done so far.
///
/// It may be stopped while it sleeps, too: so a stop counts for a quarter of the deadline at most,
/// and never for more than three seconds.
///
/// Turns may be slow, too (a handler that computes). Nothing tells a few slow ones from a stop, as
/// long as nobody looks at the clock between them: a wait that was late once looks after each.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    /// Since the last look; as many as there are between two, once a look was late.
    polls: u32,
    was_late: bool,
    waited: Waited,
    idle_since: Option<Duration>,
}

impl Backoff {
    /// Something came: it may go on like this.
    #[inline(always)]
    pub(crate) fn moved(&mut self) {
        self.idle_since = None;
    }

    /// How long it has been waiting, as last looked at.
    pub(crate) fn waited(&self) -> Duration {
        self.waited.so_far()
    }

    /// What to do after a turn in which nothing came. `is_busy`: nobody rings for what this process
    /// still does.
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

    /// A sleep that should have ended by `until` has: what it took longer is part of what the next
    /// look finds.
    pub(crate) fn woke(&mut self, now: Duration, until: Duration) {
        self.waited.woke(now, until);
    }

    /// Counts a poll; whether to look at the clock after it.
    #[inline(always)]
    fn looks(&mut self, oversubscribed: bool) -> bool {
        self.polls += 1;
        oversubscribed || self.polls >= POLLS_PER_LOOK
    }

    /// A look at the clock; what is left until the deadline.
    #[inline]
    pub(crate) fn left(&mut self, now: Duration, deadline: Duration) -> Duration {
        self.was_late |= self.waited.look(now, deadline);
        self.polls = if self.was_late { POLLS_PER_LOOK - 1 } else { 0 };
        deadline.saturating_sub(self.waited())
    }
}

/// How much later than it should a look at the clock may be. Some time, however short the deadline
/// is.
fn gap(deadline: Duration) -> Duration {
    GAP.min(deadline / GAP_PART).max(Duration::from_nanos(1))
}

/// How long to sleep at once: no longer than a gap, since a stop that hits a sleep counts for all
/// of it.
fn sleep(left: Duration, deadline: Duration, is_busy: bool) -> Duration {
    let longest = if is_busy { BUSY_SLEEP_MAX } else { SLEEP_MAX };
    longest.min(left).min(gap(deadline))
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);
    const HOUR: Duration = Duration::from_secs(3600);

    /// Who was stopped was not waiting: its deadline is for others.
    #[test]
    fn who_was_stopped_goes_on_waiting() {
        for deadline in [30 * S, 8 * S, S, 800 * MS] {
            let gap = gap(deadline);
            assert!(gap <= 2 * S && gap <= deadline / 8, "{gap:?}");
            let mut now = 10 * S;
            let mut wait = Backoff::default();
            let mut left = wait.left(now, deadline);
            assert_eq!(left, deadline);
            // Stopped while it is asleep.
            let sleep = sleep(left, deadline, false);
            wait.waited.woke(now + HOUR, now + sleep);
            now += HOUR;
            left = wait.left(now, deadline);
            assert_eq!(left, deadline - sleep - gap);
            assert!(deadline - left <= (deadline / 4).min(3 * S), "{left:?}");
            // While it was looking, whether that brings something or not.
            wait.moved();
            for _ in 0..2 {
                now += HOUR;
                left -= gap;
                assert_eq!(wait.left(now, deadline), left);
            }
            assert_eq!(wait.waited(), deadline - left);
            // It ends when it did wait.
            while left > gap {
                wait.waited.woke(now + gap, now + gap);
                now += gap;
                left -= gap;
                assert_eq!(wait.left(now, deadline), left);
            }
            assert!(wait.left(now + gap, deadline).is_zero());
        }
    }

    /// However late each look is, a wait ends.
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

    /// Turns that are shorter than a gap are part of the wait, but for those until the clock is
    /// looked at for the second time.
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
