//! Waiting: the single loop in which a thread makes progress until its condition holds.
//!
//! Any number of threads may wait on a fabric. One of them drives: it takes turns of the engine,
//! spins, yields and finally sleeps on the doorbell, as [`Backoff`] says. The others are parked. A
//! parked thread is woken when a turn has ended its operation or, if it waits for something else,
//! when a turn has brought anything. [`Waiters`] decides who drives next when the driver's wait
//! ends, with the invariants E1 to E4.
//!
//! # Invariants
//! C1 A thread whose turn brings something, driver or not, tells the others ([`Core::turn`]), even
//!    if a handler panics in it. So no receiver of a frame that was taken stays asleep.
//! C2 While threads are parked, one drives, has been woken to do so, or is in a step of
//!    [`Fabric::wait_stepping`], after which it drives again: steps are short. [`PARK`] is a safety
//!    net on which no wake-up relies.
//! C3 The driver sleeps without the lock. A thread that leaves it work meanwhile rings the doorbell
//!    ([`Core::leave`]).
//!
//! # Files
//! `mod` (the loop) · `shown` (a long wait is published, for display)

mod shown;

pub(crate) use shown::For;
pub use shown::PeerWait;

use crate::backoff::{Backoff, Rest};
use crate::engine::Engine;
use crate::fabric::{Core, Fabric, Shared};
use crate::interrupt;
use crate::ops::{Key, Outcome};
use crate::transport::Transport;
use crate::{Error, PeerId, Result, Whom};
use samite_mem::{Guard, Waiter};
use std::time::Duration;

/// The longest time for which a thread is parked. Not in unit tests, where a lost wake-up ends at
/// the deadline.
const PARK: Duration = if cfg!(test) {
    Duration::MAX
} else {
    Duration::from_millis(100)
};
/// The same for a thread that waits for a word of memory: nothing announces such a store while the
/// driver is awake.
const PARK_FOR_WORD: Duration = Duration::from_micros(200);
/// How often a word is read between two turns of the engine: a neighbour's store arrives in less
/// time than a turn takes.
const LOOKS: u32 = 16;

/// A wait of one thread, from beginning to end.
pub(crate) struct Waiting<'a> {
    fabric: &'a Shared,
    backoff: Backoff,
    deadline: Duration,
    /// The operation whose end ends the wait; `None`: the thread looks at everything that arrives.
    key: Option<Key>,
    /// The longest time for which it is parked.
    park: Duration,
    waiter: Waiter,
    /// What it is for; `None`: not to be shown to others.
    pub(crate) of: Option<For>,
    /// How often it went to sleep as driver.
    sleeps: u32,
    /// The number under which it is published; 0 if it never was.
    shown: u64,
    /// When it last looked whether it is interrupted.
    looked: Option<Duration>,
    is_interrupted: bool,
}

impl<'a> Waiting<'a> {
    pub(crate) fn new(fabric: &'a Shared, deadline: Duration) -> Self {
        Waiting {
            fabric,
            backoff: Backoff::default(),
            deadline,
            key: None,
            park: PARK,
            waiter: Waiter::default(),
            of: None,
            sleeps: 0,
            shown: 0,
            looked: None,
            is_interrupted: false,
        }
    }

    /// Returns how long it had waited when it last read the clock.
    pub(crate) fn waited(&self) -> Duration {
        self.backoff.waited()
    }

    /// Removes the deadline.
    pub(crate) fn without_deadline(&mut self) {
        self.deadline = Duration::MAX;
    }

    /// Takes one turn of the engine. The caller then checks what it brought.
    #[inline]
    pub(crate) fn turn(&mut self, core: &mut Core) {
        if core.turn() > 0 {
            self.backoff.moved();
        }
        core.waiters.look(&mut self.waiter);
    }

