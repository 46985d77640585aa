//! The ring in an arena: layout, and the bulk area that is created when a body first needs it.
//!
//! ```text
//!   0     | head | bulk_head |            written by the consumer
//!   128   | bulk offset | bulk bytes |    written once by the producer
//!   256   | cell 0 | cell 1 | ...
//! ```

use super::{CELLS, Medium};
use crate::shared::{read_from, write_to};
use crate::sync::{AtomicU64, Ordering};
use crate::{Arena, Corrupt, LINE, SharedBytes, Span};

const HEAD: u64 = 0;
const BULK_HEAD: u64 = 8;
const BULK_OFFSET: u64 = 128;
const BULK_BYTES: u64 = 136;
const FIRST_CELL: u64 = 256;

/// Bytes of a ring without its bulk area.
pub const RING_BYTES: u64 = FIRST_CELL + CELLS * LINE;

/// Returns the size of the bulk area: four pieces of the largest body stay in flight, all in the
/// second-level cache, so that the two copies of a streamed message overlap.
pub const fn bulk_bytes(body_max: u64) -> u64 {
    4 * body_max
}

/// One end's view of a ring in an arena.
#[derive(Debug)]
pub struct SharedRing {
    bytes: SharedBytes,
    bulk: Option<SharedBytes>,
}

impl SharedRing {
    /// Creates a view of a ring; `bytes` must be [`RING_BYTES`] long and aligned to a line
    /// (checked, because another process may have sent the place).
    pub fn new(bytes: SharedBytes) -> Result<Self, Corrupt> {
        if bytes.len() != RING_BYTES || !bytes.address().is_multiple_of(LINE) {
            return Err(Corrupt {
                what: "the place of a ring",
                value: bytes.address(),
            });
        }
        Ok(SharedRing { bytes, bulk: None })
    }

    /// Producer: publishes the place of the bulk area, before the first body.
    pub fn publish_bulk(&mut self, span: Span, bulk: SharedBytes) {
        self.bytes
            .u64(BULK_OFFSET)
            .store(span.offset, Ordering::Relaxed);
        // ORDERING: Release pairs with the Acquire load in `attach_bulk`.
        self.bytes
            .u64(BULK_BYTES)
            .store(span.bytes, Ordering::Release);
        self.bulk = Some(bulk);
    }

    /// Consumer: attaches the bulk area if the producer has published one, and returns its size. An
    /// area of more than `most` bytes is refused: the producer is another process, and a correct
    /// one never makes it that large.
    pub fn attach_bulk(&mut self, arena: &Arena, most: u64) -> Result<u64, Corrupt> {
        if let Some(bulk) = &self.bulk {
            return Ok(bulk.len());
        }
        // ORDERING: Acquire pairs with the Release store in `publish_bulk`.
        let bytes = self.bytes.u64(BULK_BYTES).load(Ordering::Acquire);
        let offset = self.bytes.u64(BULK_OFFSET).load(Ordering::Relaxed);
        if bytes == 0 {
            return Ok(0);
        }
        if bytes > most {
            return Err(Corrupt {
                what: "the size of a bulk area",
                value: bytes,
            });
        }
        let bulk = arena.bytes(offset, bytes).map_err(|_| Corrupt {
            what: "the place of a bulk area",
            value: offset,
        })?;
        self.bulk = Some(bulk);
        Ok(bytes)
    }

    /// Consumer: uses a bulk area of its own process; returns its size.
    pub fn use_bulk(&mut self, bulk: SharedBytes) -> u64 {
        self.bulk.insert(bulk).len()
    }

