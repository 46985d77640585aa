//! One step of an archive: its variables, and boxes of them.

use super::Record;
use super::archive::Archive;
use super::error::{FileError, check_same, io};
use super::fetch::{Source, fetch};
use super::frame::{ALIGN, Kind};
use super::scan::Scan;
use crate::index::Index;
use crate::protocol::{Attribute, Layout, Step, check_disjoint};
use crate::space::{Dims, first_hole};
use crate::{Dtype, Element, Region};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// One step of an [`Archive`], with what all ranks wrote.
#[derive(Debug)]
pub struct StoredStep<'a> {
    archive: &'a Archive,
    told: Arc<StepRecords>,
}

/// The records of all ranks of a step: read once, kept as long as the step is held.
#[derive(Debug, Default)]
pub(crate) struct StepRecords {
    step: Step,
    variables: Vec<StoredVariable>,
    attributes: Vec<(String, Attribute)>,
    /// The index of each variable, by name, and the names of attributes.
    numbers: HashMap<String, usize>,
    names: HashSet<String>,
}

/// A variable of a stored step.
#[derive(Clone, Debug)]
pub struct StoredVariable {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Shape of the whole array.
    pub shape: Dims,
    /// Its attributes, from the first rank that has it.
    pub attributes: Vec<(String, Attribute)>,
    /// The blocks of all ranks.
    pub blocks: Vec<StoredBlock>,
    /// The first rank that has it.
    first: u32,
}

/// A block of a stored variable.
#[derive(Clone, Debug)]
pub struct StoredBlock {
    /// Its box.
    pub region: Region,
    /// The rank that wrote it.
    pub rank: u32,
    /// Its offset in the rank's file.
    pub at: u64,
    checksum: Option<u32>,
}

impl<'a> StoredStep<'a> {
    /// Reads the records of all ranks.
    pub(super) fn read_records(archive: &'a Archive, step: Step) -> Result<Self, FileError> {
        let mut told = StepRecords {
            step,
            ..StepRecords::default()
        };
        for (rank, scan) in &archive.ranks {
            told.add(*rank, scan)?;
        }
        Ok(StoredStep::known(archive, Arc::new(told)))
    }

    /// Returns a step of this archive whose records were read before.
    pub(crate) fn known(archive: &'a Archive, told: Arc<StepRecords>) -> Self {
        StoredStep { archive, told }
    }

    /// Returns its records.
    pub(crate) fn told(&self) -> Arc<StepRecords> {
        self.told.clone()
    }

    /// Returns its number.
    pub fn number(&self) -> Step {
        self.told.step
    }

    /// Returns its variables, in the order of the ranks' layouts.
    pub fn variables(&self) -> &[StoredVariable] {
        &self.told.variables
    }

    /// Returns the attributes of the step. If several ranks have set one, that of the lowest rank.
    pub fn attributes(&self) -> &[(String, Attribute)] {
        &self.told.attributes
    }

    /// Returns a variable by name.
    ///
    /// # Errors
    /// No variable has that name; the error lists the existing ones.
    pub fn variable(&self, name: &str) -> Result<&StoredVariable, FileError> {
        let at = self.told.numbers.get(name);
        let found = at.and_then(|at| self.told.variables.get(*at));
        found.ok_or_else(|| {
            let names: Vec<&str> = self
                .told
                .variables
                .iter()
                .map(|v| v.name.as_str())
                .collect();
            FileError::NoVariable {
                step: self.told.step,
                name: name.to_owned(),
                has: match names.is_empty() {
                    true => "none".to_owned(),
                    false => names.join(", "),
                },
            }
        })
    }

    /// Reads a box of a variable as a dense, row-major array.
    ///
    /// # Errors
    /// No such variable, or another type; a box outside the array, or with points that no rank
    /// wrote; a block with a wrong checksum; the system refuses.
    pub fn read<T: Element>(&self, name: &str, region: &Region) -> Result<Vec<T>, FileError> {
        let variable = self.variable(name)?;
        if variable.dtype != T::DTYPE {
            return Err(FileError::Type {
                name: name.to_owned(),
                is: variable.dtype,
                asked: T::DTYPE,
            });
        }
        // Checked before an allocation of that size.
        let parts = self.parts(variable, region)?;
        let count = usize::try_from(region.bytes(1)?).unwrap_or(usize::MAX);
        let mut values: Vec<T> = self.zeros(count)?;
        let bytes = bytemuck::cast_slice_mut(&mut values);
        self.fetch_all(variable, &parts, region, bytes)?;
        Ok(values)
    }

