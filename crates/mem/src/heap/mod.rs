//! The part of an arena that belongs to one process: extents granted by the owner of the budget,
//! and blocks cut from them. A cold path with a lock: the path of a message does not allocate here.

use crate::arena::Keeps;
use crate::claims::Use;
use crate::sys::OwnerProcess;
use crate::{Arena, Error, SharedBytes, Span};
use range_alloc::RangeAllocator;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// The source of extents: the agent of the node, or the process itself if it is alone.
pub trait ExtentSource: Send {
    /// Returns an extent of at least `bytes`, zeroed and aligned to 2 MiB, within the deadline.
    fn grant(&mut self, bytes: u64, deadline: Duration) -> Result<Span, Error>;
    /// Grants like [`ExtentSource::grant`], for callers that must also serve others: where that
    /// would take long, it refuses, and a later call gets the extent that this one requested.
    fn grant_soon(&mut self, bytes: u64) -> Result<Span, Error> {
        self.grant(bytes, Duration::ZERO)
    }
    /// Takes extents back. Returns quickly, however many they are. Their bytes are not zero any
    /// more.
    fn give_back(&mut self, extents: Vec<Span>);
    /// Does what could not be done at once. Called from time to time by a caller that also serves
    /// others.
    fn tend(&mut self) {}
}

/// Blocks of this size and above are on huge pages: scattered small pages of that total size do not
/// even fit into the second-level cache together, because physical addresses determine its sets.
const LARGE: u64 = EXTENT / 4;

/// Extents are multiples of the huge page size, so that the kernel can use huge pages.
const EXTENT: u64 = 2 << 20;
/// Blocks are multiples of two cache lines.
const GRAIN: u64 = 128;
pub(crate) const PAGE: u64 = 4096;
/// Bytes whose pages are allocated in one part: 10 to 15 ms if the machine has free pages, far
/// longer if the host of a virtual machine has to find them first.
const PART: u64 = 64 << 20;

/// Maximum number of extents requested if other uses overlap those that are granted.
const GRANTS: usize = 4;

/// Blocks of shared memory of this process.
#[derive(Clone)]
pub struct Heap {
    arena: Arena,
    huge: bool,
    owner: OwnerProcess,
    /// Locked while the source waits, perhaps long. No thread waits for it that has `inner` locked.
    source: Arc<Mutex<Source>>,
    inner: Arc<Mutex<Inner>>,
}

type Source = Box<dyn ExtentSource>;

#[derive(Default)]
struct Inner {
    extents: Vec<Extent>,
    /// Extents to be given back by the next thread that has the source.
    returns: Vec<Span>,
    used: u64,
    /// See [`Heap::leave`].
    leaves: bool,
}

struct Extent {
    span: Span,
    free: RangeAllocator<u64>,
    blocks: u64,
}

impl std::fmt::Debug for Heap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heap")
            .field("used", &self.used())
            .finish_non_exhaustive()
    }
}

/// Returns the smallest range of whole multiples of `grain` that contains a span.
fn widened(span: Span, grain: u64) -> Span {
    let offset = span.offset / grain * grain;
    Span {
        offset,
        bytes: span.end().next_multiple_of(grain) - offset,
    }
}

impl Heap {
    /// Creates a heap that grows by extents from `source`. `huge` requests huge pages for large
    /// blocks.
    pub fn new(arena: Arena, source: Box<dyn ExtentSource>, huge: bool) -> Self {
        Heap {
            arena,
            huge,
            owner: OwnerProcess::current(),
            source: Arc::new(Mutex::new(source)),
            inner: Arc::default(),
        }
    }

    /// Returns the arena that contains the blocks.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Returns the process to which the blocks belong.
    pub fn owner(&self) -> OwnerProcess {
        self.owner
    }

    /// Returns the number of bytes in blocks; 0 in a fork, which has none.
    pub fn used(&self) -> u64 {
        // Another thread of the parent may have had the lock.
        match self.owner.is_current() {
            true => self.lock().used,
            false => 0,
        }
    }

    /// Lets the source do what it could not do at once, unless another thread is using it.
    pub fn tend(&self) {
        if self.owner.is_current()
            && let Some(mut source) = self.source(Duration::ZERO)
        {
            source.tend();
        }
    }

