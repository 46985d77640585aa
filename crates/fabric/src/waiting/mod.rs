//! Waiting: the one loop in which a thread makes progress until what it waits for is there.
//!
//! Any number of threads may wait on a fabric. One of them drives: it takes turns of the engine,
//! spins, yields and finally sleeps on the doorbell, as [`Backoff`] says. The others are parked,
//! and woken when a turn has ended the operation that they wait for, or, where they wait for
//! something else, when a turn has brought anything. Who drives when the driver has what it waited
//! for is decided by [`Waiters`], with the invariants E1 to E4.
//!
//! # Invariants
//! C1 A thread that takes a turn which brings something, driver or not, tells the others
//!    ([`Core::turn`]), also if a handler panics in it. So no frame is taken whose receiver goes on
//!    sleeping.
//! C2 While threads are parked, one drives, has been woken to do so, or is in a step of
//!    [`Fabric::wait_stepping`], after which it drives again: steps are short. [`PARK`] is a net,
//!    which no wake-up relies on.
//! C3 The driver sleeps without the lock. A thread that leaves it work meanwhile rings the doorbell
//!    ([`Core::leave`]).

use crate::backoff::{Backoff, Rest};
use crate::engine::Engine;
use crate::fabric::{Core, Fabric, Shared};
use crate::ops::{Key, Outcome};
use crate::transport::Transport;
use crate::{Error, PeerId, Result, Whom};
use samite_mem::{Guard, Waiter};
use std::time::Duration;

/// How long a thread is parked at most. Not in unit tests: a wake-up that is lost ends at the
/// deadline there.
const PARK: Duration = if cfg!(test) {
    Duration::MAX
} else {
    Duration::from_millis(100)
};
/// The same for one that waits for a word of memory: nobody tells of such a store while the driver
/// is awake.
const PARK_FOR_WORD: Duration = Duration::from_micros(200);
/// How often a word is looked at between two turns of the engine: a neighbour's store comes back
/// from its line in less time than a turn takes.
const LOOKS: u32 = 16;

/// A wait of one thread, from its beginning to its end.
pub(crate) struct Waiting<'a> {
    fabric: &'a Shared,
    backoff: Backoff,
    deadline: Duration,
    /// The operation whose end ends the wait; `None`: the thread looks at everything that comes.
    key: Option<Key>,
    /// How long it may be parked.
    park: Duration,
    waiter: Waiter,
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
        }
    }

    /// How long it has been waiting, as last looked at.
    pub(crate) fn waited(&self) -> Duration {
        self.backoff.waited()
    }

    /// There is no deadline any more.
    pub(crate) fn without_deadline(&mut self) {
        self.deadline = Duration::MAX;
    }

    /// One turn of the engine. What it brought is to be looked at next.
    #[inline]
    pub(crate) fn turn(&mut self, core: &mut Core) {
        if core.turn() > 0 {
            self.backoff.moved();
        }
        core.waiters.look(&mut self.waiter);
    }

    /// After a turn: spins, yields or sleeps as driver, or is parked. Returns whether the deadline
    /// is over. `there` is asked once more before a sleep: what other units store without a frame.
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
            // Another thread may have taken what this one waits for.
            Rest::Sleep { .. } if inner.waiters.has_news(&self.waiter) => {}
            Rest::Sleep { from, at_most } => {
                if !inner.engine.deferred.is_empty() {
                    inner.sweep(); // Nobody rings when the last user of a segment leaves.
                }
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

    /// Does something that may take long, while other threads use the fabric, and another one
    /// drives.
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
        if core.waiters.has_news(&self.waiter) {
            return false;
        }
        core.leave();
        let at_most = left.min(self.park);
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
            let waiter = &mut self.waiter;
            self.fabric.with(|core| core.waiters.end(waiter));
        }
    }
}

/// What a wait is for, and whom it depends on.
pub(crate) struct Wait<'a> {
    deadline: Duration,
    /// For messages.
    what: &'static str,
    /// Whom a timeout names.
    whom: Whom,
    /// If one of them is lost, the wait ends; `None`: the condition itself looks at that.
    members: Option<&'a [PeerId]>,
    /// As in [`Waiting`].
    key: Option<Key>,
    park: Duration,
}

/// What ends a wait.
trait Condition {
    type Value;
    /// Looks whether it is fulfilled, with the lock.
    fn look(
        &mut self,
        core: &mut Guard<'_, Core>,
        waiting: &mut Waiting<'_>,
    ) -> Option<Self::Value>;
    /// Looks once more before a sleep.
    fn is_there(&mut self) -> bool {
        false
    }
    /// What that has found, for the caller before anything else happens.
    fn found(&mut self) -> Option<Self::Value> {
        None
    }
}

/// Of the engine's state.
impl<T, F: FnMut(&mut Engine) -> Option<T>> Condition for F {
    type Value = T;
    #[inline(always)]
    fn look(&mut self, core: &mut Guard<'_, Core>, _: &mut Waiting<'_>) -> Option<T> {
        self(&mut core.engine)
    }
}

/// Of words that others store into without a frame.
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

