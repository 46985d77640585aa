//! The service that owns the memory of streams: a [`BlockStore`], on the fabric.

use super::block_store::{BlockStore, Capacity};
use super::clients::{Clients, Heard, Mailbox};
use super::envelope::{Packed, ToStore};
use super::{CoordinatorService, SOON, life, own};
use crate::Result;
use crate::protocol::{Peer, Report, Request};
use samite_fabric::Fabric;
use samite_fabric::agent::{self, Host, Lost, Owned};
use samite_fabric::rpc::ServiceId;
use std::time::Duration;

/// Keeps blocks for the coordinator of a domain. It owns their memory, and the spill file. When a
/// process is lost, it stops reading for it; the coordinator frees the memory of its buffers.
pub struct BlockStoreService {
    fabric: Fabric,
    clients: Clients<ToStore>,
    pub(super) block_store: BlockStore,
    /// The coordinator whose orders it carries out; `None` until it has been found.
    coordinator: Option<Peer>,
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
        let store = BlockStoreService::new(fabric, Some(own(fabric)), reports, capacity);
        coordinator.store = store.clients.mailbox();
        store
    }

    /// Starts a block store for the coordinator of the domain, as a staging server does (method
    /// `server`).
    ///
    /// # Errors
    /// The domain has no coordinator.
    pub fn join(fabric: &Fabric, capacity: Capacity) -> Result<BlockStoreService> {
        let coordinator = crate::client::await_coordinator(fabric)?;
        let coordinator = Some(coordinator);
        Ok(BlockStoreService::new(fabric, coordinator, None, capacity))
    }

    /// Starts the block store of a node that is not the first one of its domain. When this returns,
    /// the coordinator knows it, if there is one within some seconds; otherwise as soon as there
    /// is.
    pub(super) fn of_node(fabric: &Fabric, capacity: Capacity) -> BlockStoreService {
        let find = || crate::client::await_coordinator(fabric).ok();
        let store = BlockStoreService::new(fabric, find(), None, capacity);
        // Answered after the introduction was heard.
        if store.coordinator.is_some() {
            find();
        }
        store
    }

    fn new(
        fabric: &Fabric,
        coordinator: Option<Peer>,
        reports: Option<Mailbox<Request>>,
        capacity: Capacity,
    ) -> BlockStoreService {
        let mut store = BlockStoreService {
            fabric: fabric.clone(),
            clients: Clients::new(fabric, ServiceId::BLOCK_STORE),
            block_store: BlockStore::new(fabric, capacity),
            coordinator,
            reports,
            is_orphan: false,
        };
        if store.coordinator.is_some() {
            store.tell(store.block_store.introduction());
        }
        store
    }

    /// Looks for the coordinator, if it was not found yet.
    fn find_coordinator(&mut self) {
        if self.coordinator.is_none() {
            self.coordinator = super::find_coordinator(&self.fabric);
            if self.coordinator.is_some() {
                self.tell(self.block_store.introduction());
            }
        }
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
            (ToStore::Order(order), None) if Some(from) == self.coordinator => {
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
        match (&self.reports, self.coordinator) {
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
        let waits = self.block_store.is_waiting() || self.coordinator.is_none();
        match waits || self.clients.are_late() {
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
        if let Some(coordinator) = self.coordinator
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