    /// Called after a turn: spins, yields or sleeps as driver, or is parked. Returns whether the
    /// deadline is over. `there` is called once before a sleep, to check for stores of other units
    /// that come without a frame.
    #[inline]
    pub(crate) fn rest(
        &mut self,
        core: &mut Guard<'_, Core>,
        there: &mut dyn FnMut() -> bool,
    ) -> bool {
        if !core.waiters.drive(&mut self.waiter) {
            return self.park(core);
        }
        if core.is_wanted() {
            core.let_others();
        }
        let inner = &mut **core;
        let is_busy = inner.engine.is_busy();
        let transport = &mut inner.transport;
        match self
            .backoff
            .rest(transport, self.fabric.spin, self.deadline, is_busy)
        {
            Rest::Over => return true,
            Rest::Spin => std::hint::spin_loop(),
            Rest::Yield => transport.yield_now(),
            // Another thread's turn may have brought what this one waits for.
            Rest::Sleep { .. } if inner.waiters.has_news(&self.waiter) => {}
            Rest::Sleep { from, .. } if self.look_for_interrupt(core, from) => {}
            Rest::Sleep { from, at_most } => {
                let at_most = at_most.min(self.sleep_max());
                let inner = &mut **core;
                if !inner.engine.deferred.is_empty() {
                    inner.sweep(); // No bell rings when the last user of a segment leaves.
                }
                if self.sleeps > 0 {
                    self.show(inner);
                }
                self.sleeps = self.sleeps.saturating_add(1);
                if let Some(sleep) = inner.transport.announce_sleep(there) {
                    core.waiters.sleep();
                    core.unlocked(|| sleep.sleep(at_most));
                    core.waiters.wake();
                }
                let now = core.transport.now();
                self.backoff.woke(now, from + at_most);
            }
        }
        false
    }

    /// Looks whether the thread is interrupted, if that is due. Returns whether it has looked:
    /// that may have taken long.
    fn look_for_interrupt(&mut self, core: &mut Guard<'_, Core>, now: Duration) -> bool {
        let Some(check) = interrupt::check().filter(|_| !self.is_interrupted) else {
            return false;
        };
        let is_due = |looked| now.saturating_sub(looked) >= interrupt::LOOK;
        if !self.looked.is_none_or(is_due) {
            return false;
        }
        self.looked = Some(now);
        core.waiters.step_out(&mut self.waiter);
        self.is_interrupted = core.unlocked(check);
        true
    }

    /// Returns the longest sleep after which it looks again.
    fn sleep_max(&self) -> Duration {
        match interrupt::check() {
            Some(_) if !self.is_interrupted => interrupt::LOOK,
            _ => Duration::MAX,
        }
    }

    /// Runs `f`, which may take long, while other threads use the fabric, and another one drives.
    pub(crate) fn unlocked<R>(&mut self, core: &mut Guard<'_, Core>, f: impl FnOnce() -> R) -> R {
        core.waiters.end(&mut self.waiter);
        core.unlocked(f)
    }

    #[cold]
    fn park(&mut self, core: &mut Guard<'_, Core>) -> bool {
        let now = core.transport.now();
        let left = self.backoff.left(now, self.deadline);
        if left.is_zero() {
            return true;
        }
        if core.waiters.has_news(&self.waiter) || self.look_for_interrupt(core, now) {
            return false;
        }
        core.leave();
        let at_most = left.min(self.park).min(self.sleep_max());
        let id = core.waiters.park(self.key);
        core.unlocked(|| std::thread::park_timeout(at_most));
        core.waiters.unpark(id);
        self.backoff
            .woke(core.transport.now(), now.saturating_add(at_most));
        false
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.waiter.has_rested() {
            let (fabric, waiter, shown) = (self.fabric, &mut self.waiter, self.shown);
            fabric.with(|core| {
                // Another thread may have published its own wait since.
                if shown != 0 && shown == core.shown {
                    fabric.node.layout.hide_wait(fabric.node.me);
                }
                core.waiters.end(waiter);
            });
        }
    }
}