/// Of something that the caller moves on itself, without the lock.
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
    /// Waits until `done` answers. Progress is made here, by whoever waits.
    #[inline]
    pub(crate) fn wait<T>(
        &self,
        what: &'static str,
        whom: Whom,
        done: impl FnMut(&mut Engine) -> Option<T>,
    ) -> Result<T> {
        self.wait_within(self.deadline(), what, whom, done)
    }

    /// As [`Fabric::wait`], with another deadline than the fabric's.
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

    /// Waits for an operation and takes its result.
    #[inline]
    pub(crate) fn wait_op(&self, key: Key) -> Result<Outcome> {
        let (whom, what) = {
            let mut core = self.0.lock()?;
            if let Some(done) = core.engine.ops.take(key) {
                return done;
            }
            match core.engine.ops.get(key) {
                Some(op) => (op.peer, op.what),
                None => return Err(Error::Cancelled),
            }
        };
        let whom = whom.map_or(Whom::Any, Whom::Peer);
        let wait = Wait::of_engine(self.deadline(), what, whom, Some(key));
        self.wait_for(&wait, |engine: &mut Engine| engine.ops.take(key))?
    }

    /// Waits until `done` answers. It depends on `whom`: when one of them is lost, and `done` still
    /// has no answer then, the wait ends with [`Error::PeerLost`]. `done` must not use the fabric,
    /// nor wait for a thread that does: no other one can meanwhile ([`Fabric::on`]).
    ///
    /// # Errors
    /// [`Error::PeerLost`]; [`Error::Timeout`], which names the first of `whom`.
    #[inline]
    pub fn wait_until<T>(
        &self,
        what: &'static str,
        whom: &[PeerId],
        mut done: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        if let Some(value) = done() {
            return Ok(value);
        }
        self.wait_for_words(what, whom, &mut done)
    }

    fn wait_for_words<T>(
        &self,
        what: &'static str,
        whom: &[PeerId],
        done: &mut dyn FnMut() -> Option<T>,
    ) -> Result<T> {
        let words = OfWords { done, found: None };
        self.wait_for(&Wait::of_words(self.deadline(), what, whom), words)
    }

    /// As [`Fabric::wait_until`], for a caller that has operations of its own to move on meanwhile:
    /// `step` is called once per turn, and once more when one of `whom` is lost, and may use the
    /// fabric. It is short: other threads that wait may have to wait for its end. `there` is asked
    /// once more before a sleep, where news come without a frame; it must not use the fabric, as
    /// the condition of [`Fabric::wait_until`].
    pub fn wait_stepping<T>(
        &self,
        what: &'static str,
        whom: &[PeerId],
        step: impl FnMut() -> Option<T>,
        there: impl FnMut() -> bool,
    ) -> Result<T> {
        self.wait_stepping_within(self.deadline(), what, whom, step, there)
    }

    /// As [`Fabric::wait_stepping`], with another deadline than the fabric's.
    pub fn wait_stepping_within<T>(
        &self,
        deadline: Duration,
        what: &'static str,
        whom: &[PeerId],
        step: impl FnMut() -> Option<T>,
        there: impl FnMut() -> bool,
    ) -> Result<T> {
        let wait = Wait::of_words(deadline, what, whom);
        self.wait_for(&wait, OfSteps(step, there))
    }

    fn wait_for<C: Condition>(&self, wait: &Wait<'_>, mut condition: C) -> Result<C::Value> {
        let mut waiting = Waiting::new(&self.0, wait.deadline);
        (waiting.key, waiting.park) = (wait.key, wait.park);
        let mut core = self.0.lock()?;
        let core = &mut core;
        let mut changes = None;
        if let Some(value) = condition.look(core, &mut waiting) {
            return Ok(value);
        }
        loop {
            waiting.turn(core);
            if let Some(value) = condition.look(core, &mut waiting) {
                return Ok(value);
            }
            if core.engine.is_of_parent() {
                return Err(Error::Forked);
            }
            if changes != Some(core.engine.changes) {
                changes = Some(core.engine.changes);
                if let Some(error) = self.ends(wait, core) {
                    // What they did before they were lost counts.
                    return condition.look(core, &mut waiting).ok_or(error);
                }
            }
            if waiting.rest(core, &mut || condition.is_there()) {
                return Err(Error::Timeout {
                    what: wait.what,
                    whom: wait.whom,
                    after: wait.deadline,
                });
            }
            if let Some(value) = condition.found() {
                return Ok(value);
            }
        }
    }

    /// Why a wait is in vain, if so.
    fn ends(&self, wait: &Wait<'_>, core: &mut Core) -> Option<Error> {
        if let Some(members) = wait.members {
            return members.iter().find_map(|peer| core.gone(*peer));
        }
        let is_alone = core.engine.agent_lost && wait.whom == Whom::Any;
        is_alone.then(|| Error::AgentLost(self.domain().unwrap_or_default().to_owned()))
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

    fn of_words(deadline: Duration, what: &'static str, members: &'a [PeerId]) -> Self {
        let whom = members.first().map_or(Whom::Any, |peer| Whom::Peer(*peer));
        Wait {
            members: Some(members),
            park: PARK_FOR_WORD,
            ..Wait::of_engine(deadline, what, whom, None)
        }
    }
}

#[cfg(test)]
mod tests;
