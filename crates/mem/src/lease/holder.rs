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

/// What this process does with a segment (G6). An entry without leases is that of a block of this
/// process.
#[derive(Debug)]
struct Known {
    /// Leases of this process.
    leases: u64,
    /// The mode in which they were granted, which is that of the block if this process owns it.
    mode: Mode,
    /// Whether this process has borrowed it, and may let others read it (W6 of `words`).
    is_borrower: bool,
    /// `None`: this process owned it, and has dropped it while leases are out.
    memory: Option<Memory>,
}

/// The memory of a segment.
#[derive(Clone, Debug)]
enum Memory {
    /// This process owns it.
    Own(SharedBytes),
    /// Another process owns it: the content of the entry when the first lease was granted. It is
    /// not read again: its owner could write anything there, and only what was claimed may be
    /// accessed.
    Theirs(Seen),
}

/// One use of a segment by this process; it ends when it is dropped.
#[derive(Debug)]
pub struct Lease {
    process: Arc<Process>,
    entry: Entry<SharedBytes>,
    generation: u32,
    id: u64,
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
        let Some((lease, memory)) = self.0.take(entry, generation, id, Mode::Open)? else {
            return Ok(None);
        };
        Ok(Some(match memory {
            Memory::Theirs(seen) if seen.private => Shared::Private {
                address: seen.place,
                bytes: seen.bytes,
                lease,
            },
            memory => Shared::Mapped(self.0.range(memory, lease)?),
        }))
    }

    /// Takes a lease to read; `None` unless this generation is offered for reading.
    pub fn read(
        &self,
        entry: &Entry<SharedBytes>,
        generation: u32,
        id: u64,
    ) -> Result<Option<Readable>, Error> {
        let taken = self.0.take(entry, generation, id, Mode::Reading)?;
        let range = taken.map(|(lease, memory)| self.0.range(memory, lease));
        Ok(range.transpose()?.map(Readable))
    }

    /// Takes a lease for this borrower alone; `None` unless this generation can be borrowed and no
    /// process has borrowed it.
    pub fn borrow(
        &self,
        entry: &Entry<SharedBytes>,
        generation: u32,
        id: u64,
    ) -> Result<Option<ExclusiveLease>, Error> {
        let taken = self.0.take(entry, generation, id, Mode::Exclusive)?;
        let range = taken.map(|(lease, memory)| self.0.range(memory, lease));
        Ok(range.transpose()?.map(ExclusiveLease))
    }

    /// Owner: records that the memory belongs to a segment, which is open.
    pub(super) fn owns(&self, entry: &Entry<SharedBytes>, generation: u32, bytes: &SharedBytes) {
        let key = (entry.0.address(), generation);
        let mut table = self.0.lock();
        let before = table.get(&key);
        let new = Known {
            // Not 0 if a generation comes again while leases of the earlier one are out.
            leases: before.map_or(0, |known| known.leases),
            mode: Mode::Open,
            is_borrower: before.is_some_and(|known| known.is_borrower),
            memory: Some(Memory::Own(bytes.clone())),
        };
        table.insert(key, new);
    }

    /// Owner: changes the mode, or returns the processes that have a lease.
    pub(super) fn turn(
        &self,
        entry: &Entry<SharedBytes>,
        generation: u32,
        to: Mode,
    ) -> Result<(), Vec<u32>> {
        if self.is_of_parent() {
            return Err(Vec::new());
        }
        // Locked to the end, so that no lease of this process begins meanwhile.
        let mut table = self.0.lock();
        let known = table.get_mut(&(entry.0.address(), generation));
        let Some(known) = known else {
            return Err(Vec::new());
        };
        if known.leases > 0 {
            // Even if the words say something else (G6).
            let mut who = entry.who();
            who.retain(|user| *user != self.0.me as u32);
            who.push(self.0.me as u32);
            return Err(who);
        }
        entry.turn(generation, known.mode, to)?;
        known.mode = to;
        Ok(())
    }

    /// Owner: records that the memory no longer belongs to the segment.
    pub(super) fn disowns(&self, entry: &Entry<SharedBytes>, generation: u32) {
        let key = (entry.0.address(), generation);
        let mut table = self.0.lock();
        let known = table.get_mut(&key);
        let memory = known.and_then(|known| known.memory.take());
        if table.get(&key).is_some_and(|known| known.leases == 0) {
            table.remove(&key);
        }
        drop(table);
        // After the table is unlocked, because this may drop the last range of something.
        drop(memory);
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

    /// Adds one use of a segment by this process; the first one sets its bit, or borrows. Returns
    /// the lease and the memory.
    fn take(
        self: &Arc<Self>,
        entry: &Entry<SharedBytes>,
        generation: u32,
        id: u64,
        mode: Mode,
    ) -> Result<Option<(Lease, Memory)>, Error> {
        if self.is_of_parent() {
            return Err(Error::Forked);
        }
        let key = (entry.0.address(), generation);
        let mut table = self.lock();
        let known = table.get_mut(&key);
        // G6: the words may say something else. What is lent is nobody's here, and its borrower may
        // let others read it.
        let may = |known: &&mut Known| {
            let was_lent = known.leases == 0 && known.mode == Mode::Exclusive;
            known.mode == mode || was_lent && mode == Mode::Reading
        };
        if known.as_ref().is_some_and(|known| !may(known)) {
            return Ok(None);
        }
        let memory = match known {
            Some(known) if known.leases > 0 => {
                // A further use is only counted; beside an exclusive one, there is none.
                let may = |memory: &Memory| {
                    let is_own = matches!(memory, Memory::Own(_));
                    mode != Mode::Exclusive && (is_own || entry.offers(generation))
                };
                let Some(memory) = known.memory.clone().filter(may) else {
                    return Ok(None);
                };
                known.leases += 1;
                memory
            }
            known => {
                let own = known.and_then(|known| known.memory.clone());
                let is_borrower = mode == Mode::Exclusive;
                // Counted before the bit is set: at 0, the agent assumes that no lease is out.
                self.count_out();
                let entered = match (mode, &own) {
                    (Mode::Exclusive, _) => entry.borrow(self.me, generation),
                    (_, Some(_)) => entry.enter(self.me, generation, mode),
                    (_, None) => entry.take(self.me, generation, mode),
                };
                if !entered {
                    self.count_in();
                    return Ok(None);
                }
                let memory = match own {
                    Some(own) => own,
                    None => {
                        let seen = entry.leased();
                        self.claim(seen)
                            .inspect_err(|_| self.leave(entry, generation, is_borrower))?;
                        Memory::Theirs(seen)
                    }
                };
                let known = table.entry(key).or_insert_with(|| Known {
                    leases: 0,
                    mode,
                    is_borrower,
                    memory: Some(memory.clone()),
                });
                (known.leases, known.mode, known.is_borrower) = (1, mode, is_borrower);
                memory
            }
        };
        let lease = Lease {
            process: self.clone(),
            entry: entry.clone(),
            generation,
            id,
        };
        Ok(Some((lease, memory)))
    }

    /// Ends the use of a segment by this process.
    fn leave(&self, entry: &Entry<SharedBytes>, generation: u32, is_borrower: bool) {
        match is_borrower {
            true => entry.give_back(self.me, generation),
            false => entry.leave(self.me),
        }
        self.count_in();
    }

    /// Claims the memory of another process's segment, which its owner describes. It must lie
    /// inside the arena, be aligned like a block, and not be used by this process in another way.
    fn claim(&self, seen: Seen) -> Result<(), Error> {
        let corrupt = |what| {
            let value = seen.place;
            Err(Error::Corrupt(Corrupt { what, value }))
        };
        let Some(span) = in_arena(seen) else {
            return match seen.place.checked_add(seen.bytes) {
                Some(_) => Ok(()),
                None => corrupt("the address of private memory"),
            };
        };
        if !span.offset.is_multiple_of(ALIGN) {
            return corrupt("the beginning of a block");
        }
        self.arena.range(span)?;
        self.arena.claims().claim(span, Use::Leased)
    }

    /// Returns the range that a lease is for.
    fn range(&self, memory: Memory, lease: Lease) -> Result<SharedBytes, Error> {
        let range = match memory {
            Memory::Own(own) => own,
            Memory::Theirs(seen) => match in_arena(seen) {
                Some(span) => self.arena.range(span)?,
                None => {
                    return Err(Error::Corrupt(Corrupt {
                        what: "the address of memory that is read or borrowed",
                        value: seen.place,
                    }));
                }
            },
        };
        Ok(range.keeping(Keeps::Lease(lease)))
    }
}

