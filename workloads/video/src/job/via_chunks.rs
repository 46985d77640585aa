//! Frames in chunks of coherent memory.
//!
//! | chunk | content | tag of a version | written by | heard by |
//! |---|---|---|---|---|
//! | `video` | the header | 0 | source | all, once |
//! | `in.S` | the frame in slot S | its number, or [`END`] | source | the worker of the slot |
//! | `out.S` | its result | its number | worker | source: the slot is free; sink |
//! | `ready` | nothing | 0 | sink, once: it has subscribed to the results | source |
//! | `done` | nothing | [`END`] and the number of frames | source | sink |
//!
//! Nobody copies a frame but the source: the worker reads a view of `in.S` and writes `out.S` in
//! place, and the sink keeps a snapshot of it until the frame's turn comes. The next result is
//! written when the sink has the one before.
//!
//! | [`Way`] | the source writes | the worker reads | the worker writes | the sink reads | messages per frame |
//! |---|---|---|---|---|---|
//! | strict | guard, commit: 4 | event, guard: 1 + 3 | guard, commit: 4 | event, snapshot: 1 + 2 + 1 | 17 |
//! | fused | draft, put: 2 | event, snapshot: 1 + 2 | draft, put: 2 | the same: 1 + 2 + 1 | 12 |
//! | inline | draft, put: 2 | event with the frame: 1 | draft, put: 2 | event with the frame: 1 + 1/2 | 7.5 |
//!
//! Each way has one more, by which the source hears that a slot is free. That a worker or the
//! source has taken events goes with its next put.
//!
//! A worker that is lost leaves its frames in the chunks: the source gives them to another one.

use super::{Error, Header, Pixels, Processed, Result, SLOTS, WORKERS};
use samite::dsm::{self, Chunk, Dsm, Policy, Snapshot, Subscription, Version};
use samite::{Fabric, UnitLife};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The tag that says that there are no more frames.
const END: u64 = 1 << 63;

/// How often the source looks whether a worker is lost.
const LOOK: Duration = Duration::from_millis(20);

/// How many versions of a result wait for the sink when they come with their events.
const WAITING: u32 = 4;

/// Which requests move a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// A guard for each access, and events that bring nothing.
    Strict,
    /// Each access is one request.
    Fused,
    /// As `Fused`, and events bring the frame.
    Inline,
}

impl Way {
    /// Writes a chunk, and publishes it.
    fn write(self, chunk: &Chunk<u8>, tag: u64, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        match self {
            Way::Strict => {
                let mut guard = chunk.write()?;
                fill(&mut guard);
                guard.commit(tag)?;
            }
            Way::Fused | Way::Inline => {
                let mut draft = chunk.draft()?;
                fill(&mut draft);
                draft.put(tag)?;
            }
        }
        Ok(())
    }

    fn subscribe(self, chunk: &Chunk<u8>) -> Result<Subscription<u8>> {
        let (first, high_water) = (Version::default(), WAITING);
        Ok(match self {
            Way::Strict | Way::Fused => {
                chunk.subscribe(Policy::Lossless { high_water: 1 }, first)?
            }
            Way::Inline => chunk.subscribe_with_content(Policy::Lossless { high_water }, first)?,
        })
    }
}

fn name(what: &str, slot: usize) -> String {
    format!("{what}.{slot}")
}

/// Returns a subscription to all versions of a chunk.
fn all(chunk: &Chunk<u8>) -> Result<Subscription<u8>> {
    Ok(chunk.subscribe(Policy::Every, Version::default())?)
}

fn read_header(dsm: &Dsm) -> Result<Header> {
    let chunk = dsm.lookup::<u64>("video")?;
    let mut header = chunk.subscribe_with_content(Policy::Latest, Version::default())?;
    Header::from_words(&header.next_version()?)
}

/// Waits for the next event of any of these chunks.
fn next_of(all: &mut [Subscription<u8>], deadline: Duration) -> Result<usize> {
    let mut each: Vec<_> = all.iter_mut().collect();
    Ok(Subscription::select(&mut each, deadline)?)
}

