//! The engine's state of barriers: which members have arrived, and what the roots have answered.
//! The protocol and its invariants are described in [`crate::barrier`].

use crate::engine::Engine;
use crate::transport::Incoming;
use crate::wire::{Words, kind};
use crate::{Error, PeerId, Result};
use std::collections::HashMap;

/// The keys of barriers begin here; user keys lie below.
pub(crate) const KEYS: u64 = 1 << 63;

pub(crate) const COME: u64 = 0;
pub(crate) const BACK: u64 = 1;
pub(crate) const GO: u64 = 2;
pub(crate) const NO: u64 = 3;

/// The most lists of one peer at whose barriers it waits, and of this process that a loss has
/// ended.
pub(crate) const LISTS_MAX: usize = 1 << 12;

/// The barriers of which this process is the root and at which a peer has arrived: attempts, by
/// list.
pub(crate) type Arrivals = HashMap<u64, u64>;

/// The barriers of this process.
#[derive(Debug, Default)]
pub(crate) struct Barriers {
    /// The last attempt. Attempts begin at 1.
    attempts: u64,
    /// Barriers where it waits as a member: the root, the attempt, and the root's answer.
    pub(crate) waits: Vec<(PeerId, u64, Option<Result<()>>)>,
    /// Barriers where it is the root: lists, and the member that it found lost (G4).
    pub(crate) broken: Vec<(u64, (PeerId, u32))>,
}

pub(crate) fn key(step: u64, list: u64, attempt: u64) -> u64 {
    KEYS | step << 61 | list << 32 | attempt
}

impl Barriers {
    pub(crate) fn next_attempt(&mut self, root: PeerId) -> u64 {
        self.attempts = (self.attempts + 1) & 0xffff_ffff;
        self.attempts = self.attempts.max(1);
        self.waits.push((root, self.attempts, None));
        self.attempts
    }

    /// Records a root's answer; dropped if nobody waits for it (G2).
    fn answered(&mut self, root: PeerId, attempt: u64, answer: Result<()>) {
        let mut waits = self.waits.iter_mut();
        if let Some(wait) = waits.find(|wait| (wait.0, wait.1) == (root, attempt)) {
            wait.2 = Some(answer);
        }
    }

    /// Ends the waits for the answer of a root that can no longer be reached (G5).
    pub(crate) fn root_lost(&mut self, root: PeerId, error: &Error) {
        for (_, _, answer) in self.waits.iter_mut().filter(|wait| wait.0 == root) {
            answer.get_or_insert_with(|| Err(error.clone()));
        }
    }

    pub(crate) fn take_answer(&mut self, attempt: u64) -> Option<Result<()>> {
        let mut waits = self.waits.iter();
        let index = waits.position(|wait| wait.1 == attempt && wait.2.is_some())?;
        self.waits.swap_remove(index).2
    }
}

impl Engine {
    /// Takes a signal with a key from [`KEYS`] on.
    pub(crate) fn barrier_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let (from, key) = (frame.from, frame.arg);
        let (step, list, attempt) = (key >> 61 & 3, key >> 32 & 0x1fff_ffff, key & 0xffff_ffff);
        match step {
            COME if attempt != 0 => return self.has_arrived(from, list, attempt),
            BACK => {
                // A member that was released meanwhile has nothing to take back.
                let arrivals = &mut self.peer(from).arrivals;
                if arrivals.get(&list) == Some(&attempt) {
                    arrivals.remove(&list);
                }
            }
            GO => self.barriers.answered(from, attempt, Ok(())),
            NO => {
                let lost = Words::<2>::read(frame.inline).ok_or("who is lost at a barrier")?;
                let Words([peer, incarnation]) = lost;
                let (peer, incarnation) = (PeerId(peer as u32), incarnation as u32);
                let lost = Error::PeerLost { peer, incarnation };
                self.barriers.answered(from, attempt, Err(lost));
            }
            _ => return Err("the key of a signal"),
        }
        Ok(())
    }

    fn has_arrived(&mut self, from: PeerId, list: u64, attempt: u64) -> Result<(), &'static str> {
        let mut broken = self.barriers.broken.iter();
        // A peer that reads no answers gets none.
        if let Some((_, lost)) = broken.find(|one| one.0 == list).copied()
            && self.has_capacity(from)
        {
            self.say_no(from, key(NO, list, attempt), lost);
            return Ok(());
        }
        let arrivals = &mut self.peer(from).arrivals;
        if arrivals.len() >= LISTS_MAX && !arrivals.contains_key(&list) {
            return Err("more barriers than anybody waits at");
        }
        arrivals.insert(list, attempt);
        Ok(())
    }

    pub(crate) fn say_no(&mut self, to: PeerId, key: u64, (peer, incarnation): (PeerId, u32)) {
        let lost = Words([peer.0.into(), incarnation.into()]).bytes();
        self.post(to, kind::SIGNAL, key, &lost);
    }

    pub(crate) fn has_come(&self, from: PeerId, list: u64) -> bool {
        let peer = self.peers.get(from);
        peer.is_some_and(|peer| peer.arrivals.contains_key(&list))
    }

    /// Returns why one of those that have not come never will, if so.
    pub(crate) fn lost_at(&self, others: &[PeerId], list: u64) -> Option<Error> {
        let mut missing = others.iter().filter(|other| !self.has_come(**other, list));
        missing.find_map(|other| self.gone(*other))
    }

    pub(crate) fn take_come(&mut self, from: PeerId, list: u64) -> u64 {
        self.peer(from).arrivals.remove(&list).unwrap_or(0)
    }
}
