//! A step that is being written: where its blocks go until it is committed.
//!
//! | the writer's target | `put` | `alloc` |
//! |---|---|---|
//! | one keeper | into its buffer | the buffer itself |
//! | staging servers | in pieces, into their buffers | memory of this process, in pieces into their buffers at the commit |
//! | files | memory of this process, written at the commit | the same |

use crate::array::{Shape, cut, lengths};
use crate::protocol::{
    Attribute, Block, Layout, Part, Peer, Places, Slot, Step, Told, Variable, encode,
};
use crate::slots::Slots;
use crate::writer::{Kept, Place, Target, Writer};
use crate::{Element, Error, Region, Result};
use ndarray::{ArrayView, ArrayViewD, ArrayViewMut, ArrayViewMutD, Dimension, IxDyn};

/// A step that is being written. Dropping it without [`StepWriter::commit`] gives it up; it can be begun again.
pub struct StepWriter<'w, 'f> {
    writer: &'w mut Writer<'f>,
    number: Step,
    layout: Layout,
    /// Offset of each block in its buffer, by variable.
    offsets: Vec<Vec<u64>>,
    /// Blocks so far, as they were put, by variable.
    numbers: Vec<u64>,
    slots: Option<Slots<'f>>,
    /// Blocks that go out with the commit.
    staged: Vec<Staged>,
    attributes: Vec<(String, Attribute)>,
    done: bool,
}

/// A block in the memory of this process.
struct Staged {
    variable: usize,
    number: u64,
    region: Region,
    bytes: u64,
    /// Words, so that every type is aligned.
    words: Vec<u64>,
}

impl<'w, 'f> StepWriter<'w, 'f> {
    /// A step with nothing in it; `slots` are its buffers, where it has any.
    pub(crate) fn new(
        writer: &'w mut Writer<'f>,
        number: Step,
        slots: Option<Slots<'f>>,
    ) -> StepWriter<'w, 'f> {
        StepWriter {
            writer,
            number,
            layout: Layout::default(),
            offsets: Vec::new(),
            numbers: Vec::new(),
            slots,
            staged: Vec::new(),
            attributes: Vec::new(),
            done: false,
        }
    }

    /// Which step it is.
    pub fn number(&self) -> Step {
        self.number
    }

    /// Puts a block of the array `name`, whose global shape is `shape`, beginning at `start`. `array` may be any view:
    /// strided, with ghost cells cut off, transposed. Copied once, before it returns. Local.
    ///
    /// # Errors
    /// A block that does not fit the array, a type or shape that differs from an earlier block; no memory in time; a lost
    /// server of which there is no replica.
    pub fn put<T: Element, D: Dimension>(
        &mut self,
        name: &str,
        shape: impl Shape,
        start: impl Shape,
        array: ArrayView<'_, T, D>,
    ) -> Result<()> {
        let extent: Vec<u64> = array.shape().iter().map(|extent| *extent as u64).collect();
        let region = Region::at(&start.dims(), &extent)?;
        let variable = self.declare::<T>(name, shape, &region)?;
        if region.is_empty() {
            return Ok(());
        }
        match self.near() {
            Some(keepers) => {
                let (slot, offset) = self.place(variable, region, &keepers, T::DTYPE.bytes())?;
                self.slots()?.write(slot, offset, &array)
            }
            None if self.slots.is_some() => {
                let number = self.number_of(variable);
                self.scatter(variable, number, &region, array.into_dyn())
            }
            None => {
                let staged = self.stage(variable, region, T::DTYPE.bytes())?;
                let elements = bytemuck::cast_slice_mut(staged);
                ArrayViewMut::from_shape(array.raw_dim(), elements)
                    .map_err(|error| Error::Nonsense(error.to_string()))?
                    .assign(&array);
                Ok(())
            }
        }
    }

