//! The link between members that do not all share memory: messages.
//!
//! # Messages
//! ```text
//!   tag:   0xD5 | 0: 1 | life: 4 | hash of the team: 31 | call: 19 | descriptor: 1
//! ```
//! The steps of one call need no numbers: messages of a pair arrive in order, and both sides list
//! theirs in the same order. Fields are truncated: two calls of a team that are in use at the same
//! time must be fewer than 2^19 calls apart. Two teams may have the same hash. The descriptor names
//! the team, so calls of such teams with equal numbers end with an error. The life is that of the
//! [`crate::Pgas`]: leftovers of one that ended badly are not taken for messages of the next 15.
//! This unit may have skipped lives of the others, whose low bits can then be equal: the hash
//! covers all bits.
//!
//! # Detecting mismatched calls
//! Each member sends its descriptor to the next rank. It ends only when that of the previous rank
//! has arrived and is equal. Equality is transitive around the ring, so any difference is detected
//! by some member. A member that detects one, or loses a member, tells all others by an active
//! message, and their calls end as well.
//!
//! # Ownership
//! Messages in flight own their memory (clones of [`SharedBytes`]), so forgetting a call, or
//! dropping it early, frees no memory that is still in use. A failed call cancels its receives into
//! the caller's symmetric memory, and waits for them, before it returns.

use super::call::{Call, Failure};
use super::pending::Flight;
use crate::job::Job;
use crate::team::{Inner, TeamId};
use crate::unfinished::in_destructor;
use crate::waited::tell_all;
use parking_lot::Mutex;
use samite_fabric::{Error as Below, Fabric, Handle, Match, PeerId, Received, Sent};
use samite_mem::SharedBytes;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// The active message by which a member ends the calls of the others: [`CallName`],
/// [`Failure::words`].
const END: u16 = 0xd500;

/// A call, among all that a member may report: life, team, number.
type CallName = [u64; 3];

/// Failures that other members reported, the oldest first.
pub(super) type Reports = Arc<Mutex<ReportedFailures>>;

#[derive(Debug, Default)]
pub(super) struct ReportedFailures {
    /// The call, the reporting peer, and the reason.
    ends: VecDeque<(CallName, PeerId, [u64; 4])>,
    /// Of calls that failed here.
    failed: Unwanted,
    /// Of the clocks of calls that failed here or whose result nobody received.
    clocks: Unwanted,
}

/// The last tags whose messages are not received any more, each with its call if that may still be
/// in flight.
#[derive(Debug, Default)]
struct Unwanted(VecDeque<(u64, Weak<Flight>)>);

/// Maximum number of reported failures that are kept.
const ENDS_MAX: usize = 1024;

/// After this many later failures, all messages of a failed call have arrived, unless it is still
/// in flight.
const FAILED_MAX: usize = 16;

impl ReportedFailures {
    fn add(&mut self, call: CallName, from: PeerId, why: [u64; 4]) {
        let is_known = |(other, peer, _): &(_, PeerId, _)| (*other, *peer) == (call, from);
        if !self.ends.iter().any(is_known) {
            self.ends.push_back((call, from, why));
        }
        // Most belong to calls that had already ended here, so the oldest is dropped.
        if self.ends.len() > ENDS_MAX {
            self.ends.pop_front();
        }
    }

    /// Takes the report of a member, with its rank. Only members can end a call.
    fn take(&mut self, call: CallName, members: &[PeerId]) -> Option<(u32, [u64; 4])> {
        let rank = |(other, from, _): &(CallName, PeerId, _)| match *other == call {
            true => members.iter().position(|peer| peer == from),
            false => None,
        };
        let mut found = self.ends.iter().enumerate();
        let (at, rank) = found.find_map(|(at, end)| Some((at, rank(end)?)))?;
        let (.., why) = self.ends.remove(at)?;
        Some((rank as u32, why))
    }
}

impl Unwanted {
    /// Adds a tag. Returns those whose messages are to be dropped now.
    fn add(&mut self, tag: u64, call: Weak<Flight>) -> Vec<u64> {
        self.0.push_back((tag, call));
        // A call that nobody waits for may stay in flight for ever.
        let has_ended = |call: &Weak<Flight>| call.strong_count() == 0;
        let ended = self.0.iter().filter(|(_, call)| has_ended(call)).count();
        let (mut too_many, mut unwanted) = (ended.saturating_sub(FAILED_MAX), Vec::new());
        self.0.retain(|(tag, call)| {
            let is_late = too_many > 0 && has_ended(call);
            if is_late {
                too_many -= 1;
                unwanted.push(*tag);
            }
            !is_late
        });
        unwanted
    }
}

