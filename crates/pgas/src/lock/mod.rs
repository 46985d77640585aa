//! Locks of a team: a queue in global memory, first come, first served.
//!
//! A lock lives at one member, its *home*; the locks of a team are spread over its members. On
//! mapped memory an uncontended lock costs one compare-exchange to take and one to give back. Who
//! has to wait looks at a line that only it and its predecessor touch, and goes on as soon as the
//! predecessor writes there: one line transfer. Over messages the same words are reached by
//! messages, and a waiter is woken by a word that the predecessor puts into its memory.
//!
//! # Deaths
//! * Of a waiter: those behind it go on as if it had never been there.
//! * Of the holder: whoever asks for the lock, and whoever waits for it, gets
//!   [`Error::HolderLost`]: what the lock guards may be half changed. [`Lock::recover`] takes the
//!   lock all the same; its guard repairs, and gives back a lock like any other.
//! * Of the home: [`Error::UnitLost`] for everybody, for good.
//!
//! A panic is not a death: guards that it drops give their locks back. What a [`Lock`] guards may
//! be half changed then; a [`GlobalLock`] puts nothing back. A panic in the middle of a repair
//! leaves the lock broken. One that ends a call of the lock while it waits (an operator or a
//! handler that runs meanwhile) is to the lock as a deadline.
//!
//! # Files
//! `protocol/` (the queue as state machines, its words, invariants, the way out of it) · `drive/`
//! (their steps carried out, and waits) · `model` (every order of their steps, with deaths) ·
//! `table` (where the words are) · `guarded` (a lock with what it guards)

mod drive;
mod guarded;
#[cfg(test)]
mod model;
mod protocol;
mod table;
#[cfg(test)]
mod tests;

pub use guarded::{GlobalGuard, GlobalLock};
pub(crate) use table::Table;

use crate::unfinished::{at_once_while_unwinding, while_unwinding};
use crate::{Error, Result, Team, Unit};
use drive::{CallState, Interrupted};
use parking_lot::Mutex;
use protocol::{End, Ticket, Wish, Word};
use std::sync::atomic::{AtomicU64, Ordering};
use table::Words;

/// A lock of a team, as one of its members sees it. Not recursive: a unit has one place in the
/// queue. A thread that asks for the lock while another one of its unit holds it, or waits for it,
/// is told so; put a `std::sync::Mutex` around it where threads of a unit are to wait for each
/// other.
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
pub struct Lock {
    team: Team,
    number: u64,
    words: Words,
    call: CallState,
    /// Of this unit's next stay in the queue, or of this one. It is changed by whoever has the
    /// place.
    ticket: AtomicU64,
    left: Mutex<Option<Interrupted>>,
}

/// The lock is held as long as this lives; dropping it, in any thread, gives the lock back.
#[derive(Debug)]
#[must_use = "a guard that is dropped at once gives the lock back at once"]
pub struct Guard<'l> {
    lock: &'l Lock,
    repair: Option<Repair>,
}

/// What the holder of a broken lock repairs.
#[derive(Clone, Copy, Debug)]
struct Repair {
    lost: Unit,
    /// Whether the thread was unwinding already when it took the lock: then it is no panic in the
    /// middle of the repair.
    unwinding: bool,
}

/// A lock that is held: it is given back once, whatever comes in between, by one of its functions
/// or, with an error or a panic of what runs while its owner waits, when it is dropped.
struct Holding<'l> {
    lock: &'l Lock,
    /// Whoever is next must know that a holder died.
    broken: bool,
    /// The call that has got the lock has not ended: it has the place.
    inside: bool,
}

