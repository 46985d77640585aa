//! Put and get of consecutive elements.
//!
//! On one node, each is a bounds check and a memcpy (for 8 bytes, one store or load). Otherwise
//! they are messages, which the owner answers when it makes progress.

use super::{Segment, Shared, out_of_range};
use crate::check::AccessKind;
use crate::{Elem, Result};
use samite_fabric::{Error as Below, Handle, Scope, Scoped};
use std::marker::PhantomData;

/// Elements that were requested.
#[derive(Debug)]
#[must_use = "the elements are lost unless they are waited for"]
pub struct Fetch<T>(Source<T>);

#[derive(Debug)]
enum Source<T> {
    Here(Vec<T>),
    Coming(Handle<Vec<u8>>, PhantomData<fn() -> T>),
}

impl<T: Elem> Fetch<T> {
    /// Waits for the elements and returns them.
    pub fn wait(self) -> Result<Vec<T>> {
        match self.0 {
            Source::Here(elements) => Ok(elements),
            Source::Coming(handle, _) => {
                Ok(bytemuck::allocation::pod_collect_to_vec(&handle.wait()?))
            }
        }
    }

    /// Returns true if the elements are here; makes some progress.
    pub fn has_ended(&self) -> bool {
        match &self.0 {
            Source::Here(_) => true,
            Source::Coming(handle, _) => handle.has_ended(),
        }
    }
}

impl<T: Elem> Segment<T, Shared> {
    /// Copies `from` to the part of `rank`, beginning at `index`. One-sided. Locally and remotely
    /// complete when it returns.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`], [`crate::Error::NoSuchRank`]; a lost unit.
    #[inline]
    #[track_caller]
    pub fn put(&self, rank: u32, index: u64, from: &[T]) -> Result<()> {
        match self.window(rank) {
            Some(window) if window.try_write(self.offset(index), crate::bytes_of(from)) => Ok(()),
            _ => self.put_slowly(rank, index, from),
        }
    }

    #[track_caller]
    fn put_slowly(&self, rank: u32, index: u64, from: &[T]) -> Result<()> {
        self.finish_for_others();
        let remote = self.watched_part(rank, index, from.len(), AccessKind::Put)?;
        let offset = self.offset(index);
        remote
            .put(offset, crate::bytes_of(from))
            .map_err(|error| self.say(error, rank, index, from.len()))
    }

    /// Copies elements of the part of `rank`, beginning at `index`, to `into`. One-sided.
    #[inline]
    #[track_caller]
    pub fn get(&self, rank: u32, index: u64, into: &mut [T]) -> Result<()> {
        match self.window(rank) {
            Some(window) if window.try_read(self.offset(index), crate::bytes_of_mut(into)) => {
                Ok(())
            }
            _ => self.get_slowly(rank, index, into),
        }
    }

    #[track_caller]
    fn get_slowly(&self, rank: u32, index: u64, into: &mut [T]) -> Result<()> {
        let count = into.len();
        self.finish_for_others();
        let remote = self.watched_part(rank, index, count, AccessKind::Get)?;
        let offset = self.offset(index);
        remote
            .get(offset, crate::bytes_of_mut(into))
            .map_err(|error| self.say(error, rank, index, count))
    }

    /// Puts one element.
    #[inline]
    #[track_caller]
    pub fn put_value(&self, rank: u32, index: u64, value: T) -> Result<()> {
        self.put(rank, index, std::slice::from_ref(&value))
    }

    /// Gets one element.
    #[inline]
    #[track_caller]
    pub fn get_value(&self, rank: u32, index: u64) -> Result<T> {
        let mut value = T::zeroed();
        self.get(rank, index, std::slice::from_mut(&mut value))?;
        Ok(value)
    }

    /// Starts a [`Segment::put`] without waiting. `from` is copied (or sent) before it returns, so
    /// it is locally complete at once. The handle ends when the elements have arrived.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let pgas = samite_pgas::Pgas::new(&fabric)?;
    /// # let world = pgas.world();
    /// let cells = world.allocate::<f64>(100)?;
    /// let put = cells.put_nb(0, 0, &[1.0; 50])?;
    /// let get = cells.get_nb(0, 90, 10)?;
    /// // ... compute meanwhile
    /// put.wait()?; // remotely complete
    /// assert_eq!(get.wait()?, [0.0; 10]);
    /// # cells.free()?;
    /// # Ok::<(), samite_pgas::Error>(())
    /// ```
    #[inline]
    #[track_caller]
    pub fn put_nb(&self, rank: u32, index: u64, from: &[T]) -> Result<Handle<u64>> {
        match self.window(rank) {
            Some(window) if window.try_write(self.offset(index), crate::bytes_of(from)) => {
                Ok(Handle::ended())
            }
            _ => self.put_nb_slowly(rank, index, from, AccessKind::Put),
        }
    }

