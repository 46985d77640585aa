//! The file of one writer rank.

use super::error::{FileError, io};
use super::frame::{ALIGN, Frames, Head, Kind};
use super::scan::Scan;
use super::{Header, Index, Record, file_of};
use crate::protocol::{Attribute, Layout, Step};
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

/// What a rank writes in a step.
#[derive(Clone, Copy, Debug)]
pub struct Content<'a> {
    /// Variables and boxes; its slots are of no meaning here.
    pub layout: &'a Layout,
    /// The bytes of each block, dense and row-major, in the order of the layout: variable by variable.
    pub blocks: &'a [&'a [u8]],
    /// Facts of this step.
    pub attributes: &'a [(String, Attribute)],
}

/// Writes the steps of one rank into its file. Blocking; dropping it without [`finish`](Self::finish) leaves a file without an
/// index, which is read as well.
#[derive(Debug)]
pub struct StepFile {
    frames: Frames,
    id: u64,
    records: Vec<(Step, u64)>,
    /// The last layout and where its frame begins.
    layout: Option<(Layout, u64)>,
    /// Where the next frame begins.
    end: u64,
    is_summed: bool,
}

impl StepFile {
    /// Begins the file of `rank` of `ranks` anew in `folder`, which is made where it is missing.
    ///
    /// # Errors
    /// The system refuses.
    pub fn create(folder: &Path, stream: &str, rank: u32, ranks: u32) -> Result<Self, FileError> {
        fs::create_dir_all(folder).map_err(io("make the folder", folder))?;
        let path = file_of(folder, rank);
        // A new file, not the old one cut: who reads the old one may go on.
        let fresh = path.with_extension("new");
        let file = options()
            .create(true)
            .truncate(true)
            .open(&fresh)
            .map_err(io("make", &fresh))?;
        let header = Header {
            stream: stream.to_owned(),
            rank,
            ranks,
        };
        let frames = Frames::new(file, &path);
        let id = RandomState::new().hash_one(&header.stream);
        let end = frames.write(Kind::Header, 0, id, 0, &header)?;
        fs::rename(&fresh, &path).map_err(io("name", &path))?;
        Ok(StepFile {
            frames,
            id,
            records: Vec::new(),
            layout: None,
            end,
            is_summed: true,
        })
    }

    /// Goes on with the file of `rank`, after its last complete step; begins it where there is none.
    ///
    /// # Errors
    /// The file is damaged before its end, or belongs to another stream or number of ranks; the system refuses.
    pub fn resume(folder: &Path, stream: &str, rank: u32, ranks: u32) -> Result<Self, FileError> {
        let path = file_of(folder, rank);
        let scan = match options().open(&path) {
            Ok(file) => Scan::open(file, &path)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(io("open", &path)(error)),
        };
        let Some(scan) = scan else {
            return Self::create(folder, stream, rank, ranks);
        };
        let wanted = Header {
            stream: stream.to_owned(),
            rank,
            ranks,
        };
        if scan.header != wanted {
            let name = |header: Header| {
                format!(
                    "rank {} of {} of the stream {}",
                    header.rank, header.ranks, header.stream
                )
            };
            return Err(FileError::Stranger {
                path,
                found: name(scan.header),
                wanted: name(wanted),
            });
        }
        // The index goes, too: it is written again at the end.
        scan.frames.cut(scan.end)?;
        Ok(StepFile {
            frames: scan.frames,
            id: scan.id,
            records: scan.records,
            layout: None,
            end: scan.end,
            is_summed: true,
        })
    }

    /// As [`resume`](Self::resume) where the file was not ended in order (its writer died), else as [`create`](Self::create).
    ///
    /// # Errors
    /// As [`resume`](Self::resume).
    pub fn begin(folder: &Path, stream: &str, rank: u32, ranks: u32) -> Result<Self, FileError> {
        let path = file_of(folder, rank);
        let ended = match options().open(&path) {
            Ok(file) => Scan::open(file, &path)?.is_some_and(|scan| scan.is_finished),
            Err(_) => false, // said by whoever opens it next
        };
        match ended {
            true => Self::create(folder, stream, rank, ranks),
            false => Self::resume(folder, stream, rank, ranks),
        }
    }

    /// Leaves out the checksums of blocks from now on. They cost a seventh of the time of a write that goes into memory (of the
    /// page cache), and nothing of one that waits for a disk.
    #[must_use]
    pub fn without_checksums(self) -> Self {
        StepFile {
            is_summed: false,
            ..self
        }
    }

