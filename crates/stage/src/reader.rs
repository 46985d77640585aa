//! Reads steps: takes them in order or by number, and any box of any variable of one.
//!
//! A step is held until its [`StepReader`] is dropped; until then its blocks stay where they are. On the node of the
//! blocks a box inside one block is a view of it, and other boxes are copied once, straight to where they go. Elsewhere
//! only the runs of the box travel.

use crate::array::Selection;
use crate::desk::Desk;
use crate::index::Index;
use crate::protocol::{
    Answer, Attribute, BufferAt, EndOfStream, Layout, LayoutHash, Layouts, Places,
    Reader as Options, ReaderId, Request, Step, StepRecord, Ticket,
};
use crate::service::{KeeperAsk, segment_key};
use crate::space::{Dims, Strided, copy_box, first_hole};
use crate::{Dtype, Element, Error, Region, Result};
use ndarray::{Array, ArrayViewD, Axis, Dimension, IxDyn, Slice};
use samite_fabric::{PeerId, Remote};
use std::rc::Rc;
use std::sync::Arc;

/// Runs of a box shorter than this travel together.
const SHORT: u64 = 4096;

/// One rank of a program that reads a stream. Iterating gives its steps; it ends with the stream. Closed when dropped.
pub struct Reader<'f> {
    desk: Rc<Desk<'f>>,
    id: ReaderId,
    stream: String,
    contents: Option<Rc<Contents>>,
    ended: Option<EndOfStream>,
}

/// A step that this process holds.
pub struct StepReader<'f> {
    desk: Rc<Desk<'f>>,
    reader: ReaderId,
    hold: Ticket,
    stream: String,
    number: Step,
    contents: Rc<Contents>,
    /// By writer rank, then by slot.
    buffers: Vec<Vec<Buffer<'f>>>,
    places: Vec<Places>,
    attributes: Vec<(String, Attribute)>,
}

/// What the writers say of their arrays; the same for many steps.
struct Contents {
    hash: LayoutHash,
    layouts: Vec<Arc<Layout>>,
    variables: Vec<Indexed>,
}

/// A variable of all ranks.
struct Indexed {
    info: Variable,
    index: Index,
    blocks: Vec<BlockAt>,
}

/// Whose block it is, and where.
struct BlockAt {
    region: Region,
    rank: u32,
    slot: u32,
    /// Its number among the blocks of its rank, by which its place is listed.
    number: usize,
    /// Its place by the packing rule.
    packed: u64,
}

/// A variable of a step, as a reader sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Shape of the whole array.
    pub shape: Dims,
    /// Facts about it.
    pub attributes: Vec<(String, Attribute)>,
}

/// How the bytes of a buffer are reached.
enum Buffer<'f> {
    Near(Remote<'f>),
    OnDisk(BufferAt),
}

impl<'f> Reader<'f> {
    pub(crate) fn open(desk: Rc<Desk<'f>>, stream: &str, reader: Options) -> Result<Reader<'f>> {
        let ticket = desk.ticket();
        let request = Request::OpenReader {
            ticket,
            stream: stream.to_owned(),
            reader,
            patience: desk.patience(),
        };
        match desk.ask("opening a stream for reading", ticket, request)? {
            Answer::Reading { reader } => Ok(Reader {
                desk,
                id: reader,
                stream: stream.to_owned(),
                contents: None,
                ended: None,
            }),
            other => Err(Error::Nonsense(format!("{other:?}"))),
        }
    }

    /// The step that the readers of this program take next; `None` after the last one ([`Reader::end`] says why). Waits.
    pub fn next_step(&mut self) -> Result<Option<StepReader<'f>>> {
        let (reader, patience) = (self.id, self.desk.patience());
        self.take(|ticket| Request::Next {
            ticket,
            reader,
            patience,
        })
    }

