//! The code that a unit has, is being sent, or has refused.
//!
//! ```text
//!   (no entry) --CALL--> Fetching --whole capsule--> Loading --compiled--> Ready
//!                           |  see `fetch`              +------refused----> Rejected
//!                           +--no holder left--> its parked calls fail (NoCode), no entry
//!   Idle: neither fetched nor compiled now; the next call does what is missing. So is code that was
//!   registered and not called, whose machine code was dropped, or about which the policy changed.
//! ```
//!
//! # Invariants
//! Y1 Bytes are accepted only if their hash begins with the id. Two capsules with the same id are
//!    refused: the second one is, as `Error::BadCapsule` of `register`, or as `Cause::Refused` if a
//!    kernel defines it.
//! Y2 One compilation per code is under way, however many calls wait for it. What was decided by
//!    another policy is dropped, and decided again (L2).
//! Y3 Parked calls are bounded in bytes, together and for each unit from which they come, and each
//!    ends: it runs, or fails at its origin. They count until they are taken to be run.
//! Y4 What is not evicted, because it is on its way, being compiled or waited for, is bounded by
//!    [`CODE_BYTES`], too, and by a part of it for each unit whose calls need it: code for which
//!    that leaves no room is refused.
//! Y5 While code is `Loading`, calls are parked that wait for it.
//! Y6 Nothing that others bring about looks at all entries: [`Codes::set`] keeps sets of those that
//!    are being fetched and of those that are compiled, `held` are those that may have holders, and
//!    `order` is that of use. An entry that was used has its old place there until [`Codes::evict`]
//!    comes to it.

use super::fetch::Fetch;
use super::loader::{Job, NotLoaded};
use super::ready::Ready;
use super::{Arrived, CODE_BYTES, EACH, INBOX_MAX, Own, Runtime, Work};
use crate::capsule::{Capsule, Part};
use crate::error::{Cause, Failure, not_defined, not_trusted};
use crate::frame::{Head, TEXT_MAX};
use crate::trust::Policy;
use samite_engines::{Code, Kind};
use samite_fabric::rpc::Life;
use samite_fabric::{Fabric, PeerId};
use std::collections::hash_map::Entry::Occupied;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// What an entry costs besides its capsule.
const ENTRY: u64 = 512;
/// The most bytes of parked calls from one unit, and of code that is on its way or being compiled
/// for its calls: it does not keep those of others out.
const PARKED_FROM_ONE: u64 = INBOX_MAX / 4;
const CODE_FROM_ONE: u64 = CODE_BYTES / 4;

/// Of the calls that a unit passes on, timeouts of a code are counted for this many origins each,
/// and for all others together.
const TIMEOUTS_KEPT: usize = 64;

/// Where a call came from: the unit that sent it here, and the one that began it. Calls that a unit
/// passes on are not held against those that it makes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) from: Life,
    pub(super) origin: Life,
}

impl Source {
    /// Stands for origins that are no units, and for those that are not counted one by one.
    pub(super) const OTHERS: Life = Life {
        peer: PeerId(u32::MAX),
        incarnation: 0,
    };

    fn is_passed_on(&self) -> bool {
        self.from != self.origin
    }
}

/// What is known of a code.
#[derive(Debug)]
pub(crate) enum State {
    /// Its bytes are on their way.
    Fetching(Fetch),
    Loading,
    Ready(Ready),
    Rejected(String),
    /// Neither being fetched nor compiled: the next call does what is missing.
    Idle,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) capsule: Option<Capsule>,
    /// Changed by [`Codes::set`].
    state: State,
    pub(super) parked: Vec<(Head, Arrived)>,
    /// Who may have it, besides those that are asked.
    pub(super) holders: Vec<Life>,
    /// Whose call needs it: it is fetched and compiled for that unit.
    pub(super) caller: Option<Life>,
    /// What counts as being compiled for which unit.
    loading: Option<(Life, u64)>,
    /// Whether it was refused for want of a signature, and who was asked for a signed one.
    pub(super) wants_signature: bool,
    pub(super) asked_for_signature: Vec<Life>,
    pub(super) used: u64,
    /// Its place in the order of use.
    listed: Option<u64>,
    pinned: bool,
    /// Whose last calls have run out of time here, the most time that one of them had, and how many
    /// in a row had no more.
    timeouts: Vec<(Source, Duration, u32)>,
}

