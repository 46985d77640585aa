//! Frames in chunks of coherent memory.
//!
//! | chunk | content | tag of a version | written by | heard by |
//! |---|---|---|---|---|
//! | `video` | the header | 0 | source | all, once |
//! | `in.S` | the frame in slot S | its number, or [`END`] | source | the worker of the slot |
//! | `out.S` | its result | its number | worker | |
//! | `done` | nothing | S, or [`END`] and the number of frames | workers, source | sink |
//! | `ready` | nothing | S | sink | source |
//!
//! Nobody copies a frame: the worker reads a view of `in.S` and writes `out.S` in place, the sink
//! keeps a snapshot of it until the frame's turn comes, and the slot is free at once.

use super::{Error, Header, Pixels, Processed, Result, SLOTS, WORKERS};
use samite::Fabric;
use samite::dsm::{Chunk, Dsm, Policy, Subscription, Version};
use std::collections::VecDeque;

/// The tag that says that there are no more frames.
const END: u64 = 1 << 63;

fn name(what: &str, slot: usize) -> String {
    format!("{what}.{slot}")
}

/// Returns a subscription to all versions of a chunk.
fn all(chunk: &Chunk<u8>) -> Result<Subscription<u8>> {
    Ok(chunk.subscribe(Policy::Every, Version::default())?)
}

fn read_header(dsm: &Dsm) -> Result<Header> {
    let chunk = dsm.lookup::<u64>("video")?;
    chunk
        .subscribe(Policy::Latest, Version::default())?
        .next_event()?;
    Header::from_words(&chunk.read()?)
}

pub(super) struct ToWorkers {
    frames: Vec<Chunk<u8>>,
    done: Chunk<u8>,
    ready: Subscription<u8>,
    free: VecDeque<usize>,
}

impl ToWorkers {
    pub(super) fn new(fabric: &Fabric, header: Header) -> Result<Self> {
        let slots = fabric.program(WORKERS)?.len() * SLOTS;
        let dsm = Dsm::join(fabric)?;
        let bytes = header.size.pixels() as u64;
        let mut frames = Vec::new();
        for slot in 0..slots {
            frames.push(dsm.alloc(&name("in", slot), bytes)?);
            dsm.alloc::<u8>(&name("out", slot), bytes)?;
        }
        let done = dsm.alloc("done", 0)?;
        let ready = all(&dsm.alloc("ready", 0)?)?;
        // Last: who has read it finds the other chunks.
        let video = dsm.alloc("video", Header::WORDS as u64)?;
        video.put(&header.to_words(), 0)?;
        // Each worker gets a frame before any gets a second one.
        let free = (0..SLOTS).flat_map(|first| (first..slots).step_by(SLOTS));
        Ok(ToWorkers {
            frames,
            done,
            ready,
            free: free.collect(),
        })
    }

    /// Waits until a slot is free.
    fn wait(&mut self) -> Result<()> {
        let tag = self.ready.next_event()?.tag;
        let slot = usize::try_from(tag).ok();
        let slot = slot.filter(|slot| *slot < self.frames.len() && !self.free.contains(slot));
        let unexpected = || Error::Unexpected(format!("slot {tag}, which has no frame"));
        self.free.push_back(slot.ok_or_else(unexpected)?);
        Ok(())
    }
}

impl super::ToWorkers for ToWorkers {
    fn send(&mut self, number: u64, pixels: &[u8]) -> Result<()> {
        if self.free.is_empty() {
            self.wait()?;
        }
        if let Some(slot) = self.free.pop_front() {
            self.frames[slot].put(pixels, number)?;
        }
        Ok(())
    }

    fn finish(&mut self, frames: u64) -> Result<()> {
        while self.free.len() < self.frames.len() {
            self.wait()?;
        }
        for frame in &self.frames {
            frame.write()?.commit(END)?;
        }
        self.done.put(&[], END | frames)?;
        Ok(())
    }
}

/// A slot of a worker.
struct Slot {
    number: u64,
    frames: Subscription<u8>,
    frame: Chunk<u8>,
    result: Chunk<u8>,
}

pub(super) struct AtWorker {
    header: Header,
    /// The next one to be filled first.
    slots: VecDeque<Slot>,
    done: Chunk<u8>,
}

impl AtWorker {
    pub(super) fn new(fabric: &Fabric) -> Result<Self> {
        let dsm = Dsm::join(fabric)?;
        let header = read_header(&dsm)?;
        let first = fabric.identity().rank as usize * SLOTS;
        let slots = (first..first + SLOTS).map(|slot| {
            let frame = dsm.lookup(&name("in", slot))?;
            Ok(Slot {
                number: slot as u64,
                frames: all(&frame)?,
                frame,
                result: dsm.lookup(&name("out", slot))?,
            })
        });
        Ok(AtWorker {
            header,
            slots: slots.collect::<Result<_>>()?,
            done: dsm.lookup("done")?,
        })
    }
}

impl super::AtWorker for AtWorker {
    fn header(&self) -> Header {
        self.header
    }

    fn process(&mut self, work: &mut dyn FnMut(&[u8], &mut [u8])) -> Result<bool> {
        let Some(slot) = self.slots.front_mut() else {
            return Ok(false);
        };
        let number = slot.frames.next_event()?.tag;
        if number == END {
            return Ok(false);
        }
        let frame = slot.frame.read()?;
        let mut result = slot.result.write()?;
        work(&frame, &mut result);
        drop(frame);
        result.commit(number)?;
        self.done.put(&[], slot.number)?;
        self.slots.rotate_left(1);
        Ok(true)
    }
}

pub(super) struct FromWorkers {
    header: Header,
    results: Vec<Chunk<u8>>,
    done: Subscription<u8>,
    ready: Chunk<u8>,
    received: u64,
}

impl FromWorkers {
    pub(super) fn new(fabric: &Fabric) -> Result<Self> {
        let slots = fabric.program(WORKERS)?.len() * SLOTS;
        let dsm = Dsm::join(fabric)?;
        let header = read_header(&dsm)?;
        let results = (0..slots).map(|slot| dsm.lookup(&name("out", slot)));
        Ok(FromWorkers {
            header,
            results: results.collect::<std::result::Result<_, _>>()?,
            done: all(&dsm.lookup("done")?)?,
            ready: dsm.lookup("ready")?,
            received: 0,
        })
    }
}

impl super::FromWorkers for FromWorkers {
    fn header(&self) -> Header {
        self.header
    }

    fn next(&mut self) -> Result<Option<Processed>> {
        let tag = self.done.next_event()?.tag;
        let unexpected = || Error::Unexpected(format!("{tag:#x} after {} frames", self.received));
        if tag & END != 0 {
            let is_all = tag == END | self.received;
            return is_all.then_some(None).ok_or_else(unexpected);
        }
        let slot = usize::try_from(tag).ok();
        let result = slot.and_then(|slot| Some((slot, self.results.get(slot)?)));
        let (slot, result) = result.ok_or_else(unexpected)?;
        let snapshot = result.snapshot()?;
        self.ready.put(&[], tag)?;
        self.received += 1;
        Ok(Some(Processed {
            number: snapshot.tag(),
            worker: slot / SLOTS,
            pixels: Pixels::Chunk(snapshot),
        }))
    }
}
