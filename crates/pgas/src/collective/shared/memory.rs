//! The memory of boards. Blocks of dropped boards are used again for boards only: a member of the old board may still
//! write into them.

use super::board::Board;
use crate::job::Job;
use crate::{GlobalPtr, Result};
use parking_lot::Mutex;

/// Blocks of boards that were dropped, with their lengths.
#[derive(Debug, Default)]
pub(crate) struct Blocks(Mutex<Vec<(u64, GlobalPtr<u8>)>>);

impl Blocks {
    /// A block of zeros.
    pub(super) fn take(&self, job: &Job, bytes: u64) -> Result<GlobalPtr<u8>> {
        let mut blocks = self.0.lock();
        let fits = blocks.iter().position(|(of, _)| *of == bytes);
        let Some(at) = fits else {
            return job.allocate::<u8>(bytes);
        };
        let (_, block) = blocks.swap_remove(at);
        let mapped = job.mapped(block, bytes)?;
        mapped.ok_or_else(|| crate::job::bad(block))?.fill(0);
        Ok(block)
    }

    pub(super) fn put(&self, block: GlobalPtr<u8>, bytes: u64) {
        self.0.lock().push((bytes, block));
    }
}

impl Board {
    /// Lets go of this member's block; see the module's text.
    pub(crate) fn free(&self, job: &Job) {
        match self.broken.get() {
            None => job.collectives.blocks.put(self.place, self.bytes),
            Some(_) => job.collectives.leave_behind(),
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.collectives.leaves_behind() {
            // Others may still write into a board of this unit: its memory is not used for anything else.
            std::mem::forget(std::mem::take(self.heap.get_mut()));
        }
    }
}
