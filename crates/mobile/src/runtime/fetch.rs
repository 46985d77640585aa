//! How code gets here: the receiver pulls.
//!
//! A call names its code by its id and never carries it. A unit that lacks the code parks the call
//! and asks the unit from which it came, then its origin: whoever sent a call has its code. So
//! senders remember nothing about receivers, and a unit that restarted, or evicted the code, asks
//! again like any other.
//!
//! ```text
//!   receiver                                    holders: those from which calls came
//!   FETCH 0             ---------------------->  the last caller
//!   FETCH 0             ---------------------->  each further caller, until a byte has come
//!            <----------  CODE 0, part            the first one that answers sends the rest
//!   FETCH n             ---------------------->  that one
//!            <----------  CODE n, part
//! ```
//! A caller that computes does not answer, and is not lost either. So each further caller is asked
//! at once, as long as nobody has answered. If nothing has come for [`STALL`], the next call of
//! that code has another holder asked, if there is one: it sends all of it.
//!
//! Either side drops frames for which it has no room (X4). So a request is repeated if nothing has
//! come for [`AGAIN`], and then after twice that time, and so on. If nobody sends, another holder
//! is asked then, too.
//!
//! What a sender has sent is lost when another one is asked to send all of it. So each change
//! doubles how long the next sender may send nothing: of several slow ones, one ends what it has
//! begun. A sender that goes on for longer than [`AGAIN`] is changed, too, and each change doubles
//! that time.
//!
//! # Invariants
//! F1 Only bytes of one holder are put together, so wrong bytes are the fault of that one. Answers
//!    of others, and repeated ones, are dropped.
//! F2 Each holder is asked for the calls that it made, until it answers or is lost. They wait.
//! F3 One caller has at most [`FETCHES_MAX`] codes fetched, so it takes no place from others.

use super::code::{Codes, Entry, State};
use super::membership::fabric_lost;
use super::{Arrived, Runtime, Work, locked};
use crate::capsule::{CAPSULE_MAX, Capsule};
use crate::error::{Cause, Failure};
use crate::frame::{self, Head};
use samite_fabric::Fabric;
use samite_fabric::rpc::Life;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a capsule in one frame.
const PART: usize = 8 << 10;
/// The least bytes in a frame that is not the last one.
const LEAST: usize = 256;
/// The most codes that are being fetched for calls of one unit.
const FETCHES_MAX: usize = 64;
/// The most units that are asked for a signed capsule, of one that is not trusted.
const SIGNATURES_MAX: usize = 64;
/// A holder that has sent nothing for so long may not be making progress.
const STALL: Duration = Duration::from_millis(50);
/// A request or its answer may have been dropped if nothing has come for so long.
const AGAIN: Duration = Duration::from_secs(2);
/// The most changes of the sender that double [`STALL`].
const CHANGES_MAX: u32 = 16;

/// A capsule on its way.
#[derive(Debug, Default)]
pub(crate) struct Fetch {
    /// Those that were asked for its beginning and have not answered.
    asked: Vec<Life>,
    /// The one that answered first, and sends the rest.
    sender: Option<Life>,
    got: Vec<u8>,
    /// The length of all of it, once the first bytes have come.
    whole: u32,
    /// How often another holder was asked in the place of one that had begun.
    changes: u32,
    /// When the sender began.
    since: Duration,
    /// When the last bytes came, or were asked for.
    at: Duration,
    /// When to ask again, and how long that is after the last time.
    due: Duration,
    pause: Duration,
    /// Whether the code was changed at its sender meanwhile, so that it began again: it was signed,
    /// which makes it longer.
    was_changed: bool,
    /// Who has sent something else, and what that was.
    wrong: Option<String>,
}

impl Fetch {
    /// A holder was asked.
    #[cfg(test)]
    pub(super) fn of(holder: Life) -> Fetch {
        Fetch {
            asked: vec![holder],
            ..Fetch::default()
        }
    }

