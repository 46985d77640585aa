//! Finds the steps of a file: from its index if it was ended, otherwise from head to head, up to
//! the first frame that is missing or damaged.

use super::error::FileError;
use super::frame::{ALIGN, Frames, Head, Kind};
use super::{Header, Index, Record};
use crate::protocol::Step;

/// Readers count on a next step.
const NO_SUCCESSOR: &str = "a step with the largest number";

/// A file, as far as it was read.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) frames: Frames,
    pub(super) header: Header,
    pub(super) id: u64,
    /// Where the record of each step begins; the steps increase.
    pub(super) records: Vec<(Step, u64)>,
    /// Where the frames of the last complete step end: an incomplete step may follow.
    pub(super) end: u64,
    /// The writer ended the file: nothing will follow.
    pub(super) is_finished: bool,
}

impl Scan {
    /// Returns `None` if the file has no complete header (yet).
    pub(super) fn open(frames: Frames) -> Result<Option<Self>, FileError> {
        let Some((head, header)) = header(&frames)? else {
            return Ok(None);
        };
        let mut scan = Scan {
            header,
            id: head.id,
            records: Vec::new(),
            end: head.end().unwrap_or(0),
            is_finished: false,
            frames,
        };
        scan.by_index()?;
        scan.go_on()?;
        Ok(Some(scan))
    }

    /// Reads the index, if the file ends with one.
    fn by_index(&mut self) -> Result<(), FileError> {
        let length = self.frames.length()?;
        let Some(at) = length.checked_sub(2 * ALIGN) else {
            return Ok(());
        };
        let end = self.frames.head(at)?;
        let Some(end) = end.filter(|end| end.kind == Kind::End && end.id == self.id) else {
            return Ok(());
        };
        let at: u64 = self.frames.content(&end)?;
        let index = self
            .frames
            .head(at)?
            .filter(|head| head.kind == Kind::Index && head.id == self.id);
        let index = index.ok_or_else(|| self.frames.corrupt(at, "there is no index"))?;
        let Index { records } = self.frames.content(&index)?;
        let rises = records.is_sorted_by(|one, next| one.0 < next.0 && one.1 < next.1);
        if !rises || records.last().is_some_and(|last| last.1 >= at) {
            return Err(self.frames.corrupt(at, "the index is not sorted"));
        }
        if records.last().is_some_and(|last| last.0 == Step::MAX) {
            return Err(self.frames.corrupt(at, NO_SUCCESSOR));
        }
        (self.records, self.end, self.is_finished) = (records, at, true);
        Ok(())
    }

    /// Looks for new steps.
    pub(super) fn go_on(&mut self) -> Result<(), FileError> {
        if self.is_finished {
            return Ok(());
        }
        let mut at = self.end;
        let length = self.frames.length()?;
        while let Some(head) = self.frames.head(at)?.filter(|head| head.id == self.id) {
            let Some(next) = head.end().filter(|next| *next <= length) else {
                break;
            };
            match head.kind {
                Kind::Layout | Kind::Data => {}
                Kind::Record => {
                    if !self.is_whole(&head, next)? {
                        break;
                    }
                    if self.records.last().is_some_and(|last| head.step <= last.0) {
                        return Err(self.frames.corrupt(at, "step numbers do not increase"));
                    }
                    if head.step == Step::MAX {
                        return Err(self.frames.corrupt(at, NO_SUCCESSOR));
                    }
                    self.records.push((head.step, at));
                    self.end = next;
                }
                // The writer is just ending the file: the records are already known.
                Kind::Index => {}
                Kind::End => {
                    self.is_finished = true;
                    break;
                }
                Kind::Header => return Err(self.frames.corrupt(at, "a second header")),
            }
            at = next;
        }
        Ok(())
    }

    pub(super) fn has(&self, step: Step) -> bool {
        self.first(step) == Some(step)
    }

    /// Returns the first step from `from` on.
    pub(super) fn first(&self, from: Step) -> Option<Step> {
        let at = self.records.partition_point(|record| record.0 < from);
        self.records.get(at).map(|record| record.0)
    }

    /// Returns true if a record is complete. An incomplete one is the last frame of its file: if
    /// more follows, it is damaged.
    fn is_whole(&self, record: &Head, next: u64) -> Result<bool, FileError> {
        let read = || self.frames.content::<Record>(record).map(|_| true);
        match read() {
            Err(FileError::Corrupt { .. }) => {
                let more = self.frames.head(next)?;
                match more.is_some_and(|head| head.id == self.id) {
                    // Both may have been written since.
                    true => read(),
                    false => Ok(false),
                }
            }
            result => result,
        }
    }

    /// Checks what a resuming writer is about to cut off after the last step: an incomplete step,
    /// but no complete one after damage.
    ///
    /// # Errors
    /// [`FileError::Corrupt`]: there is a complete step.
    pub(super) fn nothing_follows(&self) -> Result<(), FileError> {
        let (mut at, length) = (self.end, self.frames.length()?);
        while let Some(head) = self.frames.find(Kind::Record, self.id, at)? {
            let is_there = head.end().is_some_and(|end| end <= length);
            if is_there && self.frames.content::<Record>(&head).is_ok() {
                let what = "steps follow that cannot be reached";
                return Err(self.frames.corrupt(self.end, what));
            }
            at = head.at + ALIGN;
        }
        Ok(())
    }
}

/// Returns the header of a file; `None` if it has no complete one (yet).
pub(super) fn header(frames: &Frames) -> Result<Option<(Head, Header)>, FileError> {
    match frames.head(0)?.filter(|head| head.kind == Kind::Header) {
        Some(head) => Ok(Some((head, frames.content(&head)?))),
        None => Ok(None),
    }
}