/// Returns where a segment lies in the arena; `None` if it is private memory.
fn in_arena(seen: Seen) -> Option<Span> {
    (!seen.private).then_some(Span {
        offset: seen.place,
        bytes: seen.bytes,
    })
}

impl Lease {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Changes what this process has borrowed, under its only lease of it, or has published:
    /// `change` changes the words. Returns the processes that are in the way.
    fn change(
        &self,
        to: Mode,
        change: impl FnOnce(&Entry<SharedBytes>, usize) -> Result<(), Vec<u32>>,
    ) -> Result<(), Vec<u32>> {
        let process = &self.process;
        if process.is_of_parent() {
            return Err(Vec::new());
        }
        let mut table = process.lock();
        let known = table.get_mut(&(self.entry.0.address(), self.generation));
        match known {
            Some(known) if known.is_borrower && known.leases == 1 => {
                change(&self.entry, process.me)?;
                known.mode = to;
                Ok(())
            }
            _ => Err(vec![process.me as u32]),
        }
    }

    /// Gives back what this process has borrowed and published. Its other leases stay, to read.
    fn give_back(&self) {
        let process = &self.process;
        if process.is_of_parent() {
            return;
        }
        let mut table = process.lock();
        let known = table.get_mut(&(self.entry.0.address(), self.generation));
        if let Some(known) = known
            && known.is_borrower
            && known.leases > 1
            && (self.entry).enter(process.me, self.generation, Mode::Reading)
        {
            known.is_borrower = false;
            self.entry.give_back(process.me, self.generation);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (process, entry) = (&self.process, &self.entry);
        if process.is_of_parent() {
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
        let is_borrower = std::mem::take(&mut known.is_borrower);
        match known.memory {
            Some(Memory::Own(_)) => {}
            Some(Memory::Theirs(seen)) => {
                if let Some(span) = in_arena(seen) {
                    process.arena.claims().release(span, Use::Leased);
                }
                table.remove(&key);
            }
            None => drop(table.remove(&key)),
        }
        process.leave(entry, self.generation, is_borrower);
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
        // SAFETY: G2 and G6: nobody writes while the lease of `self` is out; else as `elements`
        // says.
        unsafe { std::slice::from_raw_parts(first, count) }
    }
}

/// Bytes that nothing else reads or writes while this value lives.
#[derive(Debug)]
pub struct ExclusiveLease(SharedBytes);

/// Bytes that this process has borrowed, and that nobody writes while this value lives.
#[derive(Debug)]
pub struct Published(Option<SharedBytes>);

impl Published {
    /// Returns the bytes to this process alone, or itself and the processes that read them (empty
    /// if the words of the entry are invalid).
    pub fn retract(mut self) -> Result<ExclusiveLease, (Published, Vec<u32>)> {
        let retract = |lease: &Lease| {
            let retract = |entry: &Entry<_>, me| entry.retract(me, lease.generation);
            lease.change(Mode::Exclusive, retract)
        };
        let lease = self.0.as_ref().and_then(SharedBytes::lease);
        match (lease.map_or(Err(Vec::new()), retract), self.0.take()) {
            (Ok(()), Some(bytes)) => Ok(ExclusiveLease(bytes)),
            (result, bytes) => {
                self.0 = bytes;
                Err((self, result.err().unwrap_or_default()))
            }
        }
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        if let Some(lease) = self.0.as_ref().and_then(SharedBytes::lease) {
            lease.give_back();
        }
    }
}

impl ExclusiveLease {
    /// Lets other processes read the bytes, of which the owner of the segment is one. `None`, and
    /// it is given back, if the words of the entry are invalid.
    pub fn publish(self) -> Option<Published> {
        let lease = self.0.lease()?;
        let publish = |entry: &Entry<_>, me| match entry.publish(me, lease.generation) {
            true => Ok(()),
            false => Err(Vec::new()),
        };
        lease.change(Mode::Reading, publish).ok()?;
        Some(Published(Some(self.0)))
    }

    /// Returns the bytes as elements, without an incomplete element at the end.
    pub fn as_slice<T: Pod>(&self) -> &[T] {
        let (first, count) = elements::<T>(&self.0);
        // SAFETY: G3 and G6: the lease of `self` is the only one, and `self` cannot be cloned; else
        // as `elements` says.
        unsafe { std::slice::from_raw_parts(first, count) }
    }

    /// Returns the bytes as mutable elements.
    pub fn as_mut_slice<T: Pod>(&mut self) -> &mut [T] {
        let (first, count) = elements::<T>(&self.0);
        // SAFETY: G3 and G6, as in `as_slice`, and `&mut self` is the only way to the bytes in this
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
