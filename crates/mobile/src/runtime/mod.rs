//! What a unit does with the frames of moved code: the receiving half of every call.
//!
//! ```text
//!   frame --> Upcall::arrived (in the engine: parsed, kept in the inbox; answers end their call)
//!             Upcall::work    (no lock of the engine)
//!               CALL     code ready: run --> effects: forward, spawn, reply, define   `run`
//!                        code missing: parked; FETCH to the sender                    `code`
//!               FETCH    CODE, in parts                                               `code`
//!               CODE     whole: to the loader thread; then the parked calls run       `loader`
//!               FAIL     back along the way of the call, or to the origin             `run`
//!   every frame that leaves goes through `Work::post`: it is kept here while there is no room
//! ```
//!
//! # Invariants
//! X1 One thread works at a time (`work` is locked with `try_lock`). A thread that finds the lock
//!    taken sets `again`, and the one that has it looks once more.
//! X2 Kernels run without the lock of the engine and of `inbox` and `calls`, so frames go on
//!    arriving. A kernel delays only other kernels of its unit, by at most its limit of time.
//! X3 What is kept is counted in bytes: the inbox and parked calls up to [`INBOX_MAX`] each, code
//!    up to [`CODE_BYTES`]. Beyond it a call fails as `Busy`, or the code that was not used longest
//!    is evicted.
//! X4 While frames wait for room (`out`), no further call runs.

mod code;
mod loader;
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
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// The most bytes of calls that wait to run, and of those that wait for their code.
pub(crate) const INBOX_MAX: u64 = 16 << 20;
/// The most bytes of capsules that a unit keeps.
pub(crate) const CODE_BYTES: u64 = 64 << 20;
/// What a frame costs besides its payload.
const EACH: u64 = 128;
/// A thread works on so many frames before it looks at what it waits for itself.
const AT_ONCE: usize = 64;

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
    pub(crate) functions: HashMap<String, Function>,
    pub(crate) policy: Policy,
    pub(crate) counters: Counters,
    trail: Trail,
    out: VecDeque<Out>,
    /// Calls of this unit to itself, and parked calls whose code is there.
    own: VecDeque<Arrived>,
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
            functions: HashMap::new(),
            policy: Policy::default(),
            counters: Counters::default(),
            trail: Trail::default(),
            out: VecDeque::new(),
            own: VecDeque::new(),
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
    pub(crate) fn with<R>(&self, fabric: &Fabric, f: impl FnOnce(&mut Work) -> R) -> R {
        let done = f(&mut locked(&self.work));
        self.work(fabric);
        done
    }

    /// Takes up to `most` frames and works on them; returns whether there may be more.
    fn work_on(&self, work: &mut Work, fabric: &Fabric, most: usize) -> bool {
        work.follow(self, fabric);
        work.codes.take_loaded(&self.loader, &mut work.own);
        for _ in 0..most {
            if !work.flush(self, fabric) {
                return true; // X4
            }
            let next = work.own.pop_front().or_else(|| self.next());
            let Some(arrived) = next else {
                return self.refuse(work, fabric);
            };
            work.take(self, fabric, arrived);
        }
        true
    }

    fn next(&self) -> Option<Arrived> {
        let mut inbox = locked(&self.inbox);
        let arrived = inbox.frames.pop_front()?;
        inbox.bytes -= arrived.bytes.len() as u64 + EACH;
        Some(arrived)
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
        if inbox.bytes + cost <= INBOX_MAX || kind != frame::CALL {
            inbox.bytes += cost;
            inbox.frames.push_back(arrived);
        } else if inbox.refused.len() < AT_ONCE * 1024 {
            arrived.bytes.truncate(Head::BYTES);
            inbox.refused.push_back(arrived);
        } else {
            tracing::warn!(from = %from.peer, "a call was dropped: too many wait");
        }
    }

    fn work(&self, fabric: &Fabric) {
        loop {
            let mut work = match self.work.try_lock() {
                Ok(work) => work,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    // ORDERING: Release pairs with the Acquire below (X1): the lock orders the
                    // rest, because the other thread looks after it has released it.
                    self.again.store(true, Release);
                    return;
                }
            };
            let has_more = self.work_on(&mut work, fabric, AT_ONCE);
            drop(work);
            // ORDERING: Acquire pairs with the Release above.
            if has_more {
                fabric.want_work();
                return;
            }
            if !self.again.swap(false, Acquire) {
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
        let gone: Vec<Life> = (self.units.iter().copied())
            .filter(|life| fabric.lost_life(life.peer, life.incarnation).is_some())
            .collect();
        let name = |life: Life| name(fabric, life);
        locked(&runtime.calls).lose(|to, moves| {
            let lost = match fabric_lost(fabric, to) {
                true => Some(to),
                false if moves => gone.first().copied(),
                false => None,
            };
            lost.map(|life| {
                let may_be = if moves { "may have been" } else { "was" };
                let text = format!("{} was lost, and the call {may_be} there", name(life));
                Failure::new(Cause::Lost, text)
            })
        });
        self.codes.holders_lost(|life| fabric_lost(fabric, life));
        self.fetch_again(runtime, fabric);
    }

    /// Sends what waits for room; returns whether all has left.
    fn flush(&mut self, runtime: &Runtime, fabric: &Fabric) -> bool {
        while let Some(out) = self.out.pop_front() {
            match fabric.post_upcall(out.to, out.word, &out.head, &out.payload) {
                Ok(true) => {}
                Ok(false) => {
                    self.out.push_front(out);
                    return false;
                }
                Err(error) => self.not_sent(runtime, fabric, &out.head, out.to, &error),
            }
        }
        true
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
            return self.post_here(runtime, word, head, payload);
        }
        if self.out.is_empty() {
            match fabric.post_upcall(to, word, head, payload) {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => return self.not_sent(runtime, fabric, head, to, &error),
            }
        }
        let (head, payload) = (head.to_vec(), payload.to_vec());
        self.out.push_back(Out {
            to,
            word,
            head,
            payload,
        });
    }

    /// A frame from this unit to itself.
    pub(crate) fn post_here(&mut self, runtime: &Runtime, word: u64, head: &[u8], payload: &[u8]) {
        let kind = head.first().copied().unwrap_or(0);
        if kind == frame::REPLY {
            if let Some(slot) = frame::word(head, 4) {
                locked(&runtime.calls).answer(slot, Ok(payload.to_vec()));
            }
            return;
        }
        let mut bytes = Payload::from_slice(head);
        bytes.extend_from_slice(payload);
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
        to: Life,
        error: &samite_fabric::Error,
    ) {
        let kind = head.first().copied();
        match (kind, Head::decode(head)) {
            (Some(frame::CALL | frame::PREFETCH), Some((head, _))) if head.origin != to => {
                let failure = Failure::new(Cause::Lost, error.to_string());
                let me = self.me;
                self.fail(runtime, fabric, &head, me, failure);
            }
            // A failure that cannot go back along its way goes to the origin.
            (Some(frame::FAIL), Some((head, _))) if head.origin != to => {
                let failure = Failure::new(Cause::Lost, error.to_string());
                let bytes = failure.encode();
                let head_bytes = head.encode(frame::FAIL);
                self.post(runtime, fabric, head.origin, 0, &head_bytes, &bytes);
            }
            _ => tracing::debug!(%error, "a frame of moved code was not sent"),
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
