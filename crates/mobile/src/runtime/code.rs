//! The code that a unit has, is being sent, or has refused.
//!
//! The receiver pulls. A call names its code by its id and never carries it. A unit that lacks the
//! code parks the call and asks the unit from which it came, then its origin: whoever sent a call
//! has its code. So senders remember nothing about receivers, and a unit that restarted, or evicted
//! the code, asks again like any other.
//!
//! ```text
//!   Missing --CALL--> Fetching --whole CODE--> Loading --compiled--> Ready <--> (evicted: Missing)
//!                     |  holder lost, or has it not: the next one     |
//!                     +--nobody left--> parked calls fail: NoCode     +--refused--> Rejected
//! ```
//!
//! # Invariants
//! Y1 Bytes are accepted only if their hash begins with the id. Two capsules with the same id are
//!    refused: the second one fails as `Refused`.
//! Y2 One fetch and one compilation per code is under way, however many calls wait for it.
//! Y3 Parked calls are bounded in bytes, and each ends: it runs, or fails at its origin.

use super::loader::{Job, Loader};
use super::{Arrived, CODE_BYTES, EACH, INBOX_MAX, Runtime, Work};
use crate::capsule::{CAPSULE_MAX, Capsule, Part};
use crate::error::{Cause, Failure, not_defined, not_trusted};
use crate::frame::{self, Head};
use samite_engines::{Code, Grants, Instance, Kind, Trap};
use samite_fabric::Fabric;
use samite_fabric::rpc::Life;
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes of a capsule in one frame.
const PART: usize = 8 << 10;
/// The least bytes in a frame that is not the last one.
const LEAST: usize = 256;
/// The most codes that are being fetched.
const FETCHES_MAX: usize = 64;

/// Code that can run.
pub(crate) struct Ready {
    pub(crate) kind: Kind,
    code: Arc<dyn Code>,
    /// The instance for all grants of this unit, and one for narrowed ones.
    instances: [Option<Made>; 2],
    last: usize,
}

struct Made {
    grants: Grants,
    bits: u16,
    instance: Box<dyn Instance>,
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ready")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

impl Ready {
    pub(crate) fn new(kind: Kind, code: Arc<dyn Code>) -> Ready {
        Ready {
            kind,
            code,
            instances: [None, None],
            last: 0,
        }
    }

    /// Returns an instance that reaches the granted segments with these bits, of all that there
    /// are,
    /// and no others.
    #[inline]
    pub(super) fn instance(
        &mut self,
        grants: &Grants,
        all: u16,
        bits: u16,
    ) -> Result<&mut Box<dyn Instance>, Trap> {
        let is_it = |made: &Option<Made>| {
            made.as_ref()
                .is_some_and(|made| made.bits == bits && made.grants.is(grants))
        };
        let found = self.instances.iter().position(is_it);
        let at = match found {
            Some(at) => at,
            None => {
                let at = (bits != all) as usize;
                self.last = at;
                let mapped = (0..samite_engines::GRANTS_MAX)
                    .filter(|number| bits >> number & 1 == 0)
                    .fold(grants.clone(), |grants, number| grants.with(number, None));
                self.instances[at] = Some(Made {
                    grants: grants.clone(),
                    bits,
                    instance: self.code.instance(&mapped)?,
                });
                at
            }
        };
        self.last = at;
        match &mut self.instances[at] {
            Some(made) => Ok(&mut made.instance),
            None => Err(Trap::Other("no instance".into())),
        }
    }

    /// Drops the instance that ran last: its memory is not used again after a trap.
    pub(super) fn trapped(&mut self) {
        self.instances[self.last] = None;
    }
}

/// What is known of a code.
#[derive(Debug)]
pub(crate) enum State {
    /// Its bytes are on their way.
    Fetching {
        from: Life,
        got: Vec<u8>,
    },
    Loading,
    Ready(Ready),
    Rejected(String),
    /// The bytes are there, and nobody has called it here.
    Idle,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) capsule: Option<Capsule>,
    pub(crate) state: State,
    parked: Vec<(Head, Arrived)>,
    /// Who may have it, besides the one that is asked.
    holders: Vec<Life>,
    used: u64,
    pinned: bool,
    pub(crate) timeouts: u32,
}

