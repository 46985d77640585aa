//! What a unit does with the frames of moved code: the receiving half of every call.
//!
//! ```text
//!   frame --> Upcall::arrived (in the engine: parsed, kept in the inbox; answers end their call)
//!             Upcall::work    (no lock of the engine)
//!               CALL     code ready: run --> effects: forward, spawn, reply, define   `run`
//!                        with an input: once for each piece of it                     `map`
//!                        code missing: parked; FETCH to the sender                    `fetch`
//!               FETCH    CODE, in parts                                               `fetch`
//!               PREFETCH passed on down a tree                                        `prefetch`
//!               CODE     whole: to the loader thread; then the parked calls run       `loader`
//!               FAIL     back along the way of the call, or to the origin             `run`
//!   frames that `Work` sends go through `Work::post`, which keeps them while there is no room;
//!   `Mobile` waits for room itself
//! ```
//!
//! # Invariants
//! X1 One thread works at a time (`work` is locked with `try_lock`). Each sets `again` before it
//!    tries; the one that gets the lock clears it before it looks, and looks again after it has
//!    released the lock if somebody has set it. All accesses are sequentially consistent, so
//!    either the second thread gets the lock or the first one sees `again`.
//! X2 Kernels run without the lock of the engine and of `inbox` and `calls`, so frames go on
//!    arriving. A kernel delays only other kernels of its unit, by at most its limit of time.
//! X3 What is kept is counted in bytes: calls in the inbox, those of the unit to itself and parked
//!    ones up to [`INBOX_MAX`] each, of the inbox and of parked ones a fourth from one unit; other
//!    frames in the inbox as much again; [`TAKEN`] calls that were taken from there; code of
//!    others up to [`CODE_BYTES`]. Beyond it a call fails as `Busy`, or the least recently used
//!    code is evicted. A parked call whose code has come counts as parked until it runs. Instances
//!    and compiled code are bounded in `ready`.
//! X4 Frames that find no room wait in a queue per peer of bounded length (`outbox`). Beyond it a
//!    call fails as `Busy`, and an answer is dropped: a peer that does not read harms nobody else.
//! X5 No lock is taken inside that of `calls`, which is taken inside the engine's.
//! X6 Only frames of units of this job are taken (`membership`). A unit of which this one has not
//!    heard yet is looked up before its frame is refused.
//! X7 The senders of frames that wait take turns (`inbox`); the calls of one sender stay in order,
//!    and so do its other frames.
//! X8 Failures, requests for code, and code are worked on before the next kernel runs: they do not
//!    wait for the calls of their sender, nor as long as kernels of others take.

mod code;
mod fetch;
mod inbox;
pub(crate) mod llvm;
mod loader;
pub(crate) mod map;
mod membership;
mod outbox;
mod prefetch;
mod ready;
mod run;

use crate::calls::Calls;
use crate::error::{Cause, Failure};
use crate::frame::{self, Head};
use crate::members::Members;
use crate::trail::Trail;
use crate::trust::Policy;
use crate::{Counters, Mobile};
use code::Codes;
use inbox::{Inbox, Refused};
use loader::Loader;
use outbox::Queue;
pub(crate) use run::coarse;
use samite_engines::{Context, Function, Grants};
use samite_fabric::rpc::Life;
use samite_fabric::upcall::Upcall;
use samite_fabric::{Fabric, PeerId};
use samite_mem::ring::Body;
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::Waker;
use std::time::Duration;

/// The most bytes of calls that wait to run, and of those that wait for their code.
pub(crate) const INBOX_MAX: u64 = 16 << 20;
/// The most bytes of capsules that a unit keeps, besides those that its program has registered.
pub(crate) const CODE_BYTES: u64 = 64 << 20;
/// What a frame costs besides its payload.
const EACH: u64 = 128;
/// Calls are taken from the inbox so many at a time, so that it is locked once for them.
const TAKEN: usize = 16;
/// So many calls that found no room are failed before others run.
const REFUSED_AT_ONCE: usize = 1024;
/// A thread works on so many frames, or for about so long, before it looks at what it waits for
/// itself.
const AT_ONCE: usize = 256;
const AT_ONCE_FOR: Duration = Duration::from_millis(5);