impl Holding<'_> {
    /// A [`Guard`] gives it back.
    #[inline(always)]
    fn keep(self) {
        std::mem::forget(self);
    }

    /// Gives it back. Nothing was done under it.
    #[inline(always)]
    fn give(self) -> Result<()> {
        let (lock, broken, inside) = (self.lock, self.broken, self.inside);
        // From here on it is the machine's, which is kept until it has come to its end.
        std::mem::forget(self);
        lock.give(broken, inside)
    }

    /// Gives it back, after what this unit has started under it.
    #[inline(always)]
    fn complete_and_give(self) -> Result<()> {
        let completed = self.lock.complete();
        self.give().and(completed)
    }
}

impl Drop for Holding<'_> {
    #[cold]
    fn drop(&mut self) {
        let give = || report(self.lock.give(self.broken, self.inside));
        match std::thread::panicking() {
            true => at_once_while_unwinding(self.lock.team.fabric(), give),
            false => give(),
        }
    }
}

#[cold]
fn report(given: Result<()>) {
    if let Err(error) = given {
        tracing::warn!(%error, "a lock was given back with an error");
    }
}

impl Team {
    /// A lock of this team. Collective: all members make their locks in the same order. It costs
    /// nothing to have many: only some of these calls (the 1st, the 65th, the 193rd, ...) allocate
    /// memory.
    ///
    /// # Errors
    /// Those of [`Team::allocate`].
    pub fn lock(&self) -> Result<Lock> {
        let _turn = self.0.long_turn()?;
        let (number, page) = Table::make(self)?;
        Ok(Lock {
            team: self.clone(),
            number,
            words: Words::new(page, number),
            call: CallState::new(),
            ticket: AtomicU64::new(Ticket::new(self.rank(), 1).0),
            left: Mutex::default(),
        })
    }
}

