//! Executes the steps of the state machines: directly on mapped memory, otherwise by messages to
//! the home. A call whose deadline passes, or that a panic of a handler ends while it waits, leaves
//! its state here ([`Interrupted`]), and the next call continues from it. A release ([`Leaver`]) is
//! also continued when this unit makes progress; so is leaving the queue if the lock is dropped.

mod call_state;
mod leaver;
mod waiting;

pub(super) use call_state::CallState;
#[cfg(not(test))]
use call_state::State;
#[cfg(test)]
pub(super) use call_state::State;
pub(super) use waiting::Interrupted;

use super::protocol::{self, Acquire, End, Release, Step, Ticket, Wait, Wish, Word};
use super::{Holding, Lock};
use crate::unfinished::in_destructor;
use crate::waited::Attempts;
use crate::{Error, Result, Unit};
use leaver::{Leaver, is_late};
use parking_lot::Mutex;
use samite_fabric::{Error as Below, Handle, PeerId, Whom};
use samite_mem::sync::Ordering;
use std::sync::Arc;
use waiting::Machine;

impl Lock {
    #[inline(always)]
    pub(super) fn take(&self, wish: Wish) -> Result<End> {
        let call = self.begin()?;
        let gone_on = match call.has_left() {
            true => self.go_on(wish)?,
            false => None,
        };
        let end = match gone_on {
            Some(end) => end,
            None => {
                let far = self.words.near().is_none();
                let mut machine = Acquire::new(self.ticket(), far, wish);
                let step = machine.step(0);
                self.find_home()?;
                let end = self.drive(machine, step, wish)?;
                self.hold(end)?
            }
        };
        if matches!(end, End::Held { .. }) {
            call.hold();
        }
        Ok(end)
    }

    /// Checks that the home still exists and offers the lock.
    #[inline(always)]
    fn find_home(&self) -> Result<()> {
        let home = self.home_peer();
        if let Some(lost) = self.team.0.job.lost(home) {
            return Err(self.say(lost.into()));
        }
        if self.words.needs_progress() {
            // A unit that takes locks in a loop may be the home for which others wait.
            self.team.fabric().progress();
        }
        if !self.words.is_there() {
            return Err(self.gone());
        }
        Ok(())
    }

    /// Completes an acquisition that got the lock. With an error, the lock has been given back.
    #[inline(always)]
    fn hold(&self, end: End) -> Result<End> {
        if let End::Held { broken } = end {
            let holding = Holding {
                lock: self,
                broken,
                inside: true,
            };
            self.tell_check(broken)?;
            holding.keep();
        }
        Ok(end)
    }

    /// Tells the checking mode that this unit holds the lock.
    #[inline]
    fn tell_check(&self, broken: bool) -> Result<()> {
        let Some(check) = &self.team.0.job.check else {
            return Ok(());
        };
        check.lock_taken(self.home_unit()?, self.team.id().0, self.number)?;
        if broken {
            // A dead holder does nothing any more.
            check.buried(self.lost_unit()?);
        }
        Ok(())
    }

    /// Runs the machine to its end, or as far as the wish allows.
    #[inline(always)]
    fn drive(&self, mut machine: Acquire, mut step: Step, wish: Wish) -> Result<End> {
        let mut walk = Attempts::default();
        loop {
            let answer = match step {
                Step::Ended(end) => return Ok(end),
                Step::Await(behind) => {
                    let waiting = self.waiting(Machine::Acquire(machine), step, None);
                    let Some(wait) = waiting.wait(behind, wish)? else {
                        self.leave(Machine::Acquire(machine), step, None);
                        return Ok(End::Busy);
                    };
                    wait.answer()
                }
                step => {
                    if let Err(error) = self.walk(&mut walk) {
                        self.leave(Machine::Acquire(machine), step, None);
                        return Err(error);
                    }
                    match self.carry_out(step)? {
                        Some(answer) => answer,
                        None => self.ask(Machine::Acquire(machine), step)?,
                    }
                }
            };
            step = machine.step(answer);
        }
    }

    /// Executes one step that is not a wait. Returns its answer; `None` if another unit has to be
    /// asked ([`Lock::ask_home`]).
    #[inline(always)]
    fn carry_out(&self, step: Step) -> Result<Option<u64>> {
        match step {
            Step::Wake { far: true, .. } => return Ok(None),
            Step::Wake { member, .. } => {
                if let Ok(unit) = self.team.unit(member) {
                    self.team.0.job.nudge(unit);
                }
                return Ok(Some(0));
            }
            Step::AskLost(member) if self.has_died(self.team.peers()[member as usize]) => {
                return Ok(Some(1));
            }
            _ => {}
        }
        match self.words.apply(step) {
            Some(found) => self.understand(step, found).map(Some),
            None => Ok(None),
        }
    }

