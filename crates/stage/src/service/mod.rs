//! The machines of [`protocol`](crate::protocol) on the fabric: two services, which the agent of a
//! domain [hosts](samite_fabric::agent::host).
//!
//! The [`Coordinator`] decides about streams, the [`BlockStore`] owns their memory. The agent hosts
//! both ([`STARTERS`]); a dedicated staging unit (method `server`) hosts one more block store; a
//! domain of one process has both in the process itself, polled by whoever waits ([`Staging`]).
//! Wherever they are, they talk to each other by messages.
//!
//! ```text
//!   frames ──> the server's inbox ([`samite_fabric::rpc`])
//!   poll of the coordinator:  requests, reports, losses and time ──> Steward::on_event
//!                             ──> answers to clients, orders to block stores
//!   poll of a block store:    orders, asks, what the disk has done ──> Keeper
//!                             ──> answers to clients, reports to the coordinator
//! ```
//!
//! # Files
//! `coordinator`, `store` (the services) · `clients` (whom a service has to do with) · `keeper`
//! (buffers, and what is spilled of them) · `letter` (what is said) · `units` (whether a job still
//! needs its servers) · `unsent` (what peers have not taken yet)

mod clients;
mod coordinator;
mod keeper;
mod letter;
mod store;
mod units;
mod unsent;

use crate::Result;
use crate::protocol::{Peer, StreamFigures};
use samite_fabric::Fabric;
use samite_fabric::agent::{self, Host, Starter};
use std::time::Duration;

pub use coordinator::Coordinator;
pub use keeper::{Kept, Room};
pub(crate) use keeper::{LOAD, segment_key};
pub(crate) use letter::{KeeperAnswer, KeeperAsk, ToStore, life, own};
pub use store::BlockStore;

/// How an agent starts the services of streams, in this order: the block store tells the
/// coordinator what it has.
pub const STARTERS: [Starter; 2] = [
    Starter {
        name: Coordinator::NAME,
        start: |fabric, _| Box::new(Coordinator::new(fabric)),
    },
    Starter {
        name: BlockStore::NAME,
        start: |fabric, agent| Box::new(BlockStore::beside(fabric, Room::of_agent(agent.budget))),
    },
];

/// How long a service sleeps when it waits for something that no message tells.
const SOON: Duration = Duration::from_millis(5);

/// The coordinator of a domain, which its agent hosts, if it is there.
pub(crate) fn find_steward(fabric: &Fabric) -> Option<Peer> {
    agent::find_host(fabric).map(|host| Peer::new(host.peer.0, host.incarnation))
}

/// A coordinator and its block store in one process.
pub struct Staging {
    fabric: Fabric,
    host: Host,
    pub(crate) coordinator: Coordinator,
    pub(crate) store: BlockStore,
}

impl Staging {
    /// Serves from now on, with blocks in `room`.
    pub fn new(fabric: &Fabric, room: Room) -> Staging {
        Staging {
            fabric: fabric.clone(),
            host: Host::default(),
            coordinator: Coordinator::new(fabric),
            store: BlockStore::beside(fabric, room),
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
