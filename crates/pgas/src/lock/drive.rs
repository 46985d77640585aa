//! Executes the steps of the state machines: directly on mapped memory, otherwise by messages to the home. A call whose
//! deadline passes leaves its state here ([`Left`]), and the next call continues from it. If the lock is dropped instead, this unit
//! leaves the queue ([`Leaver`]), at once or when it makes progress.

mod leaver;

use super::Lock;
use super::protocol::{self, Acquire, End, Release, Step, Ticket, Wait, Wish, Word};
use crate::waited::Waited;
use crate::{Error, Result, Unit};
use leaver::Leaver;
use samite_fabric::{Error as Below, Handle, Whom};
use samite_mem::sync::Ordering;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    Held,
    /// A call ended before it had its answer.
    Left,
}

/// A machine that a call left in the middle when it ended at its deadline.
#[derive(Debug)]
pub(super) struct Left<'f> {
    machine: Machine,
    /// Its next step.
    step: Step,
    /// The home was asked for it, and has not answered yet. `None`: it has not begun.
    asked: Option<Handle<'f, u64>>,
}

#[derive(Clone, Copy, Debug)]
enum Machine {
    Acquire(Acquire),
    Release(Release),
}

/// A step without an answer; the operation, if its answer may still come. Without one the step has not begun.
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
            let answer = match step {
                Step::Ended(end) => return Ok(end),
                Step::Await(behind) => match self.wait(behind, wish) {
                    Ok(Some(wait)) => Ok(wait.answer()),
                    Ok(None) => {
                        self.leave(Machine::Acquire(machine), step, None);
                        return Ok(End::Busy);
                    }
                    Err(error) => Err(error.into()),
                },
                step => walk.step(self).and_then(|()| self.carry_out(step)),
            };
            match answer {
                Ok(answer) => step = machine.step(answer),
                Err(late) => return Err(self.put_off(Machine::Acquire(machine), step, late)),
            }
        }
    }

    /// One step that is no wait; its answer.
    #[inline(always)]
    fn carry_out(&self, step: Step) -> Result<u64, Unanswered<'f>> {
        match step {
            Step::Wake { member, far, word } => {
                self.wake(member, far, word)?;
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

    /// Goes on with what a call has left in the middle; `None`: that is done, and this one begins.
    #[cold]
    fn go_on(&self, wish: Wish) -> Result<Option<End>> {
        let Some(Left {
            machine,
            step,
            asked,
        }) = self.left.take()
        else {
            return Ok(None);
        };
        self.state.set(State::Idle);
        let answer = asked.map(|asked| self.answer(step, asked)).transpose();
        let answer = answer.map_err(|late| self.put_off(machine, step, late))?;
        match machine {
            Machine::Release(mut machine) => {
                let step = answer.map_or(step, |answer| machine.step(answer));
                self.finish(machine, step).map(|()| None)
            }
            Machine::Acquire(mut machine) => {
                machine.wish(wish);
                let step = answer.map_or(step, |answer| machine.step(answer));
                let walked = self.walk_up(machine, step, wish);
                let waits = matches!(step, Step::Await(_));
                if waits && walked.is_err() && self.state.get() == State::Idle {
                    // A wait can begin anew after any error.
                    self.leave(Machine::Acquire(machine), step, None);
                }
                // Whoever has held the lock has no place in the queue any more, whatever becomes of it.
                let end = self.hold(walked?)?;
                // The call before may only have tried: it has no place.
                let begins = end == End::Busy && wish != Wish::Try;
                Ok((!begins).then_some(end))
            }
        }
    }

    /// Brings what a call has left in the middle to its end, without the lock, and without a place in the queue that somebody
    /// waits behind. What the home does not answer in time is gone on with when this unit makes progress.
    pub(super) fn leave_queue(&self) {
        let Some(left) = self.left.take() else {
            return;
        };
        self.state.set(State::Idle);
        if self.team.fabric().lost(self.home_peer()).is_some() || !self.words.is_there() {
            return;
        }
        let mut leaver = Leaver::new(self, left);
        match leaver.settle() {
            Err(Error::Fabric(Below::Timeout { .. })) => self.team.0.job.unfinished.add(leaver),
            done => leaver::report(done),
        }
    }

    /// Keeps a machine whose step was not done in time; the error, for the caller.
    #[cold]
    fn put_off(&self, machine: Machine, step: Step, late: Unanswered<'f>) -> Error {
        if let Error::Fabric(Below::Timeout { .. }) = late.error {
            self.leave(machine, step, late.handle);
        }
        late.error
    }

    #[cold]
    fn leave(&self, machine: Machine, step: Step, asked: Option<Handle<'f, u64>>) {
        self.state.set(State::Left);
        *self.left.borrow_mut() = Some(Left {
            machine,
            step,
            asked,
        });
    }

    /// Errors: the deadline. Whoever is lost needs no wake.
    fn wake(&self, member: u32, far: bool, word: u64) -> Result<()> {
        if far {
            match self.words.wake(member, word) {
                Err(error @ Error::Fabric(Below::Timeout { .. })) => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, member, "whoever waited for the lock is not there any more");
                }
                Ok(()) => {}
            }
        } else if let Ok(unit) = self.team.unit(member) {
            self.team.0.job.bells[unit.index()].nudge();
        }
        Ok(())
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

/// Steps in a queue whose words somebody may be changing all the time, or that goes in circles: of those there is no end.
#[derive(Default)]
struct Walk {
    steps: u32,
    waited: Waited,
}

/// So many are nothing to speak of: nobody looks at the clock.
const STEPS: u32 = 64;

impl Walk {
    /// One step that is no wait. Errors: the deadline.
    #[inline(always)]
    fn step<'f>(&mut self, lock: &Lock<'f>) -> Result<(), Unanswered<'f>> {
        if self.steps < STEPS {
            self.steps += 1;
            return Ok(());
        }
        self.look(lock)
    }

    #[cold]
    fn look<'f>(&mut self, lock: &Lock<'f>) -> Result<(), Unanswered<'f>> {
        let fabric = lock.team.fabric();
        let (what, after) = ("the queue of a lock", fabric.deadline());
        if !self.waited.is_over(after) {
            return Ok(());
        }
        let whom = Whom::Peer(lock.home_peer());
        Err(Error::from(Below::Timeout { what, whom, after }).into())
    }
}
