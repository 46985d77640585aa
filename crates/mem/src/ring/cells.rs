//! The algorithm of the ring, over any [`Medium`]: shared memory in production, loom's cells in the
//! model checker.

use super::{CELLS, FIRST_BYTES, INLINE_BYTES, NEXT_BYTES};
use crate::Corrupt;
use crate::sync::{AtomicU64, Ordering};

/// The memory of a ring's cells.
pub trait Medium {
    /// Returns the first word of a cell.
    fn header(&self, cell: u64) -> &AtomicU64;
    /// Returns the number of consumed cells, written by the consumer.
    fn head(&self) -> &AtomicU64;
    /// Returns the number of consumed bulk bytes, written by the consumer.
    fn bulk_head(&self) -> &AtomicU64;
    /// Writes bytes of a cell, `at` bytes from its start.
    fn write(&self, cell: u64, at: usize, from: &[u8]);
    /// Reads bytes of a cell.
    fn read(&self, cell: u64, at: usize, into: &mut [u8]);
    /// Prefetches a cell that will be read soon.
    fn prefetch(&self, _cell: u64) {}
    /// Prefetches a cell that will be written soon.
    fn prefetch_write(&self, _cell: u64) {}
}

/// The ring is full; try again after the consumer has advanced. Not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A frame as the consumer sees it: private copies, checked.
#[derive(Debug)]
pub struct Frame<'a> {
    /// The kind, for the layer above.
    pub kind: u8,
    /// One word for the layer above (a tag, an id).
    pub arg: u64,
    /// The bytes in the cells.
    pub inline: &'a [u8],
    /// Start and length of the body in the bulk area, if there is one.
    pub bulk: Option<(u64, u64)>,
}

const BULK: u8 = 0x80;
/// Bytes of the bulk reference that precede the inline bytes of a frame with a body.
const BULK_REFERENCE: usize = 16;

fn header(position: u64, kind: u8, cells: u8, bulk: bool, len: usize) -> u64 {
    let shape = if bulk { cells | BULK } else { cells };
    (sequence(position) as u64) << 32 | (kind as u64) << 24 | (shape as u64) << 16 | len as u64
}

/// Returns the sequence of a position. It is never zero, the value in fresh and continuation cells
/// (R4), even after 2^32 cells.
fn sequence(position: u64) -> u32 {
    position as u32 | 1 << 31
}

#[inline(always)]
fn cells_for(bytes: usize) -> usize {
    if bytes <= FIRST_BYTES {
        1
    } else {
        1 + (bytes - FIRST_BYTES).div_ceil(NEXT_BYTES)
    }
}

/// Bodies up to this size, in bytes, cycle through the first [`SMALL_LAP`] bytes of the area.
const SMALL_BODY: u64 = 4 << 10;
const SMALL_LAP: u64 = 16 << 10;
/// Bytes that the consumer takes from the area before it updates `bulk_head`.
const TELL: u64 = 4 << 10;
const _: () = assert!(TELL + SMALL_BODY <= SMALL_LAP - SMALL_BODY);

/// How many cells ahead a consumer prefetches in a run of frames.
const LOOK_AHEAD: u64 = 4;
/// How many cells ahead a producer prefetches in a burst of frames.
const BURST_CELLS: u64 = 12;

/// The writing end.
#[derive(Debug)]
pub struct Producer<M> {
    /// The memory of the cells.
    pub medium: M,
    tail: u64,
    head_seen: u64,
    bulk_tail: u64,
    bulk_head_seen: u64,
    bulk_bytes: u64,
    /// Cells of the last frame.
    last_cells: u64,
    /// Cells whose lines were prefetched.
    warmed: u64,
}

impl<M: Medium> Producer<M> {
    /// Creates the writing end of a fresh ring.
    pub fn new(medium: M) -> Self {
        Producer {
            medium,
            tail: 0,
            head_seen: 0,
            bulk_tail: 0,
            bulk_head_seen: 0,
            bulk_bytes: 0,
            last_cells: 1,
            warmed: 0,
        }
    }

    /// Sets the size of the bulk area, once it exists.
    pub fn set_bulk_bytes(&mut self, bytes: u64) {
        self.bulk_bytes = bytes;
    }

    /// Returns the size of the bulk area in bytes, 0 while there is none.
    pub fn bulk_bytes(&self) -> u64 {
        self.bulk_bytes
    }

    /// Returns the number of cells that are published and perhaps not consumed yet.
    pub fn in_flight(&mut self) -> u64 {
        // ORDERING: Acquire pairs with the consumer's Release store of `head` (R2).
        let head = self.medium.head().load(Ordering::Acquire);
        // A valid consumer advances, and not beyond the published cells. Another value is ignored:
        // the ring then stays full, and all sums stay in range.
        if (self.head_seen..=self.tail).contains(&head) {
            self.head_seen = head;
        }
        self.tail - self.head_seen
    }

