//! The file of one writer rank.

use super::claim::{Claim, Turn};
use super::error::FileError;
use super::frame::{ALIGN, Frames, Head, Kind};
use super::lives::{is_ended, life, remove_beyond};
use super::scan::{self, Scan};
use super::{Header, Index, MOST_RANKS, Record};
use crate::Region;
use crate::protocol::{Attribute, Fault, Layout, Step, check_disjoint};
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

/// What a rank writes in a step.
#[derive(Clone, Copy, Debug)]
pub struct Content<'a> {
    /// Variables and boxes; its slots are ignored.
    pub layout: &'a Layout,
    /// The bytes of each block, dense and row-major, in the order of the layout (variable by
    /// variable).
    pub blocks: &'a [&'a [u8]],
    /// Attributes of this step.
    pub attributes: &'a [(String, Attribute)],
}

/// When steps are on the disk, rather than only in the memory of the system: what a crash of the
/// *machine* may lose. A crash of the process loses nothing that was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// At any time; a crash of the machine may lose steps even of a file that was closed.
    System,
    /// When the file is ended: [`StepFile::finish`] returns when file and folder are on the disk.
    #[default]
    Close,
    /// When they are written: [`StepFile::append`] returns when the step is on the disk, which
    /// costs two waits for it.
    Step,
}

/// Writes the steps of one rank to its file. Blocking. Dropping it without [`finish`](Self::finish)
/// leaves a file without an index, which can be read, but is not considered complete.
#[derive(Debug)]
pub struct StepFile {
    frames: Frames,
    claim: Claim,
    rank: u32,
    id: u64,
    records: Vec<(Step, u64)>,
    /// The last layout and the offset of its frame.
    layout: Option<(Layout, u64)>,
    /// Where the next frame begins.
    end: u64,
    is_summed: bool,
    durability: Durability,
    /// The name of the file is on the disk.
    is_name_synced: bool,
    /// A sync has failed.
    is_lost: bool,
    /// Replaces syncing the file at this path, in tests.
    #[cfg(test)]
    disk: Option<fn(&Path) -> std::io::Result<()>>,
}

impl StepFile {
    /// Creates the file of `rank` of `ranks` in `folder`, replacing an old one; for a run without a
    /// number. Creates the folder if it is missing.
    ///
    /// # Errors
    /// [`FileError::InUse`]: a process is writing it. An invalid rank. The system refuses.
    pub fn create(folder: &Path, stream: &str, rank: u32, ranks: u32) -> Result<Self, FileError> {
        check_rank(&writers_of(stream), rank, ranks)?;
        let turn = Turn::take(folder, rank)?;
        let _old = turn.old()?;
        Self::create_in(folder, stream, 0, (rank, ranks), turn)
    }

    /// Resumes the file of `rank` after its last complete step, whatever its run; creates it if
    /// there is none.
    ///
    /// # Errors
    /// As [`create`](Self::create). The file is damaged before its end, or belongs to another
    /// stream or number of ranks.
    pub fn resume(folder: &Path, stream: &str, rank: u32, ranks: u32) -> Result<Self, FileError> {
        check_rank(&writers_of(stream), rank, ranks)?;
        let turn = Turn::take(folder, rank)?;
        let Some(old) = turn.old()? else {
            return Self::create_in(folder, stream, 0, (rank, ranks), turn);
        };
        let Some((_, header)) = scan::header(&old.frames)? else {
            return Self::create_in(folder, stream, 0, (rank, ranks), turn);
        };
        if (header.stream.as_str(), header.rank, header.ranks) != (stream, rank, ranks) {
            return Err(stranger(&old.frames, &header, stream, (rank, ranks)));
        }
        Self::go_on(old)
    }

    /// Resumes the file of `rank` if it is of this run and was not ended (its writer died);
    /// otherwise creates it. `run` is the same for all ranks of a job, and for no other job.
    ///
    /// # Errors
    /// As [`resume`](Self::resume).
    pub fn begin(
        folder: &Path,
        stream: &str,
        run: u64,
        rank: u32,
        ranks: u32,
    ) -> Result<Self, FileError> {
        check_rank(&writers_of(stream), rank, ranks)?;
        let turn = Turn::take(folder, rank)?;
        let Some(old) = turn.old()? else {
            return Self::create_in(folder, stream, run, (rank, ranks), turn);
        };
        let header = match scan::header(&old.frames) {
            Ok(header) => header.map(|(_, header)| header),
            // Of an older run, whatever its content.
            Err(FileError::Corrupt { .. } | FileError::Version { .. }) => None,
            Err(error) => return Err(error),
        };
        match header {
            Some(header) if header.stream != stream => {
                Err(stranger(&old.frames, &header, stream, (rank, ranks)))
            }
            Some(header)
                if (header.run, header.rank, header.ranks) == (run, rank, ranks)
                    && header.life >= life(folder, run, None)?
                    && !is_ended(&old.frames)? =>
            {
                Self::go_on(old)
            }
            _ => Self::create_in(folder, stream, run, (rank, ranks), turn),
        }
    }