    fn zeros<T: Element>(&self, count: usize) -> Result<Vec<T>, FileError> {
        bytemuck::try_zeroed_vec(count).map_err(|()| {
            let no_memory = std::io::ErrorKind::OutOfMemory.into();
            io("find memory for a box of", &self.archive.folder)(no_memory)
        })
    }

    /// As [`read`](Self::read), but reads bytes of any type into `to`, which has the length of the
    /// box.
    ///
    /// # Errors
    /// As [`read`](Self::read); `to` is too short.
    pub fn read_into(&self, name: &str, region: &Region, to: &mut [u8]) -> Result<(), FileError> {
        let variable = self.variable(name)?;
        let parts = self.parts(variable, region)?;
        let needed = region.bytes(variable.dtype.bytes())?;
        if (to.len() as u64) < needed {
            return Err(crate::SpaceError::Short {
                region: region.clone(),
                needed,
                given: to.len() as u64,
            }
            .into());
        }
        self.fetch_all(variable, &parts, region, &mut to[..needed as usize])
    }

    /// Returns the parts of blocks of which a box is composed, in the order in which they are read.
    fn parts(
        &self,
        variable: &StoredVariable,
        region: &Region,
    ) -> Result<Vec<(u32, Region)>, FileError> {
        variable.holds(region)?;
        let regions: Vec<Region> = variable.blocks.iter().map(|b| b.region.clone()).collect();
        let mut parts: Vec<(u32, Region)> = Index::new(&regions)?.query(region).collect();
        // Blocks do not overlap, so their parts cover the box if they have its volume.
        let covered: u64 = parts.iter().filter_map(|part| part.1.volume()).sum();
        if region.volume() != Some(covered) {
            let covered: Vec<Region> = parts.into_iter().map(|part| part.1).collect();
            return Err(FileError::Hole {
                name: variable.name.clone(),
                step: self.told.step,
                hole: first_hole(region, &covered)
                    .unwrap_or_else(|| region.clone())
                    .into(),
            });
        }
        parts.sort_unstable_by_key(|part| part.0);
        Ok(parts)
    }

    fn fetch_all(
        &self,
        variable: &StoredVariable,
        parts: &[(u32, Region)],
        region: &Region,
        to: &mut [u8],
    ) -> Result<(), FileError> {
        let mut parts = parts.iter();
        parts.try_for_each(|(block, part)| {
            let block = &variable.blocks[*block as usize];
            self.fetch(variable, block, part, region, to)
        })
    }

    /// Checks that no two ranks wrote the same points; within one rank, the writer has checked it.
    pub(super) fn check_blocks(&self) -> Result<(), FileError> {
        for variable in &self.told.variables {
            let blocks = &variable.blocks;
            let regions: Vec<Region> = blocks.iter().map(|b| b.region.clone()).collect();
            check_disjoint(&variable.name, &regions, |at| blocks[at].rank)?;
        }
        Ok(())
    }

    /// Reads everything and verifies its checksums.
    ///
    /// # Errors
    /// The first block that differs; the system refuses.
    pub fn check(&self) -> Result<(), FileError> {
        for variable in &self.told.variables {
            for block in &variable.blocks {
                let needed = block.region.bytes(variable.dtype.bytes())?;
                let mut bytes: Vec<u8> =
                    self.zeros(usize::try_from(needed).unwrap_or(usize::MAX))?;
                self.fetch(variable, block, &block.region, &block.region, &mut bytes)?;
            }
        }
        Ok(())
    }

