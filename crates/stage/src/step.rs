//! Reads from a step: any box of any variable.
//!
//! On the node of the blocks, a box inside one block is a view of it, and other boxes are copied
//! once, directly to their destination. From other nodes, only the runs of the box are sent. With
//! the method `file` the same calls read files. If an edge has operators
//! ([`crate::method::graph`]), variables are the results of these.

use crate::array::{Selection, cut, inside, lengths};
use crate::contents::{Indexed, Variable};
use crate::method::graph::{
    Chain, GraphError, Link, Passed, Redistribution, Share, Source, Tile, regions,
};
use crate::protocol::{Attribute, Step};
use crate::reader::{Bytes, Given};
use crate::{Element, Error, Region, Result};
use ndarray::{Array, ArrayViewD, Dimension, IxDyn};
use std::sync::Arc;

/// Maximum number of boxes of a reader's own part: each costs about 100 bytes, however small it is.
const MOST_BOXES: usize = 1 << 20;

/// A step that this process holds.
pub struct StepReader {
    pub(crate) given: Given,
    link: Arc<Link>,
    /// The result of the edge's operators; `None` if there are none.
    passed: Option<Arc<Passed>>,
}

/// A variable, and how to read it.
pub(crate) struct Found<'s> {
    /// As the reader sees it.
    pub(crate) info: &'s Variable,
    /// As it was written.
    pub(crate) written: &'s Indexed,
    pub(crate) chain: Option<&'s Chain>,
}

impl Found<'_> {
    /// Returns a box of it, after checking that it is inside.
    pub(crate) fn part(&self, asked: impl Selection) -> Result<Region> {
        let shape = &self.info.shape;
        inside(&self.info.name, shape, asked.region(shape)?)
    }
}

impl StepReader {
    pub(crate) fn new(given: Given, link: Arc<Link>, passed: Option<Arc<Passed>>) -> Self {
        StepReader {
            given,
            link,
            passed,
        }
    }

    /// Returns the number of the step, or of the token.
    pub fn number(&self) -> Step {
        self.given.number
    }

    /// Returns true if this is a token: one of the empty steps with which an edge of a cycle
    /// begins.
    pub fn is_token(&self) -> bool {
        matches!(self.given.bytes, Bytes::Nowhere)
    }

