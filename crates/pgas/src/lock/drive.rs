//! Executes the steps of the state machines: directly on mapped memory, otherwise by messages to the home. A call whose
//! deadline passes leaves its state here, and the next call, or the drop of the lock, continues from it.

use super::Lock;
use super::protocol::{self, Acquire, End, Leave, Release, Step, Ticket, Wait, Wish, Word};
use crate::{Error, Result, Unit};
use samite_fabric::{Error as Below, Handle, Whom};
use samite_mem::sync::Ordering;
use std::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    Held,
    /// A call ended before it had its answer.
    Left,
}

/// What a call left behind that ended at the deadline.
#[derive(Debug)]
pub(super) enum Left<'f> {
    /// A place in the queue.
    Waiting(Acquire),
    /// A step that the home has not answered yet.
    Asked(Machine, Step, Handle<'f, u64>),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Machine {
    Acquire(Acquire),
    Release(Release),
}

/// A step without an answer; the operation, if its answer may still come.
struct Unanswered<'f> {
    error: Error,
    handle: Option<Handle<'f, u64>>,
}

impl From<Error> for Unanswered<'_> {
    fn from(error: Error) -> Self {
        let handle = None;
        Unanswered { error, handle }
    }
}

impl<'f> Lock<'f> {
    #[inline(always)]
    pub(super) fn take(&self, wish: Wish) -> Result<End> {
        match self.state.get() {
            State::Idle => {}
            State::Held => return Err(Error::AlreadyHeld),
            State::Left => {
                if let Some(end) = self.go_on(wish)? {
                    return Ok(end);
                }
            }
        }
        let far = self.words.near().is_none();
        let mut machine = Acquire::new(self.ticket.get(), far, wish);
        let step = machine.step(0);
        self.enter(machine, step, wish)
    }

    #[inline(always)]
    fn enter(&self, machine: Acquire, step: Step, wish: Wish) -> Result<End> {
        let end = self.walk_up(machine, step, wish)?;
        self.hold(end)
    }

    /// Goes through the queue, to its end or as far as the wish allows.
    #[inline(always)]
    fn walk_up(&self, machine: Acquire, step: Step, wish: Wish) -> Result<End> {
        let home = self.home_peer();
        if let Some(lost) = self.team.fabric().lost(home) {
            return Err(self.say(lost.into()));
        }
        if self.words.needs_progress() {
            // Whoever takes locks in a loop may be the home that others wait for.
            self.team.fabric().progress();
        }
        if !self.words.is_there() {
            return Err(self.gone());
        }
        self.drive(machine, step, wish)
    }

    /// The lock is held, if this is how the queue ended. With an error it is not: it has been given back.
    #[inline(always)]
    fn hold(&self, end: End) -> Result<End> {
        if let End::Held { broken } = end {
            self.state.set(State::Held);
            self.tell_check(broken)
                .inspect_err(|_| self.give_unused(broken))?;
        }
        Ok(end)
    }

    /// The checking mode hears that this unit holds the lock.
    #[inline]
    fn tell_check(&self, broken: bool) -> Result<()> {
        let Some(check) = &self.team.0.job.check else {
            return Ok(());
        };
        check.lock_taken(self.home_unit()?, self.team.id(), self.number)?;
        if broken {
            // The dead do nothing any more.
            check.buried(self.lost_unit()?);
        }
        Ok(())
    }

    /// Gives the lock back for a caller that gets an error instead of a guard.
    #[cold]
    pub(super) fn give_unused(&self, broken: bool) {
        let completed = self.complete();
        if let Err(error) = self.give(broken).and(completed) {
            tracing::warn!(%error, "a lock was given back with an error");
        }
    }

    #[inline(always)]
    fn drive(&self, mut machine: Acquire, mut step: Step, wish: Wish) -> Result<End> {
        let mut walk = Walk::default();
        loop {
            if let Step::Load(Word::Previous(_)) = step {
                walk.step(self)?;
            }
            let answer = match step {
                Step::Ended(end) => return Ok(end),
                Step::Await(behind) => match self.wait(behind, wish) {
                    Ok(Some(wait)) => wait.answer(),
                    Ok(None) => {
                        self.leave(Left::Waiting(machine));
                        return Ok(End::Busy);
                    }
                    Err(error) => {
                        if let Error::Fabric(Below::Timeout { .. }) = error {
                            self.leave(Left::Waiting(machine));
                        }
                        return Err(error);
                    }
                },
                step => match self.carry_out(step) {
                    Ok(answer) => answer,
                    Err(late) => return Err(self.put_off(Machine::Acquire(machine), step, late)),
                },
            };
            step = machine.step(answer);
        }
    }

