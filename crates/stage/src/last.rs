//! The step that this rank committed last, which it can read in place while it writes the next one.
//!
//! ```text
//!   step n      written, commit_and_keep -> readers take it          its blocks are `&[T]` here, too
//!   step n + 1               step, alloc_with_last: computed from n into the memory of n + 1, commit -> n is released
//! ```
//! So a solver that needs its last state has no array besides the steps, and nothing is copied.
//! Only what was allocated ([`StepWriter::alloc`](crate::StepWriter::alloc)) is kept; what was put
//! is still in the program's own array.
//!
//! | the writer's target | where the kept blocks are |
//! |---|---|
//! | one block store, mapped here | in the buffers of the step: the coordinator counts a hold, the phase lock a reader |
//! | one block store, by messages; staging servers; files | in the memory of this process in which they were allocated: it is not freed at the commit |
//!
//! The hold ends at the next commit. The views cannot outlive it: they borrow from the step that is
//! being written.

use crate::array::{Selection, cut, inside, lengths};
use crate::protocol::{BufferAt, Step};
use crate::service::segment_key;
use crate::space::Dims;
use crate::{Dtype, Element, Error, Region, Result};
use ndarray::{ArrayViewD, IxDyn};
use samite_fabric::{Fabric, Remote};
use std::sync::Arc;

/// What this rank allocated in the step that it committed last, for reading.
pub struct LastStep {
    kept: Arc<WrittenStep>,
    /// By slot; `Some` if the slot is a buffer.
    buffers: Vec<Option<Remote>>,
}

/// What was kept of a step, whether attached or not.
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
    /// Shape of the whole array.
    pub(crate) shape: Dims,
    pub(crate) region: Region,
    pub(crate) slot: usize,
    pub(crate) offset: u64,
}

/// Memory in which blocks were allocated.
pub(crate) enum WrittenSlot {
    /// A buffer that is mapped here.
    Buffer(BufferAt),
    /// Memory of this process, by offset. Words, so that every type is aligned.
    Own(Vec<(u64, Vec<u64>)>),
}

impl WrittenStep {
    /// Returns true if some of it is in buffers, which the coordinator has to hold.
    pub(crate) fn needs_hold(&self) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|slot| matches!(slot, WrittenSlot::Buffer(_)))
    }
}

impl LastStep {
    /// Attaches the buffers, as readers do, after all ranks have committed the step.
    ///
    /// # Errors
    /// A lost block store; a stream that has ended in the meantime, because another rank was lost.
    pub(crate) fn reach(fabric: &Fabric, kept: Arc<WrittenStep>) -> Result<LastStep> {
        let reach = |slot: &WrittenSlot| match slot {
            WrittenSlot::Buffer(at) => Ok(Some(fabric.attach(segment_key(at))?)),
            WrittenSlot::Own(_) => Ok(None),
        };
        let buffers = kept.slots.iter().map(reach).collect::<Result<_>>()?;
        Ok(LastStep { kept, buffers })
    }

    /// Returns a step whose blocks are all in the memory of this process.
    pub(crate) fn of_own(kept: Arc<WrittenStep>) -> LastStep {
        LastStep {
            kept,
            buffers: Vec::new(),
        }
    }

    /// Returns the number of the step.
    pub fn number(&self) -> Step {
        self.kept.number
    }

    /// Returns a box of a variable in place, without a copy, if it is inside one block that this
    /// rank allocated. `None` for other boxes.
    ///
    /// # Errors
    /// A variable of which this rank allocated nothing, or with another type; a box outside the
    /// array.
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
        let region = inside(name, &first.shape, asked.region(&first.shape)?)?;
        // A box that spans several blocks is not contiguous, so it has no view.
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
            if !there.contains(&block.variable) {
                there.push(block.variable.clone());
            }
        }
        Error::NotAllocated {
            step: self.kept.number,
            variable: name.to_owned(),
            there,
        }
    }
}
