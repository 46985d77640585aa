//! The step that this rank committed last, read in place while it writes the next one.
//!
//! ```text
//!   step n      written, commit_and_keep -> readers take it          its blocks are `&[T]` here, too
//!   step n + 1               step, alloc_with_last: computed from n into the memory of n + 1, commit -> n is let go
//! ```
//! A solver that needs its last state so has no field beside the steps, and nothing is copied. What
//! is kept is what was allocated ([`StepWriter::alloc`](crate::StepWriter::alloc)); of what was put
//! the program has its own array.
//!
//! | the writer's target | where the kept blocks lie |
//! |---|---|
//! | one block store, mapped here | in the buffers of the step: the coordinator counts a hold, the phase lock a reader |
//! | one block store, by messages; staging servers; files | in the memory that they were allocated in, of this process: it is not given back at the commit |
//!
//! The hold ends at the next commit. The views cannot outlive it: they borrow from the step that is
//! being written.

use crate::array::{Selection, cut, lengths};
use crate::protocol::{BufferAt, Step};
use crate::service::segment_key;
use crate::space::Dims;
use crate::{Dtype, Element, Error, Region, Result};
use ndarray::{ArrayViewD, IxDyn};
use samite_fabric::{Fabric, Remote};
use std::sync::Arc;

/// What this rank allocated in the step that it committed last, to be read.
pub struct LastStep {
    kept: Arc<WrittenStep>,
    /// By slot, where the slot is a buffer.
    buffers: Vec<Option<Remote>>,
}

/// What was kept of a step, reached or not.
pub(crate) struct WrittenStep {
    pub(crate) stream: String,
    pub(crate) number: Step,
    pub(crate) blocks: Vec<WrittenBlock>,
    pub(crate) slots: Vec<WrittenSlot>,
}

/// A block that was allocated.
pub(crate) struct WrittenBlock {
    pub(crate) variable: String,
    pub(crate) dtype: Dtype,
    /// Of the whole array.
    pub(crate) shape: Dims,
    pub(crate) region: Region,
    pub(crate) slot: usize,
    pub(crate) offset: u64,
}

/// Memory that blocks were allocated in.
pub(crate) enum WrittenSlot {
    /// A buffer that is mapped here.
    Buffer(BufferAt),
    /// That of this process, by offset. Words, so that every type is aligned.
    Own(Vec<(u64, Vec<u64>)>),
}

impl WrittenStep {
    /// Whether something of it lies in buffers, which the coordinator has to hold.
    pub(crate) fn needs_hold(&self) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|slot| matches!(slot, WrittenSlot::Buffer(_)))
    }
}

impl LastStep {
    /// Reaches the buffers, as readers do. After the step was committed by all ranks.
    ///
    /// # Errors
    /// A lost block store; a stream that has ended meanwhile, because another rank was lost.
    pub(crate) fn reach(fabric: &Fabric, kept: Arc<WrittenStep>) -> Result<LastStep> {
        let reach = |slot: &WrittenSlot| match slot {
            WrittenSlot::Buffer(at) => Ok(Some(fabric.attach(segment_key(at))?)),
            WrittenSlot::Own(_) => Ok(None),
        };
        let buffers = kept.slots.iter().map(reach).collect::<Result<_>>()?;
        Ok(LastStep { kept, buffers })
    }

    /// Of a stream that no block store has.
    pub(crate) fn of_own(kept: Arc<WrittenStep>) -> LastStep {
        LastStep {
            kept,
            buffers: Vec::new(),
        }
    }

    /// Which step it is.
    pub fn number(&self) -> Step {
        self.kept.number
    }

    /// A box of a variable in place, without a copy: one that lies inside one block that this rank
    /// allocated. `None` for others.
    ///
    /// # Errors
    /// A variable of which this rank allocated nothing, or a type that it has not; a box outside of
    /// the array.
    pub fn view<T: Element>(
        &self,
        name: &str,
        asked: impl Selection,
    ) -> Result<Option<ArrayViewD<'_, T>>> {
        let blocks = self.kept.blocks.iter();
        let mut blocks = blocks.filter(|block| block.variable == name).peekable();
        let first = blocks.peek().ok_or_else(|| self.not_there(name))?;
        if first.dtype != T::DTYPE {
            return Err(Error::Clash {
                variable: name.to_owned(),
                writer: self.kept.stream.clone(),
                written: first.dtype,
                asked: T::DTYPE,
            });
        }
        let region = asked.region(&first.shape)?;
        let whole = Region::whole(&first.shape)?;
        if region.dims() != whole.dims() || !whole.contains(&region) {
            return Err(Error::OutsideArray {
                variable: name.to_owned(),
                asked: region,
                shape: first.shape.to_vec(),
            });
        }
        let Some(block) = blocks.find(|block| block.region.contains(&region)) else {
            return Ok(None);
        };
        let extent = lengths(&block.region.shape());
        let bytes = bytemuck::cast_slice(self.bytes_of(block)?);
        let view = ArrayViewD::from_shape(IxDyn(&extent), bytes)
            .map_err(|error| Error::Nonsense(error.to_string()))?;
        Ok(Some(cut(view, block.region.lower(), &region)))
    }

    fn bytes_of(&self, block: &WrittenBlock) -> Result<&[u8]> {
        let bytes = block.region.bytes(block.dtype.bytes())? as usize;
        match &self.kept.slots[block.slot] {
            WrittenSlot::Buffer(_) => {
                let remote = self.buffers.get(block.slot).and_then(Option::as_ref);
                let readable = remote.and_then(Remote::readable);
                let none = || Error::Nonsense("a kept buffer that cannot be read".into());
                let begin = block.offset as usize;
                Ok(&readable.ok_or_else(none)?.as_slice()[begin..begin + bytes])
            }
            WrittenSlot::Own(parts) => {
                let at = parts.iter().find(|(offset, _)| *offset == block.offset);
                let none = || Error::Nonsense("a kept block without memory".into());
                let (_, words) = at.ok_or_else(none)?;
                Ok(&bytemuck::cast_slice(words)[..bytes])
            }
        }
    }

    fn not_there(&self, name: &str) -> Error {
        let mut there: Vec<String> = Vec::new();
        for block in &self.kept.blocks {
            if there.last() != Some(&block.variable) {
                there.push(block.variable.clone());
            }
        }
        Error::NoVariable {
            step: self.kept.number,
            variable: name.to_owned(),
            there,
        }
    }
}
