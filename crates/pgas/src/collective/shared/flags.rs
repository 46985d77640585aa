//! A call on flags: what it knows of the others' memory, and how it handles its meetings.

use super::board::{Board, Exchange, PAYLOAD_MIN};
use super::few;
use super::memory::Staging;
use crate::collective::call::{Call, Failure};
use crate::collective::combining::Combiner;
use crate::collective::schedule::{Announcement, Memory, Own, Plan, Schedule, Step};
use crate::collective::shape::Shape;
use crate::collective::{Input, Output};
use crate::job::Job;
use crate::{Error, GlobalPtr};
use samite_mem::SharedBytes;
use std::sync::Arc;

/// An announcement fits into every slot.
const _: () = assert!(size_of::<Announcement>() <= PAYLOAD_MIN);

/// Below this size, a system call costs more than a second copy.
const PRIVATE_MIN: u64 = 16 << 10;

/// The link of one call.
#[derive(Debug)]
pub(crate) struct Flags {
    board: Arc<Board>,
    /// The place of this call in the queue.
    place: u64,
    /// Set once this call has its turn.
    meeting: Option<Exchange>,
    phase: Phase,
    staging: Option<Staging>,
    /// By rank: the memory that is read, and the memory that is written.
    there: Vec<[SharedBytes; 2]>,
    /// The process that owns the private memory, and addresses by rank.
    private: Option<(i32, Vec<u64>)>,
    has_ended: bool,
}

/// What happens at the next meeting.
#[derive(Debug)]
enum Phase {
    /// This member tells the others that it cannot continue.
    Refusing(Failure),
    /// The data are in the slots.
    Few(Shape),
    /// All members learn where the memory of the others is.
    Entering(Plan),
    /// The others have finished what the next steps need.
    Working(Plan),
    Over,
}

impl Flags {
    /// Queues a call. The caller has the turn of the team.
    pub(crate) fn new(board: &Arc<Board>, shape: Result<Shape, Failure>) -> Flags {
        Flags {
            place: board.come(),
            board: board.clone(),
            meeting: None,
            phase: match shape {
                Err(failure) => Phase::Refusing(failure),
                Ok(shape) => Phase::Few(shape),
            },
            staging: None,
            there: Vec::new(),
            private: None,
            has_ended: false,
        }
    }

    /// Returns true if a step would advance the call.
    pub(crate) fn is_ready(&self) -> bool {
        match &self.meeting {
            None => self.board.has_turn(self.place),
            Some(meeting) => self.board.is_ready(meeting),
        }
    }

