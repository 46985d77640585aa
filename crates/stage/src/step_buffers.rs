//! The buffers of a step: where the bytes of its blocks are, and how a box of them is read.
//!
//! [`Buffers`] are the attached buffers of one step. Mapped bytes are copied at once. The others
//! are requested from all block stores at the same time, starting with a different one at every
//! reader rank, and are copied as they arrive: in pieces, few of which are in flight, so that
//! neither the block store nor the reader has more of a block than these in its own memory.
//!
//! If a block store is lost in the meantime, its copy of a buffer is replaced by another one, if
//! there is any; otherwise the error is [`Fault::Damaged`].

use crate::client::Client;
use crate::contents::{BlockAt, Indexed};
use crate::protocol::{BlockOffsets, BufferAt, Fault, Peer, Slot, Step, StepRecord};
use crate::service::{BlockStoreRequest, LOAD, segment_key};
use crate::space::{Strided, copy_box};
use crate::{Error, Region, Result};
use samite_fabric::{Handle, Remote, SegmentKey, wait_all};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Runs of a box shorter than this are sent together.
const SHORT: u64 = 4096;

/// Maximum bytes of one request.
const PIECE: u64 = 512 << 10;

/// Maximum bytes that a read has in flight, in addition to the last requested piece.
const IN_FLIGHT: u64 = 2 << 20;

/// The buffers of a step, by writer rank and slot.
pub(crate) struct Buffers {
    client: Arc<Client>,
    step: Step,
    /// Where requests begin: at a different block store for every reader rank.
    turn: u32,
    buffers: Vec<Vec<Buffer>>,
    places: Vec<BlockOffsets>,
}

/// One buffer.
struct Buffer {
    /// All copies that existed when the step was taken; the first one is attached.
    copies: Slot<BufferAt>,
    reached: Reached,
}

/// How the bytes of a buffer are accessed.
enum Reached {
    Near(Remote),
    OnDisk,
}

/// A part of a block that is not mapped here and has been requested.
struct Flight<'r> {
    block: &'r BlockAt,
    part: Region,
    bytes: u64,
    runs: Vec<Handle<Vec<u8>>>,
}

/// The destination of a box.
struct Target<'t> {
    element: u64,
    into: &'t mut [u8],
    at: Strided,
}

impl Buffers {
    /// Attaches the buffers of a step.
    ///
    /// # Errors
    /// A buffer without any remaining copy.
    pub(crate) fn reach(client: Arc<Client>, record: StepRecord, turn: u32) -> Result<Buffers> {
        let mut step = Buffers {
            client,
            step: record.step,
            turn,
            buffers: Vec::with_capacity(record.parts.len()),
            places: Vec::with_capacity(record.parts.len()),
        };
        for part in record.parts.iter() {
            let slots = part.slots.iter();
            let slots = slots.map(|copies| step.buffer(copies.clone()));
            let slots = slots.collect::<Result<_>>()?;
            step.buffers.push(slots);
            step.places.push(part.places.clone());
        }
        Ok(step)
    }

    fn buffer(&self, mut copies: Slot<BufferAt>) -> Result<Buffer> {
        // Different readers start with different copies.
        if !copies.is_empty() {
            let first = self.turn as usize % copies.len();
            copies.rotate_left(first);
        }
        let mut last = None;
        for number in 0..copies.len() {
            match self.reach_one(&copies[number]) {
                Ok(reached) => {
                    copies.rotate_left(number);
                    return Ok(Buffer { copies, reached });
                }
                Err(error) => last = Some(error),
            }
        }
        Err(self.lost(&copies, last))
    }

    fn reach_one(&self, at: &BufferAt) -> Result<Reached> {
        if at.on_disk {
            return Ok(Reached::OnDisk);
        }
        Ok(Reached::Near(self.client.fabric.attach(segment_key(at))?))
    }

