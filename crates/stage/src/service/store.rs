//! The service that owns the memory of streams: a [`BlockStore`], on the fabric.

use super::block_store::{BlockStore, Capacity};
use super::clients::{Clients, Heard, Mailbox};
use super::envelope::{Packed, ToStore};
use super::{CoordinatorService, SOON, life, own};
use crate::client::{BEGINNING, COORDINATOR};
use crate::protocol::{Peer, Report, Request};
use crate::{Error, Result};
use samite_fabric::Error::Timeout;
use samite_fabric::Fabric;
use samite_fabric::agent::{self, Host, Lost, Owned};
use samite_fabric::rpc::{Call, ServiceId};
use std::time::{Duration, Instant};

/// What a block store knows of the coordinator whose orders it carries out.
#[derive(Debug)]
enum Found {
    /// Nothing yet.
    Nobody,
    /// Where its host is. It was asked whether it serves.
    Asked(Peer, Call),
    /// That it serves. It was told of this store.
    Coordinator(Peer),
}

/// Keeps blocks for the coordinator of a domain. It owns their memory, and the spill file. When a
/// process is lost, it stops reading for it; the coordinator frees the memory of its buffers.
pub struct BlockStoreService {
    fabric: Fabric,
    clients: Clients<ToStore>,
    pub(super) block_store: BlockStore,
    found: Found,
    /// When it began to look for the coordinator.
    began: Instant,
    /// The mailbox of a coordinator in this process.
    reports: Option<Mailbox<Request>>,
    /// The coordinator is lost.
    is_orphan: bool,
}

impl BlockStoreService {
    /// The name of the service for users.
    pub(super) const NAME: &str = "block store";

    /// Starts a block store for the coordinator of this process, which has the same host.
    pub(super) fn beside(
        coordinator: &mut CoordinatorService,
        fabric: &Fabric,
        capacity: Capacity,
    ) -> BlockStoreService {
        let reports = Some(coordinator.clients.mailbox());
        let found = Found::Coordinator(own(fabric));
        let store = BlockStoreService::new(fabric, found, reports, capacity);
        coordinator.store = store.clients.mailbox();
        store
    }

    /// Starts a block store for the coordinator of the domain, as a staging server does (method
    /// `server`).
    ///
    /// # Errors
    /// The domain has no coordinator.
    pub fn join(fabric: &Fabric, capacity: Capacity) -> Result<BlockStoreService> {
        let found = Found::Coordinator(crate::client::await_coordinator(fabric)?);
        Ok(BlockStoreService::new(fabric, found, None, capacity))
    }

    /// Starts the block store of a node that is not the first one of its domain. When this returns,
    /// the coordinator knows it, if it can be reached within some seconds; otherwise as soon as it
    /// can.
    pub(super) fn of_node(fabric: &Fabric, capacity: Capacity) -> BlockStoreService {
        let mut store = BlockStoreService::new(fabric, Found::Nobody, None, capacity);
        if let Err(error) = store.await_coordinator() {
            tracing::warn!(%error, "blocks are not kept on this node until the coordinator is found");
        }
        store
    }

    fn await_coordinator(&mut self) -> Result<()> {
        let fabric = self.fabric.clone();
        let find = || self.find_coordinator();
        let found = fabric.wait_stepping_within(BEGINNING, COORDINATOR, &[], find, || false);
        let to = match found {
            Err(Timeout { .. }) => return Err(Error::NoCoordinator),
            found => life(found?),
        };
        // Answered after the introduction was heard.
        let mut heard = fabric.call(ServiceId::COORDINATOR, to, BEGINNING, |_| Vec::new())?;
        heard.wait(BEGINNING, COORDINATOR)?;
        Ok(())
    }

    fn new(
        fabric: &Fabric,
        found: Found,
        reports: Option<Mailbox<Request>>,
        capacity: Capacity,
    ) -> BlockStoreService {
        let mut store = BlockStoreService {
            fabric: fabric.clone(),
            clients: Clients::new(fabric, ServiceId::BLOCK_STORE),
            block_store: BlockStore::new(fabric, capacity),
            found,
            began: Instant::now(),
            reports,
            is_orphan: false,
        };
        if store.coordinator().is_some() {
            store.tell(store.block_store.introduction());
        }
        store
    }