/// The peers on which a wait depends: the wait ends when one of them is lost.
#[derive(Clone, Copy)]
pub struct Awaited<'a> {
    peers: &'a [PeerId],
    /// The incarnation of a peer that is awaited; any if there is none.
    life_of: Option<&'a dyn Fn(PeerId) -> Option<u32>>,
}

/// What a wait is for, and on whom it depends.
pub(crate) struct Wait<'a> {
    deadline: Duration,
    /// For error messages.
    what: &'static str,
    /// The peer that a timeout names.
    whom: Whom,
    /// Those whose loss ends the wait; `None`: the condition itself checks that.
    members: Option<Awaited<'a>>,
    /// As in [`Waiting`].
    key: Option<Key>,
    park: Duration,
}

/// The condition that ends a wait.
trait Condition {
    type Value;
    /// Checks, with the lock, whether it holds.
    fn look(
        &mut self,
        core: &mut Guard<'_, Core>,
        waiting: &mut Waiting<'_>,
    ) -> Option<Self::Value>;
    /// Checks again before a sleep.
    fn is_there(&mut self) -> bool {
        false
    }
    /// Returns what that check found, for the caller before anything else happens.
    fn found(&mut self) -> Option<Self::Value> {
        None
    }
}

/// A condition on the engine's state.
impl<T, F: FnMut(&mut Engine) -> Option<T>> Condition for F {
    type Value = T;
    #[inline(always)]
    fn look(&mut self, core: &mut Guard<'_, Core>, _: &mut Waiting<'_>) -> Option<T> {
        self(&mut core.engine)
    }
}

/// A condition on words that others store without a frame.
struct OfWords<'a, T> {
    done: &'a mut dyn FnMut() -> Option<T>,
    found: Option<T>,
}

impl<T> Condition for OfWords<'_, T> {
    type Value = T;
    #[inline(always)]
    fn look(&mut self, core: &mut Guard<'_, Core>, _: &mut Waiting<'_>) -> Option<T> {
        let looks = if core.transport.oversubscribed() {
            1
        } else {
            LOOKS
        };
        for _ in 0..looks {
            if let Some(value) = (self.done)() {
                return Some(value);
            }
            std::hint::spin_loop();
        }
        None
    }
    fn is_there(&mut self) -> bool {
        self.found = (self.done)();
        self.found.is_some()
    }
    fn found(&mut self) -> Option<T> {
        self.found.take()
    }
}

/// A condition that the caller advances itself, without the lock.
struct OfSteps<S, T>(S, T);

impl<V, S: FnMut() -> Option<V>, T: FnMut() -> bool> Condition for OfSteps<S, T> {
    type Value = V;
    fn look(&mut self, core: &mut Guard<'_, Core>, waiting: &mut Waiting<'_>) -> Option<V> {
        core.waiters.step_out(&mut waiting.waiter);
        core.unlocked(&mut self.0)
    }
    fn is_there(&mut self) -> bool {
        (self.1)()
    }
}

impl Fabric {
    /// Waits until `done` returns a value. The waiting thread makes progress.
    #[inline]
    pub(crate) fn wait<T>(
        &self,
        what: &'static str,
        whom: Whom,
        done: impl FnMut(&mut Engine) -> Option<T>,
    ) -> Result<T> {
        self.wait_within(self.deadline(), what, whom, done)
    }

    /// As [`Fabric::wait`], with a deadline other than the fabric's.
    #[inline]
    pub(crate) fn wait_within<T>(
        &self,
        deadline: Duration,
        what: &'static str,
        whom: Whom,
        done: impl FnMut(&mut Engine) -> Option<T>,
    ) -> Result<T> {
        self.wait_for(&Wait::of_engine(deadline, what, whom, None), done)
    }