    /// Returns the error for a buffer without any remaining copy.
    fn lost(&self, copies: &[BufferAt], error: Option<Error>) -> Error {
        match error {
            Some(error) if !error.is_loss() => error,
            _ => Error::Fault(Fault::Damaged {
                step: self.step,
                block_stores: copies
                    .iter()
                    .map(|at| self.client.named(at.block_store))
                    .collect(),
            }),
        }
    }

    /// Returns the dense bytes of a block, if they are mapped here.
    pub(crate) fn mapped(&self, block: &BlockAt, element: u64) -> Result<Option<&[u8]>> {
        match &self.at(block).reached {
            Reached::Near(remote) => Ok(self.bytes_of(remote, block, element)?),
            Reached::OnDisk => Ok(None),
        }
    }

    /// Returns the segment of the first copy of a block, and where the block begins there, if it is
    /// in memory.
    pub(crate) fn key(&self, block: &BlockAt) -> Option<(SegmentKey, u64)> {
        match &self.at(block).reached {
            Reached::Near(remote) => Some((remote.key(), self.offset(block))),
            Reached::OnDisk => None,
        }
    }

    /// Returns the blocks that a box touches, each with its part of the box.
    ///
    /// # Errors
    /// The box has holes.
    pub(crate) fn parts<'v>(
        &self,
        variable: &'v Indexed,
        region: &Region,
    ) -> Result<Vec<(&'v BlockAt, Region)>> {
        let parts = variable.index.query(region);
        let parts: Vec<_> = parts
            .map(|(block, part)| (&variable.blocks[block as usize], part))
            .collect();
        let volumes = parts.iter().map(|(_, part)| part.volume().unwrap_or(0));
        match Some(volumes.sum()) == region.volume() {
            true => Ok(parts),
            false => Err(variable.hole(self.step, region)),
        }
    }

    fn at(&self, block: &BlockAt) -> &Buffer {
        &self.buffers[block.rank as usize][block.slot as usize]
    }

    fn offset(&self, block: &BlockAt) -> u64 {
        match &self.places[block.rank as usize] {
            BlockOffsets::Packed => block.packed,
            BlockOffsets::Listed(offsets) => offsets[block.number],
        }
    }

    fn bytes_of<'r>(
        &self,
        remote: &'r Remote,
        block: &BlockAt,
        element: u64,
    ) -> Result<Option<&'r [u8]>> {
        let Some(readable) = remote.readable() else {
            return Ok(None);
        };
        let begin = self.offset(block);
        let bytes = block.region.bytes(element)?;
        let end = begin.saturating_add(bytes);
        let all = readable.as_slice::<u8>();
        let inside = all.get(begin as usize..end as usize);
        let beyond = || Error::Nonsense(format!("a block at {begin}..{end} of {}", all.len()));
        inside.map(Some).ok_or_else(beyond)
    }

    /// Copies a box, dense and row-major, to `into`.
    pub(crate) fn copy(&self, variable: &Indexed, region: &Region, into: &mut [u8]) -> Result<()> {
        let mut target = Target {
            element: variable.info.dtype.bytes(),
            into,
            at: Strided::dense(region.clone())?,
        };
        let mut far = Vec::new();
        for (block, part) in self.parts(variable, region)? {
            match self.mapped(block, target.element)? {
                Some(bytes) => target.take_block(block, bytes)?,
                None => {
                    let pieces = pieces(part, target.element, PIECE)?;
                    far.extend(pieces.into_iter().map(|piece| (block, piece)));
                }
            }
        }
        self.fetch(far, &mut target)
    }

    /// Reads parts of blocks that are not mapped here.
    fn fetch<'r>(
        &'r self,
        parts: Vec<(&'r BlockAt, Region)>,
        target: &mut Target<'_>,
    ) -> Result<()> {
        let (mut flights, mut bytes) = (VecDeque::new(), 0);
        for (block, part) in self.in_turn(parts) {
            let Buffer { copies, reached } = self.at(block);
            let Reached::Near(remote) = reached else {
                match self.load(&copies[0], block, &part, target.element) {
                    Ok(together) => target.take(part, &together)?,
                    Err(error) => self.elsewhere(block, part, error, target)?,
                }
                continue;
            };
            let flight = match self.start(remote, block, part.clone(), target.element) {
                Ok(flight) => flight,
                Err(error) => {
                    self.elsewhere(block, part, error, target)?;
                    continue;
                }
            };
            // Limit what is in flight: finish the oldest parts first.
            bytes += flight.bytes;
            flights.push_back(flight);
            while bytes > IN_FLIGHT && flights.len() > 1 {
                if let Some(flight) = flights.pop_front() {
                    bytes -= flight.bytes;
                    self.land(flight, target)?;
                }
            }
        }
        flights
            .into_iter()
            .try_for_each(|flight| self.land(flight, target))
    }

    /// Alternates between the block stores, so that all of them are asked at the same time.
    fn in_turn<'r>(&self, parts: Vec<(&'r BlockAt, Region)>) -> Vec<(&'r BlockAt, Region)> {
        let mut block_stores: BTreeMap<Option<Peer>, VecDeque<_>> = BTreeMap::new();
        for (block, part) in parts {
            let block_store = self.at(block).copies.first().map(|at| at.block_store);
            block_stores
                .entry(block_store)
                .or_default()
                .push_back((block, part));
        }
        let mut queues: VecDeque<_> = block_stores.into_values().collect();
        if !queues.is_empty() {
            let first = self.turn as usize % queues.len();
            queues.rotate_left(first);
        }
        let mut order = Vec::new();
        while let Some(mut queue) = queues.pop_front() {
            order.extend(queue.pop_front());
            if !queue.is_empty() {
                queues.push_back(queue);
            }
        }
        order
    }

    /// Requests only the runs of a part.
    fn start<'r>(
        &self,
        remote: &Remote,
        block: &'r BlockAt,
        part: Region,
        element: u64,
    ) -> Result<Flight<'r>> {
        // An offset may be any number: beyond the buffer, the fabric refuses it.
        let offset = self.offset(block);
        let at = |start: &u64| offset.saturating_add(*start);
        let (run, starts) = runs(&block.region, &part, element)?;
        let bytes = part.bytes(element)?;
        let runs = if run < SHORT {
            let offsets: Vec<u64> = starts.iter().map(at).collect();
            vec![remote.get_batch(run, &offsets)?]
        } else {
            let handles: samite_fabric::Result<_> = starts
                .iter()
                .map(|start| remote.get_nb(at(start), run))
                .collect();
            handles?
        };
        Ok(Flight {
            block,
            part,
            bytes,
            runs,
        })
    }

    fn land(&self, flight: Flight<'_>, target: &mut Target<'_>) -> Result<()> {
        match wait_all(flight.runs) {
            Ok(runs) => target.take(flight.part, &joined(runs)),
            Err(error) => self.elsewhere(flight.block, flight.part, error.into(), target),
        }
    }

    /// Reads a part from another copy than the first one, which failed.
    fn elsewhere(
        &self,
        block: &BlockAt,
        part: Region,
        error: Error,
        target: &mut Target<'_>,
    ) -> Result<()> {
        let copies = &self.at(block).copies;
        let mut last = error;
        for at in copies.iter().skip(1) {
            if !last.is_loss() {
                return Err(last);
            }
            let taken = self.reach_one(at).and_then(|reached| match reached {
                Reached::OnDisk => self.load(at, block, &part, target.element),
                Reached::Near(remote) => {
                    let flight = self.start(&remote, block, part.clone(), target.element)?;
                    Ok(joined(wait_all(flight.runs)?))
                }
            });
            match taken {
                Ok(together) => return target.take(part, &together),
                Err(error) => last = error,
            }
        }
        Err(self.lost(copies, Some(last)))
    }

    /// Loads the runs of a part of a block from a spilled copy, one after another. Gaps between
    /// runs that are close to each other are loaded, too.
    fn load(&self, at: &BufferAt, block: &BlockAt, part: &Region, element: u64) -> Result<Vec<u8>> {
        let (run, starts) = runs(&block.region, part, element)?;
        let mut together: Vec<u8> = Vec::with_capacity(starts.len() * run as usize);
        // What was loaded last, and where it begins.
        let (mut begin, mut loaded) = (0, Vec::new());
        for &start in &starts {
            let mut next = start;
            while next < start + run {
                if next >= begin + loaded.len() as u64 {
                    begin = next;
                    let bytes = window(&starts, run, next);
                    loaded = self.load_some(at, self.offset(block).saturating_add(next), bytes)?;
                }
                let there = &loaded[(next - begin) as usize..];
                let some = there.len().min((start + run - next) as usize);
                together.extend(&there[..some]);
                next += some as u64;
            }
        }
        Ok(together)
    }

    fn load_some(&self, at: &BufferAt, offset: u64, len: u64) -> Result<Vec<u8>> {
        let deadline = self.client.fabric.deadline();
        let ask = BlockStoreRequest::Load(at.buffer, offset, len);
        let bytes = self
            .client
            .request_block_store(deadline, at.block_store, ask)?;
        if bytes.len() as u64 != len {
            let there = bytes.len();
            return Err(Error::BlockStore {
                block_store: self.client.named(at.block_store),
                why: format!("it sent {there} bytes of {len} that were requested"),
            });
        }
        Ok(bytes)
    }
}