thread_local! {
    /// Whether this thread works: a function of the program that uses the `Mobile` would wait for
    /// itself.
    static IS_WORKING: Cell<bool> = const { Cell::new(false) };
}

/// Says so for as long as this thread works, also if a panic ends that.
struct Working;

impl Working {
    fn begin() -> Working {
        IS_WORKING.set(true);
        Working
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        IS_WORKING.set(false);
    }
}

/// A payload: short ones are not allocated.
pub(crate) type Payload = SmallVec<[u8; 64]>;

/// A frame that arrived.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) from: Life,
    pub(crate) kind: u8,
    pub(crate) word: u64,
    /// Its bytes, with its head.
    pub(crate) bytes: Payload,
}

/// A frame that waits for its turn.
#[derive(Debug)]
enum Own {
    /// Of this unit to itself.
    Sent(Arrived),
    /// A parked call whose code is there. It still counts as parked.
    Parked(Arrived),
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Runtime {
    pub(crate) me: Life,
    inbox: Mutex<Inbox>,
    pub(crate) calls: Mutex<Calls>,
    /// The units of the job, for callers: a copy of those in `work`.
    pub(crate) lives: Mutex<Vec<Life>>,
    work: Mutex<Work>,
    again: AtomicBool,
    /// When the first call that a task awaits is late, in nanoseconds of the coarse clock. Written
    /// under the lock of the calls.
    late_at: AtomicU64,
    loader: Loader,
}

/// What one thread at a time works with.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) me: Life,
    /// The number of this unit.
    pub(crate) unit: u32,
    pub(crate) units: Vec<Life>,
    pub(crate) numbers: HashMap<Life, u32, foldhash::fast::RandomState>,
    members: Members,
    pub(crate) context: Option<Box<Context>>,
    pub(crate) codes: Codes,
    pub(crate) grants: Grants,
    /// Those of `grants`.
    pub(crate) bits: u16,
    pub(crate) functions: HashMap<String, Function>,
    pub(crate) policy: Policy,
    pub(crate) counters: Counters,
    trail: Trail,
    /// When the last call ended.
    clock: Duration,
    /// By peer; without empty queues.
    out: BTreeMap<PeerId, Queue>,
    out_bytes: u64,
    /// The next calls of others, at most [`TAKEN`].
    batch: VecDeque<Arrived>,
    /// Frames that are here already, and the cost of those of this unit.
    own: VecDeque<Own>,
    own_bytes: u64,
    /// Whether the next frame is taken from `own`, if there is one: they take turns.
    takes_own: bool,
    /// Whether a call of this unit was ended here, so that its waiter may not know.
    has_ended_here: bool,
    /// Former lives of units that were started again, until their loss is seen.
    replaced: Vec<(u32, Life)>,
    /// Lives of units whose loss has been seen.
    gone: HashMap<Life, u32, foldhash::fast::RandomState>,
    /// When the next call of this unit ends that may have been at one of them.
    doubts_due: Duration,
    /// How calls failed for which nobody waits, the newest ones.
    pub(crate) unwaited: VecDeque<Failure>,
    changes: u64,
}

