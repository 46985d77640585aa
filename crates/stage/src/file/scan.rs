//! Which steps a file has: from its index where it ended in order, else from head to head, up to the first frame that is
//! not there or not intact.

use super::error::FileError;
use super::frame::{ALIGN, Frames, Kind};
use super::{Header, Index};
use crate::protocol::Step;
use std::fs::File;

/// A file, as far as it was read.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) frames: Frames,
    pub(super) header: Header,
    pub(super) id: u64,
    /// Where the record of each step begins; the steps rise.
    pub(super) records: Vec<(Step, u64)>,
    /// Where the frames of the last complete step end: what follows may be half a step.
    pub(super) end: u64,
    /// The writer ended the file in order: nothing will follow.
    pub(super) is_finished: bool,
}

impl Scan {
    /// `None` where the file has no whole header (yet).
    pub(super) fn open(file: File, path: &std::path::Path) -> Result<Option<Self>, FileError> {
        let frames = Frames::new(file, path);
        let Some(head) = frames.head(0)?.filter(|head| head.kind == Kind::Header) else {
            return Ok(None);
        };
        let header = frames.content(&head)?;
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

    /// Takes the index, if the file ends with one.
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
            .filter(|head| head.kind == Kind::Index);
        let index = index.ok_or_else(|| self.frames.corrupt(at, "there is no index"))?;
        let Index { records } = self.frames.content(&index)?;
        let rises = records.is_sorted_by(|one, next| one.0 < next.0 && one.1 < next.1);
        if !rises || records.last().is_some_and(|last| last.1 >= at) {
            return Err(self.frames.corrupt(at, "the index has no order"));
        }
        (self.records, self.end, self.is_finished) = (records, at, true);
        Ok(())
    }

    /// Looks for steps that were written since.
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
                    // An unreadable record is one that was not written to its end.
                    if self.frames.content::<super::Record>(&head).is_err() {
                        break;
                    }
                    if self.records.last().is_some_and(|last| head.step <= last.0) {
                        return Err(self.frames.corrupt(at, "steps do not rise"));
                    }
                    self.records.push((head.step, at));
                    self.end = next;
                }
                // The end, if the writer is just writing it: the records are known already.
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
}