/// All code of this unit, by id.
#[derive(Debug, Default)]
pub(crate) struct Codes {
    entries: HashMap<u64, Entry, foldhash::fast::RandomState>,
    bytes: u64,
    parked: u64,
    clock: u64,
}

impl Codes {
    #[inline]
    pub(super) fn get(&mut self, id: u64) -> Option<&mut Entry> {
        self.clock += 1;
        let entry = self.entries.get_mut(&id)?;
        entry.used = self.clock;
        Some(entry)
    }

    fn entry(&mut self, id: u64) -> &mut Entry {
        self.clock += 1;
        let used = self.clock;
        let entry = self.entries.entry(id).or_insert_with(|| Entry {
            capsule: None,
            state: State::Idle,
            parked: Vec::new(),
            holders: Vec::new(),
            used,
            pinned: false,
            timeouts: 0,
        });
        entry.used = used;
        entry
    }

    fn fetches(&self) -> usize {
        let fetching = |entry: &&Entry| matches!(entry.state, State::Fetching { .. });
        self.entries.values().filter(fetching).count()
    }

    /// Returns whether code is here, and not refused.
    pub(crate) fn has(&self, id: u64) -> bool {
        let entry = self.entries.get(&id);
        entry.is_some_and(|entry| entry.capsule.is_some())
    }

    /// Returns code that is ready.
    pub(crate) fn compiled(&mut self, id: u64) -> Option<Arc<dyn Code>> {
        match &self.get(id)?.state {
            State::Ready(ready) => Some(ready.code.clone()),
            _ => None,
        }
    }

    /// Keeps a capsule; returns false if another one has its id (Y1).
    fn keep(&mut self, capsule: Capsule, pinned: bool) -> bool {
        let (id, bytes) = (capsule.hash().id(), capsule.bytes().len() as u64);
        let entry = self.entry(id);
        match &entry.capsule {
            Some(had) if had.hash() != capsule.hash() => return false,
            Some(had) => {
                entry.pinned |= pinned;
                // The hash does not cover the signature: another one may be trusted.
                if had.signer() != capsule.signer() && matches!(entry.state, State::Rejected(_)) {
                    entry.capsule = Some(capsule);
                    entry.state = State::Idle;
                }
            }
            None => {
                entry.capsule = Some(capsule);
                entry.pinned |= pinned;
                self.bytes += bytes;
                self.evict(id);
            }
        }
        true
    }

    /// Evicts code that was not used longest until the rest fits, but not this one.
    fn evict(&mut self, but: u64) {
        while self.bytes > CODE_BYTES {
            let can = self.entries.iter().filter(|(id, entry)| {
                let is_still = matches!(
                    entry.state,
                    State::Idle | State::Ready(_) | State::Rejected(_)
                );
                let is_free = !entry.pinned && entry.parked.is_empty();
                **id != but && is_still && is_free && entry.capsule.is_some()
            });
            let Some(id) = can.min_by_key(|(_, entry)| entry.used).map(|(id, _)| *id) else {
                return;
            };
            self.forget(id);
        }
    }

    /// Drops code; calls ask for it again.
    pub(crate) fn forget(&mut self, id: u64) -> bool {
        let is_still = |entry: &Entry| entry.parked.is_empty();
        if !self.entries.get(&id).is_some_and(is_still) {
            return false;
        }
        let gone = self.entries.remove(&id).and_then(|entry| entry.capsule);
        self.bytes -= gone.map_or(0, |capsule| capsule.bytes().len() as u64);
        true
    }

