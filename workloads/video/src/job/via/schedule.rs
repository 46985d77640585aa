//! Which worker gets the next frame, and when.
//!
//! A frame is given as late as possible, because a frame that waits at a slow worker cannot be done
//! by a fast one:
//!
//! * A worker without a frame gets the next one.
//! * A worker with one frame gets another only shortly before it is done with the first, so that it
//!   does not wait. How long before (the *lead*) is what the source needs to read and to give
//!   frames.
//! * Near the end, a worker gets no frame that the others together would do earlier. This needs the
//!   number of frames, which only some sources know.
//!
//! How long a worker needs for a frame is what it needed for those before. Nothing here reads a
//! clock; times are since any fixed moment.

use std::time::Duration;

/// The most frames that a worker has.
const MOST: usize = super::super::SLOTS;
/// The least lead: what it takes a process to be scheduled on a busy machine.
const LEAST_LEAD: Duration = Duration::from_millis(5);
/// The lead, in times that the source needs from one frame to the next.
const LEAD: u32 = 3;

/// What is to be done with the next frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Give it to this worker.
    Give(usize),
    /// Nobody should have it now: ask again at this time, and whenever a frame is done.
    Wait(Option<Duration>),
}

#[derive(Clone, Debug)]
struct Worker {
    is_lost: bool,
    /// The frames that it has.
    has: usize,
    /// When it began with the first of them.
    since: Duration,
    /// The time that it needs for a frame, once one is done.
    needs: Option<Duration>,
}

impl Worker {
    /// Returns when it will be done with what it has.
    fn free_at(&self, now: Duration) -> Option<Duration> {
        let Some(more) = self.has.checked_sub(1) else {
            return Some(now);
        };
        let needs = self.needs?;
        Some((self.since + needs).max(now) + needs * more as u32)
    }

    /// Returns how many more frames it could have done by a time.
    fn could_do(&self, now: Duration, by: Duration) -> u64 {
        let (Some(free), Some(needs)) = (self.free_at(now), self.needs) else {
            return 0;
        };
        let left = by.saturating_sub(free).as_nanos();
        (left / needs.as_nanos().max(1))
            .try_into()
            .unwrap_or(u64::MAX)
    }
}

/// What is known of the workers.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    workers: Vec<Worker>,
    /// What the source needs from one frame to the next, at most recently.
    source: Duration,
}

impl Schedule {
    pub(super) fn new(workers: usize) -> Schedule {
        let worker = Worker {
            is_lost: false,
            has: 0,
            since: Duration::ZERO,
            needs: None,
        };
        Schedule {
            workers: vec![worker; workers],
            source: Duration::ZERO,
        }
    }

    /// The source has needed so long to read a frame and to give it.
    pub(super) fn source_needs(&mut self, time: Duration) {
        // The largest of late: one long frame is forgotten after some short ones.
        self.source = time.max(self.source * 7 / 8);
    }

    /// A worker was given a frame.
    pub(super) fn given(&mut self, worker: usize, now: Duration) {
        let worker = &mut self.workers[worker];
        if worker.has == 0 {
            worker.since = now;
        }
        worker.has += 1;
    }

    /// A worker has done a frame.
    pub(super) fn done(&mut self, worker: usize, now: Duration) {
        let worker = &mut self.workers[worker];
        let took = now.saturating_sub(worker.since);
        worker.needs = Some(worker.needs.map_or(took, |before| (before * 3 + took) / 4));
        worker.has = worker.has.saturating_sub(1);
        worker.since = now;
    }

    /// A worker is lost, with the frames that it had.
    pub(super) fn lost(&mut self, worker: usize) {
        self.workers[worker].is_lost = true;
    }

    /// Chooses what to do with a frame. `left`: how many come after it, if that is known.
    pub(super) fn choose(&self, now: Duration, left: Option<u64>) -> Choice {
        let lead = (self.source * LEAD).max(LEAST_LEAD);
        let living = self.workers.iter().enumerate();
        let mut ready: Vec<_> = living
            .filter(|(_, worker)| !worker.is_lost && worker.has < MOST)
            .filter_map(|(rank, worker)| Some((worker.free_at(now)?, worker.needs, rank)))
            .collect();
        // The first to be free; of several, the fastest.
        ready.sort_unstable();
        let mut next = None;
        for (free, _, rank) in ready {
            let due = free.saturating_sub(lead);
            let is_idle = self.workers[rank].has == 0;
            if !is_idle && due > now {
                next = Some(due);
                break;
            }
            if self.is_of_use(rank, now, left) {
                return Choice::Give(rank);
            }
        }
        Choice::Wait(next)
    }

