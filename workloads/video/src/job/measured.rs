//! What the source and the workers have measured, and tell the sink: at the end, and workers also
//! every second, for the live page.
//!
//! A worker that is done waits until the sink has all frames ([`leave`]): as long as one may be
//! missing, a worker that has ended is one that is lost.

use super::via::only;
use super::{Error, Result, SINK, live};
use samite::{Fabric, Match, PeerId, UnitLife};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// The tags of the messages.
const MEASURED: u64 = 0x60 << 56;
const LEAVE: u64 = 0x61 << 56;

/// The most bytes of a message.
const MOST: u64 = 4096;
/// The time between two messages of a worker.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a unit waits for one that lives, and is slow. Source and workers are within it until
/// they end: any of them may have to wait until the sink has written a frame.
pub(super) const PATIENCE: Duration = Duration::from_secs(600);

/// What a program has measured so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    /// The board that a worker plays, and how long that needs for a frame, if it sleeps so long.
    pub(super) board: Option<String>,
    pub(super) board_needs_s: Option<f64>,
    pub(super) pace: String,
    pub(super) frames: u64,
    pub(super) processing_s: f64,
    pub(super) waiting_s: f64,
    /// Frames for which the kernel took longer than the board.
    pub(super) late_frames: u64,
    /// Of the source: the time in reading frames.
    pub(super) decode_s: f64,
    pub(super) messages: u64,
    pub(super) is_last: bool,
}

impl Measured {
    /// Returns how long a frame takes.
    pub(super) fn needs_s(&self) -> Option<f64> {
        let mean = || (self.frames > 0).then(|| self.processing_s / self.frames as f64);
        self.board_needs_s.or_else(mean)
    }

    /// Returns the part of the time since an earlier measurement in which it computed.
    fn load_since(&self, before: &Measured) -> f64 {
        let processing = (self.processing_s - before.processing_s).max(0.0);
        let waiting = (self.waiting_s - before.waiting_s).max(0.0);
        let all = processing + waiting;
        if all > 0.0 { processing / all } else { 0.0 }
    }

    fn send(&self, fabric: &Fabric, sink: PeerId) -> Result<()> {
        let bytes = serde_json::to_vec(self).map_err(std::io::Error::from)?;
        Ok(fabric.send(sink, MEASURED, &bytes)?)
    }

    /// Receives what a peer has sent.
    fn receive(fabric: &Fabric, from: PeerId, len: u64) -> Result<Measured> {
        let wrong = |what: &str| Error::Unexpected(format!("measurements that {what}"));
        if len > MOST {
            return Err(wrong("are too long"));
        }
        let (_, bytes) = fabric.recv_vec(Match::from(from, MEASURED))?;
        let measured: Measured =
            serde_json::from_slice(&bytes).map_err(|_| wrong("cannot be read"))?;
        let times = [measured.processing_s, measured.waiting_s, measured.decode_s];
        let times = times.into_iter().chain(measured.board_needs_s);
        match times
            .into_iter()
            .all(|time| time.is_finite() && time >= 0.0)
        {
            true => Ok(measured),
            false => Err(wrong("are no times")),
        }
    }
}

/// Tells the sink.
pub(super) struct Teller {
    fabric: Fabric,
    sink: PeerId,
    last: Instant,
}

impl Teller {
    pub(super) fn new(fabric: &Fabric) -> Result<Teller> {
        Ok(Teller {
            fabric: fabric.clone(),
            sink: only(fabric, SINK)?,
            last: Instant::now(),
        })
    }

    /// Tells if the last time was long enough ago.
    pub(super) fn tell(&mut self, measured: impl FnOnce() -> Measured) -> Result<()> {
        if self.last.elapsed() < PAUSE {
            return Ok(());
        }
        self.last = Instant::now();
        measured().send(&self.fabric, self.sink)
    }

    /// Tells for the last time.
    pub(super) fn finish(self, measured: Measured) -> Result<()> {
        let is_last = true;
        Measured {
            is_last,
            ..measured
        }
        .send(&self.fabric, self.sink)
    }
}

/// Waits, at the end of a worker, until the sink has all frames.
pub(super) fn leave(fabric: &Fabric) -> Result<()> {
    let sink = only(fabric, SINK)?;
    fabric.recv(Match::from(sink, LEAVE), &mut [])?;
    Ok(())
}

/// What the sink has been told.
pub(super) struct Told {
    fabric: Fabric,
    source: PeerId,
    workers: Vec<UnitLife>,
    pub(super) by_source: Measured,
    pub(super) by_workers: Vec<Measured>,
    /// The part of their time in which workers have computed of late, and when they have said so.
    loads: Vec<(f64, Instant)>,
}

