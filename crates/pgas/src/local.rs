//! Memory that one unit allocates by itself and that every unit can access: pieces of segments that
//! are added as needed. Not performance-critical.
//!
//! ```text
//!   a chunk:  | pieces, each a multiple of 64 bytes          | generation: one byte per 64 bytes |
//! ```
//! The byte is 0 where nothing is allocated. Debug builds of any unit compare it with the
//! generation in the pointer and so detect the use of freed memory.

use crate::pointer::Flags;
use crate::{Error, GlobalPtr, Result, Unit};
use range_alloc::RangeAllocator;
use samite_fabric::{Fabric, Reserved, Segment};
use std::collections::HashMap;

/// The minimum length of a chunk. Segments are few, and other units attach to each of them once.
const CHUNK: u64 = 1 << 20;
/// Every piece begins at its own cache line.
const GRAIN: u64 = 64;

/// Returns the bytes for pieces in a chunk of this length; the generations follow them.
pub(crate) fn data_bytes(chunk: u64) -> u64 {
    chunk / (GRAIN + 1) * GRAIN
}

/// Returns the position of the generation of the piece at `offset` in a chunk of this length.
pub(crate) fn generation_at(chunk: u64, offset: u64) -> u64 {
    data_bytes(chunk) + offset / GRAIN
}

/// Reserves a number for a segment of this unit alone, from the top. Teams agree on the lowest
/// ones, through memory that may itself be a new chunk.
pub(crate) fn number(fabric: &Fabric) -> Result<Reserved> {
    let count = fabric.free_segments().len() as u32 * u64::BITS;
    let number = (0..count).rev().find_map(|number| fabric.reserve(number));
    number.ok_or(Error::NoSegment)
}

/// The heap of this unit's pieces.
#[derive(Debug, Default)]
pub(crate) struct LocalHeap {
    chunks: Vec<Chunk>,
    /// The length of each piece, by its pointer.
    pieces: HashMap<GlobalPtr<u8>, u64>,
    /// The generation of the last piece, 1 to 255.
    generation: u8,
}

#[derive(Debug)]
struct Chunk {
    segment: Segment,
    free: RangeAllocator<u64>,
}

impl LocalHeap {
    /// Allocates a zeroed piece. Errors: the budget, the number of segments.
    pub(crate) fn allocate(
        &mut self,
        fabric: &Fabric,
        me: Unit,
        bytes: u64,
    ) -> Result<GlobalPtr<u8>> {
        let rounded = bytes
            .max(1)
            .checked_next_multiple_of(GRAIN)
            .unwrap_or(u64::MAX);
        let cut = |chunk: &mut Chunk| chunk.free.allocate_range(rounded).ok();
        let found = self
            .chunks
            .iter_mut()
            .find_map(|chunk| Some((cut(chunk)?.start, chunk)));
        let (offset, chunk) = match found {
            Some(found) => found,
            None => (0, self.grow(fabric, rounded)?),
        };
        let key = chunk.segment.key();
        let segment = key.segment as u16;
        chunk.segment.bytes().slice(offset, rounded).fill(0);
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        self.mark(segment, offset, rounded, self.generation);
        let flags = Flags::of_piece(self.generation, key.generation);
        let pointer = GlobalPtr::new(me, segment, flags, offset);
        self.pieces.insert(pointer, rounded);
        Ok(pointer)
    }

    /// Writes the generation of a piece; 0 if it is free.
    fn mark(&self, segment: u16, offset: u64, bytes: u64, generation: u8) {
        let of = |chunk: &&Chunk| chunk.segment.key().segment == u32::from(segment);
        if let Some(chunk) = self.chunks.iter().find(of) {
            let key = chunk.segment.key();
            let at = generation_at(key.bytes, offset);
            chunk
                .segment
                .bytes()
                .slice(at, bytes / GRAIN)
                .fill(generation);
        }
    }

    fn grow(&mut self, fabric: &Fabric, bytes: u64) -> Result<&mut Chunk> {
        let with_generations = (bytes / GRAIN).saturating_mul(GRAIN + 1);
        let segment = number(fabric)?.allocate(with_generations.max(CHUNK))?;
        let segment = segment.into_segment()?;
        let mut free = RangeAllocator::new(0..data_bytes(segment.key().bytes));
        // A fresh range that is long enough, so this cannot fail.
        let _ = free.allocate_range(bytes);
        self.chunks.push(Chunk { segment, free });
        let last = self.chunks.len() - 1;
        Ok(&mut self.chunks[last])
    }

    /// Frees a piece. Returns false if there is none. A chunk that becomes empty is freed, unless
    /// it is the last.
    pub(crate) fn free(&mut self, pointer: GlobalPtr<u8>) -> bool {
        let Some(bytes) = self.pieces.remove(&pointer) else {
            return false;
        };
        let (segment, offset) = (pointer.segment(), pointer.offset());
        let of = |chunk: &Chunk| chunk.segment.key().segment == u32::from(segment);
        let Some(at) = self.chunks.iter().position(of) else {
            return false;
        };
        self.mark(segment, offset, bytes, 0);
        let chunk = &mut self.chunks[at];
        chunk.free.free_range(offset..offset + bytes);
        if chunk.free.is_empty() && self.chunks.len() > 1 {
            self.chunks.swap_remove(at);
        }
        true
    }
}
