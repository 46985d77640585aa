//! Reads the steps of a stream out of its folder, while it is written or later.

use super::Header;
use super::claim::is_written;
use super::error::FileError;
use super::folder::{Life, life_of};
use super::scan::Scan;
use super::stored::StoredStep;
use crate::protocol::Step;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

/// The steps of a stream that is stored in a folder: of one life of it in one run.
#[derive(Debug)]
pub struct Archive {
    pub(super) folder: PathBuf,
    /// Which run it must be.
    run: Option<u64>,
    /// What all of its files say, but for the rank.
    header: Header,
    /// Of the ranks that have begun their files.
    pub(super) ranks: BTreeMap<u32, Scan>,
    /// Those that all ranks have.
    steps: Vec<Step>,
}

/// Whether the ranks that the next step waits for are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writers {
    /// All of them are there, and write.
    Alive,
    /// This one has not, and has not ended its file.
    Gone(u32),
    /// A rank has not begun its file, or the file system does not tell.
    Unknown,
}

impl Archive {
    /// Opens what there is in `folder`: no rank need have ended. Where there are files of several
    /// runs, those that are complete, else those that were written last.
    ///
    /// # Errors
    /// No rank has begun; a file is damaged, or belongs to another stream; the system refuses.
    pub fn open(folder: &Path) -> Result<Self, FileError> {
        Archive::of(folder, None)
    }

    /// Opens what there is of one run, as its writers said it to
    /// [`StepFile::begin`](super::StepFile::begin): the newest life of it. What is there of other
    /// runs is not looked at.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_run(folder: &Path, run: u64) -> Result<Self, FileError> {
        Archive::of(folder, Some(run))
    }

    fn of(folder: &Path, run: Option<u64>) -> Result<Self, FileError> {
        let life = life_of(folder, run)?;
        let mut archive = Archive {
            folder: folder.to_owned(),
            run,
            header: life.header.clone(),
            ranks: BTreeMap::new(),
            steps: Vec::new(),
        };
        archive.take(life)?;
        archive.find_steps();
        Ok(archive)
    }

    /// Looks for steps that were written since. Once all ranks have begun, files that are begun
    /// anew are not looked at: open the folder again.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn refresh(&mut self) -> Result<(), FileError> {
        self.ranks.values_mut().try_for_each(Scan::go_on)?;
        if !self.is_begun() {
            // Nobody has seen a step of it yet, so it may as well be another life.
            match life_of(&self.folder, self.run) {
                Ok(life) => self.take(life)?,
                Err(FileError::NotAStream { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.find_steps();
        Ok(())
    }

    fn take(&mut self, life: Life) -> Result<(), FileError> {
        let of = |header: &Header| (header.run, header.life);
        if of(&self.header) != of(&life.header) {
            self.ranks.clear();
        }
        self.header = life.header;
        for (rank, frames) in life.files {
            if let Entry::Vacant(place) = self.ranks.entry(rank)
                && let Some(scan) = Scan::open(frames)?
            {
                place.insert(scan);
            }
        }
        Ok(())
    }

    fn is_begun(&self) -> bool {
        self.ranks.len() as u64 == u64::from(self.header.ranks)
    }

    fn find_steps(&mut self) {
        let mut scans = self.ranks.values();
        let Some(first) = scans.next().filter(|_| self.is_begun()) else {
            return;
        };
        self.steps = first.records.iter().map(|record| record.0).collect();
        for scan in scans {
            self.steps.retain(|step| scan.has(*step));
        }
    }

    /// The rank that the next step waits for, and how many it has: one that has not begun its file,
    /// else the one that has the fewest; `None` where all have ended, or all have as many.
    pub fn behind(&self) -> Option<(u32, Option<u64>)> {
        let mut ranks = 0..self.header.ranks;
        if let Some(rank) = ranks.find(|rank| !self.ranks.contains_key(rank)) {
            return Some((rank, None));
        }
        let count = |scan: &Scan| scan.records.len() as u64;
        let running = self.ranks.iter().filter(|(_, scan)| !scan.is_finished);
        let (rank, last) = running.min_by_key(|(_, scan)| count(scan))?;
        let is_ahead = |scan: &Scan| count(scan) > count(last);
        let is_behind = self.ranks.values().any(is_ahead);
        is_behind.then(|| (*rank, Some(count(last))))
    }

    /// Who writes what is missing for the next step.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn writers(&self) -> Result<Writers, FileError> {
        if !self.is_begun() {
            return Ok(Writers::Unknown);
        }
        let mut found = Writers::Alive;
        for (rank, scan) in &self.ranks {
            // One that is ahead of others has done its part.
            if scan.is_finished || scan.records.len() > self.steps.len() {
                continue;
            }
            match is_written(&scan.frames)? {
                Some(true) => {}
                Some(false) => return Ok(Writers::Gone(*rank)),
                None => found = Writers::Unknown,
            }
        }
        Ok(found)
    }

    /// Whether a step that is not there cannot come any more: a rank has written a later one, or
    /// has ended.
    pub fn is_past(&self, step: Step) -> bool {
        let passed = |scan: &Scan| {
            scan.is_finished || scan.records.last().is_some_and(|record| record.0 > step)
        };
        let mut scans = self.ranks.values();
        scans.any(|scan| !scan.has(step) && passed(scan))
    }

    /// The name of the stream.
    pub fn stream(&self) -> &str {
        &self.header.stream
    }

    /// Which run it is of; 0 where its writers did not say.
    pub fn run(&self) -> u64 {
        self.header.run
    }

    /// How many ranks write it.
    pub fn ranks(&self) -> u32 {
        self.header.ranks
    }

    /// The steps that all ranks have whole, rising.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// A rank that has ended its file without a step that another one has: that step never becomes
    /// whole. Said once the steps before it are there.
    pub(crate) fn ended_early(&self) -> Option<u32> {
        let last = |scan: &Scan| scan.records.last().map(|record| record.0);
        let most = self.ranks.values().map(last).max()?;
        let mut ranks = self.ranks.iter();
        let early = ranks.find(|(_, scan)| {
            scan.is_finished && last(scan) < most && last(scan) == self.steps.last().copied()
        });
        early.map(|(rank, _)| *rank)
    }

    /// Whether all ranks have ended in order: no step will follow.
    pub fn is_finished(&self) -> bool {
        self.is_begun() && self.ranks.values().all(|scan| scan.is_finished)
    }

    #[cfg(test)]
    pub(super) fn scan_of(&self, rank: u32) -> &Scan {
        &self.ranks[&rank]
    }

    /// A step.
    ///
    /// # Errors
    /// It is not there at all ranks; its ranks do not agree on a variable, or their blocks overlap;
    /// a file is damaged.
    pub fn step(&self, step: Step) -> Result<StoredStep<'_>, FileError> {
        let no_step = || FileError::NoStep {
            path: self.folder.clone(),
            step,
            first: self.steps.first().copied(),
            last: self.steps.last().copied(),
        };
        self.steps.binary_search(&step).map_err(|_| no_step())?;
        let stored = StoredStep::read_records(self, step)?;
        stored.check_blocks()?;
        Ok(stored)
    }
}
