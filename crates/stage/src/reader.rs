//! Reads steps: takes them in order or by number, and any box of any variable of one.
//!
//! A step is held until its [`StepReader`] is dropped; until then its blocks stay where they are. On the node of the
//! blocks a box inside one block is a view of it, and other boxes are copied once, straight to where they go. Elsewhere
//! only the runs of the box travel. With the method `file` the same calls read files.

use crate::array::{Selection, cut, lengths};
use crate::contents::{Contents, Indexed, Variable};
use crate::desk::Desk;
use crate::held::Buffers;
use crate::method::{FileReading, StoredBytes};
use crate::protocol::{
    Answer, Attribute, EndOfStream, Layouts, Reader as Options, ReaderId, Request, Step,
    StepRecord, Ticket,
};
use crate::{Element, Error, Region, Result};
use ndarray::{Array, ArrayViewD, Dimension, IxDyn};
use std::rc::Rc;

/// One rank of a program that reads a stream. Iterating gives its steps; it ends with the stream. Closed when dropped.
pub struct Reader<'f> {
    source: Source<'f>,
    ended: Option<EndOfStream>,
}

/// Where the steps come from.
enum Source<'f> {
    Keepers(Kept<'f>),
    Files(FileReading<'f>),
}

/// A stream whose steps keepers have.
struct Kept<'f> {
    desk: Rc<Desk<'f>>,
    id: ReaderId,
    stream: String,
    contents: Option<Rc<Contents>>,
}

/// A step that this process holds.
pub struct StepReader<'f> {
    pub(crate) stream: String,
    pub(crate) number: Step,
    pub(crate) contents: Rc<Contents>,
    pub(crate) attributes: Vec<(String, Attribute)>,
    pub(crate) bytes: Bytes<'f>,
}

/// Where the bytes of a step are.
pub(crate) enum Bytes<'f> {
    // Dropped in this order: detached before the release is sent, since the memory may be used again at once.
    Kept(
        Buffers<'f>,
        #[allow(dead_code, reason = "it is there to be dropped")] Hold<'f>,
    ),
    Stored(StoredBytes),
}

/// Ends with a word to the steward.
pub(crate) struct Hold<'f> {
    desk: Rc<Desk<'f>>,
    reader: ReaderId,
    ticket: Ticket,
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
        let id = match desk.ask("opening a stream for reading", ticket, request)? {
            Answer::Reading { reader } => reader,
            other => return Err(Error::Nonsense(format!("{other:?}"))),
        };
        let kept = Kept {
            desk,
            id,
            stream: stream.to_owned(),
            contents: None,
        };
        Ok(Reader {
            source: Source::Keepers(kept),
            ended: None,
        })
    }

    pub(crate) fn of_files(files: FileReading<'f>) -> Reader<'f> {
        Reader {
            source: Source::Files(files),
            ended: None,
        }
    }

    /// The step that the readers of this program take next; `None` after the last one ([`Reader::end`] says why). Waits.
    ///
    /// # Errors
    /// No step within the deadline; a step that was lost with its keepers, after which the next call gives the one after it.
    pub fn next_step(&mut self) -> Result<Option<StepReader<'f>>> {
        let taken = match &mut self.source {
            Source::Keepers(kept) => kept.take(|ticket, reader, patience| Request::Next {
                ticket,
                reader,
                patience,
            }),
            Source::Files(files) => files.next_step(),
        };
        self.or_end(taken?)
    }

    /// The step with this number; waits for a future one. `None` when the stream ends before it.
    ///
    /// # Errors
    /// As [`Reader::next_step`]; a step that is not kept any more.
    pub fn at(&mut self, step: Step) -> Result<Option<StepReader<'f>>> {
        let taken = match &mut self.source {
            Source::Keepers(kept) => kept.take(|ticket, reader, patience| Request::At {
                ticket,
                reader,
                step,
                patience,
            }),
            Source::Files(files) => files.at(step),
        };
        self.or_end(taken?)
    }

    /// Why there are no more steps, once that is so.
    pub fn end(&self) -> Option<EndOfStream> {
        self.ended
    }

    fn or_end(&mut self, taken: Taken<'f>) -> Result<Option<StepReader<'f>>> {
        match taken {
            Taken::Step(step) => Ok(Some(step)),
            Taken::End(end) => {
                self.ended = Some(end);
                Ok(None)
            }
        }
    }
}

/// What came of asking for a step.
pub(crate) enum Taken<'f> {
    Step(StepReader<'f>),
    End(EndOfStream),
}

