//! Writes steps: blocks of arrays into buffers of keepers, and one commit.
//!
//! ```text
//!   step()    Begin ->          <- buffers, as many as the last step needed       back-pressure is felt here
//!   put()     copied once, into a buffer that this process maps (else put by messages)
//!   alloc()   no copy: the array lies in the buffer
//!   commit()  Commit ->         <- Committed: the step is there, whatever happens to this process
//! ```

use crate::array::Shape;
use crate::desk::Desk;
use crate::protocol::{
    ALIGN, Answer, Attribute, Block, BufferAt, KeeperInfo, Layout, LayoutHash, Part, Places,
    Request, Slot, Step, StreamConfig, Told, Variable, Want, WriterId,
};
use crate::service::{KeeperAsk, segment_key};
use crate::{Element, Error, Region, Result};
use ndarray::{ArrayView, ArrayViewMut, ArrayViewMutD, Dimension, IxDyn};
use samite_fabric::{Borrowed, PeerId, Remote};
use std::rc::Rc;
use std::sync::Arc;

/// Buffers are at least this large, and steps in them are this large: so that steps of about the same size use the
/// same memory again.
const SMALLEST: u64 = 64 << 10;

/// One rank of a program that writes a stream. Closed when dropped.
pub struct Writer<'f> {
    desk: Rc<Desk<'f>>,
    id: WriterId,
    next: Step,
    keepers: Vec<KeeperInfo>,
    /// What the last step needed.
    wants: Vec<Want>,
    /// The layout that the steward knows.
    known: Option<LayoutHash>,
}

/// A step that is being written. Dropping it without [`StepWriter::commit`] gives it up; it can be begun again.
pub struct StepWriter<'w, 'f> {
    writer: &'w mut Writer<'f>,
    number: Step,
    layout: Layout,
    /// Offset of each block in its buffer, by variable.
    offsets: Vec<Vec<u64>>,
    slots: Vec<OpenSlot<'f>>,
    attributes: Vec<(String, Attribute)>,
    done: bool,
}

/// A buffer that blocks are put into.
struct OpenSlot<'f> {
    at: BufferAt,
    memory: Memory<'f>,
    used: u64,
}

enum Memory<'f> {
    Here(Borrowed),
    /// Not mapped: put by messages; what was allocated here, as it will be put.
    There(Remote<'f>, Vec<(u64, Vec<u64>)>),
}

impl<'f> Writer<'f> {
    pub(crate) fn open(
        desk: Rc<Desk<'f>>,
        stream: &str,
        (program, (rank, size)): (String, (u32, u32)),
        config: StreamConfig,
    ) -> Result<Writer<'f>> {
        let ticket = desk.ticket();
        let request = Request::OpenWriter {
            ticket,
            stream: stream.to_owned(),
            program,
            rank,
            size,
            config,
            patience: desk.patience(),
        };
        match desk.ask("opening a stream for writing", ticket, request)? {
            Answer::Writing {
                writer,
                next,
                keepers,
                ..
            } => Ok(Writer {
                desk,
                id: writer,
                next,
                keepers,
                wants: Vec::new(),
                known: None,
            }),
            other => Err(Error::Nonsense(format!("{other:?}"))),
        }
    }

    /// Number of the step that comes next: after a restart, the first one that this rank has not committed.
    pub fn next_step(&self) -> Step {
        self.next
    }

    /// Begins the next step. Waits while readers are too far behind, and for memory. Collective only in so far as a
    /// step begins when all ranks have committed the one before.
    ///
    /// # Errors
    /// At the deadline a [`Fault`](crate::protocol::Fault) that says who is behind, or what is full.
    pub fn step(&mut self) -> Result<StepWriter<'_, 'f>> {
        let ticket = self.desk.ticket();
        let request = Request::Begin {
            ticket,
            writer: self.id,
            step: self.next,
            wants: self.wants.clone(),
            patience: self.desk.patience(),
        };
        let buffers = match self
            .desk
            .ask("a step of a stream to begin", ticket, request)?
        {
            Answer::Begun { buffers } => buffers,
            other => return Err(Error::Nonsense(format!("{other:?}"))),
        };
        let number = self.next;
        let mut step = StepWriter {
            writer: self,
            number,
            layout: Layout::default(),
            offsets: Vec::new(),
            slots: Vec::new(),
            attributes: Vec::new(),
            done: false,
        };
        for at in buffers {
            step.open_slot(at)?;
        }
        Ok(step)
    }

    /// The keeper of this process's blocks: that of the steward, where it keeps any.
    fn keeper(&self) -> Result<PeerId> {
        let steward = self.desk.steward;
        let near = self
            .keepers
            .iter()
            .find(|keeper| keeper.peer.0 == steward.0);
        let keeper = near.or(self.keepers.first()).ok_or(Error::NoSteward)?;
        Ok(PeerId(keeper.peer.0))
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        // Who does not hear of it hears of the end of this process.
        let _ = self.desk.tell(Request::CloseWriter { writer: self.id });
    }
}

