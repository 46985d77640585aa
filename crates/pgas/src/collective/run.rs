//! The executor: runs the schedule of a call, step by step for a non-blocking call, to its end for
//! a blocking one.
//!
//! A call is a [`Run`] on a link: [`Flags`] where all members of the team map each other's memory,
//! else [`Messages`]. The links decide when the next steps may be taken, and how a call ends early
//! at all members. The steps themselves are taken here.

use super::call::{Call, Failure, Kind};
use super::combining::{BLOCK, Combiner};
use super::messages::{self, Messages};
use super::pending::{Flight, Flying};
use super::schedule::{self, Memory, Schedule, Span, Step, Term};
use super::shape::Shape;
use super::shared::{self, Board, Flags};
use super::{Ends, Input, Output};
use crate::check::Checker;
use crate::job::Job;
use crate::team::Inner;
use crate::{Error, Result};
use samite_mem::SharedBytes;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// The outcome of a collective.
pub(super) type Ended = std::result::Result<(), Failure>;

/// A call that is being run.
#[derive(Debug)]
pub(crate) struct Run<'b> {
    call: Call,
    rank: u32,
    input: Input<'b>,
    output: Output<'b>,
    /// The caller's own target, if messages are received into other memory.
    target: Option<Output<'b>>,
    /// Bytes of an element.
    element: u64,
    schedule: Schedule,
    next: usize,
    /// The number of steps taken.
    taken: u64,
    scratch: Vec<SharedBytes>,
    link: Link,
    ended: Option<Ended>,
    /// Set inside a step; a panic of the combiner leaves it set.
    stepping: bool,
    /// The first step only begins the call, and combines nothing.
    pub(super) is_new: bool,
}

#[derive(Debug)]
enum Link {
    Flags(Box<Flags>),
    Messages(Messages),
}

