//! Locks of a team: a queue in global memory, first come, first served.
//!
//! A lock lives at one member, its *home*; the locks of a team are spread over its members. On mapped memory
//! an uncontended lock costs one compare-exchange to take and one to give back. Who has to wait looks at a
//! line that only it and its predecessor touch, and goes on as soon as the predecessor writes there: one
//! line transfer. Over messages the same words are reached by messages, and a waiter is woken by a word that
//! the predecessor puts into its memory.
//!
//! # Deaths
//! * Of a waiter: those behind it go on as if it had never been there.
//! * Of the holder: whoever asks for the lock, and whoever waits for it, gets
//!   [`Error::HolderLost`]: what the lock guards may be half changed. [`Lock::recover`] takes the lock all
//!   the same; its guard repairs, and gives back a lock like any other.
//! * Of the home: [`Error::UnitLost`] for everybody, for good.
//!
//! A panic is no death: guards that it drops give their locks back. What a [`Lock`] guards may be half changed
//! then; a [`GlobalLock`] puts nothing back.
//!
//! # Files
//! `protocol` (the queue as state machines, words, invariants) · `model` (every order of their steps, with
//! deaths) · `table` (where the words are) · `guarded` (a lock with what it guards)

mod guarded;
#[cfg(test)]
mod model;
mod protocol;
mod table;

pub use guarded::{GlobalGuard, GlobalLock};
pub(crate) use table::Table;

use crate::{Error, Result, Team, Unit};
use protocol::{Acquire, End, Leave, Release, Step, Ticket, Wait, Wish, Word};
use samite_fabric::{Error as Below, Handle, Whom};
use samite_mem::sync::Ordering;
use std::cell::{Cell, RefCell};
use std::time::Instant;
use table::Words;

/// A lock of a team, as one of its members sees it. Not recursive.
///
/// ```
/// # use samite_fabric::{Config, Fabric, Identity};
/// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
/// let pgas = samite_pgas::Pgas::new(&fabric)?;
/// let lock = pgas.world().lock()?;
/// let guard = lock.acquire()?;
/// assert_eq!(lock.try_acquire().err(), Some(samite_pgas::Error::AlreadyHeld));
/// drop(guard);
/// # Ok::<(), samite_pgas::Error>(())
/// ```
#[derive(Debug)]
pub struct Lock<'f> {
    team: Team<'f>,
    number: u64,
    words: Words<'f>,
    /// Of this unit's next stay in the queue, or of this one.
    ticket: Cell<Ticket>,
    state: Cell<State>,
    left: RefCell<Option<Left<'f>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Held,
    /// A call ended before it had its answer.
    Left,
}

/// What a call left behind that ended at the deadline.
#[derive(Debug)]
enum Left<'f> {
    /// A place in the queue.
    Waiting(Acquire),
    /// A step that the home has not answered yet.
    Asked(Machine, Step, Handle<'f, u64>),
}

#[derive(Clone, Copy, Debug)]
enum Machine {
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

/// The lock is held as long as this lives; dropping it gives the lock back.
///
/// It belongs to the thread that owns the fabric:
/// ```compile_fail
/// fn send(guard: samite_pgas::Guard<'static, 'static>) {
///     std::thread::spawn(move || drop(guard));
/// }
/// ```
#[derive(Debug)]
#[must_use = "a guard that is dropped at once gives the lock back at once"]
pub struct Guard<'l, 'f> {
    lock: &'l Lock<'f>,
    lost: Option<Unit>,
}

impl<'f> Team<'f> {
    /// A lock of this team. Collective: all members make their locks in the same order. It costs nothing to
    /// have many: only some of these calls (the 1st, the 65th, the 193rd, ...) allocate memory.
    ///
    /// # Errors
    /// Those of [`Team::allocate`].
    pub fn lock(&self) -> Result<Lock<'f>> {
        let (number, page) = Table::make(self)?;
        Ok(Lock {
            team: self.clone(),
            number,
            words: Words::new(page, number),
            ticket: Cell::new(Ticket::new(self.rank(), 1)),
            state: Cell::new(State::Idle),
            left: RefCell::new(None),
        })
    }
}

impl<'f> Lock<'f> {
    /// Waits until all who asked before have had the lock, and takes it. What they did under the lock, and
    /// completed, is visible.
    ///
    /// # Errors
    /// * [`Error::HolderLost`]: a holder died. The lock is not held.
    /// * [`Error::UnitLost`]: the lock's home died.
    /// * [`Error::AlreadyHeld`].
    /// * The deadline: this unit keeps its place in the queue, and the next call goes on with it, also where the
    ///   home has not answered in time. Until then those behind it wait; dropping the lock leaves the queue.
    #[inline]
    pub fn acquire(&self) -> Result<Guard<'_, 'f>> {
        match self.take(Wish::Wait)? {
            End::Held { broken: false } => Ok(Guard {
                lock: self,
                lost: None,
            }),
            end => Err(self.turn_away(end)),
        }
    }

    /// Takes the lock if nobody holds it or waits for it. Errors as for [`Lock::acquire`].
    #[inline]
    pub fn try_acquire(&self) -> Result<Option<Guard<'_, 'f>>> {
        match self.take(Wish::Try)? {
            End::Held { broken: false } => Ok(Some(Guard {
                lock: self,
                lost: None,
            })),
            End::Busy => Ok(None),
            end => Err(self.turn_away(end)),
        }
    }

