//! What a unit does with the frames of moved code: the receiving half of every call.
//!
//! ```text
//!   frame --> Upcall::arrived (in the engine: parsed, kept in the inbox; answers end their call)
//!             Upcall::work    (no lock of the engine)
//!               CALL     code ready: run --> effects: forward, spawn, reply, define   `run`
//!                        with an input: once for each piece of it                     `map`
//!                        code missing: parked; FETCH to the sender                    `code`
//!               FETCH    CODE, in parts                                               `code`
//!               CODE     whole: to the loader thread; then the parked calls run       `loader`
//!               FAIL     back along the way of the call, or to the origin             `run`
//!   every frame that leaves goes through `Work::post`: it is kept here while there is no room
//! ```
//!
//! # Invariants
//! X1 One thread works at a time (`work` is locked with `try_lock`). Each sets `again` before it
//!    tries; the one that gets the lock clears it before it looks, and looks again after it has
//!    released the lock if somebody has set it. All accesses are sequentially consistent, so
//!    either the second thread gets the lock or the first one sees `again`.
//! X2 Kernels run without the lock of the engine and of `inbox` and `calls`, so frames go on
//!    arriving. A kernel delays only other kernels of its unit, by at most its limit of time.
//! X3 What is kept is counted in bytes: the inbox, what was taken from it, calls of the unit to
//!    itself, and parked calls up to [`INBOX_MAX`] each, code
//!    up to [`CODE_BYTES`]. Beyond it a call fails as `Busy`, or the code that was not used longest
//!    is evicted.
//! X4 Frames that find no room wait in a queue per peer, of at most [`OUT_MAX`] bytes. Beyond it a
//!    call fails as `Busy`, and an answer is dropped: a peer that does not read harms nobody else.
//! X5 No lock is taken inside that of `calls`, which is taken inside the engine's.

mod code;
mod loader;
pub(crate) mod map;
mod run;

use crate::calls::Calls;
use crate::error::{Cause, Failure};
use crate::frame::{self, Head};
use crate::trail::Trail;
use crate::trust::Policy;
use crate::{Counters, Mobile};
use code::Codes;
use loader::Loader;
use samite_engines::{Context, Function, Grants};
use samite_fabric::rpc::Life;
use samite_fabric::upcall::Upcall;
use samite_fabric::{Fabric, PeerId};
use samite_mem::ring::Body;
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::Waker;
use std::time::Duration;

/// The most bytes of calls that wait to run, and of those that wait for their code.
pub(crate) const INBOX_MAX: u64 = 16 << 20;
/// The most bytes of capsules that a unit keeps.
pub(crate) const CODE_BYTES: u64 = 64 << 20;
/// What a frame costs besides its payload.
const EACH: u64 = 128;
/// The most calls that wait to be refused.
const REFUSED_MAX: usize = 1 << 16;
/// A thread works on so many frames before it looks at what it waits for itself.
const AT_ONCE: usize = 64;

/// The most bytes of frames to one peer that wait for room.
const OUT_MAX: u64 = 4 << 20;

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

#[derive(Debug, Default)]
struct Inbox {
    frames: VecDeque<Arrived>,
    bytes: u64,
    /// Calls that found no room, to be failed.
    refused: VecDeque<Arrived>,
}

/// A frame that leaves when there is room.
#[derive(Debug)]
struct Out {
    to: Life,
    word: u64,
    head: Vec<u8>,
    payload: Vec<u8>,
}

/// Frames to a peer that wait for room.
#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Out>,
    bytes: u64,
}

impl Out {
    fn cost(&self) -> u64 {
        self.payload.len() as u64 + EACH
    }
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
    loader: Loader,
}

