//! Elements that are not consecutive: blocks at a constant distance, and elements by a list.
//!
//! On mapped memory, this is a loop over blocks. Otherwise one message is sent per block, all of
//! them before the first answer is awaited; the fabric limits how many may be unanswered per peer.

use super::{Segment, Shared};
use crate::check::AccessKind;
use crate::{Elem, Error, Result};
use samite_mem::Blocks;
use std::panic::Location;

/// A set of blocks: `count` blocks of `block` elements, each `stride` elements after the previous
/// one, the first at `first`.
///
/// ```
/// # use samite_fabric::{Config, Fabric, Identity};
/// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
/// # let pgas = samite_pgas::Pgas::new(&fabric)?;
/// # let world = pgas.world();
/// use samite_pgas::Strided;
/// let matrix = world.allocate::<f64>(10 * 20)?; // 10 rows of 20 columns
/// let column = Strided { first: 3, count: 10, block: 1, stride: 20 };
/// matrix.put_strided(0, column, &[1.0; 10])?; // column 3
/// assert_eq!(matrix.get_value(0, 9 * 20 + 3)?, 1.0);
/// # matrix.free()?;
/// # Ok::<(), samite_pgas::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strided {
    /// The index of the first element.
    pub first: u64,
    /// The number of blocks.
    pub count: u64,
    /// The number of elements of a block.
    pub block: u64,
    /// The number of elements from the start of one block to the start of the next.
    pub stride: u64,
}

impl Strided {
    /// Returns the total number of elements.
    pub fn elements(&self) -> u64 {
        self.count.saturating_mul(self.block)
    }
}

impl<T: Elem> Segment<T, Shared> {
    /// Copies `from`, which is contiguous, to blocks of the part of `rank`. One-sided; locally and
    /// remotely complete when it returns.
    ///
    /// # Errors
    /// [`Error::WrongLength`], [`Error::OutOfRange`] (before anything is written); a lost unit.
    #[track_caller]
    pub fn put_strided(&self, rank: u32, place: Strided, from: &[T]) -> Result<()> {
        self.check_strided(rank, place, from.len())?;
        if from.is_empty() {
            return Ok(());
        }
        self.watch_strided(rank, place, AccessKind::Put)?;
        if let Some(window) = self.window(rank)
            && window.write_blocks(place.bytes::<T>(), crate::bytes_of(from))
        {
            return Ok(());
        }
        let blocks = from.chunks(place.block.max(1) as usize);
        self.put_blocks(
            rank,
            blocks
                .enumerate()
                .map(|(at, block)| (place.index(at), block)),
        )
    }

    /// Copies blocks of the part of `rank` to `into`, where they are contiguous.
    #[track_caller]
    pub fn get_strided(&self, rank: u32, place: Strided, into: &mut [T]) -> Result<()> {
        self.check_strided(rank, place, into.len())?;
        if into.is_empty() {
            return Ok(());
        }
        self.watch_strided(rank, place, AccessKind::Get)?;
        if let Some(window) = self.window(rank)
            && window.read_blocks(place.bytes::<T>(), crate::bytes_of_mut(into))
        {
            return Ok(());
        }
        let blocks = into.chunks_mut(place.block.max(1) as usize);
        self.get_blocks(
            rank,
            blocks
                .enumerate()
                .map(|(at, block)| (place.index(at), block)),
        )
    }

    /// Copies `from[i]` to the element `indices[i]` of the part of `rank`. One-sided; complete when
    /// it returns. If an index occurs twice, its element gets one of the values.
    #[track_caller]
    pub fn put_indexed(&self, rank: u32, indices: &[u64], from: &[T]) -> Result<()> {
        same_length(indices.len(), from.len())?;
        self.watch_indexed(rank, indices, AccessKind::Put)?;
        let elements = indices.iter().zip(from);
        self.put_blocks(
            rank,
            elements.map(|(index, value)| (*index, std::slice::from_ref(value))),
        )
    }

