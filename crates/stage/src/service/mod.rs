//! The machines of [`protocol`](crate::protocol) on the fabric: two services, which the agent of a
//! domain [hosts](samite_fabric::agent::host).
//!
//! The [`CoordinatorService`] decides about streams, the [`BlockStoreService`] owns their memory.
//! The agent hosts both ([`STARTER`]); the agents of other nodes than the first one, and dedicated
//! staging units (method `server`), host one more block store each; a domain of one process has
//! both in the process itself, polled by the waiting thread ([`Staging`]). Orders and reports
//! between a coordinator and the block store of its own process are values in a queue
//! (`clients::Mailbox`); to and from other block stores they travel as notes.
//!
//! ```text
//!   frames ──> the server's inbox ([`samite_fabric::rpc`]), and the mailbox
//!   poll of the coordinator:  requests, reports, losses and time ──> Coordinator::on_event
//!                             ──> answers to clients, orders to block stores
//!   poll of a block store:    orders, requests, what the disk has done ──> BlockStore
//!                             ──> answers to clients, reports to the coordinator
//! ```
//!
//! # Files
//! `coordinator`, `store` (the services) · `clients` (the peers of a service) · `block_store`
//! (buffers, in memory and on disk) · `envelope` (messages) · `unsent` (messages that
//! peers have not taken yet)

mod block_store;
mod clients;
mod coordinator;
mod envelope;
mod store;
mod unsent;

use crate::Result;
use crate::protocol::{Peer, StreamFigures};
use samite_fabric::Fabric;
use samite_fabric::agent::{self, Host, Starter};
use samite_fabric::rpc::Life;
use std::time::Duration;

pub use block_store::{Capacity, Usage};
pub(crate) use block_store::{LOAD, segment_key};
pub use coordinator::CoordinatorService;
pub(crate) use envelope::{BlockStoreAnswer, BlockStoreRequest, ToStore, life, own};
pub use store::BlockStoreService;

/// Starts the services of streams at an agent: both at the head, a block store at the others.
pub const STARTER: Starter = Starter {
    name: "staging",
    start: |fabric, agent| {
        let capacity = Capacity::of_agent(agent.budget);
        match agent::is_on_head(fabric) {
            true => Staging::new(fabric, capacity).into_services(),
            false => vec![Box::new(BlockStoreService::of_node(fabric, capacity))],
        }
    },
};

/// How long a service sleeps while it waits for something that no message announces.
const SOON: Duration = Duration::from_millis(5);

/// Returns the coordinator of a domain, which its head hosts, if it has started.
pub(crate) fn find_coordinator(fabric: &Fabric) -> Option<Peer> {
    agent::find_head(fabric).map(peer_of)
}

/// Returns the block store of this node, which its agent hosts, if it has started.
pub(crate) fn find_near_store(fabric: &Fabric) -> Option<Peer> {
    agent::find_host(fabric).map(peer_of)
}

fn peer_of(life: Life) -> Peer {
    Peer::new(life.peer.0, life.incarnation)
}

/// A coordinator and its block store in one process.
pub struct Staging {
    fabric: Fabric,
    host: Host,
    pub(crate) coordinator: CoordinatorService,
    pub(crate) store: BlockStoreService,
}

impl Staging {
    /// Starts both services, with blocks in `capacity`.
    pub fn new(fabric: &Fabric, capacity: Capacity) -> Staging {
        let mut coordinator = CoordinatorService::new(fabric);
        Staging {
            fabric: fabric.clone(),
            host: Host::default(),
            store: BlockStoreService::beside(&mut coordinator, fabric, capacity),
            coordinator,
        }
    }

    /// Returns the two services, to be hosted by an agent in this order.
    pub fn into_services(self) -> Vec<Box<dyn agent::Service>> {
        vec![Box::new(self.coordinator), Box::new(self.store)]
    }

    /// Does the pending work. Returns true if there was any.
    pub fn turn(&mut self) -> bool {
        let (coordinator, store) = (&mut self.coordinator, &mut self.store);
        self.host.turn(&self.fabric, &mut [coordinator, store])
    }

    /// Serves as long as `go_on` returns true. It is called after every event, and periodically.
    ///
    /// # Errors
    /// The agent is lost.
    pub fn run(&mut self, go_on: impl FnMut(&Fabric) -> bool) -> Result<()> {
        let (coordinator, store) = (&mut self.coordinator, &mut self.store);
        Ok(self
            .host
            .run(&self.fabric, &mut [coordinator, store], go_on)?)
    }

    /// Returns the state of the streams.
    pub fn figures(&self) -> Vec<StreamFigures> {
        self.coordinator.figures()
    }
}

#[cfg(test)]
mod tests;