    /// One step that is no wait; its answer.
    #[inline(always)]
    fn carry_out(&self, step: Step) -> Result<u64, Unanswered<'f>> {
        match step {
            Step::Wake { member, far, word } => {
                self.wake(member, far, word);
                return Ok(0);
            }
            Step::AskLost(member) => {
                let peer = self.team.peers()[member as usize];
                if self.team.fabric().lost(peer).is_some() {
                    return Ok(1);
                }
            }
            _ => {}
        }
        let Some(found) = self.words.apply(step) else {
            let asked = self.words.ask(self.team.fabric(), step);
            return self.answer(step, asked.map_err(|error| self.say(error))?);
        };
        Ok(self.understand(step, found)?)
    }

    /// Waits for the answer of a home that is not mapped here.
    fn answer(&self, step: Step, asked: Handle<'f, u64>) -> Result<u64, Unanswered<'f>> {
        let (what, home) = ("the home of a lock", [self.home_peer()]);
        let over = || asked.is_over().then_some(());
        let waited = self
            .team
            .fabric()
            .wait_stepping(what, &home, over, || false);
        let say = |error: Below| self.say(error.into());
        match waited {
            Err(error @ Below::Timeout { .. }) => Err(Unanswered {
                error: say(error),
                handle: Some(asked),
            }),
            Err(error) if !asked.is_over() => Err(say(error).into()),
            _ => Ok(self.understand(step, asked.wait().map_err(say)?)?),
        }
    }

    /// What a word means as the answer to a step, if the rules of the queue allow it.
    #[inline(always)]
    fn understand(&self, step: Step, found: u64) -> Result<u64> {
        if !step.allows(found, self.team.size()) {
            return Err(self.nonsense(found));
        }
        Ok(match step {
            Step::AskLost(_) => u64::from(protocol::has_left(found)),
            _ => found,
        })
    }

    /// A word, outside of the queue's steps.
    pub(super) fn load(&self, word: Word) -> Result<u64> {
        let found = self.words.load(word).map_err(|error| self.say(error))?;
        self.understand(Step::Load(word), found)
    }

    #[cold]
    fn nonsense(&self, value: u64) -> Error {
        let what = "a word of a lock";
        let (peer, what) = (self.home_peer(), samite_mem::Corrupt { what, value });
        Below::PeerCorrupt { peer, what }.into()
    }

    /// Waits for a predecessor. `None`: it would have to wait, but only tries.
    fn wait(&self, behind: Ticket, wish: Wish) -> Result<Option<Wait>> {
        let peer = self.team.peers()[behind.member() as usize];
        let whom = [self.home_peer(), peer];
        let fabric = self.team.fabric();
        let own;
        let look: &dyn Fn() -> Option<Wait> = if let Some(bytes) = self.words.near() {
            let link = bytes.u64(self.words.offset(Word::Link(behind.member())));
            // ORDERING: Acquire pairs with the swap of the release.
            &move || behind.look(link.load(Ordering::Acquire))
        } else {
            own = self.words.own_wake();
            // ORDERING: Acquire: the word comes by this unit's own progress.
            &|| behind.woken_by(own.u64(0).load(Ordering::Acquire))
        };
        if wish == Wish::Try {
            fabric.progress();
            let lost = || fabric.lost(peer).map(|_| Wait::Lost);
            return Ok(look().or_else(lost));
        }
        match self.team.0.job.wait_until("a lock", &whom, look) {
            Ok(wait) => Ok(Some(wait)),
            Err(Below::PeerLost { peer, .. }) if peer != whom[0] => Ok(Some(Wait::Lost)),
            Err(error) => Err(self.say(error.into())),
        }
    }

    /// Goes on with what a call has left behind that ended at the deadline; `None`: it is done, and this one begins.
    #[cold]
    fn go_on(&self, wish: Wish) -> Result<Option<End>> {
        let Some(left) = self.left.take() else {
            return Ok(None);
        };
        self.state.set(State::Idle);
        match left {
            Left::Waiting(machine) => {
                let behind = machine.waits_behind().unwrap_or(self.ticket.get());
                let walked = self.walk_up(machine, Step::Await(behind), wish);
                if walked.is_err() && self.state.get() == State::Idle {
                    self.leave(Left::Waiting(machine));
                }
                // Whoever has held the lock has no place in the queue any more, whatever becomes of it.
                self.hold(walked?).map(Some)
            }
            Left::Asked(machine, step, asked) => {
                let answer = self.answer(step, asked);
                let answer = answer.map_err(|late| self.put_off(machine, step, late))?;
                match machine {
                    Machine::Release(mut machine) => {
                        let step = machine.step(answer);
                        self.finish(machine, step).map(|()| None)
                    }
                    Machine::Acquire(mut machine) => {
                        machine.wish(wish);
                        let step = machine.step(answer);
                        let end = self.enter(machine, step, wish)?;
                        // The call before may only have tried: it has no place.
                        let begins = end == End::Busy && wish != Wish::Try;
                        Ok((!begins).then_some(end))
                    }
                }
            }
        }
    }

    /// Gives up a place in the queue that a call at its deadline has kept, so that nobody waits behind it.
    pub(super) fn leave_queue(&self) {
        let Some(left) = self.left.take() else {
            return;
        };
        if self.team.fabric().lost(self.home_peer()).is_some() || !self.words.is_there() {
            return;
        }
        let done = match left {
            Left::Waiting(_) => self.leave_for_good(),
            Left::Asked(machine, step, asked) => self.settle(machine, step, asked),
        };
        if let Err(error) = done {
            tracing::warn!(%error, "the place in the queue of a lock could not be given up");
        }
    }

    fn leave_for_good(&self) -> Result<()> {
        let mut machine = Leave::new(self.ticket.get());
        let mut step = machine.step(0);
        while !matches!(step, Step::Ended(_)) {
            let answer = self.carry_out(step).map_err(|late| late.error)?;
            step = machine.step(answer);
        }
        Ok(())
    }

    /// Brings a step that was not answered to its end, and has neither the lock nor a place afterwards.
    fn settle(&self, machine: Machine, step: Step, asked: Handle<'f, u64>) -> Result<()> {
        let answer = self.answer(step, asked).map_err(|late| late.error)?;
        match machine {
            Machine::Release(mut machine) => {
                let step = machine.step(answer);
                self.finish(machine, step)
            }
            Machine::Acquire(mut machine) => {
                machine.wish(Wish::Try);
                let step = machine.step(answer);
                match self.drive(machine, step, Wish::Try)? {
                    End::Held { broken } => self.give(broken),
                    End::Busy if self.left.take().is_some() => self.leave_for_good(),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Keeps what is in flight when a step is not answered in time; the error, for the caller.
    #[cold]
    fn put_off(&self, machine: Machine, step: Step, late: Unanswered<'f>) -> Error {
        if let Some(asked) = late.handle {
            self.leave(Left::Asked(machine, step, asked));
        }
        late.error
    }

    #[cold]
    fn leave(&self, left: Left<'f>) {
        self.state.set(State::Left);
        *self.left.borrow_mut() = Some(left);
    }

    fn wake(&self, member: u32, far: bool, word: u64) {
        if far {
            if let Err(error) = self.words.wake(member, word) {
                tracing::debug!(%error, member, "whoever waited for the lock is not there any more");
            }
        } else if let Ok(unit) = self.team.unit(member) {
            self.team.0.job.bells[unit.index()].nudge();
        }
    }

    /// Gives the lock back; `broken`: to somebody who must know that a holder died.
    #[inline(always)]
    pub(super) fn give(&self, broken: bool) -> Result<()> {
        self.state.set(State::Idle);
        let look = self.words.near().is_some();
        let mut machine = Release::new(self.ticket.get(), look, broken);
        let step = machine.step(0);
        self.finish(machine, step)
    }

    #[inline(always)]
    fn finish(&self, mut machine: Release, mut step: Step) -> Result<()> {
        loop {
            if let Step::Ended(end) = step {
                if end == (End::Released { used: true }) {
                    self.ticket.set(self.ticket.get().next());
                }
                return Ok(());
            }
            let answer = match self.carry_out(step) {
                Ok(answer) => answer,
                Err(late) => return Err(self.put_off(Machine::Release(machine), step, late)),
            };
            step = machine.step(answer);
        }
    }

    /// Who died as the holder.
    pub(super) fn lost_unit(&self) -> Result<Unit> {
        let word = self.load(Word::Lost)?;
        self.team.unit(word.saturating_sub(1) as u32)
    }

    fn home_peer(&self) -> samite_fabric::PeerId {
        self.team.peers()[self.words.home() as usize]
    }

    pub(super) fn home_unit(&self) -> Result<Unit> {
        self.team.unit(self.words.home())
    }

    /// The loss of the home, in the words of this crate.
    #[cold]
    fn say(&self, error: Error) -> Error {
        match (error, self.home_unit()) {
            (Error::Fabric(Below::PeerLost { peer, .. }), Ok(unit)) if peer == self.home_peer() => {
                let what = "it was the home of a lock";
                Error::UnitLost { unit, what }
            }
            (error, _) => error,
        }
    }

    /// The home has dropped the team.
    #[cold]
    fn gone(&self) -> Error {
        let what = "it was the home of a lock";
        match self.home_unit() {
            Ok(unit) => Error::UnitLost { unit, what },
            Err(error) => error,
        }
    }
}

/// Steps along a queue from its end to its beginning: of one that goes in circles there is no end.
#[derive(Default)]
struct Walk {
    steps: u64,
    since: Option<Instant>,
}

impl Walk {
    fn step(&mut self, lock: &Lock<'_>) -> Result<()> {
        self.steps += 1;
        if self.steps <= u64::from(lock.team.size()) {
            return Ok(());
        }
        let fabric = lock.team.fabric();
        let (what, after) = ("the queue of a lock", fabric.deadline());
        if self.since.get_or_insert_with(Instant::now).elapsed() < after {
            return Ok(());
        }
        let whom = Whom::Peer(lock.home_peer());
        Err(Below::Timeout { what, whom, after }.into())
    }
}
