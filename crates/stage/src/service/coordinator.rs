//! The service that decides about the streams of a domain: [`Coordinator`], on the fabric.

use super::clients::{Clients, Heard, Mailbox};
use super::envelope::{Packed, ToStore};
use super::{SOON, own};
use crate::clock::{Clock, millis};
use crate::protocol::{Action, Coordinator, Event, Notice, Peer, Request, StreamFigures};
use samite_fabric::Fabric;
use samite_fabric::agent::{self, Lost, Owned};
use samite_fabric::rpc::ServiceId;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Coordinates all streams of a domain. It owns their state; when a process is lost, its part in
/// them ends.
pub struct CoordinatorService {
    pub(super) clients: Clients<Request>,
    pub(super) coordinator: Coordinator,
    /// The mailbox of the block store of this process.
    pub(super) store: Mailbox<ToStore>,
    own: Peer,
    clock: Clock,
    /// The time of the last look, in milliseconds, as the state machine counts.
    now: u64,
}

impl CoordinatorService {
    /// The name of the service for users.
    pub(super) const NAME: &str = "coordinator of streams";

    /// Starts the coordinator. There is one per domain.
    pub(super) fn new(fabric: &Fabric) -> CoordinatorService {
        CoordinatorService {
            clients: Clients::new(fabric, ServiceId::COORDINATOR),
            coordinator: Coordinator::of_run(RandomState::new().hash_one(())),
            store: Mailbox::default(),
            own: own(fabric),
            clock: Clock::new(fabric.now()),
            now: 0,
        }
    }

    /// Returns the state of the streams.
    pub fn figures(&self) -> Vec<StreamFigures> {
        self.coordinator.figures()
    }

    fn hear(&mut self, heard: Heard<Request>) {
        let Heard { from, id, message } = heard;
        if message.ticket().map(|ticket| ticket.0) == id {
            self.happened(Event::Said(from, message));
        } else {
            tracing::debug!(%from, ?id, "a request with the ticket of another one");
        }
    }

    /// Passes an event to the state machine, and carries out its actions.
    pub(super) fn happened(&mut self, event: Event) {
        self.tell_who_is_slow();
        if let Event::Said(from, Request::Keep { .. }) = &event
            && let Some(name) = self.clients.name_of(*from)
        {
            self.carry_out(Event::Named(*from, name));
        }
        self.carry_out(event);
    }

    fn tell_who_is_slow(&mut self) {
        if let Some(slow) = self.clients.who_is_slow() {
            self.carry_out(Event::Slow(slow));
        }
    }

    fn carry_out(&mut self, event: Event) {
        for Action::Send(to, notice) in self.coordinator.on_event(self.now, event) {
            let packed = match notice {
                Notice::Order(order) if to == self.own => {
                    self.store.lock().push_back(ToStore::Order(order));
                    continue;
                }
                Notice::Order(order) => Packed::order(order),
                Notice::Answer { ticket, answer } => Packed::answer(ticket, &answer),
            };
            self.clients.send(to, packed);
        }
    }

    pub(super) fn send_again(&mut self) {
        self.clients.send_again();
        self.tell_who_is_slow();
    }

    /// Handles a peer that is gone, or was given up.
    pub(super) fn forget(&mut self, peer: Peer) {
        // In this order: if the peer ceased to be slow before it is lost, it would be given steps
        // that nobody has then.
        self.carry_out(Event::Lost(peer));
        self.clients.forget(peer);
        self.tell_who_is_slow();
    }

    /// Reads the clock, once for all that is done next.
    fn look(&mut self) {
        self.now = millis(self.clock.look(self.clients.now()));
    }
}

impl agent::Service for CoordinatorService {
    fn name(&self) -> &'static str {
        CoordinatorService::NAME
    }

    fn owns(&self) -> Vec<Owned> {
        vec![Owned::count("streams", self.coordinator.streams() as u64)]
    }

    fn poll(&mut self) -> bool {
        self.look();
        // Messages that arrive meanwhile are left to the next poll.
        let messages = self.clients.waiting();
        for _ in 0..messages {
            if let Some(heard) = self.clients.take() {
                self.hear(heard);
            }
        }
        self.send_again();
        if self
            .coordinator
            .wake_at()
            .is_some_and(|due| due <= self.now)
        {
            self.happened(Event::Tick);
        }
        for peer in self.clients.given_up() {
            self.forget(peer);
        }
        messages > 0
    }

    fn next(&mut self) -> Duration {
        self.look();
        let due = self.coordinator.wake_at();
        let due = due.map(|due| Duration::from_millis(due.saturating_sub(self.now).max(1)));
        let longest = match self.clients.are_late() {
            true => SOON,
            false => Duration::MAX,
        };
        due.unwrap_or(longest).min(longest)
    }

    fn has_news(&self) -> bool {
        self.clients.waiting() > 0
    }

    /// A peer's messages from before its death count, so those that have arrived are handled before
    /// the loss. Messages of others are handled after it, so that none is given what the dead peer
    /// had.
    fn peers_lost(&mut self, lost: Lost<'_>) {
        self.look();
        let gone = self.clients.lost(lost);
        for heard in self.clients.last_words(&gone) {
            self.hear(heard);
        }
        gone.into_iter().for_each(|peer| self.forget(peer));
    }

    /// Sends their messages to the peers that take them now.
    fn end(&mut self) {
        self.send_again();
    }
}
