//! Reads the steps of a stream from its folder, during writing or later.

use super::Header;
use super::claim::is_written;
use super::error::FileError;
use super::folder::{Life, found, life_of};
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
    /// The required run, if any.
    run: Option<u64>,
    /// The header of all of its files, except for the rank.
    header: Header,
    /// The ranks that have begun their files.
    pub(super) ranks: BTreeMap<u32, Scan>,
    /// The steps that all ranks have.
    steps: Vec<Step>,
}

/// Whether the ranks that the next step waits for are alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writers {
    /// All of them are alive and writing.
    Alive,
    /// This rank is gone without having ended its file.
    Gone(u32),
    /// A rank has not begun its file, or the file system cannot tell.
    Unknown,
}

impl Archive {
    /// Opens the files in `folder`; they need not be ended. If there are files of several runs,
    /// takes the complete run, or else the one that was written last.
    ///
    /// # Errors
    /// No rank has begun; a file is damaged, or belongs to another stream; the system refuses.
    pub fn open(folder: &Path) -> Result<Self, FileError> {
        Archive::of(folder, None)
    }

    /// Opens the files of one run, which its writers passed to
    /// [`StepFile::begin`](super::StepFile::begin): its newest life. Files of other runs are
    /// ignored.
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

    /// Looks for new steps. Once all ranks have begun, new files that replace the old ones are not
    /// seen: open the folder again.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn refresh(&mut self) -> Result<(), FileError> {
        self.ranks.values_mut().try_for_each(Scan::go_on)?;
        if !self.is_begun() {
            // No step of it has been returned yet, so another life may replace it.
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
        let of = |header: &Header| (header.stream.clone(), header.ranks, header.run, header.life);
        if of(&self.header) != of(&life.header) {
            self.ranks.clear();
        }
        self.header = life.header;
        for rank in life.ranks {
            if let Entry::Vacant(place) = self.ranks.entry(rank)
                && let Some(found) = found(&self.folder, rank)?
                && let Some(scan) = Scan::open(found.frames)?
                // Another file may have replaced the one that was seen.
                && of(&scan.header) == of(&self.header)
                && scan.header.rank == rank
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
        // Steps of a file increase, so those before the last one are known.
        let last = self.steps.last().copied();
        let new = first
            .records
            .partition_point(|record| Some(record.0) <= last);
        let new = first.records[new..].iter().map(|record| record.0);
        let is_whole = |step: &Step| scans.clone().all(|scan| scan.has(*step));
        self.steps.extend(new.filter(is_whole));
    }

    /// Returns the step that can be complete next: the first one that some rank has, and that no
    /// other rank has passed. `None` if no rank has one after the complete ones.
    fn next(&self) -> Option<Step> {
        let mut next = None;
        loop {
            let after = || self.steps.last().map_or(0, |last| last + 1);
            let from = next.unwrap_or_else(after);
            // Steps of a file increase: a rank that has a later one does not write this one.
            let ranks = self.ranks.values();
            let latest = ranks.filter_map(|scan| scan.first(from)).max();
            if latest <= next {
                return next;
            }
            next = latest;
        }
    }

    /// Returns the rank that the next step waits for, and its number of steps: one that has not
    /// begun its file, or else, of those without that step, the one with the fewest. `None` if all
    /// have ended, or all have the same.
    pub fn behind(&self) -> Option<(u32, Option<u64>)> {
        let mut ranks = 0..self.header.ranks;
        if let Some(rank) = ranks.find(|rank| !self.ranks.contains_key(rank)) {
            return Some((rank, None));
        }
        let next = self.next()?;
        let ranks = self.ranks.iter();
        let behind = ranks.filter(|(_, scan)| !scan.is_finished && !scan.has(next));
        let counts = behind.map(|(rank, scan)| (*rank, Some(scan.records.len() as u64)));
        counts.min_by_key(|(_, count)| *count)
    }

    /// Returns whether the writers of what is missing for the next step are alive.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn writers(&self) -> Result<Writers, FileError> {
        if !self.is_begun() {
            return Ok(Writers::Unknown);
        }
        let next = self.next();
        let mut found = Writers::Alive;
        for (rank, scan) in &self.ranks {
            // A rank that has the step has done its part.
            if scan.is_finished || next.is_some_and(|next| scan.has(next)) {
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

    /// Returns true if a missing step cannot come any more: a rank has written a later one, or has
    /// ended.
    pub fn is_past(&self, step: Step) -> bool {
        let passed = |scan: &Scan| {
            scan.is_finished || scan.records.last().is_some_and(|record| record.0 > step)
        };
        let mut scans = self.ranks.values();
        scans.any(|scan| !scan.has(step) && passed(scan))
    }

    /// Returns the name of the stream.
    pub fn stream(&self) -> &str {
        &self.header.stream
    }

    /// Returns its run; 0 if its writers did not set one.
    pub fn run(&self) -> u64 {
        self.header.run
    }

    /// Returns the number of ranks that write it.
    pub fn ranks(&self) -> u32 {
        self.header.ranks
    }

    /// Returns the steps that are complete at all ranks, in increasing order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns a rank that has ended its file without a step that another one has: that step is
    /// never completed. `None` until the steps before it are complete.
    pub(crate) fn ended_early(&self) -> Option<u32> {
        let next = self.next()?;
        let mut ranks = self.ranks.iter();
        let early = ranks.find(|(_, scan)| scan.is_finished && !scan.has(next));
        early.map(|(rank, _)| *rank)
    }

    /// Returns true if all ranks have ended their files: no step will follow.
    pub fn is_finished(&self) -> bool {
        self.is_begun() && self.ranks.values().all(|scan| scan.is_finished)
    }

    #[cfg(test)]
    pub(super) fn scan_of(&self, rank: u32) -> &Scan {
        &self.ranks[&rank]
    }

    /// Returns a step.
    ///
    /// # Errors
    /// Some rank does not have it; its ranks do not agree on a variable, or their blocks overlap; a
    /// file is damaged.
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