    /// Creates a file; an existing one is claimed meanwhile.
    fn create_in(
        folder: &Path,
        stream: &str,
        run: u64,
        (rank, ranks): (u32, u32),
        turn: Turn,
    ) -> Result<Self, FileError> {
        let mut claim = turn.fresh()?;
        let header = Header {
            stream: stream.to_owned(),
            rank,
            ranks,
            run,
            life: life(folder, run, Some((rank, ranks)))?,
        };
        let id = RandomState::new().hash_one(&header.stream);
        let end = claim.frames.write(Kind::Header, 0, id, 0, &header)?;
        claim.begin()?;
        turn.name()?;
        if rank == 0 {
            remove_beyond(folder, run, ranks);
        }
        Ok(StepFile::of(claim, (rank, id), Vec::new(), end))
    }

    fn go_on(mut claim: Claim) -> Result<Self, FileError> {
        let frames = claim.frames.clone();
        let path = frames.path.clone();
        let scan = Scan::open(frames)?.ok_or(FileError::NotAStream { path })?;
        if !scan.is_finished {
            scan.nothing_follows()?;
        }
        claim.begin()?;
        // The index is cut off, too: it is written again at the end.
        scan.frames.cut(scan.end)?;
        let of = (scan.header.rank, scan.id);
        Ok(StepFile::of(claim, of, scan.records, scan.end))
    }

    fn of(claim: Claim, (rank, id): (u32, u64), records: Vec<(Step, u64)>, end: u64) -> Self {
        StepFile {
            frames: claim.frames.clone(),
            claim,
            rank,
            id,
            records,
            layout: None,
            end,
            is_summed: true,
            durability: Durability::default(),
            is_name_synced: false,
            is_lost: false,
            #[cfg(test)]
            disk: None,
        }
    }

    /// Omits the checksums of blocks from now on. They cost a seventh of the time of a write to
    /// memory (the page cache), and nothing of one that waits for a disk.
    #[must_use]
    pub fn without_checksums(self) -> Self {
        StepFile {
            is_summed: false,
            ..self
        }
    }

    /// Sets when steps are on the disk, from now on; the default is [`Durability::Close`].
    #[must_use]
    pub fn with_durability(self, durability: Durability) -> Self {
        StepFile { durability, ..self }
    }

    /// Returns the last complete step of the file.
    pub fn last(&self) -> Option<Step> {
        self.records.last().map(|record| record.0)
    }

    /// Writes a step. When it returns, every process sees the step; [`Durability`] says when it is
    /// on the disk.
    ///
    /// # Errors
    /// A step that does not follow the last one, or the largest number; a number of blocks, or
    /// bytes, other than in the layout; blocks that overlap or are outside their array; this
    /// process is a fork of the one that created the file; the system refuses (a full disk). Then
    /// the file has the previous steps, and this one can be tried again. With [`Durability::Step`],
    /// the disk may fail when only the record of the step was left to be synced: then the step
    /// exists ([`last`](Self::last)), since readers may have seen it, and a crash of the machine
    /// may lose it. After a refused [`sync`](Self::sync), all later ones are refused.
    pub fn append(&mut self, step: Step, content: Content<'_>) -> Result<(), FileError> {
        self.claim.check()?;
        let last = self.last();
        if last >= Some(step) || step == Step::MAX {
            let path = self.frames.path.clone();
            return Err(FileError::Order { path, step, last });
        }
        let offsets = places(&content)?;
        if self
            .layout
            .as_ref()
            .is_none_or(|known| known.0 != *content.layout)
        {
            check_layout(self.rank, content.layout)?;
        }
        let written = self.write_step(step, content, offsets);
        if written.is_err() && self.last() != Some(step) {
            // An incomplete step is useless, and its space is needed; so is one that the disk does
            // not have. No reader has seen it.
            let _ = self.frames.cut(self.end);
        }
        written
    }

    fn write_step(
        &mut self,
        step: Step,
        content: Content<'_>,
        offsets: (Vec<u64>, u64),
    ) -> Result<(), FileError> {
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
        let is_synced = self.durability == Durability::Step;
        if is_synced {
            self.sync()?;
        }
        // W2: the record comes last.
        let end = self
            .frames
            .write(Kind::Record, step, self.id, record_at, &record)?;
        self.records.push((step, record_at));
        if self.layout.as_ref().is_none_or(|known| known.1 != layout) {
            self.layout = Some((content.layout.clone(), layout));
        }
        self.end = end;
        match is_synced {
            true => self.sync(),
            false => Ok(()),
        }
    }

