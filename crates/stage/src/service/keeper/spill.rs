//! Buffers go to disk part by part, and come back in letters.

use super::disk::Place;
use super::{Held, Keeper, LOAD};
use crate::protocol::{BufferId, Report};

/// Bytes that are spilled before other work is looked at.
pub(super) const PART: u64 = 16 << 20;

/// A buffer that is on its way to disk; until it is there it is read from memory.
#[derive(Debug)]
pub(super) struct Spilling {
    pub(super) buffer: BufferId,
    place: Place,
    done: u64,
}

impl Keeper {
    pub(super) fn begin_spill(&mut self, buffer: BufferId) -> std::io::Result<()> {
        let begun = self.spilling.iter().any(|one| one.buffer == buffer);
        let Some(Held::Reading(gated)) = self.buffers.get(&buffer).filter(|_| !begun) else {
            return Err(std::io::Error::other(
                "the buffer is not here to be spilled",
            ));
        };
        let place = self.disk.take(gated.key().bytes)?;
        self.spilling.push_back(Spilling {
            buffer,
            place,
            done: 0,
        });
        Ok(())
    }

    /// Writes the next part of the buffer that is spilled; what is to be reported.
    pub(super) fn spill(&mut self) -> Option<Report> {
        let buffer = self.spilling.front()?.buffer;
        match self.spill_part() {
            Ok(false) => {
                let parts = self.spilling.front()?.done / PART;
                Some(Report::Working { buffer, parts })
            }
            Ok(true) => {
                let spilled = self.spilling.pop_front()?;
                let on_disk = Held::OnDisk(spilled.place);
                if let Some(Held::Reading(gated)) = self.buffers.insert(buffer, on_disk) {
                    self.set_free(gated, None);
                }
                Some(Report::Spilled { buffer })
            }
            Err(error) => {
                self.stop_spilling(buffer);
                Some(not_spilled(buffer, &error))
            }
        }
    }

    /// Whether that was the last one.
    fn spill_part(&mut self) -> std::io::Result<bool> {
        let gone = || std::io::Error::other("the buffer is not readable");
        let first = self.spilling.front_mut().ok_or_else(gone)?;
        let Some(Held::Reading(gated)) = self.buffers.get(&first.buffer) else {
            return Err(gone());
        };
        let remote = self.fabric.attach(gated.key());
        let remote = remote.map_err(std::io::Error::other)?;
        let readable = remote.readable().ok_or_else(gone)?;
        let all: &[u8] = readable.as_slice();
        let rest = &all[first.done as usize..];
        let part = &rest[..rest.len().min(PART as usize)];
        self.disk.write(&first.place, first.done, part)?;
        first.done += part.len() as u64;
        Ok(first.done == all.len() as u64)
    }

    pub(super) fn stop_spilling(&mut self, buffer: BufferId) {
        let at = self.spilling.iter().position(|one| one.buffer == buffer);
        if let Some(stopped) = at.and_then(|at| self.spilling.remove(at)) {
            self.disk.free(stopped.place);
        }
    }

    pub(super) fn load(&self, buffer: BufferId, offset: u64, len: u64) -> Result<Vec<u8>, String> {
        if len > LOAD {
            return Err(format!("{len} bytes at once: at most {LOAD} are given"));
        }
        let Some(Held::OnDisk(place)) = self.buffers.get(&buffer) else {
            return Err("the buffer is not on this keeper's disk".into());
        };
        let read = self.disk.read(place, offset, len);
        read.map_err(|error| error.to_string())
    }
}

pub(super) fn not_spilled(buffer: BufferId, error: &std::io::Error) -> Report {
    tracing::warn!(%error, "a buffer was not spilled");
    Report::SpillFailed { buffer }
}
