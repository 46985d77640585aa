//! The link of members that do not all share memory: messages.
//!
//! # Messages
//! ```text
//!   tag:   0xD5 | 0: 1 | life: 4 | leader of the team: 11 | its number: 20 | call: 19 | descriptor: 1
//! ```
//! The steps of one call need no numbers: messages of a pair arrive in order, and both sides list
//! theirs in the same order. Bits that do not fit are cut off: of two calls or teams that are in
//! use at the same time between the same units, 2^19 calls and 2^20 teams of one leader may lie
//! between them. The life says which [`crate::Pgas`] of a fabric it is: what one that ended badly
//! left behind is not taken for a message of one of the next 15.
//!
//! # Who calls something else
//! Each member sends its descriptor to the next rank and ends only when that of the rank before is
//! there and equal. Equality is transitive around the ring: if anybody differs, somebody finds out.
//! Who finds out, or loses a member, tells all others by an active message, and their calls end as
//! well.
//!
//! # Ownership
//! Messages in flight own their memory (clones of [`SharedBytes`]), so a call that is forgotten, or
//! dropped too early, leaves nothing behind that could be freed too early. Receives into the
//! caller's symmetric memory are cancelled, and waited for, before a failed call returns.

use super::call::{Call, Failure};
use crate::team::Inner;
use parking_lot::Mutex;
use samite_fabric::{Fabric, Handle, Match, PeerId, Received, Sent};
use samite_mem::SharedBytes;
use std::collections::VecDeque;
use std::sync::Arc;

/// The active message by which a member ends the calls of the others: life, team, call,
/// [`Failure::words`].
const END: u16 = 0xd500;

/// Failures that others told, the oldest first.
pub(super) type Reports = Arc<Mutex<ReportedFailures>>;

/// Of which team and call, by whom, and why.
#[derive(Debug, Default)]
pub(super) struct ReportedFailures(VecDeque<((u64, u64), PeerId, [u64; 4])>);

/// ReportedFailures failures that nobody asked for are kept up to this many.
const ENDS_MAX: usize = 1024;

impl ReportedFailures {
    fn add(&mut self, call: (u64, u64), from: PeerId, why: [u64; 4]) {
        if self.0.iter().all(|(other, ..)| *other != call) {
            self.0.push_back((call, from, why));
        }
        // Most are of calls that had ended here already: the oldest is needed least.
        if self.0.len() > ENDS_MAX {
            self.0.pop_front();
        }
    }

    fn take(&mut self, call: (u64, u64)) -> Option<(PeerId, [u64; 4])> {
        let at = self.0.iter().position(|(other, ..)| *other == call)?;
        let (_, from, why) = self.0.remove(at)?;
        Some((from, why))
    }
}

/// Listens to what others tell of failures in this life.
pub(super) fn listen(fabric: &Fabric, life: u32) -> Reports {
    let ends = Reports::default();
    let kept = ends.clone();
    fabric.on(END, move |from, bytes| {
        let (words, []) = bytes.as_chunks::<8>() else {
            return None;
        };
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        if let [of, team, call, why @ ..] = &words[..]
            && let Ok(why) = <[u64; 4]>::try_from(why)
            && *of == u64::from(life)
        {
            kept.lock().add((*team, *call), from, why);
        }
        None
    });
    ends
}

/// A message on its way to this member.
#[derive(Debug)]
struct Expected {
    handle: Handle<Received>,
    from: u32,
    len: u64,
}

/// The link of one call. It does not keep the team alive.
#[derive(Debug)]
pub(super) struct Messages {
    fabric: Fabric,
    life: u32,
    team: u64,
    rank: u32,
    peers: Arc<[PeerId]>,
    tag: u64,
    ends: Reports,
    sends: Vec<(Handle<Sent>, u32)>,
    receives: Vec<Expected>,
    /// The descriptor of the rank before.
    descriptor: Option<Handle<Received>>,
}

impl Messages {
    pub(super) fn new(team: &Inner, call: &Call) -> Messages {
        let job = &team.job;
        let life = job.layer.life();
        let team_bits =
            u64::from(life & 0xf) << 31 | (team.id.0 >> 32 & 0x7ff) << 20 | team.id.0 & 0xf_ffff;
        Messages {
            fabric: job.fabric.clone(),
            life,
            team: team.id.0,
            rank: team.rank,
            peers: team.peers.clone(),
            tag: 0xd5 << 56 | team_bits << 20 | (call.number & 0x7_ffff) << 1,
            ends: job.collectives.ends.clone(),
            sends: Vec::new(),
            receives: Vec::new(),
            descriptor: None,
        }
    }

    fn size(&self) -> u32 {
        self.peers.len() as u32
    }

    /// Sends the descriptor to the next rank and asks for that of the one before.
    pub(super) fn introduce(&mut self, call: &Call) -> Result<(), Failure> {
        let (rank, size) = (self.rank, self.size());
        if size == 1 {
            return Ok(());
        }
        let (before, next) = (self.before(), (rank + 1) % size);
        let own = call.words().map(u64::to_le_bytes).concat();
        let peer = |rank: u32| self.peers[rank as usize];
        let tag = self.tag | 1;
        let expected = self
            .fabric
            .irecv(Match::from(peer(before), tag), vec![0; own.len()]);
        self.descriptor = Some(expected.map_err(|error| Failure::below(error, before))?);
        let send = self.fabric.isend(peer(next), tag, own);
        let send = send.map_err(|error| Failure::below(error, next))?;
        self.sends.push((send, next));
        Ok(())
    }