    /// As [`Fabric::wait_within`], for a wait of several parts: adds to `spent` the time for which
    /// it waited, without that for which this process was stopped.
    pub(crate) fn wait_part<T>(
        &self,
        deadline: Duration,
        spent: &mut Duration,
        what: &'static str,
        done: impl FnMut(&mut Engine) -> Option<T>,
    ) -> Result<T> {
        let left = deadline.saturating_sub(*spent);
        let mut waiting = Waiting::new(&self.0, left);
        let wait = Wait::of_engine(left, what, Whom::Any, None);
        let ended = self.wait_in(&mut waiting, &wait, done);
        *spent += waiting.waited();
        ended
    }

    /// Waits for an operation and takes its result.
    #[inline]
    pub(crate) fn wait_op(&self, key: Key) -> Result<Outcome> {
        let (whom, what) = {
            let mut core = self.0.lock()?;
            if let Some(done) = core.engine.take(key) {
                return done;
            }
            match core.engine.ops.get(key) {
                Some(op) => (op.peer, op.what),
                None => return Err(Error::Cancelled),
            }
        };
        let whom = whom.map_or(Whom::Any, Whom::Peer);
        let wait = Wait::of_engine(self.deadline(), what, whom, Some(key));
        self.wait_for(&wait, |engine: &mut Engine| engine.take(key))?
    }

    /// Waits until `done` returns a value. It depends on `whom`: when one of them is lost, and
    /// `done` still returns none, the wait ends with [`Error::PeerLost`]. `done` must not use the
    /// fabric, nor wait for a thread that does: no other thread can meanwhile ([`Fabric::on`]).
    ///
    /// # Errors
    /// [`Error::PeerLost`]; [`Error::Timeout`], which names the first of `whom`.
    #[inline]
    pub fn wait_until<'w, T>(
        &self,
        what: &'static str,
        whom: impl Into<Awaited<'w>>,
        mut done: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        if let Some(value) = done() {
            return Ok(value);
        }
        self.wait_for_words(what, whom.into(), &mut done)
    }

    fn wait_for_words<T>(
        &self,
        what: &'static str,
        whom: Awaited<'_>,
        done: &mut dyn FnMut() -> Option<T>,
    ) -> Result<T> {
        let words = OfWords { done, found: None };
        self.wait_for(&Wait::of_words(self.deadline(), what, whom), words)
    }

    /// As [`Fabric::wait_until`], for a caller that advances operations of its own meanwhile:
    /// `step` is called once per turn, and again when one of `whom` is lost, and may use the
    /// fabric. It must be short: other waiting threads may have to wait for its end. `there` is
    /// called once before a sleep, for news that comes without a frame; like the condition of
    /// [`Fabric::wait_until`], it must not use the fabric.
    pub fn wait_stepping<'w, T>(
        &self,
        what: &'static str,
        whom: impl Into<Awaited<'w>>,
        step: impl FnMut() -> Option<T>,
        there: impl FnMut() -> bool,
    ) -> Result<T> {
        self.wait_stepping_within(self.deadline(), what, whom, step, there)
    }

    /// As [`Fabric::wait_stepping`], with a deadline other than the fabric's.
    pub fn wait_stepping_within<'w, T>(
        &self,
        deadline: Duration,
        what: &'static str,
        whom: impl Into<Awaited<'w>>,
        step: impl FnMut() -> Option<T>,
        there: impl FnMut() -> bool,
    ) -> Result<T> {
        let wait = Wait::of_words(deadline, what, whom.into());
        self.wait_for(&wait, OfSteps(step, there))
    }

    fn wait_for<C: Condition>(&self, wait: &Wait<'_>, condition: C) -> Result<C::Value> {
        self.wait_in(&mut Waiting::new(&self.0, wait.deadline), wait, condition)
    }

    #[inline(always)]
    fn wait_in<C: Condition>(
        &self,
        waiting: &mut Waiting<'_>,
        wait: &Wait<'_>,
        mut condition: C,
    ) -> Result<C::Value> {
        (waiting.key, waiting.park) = (wait.key, wait.park);
        waiting.of = Some(For {
            what: wait.what,
            whom: wait.whom,
            others: wait
                .members
                .map_or(0, |of| of.peers.len().saturating_sub(1)),
        });
        let mut core = self.0.lock()?;
        let core = &mut core;
        let mut changes = None;
        if let Some(value) = condition.look(core, waiting) {
            return Ok(value);
        }
        loop {
            waiting.turn(core);
            if core.engine.upcall_wanted {
                core.waiters.end(&mut waiting.waiter);
                self.work(core);
                waiting.backoff.worked();
            }
            if let Some(value) = condition.look(core, waiting) {
                return Ok(value);
            }
            if core.engine.is_of_parent() {
                return Err(Error::Forked);
            }
            if changes != Some(core.engine.changes) {
                changes = Some(core.engine.changes);
                if let Some(error) = self.ends(wait, core) {
                    // What they did before they were lost still counts.
                    return condition.look(core, waiting).ok_or(error);
                }
            }
            if waiting.rest(core, &mut || condition.is_there()) {
                // Another thread's turn may have brought it since the last look.
                let late = |core: &mut Core| {
                    let Wait {
                        what,
                        whom,
                        deadline,
                        key,
                        ..
                    } = *wait;
                    core.engine.timeout(what, whom, deadline, key)
                };
                return condition.look(core, waiting).ok_or_else(|| late(core));
            }
            if let Some(value) = condition.found() {
                return Ok(value);
            }
            if waiting.is_interrupted {
                return condition.look(core, waiting).ok_or(Error::Interrupted);
            }
        }
    }

    /// Returns why a wait is futile, if so.
    fn ends(&self, wait: &Wait<'_>, core: &mut Core) -> Option<Error> {
        if let Some(members) = wait.members {
            return members.lost(core);
        }
        let whom = core.engine.whom_of(wait.whom, wait.key);
        let is_alone = core.engine.agent_lost && whom == Whom::Any;
        is_alone.then(|| Error::AgentLost(self.domain().unwrap_or_default().to_owned()))
    }
}