    /// Expects bytes from now on.
    fn expect(&mut self, now: Duration) {
        (self.at, self.due, self.pause) = (now, now + AGAIN, AGAIN);
    }

    /// Returns who is expected to send, and from which byte on.
    fn waits_for(&self) -> (Vec<Life>, u32) {
        match self.sender {
            Some(sender) => (vec![sender], self.got.len() as u32),
            None => (self.asked.clone(), 0),
        }
    }

    fn forget(&mut self, is_it: impl Fn(Life) -> bool) {
        self.asked.retain(|holder| !is_it(*holder));
        if self.sender.is_some_and(&is_it) {
            self.sender = None;
            (self.got, self.whole) = (Vec::new(), 0);
        }
    }

    /// Returns how long nothing comes before another holder is asked. Longer each time, so that
    /// slow ones end what they have begun.
    fn stall(&self) -> Duration {
        STALL * (1 << self.changes.min(CHANGES_MAX))
    }

    /// Returns whether the sender takes longer than it may while there are other holders. Longer
    /// each time, as in [`Fetch::stall`].
    fn lasts_long(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) > AGAIN * (1 << self.changes.min(CHANGES_MAX))
    }

    /// Records that the request is repeated now, as nothing has come for `pause`. Puts the sender
    /// behind the other holders if it has sent nothing for longer than it may.
    fn repeat(&mut self, now: Duration, others: &mut Vec<Life>) {
        self.pause *= 2;
        self.due = now + self.pause;
        if now.saturating_sub(self.at) >= AGAIN.max(self.stall()) {
            self.change_sender(others);
        }
    }

    /// Puts the sender behind the other holders, if there are any: one of them is to be asked.
    /// Returns whether it did: what the sender has sent is lost then.
    fn change_sender(&mut self, others: &mut Vec<Life>) -> bool {
        let Some(sender) = self.sender.filter(|_| !others.is_empty()) else {
            return false;
        };
        self.changes += 1;
        self.forget(|holder| holder == sender);
        others.insert(0, sender);
        true
    }

    /// Returns whether nobody is expected to send anything.
    fn has_nobody(&self) -> bool {
        self.asked.is_empty() && self.sender.is_none()
    }
}

impl Entry {
    /// Returns whether a unit is known as one that may have the code.
    fn knows(&self, life: Life) -> bool {
        let asks = match self.state() {
            State::Fetching(fetch) => fetch.asked.contains(&life) || fetch.sender == Some(life),
            _ => false,
        };
        asks || self.holders.contains(&life)
    }
}

impl Codes {
    /// Returns how many codes are being fetched since this unit has called them.
    fn fetches(&self, caller: Life) -> usize {
        let fetching = self.fetching.iter().filter_map(|id| self.entries.get(id));
        fetching
            .filter(|entry| entry.caller == Some(caller))
            .count()
    }

    /// Returns what is on its way.
    fn on_their_way(&self) -> impl Iterator<Item = &Fetch> {
        let entries = self.fetching.iter().filter_map(|id| self.entries.get(id));
        entries.filter_map(|entry| match entry.state() {
            State::Fetching(fetch) => Some(fetch),
            _ => None,
        })
    }

    /// Evicts code until a capsule of `whole` bytes fits beside those that are being received;
    /// returns false if it does not.
    fn has_room(&mut self, id: u64, whole: u32) -> bool {
        let receiving = self.on_their_way().map(|fetch| u64::from(fetch.whole));
        let receiving = receiving.sum::<u64>();
        self.evict(id, receiving + u64::from(whole))
    }

    /// Returns when somebody is to be asked again.
    pub(super) fn next_due(&self) -> Duration {
        let dues = self.on_their_way().map(|fetch| fetch.due);
        dues.min().unwrap_or(Duration::MAX)
    }

