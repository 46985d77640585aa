//! The link of members that do not all share memory: messages.
//!
//! # Messages
//! ```text
//!   tag:   0xD5 | 0: 1 | life: 4 | hash of the team: 31 | call: 19 | descriptor: 1
//! ```
//! The steps of one call need no numbers: messages of a pair arrive in order, and both sides list
//! theirs in the same order. Bits that do not fit are cut off: of two calls of a team that are in
//! use at the same time 2^19 calls may lie between them. Two teams may have the same hash; the
//! descriptor names the team, so that calls of equal numbers that meet by that end with an error.
//! The life says which [`crate::Pgas`] of a fabric it is: what one that ended badly
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
use crate::job::Job;
use crate::team::{Inner, TeamId};
use parking_lot::Mutex;
use samite_fabric::{Error as Below, Fabric, Handle, Match, PeerId, Received, Sent};
use samite_mem::SharedBytes;
use std::collections::VecDeque;
use std::sync::Arc;

/// The active message by which a member ends the calls of the others: life, team, call,
/// [`Failure::words`].
const END: u16 = 0xd500;

/// Failures that others told, the oldest first.
pub(super) type Reports = Arc<Mutex<ReportedFailures>>;

#[derive(Debug, Default)]
pub(super) struct ReportedFailures {
    /// Of which team and call, by whom, and why.
    ends: VecDeque<((u64, u64), PeerId, [u64; 4])>,
    /// Tags of the last calls that failed here: nobody receives what others have sent for them.
    failed: VecDeque<u64>,
}

/// Failures that nobody asked for are kept up to this many.
const ENDS_MAX: usize = 1024;

/// So many calls that failed later, what was sent for a call has come.
const FAILED_MAX: usize = 16;

impl ReportedFailures {
    fn add(&mut self, call: (u64, u64), from: PeerId, why: [u64; 4]) {
        if self.ends.iter().all(|(other, ..)| *other != call) {
            self.ends.push_back((call, from, why));
        }
        // Most are of calls that had ended here already: the oldest is needed least.
        if self.ends.len() > ENDS_MAX {
            self.ends.pop_front();
        }
    }

    /// A call has failed here; the one whose messages are to be dropped now.
    fn add_failed(&mut self, tag: u64) -> Option<u64> {
        self.failed.push_back(tag);
        let is_late = self.failed.len() > FAILED_MAX;
        is_late.then(|| self.failed.pop_front())?
    }