impl<'a> Awaited<'a> {
    /// Waits for the incarnations of peers that `life_of` returns, which must not use the fabric:
    /// a peer is lost as soon as its number belongs to another process.
    pub fn lives(peers: &'a [PeerId], life_of: &'a dyn Fn(PeerId) -> Option<u32>) -> Awaited<'a> {
        let life_of = Some(life_of);
        Awaited { peers, life_of }
    }

    /// Returns why the first of them that is lost is lost.
    fn lost(&self, core: &mut Core) -> Option<Error> {
        self.peers.iter().find_map(|peer| {
            let life = self.life_of.and_then(|life_of| life_of(*peer));
            match life {
                Some(life) => core.lost_life(*peer, life),
                None => core.gone(*peer),
            }
        })
    }
}

impl<'a> From<&'a [PeerId]> for Awaited<'a> {
    fn from(peers: &'a [PeerId]) -> Awaited<'a> {
        let life_of = None;
        Awaited { peers, life_of }
    }
}

impl<'a, const N: usize> From<&'a [PeerId; N]> for Awaited<'a> {
    fn from(peers: &'a [PeerId; N]) -> Awaited<'a> {
        peers.as_slice().into()
    }
}

impl<'a> Wait<'a> {
    fn of_engine(deadline: Duration, what: &'static str, whom: Whom, key: Option<Key>) -> Self {
        Wait {
            deadline,
            what,
            whom,
            members: None,
            key,
            park: PARK,
        }
    }

    fn of_words(deadline: Duration, what: &'static str, members: Awaited<'a>) -> Self {
        let whom = members
            .peers
            .first()
            .map_or(Whom::Any, |peer| Whom::Peer(*peer));
        Wait {
            members: Some(members),
            park: PARK_FOR_WORD,
            ..Wait::of_engine(deadline, what, whom, None)
        }
    }
}

#[cfg(test)]
mod tests;