    /// Reads a part of a block into an array over `region`.
    fn fetch(
        &self,
        variable: &StoredVariable,
        block: &StoredBlock,
        part: &Region,
        region: &Region,
        to: &mut [u8],
    ) -> Result<(), FileError> {
        let Some(scan) = self.archive.ranks.get(&block.rank) else {
            return Ok(()); // a stored step has only blocks of existing ranks
        };
        let frames = &scan.frames;
        if *part != block.region || part != region {
            let source = Source {
                frames,
                at: block.at,
                region: &block.region,
                element: variable.dtype.bytes(),
            };
            return fetch(source, part, region, to);
        }
        let is = frames.read_block(block.at, to, block.checksum.is_some())?;
        if is == block.checksum {
            return Ok(());
        }
        Err(FileError::Checksum {
            name: variable.name.clone(),
            step: self.told.step,
            rank: block.rank,
            block: block.region.clone().into(),
        })
    }
}

impl StepRecords {
    /// Adds what one rank wrote.
    fn add(&mut self, rank: u32, scan: &Scan) -> Result<(), FileError> {
        let frames = &scan.frames;
        let place = scan.records.binary_search_by_key(&self.step, |r| r.0);
        let at = scan.records[place.unwrap_or(0)].1;
        let of = |at: u64, kind, what| {
            let head = frames.head(at)?;
            let head = head.filter(|head| (head.kind, head.id) == (kind, scan.id));
            head.ok_or_else(|| frames.corrupt(at, what))
        };
        let head = of(at, Kind::Record, "there is no record")?;
        let record: Record = frames.content(&head)?;
        let layout = of(record.layout, Kind::Layout, "there is no layout")?;
        let layout: Layout = frames.content(&layout)?;
        let data = of(record.data, Kind::Data, "there are no data")?;
        // W2: the data precede the record, and are inside the file.
        if data.end().is_none_or(|end| end > at) {
            return Err(frames.corrupt(data.at, "the data are longer than their frame"));
        }
        layout
            .check(rank)
            .map_err(|_| frames.corrupt(record.layout, "an invalid layout"))?;
        let limit = data.content() + data.length;
        let mut checksums = record.checksums.iter().copied();
        if !record.checksums.is_empty() && record.checksums.len() != layout.blocks() {
            return Err(frames.corrupt(at, "the number of checksums is not that of the blocks"));
        }
        let mut at = data.content();
        for variable in &layout.variables {
            let mut blocks = Vec::with_capacity(variable.blocks.len());
            for block in &variable.blocks {
                let bytes = block.region.bytes(variable.dtype.bytes())?;
                let end = at.checked_add(bytes).filter(|end| *end <= limit);
                let end = end.ok_or_else(|| {
                    frames.corrupt(data.at, "the data are shorter than their layout")
                })?;
                blocks.push(StoredBlock {
                    region: block.region.clone(),
                    rank,
                    at,
                    checksum: checksums.next(),
                });
                at = end.next_multiple_of(ALIGN);
            }
            self.merge(rank, variable, blocks)?;
        }
        for (name, value) in record.attributes {
            if self.names.insert(name.clone()) {
                self.attributes.push((name, value));
            }
        }
        Ok(())
    }

    fn merge(
        &mut self,
        rank: u32,
        new: &crate::protocol::Variable,
        blocks: Vec<StoredBlock>,
    ) -> Result<(), FileError> {
        let at = self.numbers.get(&new.name);
        let Some(known) = at.and_then(|at| self.variables.get_mut(*at)) else {
            self.numbers.insert(new.name.clone(), self.variables.len());
            self.variables.push(StoredVariable {
                name: new.name.clone(),
                dtype: new.dtype,
                shape: new.shape.clone(),
                attributes: new.attributes.clone(),
                blocks,
                first: rank,
            });
            return Ok(());
        };
        let before = (known.first, known.dtype, &known.shape);
        check_same(&new.name, before, (rank, new.dtype, &new.shape))?;
        known.blocks.extend(blocks);
        Ok(())
    }
}

impl StoredVariable {
    /// Returns the box of the whole array.
    ///
    /// # Errors
    /// Damaged: an invalid shape.
    pub fn whole(&self) -> Result<Region, FileError> {
        Ok(Region::whole(&self.shape)?)
    }

    fn holds(&self, region: &Region) -> Result<(), FileError> {
        let whole = self.whole()?;
        if whole.contains(region) {
            return Ok(());
        }
        Err(crate::SpaceError::Outside {
            asked: region.clone(),
            whole,
        }
        .into())
    }
}
