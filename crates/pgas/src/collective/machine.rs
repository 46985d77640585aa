//! Runs a schedule over messages: step by step for a non-blocking call, to its end for a blocking one.
//!
//! # Messages
//! ```text
//!   tag:   0xD5 | 0: 1 | life: 4 | leader of the team: 11 | its number: 20 | call: 19 | descriptor: 1
//! ```
//! The steps of one call need no numbers: messages of a pair arrive in order, and both sides list theirs
//! in the same order. Bits that do not fit are cut off: of two calls or teams that are in use at the same
//! time between the same units, 2^19 calls and 2^20 teams of one leader may lie between them. The life says
//! which [`crate::Pgas`] of a fabric it is: what one that ended badly left behind is not taken for a message of
//! one of the next 15.
//!
//! # Who calls something else
//! Each member sends its descriptor to the next rank and ends only when that of the rank before is there
//! and equal. Equality is transitive around the ring: if anybody differs, somebody finds out. Who finds
//! out, or loses a member, tells all others by an active message, and their calls end as well.
//!
//! # Ownership
//! Messages in flight own their memory (clones of [`SharedBytes`]), so a machine that is forgotten, or
//! dropped too early, leaves nothing behind that could be freed too early. Receives into the caller's
//! symmetric memory are cancelled, and waited for, before a failed call returns.

use super::call::{Call, Failure};
use super::combining::Combiner;
use super::schedule::{Schedule, Span, Step};
use crate::Error;
use crate::team::Inner;
use parking_lot::Mutex;
use samite_fabric::{Fabric, Handle, Match, PeerId, Received, Sent};
use samite_mem::SharedBytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The active message by which a member ends the calls of the others: life, team, call, [`Failure::words`].
const END: u16 = 0xd500;

/// Failures that others told.
pub(super) type Ends = Arc<Mutex<Told>>;

/// By team and call: how many were told before, by whom, why.
#[derive(Debug, Default)]
pub(super) struct Told {
    of: BTreeMap<(u64, u64), (u64, PeerId, [u64; 4])>,
    count: u64,
}

/// Told failures that nobody asked for are kept up to this many.
const ENDS_MAX: usize = 1024;

impl Told {
    fn add(&mut self, call: (u64, u64), from: PeerId, why: [u64; 4]) {
        self.of.entry(call).or_insert((self.count, from, why));
        self.count += 1;
        if self.of.len() > ENDS_MAX {
            // Most are of calls that had ended here already: the oldest is needed least.
            let oldest = self.of.iter().min_by_key(|(_, (at, ..))| *at);
            let oldest = oldest.map(|(call, _)| *call);
            oldest.and_then(|call| self.of.remove(&call));
        }
    }

    fn take(&mut self, call: (u64, u64)) -> Option<(PeerId, [u64; 4])> {
        let (_, from, why) = self.of.remove(&call)?;
        Some((from, why))
    }
}