    /// A block that lies in the memory of the step itself, to be filled: nothing is copied later, where that memory is
    /// mapped here. It begins with whatever the memory held. Local.
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
        let region = Region::at(&start.dims(), &extent.dims())?;
        let variable = self.declare::<T>(name, shape, &region)?;
        let extent = lengths(&region.shape());
        let bytes = region.bytes(T::DTYPE.bytes())?;
        let memory: &mut [u8] = match self.near() {
            _ if bytes == 0 => &mut [],
            Some(keepers) => {
                let (slot, offset) = self.place(variable, region, &keepers, T::DTYPE.bytes())?;
                self.slots()?.memory(slot, offset, bytes)?
            }
            None => self.stage(variable, region, T::DTYPE.bytes())?,
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
    ///
    /// # Errors
    /// A step that does not fit to those of the other ranks: another shape or type, blocks that overlap; a lost server of
    /// which there is no replica: then the step can be begun again.
    pub fn commit(mut self) -> Result<()> {
        self.send_staged()?;
        let attributes = std::mem::take(&mut self.attributes);
        let layout = std::mem::take(&mut self.layout);
        match (&mut self.writer.to, self.slots.take()) {
            (Target::Keepers(kept), Some(slots)) => {
                let used = slots.used();
                let layout = without_empty(layout, &used);
                let (needs, slots) = slots.finish()?;
                kept.needs = needs;
                let packed = layout.packing()?.offsets == self.offsets.concat();
                let part = Part {
                    step: self.number,
                    layout: Told::Same(layout.hash()),
                    slots,
                    places: match packed {
                        true => Places::Packed,
                        false => Places::Listed(self.offsets.concat().into()),
                    },
                    checksum: checksum(&attributes),
                    attributes,
                };
                kept.commit(part, layout)?;
            }
            (Target::Files(files), _) => {
                // In the order of the layout.
                self.staged.sort_by_key(|staged| staged.variable);
                let blocks: Vec<&[u8]> = self.staged.iter().map(Staged::bytes).collect();
                files.append(&layout, &blocks, &attributes)?;
            }
            (Target::Keepers(_), None) => return Err(Error::Nonsense("a step twice".into())),
        }
        self.done = true;
        Ok(())
    }

    /// The keeper that gets whole blocks, if one does.
    fn near(&self) -> Option<Slot<Peer>> {
        match &self.writer.to {
            Target::Keepers(Kept {
                place: Place::Near(keepers),
                ..
            }) => Some(keepers.clone()),
            _ => None,
        }
    }

    fn slots(&mut self) -> Result<&mut Slots<'f>> {
        let none = || Error::Nonsense("a step without buffers".into());
        self.slots.as_mut().ok_or_else(none)
    }

