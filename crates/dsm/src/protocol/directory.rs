//! The directory entry of one chunk, at its home: which servers have a copy, and who may write.
//!
//! ```text
//!                    Uncached          Shared{servers}              Owned{server}
//!   Ask{Shared}      -> Owned          -> Shared + asker            recall: Downgrade the owner
//!   Ask{Owned}       -> Owned          recall: Invalidate others    recall: Invalidate the owner
//!   Commit                                                          the next version; stays Owned
//!   Lost{server}                       -> without it                -> Uncached, the next epoch
//! ```
//! While a recall is under way, further requests wait in one queue, first come, first served: there
//! are no negative acknowledgements and no retries. All data pass through the home, which always
//! has the last committed version, so an owner is never asked for data, and its loss loses nothing
//! that was committed.
//!
//! A copy is evicted silently: a server that has none any more acknowledges a recall like any
//! other, so `Shared` may name servers that have no copy.
//!
//! # Invariants
//! D1 At most one server is `Owned`, and then no other server has a copy.
//! D2 A grant is sent only when every server that had to give up its copy has said so, or is lost.
//! D3 A commit raises the version by one, or by as many as a client has committed that owns the
//!    chunk, if it comes from the owner with the present epoch; otherwise it is fenced and changes
//!    nothing.

use super::{Process, Version};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};

/// How a server wants to have a chunk, or how much of it is left to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Access {
    /// For reading, as others may have it.
    Shared,
    /// Alone: for reading, and for writing.
    Owned,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DirectoryEvent {
    /// A server asks for a copy, or to own the chunk.
    Ask {
        /// The server.
        from: Process,
        /// How it wants to have it.
        access: Access,
    },
    /// A server has done what it was told by [`Recall`](DirectoryAction::Recall).
    Recalled {
        /// The server.
        from: Process,
        /// Whether it still has a copy.
        keeps: bool,
    },
    /// The owner commits: its data are here.
    Commit {
        /// The server.
        from: Process,
        /// The epoch in which it was made the owner.
        epoch: u64,
        /// The tag of the new version.
        tag: u64,
        /// The client that wrote it.
        writer: Process,
        /// How many versions the client has committed.
        versions: u64,
    },
    /// A server is lost. All that it had sent has arrived.
    Lost {
        /// The server.
        server: Process,
    },
}

/// What the home has to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DirectoryAction {
    /// Tell a server to give up its copy, or only to own the chunk no more.
    Recall {
        /// The server.
        to: Process,
        /// What may be left to it.
        keeps: Option<Access>,
    },
    /// Send a server the present version.
    Grant {
        /// The server.
        to: Process,
        /// How it has the chunk now.
        access: Access,
        /// The version that it gets.
        version: Version,
        /// The tag of that version.
        tag: u64,
        /// The epoch, which its commits must name.
        epoch: u64,
    },
    /// Tell the owner that its commit is this version, and tell the subscribers.
    Committed {
        /// The owner.
        to: Process,
        /// The new version.
        version: Version,
        /// Its tag.
        tag: u64,
        /// The client that wrote it.
        writer: Process,
    },
    /// Tell a server that its commit came too late: it does not own the chunk.
    Fenced {
        /// The server.
        to: Process,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum State {
    #[default]
    Uncached,
    Shared(BTreeSet<Process>),
    Owned(Process),
}

/// A recall under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Busy {
    /// The server that the chunk is for, and how; `None` if that server is lost.
    to: Option<(Process, Access)>,
    /// The servers that have not given up their copies.
    waits_for: BTreeSet<Process>,
}

/// A directory entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Directory {
    version: Version,
    tag: u64,
    epoch: u64,
    state: State,
    busy: Option<Busy>,
    queue: VecDeque<(Process, Access)>,
}

impl Directory {
    /// Returns the entry of a chunk that was taken over from a home that is lost, as if that one
    /// had a copy: its clients may read the version until its lease is over.
    pub fn taken_over((version, tag): (Version, u64), from: Process) -> Directory {
        Directory {
            version,
            tag,
            state: State::Shared([from].into()),
            ..Directory::default()
        }
    }

    /// Returns true if a commit of a server with that epoch is not fenced.
    pub fn accepts(&self, from: Process, epoch: u64) -> bool {
        self.owner() == Some(from) && epoch == self.epoch
    }

    /// Returns the last committed version, and its tag.
    pub fn version(&self) -> (Version, u64) {
        (self.version, self.tag)
    }

    /// Returns the server that owns it.
    pub fn owner(&self) -> Option<Process> {
        match self.state {
            State::Owned(owner) => Some(owner),
            _ => None,
        }
    }

