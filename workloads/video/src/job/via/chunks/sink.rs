//! The end of the sink: snapshots of the results.

use super::super::super::{Error, Header, Result, SLOTS, WORKERS};
use super::super::{Pixels, Processed};
use super::{END, Way, all, name, next_of, read_header};
use samite::Fabric;
use samite::dsm::{Dsm, Subscription};
use std::time::Duration;

pub(in super::super) struct FromWorkers {
    dsm: Dsm,
    header: Header,
    /// Of the slots, and of `done`.
    results: Vec<Subscription<u8>>,
    deadline: Duration,
    /// Which frames have come: one that a lost worker had may come twice.
    came: Came,
    /// How many there are, once that is known: it may be heard before the last results are, which
    /// other servers may tell of.
    frames: Option<u64>,
}

impl FromWorkers {
    pub(in super::super) fn new(fabric: &Fabric, way: Way) -> Result<Self> {
        let slots = fabric.program(WORKERS)?.len() * SLOTS;
        let dsm = Dsm::join(fabric)?;
        let header = read_header(&dsm)?;
        let mut results = Vec::new();
        for slot in 0..slots {
            results.push(way.subscribe(&dsm.lookup(&name("out", slot))?)?);
        }
        results.push(all(&dsm.lookup("done")?)?);
        let mut begin = all(&dsm.lookup("begin")?)?;
        dsm.lookup::<u8>("ready")?.put(&[], 0)?;
        begin.next_event()?;
        Ok(FromWorkers {
            dsm,
            header,
            results,
            deadline: fabric.deadline(),
            came: Came::default(),
            frames: None,
        })
    }
}

impl super::super::FromWorkers for FromWorkers {
    fn header(&self) -> Header {
        self.header
    }

    fn next(&mut self) -> Result<Option<Processed>> {
        while self.frames != Some(self.came.count()) {
            let slot = next_of(&mut self.results, self.deadline)?;
            if slot + 1 == self.results.len() {
                let (tag, received) = (self.results[slot].next_event()?.tag, self.came.count());
                let frames = tag ^ END;
                if tag & END == 0 || frames < received {
                    let what = format!("{tag:#x} after {received} frames");
                    return Err(Error::Unexpected(what));
                }
                self.frames = Some(frames);
                continue;
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
        Ok(None)
    }

    fn messages(&self) -> Result<u64> {
        let counters = self.dsm.counters()?;
        Ok(counters.received + counters.sent)
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