    /// The step with this number; waits for a future one. `None` when the stream ends before it.
    pub fn at(&mut self, step: Step) -> Result<Option<StepReader<'f>>> {
        let (reader, patience) = (self.id, self.desk.patience());
        self.take(|ticket| Request::At {
            ticket,
            reader,
            step,
            patience,
        })
    }

    /// Why there are no more steps, once that is so.
    pub fn end(&self) -> Option<EndOfStream> {
        self.ended
    }

    fn take(&mut self, make: impl FnOnce(Ticket) -> Request) -> Result<Option<StepReader<'f>>> {
        let ticket = self.desk.ticket();
        match self
            .desk
            .ask("the next step of a stream", ticket, make(ticket))?
        {
            Answer::Step(record) => self.hold(ticket, record).map(Some),
            Answer::End(end) => {
                self.ended = Some(end);
                Ok(None)
            }
            other => Err(Error::Nonsense(format!("{other:?}"))),
        }
    }

    fn hold(&mut self, hold: Ticket, record: StepRecord) -> Result<StepReader<'f>> {
        let contents = match record.layouts {
            Layouts::New { hash, layouts } => Rc::new(Contents::new(hash, layouts)?),
            Layouts::Same(hash) => {
                let last = self.contents.clone().filter(|last| last.hash == hash);
                last.ok_or_else(|| Error::Nonsense("a layout that was never sent".into()))?
            }
        };
        self.contents = Some(contents.clone());
        let mut step = StepReader {
            desk: self.desk.clone(),
            reader: self.id,
            hold,
            stream: self.stream.clone(),
            number: record.step,
            contents,
            buffers: Vec::new(),
            places: Vec::new(),
            attributes: Vec::new(),
        };
        for part in record.parts {
            let reach = |copies: &crate::protocol::Slot<BufferAt>| reach(&self.desk, copies);
            let buffers: Result<Vec<_>> = part.slots.iter().map(reach).collect();
            step.buffers.push(buffers?);
            step.places.push(part.places);
            for (name, value) in part.attributes {
                if !step.attributes.iter().any(|(known, _)| *known == name) {
                    step.attributes.push((name, value));
                }
            }
        }
        Ok(step)
    }
}

/// The first copy of a buffer that can be had.
fn reach<'f>(desk: &Desk<'f>, copies: &[BufferAt]) -> Result<Buffer<'f>> {
    let mut last = Error::Keeper("no copy of a block is left".into());
    for at in copies {
        if at.on_disk {
            return Ok(Buffer::OnDisk(*at));
        }
        match desk.fabric.attach(segment_key(at)) {
            Ok(remote) => return Ok(Buffer::Near(remote)),
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}

impl<'f> Iterator for Reader<'f> {
    type Item = Result<StepReader<'f>>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.ended {
            Some(_) => None,
            None => self.next_step().transpose(),
        }
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let _ = self.desk.tell(Request::CloseReader { reader: self.id });
    }
}

impl Contents {
    fn new(hash: LayoutHash, layouts: Vec<Arc<Layout>>) -> Result<Contents> {
        let mut variables: Vec<(Variable, Vec<BlockAt>)> = Vec::new();
        for (rank, layout) in (0..).zip(&layouts) {
            let packing = layout.packing()?;
            let mut number = 0;
            for written in &layout.variables {
                let known = variables
                    .iter()
                    .position(|(info, _)| info.name == written.name);
                let at = known.unwrap_or_else(|| {
                    let info = Variable {
                        name: written.name.clone(),
                        dtype: written.dtype,
                        shape: written.shape.clone(),
                        attributes: written.attributes.clone(),
                    };
                    variables.push((info, Vec::new()));
                    variables.len() - 1
                });
                for block in &written.blocks {
                    variables[at].1.push(BlockAt {
                        region: block.region.clone(),
                        rank,
                        slot: block.slot,
                        number,
                        packed: packing.offsets[number],
                    });
                    number += 1;
                }
            }
        }
        let indexed = variables.into_iter().map(|(info, blocks)| {
            let regions: Vec<Region> = blocks.iter().map(|block| block.region.clone()).collect();
            Ok(Indexed {
                info,
                index: Index::new(&regions)?,
                blocks,
            })
        });
        let variables = indexed.collect::<Result<_>>()?;
        Ok(Contents {
            hash,
            layouts,
            variables,
        })
    }
}