impl Target<'_> {
    /// Copies the part of this box in a whole block.
    fn take_block(&mut self, block: &BlockAt, from: &[u8]) -> Result<()> {
        let dense = Strided::dense(block.region.clone())?;
        copy_box(self.element, from, &dense, self.into, &self.at)?;
        Ok(())
    }

    /// Copies a dense part.
    fn take(&mut self, part: Region, from: &[u8]) -> Result<()> {
        copy_box(
            self.element,
            from,
            &Strided::dense(part)?,
            self.into,
            &self.at,
        )?;
        Ok(())
    }
}

/// Returns the number of bytes from `next` on, which is inside one of the runs, to load at once: up
/// to the end of the last run that begins within the limit of one message. Gaps between runs that
/// are far from each other are not loaded.
fn window(starts: &[u64], run: u64, next: u64) -> u64 {
    let near = starts.partition_point(|start| *start < next.saturating_add(LOAD));
    let last = starts[..near].last().copied().unwrap_or(next);
    (last + run).saturating_sub(next).min(LOAD)
}

/// Joins the runs of a part.
fn joined(mut runs: Vec<Vec<u8>>) -> Vec<u8> {
    match &mut runs[..] {
        [one] => std::mem::take(one),
        _ => runs.concat(),
    }
}

/// Splits a box into parts of at most so many bytes, in row-major order. A single element may be
/// longer.
pub(crate) fn pieces(part: Region, element: u64, most: u64) -> Result<Vec<Region>> {
    let (mut left, mut pieces) = (vec![part], Vec::new());
    while let Some(part) = left.pop() {
        let long = (0..part.dims()).find(|&dim| part.extent(dim) > 1);
        let Some(dim) = long.filter(|_| part.bytes(element).is_ok_and(|bytes| bytes > most)) else {
            pieces.push(part);
            continue;
        };
        let (mut lower, mut upper) = (part.lower().to_vec(), part.upper().to_vec());
        let middle = lower[dim] + part.extent(dim) / 2;
        lower[dim] = middle;
        left.push(Region::new(&lower, part.upper())?);
        upper[dim] = middle;
        left.push(Region::new(part.lower(), &upper)?);
    }
    Ok(pieces)
}