    /// Prepares the process to leave: from now on, its extents are given back by the source that
    /// granted them, when others have seen that it is gone. Until then, others can read its blocks,
    /// even if these are dropped here.
    pub fn leave(&self) {
        if self.owner.is_current() {
            self.lock().leaves = true;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the source, after it has taken back what is to be given back; `None` if another
    /// thread still uses it when the deadline has passed.
    fn source(&self, deadline: Duration) -> Option<MutexGuard<'_, Source>> {
        let begin = Instant::now();
        let mut source = loop {
            match self.source.try_lock() {
                Ok(source) => break source,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                // Looking each millisecond delays this thread by a millisecond at most.
                Err(TryLockError::WouldBlock) if begin.elapsed() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(TryLockError::WouldBlock) => return None,
            }
        };
        let returns = std::mem::take(&mut self.lock().returns);
        if !returns.is_empty() {
            source.give_back(returns);
        }
        Some(source)
    }

    /// Allocates a zeroed block of `bytes`, aligned to at least 128 bytes, with all its pages. For
    /// callers that must also serve others: waits neither for the source of extents nor for another
    /// thread that does. Local.
    ///
    /// # Errors
    /// [`Error::NoGrant`] if there is no answer yet; try again.
    pub fn block_soon(&self, bytes: u64) -> Result<Block, Error> {
        self.grow_by(bytes, None)?.block()
    }

    /// Allocates such a block part by part, so that the caller can serve others in between. Waits
    /// up to `deadline` for the source of extents. Local.
    ///
    /// # Errors
    /// [`Error::Budget`]; [`Error::NoGrant`]; [`Error::Forked`]: the list of free memory is a copy,
    /// and memory that is free there is in use.
    pub fn grow(&self, bytes: u64, deadline: Duration) -> Result<Growing, Error> {
        self.grow_by(bytes, Some(deadline))
    }

    /// `deadline`: `None` for callers that must also serve others.
    fn grow_by(&self, bytes: u64, deadline: Option<Duration>) -> Result<Growing, Error> {
        if !self.owner.is_current() {
            return Err(Error::Forked);
        }
        let rounded = bytes
            .max(1)
            .checked_next_multiple_of(GRAIN)
            .unwrap_or(u64::MAX);
        let span = self.find(rounded, deadline)?;
        let piece = Piece {
            heap: self.clone(),
            span,
            abandoned: AtomicBool::new(false),
        };
        let block = Block {
            heap: self.clone(),
            span,
            bytes: self
                .arena
                .range(Span { bytes, ..span })?
                .keeping(Keeps::Block(piece)),
        };
        let huge = self.huge && span.bytes >= LARGE;
        let rest = if huge {
            widened(span, EXTENT)
        } else {
            widened(span, PAGE)
        };
        Ok(Growing { block, huge, rest })
    }

    fn make_huge(&self, span: Span) -> bool {
        self.arena.collapse(span) && self.arena.populate(span).is_ok()
    }

    /// Requests an extent that nothing else in this process overlaps (K1 of `claims`). An
    /// overlapping one is given back only after others were requested, because it would be granted
    /// again.
    fn grant(
        &self,
        source: &mut Source,
        bytes: u64,
        deadline: Option<Duration>,
    ) -> Result<Span, Error> {
        let begin = Instant::now();
        let mut overlapped = Vec::new();
        let mut why = None;
        let granted = loop {
            let asked = match deadline {
                Some(deadline) => source.grant(bytes, deadline.saturating_sub(begin.elapsed())),
                None => source.grant_soon(bytes),
            };
            let span = match asked {
                Ok(span) => span,
                // There is no other extent: report what was wrong with the first ones.
                Err(error @ Error::Budget { .. }) => break Err(why.unwrap_or(error)),
                // Not known yet: the caller may try again.
                Err(error) => break Err(error),
            };
            match self.claim(span, bytes) {
                Ok(()) => break Ok(span),
                Err(error) => {
                    overlapped.push(span);
                    if overlapped.len() == GRANTS {
                        break Err(error);
                    }
                    why = Some(error);
                }
            }
        };
        if !overlapped.is_empty() {
            source.give_back(overlapped);
        }
        granted
    }

    /// Claims an extent granted by another process, of at least this many bytes.
    fn claim(&self, span: Span, bytes: u64) -> Result<(), Error> {
        if span.bytes < bytes || !span.offset.is_multiple_of(EXTENT) {
            return Err(Error::NoGrant(format!(
                "{} bytes at {:#x} are no extent of {bytes}",
                span.bytes, span.offset
            )));
        }
        self.arena.range(span)?;
        self.arena.claims().claim(span, Use::Own)
    }

    /// Finds space for a block, or requests an extent for it.
    fn find(&self, bytes: u64, deadline: Option<Duration>) -> Result<Span, Error> {
        let begin = Instant::now();
        // A large block has its own extent: page aligned, and given back as a whole.
        let is_large = bytes >= EXTENT;
        let cut = || match is_large {
            true => None,
            false => self.lock().cut(bytes),
        };
        if let Some(span) = cut() {
            return Ok(span);
        }
        let Some(mut source) = self.source(deadline.unwrap_or_default()) else {
            // A block may have been freed while this thread waited for the source.
            if let Some(span) = cut() {
                return Ok(span);
            }
            let why = "another thread of this process is waiting for the agent";
            return Err(Error::NoGrant(why.into()));
        };
        // Another thread may have got an extent while this one waited for the source.
        if let Some(span) = cut() {
            return Ok(span);
        }
        let extent = bytes.checked_next_multiple_of(EXTENT).unwrap_or(u64::MAX);
        let left = deadline.map(|deadline| deadline.saturating_sub(begin.elapsed()));
        let extent = self.grant(&mut source, extent, left)?;
        let bytes = if is_large { extent.bytes } else { bytes };
        Ok(self.lock().open(extent, bytes))
    }

    fn free(&self, span: Span) {
        let Some(extent) = self.lock().free(span) else {
            return;
        };
        self.arena.claims().release(extent, Use::Own);
        self.lock().returns.push(extent);
        drop(self.source(Duration::ZERO));
    }
}

impl Inner {
    /// Cuts a block from an extent that has space for it.
    fn cut(&mut self, bytes: u64) -> Option<Span> {
        for extent in &mut self.extents {
            if let Ok(range) = extent.free.allocate_range(bytes) {
                extent.blocks += 1;
                self.used += bytes;
                let offset = range.start;
                return Some(Span { offset, bytes });
            }
        }
        None
    }

