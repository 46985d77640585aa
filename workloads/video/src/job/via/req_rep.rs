//! `req-rep`, as the sockets REQ and REP of 0MQ: a worker requests a frame when it is ready, and
//! the source replies with it; the worker sends the result to the sink, and the sink replies that
//! it has it.
//!
//! A worker waits for the transfer of each frame, and gets as many as it can process. The ends of
//! workers and sink are those of `message`.

use super::super::{Header, Result};
use super::message::{FRAME, Outlet, READY, await_any, numbered};
use samite::{Fabric, Match};

pub(super) struct ToWorkers(Outlet);

impl ToWorkers {
    pub(super) fn new(fabric: &Fabric, header: Header) -> Result<Self> {
        Ok(ToWorkers(Outlet::new(fabric, header)?))
    }
}

impl super::ToWorkers for ToWorkers {
    fn send(&mut self, number: u64, pixels: &[u8], _: Option<u64>) -> Result<()> {
        let Outlet {
            fabric, workers, ..
        } = &self.0;
        let wants = Match::any(READY);
        let worker = await_any(fabric, "a worker to request a frame", workers, &[wants])?.from;
        fabric.recv(Match::from(worker, READY), &mut [])?;
        fabric.send(worker, numbered(FRAME, number), pixels)?;
        self.0.messages += 1;
        Ok(())
    }

    fn finish(&mut self, frames: u64) -> Result<()> {
        // END is the reply to the last request of each.
        for worker in &self.0.workers {
            self.0.fabric.recv(Match::from(*worker, READY), &mut [])?;
        }
        self.0.finish(frames)
    }

    fn messages(&self) -> u64 {
        self.0.messages
    }
}
