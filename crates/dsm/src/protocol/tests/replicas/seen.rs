//! What has been seen of each chunk, and what must hold.

use super::{LEASE, Process, Said, Value, World, home};
use crate::protocol::{Between, ChunkId, GuardId, Version};
use std::collections::{BTreeMap, BTreeSet};

/// What has been seen.
#[derive(Default)]
pub(super) struct Seen {
    /// The versions of each name, from the first one on.
    versions: BTreeMap<usize, Vec<Value>>,
    /// The names that a client has opened.
    opened: BTreeSet<usize>,
    /// The name of each chunk.
    pub(super) names: BTreeMap<ChunkId, usize>,
    /// What was refused.
    pub(super) never: BTreeSet<Value>,
}

impl World {
    pub(super) fn name_of(&self, chunk: ChunkId) -> usize {
        self.seen.names[&chunk]
    }

    /// Returns the last version of a name that was seen.
    pub(super) fn last(&self, name: usize) -> (Version, Value) {
        let all = self.seen.versions.get(&name);
        let last = all.and_then(|all| all.last()).copied().unwrap_or(0);
        (Version(all.map_or(0, Vec::len) as u64), last)
    }

    /// Returns a version that was seen.
    pub(super) fn value_of(&self, name: usize, version: Version) -> Value {
        self.seen.versions[&name][version.0 as usize - 1]
    }

    pub(super) fn was_seen(&self, name: usize, value: Value) -> bool {
        let all = self.seen.versions.get(&name);
        all.is_some_and(|all| all.contains(&value))
    }

    pub(super) fn opened(&mut self, chunk: ChunkId) {
        let name = self.name_of(chunk);
        self.seen.opened.insert(name);
        let (version, value) = self.nodes[home(chunk).peer.0 as usize].present(chunk);
        self.sees(chunk, version, value, None);
    }

    /// Somebody gets a version: it is the last one, or the next one, which a server has taken over.
    /// `by`: the guard of the commit.
    pub(super) fn sees(
        &mut self,
        chunk: ChunkId,
        version: Version,
        value: Value,
        by: Option<GuardId>,
    ) {
        let name = self.name_of(chunk);
        let (last, content) = self.last(name);
        if version == last {
            assert_eq!(value, content, "{last} of {name} has two contents");
            return;
        }
        assert_eq!(version, last.next(), "{name} goes back, or forward");
        assert!(
            !self.seen.never.contains(&value),
            "what was refused is seen"
        );
        assert!(!self.was_seen(name, value), "a version comes back");
        self.is_everywhere(name, value);
        self.nobody_reads(name, by);
        self.seen.versions.entry(name).or_default().push(value);
    }

    /// All servers that keep a replica have the version.
    fn is_everywhere(&self, name: usize, value: Value) {
        for node in self.nodes.iter().filter(|node| node.server.is_some()) {
            for (chunk, kept) in &node.replicas {
                if self.name_of(*chunk) == name {
                    assert_eq!(*kept, value, "{} does not have it", node.me);
                }
            }
        }
    }

    /// Returns true if a guard of a chunk that a server has given counts for nothing any more: the
    /// lease of the server, or of the home, is over.
    fn is_over(&self, server: Process, chunk: ChunkId) -> bool {
        let is_over = |process: &Process| {
            let died = self.died.get(process);
            died.is_some_and(|at| at + LEASE <= self.now)
        };
        is_over(&server) || is_over(&home(chunk))
    }

    /// Nobody has a valid guard of a chunk.
    fn nobody_reads(&self, name: usize, by: Option<GuardId>) {
        for client in &self.clients {
            for (guard, held) in &client.held {
                let is_same = self.name_of(held.chunk) == name && Some(*guard) != by;
                assert!(
                    !is_same || self.is_over(held.at, held.chunk),
                    "a commit to {name} under {guard:?} of {}",
                    client.me
                );
            }
            for ((server, chunk), count) in &client.own {
                let is_same = self.name_of(*chunk) == name && *count > 0;
                assert!(
                    !is_same || self.is_over(*server, *chunk),
                    "a commit to {name} under a guard that {} took",
                    client.me
                );
            }
        }
    }

    /// Returns true if what clients read without messages of a chunk at a server is valid.
    pub(super) fn is_leased(&self, server: Process, chunk: ChunkId) -> bool {
        !self.is_over(server, chunk)
    }

    /// Returns the servers that have the last version of a name, or the next one.
    fn holders(&self, name: usize) -> BTreeSet<usize> {
        let (last, content) = self.last(name);
        let living = self.nodes.iter().enumerate();
        let living = living.filter(|(_, node)| node.server.is_some());
        let has = |node: &super::Node| {
            let mut homes = node.versions.iter();
            let at_home =
                homes.any(|(chunk, version)| self.name_of(*chunk) == name && *version >= last);
            let mut kept = node.replicas.iter();
            let kept = kept.any(|(chunk, value)| {
                let is_new = *value == content || !self.was_seen(name, *value) && *value != 0;
                self.name_of(*chunk) == name && is_new
            });
            at_home || kept
        };
        living
            .filter(|(_, node)| has(node))
            .map(|(at, _)| at)
            .collect()
    }

    /// Returns true if no chunk is lost with a server.
    pub(super) fn may_lose(&self, at: usize) -> bool {
        // One that had no memory for the last version may be about to forget the one before.
        let is_dismissed = |name: usize, other: usize| {
            let line = self.lines.get(&(self.nodes[at].me, self.nodes[other].me));
            line.into_iter().flatten().any(|(_, said)| match said {
                Said::Between(Between::Dismiss { chunk }, _) => self.name_of(*chunk) == name,
                _ => false,
            })
        };
        let stays = |name: usize, other: usize| other != at && !is_dismissed(name, other);
        let mut opened = self.seen.opened.iter();
        opened.all(|name| {
            let holders = self.holders(*name).into_iter();
            holders.filter(|other| stays(*name, *other)).count() > 0
        })
    }

    /// Chunks have as many replicas as they should have, if there are servers.
    pub(super) fn all_is_there(&self) {
        let living = self.nodes.iter().filter(|node| node.server.is_some());
        let living = living.count();
        for name in &self.seen.opened {
            let wanted = usize::from(self.names[*name].count).min(living);
            let has = self.holders(*name).len();
            assert!(
                has >= wanted || self.is_short,
                "{name} has {has} replicas of {wanted}"
            );
        }
    }
}