    /// Reads the consumer's position in the bulk area, like [`Producer::in_flight`].
    fn see_bulk_head(&mut self) {
        // ORDERING: Acquire pairs with the consumer's Release store of `bulk_head` (R5).
        let head = self.medium.bulk_head().load(Ordering::Acquire);
        if (self.bulk_head_seen..=self.bulk_tail).contains(&head) {
            self.bulk_head_seen = head;
        }
    }

    /// Publishes a frame without a body; leaves at least `reserve` cells free.
    #[inline(always)]
    pub fn push(&mut self, kind: u8, arg: u64, inline: &[u8], reserve: u64) -> Result<(), Full> {
        self.publish(kind, arg, &[], inline, reserve)
    }

    /// Finds space for a frame with a body of `bytes`, and returns where to write the body in the
    /// bulk area. [`Producer::push_bulk`] must then publish the body with the same position.
    pub fn reserve_bulk(&mut self, inline: usize, bytes: u64, reserve: u64) -> Result<u64, Full> {
        let cells = cells_for(BULK_REFERENCE + inline) as u64;
        // Without an area, there is no space for an empty body either.
        if bytes.max(1) > self.bulk_bytes || !self.has_capacity(cells + reserve) {
            return Err(Full);
        }
        let start = self.bulk_start(bytes);
        if start + bytes - self.bulk_head_seen > self.bulk_bytes {
            self.see_bulk_head();
            if start + bytes - self.bulk_head_seen > self.bulk_bytes {
                return Err(Full);
            }
        }
        Ok(start)
    }

    /// Publishes a frame whose body was written at `start`, from [`Producer::reserve_bulk`].
    pub fn push_bulk(&mut self, kind: u8, arg: u64, inline: &[u8], start: u64, bytes: u64) {
        let mut reference = [0; BULK_REFERENCE];
        reference[..8].copy_from_slice(&start.to_le_bytes());
        reference[8..].copy_from_slice(&bytes.to_le_bytes());
        let published = self.publish(kind, arg, &reference, inline, 0);
        debug_assert_eq!(published, Ok(()), "room was reserved");
        self.bulk_tail = start + bytes;
    }

    /// Returns the position of the next body of this size, if there is space for it now; for
    /// prefetching.
    #[inline]
    pub fn next_bulk(&self, bytes: u64) -> Option<u64> {
        if bytes == 0 || bytes > self.bulk_bytes {
            return None;
        }
        let start = self.bulk_start(bytes);
        (start + bytes - self.bulk_head_seen <= self.bulk_bytes).then_some(start)
    }

    /// Returns the position of a body that is not split by the end of the area. Small bodies use
    /// only the beginning of the area and skip the rest of the lap, so that areas that many pairs
    /// use in turn stay in the cache.
    fn bulk_start(&self, bytes: u64) -> u64 {
        let lap = self.bulk_bytes;
        let end = if bytes <= SMALL_BODY {
            lap.min(SMALL_LAP)
        } else {
            lap
        };
        // Bodies begin at a cache line, so that the two sides never share one.
        let aligned = self.bulk_tail.next_multiple_of(crate::LINE);
        if aligned % lap + bytes <= end {
            aligned
        } else {
            (aligned / lap + 1) * lap
        }
    }

    /// Prefetches lines that will be written soon. The consumer has them from the last lap; getting
    /// a line back costs a round trip to the other core, which is better made while no one waits
    /// for it. After a frame of several cells, these are the further cells of a similar next frame,
    /// but not its first cell, which the consumer is polling. In a `burst` of frames, they are the
    /// cells ahead.
    #[inline(always)]
    pub fn warm(&mut self, burst: bool) {
        let ahead = if burst { BURST_CELLS } else { self.last_cells };
        if self.tail + ahead > self.head_seen + CELLS {
            return;
        }
        let from = if burst {
            self.warmed.max(self.tail + 1)
        } else {
            self.tail + 1
        };
        for position in from..self.tail + ahead {
            self.medium.prefetch_write(position % CELLS);
        }
        self.warmed = self.tail + ahead;
    }

    #[inline(always)]
    fn has_capacity(&mut self, cells: u64) -> bool {
        if self.tail + cells - self.head_seen <= CELLS {
            return true;
        }
        self.in_flight() + cells <= CELLS
    }

