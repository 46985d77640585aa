//! The server: takes from its inbox, and responds.

use super::inbox::{Inbound, Inbox, locked};
use super::{LOOK_UP, Life, OWN, ServiceId};
use crate::fabric::{Core, Fabric};
use crate::{Result, Whom};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A service of this process. Dropping it ends the service: what it had not taken is never
/// answered. Thread: any.
#[derive(Debug)]
pub struct Server {
    fabric: Fabric,
    service: ServiceId,
    inbox: Arc<Mutex<Inbox>>,
}

impl Fabric {
    /// Starts to serve. At most `most` bytes per peer wait to be taken, besides its first request.
    /// A second server of a service replaces the first. Local.
    pub fn serve(&self, service: ServiceId, most: u64) -> Server {
        let inbox = Arc::new(Mutex::new(Inbox::new(most)));
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

impl Fabric {
    /// As [`Fabric::serve`], with a service number that this process does not use yet: others have
    /// to be told it. Returns `None` if all are in use. Local.
    pub fn serve_own(&self, most: u64) -> Option<Server> {
        let inbox = Arc::new(Mutex::new(Inbox::new(most)));
        let chosen = self.0.with(|core| {
            let services = &mut core.engine.services;
            let number = (OWN..LOOK_UP).find(|number| !services.contains_key(number))?;
            services.insert(number, inbox.clone());
            Some(ServiceId(number))
        });
        Some(Server {
            fabric: self.clone(),
            service: chosen.flatten()?,
            inbox,
        })
    }
}

impl Server {
    /// Returns its service.
    pub fn service(&self) -> ServiceId {
        self.service
    }

    /// Returns the number of requests and notes not yet taken. Makes no progress.
    pub fn waiting(&self) -> usize {
        locked(&self.inbox).len()
    }

    /// Takes the oldest request or note of the peer whose turn it is, if there is any: peers are
    /// served in turn, one item each. Makes no progress. It locks the engine, so it must not be
    /// called in a condition of a wait.
    pub fn take(&self) -> Option<Inbound> {
        let taken = locked(&self.inbox).take();
        self.taken(taken)
    }

    /// Takes the oldest request or note of one incarnation of a peer.
    pub fn take_of(&self, from: Life) -> Option<Inbound> {
        let taken = locked(&self.inbox).take_of(from.peer, |asked| asked.from == from);
        self.taken(taken)
    }

    /// Called without the lock of the inbox: the engine takes that one inside its own.
    fn taken(&self, taken: Option<Inbound>) -> Option<Inbound> {
        let me = self.fabric.me();
        if taken.as_ref().is_some_and(|asked| asked.from.peer == me) {
            // A thread of this process may wait for room for a note.
            self.fabric.0.with(Core::tell);
            self.fabric.bell(me).nudge();
        }
        taken
    }

    /// Responds to a request; waits up to `deadline` for room to send. Completion: local. A put
    /// that is not complete may become visible after the response.
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::Error::Timeout): the peer does not read what was sent to it, and
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