    /// Whether another member ended the call, or called something else.
    pub(super) fn hear(&mut self, call: &Call) -> Result<(), Failure> {
        let key = (self.team, call.number);
        let told = self.ends.lock().take(key);
        if let Some((from, why)) = told {
            let teller = self.peers.iter().position(|peer| *peer == from);
            let teller = teller.unwrap_or(0) as u32;
            return Err(Failure::from_words(why, teller, self.size()));
        }
        let Some(descriptor) = self.descriptor.take_if(|handle| handle.is_over()) else {
            return Ok(());
        };
        let before = self.before();
        let told = descriptor
            .wait()
            .map_err(|error| Failure::below(error, before))?;
        let words = told.1.unwrap_or_default();
        let (words, _) = words.as_chunks::<8>();
        let words = [0, 1, 2].map(|at| words.get(at).map_or(0, |word| u64::from_le_bytes(*word)));
        call.compare(words, before)
    }

    /// Whether everything that was started has ended.
    pub(super) fn fence(&mut self) -> Result<bool, Failure> {
        let mut at = 0;
        while let Some(expected) = self.receives.get(at) {
            if !expected.handle.is_over() {
                at += 1;
                continue;
            }
            let Expected { handle, from, len } = self.receives.swap_remove(at);
            let ended = handle.wait();
            let (status, _) = ended.map_err(|error| Failure::below(error, from))?;
            if status.len != len {
                return Err(Failure::bytes(from, status.len, len));
            }
        }
        at = 0;
        while let Some((handle, _)) = self.sends.get(at) {
            if !handle.is_over() {
                at += 1;
                continue;
            }
            let (handle, to) = self.sends.swap_remove(at);
            let ended = handle.wait();
            ended.map_err(|error| Failure::below(error, to))?;
        }
        Ok(self.receives.is_empty() && self.sends.is_empty())
    }

    /// Starts to send.
    pub(super) fn send(&mut self, to: u32, bytes: SharedBytes) -> Result<(), Failure> {
        let peer = self.peers[to as usize];
        let handle = self.fabric.isend_shared(peer, self.tag, bytes);
        let handle = handle.map_err(|error| Failure::below(error, to))?;
        self.sends.push((handle, to));
        Ok(())
    }

    /// Starts to receive.
    pub(super) fn recv(&mut self, from: u32, into: SharedBytes) -> Result<(), Failure> {
        let (wants, len) = (Match::from(self.peers[from as usize], self.tag), into.len());
        let handle = self.fabric.irecv_shared(wants, into);
        let handle = handle.map_err(|error| Failure::below(error, from))?;
        self.receives.push(Expected { handle, from, len });
        Ok(())
    }

    /// Whether nothing is expected any more.
    pub(super) fn is_over(&self) -> bool {
        self.receives.is_empty() && self.sends.is_empty() && self.descriptor.is_none()
    }

    /// Reports early: tells the others, unless they know, and takes back what is in flight.
    pub(super) fn fail(&mut self, call: &Call, failure: &Failure) {
        let mut telling = vec![self.life.into(), self.team, call.number];
        telling.extend(failure.words(self.rank));
        let telling: Vec<u8> = telling.into_iter().flat_map(u64::to_le_bytes).collect();
        let others = self.peers.iter().zip(0..);
        for (peer, _) in others.filter(|(_, rank)| *rank != self.rank) {
            // Who is gone need not hear it.
            let _ = self.fabric.tell(*peer, END, &telling);
        }
        self.withdraw();
    }

    fn withdraw(&mut self) {
        for mut expected in self.receives.drain(..) {
            expected.handle.cancel();
            let _ = expected.handle.wait();
        }
        for (mut handle, _) in self.sends.drain(..) {
            handle.cancel();
        }
        if let Some(mut descriptor) = self.descriptor.take() {
            descriptor.cancel();
        }
    }

    /// The rank before this one, around the ring.
    fn before(&self) -> u32 {
        (self.rank + self.size() - 1) % self.size()
    }

    /// The first of whom something is expected.
    pub(super) fn awaited(&self) -> Option<PeerId> {
        let receives = self.receives.iter().map(|expected| expected.from);
        let sends = self.sends.iter().map(|(_, to)| *to);
        let descriptor = self.descriptor.iter().map(|_| self.before());
        let rank = receives.chain(sends).chain(descriptor).next();
        rank.map(|rank| self.peers[rank as usize])
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.withdraw();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_failures_are_let_go() {
        let (mut told, from) = (ReportedFailures::default(), PeerId(1));
        // The calls of the first team are the lowest keys, and the latest news.
        for call in 0..ENDS_MAX as u64 {
            told.add((7, call), from, [call; 4]);
        }
        for call in 0..10 {
            told.add((0, call), from, [call; 4]);
            told.add((0, call), from, [99; 4]);
        }
        assert_eq!(told.0.len(), ENDS_MAX);
        for call in 0..10 {
            assert_eq!(told.take((7, call)), None);
            assert_eq!(told.take((0, call)), Some((from, [call; 4])));
            assert_eq!(told.take((0, call)), None);
        }
        assert_eq!(told.take((7, 10)), Some((from, [10; 4])));
    }
}
