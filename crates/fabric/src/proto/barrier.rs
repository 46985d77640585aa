//! The engine's state of barriers: which members have arrived, and what the roots have answered.
//! The protocol and its invariants are described in [`crate::barrier`].

use crate::engine::{self, Engine};
use crate::transport::Incoming;
use crate::wire::{Words, kind};
use crate::{Error, PeerId, Result, Whom};
use std::collections::HashMap;

/// The keys of barriers begin here; user keys lie below.
pub(crate) const KEYS: u64 = 1 << 63;

pub(crate) const COME: u64 = 0;
pub(crate) const BACK: u64 = 1;
pub(crate) const GO: u64 = 2;
pub(crate) const NO: u64 = 3;
pub(crate) const MISSING: u64 = 4;

const STEP_BITS: u32 = 3;
pub(crate) const LIST_BITS: u32 = 29;
const ATTEMPT_BITS: u32 = 31;
const _: () = assert!(STEP_BITS + LIST_BITS + ATTEMPT_BITS == 63);

/// The most lists of one peer at whose barriers it waits, and of this process that a loss has
/// ended.
pub(crate) const LISTS_MAX: usize = 1 << 12;

/// The barriers of which this process is the root and at which a peer has arrived, by list.
pub(crate) type Arrivals = HashMap<u64, Arrival>;

/// A COME that was not answered yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) attempt: u64,
    pub(crate) value: u64,
}

/// A barrier where this process waits as a member.
#[derive(Debug)]
struct Waiting {
    root: PeerId,
    attempt: u64,
    answer: Option<Result<u64>>,
    /// The member that the root last reported missing.
    missing: Option<PeerId>,
}

/// The barriers of this process.
#[derive(Debug, Default)]
pub(crate) struct Barriers {
    /// The last attempt. Attempts begin at 1.
    attempts: u64,
    /// Where it waits as a member.
    waits: Vec<Waiting>,
    /// Barriers where it is the root: lists, and the member that it found lost (G4).
    pub(crate) broken: Vec<(u64, (PeerId, u32))>,
    /// Whether a peer was lost that had arrived.
    pub(crate) has_stale: bool,
}

pub(crate) fn key(step: u64, list: u64, attempt: u64) -> u64 {
    KEYS | step << (LIST_BITS + ATTEMPT_BITS) | list << ATTEMPT_BITS | attempt
}

/// Returns the step, the list and the attempt of a key.
fn parts(key: u64) -> (u64, u64, u64) {
    let bits = |first: u32, count: u32| key >> first & ((1 << count) - 1);
    let list = bits(ATTEMPT_BITS, LIST_BITS);
    let step = bits(ATTEMPT_BITS + LIST_BITS, STEP_BITS);
    (step, list, bits(0, ATTEMPT_BITS))
}

impl Barriers {
    pub(crate) fn next_attempt(&mut self, root: PeerId) -> u64 {
        self.attempts = (self.attempts + 1) & ((1 << ATTEMPT_BITS) - 1);
        self.attempts = self.attempts.max(1);
        self.waits.push(Waiting {
            root,
            attempt: self.attempts,
            answer: None,
            missing: None,
        });
        self.attempts
    }

    /// Ends a wait, however it ended.
    pub(crate) fn leave(&mut self, attempt: u64) {
        self.waits.retain(|wait| wait.attempt != attempt);
    }

    /// Returns the wait of this attempt with this root; `None` if nobody waits any more (G2).
    fn wait(&mut self, root: PeerId, attempt: u64) -> Option<&mut Waiting> {
        let mut waits = self.waits.iter_mut();
        waits.find(|wait| (wait.root, wait.attempt) == (root, attempt))
    }

    fn answered(&mut self, root: PeerId, attempt: u64, answer: Result<u64>) {
        if let Some(wait) = self.wait(root, attempt) {
            wait.answer = Some(answer);
        }
    }

    /// Ends the waits for the answer of a root that can no longer be reached (G5).
    pub(crate) fn root_lost(&mut self, root: PeerId, error: &Error) {
        for wait in self.waits.iter_mut().filter(|wait| wait.root == root) {
            wait.answer.get_or_insert_with(|| Err(error.clone()));
        }
    }

    pub(crate) fn take_answer(&mut self, attempt: u64) -> Option<Result<u64>> {
        let mut waits = self.waits.iter();
        let index = waits.position(|wait| wait.attempt == attempt && wait.answer.is_some())?;
        self.waits.swap_remove(index).answer
    }

    /// Returns the party that a timeout of this wait names: the member that the root reported
    /// missing, otherwise the root.
    pub(crate) fn awaited(&mut self, root: PeerId, attempt: u64) -> Whom {
        let missing = self.wait(root, attempt).and_then(|wait| wait.missing);
        Whom::Peer(missing.unwrap_or(root))
    }
}

