//! Memory of collectives that outlives a call. Blocks of dropped boards are used again for boards
//! only: a member of the old board may still write into them.

use crate::job::Job;
use crate::{GlobalPtr, Result};
use parking_lot::Mutex;
use samite_mem::SharedBytes;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a job has of it, for all its teams.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// Blocks of boards that were dropped, with their lengths.
    blocks: Mutex<Vec<(u64, GlobalPtr<u8>)>>,
    /// Staging memory that no call uses.
    staging: Mutex<Vec<Staging>>,
    left_behind: AtomicBool,
}

/// Memory that slices go through, piece by piece. One call uses it at a time, and a call ends when
/// nobody is at it any more.
#[derive(Debug)]
pub(super) struct Staging {
    pub(super) pointer: GlobalPtr<u8>,
    pub(super) bytes: SharedBytes,
}

impl Pool {
    /// A block of zeros.
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
        let at = blocks.iter().position(|(of, _)| *of == bytes)?;
        Some(blocks.swap_remove(at).1)
    }

    #[cfg(test)]
    pub(super) fn blocks(&self) -> usize {
        self.blocks.lock().len()
    }

    pub(super) fn put(&self, block: GlobalPtr<u8>, bytes: u64) {
        self.blocks.lock().push((bytes, block));
    }

    /// Staging memory of at least so many bytes.
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

    /// A collective was given up: others may still write into memory of this job.
    pub(super) fn leave_behind(&self) {
        // ORDERING: Relaxed, here and below: it is asked when the job is dropped, after all that
        // its threads did.
        self.left_behind.store(true, Ordering::Relaxed);
    }
}

/// Own memory, which is mapped, or there is no board.
fn mapped(job: &Job, pointer: GlobalPtr<u8>, bytes: u64) -> Result<SharedBytes> {
    let mapped = job.mapped(pointer, bytes)?;
    mapped.ok_or_else(|| crate::job::bad(pointer))
}

impl Drop for Job {
    fn drop(&mut self) {
        // Calls that have not ended leave their memory behind.
        self.collectives.in_flight.get_mut().clear();
        if self.collectives.pool.left_behind.load(Ordering::Relaxed) {
            // Others may still write into a board of this unit: its memory is not used for anything
            // else.
            std::mem::forget(std::mem::take(self.heap.get_mut()));
        }
    }
}
