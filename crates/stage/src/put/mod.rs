//! A step that is being written, and where its blocks go until it is committed.
//!
//! | the writer's target | `put` | `alloc` |
//! |---|---|---|
//! | one block store | into its buffer | the buffer itself |
//! | staging servers | in pieces, into their buffers | memory of this process, then in pieces into their buffers at the commit |
//! | files | memory of this process, written at the commit | the same |

mod commit;

use crate::array::{Shape, block, cut, lengths};
use crate::last::{LastStep, WrittenBlock, WrittenStep};
use crate::protocol::{Attribute, Block, Layout, Peer, Slot, Step, Variable};
use crate::slots::{Slots, zeroed_words};
use crate::space::Dims;
use crate::staged::Staged;
use crate::writer::{Destination, StoreWriter, Target, Writer};
use crate::{Element, Error, Region, Result};
use ndarray::{ArrayView, ArrayViewD, ArrayViewMut, ArrayViewMutD, Dimension, IxDyn};
use std::sync::Arc;

/// A step that is being written. Dropping it without [`StepWriter::commit`] aborts it; it can be
/// begun again. If something was put into it, and it is not committed later, [`Writer::close`]
/// fails; [`StepWriter::abort`] says that it is left out on purpose.
#[must_use = "a step that is dropped without `commit` is not in the stream"]
pub struct StepWriter<'w> {
    writer: &'w mut Writer,
    number: Step,
    layout: Layout,
    /// Offset of each block in its buffer, by variable.
    offsets: Vec<Vec<u64>>,
    /// Number of blocks so far, as they were put, by variable.
    numbers: Vec<u64>,
    slots: Option<Slots>,
    /// Blocks that are sent with the commit.
    staged: Vec<Staged>,
    /// Blocks that were allocated, with their slots in `slots`, or else those that `staged` names.
    allocated: Vec<WrittenBlock>,
    /// What this rank kept of the previous step.
    last: Option<LastStep>,
    attributes: Vec<(String, Attribute)>,
    /// A block has a position, but its bytes were not written.
    spoiled: bool,
    /// The program knows that it is not committed: it was told of an error, or aborts it.
    is_known: bool,
    done: bool,
}