impl<'f> Kept<'f> {
    fn take(&mut self, make: impl FnOnce(Ticket, ReaderId, u64) -> Request) -> Result<Taken<'f>> {
        let ticket = self.desk.ticket();
        let request = make(ticket, self.id, self.desk.patience());
        match self
            .desk
            .ask("the next step of a stream", ticket, request)?
        {
            Answer::Step(record) => self.hold(ticket, record).map(Taken::Step),
            Answer::End(end) => Ok(Taken::End(end)),
            other => Err(Error::Nonsense(format!("{other:?}"))),
        }
    }

    fn hold(&mut self, ticket: Ticket, record: StepRecord) -> Result<StepReader<'f>> {
        // From here on the step is held, whatever comes of it.
        let hold = Hold {
            desk: self.desk.clone(),
            reader: self.id,
            ticket,
        };
        let contents = match &record.layouts {
            Layouts::New { hash, layouts } => Rc::new(Contents::new(*hash, layouts)?),
            Layouts::Same(hash) => {
                let last = self.contents.clone().filter(|last| last.hash == *hash);
                last.ok_or_else(|| Error::Nonsense("a layout that was never sent".into()))?
            }
        };
        self.contents = Some(contents.clone());
        let mut attributes: Vec<(String, Attribute)> = Vec::new();
        for (name, value) in record.parts.iter().flat_map(|part| &part.attributes) {
            if !attributes.iter().any(|(known, _)| known == name) {
                attributes.push((name.clone(), value.clone()));
            }
        }
        Ok(StepReader {
            stream: self.stream.clone(),
            number: record.step,
            contents,
            attributes,
            bytes: Bytes::Kept(
                Buffers::reach(self.desk.clone(), record, self.id.rank)?,
                hold,
            ),
        })
    }
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

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        let _ = self.desk.tell(Request::CloseReader { reader: self.id });
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let _ = self.desk.tell(Request::Release {
            reader: self.reader,
            hold: self.ticket,
        });
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
    ///
    /// # Errors
    /// There is none of that name; the error says which there are.
    pub fn variable(&self, name: &str) -> Result<&Variable> {
        self.find(name).map(|variable| &variable.info)
    }

    /// How many ranks have written it.
    pub fn writers(&self) -> u32 {
        self.contents.ranks
    }

    /// Boxes of a variable as they lie (the method `server` splits what was put), with the rank that wrote each.
    ///
    /// # Errors
    /// As [`StepReader::variable`].
    pub fn blocks(&self, name: &str) -> Result<impl Iterator<Item = (u32, &Region)>> {
        let blocks = &self.find(name)?.blocks;
        Ok(blocks.iter().map(|block| (block.rank, &block.region)))
    }

    /// A fact about this step. Where several ranks have said it, the lowest rank is heard.
    pub fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attributes
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value)
    }

    /// Bytes that the reads of this step have moved so far, out of mapped memory and in messages. Not counted for steps in
    /// files.
    pub fn moved(&self) -> u64 {
        match &self.bytes {
            Bytes::Kept(buffers, _) => buffers.moved(),
            Bytes::Stored(_) => 0,
        }
    }

    /// Copies a box of a variable to a new array.
    ///
    /// # Errors
    /// A variable or a type that is not there, a box outside of the array or with holes; a lost keeper; no memory.
    pub fn get<T: Element, D: Dimension>(
        &self,
        name: &str,
        asked: impl Selection,
    ) -> Result<Array<T, D>> {
        let variable = self.typed::<T>(name)?;
        let region = self.inside(variable, asked)?;
        let given = region.dims();
        let shape = || Error::ArrayShape {
            variable: name.to_owned(),
            array: vec![D::NDIM.unwrap_or(given) as u64],
            block: region.shape().to_vec(),
        };
        // Before anything is read for nothing.
        if D::NDIM.is_some_and(|dims| dims != given) {
            return Err(shape());
        }
        let bytes = region.bytes(T::DTYPE.bytes())?;
        let count = usize::try_from(region.bytes(1)?).unwrap_or(usize::MAX);
        let mut elements = Vec::new();
        let room = elements.try_reserve_exact(count);
        room.map_err(|_| Error::NoMemory { bytes })?;
        elements.resize(count, T::zeroed());
        self.copy(variable, &region, bytemuck::cast_slice_mut(&mut elements))?;
        let dims = IxDyn(&lengths(&region.shape()));
        let array = Array::from_shape_vec(dims, elements)
            .map_err(|error| Error::Nonsense(error.to_string()))?;
        array.into_dimensionality().map_err(|_| shape())
    }

    /// Copies a box of a variable, row-major, to `into`, which is as long as the box.
    ///
    /// # Errors
    /// As [`StepReader::get`]; `into` is longer or shorter.
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
    ///
    /// # Errors
    /// As [`StepReader::get`].
    pub fn view<T: Element>(
        &self,
        name: &str,
        asked: impl Selection,
    ) -> Result<Option<ArrayViewD<'_, T>>> {
        let variable = self.typed::<T>(name)?;
        let region = self.inside(variable, asked)?;
        let (Some((block, part)), Bytes::Kept(buffers, _)) =
            (variable.index.query(&region).next(), &self.bytes)
        else {
            return Ok(None);
        };
        let block = &variable.blocks[block as usize];
        let mapped = buffers.mapped(block, T::DTYPE.bytes())?;
        let Some(bytes) = mapped.filter(|_| part == region) else {
            return Ok(None);
        };
        let extent = lengths(&block.region.shape());
        let whole = ArrayViewD::from_shape(IxDyn(&extent), bytemuck::cast_slice(bytes))
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

    /// Copies a box, dense and row-major, to `into`.
    fn copy(&self, variable: &Indexed, region: &Region, into: &mut [u8]) -> Result<()> {
        match &self.bytes {
            Bytes::Kept(buffers, _) => buffers.copy(variable, region, into),
            Bytes::Stored(stored) => stored.copy(self.number, variable, region, into),
        }
    }
}