impl Entry {
    /// What it counts of [`CODE_BYTES`]: what the program has registered counts nothing.
    fn cost(&self) -> u64 {
        match &self.capsule {
            Some(capsule) if !self.pinned => capsule.bytes().len() as u64 + ENTRY,
            _ => 0,
        }
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// Returns its fetch, and those that may have it besides.
    pub(super) fn fetch(&mut self) -> Option<(&mut Fetch, &mut Vec<Life>)> {
        match &mut self.state {
            State::Fetching(fetch) => Some((fetch, &mut self.holders)),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn ready(&mut self) -> Option<&mut Ready> {
        match &mut self.state {
            State::Ready(ready) => Some(ready),
            _ => None,
        }
    }

    /// Returns the units whose calls are parked, each once.
    fn callers_parked(&self) -> Vec<Life> {
        let mut units: Vec<Life> = self.parked.iter().map(|(_, call)| call.from).collect();
        units.sort_unstable();
        units.dedup();
        units
    }

    /// Returns whether calls have run out of time here.
    #[inline]
    pub(super) fn has_timeouts(&self) -> bool {
        !self.timeouts.is_empty()
    }

    /// Returns how many of the last calls of a source have run out of at most so much time.
    pub(super) fn timeouts_of(&self, source: Source, run: Duration) -> u32 {
        let source = self.counted_as(source);
        let mut all = self.timeouts.iter();
        let found = all.find(|(of, most, _)| *of == source && run <= *most);
        found.map_or(0, |(.., count)| *count)
    }

    /// Returns the source under which timeouts of this one are counted.
    fn counted_as(&self, source: Source) -> Source {
        let is_listed = || self.timeouts.iter().any(|(of, ..)| *of == source);
        let passed_on = |of: &Source| of.from == source.from && of.is_passed_on();
        let count = || (self.timeouts.iter()).filter(|(of, ..)| passed_on(of));
        if !source.is_passed_on() || is_listed() || count().count() < TIMEOUTS_KEPT {
            return source;
        }
        Source {
            origin: Source::OTHERS,
            ..source
        }
    }

    /// Returns whether it may be evicted.
    fn is_free(&self) -> bool {
        let is_still = matches!(
            self.state,
            State::Idle | State::Ready(_) | State::Rejected(_)
        );
        is_still && self.parked.is_empty()
    }
}

/// All code of this unit, by id.
#[derive(Debug, Default)]
pub(crate) struct Codes {
    pub(super) entries: HashMap<u64, Entry, foldhash::fast::RandomState>,
    /// Those that are being fetched, those that are compiled, and those that have instances or had
    /// some when that was looked at last.
    pub(super) fetching: BTreeSet<u64>,
    pub(super) compiled: BTreeSet<u64>,
    pub(super) instanced: BTreeSet<u64>,
    /// Codes that may have holders which were not asked yet. A code stays here until it is loaded
    /// or dropped.
    pub(super) held: BTreeSet<u64>,
    /// Bytes of code that is being compiled, by the units whose calls need it.
    loading_for: HashMap<Life, u64, foldhash::fast::RandomState>,
    /// The units whose last calls of which codes have run out of time: `timeouts` of those entries.
    timed: BTreeSet<(Life, u64)>,
    /// Those that cost something, by their place in the order of use.
    order: BTreeSet<(u64, u64)>,
    /// How many entries were looked at to evict some.
    #[cfg(test)]
    looks: u64,
    /// The cost of all entries.
    bytes: u64,
    /// The cost of parked calls, and that of those from each unit.
    parked: u64,
    parked_from: HashMap<Life, u64, foldhash::fast::RandomState>,
    /// When to ask again for code that does not come (`fetch`).
    pub(super) due: Duration,
    clock: u64,
    /// Raised when what is trusted, or known to this program, has changed.
    decisions: u64,
}

impl Codes {
    #[inline]
    pub(super) fn get(&mut self, id: u64) -> Option<&mut Entry> {
        self.clock += 1;
        let entry = self.entries.get_mut(&id)?;
        entry.used = self.clock;
        Some(entry)
    }

    pub(super) fn entry(&mut self, id: u64) -> &mut Entry {
        self.clock += 1;
        let used = self.clock;
        let entry = self.entries.entry(id).or_insert_with(|| Entry {
            capsule: None,
            state: State::Idle,
            parked: Vec::new(),
            holders: Vec::new(),
            caller: None,
            loading: None,
            wants_signature: false,
            asked_for_signature: Vec::new(),
            used,
            listed: None,
            pinned: false,
            timeouts: Vec::new(),
        });
        entry.used = used;
        entry
    }

    /// Sets what becomes of a code; returns what it was before.
    pub(super) fn set(&mut self, id: u64, state: State) -> Option<State> {
        let is_fetched = matches!(state, State::Fetching(_));
        let is_compiled = matches!(&state, State::Ready(ready) if ready.kind != Kind::Function);
        let is_loading = matches!(state, State::Loading);
        let entry = self.entries.get_mut(&id)?;
        let before = std::mem::replace(&mut entry.state, state);
        let counted = entry.loading.take();
        entry.loading = (entry.caller)
            .filter(|_| is_loading)
            .map(|unit| (unit, entry.cost()));
        let counts = entry.loading;
        self.count_loading(counted, counts);
        self.list(id, is_fetched, is_compiled);
        Some(before)
    }

    fn count_loading(&mut self, before: Option<(Life, u64)>, now: Option<(Life, u64)>) {
        if let Some((unit, bytes)) = before
            && let Occupied(mut sum) = self.loading_for.entry(unit)
        {
            *sum.get_mut() -= bytes;
            if *sum.get() == 0 {
                sum.remove();
            }
        }
        if let Some((unit, bytes)) = now.filter(|(_, bytes)| *bytes > 0) {
            *self.loading_for.entry(unit).or_default() += bytes;
        }
    }

    /// Returns whether so much more code may be on its way, or be compiled, for a unit (Y4).
    pub(super) fn may_load(&self, unit: Life, more: u64) -> bool {
        let loading = self.loading_for.get(&unit).copied().unwrap_or(0);
        loading + self.receiving_for(unit) + more <= CODE_FROM_ONE
    }

    /// Finds a unit for which so much code may be loaded (Y4): the caller of this code, or else
    /// another one whose call waits for it, which becomes its caller. Returns false if there is
    /// none. What this unit itself calls is always loaded.
    pub(super) fn find_caller(&mut self, id: u64, me: Life, more: u64) -> bool {
        let may = |unit: &Life| *unit == me || self.may_load(*unit, more);
        let Some(entry) = self.entries.get(&id) else {
            return false;
        };
        if entry.caller.is_none_or(|caller| may(&caller)) {
            return true;
        }
        let found = entry.callers_parked().into_iter().find(may);
        if let Some(entry) = self.entries.get_mut(&id).filter(|_| found.is_some()) {
            entry.caller = found;
        }
        found.is_some()
    }

    /// Puts a code into the sets of its state, and takes it out of the others.
    fn list(&mut self, id: u64, is_fetched: bool, is_compiled: bool) {
        match is_compiled {
            true => self.compiled.insert(id),
            false => self.compiled.remove(&id),
        };
        if is_fetched {
            self.fetching.insert(id);
        } else if self.fetching.remove(&id) {
            self.due = self.next_due();
        }
    }

    /// Returns whether code is here, and not refused.
    pub(crate) fn has(&self, id: u64) -> bool {
        let entry = self.entries.get(&id);
        entry.is_some_and(|entry| entry.capsule.is_some())
    }

    /// Returns in which form code runs here, if it is ready.
    pub(crate) fn runs_as(&mut self, id: u64) -> Option<Kind> {
        Some(self.get(id)?.ready()?.kind)
    }

    /// Returns code that is ready.
    pub(crate) fn compiled(&mut self, id: u64) -> Option<Arc<dyn Code>> {
        Some(self.get(id)?.ready()?.code.clone())
    }

    /// Keeps a capsule; returns false if another one has its id (Y1).
    ///
    /// The hash does not cover the signature. Another signature replaces none, one that is not
    /// trusted here if it is itself, and that of others if this program registers it.
    pub(super) fn keep(&mut self, capsule: Capsule, pinned: bool, policy: &Policy) -> bool {
        let id = capsule.hash().id();
        let entry = self.entry(id);
        if let Some(had) = &entry.capsule
            && had.hash() != capsule.hash()
        {
            return false;
        }
        let before = entry.cost();
        let replaces = match &entry.capsule {
            None => true,
            Some(had) if capsule.signer().is_none() || capsule.signer() == had.signer() => false,
            Some(had) => {
                let is_better = policy.trusts_signer(&capsule) && !policy.trusts_signer(had);
                had.signer().is_none() || is_better || pinned
            }
        };
        let is_decided_anew = replaces && matches!(entry.state, State::Rejected(_));
        if replaces {
            entry.capsule = Some(capsule);
        }
        entry.pinned |= pinned;
        let (cost, listed) = (entry.cost(), entry.listed);
        entry.listed = (cost > 0).then(|| listed.unwrap_or(entry.used));
        match (listed, entry.listed) {
            (None, Some(at)) => _ = self.order.insert((at, id)),
            (Some(at), None) => _ = self.order.remove(&(at, id)),
            _ => {}
        }
        self.bytes = self.bytes - before + cost;
        if is_decided_anew {
            self.set(id, State::Idle);
        }
        self.evict(id, 0);
        true
    }

    /// Evicts the least recently used code until the rest fits, and `more` bytes, but not this
    /// one. Returns whether they fit. What is needed now counts as used now.
    pub(super) fn evict(&mut self, but: u64, more: u64) -> bool {
        let now = self.clock;
        while self.bytes + more > CODE_BYTES {
            let first = self.order.first().copied();
            let Some((at, id)) = first.filter(|(at, _)| *at <= now) else {
                return false;
            };
            #[cfg(test)]
            {
                self.looks += 1;
            }
            let Some(entry) = self.entries.get_mut(&id) else {
                return false;
            };
            let was_used = entry.used > at;
            if !was_used && id != but && entry.is_free() {
                self.forget(id);
                continue;
            }
            if !was_used {
                self.clock += 1;
                entry.used = self.clock;
            }
            entry.listed = Some(entry.used);
            self.order.remove(&(at, id));
            self.order.insert((entry.used, id));
        }
        true
    }

    /// Counts a call that is parked, unless too many are.
    ///
    /// # Errors
    /// Says so.
    pub(super) fn may_park(&mut self, arrived: &Arrived) -> Result<(), String> {
        let cost = arrived.bytes.len() as u64 + EACH;
        let of_unit = self.parked_from.get(&arrived.from).copied().unwrap_or(0);
        if of_unit + cost > PARKED_FROM_ONE {
            return Err(format!(
                "{} MiB of calls from one unit wait for code at this unit: call again later",
                PARKED_FROM_ONE >> 20
            ));
        }
        if self.parked + cost > INBOX_MAX {
            return Err(format!(
                "{} MiB of calls wait for code at this unit: call again later",
                INBOX_MAX >> 20
            ));
        }
        self.parked += cost;
        self.parked_from.insert(arrived.from, of_unit + cost);
        Ok(())
    }

    /// Takes calls that are parked no more off the count.
    pub(super) fn unpark<'a>(&mut self, parked: impl IntoIterator<Item = &'a Arrived>) {
        for arrived in parked {
            let cost = arrived.bytes.len() as u64 + EACH;
            self.parked -= cost;
            if let Occupied(mut of_unit) = self.parked_from.entry(arrived.from) {
                *of_unit.get_mut() -= cost;
                if *of_unit.get() == 0 {
                    of_unit.remove();
                }
            }
        }
    }

    /// Drops the parked calls of a unit that `is_it` returns true for.
    pub(super) fn drop_parked(&mut self, unit: Life, is_it: impl Fn(&Arrived) -> bool) {
        if !self.parked_from.contains_key(&unit) {
            return;
        }
        let mut dropped = Vec::new();
        for entry in self.entries.values_mut() {
            dropped.extend(entry.parked.extract_if(.., |(_, call)| is_it(call)));
        }
        self.unpark(dropped.iter().map(|(_, call)| call));
    }

    /// Returns whether the program has registered it.
    pub(super) fn is_pinned(&self, id: u64) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.pinned)
    }

