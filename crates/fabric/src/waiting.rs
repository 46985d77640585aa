//! Waiting: the one loop in which a thread makes progress until what it waits for is there.
//!
//! Any number of threads may wait on a fabric. One of them drives: it takes turns of the engine, spins, yields
//! and finally sleeps on the doorbell, as [`Backoff`] says. The others sleep, each on a word of its own, and are
//! woken when a turn has ended the operation that they wait for, or, where they wait for something else, when a
//! turn has brought anything. When the driver has what it waited for, it wakes one of the others, which drives
//! from then on.
//!
//! # Invariants
//! C1 Whoever takes a turn that brings something, driver or not, tells the others ([`Core::turn`]). So no frame
//!    is taken whose receiver goes on sleeping.
//! C2 While threads are parked, one drives, or has been woken to do so. A parked thread looks again after
//!    [`PARK`] in any case.
//! C3 The driver sleeps without the lock. Whoever leaves work to it meanwhile rings the doorbell.

use crate::backoff::{Backoff, Rest};
use crate::engine::Engine;
use crate::fabric::{Core, Fabric, Shared};
use crate::ops::{Key, Ops, Outcome};
use crate::transport::Transport;
use crate::{Bell, Error, PeerId, Result, Whom};
use samite_mem::Guard;
use std::thread::Thread;
use std::time::Duration;

/// How long a thread is parked at most: deadlines, and the end of the process, are looked at so often.
const PARK: Duration = Duration::from_millis(100);
/// The same for one that waits for a word of memory: nobody tells of such a store while the driver is awake.
const PARK_FOR_WORD: Duration = Duration::from_micros(200);
/// How often a word is looked at between two turns of the engine: a neighbour's store comes back from its line
/// in less time than a turn takes.
const LOOKS: u32 = 16;

/// The threads that wait on a fabric.
#[derive(Debug, Default)]
pub(crate) struct Crew {
    is_driven: bool,
    /// The driver sleeps on the doorbell.
    is_asleep: bool,
    parked: Vec<Parked>,
    last: u64,
}

#[derive(Debug)]
struct Parked {
    id: u64,
    thread: Thread,
    /// The operation that it waits for; `None`: it looks at everything that comes.
    key: Option<Key>,
}

impl Crew {
    /// Whether no thread is waiting: what arrives is for whoever takes it.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_driven && self.parked.is_empty()
    }

    /// Wakes the parked threads that a turn may have brought something (C1). Returns whether the driver is
    /// asleep, and so has to be woken, too.
    #[inline(always)]
    pub(crate) fn tell(&mut self, ops: &mut Ops) -> bool {
        if !self.parked.is_empty() {
            self.unpark(|parked| {
                let op = parked.key.and_then(|key| ops.get(key));
                op.is_none_or(|op| op.has_ended())
            });
        }
        self.is_asleep
    }

    #[cold]
    fn unpark(&mut self, mut is_told: impl FnMut(&Parked) -> bool) {
        self.parked.retain(|parked| {
            let is_told = is_told(parked);
            if is_told {
                parked.thread.unpark();
            }
            !is_told
        });
    }

    /// The driver has what it waited for: another thread drives from now on (C2).
    fn hand_over(&mut self) {
        self.is_driven = false;
        if let Some(next) = self.parked.pop() {
            next.thread.unpark();
        }
    }
}

/// A wait of one thread, from its beginning to its end.
pub(crate) struct Waiting<'a> {
    fabric: &'a Shared,
    backoff: Backoff,
    deadline: Duration,
    key: Option<Key>,
    /// How long it may be parked.
    park: Duration,
    is_driver: bool,
}