impl StepReader<'_> {
    /// Which step it is.
    pub fn number(&self) -> Step {
        self.number
    }

    /// What the writers put.
    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.contents
            .variables
            .iter()
            .map(|variable| &variable.info)
    }

    /// A variable by name.
    pub fn variable(&self, name: &str) -> Result<&Variable> {
        self.find(name).map(|variable| &variable.info)
    }

    /// How many ranks have written it.
    pub fn writers(&self) -> u32 {
        self.contents.layouts.len() as u32
    }

    /// Boxes of a variable as they were written, with the rank of each.
    pub fn blocks(&self, name: &str) -> Result<impl Iterator<Item = (u32, &Region)>> {
        let blocks = &self.find(name)?.blocks;
        Ok(blocks.iter().map(|block| (block.rank, &block.region)))
    }

    /// A fact about this step.
    pub fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attributes
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value)
    }

    /// Copies a box of a variable to a new array.
    ///
    /// # Errors
    /// A variable or a type that is not there, a box outside of the array or with holes; a lost keeper.
    pub fn get<T: Element, D: Dimension>(
        &self,
        name: &str,
        asked: impl Selection,
    ) -> Result<Array<T, D>> {
        let variable = self.typed::<T>(name)?;
        let region = self.inside(variable, asked)?;
        let count = region.volume().unwrap_or(u64::MAX);
        let mut elements = vec![T::zeroed(); usize::try_from(count).unwrap_or(usize::MAX)];
        self.copy(variable, &region, bytemuck::cast_slice_mut(&mut elements))?;
        let extent: Vec<usize> = region
            .shape()
            .iter()
            .map(|extent| *extent as usize)
            .collect();
        let dims = IxDyn(&extent);
        let array = Array::from_shape_vec(dims, elements)
            .map_err(|error| Error::Nonsense(error.to_string()))?;
        let given = extent.len();
        array.into_dimensionality().map_err(|_| Error::ArrayShape {
            variable: name.to_owned(),
            array: vec![D::NDIM.unwrap_or(given) as u64],
            block: region.shape().to_vec(),
        })
    }

    /// Copies a box of a variable, row-major, to `into`, which is as long as the box.
    pub fn read_into<T: Element>(
        &self,
        name: &str,
        asked: impl Selection,
        into: &mut [T],
    ) -> Result<()> {
        let variable = self.typed::<T>(name)?;
        let region = self.inside(variable, asked)?;
        if region.volume() != Some(into.len() as u64) {
            return Err(Error::ArrayShape {
                variable: name.to_owned(),
                array: vec![into.len() as u64],
                block: region.shape().to_vec(),
            });
        }
        self.copy(variable, &region, bytemuck::cast_slice_mut(into))
    }

    /// A box of a variable in place, without a copy: one that lies inside one block, on this node. `None` for others
    /// ([`StepReader::get`] then).
    pub fn view<T: Element>(
        &self,
        name: &str,
        asked: impl Selection,
    ) -> Result<Option<ArrayViewD<'_, T>>> {
        let variable = self.typed::<T>(name)?;
        let region = self.inside(variable, asked)?;
        let mut found = variable.index.query(&region);
        let Some((block, part)) = found.next() else {
            return Ok(None);
        };
        let block = &variable.blocks[block as usize];
        let (near, offset) = (self.buffer(block), self.offset(block));
        let Buffer::Near(remote) = near else {
            return Ok(None);
        };
        let Some(bytes) = remote.readable().filter(|_| part == region) else {
            return Ok(None);
        };
        let len = block.region.bytes(T::DTYPE.bytes())?;
        let elements: &[T] =
            bytemuck::cast_slice(&bytes.as_slice::<u8>()[offset as usize..(offset + len) as usize]);
        let extent: Vec<usize> = block
            .region
            .shape()
            .iter()
            .map(|extent| *extent as usize)
            .collect();
        let whole = ArrayViewD::from_shape(IxDyn(&extent), elements)
            .map_err(|error| Error::Nonsense(error.to_string()))?;
        Ok(Some(cut(whole, block.region.lower(), &region)))
    }

    fn find(&self, name: &str) -> Result<&Indexed> {
        let found = self
            .contents
            .variables
            .iter()
            .find(|variable| variable.info.name == name);
        found.ok_or_else(|| Error::NoVariable {
            step: self.number,
            variable: name.to_owned(),
            there: self
                .variables()
                .map(|variable| variable.name.clone())
                .collect(),
        })
    }

    fn typed<T: Element>(&self, name: &str) -> Result<&Indexed> {
        let variable = self.find(name)?;
        match variable.info.dtype {
            written if written == T::DTYPE => Ok(variable),
            written => Err(Error::Clash {
                variable: name.to_owned(),
                writer: self.stream.clone(),
                written,
                asked: T::DTYPE,
            }),
        }
    }

    fn inside(&self, variable: &Indexed, asked: impl Selection) -> Result<Region> {
        let shape = &variable.info.shape;
        let region = asked.region(shape)?;
        let whole = Region::whole(shape)?;
        if region.dims() == whole.dims() && whole.contains(&region) {
            return Ok(region);
        }
        Err(Error::OutsideArray {
            variable: variable.info.name.clone(),
            asked: region,
            shape: shape.to_vec(),
        })
    }

    fn buffer(&self, block: &BlockAt) -> &Buffer<'_> {
        &self.buffers[block.rank as usize][block.slot as usize]
    }

    fn offset(&self, block: &BlockAt) -> u64 {
        match &self.places[block.rank as usize] {
            Places::Packed => block.packed,
            Places::Listed(offsets) => offsets[block.number],
        }
    }

    /// Copies a box, dense and row-major, to `into`.
    fn copy(&self, variable: &Indexed, region: &Region, into: &mut [u8]) -> Result<()> {
        let element = variable.info.dtype.bytes();
        let to_at = Strided::dense(region.clone())?;
        let mut covered = 0;
        for (number, part) in variable.index.query(region) {
            let block = &variable.blocks[number as usize];
            covered += part.volume().unwrap_or(0);
            let offset = self.offset(block);
            let len = block.region.bytes(element)?;
            match self.buffer(block) {
                Buffer::Near(remote) => match remote.readable() {
                    Some(bytes) => {
                        let from =
                            &bytes.as_slice::<u8>()[offset as usize..(offset + len) as usize];
                        copy_box(
                            element,
                            from,
                            &Strided::dense(block.region.clone())?,
                            into,
                            &to_at,
                        )?;
                    }
                    None => self.fetch(remote, (block, offset, &part), element, into, &to_at)?,
                },
                Buffer::OnDisk(at) => {
                    let from = self.desk.ask_keeper(PeerId(at.keeper.0), |ticket| {
                        KeeperAsk::Load(ticket, at.buffer, offset, len)
                    })?;
                    copy_box(
                        element,
                        &from,
                        &Strided::dense(block.region.clone())?,
                        into,
                        &to_at,
                    )?;
                }
            }
        }
        if Some(covered) == region.volume() {
            return Ok(());
        }
        let parts: Vec<Region> = variable.index.query(region).map(|(_, part)| part).collect();
        Err(Error::Hole {
            step: self.number,
            variable: variable.info.name.clone(),
            asked: region.clone(),
            hole: first_hole(region, &parts).unwrap_or_else(|| region.clone()),
        })
    }

    /// Gets the runs of a part of a block that is not mapped here, and nothing but them.
    fn fetch(
        &self,
        remote: &Remote<'_>,
        (block, offset, part): (&BlockAt, u64, &Region),
        element: u64,
        into: &mut [u8],
        to_at: &Strided,
    ) -> Result<()> {
        let (run, starts) = runs(&block.region, part, element)?;
        let dense = Strided::dense(part.clone())?;
        let together = if run < SHORT {
            let offsets: Vec<u64> = starts.iter().map(|start| offset + start).collect();
            remote.get_batch(run, &offsets)?.wait()?
        } else {
            let handles: samite_fabric::Result<Vec<_>> = starts
                .iter()
                .map(|start| remote.get_nb(offset + start, run))
                .collect();
            samite_fabric::wait_all(handles?)?.concat()
        };
        copy_box(element, &together, &dense, into, to_at)?;
        Ok(())
    }
}

