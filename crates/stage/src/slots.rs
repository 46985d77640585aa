//! The buffers into which a step is written.
//!
//! A *slot* is a buffer with as many copies as there are replicas, each at another block store, and
//! all with the same bytes at the same offsets. Many blocks are packed into one slot. A copy that
//! is mapped is written as memory, others by messages.
//!
//! If a block store is lost while its copy is written, the step can still be committed as long as
//! another copy is left.

use crate::client::Client;
use crate::last::WrittenSlot;
use crate::protocol::{
    ALIGN, Answer, BufferAt, BufferId, Fault, Peer, Request, Slot, Want, WriterId,
};
use crate::service::{BlockStoreRequest, segment_key};
use crate::{Element, Error, Result};
use ndarray::{ArrayView, ArrayViewD, ArrayViewMut, Axis, Dimension};
use samite_fabric::{Borrowed, Remote};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum length of a buffer, and granularity of lengths: so that steps of about the same size
/// reuse the same memory.
const SMALLEST: u64 = 64 << 10;

/// Maximum bytes per put message.
const PIECE: usize = 1 << 20;

/// The slots of a step that is being written.
pub(crate) struct Slots {
    client: Arc<Client>,
    writer: WriterId,
    timeout: Option<Duration>,
    slots: Vec<OpenSlot>,
}

/// What a step needed: the block stores and the length of each slot.
pub(crate) type Needs = Vec<(Slot<Peer>, u64)>;

/// A buffer into which blocks are put.
struct OpenSlot {
    block_stores: Slot<Peer>,
    bytes: u64,
    used: u64,
    /// The copies that are not lost.
    copies: Vec<(BufferAt, Memory)>,
}

/// What a step was written into.
pub(crate) struct Finished {
    pub(crate) needs: Needs,
    pub(crate) names: Vec<Slot<BufferId>>,
    /// The memory of the first copy of each slot, if the step is kept.
    pub(crate) memory: Vec<WrittenSlot>,
}

enum Memory {
    Here(Borrowed),
    /// Not mapped: put by messages. Contains blocks that were allocated here and will be put.
    There(Remote, Vec<(u64, Vec<u64>)>),
}

impl Slots {
    /// Returns no slots yet. `timeout`: how long it waits for memory of living readers; `None`:
    /// without limit.
    pub(crate) fn new(client: Arc<Client>, writer: WriterId, timeout: Option<Duration>) -> Slots {
        Slots {
            client,
            writer,
            timeout,
            slots: Vec::new(),
        }
    }

    /// Opens the buffers that were given for these needs: one per block store of each, in order.
    pub(crate) fn open(&mut self, needs: Needs, buffers: Vec<BufferAt>) -> Result<()> {
        let mut buffers = buffers.into_iter();
        for (block_stores, bytes) in needs {
            let mut slot = OpenSlot {
                bytes,
                used: 0,
                copies: Vec::with_capacity(block_stores.len()),
                block_stores,
            };
            let mut last = None;
            for at in buffers.by_ref().take(slot.block_stores.len()) {
                if at.bytes != bytes {
                    let what = format!("a buffer of {} bytes instead of {bytes}", at.bytes);
                    return Err(Error::Nonsense(what));
                }
                match self.reach(&at) {
                    Ok(memory) => slot.copies.push((at, memory)),
                    Err(error) if error.is_loss() => last = Some(error),
                    Err(error) => return Err(error),
                }
            }
            if slot.copies.is_empty() {
                let none = || Error::Nonsense("a slot without a buffer".into());
                return Err(last.unwrap_or_else(none));
            }
            self.slots.push(slot);
        }
        Ok(())
    }

    fn reach(&self, at: &BufferAt) -> Result<Memory> {
        let key = segment_key(at);
        match self.client.fabric.borrow(key)? {
            Some(borrowed) => Ok(Memory::Here(borrowed)),
            None => {
                let deadline = self.client.fabric.deadline();
                let ask = BlockStoreRequest::Open(at.buffer);
                self.client
                    .request_block_store(deadline, at.block_store, ask)?;
                Ok(Memory::There(self.client.fabric.attach(key)?, Vec::new()))
            }
        }
    }

