//! Replicas: servers that have each committed version of a chunk beside its home, and the one that
//! takes the chunk over when the home is lost.
//!
//! ```text
//!   the home                                  its backups
//!   a commit that the directory accepts
//!     Replicate, with the content ----------> each has a copy in memory of its own
//!     <------------------------- Replicated   from all that live
//!   the directory commits: readers, subscribers and the writer hear of it
//! ```
//! A commit is *decided* when the directory would accept it, and is carried out when all living
//! backups have it, whatever becomes of its writer or its writer's server meanwhile. Until then
//! the directory hears of nothing else, so nobody reads the version, and no other commit begins.
//! Creation is the same with version 0: nobody is given a chunk before its backups have it.
//!
//! The backups have an order: the one in which they have joined the home's list. Each of them has
//! the list, and those before a new one have heard of it before it gets the first version. A
//! backup that is lost is waited for no more; the next server of the chunk's order that is not in
//! the list joins it. If there is none, the home goes on with fewer. So it is with a backup that
//! has no memory for a version; it is waited for until it has forgotten the older one.
//!
//! When the home is lost, the first backup that lives and has a version makes the chunk its own,
//! under a new id, with all backups after it; nobody is given the chunk before these have the
//! version that it begins with. A backup asks those before it whether it is their turn ([`Turn`]):
//! one that has got no version passes.
//!
//! The home's clients may read without messages until its lease is over. To the successor that
//! looks as if the lost home had a copy: it serves reads at once, and commits after that lease.
//!
//! # Invariants
//! R1 A version that anybody has read, or whose commit was acknowledged, is at the home and at all
//!    living backups.
//! R2 While a backup lives, no backup after it in the list takes the chunk over, unless it has
//!    passed; one that has passed gets no version from that home any more.
//! R3 Each server that has a version is in the lists of all backups before it.
//!
//! # What is not promised
//! * If the home and all backups are lost before a server that joins has got a version, the chunk
//!   is lost ([`Fault::Lost`](crate::protocol::Fault::Lost)). A version that reaches that server
//!   later, because it was on its way, is taken over; a chunk of the same name may exist by then.
//! * The fabric's verdict that a process is lost is final: a home that goes on after it would let
//!   clients of its node read old versions.
//! * Requests to take a version ([`Request::Take`](crate::protocol::Request::Take)): the version
//!   that the successor begins with counts as taken. Guards, drafts and locks of the lost home end.
//! * A backup that is stopped is waited for as long as it lives, so commits wait.
//!
//! # Files
//! `replicas` (what is known of them) · `replicate` (at the home) · `take_over` (at a backup)
//!
//! Source: primary and backups with a serial order of takeover, as in Budhiraja, Marzullo,
//! Schneider and Toueg, *The primary-backup approach* (1993).
//!
//! [`Turn`]: crate::protocol::Between::Turn

use super::Written;
use super::chunk::HISTORY;
use crate::protocol::message::{Event, Kind, Protocol, Replicas};
use crate::protocol::{ChunkId, DirectoryEvent, Process, ServerId, Ticket, Version};
use std::collections::{BTreeSet, VecDeque};

/// What the home of a chunk with replicas knows of them.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Hash))]
pub(super) struct Replication {
    pub(super) replicas: Replicas,
    /// The ids that the chunk had at earlier homes, the oldest first.
    pub(super) was: Vec<ChunkId>,
    /// In the order in which they take the chunk over.
    pub(super) backups: Vec<Backup>,
    /// The servers that have no memory for it.
    pub(super) refused: BTreeSet<Process>,
    /// Whether nobody may be given the chunk yet.
    pub(super) is_new: bool,
    /// The commit that is decided, and not carried out yet.
    pub(super) pending: Option<Pending>,
    /// What the directory hears when that is carried out.
    pub(super) deferred: VecDeque<DirectoryEvent>,
    /// Those that wait until the chunk is freed.
    pub(super) freeing: Vec<Option<(Process, Ticket)>>,
    /// Where the server's own clients have written what they commit.
    pub(super) written: Option<Written>,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Hash))]
pub(super) struct Backup {
    pub(super) server: ServerId,
    pub(super) process: Process,
    /// Whether it gets its first version when the others know of it.
    pub(super) joins: bool,
    /// Whether it has no memory for the chunk, and forgets it.
    pub(super) leaves: bool,
    /// Whether it has the present list of backups.
    pub(super) is_described: bool,
    /// The messages that it has not answered.
    pub(super) unanswered: u32,
}

impl Backup {
    /// Returns true if it gets each version.
    pub(super) fn is_in(&self) -> bool {
        !self.joins && !self.leaves
    }
}

/// A commit that is decided.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Hash))]
pub(super) struct Pending {
    pub(super) commit: DirectoryEvent,
    pub(super) tag: u64,
    pub(super) writer: Process,
    /// Whether it is of another server.
    pub(super) is_far: bool,
}

/// A chunk of another home of which this server has each version.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Hash))]
pub(super) struct Replica {
    pub(super) home: Process,
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) protocol: Protocol,
    pub(super) replicas: Replicas,
    pub(super) was: Vec<ChunkId>,
    /// The backups that take it over before this server, and after it.
    pub(super) before: BTreeSet<Process>,
    pub(super) after: Vec<(ServerId, Process)>,
    pub(super) bytes: u64,
    pub(super) version: Version,
    pub(super) tag: u64,
    /// The last commits, the oldest first.
    pub(super) history: VecDeque<Event>,
}

impl Replication {
    pub(super) fn new(replicas: Replicas, was: Vec<ChunkId>) -> Replication {
        Replication {
            replicas,
            was,
            backups: Vec::new(),
            refused: BTreeSet::new(),
            is_new: true,
            pending: None,
            deferred: VecDeque::new(),
            freeing: Vec::new(),
            written: None,
        }
    }

    pub(super) fn add(&mut self, server: ServerId, process: Process, joins: bool) {
        self.backups.push(Backup {
            server,
            process,
            joins,
            leaves: false,
            is_described: false,
            unanswered: 0,
        });
    }

    pub(super) fn has(&self, process: Process) -> bool {
        self.backups.iter().any(|backup| backup.process == process)
    }

    /// Returns the backups that have not answered.
    pub(super) fn waits_for(&self) -> impl Iterator<Item = Process> {
        let unanswered = self.backups.iter().filter(|backup| backup.unanswered > 0);
        unanswered.map(|backup| backup.process)
    }

    /// Tells all backups the present list with the next message.
    pub(super) fn describe(&mut self) {
        for backup in &mut self.backups {
            backup.is_described = false;
        }
    }
}

impl Replica {
    /// A version has come.
    pub(super) fn holds(&mut self, version: Version, tag: u64, writer: Option<Process>) {
        (self.version, self.tag) = (version, tag);
        let last = self.history.back().map(|event| event.version);
        if last == Some(version) {
            return;
        }
        if last.is_some_and(|last| last.next() != version) || self.history.len() >= HISTORY {
            match last.map(Version::next) == Some(version) {
                true => _ = self.history.pop_front(),
                false => self.history.clear(),
            }
        }
        self.history.extend(writer.map(|writer| Event {
            version,
            tag,
            writer,
        }));
    }
}
