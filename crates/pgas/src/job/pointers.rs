//! Resolves global pointers: through segments that are already attached, or by attaching to another
//! one.
//!
//! Each thread has its own table, which it reads without writing anything that other threads use. A
//! segment that is not in it is looked up in the table of all threads, or attached. A remote is a
//! lease, so it is removed from all tables at once: when this unit drops its segment, or when the
//! owner withdraws it.

use super::Job;
use crate::pointer::Origin;
use crate::{Error, GlobalPtr, Result, Unit, local};
use samite_fabric::Remote;
use samite_mem::{Biased, SharedBytes};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use thread_local::ThreadLocal;

/// What a pointer names: a unit and the number of a segment there.
type SegmentName = (Unit, u16);

/// See the module documentation. The lock of `all` is taken before that of a thread.
#[derive(Debug, Default)]
pub(super) struct Attached {
    of_threads: ThreadLocal<Biased<OfThread>>,
    all: Biased<All>,
    /// Set once a segment was attached for a pointer.
    has_found: AtomicBool,
}

/// By unit, then by number.
#[derive(Debug, Default)]
struct OfThread(Vec<Vec<Option<Remote>>>);

#[derive(Debug, Default)]
struct All {
    known: HashMap<SegmentName, Known>,
    /// Those that are not parts of this unit's segments. Each is released when its owner no longer
    /// offers the segment. Every wait checks them, so they are listed apart from `known`.
    found: Vec<(SegmentName, Remote)>,
}

#[derive(Debug)]
struct Known {
    remote: Remote,
    /// Threads may have it in their tables.
    is_copied: bool,
}

impl OfThread {
    #[inline(always)]
    fn get(&self, (unit, segment): SegmentName) -> Option<&Remote> {
        self.0.get(unit.index())?.get(segment as usize)?.as_ref()
    }

    fn set(&mut self, (unit, segment): SegmentName, remote: Option<Remote>) {
        if self.0.len() <= unit.index() {
            self.0.resize_with(unit.index() + 1, Vec::new);
        }
        let of = &mut self.0[unit.index()];
        if of.len() <= segment as usize {
            of.resize_with(segment as usize + 1, || None);
        }
        of[segment as usize] = remote;
    }
}

impl Attached {
    #[inline(always)]
    fn of_thread(&self) -> &Biased<OfThread> {
        self.of_threads.get_or(|| Biased::new(OfThread::default()))
    }

    /// Adds a segment for pointers into it.
    fn add(&self, place: SegmentName, remote: Remote) {
        let mut all = self.all.lock();
        self.remove(&mut all, place);
        let is_copied = false;
        all.known.insert(place, Known { remote, is_copied });
    }

    /// As [`Attached::add`], for one that is not a part of this unit's segments.
    fn find(&self, place: SegmentName, remote: Remote) {
        let mut all = self.all.lock();
        self.remove(&mut all, place);
        let is_copied = true;
        self.of_thread().lock().set(place, Some(remote.clone()));
        all.found.push((place, remote.clone()));
        all.known.insert(place, Known { remote, is_copied });
        // ORDERING: Relaxed, here and below: a thread that misses it releases the segment a little
        // later.
        self.has_found.store(true, Ordering::Relaxed);
    }

    /// Copies a segment from the table of all threads to this thread's table.
    #[cold]
    fn copy(&self, place: SegmentName, is_right: impl Fn(&Remote) -> bool) -> Option<Remote> {
        let mut all = self.all.lock();
        let known = all.known.get_mut(&place);
        let known = known.filter(|known| is_right(&known.remote))?;
        known.is_copied = true;
        let remote = known.remote.clone();
        self.of_thread().lock().set(place, Some(remote.clone()));
        Some(remote)
    }

    fn remove(&self, all: &mut All, place: SegmentName) {
        all.found.retain(|(found, _)| *found != place);
        if all
            .known
            .remove(&place)
            .is_some_and(|known| known.is_copied)
        {
            for of_thread in &self.of_threads {
                let mut of_thread = of_thread.lock();
                if of_thread.get(place).is_some() {
                    of_thread.set(place, None);
                }
            }
        }
    }

    #[cold]
    fn let_go_of_found(&self) {
        // The thread that has the lock releases segments, too.
        let Some(mut all) = self.all.try_lock() else {
            return;
        };
        if !all.found.is_empty() && all.found.iter().all(|(_, remote)| remote.is_offered()) {
            return;
        }
        let gone =
            |(place, remote): &(SegmentName, Remote)| (!remote.is_offered()).then_some(*place);
        let gone: Vec<SegmentName> = all.found.iter().filter_map(gone).collect();
        for place in gone {
            self.remove(&mut all, place);
        }
        self.has_found
            .store(!all.found.is_empty(), Ordering::Relaxed);
    }
}

