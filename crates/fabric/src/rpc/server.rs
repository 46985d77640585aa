//! The server: an inbox that peers fill, as far as it has room, and responses.

use super::{Life, Service};
use crate::fabric::Fabric;
use crate::{PeerId, Result, Whom};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a request costs in the inbox beside its bytes.
const EACH: u64 = 64;

/// What came: a request, or a note.
#[derive(Debug)]
pub struct Inbound {
    /// Who sent it.
    pub from: Life,
    /// Its id, for [`Server::respond`]; `None` for a note.
    pub id: Option<u64>,
    /// What it says.
    pub bytes: Vec<u8>,
}

/// A service of this process. Dropping it ends the service: what it had not taken is answered to
/// nobody. Thread: any.
#[derive(Debug)]
pub struct Server {
    fabric: Fabric,
    service: Service,
    inbox: Arc<Mutex<Inbox>>,
}

/// What has come and was not taken yet.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// By peer, where there are any: the peers have their turns, however much one of them asks.
    asked: BTreeMap<PeerId, Asked>,
    /// Whose turn it was last.
    last: Option<PeerId>,
    most: u64,
}

/// What has come from one peer, and what that costs.
#[derive(Debug, Default)]
struct Asked {
    all: VecDeque<Inbound>,
    bytes: u64,
}

impl Fabric {
    /// Serves from now on. Of each peer at most `most` bytes wait to be taken, beside its first
    /// request. A second server of a service takes the place of the first. Local.
    pub fn serve(&self, service: Service, most: u64) -> Server {
        let inbox = Arc::new(Mutex::new(Inbox {
            asked: BTreeMap::new(),
            last: None,
            most,
        }));
        let number = service.number();
        self.0
            .with(|core| core.engine.services.insert(number, inbox.clone()));
        Server {
            fabric: self.clone(),
            service,
            inbox,
        }
    }
}

impl Server {
    /// How much has come and was not taken. Makes no progress.
    pub fn waiting(&self) -> usize {
        let inbox = locked(&self.inbox);
        inbox.asked.values().map(|asked| asked.all.len()).sum()
    }

    /// What came first of the peer whose turn it is, if anything has come: the peers that have sent
    /// something have their turns, by one request or note each. Makes no progress.
    pub fn take(&self) -> Option<Inbound> {
        locked(&self.inbox).take()
    }

    /// What came first of one life of a peer.
    pub fn take_of(&self, from: Life) -> Option<Inbound> {
        locked(&self.inbox).take_of(from.peer, |asked| asked.from == from)
    }

    /// Responds to a request; waits up to `deadline` for room on the way. Completion: local. A put
    /// that is not complete may be seen later than the response.
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout): the peer does not take what was sent to it, and
    /// nothing was sent; [`Error::PeerLost`](crate::Error::PeerLost);
    /// [`Error::TooLong`](crate::Error::TooLong).
    pub fn respond(&self, to: Life, id: u64, bytes: &[u8], deadline: Duration) -> Result<()> {
        let what = "room for a response";
        let whom = Whom::Peer(to.peer);
        self.fabric.wait_within(deadline, what, whom, |engine| {
            if let Some(error) = engine.lost_life(to.peer, to.incarnation) {
                return Some(Err(error));
            }
            match engine.may_respond(to.peer, bytes.len() as u64) {
                Ok(true) => {
                    engine.respond(to.peer, id, bytes);
                    Some(Ok(()))
                }
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            }
        })??;
        self.fabric.0.lock()?.flush();
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Ok(mut core) = self.fabric.0.lock() else {
            return;
        };
        let services = &mut core.engine.services;
        let number = self.service.number();
        if services
            .get(&number)
            .is_some_and(|inbox| Arc::ptr_eq(inbox, &self.inbox))
        {
            services.remove(&number);
        }
    }
}

impl Inbox {
    /// Whether there was room for it.
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

    /// Whether there is room for one more note of a peer.
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

    fn take(&mut self) -> Option<Inbound> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.asked.range((after, Bound::Unbounded)).next();
        let (peer, _) = next.or_else(|| self.asked.first_key_value())?;
        self.last = Some(*peer);
        self.take_of(*peer, |_| true)
    }

    fn take_of(&mut self, peer: PeerId, which: impl Fn(&Inbound) -> bool) -> Option<Inbound> {
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

/// Nobody panics with half of a change made.
fn locked(inbox: &Mutex<Inbox>) -> MutexGuard<'_, Inbox> {
    inbox.lock().unwrap_or_else(PoisonError::into_inner)
}