    /// Returns where the frame of this layout is, writing it unless it is the last one, and where
    /// the next frame begins.
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
    /// The system refuses, now or at an earlier sync: it may have given up what it could not write,
    /// and reports that once. Then write the stream again, to another disk.
    pub fn sync(&mut self) -> Result<(), FileError> {
        if self.is_lost {
            let earlier =
                std::io::Error::other("an earlier sync failed, and its bytes may be lost");
            return Err(super::error::io("sync", &self.frames.path)(earlier));
        }
        let synced = self.sync_all();
        // What cannot be opened may be opened later, and no byte of it is lost.
        self.is_lost = matches!(&synced, Err(FileError::Io { doing: "sync", .. }));
        synced
    }

    fn sync_all(&mut self) -> Result<(), FileError> {
        #[cfg(test)]
        if let Some(disk) = self.disk {
            disk(&self.frames.path).map_err(super::error::io("sync", &self.frames.path))?;
        }
        self.frames.sync()?;
        if !self.is_name_synced {
            self.frames.sync_name()?;
            self.is_name_synced = true;
        }
        Ok(())
    }

    /// Writes to another device from now on.
    #[cfg(test)]
    pub(super) fn onto(&mut self, device: &Path) {
        let file = std::fs::File::options().read(true).write(true).open(device);
        self.frames = Frames::new(file.expect("there is such a device"), &self.frames.path);
    }

    /// Returns its file, to forge frames.
    #[cfg(test)]
    pub(super) fn frames(&self) -> Frames {
        self.frames.clone()
    }

    /// Replaces the disk from now on by one that may fail.
    #[cfg(test)]
    pub(super) fn on_disk(&mut self, disk: fn(&Path) -> std::io::Result<()>) {
        self.disk = Some(disk);
    }

    /// Ends the file with its index: it opens faster, and readers know that nothing follows. By
    /// default ([`Durability`]), it returns when everything is on the disk. Errors of earlier
    /// writes appear here, and then readers see no end.
    ///
    /// # Errors
    /// The system refuses; this process is a fork of the one that created the file. Then steps
    /// written since the last [`sync`](Self::sync) may be lost, and the file has no end; or, if
    /// only the end was left to be synced, it has one that a crash of the machine may lose.
    pub fn finish(mut self) -> Result<(), FileError> {
        self.claim.check()?;
        // First: an end implies that everything before it is on the disk.
        self.sync_for_end()?;
        let ended = self.write_end();
        if ended.is_err() {
            let _ = self.frames.cut(self.end);
        }
        ended?;
        // Readers may have seen the end by now: it stays.
        self.sync_for_end()
    }

    fn sync_for_end(&mut self) -> Result<(), FileError> {
        match self.durability {
            Durability::System if !self.is_lost => Ok(()),
            _ => self.sync(),
        }
    }

    fn write_end(&mut self) -> Result<(), FileError> {
        let index = Index {
            records: std::mem::take(&mut self.records),
        };
        let at = self
            .frames
            .write(Kind::Index, 0, self.id, self.end, &index)?;
        self.frames.write(Kind::End, 0, self.id, at, &self.end)?;
        Ok(())
    }
}

/// Checks that every block of the layout is given, with the right length.
///
/// # Errors
/// The first block for which this fails.
#[cfg(feature = "zarr")]
pub(super) fn check(content: &Content<'_>) -> Result<(), FileError> {
    places(content).map(drop)
}

/// Returns the offset of each block in the data, and the length of the data.
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
        // Lengths of bytes in memory cannot overflow, even when aligned.
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

/// Checks a layout.
///
/// # Errors
/// A variable that occurs twice, blocks outside their array or overlapping.
fn check_layout(rank: u32, layout: &Layout) -> Result<(), FileError> {
    layout.check(rank)?;
    for variable in &layout.variables {
        let regions: Vec<Region> = variable.blocks.iter().map(|b| b.region.clone()).collect();
        check_disjoint(&variable.name, &regions, |_| rank)?;
    }
    Ok(())
}

/// Checks that a program has this rank.
pub(crate) fn check_rank(program: &str, rank: u32, size: u32) -> Result<(), Fault> {
    let (program, most) = (program.to_owned(), MOST_RANKS);
    match rank < size {
        _ if size > most => Err(Fault::TooManyRanks {
            program,
            size,
            most,
        }),
        true => Ok(()),
        false => Err(Fault::RankBeyond {
            program,
            rank,
            size,
        }),
    }
}

fn writers_of(stream: &str) -> String {
    format!("the writers of {stream}")
}

fn stranger(frames: &Frames, is: &Header, stream: &str, (rank, ranks): (u32, u32)) -> FileError {
    let wanted = Header {
        stream: stream.to_owned(),
        rank,
        ranks,
        ..is.clone()
    };
    FileError::Stranger {
        path: frames.path.clone(),
        found: is.name(),
        wanted: wanted.name(),
    }
}