    /// Returns how many bytes are on their way for calls of a unit.
    pub(super) fn receiving_for(&self, unit: Life) -> u64 {
        let fetching = self.fetching.iter().filter_map(|id| self.entries.get(id));
        let of_unit = fetching.filter(|entry| entry.caller == Some(unit));
        let whole = |entry: &Entry| match entry.state() {
            State::Fetching(fetch) => u64::from(fetch.whole),
            _ => 0,
        };
        of_unit.map(whole).sum()
    }

    /// Forgets holders that are gone. Returns the codes for which others are to be asked.
    fn holders_lost(&mut self, is_lost: impl Fn(Life) -> bool) -> Vec<u64> {
        let mut ids = Vec::new();
        for id in self.held.union(&self.fetching) {
            let Some(entry) = self.entries.get_mut(id) else {
                continue;
            };
            entry.holders.retain(|holder| !is_lost(*holder));
            if let Some((fetch, _)) = entry.fetch() {
                let sender = fetch.sender;
                fetch.forget(&is_lost);
                if fetch.has_nobody() || fetch.sender != sender {
                    ids.push(*id);
                }
            }
        }
        ids
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
        let known = self.codes.entries.get(&id);
        let asks_again = known.is_some_and(|entry| {
            entry.wants_signature
                && from != me
                && entry.asked_for_signature.len() < SIGNATURES_MAX
                && !entry.asked_for_signature.contains(&from)
        });
        if let Some(State::Rejected(why)) = known.map(Entry::state)
            && !asks_again
        {
            let failure = Failure::new(Cause::Refused, why.clone());
            return self.fail(runtime, fabric, &head, from, failure);
        }
        let is_new = known.is_none_or(|entry| matches!(entry.state(), State::Rejected(_)));
        if is_new && self.codes.fetches(from) >= FETCHES_MAX {
            let text =
                format!("{FETCHES_MAX} capsules are being fetched for one unit: call again later");
            let failure = Failure::new(Cause::Busy, text);
            return self.fail(runtime, fabric, &head, from, failure);
        }
        if let Err(text) = self.codes.may_park(&arrived) {
            let failure = Failure::new(Cause::Busy, text);
            return self.fail(runtime, fabric, &head, from, failure);
        }
        self.counters.misses += 1;
        let origin_may = self.members.has(head.origin);
        let entry = self.codes.entry(id);
        // What a unit calls itself, it may do for another one that has made it known.
        let is_idle = matches!(entry.state(), State::Idle) && from != me;
        if is_new || is_idle || entry.caller.is_none() {
            entry.caller = Some(from);
        }
        let mut is_further = false;
        for (holder, may_have) in [(head.origin, origin_may), (from, true)] {
            if may_have && holder != me && !entry.knows(holder) {
                entry.holders.push(holder);
                is_further = true;
            }
        }
        entry.parked.push((head, arrived));
        if is_further {
            self.codes.held.insert(id);
        }
        let entry = self.codes.entry(id);
        match entry.state() {
            State::Idle => return self.obtain(runtime, fabric, id),
            State::Rejected(_) => {
                entry.asked_for_signature.push(from);
                entry.holders.retain(|holder| *holder != from);
                entry.holders.push(from);
                self.codes.held.insert(id);
                self.codes.set(id, State::Fetching(Fetch::default()));
                return self.ask_next(runtime, fabric, id);
            }
            State::Loading if entry.caller != Some(from) => runtime.loader.wanted_by(id, from),
            State::Fetching(_) | State::Loading | State::Ready(_) => {}
        }
        if let Some((fetch, holders)) = entry.fetch() {
            let is_stalled = self.clock.saturating_sub(fetch.at) > fetch.stall();
            let asks = match fetch.sender {
                Some(_) => is_stalled && fetch.change_sender(holders),
                None => is_further || is_stalled,
            };
            if asks {
                self.ask_next(runtime, fabric, id);
            }
        }
    }