    /// Returns the servers that may have a copy.
    pub fn holders(&self) -> BTreeSet<Process> {
        match &self.state {
            State::Uncached => BTreeSet::new(),
            State::Shared(all) => all.clone(),
            State::Owned(owner) => [*owner].into(),
        }
    }

    /// Returns the number of requests that wait.
    pub fn waiting(&self) -> usize {
        self.queue.len() + usize::from(self.busy.is_some())
    }

    /// Returns the servers that a recall waits for.
    pub fn waits_for(&self) -> impl Iterator<Item = Process> {
        let busy = self.busy.iter();
        busy.flat_map(|busy| busy.waits_for.iter().copied())
    }

    /// Handles an event, and adds what has to be done.
    pub fn on_event(&mut self, event: DirectoryEvent, actions: &mut Vec<DirectoryAction>) {
        match event {
            DirectoryEvent::Ask { from, access } => self.queue.push_back((from, access)),
            DirectoryEvent::Recalled { from, keeps } => self.recalled(from, keeps),
            DirectoryEvent::Commit {
                from,
                epoch,
                tag,
                writer,
                versions,
            } => actions.push(self.commit((from, epoch), (tag, versions), writer)),
            DirectoryEvent::Lost { server } => self.lost(server),
        }
        self.advance(actions);
    }

    fn recalled(&mut self, from: Process, keeps: bool) {
        let Some(busy) = &mut self.busy else {
            return; // Only a process that does not follow the protocol.
        };
        if busy.waits_for.remove(&from) {
            self.state.gives_up(from, keeps);
        }
    }

    fn commit(
        &mut self,
        (from, epoch): (Process, u64),
        (tag, versions): (u64, u64),
        writer: Process,
    ) -> DirectoryAction {
        if !self.accepts(from, epoch) {
            return DirectoryAction::Fenced { to: from };
        }
        self.version.0 = self.version.0.saturating_add(versions);
        self.tag = tag;
        DirectoryAction::Committed {
            to: from,
            version: self.version,
            tag,
            writer,
        }
    }

    fn lost(&mut self, server: Process) {
        self.queue.retain(|(from, _)| *from != server);
        if self.owner() == Some(server) {
            self.epoch += 1;
        }
        self.state.gives_up(server, false);
        if let Some(busy) = &mut self.busy {
            busy.waits_for.remove(&server);
            busy.to.take_if(|(to, _)| *to == server);
        }
    }

    /// Serves requests until one has to wait.
    fn advance(&mut self, actions: &mut Vec<DirectoryAction>) {
        loop {
            match self.busy.take_if(|busy| busy.waits_for.is_empty()) {
                Some(Busy { to: Some(to), .. }) => self.grant(to, actions),
                Some(Busy { to: None, .. }) => {}
                None if self.busy.is_some() => return,
                None => {}
            }
            let Some(to) = self.queue.pop_front() else {
                return;
            };
            let (server, access) = to;
            let mut waits_for = match (&self.state, access) {
                (State::Shared(_), Access::Shared) => BTreeSet::new(),
                _ => self.holders(),
            };
            waits_for.remove(&server);
            let keeps = (access == Access::Shared).then_some(Access::Shared);
            let recall = |to: &Process| DirectoryAction::Recall { to: *to, keeps };
            actions.extend(waits_for.iter().map(recall));
            self.busy = Some(Busy {
                to: Some(to),
                waits_for,
            });
        }
    }

    fn grant(&mut self, (to, access): (Process, Access), actions: &mut Vec<DirectoryAction>) {
        let mut others = self.holders();
        others.remove(&to);
        let access = match others.is_empty() {
            true => Access::Owned,
            false => access,
        };
        self.state = match access {
            Access::Owned => State::Owned(to),
            Access::Shared => {
                others.insert(to);
                State::Shared(others)
            }
        };
        let (version, tag) = self.version();
        actions.push(DirectoryAction::Grant {
            to,
            access,
            version,
            tag,
            epoch: self.epoch,
        });
    }
}

impl State {
    /// A server gives up its copy, or only to own the chunk.
    fn gives_up(&mut self, server: Process, keeps: bool) {
        match self {
            State::Owned(owner) if *owner == server => {
                *self = match keeps {
                    true => State::Shared([server].into()),
                    false => State::Uncached,
                };
            }
            State::Shared(all) if !keeps => {
                all.remove(&server);
                if all.is_empty() {
                    *self = State::Uncached;
                }
            }
            _ => {}
        }
    }
}
