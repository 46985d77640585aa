//! A lock together with what it guards.

use super::{Guard, Lock};
use crate::{Elem, Result, Segment, Team, Unit};
use std::ops::{Deref, DerefMut};

/// A value in global memory that only the holder of its lock reads and writes. It lies at the lock's home.
///
/// ```
/// # use samite_fabric::{Config, Fabric, Identity};
/// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
/// let pgas = samite_pgas::Pgas::new(&fabric)?;
/// let total = pgas.world().global_lock([0.0, 0.0])?;
/// total.acquire()?[1] += 2.5;
/// assert_eq!(*total.acquire()?, [0.0, 2.5]);
/// # Ok::<(), samite_pgas::Error>(())
/// ```
#[derive(Debug)]
pub struct GlobalLock<'f, T: Elem> {
    lock: Lock<'f>,
    value: Segment<'f, T>,
}

/// The value, as long as the lock is held: a copy, which goes back when the guard is dropped and the copy
/// was (mutably) used. A panic drops the guard and puts nothing back: the value is as it was before.
#[derive(Debug)]
#[must_use = "a guard that is dropped at once gives the lock back at once"]
pub struct GlobalGuard<'l, 'f, T: Elem> {
    value: T,
    changed: bool,
    /// Whether its thread was unwinding already when it took the lock.
    unwinding: bool,
    home: &'l GlobalLock<'f, T>,
    /// Dropped last of all.
    guard: Option<Guard<'l, 'f>>,
}

impl<'f> Team<'f> {
    /// A value with its lock. Collective, with the same value.
    pub fn global_lock<T: Elem>(&self, value: T) -> Result<GlobalLock<'f, T>> {
        let lock = self.lock()?;
        let segment = self.allocate(1)?;
        if lock.words.home() == self.rank() {
            segment.put_value(self.rank(), 0, value)?;
        }
        self.barrier()?;
        Ok(GlobalLock {
            lock,
            value: segment,
        })
    }
}

impl<'f, T: Elem> GlobalLock<'f, T> {
    /// As [`Lock::acquire`].
    pub fn acquire(&self) -> Result<GlobalGuard<'_, 'f, T>> {
        self.with(self.lock.acquire()?)
    }

    /// As [`Lock::try_acquire`].
    pub fn try_acquire(&self) -> Result<Option<GlobalGuard<'_, 'f, T>>> {
        let guard = self.lock.try_acquire()?;
        guard.map(|guard| self.with(guard)).transpose()
    }

    /// As [`Lock::recover`]. The value is what it was before the holder that died, or what that one put
    /// back: never half of it, unless the holder died in the middle of putting it back.
    pub fn recover(&self) -> Result<GlobalGuard<'_, 'f, T>> {
        self.with(self.lock.recover()?)
    }

    /// The lock.
    pub fn lock(&self) -> &Lock<'f> {
        &self.lock
    }

    /// Ends it. Collective.
    pub fn free(self) -> Result<()> {
        self.lock.free()?;
        self.value.release();
        Ok(())
    }

    fn with<'l>(&'l self, guard: Guard<'l, 'f>) -> Result<GlobalGuard<'l, 'f, T>> {
        let value = match self.value.get_value(self.lock.words.home(), 0) {
            Ok(value) => value,
            Err(error) => {
                guard.give_up();
                return Err(error);
            }
        };
        Ok(GlobalGuard {
            value,
            changed: false,
            unwinding: std::thread::panicking(),
            home: self,
            guard: Some(guard),
        })
    }
}

impl<T: Elem> GlobalGuard<'_, '_, T> {
    /// As [`Guard::lost_holder`].
    pub fn lost_holder(&self) -> Option<Unit> {
        self.guard.as_ref().and_then(Guard::lost_holder)
    }

    /// Puts the value back and gives the lock back. Dropping the guard does the same, and logs the errors.
    pub fn release(mut self) -> Result<()> {
        let put = self.put_back();
        let given = self.guard.take().map_or(Ok(()), Guard::release);
        put.and(given)
    }

    fn put_back(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.changed) {
            return Ok(());
        }
        let home = self.home.lock.words.home();
        self.home.value.put_value(home, 0, self.value)
    }
}

impl<T: Elem> Deref for GlobalGuard<'_, '_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Elem> DerefMut for GlobalGuard<'_, '_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.changed = true;
        &mut self.value
    }
}

impl<T: Elem> Drop for GlobalGuard<'_, '_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding {
            // Perhaps half changed.
            return;
        }
        if let Err(error) = self.put_back() {
            tracing::warn!(%error, "what a lock guards could not be put back");
        }
    }
}