impl StepWriter<'_, '_> {
    /// Which step it is.
    pub fn number(&self) -> Step {
        self.number
    }

    /// Puts a block of the array `name`, whose global shape is `shape`, beginning at `start`. `array` may be any view:
    /// strided, with ghost cells cut off, transposed. Copied once, before it returns. Local.
    ///
    /// # Errors
    /// A block that does not fit the array, a type or shape that differs from an earlier block; no memory in time.
    pub fn put<T: Element, D: Dimension>(
        &mut self,
        name: &str,
        shape: impl Shape,
        start: impl Shape,
        array: ArrayView<'_, T, D>,
    ) -> Result<()> {
        let extent: Vec<u64> = array.shape().iter().map(|extent| *extent as u64).collect();
        let region = Region::at(&start.dims(), &extent)?;
        if region.is_empty() {
            return self.declare::<T>(name, shape).map(drop);
        }
        let (slot, offset, bytes) = self.place::<T>(name, shape, &region)?;
        self.slots[slot].write(offset, bytes, &array)
    }

    /// A block that lies in the memory of the step itself, to be filled: nothing is copied later, where that memory is
    /// mapped here. It begins with whatever the memory held. Local.
    pub fn alloc<T: Element>(
        &mut self,
        name: &str,
        shape: impl Shape,
        start: impl Shape,
        extent: impl Shape,
    ) -> Result<ArrayViewMutD<'_, T>> {
        let region = Region::at(&start.dims(), &extent.dims())?;
        let (slot, offset, bytes) = self.place::<T>(name, shape, &region)?;
        let extent: Vec<usize> = region
            .shape()
            .iter()
            .map(|extent| *extent as usize)
            .collect();
        let memory: &mut [u8] = match &mut self.slots[slot].memory {
            Memory::Here(memory) => {
                &mut memory.as_mut_slice()[offset as usize..(offset + bytes) as usize]
            }
            Memory::There(_, staged) => {
                // Words, so that every type is aligned.
                staged.push((offset, vec![0; bytes.div_ceil(8) as usize]));
                let words = staged.last_mut().map(|(_, words)| &mut words[..]);
                &mut bytemuck::cast_slice_mut(words.unwrap_or_default())[..bytes as usize]
            }
        };
        let elements = bytemuck::cast_slice_mut(memory);
        ArrayViewMutD::from_shape(IxDyn(&extent), elements)
            .map_err(|error| Error::Nonsense(error.to_string()))
    }

    /// Adds a fact about this step.
    pub fn attribute(&mut self, name: &str, value: Attribute) {
        self.attributes.push((name.to_owned(), value));
    }

    /// Makes the blocks part of the step. When it returns, they are there even if this process dies.
    pub fn commit(mut self) -> Result<()> {
        let mut slots = std::mem::take(&mut self.slots);
        slots.iter_mut().try_for_each(OpenSlot::put_staged)?;
        let used: Vec<bool> = slots.iter().map(|slot| slot.used > 0).collect();
        self.keep_used(&used);
        let ids: Vec<Slot<_>> = slots
            .iter()
            .filter(|slot| slot.used > 0)
            .map(|slot| Slot::from_slice(&[slot.at.buffer]))
            .collect();
        let wants = slots.iter().filter(|slot| slot.used > 0).map(|slot| Want {
            keeper: slot.at.keeper,
            bytes: slot.at.bytes,
        });
        self.writer.wants = wants.collect();
        // Their memory is not written any more.
        drop(slots);
        let hash = self.layout.hash();
        let packed = self.layout.packing()?.offsets;
        let offsets: Vec<u64> = self.offsets.concat();
        let places = if packed == offsets {
            Places::Packed
        } else {
            Places::Listed(offsets.into())
        };
        let layout = match self.writer.known == Some(hash) {
            true => Told::Same(hash),
            false => Told::New(Arc::new(std::mem::take(&mut self.layout))),
        };
        let ticket = self.writer.desk.ticket();
        let part = Part {
            step: self.number,
            layout,
            slots: ids,
            places,
            attributes: std::mem::take(&mut self.attributes),
            checksum: 0,
        };
        let request = Request::Commit {
            ticket,
            writer: self.writer.id,
            part,
        };
        match self
            .writer
            .desk
            .ask("a step to be committed", ticket, request)?
        {
            Answer::Committed => {}
            other => return Err(Error::Nonsense(format!("{other:?}"))),
        }
        self.writer.known = Some(hash);
        self.writer.next += 1;
        self.done = true;
        Ok(())
    }

    /// Numbers the slots anew, without those that nothing lies in.
    fn keep_used(&mut self, used: &[bool]) {
        let before = |slot: u32| used[..slot as usize].iter().filter(|used| **used).count() as u32;
        for variable in &mut self.layout.variables {
            for block in &mut variable.blocks {
                block.slot = before(block.slot);
            }
        }
    }

    /// The variable's place in the layout.
    fn declare<T: Element>(&mut self, name: &str, shape: impl Shape) -> Result<usize> {
        let shape = shape.dims();
        let known = self
            .layout
            .variables
            .iter()
            .position(|variable| variable.name == name);
        let Some(at) = known else {
            self.layout.variables.push(Variable {
                name: name.to_owned(),
                dtype: T::DTYPE,
                shape,
                attributes: Vec::new(),
                blocks: Vec::new(),
            });
            self.offsets.push(Vec::new());
            return Ok(self.offsets.len() - 1);
        };
        let before = &self.layout.variables[at];
        if before.dtype != T::DTYPE || before.shape != shape {
            return Err(Error::TwoKinds {
                variable: name.to_owned(),
                before: format!("{} of shape {:?}", before.dtype, before.shape),
                now: format!("{} of shape {shape:?}", T::DTYPE),
            });
        }
        Ok(at)
    }

    /// Finds room for a block, and notes it: slot, offset and length in bytes.
    fn place<T: Element>(
        &mut self,
        name: &str,
        shape: impl Shape,
        region: &Region,
    ) -> Result<(usize, u64, u64)> {
        let shape = shape.dims();
        let whole = Region::whole(&shape)?;
        if whole.dims() != region.dims() || !whole.contains(region) {
            return Err(Error::OutsideArray {
                variable: name.to_owned(),
                asked: region.clone(),
                shape: shape.to_vec(),
            });
        }
        let bytes = region.bytes(T::DTYPE.bytes())?;
        let variable = self.declare::<T>(name, &shape[..])?;
        let fits = |slot: &OpenSlot<'_>| slot.at.bytes - slot.used >= bytes;
        let slot = match self.slots.iter().position(fits) {
            Some(slot) => slot,
            None => self.reserve(bytes)?,
        };
        let offset = self.slots[slot].used;
        self.slots[slot].used = (offset + bytes)
            .next_multiple_of(ALIGN)
            .min(self.slots[slot].at.bytes);
        self.layout.variables[variable].blocks.push(Block {
            region: region.clone(),
            slot: slot as u32,
        });
        self.offsets[variable].push(offset);
        Ok((slot, offset, bytes))
    }

    /// One more buffer.
    fn reserve(&mut self, bytes: u64) -> Result<usize> {
        let keeper = self.writer.keeper()?;
        // What cannot be rounded up cannot be had either: the governor says so.
        let bytes = round_up(bytes).unwrap_or(bytes);
        let ticket = self.writer.desk.ticket();
        let request = Request::Reserve {
            ticket,
            writer: self.writer.id,
            wants: vec![Want {
                keeper: crate::protocol::Peer(keeper.0),
                bytes,
            }],
            patience: self.writer.desk.patience(),
        };
        match self.writer.desk.ask("memory for a step", ticket, request)? {
            Answer::Begun { buffers } => {
                for at in buffers {
                    self.open_slot(at)?;
                }
                Ok(self.slots.len() - 1)
            }
            other => Err(Error::Nonsense(format!("{other:?}"))),
        }
    }

    fn open_slot(&mut self, at: BufferAt) -> Result<()> {
        let desk = &self.writer.desk;
        let key = segment_key(&at);
        let memory = match desk.fabric.borrow(key)? {
            Some(borrowed) => Memory::Here(borrowed),
            None => {
                desk.ask_keeper(key.peer, |ticket| KeeperAsk::Open(ticket, at.buffer))?;
                Memory::There(desk.fabric.attach(key)?, Vec::new())
            }
        };
        self.slots.push(OpenSlot {
            at,
            memory,
            used: 0,
        });
        Ok(())
    }
}

