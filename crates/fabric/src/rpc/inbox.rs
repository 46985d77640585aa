//! The inbox of a service: what peers have sent and the server has not yet taken.

use super::Life;
use crate::PeerId;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a request costs in the inbox besides its bytes.
const EACH: u64 = 64;

/// A received request or note.
#[derive(Debug)]
pub struct Inbound {
    /// The sender.
    pub from: Life,
    /// Its id, for [`Server::respond`](super::Server::respond); `None` for a note.
    pub id: Option<u64>,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// Requests and notes that arrived and were not taken yet.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// By peer, without empty entries: peers are served in turn, however much one of them asks.
    asked: BTreeMap<PeerId, Asked>,
    /// The peer whose turn was last.
    last: Option<PeerId>,
    most: u64,
}

/// What arrived from one peer, and what it costs.
#[derive(Debug, Default)]
struct Asked {
    all: VecDeque<Inbound>,
    bytes: u64,
}

impl Inbox {
    pub(super) fn new(most: u64) -> Inbox {
        Inbox {
            asked: BTreeMap::new(),
            last: None,
            most,
        }
    }

    /// Returns the number of requests and notes.
    pub(super) fn len(&self) -> usize {
        self.asked.values().map(|asked| asked.all.len()).sum()
    }

    /// Adds a request or note; returns whether there was room for it.
    pub(crate) fn push(inbox: &Mutex<Inbox>, asked: Inbound) -> bool {
        let mut inbox = locked(inbox);
        if !inbox.has_capacity(asked.from.peer, asked.id.is_some()) {
            return false;
        }
        let of_peer = inbox.asked.entry(asked.from.peer).or_default();
        of_peer.bytes += asked.cost();
        of_peer.all.push_back(asked);
        true
    }

    /// Returns whether there is room for one more note of a peer.
    pub(crate) fn has_capacity_for_note(inbox: &Mutex<Inbox>, from: PeerId) -> bool {
        locked(inbox).has_capacity(from, false)
    }

    fn has_capacity(&self, from: PeerId, is_request: bool) -> bool {
        let most = match is_request {
            true => self.most,
            false => self.most.saturating_mul(2),
        };
        self.asked.get(&from).is_none_or(|has| has.bytes <= most)
    }

    pub(super) fn take(&mut self) -> Option<Inbound> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.asked.range((after, Bound::Unbounded)).next();
        let (peer, _) = next.or_else(|| self.asked.first_key_value())?;
        self.last = Some(*peer);
        self.take_of(*peer, |_| true)
    }

    pub(super) fn take_of(
        &mut self,
        peer: PeerId,
        which: impl Fn(&Inbound) -> bool,
    ) -> Option<Inbound> {
        let of_peer = self.asked.get_mut(&peer)?;
        let at = of_peer.all.iter().position(which)?;
        let asked = of_peer.all.remove(at)?;
        of_peer.bytes -= asked.cost();
        if of_peer.all.is_empty() {
            self.asked.remove(&peer);
        }
        Some(asked)
    }
}

impl Inbound {
    fn cost(&self) -> u64 {
        self.bytes.len() as u64 + EACH
    }
}

/// Locks the inbox, also after a panic: no change is ever left half made.
pub(super) fn locked(inbox: &Mutex<Inbox>) -> MutexGuard<'_, Inbox> {
    inbox.lock().unwrap_or_else(PoisonError::into_inner)
}
