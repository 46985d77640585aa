//! `push-pull`, as the sockets PUSH and PULL of 0MQ: the source sends frames to the workers in
//! turn, and skips those for which as many wait as the high-water mark says. The results go to the
//! sink in the same manner.
//!
//! A slow worker has up to [`HIGH_WATER`] frames before it when the clip ends.

use super::super::{Header, Result};
use super::message::{FRAME, Outlet, WorkerEnd, numbered, result};
use samite::{Fabric, Handle, PeerId, Sent};
use std::collections::VecDeque;

/// How many frames wait for one receiver.
const HIGH_WATER: usize = 10;

/// The frames on their way to one receiver, the oldest first.
#[derive(Default)]
struct Pipe {
    sent: VecDeque<Handle<Sent>>,
    /// Of frames that have arrived.
    spare: Vec<Vec<u8>>,
}

impl Pipe {
    /// Returns true if there is room for one more frame.
    fn has_room(&mut self) -> samite::Result<bool> {
        while self.sent.front().is_some_and(Handle::has_ended) {
            self.pop()?;
        }
        Ok(self.sent.len() < HIGH_WATER)
    }

    /// Waits until the oldest frame has arrived.
    fn pop(&mut self) -> samite::Result<()> {
        let sent = self.sent.pop_front().map(Handle::wait).transpose()?;
        self.spare.extend(sent.flatten());
        Ok(())
    }

    fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    fn push(&mut self, fabric: &Fabric, to: PeerId, tag: u64, buffer: Vec<u8>) -> Result<()> {
        self.sent.push_back(fabric.isend(to, tag, buffer)?);
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        while !self.sent.is_empty() {
            self.pop()?;
        }
        Ok(())
    }
}

pub(super) struct ToWorkers {
    outlet: Outlet,
    pipes: Vec<Pipe>,
}

impl ToWorkers {
    pub(super) fn new(fabric: &Fabric, header: Header) -> Result<Self> {
        let outlet = Outlet::new(fabric, header)?;
        let pipes = outlet.workers.iter().map(|_| Pipe::default()).collect();
        Ok(ToWorkers { outlet, pipes })
    }

    /// Waits for a worker that may get a frame, and returns its rank.
    fn wait(&mut self) -> Result<usize> {
        let first = self.outlet.next();
        let pipes = &mut self.pipes;
        let count = pipes.len();
        let mut free = || {
            for rank in (first..first + count).map(|rank| rank % count) {
                match pipes[rank].has_room() {
                    Ok(true) => return Some(Ok(rank)),
                    Ok(false) => {}
                    Err(error) => return Some(Err(error)),
                }
            }
            None
        };
        let Outlet {
            fabric, workers, ..
        } = &self.outlet;
        Ok(
            fabric.wait_stepping("a worker to take a frame", &workers[..], &mut free, || {
                false
            })??,
        )
    }
}

impl super::ToWorkers for ToWorkers {
    fn send(&mut self, number: u64, pixels: &[u8], _: Option<u64>) -> Result<()> {
        let to = self.wait()?;
        let (outlet, pipe) = (&mut self.outlet, &mut self.pipes[to]);
        let mut buffer = pipe.buffer();
        buffer.clear();
        buffer.extend_from_slice(pixels);
        pipe.push(
            &outlet.fabric,
            outlet.workers[to],
            numbered(FRAME, number),
            buffer,
        )?;
        outlet.messages += 1;
        Ok(())
    }

    fn finish(&mut self, frames: u64) -> Result<()> {
        // Right behind the frames of each: a fast worker does not wait for those of a slow one.
        self.outlet.end_workers()?;
        self.pipes.iter_mut().try_for_each(Pipe::finish)?;
        self.outlet.end_sink(frames)
    }

    fn messages(&self) -> u64 {
        self.outlet.messages
    }
}

pub(super) struct AtWorker {
    end: WorkerEnd,
    pipe: Pipe,
}

impl AtWorker {
    pub(super) fn new(fabric: &Fabric) -> Result<Self> {
        Ok(AtWorker {
            end: WorkerEnd::new(fabric)?,
            pipe: Pipe::default(),
        })
    }
}

impl super::AtWorker for AtWorker {
    fn header(&self) -> Header {
        self.end.header
    }

    fn process(&mut self, work: &mut dyn FnMut(&[u8], &mut [u8])) -> Result<bool> {
        let (end, pipe) = (&mut self.end, &mut self.pipe);
        let Some((number, frame)) = end.receive()? else {
            pipe.finish()?;
            return Ok(false);
        };
        while !pipe.has_room()? {
            pipe.pop()?;
        }
        let mut buffer = pipe.buffer();
        buffer.resize(frame.len(), 0);
        work(&frame, &mut buffer);
        pipe.push(&end.fabric, end.sink, result(number), buffer)?;
        end.messages += 1;
        Ok(true)
    }

    fn messages(&self) -> u64 {
        self.end.messages
    }
}
