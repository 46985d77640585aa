//! The machines of [`protocol`](crate::protocol) on the fabric: two services, which the agent of a
//! domain [hosts](samite_fabric::agent::host).
//!
//! The [`CoordinatorService`] decides about streams, the [`BlockStoreService`] owns their memory.
//! The agent hosts both ([`STARTERS`]); a dedicated staging unit (method `server`) hosts one more
//! block store; a domain of one process has both in the process itself, polled by whoever waits
//! ([`Staging`]). Wherever they are, they talk to each other by messages.
//!
//! ```text
//!   frames ──> the server's inbox ([`samite_fabric::rpc`])
//!   poll of the coordinator:  requests, reports, losses and time ──> Coordinator::on_event
//!                             ──> answers to clients, orders to block stores
//!   poll of a block store:    orders, asks, what the disk has done ──> Block store
//!                             ──> answers to clients, reports to the coordinator
//! ```
//!
//! # Files
//! `coordinator`, `store` (the services) · `clients` (whom a service has to do with) ·
//! `block_store` (buffers, and what is spilled of them) · `envelope` (what is said) · `units`
//! (whether a job still needs its servers) · `unsent` (what peers have not taken yet)

mod block_store;
mod clients;
mod coordinator;
mod envelope;
mod store;
mod units;
mod unsent;

use crate::Result;
use crate::protocol::{Peer, StreamFigures};
use samite_fabric::Fabric;
use samite_fabric::agent::{self, Host, Starter};
use std::time::Duration;

pub use block_store::{Capacity, Usage};
pub(crate) use block_store::{LOAD, segment_key};
pub use coordinator::CoordinatorService;
pub(crate) use envelope::{BlockStoreAnswer, BlockStoreRequest, ToStore, life, own};
pub use store::BlockStoreService;

/// How an agent starts the services of streams, in this order: the block store tells the
/// coordinator what it has.
pub const STARTERS: [Starter; 2] = [
    Starter {
        name: CoordinatorService::NAME,
        start: |fabric, _| Box::new(CoordinatorService::new(fabric)),
    },
    Starter {
        name: BlockStoreService::NAME,
        start: |fabric, agent| {
            Box::new(BlockStoreService::beside(
                fabric,
                Capacity::of_agent(agent.budget),
            ))
        },
    },
];

/// How long a service sleeps when it waits for something that no message tells.
const SOON: Duration = Duration::from_millis(5);

/// The coordinator of a domain, which its agent hosts, if it is there.
pub(crate) fn find_coordinator(fabric: &Fabric) -> Option<Peer> {
    agent::find_host(fabric).map(|host| Peer::new(host.peer.0, host.incarnation))
}

/// A coordinator and its block store in one process.
pub struct Staging {
    fabric: Fabric,
    host: Host,
    pub(crate) coordinator: CoordinatorService,
    pub(crate) store: BlockStoreService,
}

impl Staging {
    /// Serves from now on, with blocks in `capacity`.
    pub fn new(fabric: &Fabric, capacity: Capacity) -> Staging {
        Staging {
            fabric: fabric.clone(),
            host: Host::default(),
            coordinator: CoordinatorService::new(fabric),
            store: BlockStoreService::beside(fabric, capacity),
        }
    }

    /// Does what has to be done now; whether there was anything.
    pub fn turn(&mut self) -> bool {
        let services: &mut [&mut dyn agent::Service] =
            &mut [&mut self.coordinator, &mut self.store];
        self.host.turn(&self.fabric, services).worked
    }

    /// Serves as long as `go_on` says so, which is asked after everything that happens, and now and
    /// then.
    ///
    /// # Errors
    /// The agent is lost.
    pub fn run(&mut self, go_on: impl FnMut(&Fabric) -> bool) -> Result<()> {
        let services: &mut [&mut dyn agent::Service] =
            &mut [&mut self.coordinator, &mut self.store];
        Ok(self.host.run(&self.fabric, services, go_on)?)
    }

    /// How the streams stand.
    pub fn figures(&self) -> Vec<StreamFigures> {
        self.coordinator.figures()
    }
}

#[cfg(test)]
mod tests;