impl Engine {
    /// Takes a signal with a key from [`KEYS`] on.
    pub(crate) fn barrier_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        const WHO: &str = "a peer of a barrier";
        let from = frame.from;
        let (step, list, attempt) = parts(frame.arg);
        let value = || Words::<1>::read(frame.inline).ok_or("the value of a barrier");
        let number = |word: u64| u32::try_from(word).map_err(|_| WHO);
        match step {
            COME if attempt != 0 => {
                let Words([value]) = value()?;
                return self.has_arrived(from, list, Arrival { attempt, value });
            }
            BACK => {
                // A member that was released meanwhile has nothing to take back.
                let arrivals = &mut self.peer(from).arrivals;
                if arrivals.get(&list).is_some_and(|it| it.attempt == attempt) {
                    arrivals.remove(&list);
                }
            }
            GO => {
                let Words([value]) = value()?;
                self.barriers.answered(from, attempt, Ok(value));
            }
            NO => {
                let Words([peer, incarnation]) = Words::<2>::read(frame.inline).ok_or(WHO)?;
                let (peer, incarnation) = (PeerId(number(peer)?), number(incarnation)?);
                if self.barriers.wait(from, attempt).is_some() {
                    let lost = self.named(engine::lost(peer, incarnation));
                    self.barriers.answered(from, attempt, Err(lost));
                }
            }
            MISSING => {
                let Words([peer]) = Words::<1>::read(frame.inline).ok_or(WHO)?;
                let missing = PeerId(number(peer)?);
                if let Some(wait) = self.barriers.wait(from, attempt) {
                    wait.missing = Some(missing);
                }
            }
            _ => return Err("the key of a signal"),
        }
        Ok(())
    }

    fn has_arrived(
        &mut self,
        from: PeerId,
        list: u64,
        arrival: Arrival,
    ) -> Result<(), &'static str> {
        let mut broken = self.barriers.broken.iter();
        // A peer that reads no answers gets none.
        if let Some((_, lost)) = broken.find(|one| one.0 == list).copied()
            && self.has_capacity(from)
        {
            self.say_no(from, key(NO, list, arrival.attempt), lost);
            return Ok(());
        }
        let arrivals = &mut self.peer(from).arrivals;
        if arrivals.len() >= LISTS_MAX && !arrivals.contains_key(&list) {
            return Err("more barriers than anybody waits at");
        }
        arrivals.insert(list, arrival);
        Ok(())
    }

    /// Begins a barrier as its root. The arrival of a member counts even if it is lost after it,
    /// but not in a later attempt of the root (G1).
    pub(crate) fn enter_as_root(&mut self, others: &[PeerId], lives: &[u32], list: u64) {
        self.barriers.broken.retain(|(one, _)| *one != list); // G4
        if self.barriers.has_stale {
            for (index, other) in others.iter().enumerate() {
                if self.lost_member(*other, lives.get(index)).is_some() {
                    self.take_come(*other, list);
                }
            }
        }
    }

    /// Returns why a member is lost: this incarnation of it, if it is known.
    pub(crate) fn lost_member(&self, peer: PeerId, life: Option<&u32>) -> Option<Error> {
        match life {
            Some(life) => self.lost_life(peer, *life),
            None => self.gone(peer),
        }
    }

    /// Reports to those that have arrived a member that has not.
    pub(crate) fn report_missing(&mut self, others: &[PeerId], list: u64, missing: PeerId) {
        let missing = Words([missing.0.into()]).bytes();
        for other in others {
            let arrival = self
                .peers
                .get(*other)
                .and_then(|peer| peer.arrivals.get(&list));
            // A peer that reads nothing is told nothing.
            if let Some(Arrival { attempt, .. }) = arrival.copied()
                && self.has_capacity(*other)
            {
                self.post(*other, kind::SIGNAL, key(MISSING, list, attempt), &missing);
            }
        }
    }

    pub(crate) fn say_no(&mut self, to: PeerId, key: u64, (peer, incarnation): (PeerId, u32)) {
        let lost = Words([peer.0.into(), incarnation.into()]).bytes();
        self.post(to, kind::SIGNAL, key, &lost);
    }

    /// Returns true if a member has come: itself, if its incarnation is known, and not another
    /// process that has its number by now.
    pub(crate) fn is_there(&self, peer: PeerId, life: Option<&u32>, list: u64) -> bool {
        self.has_come(peer, list) && life.is_none_or(|life| self.incarnation(peer) == *life)
    }

    fn has_come(&self, from: PeerId, list: u64) -> bool {
        let peer = self.peers.get(from);
        peer.is_some_and(|peer| peer.arrivals.contains_key(&list))
    }

    /// Returns why the barrier will not end, if so: one that has not come never will, or an
    /// incarnation that is needed is lost (G6).
    pub(crate) fn lost_at(&self, others: &[PeerId], lives: &[u32], list: u64) -> Option<Error> {
        let mut others = others.iter().enumerate();
        others.find_map(|(index, other)| match lives.get(index) {
            None if self.has_come(*other, list) => None,
            life => self.lost_member(*other, life),
        })
    }

    pub(crate) fn take_come(&mut self, from: PeerId, list: u64) -> Option<Arrival> {
        self.peer(from).arrivals.remove(&list)
    }
}