    /// Returns the variables of the step.
    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        (0..self.given.contents.variables.len()).map(|at| self.info(at))
    }

    /// Returns a variable by name.
    ///
    /// # Errors
    /// No variable has that name; the error lists the existing ones.
    pub fn variable(&self, name: &str) -> Result<&Variable> {
        self.find(name).map(|variable| variable.info)
    }

    /// Returns the number of ranks that wrote it.
    pub fn writers(&self) -> u32 {
        self.given.contents.ranks
    }

    /// Returns the boxes of a variable as they are stored (the method `server` splits what was
    /// put), each with the rank that wrote it, before any operator.
    ///
    /// # Errors
    /// As [`StepReader::variable`].
    pub fn blocks(&self, name: &str) -> Result<impl Iterator<Item = (u32, &Region)>> {
        let blocks = &self.find(name)?.written.blocks;
        Ok(blocks.iter().map(|block| (block.rank, &block.region)))
    }

    /// Returns true if a variable is read as it was written: no operator of an edge changes it, so
    /// its [`blocks`](Self::blocks) are boxes of what is read.
    ///
    /// # Errors
    /// As [`StepReader::variable`].
    pub fn is_as_written(&self, name: &str) -> Result<bool> {
        Ok(self.find(name)?.chain.is_none())
    }

    /// Returns an attribute of this step. If several ranks have set it, that of the lowest one.
    pub fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.given
            .attributes
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value)
    }

    /// Returns all attributes of this step.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &Attribute)> {
        let attributes = self.given.attributes.iter();
        attributes.map(|(name, value)| (name.as_str(), value))
    }

    /// Copies a box of a variable to a new array.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # use samite_stage::Stage;
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let stage = Stage::join(&fabric)?;
    /// # let mut writer = stage.write("field").as_rank("writer", 0, 1).open()?;
    /// # let mut step = writer.step()?;
    /// # step.put("u", [4, 6], [0, 0], Array2::from_elem((4, 6), 1.0).view())?;
    /// # step.commit()?;
    /// # writer.close()?;
    /// # let mut reader = stage.read("field").as_rank("reader", 0, 1).open()?;
    /// # let step = reader.next_step()?.expect("one was written");
    /// use ndarray::{Array1, Array2};
    /// let all: Array2<f64> = step.get("u", ..)?;
    /// let part: Array2<f64> = step.get("u", [1..3, 2..6])?;
    /// assert_eq!((all.dim(), part.dim()), ((4, 6), (2, 4)));
    /// assert!(step.get::<f64, ndarray::Ix1>("u", ..).is_err()); // it has two dimensions
    /// # Ok::<(), samite_stage::Error>(())
    /// ```
    ///
    /// # Errors
    /// An unknown variable, another type, a box outside the array or with holes; a lost block
    /// store; no memory.
    pub fn get<T: Element, D: Dimension>(
        &self,
        name: &str,
        asked: impl Selection,
    ) -> Result<Array<T, D>> {
        let variable = self.typed::<T>(name)?;
        let region = variable.part(asked)?;
        fits::<D>(name, &region)?;
        self.is_whole(&variable, &region)?;
        let mut elements = zeros(std::slice::from_ref(&region))?;
        self.copy(&variable, &region, &mut elements)?;
        array_of(&region.shape(), elements)
    }

    /// Returns this reader's part of a variable, as the `redistribute` of its edge says: together,
    /// the ranks of its program read every element once. Without an edge, and with methods other
    /// than `graph`, the part is a block, as cubic as possible. Parts may be uneven, or empty.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # use samite_stage::Stage;
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let stage = Stage::join(&fabric)?;
    /// # use ndarray::Array2;
    /// # let mut writer = stage.write("field").as_rank("writer", 0, 1).open()?;
    /// # let mut step = writer.step()?;
    /// # step.put("u", [4, 6], [0, 0], Array2::from_elem((4, 6), 1.0).view())?;
    /// # step.commit()?;
    /// # writer.close()?;
    /// # let mut reader = stage.read("field").as_rank("reader", 0, 1).open()?;
    /// # let step = reader.next_step()?.expect("one was written");
    /// use ndarray::Ix2;
    /// let own = step.mine::<f64, Ix2>("u")?;
    /// println!("{} elements, from {:?}", own.array.len(), own.regions);
    /// # Ok::<(), samite_stage::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`StepReader::get`]; an edge that does not distribute.
    pub fn mine<T: Element, D: Dimension>(&self, name: &str) -> Result<Share<T, D>> {
        let variable = self.typed::<T>(name)?;
        let regions = self.regions_of(&variable)?;
        let whole = Region::whole(&variable.info.shape)?;
        fits::<D>(name, &whole)?;
        let mut shape = regions.first().unwrap_or(&whole).shape();
        shape[0] = regions.iter().map(|region| region.extent(0)).sum();
        if let [own] = &regions[..] {
            self.is_whole(&variable, own)?;
        }
        let mut elements = zeros(&regions)?;
        let mut rest = &mut elements[..];
        for region in &regions {
            let (now, later) = rest.split_at_mut(region.volume().unwrap_or(0) as usize);
            self.copy(&variable, region, now)?;
            rest = later;
        }
        Ok(Share {
            array: array_of(&shape, elements)?,
            regions,
        })
    }

    /// Returns the boxes that [`StepReader::mine`] reads; none is empty.
    ///
    /// # Errors
    /// As [`StepReader::mine`]; but a box of `count` or `block` may have holes.
    pub fn mine_of(&self, name: &str) -> Result<Vec<Region>> {
        self.regions_of(&self.find(name)?)
    }

    /// Copies a box of a variable, row-major, to `into`, which has the length of the box.
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
        let region = variable.part(asked)?;
        if region.volume() != Some(into.len() as u64) {
            return Err(Error::ArrayShape {
                variable: name.to_owned(),
                array: vec![into.len() as u64],
                block: region.shape().to_vec(),
            });
        }
        self.copy(&variable, &region, into)
    }

    /// Copies a box of a variable of any type to `into`: its bytes, row-major, the numbers
    /// little-endian.
    ///
    /// # Errors
    /// As [`StepReader::read_into`].
    pub fn read_bytes(&self, name: &str, asked: impl Selection, into: &mut [u8]) -> Result<()> {
        let variable = self.find(name)?;
        let region = variable.part(asked)?;
        let element = variable.info.dtype.bytes();
        if region.bytes(element)? != into.len() as u64 {
            return Err(Error::ArrayShape {
                variable: name.to_owned(),
                array: vec![into.len() as u64 / element],
                block: region.shape().to_vec(),
            });
        }
        self.copy_bytes(&variable, &region, into)
    }

    /// Returns a box of a variable in place, without a copy, if it is inside one block, on this
    /// node, and no operator changes it. `None` for other boxes (use [`StepReader::get`]).
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # use samite_stage::Stage;
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let stage = Stage::join(&fabric)?;
    /// # use ndarray::Array2;
    /// # let mut writer = stage.write("field").as_rank("writer", 0, 1).open()?;
    /// # let mut step = writer.step()?;
    /// # step.put("u", [4, 6], [0, 0], Array2::from_elem((4, 6), 1.0).view())?;
    /// # step.commit()?;
    /// # writer.close()?;
    /// # let mut reader = stage.read("field").as_rank("reader", 0, 1).open()?;
    /// # let step = reader.next_step()?.expect("one was written");
    /// let sum = match step.view::<f64>("u", [0..4, 0..6])? {
    ///     Some(in_place) => in_place.sum(),
    ///     None => step.get::<f64, ndarray::Ix2>("u", [0..4, 0..6])?.sum(), // not in one piece
    /// };
    /// assert_eq!(sum, 24.0);
    /// # Ok::<(), samite_stage::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`StepReader::get`].
    pub fn view<T: Element>(
        &self,
        name: &str,
        asked: impl Selection,
    ) -> Result<Option<ArrayViewD<'_, T>>> {
        let variable = self.typed::<T>(name)?;
        let region = variable.part(asked)?;
        if variable.chain.is_some() {
            return Ok(None);
        }
        let Some((block, bytes)) = self.in_place(variable.written, &region)? else {
            return Ok(None);
        };
        let extent = lengths(&block.shape());
        let whole = ArrayViewD::from_shape(IxDyn(&extent), bytemuck::cast_slice(bytes))
            .map_err(|error| Error::Nonsense(error.to_string()))?;
        Ok(Some(cut(whole, block.lower(), &region)))
    }

    /// Returns the block that contains a box, and its bytes, if they are mapped here.
    fn in_place<'s>(
        &'s self,
        written: &'s Indexed,
        region: &Region,
    ) -> Result<Option<(&'s Region, &'s [u8])>> {
        let (Some((block, part)), Bytes::InStores(buffers, lease)) =
            (written.index.query(region).next(), &self.given.bytes)
        else {
            return Ok(None);
        };
        if part != *region {
            return Ok(None);
        }
        let block = &written.blocks[block as usize];
        let element = written.info.dtype.bytes();
        let mapped = buffers.mapped(block, element)?;
        // Another implementation of a writer may have placed it unaligned: then it is copied.
        let mapped = mapped.filter(|bytes| bytes.as_ptr().addr().is_multiple_of(element as usize));
        if mapped.is_some() {
            lease.count(region.bytes(element)?);
        }
        Ok(mapped.map(|bytes| (&block.region, bytes)))
    }

    fn info(&self, at: usize) -> &Variable {
        match &self.passed {
            Some(passed) => &passed.variables[at],
            None => &self.given.contents.variables[at].info,
        }
    }

    pub(crate) fn find(&self, name: &str) -> Result<Found<'_>> {
        let variables = &self.given.contents.variables;
        let found = variables
            .iter()
            .position(|variable| variable.info.name == name);
        let Some(at) = found else {
            return Err(match self.is_token() {
                true => self.link.token_has_no(name).into(),
                false => Error::NoVariable {
                    step: self.given.number,
                    variable: name.to_owned(),
                    there: self
                        .variables()
                        .map(|variable| variable.name.clone())
                        .collect(),
                },
            });
        };
        let passed = self.passed.as_ref();
        let chain = passed.and_then(|passed| passed.chains[at].as_ref());
        Ok(Found {
            info: self.info(at),
            written: &variables[at],
            chain: chain
                .map(Result::as_ref)
                .transpose()
                .map_err(GraphError::clone)?,
        })
    }

    fn typed<T: Element>(&self, name: &str) -> Result<Found<'_>> {
        let variable = self.find(name)?;
        match variable.info.dtype {
            written if written == T::DTYPE => Ok(variable),
            written => Err(Error::Clash {
                variable: name.to_owned(),
                writer: self.given.stream.clone(),
                written,
                asked: T::DTYPE,
            }),
        }
    }

    fn regions_of(&self, variable: &Found<'_>) -> Result<Vec<Region>> {
        let how = self.link.redistribution()?;
        let rank = (self.link.rank, self.link.size);
        let own = regions(how, &variable.info.shape, rank)?;
        let mut boxes = Vec::new();
        for own in own.into_iter().flatten() {
            // A shape may have any number of rows, and next to none may be written: with `round`,
            // each is checked before the next one takes memory. Written rows are limited, too: a
            // writer may give many of them the same bytes.
            if how == Redistribution::Round {
                if boxes.len() == MOST_BOXES {
                    let name = &variable.info.name;
                    return Err(self.link.too_many_boxes(name, MOST_BOXES).into());
                }
                match variable.chain {
                    Some(chain) => self.is_written(variable, &chain.source_of(&own)?)?,
                    None => self.is_written(variable, &own)?,
                }
            }
            let bytes = (boxes.len() as u64 + 1) * size_of::<Region>() as u64;
            let reserved = boxes.try_reserve(1);
            reserved.map_err(|_| Error::NoMemory { bytes })?;
            boxes.push(own);
        }
        Ok(boxes)
    }

    /// Checks a box for holes before memory is allocated for it. The input of an operator is
    /// checked when it is read.
    fn is_whole(&self, variable: &Found<'_>, region: &Region) -> Result<()> {
        match variable.chain {
            Some(_) => Ok(()),
            None => self.is_written(variable, region),
        }
    }

    /// Checks a box of the writer's array for holes.
    fn is_written(&self, variable: &Found<'_>, region: &Region) -> Result<()> {
        match variable.written.covers(region) {
            true => Ok(()),
            false => Err(variable.written.hole(self.given.number, region)),
        }
    }

    /// Copies a box, dense and row-major, to `into`.
    fn copy<T: Element>(
        &self,
        variable: &Found<'_>,
        region: &Region,
        into: &mut [T],
    ) -> Result<()> {
        self.copy_bytes(variable, region, bytemuck::cast_slice_mut(into))
    }

    fn copy_bytes(&self, variable: &Found<'_>, region: &Region, into: &mut [u8]) -> Result<()> {
        let written = variable.written;
        match variable.chain {
            None => self.copy_written(written, region, into),
            Some(chain) => chain.read(region, into, |needed| {
                if let Some((block, bytes)) = self.in_place(written, needed)? {
                    return Ok(Source::Block(block, bytes));
                }
                let mut tile = Tile::zeros(written.info.dtype, needed.clone())?;
                self.copy_written(written, needed, tile.bytes_mut())?;
                Ok(Source::Copied(tile))
            }),
        }
    }

    fn copy_written(&self, variable: &Indexed, region: &Region, into: &mut [u8]) -> Result<()> {
        match &self.given.bytes {
            Bytes::InStores(buffers, lease) => {
                lease.count(into.len() as u64);
                buffers.copy(variable, region, into)
            }
            Bytes::Stored(stored) => stored.copy(self.given.number, variable, region, into),
            Bytes::Nowhere => Err(Error::Nonsense("a token with a variable".into())),
        }
    }
}

/// Checks that the requested array type has as many dimensions as the box, before anything is read.
fn fits<D: Dimension>(name: &str, region: &Region) -> Result<()> {
    match D::NDIM {
        Some(asked) if asked != region.dims() => Err(Error::Dimensions {
            variable: name.to_owned(),
            asked,
            has: region.dims(),
        }),
        _ => Ok(()),
    }
}

/// Returns zeros for all elements of these boxes.
fn zeros<T: Element>(regions: &[Region]) -> Result<Vec<T>> {
    let bytes = regions.iter().try_fold(0_u64, |sum, region| {
        Ok::<_, Error>(sum.saturating_add(region.bytes(T::DTYPE.bytes())?))
    })?;
    let count = usize::try_from(bytes / T::DTYPE.bytes()).unwrap_or(usize::MAX);
    bytemuck::try_zeroed_vec(count).map_err(|()| Error::NoMemory { bytes })
}

fn array_of<T, D: Dimension>(shape: &[u64], elements: Vec<T>) -> Result<Array<T, D>> {
    let array = Array::from_shape_vec(IxDyn(&lengths(shape)), elements);
    let array = array.and_then(Array::into_dimensionality);
    array.map_err(|error| Error::Nonsense(error.to_string()))
}