    /// Drops code; calls ask for it again.
    pub(crate) fn forget(&mut self, id: u64) -> bool {
        let is_still = |entry: &Entry| entry.parked.is_empty();
        if !self.entries.get(&id).is_some_and(is_still) {
            return false;
        }
        if let Some(gone) = self.entries.remove(&id) {
            self.bytes -= gone.cost();
            if let Some(at) = gone.listed {
                self.order.remove(&(at, id));
            }
            self.count_loading(gone.loading, None);
            self.list(id, false, false);
            self.held.remove(&id);
            for (source, ..) in gone.timeouts {
                self.timed.remove(&(source.from, id));
            }
        }
        true
    }

    /// Counts that a call of this source has run out of this time.
    pub(super) fn timed_out(&mut self, id: u64, source: Source, run: Duration) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let source = entry.counted_as(source);
        let timeouts = &mut entry.timeouts;
        match timeouts.iter_mut().find(|(of, ..)| *of == source) {
            Some((_, most, count)) if *most < run => (*most, *count) = (run, 1),
            Some((.., count)) => *count += 1,
            None => timeouts.push((source, run, 1)),
        }
        self.timed.insert((source.from, id));
    }

    /// Forgets that calls of a source have run out of time.
    pub(super) fn in_time(&mut self, id: u64, source: Source) {
        if let Some(entry) = self.entries.get(&id) {
            let source = entry.counted_as(source);
            self.forget_timeouts(id, source.from, |of| *of == source);
        }
    }

    /// Forgets timeouts of calls that a unit has sent.
    fn forget_timeouts(&mut self, id: u64, from: Life, is_it: impl Fn(&Source) -> bool) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.timeouts.retain(|(of, ..)| !is_it(of));
        entry.timeouts.shrink_to_fit();
        if entry.timeouts.iter().all(|(of, ..)| of.from != from) {
            self.timed.remove(&(from, id));
        }
    }

    /// Forgets that of all codes: the unit was lost.
    pub(super) fn forget_unit(&mut self, unit: Life) {
        let of_unit = self.timed.range((unit, 0)..=(unit, u64::MAX));
        let codes: Vec<u64> = of_unit.map(|(_, id)| *id).collect();
        for id in codes {
            self.forget_timeouts(id, unit, |of| of.from == unit);
        }
    }

    /// Records what became of code that was loaded, and returns the calls that waited for it. They
    /// still count as parked.
    fn loaded(&mut self, id: u64, loaded: Result<Ready, String>) -> Vec<Arrived> {
        let Some(entry) = self.entries.get_mut(&id) else {
            return Vec::new();
        };
        // Nothing stays allocated: others decide how much that was.
        let waited = std::mem::take(&mut entry.parked).into_iter();
        let waited = waited.map(|(_, arrived)| arrived).collect();
        if !entry.wants_signature {
            entry.holders = Vec::new();
            self.held.remove(&id);
        }
        let state = match loaded {
            Ok(ready) => State::Ready(ready),
            Err(mut why) => {
                // No more of it is ever sent, and others decide how long it is.
                why.truncate(why.floor_char_boundary(TEXT_MAX));
                why.shrink_to_fit();
                State::Rejected(why)
            }
        };
        self.set(id, state);
        self.bound_compiled(id);
        waited
    }
}

