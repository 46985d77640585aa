//! Memory to come: a buffer's pages are made part by part, the buffers one after another.

use super::{BlockStore, BufferState};
use crate::protocol::{BufferId, Handle, Lack, Peer, Report};
use samite_fabric::{Growing, Phased};

/// A buffer whose memory is not whole yet.
#[derive(Debug)]
pub(super) struct Unborn {
    buffer: BufferId,
    bytes: u64,
    writer: Peer,
    /// `None`: it has not begun to grow, and counts as nothing.
    memory: Option<Part>,
    /// The coordinator was told that it waits for memory which is in use.
    told: bool,
}

/// Memory of which so many parts are there.
#[derive(Debug)]
struct Part {
    growing: Growing,
    parts: u64,
}

impl BlockStore {
    /// What is reported at once. A buffer that is not there then is found memory for by
    /// [`BlockStore::grow`].
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

    /// Nobody wants the buffer any more that has still to grow, if it is one.
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

    /// Of the next buffer that waits for memory which is in use: that it does, once.
    pub(super) fn tell_full(&mut self) -> Option<Report> {
        let had_by = self.free.iter().find_map(|freed| freed.lent);
        let mut waiting = self.growing.iter_mut().filter(|_| self.is_full);
        let untold = waiting.find(|unborn| !unborn.told)?;
        untold.told = true;
        let buffer = untold.buffer;
        Some(Report::Full { buffer, had_by })
    }

    /// Memory that begins to grow, and counts as used from now on. `None` as long as there is no
    /// room for it: what was freed and is still had by somebody (a reader with a view, a writer of
    /// a stream that has failed) is used, whatever the coordinator's books say.
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

    /// Finds the next part of the memory of the buffer that grows; what is to be reported.
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

    /// What is reported of a buffer that is there, or cannot be.
    fn held(&self, buffer: BufferId, bytes: u64, lent: samite_fabric::Result<Handle>) -> Report {
        match lent {
            Ok(handle) => Report::Allocated { buffer, handle },
            Err(error) => self.refuse(buffer, bytes, &error),
        }
    }

    /// It cannot have a buffer: whether for want of a number, all of which are in use then, or of
    /// memory.
    fn refuse(&self, buffer: BufferId, bytes: u64, error: &samite_fabric::Error) -> Report {
        tracing::warn!(bytes, %error, "no memory for a buffer");
        let lack = match self.has_numbers() {
            true => Lack::Memory,
            false => Lack::Numbers(self.fabric.free_segments().len() as u64 * u64::from(u64::BITS)),
        };
        Report::Refused { buffer, lack }
    }

    /// Under a number that is free, or that somebody gives back.
    fn publish(&mut self, memory: Growing) -> samite_fabric::Result<Phased> {
        if !self.has_numbers() {
            self.give_idle_back();
        }
        // Other threads of this process take numbers, too: this one is found and taken in one step.
        memory.publish(None)
    }

    /// Whether a number of a segment is free.
    fn has_numbers(&self) -> bool {
        self.fabric.free_segments().iter().any(|word| *word != 0)
    }

    /// Lends memory that counts as used. When that fails because somebody is attached, it is used
    /// as long as that one is.
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