    /// Returns true if its steps have begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.meeting.is_some()
    }

    /// Returns the steps up to the first meeting, or `None` while other calls have the turn.
    pub(crate) fn begin(
        &mut self,
        job: &Job,
        input: &Input<'_>,
        output: &Output<'_>,
    ) -> Result<Option<Schedule>, Failure> {
        if !self.board.has_turn(self.place) {
            return Ok(None);
        }
        let mut schedule = Schedule::default();
        let shape = match &self.phase {
            Phase::Refusing(failure) => return Err(failure.clone()),
            Phase::Few(shape) if !few::fits(shape, &self.board) => Some(shape.clone()),
            _ => None,
        };
        // Too long for the slots: the first meeting exchanges locations of memory.
        if let Some(shape) = shape {
            let own = Own {
                rank: self.board.rank,
                size: self.board.size(),
                input_in_place: input.pointer().is_some(),
                output_in_place: output.pointer().is_some(),
            };
            let mut plan = Plan::new(shape, own, |bytes| self.reads(job, bytes).is_some());
            let staging = plan.staging();
            schedule = plan.begin();
            self.phase = Phase::Entering(plan);
            if let Some(bytes) = staging {
                self.staging = Some(job.collectives.pool.stage(job, bytes)?);
            }
        }
        // After the first meeting of a plan, members access each other's memory.
        let touching = matches!(self.phase, Phase::Entering(_));
        schedule.steps.push(Step::Meet { touching });
        Ok(Some(schedule))
    }

    /// Returns the process from whose private memory this member should read `bytes` bytes, if any.
    /// Only in a team of two: the kernel serialises several members that read the same pages.
    fn reads(&self, job: &Job, bytes: u64) -> Option<i32> {
        let other = *self.board.peers.get(1 - self.board.rank as usize % 2)?;
        let alone = self.board.size() == 2 && bytes >= PRIVATE_MIN;
        alone.then(|| job.fabric.reads_private(other, bytes))?
    }

    /// Comes to a meeting.
    pub(crate) fn post(
        &mut self,
        call: &Call,
        (input, output): (&Input<'_>, &Output<'_>),
        touching: bool,
    ) -> Result<(), Failure> {
        let posted = match &self.phase {
            Phase::Few(shape) => {
                let give = few::give(shape, self.board.rank, input);
                self.board.post(call, touching, give)
            }
            Phase::Entering(plan) => {
                let staging = self.staging.as_ref();
                let staging = staging.map_or(GlobalPtr::NULL, |staging| staging.pointer);
                let give = |to: u32, slot: &SharedBytes, at: u64| {
                    let mut announcement = plan.tell(to);
                    announcement.from = input.pointer().unwrap_or(staging).to_words();
                    announcement.into = output.pointer().unwrap_or(staging).to_words();
                    announcement.address = input.address();
                    slot.write(at, bytemuck::bytes_of(&announcement));
                };
                self.board.post(call, touching, give)
            }
            _ => self.board.post(call, touching, |_, _, _| {}),
        };
        let sequence = posted.map_err(|failure| self.over(failure))?;
        self.meeting = Some(Exchange::new(sequence, touching));
        Ok(())
    }

    /// Ends the call with a failure that all members see.
    fn over(&mut self, failure: Failure) -> Failure {
        self.phase = Phase::Over;
        failure
    }

    /// Returns true if all have met, after taking what they gave.
    pub(crate) fn exchanged(
        &mut self,
        job: &Job,
        call: &Call,
        (input, output): (&Input<'_>, &mut Output<'_>),
        combiner: Option<&dyn Combiner>,
    ) -> Result<bool, Failure> {
        let Some(meeting) = &mut self.meeting else {
            return Ok(false);
        };
        let said = match &self.phase {
            Phase::Refusing(_) => call.refused(),
            _ => *call,
        };
        match (self.board.look(job, &said, meeting), &self.phase) {
            (Ok(false), _) => return Ok(false),
            // The loss of a member is the cause to report.
            (Ok(_) | Err(Failure::Mismatch { .. } | Failure::Refused(_)), Phase::Refusing(own)) => {
                let own = own.clone();
                return Err(self.over(own));
            }
            (Err(failure), _) => return Err(self.over(failure)),
            (Ok(true), _) => {}
        }
        let sequence = meeting.sequence;
        self.phase = match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Few(shape) => {
                let here = (self.board.rank, self.board.size());
                let slots = &(&*self.board, sequence);
                few::finish(&shape, here, slots, (input, output), combiner);
                Phase::Over
            }
            Phase::Entering(mut plan) => {
                let learnt = self.learn(job, &mut plan, sequence);
                self.phase = Phase::Working(plan);
                return learnt.map(|()| true);
            }
            phase => phase,
        };
        Ok(true)
    }

    /// Takes the announcements of all members, and maps the memory that the steps access.
    fn learn(&mut self, job: &Job, plan: &mut Plan, sequence: u64) -> Result<(), Failure> {
        let (me, size) = (self.board.rank, self.board.size());
        let mut told: Vec<Announcement> = (0..size).map(|rank| plan.tell(rank)).collect();
        for from in (0..size).filter(|from| *from != me) {
            let told = bytemuck::bytes_of_mut(&mut told[from as usize]);
            self.board.read(sequence, from, told);
        }
        plan.learn(told.clone())?;
        let addresses = told.iter().map(|told| told.address).collect();
        self.private = self.reads(job, plan.wanted()).map(|pid| (pid, addresses));
        for (rank, told) in (0..).zip(&told) {
            let (from, into) = match rank == me {
                true => (None, None),
                false => plan.reach(rank),
            };
            let map = |at, bytes: Option<u64>| self.map(job, at, bytes.unwrap_or(0));
            self.there
                .push([map(told.from, from)?, map(told.into, into)?]);
        }
        Ok(())
    }

    fn map(&self, job: &Job, at: [u64; 2], bytes: u64) -> Result<SharedBytes, Failure> {
        if bytes == 0 {
            return Ok(SharedBytes::adopt(Vec::<u8>::new()));
        }
        let at = GlobalPtr::<u8>::from_words(at);
        let mapped = match job.mapped(at, bytes) {
            // The member has died since its announcement.
            Err(Error::Fabric(error)) => return Err(Failure::of(error, &self.board.peers)),
            mapped => mapped?,
        };
        mapped.ok_or_else(|| crate::job::bad(at).into())
    }

    /// Returns the next steps, or `None` if the call has ended.
    pub(crate) fn next(&mut self) -> Option<Schedule> {
        match &mut self.phase {
            Phase::Working(plan) => plan.next(),
            _ => None,
        }
    }

    /// Returns the memory that a step names.
    pub(crate) fn memory(&self, memory: Memory) -> Option<&SharedBytes> {
        match memory {
            Memory::From(rank) => Some(&self.there[rank as usize][0]),
            Memory::Into(rank) => Some(&self.there[rank as usize][1]),
            Memory::Scratch(_) => self.staging.as_ref().map(|staging| &staging.bytes),
            _ => None,
        }
    }

    /// Returns the process of a member, and the address of its source there.
    pub(crate) fn private(&self, rank: u32) -> Option<(i32, u64)> {
        let (pid, addresses) = self.private.as_ref()?;
        Some((*pid, addresses[rank as usize]))
    }

    /// Tells the others, in the next meeting, that this member cannot continue. Fails if there is
    /// no next meeting.
    pub(crate) fn refuse(&mut self, call: &Call, failure: Failure) -> Result<(), Failure> {
        if let Phase::Over = self.phase {
            return Err(failure);
        }
        let posted = self.board.post(&call.refused(), false, |_, _, _| {});
        let sequence = posted.map_err(|_| failure.clone())?;
        self.meeting = Some(Exchange::new(sequence, false));
        self.phase = Phase::Refusing(failure);
        Ok(())
    }

    /// Ends the call at its deadline. A call before its turn stays queued, to be refused then, and
    /// this returns `false`.
    pub(crate) fn give_up(&mut self, job: &Job, failure: Failure) -> bool {
        match self.meeting {
            None => self.phase = Phase::Refusing(failure),
            Some(_) => drop(self.board.give_up(job, failure)),
        }
        self.meeting.is_some()
    }

    /// Returns the peer that a wait is for.
    pub(crate) fn awaited(&self) -> Option<samite_fabric::PeerId> {
        self.board.awaited(self.meeting.as_ref()?)
    }

    /// Ends the call: no member accesses its memory any more, except those that the board knows.
    pub(crate) fn end(&mut self, job: &Job) {
        if let Some(staging) = self.staging.take()
            && !self.board.has_left_late()
        {
            job.collectives.pool.unstage(staging);
        }
        self.has_ended = true;
        self.board.end(self.place);
    }
}

impl Drop for Flags {
    fn drop(&mut self) {
        if !self.has_ended {
            self.board.leave_behind(self.place);
        }
    }
}