    /// Returns false if the others would have done this frame and all after it before this worker
    /// would be done with it.
    fn is_of_use(&self, rank: usize, now: Duration, left: Option<u64>) -> bool {
        let worker = &self.workers[rank];
        let (Some(free), Some(needs), Some(left)) = (worker.free_at(now), worker.needs, left)
        else {
            return true;
        };
        let others = self.workers.iter().enumerate();
        let others = others.filter(|(other, worker)| *other != rank && !worker.is_lost);
        // Earlier, so that two workers of the same speed do not leave the frame to each other.
        let before = (free + needs).saturating_sub(Duration::from_nanos(1));
        let could = others.map(|(_, other)| other.could_do(now, before));
        could.fold(0, u64::saturating_add) <= left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a run on workers that need these times. Returns the frames of each, and the time.
    fn simulate(times: &[u64], frames: u64, is_known: bool) -> (Vec<u64>, Duration) {
        let millis = Duration::from_millis;
        let mut schedule = Schedule::new(times.len());
        let mut queues = vec![std::collections::VecDeque::new(); times.len()];
        let mut did = vec![0; times.len()];
        let (mut now, mut given) = (Duration::ZERO, 0);
        while did.iter().sum::<u64>() < frames {
            let left = is_known.then(|| (frames - given).saturating_sub(1));
            let choice = match given < frames {
                true => schedule.choose(now, left),
                false => Choice::Wait(None),
            };
            if let Choice::Give(rank) = choice {
                let begin = queues[rank].back().copied().unwrap_or(now);
                queues[rank].push_back(begin + millis(times[rank]));
                schedule.given(rank, now);
                given += 1;
                continue;
            }
            let ends = queues.iter().filter_map(|queue| queue.front().copied());
            let until = match choice {
                Choice::Wait(Some(until)) => Some(until),
                _ => None,
            };
            now = ends.chain(until).min().expect("somebody has a frame");
            for (rank, queue) in queues.iter_mut().enumerate() {
                if queue.front().is_some_and(|end| *end <= now) {
                    queue.pop_front();
                    schedule.done(rank, now);
                    did[rank] += 1;
                }
            }
        }
        (did, now)
    }

    fn ideal(times: &[u64], frames: u64) -> f64 {
        let speed: f64 = times.iter().map(|time| 1.0 / *time as f64).sum();
        frames as f64 / speed
    }

    #[test]
    fn workers_of_any_speed_end_together() {
        for times in [
            &[41, 136, 130, 130, 228, 228, 244, 342][..],
            &[10, 1000],
            &[7],
            &[5; 9],
        ] {
            for frames in [1, 8, 50, 1306] {
                let (did, time) = simulate(times, frames, true);
                assert_eq!(did.iter().sum::<u64>(), frames);
                // The first frame of each is given before its speed is known.
                let slack = *times.iter().max().unwrap() as f64;
                let most = ideal(times, frames) * 1.02 + slack;
                assert!(
                    time.as_secs_f64() * 1e3 <= most,
                    "{times:?} {frames}: {time:?}"
                );
            }
        }
        // So many that the end decides: nobody waits for the slowest one.
        let times = [41, 136, 130, 130, 228, 228, 244, 342];
        let (_, time) = simulate(&times, 1306, true);
        assert!(
            ideal(&times, 1306) / (time.as_secs_f64() * 1e3) > 0.99,
            "{time:?}"
        );
        // Whose length is not known takes at most one frame of the slowest worker longer.
        let (_, longer) = simulate(&times, 1306, false);
        assert!(
            longer >= time && longer <= time + Duration::from_millis(342),
            "{longer:?}"
        );
    }

    #[test]
    fn a_lost_worker_gets_nothing() {
        let mut schedule = Schedule::new(2);
        schedule.lost(0);
        assert_eq!(schedule.choose(Duration::ZERO, None), Choice::Give(1));
        schedule.lost(1);
        assert_eq!(schedule.choose(Duration::ZERO, None), Choice::Wait(None));
    }
}