    /// Takes the lock whether or not a holder died ([`Guard::lost_holder`]), after waiting as
    /// [`Lock::acquire`] does. When the guard is dropped the lock is as good as new: whoever recovers
    /// it has to bring what it guards into order first. Any unit may do it.
    pub fn recover(&self) -> Result<Guard<'_, 'f>> {
        let end = self.take(Wish::Repair)?;
        let broken = matches!(end, End::Held { broken: true });
        let lost = if broken {
            Some(self.lost_unit()?)
        } else {
            None
        };
        Ok(Guard { lock: self, lost })
    }

    /// Who holds the lock and who waits for it, in the order in which they get it, as it was at some moment
    /// or other. For people and tests.
    pub fn queue(&self) -> Result<Vec<Unit>> {
        let (mut units, mut looks) = (Vec::new(), 0..self.team.size());
        let mut next = protocol::ticket(self.load(Word::Tail)?);
        while let Some(ticket) = next.filter(|_| looks.next().is_some()) {
            let link = self.load(Word::Link(ticket.member()))?;
            if ticket.is_released(link) {
                break;
            }
            if !protocol::has_left(link) {
                units.push(self.team.unit(ticket.member())?);
            }
            next = protocol::ticket(self.load(Word::Previous(ticket.member()))?);
        }
        units.reverse();
        Ok(units)
    }

    /// Ends the lock. Collective: when it returns nobody uses it any more. The memory of a lock that is only
    /// dropped is the team's until the team ends.
    pub fn free(self) -> Result<()> {
        self.leave_queue();
        let done = self.team.barrier();
        // All members count alike, whatever became of the barrier.
        Table::free(&self.team, self.number);
        done
    }

    /// The rank of its home.
    pub fn home(&self) -> u32 {
        self.words.home()
    }

    /// The team it belongs to.
    pub fn team(&self) -> &Team<'f> {
        &self.team
    }

    #[inline(always)]
    fn take(&self, wish: Wish) -> Result<End> {
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
        let end = self.drive(machine, step, wish)?;
        if let End::Held { broken } = end {
            self.state.set(State::Held);
            if let Some(check) = &self.team.0.job.check {
                check.lock_taken(self.home_unit()?, self.team.id(), self.number)?;
                if broken {
                    // The dead do nothing any more.
                    check.buried(self.lost_unit()?);
                }
            }
        }
        Ok(end)
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
    fn load(&self, word: Word) -> Result<u64> {
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
                let entered = self.enter(machine, Step::Await(behind), wish);
                if entered.is_err() && self.state.get() == State::Idle {
                    self.leave(Left::Waiting(machine));
                }
                entered.map(Some)
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
    fn leave_queue(&self) {
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
    fn give(&self, broken: bool) -> Result<()> {
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

    /// What somebody is told who does not get the lock.
    #[cold]
    fn turn_away(&self, end: End) -> Error {
        let lost = self.lost_unit();
        let given = match end {
            End::Held { broken } => self.give(broken),
            _ => Ok(()),
        };
        match (lost, given) {
            (Ok(unit), Ok(())) => Error::HolderLost { unit },
            (Err(error), _) | (_, Err(error)) => error,
        }
    }

    /// Who died as the holder.
    fn lost_unit(&self) -> Result<Unit> {
        let word = self.load(Word::Lost)?;
        self.team.unit(word.saturating_sub(1) as u32)
    }

    fn home_peer(&self) -> samite_fabric::PeerId {
        self.team.peers()[self.words.home() as usize]
    }

    fn home_unit(&self) -> Result<Unit> {
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

impl Guard<'_, '_> {
    /// Which holder died before this one: only after [`Lock::recover`].
    pub fn lost_holder(&self) -> Option<Unit> {
        self.lost
    }

    /// Gives the lock back. What this unit started without a handle is complete before; whoever gets
    /// the lock next sees everything. Dropping the guard does the same, and logs the errors.
    ///
    /// # Errors
    /// A lost unit that an operation went to, or the loss of the home; the lock is given back all the same
    /// where that is possible. The deadline, where the home does not answer in time: the next call of this lock
    /// brings that to its end first, and so does dropping it.
    pub fn release(self) -> Result<()> {
        let lock = self.lock;
        std::mem::forget(self);
        lock.complete_and_give()
    }
}

impl Lock<'_> {
    #[inline(always)]
    fn complete_and_give(&self) -> Result<()> {
        let job = &self.team.0.job;
        let complete = job.complete_implicit();
        let told = match &job.check {
            None => Ok(()),
            Some(check) => check.lock_given(self.home_unit()?, self.team.id(), self.number),
        };
        self.give(false).and(complete).and(told)
    }
}

impl Drop for Lock<'_> {
    /// Leaves the queue, if a call that ended at its deadline is still in it.
    #[inline]
    fn drop(&mut self) {
        self.leave_queue();
    }
}

impl Drop for Guard<'_, '_> {
    #[inline]
    fn drop(&mut self) {
        if let Err(error) = self.lock.complete_and_give() {
            tracing::warn!(%error, "a lock was given back with an error");
        }
    }
}
