//! The end of the source: which worker gets a frame, and what becomes of those of a lost one.

use super::super::super::{Error, Header, Result, SINK, SLOTS, WORKERS};
use super::super::schedule::{Choice, Schedule};
use super::super::{EARLY, only};
use super::{EMPTY, END, LAST_EMPTY, LAST_WORDS, LOOK, Way, all, name, next_soon};
use samite::dsm::{Chunk, Dsm, Policy, Process, Snapshot, Subscription, Version};
use samite::{Fabric, PeerId, UnitLife};
use std::collections::VecDeque;
use std::ops::Range;
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

/// The part of the deadline that counts at most between two looks at the workers.
const AWAY: u32 = 8;

/// Returns the slots of a worker.
fn slots_of(rank: usize) -> Range<usize> {
    rank * SLOTS..(rank + 1) * SLOTS
}

pub(in super::super) struct ToWorkers {
    fabric: Fabric,
    dsm: Dsm,
    sink: PeerId,
    way: Way,
    workers: Vec<UnitLife>,
    frames: Vec<Chunk<u8>>,
    results: Vec<Subscription<u8>>,
    done: Chunk<u8>,
    slots: Vec<Slot>,
    /// Since when their workers could have worked on what is in them, on the clock `ran`.
    since: Vec<Duration>,
    /// How long the source has looked after its workers: the time in which it was itself stopped,
    /// or waited for its input, does not count against them.
    ran: Duration,
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
            dsm,
            sink: only(fabric, SINK)?,
            way,
            schedule: Schedule::new(workers.len()),
            workers,
            frames,
            results,
            done,
            slots: vec![Slot::Cold; slots],
            since: vec![Duration::ZERO; slots],
            ran: Duration::ZERO,
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
            Slot::Cold if number == EMPTY => self.slots[slot] = Slot::Free,
            Slot::Has(frame) if frame == number => {
                self.slots[slot] = Slot::Free;
                self.schedule.done(slot / SLOTS, self.begin.elapsed());
            }
            // The frame was given to another worker before this was heard.
            Slot::Lost => {}
            other => {
                return Err(Error::Unexpected(format!(
                    "frame {number} in a slot that is {other:?}"
                )));
            }
        }
        // Only now can the worker begin with what is in its other slots.
        self.since[slots_of(slot / SLOTS)].fill(self.ran);
        Ok(())
    }

    /// Takes back the frames of workers that are lost.
    fn look(&mut self) -> Result<()> {
        self.ran += self.looked.elapsed().min(self.deadline / AWAY);
        self.looked = Instant::now();
        // First: while the source was away, they may have done what they had.
        self.hear()?;
        for rank in 0..self.workers.len() {
            if self.is_lost(rank) {
                continue;
            }
            let worker = self.workers[rank];
            let error = match self.fabric.lost_life(worker.peer, worker.incarnation) {
                Some(error) => Error::from(error),
                // It may have been stopped.
                None if self.is_late(rank) => Error::Late {
                    rank,
                    after: self.deadline,
                },
                None => continue,
            };
            self.lose(rank, &error)?;
            if (0..self.workers.len()).all(|rank| self.is_lost(rank)) {
                return Err(error);
            }
        }
        Ok(())
    }

    fn is_lost(&self, rank: usize) -> bool {
        self.slots[slots_of(rank)].contains(&Slot::Lost)
    }

    /// Takes back all frames of a worker, which gets no more.
    fn lose(&mut self, rank: usize, error: &Error) -> Result<()> {
        for slot in slots_of(rank) {
            if let Slot::Has(number) = self.slots[slot] {
                tracing::warn!(%error, "frame {number} goes to another worker");
                self.again
                    .push_back((number, self.frames[slot].snapshot()?));
            }
            self.slots[slot] = Slot::Lost;
        }
        self.schedule.lost(rank);
        Ok(())
    }

    /// Whether a worker should have begun, or have done a frame, and does not wait for the sink.
    fn is_late(&mut self, rank: usize) -> bool {
        let is_late = |slot: usize| {
            let is_awaited = matches!(self.slots[slot], Slot::Cold | Slot::Has(_));
            is_awaited && self.ran.saturating_sub(self.since[slot]) > self.deadline
        };
        if !slots_of(rank).any(is_late) {
            return false;
        }
        let waits = self.waits_for_sink(rank);
        if waits {
            self.since[slots_of(rank)].fill(self.ran);
        }
        !waits
    }

    /// Whether a worker waits until the sink takes results. That is asked only about one that is
    /// late otherwise.
    fn waits_for_sink(&self, rank: usize) -> bool {
        let worker = self.workers[rank];
        let is_worker = |one: &Process| {
            let Process { peer, incarnation } = *one;
            (peer, incarnation) == (worker.peer, worker.incarnation)
        };
        self.dsm.overview(LAST_WORDS).is_ok_and(|found| {
            let mut waits = found.waits.iter();
            // If they are too many to be named, it may be one of them.
            found.more_waits > 0
                || waits.any(|wait| {
                    let is_sink = |one: &Process| one.peer == self.sink;
                    is_worker(&wait.process) && wait.on.iter().any(is_sink)
                })
        })
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
        let slot = slots_of(worker).find(|slot| self.slots[*slot] == Slot::Free);
        let what = || Error::Unexpected(format!("more frames at worker {worker} than slots"));
        let slot = slot.ok_or_else(what)?;
        self.slots[slot] = Slot::Has(number);
        self.since[slot] = self.ran;
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
    use super::super::super::super::SOURCE;
    use super::super::super::{AtWorker as _, FromWorkers as _, ToWorkers as _};
    use super::super::{AtWorker, FromWorkers};
    use super::*;
    use crate::Size;
    use crate::y4m::Rate;
    use samite_testkit::{Cluster, Outcome, Units, Who, check, pause, point, programs, same};

    const FRAMES: u64 = 100;

    fn header() -> Result<Header> {
        Ok(Header {
            size: Size::new(64, 48)?,
            rate: Rate::default(),
        })
    }

    fn pixels(number: u64) -> Vec<u8> {
        vec![number as u8; 64 * 48]
    }

    /// Gives frames, and tells that there are no more.
    fn give_all(workers: &mut ToWorkers, numbers: Range<u64>) -> Result<()> {
        let frames = numbers.end;
        for number in numbers {
            workers.send(number, &pixels(number), Some(frames - 1 - number))?;
        }
        workers.finish(frames)
    }

    /// Checks that all frames come.
    fn take_all(fabric: &Fabric, frames: u64) -> Outcome {
        let mut results = FromWorkers::new(fabric, Way::Inline)?;
        let mut came = vec![false; frames as usize];
        while let Some(result) = results.next(None)? {
            let is_right = |pixel: &u8| u64::from(*pixel) == result.number;
            check!(result.pixels.iter().all(is_right), "{}", result.number);
            came[result.number as usize] = true;
        }
        same!(came, vec![true; frames as usize]);
        Ok(())
    }

    /// Copies all frames. If it pauses, that is when it has read the first one.
    fn work(fabric: &Fabric, mut pauses: bool) -> Outcome {
        let mut frames = AtWorker::new(fabric, Way::Inline)?;
        let mut work = |frame: &[u8], to: &mut [u8]| {
            if std::mem::take(&mut pauses) {
                pause("has a frame");
            }
            to.copy_from_slice(frame);
        };
        while frames.process(&mut work)? {}
        Ok(())
    }

    fn job(workers: u32) -> Units {
        let job = programs(&[(SOURCE, 1), (WORKERS, workers), (SINK, 1)]);
        let job = job.services(samite::services());
        job.config(|config| config.deadline = Duration::from_secs(2))
    }

    /// The other workers go on until no more frames may be given before the one that the stopped
    /// worker has is done. When it is taken for lost, another one gets that frame.
    #[test]
    fn the_oldest_frame_of_a_lost_worker_is_given_while_the_next_one_waits() {
        let body = |fabric: &Fabric, _: &[_]| -> Outcome {
            match &*fabric.identity().program {
                SOURCE => {
                    let mut workers = ToWorkers::new(fabric, header()?, Way::Inline)?;
                    Ok(give_all(&mut workers, 0..FRAMES)?)
                }
                SINK => take_all(fabric, FRAMES),
                _ => work(fabric, fabric.identity().rank == 0),
            }
        };
        let name = "job::via::chunks::source::tests::\
            the_oldest_frame_of_a_lost_worker_is_given_while_the_next_one_waits";
        job(3).orchestrate(name, body, |cluster: &mut Cluster| {
            let (worker, sink) = (Who::Unit(1), Who::Unit(4));
            cluster.wait_point(worker, "has a frame");
            cluster.stop(worker);
            cluster.wait_gone(sink);
            cluster.kill(worker);
            cluster.all_end();
        });
    }

    /// The only worker is stopped while its second slot is free: no worker is left.
    #[test]
    fn a_source_without_workers_ends() {
        let body = |fabric: &Fabric, _: &[_]| -> Outcome {
            match &*fabric.identity().program {
                SOURCE => {
                    let mut workers = ToWorkers::new(fabric, header()?, Way::Inline)?;
                    let ended = give_all(&mut workers, 0..FRAMES);
                    let is_late = matches!(ended, Err(Error::Late { rank: 0, .. }));
                    check!(is_late, "{ended:?}");
                    Ok(())
                }
                SINK => {
                    check!(take_all(fabric, FRAMES).is_err(), "nobody does the frames");
                    Ok(())
                }
                _ => work(fabric, true),
            }
        };
        let name = "job::via::chunks::source::tests::a_source_without_workers_ends";
        job(1).orchestrate(name, body, |cluster: &mut Cluster| {
            let (worker, sink) = (Who::Unit(1), Who::Unit(2));
            cluster.wait_point(worker, "has a frame");
            cluster.stop(worker);
            cluster.wait_gone(sink);
            cluster.kill(worker);
            cluster.all_end();
        });
    }

    /// The time of a source that was stopped, or waited for its input, is not that of its workers;
    /// and that of the first frame of a worker is not that of the second.
    #[test]
    fn a_worker_is_not_late_because_of_others() {
        let body = |fabric: &Fabric, _: &[_]| -> Outcome {
            match &*fabric.identity().program {
                SOURCE => {
                    let mut workers = ToWorkers::new(fabric, header()?, Way::Inline)?;
                    workers.give_to(0, 0, &pixels(0))?;
                    workers.give_to(0, 1, &pixels(1))?;
                    workers.look()?;
                    std::thread::sleep(workers.deadline * 2);
                    workers.look()?;
                    same!(&workers.slots, &[Slot::Has(0), Slot::Has(1)]);
                    let since = workers.since[1];
                    point("has looked");
                    while workers.slots[0] != Slot::Free {
                        workers.wait(LOOK)?;
                    }
                    check!(workers.since[1] > since, "{:?}", workers.since);
                    Ok(give_all(&mut workers, 2..FRAMES)?)
                }
                SINK => take_all(fabric, FRAMES),
                _ => work(fabric, true),
            }
        };
        let name = "job::via::chunks::source::tests::a_worker_is_not_late_because_of_others";
        job(1).orchestrate(name, body, |cluster: &mut Cluster| {
            cluster.wait_point(Who::Unit(0), "has looked");
            cluster.release(Who::Unit(1));
            cluster.all_end();
        });
    }
}
