//! A lock together with the value that it guards.

use super::{Guard, Lock};
use crate::unfinished::while_unwinding;
use crate::whole_words::{Words, from_words, to_words};
use crate::{Elem, Result, Segment, Team, Unit};
use smallvec::smallvec;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// A value in global memory that only the holder of its lock reads and writes. It is stored at the
/// lock's home.
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
pub struct GlobalLock<T: Elem> {
    lock: Lock,
    /// The index of the valid copy, followed by two copies of the value. A new value becomes valid
    /// once all of it has arrived. The holder of the lock gets both copies, in one message if they
    /// are not mapped.
    copies: Segment<u64>,
    kind: PhantomData<T>,
}

/// The value, while the lock is held: a copy, which is put back when the guard is dropped if it was
/// mutably borrowed. If a panic drops the guard, nothing is put back: the value remains as it was.
#[derive(Debug)]
#[must_use = "a guard that is dropped at once gives the lock back at once"]
pub struct GlobalGuard<'l, T: Elem> {
    value: T,
    /// The index of the copy from which it was read.
    valid: u64,
    changed: bool,
    /// Whether its thread was already unwinding when it took the lock.
    unwinding: bool,
    home: &'l GlobalLock<T>,
    /// Dropped last.
    guard: Option<Guard<'l>>,
}

impl Team {
    /// Creates a value with its lock. Collective, with the same value.
    pub fn global_lock<T: Elem>(&self, value: T) -> Result<GlobalLock<T>> {
        let _turn = self.0.long_turn()?;
        let lock = self.lock()?;
        let copies = self.allocate(1 + 2 * words::<T>())?;
        if lock.words.home() == self.rank() {
            copies.write_local(first_word::<T>(0), &to_words(&value))?;
        }
        self.barrier()?;
        Ok(GlobalLock {
            lock,
            copies,
            kind: PhantomData,
        })
    }
}

/// Returns the number of words of a value.
fn words<T>() -> u64 {
    size_of::<T>().div_ceil(8) as u64
}

/// Returns the first word of a copy.
fn first_word<T>(copy: u64) -> u64 {
    1 + copy * words::<T>()
}

impl<T: Elem> GlobalLock<T> {
    /// Takes the lock and reads the value, like [`Lock::acquire`].
    pub fn acquire(&self) -> Result<GlobalGuard<'_, T>> {
        self.with(self.lock.acquire()?)
    }

    /// Takes the lock if it is free and reads the value, like [`Lock::try_acquire`].
    pub fn try_acquire(&self) -> Result<Option<GlobalGuard<'_, T>>> {
        let guard = self.lock.try_acquire()?;
        guard.map(|guard| self.with(guard)).transpose()
    }

    /// Takes the lock even if a holder died, like [`Lock::recover`]. The value is the one before
    /// the holder that died, or the one that it put back: never half of it.
    pub fn recover(&self) -> Result<GlobalGuard<'_, T>> {
        self.with(self.lock.recover()?)
    }

    /// Returns the lock.
    pub fn lock(&self) -> &Lock {
        &self.lock
    }

    /// Frees the lock and the value. Collective.
    pub fn free(self) -> Result<()> {
        self.lock.free()?;
        self.copies.release();
        Ok(())
    }

    fn with<'l>(&'l self, guard: Guard<'l>) -> Result<GlobalGuard<'l, T>> {
        let mut all: Words = smallvec![0; 1 + 2 * words::<T>() as usize];
        if let Err(error) = self.copies.get(self.lock.words.home(), 0, &mut all) {
            guard.give_up();
            return Err(error);
        }
        let valid = all[0] & 1;
        Ok(GlobalGuard {
            value: from_words(&all[first_word::<T>(valid) as usize..]),
            valid,
            changed: false,
            unwinding: std::thread::panicking(),
            home: self,
            guard: Some(guard),
        })
    }
}

impl<T: Elem> GlobalGuard<'_, T> {
    /// Returns the holder that died before; see [`Guard::lost_holder`].
    pub fn lost_holder(&self) -> Option<Unit> {
        self.guard.as_ref().and_then(Guard::lost_holder)
    }

    /// Puts the value back and gives the lock back. Dropping the guard does the same and logs the
    /// errors.
    ///
    /// # Errors
    /// Those of [`Guard::release`]. The value is then either all of the new one or all of the old
    /// one.
    pub fn release(mut self) -> Result<()> {
        let put = self.put_back();
        let given = self.guard.take().map_or(Ok(()), Guard::release);
        put.and(given)
    }

    fn put_back(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.changed) {
            return Ok(());
        }
        let (home, copies) = (self.home.lock.words.home(), &self.home.copies);
        let other = 1 - self.valid;
        let put = copies.put_nb(home, first_word::<T>(other), &to_words(&self.value))?;
        // The home applies it after the copy.
        copies.swap(home, 0, other)?;
        put.wait()?;
        Ok(())
    }
}

impl<T: Elem> Deref for GlobalGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Elem> DerefMut for GlobalGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.changed = true;
        &mut self.value
    }
}

impl<T: Elem> Drop for GlobalGuard<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding {
            // The value may be half changed.
            return;
        }
        let unwinding = self.unwinding;
        let mut put_back = || {
            if let Err(error) = self.put_back() {
                tracing::warn!(%error, "what a lock guards could not be put back");
            }
        };
        match unwinding {
            true => while_unwinding(put_back),
            false => put_back(),
        }
    }
}