impl<'b> Run<'b> {
    /// Starts a call, or refuses it at all members. The caller has the turn of the team.
    pub(super) fn new(
        team: &Inner,
        call: Call,
        shape: std::result::Result<Shape, Failure>,
        Ends { input, output }: Ends<'b>,
    ) -> Run<'b> {
        let element = match &shape {
            Ok(Shape::Combines(_, elements)) => elements.size,
            _ => 1,
        };
        let mut run = Run {
            call,
            rank: team.rank,
            input,
            output,
            target: None,
            element,
            schedule: Schedule::default(),
            next: 0,
            taken: 0,
            scratch: Vec::new(),
            link: Link::Messages(Messages::new(team, &call)),
            ended: None,
            stepping: false,
            is_new: false,
        };
        match (team.board(), shape) {
            // On flags, a call begins when it has its turn. On messages, it begins at
            // once.
            (Some(board), shape) => run.link = Link::Flags(Box::new(Flags::new(board, shape))),
            (None, shape) => {
                let begun = shape.and_then(|shape| run.begin_messages(team, &shape));
                if let Err(failure) = begun {
                    run.stop(&team.job, failure);
                }
            }
        }
        run
    }

    fn begin_messages(&mut self, team: &Inner, shape: &Shape) -> std::result::Result<(), Failure> {
        let schedule = schedule::messages(shape, team.rank, team.size());
        let scratch = schedule.scratch.iter();
        let scratch = scratch.map(|bytes| crate::zeros::<u8>(*bytes).map(SharedBytes::adopt));
        self.scratch = scratch.collect::<Result<_>>()?;
        if team.size() > 1 {
            // Messages in flight own their memory.
            self.input = Input::Shared(self.input.memory()?, None);
            let memory = Output::Shared(self.output.memory()?, None);
            self.target = Some(std::mem::replace(&mut self.output, memory));
        }
        self.schedule = schedule;
        match &mut self.link {
            Link::Messages(messages) => {
                // A call that is known to have failed sends nothing: nobody would receive it.
                messages.hear(&team.job, &self.call)?;
                messages.introduce(&self.call)
            }
            Link::Flags(_) => Ok(()),
        }
    }

    pub(super) fn call(&self) -> Call {
        self.call
    }

    /// Returns true if a step would advance it, as far as is known without using the fabric.
    pub(super) fn is_ready(&self) -> bool {
        match &self.link {
            _ if self.ended.is_some() => true,
            Link::Flags(flags) => flags.is_ready(),
            Link::Messages(_) => false,
        }
    }

    /// Advances as far as possible without waiting. Returns the outcome once the call has ended.
    pub(super) fn step(&mut self, job: &Job, combiner: Option<&dyn Combiner>) -> Option<&Ended> {
        if self.ended.is_none() {
            // The call cannot continue after a step that was left half done.
            let went = match std::mem::replace(&mut self.stepping, true) {
                true => Err(Failure::Refused(self.rank)),
                false => self.go_on(job, combiner),
            };
            self.stepping = false;
            match went {
                Ok(false) => {}
                Ok(true) => self.end(job, Ok(())),
                Err(failure) => self.stop(job, failure),
            }
        }
        self.ended.as_ref()
    }

    fn go_on(
        &mut self,
        job: &Job,
        combiner: Option<&dyn Combiner>,
    ) -> std::result::Result<bool, Failure> {
        if let Link::Messages(messages) = &mut self.link {
            messages.hear(job, &self.call)?;
        }
        while self.may_go_on(job, combiner)? {
            loop {
                let Some(step) = self.schedule.steps.get(self.next).copied() else {
                    match &mut self.link {
                        Link::Messages(messages) => return Ok(messages.is_over()),
                        Link::Flags(flags) => match flags.next() {
                            Some(schedule) => (self.schedule, self.next) = (schedule, 0),
                            None => return Ok(true),
                        },
                    }
                    continue;
                };
                self.next += 1;
                self.taken += 1;
                // After a fence or a meeting, the link decides when the next steps may be taken.
                if self.take(step, combiner)? {
                    break;
                }
            }
            if std::mem::take(&mut self.is_new) {
                break;
            }
        }
        Ok(false)
    }

    /// Returns true if the next steps may be taken.
    fn may_go_on(
        &mut self,
        job: &Job,
        combiner: Option<&dyn Combiner>,
    ) -> std::result::Result<bool, Failure> {
        let flags = match &mut self.link {
            Link::Messages(messages) => return messages.fence(),
            Link::Flags(flags) => flags,
        };
        if flags.has_begun() {
            let ends = (&self.input, &mut self.output);
            return flags.exchanged(job, &self.call, ends, combiner);
        }
        let begun = flags.begin(job, &self.input, &self.output)?;
        let may_go_on = begun.is_some();
        self.schedule = begun.unwrap_or_default();
        Ok(may_go_on)
    }

    /// Takes a step. Returns true if the call must then wait.
    fn take(
        &mut self,
        step: Step,
        combiner: Option<&dyn Combiner>,
    ) -> std::result::Result<bool, Failure> {
        match step {
            Step::Copy { from, into } => self.copy(from, into)?,
            Step::Combine { first, terms } => self.combine(first, terms, combiner),
            Step::Send { to, from } => {
                let bytes = self.memory(from.memory).slice(from.offset, from.len);
                if let Link::Messages(messages) = &mut self.link {
                    messages.send(to, bytes)?;
                }
            }
            Step::Recv { from, into } => {
                let bytes = self.memory(into.memory).slice(into.offset, into.len);
                if let Link::Messages(messages) = &mut self.link {
                    messages.recv(from, bytes)?;
                }
            }
            Step::Fence => return Ok(true),
            Step::Meet { touching } => {
                if let Link::Flags(flags) = &mut self.link {
                    flags.post(&self.call, (&self.input, &self.output), touching)?;
                }
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns a memory that is not private to the caller.
    fn memory(&self, memory: Memory) -> &SharedBytes {
        let found = match (memory, &self.link) {
            (Memory::Input, _) => self.input.shared(),
            (Memory::Output, _) => self.output.shared(),
            (Memory::Scratch(number), Link::Messages(_)) => self.scratch.get(usize::from(number)),
            (memory, Link::Flags(flags)) => flags.memory(memory),
            _ => None,
        };
        found.expect("a schedule names memory that its link has")
    }

    fn copy(&mut self, from: Span, into: Span) -> Ended {
        let (len, at) = (into.len, into.offset);
        match (from.memory, into.memory) {
            (Memory::Input, Memory::Output) => {
                self.output.copy_input(at, &self.input, from.offset, len);
            }
            (Memory::Private(rank), Memory::Output) => {
                let place = match &self.link {
                    Link::Flags(flags) => flags.private(rank),
                    Link::Messages(_) => None,
                };
                let (pid, address) = place.ok_or(Failure::Refused(rank))?;
                let address = address.wrapping_add(from.offset);
                if let Err(error) = self.output.copy_private(at, (pid, address), len) {
                    // The member is gone, or the kernel now refuses the copy.
                    tracing::warn!(rank, %error, "the kernel does not copy out of a member any more");
                    return Err(Failure::Refused(rank));
                }
            }
            (memory, Memory::Output) => {
                let bytes = self.memory(memory).clone();
                self.output.copy_from(at, &bytes, from.offset, len);
            }
            (Memory::Input, memory) => {
                self.input
                    .copy_to(from.offset, self.memory(memory), at, len);
            }
            (source, target) => {
                let source = self.memory(source);
                self.memory(target).copy_from(at, source, from.offset, len);
            }
        }
        Ok(())
    }

    /// Combines terms of the schedule, block by block.
    fn combine(&mut self, first: usize, terms: usize, combiner: Option<&dyn Combiner>) {
        let (Some(Term::Take(all)), Some(combiner)) = (self.schedule.terms.get(first), combiner)
        else {
            return;
        };
        let (all, block) = (all.len, (BLOCK / self.element).max(1) * self.element);
        let mut memory = vec![0; 2 * block.min(all) as usize];
        let mut at = 0;
        while at < all {
            let len = block.min(all - at) as usize;
            let (sum, more) = memory.split_at_mut(len);
            let more = &mut more[..len];
            let mut has_sum = false;
            for term in first..first + terms {
                match self.schedule.terms[term] {
                    Term::Give(into) => self.write(into.memory, into.offset + at, sum),
                    Term::Take(from) if !std::mem::replace(&mut has_sum, true) => {
                        self.read(from.memory, from.offset + at, sum);
                    }
                    Term::Take(from) => {
                        self.read(from.memory, from.offset + at, more);
                        combiner.append(sum, more);
                    }
                }
            }
            at += len as u64;
        }
    }

    fn read(&self, memory: Memory, offset: u64, into: &mut [u8]) {
        match memory {
            Memory::Input => self.input.read(offset, into),
            memory => self.memory(memory).read(offset, into),
        }
    }

    fn write(&mut self, memory: Memory, offset: u64, from: &[u8]) {
        match memory {
            Memory::Output => self.output.write(offset, from),
            memory => self.memory(memory).write(offset, from),
        }
    }

    /// Ends the call early, at once or in a last meeting, and tells the others unless they know.
    fn stop(&mut self, job: &Job, failure: Failure) {
        self.schedule = Schedule::default();
        self.next = 0;
        let ended = match &mut self.link {
            Link::Flags(flags) => flags.refuse(&self.call, failure),
            Link::Messages(messages) => {
                messages.fail(&self.call, &failure);
                Err(failure)
            }
        };
        if ended.is_err() {
            self.end(job, ended);
        }
    }

    fn end(&mut self, job: &Job, ended: Ended) {
        if let Link::Flags(flags) = &mut self.link {
            flags.end(job);
        }
        if let (Ok(()), Some(target), Output::Shared(memory, _)) =
            (&ended, &mut self.target, &self.output)
        {
            target.take_back(memory);
        }
        self.ended = Some(ended);
    }

    /// Ends the call at its deadline, unless it has ended. If other calls are queued before it, it
    /// stays queued and is refused in its turn.
    pub(super) fn time_out(&mut self, job: &Job, error: samite_fabric::Error) -> Ended {
        if let Some(ended) = &self.ended {
            return ended.clone();
        }
        let peer = match &self.link {
            Link::Flags(flags) => flags.awaited(),
            Link::Messages(messages) => messages.first_awaited(),
        };
        let failure = Failure::timeout(error, peer);
        match &mut self.link {
            Link::Messages(_) => self.stop(job, failure.clone()),
            Link::Flags(flags) => {
                if flags.give_up(job, failure.clone()) {
                    self.end(job, Err(failure.clone()));
                }
            }
        }
        Err(failure)
    }
}

impl Inner {
    #[inline]
    pub(super) fn size(&self) -> u32 {
        self.peers.len() as u32
    }

    /// Returns the descriptor of the next call of this team. The caller has the turn.
    pub(super) fn next_call(&self, kind: Kind) -> Call {
        self.job.let_go();
        // ORDERING: Relaxed: only the thread that has the turn changes it, and the lock of the turn
        // orders the changes.
        let number = self.calls.load(Ordering::Relaxed) + 1;
        self.calls.store(number, Ordering::Relaxed);
        Call {
            kind,
            operator: 0,
            element: 0,
            root: 0,
            count: 0,
            number,
        }
    }

    /// Returns the board that calls run on, if the members share memory. All members get the same
    /// answer.
    #[inline]
    pub(super) fn board(&self) -> Option<&Arc<Board>> {
        self.board.get()
    }

    /// Runs a collective to its end, and reports it to the checking mode.
    #[inline]
    pub(super) fn run<C: Combiner>(
        &self,
        call: &Call,
        shape: Shape,
        ends: &mut Ends<'_>,
        combiner: Option<&C>,
    ) -> Result<()> {
        let check = self.job.check.as_ref();
        let begin = |check: &Checker| check.begin(self.members(), call.number, |_| true);
        let news = check.map(begin).transpose();
        let news = news.map_err(|error| self.refuse(*call, error))?;
        let board = self.board();
        if let Some(board) = board {
            self.wait_for_turn(board, call)?;
        }
        let ended = match board.filter(|board| shared::few::fits(&shape, board)) {
            Some(board) => shared::at_once((&self.job, board), call, &shape, ends, combiner),
            None => self.in_steps(call, shape, ends, combiner.map(|c| c as &dyn Combiner)),
        };
        ended.map_err(|failure| {
            self.forget_clocks(call, Weak::new());
            failure.error(self, call.kind.name())
        })?;
        if let (Some(check), Some(news)) = (check, news) {
            let connects = |from| call.connects(from, self.rank);
            check.end_all(self.members(), call.number, news, connects)?;
        }
        Ok(())
    }

    /// Records that this unit will not receive what the checking mode of other members sends. The
    /// call may still be in flight.
    pub(super) fn forget_clocks(&self, call: &Call, flight: Weak<Flight>) {
        if let Some(check) = &self.job.check {
            let tag = check.tag(self.id.0, call.number);
            let ends = &self.job.collectives.ends;
            messages::forget_clocks(&self.job.fabric, ends, tag, flight);
        }
    }

    /// Waits for the calls before this one: a blocking call, which ends when it returns, is never
    /// queued.
    #[inline(always)]
    fn wait_for_turn(&self, board: &Board, call: &Call) -> Result<()> {
        match board.is_free() {
            true => Ok(()),
            false => self.wait_for_earlier_calls(board, call),
        }
    }

    #[cold]
    fn wait_for_earlier_calls(&self, board: &Board, call: &Call) -> Result<()> {
        let (job, what) = (&self.job, "the end of an earlier collective of the team");
        let free = || board.is_free().then_some(());
        let wait = || job.wait_stepping(what, &[], free, || board.is_free());
        match catch_unwind(AssertUnwindSafe(wait)) {
            Ok(waited) => waited.map_err(|error| self.refuse(*call, error.into())),
            Err(panic) => {
                // The operator of an earlier call panicked, or a handler. This call has a number
                // already, so the others wait for it.
                self.refuse_as(*call, Failure::Refused(self.rank));
                resume_unwind(panic)
            }
        }
    }

    #[inline(never)]
    fn in_steps(
        &self,
        call: &Call,
        shape: Shape,
        ends: &mut Ends<'_>,
        combiner: Option<&dyn Combiner>,
    ) -> Ended {
        let ends = std::mem::replace(ends, Ends::nothing());
        let run = RefCell::new(Run::new(self, *call, Ok(shape), ends));
        let drive = || self.drive(&run, combiner);
        catch_unwind(AssertUnwindSafe(drive)).unwrap_or_else(|panic| {
            // An operator panicked, of this call or of another one, or a handler: this call still
            // ends, so that the others do not wait in vain.
            let _ = drive();
            resume_unwind(panic)
        })
    }

    /// Runs a call to its end. Each step may take as long as the fabric's deadline.
    fn drive(&self, run: &RefCell<Run<'_>>, combiner: Option<&dyn Combiner>) -> Ended {
        let (job, what) = (&*self.job, run.borrow().call.kind.name());
        loop {
            let before = run.borrow().taken;
            let step = || {
                let ended = run.borrow_mut().step(job, combiner).cloned();
                (ended.is_some() || run.borrow().taken != before).then_some(ended)
            };
            match job.wait_stepping(what, &[], step, || run.borrow().is_ready()) {
                Ok(Some(ended)) => return ended,
                Ok(None) => {}
                Err(error) => return run.borrow_mut().time_out(job, error),
            }
        }
    }

    /// Ends the next call of the team, whatever the others call, because this member's arguments
    /// are invalid. Returns the error for the caller.
    #[cold]
    pub(crate) fn refuse_next(&self, error: Error) -> Error {
        match self.turn() {
            Ok(_turn) => self.refuse(self.next_call(Kind::Refused), error),
            Err(error) => error,
        }
    }

    /// Ends a call with inconsistent arguments at all members. Returns the error for the caller.
    #[cold]
    pub(super) fn refuse(&self, call: Call, error: Error) -> Error {
        self.refuse_as(call, Failure::Own(error.clone()));
        error
    }

    /// Ends a call at all other members, in its turn.
    fn refuse_as(&self, call: Call, failure: Failure) {
        if self.size() > 1 {
            let run = Run::new(self, call, Err(failure), Ends::nothing());
            let flying = Flying::new(run, None);
            let flight = self.job.collectives.fly(&self.job, flying);
            self.forget_clocks(&call, Arc::downgrade(&flight));
        }
    }
}