/// As [`next_of`]. Returns `None` after the deadline.
fn next_soon(all: &mut [Subscription<u8>], deadline: Duration) -> Result<Option<usize>> {
    match next_of(all, deadline) {
        Ok(which) => Ok(Some(which)),
        Err(Error::Dsm(dsm::Error::NoEvent { .. })) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What is in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Free,
    /// A frame.
    Has(u64),
    /// Its worker is lost.
    Lost,
}

pub(super) struct ToWorkers {
    fabric: Fabric,
    way: Way,
    workers: Vec<UnitLife>,
    frames: Vec<Chunk<u8>>,
    results: Vec<Subscription<u8>>,
    done: Chunk<u8>,
    slots: Vec<Slot>,
    /// The slots that are free, the next one first.
    free: VecDeque<usize>,
    /// The frames of workers that are lost.
    again: VecDeque<(u64, Snapshot<u8>)>,
    looked: Instant,
}

impl ToWorkers {
    pub(super) fn new(fabric: &Fabric, header: Header, way: Way) -> Result<Self> {
        let workers = fabric.lives_of(WORKERS)?;
        let slots = workers.len() * SLOTS;
        let dsm = Dsm::join(fabric)?;
        let bytes = header.size.pixels() as u64;
        let (mut frames, mut results) = (Vec::new(), Vec::new());
        for slot in 0..slots {
            frames.push(dsm.alloc(&name("in", slot), bytes)?);
            results.push(all(&dsm.alloc(&name("out", slot), bytes)?)?);
        }
        let done = dsm.alloc("done", 0)?;
        let mut ready = all(&dsm.alloc("ready", 0)?)?;
        // Last: who has read it finds the other chunks.
        let video = dsm.alloc("video", Header::WORDS as u64)?;
        video.put(&header.to_words(), 0)?;
        ready.next_event()?;
        // Each worker gets a frame before any gets a second one.
        let free = (0..SLOTS).flat_map(|first| (first..slots).step_by(SLOTS));
        Ok(ToWorkers {
            fabric: fabric.clone(),
            way,
            workers,
            frames,
            results,
            done,
            slots: vec![Slot::Free; slots],
            free: free.collect(),
            again: VecDeque::new(),
            looked: Instant::now(),
        })
    }

    /// Waits until a slot is free, or it is time to look for workers that are lost.
    fn wait(&mut self) -> Result<()> {
        if self.looked.elapsed() >= LOOK {
            return self.look();
        }
        let Some(slot) = next_soon(&mut self.results, LOOK)? else {
            return Ok(());
        };
        let number = self.results[slot].next_event()?.tag;
        match self.slots[slot] {
            Slot::Has(frame) if frame == number => {
                self.slots[slot] = Slot::Free;
                self.free.push_back(slot);
                Ok(())
            }
            // The frame was given to another worker before this was heard.
            Slot::Lost => Ok(()),
            other => Err(Error::Unexpected(format!(
                "frame {number} in a slot that is {other:?}"
            ))),
        }
    }

    /// Takes back the frames of workers that are lost.
    fn look(&mut self) -> Result<()> {
        self.looked = Instant::now();
        for slot in 0..self.slots.len() {
            let worker = &self.workers[slot / SLOTS];
            let lost = self.fabric.lost_life(worker.peer, worker.incarnation);
            let (Some(error), true) = (lost, self.slots[slot] != Slot::Lost) else {
                continue;
            };
            if let Slot::Has(number) = self.slots[slot] {
                tracing::warn!(%error, "frame {number} goes to another worker");
                self.again
                    .push_back((number, self.frames[slot].snapshot()?));
            }
            self.slots[slot] = Slot::Lost;
            self.free.retain(|free| *free != slot);
            if self.slots.iter().all(|slot| *slot == Slot::Lost) {
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Gives frames of lost workers to others, until none is left to be given.
    fn send_again(&mut self) -> Result<()> {
        while let Some((number, frame)) = self.again.pop_front() {
            self.give(number, &frame)?;
        }
        Ok(())
    }

    fn give(&mut self, number: u64, pixels: &[u8]) -> Result<()> {
        loop {
            if let Some(slot) = self.free.pop_front() {
                self.slots[slot] = Slot::Has(number);
                let frame = &self.frames[slot];
                return self
                    .way
                    .write(frame, number, |to| to.copy_from_slice(pixels));
            }
            self.wait()?;
        }
    }
}

impl super::ToWorkers for ToWorkers {
    fn send(&mut self, number: u64, pixels: &[u8]) -> Result<()> {
        if self.looked.elapsed() >= LOOK {
            self.look()?; // Also if others are always ready.
        }
        self.send_again()?;
        self.give(number, pixels)
    }

    fn finish(&mut self, frames: u64) -> Result<()> {
        let has_frame = |slot: &Slot| matches!(slot, Slot::Has(_));
        while !self.again.is_empty() || self.slots.iter().any(has_frame) {
            self.send_again()?;
            if self.slots.iter().any(has_frame) {
                self.wait()?;
            }
        }
        for (frame, slot) in self.frames.iter().zip(&self.slots) {
            if *slot != Slot::Lost {
                self.way.write(frame, END, |_| ())?;
            }
        }
        self.done.put(&[], END | frames)?;
        Ok(())
    }
}

pub(super) struct AtWorker {
    header: Header,
    way: Way,
    /// Of its slots.
    frames: Vec<Subscription<u8>>,
    results: Vec<Chunk<u8>>,
    deadline: Duration,
}

impl AtWorker {
    pub(super) fn new(fabric: &Fabric, way: Way) -> Result<Self> {
        let dsm = Dsm::join(fabric)?;
        let header = read_header(&dsm)?;
        let first = fabric.identity().rank as usize * SLOTS;
        let (mut frames, mut results) = (Vec::new(), Vec::new());
        for slot in first..first + SLOTS {
            let frame = dsm.lookup(&name("in", slot))?;
            // The source writes a slot again when it has heard of the result.
            frames.push(match way {
                Way::Inline => way.subscribe(&frame)?,
                Way::Strict | Way::Fused => all(&frame)?,
            });
            results.push(dsm.lookup(&name("out", slot))?);
        }
        Ok(AtWorker {
            header,
            way,
            frames,
            results,
            deadline: fabric.deadline(),
        })
    }
}

impl super::AtWorker for AtWorker {
    fn header(&self) -> Header {
        self.header
    }

    fn process(&mut self, work: &mut dyn FnMut(&[u8], &mut [u8])) -> Result<bool> {
        let slot = next_of(&mut self.frames, self.deadline)?;
        let (way, frames, result) = (self.way, &mut self.frames[slot], &self.results[slot]);
        match way {
            Way::Strict => {
                let number = frames.next_event()?.tag;
                if number == END {
                    return Ok(false);
                }
                let frame = frames.chunk().read()?;
                // The frame goes first: its memory is the next one's.
                way.write(result, number, move |to| work(&frame, to))?;
            }
            Way::Fused | Way::Inline => {
                let frame = frames.next_version()?;
                if frame.tag() == END {
                    return Ok(false);
                }
                way.write(result, frame.tag(), move |to| work(&frame, to))?;
            }
        }
        Ok(true)
    }
}

pub(super) struct FromWorkers {
    dsm: Dsm,
    header: Header,
    /// Of the slots, and of `done`.
    results: Vec<Subscription<u8>>,
    deadline: Duration,
    /// Which frames have come: one that a lost worker had may come twice.
    came: Came,
}

impl FromWorkers {
    pub(super) fn new(fabric: &Fabric, way: Way) -> Result<Self> {
        let slots = fabric.program(WORKERS)?.len() * SLOTS;
        let dsm = Dsm::join(fabric)?;
        let header = read_header(&dsm)?;
        let mut results = Vec::new();
        for slot in 0..slots {
            results.push(way.subscribe(&dsm.lookup(&name("out", slot))?)?);
        }
        results.push(all(&dsm.lookup("done")?)?);
        dsm.lookup::<u8>("ready")?.put(&[], 0)?;
        Ok(FromWorkers {
            dsm,
            header,
            results,
            deadline: fabric.deadline(),
            came: Came::default(),
        })
    }
}

impl super::FromWorkers for FromWorkers {
    fn header(&self) -> Header {
        self.header
    }

    fn next(&mut self) -> Result<Option<Processed>> {
        loop {
            let slot = next_of(&mut self.results, self.deadline)?;
            let received = self.came.count();
            if slot + 1 == self.results.len() {
                let tag = self.results[slot].next_event()?.tag;
                let what = || Error::Unexpected(format!("{tag:#x} after {received} frames"));
                return (tag == END | received).then_some(None).ok_or_else(what);
            }
            let snapshot = self.results[slot].next_version()?;
            if !self.came.add(snapshot.tag()) {
                continue;
            }
            return Ok(Some(Processed {
                number: snapshot.tag(),
                worker: slot / SLOTS,
                pixels: Pixels::Chunk(snapshot),
            }));
        }
    }

    fn messages(&self) -> Result<Option<u64>> {
        let counters = self.dsm.counters()?;
        Ok(Some(counters.received + counters.sent))
    }
}

/// The numbers of the frames that have come, each once.
#[derive(Debug, Default)]
struct Came {
    /// All below.
    below: u64,
    above: std::collections::BTreeSet<u64>,
}

impl Came {
    /// Returns false if it has come before.
    fn add(&mut self, number: u64) -> bool {
        let is_new = number >= self.below && self.above.insert(number);
        while self.above.remove(&self.below) {
            self.below += 1;
        }
        is_new
    }

    fn count(&self) -> u64 {
        self.below + self.above.len() as u64
    }
}
