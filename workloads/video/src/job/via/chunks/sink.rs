//! The end of the sink: snapshots of the results.

use super::super::super::{Error, Header, Result, SLOTS, WORKERS};
use super::super::{Pixels, Processed};
use super::{END, Source, Way, all, name, next_soon, read_header};
use samite::Fabric;
use samite::dsm::{self, Dsm, Subscription};
use std::time::Duration;

pub(in super::super) struct FromWorkers {
    dsm: Dsm,
    header: Header,
    /// Of the slots, and of `done`.
    results: Vec<Subscription<u8>>,
    source: Source,
    came: Came,
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
        let source = Source::new(fabric)?;
        // The source waits for workers, until they have begun or are late.
        source.next_of(std::slice::from_mut(&mut begin))?;
        Ok(FromWorkers {
            dsm,
            header,
            results,
            source,
            came: Came::default(),
        })
    }

    /// Takes a result. If it does not wait, it returns `None` also if none has come.
    fn take(&mut self, waits: bool) -> Result<Option<Processed>> {
        while !self.came.is_complete() {
            let slot = match waits {
                true => Some(self.source.next_of(&mut self.results)?),
                false => next_soon(&mut self.results, Duration::ZERO)?,
            };
            let Some(slot) = slot else { break };
            if slot + 1 == self.results.len() {
                let tag = self.results[slot].next_event()?.tag;
                let frames = (tag & END != 0).then_some(tag ^ END);
                if !frames.is_some_and(|frames| self.came.expect(frames)) {
                    let received = self.came.count();
                    let what = format!("{tag:#x} after {received} frames");
                    return Err(Error::Unexpected(what));
                }
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
}

impl super::super::FromWorkers for FromWorkers {
    fn header(&self) -> Header {
        self.header
    }

    fn next(&mut self, _: Option<u64>) -> Result<Option<Processed>> {
        self.take(true).map_err(was_stopped)
    }

    fn next_now(&mut self, _: Option<u64>) -> Result<Option<Processed>> {
        self.take(false).map_err(was_stopped)
    }

    fn messages(&self) -> Result<u64> {
        let counters = self.dsm.counters()?;
        Ok(counters.received + counters.sent)
    }
}

/// Returns the error of a sink for which the workers did not wait, if it is one.
fn was_stopped(error: Error) -> Error {
    match error {
        Error::Dsm(dsm::Error::Lagged { missed, .. }) => Error::SinkStopped { missed },
        error => error,
    }
}

/// The numbers of the frames that have come: one that a lost worker had may come twice.
#[derive(Debug, Default)]
struct Came {
    /// All below.
    below: u64,
    above: std::collections::BTreeSet<u64>,
    /// How many there are, once that is known: it may be heard before the last results are, which
    /// other servers may tell of.
    all: Option<u64>,
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

    /// There are so many. Returns false if more have come.
    fn expect(&mut self, all: u64) -> bool {
        self.all = Some(all);
        self.count() <= all
    }

    fn count(&self) -> u64 {
        self.below + self.above.len() as u64
    }

    fn is_complete(&self) -> bool {
        self.all == Some(self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::super::{SINK, SOURCE};
    use super::super::super::{AtWorker as _, FromWorkers as _, ToWorkers as _};
    use super::super::{AtWorker, ToWorkers};
    use super::*;
    use crate::Size;
    use crate::y4m::Rate;
    use samite_testkit::{Cluster, Outcome, Who, check, pause, point, programs};

    const FRAMES: u64 = 100;

    /// Workers do not wait for a sink that is stopped: it cannot have all frames.
    #[test]
    fn a_sink_that_was_stopped_says_so() {
        let body = |fabric: &Fabric, _: &[_]| -> Outcome {
            match &*fabric.identity().program {
                SOURCE => {
                    let header = Header {
                        size: Size::new(64, 48)?,
                        rate: Rate::default(),
                    };
                    let mut workers = ToWorkers::new(fabric, header, Way::Fused)?;
                    for number in 0..FRAMES {
                        workers.send(number, &[1; 64 * 48], None)?;
                    }
                    workers.finish(FRAMES)?;
                }
                SINK => {
                    let mut results = FromWorkers::new(fabric, Way::Fused)?;
                    pause("is stopped");
                    let ended = loop {
                        match results.next(None) {
                            Ok(Some(_)) => {}
                            ended => break ended,
                        }
                    };
                    check!(matches!(ended, Err(Error::SinkStopped { .. })), "{ended:?}");
                }
                _ => {
                    let mut frames = AtWorker::new(fabric, Way::Fused)?;
                    let mut work = |frame: &[u8], to: &mut [u8]| to.copy_from_slice(frame);
                    while frames.process(&mut work)? {}
                    point("is done");
                }
            }
            Ok(())
        };
        let name = "job::via::chunks::sink::tests::a_sink_that_was_stopped_says_so";
        let job = programs(&[(SOURCE, 1), (WORKERS, 1), (SINK, 1)]).services(samite::services());
        job.orchestrate(name, body, |cluster: &mut Cluster| {
            let (worker, sink) = (Who::Unit(1), Who::Unit(2));
            cluster.wait_point(sink, "is stopped");
            cluster.stop(sink);
            cluster.wait_point(worker, "is done");
            cluster.go_on(sink);
            cluster.release(sink);
            cluster.all_end();
        });
    }

    #[test]
    fn the_end_may_be_heard_before_the_last_results() {
        let mut came = Came::default();
        assert!([0, 3, 1].into_iter().all(|number| came.add(number)));
        assert!(!came.is_complete());
        assert!(came.expect(5) && !came.is_complete());
        // The frame of a lost worker, from another one, too.
        assert!(!came.add(3) && !came.add(0) && !came.is_complete());
        assert!(came.add(4) && !came.is_complete());
        assert!(came.add(2) && came.is_complete());
        assert!(!came.add(4) && came.is_complete());
    }

    #[test]
    fn an_end_after_more_frames_is_wrong() {
        let mut came = Came::default();
        assert!(came.add(7) && came.add(0));
        assert!(!came.expect(1));
        let mut none = Came::default();
        assert!(!none.is_complete());
        assert!(none.expect(0) && none.is_complete());
    }
}