/// The contiguous runs of `part` in a dense block: length in bytes, and where each begins, in row-major order.
fn runs(block: &Region, part: &Region, element: u64) -> Result<(u64, Vec<u64>)> {
    let dims = block.dims();
    // Trailing dimensions that are whole, and the one before them, lie together.
    let mut split = dims - 1;
    while split > 0 && part.extent(split) == block.extent(split) {
        split -= 1;
    }
    let strides = block.strides()?;
    let run: u64 = (split..dims).map(|dim| part.extent(dim)).product::<u64>() * element;
    let mut starts = vec![0];
    for dim in 0..=split {
        let first = part.lower()[dim] - block.lower()[dim];
        let count = if dim == split { 1 } else { part.extent(dim) };
        let steps = (first..first + count).map(|at| at * strides[dim] * element);
        let steps: Vec<u64> = steps.collect();
        starts = starts
            .iter()
            .flat_map(|start| steps.iter().map(move |step| start + step))
            .collect();
    }
    Ok((run, starts))
}

impl Drop for StepReader<'_> {
    fn drop(&mut self) {
        // Detached before the release is sent: the memory may be used again at once.
        self.buffers.clear();
        let _ = self.desk.tell(Request::Release {
            reader: self.reader,
            hold: self.hold,
        });
    }
}

/// Cuts a box out of the view of a block that begins at `lower`.
fn cut<'a, T>(mut whole: ArrayViewD<'a, T>, lower: &[u64], region: &Region) -> ArrayViewD<'a, T> {
    for (dim, lower) in lower.iter().enumerate() {
        let start = region.lower()[dim] - lower;
        let end = region.upper()[dim] - lower;
        whole.slice_axis_inplace(Axis(dim), Slice::from(start as usize..end as usize));
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

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