/// Starts to receive reports of failures from the members of this global memory. One may report
/// before this unit knows the number of the life.
pub(super) fn listen(fabric: &Fabric, units: Vec<PeerId>) -> Reports {
    let ends = Reports::default();
    let kept = ends.clone();
    fabric.on(END, move |from, bytes| {
        let (words, []) = bytes.as_chunks::<8>() else {
            return None;
        };
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        if let Some((call, why)) = words.split_first_chunk()
            && let Ok(why) = <[u64; 4]>::try_from(why)
            && units.contains(&from)
        {
            kept.lock().add(*call, from, why);
        }
        None
    });
    ends
}

fn tag(life: u64, team: TeamId, call: u64) -> u64 {
    let of_life = TeamId(team.0 ^ TeamId(life).mixed());
    0xd5 << 56 | (life & 0xf) << 51 | of_life.mixed() >> 33 << 20 | (call & 0x7_ffff) << 1
}

/// Drops the messages that will not be received, when global memory ends.
pub(super) fn end(fabric: &Fabric, ends: &Reports) {
    let ReportedFailures { failed, clocks, .. } = std::mem::take(&mut *ends.lock());
    drop_messages(
        fabric,
        failed.0.into_iter().chain(clocks.0).map(|(tag, _)| tag),
    );
}

/// Records that messages of a failed call are not received any more. They are dropped some failures
/// later.
fn forget(fabric: &Fabric, ends: &Reports, tag: u64) {
    let unwanted = ends.lock().failed.add(tag, Weak::new());
    drop_messages(fabric, unwanted);
}

/// As [`forget`], for the clocks of a call that may still be in flight.
pub(super) fn forget_clocks(fabric: &Fabric, ends: &Reports, tag: u64, call: Weak<Flight>) {
    let unwanted = ends.lock().clocks.add(tag, call);
    drop_messages(fabric, unwanted);
}