impl Told {
    pub(super) fn new(fabric: &Fabric) -> Result<Told> {
        let workers = fabric.lives_of(super::WORKERS)?;
        Ok(Told {
            fabric: fabric.clone(),
            source: only(fabric, super::SOURCE)?,
            by_source: Measured::default(),
            by_workers: vec![Measured::default(); workers.len()],
            loads: vec![(0.0, Instant::now()); workers.len()],
            workers,
        })
    }

    /// Takes what has arrived.
    pub(super) fn hear(&mut self) -> Result<()> {
        while let Some(status) = self.fabric.probe(Match::any(MEASURED)) {
            self.take(status.from, status.len)?;
        }
        Ok(())
    }

    fn take(&mut self, from: PeerId, len: u64) -> Result<()> {
        let measured = Measured::receive(&self.fabric, from, len)?;
        let mut workers = self.workers.iter();
        let worker = workers.position(|worker| worker.peer == from);
        match worker {
            Some(worker) => {
                let load = measured.load_since(&self.by_workers[worker]);
                self.loads[worker] = (load, Instant::now());
                self.by_workers[worker] = measured;
            }
            None if from == self.source => self.by_source = measured,
            None => return Err(Error::Unexpected(format!("measurements of {from}"))),
        }
        Ok(())
    }

    /// Returns what the live page says of the workers, of which so many frames have come.
    pub(super) fn workers(&self, frames: &[u64]) -> Vec<live::Worker> {
        let workers = self.workers.iter().zip(&self.by_workers);
        let workers = workers.zip(&self.loads).zip(frames).enumerate();
        let workers = workers.map(|(rank, (((life, measured), (load, said)), frames))| {
            let lost = self.fabric.lost_life(life.peer, life.incarnation);
            live::Worker {
                name: measured
                    .board
                    .clone()
                    .unwrap_or_else(|| format!("worker {rank}")),
                frames: *frames,
                load: *load,
                silent_s: said.elapsed().as_secs_f64(),
                is_lost: lost.is_some(),
            }
        });
        workers.collect()
    }

    /// Waits for what all say last, and lets the workers leave. All frames have come: what one that
    /// is lost said before is all that is known of it.
    pub(super) fn finish(&mut self) -> Result<()> {
        let all = self.workers.iter().map(|worker| worker.peer);
        let all: Vec<_> = all.chain([self.source]).collect();
        for from in all {
            while !self.is_last(from) {
                let fabric = self.fabric.clone();
                let arrived = || fabric.probe(Match::from(from, MEASURED));
                match fabric.wait_stepping("measurements", &[from], arrived, || false) {
                    Ok(status) => self.take(from, status.len)?,
                    Err(error @ samite::Error::PeerLost { .. }) if from == self.source => {
                        tracing::warn!(%error, "what the source has measured is not known");
                        break;
                    }
                    Err(samite::Error::PeerLost { .. }) => break,
                    // It may have been stopped; if it is a worker, others have done its frames.
                    Err(error @ samite::Error::Timeout { .. }) => {
                        tracing::warn!(%error, "not all measurements are known");
                        break;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        for worker in &self.workers {
            match self.fabric.send(worker.peer, LEAVE, &[]) {
                Ok(()) | Err(samite::Error::PeerLost { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn is_last(&self, from: PeerId) -> bool {
        let workers = self.workers.iter().zip(&self.by_workers);
        let mut workers = workers.filter(|(worker, _)| worker.peer == from);
        let measured = workers
            .next()
            .map_or(&self.by_source, |(_, measured)| measured);
        measured.is_last
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SOURCE, WORKERS};
    use super::*;
    use samite_testkit::{Cluster, Outcome, Who, pause, programs, same};

    /// A complete output is not lost because the source is, or a worker.
    #[test]
    fn what_those_who_are_lost_have_measured_is_not_needed() {
        let body = |fabric: &Fabric, _: &[_]| -> Outcome {
            let measured = Measured {
                frames: 3,
                ..Measured::default()
            };
            match (&*fabric.identity().program, fabric.identity().rank) {
                (SINK, _) => {
                    let mut told = Told::new(fabric)?;
                    pause("here");
                    told.finish()?;
                    same!(told.by_source, Measured::default());
                    let frames = told.by_workers.iter().map(|measured| measured.frames);
                    same!(frames.collect::<Vec<_>>(), [3, 0]);
                }
                (WORKERS, 0) => {
                    Teller::new(fabric)?.finish(measured)?;
                    leave(fabric)?;
                }
                _ => _ = pause("is killed"),
            }
            Ok(())
        };
        let name = "job::measured::tests::what_those_who_are_lost_have_measured_is_not_needed";
        let job = programs(&[(SOURCE, 1), (WORKERS, 2), (SINK, 1)]);
        job.orchestrate(name, body, |cluster: &mut Cluster| {
            for who in [Who::Unit(0), Who::Unit(2)] {
                cluster.wait_point(who, "is killed");
                cluster.kill(who);
            }
            cluster.wait_point(Who::Unit(3), "here");
            cluster.release(Who::Unit(3));
            cluster.all_end();
        });
    }
}
