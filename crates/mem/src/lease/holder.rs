//! The leases of a process.

use super::words::STATE;
use super::{ENTRY_BYTES, Entry, Mode, Seen, Words};
use crate::arena::Keeps;
use crate::claims::Use;
use crate::sync::{AtomicU64, Ordering};
use crate::sys::OwnerProcess;
use crate::{Arena, Corrupt, Error, SharedBytes, Span};
use bytemuck::Pod;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Alignment of every block, sufficient for elements of any type.
const ALIGN: u64 = 128;

impl Words for SharedBytes {
    #[inline(always)]
    fn word(&self, index: usize) -> &AtomicU64 {
        self.u64(index as u64 * 8)
    }
}

impl Entry<SharedBytes> {
    /// Interprets these bytes as an entry.
    pub fn new(bytes: SharedBytes) -> Result<Self, Corrupt> {
        if bytes.len() != ENTRY_BYTES || !bytes.address().is_multiple_of(crate::LINE) {
            return Err(Corrupt {
                what: "the place of an entry",
                value: bytes.address(),
            });
        }
        Ok(Entry(bytes))
    }

    /// Returns the word that says whether the segment is offered, and in which generation; for
    /// users that need only that.
    pub fn state(&self) -> SharedBytes {
        self.0.slice(STATE as u64 * 8, 8)
    }
}

/// A process that can have leases: its number, and its count of leases per segment. Cloning is
/// cheap.
#[derive(Clone, Debug)]
pub struct Holder(Arc<Process>);

#[derive(Debug)]
struct Process {
    arena: Arena,
    me: usize,
    /// Number of segments on which this process has leases: in shared memory, for the agent.
    out: SharedBytes,
    /// The process to which the leases belong. A fork has a copy of everything, but no leases.
    owner: OwnerProcess,
    table: Mutex<Table>,
}

/// The segments that this process owns or has leases on. Every attach searches it, so the hash is a
/// fast one.
type Table = HashMap<Key, Known, foldhash::fast::RandomState>;

/// A use of an entry: the address of its words, and the generation.
type Key = (u64, u32);

#[derive(Debug, Default)]
struct Known {
    /// Leases of this process.
    leases: u64,
    /// Content of the entry when the first lease was granted. It is not read again: its owner could
    /// write anything there, and only what was claimed may be accessed.
    seen: Option<Seen>,
    /// What was claimed of the arena, if the segment lies there and does not belong to this
    /// process.
    claimed: Option<Span>,
    /// The memory, if this process is the owner.
    own: Option<SharedBytes>,
}

/// One use of a segment by this process; it ends when it is dropped.
#[derive(Debug)]
pub struct Lease {
    process: Arc<Process>,
    entry: Entry<SharedBytes>,
    generation: u32,
    id: u64,
    /// Set if it was borrowed, with the claim. It is then the only lease.
    lent: Option<Option<Span>>,
}

/// What a lease in the mode `Open` provides.
#[derive(Debug)]
pub enum Shared {
    /// The bytes, mapped here.
    Mapped(SharedBytes),
    /// An address in the owner's private memory, and the lease that keeps it valid.
    Private {
        /// The address.
        address: u64,
        /// Length in bytes; the end also has a valid address.
        bytes: u64,
        /// The lease.
        lease: Lease,
    },
}

impl Holder {
    /// Creates the holder for process `me`. `out` is a word of shared memory, 0 at first, in which
    /// it counts the segments that it has leases on.
    pub fn new(arena: Arena, me: usize, out: SharedBytes) -> Holder {
        Holder(Arc::new(Process {
            arena,
            me,
            out,
            owner: OwnerProcess::current(),
            table: Mutex::default(),
        }))
    }

    /// Takes a lease to copy in and out; `None` unless this generation is offered and open. `id` is
    /// the caller's name for the segment ([`SharedBytes::origin`]).
    pub fn share(
        &self,
        entry: &Entry<SharedBytes>,
        generation: u32,
        id: u64,
    ) -> Result<Option<Shared>, Error> {
        let Some((lease, seen, own)) = self.0.take(entry, generation, id, Mode::Open)? else {
            return Ok(None);
        };
        if own.is_none() && seen.private {
            let (address, bytes) = (seen.place, seen.bytes);
            return Ok(Some(Shared::Private {
                address,
                bytes,
                lease,
            }));
        }
        Ok(Some(Shared::Mapped(self.0.range(own, seen, lease)?)))
    }

    /// Takes a lease to read; `None` unless this generation is offered for reading.
    pub fn read(
        &self,
        entry: &Entry<SharedBytes>,
        generation: u32,
        id: u64,
    ) -> Result<Option<Readable>, Error> {
        let Some((lease, seen, own)) = self.0.take(entry, generation, id, Mode::Reading)? else {
            return Ok(None);
        };
        Ok(Some(Readable(self.0.range(own, seen, lease)?)))
    }