    /// Returns a body in the bulk area.
    pub fn body(&self, offset: u64, bytes: u64) -> Body<'_> {
        match &self.bulk {
            Some(bulk) => Body::Shared {
                bytes: bulk,
                offset,
                len: bytes,
            },
            None => Body::Slice(&[]),
        }
    }

    /// Producer: prefetches the lines to which the next body will be written.
    #[inline]
    pub fn prefetch_next(&self, position: u64, bytes: u64) {
        if let Some(bulk) = &self.bulk {
            bulk.prefetch_write_range(position % bulk.len(), bytes);
        }
    }

    /// Writes a body into the bulk area at a position of the producer.
    pub fn write_body(&self, position: u64, body: &Body<'_>) {
        if let Some(bulk) = &self.bulk {
            body.copy_to_shared(bulk, position % bulk.len());
        }
    }

    /// Returns a pointer to bytes of a cell. This runs for every frame: the number of the cell
    /// ensures that it lies in the ring, without a check.
    #[inline(always)]
    fn cell(&self, cell: u64, at: usize, bytes: usize) -> *mut u8 {
        assert!(at + bytes <= LINE as usize, "beyond the end of a cell");
        let cell = (FIRST_CELL + cell % CELLS * LINE) as usize;
        // SAFETY: the cells lie in the RING_BYTES of a live mapping (R6), and the bytes in the
        // cell.
        unsafe { self.bytes.pointer().add(cell + at) }
    }
}

impl Medium for SharedRing {
    #[inline(always)]
    fn header(&self, cell: u64) -> &AtomicU64 {
        // SAFETY: alive as long as `self`, aligned as the ring is (R6), and used only as an atomic.
        unsafe { AtomicU64::from_ptr(self.cell(cell, 0, 8).cast()) }
    }
    #[inline(always)]
    fn head(&self) -> &AtomicU64 {
        self.bytes.u64(HEAD)
    }
    #[inline(always)]
    fn bulk_head(&self) -> &AtomicU64 {
        self.bytes.u64(BULK_HEAD)
    }
    #[inline(always)]
    fn write(&self, cell: u64, at: usize, from: &[u8]) {
        // SAFETY: the bytes lie in one cell, as `cell` has checked.
        unsafe { write_to(self.cell(cell, at, from.len()), from) }
    }
    #[inline(always)]
    fn prefetch(&self, cell: u64) {
        self.bytes.prefetch(FIRST_CELL + cell * LINE);
    }
    #[inline(always)]
    fn prefetch_write(&self, cell: u64) {
        self.bytes
            .prefetch_write_range(FIRST_CELL + cell * LINE, LINE);
    }
    #[inline(always)]
    fn read(&self, cell: u64, at: usize, into: &mut [u8]) {
        // SAFETY: as in `write`.
        unsafe { read_from(self.cell(cell, at, into.len()), into) }
    }
}

/// The bytes of a message, in private or shared memory.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// Private bytes.
    Slice(&'a [u8]),
    /// Bytes that another process can write.
    Shared {
        /// The range that contains them.
        bytes: &'a SharedBytes,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
}

impl Body<'_> {
    /// Returns the length in bytes.
    #[inline(always)]
    pub fn len(&self) -> u64 {
        match self {
            Body::Slice(slice) => slice.len() as u64,
            Body::Shared { len, .. } => *len,
        }
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the bytes from `offset` on into `into`, which must not be longer than the rest.
    #[inline(always)]
    pub fn copy_to(&self, offset: u64, into: &mut [u8]) {
        match self {
            Body::Slice(slice) => {
                into.copy_from_slice(&slice[offset as usize..offset as usize + into.len()]);
            }
            Body::Shared {
                bytes,
                offset: start,
                len,
            } => {
                assert!(
                    offset + into.len() as u64 <= *len,
                    "beyond the end of a body"
                );
                bytes.read(start + offset, into);
            }
        }
    }

    /// Copies all bytes to shared memory.
    pub fn copy_to_shared(&self, to: &SharedBytes, offset: u64) {
        match self {
            Body::Slice(slice) => to.write(offset, slice),
            Body::Shared {
                bytes,
                offset: start,
                len,
            } => to.copy_from(offset, bytes, *start, *len),
        }
    }

    /// Returns a private copy.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = vec![0; self.len() as usize];
        self.copy_to(0, &mut all);
        all
    }
}