    fn coordinator(&self) -> Option<Peer> {
        match self.found {
            Found::Coordinator(coordinator) => Some(coordinator),
            _ => None,
        }
    }

    /// Goes on looking for the coordinator, and tells it of this store when it is found. Does not
    /// wait.
    fn find_coordinator(&mut self) -> Option<Peer> {
        match &mut self.found {
            Found::Coordinator(coordinator) => return Some(*coordinator),
            Found::Nobody => {
                let coordinator = super::find_coordinator(&self.fabric)?;
                // An empty request is answered as soon as there is a service.
                let (to, none) = (life(coordinator), Duration::ZERO);
                let asked = (self.fabric).call(ServiceId::COORDINATOR, to, none, |_| Vec::new());
                if let Ok(call) = asked {
                    self.found = Found::Asked(coordinator, call);
                }
            }
            Found::Asked(coordinator, call) => {
                let coordinator = *coordinator;
                match call.wait(Duration::ZERO, COORDINATOR) {
                    Ok(_) => {
                        self.found = Found::Coordinator(coordinator);
                        self.tell(self.block_store.introduction());
                    }
                    Err(Timeout { .. }) => {} // It has not answered yet.
                    Err(_) => {
                        // It does not serve yet, or is gone: it is looked for as at the beginning.
                        (self.found, self.began) = (Found::Nobody, Instant::now());
                    }
                }
            }
        }
        self.coordinator()
    }

    /// Serves as long as `go_on` returns true. It is called after every event, and periodically.
    ///
    /// # Errors
    /// The agent is lost.
    pub fn run(&mut self, go_on: impl FnMut(&Fabric) -> bool) -> Result<()> {
        let fabric = self.fabric.clone();
        Ok(Host::default().run(&fabric, &mut [self], go_on)?)
    }

    /// Serves until the other units of this job have joined and left, or have ended without
    /// joining; units that only serve are not waited for.
    ///
    /// # Errors
    /// The agent is lost.
    pub fn run_for_job(&mut self) -> Result<()> {
        let fabric = self.fabric.clone();
        Ok(Host::default().run_for_job(&fabric, &mut [self])?)
    }

    fn hear(&mut self, heard: Heard<ToStore>) {
        let Heard { from, id, message } = heard;
        match (message, id) {
            (ToStore::Order(order), None) if Some(from) == self.coordinator() => {
                let report = self.block_store.obey(order);
                report.into_iter().for_each(|report| self.report(report));
            }
            (ToStore::Ask(ask), Some(id)) => {
                if let Some(answer) = self.block_store.answer(from, id, ask) {
                    self.clients.send(from, Packed::kept(id, &answer));
                }
            }
            (_, id) => {
                tracing::debug!(%from, ?id, "an order of another process, or a request as a note")
            }
        }
    }

    fn report(&mut self, report: Report) {
        self.tell(Request::Report(report));
    }

    fn tell(&mut self, request: Request) {
        match (&self.reports, self.coordinator()) {
            (Some(reports), _) => reports.lock().push_back(request),
            (None, Some(coordinator)) => {
                let packed = Packed::request(&request);
                self.clients.send(coordinator, packed);
            }
            (None, None) => {} // Nobody has ordered anything.
        }
    }

    /// Handles a peer that is gone, or was given up.
    fn forget(&mut self, peer: Peer) {
        self.block_store.forget(peer);
        self.clients.forget(peer);
    }
}