/// What one thread at a time works with.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) me: Life,
    /// The number of this unit.
    pub(crate) unit: u32,
    pub(crate) units: Vec<Life>,
    pub(crate) numbers: HashMap<PeerId, u32, foldhash::fast::RandomState>,
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
    /// Frames of others: at most as many as the inbox holds.
    batch: VecDeque<Arrived>,
    /// Calls of this unit to itself, and parked calls whose code is there.
    own: VecDeque<Arrived>,
    own_bytes: u64,
    /// Whether the next frame is taken from `own`, if there is one: they take turns.
    takes_own: bool,
    /// Whether a call of this unit was ended here, so that its waiter may not know.
    has_ended_here: bool,
    /// Lives of units whose loss has been seen.
    gone: HashSet<Life>,
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
            gone: HashSet::new(),
            changes: 0,
        };
        work.number();
        Runtime {
            me,
            lives: Mutex::new(work.units.clone()),
            inbox: Mutex::default(),
            calls: Mutex::default(),
            work: Mutex::new(work),
            again: AtomicBool::new(false),
            loader: Loader::default(),
        }
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
        let done = f(&mut locked(&self.work));
        self.work(fabric);
        done
    }

    /// Takes up to `most` frames and works on them; returns whether there may be more.
    fn work_on(&self, work: &mut Work, fabric: &Fabric, most: usize) -> bool {
        work.follow(self, fabric);
        work.take_loaded(&self.loader);
        work.flush(self, fabric);
        work.clock = run::coarse();
        for _ in 0..most {
            // They take turns, so that a kernel that calls its own unit does not keep others out.
            work.takes_own = !work.takes_own;
            let next = match work.takes_own {
                true => work.next_own().or_else(|| self.next(work)),
                false => self.next(work).or_else(|| work.next_own()),
            };
            let Some(arrived) = next else {
                return self.refuse(work, fabric);
            };
            work.take(self, fabric, arrived);
        }
        true
    }

    /// Returns the next frame that others have sent. All that have arrived are taken at once, so
    /// that the lock is taken once for many.
    #[inline]
    fn next(&self, work: &mut Work) -> Option<Arrived> {
        if let Some(arrived) = work.batch.pop_front() {
            return Some(arrived);
        }
        let mut inbox = locked(&self.inbox);
        std::mem::swap(&mut inbox.frames, &mut work.batch);
        inbox.bytes = 0;
        drop(inbox);
        work.batch.pop_front()
    }

    /// Fails the calls that found no room.
    fn refuse(&self, work: &mut Work, fabric: &Fabric) -> bool {
        let refused = std::mem::take(&mut locked(&self.inbox).refused);
        for arrived in refused {
            if let Some((head, _)) = Head::decode(&arrived.bytes) {
                let text = format!("{INBOX_MAX} bytes of calls wait there already");
                let failure = Failure::new(Cause::Busy, text);
                work.fail(self, fabric, &head, arrived.from, failure);
            }
        }
        false
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
            return locked(&self.calls).answer(slot, Ok(reply));
        }
        let mut all = Payload::from_slice(bytes);
        let at = all.len();
        all.resize(at + rest.len() as usize, 0);
        rest.copy_to(0, &mut all[at..]);
        let mut inbox = locked(&self.inbox);
        let cost = all.len() as u64 + EACH;
        let mut arrived = Arrived {
            from,
            kind,
            word,
            bytes: all,
        };
        let most = match kind {
            frame::CALL => INBOX_MAX,
            _ => 2 * INBOX_MAX,
        };
        if inbox.bytes + cost <= most {
            inbox.bytes += cost;
            inbox.frames.push_back(arrived);
        } else if kind == frame::CALL && inbox.refused.len() < REFUSED_MAX {
            let head = arrived.bytes.len().min(Head::BYTES);
            arrived.bytes = Payload::from_slice(&arrived.bytes[..head]);
            inbox.refused.push_back(arrived);
        } else {
            tracing::warn!(from = %from.peer, kind, "a frame was dropped: too many wait");
        }
    }

    fn work(&self, fabric: &Fabric) {
        if IS_WORKING.get() {
            // ORDERING: SeqCst: X1. This thread looks once more when it has ended.
            return self.again.store(true, SeqCst);
        }
        loop {
            // ORDERING: SeqCst, here and below: X1.
            self.again.store(true, SeqCst);
            let mut work = match self.work.try_lock() {
                Ok(work) => work,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            self.again.store(false, SeqCst);
            let working = Working::begin();
            let has_more = self.work_on(&mut work, fabric, AT_ONCE);
            drop(working);
            let has_told = std::mem::take(&mut work.has_ended_here);
            let waits_for_room = work.out_bytes > 0;
            drop(work);
            // Without a lock: a waker may do anything.
            let woken = locked(&self.calls).take_woken();
            woken.into_iter().for_each(Waker::wake);
            if has_more || has_told {
                return fabric.want_work();
            }
            if waits_for_room {
                fabric.want_work_later();
            }
            if !self.again.load(SeqCst) {
                return;
            }
        }
    }
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

    fn number(&mut self) {
        let units = self.units.iter().enumerate();
        self.numbers = units.map(|(unit, life)| (life.peer, unit as u32)).collect();
    }

    /// Follows membership: units that were lost, and those that have come back.
    fn follow(&mut self, runtime: &Runtime, fabric: &Fabric) {
        let changes = fabric.changes();
        if self.changes == changes {
            return;
        }
        self.changes = changes;
        let job = &fabric.identity().job;
        let before = self.units.clone();
        for info in fabric.peers() {
            let unit = info.identity.unit as usize;
            if &info.identity.job == job
                && let Some(life) = self.units.get_mut(unit)
            {
                (life.peer, life.incarnation) = (info.peer, info.incarnation);
            }
        }
        self.number();
        locked(&runtime.lives).clone_from(&self.units);
        if let Some(context) = &mut self.context {
            context.renew(self.units.len() as u32, self.grants.clone());
        }
        // The first of those whose loss was not seen before.
        let newly = before.into_iter().filter(|life| fabric_lost(fabric, *life));
        let newly: Vec<Life> = newly.filter(|life| self.gone.insert(*life)).collect();
        // X5: what uses the fabric is done without the lock of the calls.
        let waiting = locked(&runtime.calls).waiting();
        for (slot, to, moves) in waiting {
            let lost = match fabric_lost(fabric, to) {
                true => Some(to),
                false if moves => newly.first().copied(),
                false => None,
            };
            if let Some(life) = lost {
                let may_be = if moves { "may have been" } else { "was" };
                let name = name(fabric, life);
                let text = format!("{name} was lost, and the call {may_be} there");
                let failure = Failure::new(Cause::Lost, text);
                locked(&runtime.calls).answer(slot, Err(failure));
                self.has_ended_here = true;
            }
        }
        self.codes.holders_lost(|life| fabric_lost(fabric, life));
        self.fetch_again(runtime, fabric);
    }

    /// Takes what the loader has compiled: the calls that waited for it run next.
    fn take_loaded(&mut self, loader: &Loader) {
        for arrived in self.codes.take_loaded(loader) {
            self.own_bytes += arrived.bytes.len() as u64 + EACH;
            self.own.push_back(arrived);
        }
    }

    fn next_own(&mut self) -> Option<Arrived> {
        let arrived = self.own.pop_front()?;
        self.own_bytes -= arrived.bytes.len() as u64 + EACH;
        Some(arrived)
    }

    /// Sends what waits for room, to those who have some.
    fn flush(&mut self, runtime: &Runtime, fabric: &Fabric) {
        if self.out.is_empty() {
            return;
        }
        let peers: Vec<PeerId> = self.out.keys().copied().collect();
        for peer in peers {
            while let Some(out) = self.out.get_mut(&peer).and_then(|of| of.frames.pop_front()) {
                let posted = fabric.post_upcall(out.to, out.word, &out.head, &out.payload);
                let Some(queue) = self.out.get_mut(&peer) else {
                    break;
                };
                if posted == Ok(false) {
                    queue.frames.push_front(out);
                    break;
                }
                queue.bytes -= out.cost();
                self.out_bytes -= out.cost();
                if let Err(error) = posted {
                    let (head, payload) = (&out.head, &out.payload);
                    self.not_sent(runtime, fabric, head, payload, out.to, &error.into());
                }
            }
            if self
                .out
                .get(&peer)
                .is_some_and(|queue| queue.frames.is_empty())
            {
                self.out.remove(&peer);
            }
        }
    }

    /// Sends a frame, or keeps it until there is room.
    #[inline]
    pub(crate) fn post(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        to: Life,
        word: u64,
        head: &[u8],
        payload: &[u8],
    ) {
        if to == self.me {
            return self.post_here(runtime, fabric, word, head, payload);
        }
        if !self.out.contains_key(&to.peer) {
            match fabric.post_upcall(to, word, head, payload) {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    return self.not_sent(runtime, fabric, head, payload, to, &error.into());
                }
            }
        }
        self.wait_for_room(runtime, fabric, to, word, head, payload);
    }

    #[cold]
    fn wait_for_room(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        to: Life,
        word: u64,
        head: &[u8],
        payload: &[u8],
    ) {
        let out = Out {
            to,
            word,
            head: head.to_vec(),
            payload: payload.to_vec(),
        };
        let queue = self.out.entry(to.peer).or_default();
        if queue.bytes + out.cost() > OUT_MAX {
            let name = name(fabric, to);
            let text = format!("{name} does not take what is sent to it");
            let why = Failure::new(Cause::Busy, text);
            return self.not_sent(runtime, fabric, head, payload, to, &NotSent::Full(why));
        }
        queue.bytes += out.cost();
        self.out_bytes += out.cost();
        queue.frames.push_back(out);
    }

    /// A frame from this unit to itself.
    pub(crate) fn post_here(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        word: u64,
        head: &[u8],
        payload: &[u8],
    ) {
        let kind = head.first().copied().unwrap_or(0);
        if kind == frame::REPLY {
            if let Some(slot) = frame::word(head, 4) {
                locked(&runtime.calls).answer(slot, Ok(payload.to_vec()));
                self.has_ended_here = true;
            }
            return;
        }
        let mut bytes = Payload::from_slice(head);
        bytes.extend_from_slice(payload);
        let cost = bytes.len() as u64 + EACH;
        if self.own_bytes + cost > INBOX_MAX && kind == frame::CALL {
            let text = format!("{INBOX_MAX} bytes of calls wait there already");
            let why = NotSent::Full(Failure::new(Cause::Busy, text));
            let me = self.me;
            return self.not_sent(runtime, fabric, head, payload, me, &why);
        }
        self.own_bytes += cost;
        self.own.push_back(Arrived {
            from: self.me,
            kind,
            word,
            bytes,
        });
    }

    /// A frame could not be sent: its call fails at its origin.
    #[cold]
    fn not_sent(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        head: &[u8],
        payload: &[u8],
        to: Life,
        why: &NotSent,
    ) {
        let failure = match why {
            NotSent::Full(failure) => failure.clone(),
            NotSent::Fabric(error @ samite_fabric::Error::TooLong { .. }) => {
                Failure::new(Cause::Forbidden, error.to_string())
            }
            NotSent::Fabric(error) => Failure::new(Cause::Lost, error.to_string()),
        };
        match (head.first().copied(), Head::decode(head)) {
            (Some(frame::CALL | frame::PREFETCH), Some((head, _))) if head.one_way => {
                tracing::debug!(to = %to.peer, %failure, "a one-way call was not sent");
            }
            (Some(frame::CALL | frame::PREFETCH), Some((head, _))) => {
                let mut failure = failure;
                failure.through(self.unit);
                self.fail_to_origin(runtime, fabric, &head, &failure);
            }
            // A failure that cannot go back along its way goes to the origin.
            (Some(frame::FAIL), Some((head, _))) if head.origin != to => {
                let head_bytes = head.encode(frame::FAIL);
                self.post(runtime, fabric, head.origin, 0, &head_bytes, payload);
            }
            _ => tracing::debug!(to = %to.peer, %failure, "a frame of moved code was not sent"),
        }
    }

    /// Works on one frame.
    fn take(&mut self, runtime: &Runtime, fabric: &Fabric, arrived: Arrived) {
        match arrived.kind {
            frame::CALL | frame::PREFETCH => self.call(runtime, fabric, arrived),
            frame::FAIL => self.failed(runtime, fabric, &arrived),
            frame::FETCH => self.fetched(runtime, fabric, &arrived),
            frame::CODE => self.code_arrived(runtime, fabric, &arrived),
            kind => tracing::warn!(from = %arrived.from.peer, kind, "an unknown frame"),
        }
    }
}

/// Why a frame was not sent.
enum NotSent {
    Fabric(samite_fabric::Error),
    Full(Failure),
}

impl From<samite_fabric::Error> for NotSent {
    fn from(error: samite_fabric::Error) -> NotSent {
        NotSent::Fabric(error)
    }
}

fn fabric_lost(fabric: &Fabric, life: Life) -> bool {
    fabric.lost_life(life.peer, life.incarnation).is_some()
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