/// The contiguous runs of a box in a dense block, all of the same length.
pub(crate) struct Runs {
    /// Where the first one begins, in bytes.
    pub(crate) first: u64,
    /// Their length in bytes.
    pub(crate) bytes: u64,
    /// How often they are repeated, and how many bytes apart: the slowest dimension first.
    pub(crate) levels: Vec<(u64, u64)>,
}

impl Runs {
    pub(crate) fn of(block: &Region, part: &Region, element: u64) -> Result<Runs> {
        let dims = block.dims();
        // Trailing dimensions that are complete, and the one before them, are contiguous.
        let mut split = dims - 1;
        while split > 0 && part.extent(split) == block.extent(split) {
            split -= 1;
        }
        let strides = block.strides()?;
        let ahead = |dim: usize| (part.lower()[dim] - block.lower()[dim]) * strides[dim];
        let level = |dim: usize| (part.extent(dim), strides[dim] * element);
        Ok(Runs {
            first: (0..=split).map(ahead).sum::<u64>() * element,
            bytes: (split..dims).map(|dim| part.extent(dim)).product::<u64>() * element,
            levels: (0..split).map(level).collect(),
        })
    }

    /// Returns where each run begins, in row-major order.
    fn starts(&self) -> Vec<u64> {
        let mut starts = vec![self.first];
        for &(count, stride) in &self.levels {
            let steps = |start: u64| (0..count).map(move |at| start + at * stride);
            starts = starts.into_iter().flat_map(steps).collect();
        }
        starts
    }
}