    fn take(&mut self, call: (u64, u64)) -> Option<(PeerId, [u64; 4])> {
        let at = self.ends.iter().position(|(other, ..)| *other == call)?;
        let (_, from, why) = self.ends.remove(at)?;
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

fn tag(life: u32, team: TeamId, call: u64) -> u64 {
    0xd5 << 56 | u64::from(life & 0xf) << 51 | team.mixed() >> 33 << 20 | (call & 0x7_ffff) << 1
}

/// Global memory ends: drops what was sent for calls that have failed here.
pub(super) fn end(fabric: &Fabric, ends: &Reports) {
    let failed = std::mem::take(&mut ends.lock().failed);
    failed
        .into_iter()
        .for_each(|tag| drop_messages(fabric, tag));
}

/// Drops messages of a call that have come and nobody will receive.
fn drop_messages(fabric: &Fabric, tag: u64) {
    let which = Match::any(tag).masked(!1);
    // No more than an honest member can have sent.
    let mut left = 0..1 << 16;
    while left.next().is_some() && fabric.probe(which).is_some() {
        drop(fabric.irecv(which, Vec::new()));
    }
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
    /// A member that has given up a message of this call. It says why, and that may come later.
    left: Option<u32>,
    /// Of whom nothing will come any more, and the changes of membership that were looked at since
    /// something more is expected.
    lost: Vec<u32>,
    changes: Option<u64>,
}

impl Messages {
    pub(super) fn new(team: &Inner, call: &Call) -> Messages {
        let job = &team.job;
        let life = job.layer.life();
        Messages {
            fabric: job.fabric.clone(),
            life,
            team: team.id.0,
            rank: team.rank,
            peers: team.peers.clone(),
            tag: tag(life, team.id, call.number),
            ends: job.collectives.ends.clone(),
            sends: Vec::new(),
            receives: Vec::new(),
            descriptor: None,
            left: None,
            lost: Vec::new(),
            changes: None,
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
        let mut own = call.words().map(u64::to_le_bytes).concat();
        own.extend(self.team.to_le_bytes());
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
    pub(super) fn hear(&mut self, job: &Job, call: &Call) -> Result<(), Failure> {
        let changes = Some(self.fabric.changes());
        if std::mem::replace(&mut self.changes, changes) != changes {
            let is_lost = |rank: &u32| job.lost(self.peers[*rank as usize]).is_some();
            self.lost = self.awaited().filter(is_lost).collect();
        }
        let key = (self.team, call.number);
        let told = self.ends.lock().take(key);
        let told = told.and_then(|(from, why)| {
            // Nobody else can end it.
            let teller = self.peers.iter().position(|peer| *peer == from)?;
            Some(Failure::from_words(why, teller as u32, self.size()))
        });
        if let Some(failure) = told {
            return Err(failure);
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
        let word = |at| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
        match word(3) == self.team {
            true => call.compare([0, 1, 2].map(word), before),
            false => Err(Failure::team(before, word(3), self.team)),
        }
    }

    /// Whether everything that was started has ended.
    pub(super) fn fence(&mut self) -> Result<bool, Failure> {
        let mut failed = |error, rank| match error {
            Below::NotReceived(_) | Below::Cancelled => {
                (self.left, self.changes) = (Some(rank), None);
                Ok(())
            }
            error => Err(Failure::below(error, rank)),
        };
        let ended = |expected: &mut Expected| expected.handle.is_over();
        for Expected { handle, from, len } in self.receives.extract_if(.., ended) {
            match handle.wait() {
                Ok((status, _)) if status.len != len => {
                    return Err(Failure::bytes(from, status.len, len));
                }
                ended => ended.map(drop).or_else(|error| failed(error, from))?,
            }
        }
        for (handle, to) in self.sends.extract_if(.., |(handle, _)| handle.is_over()) {
            let ended = handle.wait();
            ended.map(drop).or_else(|error| failed(error, to))?;
        }
        // Whose last message has come by now is not missed.
        match self.awaited().find(|rank| self.lost.contains(rank)) {
            Some(rank) => Err(Failure::Lost(rank)),
            None => Ok(self.receives.is_empty() && self.sends.is_empty() && self.left.is_none()),
        }
    }

    /// Starts to send.
    pub(super) fn send(&mut self, to: u32, bytes: SharedBytes) -> Result<(), Failure> {
        let peer = self.peers[to as usize];
        let handle = self.fabric.isend_shared(peer, self.tag, bytes);
        let handle = handle.map_err(|error| Failure::below(error, to))?;
        self.sends.push((handle, to));
        self.changes = None;
        Ok(())
    }

    /// Starts to receive.
    pub(super) fn recv(&mut self, from: u32, into: SharedBytes) -> Result<(), Failure> {
        let (wants, len) = (Match::from(self.peers[from as usize], self.tag), into.len());
        let handle = self.fabric.irecv_shared(wants, into);
        let handle = handle.map_err(|error| Failure::below(error, from))?;
        self.receives.push(Expected { handle, from, len });
        self.changes = None;
        Ok(())
    }

    /// Whether nothing is expected any more.
    pub(super) fn is_over(&self) -> bool {
        self.awaited().next().is_none()
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
        let unwanted = self.ends.lock().add_failed(self.tag);
        if let Some(tag) = unwanted {
            drop_messages(&self.fabric, tag);
        }
    }

    fn withdraw(&mut self) {
        for (mut handle, _) in self.sends.drain(..) {
            handle.cancel();
        }
        if let Some(mut descriptor) = self.descriptor.take() {
            descriptor.cancel();
        }
        let mut receives = std::mem::take(&mut self.receives);
        receives
            .iter_mut()
            .for_each(|expected| expected.handle.cancel());
        // All within one deadline.
        let mut are_over = || {
            receives.retain(|expected| !expected.handle.is_over());
            receives.is_empty().then_some(())
        };
        if are_over().is_none() {
            let what = "the end of messages that were given up";
            let _ = self.fabric.wait_stepping(what, &[], are_over, || false);
        }
    }

    /// The rank before this one, around the ring.
    fn before(&self) -> u32 {
        (self.rank + self.size() - 1) % self.size()
    }

    /// The ranks of whom something is expected.
    fn awaited(&self) -> impl Iterator<Item = u32> {
        let receives = self.receives.iter().map(|expected| expected.from);
        let sends = self.sends.iter().map(|(_, to)| *to);
        let descriptor = self.descriptor.iter().map(|_| self.before());
        let left = self.left.into_iter();
        left.chain(receives).chain(sends).chain(descriptor)
    }

    /// The first of whom something is expected.
    pub(super) fn first_awaited(&self) -> Option<PeerId> {
        let rank = self.awaited().next();
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
    use crate::Pgas;
    use samite_testkit::{check, same, simulate};
    use std::collections::HashSet;

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
        assert_eq!(told.ends.len(), ENDS_MAX);
        for call in 0..10 {
            assert_eq!(told.take((7, call)), None);
            assert_eq!(told.take((0, call)), Some((from, [call; 4])));
            assert_eq!(told.take((0, call)), None);
        }
        assert_eq!(told.take((7, 10)), Some((from, [10; 4])));
    }

    /// Also of teams of leaders far apart.
    #[test]
    fn teams_have_tags_of_their_own() {
        let leaders = [0, 1, 2047, 2048, 4096, 1 << 20];
        let ids = leaders
            .iter()
            .flat_map(|leader| (1..9).map(move |number| leader << 32 | number));
        let tags: HashSet<u64> = ids.map(|id| tag(3, TeamId(id), 7)).collect();
        assert_eq!(tags.len(), 48);
        assert!(tags.iter().all(|tag| tag >> 51 == 0xd5 << 5 | 3));
    }

    /// Messages of calls that have failed here are dropped some time later, and all at the end.
    #[test]
    fn messages_that_nobody_receives_are_dropped() {
        let name = "collective::messages::tests::messages_that_nobody_receives_are_dropped";
        simulate(name, 2, 0..2, |fabric, _| {
            let pgas = Pgas::new(fabric)?;
            let world = pgas.world();
            for _ in 0..6 * FAILED_MAX {
                let answer = match world.rank() {
                    0 => world.barrier(),
                    _ => world.broadcast(9, &mut [0]),
                };
                check!(answer.is_err());
                world.barrier()?;
            }
            let all = Match::any(0xd5 << 56).masked(0xff << 56);
            let mut found = 0;
            while fabric.probe(all).is_some() {
                fabric.recv_vec(all)?;
                found += 1;
            }
            check!(found <= 3 * FAILED_MAX, "{found} messages are kept");
            check!(world.rank() == 0 || found > 0, "the others send nothing");
            for _ in 0..2 {
                drop(world.broadcast(7 + world.rank(), &mut [0]));
            }
            world.barrier()?;
            drop(pgas);
            same!(fabric.probe(all), None);
            Ok(())
        });
    }
}