    /// The last step that the file has whole.
    pub fn last(&self) -> Option<Step> {
        self.records.last().map(|record| record.0)
    }

    /// Writes a step. When it returns every process sees it; it is on the disk after [`sync`](Self::sync).
    ///
    /// # Errors
    /// A step that does not follow the last one; more or fewer blocks, or bytes, than the layout names; the system refuses (a
    /// full disk): then the file has the steps before, and this one can be tried again.
    pub fn append(&mut self, step: Step, content: Content<'_>) -> Result<(), FileError> {
        if let Some(last) = self.last().filter(|last| *last >= step) {
            let path = self.frames.path.clone();
            return Err(FileError::Order { path, step, last });
        }
        let offsets = places(&content)?;
        let (layout, at) = self.layout_frame(step, content.layout)?;
        let data = Head {
            kind: Kind::Data,
            step,
            length: offsets.1,
            checksum: 0,
            id: self.id,
            at,
        };
        let record_at = data
            .end()
            .ok_or_else(|| self.frames.corrupt(at, "it would pass 64 bits"))?;
        self.frames.write_head(&data)?;
        let mut checksums = Vec::with_capacity(content.blocks.len());
        for (block, offset) in content.blocks.iter().zip(offsets.0) {
            let at = data.content() + offset;
            checksums.extend(self.frames.write_block(at, block, self.is_summed)?);
        }
        let record = Record {
            layout,
            data: at,
            checksums,
            attributes: content.attributes.to_vec(),
        };
        // W2: last.
        let end = self
            .frames
            .write(Kind::Record, step, self.id, record_at, &record)?;
        self.records.push((step, record_at));
        if self.layout.as_ref().is_none_or(|known| known.1 != layout) {
            self.layout = Some((content.layout.clone(), layout));
        }
        self.end = end;
        Ok(())
    }

    /// Where the frame of this layout is, written now unless it is the last one; and where the next frame begins.
    fn layout_frame(&self, step: Step, layout: &Layout) -> Result<(u64, u64), FileError> {
        match &self.layout {
            Some((known, at)) if known == layout => Ok((*at, self.end)),
            _ => {
                let end = self
                    .frames
                    .write(Kind::Layout, step, self.id, self.end, layout)?;
                Ok((self.end, end))
            }
        }
    }

    /// Returns when all steps are on the disk.
    ///
    /// # Errors
    /// The system refuses.
    pub fn sync(&self) -> Result<(), FileError> {
        self.frames.sync()
    }

    /// Ends the file with its index: it opens faster, and readers know that nothing follows.
    ///
    /// # Errors
    /// The system refuses.
    pub fn finish(self) -> Result<(), FileError> {
        let index = Index {
            records: self.records,
        };
        let at = self
            .frames
            .write(Kind::Index, 0, self.id, self.end, &index)?;
        self.frames
            .write(Kind::End, 0, self.id, at, &self.end)
            .map(drop)
    }
}

/// Whether there is a block for each that the layout names, of the right length.
///
/// # Errors
/// The first that is not so.
#[cfg(feature = "zarr")]
pub(super) fn check(content: &Content<'_>) -> Result<(), FileError> {
    places(content).map(drop)
}

/// Where each block lies in the data, and how long they are.
fn places(content: &Content<'_>) -> Result<(Vec<u64>, u64), FileError> {
    let blocks = content.layout.variables.iter();
    let blocks = blocks.flat_map(|v| v.blocks.iter().map(|b| (v.dtype, &b.region)));
    let (mut offsets, mut end) = (Vec::new(), 0u64);
    for (block, (dtype, region)) in blocks.enumerate() {
        let needed = region.bytes(dtype.bytes())?;
        let given = content
            .blocks
            .get(block)
            .map_or(0, |bytes| bytes.len() as u64);
        if given != needed {
            return Err(FileError::Content {
                block,
                needed,
                given,
            });
        }
        offsets.push(end);
        // Bytes that are in memory are countable, aligned or not.
        end = (end + needed).next_multiple_of(ALIGN);
    }
    if let Some(more) = content.blocks.get(offsets.len()) {
        return Err(FileError::Content {
            block: offsets.len(),
            needed: 0,
            given: more.len() as u64,
        });
    }
    Ok((offsets, end))
}

fn options() -> fs::OpenOptions {
    let mut options = File::options();
    options.read(true).write(true);
    options
}