impl agent::Service for BlockStoreService {
    fn name(&self) -> &'static str {
        BlockStoreService::NAME
    }

    fn owns(&self) -> Vec<Owned> {
        let kept = self.block_store.figures();
        vec![
            Owned::count("buffers", kept.buffers),
            Owned::bytes("shared memory", kept.used),
            Owned::count("spilled buffers", kept.files),
        ]
    }

    /// Blocks no longer than allocating one part of a buffer takes.
    fn poll(&mut self) -> bool {
        self.find_coordinator();
        // Messages that arrive meanwhile are left to the next poll.
        let messages = self.clients.waiting();
        for _ in 0..messages {
            if let Some(heard) = self.clients.take() {
                self.hear(heard);
            }
        }
        self.clients.send_again();
        for peer in self.clients.given_up() {
            self.forget(peer);
        }
        let mut worked = messages > 0 || self.block_store.is_busy();
        for report in self.block_store.work() {
            worked = true;
            self.report(report);
        }
        for (from, id, answer) in self.block_store.answers() {
            worked = true;
            self.clients.send(from, Packed::kept(id, &answer));
        }
        self.block_store.tidy();
        worked
    }

    fn next(&mut self) -> Duration {
        if self.block_store.is_busy() {
            return Duration::ZERO;
        }
        let is_new = self.coordinator().is_none() && self.began.elapsed() < BEGINNING;
        match self.block_store.is_waiting() || is_new || self.clients.are_late() {
            true => SOON,
            false => Duration::MAX,
        }
    }

    fn has_news(&self) -> bool {
        self.clients.waiting() > 0 || self.block_store.has_news()
    }

    /// Drops the requests of lost peers. Without its coordinator, nobody would ever free what it
    /// keeps: readers of it fail, as those of other block stores do.
    fn peers_lost(&mut self, lost: Lost<'_>) {
        for peer in self.clients.lost(lost) {
            self.forget(peer);
        }
        if let Some(coordinator) = self.coordinator()
            && self.reports.is_none()
            && lost.has(life(coordinator))
            && !std::mem::replace(&mut self.is_orphan, true)
        {
            tracing::warn!(%coordinator, "the coordinator of streams is lost, and so is what is kept here");
            self.block_store.free_all();
        }
    }

    /// Sends their messages to the peers that take them now.
    fn end(&mut self) {
        self.clients.send_again();
    }
}

#[cfg(test)]
mod tests {
    use super::super::Staging;
    use super::*;
    use samite_fabric::Match;
    use samite_fabric::transport::sim::Scenario;

    /// A head that does not serve yet refuses the question. The store asks again, so it finds the
    /// coordinator once there is one. A look neither waits nor gives up a question that is open.
    #[test]
    fn a_store_that_was_refused_asks_again() {
        const GO: u64 = 1;
        const DONE: u64 = 2;
        let head = |fabric: &Fabric| {
            // Until it is told, it refuses what it is asked.
            fabric.recv(Match::any(GO), &mut [])?;
            let mut staging = Staging::new(fabric, Capacity::of_memory(1 << 20));
            staging.run(|fabric| fabric.probe(Match::any(DONE)).is_none())
        };
        let asks = |fabric: &Fabric| -> Result<()> {
            let head = fabric.job()?[0];
            let capacity = Capacity::of_memory(1 << 20);
            let mut store = BlockStoreService::new(fabric, Found::Nobody, None, capacity);
            let question = |store: &BlockStoreService| match &store.found {
                Found::Asked(_, call) => Some(call.id()),
                _ => None,
            };
            let ask = || {
                store.find_coordinator();
                question(&store)
            };
            let asked = fabric.wait_stepping("a head", &[], ask, || false)?;
            let before = fabric.now();
            assert_eq!(store.find_coordinator(), None);
            assert_eq!(question(&store), Some(asked));
            assert!(fabric.now() - before < SOON);
            let refused = || {
                store.find_coordinator();
                matches!(store.found, Found::Nobody).then_some(())
            };
            fabric.wait_stepping("a refusal", &[], refused, || false)?;
            fabric.send(head, GO, &[])?;
            let find = || store.find_coordinator();
            let found = fabric.wait_stepping("the coordinator", &[], find, || false)?;
            assert_eq!(found.id(), head);
            Ok(fabric.send(head, DONE, &[])?)
        };
        for seed in 0..4 {
            let ends =
                Scenario::new(seed, 2)
                    .with_host()
                    .run(|fabric| match fabric.identity().unit {
                        0 => head(fabric),
                        _ => asks(fabric),
                    });
            ends.into_iter()
                .for_each(|end| end.expect("nobody is lost"));
        }
    }
}
