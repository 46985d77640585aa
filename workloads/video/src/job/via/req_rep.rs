//! `req-rep`, as the sockets REQ and REP of 0MQ: a worker requests a frame when it is ready, and
//! the source replies with it; the worker sends the result to the sink, and the sink replies that
//! it has it.
//!
//! A worker waits for the transfer of each frame, and gets as many as it can process.

use super::super::{Header, Result};
use super::Processed;
use super::message::{self, FRAME, Mill, Outlet, READY, TAKEN, await_any, numbered, result};
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
        let worker = await_any(fabric, "a worker to request a frame", workers, wants)?.from;
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

pub(super) struct AtWorker {
    mill: Mill,
    result: Vec<u8>,
}

impl AtWorker {
    pub(super) fn new(fabric: &Fabric) -> Result<Self> {
        let mill = Mill::new(fabric)?;
        let result = vec![0; mill.header.size.pixels()];
        Ok(AtWorker { mill, result })
    }
}

impl super::AtWorker for AtWorker {
    fn header(&self) -> Header {
        self.mill.header
    }

    fn process(&mut self, work: &mut dyn FnMut(&[u8], &mut [u8])) -> Result<bool> {
        let mill = &mut self.mill;
        mill.fabric.send(mill.source, READY, &[])?;
        let Some((number, frame)) = mill.receive()? else {
            return Ok(false);
        };
        work(&frame, &mut self.result);
        mill.fabric.send(mill.sink, result(number), &self.result)?;
        mill.fabric.recv(Match::from(mill.sink, TAKEN), &mut [])?;
        mill.messages += 2;
        Ok(true)
    }

    fn messages(&self) -> u64 {
        self.mill.messages
    }
}

/// Replies to each result.
pub(super) struct FromWorkers {
    results: message::FromWorkers,
    messages: u64,
}

impl FromWorkers {
    pub(super) fn new(fabric: &Fabric) -> Result<Self> {
        Ok(FromWorkers {
            results: message::FromWorkers::new(fabric)?,
            messages: 0,
        })
    }
}

impl super::FromWorkers for FromWorkers {
    fn header(&self) -> Header {
        self.results.header()
    }

    fn next(&mut self) -> Result<Option<Processed>> {
        let result = self.results.next()?;
        if let Some(result) = &result {
            let worker = self.results.workers[result.worker];
            self.results.fabric.send(worker, TAKEN, &[])?;
            self.messages += 1;
        }
        Ok(result)
    }

    fn messages(&self) -> Result<u64> {
        Ok(self.messages)
    }
}