    /// Loads code whose bytes are here, or asks for them.
    pub(super) fn obtain(&mut self, runtime: &Runtime, fabric: &Fabric, id: u64) {
        let entry = self.codes.entry(id);
        if entry.capsule.is_some() {
            return self.load(runtime, fabric, id);
        }
        self.codes.set(id, State::Fetching(Fetch::default()));
        self.ask_next(runtime, fabric, id);
    }

    /// Asks the next holder, unless one is sending. Without one, the fetch ends if nobody else was
    /// asked.
    pub(super) fn ask_next(&mut self, runtime: &Runtime, fabric: &Fabric, id: u64) {
        let entry = self.codes.entries.get_mut(&id);
        let Some((fetch, holders)) = entry.and_then(Entry::fetch) else {
            return;
        };
        if fetch.sender.is_some() {
            return;
        }
        while let Some(holder) = holders.pop() {
            // Its loss was seen before its call was taken: nobody will tell about it again.
            if fabric_lost(fabric, holder) {
                continue;
            }
            fetch.asked.push(holder);
            fetch.expect(self.clock);
            self.codes.due = self.codes.due.min(self.clock + AGAIN);
            let head = frame::short(frame::FETCH, [0]);
            return self.post(runtime, fabric, holder, id, &head, &[]);
        }
        if fetch.has_nobody() {
            let wrong = fetch.wrong.take();
            self.codes.set(id, State::Idle);
            if self.codes.has(id) {
                return self.load(runtime, fabric, id);
            }
            let text = match wrong {
                Some(wrong) => format!("its code is not here, and {wrong}"),
                None => {
                    "its code is not here, and no unit that the call went through has it".into()
                }
            };
            self.fail_parked(runtime, fabric, id, &Failure::new(Cause::NoCode, text));
        }
    }

    /// Repeats requests after which nothing has come for long, and asks further holders.
    #[cold]
    pub(super) fn ask_again(&mut self, runtime: &Runtime, fabric: &Fabric) {
        let mut silent = Vec::new();
        for id in &self.codes.fetching {
            let entry = self.codes.entries.get_mut(id);
            if let Some((fetch, holders)) = entry.and_then(Entry::fetch)
                && fetch.due <= self.clock
            {
                fetch.repeat(self.clock, holders);
                silent.push((*id, fetch.waits_for()));
            }
        }
        self.codes.due = self.codes.next_due();
        for (id, (holders, from)) in silent {
            let head = frame::short(frame::FETCH, [from]);
            for holder in holders {
                self.post(runtime, fabric, holder, id, &head, &[]);
            }
            self.ask_next(runtime, fabric, id);
        }
    }

    /// A holder could not be asked.
    pub(super) fn not_asked(&mut self, runtime: &Runtime, fabric: &Fabric, id: u64, holder: Life) {
        let entry = self.codes.entries.get_mut(&id);
        if let Some((fetch, _)) = entry.and_then(Entry::fetch) {
            fetch.forget(|other| other == holder);
            self.ask_next(runtime, fabric, id);
        }
    }

    /// Asks others for code whose holders were lost.
    pub(super) fn fetch_again(&mut self, runtime: &Runtime, fabric: &Fabric) {
        for id in self.codes.holders_lost(|life| fabric_lost(fabric, life)) {
            self.ask_next(runtime, fabric, id);
        }
    }