    /// Makes sure that blocks of these lengths fit into slots of these block stores, one block
    /// after another.
    ///
    /// # Errors
    /// No memory in time; a lost block store.
    pub(crate) fn reserve<'k>(
        &mut self,
        blocks: impl Iterator<Item = (&'k Slot<Peer>, u64)>,
    ) -> Result<()> {
        let mut free: BTreeMap<&Slot<Peer>, Vec<u64>> = BTreeMap::new();
        for slot in &self.slots {
            let room = slot.bytes - slot.used;
            free.entry(&slot.block_stores).or_default().push(room);
        }
        let mut missing: BTreeMap<&Slot<Peer>, u64> = BTreeMap::new();
        for (block_stores, bytes) in blocks {
            let rooms = free.entry(block_stores).or_default();
            match rooms.iter_mut().find(|room| **room >= bytes) {
                Some(room) => *room = room.saturating_sub(padded(bytes)),
                None => {
                    let sum = missing.entry(block_stores).or_default();
                    *sum = sum.saturating_add(padded(bytes));
                }
            }
        }
        let round = |(block_stores, bytes): (&Slot<Peer>, u64)| {
            // A length that cannot be rounded up cannot be granted either: admission control
            // refuses it.
            (block_stores.clone(), round_up(bytes).unwrap_or(bytes))
        };
        let needs: Needs = missing.into_iter().map(round).collect();
        if needs.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        loop {
            let left = self.timeout.map(|all| all.saturating_sub(began.elapsed()));
            let question = |ticket| Request::Reserve {
                ticket,
                writer: self.writer,
                wants: wants(&needs),
                timeout: self.client.timeout_of(left),
            };
            match self.client.request("memory for a step", question)? {
                Answer::Begun { buffers } => return self.open(needs, buffers),
                // The owner of the memory is alive and will free it at some time.
                Answer::Waiting(_) if left.is_none_or(|left| !left.is_zero()) => {}
                Answer::Waiting(fault) => {
                    // Its place in the queue would delay other streams. A request for nothing,
                    // which is answered at once, gives it up. If it cannot be sent, the place is
                    // kept until the step is committed or aborted.
                    let _ = self.client.request_later(|ticket| Request::Reserve {
                        ticket,
                        writer: self.writer,
                        wants: Vec::new(),
                        timeout: 0,
                    });
                    return Err(fault.into());
                }
                other => return Err(Error::Nonsense(format!("{other:?}"))),
            }
        }
    }

    /// Takes space for a block from a slot of these block stores. Returns the slot and the offset.
    pub(crate) fn place(&mut self, block_stores: &Slot<Peer>, bytes: u64) -> Result<(usize, u64)> {
        let found = self
            .slots
            .iter()
            .position(|slot| slot.bytes - slot.used >= bytes && slot.block_stores == *block_stores);
        let at = match found {
            Some(at) => at,
            None => {
                self.reserve(std::iter::once((block_stores, bytes)))?;
                self.slots.len() - 1
            }
        };
        let slot = &mut self.slots[at];
        let offset = slot.used;
        slot.used = (offset + padded(bytes)).min(slot.bytes);
        Ok((at, offset))
    }

    /// Writes a block into all copies of a slot.
    pub(crate) fn write<T: Element, D: Dimension>(
        &mut self,
        slot: usize,
        offset: u64,
        array: &ArrayView<'_, T, D>,
    ) -> Result<()> {
        self.slots[slot].each_copy(|memory| memory.write(offset, array))
    }

    /// Returns the bytes of a block, to be filled. Only for slots with one copy.
    pub(crate) fn memory(&mut self, slot: usize, offset: u64, bytes: u64) -> Result<&mut [u8]> {
        let copies = &mut self.slots[slot].copies;
        match copies.first_mut() {
            Some((_, Memory::Here(memory))) => {
                Ok(&mut memory.as_mut_slice()[offset as usize..(offset + bytes) as usize])
            }
            Some((_, Memory::There(_, staged))) => {
                // Words, so that every type is aligned.
                staged.push((offset, zeroed_words(bytes)?));
                let words = staged.last_mut().map(|(_, words)| &mut words[..]);
                Ok(&mut bytemuck::cast_slice_mut(words.unwrap_or_default())[..bytes as usize])
            }
            None => Err(none_left()),
        }
    }

    /// Returns, for each slot, whether it has any block.
    pub(crate) fn used(&self) -> Vec<bool> {
        self.slots.iter().map(|slot| slot.used > 0).collect()
    }

    /// Puts what was allocated here. Returns what the step needed, and the ids of its buffers,
    /// which are not written any more.
    pub(crate) fn finish(mut self) -> Result<Finished> {
        self.slots.retain(|slot| slot.used > 0);
        let mut finished = Finished {
            needs: Needs::new(),
            names: Vec::new(),
            memory: Vec::new(),
        };
        for mut slot in self.slots {
            let bytes = slot.bytes;
            slot.each_copy(|memory| memory.put_staged(bytes))?;
            finished.needs.push((slot.block_stores, bytes));
            let copies = slot.copies.iter();
            finished
                .names
                .push(copies.map(|(at, _)| at.buffer).collect());
            let first = slot.copies.into_iter().next();
            finished.memory.extend(first.map(|copy| match copy {
                (at, Memory::Here(_)) => WrittenSlot::Buffer(at),
                (_, Memory::There(_, staged)) => WrittenSlot::Own(staged),
            }));
        }
        Ok(finished)
    }
}