    /// Copies the element `indices[i]` of the part of `rank` to `into[i]`.
    #[track_caller]
    pub fn get_indexed(&self, rank: u32, indices: &[u64], into: &mut [T]) -> Result<()> {
        same_length(indices.len(), into.len())?;
        self.watch_indexed(rank, indices, AccessKind::Get)?;
        let elements = indices.iter().zip(into);
        self.get_blocks(
            rank,
            elements.map(|(index, value)| (*index, std::slice::from_mut(value))),
        )
    }

    fn put_blocks<'b>(
        &self,
        rank: u32,
        blocks: impl Iterator<Item = (u64, &'b [T])>,
    ) -> Result<()> {
        let mut pending = Vec::new();
        for (index, block) in blocks {
            let remote = self.part_of(rank, index, block.len())?;
            let started = remote.put_nb(self.offset(index), crate::bytes_of(block));
            let handle = started.map_err(|error| self.say(error, rank, index, block.len()))?;
            if !handle.is_complete() {
                pending.push(handle);
            }
        }
        samite_fabric::wait_all(pending)?;
        Ok(())
    }

    fn get_blocks<'b>(
        &self,
        rank: u32,
        blocks: impl Iterator<Item = (u64, &'b mut [T])>,
    ) -> Result<()> {
        self.team().fabric().scope(|scope| {
            let mut pending = Vec::new();
            for (index, block) in blocks {
                let count = block.len();
                let remote = self.part_of(rank, index, count)?;
                let started = scope.get(remote, self.offset(index), crate::bytes_of_mut(block));
                let handle = started.map_err(|error| self.say(error, rank, index, count))?;
                if !handle.is_complete() {
                    pending.push(handle);
                }
            }
            samite_fabric::wait_all(pending)?;
            Ok(())
        })
    }

    #[track_caller]
    fn watch_strided(&self, rank: u32, place: Strided, kind: AccessKind) -> Result<()> {
        if !self.parts.checked {
            return Ok(());
        }
        let blocks = (0..place.count as usize).map(|at| place.index(at));
        let blocks = blocks.map(|first| first..first + place.block);
        self.watch_all(rank, blocks, kind, Location::caller())
    }

    #[track_caller]
    fn watch_indexed(&self, rank: u32, indices: &[u64], kind: AccessKind) -> Result<()> {
        if !self.parts.checked {
            return Ok(());
        }
        let elements = indices.iter().map(|index| *index..index.saturating_add(1));
        self.watch_all(rank, elements, kind, Location::caller())
    }

    fn check_strided(&self, rank: u32, place: Strided, given: usize) -> Result<()> {
        if place.elements() != given as u64 {
            return Err(Error::WrongLength {
                what: "the elements of a strided copy",
                expected: place.elements(),
                found: given as u64,
            });
        }
        let (len, unit) = (self.len_of(rank)?, self.team().unit(rank)?);
        // Empty blocks are valid anywhere, however many there are.
        if given == 0 {
            return Ok(());
        }
        let last = place.count - 1;
        let start = last
            .checked_mul(place.stride)
            .and_then(|past| past.checked_add(place.first));
        let end = start.and_then(|start| start.checked_add(place.block));
        match end {
            Some(end) if end <= len => Ok(()),
            _ => Err(super::out_of_range(
                self.team(),
                unit,
                place.first,
                place.elements(),
                len,
            )),
        }
    }
}

impl Strided {
    #[inline(always)]
    fn index(&self, block: usize) -> u64 {
        self.first + block as u64 * self.stride
    }

    /// Converts to bytes. What does not fit into 64 bits is longer than any memory.
    fn bytes<T>(&self) -> Blocks {
        let bytes = |elements: u64| elements.saturating_mul(size_of::<T>() as u64);
        Blocks {
            first: bytes(self.first),
            count: self.count,
            block: bytes(self.block),
            stride: bytes(self.stride),
        }
    }
}

fn same_length(indices: usize, elements: usize) -> Result<()> {
    if indices == elements {
        return Ok(());
    }
    Err(Error::WrongLength {
        what: "one element for each index",
        expected: indices as u64,
        found: elements as u64,
    })
}