/// Listens to what others tell of failures in this life.
pub(super) fn listen(fabric: &Fabric, life: u32) -> Ends {
    let ends = Ends::default();
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

/// What a machine knows of its team; it does not keep the team alive.
#[derive(Clone, Debug)]
struct Place {
    life: u32,
    team: u64,
    rank: u32,
    peers: Arc<[PeerId]>,
}

/// A message on its way to this member.
#[derive(Debug)]
struct Expected {
    handle: Handle<Received>,
    from: u32,
    len: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Machine {
    fabric: Fabric,
    place: Place,
    call: Call,
    tag: u64,
    ends: Ends,
    schedule: Schedule,
    next: usize,
    memory: Vec<SharedBytes>,
    sends: Vec<(Handle<Sent>, u32)>,
    receives: Vec<Expected>,
    /// The descriptor of the rank before.
    descriptor: Option<Handle<Received>>,
    result: Option<Result<(), Failure>>,
    /// Inside a step, or left there by a panic of the combiner.
    stepping: bool,
}

impl Machine {
    /// `memory`: what the member gives, and where it gets; the scratch is made here.
    pub(super) fn start(
        team: &Inner,
        call: Call,
        schedule: Schedule,
        memory: (SharedBytes, SharedBytes),
    ) -> Machine {
        let mut machine = Machine::new(team, call, schedule, memory);
        if let Err(failure) = machine.introduce() {
            machine.fail(failure);
        }
        machine
    }

    pub(super) fn call(&self) -> Call {
        self.call
    }

    /// Ends a call at all others that this member cannot take part in.
    pub(super) fn refuse(team: &Inner, call: Call, failure: Failure) {
        let nothing = || SharedBytes::adopt(Vec::<u8>::new());
        let memory = (nothing(), nothing());
        Machine::new(team, call, Schedule::default(), memory).fail(failure);
    }

    fn new(
        team: &Inner,
        call: Call,
        schedule: Schedule,
        (input, output): (SharedBytes, SharedBytes),
    ) -> Machine {
        let job = &team.job;
        let scratch = schedule.scratch.iter();
        let scratch = scratch.map(|bytes| SharedBytes::adopt(vec![0; *bytes as usize]));
        let memory = [input, output].into_iter().chain(scratch).collect();
        let life = job.layer.life();
        let team_bits =
            u64::from(life & 0xf) << 31 | (team.id.0 >> 32 & 0x7ff) << 20 | team.id.0 & 0xf_ffff;
        Machine {
            fabric: job.fabric.clone(),
            place: Place {
                life,
                team: team.id.0,
                rank: team.rank,
                peers: team.peers.clone(),
            },
            call,
            tag: 0xd5 << 56 | team_bits << 20 | (call.number & 0x7_ffff) << 1,
            ends: job.collectives.ends.clone(),
            schedule,
            next: 0,
            memory,
            sends: Vec::new(),
            receives: Vec::new(),
            descriptor: None,
            result: None,
            stepping: false,
        }
    }

    fn size(&self) -> u32 {
        self.place.peers.len() as u32
    }

    /// Sends the descriptor to the next rank and asks for that of the one before.
    fn introduce(&mut self) -> Result<(), Failure> {
        let (rank, size) = (self.place.rank, self.size());
        if size == 1 {
            return Ok(());
        }
        let (before, next) = (self.before(), (rank + 1) % size);
        let own = self.call.words().map(u64::to_le_bytes).concat();
        let peer = |rank: u32| self.place.peers[rank as usize];
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

    /// Moves on as far as it can without waiting; the result, once it has ended.
    pub(super) fn step(&mut self, combiner: Option<&dyn Combiner>) -> Option<&Result<(), Failure>> {
        if self.result.is_none() {
            // Behind a step that is half done the call cannot go on.
            let ended = match std::mem::replace(&mut self.stepping, true) {
                true => Err(Failure::Refused(self.place.rank)),
                false => self.go_on(combiner),
            };
            self.stepping = false;
            match ended {
                Ok(false) => {}
                Ok(true) => self.result = Some(Ok(())),
                Err(failure) => self.fail(failure),
            }
        }
        self.result.as_ref()
    }

    fn go_on(&mut self, combiner: Option<&dyn Combiner>) -> Result<bool, Failure> {
        self.hear()?;
        loop {
            if !self.fence()? {
                return Ok(false);
            }
            if self.next == self.schedule.steps.len() {
                return Ok(self.descriptor.is_none());
            }
            while let Some(step) = self.schedule.steps.get(self.next).copied() {
                self.next += 1;
                match step {
                    Step::Fence => break,
                    step => self.take(step, combiner)?,
                }
            }
        }
    }

    /// Whether another member ended the call, or called something else.
    fn hear(&mut self) -> Result<(), Failure> {
        let key = (self.place.team, self.call.number);
        let told = self.ends.lock().take(key);
        if let Some((from, why)) = told {
            let teller = self.place.peers.iter().position(|peer| *peer == from);
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
        self.call.compare(words, before)
    }

    /// Whether everything that was started has ended.
    fn fence(&mut self) -> Result<bool, Failure> {
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

    fn at(&self, span: Span) -> SharedBytes {
        self.memory[span.memory as usize].slice(span.offset, span.len)
    }

    fn take(&mut self, step: Step, combiner: Option<&dyn Combiner>) -> Result<(), Failure> {
        match step {
            Step::Fence => {}
            Step::Send { to, from } => {
                let peer = self.place.peers[to as usize];
                let handle = self.fabric.isend_shared(peer, self.tag, self.at(from));
                let handle = handle.map_err(|error| Failure::below(error, to))?;
                self.sends.push((handle, to));
            }
            Step::Recv { from, into } => {
                let wants = Match::from(self.place.peers[from as usize], self.tag);
                let handle = self.fabric.irecv_shared(wants, self.at(into));
                let handle = handle.map_err(|error| Failure::below(error, from))?;
                let len = into.len;
                self.receives.push(Expected { handle, from, len });
            }
            Step::Copy { from, into } => {
                let (from, into) = (self.at(from), self.at(into));
                into.copy_from(0, &from, 0, into.len());
            }
            Step::Combine {
                with,
                into,
                with_first,
            } => {
                if let Some(combiner) = combiner {
                    combiner.combine(&self.at(with), &self.at(into), with_first);
                }
            }
        }
        Ok(())
    }

    /// Ends early: tells the others, unless they know, and takes back what is in flight.
    fn fail(&mut self, failure: Failure) {
        let mut telling = vec![self.place.life.into(), self.place.team, self.call.number];
        telling.extend(failure.words(self.place.rank));
        let telling: Vec<u8> = telling.into_iter().flat_map(u64::to_le_bytes).collect();
        let others = self.place.peers.iter().zip(0..);
        for (peer, _) in others.filter(|(_, rank)| *rank != self.place.rank) {
            // Who is gone need not hear it.
            let _ = self.fabric.tell(*peer, END, &telling);
        }
        self.withdraw();
        self.result = Some(Err(failure));
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
        (self.place.rank + self.size() - 1) % self.size()
    }

    /// The first of whom something is expected.
    fn awaited(&self) -> Option<PeerId> {
        let receives = self.receives.iter().map(|expected| expected.from);
        let sends = self.sends.iter().map(|(_, to)| *to);
        let descriptor = self.descriptor.iter().map(|_| self.before());
        let rank = receives.chain(sends).chain(descriptor).next();
        rank.map(|rank| self.place.peers[rank as usize])
    }

    /// Ends as a wait that was too long.
    pub(super) fn time_out(&mut self, error: samite_fabric::Error) -> Failure {
        let error = match (error, self.awaited()) {
            (samite_fabric::Error::Timeout { what, after, .. }, Some(peer)) => {
                let whom = samite_fabric::Whom::Peer(peer);
                samite_fabric::Error::Timeout { what, whom, after }
            }
            (error, _) => error,
        };
        let failure = Failure::Own(Error::Fabric(error));
        self.fail(failure.clone());
        failure
    }

    /// What the member gets.
    pub(super) fn output(&self) -> &SharedBytes {
        &self.memory[super::schedule::OUTPUT as usize]
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if self.stepping {
            // By a panic of the combiner: the others do not wait for what does not come.
            self.fail(Failure::Refused(self.place.rank));
        }
        self.withdraw();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_failures_are_let_go() {
        let (mut told, from) = (Told::default(), PeerId(1));
        // The calls of the first team are the lowest keys, and the latest news.
        for call in 0..ENDS_MAX as u64 {
            told.add((7, call), from, [call; 4]);
        }
        for call in 0..10 {
            told.add((0, call), from, [call; 4]);
            told.add((0, call), from, [99; 4]);
        }
        assert_eq!(told.of.len(), ENDS_MAX);
        for call in 0..10 {
            assert_eq!(told.take((7, call)), None);
            assert_eq!(told.take((0, call)), Some((from, [call; 4])));
            assert_eq!(told.take((0, call)), None);
        }
        assert_eq!(told.take((7, 10)), Some((from, [10; 4])));
    }
}
