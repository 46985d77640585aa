//! The phases of a segment: who may do what with it, known to the compiler.
//!
//! ```text
//!   Shared     everybody puts, gets, updates; nobody has a reference to the memory
//!   Local      each member has its own part as `&mut [T]`; nobody reaches the others' parts
//!   ReadOnly   everybody gets; on a node everybody has `&[T]` of every part
//! ```
//! A phase is changed by a collective call that consumes the segment, so the compiler sees that no access
//! of the old phase comes after it. Below, a gate in shared memory counts who is attached to a part and
//! turns only at zero (`samite_mem::gate`): a member that is attached in another way, or a program that
//! breaks the rules, ends the change with an error and never with a reference to memory that others write.
//!
//! The order of a change: all detach; a barrier; each owner turns its gate; all agree; all attach anew. It
//! also orders memory: what was written in one phase is there in the next, at all members.
//!
//! Registered memory stays `Shared`: the kernel copies into it without asking a gate.

use super::leave::Kept;
use super::{Parts, Segment};
use crate::{Elem, Error, Result};
use samite_fabric::{Gated, Owned, Remote};
use samite_mem::SharedBytes;
use std::marker::PhantomData;

/// A phase. Sealed: [`Shared`], [`Local`], [`ReadOnly`].
pub trait Phase: sealed::Phase {}
impl<P: sealed::Phase> Phase for P {}

pub(super) mod sealed {
    pub trait Phase {
        type State<'f>: std::fmt::Debug;

        /// Nobody uses the part any more.
        fn release(_: &Self::State<'_>) {}
    }
}

/// Everybody may put, get and use atomics, and nobody has a reference to the memory.
#[derive(Debug)]
pub enum Shared {}
/// Each member has its own part for itself.
#[derive(Debug)]
pub enum Local {}
/// Everybody reads, nobody writes.
#[derive(Debug)]
pub enum ReadOnly {}

impl sealed::Phase for Shared {
    type State<'f> = Open<'f>;

    fn release(state: &Open<'_>) {
        state.own.nobody_uses_it();
    }
}
impl sealed::Phase for Local {
    type State<'f> = Owned<'f>;
}
impl sealed::Phase for ReadOnly {
    type State<'f> = Reading<'f>;

    fn release(state: &Reading<'_>) {
        state.own.nobody_uses_it();
    }
}

/// This unit's part, as the fabric has it.
#[derive(Debug)]
pub(super) enum Own<'f> {
    Gated(Gated<'f>),
    Registered(samite_fabric::Segment<'f>),
}

impl<'f> Own<'f> {
    pub(super) fn key(&self) -> samite_fabric::SegmentKey {
        match self {
            Own::Gated(own) => own.key(),
            Own::Registered(own) => own.key(),
        }
    }

    fn gated(self) -> Result<Gated<'f>> {
        match self {
            Own::Gated(own) => Ok(own),
            Own::Registered(_) => Err(Error::AlwaysShared),
        }
    }
}

/// What a member has of a segment while it is shared.
#[derive(Debug)]
pub struct Open<'f> {
    /// This unit's own bytes.
    pub(crate) bytes: SharedBytes,
    /// By rank.
    pub(crate) remotes: Vec<Remote<'f>>,
    /// By rank: the elements, where they are mapped here and the checking mode does not look. The memory
    /// stays as long as somebody has them, so an access is a check of its range and nothing else.
    pub(super) windows: Vec<SharedBytes>,
    /// Dropped last, when this unit itself is not inside any more.
    pub(crate) own: Kept<'f>,
}

/// What a member has of a segment while it is read.
#[derive(Debug)]
pub struct Reading<'f> {
    /// By rank.
    remotes: Vec<Remote<'f>>,
    /// Dropped last.
    own: Kept<'f>,
}

impl<'f> Parts<'f> {
    /// What is left behind when it is dropped.
    fn keep(&self, own: Own<'f>) -> Kept<'f> {
        Kept::new(own, &self.team.0.job, &self.team.0.peers)
    }

    fn agree<T>(&self, what: Result<T, samite_fabric::Error>) -> Result<T> {
        let mine = [u8::from(what.is_ok())];
        let mut all = vec![0; self.team.size() as usize];
        self.team.all_gather(&mine[..], &mut all[..])?;
        let value = what?;
        match all.iter().position(|fine| *fine == 0) {
            None => Ok(value),
            Some(rank) => Err(Error::NoPhase(self.team.unit(rank as u32)?)),
        }
    }
}

fn attach<'f>(parts: &Parts<'f>) -> Result<Vec<Remote<'f>>, samite_fabric::Error> {
    let fabric = parts.team.fabric();
    parts.keys.iter().map(|key| fabric.attach(*key)).collect()
}

impl<'f, T: Elem> Segment<'f, T, Shared> {
    /// Attaches to all parts. Collective; all parts are offered.
    pub(super) fn share(parts: Parts<'f>, own: Own<'f>) -> Result<Self> {
        let remotes = parts.agree(attach(&parts))?;
        for (remote, unit) in remotes.iter().zip(parts.team.group()) {
            let number = remote.key().segment as u16;
            parts
                .team
                .0
                .job
                .remember(unit, number, Some(remote.clone()));
        }
        let bytes = match &own {
            Own::Gated(own) => own.bytes()?,
            Own::Registered(own) => own.bytes().clone(),
        };
        let window = |(remote, count): (&Remote<'f>, &u64)| {
            let mapped = remote.mapped().filter(|_| !parts.checked);
            let elements = mapped.map(|all| all.slice(0, count * size_of::<T>() as u64));
            elements.unwrap_or_else(|| bytes.slice(0, 0))
        };
        let windows = remotes.iter().zip(&parts.counts).map(window).collect();
        let parts_own = parts.keep(own);
        Ok(Segment {
            parts,
            state: Open {
                bytes,
                remotes,
                windows,
                own: parts_own,
            },
            kind: PhantomData,
        })
    }

