//! The clients of a service: received messages, and messages that they have not taken yet.

use super::envelope::Packed;
use super::unsent::Unsent;
use super::{life, own};
use crate::protocol::{self, Peer};
use parking_lot::Mutex;
use samite_fabric::Fabric;
use samite_fabric::agent::Lost;
use samite_fabric::rpc::{Inbound, Server, ServiceId};
use serde::de::DeserializeOwned;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Maximum bytes of messages from one peer that wait to be handled, besides the first message.
const INBOX: u64 = 16 << 20;

/// A message that a service received.
#[derive(Debug)]
pub(super) struct Heard<M> {
    pub(super) from: Peer,
    /// The id of a request; `None` for a note.
    pub(super) id: Option<u64>,
    pub(super) message: M,
}

/// The queue between the coordinator and the block store of one process, which holds values without
/// encoding. Its owner empties it at each poll, so it holds what one poll of the other service put
/// there.
pub(super) type Mailbox<M> = Arc<Mutex<VecDeque<M>>>;

/// The clients of a service. `M`: their messages.
pub(super) struct Clients<M> {
    fabric: Fabric,
    server: Server,
    /// Messages of the other service of this process.
    mailbox: Mailbox<M>,
    /// Peers that have sent a message, or have messages to take, and were not found to be gone at
    /// the last check.
    known: BTreeSet<Peer>,
    /// Messages that live peers have not taken yet.
    unsent: Unsent,
    /// Live peers that did not take their messages, and are treated as gone.
    deaf: BTreeSet<Peer>,
}

impl<M: DeserializeOwned> Clients<M> {
    /// Creates the clients of the service with that number, and starts to accept requests.
    pub(super) fn new(fabric: &Fabric, number: ServiceId) -> Clients<M> {
        Clients {
            fabric: fabric.clone(),
            server: fabric.serve(number, INBOX),
            mailbox: Mailbox::default(),
            known: BTreeSet::new(),
            unsent: Unsent::default(),
            deaf: BTreeSet::new(),
        }
    }

    /// Returns the fabric's time.
    pub(super) fn now(&self) -> Duration {
        self.fabric.now()
    }

    /// Returns the name of a peer for errors.
    pub(super) fn name_of(&self, peer: Peer) -> Option<Arc<str>> {
        self.fabric.name_of(peer.id(), Some(peer.incarnation()))
    }

    /// Returns the mailbox in which the other service of this process leaves its messages.
    pub(super) fn mailbox(&self) -> Mailbox<M> {
        self.mailbox.clone()
    }

    /// Returns the number of messages that have arrived and were not taken.
    pub(super) fn waiting(&self) -> usize {
        self.mailbox.lock().len() + self.server.waiting()
    }

    /// Takes a message. Returns `None` if there is none, or if it is rejected.
    pub(super) fn take(&mut self) -> Option<Heard<M>> {
        if let Some(message) = self.mailbox.lock().pop_front() {
            let (from, id) = (own(&self.fabric), None);
            return Some(Heard { from, id, message });
        }
        let asked = self.server.take()?;
        self.heard(asked)
    }

    /// Takes all messages of these peers.
    pub(super) fn last_words(&mut self, gone: &[Peer]) -> Vec<Heard<M>> {
        let mut all = Vec::new();
        for peer in gone {
            while let Some(asked) = self.server.take_of(life(*peer)) {
                all.extend(self.heard(asked));
            }
        }
        all
    }

    // Any process can send rejected messages at any rate, so they are logged without contents, and
    // not as warnings.
    fn heard(&mut self, asked: Inbound) -> Option<Heard<M>> {
        let from = Peer::new(asked.from.peer.0, asked.from.incarnation);
        let Some(message) = protocol::decode_request::<M>(&asked.bytes) else {
            tracing::debug!(%from, "{} bytes that are no message", asked.bytes.len());
            return None;
        };
        if !self.knows(from) {
            tracing::debug!(%from, "a message of a process that is not there");
            return None;
        }
        if asked.id.is_some() && self.unsent.is_full(from) {
            tracing::debug!(%from, "a request of a process that does not take its answers");
            return None;
        }
        let id = asked.id;
        Some(Heard { from, id, message })
    }

    /// Returns true if messages of this peer are accepted: it is alive, or not yet known to be
    /// gone.
    fn knows(&mut self, peer: Peer) -> bool {
        if self.deaf.contains(&peer) {
            return false;
        }
        self.known.contains(&peer) || self.lives(peer) && self.known.insert(peer)
    }

    fn lives(&self, peer: Peer) -> bool {
        let life = life(peer);
        self.fabric.lost_life(life.peer, life.incarnation).is_none()
    }

    /// Sends a message without waiting. A peer that is gone does not get it; its loss is a separate
    /// event. A live peer that takes nothing now (it is stopped, or its queue is full) gets it
    /// later, after its earlier messages. If too much is waiting for it, the peer is given up, with
    /// all its requests and promised work.
    pub(super) fn send(&mut self, to: Peer, packed: Packed) {
        if self.deaf.contains(&to) {
            return;
        }
        let is_late = self.unsent.waits_for(to) || !self.delivered(to, &packed);
        if !is_late {
            return;
        }
        // Its queue is dropped when it is seen to be gone.
        self.known.insert(to);
        if !self.unsent.push(to, packed) {
            tracing::warn!(%to, "a process that takes no messages is given up");
            self.deaf.insert(to);
        }
    }

    /// Retries the messages that peers had not taken.
    pub(super) fn send_again(&mut self) {
        if self.unsent.is_empty() {
            return;
        }
        let mut unsent = std::mem::take(&mut self.unsent);
        // A peer that is gone takes nothing, and stays slow until it is forgotten.
        unsent.try_again(|to, packed| self.lives(to) && self.delivered(to, packed));
        self.unsent = unsent;
    }

    /// Returns true if the message is sent, or has no receiver any more.
    fn delivered(&self, to: Peer, packed: &Packed) -> bool {
        if !self.lives(to) {
            return true;
        }
        match packed.send(&self.fabric, &self.server, to) {
            Ok(()) => true,
            Err(samite_fabric::Error::Timeout { .. }) => false,
            Err(error) => {
                tracing::debug!(%to, %error, "a message was not delivered");
                true
            }
        }
    }

    /// Returns true if any peer has not taken its messages.
    pub(super) fn are_late(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Returns the slow peers, if they have changed since the last call.
    pub(super) fn who_is_slow(&mut self) -> Option<BTreeSet<Peer>> {
        self.unsent.who_is_slow()
    }

    /// Returns the clients that are lost.
    pub(super) fn lost(&mut self, lost: Lost<'_>) -> Vec<Peer> {
        let is_lost = |peer: &Peer| lost.has(life(*peer));
        self.deaf.retain(|peer| !is_lost(peer));
        self.known.iter().copied().filter(is_lost).collect()
    }

    /// Returns the peers that were given up, and have to be forgotten.
    pub(super) fn given_up(&self) -> Vec<Peer> {
        self.deaf.intersection(&self.known).copied().collect()
    }

    /// Forgets a peer that is gone, or was given up.
    pub(super) fn forget(&mut self, peer: Peer) {
        self.known.remove(&peer);
        self.unsent.forget(peer);
    }

    /// Simulates a peer that does not take a message of two MiB.
    #[cfg(test)]
    pub(super) fn is_slow(&mut self, peer: Peer) {
        assert!(self.unsent.push(peer, Packed::of_bytes(vec![0; 2 << 20])));
    }
}