/// Returns the contiguous runs of `part` in a dense block: their length in bytes, and where each
/// begins, in row-major order.
fn runs(block: &Region, part: &Region, element: u64) -> Result<(u64, Vec<u64>)> {
    let runs = Runs::of(block, part, element)?;
    Ok((runs.bytes, runs.starts()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_small_and_have_every_point_once() {
        for (upper, element) in [
            (vec![3, 1 << 12, 1 << 10], 8),
            (vec![1, 1, (1 << 21) + 3], 4),
            (vec![7], 8),
        ] {
            let lower = vec![1; upper.len()];
            let upper: Vec<u64> = upper.iter().map(|upper| upper + 1).collect();
            let whole = Region::new(&lower, &upper).unwrap();
            let pieces = pieces(whole.clone(), element, PIECE).unwrap();
            let volume: u64 = pieces.iter().map(|piece| piece.volume().unwrap()).sum();
            assert_eq!(Some(volume), whole.volume());
            assert!(crate::space::first_overlap(&pieces).is_none());
            for piece in &pieces {
                assert!(whole.contains(piece) && piece.bytes(element).unwrap() <= PIECE);
            }
        }
    }

    #[test]
    fn what_lies_far_between_runs_is_not_loaded() {
        let rows = |stride: u64| (0..100).map(|row| row * stride).collect::<Vec<u64>>();
        // Adjacent runs, and runs within a window, are loaded together.
        assert_eq!(window(&rows(8), 8, 0), 800);
        assert_eq!(window(&rows(8), 8, 80), 720);
        assert_eq!(window(&rows(LOAD / 4), 8, 0), 3 * LOAD / 4 + 8);
        // A column of rows that are longer than a window: one element each.
        assert_eq!(window(&rows(2 * LOAD), 8, 0), 8);
        assert_eq!(window(&rows(2 * LOAD), 8, 2 * LOAD), 8);
        // A run that is longer than a window is loaded window by window.
        assert_eq!(window(&[0], 3 * LOAD, 0), LOAD);
        assert_eq!(window(&[0], 3 * LOAD, 2 * LOAD + 5), LOAD - 5);
    }

    #[test]
    fn runs_are_as_long_as_they_can_be() {
        let block = Region::new(&[10, 0, 0], &[14, 5, 6]).unwrap();
        let part = |lower: &[u64], upper: &[u64]| {
            runs(&block, &Region::new(lower, upper).unwrap(), 8).unwrap()
        };
        assert_eq!(part(&[11, 0, 0], &[13, 5, 6]), (2 * 30 * 8, vec![30 * 8]));
        assert_eq!(
            part(&[11, 1, 0], &[13, 3, 6]),
            (12 * 8, vec![36 * 8, 66 * 8])
        );
        assert_eq!(part(&[10, 4, 5], &[12, 5, 6]), (8, vec![29 * 8, 59 * 8]));
    }
}
