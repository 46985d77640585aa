//! `mp-sync`: the source sends each frame to the next worker in turn, and waits until the worker
//! has taken it. A frame of at most 16 KiB is on its way when it has been copied, as with
//! `MPI_Send`.
//!
//! A slow worker delays all others: they get the same number of frames.

use super::super::{Header, Result};
use super::message::{FRAME, Outlet, numbered};
use samite::Fabric;

pub(super) struct ToWorkers(Outlet);

impl ToWorkers {
    pub(super) fn new(fabric: &Fabric, header: Header) -> Result<Self> {
        Ok(ToWorkers(Outlet::new(fabric, header)?))
    }
}

impl super::ToWorkers for ToWorkers {
    fn send(&mut self, number: u64, pixels: &[u8], _: Option<u64>) -> Result<()> {
        let to = self.0.next();
        let outlet = &mut self.0;
        outlet
            .fabric
            .send(outlet.workers[to], numbered(FRAME, number), pixels)?;
        outlet.messages += 1;
        Ok(())
    }

    fn finish(&mut self, frames: u64) -> Result<()> {
        self.0.finish(frames)
    }

    fn messages(&self) -> u64 {
        self.0.messages
    }
}
