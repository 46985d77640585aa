//! How a process waits: it spins, lets others run, sleeps, and at its deadline it gives up.

use crate::fabric::Core;
use crate::transport::Transport;
use std::time::Duration;

/// How long a wait spins on an idle machine before it yields and then sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// How long it yields: long enough that a crowd on few cores gets round without a futex.
const YIELD: Duration = Duration::from_micros(200);
/// The longest sleep without a look at the deadline.
const NAP: Duration = Duration::from_secs(1);
/// Nobody rings when a full ring has room again, or when a helper has copied its last piece.
const BUSY_NAP: Duration = Duration::from_micros(500);
/// A look at the clock that comes so much later than it should is that of a process that was stopped (Ctrl-Z, a debugger),
/// or starved, or of a machine that slept: such a process waited for nobody then.
const GAP: Duration = Duration::from_secs(2);
/// With a shorter deadline already this part of it: it is looked at far more often.
const GAP_PART: u32 = 8;
/// Polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 64;

/// What a wait has done so far.
///
/// Time counts as far as this process ran: a gap between two looks at the clock counts as one look that was a little late.
/// A process that is stopped has usually been stopped with all others of its job, and what they owe each other is not late
/// by that.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    polls: u32,
    since: Option<Duration>,
    idle_since: Option<Duration>,
    now: Duration,
}

impl Backoff {
    /// Something came: it may go on like this.
    #[inline(always)]
    pub(crate) fn moved(&mut self) {
        self.idle_since = None;
    }

    /// How long it has been waiting, as last looked at.
    pub(crate) fn waited(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| self.now - since)
    }

    /// After a turn in which nothing came: spins, yields or sleeps. `true` when the deadline is over.
    /// `there` is asked once more before a sleep: what other units store without a frame.
    #[inline]
    pub(crate) fn rest(
        &mut self,
        core: &mut Core,
        spin: Option<Duration>,
        deadline: Duration,
        there: &mut dyn FnMut() -> bool,
    ) -> bool {
        let transport = &mut core.transport;
        let crowded = transport.crowded();
        self.polls = self.polls.wrapping_add(1);
        if !crowded && !self.polls.is_multiple_of(POLLS_PER_LOOK) {
            std::hint::spin_loop();
            return false;
        }
        let now = transport.now();
        let left = self.left(now, deadline);
        let idle = now - *self.idle_since.get_or_insert(now);
        let spin = spin.unwrap_or(if crowded { Duration::ZERO } else { SPIN });
        if left.is_zero() {
            return true;
        }
        if idle < spin {
            std::hint::spin_loop();
        } else if idle < spin + YIELD {
            transport.yield_now();
        } else {
            let nap = if core.engine.is_busy() { BUSY_NAP } else { NAP };
            let nap = left.min(nap);
            transport.idle(nap, there);
            self.woke(transport.now(), now + nap);
        }
        false
    }

    /// A look at the clock; what is left until the deadline.
    #[inline]
    fn left(&mut self, now: Duration, deadline: Duration) -> Duration {
        let gap = GAP.min(deadline / GAP_PART);
        let passed = now.saturating_sub(self.now);
        self.now = now;
        let since = self.since.get_or_insert(now);
        if passed > gap {
            *since = now.min(*since + (passed - gap));
        }
        deadline.saturating_sub(now - *since)
    }

    /// A sleep that should have ended by `until` has: what it took longer is part of what the next look finds.
    fn woke(&mut self, now: Duration, until: Duration) {
        self.now = now.min(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    /// Who was stopped was not waiting: its deadline is for others.
    #[test]
    fn who_was_stopped_goes_on_waiting() {
        for (deadline, gap) in [(16 * S, 2 * S), (800 * MS, 100 * MS)] {
            let mut now = 10 * S;
            let mut wait = Backoff::default();
            assert_eq!(wait.left(now, deadline), deadline);
            now += gap;
            assert_eq!(wait.left(now, deadline), deadline - gap);
            // Asleep for as long as it should be, then stopped for an hour.
            wait.woke(now + 3600 * S, now + gap);
            now += 3600 * S;
            assert_eq!(wait.left(now, deadline), deadline - 3 * gap);
            // Stopped while it was looking, whether that brings something or not.
            wait.moved();
            now += 3600 * S;
            assert_eq!(wait.left(now, deadline), deadline - 4 * gap);
            now += 3600 * S;
            assert_eq!(wait.left(now, deadline), deadline - 5 * gap);
            assert_eq!(wait.waited(), 5 * gap);
            // It ends when it did wait.
            wait.woke(now + gap, now + gap);
            now += gap;
            assert_eq!(wait.left(now, deadline), 2 * gap);
            now += gap;
            assert_eq!(wait.left(now, deadline), gap);
            now += gap;
            assert!(wait.left(now, deadline).is_zero());
        }
    }

    /// However late each look is, a wait ends.
    #[test]
    fn who_is_always_late_waits_to_its_end() {
        for deadline in [Duration::ZERO, MS, 300 * MS, 30 * S] {
            let mut wait = Backoff::default();
            let looks = (1..).find(|look| wait.left(look * 5 * S, deadline).is_zero());
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
}