impl Lock {
    /// Waits until all who asked before have had the lock, and takes it. What they did under the
    /// lock, and completed, is visible.
    ///
    /// # Errors
    /// * [`Error::HolderLost`]: a holder died. The lock is not held.
    /// * [`Error::UnitLost`]: the lock's home died.
    /// * [`Error::AlreadyHeld`]: this unit holds it; or a call of this unit is under way, and
    ///   another thread, or an operator or a handler that runs meanwhile, calls this.
    /// * The deadline: this unit keeps its place in the queue, and the next call goes on with it,
    ///   also where the home has not answered in time. Until then those behind it wait; dropping
    ///   the lock leaves the queue. If the home does not answer during the drop either, this unit
    ///   leaves later: in a collective, a flush, a wait for a signal or a lock,
    ///   [`Pgas::progress`](crate::Pgas::progress), and where it puts or gets consecutive elements
    ///   by rank that are not mapped, or updates one by a single message
    ///   ([`Update`](crate::Update)). A wait of the fabric (a receive, a handle) and an access by a
    ///   pointer do nothing for it.
    /// * A predecessor that breaks the rules of the fabric towards this unit: it keeps its place,
    ///   too.
    #[inline]
    pub fn acquire(&self) -> Result<Guard<'_>> {
        match self.take(Wish::Wait)? {
            End::Held { broken: false } => Ok(Guard {
                lock: self,
                repair: None,
            }),
            end => Err(self.turn_away(end)),
        }
    }

    /// Takes the lock if nobody holds it or waits for it. Errors as for [`Lock::acquire`].
    #[inline]
    pub fn try_acquire(&self) -> Result<Option<Guard<'_>>> {
        match self.take(Wish::Try)? {
            End::Held { broken: false } => Ok(Some(Guard {
                lock: self,
                repair: None,
            })),
            End::Busy => Ok(None),
            end => Err(self.turn_away(end)),
        }
    }

    /// Takes the lock whether or not a holder died ([`Guard::lost_holder`]), after waiting as
    /// [`Lock::acquire`] does. The caller repairs what the lock guards; when it drops the guard the
    /// lock is as good as new, unless a panic drops it. Any unit may do this.
    pub fn recover(&self) -> Result<Guard<'_>> {
        match self.take(Wish::Repair)? {
            End::Held { broken: true } => {
                let holding = self.holding(true);
                let lost = self.lost_unit()?;
                holding.keep();
                let unwinding = std::thread::panicking();
                Ok(Guard {
                    lock: self,
                    repair: Some(Repair { lost, unwinding }),
                })
            }
            _ => Ok(Guard {
                lock: self,
                repair: None,
            }),
        }
    }

    /// Who holds the lock and who waits for it, in the order in which they get it, as it was at
    /// some moment or other. For people and tests.
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

    /// Ends the lock. Collective: when it returns nobody uses it any more. The memory of a lock
    /// that is only dropped is the team's until the team ends. With an error, [`Error::TeamInUse`]
    /// included, the lock has ended here, and others may still use it.
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
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// This unit has the lock.
    #[inline(always)]
    fn holding(&self, broken: bool) -> Holding<'_> {
        Holding {
            lock: self,
            broken,
            inside: false,
        }
    }

    #[inline(always)]
    fn ticket(&self) -> Ticket {
        // ORDERING: Relaxed, here and below: the place orders it.
        Ticket(self.ticket.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn use_ticket(&self) {
        self.ticket.store(self.ticket().next().0, Ordering::Relaxed);
    }

    /// What somebody is told who does not get the lock.
    #[cold]
    fn turn_away(&self, end: End) -> Error {
        let holding = match end {
            End::Held { broken } => Some(self.holding(broken)),
            _ => None,
        };
        let lost = self.lost_unit();
        let given = holding.map_or(Ok(()), Holding::give);
        match (lost, given) {
            (Ok(unit), Ok(())) => Error::HolderLost { unit },
            (Err(error), _) | (_, Err(error)) => error,
        }
    }
}

impl Guard<'_> {
    /// Which holder died before this one: only after [`Lock::recover`].
    pub fn lost_holder(&self) -> Option<Unit> {
        self.repair.map(|repair| repair.lost)
    }

    /// Gives the lock back for a caller that could not read what it guards: if a holder had died,
    /// the lock is still broken.
    fn give_up(self) {
        let (lock, broken) = (self.lock, self.repair.is_some());
        std::mem::forget(self);
        report(lock.holding(broken).complete_and_give());
    }

    /// Gives the lock back. What this unit started without a handle is complete before; whoever
    /// gets the lock next sees everything. Dropping the guard does the same, and logs the errors.
    ///
    /// # Errors
    /// A lost unit that an operation went to, or the loss of the home; the lock is given back all
    /// the same where that is possible. The deadline, where the home, or whoever is next, takes no
    /// message in time: this unit brings it to its end later, in what [`Lock::acquire`] names, and
    /// the next call of this lock does first.
    pub fn release(self) -> Result<()> {
        let lock = self.lock;
        std::mem::forget(self);
        lock.holding(false).complete_and_give()
    }
}

impl Lock {
    /// Completes what this unit started under the lock, for the next holder.
    #[inline(always)]
    fn complete(&self) -> Result<()> {
        let job = &self.team.0.job;
        let completed = job.complete_implicit(None);
        let told = match &job.check {
            None => Ok(()),
            Some(check) => check.lock_given(self.home_unit()?, self.team.id().0, self.number),
        };
        completed.and(told)
    }
}

impl Drop for Lock {
    /// Brings to its end what a call at its deadline has left in the middle, and leaves the queue.
    #[inline]
    fn drop(&mut self) {
        if self.left.get_mut().is_some() {
            self.end();
        }
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            return self.unwind();
        }
        if let Err(error) = self.lock.holding(false).complete_and_give() {
            report(Err(error));
        }
    }
}

impl Guard<'_> {
    /// Gives the lock back while the thread unwinds; broken, in the middle of a repair. It waits
    /// for what was done under the lock: the next holder must find all of that.
    #[cold]
    fn unwind(&self) {
        let broken = self.repair.is_some_and(|repair| !repair.unwinding);
        while_unwinding(|| report(self.lock.holding(broken).complete_and_give()));
    }
}
