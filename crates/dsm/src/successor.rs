//! Chunks with replicas whose home is lost: where they are now.

use crate::chunk::{Chunk, Elem};
use crate::client::{Client, millis};
use crate::error::{Error, Result};
use crate::protocol::{Answer, ChunkId, Fault, Request, Version};
use std::collections::BTreeSet;
use std::time::Duration;

/// What is waited for, in errors.
const TAKEN_OVER: &str = "a server that takes over a chunk";

impl<T: Elem> Chunk<T> {
    /// Does something with the chunk at its home. If that is lost, and other servers have the
    /// chunk, waits until one of them has taken it over, and does it there.
    pub(crate) fn wherever<V>(&self, act: impl Fn(&Chunk<T>) -> Result<V>) -> Result<V> {
        if !self.is_replicated() {
            return act(self);
        }
        let begin = self.client.fabric.now();
        let mut moved = self.moved();
        loop {
            let chunk = moved.as_ref().unwrap_or(self);
            let error = match act(chunk) {
                Err(error @ Error::Lost { .. }) if chunk.is_replicated() => error,
                done => return done,
            };
            let passed = self.client.fabric.now().saturating_sub(begin);
            let left = self.client.fabric.deadline().saturating_sub(passed);
            if left.is_zero() {
                return Err(error);
            }
            moved = Some(chunk.follow(left, error)?);
        }
    }

    /// Returns the chunk where it is now, once another server has taken it over. `lost`: the error
    /// if none does.
    fn follow(&self, deadline: Duration, lost: Error) -> Result<Chunk<T>> {
        if let Some(moved) = self.moved() {
            return Ok(moved);
        }
        let found = self.client.successor(self.id(), self.name(), deadline)?;
        match found {
            Found::At(id) => Ok(self.moves_to(id)),
            Found::Freed => Err(Error::Freed {
                chunk: self.name().to_owned(),
            }),
            Found::Nowhere(known) => Err(match lost {
                Error::Lost {
                    chunk,
                    server,
                    last,
                } => Error::Lost {
                    chunk,
                    server,
                    last: last.max(known),
                },
                other => other,
            }),
        }
    }
}

/// What servers know of a chunk whose home is lost.
enum Found {
    At(ChunkId),
    Freed,
    /// Nobody has it. The last version that a server knows of.
    Nowhere(Version),
}

impl Client {
    /// Asks for a chunk of a name: at its home, or if that is lost, where it is.
    pub(crate) fn open(&self, name: &str, request: impl Fn(u64) -> Request) -> Result<Answer> {
        let (deadline, what) = (self.fabric.deadline(), "a chunk");
        let Some(replicas) = self.topology.replicas(name) else {
            let home = self.topology.home(name);
            return self.ask(home, deadline, what, &request(millis(deadline)));
        };
        let begin = self.fabric.now();
        let mut next = None;
        loop {
            let mut lost = None;
            let order = next
                .take()
                .into_iter()
                .chain(replicas.order.iter().copied());
            for server in order {
                let passed = self.fabric.now().saturating_sub(begin);
                let left = deadline.saturating_sub(passed);
                match self.ask(server, left, what, &request(millis(left))) {
                    Ok(Answer::Failed(Fault::Elsewhere { server })) if !left.is_zero() => {
                        next = Some(server);
                        break;
                    }
                    Err(error) if is_lost(&error) => lost = Some(error),
                    answer => return answer,
                }
            }
            if let (None, Some(lost)) = (next, lost) {
                return Err(lost);
            }
        }
    }

    /// Asks the servers in their order who has taken over a chunk whose home is lost.
    fn successor(&self, chunk: ChunkId, name: &str, deadline: Duration) -> Result<Found> {
        let begin = self.fabric.now();
        let order = self.topology.replicas(name).map(|of| of.order);
        let order = order.unwrap_or_default();
        let (mut known, mut lost_before) = (Version::default(), None);
        let mut next = None;
        loop {
            let left = deadline.saturating_sub(self.fabric.now().saturating_sub(begin));
            let timeout = millis(left);
            let mut lost = BTreeSet::new();
            for server in next.take().into_iter().chain(order.iter().copied()) {
                let request = Request::Successor { chunk, timeout };
                match self.ask(server, left, TAKEN_OVER, &request) {
                    Ok(Answer::Moved { chunk }) => return Ok(Found::At(chunk)),
                    Ok(Answer::Failed(Fault::Freed)) => return Ok(Found::Freed),
                    Ok(Answer::Failed(Fault::Elsewhere { server })) => {
                        next = Some(server);
                        break;
                    }
                    Ok(Answer::Failed(Fault::Lost { last })) => known = known.max(last),
                    Ok(Answer::Failed(Fault::NotFound)) => {}
                    Ok(other) => return Err(Error::Nonsense(format!("{other:?}"))),
                    Err(error) if is_lost(&error) => _ = lost.insert(server),
                    Err(error) => return Err(error),
                }
            }
            // If another server was lost meanwhile, one that was asked before may have the chunk.
            if left.is_zero() || next.is_none() && lost_before.as_ref() == Some(&lost) {
                return Ok(Found::Nowhere(known));
            }
            lost_before = Some(lost);
        }
    }
}

fn is_lost(error: &Error) -> bool {
    matches!(error, Error::Fabric(samite_fabric::Error::PeerLost { .. }))
}
