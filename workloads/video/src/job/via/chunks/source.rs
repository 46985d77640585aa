//! The end of the source: which worker gets a frame, and what becomes of those of a lost one.

use super::super::super::{Error, Header, Result, SLOTS, WORKERS};
use super::super::EARLY;
use super::super::schedule::{Choice, Schedule};
use super::{EMPTY, END, LAST_EMPTY, LOOK, Way, all, name, next_soon};
use samite::dsm::{Chunk, Dsm, Policy, Snapshot, Subscription, Version};
use samite::{Fabric, UnitLife};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What is in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// Its worker has not begun.
    Cold,
    Free,
    /// A frame.
    Has(u64),
    /// Its worker is lost.
    Lost,
}

pub(in super::super) struct ToWorkers {
    fabric: Fabric,
    way: Way,
    workers: Vec<UnitLife>,
    frames: Vec<Chunk<u8>>,
    results: Vec<Subscription<u8>>,
    done: Chunk<u8>,
    slots: Vec<Slot>,
    /// Since when they have been so.
    since: Vec<Instant>,
    /// After so long, a worker that has not begun, or not done a frame, is taken for lost.
    deadline: Duration,
    /// The most frames that are given while one is not done.
    ahead: u64,
    /// The frames of workers that are lost.
    again: VecDeque<(u64, Snapshot<u8>)>,
    schedule: Schedule,
    begin: Instant,
    looked: Instant,
    /// Since when the source reads the next frame.
    reads_since: Instant,
    /// How long it took to give the last one.
    giving: Duration,
}

impl ToWorkers {
    pub(in super::super) fn new(fabric: &Fabric, header: Header, way: Way) -> Result<Self> {
        let workers = fabric.lives_of(WORKERS)?;
        let slots = workers.len() * SLOTS;
        let dsm = Dsm::join(fabric)?;
        let bytes = header.size.pixels() as u64;
        let (mut frames, mut results) = (Vec::new(), Vec::new());
        for slot in 0..slots {
            let frame = dsm.alloc(&name("in", slot), bytes)?;
            way.prepare(&frame)?;
            frames.push(frame);
            // It tells of the last version without a frame: the worker has begun.
            let result = dsm.alloc(&name("out", slot), bytes)?;
            results.push(result.subscribe(Policy::Every, Version(LAST_EMPTY.0 - 1))?);
        }
        let done = dsm.alloc("done", 0)?;
        let mut ready = all(&dsm.alloc("ready", 0)?)?;
        let begin = dsm.alloc::<u8>("begin", 0)?;
        // Last: who has read it finds the other chunks.
        let video = dsm.alloc("video", Header::WORDS as u64)?;
        video.put(&header.to_words(), 0)?;
        ready.next_event()?;
        let now = Instant::now();
        let mut source = ToWorkers {
            fabric: fabric.clone(),
            way,
            schedule: Schedule::new(workers.len()),
            workers,
            frames,
            results,
            done,
            slots: vec![Slot::Cold; slots],
            since: vec![now; slots],
            deadline: fabric.deadline(),
            ahead: (EARLY / bytes.max(1)).max(2 * slots as u64),
            again: VecDeque::new(),
            begin: now,
            looked: now,
            reads_since: now,
            giving: Duration::ZERO,
        };
        while source.slots.contains(&Slot::Cold) {
            source.wait(LOOK)?;
        }
        begin.put(&[], 0)?;
        source.reads_since = Instant::now();
        Ok(source)
    }

    /// Waits until a frame is done, or for so long, or until it is time to look for workers that
    /// are lost.
    fn wait(&mut self, most: Duration) -> Result<()> {
        if self.looked.elapsed() >= LOOK {
            return self.look();
        }
        let Some(slot) = next_soon(&mut self.results, most.min(LOOK))? else {
            return Ok(());
        };
        self.done(slot)
    }

    /// Takes what has been told of results.
    fn hear(&mut self) -> Result<()> {
        while let Some(slot) = next_soon(&mut self.results, Duration::ZERO)? {
            self.done(slot)?;
        }
        Ok(())
    }

