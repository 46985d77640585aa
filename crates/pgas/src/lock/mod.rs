//! Locks of a team: a queue in global memory, first come, first served.
//!
//! A lock is stored at one member, its *home*; the locks of a team are spread over its members. On
//! mapped memory, an uncontended lock costs one compare-exchange to take and one to give back. A
//! waiter polls a cache line that only it and its predecessor access, and continues as soon as the
//! predecessor writes there: one line transfer. Over messages, the same words are reached by
//! messages, and a waiter is woken by a word that the predecessor puts into its memory.
//!
//! # Deaths
//! * Of a waiter: those behind it continue as if it had never been in the queue.
//! * Of the holder: units that ask for the lock or wait for it get [`Error::HolderLost`], because
//!   what the lock guards may be half changed. [`Lock::recover`] takes the lock nevertheless; its
//!   guard repairs the data and then gives back a normal lock.
//! * Of the home: [`Error::UnitLost`] for all members, permanently.
//!
//! A panic is not a death: guards that it drops give their locks back. What a [`Lock`] guards may
//! then be half changed; a [`GlobalLock`] puts nothing back. A panic during a repair leaves the
//! lock broken. A panic that ends a call of the lock while it waits (in an operator or a handler
//! that runs meanwhile) has the same effect as a deadline.
//!
//! # Files
//! `protocol/` (the queue as state machines, its words, invariants, leaving it) · `drive/`
//! (execution of their steps, and waits) · `model` (every order of their steps, with deaths) ·
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

use crate::unfinished::{in_destructor, while_unwinding};
use crate::{Error, Result, Team, Unit};
use drive::{CallState, Interrupted};
use parking_lot::Mutex;
use protocol::{End, Ticket, Wish, Word};
use std::sync::atomic::{AtomicU64, Ordering};
use table::Words;

/// A lock of a team, as seen by one of its members. It is not recursive: a unit has one place in
/// the queue. If a thread asks for the lock while another thread of its unit holds it or waits for
/// it, it gets an error. If threads of a unit are to wait for each other, put the lock into a
/// `std::sync::Mutex`.
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
    /// The ticket of this unit's next or current stay in the queue. Changed only by the thread that
    /// has the unit's place.
    ticket: AtomicU64,
    left: Mutex<Option<Interrupted>>,
}

/// The lock is held while this guard lives. Dropping it, in any thread, gives the lock back.
#[derive(Debug)]
#[must_use = "a guard that is dropped at once gives the lock back at once"]
pub struct Guard<'l> {
    lock: &'l Lock,
    repair: Option<Repair>,
}

/// A broken lock that its holder repairs.
#[derive(Clone, Copy, Debug)]
struct Repair {
    lost: Unit,
    /// Whether the thread was already unwinding when it took the lock. If so, its panic did not
    /// interrupt the repair.
    unwinding: bool,
}

/// A lock that is held. It is given back once in all cases: by one of the functions here or, after
/// an error or a panic while its owner waits, when it is dropped.
struct Holding<'l> {
    lock: &'l Lock,
    /// The next holder must learn that a holder died.
    broken: bool,
    /// The call that got the lock has not ended: it has the unit's place.
    inside: bool,
}

impl Holding<'_> {
    /// Leaves it to a [`Guard`] to give the lock back.
    #[inline(always)]
    fn keep(self) {
        std::mem::forget(self);
    }

    /// Gives the lock back. Nothing was done under it.
    #[inline(always)]
    fn give(self) -> Result<()> {
        let (lock, broken, inside) = (self.lock, self.broken, self.inside);
        // From here on the machine is responsible; it is kept until it ends.
        std::mem::forget(self);
        lock.give(broken, inside)
    }

    /// Gives the lock back after completing what this unit has started under it.
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
        in_destructor(self.lock.team.fabric(), give);
    }
}

#[cold]
fn report(given: Result<()>) {
    if let Err(error) = given {
        tracing::warn!(%error, "a lock was given back with an error");
    }
}