    /// Executes a step by messages; see [`Lock::carry_out`].
    #[cold]
    fn ask(&self, machine: Machine, step: Step) -> Result<u64> {
        self.waiting(machine, step, None).answer()
    }

    /// Waits for the answer of a home that is not mapped here. Asks it first, unless `asked` holds
    /// a request. After an error, the request in `asked` may still be answered; if there is none,
    /// the step has not begun.
    fn ask_home(&self, step: Step, asked: &mut Option<Handle<u64>>) -> Result<u64> {
        let fabric = self.team.fabric();
        if let Step::Wake { member, word, .. } = step {
            self.wake_far(member, word)?;
            return Ok(0);
        }
        let say = |error: Below| self.say(error.into());
        let answer = match asked.take() {
            Some(asked) => asked,
            None => self.words.ask(step).map_err(|error| self.say(error))?,
        };
        let answer = asked.insert(answer);
        let (what, home) = ("the home of a lock", [self.home_peer()]);
        let over = || {
            // Others may be waiting for what this unit has left unfinished.
            self.team.0.job.unfinished.step(fabric);
            answer.is_over().then_some(())
        };
        let waited = fabric.wait_stepping(what, &home, over, || false);
        match (waited, asked.take_if(|answer| answer.is_over())) {
            (_, Some(answer)) => self.understand(step, answer.wait().map_err(say)?),
            (Err(error), None) => Err(say(error)),
            (Ok(()), None) => unreachable!("the wait ends with the answer"),
        }
    }

    /// Checks that the rules of the queue allow a word as the answer to a step, and returns its
    /// meaning.
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

    /// Loads a word outside of the queue's steps.
    pub(super) fn load(&self, word: Word) -> Result<u64> {
        let found = self.words.load(word).map_err(|error| self.say(error))?;
        self.understand(Step::Load(word), found)
    }

    #[cold]
    fn nonsense(&self, value: u64) -> Error {
        let what = "a word of a lock";
        let (peer, what) = (self.home_peer(), samite_mem::Corrupt { what, value });
        let peer = peer.into();
        let corrupt = Below::PeerCorrupt { peer, what };
        self.team.fabric().named(corrupt).into()
    }