    #[inline(always)]
    fn publish(
        &mut self,
        kind: u8,
        arg: u64,
        reference: &[u8],
        inline: &[u8],
        reserve: u64,
    ) -> Result<(), Full> {
        let len = reference.len() + inline.len();
        assert!(
            len <= INLINE_BYTES,
            "{len} bytes do not fit into the cells of one frame"
        );
        let cells = cells_for(len);
        if !self.has_capacity(cells as u64 + reserve) {
            return Err(Full);
        }
        let first = self.tail;
        let mut rest = inline;
        if cells > 1 {
            let (head, tail) = rest.split_at(FIRST_BYTES - reference.len());
            rest = head;
            for (index, part) in tail.chunks(NEXT_BYTES).enumerate() {
                let cell = (first + 1 + index as u64) % CELLS;
                // R4. Relaxed: ordered before the first header by its Release.
                self.medium.header(cell).store(0, Ordering::Relaxed);
                self.medium.write(cell, 8, part);
            }
        }
        let cell = first % CELLS;
        self.medium.write(cell, 8, &arg.to_le_bytes());
        if !reference.is_empty() {
            self.medium.write(cell, 16, reference);
        }
        self.medium.write(cell, 16 + reference.len(), rest);
        let word = header(first, kind, cells as u8, !reference.is_empty(), len);
        // ORDERING: Release pairs with the Acquire load in `Consumer::peek` (R3).
        self.medium.header(cell).store(word, Ordering::Release);
        self.tail = first + cells as u64;
        self.last_cells = cells as u64;
        Ok(())
    }
}

/// The reading end.
#[derive(Debug)]
pub struct Consumer<M> {
    /// The memory of the cells.
    pub medium: M,
    head: u64,
    head_told: u64,
    bulk_head: u64,
    bulk_told: u64,
    bulk_bytes: u64,
    body_max: u64,
    /// Cell and bulk position after the frame that was peeked last.
    next: (u64, u64),
    inline: [u8; INLINE_BYTES],
}

impl<M: Medium> Consumer<M> {
    /// Creates the reading end of a fresh ring.
    pub fn new(medium: M) -> Self {
        Consumer {
            medium,
            head: 0,
            head_told: 0,
            bulk_head: 0,
            bulk_told: 0,
            bulk_bytes: 0,
            body_max: 0,
            next: (0, 0),
            inline: [0; INLINE_BYTES],
        }
    }

    /// Sets the size of the bulk area, once it is known, and the maximum length of a body in it; a
    /// longer one is [`Corrupt`].
    pub fn set_bulk(&mut self, bytes: u64, body_max: u64) {
        self.bulk_bytes = bytes;
        self.body_max = body_max.min(bytes);
    }

    /// Returns the size of the bulk area, 0 while it is not known.
    pub fn bulk_bytes(&self) -> u64 {
        self.bulk_bytes
    }

    /// In a run of frames: prefetches a cell that the producer has probably written already.
    #[inline(always)]
    pub fn look_ahead(&self) {
        self.medium.prefetch((self.head + LOOK_AHEAD) % CELLS);
    }

    /// Returns true if a frame is waiting. One load of the line that will contain the next frame.
    #[inline(always)]
    pub fn ready(&self) -> bool {
        // ORDERING: Relaxed is enough for a check; `peek` loads again with Acquire.
        let word = self
            .medium
            .header(self.head % CELLS)
            .load(Ordering::Relaxed);
        (word >> 32) as u32 == sequence(self.head)
    }

    /// Returns whether the next frame has a body, `None` while there is no frame. A frame with a
    /// body is not peeked before the bulk area is known ([`Consumer::set_bulk`]); this call reveals
    /// that one is waiting for that.
    pub fn next_has_body(&self) -> Option<bool> {
        // ORDERING: Acquire pairs with the producer's Release store of this header (R3): the bulk
        // area was published before it, and is read next.
        let word = self
            .medium
            .header(self.head % CELLS)
            .load(Ordering::Acquire);
        let is_there = (word >> 32) as u32 == sequence(self.head);
        is_there.then_some((word >> 16) as u8 & BULK != 0)
    }

