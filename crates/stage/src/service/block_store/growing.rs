//! Memory being allocated: the pages of a buffer part by part, the buffers one after another.

use super::{BlockStore, BufferState};
use crate::protocol::{BufferId, Handle, Lack, Peer, Report};
use samite_fabric::{Growing, Phased};

/// A buffer whose memory is not complete yet.
#[derive(Debug)]
pub(super) struct Unborn {
    pub(super) buffer: BufferId,
    bytes: u64,
    writer: Peer,
    /// `None` if it has not begun to grow. It then counts as no memory.
    memory: Option<Part>,
    /// Set if the coordinator was told that it waits for memory in use.
    told: bool,
}

/// Memory with the number of its allocated parts.
#[derive(Debug)]
struct Part {
    growing: Growing,
    parts: u64,
}

impl BlockStore {
    /// Allocates a buffer at once if possible, and returns the report. Otherwise
    /// [`BlockStore::grow`] allocates its memory later.
    pub(super) fn allocate(
        &mut self,
        buffer: BufferId,
        bytes: u64,
        writer: Peer,
    ) -> Option<Report> {
        if let Some(phased) = self.reuse(bytes) {
            let lent = self.lend(buffer, phased, writer);
            return Some(self.held(buffer, bytes, lent));
        }
        self.growing.push_back(Unborn {
            buffer,
            bytes,
            writer,
            memory: None,
            told: false,
        });
        match self.growing.len() {
            1 => self.grow(),
            _ => self.tell_full(),
        }
    }

    /// Stops growing a buffer, if it is growing, because it is no longer wanted.
    pub(super) fn stop_growing(&mut self, buffer: BufferId) {
        let at = self.growing.iter().position(|one| one.buffer == buffer);
        let stopped = at.and_then(|at| self.growing.remove(at));
        if let Some(Unborn {
            memory: Some(_),
            bytes,
            ..
        }) = stopped
        {
            self.used -= bytes;
        }
    }

    /// Reports, once, the next buffer that waits for memory in use.
    pub(super) fn tell_full(&mut self) -> Option<Report> {
        let had_by = self.free.iter().find_map(|freed| freed.lent);
        let mut waiting = self.growing.iter_mut().filter(|_| self.is_full);
        let untold = waiting.find(|unborn| !unborn.told)?;
        untold.told = true;
        let buffer = untold.buffer;
        Some(Report::Full { buffer, had_by })
    }

    /// Starts growing memory, which counts as used from now on. Returns `None` as long as there is
    /// no room for it: freed memory that a process still uses (a reader with a view, a writer of a
    /// failed stream) counts as used, whatever the coordinator's books say.
    fn begin(&mut self, bytes: u64) -> samite_fabric::Result<Option<Part>> {
        if bytes > self.capacity.memory {
            let why = format!("{bytes} bytes of {}", self.capacity.memory);
            return Err(samite_fabric::Error::Memory(why));
        }
        self.make_room(bytes);
        if self.used > self.capacity.memory - bytes {
            return Ok(None);
        }
        let growing = match self.fabric.grow_phased(bytes) {
            Err(_) if self.give_idle_back() => self.fabric.grow_phased(bytes)?,
            other => other?,
        };
        self.used += bytes;
        Ok(Some(Part { growing, parts: 0 }))
    }

    /// Allocates the next part of the growing buffer and returns the report.
    pub(super) fn grow(&mut self) -> Option<Report> {
        let mut first = self.growing.pop_front()?;
        let (buffer, bytes, writer) = (first.buffer, first.bytes, first.writer);
        let begun = match first.memory.take() {
            Some(memory) => Ok(Some(memory)),
            None => self.begin(bytes),
        };
        let mut memory = match begun {
            Ok(Some(memory)) => memory,
            Ok(None) => {
                self.is_full = true;
                self.growing.push_front(first);
                return self.tell_full();
            }
            Err(error) => return Some(self.refuse(buffer, bytes, &error)),
        };
        // One part per call, so that the services can answer requests between two parts.
        self.is_full = false;
        let grown = match memory.growing.step() {
            Ok(false) => {
                memory.parts += 1;
                let parts = memory.parts;
                first.memory = Some(memory);
                self.growing.push_front(first);
                return Some(Report::Working { buffer, parts });
            }
            Ok(true) => {
                let phased = self.publish(memory.growing);
                if phased.is_err() {
                    self.used -= bytes;
                }
                phased.and_then(|phased| self.lend(buffer, phased, writer))
            }
            Err(error) => {
                self.used -= bytes;
                Err(error)
            }
        };
        Some(self.held(buffer, bytes, grown))
    }

    /// Returns the report for a buffer that was allocated, or that failed.
    fn held(&self, buffer: BufferId, bytes: u64, lent: samite_fabric::Result<Handle>) -> Report {
        match lent {
            Ok(handle) => Report::Allocated { buffer, handle },
            Err(error) => self.refuse(buffer, bytes, &error),
        }
    }

    /// Returns the report for a failed allocation: either all segment numbers are in use, or the
    /// budget of the domain or the memory of the machine is used up.
    fn refuse(&self, buffer: BufferId, bytes: u64, error: &samite_fabric::Error) -> Report {
        tracing::warn!(bytes, %error, "no memory for a buffer");
        let lack = match (self.has_numbers(), error) {
            (
                true,
                &samite_fabric::Error::Budget {
                    asked,
                    used,
                    budget,
                },
            ) => Lack::Budget([asked, used, budget]),
            (true, _) => Lack::Memory,
            (false, _) => {
                Lack::Numbers(self.fabric.free_segments().len() as u64 * u64::from(u64::BITS))
            }
        };
        Report::Refused { buffer, lack }
    }

    /// Publishes memory under a segment number that is free or becomes free.
    fn publish(&mut self, memory: Growing) -> samite_fabric::Result<Phased> {
        if !self.has_numbers() {
            self.give_idle_back();
        }
        // Other threads of this process take numbers, too, so finding and taking one is a single
        // step.
        memory.publish(None)
    }

    /// Returns true if a segment number is free.
    fn has_numbers(&self) -> bool {
        self.fabric.free_segments().iter().any(|word| *word != 0)
    }

    /// Lends memory that counts as used. If that fails because a process is attached, the memory
    /// counts as used as long as it is attached.
    pub(super) fn lend(
        &mut self,
        buffer: BufferId,
        mut phased: Phased,
        writer: Peer,
    ) -> samite_fabric::Result<Handle> {
        let key = phased.key();
        if let Err(error) = phased.lend() {
            phased.shut();
            self.set_free(phased, None);
            return Err(error);
        }
        self.buffers
            .insert(buffer, BufferState::WithWriter(phased, writer));
        Ok(Handle {
            segment: key.segment,
            incarnation: key.incarnation,
            generation: key.generation,
        })
    }
}
