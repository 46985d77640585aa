//! Frames in chunks of coherent memory.
//!
//! | chunk | content | tag of a version | written by | heard by |
//! |---|---|---|---|---|
//! | `video` | the header | 0 | source | all, once |
//! | `in.S` | the frame in slot S | its number, or [`END`] | source | the worker of the slot |
//! | `out.S` | its result | its number | worker | source: the slot is free; sink |
//! | `ready` | nothing | 0 | sink, once: it has subscribed to the results | source |
//! | `begin` | nothing | 0 | source, once: the first frame comes next | sink |
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
//! source has taken events goes with its next put. The source owns `in.S` after four frames if
//! its events bring no frame: then they are 7 and 5.
//!
//! A worker that is lost leaves its frames in the chunks: the source gives them to another one.

mod sink;
mod source;
mod worker;

pub(super) use sink::FromWorkers;
pub(super) use source::ToWorkers;
pub(super) use worker::AtWorker;

use super::super::{Header, Result, SOURCE};
use samite::dsm::{self, Chunk, Dsm, Policy, Subscription, Version};
use samite::{Fabric, UnitLife};
use std::time::Duration;

/// The tag that says that there are no more frames.
const END: u64 = 1 << 63;

/// The tag of the first versions of `in` and `out`, which have no frame.
const EMPTY: u64 = END - 1;
/// The last of them. There are two, because a writer has two buffers for a chunk.
const LAST_EMPTY: Version = Version(2);

/// How many versions of a result wait for the sink when they come with their events.
const WAITING: u32 = 4;

/// Which requests move a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Way {
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

    /// Writes the versions without a frame, so that no frame waits for memory that the kernel has
    /// to map and to clear first.
    fn prepare(self, chunk: &Chunk<u8>) -> Result<()> {
        for _ in 0..LAST_EMPTY.0 {
            self.write(chunk, EMPTY, |to| to.fill(0))?;
        }
        Ok(())
    }

    /// Returns a subscription to the frames in a chunk.
    fn subscribe(self, chunk: &Chunk<u8>) -> Result<Subscription<u8>> {
        let (first, high_water) = (LAST_EMPTY, WAITING);
        Ok(match self {
            Way::Strict | Way::Fused => {
                chunk.subscribe(Policy::Lossless { high_water: 1 }, first)?
            }
            Way::Inline => chunk.subscribe_with_content(Policy::Lossless { high_water }, first)?,
        })
    }
}

/// How often those who wait look whether others are lost.
const LOOK: Duration = Duration::from_millis(20);
/// The same, of those who wait for the source: they have nothing else to do when it is lost.
const LOOK_FOR_SOURCE: Duration = Duration::from_secs(1);
/// How long what a process said last may be on its way.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The source, for whose chunks the others wait.
struct Source {
    fabric: Fabric,
    lives: Vec<UnitLife>,
}

impl Source {
    fn new(fabric: &Fabric) -> Result<Source> {
        Ok(Source {
            fabric: fabric.clone(),
            lives: fabric.lives_of(SOURCE)?,
        })
    }

    /// Waits for the next event of any of these chunks, as long as the source lives: it may take
    /// its time for a frame, and for a worker that is slow.
    fn next_of(&self, all: &mut [Subscription<u8>]) -> Result<usize> {
        loop {
            if let Some(which) = next_soon(all, LOOK_FOR_SOURCE)? {
                return Ok(which);
            }
            let mut lives = self.lives.iter();
            let lost = lives.find_map(|life| self.fabric.lost_life(life.peer, life.incarnation));
            if let Some(error) = lost {
                return next_soon(all, LAST_WORDS)?.ok_or_else(|| error.into());
            }
        }
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

/// Waits for the next event of any of these chunks. Returns `None` after the deadline.
fn next_soon(all: &mut [Subscription<u8>], deadline: Duration) -> Result<Option<usize>> {
    let mut each: Vec<_> = all.iter_mut().collect();
    match Subscription::select(&mut each, deadline) {
        Ok(which) => Ok(Some(which)),
        Err(dsm::Error::NoEvent { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
