//! The end of a worker: views of frames, and results that are written in place.

use super::super::super::{Header, Result, SLOTS};
use super::{END, LAST_EMPTY, Source, Way, name, read_header};
use samite::Fabric;
use samite::dsm::{Chunk, Dsm, Policy, Subscription};

pub(in super::super) struct AtWorker {
    header: Header,
    way: Way,
    /// Of its slots.
    frames: Vec<Subscription<u8>>,
    results: Vec<Chunk<u8>>,
    source: Source,
}

impl AtWorker {
    pub(in super::super) fn new(fabric: &Fabric, way: Way) -> Result<Self> {
        let dsm = Dsm::join(fabric)?;
        let header = read_header(&dsm)?;
        let first = fabric.identity().rank as usize * SLOTS;
        let (mut frames, mut results) = (Vec::new(), Vec::new());
        for slot in first..first + SLOTS {
            let frame = dsm.lookup(&name("in", slot))?;
            // The source writes a slot again when it has heard of the result.
            frames.push(match way {
                Way::Inline => way.subscribe(&frame)?,
                Way::Strict | Way::Fused => frame.subscribe(Policy::Every, LAST_EMPTY)?,
            });
            let result = dsm.lookup(&name("out", slot))?;
            way.prepare(&result)?;
            results.push(result);
        }
        Ok(AtWorker {
            header,
            way,
            frames,
            results,
            source: Source::new(fabric)?,
        })
    }
}

impl super::super::AtWorker for AtWorker {
    fn header(&self) -> Header {
        self.header
    }

    fn process(&mut self, work: &mut dyn FnMut(&[u8], &mut [u8])) -> Result<bool> {
        let slot = self.source.next_of(&mut self.frames)?;
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

    fn messages(&self) -> u64 {
        0
    }
}