    /// What this unit has of it, without its team: for what a team keeps.
    pub(crate) fn into_open(self) -> Open<'f> {
        self.state
    }

    /// Detaches from all parts, with everybody: behind the barrier nobody uses them. Nobody attaches until
    /// the gate has turned.
    fn detach(self) -> Result<(Parts<'f>, Gated<'f>)> {
        let Segment { parts, state, .. } = self;
        let Open {
            bytes,
            remotes,
            windows,
            own,
        } = state;
        let own = own.take().ok_or(Error::AlwaysShared)?.gated()?;
        // What was put without a handle belongs to the phase that ends.
        parts.team.0.job.flush(None)?;
        parts.forget_remotes();
        drop((bytes, remotes, windows));
        parts.team.barrier()?;
        own.shut();
        Ok((parts, own))
    }

    /// Each member gets its own part as `&mut [T]`. Collective; what was put before is there.
    ///
    /// # Errors
    /// [`Error::AlwaysShared`] for registered memory. A unit that is attached otherwise: then the change
    /// fails at all members, and the segment is freed.
    pub fn into_local(self) -> Result<Segment<'f, T, Local>> {
        let (parts, own) = self.detach()?;
        let owned = parts.agree(own.own().map_err(|refused| refused.1))?;
        Ok(Segment {
            parts,
            state: owned,
            kind: PhantomData,
        })
    }

    /// Everybody may only read. Collective. Errors as [`Segment::into_local`].
    pub fn into_read_only(self) -> Result<Segment<'f, T, ReadOnly>> {
        let (parts, mut own) = self.detach()?;
        parts.agree(own.turn(true))?;
        Segment::read(parts, own)
    }
}

impl<'f, T: Elem> Segment<'f, T, Local> {
    /// This unit's part.
    pub fn as_slice(&self) -> &[T] {
        &self.state.memory().as_slice()[..self.len() as usize]
    }

    /// This unit's part, to be changed. Nobody else reaches it in this phase.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        let len = self.len() as usize;
        &mut self.state.memory_mut().as_mut_slice()[..len]
    }

    /// Everybody may put and get again. Collective; what was written is visible to all.
    pub fn into_shared(self) -> Result<Segment<'f, T, Shared>> {
        let own = self.parts.agree(self.state.give(false))?;
        Segment::share(self.parts, Own::Gated(own))
    }

    /// Everybody may read. Collective; what was written is visible to all.
    pub fn into_read_only(self) -> Result<Segment<'f, T, ReadOnly>> {
        let own = self.parts.agree(self.state.give(true))?;
        Segment::read(self.parts, own)
    }
}

impl<'f, T: Elem> Segment<'f, T, ReadOnly> {
    fn read(parts: Parts<'f>, own: Gated<'f>) -> Result<Self> {
        let remotes = parts.agree(attach(&parts))?;
        let own = parts.keep(Own::Gated(own));
        Ok(Segment {
            parts,
            state: Reading { own, remotes },
            kind: PhantomData,
        })
    }

    /// The part of a member, in place; `None` where its memory is not mapped here ([`Segment::get`] then).
    pub fn slice(&self, rank: u32) -> Result<Option<&[T]>> {
        let len = self.len_of(rank)? as usize;
        let readable = self.state.remotes[rank as usize].readable();
        Ok(readable.map(|bytes| &bytes.as_slice()[..len]))
    }

    /// This unit's own part.
    pub fn as_slice(&self) -> &[T] {
        match self.slice(self.team().rank()) {
            Ok(Some(own)) => own,
            // Its own memory is mapped everywhere.
            _ => &[],
        }
    }

    /// Copies elements of the part of `rank`, from the element `index` on, to `into`. One-sided.
    pub fn get(&self, rank: u32, index: u64, into: &mut [T]) -> Result<()> {
        let (len, count) = (self.len_of(rank)?, into.len() as u64);
        if index.checked_add(count).is_none_or(|end| end > len) {
            return Err(super::out_of_range(
                self.team().unit(rank)?,
                index,
                count,
                len,
            ));
        }
        let offset = index * size_of::<T>() as u64;
        let remote = &self.state.remotes[rank as usize];
        Ok(remote.get(offset, crate::bytes_of_mut(into))?)
    }

    fn stop_reading(self) -> Result<(Parts<'f>, Gated<'f>)> {
        let Segment { parts, state, .. } = self;
        drop(state.remotes);
        parts.forget_remotes();
        parts.team.barrier()?;
        let own = state.own.take().ok_or(Error::AlwaysShared)?.gated()?;
        own.shut();
        Ok((parts, own))
    }

    /// Everybody may put and get again. Collective.
    pub fn into_shared(self) -> Result<Segment<'f, T, Shared>> {
        let (parts, mut own) = self.stop_reading()?;
        parts.agree(own.turn(false))?;
        Segment::share(parts, Own::Gated(own))
    }

    /// Each member gets its own part as `&mut [T]`. Collective. Errors as for the shared phase.
    pub fn into_local(self) -> Result<Segment<'f, T, Local>> {
        let (parts, own) = self.stop_reading()?;
        let owned = parts.agree(own.own().map_err(|refused| refused.1))?;
        Ok(Segment {
            parts,
            state: owned,
            kind: PhantomData,
        })
    }
}