/// Locks, also after a panic: nothing is left half changed.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runtime {
    pub(crate) fn new(me: Life, unit: u32, units: Vec<Life>) -> Runtime {
        let mut work = Work {
            me,
            unit,
            units,
            numbers: HashMap::default(),
            members: Members::default(),
            context: None,
            codes: Codes::default(),
            grants: Grants::default(),
            bits: 0,
            clock: run::coarse(),
            functions: HashMap::new(),
            policy: Policy::default(),
            counters: Counters::default(),
            trail: Trail::default(),
            out: BTreeMap::new(),
            out_bytes: 0,
            batch: VecDeque::new(),
            own: VecDeque::new(),
            own_bytes: 0,
            takes_own: false,
            has_ended_here: false,
            replaced: Vec::new(),
            gone: HashMap::default(),
            doubts_due: Duration::MAX,
            unwaited: VecDeque::new(),
            changes: 0,
        };
        work.number();
        let mut calls = Calls::new();
        calls.members.add(&work.units);
        Runtime {
            me,
            lives: Mutex::new(work.units.clone()),
            inbox: Mutex::default(),
            calls: Mutex::new(calls),
            work: Mutex::new(work),
            again: AtomicBool::new(false),
            late_at: AtomicU64::new(u64::MAX),
            loader: Loader::new(),
        }
    }

    /// Has the engine that most code needs made in the background.
    pub(crate) fn warm_up(&self) {
        self.loader.warm_up();
    }

    /// Has the engine for bitcode made in the background.
    pub(crate) fn warm_up_native(&self) {
        self.loader.warm_up_native();
    }

    /// Locks what kernels work with: waits until no kernel runs. What was missed meanwhile is done
    /// by the next [`Upcall::work`].
    ///
    /// # Panics
    /// In a function that moved code calls on this unit: it would wait for itself.
    pub(crate) fn with<R>(&self, fabric: &Fabric, f: impl FnOnce(&mut Work) -> R) -> R {
        assert!(
            !IS_WORKING.get(),
            "a kernel cannot use the `Mobile` of its unit"
        );
        let mut work = locked(&self.work);
        work.clock = run::coarse();
        let done = f(&mut work);
        drop(work);
        self.work(fabric);
        done
    }

    /// Takes up to `most` frames and works on them; returns whether there were any, and whether
    /// there may be more.
    fn work_on(&self, work: &mut Work, fabric: &Fabric, most: usize) -> (bool, bool) {
        work.clock = run::coarse(); // First: what follows counts from now.
        work.follow(self, fabric);
        work.take_loaded(self, fabric);
        work.flush(self, fabric);
        if work.codes.due <= work.clock {
            work.ask_again(self, fabric);
        }
        if work.doubts_due <= work.clock {
            work.end_doubtful(self, fabric);
        }
        self.look_for_late(work.clock);
        let mut inbox = locked(&self.inbox);
        if work.batch.is_empty() {
            work.fill(&mut inbox);
        }
        let (has_others, has_refused) = (!inbox.others.is_empty(), !inbox.refused.is_empty());
        drop(inbox);
        if has_refused {
            self.refuse(work, fabric);
        }
        let (has_taken, has_others) = match has_others {
            true => (true, self.take_others(work, fabric)),
            false => (false, false),
        };
        let begin = work.clock;
        for taken in 0..most {
            // They take turns, so that a kernel that calls its own unit does not keep others out.
            work.takes_own = !work.takes_own;
            let next = match work.takes_own {
                true => work.next_own().or_else(|| self.next(work)),
                false => self.next(work).or_else(|| work.next_own()),
            };
            let Some(arrived) = next else {
                return (has_taken || taken > 0, has_others);
            };
            work.take(self, fabric, arrived);
            if work.clock.saturating_sub(begin) >= AT_ONCE_FOR {
                break;
            }
        }
        (true, true)
    }

    /// Works on what does not wait for kernels (X8). Returns whether there is more of it.
    #[cold]
    fn take_others(&self, work: &mut Work, fabric: &Fabric) -> bool {
        let begin = work.clock;
        for _ in 0..AT_ONCE {
            // One by one: what stays in the inbox is found there if its sender is lost meanwhile.
            let next = locked(&self.inbox).others.next();
            let Some((_, arrived)) = next else {
                return false;
            };
            work.take(self, fabric, arrived);
            work.clock = run::coarse();
            if work.clock.saturating_sub(begin) >= AT_ONCE_FOR {
                break;
            }
        }
        !locked(&self.inbox).others.is_empty()
    }

    /// Returns the next call of others.
    #[inline]
    fn next(&self, work: &mut Work) -> Option<Arrived> {
        if work.batch.is_empty() {
            work.fill(&mut locked(&self.inbox));
        }
        work.batch.pop_front()
    }

    /// Has a call wake a task when it ends, and at `late_at` of the coarse clock; as
    /// [`Calls::wake`].
    pub(crate) fn wake_at(
        &self,
        fabric: &Fabric,
        call: u32,
        waker: Waker,
        late_at: Duration,
    ) -> Result<Option<Waker>, Waker> {
        let mut calls = locked(&self.calls);
        let set = calls.wake(call, waker, late_at);
        self.late_at.fetch_min(nanos(late_at), Relaxed);
        drop(calls);
        fabric.want_work_later();
        set
    }

    /// Has the tasks woken whose calls are late. Returns whether others may become late.
    #[inline]
    fn look_for_late(&self, now: Duration) -> bool {
        // ORDERING: Relaxed: only a hint. It is looked at again.
        let late_at = self.late_at.load(Relaxed);
        if late_at <= nanos(now) {
            let mut calls = locked(&self.calls);
            let next = calls.wake_late(now);
            self.late_at.store(nanos(next), Relaxed);
            return next < Duration::MAX;
        }
        late_at < u64::MAX
    }

    /// Wakes the tasks whose calls have ended. Called without a lock: a waker may do anything.
    fn wake(&self) {
        let mut calls = locked(&self.calls);
        let woken = calls.take_woken();
        if !calls.is_awaited() {
            self.late_at.store(u64::MAX, Relaxed);
        }
        drop(calls);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Fails the calls that found no room, before those run that did. While failures wait for room
    /// at a unit, no more of them are made for it: they would be dropped.
    #[cold]
    fn refuse(&self, work: &mut Work, fabric: &Fabric) {
        for _ in 0..REFUSED_AT_ONCE {
            let may = |from: Life| !work.out.contains_key(&from.peer);
            let refused = locked(&self.inbox).refused.next_if(may);
            let Some((from, refused)) = refused else {
                return; // What waits for room has this unit work again.
            };
            self.refuse_one(work, fabric, from, refused);
        }
        fabric.want_work();
    }

    #[cold]
    fn refuse_one(&self, work: &mut Work, fabric: &Fabric, from: Life, refused: Refused) {
        if !work.members.has(from) && !work.admits(self, fabric, from) {
            return work.refuse_stranger(fabric, from, &refused.head);
        }
        if let Some((head, _)) = Head::decode(&refused.head) {
            if let Some(why) = refused.why {
                return work.fail(self, fabric, &head, from, Failure::clone(&why));
            }
            let text = format!(
                "its inbox is full, with {} MiB of calls from one unit or {} MiB in all: wait for \
                 answers before you call again",
                inbox::FROM_ONE >> 20,
                INBOX_MAX >> 20
            );
            let failure = Failure::new(Cause::Busy, text);
            work.fail(self, fabric, &head, from, failure);
        }
    }
}