    fn done(&mut self, slot: usize) -> Result<()> {
        let number = self.results[slot].next_event()?.tag;
        match self.slots[slot] {
            Slot::Cold if number == EMPTY => {
                self.slots[slot] = Slot::Free;
                Ok(())
            }
            Slot::Has(frame) if frame == number => {
                self.slots[slot] = Slot::Free;
                self.schedule.done(slot / SLOTS, self.begin.elapsed());
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
            let error = match self.fabric.lost_life(worker.peer, worker.incarnation) {
                Some(error) => Error::from(error),
                // It may have been stopped.
                None if self.is_late(slot) => Error::Late {
                    rank: slot / SLOTS,
                    after: self.deadline,
                },
                None => continue,
            };
            if self.slots[slot] == Slot::Lost {
                continue;
            }
            if let Slot::Has(number) = self.slots[slot] {
                tracing::warn!(%error, "frame {number} goes to another worker");
                self.again
                    .push_back((number, self.frames[slot].snapshot()?));
            }
            self.slots[slot] = Slot::Lost;
            self.schedule.lost(slot / SLOTS);
            if self.slots.iter().all(|slot| *slot == Slot::Lost) {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Whether the worker of a slot should have begun, or have done its frame.
    fn is_late(&self, slot: usize) -> bool {
        let is_awaited = matches!(self.slots[slot], Slot::Cold | Slot::Has(_));
        is_awaited && self.since[slot].elapsed() > self.deadline
    }

    /// Whether a frame is so far after one that is not done that its result would have to wait.
    fn is_ahead(&self, number: u64) -> bool {
        let given = self.slots.iter().filter_map(|slot| match slot {
            Slot::Has(number) => Some(*number),
            _ => None,
        });
        let again = self.again.iter().map(|(number, _)| *number);
        let oldest = given.chain(again).min();
        oldest.is_some_and(|oldest| number > oldest.saturating_add(self.ahead))
    }

    /// Gives frames of lost workers to others, until none is left to be given.
    fn send_again(&mut self, left: Option<u64>) -> Result<()> {
        while let Some((number, frame)) = self.again.pop_front() {
            let left = left.map(|left| left + self.again.len() as u64);
            self.give(number, &frame, left)?;
        }
        Ok(())
    }

    /// Takes the oldest frame of lost workers, if it comes before this one.
    fn take_again_before(&mut self, number: u64) -> Option<(u64, Snapshot<u8>)> {
        let all = self.again.iter().enumerate();
        let (at, (oldest, _)) = all.min_by_key(|(_, (number, _))| *number)?;
        (*oldest < number).then(|| self.again.remove(at))?
    }

    fn give(&mut self, number: u64, pixels: &[u8], left: Option<u64>) -> Result<()> {
        loop {
            self.hear()?;
            if self.is_ahead(number) {
                // The frame that holds this one up may be one that a lost worker had.
                match self.take_again_before(number) {
                    Some((older, frame)) => {
                        let after = self.again.len() as u64 + 1;
                        self.give(older, &frame, left.map(|left| left + after))?;
                    }
                    None => self.wait(LOOK)?,
                }
                continue;
            }
            match self.schedule.choose(self.begin.elapsed(), left) {
                Choice::Give(worker) => return self.give_to(worker, number, pixels),
                Choice::Wait(None) => self.wait(LOOK)?,
                Choice::Wait(Some(until)) => {
                    self.wait(until.saturating_sub(self.begin.elapsed()))?;
                }
            }
        }
    }

    fn give_to(&mut self, worker: usize, number: u64, pixels: &[u8]) -> Result<()> {
        let mut slots = worker * SLOTS..(worker + 1) * SLOTS;
        let slot = slots.find(|slot| self.slots[*slot] == Slot::Free);
        let what = || Error::Unexpected(format!("more frames at worker {worker} than slots"));
        let slot = slot.ok_or_else(what)?;
        self.slots[slot] = Slot::Has(number);
        self.since[slot] = Instant::now();
        let (frame, begin) = (&self.frames[slot], Instant::now());
        self.way
            .write(frame, number, |to| to.copy_from_slice(pixels))?;
        self.giving = begin.elapsed();
        tracing::trace!(number, worker, giving = ?self.giving, "frame given");
        self.schedule.given(worker, self.begin.elapsed());
        Ok(())
    }
}

impl super::super::ToWorkers for ToWorkers {
    fn send(&mut self, number: u64, pixels: &[u8], left: Option<u64>) -> Result<()> {
        let reading = self.reads_since.elapsed();
        if self.looked.elapsed() >= LOOK {
            self.look()?; // Also if others are always ready.
        }
        self.send_again(left.map(|left| left + 1))?;
        self.give(number, pixels, left)?;
        self.schedule.source_needs(reading + self.giving);
        self.reads_since = Instant::now();
        Ok(())
    }

    fn finish(&mut self, frames: u64) -> Result<()> {
        let has_frame = |slot: &Slot| matches!(slot, Slot::Has(_));
        while !self.again.is_empty() || self.slots.iter().any(has_frame) {
            self.send_again(Some(0))?;
            if self.slots.iter().any(has_frame) {
                self.wait(LOOK)?;
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

    fn messages(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::super::{SINK, SOURCE};
    use super::super::super::{AtWorker as _, FromWorkers as _, ToWorkers as _};
    use super::super::{AtWorker, FromWorkers};
    use super::*;
    use crate::Size;
    use crate::y4m::Rate;
    use samite_testkit::{Cluster, Outcome, Who, check, pause, programs, same};

    const FRAMES: u64 = 100;

    /// The other workers go on until no more frames may be given before the one that the stopped
    /// worker has is done. When it is taken for lost, another one gets that frame.
    #[test]
    fn the_oldest_frame_of_a_lost_worker_is_given_while_the_next_one_waits() {
        let body = |fabric: &Fabric, _: &[_]| -> Outcome {
            match &*fabric.identity().program {
                SOURCE => {
                    let header = Header {
                        size: Size::new(64, 48)?,
                        rate: Rate::default(),
                    };
                    let mut workers = ToWorkers::new(fabric, header, Way::Inline)?;
                    for number in 0..FRAMES {
                        let pixels = vec![number as u8; header.size.pixels()];
                        workers.send(number, &pixels, Some(FRAMES - 1 - number))?;
                    }
                    workers.finish(FRAMES)?;
                }
                SINK => {
                    let mut results = FromWorkers::new(fabric, Way::Inline)?;
                    let mut came = vec![false; FRAMES as usize];
                    while let Some(result) = results.next(None)? {
                        let is_right = |pixel: &u8| u64::from(*pixel) == result.number;
                        check!(result.pixels.iter().all(is_right), "{}", result.number);
                        came[result.number as usize] = true;
                    }
                    same!(came, vec![true; FRAMES as usize]);
                }
                _ => {
                    let mut frames = AtWorker::new(fabric, Way::Inline)?;
                    let is_stopped = fabric.identity().rank == 0;
                    let mut work = |frame: &[u8], to: &mut [u8]| {
                        if is_stopped {
                            pause("has a frame");
                        }
                        to.copy_from_slice(frame);
                    };
                    while frames.process(&mut work)? {}
                }
            }
            Ok(())
        };
        let job = programs(&[(SOURCE, 1), (WORKERS, 3), (SINK, 1)]).services(samite::services());
        let job = job.config(|config| config.deadline = Duration::from_secs(2));
        let name = "job::via::chunks::source::tests::\
            the_oldest_frame_of_a_lost_worker_is_given_while_the_next_one_waits";
        job.orchestrate(name, body, |cluster: &mut Cluster| {
            let (worker, sink) = (Who::Unit(1), Who::Unit(4));
            cluster.wait_point(worker, "has a frame");
            cluster.stop(worker);
            cluster.wait_gone(sink);
            cluster.kill(worker);
            cluster.all_end();
        });
    }
}