impl<'a> Waiting<'a> {
    pub(crate) fn new(fabric: &'a Shared, deadline: Duration) -> Self {
        Waiting {
            fabric,
            backoff: Backoff::default(),
            deadline,
            key: None,
            park: PARK,
            is_driver: false,
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

    /// One turn of the engine.
    #[inline]
    pub(crate) fn turn(&mut self, core: &mut Core) {
        if core.turn() > 0 {
            self.backoff.moved();
        }
    }

    /// After a turn: spins, yields or sleeps as driver, or is parked. Returns whether the deadline is over.
    /// `there` is asked once more before a sleep: what other units store without a frame.
    #[inline]
    pub(crate) fn rest(
        &mut self,
        core: &mut Guard<'_, Core>,
        there: &mut dyn FnMut() -> bool,
    ) -> bool {
        if core.crew.is_driven != self.is_driver {
            return self.park(core);
        }
        core.crew.is_driven = true;
        self.is_driver = true;
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
            Rest::Sleep { from, nap } => {
                if let Some(sleep) = transport.announce_sleep(there) {
                    core.crew.is_asleep = true;
                    core.unlocked(|| sleep.sleep(nap));
                    core.crew.is_asleep = false;
                }
                let now = core.transport.now();
                self.backoff.woke(now, from + nap);
            }
        }
        false
    }

    #[cold]
    fn park(&mut self, core: &mut Guard<'_, Core>) -> bool {
        let now = core.transport.now();
        let left = self.backoff.left(now, self.deadline);
        if left.is_zero() {
            return true;
        }
        let nap = left.min(self.park);
        if core.crew.is_asleep && core.engine.is_busy() {
            Bell::of(core, core.engine.me).nudge(); // C3
        }
        let crew = &mut core.crew;
        crew.last += 1;
        let id = crew.last;
        crew.parked.push(Parked {
            id,
            thread: std::thread::current(),
            key: self.key,
        });
        core.unlocked(|| std::thread::park_timeout(nap));
        core.crew.parked.retain(|parked| parked.id != id);
        self.backoff.woke(core.transport.now(), now + nap);
        false
    }

    /// Lets another thread drive, for the time in which this one does not wait.
    fn pause(&mut self, core: &mut Core) {
        if std::mem::take(&mut self.is_driver) {
            core.crew.is_driven = false;
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.is_driver {
            self.fabric.core.lock().crew.hand_over();
        }
    }
}

/// What a wait is for, and whom it depends on.
pub(crate) struct Wait<'a> {
    pub(crate) deadline: Duration,
    /// For messages.
    pub(crate) what: &'static str,
    /// Whom a timeout names.
    pub(crate) whom: Whom,
    /// If one of them is lost, the wait ends; `None`: the condition itself looks at that.
    pub(crate) members: Option<&'a [PeerId]>,
    /// The operation whose end ends the wait.
    pub(crate) key: Option<Key>,
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
}

/// Of the engine's state.
struct OfEngine<F>(F);

impl<T, F: FnMut(&mut Engine) -> Option<T>> Condition for OfEngine<F> {
    type Value = T;
    #[inline(always)]
    fn look(&mut self, core: &mut Guard<'_, Core>, _: &mut Waiting<'_>) -> Option<T> {
        (self.0)(&mut core.engine)
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
        let looks = if core.transport.crowded() { 1 } else { LOOKS };
        for _ in 0..looks {
            if let Some(value) = self.found.take().or_else(&mut self.done) {
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
}

/// Of something that the caller moves on itself, without the lock.
struct OfSteps<S, T>(S, T);

impl<V, S: FnMut() -> Option<V>, T: FnMut() -> bool> Condition for OfSteps<S, T> {
    type Value = V;
    fn look(&mut self, core: &mut Guard<'_, Core>, waiting: &mut Waiting<'_>) -> Option<V> {
        waiting.pause(core);
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
        let wait = Wait {
            deadline,
            what,
            whom,
            members: None,
            key: None,
        };
        self.wait_for(&wait, PARK, OfEngine(done))
    }

    /// Waits for an operation and takes its result.
    #[inline]
    pub(crate) fn wait_op(&self, key: Key) -> Result<Outcome> {
        let (whom, what) = {
            let mut core = self.0.core.lock();
            if let Some(done) = core.engine.ops.take(key) {
                return done;
            }
            match core.engine.ops.get(key) {
                Some(op) => (op.peer, op.what),
                None => return Err(Error::Cancelled),
            }
        };
        let wait = Wait {
            deadline: self.deadline(),
            what,
            whom: whom.map_or(Whom::Any, Whom::Peer),
            members: None,
            key: Some(key),
        };
        self.wait_for(
            &wait,
            PARK,
            OfEngine(|engine: &mut Engine| engine.ops.take(key)),
        )?
    }

    /// Waits until `done` answers. It depends on `whom`: when one of them is lost, and `done` still has
    /// no answer then, the wait ends with [`Error::PeerLost`]. `done` must not use the fabric.
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
        self.wait_for(&Wait::of(self.deadline(), what, whom), PARK_FOR_WORD, words)
    }

    /// As [`Fabric::wait_until`], for whoever has operations of its own to move on meanwhile: `step` is
    /// called once per turn, and once more when one of `whom` is lost, and may use the fabric. `there` is asked
    /// once more before a sleep, where news come without a frame; it must not use the fabric.
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
        let wait = Wait::of(deadline, what, whom);
        self.wait_for(&wait, PARK_FOR_WORD, OfSteps(step, there))
    }

    fn wait_for<C: Condition>(
        &self,
        wait: &Wait<'_>,
        park: Duration,
        mut condition: C,
    ) -> Result<C::Value> {
        let mut waiting = Waiting::new(&self.0, wait.deadline);
        (waiting.key, waiting.park) = (wait.key, park);
        let mut core = self.0.core.lock();
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
    fn of(deadline: Duration, what: &'static str, members: &'a [PeerId]) -> Self {
        Wait {
            deadline,
            what,
            whom: members.first().map_or(Whom::Any, |peer| Whom::Peer(*peer)),
            members: Some(members),
            key: None,
        }
    }
}