impl Upcall for Runtime {
    fn arrived(&self, from: Life, word: u64, bytes: &[u8], rest: &Body<'_>) {
        let Some(kind) = bytes.first().copied() else {
            return;
        };
        if kind == frame::REPLY {
            let Some(slot) = frame::word(bytes, 4) else {
                return;
            };
            let mut reply = bytes.get(8..).unwrap_or_default().to_vec();
            append(&mut reply, rest);
            let mut calls = locked(&self.calls);
            if calls.members.has(from) {
                return calls.answer(slot, from, Ok(reply));
            }
            // It may be a unit that has come since: `take` looks again.
        }
        locked(&self.inbox).keep(from, word, bytes, rest);
    }

    fn work(&self, fabric: &Fabric) -> bool {
        if IS_WORKING.get() {
            // ORDERING: SeqCst: X1. This thread looks once more when it has ended.
            self.again.store(true, SeqCst);
            return false;
        }
        let mut has_worked = false;
        loop {
            // ORDERING: SeqCst, here and below: X1.
            self.again.store(true, SeqCst);
            let mut work = match self.work.try_lock() {
                Ok(work) => work,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    // The other thread may run a kernel for long.
                    let is_awaited = self.look_for_late(run::coarse());
                    self.wake();
                    if is_awaited {
                        fabric.want_work_later();
                    }
                    return has_worked;
                }
            };
            self.again.store(false, SeqCst);
            let working = Working::begin();
            let (has_taken, has_more) = self.work_on(&mut work, fabric, AT_ONCE);
            has_worked |= has_taken;
            drop(working);
            let has_ended = std::mem::take(&mut work.has_ended_here);
            let due = work.codes.due.min(work.doubts_due);
            let is_awaited = self.late_at.load(Relaxed) < u64::MAX;
            let waits = work.out_bytes > 0 || due < Duration::MAX || is_awaited;
            drop(work);
            self.wake();
            if has_more || has_ended {
                fabric.want_work();
                return true;
            }
            if waits {
                fabric.want_work_later();
            }
            if !self.again.load(SeqCst) {
                if self.loader.has_new_jobs() {
                    // The thread that compiles may have to run on this processor.
                    std::thread::yield_now();
                }
                return has_worked;
            }
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Appends the bytes of a body.
fn append(bytes: &mut Vec<u8>, rest: &Body<'_>) {
    let at = bytes.len();
    bytes.resize(at + rest.len() as usize, 0);
    rest.copy_to(0, &mut bytes[at..]);
}

impl Work {
    /// Drops what holds segments that were granted.
    pub(crate) fn forget_grants(&mut self) {
        self.bits = self.grants.bits();
        self.context = None;
        self.codes.drop_instances();
    }

    /// Takes the next calls of others.
    #[inline]
    fn fill(&mut self, inbox: &mut Inbox) {
        let next = std::iter::from_fn(|| inbox.calls.next());
        self.batch
            .extend(next.take(TAKEN).map(|(_, arrived)| arrived));
    }

    fn next_own(&mut self) -> Option<Arrived> {
        let arrived = match self.own.pop_front()? {
            Own::Sent(arrived) => {
                self.own_bytes -= arrived.bytes.len() as u64 + EACH;
                arrived
            }
            Own::Parked(arrived) => {
                self.codes.unpark([&arrived]);
                arrived
            }
        };
        Some(arrived)
    }

    /// Works on one frame.
    fn take(&mut self, runtime: &Runtime, fabric: &Fabric, arrived: Arrived) {
        let is_unit = self.members.has(arrived.from);
        if !is_unit && !self.admits(runtime, fabric, arrived.from) {
            return self.refuse_stranger(fabric, arrived.from, &arrived.bytes);
        }
        match arrived.kind {
            frame::CALL | frame::PREFETCH => self.call(runtime, fabric, arrived),
            frame::FAIL => self.failed(runtime, fabric, &arrived),
            frame::FETCH => self.fetched(runtime, fabric, &arrived),
            frame::CODE => self.code_arrived(runtime, fabric, &arrived),
            frame::REPLY => self.replied(runtime, &arrived),
            kind => tracing::warn!(from = %arrived.from.peer, kind, "an unknown frame"),
        }
    }
}

/// Returns the name of a unit, for people.
pub(crate) fn name(fabric: &Fabric, life: Life) -> String {
    let name = fabric.name_of(life.peer, Some(life.incarnation));
    name.map_or_else(|| life.peer.to_string(), |name| name.to_string())
}

impl Mobile {
    /// The runtime, for the files of the handle.
    pub(crate) fn runtime(&self) -> &Arc<Runtime> {
        &self.0.runtime
    }
}

#[cfg(test)]
mod tests;