    pub(super) fn fail_parked(
        &mut self,
        runtime: &Runtime,
        fabric: &Fabric,
        id: u64,
        why: &Failure,
    ) {
        let Some(entry) = self.codes.entries.get_mut(&id) else {
            return;
        };
        let parked = std::mem::take(&mut entry.parked);
        // Before the failures leave: what is sent to this unit itself may call the code again.
        if !self.codes.has(id) {
            self.codes.forget(id);
        }
        self.codes.unpark(parked.iter().map(|(_, arrived)| arrived));
        let why = Arc::new(why.clone());
        for (head, arrived) in parked {
            let from = arrived.from;
            // There may be more of them than failures that find room at once.
            let waits = !head.one_way && self.out.contains_key(&from.peer);
            let bytes = head.encode(frame::CALL);
            if !waits || !locked(&runtime.inbox).refuse(from, bytes, Some(why.clone())) {
                self.fail(runtime, fabric, &head, from, Failure::clone(&why));
            }
        }
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
        let (id, from, bytes) = (arrived.word, arrived.from, &arrived.bytes);
        let (Some(offset), Some(whole)) = (frame::word(bytes, 4), frame::word(bytes, 8)) else {
            return;
        };
        let part = bytes.get(12..).unwrap_or_default();
        let entry = self.codes.entries.get_mut(&id);
        let Some((fetch, holders)) = entry.and_then(Entry::fetch) else {
            return; // Nobody has asked for it, or it came from elsewhere meanwhile.
        };
        if fetch.sender != Some(from) {
            let at = fetch.asked.iter().position(|holder| *holder == from);
            // Another offset: the answer to an earlier request.
            let Some(at) = at.filter(|_| offset == 0) else {
                return;
            };
            fetch.asked.swap_remove(at);
            if fetch.sender.is_some() {
                // Another one was faster. This one is asked again if that one fails.
                return holders.push(from);
            }
            (fetch.sender, fetch.since) = (Some(from), self.clock);
        }
        if whole == 0 {
            // It has evicted the code meanwhile.
            return self.sender_failed(runtime, fabric, id, None);
        }
        if fetch.got.len() != offset as usize {
            return;
        }
        let is_last = fetch.got.len() + part.len() == whole as usize;
        let is_short = part.len() < LEAST && !is_last;
        // There was room for the length that the first part had.
        let is_another = fetch.whole != 0 && fetch.whole != whole;
        if is_another && !std::mem::replace(&mut fetch.was_changed, true) {
            (fetch.whole, fetch.got) = (0, Vec::new());
            fetch.expect(self.clock);
            let head = frame::short(frame::FETCH, [0]);
            return self.post(runtime, fabric, from, id, &head, &[]);
        }
        let is_wrong = whole as u64 > CAPSULE_MAX || part.is_empty() || is_short || is_another;
        if is_wrong || fetch.got.len() + part.len() > whole as usize {
            let why = "parts that do not make a capsule".to_owned();
            return self.sender_failed(runtime, fabric, id, Some(why));
        }
        let me = self.me;
        let has_room = |codes: &mut Codes| {
            codes.find_caller(id, me, whole.into()) && codes.has_room(id, whole)
        };
        if offset == 0 && !has_room(&mut self.codes) {
            let text =
                "too much code is on its way, or being compiled, at this unit: call again later";
            self.codes.set(id, State::Idle);
            return self.fail_parked(runtime, fabric, id, &Failure::new(Cause::Busy, text));
        }
        let Some(entry) = self.codes.entries.get_mut(&id) else {
            return;
        };
        let Some((fetch, holders)) = entry.fetch() else {
            return;
        };
        fetch.whole = whole;
        fetch.got.extend_from_slice(part);
        fetch.expect(self.clock);
        self.counters.code_received += part.len() as u64;
        let is_far = 2 * fetch.got.len() < whole as usize;
        if !is_last && is_far && fetch.lasts_long(self.clock) && fetch.change_sender(holders) {
            return self.ask_next(runtime, fabric, id);
        }
        if !is_last {
            let head = frame::short(frame::FETCH, [fetch.got.len() as u32]);
            return self.post(runtime, fabric, from, id, &head, &[]);
        }
        let decoded = Capsule::decode(&fetch.got).map_err(|error| error.to_string());
        let checked = decoded.and_then(|capsule| match capsule.hash().id() == id {
            true => Ok(capsule),
            false => Err("bytes that have another hash".to_owned()),
        });
        match checked {
            Ok(capsule) => {
                if !entry.asked_for_signature.contains(&from) {
                    entry.asked_for_signature.push(from);
                }
                self.codes.set(id, State::Idle);
                self.codes.keep(capsule, false, &self.policy);
                self.obtain(runtime, fabric, id);
            }
            Err(why) => {
                // Another holder may have the right bytes.
                self.sender_failed(runtime, fabric, id, Some(why));
            }
        }
    }