    /// Adds an extent, with a first block of so many bytes, which it has.
    fn open(&mut self, span: Span, bytes: u64) -> Span {
        let mut free = RangeAllocator::new(span.offset..span.end());
        let _ = free.allocate_range(bytes);
        self.extents.push(Extent {
            span,
            free,
            blocks: 1,
        });
        self.used += bytes;
        Span { bytes, ..span }
    }

    /// Ends a block. Returns its extent if that is to be given back.
    fn free(&mut self, span: Span) -> Option<Span> {
        if self.leaves {
            return None;
        }
        self.used -= span.bytes;
        let is_of = |e: &Extent| e.span.offset <= span.offset && span.end() <= e.span.end();
        let index = self.extents.iter().position(is_of)?;
        let extent = &mut self.extents[index];
        extent.free.free_range(span.offset..span.end());
        extent.blocks -= 1;
        let is_empty = extent.blocks == 0;
        // Keep the last small extent: rings are often dropped and created again.
        let is_small = |e: &Extent| e.span.bytes == EXTENT;
        let is_last = is_small(extent) && self.extents.iter().filter(|e| is_small(e)).count() == 1;
        (is_empty && !is_last).then(|| self.extents.swap_remove(index).span)
    }
}

/// A block some of whose pages are not allocated yet; given back when dropped.
#[derive(Debug)]
pub struct Growing {
    block: Block,
    huge: bool,
    /// The part without pages.
    rest: Span,
}

impl Growing {
    /// Allocates the pages of the next part; returns true if all are allocated.
    pub fn step(&mut self) -> Result<bool, Error> {
        if self.rest.bytes == 0 {
            return Ok(true);
        }
        let heap = &self.block.heap;
        let part = Span {
            offset: self.rest.offset,
            bytes: self.rest.bytes.min(PART),
        };
        if !(self.huge && heap.make_huge(part)) {
            // No more than the block's own pages.
            let own = widened(self.block.span, PAGE);
            let offset = part.offset.max(own.offset);
            let bytes = part.end().min(own.end()) - offset;
            heap.arena.populate(Span { offset, bytes })?;
        }
        self.rest.offset += part.bytes;
        self.rest.bytes -= part.bytes;
        Ok(self.rest.bytes == 0)
    }

    /// Allocates the remaining pages and returns the block.
    pub fn block(mut self) -> Result<Block, Error> {
        while self.rest.bytes > 0 {
            self.step()?;
        }
        if self.block.span.bytes < EXTENT {
            // It was cut from an extent that other blocks used before; a block with its own extent
            // is fresh.
            self.block.bytes.fill(0);
        }
        Ok(self.block)
    }
}

/// A block of shared memory; given back when it and every clone of its bytes have been dropped.
#[derive(Debug)]
pub struct Block {
    heap: Heap,
    span: Span,
    bytes: SharedBytes,
}

impl Block {
    /// Returns its place in the arena.
    pub fn span(&self) -> Span {
        Span {
            offset: self.span.offset,
            bytes: self.bytes.len(),
        }
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> &SharedBytes {
        &self.bytes
    }

    /// Returns only its bytes.
    pub(crate) fn into_bytes(self) -> SharedBytes {
        self.bytes
    }
}

/// What returns to the heap with the last range of a block.
#[derive(Debug)]
pub(crate) struct Piece {
    heap: Heap,
    span: Span,
    abandoned: AtomicBool,
}

impl Piece {
    /// Makes sure that it never returns to the heap, because another process may still use it. The
    /// source that granted the extent decides when it is free.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if !*self.abandoned.get_mut() && self.heap.owner.is_current() {
            self.heap.free(self.span);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
