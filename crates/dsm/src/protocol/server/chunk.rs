//! A chunk at a server: at its home, or cached there.

use super::owner::Owner;
use super::replicas::Replication;
use crate::protocol::message::{Event, Kind, Protocol};
use crate::protocol::{
    Access, Cache, Directory, DirectoryEvent, Mode, Process, Subscribers, Ticket, Version,
};
use std::collections::{BTreeSet, VecDeque};

/// The number of past commits of a chunk that a subscriber can catch up on.
pub(super) const HISTORY: usize = 1024;

/// How often writers of several servers may alternate before they are served at the home.
const BOUNCES: u32 = 8;

#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Hash))]
pub(super) struct Chunk {
    pub(super) bytes: u64,
    pub(super) cache: Cache,
    /// The commit that is being carried out, if it brought the content.
    pub(super) sent: Option<(Process, Ticket)>,
    pub(super) side: Side,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Hash))]
pub(super) enum Side {
    /// This server is the home.
    Home(Box<Home>),
    /// Another one is.
    Copy {
        /// The home.
        home: Process,
    },
}

/// What the home of a chunk has.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Hash))]
pub(super) struct Home {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) protocol: Protocol,
    pub(super) directory: Directory,
    /// The last commits, the oldest first.
    pub(super) history: VecDeque<Event>,
    pub(super) subscribers: Subscribers,
    /// Requests to write that wait for subscribers.
    pub(super) gate: VecDeque<(Process, Ticket)>,
    /// Commits of other servers that wait for subscribers.
    pub(super) late: VecDeque<DirectoryEvent>,
    /// The last version that was taken.
    pub(super) taken: Version,
    /// Requests to take one; the first of them may have asked the cache.
    pub(super) takers: VecDeque<(Process, Ticket)>,
    pub(super) is_taking: bool,
    /// The other servers that have ever asked for the chunk.
    pub(super) servers: BTreeSet<Process>,
    /// Those that each version is pushed to.
    pub(super) followers: BTreeSet<Process>,
    /// The server that committed last, and how often it was another one.
    last: Option<Process>,
    bounces: u32,
    /// The client that owns it.
    pub(super) owner: Option<Owner>,
    /// If other servers have each version, too.
    pub(super) replication: Option<Box<Replication>>,
}

impl Chunk {
    pub(super) fn at_home(name: &str, kind: &Kind, bytes: u64, protocol: Protocol) -> Chunk {
        let home = Home {
            name: name.to_owned(),
            kind: kind.clone(),
            protocol,
            directory: Directory::default(),
            history: VecDeque::new(),
            subscribers: Subscribers::default(),
            gate: VecDeque::new(),
            late: VecDeque::new(),
            taken: Version::default(),
            takers: VecDeque::new(),
            is_taking: false,
            servers: BTreeSet::new(),
            followers: BTreeSet::new(),
            last: None,
            bounces: 0,
            owner: None,
            replication: None,
        };
        Chunk {
            bytes,
            cache: Cache::default(),
            sent: None,
            side: Side::Home(Box::new(home)),
        }
    }

    pub(super) fn copy_of(home: Process) -> Chunk {
        Chunk {
            bytes: 0,
            cache: Cache::default(),
            sent: None,
            side: Side::Copy { home },
        }
    }

    pub(super) fn home(&self) -> Option<&Home> {
        match &self.side {
            Side::Home(home) => Some(home),
            Side::Copy { .. } => None,
        }
    }

    pub(super) fn home_mut(&mut self) -> Option<&mut Home> {
        match &mut self.side {
            Side::Home(home) => Some(home),
            Side::Copy { .. } => None,
        }
    }

    /// Returns the servers that those who wait here wait for, as holders of guards.
    pub(super) fn servers_waited_for(&self) -> impl Iterator<Item = (Process, Mode)> {
        let (of_home, home) = match &self.side {
            Side::Home(home) => (Some(home), None),
            Side::Copy { home } => (None, self.cache.asks().then_some(*home)),
        };
        let recalled = of_home.into_iter().flat_map(|of| of.directory.waits_for());
        let replication = of_home.and_then(|of| of.replication.as_ref());
        let backups = replication.into_iter().flat_map(|of| of.waits_for());
        let servers = recalled.chain(backups).chain(home);
        servers.map(|server| (server, Mode::Write))
    }
}

impl Home {
    /// Returns the processes that writers have to wait for.
    pub(super) fn full(&self) -> impl Iterator<Item = Process> {
        let (present, _) = self.directory.version();
        self.subscribers.full(present)
    }

    /// Returns true if a commit waits for backups.
    pub(super) fn has_pending(&self) -> bool {
        let replication = self.replication.as_ref();
        replication.is_some_and(|replication| replication.pending.is_some())
    }

    /// Returns true if anybody waits for subscribers.
    pub(super) fn waits(&self) -> bool {
        !self.gate.is_empty() || !self.late.is_empty()
    }

    /// Returns true if one more version may be committed besides those that `writers` may commit.
    pub(super) fn has_room(&self, writers: usize) -> bool {
        let (present, _) = self.directory.version();
        let decided = self.replication.as_ref();
        let decided = decided.and_then(|of| of.pending.as_ref());
        let far = u64::from(decided.is_some_and(|decided| decided.is_far));
        self.subscribers.room(present) > writers as u64 + far
    }

    /// This server has taken the chunk over from a home that is lost. Its version counts as taken.
    pub(super) fn took_over(
        &mut self,
        (version, tag): (Version, u64),
        history: VecDeque<Event>,
        lost: Process,
    ) {
        self.directory = Directory::taken_over((version, tag), lost);
        self.history = history;
        self.taken = version;
        self.servers.insert(lost);
    }

    /// Keeps a commit for those that subscribe later.
    pub(super) fn remembers(&mut self, commit: Event) {
        if self.history.len() >= HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(commit);
    }

    /// A server has committed a version for its clients.
    pub(super) fn committed_by(&mut self, server: Process) {
        match self.last.replace(server) {
            Some(last) if last != server => self.bounces += 1,
            _ if self.bounces < BOUNCES => self.bounces = self.bounces.saturating_sub(1),
            _ => {}
        }
    }

    /// Returns true if no other server may have the chunk in that way.
    pub(super) fn refuses(&self, access: Access) -> bool {
        let is_at_home = self.protocol.is_written_at_home() || self.bounces >= BOUNCES;
        access == Access::Owned && is_at_home
    }

    /// Returns true if it was written, and is written once.
    pub(super) fn is_final(&self) -> bool {
        self.protocol == Protocol::Immutable && self.directory.version().0 > Version::default()
    }
}
