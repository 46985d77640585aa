//! Memory of collectives that outlives a call.

use crate::job::Job;
use crate::{GlobalPtr, Result};
use parking_lot::Mutex;
use samite_mem::SharedBytes;
use std::sync::atomic::{AtomicBool, Ordering};

/// The pool of a job, for all its teams.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    blocks: Mutex<Vec<Dropped>>,
    /// Staging memory that no call uses.
    staging: Mutex<Vec<Staging>>,
    left_behind: AtomicBool,
}

/// The block of a board that was dropped.
#[derive(Debug)]
struct Dropped {
    bytes: u64,
    at: GlobalPtr<u8>,
    /// The words of the members, and what a member writes there that has dropped its board; `None`
    /// if it never was part of one.
    left: Option<(SharedBytes, u64)>,
}

impl Dropped {
    /// Returns true if no member writes there any more.
    fn is_unused(&self) -> bool {
        self.left.as_ref().is_none_or(|(words, mark)| {
            // ORDERING: Acquire pairs with the Release in the drop of a board.
            let has_left = |at| words.u64(at).load(Ordering::Acquire) == *mark;
            (0..words.len()).step_by(8).all(has_left)
        })
    }
}

/// Memory through which slices pass, piece by piece. One call uses it at a time, and a call ends
/// only when no member accesses it any more.
#[derive(Debug)]
pub(super) struct Staging {
    pub(super) pointer: GlobalPtr<u8>,
    pub(super) bytes: SharedBytes,
}

impl Pool {
    /// Takes a block of zeros.
    pub(super) fn take(&self, job: &Job, bytes: u64) -> Result<GlobalPtr<u8>> {
        match self.pop(bytes) {
            None => job.allocate::<u8>(bytes),
            Some(block) => {
                mapped(job, block, bytes)?.fill(0);
                Ok(block)
            }
        }
    }

    fn pop(&self, bytes: u64) -> Option<GlobalPtr<u8>> {
        let mut blocks = self.blocks.lock();
        let fits = |block: &Dropped| block.bytes == bytes && block.is_unused();
        let found = blocks.iter().position(fits)?;
        Some(blocks.swap_remove(found).at)
    }

    #[cfg(test)]
    pub(super) fn blocks(&self) -> usize {
        self.blocks.lock().len()
    }

    pub(super) fn put(&self, at: GlobalPtr<u8>, bytes: u64, left: Option<(SharedBytes, u64)>) {
        self.blocks.lock().push(Dropped { bytes, at, left });
    }

    /// Takes staging memory of at least `bytes` bytes.
    pub(super) fn stage(&self, job: &Job, bytes: u64) -> Result<Staging> {
        let kept = self.staging.lock().pop();
        match kept {
            Some(kept) if kept.bytes.len() >= bytes => return Ok(kept),
            Some(small) => job.free(small.pointer)?,
            None => {}
        }
        let pointer = job.allocate::<u8>(bytes)?;
        let bytes = mapped(job, pointer, bytes)?;
        Ok(Staging { pointer, bytes })
    }

    pub(super) fn unstage(&self, staging: Staging) {
        self.staging.lock().push(staging);
    }

    /// Records that a collective was given up: others may still write into memory of this job.
    pub(super) fn leave_behind(&self) {
        // ORDERING: Relaxed, here and below: it is read when the job is dropped, after all actions
        // of its threads.
        self.left_behind.store(true, Ordering::Relaxed);
    }
}

/// Returns own memory, which is mapped if there is a board.
fn mapped(job: &Job, pointer: GlobalPtr<u8>, bytes: u64) -> Result<SharedBytes> {
    let mapped = job.mapped(pointer, bytes)?;
    mapped.ok_or_else(|| crate::job::bad(pointer))
}

impl Drop for Job {
    fn drop(&mut self) {
        // Dropping unfinished calls records whether others may still use their memory.
        self.collectives.in_flight.get_mut().clear();
        if self.collectives.pool.left_behind.load(Ordering::Relaxed) {
            // Others may still write into a board of this unit, so its memory is leaked.
            std::mem::forget(std::mem::take(self.heap.get_mut()));
        }
    }
}
