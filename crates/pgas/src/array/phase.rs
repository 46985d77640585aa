//! What each phase of its memory allows for an array, and how an array changes its phase.
//!
//! | | own elements | elements of all |
//! |---|---|---|
//! | [`Shared`] | copied | got and put |
//! | [`Local`] | in place | |
//! | [`ReadOnly`] | in place, not changed | got; on a node in place |

use super::Array;
use crate::{Elem, Error, Local, Phase, ReadOnly, Result, Segment, Shared, Team, Unturned};
use samite_fabric::{Scope, Scoped};

/// A phase in which a unit may read its own elements.
pub trait Own: Phase + Sized {
    /// Copies own elements into `into`.
    #[doc(hidden)]
    fn read<T: Elem>(segment: &Segment<T, Self>, offset: u64, into: &mut [T]) -> Result<()>;
    /// Returns the elements in place, if no unit writes to them.
    #[doc(hidden)]
    fn elements<T: Elem>(segment: &Segment<T, Self>) -> Option<&[T]>;
    /// Runs `work` once all members have finished their earlier accesses, and returns once all have
    /// finished their `work`. An error of `work` also ends the call at the others.
    #[doc(hidden)]
    fn settled(team: &Team, work: impl FnOnce() -> Result<()>) -> Result<()>;
    /// Ends the next [`Own::settled`] at the others, because this member will not join it. Returns
    /// the error for its caller.
    #[doc(hidden)]
    fn refuse(_: &Team, error: Error) -> Error {
        error
    }
}

/// A phase in which a unit may change its own elements.
pub trait OwnMut: Own {
    /// Copies `from` to own elements.
    #[doc(hidden)]
    fn write<T: Elem>(segment: &mut Segment<T, Self>, offset: u64, from: &[T]) -> Result<()>;
    /// Returns the elements in place, if no other unit can access them.
    #[doc(hidden)]
    fn elements_mut<T: Elem>(segment: &mut Segment<T, Self>) -> Option<&mut [T]>;
}

/// A phase in which every member may get the elements of all.
pub trait Reach: Own {
    /// Gets elements.
    #[doc(hidden)]
    fn get<T: Elem>(
        segment: &Segment<T, Self>,
        rank: u32,
        index: u64,
        into: &mut [T],
    ) -> Result<()>;
    /// Starts to get elements; `None` if they are already there.
    #[doc(hidden)]
    fn start_get<'s, 'env, T: Elem>(
        segment: &Segment<T, Self>,
        scope: &'s Scope<'_, 'env, '_>,
        rank: u32,
        index: u64,
        into: &'env mut [T],
    ) -> Result<Option<Scoped<'s, u64>>>;
}

impl Own for Shared {
    fn read<T: Elem>(segment: &Segment<T>, offset: u64, into: &mut [T]) -> Result<()> {
        segment.read_local(offset, into)
    }

    fn elements<T: Elem>(_: &Segment<T>) -> Option<&[T]> {
        None
    }

    fn settled(team: &Team, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let _turn = team.0.long_turn()?;
        team.barrier()?;
        work().map_err(|error| team.0.refuse_next(error))?;
        team.barrier()
    }

    fn refuse(team: &Team, error: Error) -> Error {
        team.0.refuse_next(error)
    }
}

impl OwnMut for Shared {
    fn write<T: Elem>(segment: &mut Segment<T>, offset: u64, from: &[T]) -> Result<()> {
        segment.write_local(offset, from)
    }

    fn elements_mut<T: Elem>(_: &mut Segment<T>) -> Option<&mut [T]> {
        None
    }
}

impl Reach for Shared {
    #[inline]
    fn get<T: Elem>(segment: &Segment<T>, rank: u32, index: u64, into: &mut [T]) -> Result<()> {
        segment.get(rank, index, into)
    }

    fn start_get<'s, 'env, T: Elem>(
        segment: &Segment<T>,
        scope: &'s Scope<'_, 'env, '_>,
        rank: u32,
        index: u64,
        into: &'env mut [T],
    ) -> Result<Option<Scoped<'s, u64>>> {
        let handle = segment.get_in(scope, rank, index, into)?;
        Ok(Some(handle).filter(|handle| !handle.is_complete()))
    }
}

impl Own for Local {
    fn read<T: Elem>(segment: &Segment<T, Local>, offset: u64, into: &mut [T]) -> Result<()> {
        check(segment, offset, into.len())?;
        into.copy_from_slice(&segment.as_slice()[offset as usize..][..into.len()]);
        Ok(())
    }

    fn elements<T: Elem>(segment: &Segment<T, Local>) -> Option<&[T]> {
        Some(segment.as_slice())
    }