impl Job {
    /// Runs `access` on the segment that a pointer names. Attaches to it on first use, and again if
    /// the number has been reused since. `access` runs a second time if the owner of memory that is
    /// not mapped here no longer has that segment: a pointer has eight bits of the generation (six
    /// if it names a piece of the unit's own heap), so it may name a later one. A put that does not
    /// wait learns that only from its handle: such puts fail until a blocking access has attached
    /// the later segment.
    #[inline]
    pub(crate) fn with_remote<T, R, E: Into<Error>>(
        &self,
        pointer: GlobalPtr<T>,
        bytes: u64,
        mut access: impl FnMut(&Remote) -> Result<R, E>,
    ) -> Result<R> {
        let place = (pointer.unit(), pointer.segment());
        let is_right = |remote: &Remote| remote.is_offered() && is_of(remote, pointer);
        let of_thread = self.attached.of_thread().lock();
        let known = of_thread.get(place).filter(|remote| is_right(remote));
        if let Some(remote) = known
            && remote.mapped().is_some()
        {
            check(remote, pointer, bytes)?;
            return access(remote).map_err(|error| clarify(error, pointer));
        }
        // `access` may wait, so the table is not borrowed meanwhile.
        let known = known.cloned();
        drop(of_thread);
        if let Some(remote) = known.or_else(|| self.attached.copy(place, is_right)) {
            let mut again = || access(&remote).map_err(E::into);
            let ended = check(&remote, pointer, bytes).and_then(|()| again());
            if !matches!(&ended, Err(error) if is_missing(error)) {
                return ended;
            }
        }
        self.let_go();
        let remote = self.attach(pointer)?;
        check(&remote, pointer, bytes)?;
        let result = access(&remote).map_err(|error| clarify(error, pointer));
        self.attached.find(place, remote);
        result
    }

    /// Releases the segments that pointers led to and that their owners no longer offer. Owners
    /// wait for that before a phase changes, and keep the memory and its number until then.
    #[inline]
    pub(crate) fn let_go(&self) {
        if !self.has_found_none() {
            self.attached.let_go_of_found();
        }
    }

    /// Returns true if [`Job::let_go`] has nothing to check.
    #[inline]
    pub(super) fn has_found_none(&self) -> bool {
        !self.attached.has_found.load(Ordering::Relaxed)
    }

    /// Adds a part of a segment of this unit for pointers into it.
    pub(crate) fn remember(&self, unit: Unit, segment: u16, remote: &Remote) {
        self.attached.add((unit, segment), remote.clone());
    }

    /// Releases a segment that pointers may have led to.
    pub(crate) fn forget(&self, unit: Unit, segment: u16) {
        let mut all = self.attached.all.lock();
        self.attached.remove(&mut all, (unit, segment));
    }

    #[cold]
    fn attach<T>(&self, pointer: GlobalPtr<T>) -> Result<Remote> {
        if pointer.is_null() {
            return Err(bad(pointer));
        }
        let peer = self.peer(pointer.unit())?;
        let key = self.fabric.look_up(peer, pointer.segment().into())?;
        // The segment may be that of another process, which has the number of a lost unit by now.
        if let Some(lost) = self.lost(peer) {
            return Err(lost.into());
        }
        let remote = key.map(|key| self.fabric.attach(key)).transpose();
        let remote = remote.map_err(|error| clarify(error, pointer))?;
        let remote = remote.filter(|remote| is_of(remote, pointer));
        remote.ok_or_else(|| bad(pointer))
    }

    /// Returns the bytes at a pointer, if they are mapped here.
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

/// Returns true if a segment is the one that a pointer was made for: numbers are reused.
#[inline]
fn is_of<T>(remote: &Remote, pointer: GlobalPtr<T>) -> bool {
    pointer.flags().is_of(remote.key().generation)
}

/// Returns true if a piece of a unit's own heap still belongs to the pointer's allocation. Checked
/// in debug builds only, because it is one more access.
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

/// Returns true if the segment that a pointer names may be another one than the one accessed.
fn is_missing(error: &Error) -> bool {
    matches!(
        error,
        Error::BadPointer { .. } | Error::Fabric(samite_fabric::Error::NoSuchSegment { .. })
    )
}

fn clarify<T>(error: impl Into<Error>, pointer: GlobalPtr<T>) -> Error {
    match error.into() {
        Error::Fabric(samite_fabric::Error::NoSuchSegment { .. }) => bad(pointer),
        other => other,
    }
}