    /// Takes what the loader has compiled, and returns the calls that waited for it.
    pub(super) fn take_loaded(&mut self, loader: &Loader) -> Vec<Arrived> {
        let mut waited = Vec::new();
        while let Some((id, loaded)) = loader.take() {
            let Some(entry) = self.entries.get_mut(&id) else {
                continue;
            };
            // What was decided meanwhile may have changed: it is decided again.
            if !matches!(entry.state, State::Loading) {
                continue;
            }
            entry.state = match loaded {
                Ok(ready) => State::Ready(ready),
                Err(why) => State::Rejected(why),
            };
            for (_, arrived) in entry.parked.drain(..) {
                self.parked -= arrived.bytes.len() as u64 + EACH;
                waited.push(arrived);
            }
        }
        waited
    }

    /// Decides again about all code: what is trusted, or known to this program, has changed.
    pub(crate) fn reconsider(&mut self) {
        for entry in self.entries.values_mut() {
            if matches!(entry.state, State::Ready(_) | State::Rejected(_)) {
                entry.state = State::Idle;
                entry.timeouts = 0;
            }
        }
    }

    /// Drops all instances: they hold the segments that were granted to them.
    pub(crate) fn drop_instances(&mut self) {
        for entry in self.entries.values_mut() {
            if let State::Ready(ready) = &mut entry.state {
                ready.instances = [None, None];
            }
        }
    }

    /// Forgets holders that are gone.
    pub(super) fn holders_lost(&mut self, is_lost: impl Fn(Life) -> bool) {
        for entry in self.entries.values_mut() {
            entry.holders.retain(|holder| !is_lost(*holder));
            if let State::Fetching { from, .. } = &entry.state
                && is_lost(*from)
            {
                entry.state = State::Idle;
            }
        }
    }
}

impl Work {
    /// Keeps a call until its code is there, and sees to it that it comes.
    #[cold]
    pub(super) fn park(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        head: Head,
        arrived: Arrived,
    ) {
        let (id, from, me) = (arrived.word, arrived.from, self.me);
        let cost = arrived.bytes.len() as u64 + EACH;
        let known = self.codes.entries.get(&id);
        if let Some(State::Rejected(why)) = known.map(|entry| &entry.state) {
            let failure = Failure::new(Cause::Refused, why.clone());
            return self.fail(runtime, fabric, &head, from, failure);
        }
        let fetches = match known {
            Some(_) => 0,
            None => self.codes.fetches(),
        };
        if self.codes.parked + cost > INBOX_MAX || fetches >= FETCHES_MAX {
            let text = "too many calls wait for code there";
            let failure = Failure::new(Cause::Busy, text);
            return self.fail(runtime, fabric, &head, from, failure);
        }
        self.counters.misses += 1;
        self.codes.parked += cost;
        let entry = self.codes.entry(id);
        for holder in [head.origin, from] {
            if holder != me && !entry.holders.contains(&holder) {
                entry.holders.push(holder);
            }
        }
        entry.parked.push((head, arrived));
        if matches!(entry.state, State::Idle) {
            self.obtain(runtime, fabric, id);
        }
    }

    /// Loads code whose bytes are here, or asks the next holder for them.
    fn obtain(&mut self, runtime: &Runtime, fabric: &Fabric, id: u64) {
        let entry = self.codes.entry(id);
        if entry.capsule.is_some() {
            return self.load(runtime, fabric, id);
        }
        let Some(from) = entry.holders.pop() else {
            let text = "its code is not here, and no unit that the call went through has it";
            return self.fail_parked(runtime, fabric, id, &Failure::new(Cause::NoCode, text));
        };
        let got = Vec::new();
        entry.state = State::Fetching { from, got };
        let head = frame::short(frame::FETCH, [0]);
        self.post(runtime, fabric, from, id, &head, &[]);
    }

    /// Asks again for code whose holder was lost.
    pub(super) fn fetch_again(&mut self, runtime: &Runtime, fabric: &Fabric) {
        let waits = |(id, entry): (&u64, &Entry)| {
            let is_waiting = matches!(entry.state, State::Idle) && !entry.parked.is_empty();
            is_waiting.then_some(*id)
        };
        let waiting: Vec<u64> = self.codes.entries.iter().filter_map(waits).collect();
        for id in waiting {
            self.obtain(runtime, fabric, id);
        }
    }