    /// Nothing to do: the changes of phase before and after it synchronise.
    fn settled(_: &Team, work: impl FnOnce() -> Result<()>) -> Result<()> {
        work()
    }
}

impl OwnMut for Local {
    fn write<T: Elem>(segment: &mut Segment<T, Local>, offset: u64, from: &[T]) -> Result<()> {
        check(segment, offset, from.len())?;
        segment.as_mut_slice()[offset as usize..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn elements_mut<T: Elem>(segment: &mut Segment<T, Local>) -> Option<&mut [T]> {
        Some(segment.as_mut_slice())
    }
}

impl Own for ReadOnly {
    fn read<T: Elem>(segment: &Segment<T, ReadOnly>, offset: u64, into: &mut [T]) -> Result<()> {
        segment.get(segment.team().rank(), offset, into)
    }

    fn elements<T: Elem>(segment: &Segment<T, ReadOnly>) -> Option<&[T]> {
        segment.slice(segment.team().rank()).ok().flatten()
    }

    /// Nothing to do: no elements change.
    fn settled(_: &Team, work: impl FnOnce() -> Result<()>) -> Result<()> {
        work()
    }
}

impl Reach for ReadOnly {
    #[inline]
    fn get<T: Elem>(
        segment: &Segment<T, ReadOnly>,
        rank: u32,
        index: u64,
        into: &mut [T],
    ) -> Result<()> {
        segment.get(rank, index, into)
    }

    fn start_get<'s, 'env, T: Elem>(
        segment: &Segment<T, ReadOnly>,
        _: &'s Scope<'_, 'env, '_>,
        rank: u32,
        index: u64,
        into: &'env mut [T],
    ) -> Result<Option<Scoped<'s, u64>>> {
        segment.get(rank, index, into)?;
        Ok(None)
    }
}

/// Checks that elements are inside this unit's part.
fn check<T: Elem>(segment: &Segment<T, Local>, first: u64, count: usize) -> Result<()> {
    let (len, end) = (segment.len(), first.saturating_add(count as u64));
    if end <= len {
        return Ok(());
    }
    let unit = segment.team().unit(segment.team().rank())?;
    Err(Error::OutOfRange {
        unit: segment.team().0.job.named(unit),
        first,
        end,
        len,
    })
}

impl<T: Elem, const D: usize, P: Phase> Array<T, D, P> {
    /// Changes the phase of the array. Collective. [`Segment::turn`] describes the errors and how
    /// the array is returned after one.
    pub fn turn<Q: Phase>(self) -> Result<Array<T, D, Q>, Unturned<Self>> {
        let Array {
            segment,
            pattern,
            exchange,
        } = self;
        match segment.turn() {
            Ok(segment) => Ok(Array {
                segment,
                pattern,
                exchange,
            }),
            Err(unturned) => Err(unturned.map(|segment| Array {
                segment,
                pattern,
                exchange,
            })),
        }
    }

    /// Lets all members put and get. Collective; see [`Segment::into_shared`].
    pub fn into_shared(self) -> Result<Array<T, D>> {
        Ok(self.turn()?)
    }

    /// Gives each member its own elements in place. Collective; see [`Segment::into_local`].
    pub fn into_local(self) -> Result<Array<T, D, Local>> {
        Ok(self.turn()?)
    }

    /// Makes the array read only for all members. Collective; see [`Segment::into_read_only`].
    pub fn into_read_only(self) -> Result<Array<T, D, ReadOnly>> {
        Ok(self.turn()?)
    }
}

impl<T: Elem, const D: usize> Array<T, D, Local> {
    /// Returns this unit's memory: elements and ghost cells, in the order of [`Array::local_runs`].
    /// Without tiles it is row-major, with the shape [`Array::stored_extents`].
    pub fn as_slice(&self) -> &[T] {
        &self.segment.as_slice()[..self.stored_len() as usize]
    }

    /// Returns this unit's memory, mutable.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        let stored = self.stored_len() as usize;
        &mut self.segment.as_mut_slice()[..stored]
    }
}

impl<T: Elem, const D: usize> Array<T, D, ReadOnly> {
    /// Returns a member's memory in place. [`Pattern::local_runs`](super::Pattern::local_runs) says
    /// which element is where. `None` if it is not mapped here; use [`Array::get`] then.
    pub fn slice(&self, rank: u32) -> Result<Option<&[T]>> {
        let whole = self.segment.slice(rank)?;
        Ok(whole.map(|whole| &whole[..self.pattern.stored_len(rank) as usize]))
    }
}
