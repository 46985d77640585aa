//! The results in the order of their numbers: what the sink writes.

use super::live::Live;
use super::measured::Told;
use super::via::{EARLY, FromWorkers, Processed};
use super::{Error, Header};
use crate::partial::Partial;
use crate::{Checksum, Frame, Output};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What was found while all results were taken.
pub(super) struct Taken {
    pub(super) begin: Instant,
    /// The time without a frame.
    pub(super) waiting: Duration,
    pub(super) of_workers: Vec<u64>,
    /// The messages of a server, or of the sink.
    pub(super) messages: u64,
}

/// Writes frames in the order of their numbers.
pub(super) struct InOrder {
    output: Output,
    checksum: Checksum,
    pub(super) live: Option<Live>,
    /// The next frame to be written; used again.
    pub(super) frame: Frame,
    /// Those that came before their turn.
    early: BTreeMap<u64, Processed>,
}

impl InOrder {
    pub(super) fn new(header: Header, output: Output, live: Option<Live>) -> InOrder {
        InOrder {
            output,
            checksum: Checksum::new(),
            live,
            frame: Frame::black(header.size),
            early: BTreeMap::new(),
        }
    }

    /// Takes all results.
    pub(super) fn take_all(
        &mut self,
        from: &mut dyn FromWorkers,
        told: &mut Told,
    ) -> Result<Taken, Error> {
        let before = from.messages()?;
        let begin = Instant::now();
        let mut waiting = Duration::ZERO;
        let mut of_workers = vec![0; told.by_workers.len()];
        loop {
            // One at a time, so that workers do not wait for many frames to be written.
            let has_written = self.write_next()?;
            let since = Instant::now();
            let next = match has_written {
                true => from.next_now(self.only())?,
                false => from.next(self.only())?,
            };
            waiting += since.elapsed();
            if next.is_none() && !has_written {
                break;
            }
            if let Some(result) = next {
                if let Some(frames) = of_workers.get_mut(result.worker) {
                    *frames += 1;
                }
                self.take(result)?;
            }
            told.hear()?;
            if let Some(live) = &mut self.live {
                live.tell(self.frame.number, || told.workers(&of_workers));
            }
        }
        let messages = from.messages()?.saturating_sub(before);
        Ok(Taken {
            begin,
            waiting,
            of_workers,
            messages,
        })
    }

    /// Returns the next frame if as much waits for it as may.
    fn only(&self) -> Option<u64> {
        let bytes = self.frame.pixels.len() as u64 * self.early.len() as u64;
        (bytes >= EARLY).then_some(self.frame.number)
    }

    pub(super) fn take(&mut self, result: Processed) -> Result<(), Error> {
        let number = result.number;
        let is_late = number < self.frame.number;
        if is_late || self.early.insert(number, result).is_some() {
            return Err(Error::Unexpected(format!("frame {number} twice")));
        }
        Ok(())
    }

    /// Writes the next frame. Returns false if it has not come.
    pub(super) fn write_next(&mut self) -> Result<bool, Error> {
        let Some(next) = self.early.remove(&self.frame.number) else {
            return Ok(false);
        };
        self.frame.pixels.copy_from_slice(&next.pixels);
        drop(next);
        self.checksum.add(&self.frame);
        self.output.write(&self.frame)?;
        if let Some(live) = &self.live {
            live.show(&self.frame);
        }
        self.frame.number += 1;
        Ok(true)
    }

    /// Writes all that is left. Returns the number of frames, their checksum, and the file of the
    /// output, which has not got its name yet.
    pub(super) fn finish(self) -> Result<(u64, u64, Option<Partial>), Error> {
        if let Some(early) = self.early.first_key_value() {
            let (missing, early) = (self.frame.number, early.0);
            let what = format!("frame {early}, but not frame {missing}");
            return Err(Error::Unexpected(what));
        }
        let (_, partial) = self.output.end()?;
        Ok((self.frame.number, self.checksum.value(), partial))
    }
}

#[cfg(test)]
mod tests {
    use super::super::via::Pixels;
    use super::super::{SINK, SOURCE, WORKERS};
    use super::*;
    use crate::y4m::Rate;
    use crate::{Sink, Size};
    use samite::{Fabric, PeerId};
    use samite_testkit::{Outcome, programs, same};
    use std::collections::VecDeque;

    /// Has results in some order.
    struct Results {
        numbers: VecDeque<u64>,
        /// How many it was asked for without a wait.
        at_once: u64,
    }

    impl FromWorkers for Results {
        fn header(&self) -> Header {
            Header {
                size: Size::new(2, 2).unwrap(),
                rate: Rate::default(),
            }
        }

        fn next(&mut self, _: Option<u64>) -> Result<Option<Processed>, Error> {
            let number = self.numbers.pop_front();
            Ok(number.map(|number| Processed {
                number,
                worker: 0,
                pixels: Pixels::Message(vec![0; 4]),
            }))
        }

        fn next_now(&mut self, only: Option<u64>) -> Result<Option<Processed>, Error> {
            self.at_once += 1;
            self.next(only)
        }

        fn messages(&self) -> Result<u64, Error> {
            Ok(0)
        }
    }

    /// Many frames that waited for one are written while others are received.
    #[test]
    fn results_are_received_between_frames_that_are_ready() {
        let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
            if &*fabric.identity().program == SINK {
                let mut results = Results {
                    numbers: (1..10).chain([0]).chain(10..20).collect(),
                    at_once: 0,
                };
                let header = results.header();
                let output = Sink::Nothing.open(header.size, header.rate)?;
                let mut order = InOrder::new(header, output, None);
                let taken = order.take_all(&mut results, &mut Told::new(fabric)?)?;
                same!((order.frame.number, order.early.len()), (20, 0));
                same!((&*taken.of_workers, results.at_once), (&[20][..], 20));
            }
            Ok(fabric.barrier(members)?)
        };
        let job = programs(&[(SOURCE, 1), (WORKERS, 1), (SINK, 1)]);
        let name = "job::order::tests::results_are_received_between_frames_that_are_ready";
        job.run(name, body);
    }
}
