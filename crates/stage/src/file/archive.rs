//! Reads the steps of a stream out of its folder, while it is written or later.

use super::error::{FileError, io};
use super::fetch::{Source, fetch};
use super::frame::ALIGN;
use super::scan::Scan;
use super::{Record, file_of};
use crate::index::Index;
use crate::protocol::{Attribute, Layout, Step};
use crate::space::{Dims, first_hole};
use crate::{Dtype, Element, Region};
use std::fs::File;
use std::path::{Path, PathBuf};

/// The steps of a stream that is stored in a folder.
#[derive(Debug)]
pub struct Archive {
    folder: PathBuf,
    /// By rank; `None` where a rank has not begun its file.
    ranks: Vec<Option<Scan>>,
    /// Those that all ranks have.
    steps: Vec<Step>,
}

impl Archive {
    /// Opens what there is in `folder`: no rank need have ended.
    ///
    /// # Errors
    /// No rank has begun; a file is damaged, or belongs to another stream; the system refuses.
    pub fn open(folder: &Path) -> Result<Self, FileError> {
        // Any rank's file says how many there are.
        let entries = std::fs::read_dir(folder).map_err(io("look into", folder))?;
        let mut ranks = None;
        for entry in entries.flatten() {
            let path = entry.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "samite")
                && let Some(scan) = open(&path)?
            {
                ranks = Some(scan.header.ranks);
                break;
            }
        }
        let ranks = ranks.filter(|&ranks| ranks > 0);
        let ranks = ranks.ok_or_else(|| FileError::NotAStream {
            path: folder.to_owned(),
        })?;
        let mut archive = Archive {
            folder: folder.to_owned(),
            ranks: (0..ranks).map(|_| None).collect(),
            steps: Vec::new(),
        };
        archive.refresh()?;
        Ok(archive)
    }

    /// Looks for steps that were written since. A file that was begun anew in the meantime is not looked at: open the folder again.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn refresh(&mut self) -> Result<(), FileError> {
        let count = self.ranks.len();
        for rank in 0..count {
            match &mut self.ranks[rank] {
                Some(scan) => scan.go_on()?,
                None => {
                    let path = file_of(&self.folder, rank as u32);
                    let scan = open(&path)?;
                    if let Some(scan) = &scan {
                        self.belongs(scan, rank as u32, &path)?;
                    }
                    self.ranks[rank] = scan;
                }
            }
        }
        let Some(scans) = self
            .ranks
            .iter()
            .map(Option::as_ref)
            .collect::<Option<Vec<_>>>()
        else {
            return Ok(());
        };
        self.steps = scans[0].records.iter().map(|record| record.0).collect();
        for scan in &scans[1..] {
            let has = |step: &Step| scan.records.binary_search_by_key(step, |r| r.0).is_ok();
            self.steps.retain(has);
        }
        Ok(())
    }

    fn belongs(&self, scan: &Scan, rank: u32, path: &Path) -> Result<(), FileError> {
        let first = self.ranks.iter().flatten().next();
        let stream = first.map_or(&scan.header.stream, |first| &first.header.stream);
        let header = &scan.header;
        let ranks = self.ranks.len();
        let is_right =
            header.stream == *stream && header.rank == rank && header.ranks as usize == ranks;
        if is_right {
            return Ok(());
        }
        Err(FileError::Stranger {
            path: path.to_owned(),
            found: format!(
                "rank {} of {} of the stream {}",
                header.rank, header.ranks, header.stream
            ),
            wanted: format!("rank {rank} of {ranks} of the stream {stream}"),
        })
    }

    /// The name of the stream; empty while no rank has begun.
    pub fn stream(&self) -> &str {
        let first = self.ranks.iter().flatten().next();
        first.map_or("", |first| &first.header.stream)
    }

    /// How many ranks write it.
    pub fn ranks(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// The steps that all ranks have whole, rising.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Whether all ranks have ended in order: no step will follow.
    pub fn is_finished(&self) -> bool {
        let mut ranks = self.ranks.iter();
        ranks.all(|rank| rank.as_ref().is_some_and(|scan| scan.is_finished))
    }

    #[cfg(test)]
    pub(super) fn scan_of(&self, rank: usize) -> &Scan {
        self.ranks[rank].as_ref().expect("begun")
    }

    /// A step.
    ///
    /// # Errors
    /// It is not there at all ranks; its ranks do not agree on a variable; a file is damaged.
    pub fn step(&self, step: Step) -> Result<StoredStep<'_>, FileError> {
        let no_step = || FileError::NoStep {
            path: self.folder.clone(),
            step,
            first: self.steps.first().copied(),
            last: self.steps.last().copied(),
        };
        self.steps.binary_search(&step).map_err(|_| no_step())?;
        let mut stored = StoredStep {
            archive: self,
            step,
            variables: Vec::new(),
            attributes: Vec::new(),
        };
        for (rank, scan) in self.ranks.iter().enumerate() {
            let scan = scan.as_ref().ok_or_else(no_step)?;
            stored.add(rank as u32, scan)?;
        }
        Ok(stored)
    }
}