    /// The variable's place in the layout, and whether a block fits into it.
    fn declare<T: Element>(
        &mut self,
        name: &str,
        shape: impl Shape,
        region: &Region,
    ) -> Result<usize> {
        let shape = shape.dims();
        let whole = Region::whole(&shape)?;
        if whole.dims() != region.dims() || !whole.contains(region) {
            return Err(Error::OutsideArray {
                variable: name.to_owned(),
                asked: region.clone(),
                shape: shape.to_vec(),
            });
        }
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

    /// Finds room for a block with these keepers, and notes it: slot and offset.
    fn place(
        &mut self,
        variable: usize,
        region: Region,
        keepers: &Slot<Peer>,
        element: u64,
    ) -> Result<(usize, u64)> {
        let bytes = region.bytes(element)?;
        let (slot, offset) = self.slots()?.place(keepers, bytes)?;
        self.layout.variables[variable].blocks.push(Block {
            region,
            slot: slot as u32,
        });
        self.offsets[variable].push(offset);
        Ok((slot, offset))
    }

    /// Has a block in the memory of this process until the commit.
    fn stage(&mut self, variable: usize, region: Region, element: u64) -> Result<&mut [u8]> {
        let bytes = region.bytes(element)?;
        let mut words = Vec::new();
        let count = usize::try_from(bytes.div_ceil(8)).unwrap_or(usize::MAX);
        let room = words.try_reserve_exact(count);
        room.map_err(|_| Error::NoMemory { bytes })?;
        words.resize(count, 0);
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
        });
        let words = self.staged.last_mut().map(|staged| &mut staged.words[..]);
        Ok(&mut bytemuck::cast_slice_mut(words.unwrap_or_default())[..bytes as usize])
    }

    /// Sends the blocks that were allocated here to the servers.
    fn send_staged(&mut self) -> Result<()> {
        if self.slots.is_none() {
            return Ok(());
        }
        for staged in std::mem::take(&mut self.staged) {
            // Bytes, with those of an element as one more dimension.
            let element = self.layout.variables[staged.variable].dtype.bytes();
            let mut extent = lengths(&staged.region.shape());
            extent.push(element as usize);
            let whole = ArrayViewD::from_shape(IxDyn(&extent), staged.bytes())
                .map_err(|error| Error::Nonsense(error.to_string()))?;
            self.scatter(staged.variable, staged.number, &staged.region, whole)?;
        }
        Ok(())
    }

    /// Cuts a block into pieces and puts each with its servers. `array` may have a dimension more than the block.
    fn scatter<T: Element>(
        &mut self,
        variable: usize,
        number: u64,
        region: &Region,
        array: ArrayViewD<'_, T>,
    ) -> Result<()> {
        let element = self.layout.variables[variable].dtype.bytes();
        for (piece, keepers) in self.reserve(variable, number, region, element)? {
            let part = cut(array.view(), region.lower(), &piece);
            let (slot, offset) = self.place(variable, piece, &keepers, element)?;
            self.slots()?.write(slot, offset, &part)?;
        }
        Ok(())
    }

    /// The pieces of a block and their servers, for which there is room. A server that is lost meanwhile is left out.
    fn reserve(
        &mut self,
        variable: usize,
        number: u64,
        region: &Region,
        element: u64,
    ) -> Result<Vec<(Region, Slot<Peer>)>> {
        loop {
            let (Target::Keepers(kept), Some(slots)) = (&mut self.writer.to, &mut self.slots)
            else {
                return Err(Error::Nonsense("pieces without servers".into()));
            };
            let Place::Servers {
                spread: Some(spread),
                ..
            } = &kept.place
            else {
                return Err(Error::NoServers {
                    stream: kept.stream.clone(),
                });
            };
            let name = &self.layout.variables[variable].name;
            let pieces = spread.cut(name, number, region, element)?;
            let lengths: Result<Vec<u64>, _> =
                pieces.iter().map(|piece| piece.0.bytes(element)).collect();
            let keepers = pieces.iter().map(|piece| &piece.1);
            match slots.reserve(keepers.zip(lengths?)) {
                Ok(()) => return Ok(pieces),
                Err(error) => kept.forget(&error)?.then_some(()).ok_or(error)?,
            }
        }
    }
}

impl Staged {
    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes as usize]
    }
}

impl Drop for StepWriter<'_, '_> {
    fn drop(&mut self) {
        self.slots = None;
        if let (false, Target::Keepers(kept)) = (self.done, &self.writer.to) {
            kept.abort();
        }
    }
}

/// The layout with its slots numbered anew, without those that nothing lies in.
fn without_empty(mut layout: Layout, used: &[bool]) -> Layout {
    let before = |slot: u32| used[..slot as usize].iter().filter(|used| **used).count() as u32;
    for variable in &mut layout.variables {
        for block in &mut variable.blocks {
            block.slot = before(block.slot);
        }
    }
    layout
}

/// Of the facts of a step. A step that is committed again after a restart is taken for the same when its layout and this are
/// the same: a hash of the bytes of the blocks would read all of the step once more.
fn checksum(attributes: &[(String, Attribute)]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(&encode(&attributes))
}