impl<'w> StepWriter<'w> {
    /// Returns an empty step; `slots` are its buffers, if it has any.
    pub(crate) fn new(
        writer: &'w mut Writer,
        number: Step,
        slots: Option<Slots>,
    ) -> StepWriter<'w> {
        StepWriter {
            writer,
            number,
            layout: Layout::default(),
            offsets: Vec::new(),
            numbers: Vec::new(),
            slots,
            staged: Vec::new(),
            allocated: Vec::new(),
            last: None,
            attributes: Vec::new(),
            spoiled: false,
            is_known: false,
            done: false,
        }
    }

    /// Attaches the previous step, which this rank kept.
    pub(crate) fn reach_last(&mut self, kept: Arc<WrittenStep>) -> Result<()> {
        self.last = Some(match &self.writer.to {
            Target::BlockStores(block_stores) => {
                LastStep::reach(&block_stores.client.fabric, kept)?
            }
            Target::Files(_) => LastStep::of_own(kept),
        });
        Ok(())
    }

    /// Returns the number of the step.
    pub fn number(&self) -> Step {
        self.number
    }

    /// Puts a block of the array `name`, whose global shape is `shape`, beginning at `start`.
    /// `array` may be any view: strided, without ghost cells, transposed. It is copied once, before
    /// the call returns. Local.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # use samite_stage::Stage;
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let stage = Stage::join(&fabric)?;
    /// use ndarray::{Array2, s};
    /// let mut writer = stage.write("field").as_rank("writer", 0, 1).open()?;
    /// let cells = Array2::from_elem((12, 102), 1.0); // with ghost cells around them
    /// let mut step = writer.step()?;
    /// // The array has 40 rows of 100; this rank has 10 of them, from row 20 on.
    /// step.put("u", [40, 100], [20, 0], cells.slice(s![1..-1, 1..-1]))?;
    /// step.commit()?;
    /// writer.close()?;
    /// # Ok::<(), samite_stage::Error>(())
    /// ```
    ///
    /// # Errors
    /// A block that does not fit the array; a type or shape that differs from an earlier block; no
    /// memory in time; a lost server without a replica. If the block was partly put, the step can
    /// only be dropped ([`Error::Spoiled`]).
    pub fn put<T: Element, D: Dimension>(
        &mut self,
        name: &str,
        shape: impl Shape,
        start: impl Shape,
        array: ArrayView<'_, T, D>,
    ) -> Result<()> {
        let extent: Vec<u64> = array.shape().iter().map(|extent| *extent as u64).collect();
        let declared = block(name, &shape.dims(), &start.dims(), &extent)
            .and_then(|region| Ok((self.declare::<T>(name, shape.dims())?, region)));
        let (variable, region) = declared.inspect_err(|_| self.is_known = true)?;
        if region.is_empty() {
            return Ok(());
        }
        let before = self.blocks();
        let put = self.put_block(variable, region, array);
        put.inspect_err(|error| self.failed(before, error))
    }

    fn put_block<T: Element, D: Dimension>(
        &mut self,
        variable: usize,
        region: Region,
        array: ArrayView<'_, T, D>,
    ) -> Result<()> {
        match self.near() {
            Some(block_stores) => {
                let (slot, offset) =
                    self.place(variable, region, &block_stores, T::DTYPE.bytes())?;
                self.slots()?.write(slot, offset, &array)
            }
            None if self.slots.is_some() => {
                let number = self.number_of(variable);
                self.scatter(variable, number, &region, array.into_dyn())
            }
            None => {
                let staged = self.stage(variable, region, T::DTYPE.bytes(), None)?;
                let elements = bytemuck::cast_slice_mut(staged);
                ArrayViewMut::from_shape(array.raw_dim(), elements)
                    .map_err(|error| Error::Nonsense(error.to_string()))?
                    .assign(&array);
                Ok(())
            }
        }
    }

    /// Returns a block in the memory of the step itself, for the program to fill: nothing is copied
    /// later, if that memory is mapped here. Its initial content is unspecified. Local.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # use samite_stage::Stage;
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let stage = Stage::join(&fabric)?;
    /// let mut writer = stage.write("field").as_rank("writer", 0, 1).open()?;
    /// let mut step = writer.step()?;
    /// // 10 of the 40 rows, from row 20 on.
    /// let mut rows = step.alloc::<f64>("u", [40, 100], [20, 0], [10, 100])?;
    /// rows.fill(1.0); // in the memory of the step: readers see it in place
    /// step.commit()?;
    /// writer.close()?;
    /// # Ok::<(), samite_stage::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`StepWriter::put`].
    pub fn alloc<T: Element>(
        &mut self,
        name: &str,
        shape: impl Shape,
        start: impl Shape,
        extent: impl Shape,
    ) -> Result<ArrayViewMutD<'_, T>> {
        Ok(self.alloc_with_last(name, shape, start, extent)?.1)
    }

    /// As [`StepWriter::alloc`], and also returns the step that this rank kept when it committed it
    /// ([`StepWriter::commit_and_keep`]): the new state is computed from the old one without a copy
    /// and without an array of the program's own. `None` if nothing was kept: at the first step,
    /// and after a restart.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # use samite_stage::Stage;
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let stage = Stage::join(&fabric)?;
    /// let mut writer = stage.write("field").as_rank("writer", 0, 1).open()?;
    /// for _ in 0..2 {
    ///     let mut step = writer.step()?;
    ///     let (last, mut new) = step.alloc_with_last::<f64>("u", [100], [0], [100])?;
    ///     match last {
    ///         None => new.fill(1.0), // the first step
    ///         Some(last) => {
    ///             let old = last.view::<f64>("u", ..)?.expect("it is in one block");
    ///             new.zip_mut_with(&old, |new, old| *new = 0.5 * old);
    ///         }
    ///     }
    ///     step.commit_and_keep()?;
    /// }
    /// writer.close()?;
    /// # Ok::<(), samite_stage::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`StepWriter::put`].
    pub fn alloc_with_last<T: Element>(
        &mut self,
        name: &str,
        shape: impl Shape,
        start: impl Shape,
        extent: impl Shape,
    ) -> Result<(Option<&LastStep>, ArrayViewMutD<'_, T>)> {
        let shape = shape.dims();
        let declared = block(name, &shape, &start.dims(), &extent.dims())
            .and_then(|region| Ok((self.declare::<T>(name, shape)?, region)));
        let (variable, region) = declared.inspect_err(|_| self.is_known = true)?;
        let extent = lengths(&region.shape());
        let bytes = region.bytes(T::DTYPE.bytes())?;
        let element = T::DTYPE.bytes();
        let near = self.near();
        let place = match &near {
            _ if bytes == 0 => None,
            Some(block_stores) => {
                let before = self.blocks();
                let placed = self.place(variable, region.clone(), block_stores, element);
                Some(placed.inspect_err(|error| self.failed(before, error))?)
            }
            None => {
                let slot = self.allocated.len();
                let staged = self.stage(variable, region.clone(), element, Some(slot));
                staged.map(|_| ()).inspect_err(|_| self.is_known = true)?;
                Some((slot, 0))
            }
        };
        if let Some((slot, offset)) = place {
            let declared = &self.layout.variables[variable];
            self.allocated.push(WrittenBlock {
                variable: declared.name.clone(),
                dtype: declared.dtype,
                shape: declared.shape.clone(),
                region,
                slot,
                offset,
            });
        }
        // From two fields, so that both can be borrowed at the same time.
        let last = self.last.as_ref();
        let staged = self.staged.last_mut();
        let memory: &mut [u8] = match (place, near, &mut self.slots) {
            (None, ..) => &mut [],
            (Some((slot, offset)), Some(_), Some(slots)) => {
                let memory = slots.memory(slot, offset, bytes);
                memory.inspect_err(|_| (self.spoiled, self.is_known) = (true, true))?
            }
            _ => staged.map_or(&mut [], Staged::bytes_mut),
        };
        let elements = match memory.is_empty() {
            // An empty slice of a buffer need not be aligned for `T`.
            true => &mut [],
            false => bytemuck::cast_slice_mut(memory),
        };
        let array = ArrayViewMutD::from_shape(IxDyn(&extent), elements)
            .map_err(|error| Error::Nonsense(error.to_string()))?;
        Ok((last, array))
    }

    /// Returns the step that this rank kept when it committed it; see
    /// [`StepWriter::alloc_with_last`].
    pub fn last(&self) -> Option<&LastStep> {
        self.last.as_ref()
    }

    /// Adds an attribute of this step. The first value of a name stays.
    pub fn attribute(&mut self, name: &str, value: Attribute) {
        self.attributes.push((name.to_owned(), value));
    }

    /// Commits the blocks as part of the step. When it returns, they outlive this process.
    ///
    /// # Errors
    /// A step that does not fit those of the other ranks: another shape or type, blocks that
    /// overlap; one that breaks the promise of an edge; a lost server without a replica: then the
    /// step can be begun again. A step with a block that was not put ([`Error::Spoiled`]). After a
    /// deadline it is unknown whether the step is committed: [`Writer::step`] finds out, and begins
    /// the next one if it is; see [`StepWriter::number`]. So does an error of the disk with the
    /// method `file`: it may have come when the step was written.
    pub fn commit(self) -> Result<()> {
        self.finish(false)
    }

    /// As [`StepWriter::commit`], but this rank can still read what it allocated in the step, as
    /// [`StepWriter::last`] of the next one: in place, if its memory is mapped here. The step stays
    /// in memory until the next commit of this rank, whatever its readers do, so there must be
    /// capacity for one more step; it is in no queue.
    ///
    /// # Errors
    /// As [`StepWriter::commit`]. Then the previous step is still kept, unless this one was
    /// written.
    pub fn commit_and_keep(self) -> Result<()> {
        self.finish(true)
    }

    /// Leaves the step out: nothing of it is committed, and it can be begun again.
    pub fn abort(mut self) {
        self.is_known = true;
    }

    /// Returns true if the program put something into it, and neither aborted it nor was told of an
    /// error.
    fn is_forgotten(&self) -> bool {
        let has_content = self.numbers.iter().any(|number| *number > 0)
            || self.blocks() > 0
            || !self.attributes.is_empty();
        has_content && !self.done && !self.is_known && !std::thread::panicking()
    }

    /// Returns the number of blocks that have a position.
    fn blocks(&self) -> usize {
        self.offsets.iter().map(Vec::len).sum()
    }

    /// Handles a failed put, in a step that had `before` blocks. If the block got no position, and
    /// the coordinator answered, the step has only a declared variable more; a request that was not
    /// answered may still take effect.
    fn failed(&mut self, before: usize, error: &Error) {
        self.is_known = true;
        self.spoiled |= self.blocks() > before || matches!(error, Error::Fabric(_));
        if self.spoiled {
            // The step can only be dropped: what it has, and requests that may still be granted,
            // would delay others until then.
            self.give_back();
        }
    }

    /// Returns the buffers of a step that is not committed, and its place in the queue for more.
    fn give_back(&mut self) {
        self.slots = None;
        if let (false, Target::BlockStores(kept)) = (self.done, &self.writer.to) {
            kept.abort();
        }
    }

    fn is_sound(&self) -> Result<()> {
        match self.spoiled {
            true => Err(Error::Spoiled { step: self.number }),
            false => Ok(()),
        }
    }

    /// Returns the block store that gets whole blocks, if there is one.
    fn near(&self) -> Option<Slot<Peer>> {
        match &self.writer.to {
            Target::BlockStores(StoreWriter {
                place: Destination::Near(block_stores),
                ..
            }) => Some(block_stores.clone()),
            _ => None,
        }
    }

    fn slots(&mut self) -> Result<&mut Slots> {
        let none = || Error::Nonsense("a step without buffers".into());
        self.slots.as_mut().ok_or_else(none)
    }

    /// Returns the index of the variable in the layout.
    fn declare<T: Element>(&mut self, name: &str, shape: Dims) -> Result<usize> {
        self.is_sound()?;
        let variables = &mut self.layout.variables;
        let Some(at) = variables.iter().position(|known| known.name == name) else {
            variables.push(Variable {
                name: name.to_owned(),
                dtype: T::DTYPE,
                shape,
                attributes: Vec::new(),
                blocks: Vec::new(),
            });
            self.offsets.push(Vec::new());
            self.numbers.push(0);
            return Ok(self.offsets.len() - 1);
        };
        // The first block has set type and shape for the whole step.
        let before = &variables[at];
        if before.dtype != T::DTYPE || before.shape != shape {
            return Err(Error::TwoKinds {
                variable: name.to_owned(),
                before: format!("{} of shape {:?}", before.dtype, before.shape),
                now: format!("{} of shape {shape:?}", T::DTYPE),
            });
        }
        Ok(at)
    }

    fn number_of(&mut self, variable: usize) -> u64 {
        self.numbers[variable] += 1;
        self.numbers[variable] - 1
    }

    /// Reserves space for a block with these block stores, and records its slot and offset.
    fn place(
        &mut self,
        variable: usize,
        region: Region,
        block_stores: &Slot<Peer>,
        element: u64,
    ) -> Result<(usize, u64)> {
        let bytes = region.bytes(element)?;
        let (slot, offset) = self.slots()?.place(block_stores, bytes)?;
        self.layout.variables[variable].blocks.push(Block {
            region,
            slot: slot as u32,
        });
        self.offsets[variable].push(offset);
        Ok((slot, offset))
    }

    /// Keeps a block in the memory of this process until the commit.
    fn stage(
        &mut self,
        variable: usize,
        region: Region,
        element: u64,
        kept_as: Option<usize>,
    ) -> Result<&mut [u8]> {
        let bytes = region.bytes(element)?;
        let words = zeroed_words(bytes)?;
        if self.slots.is_none() {
            let block = Block {
                region: region.clone(),
                slot: 0,
            };
            self.layout.variables[variable].blocks.push(block);
        }
        let number = self.number_of(variable);
        self.staged.push(Staged {
            variable,
            number,
            region,
            bytes,
            words,
            kept_as,
        });
        Ok(self.staged.last_mut().map_or(&mut [], Staged::bytes_mut))
    }

    /// Cuts a block into pieces and puts each at its servers. `array` may have one more dimension
    /// than the block.
    fn scatter<T: Element>(
        &mut self,
        variable: usize,
        number: u64,
        region: &Region,
        array: ArrayViewD<'_, T>,
    ) -> Result<()> {
        let element = self.layout.variables[variable].dtype.bytes();
        for (piece, block_stores) in self.reserve(variable, number, region, element)? {
            let part = cut(array.view(), region.lower(), &piece);
            let (slot, offset) = self.place(variable, piece, &block_stores, element)?;
            self.slots()?.write(slot, offset, &part)?;
        }
        Ok(())
    }

    /// Reserves space for the pieces of a block, and returns them with their servers. Skips a
    /// server that is lost in the meantime.
    fn reserve(
        &mut self,
        variable: usize,
        number: u64,
        region: &Region,
        element: u64,
    ) -> Result<Vec<(Region, Slot<Peer>)>> {
        // Each lost server is removed, and the pieces are placed again on the others.
        loop {
            let (Target::BlockStores(kept), Some(slots)) = (&mut self.writer.to, &mut self.slots)
            else {
                return Err(Error::Nonsense("pieces without servers".into()));
            };
            let Destination::Servers {
                spread: Some(spread),
                ..
            } = &mut kept.place
            else {
                return Err(Error::NoServers {
                    stream: kept.stream.clone(),
                });
            };
            let name = &self.layout.variables[variable].name;
            let pieces = spread.cut(name, number, region, element)?;
            let lengths: Result<Vec<u64>, _> =
                pieces.iter().map(|piece| piece.0.bytes(element)).collect();
            let block_stores = pieces.iter().map(|piece| &piece.1);
            match slots.reserve(block_stores.zip(lengths?)) {
                Ok(()) => return Ok(pieces),
                Err(error) => kept.forget(&error)?.then_some(()).ok_or(error)?,
            }
        }
    }
}

impl Drop for StepWriter<'_> {
    fn drop(&mut self) {
        if self.is_forgotten() {
            self.writer.dropped = Some(self.number);
        } else if self.is_known {
            // Committed, or left out on purpose, whatever became of an earlier attempt.
            self.writer.dropped = None;
        }
        self.give_back();
    }
}