    /// Returns the next frame, or `None`; [`Consumer::advance`] frees its space.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Frame<'_>>, Corrupt> {
        Ok(self.peek_with_medium()?.map(|(frame, _)| frame))
    }

    /// Peeks like [`Consumer::peek`], and also returns the medium that contains the body. `None`
    /// also for a frame with a body while the bulk area is not known.
    #[inline(always)]
    pub fn peek_with_medium(&mut self) -> Result<Option<(Frame<'_>, &M)>, Corrupt> {
        let cell = self.head % CELLS;
        // ORDERING: Acquire pairs with the producer's Release store of this header (R3).
        let word = self.medium.header(cell).load(Ordering::Acquire);
        if (word >> 32) as u32 != sequence(self.head) {
            return Ok(None);
        }
        let (kind, shape, len) = (
            (word >> 24) as u8,
            (word >> 16) as u8,
            (word & 0xffff) as usize,
        );
        let (cells, has_bulk) = ((shape & !BULK) as usize, shape & BULK != 0);
        if len > INLINE_BYTES || cells != cells_for(len) {
            return Err(Corrupt {
                what: "the length of a frame",
                value: word & 0xffff_ffff,
            });
        }
        if has_bulk && len < BULK_REFERENCE {
            return Err(Corrupt {
                what: "the length of a frame with a body",
                value: len as u64,
            });
        }
        if has_bulk && self.bulk_bytes == 0 {
            return Ok(None);
        }
        // Prefetch the further cells first: their lines travel while the first one is read.
        for next in 1..cells as u64 {
            self.medium.prefetch((self.head + next) % CELLS);
        }
        let mut arg = [0; 8];
        self.medium.read(cell, 8, &mut arg);
        let first = len.min(FIRST_BYTES);
        self.medium.read(cell, 16, &mut self.inline[..first]);
        for (index, part) in self.inline[first..len].chunks_mut(NEXT_BYTES).enumerate() {
            self.medium
                .read((self.head + 1 + index as u64) % CELLS, 8, part);
        }
        self.next = (self.head + cells as u64, self.bulk_head);
        let bulk = if has_bulk {
            Some(self.bulk_reference()?)
        } else {
            None
        };
        let inline = &self.inline[if has_bulk { BULK_REFERENCE } else { 0 }..len];
        Ok(Some((
            Frame {
                kind,
                arg: u64::from_le_bytes(arg),
                inline,
                bulk,
            },
            &self.medium,
        )))
    }

    /// Checks the position and length of the body of the current frame (R5). The area is known.
    fn bulk_reference(&mut self) -> Result<(u64, u64), Corrupt> {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&self.inline[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let (start, bytes) = (word(0), word(8));
        if bytes > self.body_max {
            return Err(Corrupt {
                what: "the length of a body",
                value: bytes,
            });
        }
        let skipped = start.wrapping_sub(self.bulk_head);
        let inside =
            skipped <= self.bulk_bytes && start % self.bulk_bytes + bytes <= self.bulk_bytes;
        let Some(end) = start.checked_add(bytes).filter(|_| inside) else {
            return Err(Corrupt {
                what: "the position of a body",
                value: start,
            });
        };
        self.next.1 = end;
        Ok((start % self.bulk_bytes, bytes))
    }

    /// Consumes the frame that was peeked last. The producer learns of free space in batches: one
    /// line moves per quarter of the ring instead of per frame.
    #[inline(always)]
    pub fn advance(&mut self) {
        (self.head, self.bulk_head) = self.next;
        if self.head - self.head_told >= CELLS / 4 {
            // ORDERING: Release pairs with the Acquire load in `Producer::in_flight` (R2).
            self.medium.head().store(self.head, Ordering::Release);
            self.head_told = self.head;
        }
        // Often enough that a producer which skipped to the next lap never waits for an update that
        // an idle consumer would not make: the lag stays below SMALL_LAP - 2 SMALL_BODY.
        if self.bulk_head - self.bulk_told >= TELL.min(self.bulk_bytes / 8).max(1) {
            // ORDERING: Release pairs with the Acquire load in `Producer::reserve_bulk` (R5).
            self.medium
                .bulk_head()
                .store(self.bulk_head, Ordering::Release);
            self.bulk_told = self.bulk_head;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Arena;
    use crate::ring::{RING_BYTES, SharedRing};

    #[test]
    fn without_an_area_there_is_no_space_for_an_empty_body() {
        let arena = Arena::create(RING_BYTES).unwrap();
        let ring = SharedRing::new(arena.bytes(0, RING_BYTES).unwrap()).unwrap();
        assert_eq!(Producer::new(ring).reserve_bulk(0, 0, 0), Err(Full));
    }

    /// After 2^32 cells, a continuation cell (zero) must not look like the frame of that position.
    #[test]
    fn the_sequence_wraps() {
        let arena = Arena::create(RING_BYTES).unwrap();
        let ring = || SharedRing::new(arena.bytes(0, RING_BYTES).unwrap()).unwrap();
        let (mut producer, mut consumer) = (Producer::new(ring()), Consumer::new(ring()));
        for wrap in [31, 32] {
            let start = (1u64 << wrap) - 2 * CELLS;
            (producer.tail, producer.head_seen) = (start, start);
            (consumer.head, consumer.head_told, consumer.next.0) = (start, start, start);
            consumer.medium.head().store(start, Ordering::Relaxed);
            for number in 0..4 * CELLS {
                assert!(!consumer.ready() && consumer.peek().unwrap().is_none());
                let len = (number * 7) as usize % INLINE_BYTES;
                producer
                    .push(1, number, &vec![number as u8; len], 0)
                    .unwrap();
                let frame = consumer.peek().unwrap().expect("it was published");
                assert_eq!(
                    (frame.arg, frame.inline),
                    (number, &vec![number as u8; len][..])
                );
                consumer.advance();
            }
        }
    }
}