    fn fail_parked(&mut self, runtime: &Runtime, fabric: &Fabric, id: u64, why: &Failure) {
        let Some(entry) = self.codes.entries.get_mut(&id) else {
            return;
        };
        let parked = std::mem::take(&mut entry.parked);
        for (head, arrived) in parked {
            self.codes.parked -= arrived.bytes.len() as u64 + EACH;
            self.fail(runtime, fabric, &head, arrived.from, why.clone());
        }
        if !self.codes.has(id) {
            self.codes.forget(id);
        }
    }

    /// Has the code compiled by the loader, or takes the function of this program.
    fn load(&mut self, runtime: &Runtime, fabric: &Fabric, id: u64) {
        let entry = self.codes.entry(id);
        let Some(capsule) = entry.capsule.clone() else {
            return;
        };
        entry.state = State::Loading;
        let functions = capsule.parts().iter().find_map(|part| {
            let name = std::str::from_utf8(capsule.part(part)).ok();
            let name = name.filter(|_| part.kind == Kind::Function)?;
            self.functions.get(name).cloned()
        });
        if let Some(function) = functions {
            return self.loaded_here(id, Ok(Ready::new(Kind::Function, Arc::new(function))));
        }
        let (named, code): (Vec<_>, Vec<_>) =
            (capsule.parts().iter().cloned()).partition(|part| part.kind == Kind::Function);
        let is_allowed = |part: &&Part| self.policy.allows(&capsule, part);
        let allowed: Vec<_> = code.iter().filter(is_allowed).cloned().collect();
        if allowed.is_empty() {
            let names = named.iter().map(|part| capsule.part(part));
            let names: Vec<_> = names.map(String::from_utf8_lossy).collect();
            let kinds: Vec<_> = code.iter().map(|part| part.kind.name()).collect();
            let mut why = Vec::new();
            if !names.is_empty() {
                why.push(not_defined(&names.join("`, `")));
            }
            if !kinds.is_empty() || names.is_empty() {
                let (hash, trust) = (capsule.hash(), self.policy.trust);
                why.push(not_trusted(&hash, &kinds.join(", "), trust));
            }
            let why = why.join("; ");
            return self.loaded_here(id, Err(why));
        }
        self.counters.compiled += 1;
        let job = Job {
            id,
            capsule,
            parts: allowed,
            fabric: fabric.clone(),
        };
        runtime.loader.load(job);
    }

    fn loaded_here(&mut self, id: u64, loaded: Result<Ready, String>) {
        let loader = Loader::default();
        loader.done(id, loaded);
        self.take_loaded(&loader);
    }

    /// Keeps a capsule that this unit makes or registers.
    pub(crate) fn register(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        capsule: Capsule,
        pinned: bool,
    ) -> bool {
        let id = capsule.hash().id();
        let kept = self.codes.keep(capsule, pinned);
        if kept && self.codes.entry(id).parked.is_empty() {
            return true;
        }
        if kept {
            self.obtain(runtime, fabric, id);
        }
        kept
    }

    /// Sends a part of a capsule to a unit that asks for it.
    pub(super) fn fetched(&mut self, runtime: &Runtime, fabric: &Fabric, arrived: &Arrived) {
        let (id, to) = (arrived.word, arrived.from);
        let Some(offset) = frame::word(&arrived.bytes, 4) else {
            return;
        };
        let entry = self.codes.get(id);
        let capsule = entry.and_then(|entry| entry.capsule.clone());
        let bytes = capsule.map(|capsule| capsule.bytes().clone());
        let whole = bytes.as_deref().unwrap_or_default();
        let offset = (offset as usize).min(whole.len());
        let most = PART.min(fabric.upcall_max(to.peer) as usize).max(LEAST);
        let part = &whole[offset..whole.len().min(offset + most)];
        self.counters.code_sent += part.len() as u64;
        let head = frame::short(frame::CODE, [offset as u32, whole.len() as u32]);
        self.post(runtime, fabric, to, id, &head, part);
    }

