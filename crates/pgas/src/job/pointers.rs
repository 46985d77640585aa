//! Resolves global pointers: through the segments that earlier pointers led to, or by attaching to another one.

use super::Job;
use crate::pointer::Origin;
use crate::{Error, GlobalPtr, Result, Unit, local};
use samite_fabric::Remote;
use samite_mem::SharedBytes;

impl Job {
    /// Runs `access` on the segment that a pointer names. Attaches to it when that was not done yet, and
    /// once more when the number has a new meaning since.
    #[inline]
    pub(crate) fn with_remote<T, R, E: Into<Error>>(
        &self,
        pointer: GlobalPtr<T>,
        bytes: u64,
        access: impl FnOnce(&Remote) -> Result<R, E>,
    ) -> Result<R> {
        let (unit, segment) = (pointer.unit().index(), pointer.segment() as usize);
        let attached = self.attached.borrow();
        let known = attached.get(unit).and_then(|of| of.get(segment));
        if let Some(Some(remote)) = known
            && remote.is_offered()
            && is_of(remote, pointer)
        {
            check(remote, pointer, bytes)?;
            return access(remote).map_err(|error| clarify(error, pointer));
        }
        drop(attached);
        self.let_go();
        let remote = self.attach(pointer)?;
        check(&remote, pointer, bytes)?;
        let result = access(&remote).map_err(|error| clarify(error, pointer));
        self.remember(pointer.unit(), pointer.segment(), Some(remote));
        let place = (pointer.unit(), pointer.segment());
        let mut found = self.found.borrow_mut();
        if !found.contains(&place) {
            found.push(place);
        }
        result
    }

    /// Lets go of the segments that pointers led to and that their owners no longer offer: they wait for that before
    /// a phase changes, and keep the memory and its number until then.
    #[inline]
    pub(crate) fn let_go(&self) {
        if !self.has_found_none() {
            self.let_go_of_found();
        }
    }

    #[cold]
    fn let_go_of_found(&self) {
        // An access that is under way has the table.
        let Ok(mut attached) = self.attached.try_borrow_mut() else {
            return;
        };
        let mut dropped = Vec::new();
        self.found.borrow_mut().retain(|(unit, segment)| {
            let of = attached.get_mut(unit.index());
            let place = of.and_then(|of| of.get_mut(*segment as usize));
            let is_kept =
                |place: &&mut Option<Remote>| place.as_ref().is_some_and(Remote::is_offered);
            match place {
                Some(place) if !is_kept(&place) => {
                    dropped.push(place.take());
                    false
                }
                place => place.is_some(),
            }
        });
        drop(attached);
    }

    /// Whether there is nothing that [`Job::let_go`] would look at.
    #[inline]
    pub(super) fn has_found_none(&self) -> bool {
        self.found.borrow().is_empty()
    }

    /// Keeps a segment for pointers into it.
    pub(crate) fn remember(&self, unit: Unit, segment: u16, remote: Option<Remote>) {
        let of = &mut self.attached.borrow_mut()[unit.index()];
        if of.len() <= segment as usize {
            of.resize_with(segment as usize + 1, || None);
        }
        of[segment as usize] = remote;
    }

    #[cold]
    fn attach<T>(&self, pointer: GlobalPtr<T>) -> Result<Remote> {
        if pointer.is_null() {
            return Err(bad(pointer));
        }
        let peer = self.peer(pointer.unit())?;
        let key = self.fabric.look_up(peer, pointer.segment().into())?;
        let remote = key.map(|key| self.fabric.attach(key)).transpose();
        let remote = remote.map_err(|error| clarify(error, pointer))?;
        let remote = remote.filter(|remote| is_of(remote, pointer));
        remote.ok_or_else(|| bad(pointer))
    }

    /// The bytes at a pointer, if they are mapped here.
    pub(crate) fn mapped<T>(
        &self,
        pointer: GlobalPtr<T>,
        bytes: u64,
    ) -> Result<Option<SharedBytes>> {
        self.with_remote(pointer, bytes, |remote| match remote.mapped() {
            // The pointer may be another member's.
            Some(all) if !all.contains(pointer.offset(), bytes) => Err(bad(pointer)),
            mapped => Ok(mapped.map(|all| all.slice(pointer.offset(), bytes))),
        })
    }
}

/// Whether a segment is the one that a pointer was made for: numbers are used again. What lies in a chunk of a
/// unit's own heap says so itself ([`check`]).
#[inline]
fn is_of<T>(remote: &Remote, pointer: GlobalPtr<T>) -> bool {
    let flags = pointer.flags();
    flags.origin() == Origin::Local || remote.key().generation as u8 == flags.generation()
}

/// Whether a piece of a unit's own heap is still that of the pointer's allocation. That is
/// looked at in debug builds only: it is one more access.
#[inline]
fn check<T>(remote: &Remote, pointer: GlobalPtr<T>, bytes: u64) -> Result<()> {
    let (key, offset) = (remote.key(), pointer.offset());
    let generation = pointer.flags().generation();
    if pointer.flags().origin() != Origin::Local {
        return Ok(());
    }
    let end = offset.saturating_add(bytes);
    if end > local::data_bytes(key.bytes) {
        return Err(bad(pointer));
    }
    if cfg!(debug_assertions) && bytes > 0 {
        for at in [offset, end - 1] {
            let mut found = [0];
            let got = remote.get(local::generation_at(key.bytes, at), &mut found);
            got.map_err(|error| clarify(error, pointer))?;
            if found[0] != generation {
                return Err(bad(pointer));
            }
        }
    }
    Ok(())
}

pub(crate) fn bad<T>(pointer: GlobalPtr<T>) -> Error {
    Error::BadPointer {
        pointer: pointer.to_string(),
    }
}

fn clarify<T>(error: impl Into<Error>, pointer: GlobalPtr<T>) -> Error {
    match error.into() {
        Error::Fabric(samite_fabric::Error::NoSuchSegment { .. }) => bad(pointer),
        other => other,
    }
}
