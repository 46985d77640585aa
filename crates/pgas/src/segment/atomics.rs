//! Atomic updates of elements; see [`crate::atomic`].

use super::{Segment, Shared};
use crate::Result;
use crate::atomic::{self, AtomicElem, Update, width};
use crate::check::AccessKind;
use samite_fabric::Atomic;

impl<T: AtomicElem> Segment<T, Shared> {
    /// Executes `element = element op value`. Returns the old element. One-sided, atomic, complete
    /// when it returns.
    ///
    /// # Errors
    /// [`crate::Error::NoSuchUpdate`] for bitwise updates of floats; out of range; a lost unit.
    #[inline]
    #[track_caller]
    pub fn fetch_op(&self, rank: u32, index: u64, update: Update, value: T) -> Result<T> {
        if let Some(op) = T::native(update) {
            if let Some(old) = self.apply_here(rank, index, op, (value.to_word(), 0)) {
                return Ok(old);
            }
            self.finish_for_others();
        }
        self.fetch_op_slowly(rank, index, update, value)
    }

    /// Executes an atomic on a word that is mapped here; `None` if it is not.
    #[inline(always)]
    fn apply_here(&self, rank: u32, index: u64, op: Atomic, values: (u64, u64)) -> Option<T> {
        let (window, offset) = (self.window(rank)?, self.offset(index));
        let old = op.try_apply(window, offset, width::<T>(), values)?;
        Some(T::from_word(old))
    }

    #[track_caller]
    fn fetch_op_slowly(&self, rank: u32, index: u64, update: Update, value: T) -> Result<T> {
        let remote = self.watched_part(rank, index, 1, AccessKind::Update)?;
        let offset = self.offset(index);
        let old = atomic::fetch_op(self.team().fabric(), remote, offset, update, value)
            .map_err(|error| self.say_one(error, rank, index))?;
        self.seen(rank, index)?;
        Ok(old)
    }

    /// Adds to an element. Returns the old one. Integers wrap.
    #[inline]
    #[track_caller]
    pub fn fetch_add(&self, rank: u32, index: u64, value: T) -> Result<T> {
        self.fetch_op(rank, index, Update::Sum, value)
    }

    /// Replaces an element. Returns the old one.
    #[inline]
    #[track_caller]
    pub fn swap(&self, rank: u32, index: u64, value: T) -> Result<T> {
        self.fetch_op(rank, index, Update::Replace, value)
    }

    /// Replaces an element if it is, bit by bit, `expected`. Returns the old one.
    #[inline]
    #[track_caller]
    pub fn compare_swap(&self, rank: u32, index: u64, expected: T, new: T) -> Result<T> {
        let values = (expected.to_word(), new.to_word());
        if size_of::<T>() >= 4 {
            let op = Atomic::CompareExchange;
            if let Some(old) = self.apply_here(rank, index, op, values) {
                return Ok(old);
            }
            self.finish_for_others();
        }
        self.compare_swap_slowly(rank, index, expected, new)
    }

    #[track_caller]
    fn compare_swap_slowly(&self, rank: u32, index: u64, expected: T, new: T) -> Result<T> {
        let remote = self.watched_part(rank, index, 1, AccessKind::Update)?;
        let offset = self.offset(index);
        let old = atomic::compare_swap(self.team().fabric(), remote, offset, expected, new)
            .map_err(|error| self.say_one(error, rank, index))?;
        self.seen(rank, index)?;
        Ok(old)
    }

    /// Loads an element atomically.
    #[inline]
    #[track_caller]
    pub fn load(&self, rank: u32, index: u64) -> Result<T> {
        let remote = self.watched_part(rank, index, 1, AccessKind::Load)?;
        let value = atomic::load(remote, self.offset(index))
            .map_err(|error| self.say_one(error, rank, index))?;
        self.seen(rank, index)?;
        Ok(value)
    }

    /// Updates consecutive elements, each atomically, in no particular order. One-sided; complete
    /// when it returns. Over messages, the updates that are native operations on a word are all in
    /// flight at once.
    #[track_caller]
    pub fn accumulate(&self, rank: u32, index: u64, values: &[T], update: Update) -> Result<()> {
        let remote = self.watched_part(rank, index, values.len(), AccessKind::Update)?;
        // Checked before anything is changed.
        self.check_range(rank, index, values.len() as u64)?;
        let offset = |at: usize| self.offset(index.saturating_add(at as u64));
        let native = T::native(update).filter(|_| remote.mapped().is_none());
        let Some(op) = native else {
            for (at, value) in values.iter().enumerate() {
                atomic::fetch_op(self.team().fabric(), remote, offset(at), update, *value)
                    .map_err(|error| self.say_one(error, rank, index.saturating_add(at as u64)))?;
            }
            return Ok(());
        };
        self.finish_for_others();
        let mut pending = Vec::with_capacity(values.len());
        for (at, value) in values.iter().enumerate() {
            let started = remote.atomic_nb(offset(at), op, width::<T>(), value.to_word(), 0);
            pending.push(started.map_err(|error| self.say(error, rank, index, values.len()))?);
        }
        samite_fabric::wait_all(pending)?;
        Ok(())
    }

    fn say_one(&self, error: crate::Error, rank: u32, index: u64) -> crate::Error {
        match error {
            crate::Error::Fabric(error) => self.say(error, rank, index, 1),
            other => other,
        }
    }
}