    /// A part of a capsule has arrived.
    pub(super) fn code_arrived(&mut self, runtime: &Runtime, fabric: &Fabric, arrived: &Arrived) {
        let (id, bytes) = (arrived.word, &arrived.bytes);
        let (Some(offset), Some(whole)) = (frame::word(bytes, 4), frame::word(bytes, 8)) else {
            return;
        };
        let part = bytes.get(12..).unwrap_or_default();
        let Some(entry) = self.codes.entries.get_mut(&id) else {
            return; // Nobody has asked for it.
        };
        let State::Fetching { from, got } = &mut entry.state else {
            return; // It came from elsewhere meanwhile.
        };
        if *from != arrived.from || got.len() != offset as usize {
            return;
        }
        let is_last = got.len() + part.len() == whole as usize;
        let is_short = part.len() < LEAST && !is_last;
        let is_wrong = whole as u64 > CAPSULE_MAX || part.is_empty() || is_short;
        got.extend_from_slice(part);
        let (from, got_bytes) = (*from, got.len() as u64);
        if is_wrong || got_bytes > whole as u64 {
            entry.state = State::Idle;
            return self.obtain(runtime, fabric, id);
        }
        self.counters.code_received += part.len() as u64;
        if got_bytes < whole as u64 {
            let head = frame::short(frame::FETCH, [got_bytes as u32]);
            return self.post(runtime, fabric, from, id, &head, &[]);
        }
        let got = std::mem::take(got);
        entry.state = State::Idle;
        let decoded = Capsule::decode(&got).map_err(|error| error.to_string());
        let checked = decoded.and_then(|capsule| match capsule.hash().id() == id {
            true => Ok(capsule),
            false => Err("the bytes that were sent for it have another hash".to_owned()),
        });
        match checked {
            Ok(capsule) => {
                self.codes.keep(capsule, false);
                self.obtain(runtime, fabric, id);
            }
            Err(why) => {
                // Another holder may have the right bytes.
                tracing::warn!(from = %from.peer, why, "bytes that are not the code");
                self.obtain(runtime, fabric, id);
            }
        }
    }

    /// A prefetch whose code is there: has it compiled, and passes it on down the tree.
    pub(super) fn prefetched(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        head: &Head,
        id: u64,
        units: &[u8],
    ) {
        let entry = self.codes.entry(id);
        match &entry.state {
            State::Ready(_) => {}
            State::Rejected(why) => {
                let failure = Failure::new(Cause::Refused, why.clone());
                let me = self.me;
                return self.fail(runtime, fabric, head, me, failure);
            }
            _ => {
                let mut bytes = super::Payload::from_slice(&head.encode(frame::PREFETCH));
                bytes.extend_from_slice(units);
                let arrived = Arrived {
                    from: self.me,
                    kind: frame::PREFETCH,
                    word: id,
                    bytes,
                };
                return self.park(runtime, fabric, *head, arrived);
            }
        }
        let reply = super::run::reply_head(head.slot);
        self.post(runtime, fabric, head.origin, 0, &reply, &[]);
        self.pass_on(runtime, fabric, head, id, units);
    }

    /// Sends a prefetch to two units, each with half of the others.
    pub(crate) fn pass_on(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        head: &Head,
        id: u64,
        units: &[u8],
    ) {
        let count = units.len() / 4;
        let (left, right) = units[..count * 4].split_at(count.div_ceil(2) * 4);
        for half in [left, right] {
            let Some(unit) = frame::word(half, 0) else {
                continue;
            };
            if let Some(to) = self.units.get(unit as usize).copied() {
                let bytes = head.encode(frame::PREFETCH);
                self.post(runtime, fabric, to, id, &bytes, &half[4..]);
            }
        }
    }
}
