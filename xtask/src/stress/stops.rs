//! Decides which process is stopped when, and for how long, from a seed.

use super::processes::{Process, below, handle, signal};
use fastrand::Rng;
use rustix::fd::OwnedFd;
use rustix::process::{Pid, Signal, getpid};
use std::time::{Duration, Instant};

/// Milliseconds between two stops.
const GAP: std::ops::RangeInclusive<u64> = 10..=150;
/// Milliseconds of a short stop. Half of the stops are as short as a time slice. The others are as
/// long as a page-in from disk or a closed laptop, because code may survive a short delay but not
/// one beyond the deadlines of sleepers.
const SHORT: std::ops::RangeInclusive<u64> = 1..=50;
const LONG: std::ops::RangeInclusive<u64> = 50..=1000;

/// The stops of one round.
#[derive(Debug)]
pub(super) struct Stops {
    random: Rng,
    next: Instant,
    stopped: Vec<(Instant, OwnedFd)>,
    /// The number of stops so far.
    pub(super) done: u64,
}

impl Stops {
    pub(super) fn new(seed: u64) -> Stops {
        Stops {
            random: Rng::with_seed(seed),
            next: Instant::now(),
            stopped: Vec::new(),
            done: 0,
        }
    }

    /// Continues the processes whose time is over, and stops the next one. `spared` are never
    /// stopped: the test itself, with its watchdog.
    pub(super) fn step(&mut self, spared: &[Pid]) {
        let now = Instant::now();
        self.stopped.retain(|(until, process)| {
            let over = *until <= now;
            if over {
                signal(process, Signal::CONT);
            }
            !over
        });
        if self.next > now {
            return;
        }
        self.next = now + self.draw(GAP);
        let (which, long) = (self.random.f64(), self.random.bool());
        let length = self.draw(if long { LONG } else { SHORT });
        // A process that a test has stopped is left to the test.
        let may = |process: &Process| process.goes_on() && !spared.contains(&process.pid);
        let going: Vec<Process> = below(getpid()).into_iter().filter(may).collect();
        let at_most = (going.len() + self.stopped.len()).div_ceil(2);
        if going.is_empty() || self.stopped.len() >= at_most {
            return;
        }
        let chosen = &going[(which * going.len() as f64) as usize];
        if let Some(process) = handle(chosen.pid)
            && signal(&process, Signal::STOP)
        {
            self.stopped.push((now + length, process));
            self.done += 1;
        }
    }

    fn draw(&mut self, milliseconds: std::ops::RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.random.u64(milliseconds))
    }
}

impl Drop for Stops {
    fn drop(&mut self) {
        for (_, process) in &self.stopped {
            signal(process, Signal::CONT);
        }
    }
}
