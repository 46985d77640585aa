//! `mp-async`: as `mp-sync`, but with one buffer: while a frame is on its way, the source reads the
//! next one. It waits for the buffer before it sends that.

use super::super::{Header, Result};
use super::message::{FRAME, Outlet, numbered};
use samite::{Fabric, Handle, Sent};

pub(super) struct ToWorkers {
    outlet: Outlet,
    /// The frame on its way.
    buffer: Option<Handle<Sent>>,
}

impl ToWorkers {
    pub(super) fn new(fabric: &Fabric, header: Header) -> Result<Self> {
        Ok(ToWorkers {
            outlet: Outlet::new(fabric, header)?,
            buffer: None,
        })
    }

    /// Waits until the buffer is free.
    fn wait(&mut self) -> Result<Vec<u8>> {
        let sent = self.buffer.take().map(Handle::wait).transpose()?;
        Ok(sent.flatten().unwrap_or_default())
    }
}

impl super::ToWorkers for ToWorkers {
    fn send(&mut self, number: u64, pixels: &[u8], _: Option<u64>) -> Result<()> {
        let mut buffer = self.wait()?;
        buffer.clear();
        buffer.extend_from_slice(pixels);
        let to = self.outlet.next();
        let outlet = &mut self.outlet;
        let tag = numbered(FRAME, number);
        self.buffer = Some(outlet.fabric.isend(outlet.workers[to], tag, buffer)?);
        outlet.messages += 1;
        Ok(())
    }

    fn finish(&mut self, frames: u64) -> Result<()> {
        self.wait()?;
        self.outlet.finish(frames)
    }

    fn messages(&self) -> u64 {
        self.outlet.messages
    }
}