    /// Takes a lease for this borrower alone; `None` unless this generation can be borrowed and no
    /// process has borrowed it.
    pub fn borrow(
        &self,
        entry: &Entry<SharedBytes>,
        generation: u32,
        id: u64,
    ) -> Result<Option<ExclusiveLease>, Error> {
        let process = &self.0;
        if process.is_of_parent() {
            return Err(Error::Forked);
        }
        // Counted before the exchange, as in `Process::take`.
        process.count_out();
        if !entry.borrow(process.me, generation) {
            process.count_in();
            return Ok(None);
        }
        let seen = entry.leased();
        let own = process.own(entry, generation);
        let claimed = match process.claim(&own, seen) {
            Ok(claimed) => claimed,
            Err(error) => {
                entry.give_back(process.me, generation);
                process.count_in();
                return Err(error);
            }
        };
        let lease = Lease {
            process: process.clone(),
            entry: entry.clone(),
            generation,
            id,
            lent: Some(claimed),
        };
        Ok(Some(ExclusiveLease(process.range(own, seen, lease)?)))
    }

    /// Owner: records that the memory belongs to a segment.
    pub(super) fn owns(&self, entry: &Entry<SharedBytes>, generation: u32, bytes: &SharedBytes) {
        let key = (entry.0.address(), generation);
        self.0.lock().entry(key).or_default().own = Some(bytes.clone());
    }

    /// Owner: records that it no longer does.
    pub(super) fn disowns(&self, entry: &Entry<SharedBytes>, generation: u32) {
        let key = (entry.0.address(), generation);
        let mut table = self.0.lock();
        let known = table.get_mut(&key);
        let bytes = known.and_then(|known| known.own.take());
        if table.get(&key).is_some_and(|known| known.leases == 0) {
            table.remove(&key);
        }
        drop(table);
        // After the table is unlocked, because this may drop the last range of something.
        drop(bytes);
    }

    /// Returns true if this process is a fork of the one that has the leases.
    pub(super) fn is_of_parent(&self) -> bool {
        self.0.is_of_parent()
    }

    pub(super) fn arena(&self) -> &Arena {
        &self.0.arena
    }
}