/// Drops the messages that have arrived with these tags and will not be received.
fn drop_messages(fabric: &Fabric, tags: impl IntoIterator<Item = u64>) {
    for tag in tags {
        let which = Match::any(tag).masked(!1);
        // A bound on what a correct member can have sent.
        let mut left = 0..1 << 16;
        while left.next().is_some() && fabric.probe(which).is_some() {
            drop(fabric.irecv(which, Vec::new()));
        }
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
    life: u64,
    team: u64,
    rank: u32,
    peers: Arc<[PeerId]>,
    tag: u64,
    ends: Reports,
    sends: Vec<(Handle<Sent>, u32)>,
    receives: Vec<Expected>,
    /// The descriptor of the rank before.
    descriptor: Option<Handle<Received>>,
    /// A member that has cancelled a message of this call. Its report may arrive later.
    left: Option<u32>,
    /// The lost ones of the awaited members, and the count of membership changes at that check
    /// (`None` after a new operation).
    lost: Vec<u32>,
    changes: Option<u64>,
}

impl Messages {
    pub(super) fn new(team: &Inner, call: &Call) -> Messages {
        let job = &team.job;
        let life = job.life;
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

    /// Sends the descriptor to the next rank and starts to receive that of the previous one.
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
        self.changes = None;
        Ok(())
    }

    /// Fails if another member ended the call, or called something else.
    pub(super) fn hear(&mut self, job: &Job, call: &Call) -> Result<(), Failure> {
        let changes = Some(self.fabric.changes());
        if std::mem::replace(&mut self.changes, changes) != changes {
            let is_lost = |rank: &u32| job.lost(self.peers[*rank as usize]).is_some();
            self.lost = self.awaited().filter(is_lost).collect();
        }
        let name = self.name_of(call);
        let told = self.ends.lock().take(name, &self.peers);
        if let Some((teller, why)) = told {
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
        let word = |at| words.get(at).map_or(0, |word| u64::from_le_bytes(*word));
        match word(3) == self.team {
            true => call.compare([0, 1, 2].map(word), before),
            false => Err(Failure::team(before, word(3), self.team)),
        }
    }

    /// Returns true if everything that was started has ended.
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
        // A lost member whose last message has arrived is not needed any more.
        match self.awaited().find(|rank| self.lost.contains(rank)) {
            Some(rank) => Err(Failure::Lost(rank)),
            None => Ok(self.receives.is_empty() && self.sends.is_empty() && self.left.is_none()),
        }
    }

    /// Starts a send.
    pub(super) fn send(&mut self, to: u32, bytes: SharedBytes) -> Result<(), Failure> {
        let peer = self.peers[to as usize];
        let handle = self.fabric.isend_shared(peer, self.tag, bytes);
        let handle = handle.map_err(|error| Failure::below(error, to))?;
        self.sends.push((handle, to));
        self.changes = None;
        Ok(())
    }

    /// Starts a receive.
    pub(super) fn recv(&mut self, from: u32, into: SharedBytes) -> Result<(), Failure> {
        let (wants, len) = (Match::from(self.peers[from as usize], self.tag), into.len());
        let handle = self.fabric.irecv_shared(wants, into);
        let handle = handle.map_err(|error| Failure::below(error, from))?;
        self.receives.push(Expected { handle, from, len });
        self.changes = None;
        Ok(())
    }

    /// Returns true if nothing more is expected.
    pub(super) fn is_over(&self) -> bool {
        self.awaited().next().is_none()
    }

    /// Ends early: tells the others, unless they know, and cancels what is in flight.
    pub(super) fn fail(&mut self, call: &Call, failure: &Failure) {
        let mut telling = self.name_of(call).to_vec();
        telling.extend(failure.words(self.rank));
        let telling: Vec<u8> = telling.into_iter().flat_map(u64::to_le_bytes).collect();
        tell_all(&self.fabric, &self.peers, END, &telling);
        self.withdraw();
        forget(&self.fabric, &self.ends, self.tag);
    }

    fn name_of(&self, call: &Call) -> CallName {
        [self.life, self.team, call.number]
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
        // One deadline covers all of them.
        let mut are_over = || {
            receives.retain(|expected| !expected.handle.is_over());
            receives.is_empty().then_some(())
        };
        if are_over().is_none() {
            let what = "the end of messages that were given up";
            let _ = self.fabric.wait_stepping(what, &[], are_over, || false);
        }
    }

    /// Returns the rank before this one, around the ring.
    fn before(&self) -> u32 {
        (self.rank + self.size() - 1) % self.size()
    }

    /// Returns the ranks from which something is expected.
    fn awaited(&self) -> impl Iterator<Item = u32> {
        let receives = self.receives.iter().map(|expected| expected.from);
        let sends = self.sends.iter().map(|(_, to)| *to);
        let descriptor = self.descriptor.iter().map(|_| self.before());
        let left = self.left.into_iter();
        left.chain(receives).chain(sends).chain(descriptor)
    }

    /// Returns the first peer from which something is expected.
    pub(super) fn first_awaited(&self) -> Option<PeerId> {
        let rank = self.awaited().next();
        rank.map(|rank| self.peers[rank as usize])
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        if !self.is_over() {
            let fabric = self.fabric.clone();
            in_destructor(&fabric, || self.withdraw());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pgas;
    use crate::tampered::{ALMOST_ALL, starve, starving};
    use samite_testkit::{check, same, simulate};
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Duration;

    #[test]
    fn the_oldest_failures_are_let_go() {
        let (mut told, from) = (ReportedFailures::default(), PeerId(1));
        let members = [PeerId(0), from];
        // The calls of the first team have the lowest keys and are the latest reports.
        for call in 0..ENDS_MAX as u64 {
            told.add([1, 7, call], from, [call; 4]);
        }
        for call in 0..10 {
            told.add([1, 0, call], from, [call; 4]);
            told.add([1, 0, call], from, [99; 4]);
        }
        assert_eq!(told.ends.len(), ENDS_MAX);
        for call in 0..10 {
            assert_eq!(told.take([1, 7, call], &members), None);
            assert_eq!(told.take([2, 0, call], &members), None);
            assert_eq!(told.take([1, 0, call], &members), Some((1, [call; 4])));
            assert_eq!(told.take([1, 0, call], &members), None);
        }
        assert_eq!(told.take([1, 7, 10], &members), Some((1, [10; 4])));
    }

    /// The report of a unit that is no member neither ends a call nor hides that of a member.
    #[test]
    fn only_reports_of_members_are_taken() {
        let (mut told, call) = (ReportedFailures::default(), [1, 7, 1]);
        told.add(call, PeerId(9), [9; 4]);
        assert_eq!(told.take(call, &[PeerId(0), PeerId(1)]), None);
        told.add(call, PeerId(1), [1; 4]);
        let taken = told.take(call, &[PeerId(0), PeerId(1)]);
        assert_eq!(taken, Some((1, [1; 4])));
    }

    /// Also for teams whose leaders are far apart, and in lives that are.
    #[test]
    fn teams_have_tags_of_their_own() {
        let leaders = [0, 1, 2047, 2048, 4096, 1 << 20];
        let ids = leaders
            .iter()
            .flat_map(|leader| (1..9).map(move |number| leader << 32 | number));
        let of_lives = |id| [3, 19, 3 + (1 << 40)].map(|life| tag(life, TeamId(id), 7));
        let tags: HashSet<u64> = ids.flat_map(of_lives).collect();
        assert_eq!(tags.len(), 3 * 48);
        assert!(tags.iter().all(|tag| tag >> 51 == 0xd5 << 5 | 3));
    }

    /// A call that has failed waits once, for all members that take no messages.
    #[test]
    fn one_deadline_covers_all_reports() {
        let name = "collective::messages::tests::one_deadline_covers_all_reports";
        let state = &Arc::new(AtomicU64::new(starving::IDLE));
        simulate(name, 4, 0..4, |fabric, members| {
            let pgas = Pgas::new(fabric)?;
            let world = pgas.world();
            let (words, team) = (world.allocate::<u64>(1)?, world.duplicate()?);
            let deadline = Duration::from_millis(50);
            if world.rank() == 0 {
                state.store(starving::IDLE, Relaxed);
                starve(fabric, state);
                state.store(starving::KEEPS, Relaxed);
                for rank in 1..4 {
                    for _ in 0..=ALMOST_ALL {
                        drop(words.put_nb(rank, 0, &[1])?);
                    }
                }
                fabric.send(members[1], 1, &[])?;
                check!(fabric.within(deadline, || team.barrier()).is_err());
                fabric.send(members[1], 2, &[])?;
                state.store(starving::STARVES, Relaxed);
                fabric.send(members[2], 1, &[])?;
            } else if world.rank() == 1 {
                fabric.recv(Match::from(members[0], 1), &mut [])?;
                let report = || fabric.recv(Match::from(members[0], 2), &mut []);
                // The call, the first report, and not the others.
                fabric.within(3 * deadline, report)?;
            } else if world.rank() == 2 {
                fabric.recv(Match::from(members[0], 1), &mut [])?;
            }
            Ok(world.barrier()?)
        });
    }

    /// Two members take no messages. The third one is told at once, and one deadline covers both.
    #[test]
    fn those_that_take_messages_are_told_first() {
        const TOLD: u16 = 7;
        let name = "collective::messages::tests::those_that_take_messages_are_told_first";
        let state = &Arc::new(AtomicU64::new(starving::IDLE));
        simulate(name, 4, 0..4, |fabric, members| {
            let pgas = Pgas::new(fabric)?;
            let world = pgas.world();
            let told = Arc::new(AtomicU64::new(0));
            let count = told.clone();
            fabric.on(TOLD, move |_, _| {
                count.fetch_add(1, Relaxed);
                None
            });
            // Collective: from here on, all units listen.
            let words = world.allocate::<u64>(1)?;
            let deadline = Duration::from_millis(50);
            if world.rank() == 0 {
                state.store(starving::IDLE, Relaxed);
                starve(fabric, state);
                state.store(starving::KEEPS, Relaxed);
                for rank in 1..3 {
                    for _ in 0..=ALMOST_ALL {
                        drop(words.put_nb(rank, 0, &[1])?);
                    }
                }
                fabric.send(members[3], 1, &[])?;
                let began = fabric.now();
                fabric.within(deadline, || tell_all(fabric, members, TOLD, &[]));
                let took = fabric.now() - began;
                check!(deadline <= took && took < 2 * deadline, "{took:?}");
                state.store(starving::STARVES, Relaxed);
                fabric.send(members[3], 1, &[])?;
            } else if world.rank() == 3 {
                fabric.recv(Match::from(members[0], 1), &mut [])?;
                let is_told = || (told.load(Relaxed) == 1).then_some(());
                let wait = || pgas.job.wait_until("a test", &[], is_told);
                fabric.within(deadline / 2, wait)?;
                fabric.recv(Match::from(members[0], 1), &mut [])?;
            }
            Ok(world.barrier()?)
        });
    }

    /// A call in flight keeps its own messages only, however long it takes.
    #[test]
    fn a_call_in_flight_keeps_no_messages_of_others() {
        let name = "collective::messages::tests::a_call_in_flight_keeps_no_messages_of_others";
        simulate(name, 1, 0..1, |fabric, _| {
            let pgas = Pgas::new(fabric)?;
            let barrier = pgas.world().ibarrier()?;
            let mut unwanted = Unwanted::default();
            let mut dropped = unwanted.add(0, Arc::downgrade(&barrier.flight));
            for tag in 1..=40 {
                dropped.extend(unwanted.add(tag, Weak::new()));
            }
            same!(dropped, (1..=40 - FAILED_MAX as u64).collect::<Vec<_>>());
            Ok(barrier.wait()?)
        });
    }

    /// Messages of failed calls are dropped some failures later, and all at the end.
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