    /// The holder that was to send the code does not have it, or has sent something else.
    fn sender_failed(&mut self, runtime: &Runtime, fabric: &Fabric, id: u64, sent: Option<String>) {
        let entry = self.codes.entries.get_mut(&id);
        if let Some((fetch, _)) = entry.and_then(Entry::fetch) {
            let sender = fetch.sender;
            if let (Some(sent), Some(sender)) = (sent, sender) {
                let name = fabric.name_of(sender.peer, Some(sender.incarnation));
                let name = name.unwrap_or_else(|| sender.peer.to_string().into());
                tracing::warn!(from = %name, sent, "what was sent is not the code");
                fetch.wrong = Some(format!("{name} has sent something else: {sent}"));
            }
            fetch.forget(|holder| Some(holder) == sender);
            self.ask_next(runtime, fabric, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_fabric::PeerId;

    /// What a slow holder has sent is kept if no other one is there, and others wait longer for it
    /// each time.
    #[test]
    fn a_sender_is_changed_for_another_one() {
        let [one, two] = [1, 2].map(|peer| Life {
            peer: PeerId(peer),
            incarnation: 1,
        });
        let (mut fetch, mut others) = (Fetch::default(), Vec::new());
        (fetch.sender, fetch.got, fetch.whole) = (Some(one), vec![0; 8], 16);
        assert!(!fetch.change_sender(&mut others));
        assert_eq!(fetch.waits_for(), (vec![one], 8));
        others.push(two);
        assert!(fetch.change_sender(&mut others));
        assert_eq!((fetch.waits_for(), others), ((vec![], 0), vec![one, two]));
        assert_eq!((fetch.stall(), fetch.whole), (2 * STALL, 0));
        assert!(!fetch.change_sender(&mut vec![one]), "nobody sends now");
    }

    /// Two holders need 3 s for each part: one of them is let end what it has begun. One that sends
    /// nothing at all is changed.
    #[test]
    fn slow_holders_do_not_take_turns_for_ever() {
        const PARTS: u32 = 10;
        let [slow, other] = [1, 2].map(|peer| Life {
            peer: PeerId(peer),
            incarnation: 1,
        });
        let begin = |fetch: &mut Fetch, sender, now| {
            (fetch.sender, fetch.since) = (Some(sender), now);
            fetch.expect(now);
        };
        let part = Duration::from_secs(3);
        let (mut fetch, mut others) = (Fetch::default(), vec![other]);
        begin(&mut fetch, slow, Duration::ZERO);
        let (mut next, mut parts) = (part, 0);
        while parts < PARTS {
            assert!(next < 100 * part, "{} changes", fetch.changes);
            let due = fetch.due;
            let now = next.min(due);
            if next <= due {
                fetch.expect(next);
                (next, parts) = (next + part, parts + 1);
                if parts < PARTS && fetch.lasts_long(now) {
                    assert!(fetch.change_sender(&mut others));
                }
            } else {
                fetch.repeat(due, &mut others);
            }
            if fetch.sender.is_none() {
                begin(&mut fetch, others.pop().unwrap(), now);
                (next, parts) = (now + part, 0);
            }
        }
        let (sender, changes) = (fetch.sender.unwrap(), fetch.changes);
        assert!(changes > 0, "a sender that goes on for long is not changed");
        for _ in 0..10 {
            fetch.repeat(fetch.due, &mut others);
        }
        assert_eq!((fetch.sender, others[0]), (None, sender));
        assert_eq!(fetch.changes, changes + 1);
    }
}