impl OpenSlot {
    /// Calls `act` with each copy. A copy whose block store is lost is removed.
    fn each_copy(&mut self, mut act: impl FnMut(&mut Memory) -> Result<()>) -> Result<()> {
        if self.copies.is_empty() {
            return Err(none_left());
        }
        let mut failed = None;
        self.copies.retain_mut(|(_, memory)| match act(memory) {
            Ok(()) => true,
            Err(error) => {
                let loss = error.is_loss();
                // An error other than a loss takes precedence: the caller must know it.
                if !loss || failed.is_none() {
                    failed = Some(error);
                }
                !loss
            }
        });
        match failed {
            Some(error) if self.copies.is_empty() || !error.is_loss() => Err(error),
            _ => Ok(()),
        }
    }
}

impl Memory {
    fn write<T: Element, D: Dimension>(
        &mut self,
        offset: u64,
        array: &ArrayView<'_, T, D>,
    ) -> Result<()> {
        match self {
            Memory::Here(memory) => {
                if let Some(from) = array.as_slice() {
                    memory.put(offset, bytemuck::cast_slice(from));
                    return Ok(());
                }
                let bytes = array.len() * size_of::<T>();
                let range = offset as usize..offset as usize + bytes;
                let elements = bytemuck::cast_slice_mut(&mut memory.as_mut_slice::<u8>()[range]);
                ArrayViewMut::from_shape(array.raw_dim(), elements)
                    .map_err(|error| Error::Nonsense(error.to_string()))?
                    .assign(array);
            }
            Memory::There(remote, _) => put_far(remote, offset, array)?,
        }
        Ok(())
    }

    /// Puts what was allocated here, into a buffer of `bytes`.
    fn put_staged(&mut self, bytes: u64) -> Result<()> {
        if let Memory::There(remote, staged) = self {
            for (offset, words) in &*staged {
                // The last word may extend into the padding behind the block, but never beyond the
                // buffer.
                let from: &[u8] = bytemuck::cast_slice(words);
                let len = from.len().min((bytes - offset) as usize);
                put_pieces(remote, *offset, &from[..len])?;
            }
        }
        Ok(())
    }
}

/// Puts an array by messages, in pieces: never copies more than one piece in advance.
fn put_far<T: Element, D: Dimension>(
    remote: &Remote,
    mut offset: u64,
    array: &ArrayView<'_, T, D>,
) -> Result<()> {
    each_run(array.view().into_dyn(), &mut |from| {
        put_pieces(remote, offset, from)?;
        offset += from.len() as u64;
        Ok(())
    })
}

/// Calls `take` with the bytes of an array, row-major: in place if they are contiguous, otherwise
/// copied, one piece at a time.
fn each_run<T: Element>(
    array: ArrayViewD<'_, T>,
    take: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    if let Some(from) = array.as_slice() {
        return take(bytemuck::cast_slice(from));
    }
    // An array that is not contiguous has a first dimension of at least one.
    let row = array.len() / array.len_of(Axis(0)).max(1) * size_of::<T>();
    if row > PIECE {
        let mut rows = array.axis_iter(Axis(0));
        return rows.try_for_each(|row| each_run(row, take));
    }
    for rows in array.axis_chunks_iter(Axis(0), PIECE / row.max(1)) {
        let together = rows.as_standard_layout();
        take(bytemuck::cast_slice(
            together.as_slice().unwrap_or_default(),
        ))?;
    }
    Ok(())
}

fn put_pieces(remote: &Remote, offset: u64, from: &[u8]) -> Result<()> {
    for (piece, at) in from.chunks(PIECE).zip((offset..).step_by(PIECE)) {
        remote.put(at, piece)?;
    }
    Ok(())
}

fn none_left() -> Error {
    Error::Nonsense("a buffer is written after the loss of its last copy".into())
}

/// Returns zeroed memory of this process for `bytes` bytes, as words.
pub(crate) fn zeroed_words(bytes: u64) -> Result<Vec<u64>> {
    let count = usize::try_from(bytes.div_ceil(8)).unwrap_or(usize::MAX);
    bytemuck::try_zeroed_vec(count).map_err(|()| Error::NoMemory { bytes })
}

/// Returns one want for each copy, in order.
pub(crate) fn wants(needs: &Needs) -> Vec<Want> {
    let copies = |(block_stores, bytes): &(Slot<Peer>, u64)| {
        let bytes = *bytes;
        let block_stores = block_stores.clone().into_iter();
        block_stores.map(move |block_store| Want { block_store, bytes })
    };
    needs.iter().flat_map(copies).collect()
}