impl Drop for StepWriter<'_, '_> {
    fn drop(&mut self) {
        self.slots.clear();
        if !self.done {
            let _ = self.writer.desk.tell(Request::Abort {
                writer: self.writer.id,
            });
        }
    }
}

impl OpenSlot<'_> {
    /// Puts what was allocated here.
    fn put_staged(&mut self) -> Result<()> {
        if let Memory::There(remote, staged) = &mut self.memory {
            for (offset, words) in staged.drain(..) {
                // The last word may reach into the padding behind the block, never beyond the buffer.
                let bytes: &[u8] = bytemuck::cast_slice(&words);
                let len = bytes.len().min((self.at.bytes - offset) as usize);
                remote.put(offset, &bytes[..len])?;
            }
        }
        Ok(())
    }

    fn write<T: Element, D: Dimension>(
        &mut self,
        offset: u64,
        bytes: u64,
        array: &ArrayView<'_, T, D>,
    ) -> Result<()> {
        match &mut self.memory {
            Memory::Here(memory) => {
                let range = offset as usize..(offset + bytes) as usize;
                let elements = bytemuck::cast_slice_mut(&mut memory.as_mut_slice::<u8>()[range]);
                match array.as_slice() {
                    Some(from) => elements.copy_from_slice(from),
                    None => ArrayViewMut::from_shape(array.raw_dim(), elements)
                        .map_err(|error| Error::Nonsense(error.to_string()))?
                        .assign(array),
                }
            }
            Memory::There(remote, _) => {
                let together = array.as_standard_layout();
                remote.put(
                    offset,
                    bytemuck::cast_slice(together.as_slice().unwrap_or_default()),
                )?;
            }
        }
        Ok(())
    }
}

/// Lengths of buffers: few different ones, at most a sixteenth more than asked for.
fn round_up(bytes: u64) -> Option<u64> {
    let grain = (bytes.max(SMALLEST).checked_next_power_of_two()? / 32).max(SMALLEST);
    bytes.checked_next_multiple_of(grain)
}

#[cfg(test)]
mod tests {
    use super::round_up;

    #[test]
    fn buffers_have_few_lengths_and_waste_little() {
        assert_eq!(round_up(1), Some(64 << 10));
        for bytes in [
            65537,
            1 << 20,
            (1 << 20) + 1,
            20_480_000,
            128 << 20,
            (1 << 33) + 7,
        ] {
            let rounded = round_up(bytes).unwrap();
            assert!(
                rounded >= bytes && rounded - bytes <= (bytes / 16).max(64 << 10),
                "{bytes} {rounded}"
            );
        }
        assert_eq!(round_up(128 << 20), Some(128 << 20));
        assert_eq!(round_up(u64::MAX), None);
    }
}