impl Process {
    fn lock(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_of_parent(&self) -> bool {
        !self.owner.is_current()
    }

    fn count_out(&self) {
        self.out.u64(0).fetch_add(1, Ordering::Relaxed);
    }

    fn count_in(&self) {
        // ORDERING: Release pairs with the agent's Acquire load: at 0, the process no longer uses
        // any of that memory.
        self.out.u64(0).fetch_sub(1, Ordering::Release);
    }

    fn own(&self, entry: &Entry<SharedBytes>, generation: u32) -> Option<SharedBytes> {
        let key = (entry.0.address(), generation);
        self.lock().get(&key)?.own.clone()
    }

    /// Adds one use of a segment by this process; the first one sets its bit. Returns the lease,
    /// the description of the segment, and the memory if this process owns it.
    fn take(
        self: &Arc<Self>,
        entry: &Entry<SharedBytes>,
        generation: u32,
        id: u64,
        mode: Mode,
    ) -> Result<Option<(Lease, Seen, Option<SharedBytes>)>, Error> {
        if self.is_of_parent() {
            return Err(Error::Forked);
        }
        let key = (entry.0.address(), generation);
        let mut table = self.lock();
        let known = table.get_mut(&key);
        let own = known.as_ref().and_then(|known| known.own.clone());
        let seen = match known {
            Some(known) if known.leases > 0 => {
                // A further use is only counted; the bit must still be set in the same mode.
                let may = own.is_some() || entry.offers(generation);
                if !may || !entry.is_inside(self.me, generation, mode) {
                    return Ok(None);
                }
                known.leases += 1;
                *known.seen.get_or_insert_with(|| entry.leased())
            }
            _ => {
                // Counted before the bit is set: at 0, the agent assumes that no lease is out.
                self.count_out();
                let entered = match own {
                    Some(_) => entry.enter(self.me, generation, mode),
                    None => entry.take(self.me, generation, mode),
                };
                if !entered {
                    self.count_in();
                    return Ok(None);
                }
                let seen = entry.leased();
                let claimed = self.claim(&own, seen).inspect_err(|_| {
                    entry.leave(self.me);
                    self.count_in();
                })?;
                let known = table.entry(key).or_default();
                known.leases = 1;
                known.seen = Some(seen);
                known.claimed = claimed;
                seen
            }
        };
        let lease = Lease {
            process: self.clone(),
            entry: entry.clone(),
            generation,
            id,
            lent: None,
        };
        Ok(Some((lease, seen, own)))
    }

    /// Claims the memory of another process's segment, which its owner describes. It must lie
    /// inside the arena, be aligned like a block, and not be used by this process in another way.
    fn claim(&self, own: &Option<SharedBytes>, seen: Seen) -> Result<Option<Span>, Error> {
        if own.is_some() {
            return Ok(None);
        }
        if seen.private {
            let end = seen.place.checked_add(seen.bytes);
            return end.map(|_| None).ok_or(Error::Corrupt(Corrupt {
                what: "the address of private memory",
                value: seen.place,
            }));
        }
        let span = Span {
            offset: seen.place,
            bytes: seen.bytes,
        };
        if !span.offset.is_multiple_of(ALIGN) {
            return Err(Error::Corrupt(Corrupt {
                what: "the beginning of a block",
                value: span.offset,
            }));
        }
        self.arena.range(span)?;
        self.arena.claims().claim(span, Use::Leased)?;
        Ok(Some(span))
    }

    /// Returns the range that a lease is for.
    fn range(
        &self,
        own: Option<SharedBytes>,
        seen: Seen,
        lease: Lease,
    ) -> Result<SharedBytes, Error> {
        let span = Span {
            offset: seen.place,
            bytes: seen.bytes,
        };
        let range = match own {
            Some(own) => own,
            None if seen.private => {
                return Err(Error::Corrupt(Corrupt {
                    what: "the mode of private memory",
                    value: seen.place,
                }));
            }
            None => self.arena.range(span)?,
        };
        Ok(range.keeping(Keeps::Lease(lease)))
    }
}

impl Lease {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (process, entry) = (&self.process, &self.entry);
        if process.is_of_parent() {
            return;
        }
        // A borrowed segment is not in the table: its lease is the only one.
        if let Some(claimed) = self.lent {
            if let Some(span) = claimed {
                process.arena.claims().release(span, Use::Leased);
            }
            entry.give_back(process.me, self.generation);
            process.count_in();
            return;
        }
        let key = (entry.0.address(), self.generation);
        let mut table = process.lock();
        let Some(known) = table.get_mut(&key) else {
            return;
        };
        known.leases -= 1;
        if known.leases > 0 {
            return;
        }
        // The last use. Release the claim before the bit: then the owner may reuse the memory.
        if let Some(span) = known.claimed.take() {
            process.arena.claims().release(span, Use::Leased);
        }
        if known.own.is_none() {
            table.remove(&key);
        }
        entry.leave(process.me);
        process.count_in();
    }
}

/// Bytes that no process writes while this value or a clone of it lives.
#[derive(Clone, Debug)]
pub struct Readable(SharedBytes);

impl Readable {
    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the bytes as elements, without an incomplete element at the end.
    pub fn as_slice<T: Pod>(&self) -> &[T] {
        let (first, count) = elements::<T>(&self.0);
        // SAFETY: G2: nobody writes while the lease of `self` is out; else as `elements` says.
        unsafe { std::slice::from_raw_parts(first, count) }
    }
}

/// Bytes that nothing else reads or writes while this value lives.
#[derive(Debug)]
pub struct ExclusiveLease(SharedBytes);

impl ExclusiveLease {
    /// Returns the bytes as elements, without an incomplete element at the end.
    pub fn as_slice<T: Pod>(&self) -> &[T] {
        let (first, count) = elements::<T>(&self.0);
        // SAFETY: G3: the lease of `self` is the only one, and `self` cannot be cloned; else as
        // `elements` says.
        unsafe { std::slice::from_raw_parts(first, count) }
    }

    /// Returns the bytes as mutable elements.
    pub fn as_mut_slice<T: Pod>(&mut self) -> &mut [T] {
        let (first, count) = elements::<T>(&self.0);
        // SAFETY: G3, as in `as_slice`, and `&mut self` is the only way to the bytes in this
        // process.
        unsafe { std::slice::from_raw_parts_mut(first, count) }
    }
}

/// Returns a pointer to the first element, and the number of elements. The pointer is that of a
/// range in a live mapping (B1 of `shared`), aligned for `T`, and any bytes are a `T`.
///
/// # Panics
/// Private memory that was adopted with smaller elements may not be aligned.
pub(super) fn elements<T: Pod>(bytes: &SharedBytes) -> (*mut T, usize) {
    const {
        assert!(
            align_of::<T>() as u64 <= ALIGN,
            "blocks begin at multiples of 128 bytes"
        )
    };
    let first: *mut T = bytes.pointer().cast();
    assert!(
        first.is_aligned(),
        "elements in memory that is not aligned for them"
    );
    let count = (bytes.len() as usize).checked_div(size_of::<T>());
    // Elements of size zero: there is no limit.
    (first, count.unwrap_or(usize::MAX))
}