    /// Waits for a predecessor. `None` if it would have to wait but only tries.
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
            // ORDERING: Acquire: the word is written by this unit's own progress.
            &|| behind.woken_by(own.u64(0).load(Ordering::Acquire))
        };
        if wish == Wish::Try {
            fabric.progress();
            let lost = || self.has_died(peer).then_some(Wait::Lost);
            return Ok(look().or_else(lost));
        }
        match self.team.0.job.wait_until("a lock", &whom, look) {
            Ok(wait) => Ok(Some(wait)),
            Err(Below::PeerLost { peer, .. }) if peer != whom[0] => Ok(Some(Wait::Lost)),
            Err(error) => Err(self.say(error.into())),
        }
    }

    /// Continues what a call has left unfinished. `None`: that is done, and the new call begins.
    #[cold]
    fn go_on(&self, wish: Wish) -> Result<Option<End>> {
        // Before anything is taken out, because a handler that runs meanwhile may panic.
        self.find_home()?;
        let left = self.left.lock().take();
        let (mut machine, step, asked) = match left {
            Some(Interrupted::Acquire {
                machine,
                step,
                asked,
            }) => (machine, step, asked),
            Some(Interrupted::Release(leaver)) => return self.go_on_giving(leaver).map(|()| None),
            None => return Ok(None),
        };
        self.call.set(State::Busy);
        machine.wish(wish);
        let step = match asked {
            Some(asked) => {
                let waiting = self.waiting(Machine::Acquire(machine), step, Some(asked));
                machine.step(waiting.answer()?)
            }
            None => step,
        };
        // If `hold` fails, the lock has been given back: this unit has no place in the queue any
        // more.
        let end = self.drive(machine, step, wish)?;
        let end = self.hold(end)?;
        // The interrupted call may only have tried: then it has no place.
        let begins = end == End::Busy && wish != Wish::Try;
        Ok((!begins).then_some(end))
    }

    /// Continues a release to its end.
    fn go_on_giving(&self, leaver: Arc<Mutex<Leaver>>) -> Result<()> {
        // Kept here as well, so that the next call continues it if this one ends early.
        *self.left.lock() = Some(Interrupted::Release(leaver.clone()));
        let given = leaver.lock().settle();
        if given.as_ref().is_err_and(is_late) {
            return given;
        }
        self.left.lock().take();
        self.call.set(State::Busy);
        if leaver.lock().has_used_the_ticket() {
            self.use_ticket();
        }
        drop(leaver);
        self.let_go_of_leavers();
        given
    }

    /// Leaves the queue when the lock is dropped; see [`Lock::leave_queue`].
    #[cold]
    pub(super) fn end(&self) {
        in_destructor(self.team.fabric(), || self.leave_queue());
    }

    /// Completes what a call has left unfinished, without taking the lock and without leaving a
    /// place in the queue behind which others wait. What the home does not answer in time is
    /// continued when this unit makes progress.
    pub(super) fn leave_queue(&self) {
        let Some(left) = self.left.lock().take() else {
            return;
        };
        if self.team.0.job.lost(self.home_peer()).is_some() || !self.words.is_there() {
            return;
        }
        let leaver = match left {
            Interrupted::Release(leaver) => leaver,
            Interrupted::Acquire {
                machine,
                step,
                asked,
            } => self.add_leaver(Leaver::instead_of(self, machine, step, asked)),
        };
        let done = leaver.lock().settle();
        if !done.as_ref().is_err_and(is_late) {
            drop(leaver);
            leaver::report(done);
            self.let_go_of_leavers();
        }
    }

    /// Registers a leaver with this unit's progress, which continues it even if this call ends
    /// early.
    fn add_leaver(&self, leaver: Leaver) -> Arc<Mutex<Leaver>> {
        let leaver = Arc::new(Mutex::new(leaver));
        self.team.0.job.unfinished.add(leaver.clone());
        leaver
    }

    /// Drops the leavers that have ended, so that they no longer keep the team alive.
    fn let_go_of_leavers(&self) {
        self.team.0.job.unfinished.step(self.team.fabric());
    }

    /// Wakes a far waiter. Errors: the deadline. A lost waiter needs no wake.
    fn wake_far(&self, member: u32, word: u64) -> Result<()> {
        match self.words.wake(member, word) {
            Err(error) if !is_late(&error) => {
                tracing::debug!(%error, member, "whoever waited for the lock is not there any more");
                Ok(())
            }
            done => done,
        }
    }

    /// Gives the lock back. `broken`: the next holder must learn that a holder died. `inside`: a
    /// call that has the place gives it back.
    #[inline(always)]
    pub(super) fn give(&self, broken: bool, inside: bool) -> Result<()> {
        let _call = (!inside).then(|| self.begin_giving());
        let look = self.words.near().is_some();
        let mut machine = Release::new(self.ticket(), look, broken);
        let step = machine.step(0);
        self.finish(machine, step)
    }

    #[inline(always)]
    fn finish(&self, mut machine: Release, mut step: Step) -> Result<()> {
        loop {
            if let Step::Ended(end) = step {
                if end == (End::Released { used: true }) {
                    self.use_ticket();
                }
                return Ok(());
            }
            let answer = match self.carry_out(step)? {
                Some(answer) => answer,
                None => self.ask(Machine::Release(machine), step)?,
            };
            step = machine.step(answer);
        }
    }

    /// Returns the unit that died as the holder.
    pub(super) fn lost_unit(&self) -> Result<Unit> {
        let word = self.load(Word::Lost)?;
        self.team.unit(word.saturating_sub(1) as u32)
    }

    /// Returns true if a predecessor has died. One that has violated the protocol may still hold
    /// the lock.
    fn has_died(&self, peer: PeerId) -> bool {
        matches!(self.team.0.job.lost(peer), Some(Below::PeerLost { .. }))
    }

    fn home_peer(&self) -> PeerId {
        self.team.peers()[self.words.home() as usize]
    }

    pub(super) fn home_unit(&self) -> Result<Unit> {
        self.team.unit(self.words.home())
    }

    /// Limits the steps in a queue whose words other units may change all the time, or that goes in
    /// circles. Errors: the deadline.
    #[inline(always)]
    fn walk(&self, walk: &mut Attempts) -> Result<()> {
        let whom = || Whom::Peer(self.home_peer());
        walk.again(self.team.fabric(), "the queue of a lock", whom)
    }

    /// Translates the loss of the home into an error of this crate.
    #[cold]
    fn say(&self, error: Error) -> Error {
        match error {
            Error::Fabric(Below::PeerLost { peer, .. }) if peer == self.home_peer() => self.gone(),
            error => error,
        }
    }

    /// Returns the error for a home that has dropped the team.
    #[cold]
    fn gone(&self) -> Error {
        let what = "the use of a lock of which it was the home";
        match self.home_unit() {
            Ok(unit) => Error::UnitLost {
                unit: self.team.0.job.named(unit),
                what,
            },
            Err(error) => error,
        }
    }
}
