//! A ring of cells between two units that share a mapping: one producer, one consumer.
//!
//! ```text
//!            head (consumer)          tail (producer, private)
//!              v                        v
//!   cells |....|####|####|####|####|....|....|      cell i is readable iff its header says i
//!
//!   one cell, one cache line:
//!     0        8              16                                            64
//!     | header | argument     | inline bytes (first cell: 48)               |
//!     | header | inline bytes (each further cell of the frame: 56)          |
//!   header: sequence (32) | kind (8) | cells and bulk flag (8) | inline length (16)
//! ```
//!
//! A frame is one to five cells, published by **one** release store of its first header, written
//! last. The first word of every cell is a header and never payload, so no byte of a message can
//! look like a frame. Bodies that do not fit inline go to the *bulk area*, a contiguous byte ring
//! beside the cells, and the frame says where. An 8-byte message costs one line transfer: the
//! consumer polls the line that contains the message.
//!
//! # Invariants
//! R1 `CELLS` is a power of two; positions count cells since creation and never wrap in practice
//!    (u64).
//! R2 `tail - head <= CELLS`: the producer writes a cell only after `head` has passed its last use,
//!    which it learns by an Acquire load of `head` (pairs with the consumer's Release store).
//! R3 A header with the sequence of its position is written after everything else of the frame
//!    (Release, pairs with the consumer's Acquire load of that header).
//! R4 The headers of continuation cells are zero, which is not a sequence; a header left from an
//!    earlier lap differs by `CELLS`.
//! R5 The bulk area obeys R2 with `bulk_head`; a body is contiguous and skips the end of the area
//!    if necessary.
//! R6 The bytes of a ring are [`RING_BYTES`] of a live mapping, aligned to a line:
//!    [`SharedRing::new`] checks it, and they are never replaced.
//!
//! The other side is not trusted: a violation of R1-R5 is `Corrupt` and the ring is closed.
//!
//! Sketch: 8 bytes = 1 line, 1 store of 24 bytes, 1 load; 256 bytes = 5 lines; a body of 64 KiB = 1
//! line and 1024 lines of bulk, copied once in and once out while they stay in the cache.
//!
//! Measured (2-core Sapphire Rapids VM, `examples/ring_latency`, half round trips; a raw exchange
//! takes 120 to 150 ns): 8 bytes 150 to 170 ns; 256 bytes 250 to 320 ns; 4 KiB 930 ns. Reading a
//! line that the other core has just written costs 8 to 9 ns, whether by a plain load or prefetched
//! into either level. Pushing the line out first (CLDEMOTE) makes reading cheap but costs the
//! writer the same time. A 4 KiB message pays this 64 times.

mod cells;
#[cfg(not(loom))]
mod shared;

pub use cells::{Consumer, Frame, Full, Medium, Producer};
#[cfg(not(loom))]
pub use shared::{Body, RING_BYTES, SharedRing, bulk_bytes};

/// Cells of a ring.
pub const CELLS: u64 = if cfg!(loom) { 4 } else { 256 };
/// Cells that requests leave free, so that replies always find space (separate credits).
pub const REPLY_CELLS: u64 = if cfg!(loom) { 1 } else { 64 };
/// Inline bytes of the first cell.
pub const FIRST_BYTES: usize = 48;
/// Inline bytes of every further cell.
pub const NEXT_BYTES: usize = 56;
/// Maximum length of a frame, in cells.
pub const FRAME_CELLS: usize = if cfg!(loom) { 2 } else { 5 };
/// Maximum number of bytes inside the cells of a frame.
pub const INLINE_BYTES: usize = FIRST_BYTES + (FRAME_CELLS - 1) * NEXT_BYTES;