impl Work {
    /// Decides again about all code: what is trusted, or known to this program, has changed. No job
    /// is done that was decided about before, and what comes of the one that is being done is
    /// dropped. Returns what code was before, to be dropped without the lock: a function may own
    /// anything.
    #[must_use]
    pub(crate) fn reconsider(&mut self, runtime: &Runtime, fabric: &Fabric) -> Vec<State> {
        self.codes.decisions += 1;
        self.codes.timed.clear();
        runtime.loader.forget();
        runtime.loader.bitcode.set_place(self.policy.llvm.clone());
        let (mut decided, mut waited_for) = (Vec::new(), Vec::new());
        for (id, entry) in &mut self.codes.entries {
            entry.asked_for_signature.clear();
            entry.timeouts = Vec::new();
            match entry.state {
                State::Loading => waited_for.push(*id),
                State::Ready(_) | State::Rejected(_) => {}
                State::Fetching(_) | State::Idle => continue,
            }
            decided.push(*id);
        }
        let set = |id| self.codes.set(id, State::Idle);
        let before = decided.into_iter().filter_map(set).collect();
        for id in waited_for {
            self.obtain(runtime, fabric, id);
        }
        before
    }

    /// Has the code compiled by the loader, or takes the function of this program.
    pub(super) fn load(&mut self, runtime: &Runtime, fabric: &Fabric, id: u64) {
        let entry = self.codes.entry(id);
        let Some(capsule) = entry.capsule.clone() else {
            return;
        };
        let cost = entry.cost();
        entry.wants_signature = self.policy.wants_signature(&capsule);
        if cost > 0 && !self.codes.find_caller(id, self.me, cost) {
            let text = format!(
                "{} MiB of code for one unit are on their way, or being compiled, at this unit: call again later",
                CODE_FROM_ONE >> 20
            );
            return self.fail_parked(runtime, fabric, id, &Failure::new(Cause::Busy, text));
        }
        self.codes.set(id, State::Loading);
        let caller = self.codes.entry(id).caller.unwrap_or(self.me);
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
            caller,
            decision: self.codes.decisions,
            capsule,
            parts: allowed,
            fabric: fabric.clone(),
        };
        runtime.loader.load(job);
        // L1: those that were parked before it came want it, too.
        let units = self.codes.entry(id).callers_parked();
        for unit in units.into_iter().filter(|unit| *unit != caller) {
            runtime.loader.wanted_by(id, unit);
        }
    }

    pub(super) fn loaded_here(&mut self, id: u64, loaded: Result<Ready, String>) {
        let waited = self.codes.loaded(id, loaded);
        self.own.extend(waited.into_iter().map(Own::Parked));
    }

    /// Takes what the loader has compiled: the calls that waited for it run next.
    pub(super) fn take_loaded(&mut self, runtime: &Runtime, fabric: &Fabric) {
        while let Some((id, decision, loaded)) = runtime.loader.take() {
            let entry = self.codes.entries.get(&id);
            let waits = entry.is_some_and(|entry| matches!(entry.state, State::Loading));
            if !waits || decision != self.codes.decisions {
                continue;
            }
            match loaded {
                Ok(ready) => self.loaded_here(id, Ok(ready)),
                Err(NotLoaded::Refused(why)) => self.loaded_here(id, Err(why)),
                Err(NotLoaded::ForNow(why)) => {
                    self.codes.set(id, State::Idle);
                    self.fail_parked(runtime, fabric, id, &Failure::new(Cause::Busy, why));
                }
            }
        }
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
        let kept = self.codes.keep(capsule, pinned, &self.policy);
        let entry = self.codes.entry(id);
        let is_wanted = matches!(entry.state, State::Idle | State::Fetching(_));
        if kept && is_wanted && !entry.parked.is_empty() {
            self.obtain(runtime, fabric, id);
        }
        kept
    }
}

#[cfg(test)]
mod tests;
