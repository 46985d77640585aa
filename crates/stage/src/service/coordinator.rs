//! The service that decides about the streams of a domain: [`Coordinator`], on the fabric.

use super::SOON;
use super::clients::{Clients, Heard};
use super::envelope::Packed;
use crate::clock::Clock;
use crate::protocol::{Action, Coordinator, Event, Notice, Peer, Request, StreamFigures};
use samite_fabric::Fabric;
use samite_fabric::agent::{self, Lost, Owned, Turn};
use samite_fabric::rpc::Service as Number;
use std::time::Duration;

/// Coordinates all streams of a domain. It owns their state; when a process is lost, its part in
/// them ends.
pub struct CoordinatorService {
    pub(super) clients: Clients,
    pub(super) coordinator: Coordinator,
    clock: Clock,
}

impl CoordinatorService {
    /// What people call it.
    pub(super) const NAME: &str = "coordinator of streams";

    /// Coordinates from now on. There is one in a domain.
    pub fn new(fabric: &Fabric) -> CoordinatorService {
        CoordinatorService {
            clients: Clients::new(fabric, Number::COORDINATOR),
            coordinator: Coordinator::new(),
            clock: Clock::new(fabric.now()),
        }
    }

    /// How the streams stand.
    pub fn figures(&self) -> Vec<StreamFigures> {
        self.coordinator.figures()
    }

    fn hear(&mut self, heard: Heard<Request>) {
        let Heard { from, id, message } = heard;
        if message.ticket().map(|ticket| ticket.0) == id {
            self.happened(Event::Said(from, message));
        } else {
            tracing::warn!(%from, ?message, ?id, "a request with the ticket of another one");
        }
    }

    /// Tells the state machine, and carries out what it wants.
    pub(super) fn happened(&mut self, event: Event) {
        self.tell_who_is_slow();
        self.carry_out(event);
    }

    fn tell_who_is_slow(&mut self) {
        if let Some(slow) = self.clients.who_is_slow() {
            self.carry_out(Event::Slow(slow));
        }
    }

    fn carry_out(&mut self, event: Event) {
        let now = self.now();
        for Action::Send(to, notice) in self.coordinator.on_event(now, event) {
            let packed = match notice {
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

    /// A peer is gone, or as good as gone.
    pub(super) fn forget(&mut self, peer: Peer) {
        // In this order: if it were slow no more before it is lost, it would be given steps, which
        // nobody had then.
        self.carry_out(Event::Lost(peer));
        self.clients.forget(peer);
        self.tell_who_is_slow();
    }

    /// In milliseconds, as the state machine counts them.
    fn now(&mut self) -> u64 {
        self.clock.look(self.clients.now()).as_millis() as u64
    }

    /// When it has something to do if nobody says anything.
    fn next(&mut self) -> Duration {
        let now = self.now();
        let due = self.coordinator.wake_at();
        let due = due.map(|due| Duration::from_millis(due.saturating_sub(now).max(1)));
        let longest = if self.clients.are_late() {
            SOON
        } else {
            Duration::MAX
        };
        due.unwrap_or(longest).min(longest)
    }
}

impl agent::Service for CoordinatorService {
    fn name(&self) -> &'static str {
        CoordinatorService::NAME
    }

    fn owns(&self) -> Vec<Owned> {
        vec![Owned::count(
            "streams",
            self.coordinator.figures().len() as u64,
        )]
    }

    fn poll(&mut self) -> Turn {
        // Messages that come meanwhile are not waited for.
        let messages = self.clients.waiting();
        for _ in 0..messages {
            if let Some(heard) = self.clients.take() {
                self.hear(heard);
            }
        }
        self.send_again();
        let now = self.now();
        if self.coordinator.wake_at().is_some_and(|due| due <= now) {
            self.happened(Event::Tick);
        }
        for peer in self.clients.given_up() {
            self.forget(peer);
        }
        Turn {
            worked: messages > 0,
            next: self.next(),
        }
    }

    fn has_news(&self) -> bool {
        self.clients.waiting() > 0
    }

    /// What a peer said before it died counts: what had come when it was seen to be gone is taken
    /// before that. What others say is heard after it, so that nobody is given what the dead had.
    fn peers_lost(&mut self, lost: Lost<'_>) {
        let gone = self.clients.lost(lost);
        for heard in self.clients.last_words(&gone) {
            self.hear(heard);
        }
        gone.into_iter().for_each(|peer| self.forget(peer));
    }

    /// Peers that take messages now get what was for them.
    fn end(&mut self) {
        self.send_again();
    }
}