impl Team {
    /// Creates a lock of this team. Collective: all members create their locks in the same order.
    /// Many locks cost little: only some of these calls (the 1st, the 65th, the 193rd, ...)
    /// allocate memory.
    ///
    /// # Errors
    /// Those of [`Team::allocate`]. After [`Error::TeamInUse`] this unit calls it again: else its
    /// next lock is not the one that the others make.
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
    /// Waits until all earlier callers have had the lock, and takes it. What they did and completed
    /// under the lock is visible.
    ///
    /// # Errors
    /// * [`Error::HolderLost`]: a holder died. The lock is not held.
    /// * [`Error::UnitLost`]: the lock's home died.
    /// * [`Error::AlreadyHeld`]: this unit holds the lock, or a call of this unit is under way and
    ///   another thread, or an operator or a handler that runs meanwhile, calls this.
    /// * The deadline: this unit keeps its place in the queue, and the next call continues from it,
    ///   even if the home has not answered in time. Until then, those behind it wait. Dropping the
    ///   lock leaves the queue. If the home does not answer during the drop either, this unit
    ///   leaves later: in a collective, a flush, a wait for a signal or a lock,
    ///   [`Pgas::progress`](crate::Pgas::progress), and when it puts or gets, by rank, consecutive
    ///   elements that are not mapped, or updates one by a single message
    ///   ([`Update`](crate::Update)). A wait of the fabric (for a receive, a handle) and an access
    ///   by a pointer do not continue it.
    /// * A predecessor that violates the fabric's protocol towards this unit: this unit also keeps
    ///   its place.
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

    /// Takes the lock if no unit holds it or waits for it. Errors as for [`Lock::acquire`].
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

    /// Takes the lock even if a holder died ([`Guard::lost_holder`]), after waiting as
    /// [`Lock::acquire`] does. The caller repairs what the lock guards. When it drops the guard,
    /// the lock is as good as new, unless a panic drops it. Any unit may do this.
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

    /// Returns the units that hold the lock or wait for it, in the order in which they get it, at
    /// some moment during the call. For people and tests.
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

    /// Frees the lock. Collective: when it returns, no member uses the lock any more. The memory of
    /// a lock that is only dropped remains with the team until the team ends. After an error,
    /// including [`Error::TeamInUse`], the lock has ended here, but others may still use it.
    pub fn free(self) -> Result<()> {
        self.leave_queue();
        let done = self.team.barrier();
        // All members count alike, whether or not the barrier failed.
        Table::free(&self.team, self.number);
        done
    }

    /// Returns the rank of its home.
    pub fn home(&self) -> u32 {
        self.words.home()
    }

    /// Returns the team to which it belongs.
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// Wraps the lock that this unit has, so that it is given back once.
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
        // ORDERING: Relaxed, here and below: having the unit's place orders it.
        Ticket(self.ticket.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn use_ticket(&self) {
        self.ticket.store(self.ticket().next().0, Ordering::Relaxed);
    }

    /// Returns the error for a caller that does not get the lock.
    #[cold]
    fn turn_away(&self, end: End) -> Error {
        let holding = match end {
            End::Held { broken } => Some(self.holding(broken)),
            _ => None,
        };
        let lost = self.lost_unit();
        let given = holding.map_or(Ok(()), Holding::give);
        match (lost, given) {
            (Ok(unit), Ok(())) => Error::HolderLost {
                unit: self.team.0.job.named(unit),
            },
            (Err(error), _) | (_, Err(error)) => error,
        }
    }
}

impl Guard<'_> {
    /// Returns the holder that died before this one; only after [`Lock::recover`].
    pub fn lost_holder(&self) -> Option<Unit> {
        self.repair.map(|repair| repair.lost)
    }

    /// Gives the lock back for a caller that could not read what it guards. If a holder had died,
    /// the lock is still broken.
    fn give_up(self) {
        let (lock, broken) = (self.lock, self.repair.is_some());
        std::mem::forget(self);
        report(lock.holding(broken).complete_and_give());
    }

    /// Gives the lock back. What this unit started without a handle is completed before; the next
    /// holder sees all of it. Dropping the guard does the same and logs the errors.
    ///
    /// # Errors
    /// The loss of a unit to which an operation went, or of the home; the lock is given back
    /// nevertheless if that is possible. The deadline, if the home or the next holder accepts no
    /// message in time: this unit completes the release later, in the operations that
    /// [`Lock::acquire`] names, and before the next call of this lock.
    pub fn release(self) -> Result<()> {
        let lock = self.lock;
        std::mem::forget(self);
        lock.holding(false).complete_and_give()
    }
}

impl Lock {
    /// Completes what this unit started under the lock, so that the next holder sees it.
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
    /// Completes what a call that ended early has left unfinished, and leaves the queue.
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
    /// Gives the lock back while the thread unwinds; broken, if the panic interrupted a repair. It
    /// first completes what was done under the lock, because the next holder must see all of it.
    #[cold]
    fn unwind(&self) {
        let broken = self.repair.is_some_and(|repair| !repair.unwinding);
        while_unwinding(|| report(self.lock.holding(broken).complete_and_give()));
    }
}
