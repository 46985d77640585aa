//! `mp-async-each`: one buffer per worker. The source gives a frame to the first worker, in turn,
//! that has taken the one before, and waits only if none has.

use super::super::{Header, Result};
use super::message::{FRAME, Outlet, numbered};
use samite::{Fabric, Handle, Sent};

pub(super) struct ToWorkers {
    outlet: Outlet,
    /// The frame on its way to each worker.
    buffers: Vec<Option<Handle<Sent>>>,
}

impl ToWorkers {
    pub(super) fn new(fabric: &Fabric, header: Header) -> Result<Self> {
        let outlet = Outlet::new(fabric, header)?;
        let buffers = outlet.workers.iter().map(|_| None).collect();
        Ok(ToWorkers { outlet, buffers })
    }

    /// Waits for a worker whose buffer is free. Returns its rank, and the buffer.
    fn wait(&mut self) -> Result<(usize, Vec<u8>)> {
        let first = self.outlet.next();
        let count = self.buffers.len();
        let buffers = &self.buffers;
        let is_free = |&rank: &usize| buffers[rank].as_ref().is_none_or(Handle::has_ended);
        let free = || {
            (first..first + count)
                .map(|rank| rank % count)
                .find(is_free)
        };
        let Outlet {
            fabric, workers, ..
        } = &self.outlet;
        let rank =
            fabric.wait_stepping("a worker to take a frame", &workers[..], free, || false)?;
        let sent = self.buffers[rank].take().map(Handle::wait).transpose()?;
        Ok((rank, sent.flatten().unwrap_or_default()))
    }
}

impl super::ToWorkers for ToWorkers {
    fn send(&mut self, number: u64, pixels: &[u8], _: Option<u64>) -> Result<()> {
        let (to, mut buffer) = self.wait()?;
        buffer.clear();
        buffer.extend_from_slice(pixels);
        let outlet = &mut self.outlet;
        let tag = numbered(FRAME, number);
        self.buffers[to] = Some(outlet.fabric.isend(outlet.workers[to], tag, buffer)?);
        outlet.messages += 1;
        Ok(())
    }

    fn finish(&mut self, frames: u64) -> Result<()> {
        samite::wait_all(self.buffers.iter_mut().filter_map(Option::take))?;
        self.outlet.finish(frames)
    }

    fn messages(&self) -> u64 {
        self.outlet.messages
    }
}
