//! The processes that talk to one service: what they have said, and what they have not taken yet.

use super::envelope::Packed;
use super::unsent::Unsent;
use super::{life, own};
use crate::protocol::{self, Peer};
use parking_lot::Mutex;
use samite_fabric::Fabric;
use samite_fabric::agent::Lost;
use samite_fabric::rpc::{Inbound, Server, Service as Number};
use serde::de::DeserializeOwned;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Most bytes that wait of one peer to be heard, beside the first message.
const INBOX: u64 = 16 << 20;

/// What a service was told.
#[derive(Debug)]
pub(super) struct Heard<M> {
    pub(super) from: Peer,
    /// Of a request; `None` for a note.
    pub(super) id: Option<u64>,
    pub(super) message: M,
}

/// What the coordinator and the block store of one process have for each other: values, which
/// nobody encodes. Its owner empties it at each poll; until then it holds no more than an order, or
/// a report, for each buffer.
pub(super) type Mailbox<M> = Arc<Mutex<VecDeque<M>>>;

/// Whom a service has to do with. `M`: what they say to it.
pub(super) struct Clients<M> {
    fabric: Fabric,
    server: Server,
    /// What the other service of this process has said.
    mailbox: Mailbox<M>,
    /// Who has said something, or has something to take, and was not seen to be gone when the
    /// service looked last.
    known: BTreeSet<Peer>,
    /// Messages that living peers have not taken yet.
    unsent: Unsent,
    /// Peers that did not take what was for them: as good as gone, as long as they live.
    deaf: BTreeSet<Peer>,
}

impl<M: DeserializeOwned> Clients<M> {
    /// Of the service of this process that has that number; it is served from now on.
    pub(super) fn new(fabric: &Fabric, number: Number) -> Clients<M> {
        Clients {
            fabric: fabric.clone(),
            server: fabric.serve(number, INBOX),
            mailbox: Mailbox::default(),
            known: BTreeSet::new(),
            unsent: Unsent::default(),
            deaf: BTreeSet::new(),
        }
    }

    /// The time, as the fabric counts it.
    pub(super) fn now(&self) -> Duration {
        self.fabric.now()
    }

    /// Where the other service of this process leaves what it has to say to this one.
    pub(super) fn mailbox(&self) -> Mailbox<M> {
        self.mailbox.clone()
    }

    /// How many messages have come and were not taken.
    pub(super) fn waiting(&self) -> usize {
        self.mailbox.lock().len() + self.server.waiting()
    }

    /// Takes a message; `None` if there is none, or one that is not to be heard.
    pub(super) fn take(&mut self) -> Option<Heard<M>> {
        if let Some(message) = self.mailbox.lock().pop_front() {
            let (from, id) = (own(&self.fabric), None);
            return Some(Heard { from, id, message });
        }
        let asked = self.server.take()?;
        self.heard(asked)
    }

    /// Takes all that these peers have said.
    pub(super) fn last_words(&mut self, gone: &[Peer]) -> Vec<Heard<M>> {
        let mut all = Vec::new();
        for peer in gone {
            while let Some(asked) = self.server.take_of(life(*peer)) {
                all.extend(self.heard(asked));
            }
        }
        all
    }

    // What is refused here anybody can send as often as it likes: it is logged without its
    // contents, and not as a warning.
    fn heard(&mut self, asked: Inbound) -> Option<Heard<M>> {
        let from = Peer::new(asked.from.peer.0, asked.from.incarnation);
        let Some(message) = protocol::decode::<M>(&asked.bytes) else {
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

    /// Whether a message of this peer is to be heard: it lives, or is not yet known to be gone.
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

    /// Never waits. Whoever is gone does not get it, and that is another event. A peer that lives
    /// and takes nothing now (it is stopped, or has too much before) gets it later, behind what it
    /// did not take before; one that has too much of that nevertheless is given up: whatever it has
    /// asked for, or said that it would carry out.
    pub(super) fn send(&mut self, to: Peer, packed: Packed) {
        if self.deaf.contains(&to) {
            return;
        }
        let is_late = self.unsent.waits_for(to) || !self.delivered(to, &packed);
        if !is_late {
            return;
        }
        // What waits for it is dropped when it is seen to be gone.
        self.known.insert(to);
        if !self.unsent.push(to, packed) {
            tracing::warn!(%to, "a process that takes no messages is given up");
            self.deaf.insert(to);
        }
    }

    /// Sends what peers had not taken.
    pub(super) fn send_again(&mut self) {
        if self.unsent.is_empty() {
            return;
        }
        let mut unsent = std::mem::take(&mut self.unsent);
        // Whoever is gone has taken nothing, and is slow until it is forgotten.
        unsent.try_again(|to, packed| self.lives(to) && self.delivered(to, packed));
        self.unsent = unsent;
    }

    /// Whether that message is done with: on its way, or for nobody.
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

    /// Whether somebody has not taken what is for it.
    pub(super) fn are_late(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Who has not taken much, if others have not than when it was asked last.
    pub(super) fn who_is_slow(&mut self) -> Option<BTreeSet<Peer>> {
        self.unsent.who_is_slow()
    }

    /// Who of those that the service has to do with is lost.
    pub(super) fn lost(&mut self, lost: Lost<'_>) -> Vec<Peer> {
        let is_lost = |peer: &Peer| lost.has(life(*peer));
        self.deaf.retain(|peer| !is_lost(peer));
        self.known.iter().copied().filter(is_lost).collect()
    }

    /// Who was given up, and has to be forgotten.
    pub(super) fn given_up(&self) -> Vec<Peer> {
        self.deaf.intersection(&self.known).copied().collect()
    }

    /// Forgets a peer that is gone, or as good as gone.
    pub(super) fn forget(&mut self, peer: Peer) {
        self.known.remove(&peer);
        self.unsent.forget(peer);
    }

    /// A peer does not take a message of two MiB.
    #[cfg(test)]
    pub(super) fn is_slow(&mut self, peer: Peer) {
        assert!(self.unsent.push(peer, Packed::of_bytes(vec![0; 2 << 20])));
    }
}