/// `None` where there is no file, or none with a header.
fn open(path: &Path) -> Result<Option<Scan>, FileError> {
    match File::open(path) {
        Ok(file) => Scan::open(file, path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io("open", path)(error)),
    }
}

/// One step of an [`Archive`], with what all ranks wrote.
#[derive(Debug)]
pub struct StoredStep<'a> {
    archive: &'a Archive,
    step: Step,
    variables: Vec<StoredVariable>,
    attributes: Vec<(String, Attribute)>,
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
    /// Facts about it, of the first rank that has it.
    pub attributes: Vec<(String, Attribute)>,
    /// The blocks of all ranks.
    pub blocks: Vec<StoredBlock>,
}

/// A block of a stored variable.
#[derive(Clone, Debug)]
pub struct StoredBlock {
    /// Which points.
    pub region: Region,
    /// Who wrote it.
    pub rank: u32,
    /// Where it begins in the rank's file.
    pub at: u64,
    checksum: Option<u32>,
}

impl StoredStep<'_> {
    /// Its number.
    pub fn number(&self) -> Step {
        self.step
    }

    /// What is in it, in the order of the ranks' layouts.
    pub fn variables(&self) -> &[StoredVariable] {
        &self.variables
    }

    /// Facts of the step; where ranks say different things, all of them.
    pub fn attributes(&self) -> &[(String, Attribute)] {
        &self.attributes
    }

    /// A variable by name.
    ///
    /// # Errors
    /// There is none of that name; the error says which there are.
    pub fn variable(&self, name: &str) -> Result<&StoredVariable, FileError> {
        let found = self.variables.iter().find(|variable| variable.name == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = self.variables.iter().map(|v| v.name.as_str()).collect();
            FileError::NoVariable {
                step: self.step,
                name: name.to_owned(),
                has: match names.is_empty() {
                    true => "none".to_owned(),
                    false => names.join(", "),
                },
            }
        })
    }

    /// Reads a box of a variable as a dense, row-major array. Where blocks overlap, the one of the highest rank counts.
    ///
    /// # Errors
    /// No such variable, or of another type; a box outside of the array, or with points that nobody wrote; a block whose
    /// checksum differs; the system refuses.
    pub fn read<T: Element>(&self, name: &str, region: &Region) -> Result<Vec<T>, FileError> {
        let variable = self.variable(name)?;
        if variable.dtype != T::DTYPE {
            return Err(FileError::Type {
                name: name.to_owned(),
                is: variable.dtype,
                asked: T::DTYPE,
            });
        }
        // Before anything of that size is allocated.
        let parts = self.parts(variable, region)?;
        let count = usize::try_from(region.bytes(1)?).unwrap_or(usize::MAX);
        let mut values = Vec::new();
        values.try_reserve_exact(count).map_err(|_| {
            let no_memory = std::io::ErrorKind::OutOfMemory.into();
            io("find memory for a box of", &self.archive.folder)(no_memory)
        })?;
        values.resize(count, T::zeroed());
        let bytes = bytemuck::cast_slice_mut(&mut values);
        self.fetch_all(variable, &parts, region, bytes)?;
        Ok(values)
    }

    /// As [`read`](Self::read), the bytes of any type into `to`, which is as long as the box.
    ///
    /// # Errors
    /// As [`read`](Self::read), and when `to` is too short.
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

    /// Which parts of which blocks a box is made of, in the order in which they are read.
    fn parts(
        &self,
        variable: &StoredVariable,
        region: &Region,
    ) -> Result<Vec<(u32, Region)>, FileError> {
        variable.holds(region)?;
        let regions: Vec<Region> = variable.blocks.iter().map(|b| b.region.clone()).collect();
        let mut parts: Vec<(u32, Region)> = Index::new(&regions)?.query(region).collect();
        let covered: Vec<Region> = parts.iter().map(|part| part.1.clone()).collect();
        if let Some(hole) = first_hole(region, &covered) {
            return Err(FileError::Hole {
                name: variable.name.clone(),
                step: self.step,
                hole: hole.into(),
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

    /// Reads everything and compares it with its checksums.
    ///
    /// # Errors
    /// The first block that differs; the system refuses.
    pub fn check(&self) -> Result<(), FileError> {
        let mut bytes = Vec::new();
        for variable in &self.variables {
            for block in &variable.blocks {
                let needed = block.region.bytes(variable.dtype.bytes())?;
                bytes.resize(usize::try_from(needed).unwrap_or(usize::MAX), 0);
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
        let Some(Some(scan)) = self.archive.ranks.get(block.rank as usize) else {
            return Ok(()); // a stored step has blocks of ranks that are there
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
            step: self.step,
            rank: block.rank,
            block: block.region.clone().into(),
        })
    }

    /// Adds what one rank wrote.
    fn add(&mut self, rank: u32, scan: &Scan) -> Result<(), FileError> {
        let frames = &scan.frames;
        let place = scan.records.binary_search_by_key(&self.step, |r| r.0);
        let at = scan.records[place.unwrap_or(0)].1;
        let of = |at: u64, what| frames.head(at)?.ok_or_else(|| frames.corrupt(at, what));
        let record: Record = frames.content(&of(at, "there is no record")?)?;
        let layout: Layout = frames.content(&of(record.layout, "there is no layout")?)?;
        let data = of(record.data, "there are no data")?;
        layout
            .check(rank)
            .map_err(|_| frames.corrupt(record.layout, "a layout that cannot be"))?;
        let limit = data.end().map_or(0, |_| data.content() + data.length);
        let mut checksums = record.checksums.iter().copied();
        if !record.checksums.is_empty() && record.checksums.len() != layout.blocks() {
            return Err(frames.corrupt(at, "not a checksum for each block"));
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
        for attribute in record.attributes {
            if !self.attributes.contains(&attribute) {
                self.attributes.push(attribute);
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
        let Some(known) = self
            .variables
            .iter_mut()
            .find(|known| known.name == new.name)
        else {
            self.variables.push(StoredVariable {
                name: new.name.clone(),
                dtype: new.dtype,
                shape: new.shape.clone(),
                attributes: new.attributes.clone(),
                blocks,
            });
            return Ok(());
        };
        if (known.dtype, &known.shape) != (new.dtype, &new.shape) {
            let is = |dtype: Dtype, shape: &Dims| format!("{dtype} {shape:?}");
            return Err(FileError::Clash {
                name: new.name.clone(),
                one: known.blocks.first().map_or(0, |block| block.rank),
                other: rank,
                one_is: is(known.dtype, &known.shape),
                other_is: is(new.dtype, &new.shape),
            });
        }
        known.blocks.extend(blocks);
        Ok(())
    }
}

impl StoredVariable {
    /// The whole array.
    ///
    /// # Errors
    /// Damaged: a shape that no array has.
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