    #[track_caller]
    fn put_nb_slowly(
        &self,
        rank: u32,
        index: u64,
        from: &[T],
        kind: AccessKind,
    ) -> Result<Handle<u64>> {
        self.finish_for_others();
        let remote = self.watched_part(rank, index, from.len(), kind)?;
        remote
            .put_nb(self.offset(index), crate::bytes_of(from))
            .map_err(|error| self.say(error, rank, index, from.len()))
    }

    /// Starts to copy `count` elements of the part of `rank`; the handle returns them.
    ///
    /// # Errors
    /// As for [`Segment::put`], checked before memory for the elements is allocated;
    /// [`crate::Error::OutOfMemory`].
    #[track_caller]
    pub fn get_nb(&self, rank: u32, index: u64, count: u64) -> Result<Fetch<T>> {
        self.check_range(rank, index, count)?;
        let remote = self.watched_part(rank, index, count as usize, AccessKind::Get)?;
        let bytes = crate::bytes_for::<T>(count)?;
        let offset = self.offset(index);
        let wrong = |error| self.say(error, rank, index, count as usize);
        if bytes == 0 || remote.mapped().is_some() {
            let mut elements = crate::zeros::<T>(count)?;
            let into = crate::bytes_of_mut(&mut elements);
            remote.get(offset, into).map_err(wrong)?;
            return Ok(Fetch(Source::Here(elements)));
        }
        self.finish_for_others();
        let handle = remote.get_nb(offset, bytes).map_err(wrong)?;
        Ok(Fetch(Source::Coming(handle, PhantomData)))
    }

    /// Starts a [`Segment::get`] without waiting, inside a
    /// [`Fabric::scope`](samite_fabric::Fabric::scope). The scope does not end before the elements
    /// have arrived.
    #[track_caller]
    pub fn get_in<'s, 'env>(
        &self,
        scope: &'s Scope<'_, 'env, '_>,
        rank: u32,
        index: u64,
        into: &'env mut [T],
    ) -> Result<Scoped<'s, u64>> {
        let count = into.len();
        let remote = self.watched_part(rank, index, count, AccessKind::Get)?;
        let started = scope.get(remote, self.offset(index), crate::bytes_of_mut(into));
        started.map_err(|error| self.say(error, rank, index, count))
    }

    /// Starts a put like [`Segment::put_nb`], but without a handle; [`crate::Pgas::flush`] waits
    /// for its end.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let pgas = samite_pgas::Pgas::new(&fabric)?;
    /// # let world = pgas.world();
    /// let cells = world.allocate::<f64>(100)?;
    /// for index in 0..100 {
    ///     cells.put_implicit(0, index, &[index as f64])?;
    /// }
    /// pgas.flush_all()?; // one wait for all of them
    /// # cells.free()?;
    /// # Ok::<(), samite_pgas::Error>(())
    /// ```
    #[inline]
    #[track_caller]
    pub fn put_implicit(&self, rank: u32, index: u64, from: &[T]) -> Result<()> {
        if let Some(window) = self.window(rank)
            && window.try_write(self.offset(index), crate::bytes_of(from))
        {
            return Ok(());
        }
        let handle = self.put_nb_slowly(rank, index, from, AccessKind::ImplicitPut)?;
        let unit = self.team().unit(rank)?;
        self.team().0.job.leave_to_flush(unit, handle);
        Ok(())
    }

    /// Copies elements of this unit's own part.
    #[track_caller]
    pub fn read_local(&self, index: u64, into: &mut [T]) -> Result<()> {
        self.get(self.team().rank(), index, into)
    }

    /// Copies elements to this unit's own part.
    #[track_caller]
    pub fn write_local(&self, index: u64, from: &[T]) -> Result<()> {
        self.put(self.team().rank(), index, from)
    }

    /// Translates an error of the fabric, which counts bytes, to elements.
    #[cold]
    pub(super) fn say(&self, error: Below, rank: u32, index: u64, count: usize) -> crate::Error {
        match (error, self.team().unit(rank), self.len_of(rank)) {
            // Elements are aligned: a misaligned offset means that it was too large to compute.
            (Below::OutOfRange { .. } | Below::Misaligned(_), Ok(unit), Ok(len)) => {
                out_of_range(self.team(), unit, index, count as u64, len)
            }
            (error, ..) => error.into(),
        }
    }
}