/// Returns the lost block store if it is the reason why the coordinator refuses memory.
pub(crate) fn lost_block_store(error: &Error) -> Option<Peer> {
    match error {
        Error::Fault(
            Fault::NoBlockStore { block_store } | Fault::BlockStoreLost { block_store, .. },
        ) => Some(block_store.id),
        Error::Fabric(samite_fabric::Error::PeerLost { peer, incarnation }) => {
            Some(Peer::new(peer.id.0, *incarnation))
        }
        _ => None,
    }
}

/// Returns where the next block begins.
fn padded(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(ALIGN).unwrap_or(bytes)
}

/// Rounds up the length of a buffer, so that there are few different lengths. It adds at most one
/// part in 32, so that a block, and its messages, take at most a twentieth more than its bytes.
fn round_up(bytes: u64) -> Option<u64> {
    let grain = (bytes.max(SMALLEST).checked_next_power_of_two()? / 64).max(SMALLEST);
    bytes.checked_next_multiple_of(grain)
}

#[cfg(test)]
mod tests {
    use super::{PIECE, Slots, each_run, round_up};
    use crate::Error;
    use crate::client::Client;
    use crate::protocol::{BufferAt, BufferId, Handle, Slot, StreamId, WriterId};
    use crate::service::own;
    use ndarray::{Array, Dimension, IxDyn, Slice};
    use samite_fabric::{Config, Fabric, Identity};
    use std::sync::Arc;

    /// Whatever passes as the coordinator gives shorter memory than was asked for: the writer
    /// relies on the length that it asked for.
    #[test]
    fn a_buffer_of_another_length_is_refused() {
        const LENT: u64 = 64 << 10;
        let fabric = Fabric::alone(Identity::by_hand("writer"), Config::default()).unwrap();
        let client = Arc::new(Client::new(&fabric).unwrap());
        let mut lent = fabric.allocate_phased(9, LENT).unwrap();
        lent.lend().unwrap();
        let (key, stream) = (lent.key(), StreamId(1));
        let at = BufferAt {
            block_store: own(&fabric),
            buffer: BufferId { stream, number: 1 },
            handle: Handle {
                segment: key.segment,
                incarnation: key.incarnation,
                generation: key.generation,
            },
            bytes: LENT,
            on_disk: false,
        };
        let open = |bytes| {
            let mut slots = Slots::new(client.clone(), WriterId { stream, rank: 0 }, None);
            slots.open(vec![(Slot::from_elem(own(&fabric), 1), bytes)], vec![at])
        };
        for other in [1 << 20, LENT - 1] {
            let opened = open(other);
            assert!(matches!(opened, Err(Error::Nonsense(_))), "{opened:?}");
        }
        open(LENT).unwrap();
    }

    /// Copies at most one piece at a time of an array that is not contiguous, whatever its shape.
    #[test]
    fn arrays_travel_in_pieces() {
        let most = PIECE / 8;
        for shape in [
            vec![1, 3 * most + 5],
            vec![2, 1, 2 * most + 1],
            vec![3 * most],
            vec![5, 7, 11],
            vec![2 * most + 3, 1],
            vec![3, most, 2],
            vec![0, 4],
        ] {
            // Twice as wide; every other element of the last dimension.
            let mut wide = shape.clone();
            *wide.last_mut().unwrap() *= 2;
            let all = Array::from_shape_fn(IxDyn(&wide), |at| {
                let index = at.as_array_view();
                let last = index.len() - 1;
                index
                    .iter()
                    .take(last)
                    .fold(0, |sum, i| sum * 1009 + *i as u64)
                    * 1_000_003
                    + index[last] as u64
            });
            let mut array = all.view();
            array.slice_each_axis_inplace(|axis| match axis.axis.index() + 1 == shape.len() {
                true => Slice::new(0, None, 2),
                false => Slice::from(..),
            });
            assert_eq!(array.shape(), shape);
            let mut bytes = Vec::new();
            each_run(array.view(), &mut |run| {
                assert!(run.len() <= PIECE, "{} bytes of {shape:?}", run.len());
                bytes.extend_from_slice(run);
                Ok(())
            })
            .unwrap();
            let wanted: Vec<u64> = array.iter().copied().collect();
            assert!(bytes == bytemuck::cast_slice::<_, u8>(&wanted), "{shape:?}");
        }
    }

    #[test]
    fn buffers_have_few_lengths_and_waste_little() {
        assert_eq!(round_up(1), Some(64 << 10));
        for bytes in [
            65537,
            1 << 20,
            (1 << 20) + 1,
            20_480_000,
            128 << 20,
            (1 << 32) + 4096,
            (1 << 33) + 7,
        ] {
            let rounded = round_up(bytes).unwrap();
            assert!(
                rounded >= bytes && rounded - bytes <= (bytes / 32).max(64 << 10),
                "{bytes} {rounded}"
            );
        }
        assert_eq!(round_up(128 << 20), Some(128 << 20));
        assert_eq!(round_up(u64::MAX), None);
    }
}
