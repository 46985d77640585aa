//! Clients that own a chunk: they commit to it again and again without a word to the server, which
//! takes over what they have committed when anybody else asks for the chunk.
//!
//! To the cache, an owner is a writer whose guard is out. It can be ended at any time, between two
//! of its commits.

use super::{Server, ServerAction};
use crate::protocol::message::{Event, Protocol};
use crate::protocol::{ChunkId, Commits, DirectoryEvent, GuardId, Process, Version};

/// A client that owns a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    pub(super) client: Process,
    guard: GuardId,
    /// The version after which it began. Its subscribers are told up to this one; then they look
    /// themselves.
    pub(super) since: Version,
}

impl Server {
    /// Returns true if a client may own a chunk, once it has a guard to write it: nobody waits for
    /// the chunk, nor would have to be told or asked when it is committed.
    pub(super) fn may_own(&self, chunk: ChunkId) -> bool {
        let Some(found) = self.chunks.get(&chunk) else {
            return false;
        };
        let Some(home) = found.home() else {
            return false;
        };
        let others = home.directory.holders();
        home.protocol == Protocol::HomeMesi
            && home.replication.is_none()
            && home.owner.is_none()
            && home.takers.is_empty()
            && home.followers.is_empty()
            && !home.waits()
            && home.directory.waiting() == 0
            && others.iter().all(|server| *server == self.me)
            && found.cache.waiting() == 0
            && home.subscribers.all_watch()
    }

    /// A client has got a guard to write a chunk, and owns the chunk.
    pub(super) fn owns(
        &mut self,
        chunk: ChunkId,
        (client, guard): (Process, GuardId),
        since: Version,
    ) {
        if let Some(home) = self.home(chunk) {
            home.owner = Some(Owner {
                client,
                guard,
                since,
            });
        }
    }

    /// Returns true if that guard is the one of an owner, which does not know it.
    pub(super) fn is_owners(&self, chunk: ChunkId, guard: GuardId) -> bool {
        let home = self.chunks.get(&chunk).and_then(|found| found.home());
        let owner = home.and_then(|home| home.owner.as_ref());
        owner.is_some_and(|owner| owner.guard == guard)
    }

    /// The owner of a chunk has committed.
    pub(super) fn adopted(
        &mut self,
        chunk: ChunkId,
        commits: &Commits,
        actions: &mut Vec<ServerAction>,
    ) {
        if let Some(draft) = commits.draft {
            self.drafts.remove(&draft);
        }
        let (from, Some(found)) = (self.me, self.chunks.get_mut(&chunk)) else {
            return;
        };
        let epoch = found.cache.epoch();
        let Some(home) = found.home_mut() else {
            return;
        };
        let (Some(owner), Some(((tag, _), others))) = (home.owner, commits.last.split_last())
        else {
            return;
        };
        let (present, _) = home.directory.version();
        let last = present.0.saturating_add(commits.count);
        if commits.count > commits.last.len() as u64 {
            home.history.clear(); // Those in between are not known.
        }
        let first = last.saturating_sub(others.len() as u64);
        for (version, (tag, _)) in (first..).zip(others) {
            home.remembers(Event {
                version: Version(version),
                tag: *tag,
                writer: owner.client,
            });
        }
        // Others wait for the chunk now, or nobody owns it any more: watchers hear of these.
        if let Some(owner) = &mut home.owner {
            owner.since = Version(last);
        }
        let commit = DirectoryEvent::Commit {
            from,
            epoch,
            tag: *tag,
            writer: owner.client,
            versions: commits.count,
        };
        self.at_directory(chunk, commit, actions);
    }

    /// The owner of a chunk owns it no more.
    pub(super) fn disowned(&mut self, chunk: ChunkId, actions: &mut Vec<ServerAction>) {
        let Some(owner) = self.home(chunk).and_then(|home| home.owner.take()) else {
            return;
        };
        // Those that have watched hear of what they may not have seen.
        self.tell(chunk, actions);
        self.release(owner.client, chunk, owner.guard, actions);
    }

    /// Returns the chunks of this server that a client owns.
    pub(super) fn owned_by(&self, client: Process) -> Vec<ChunkId> {
        let used = self.used.get(&client).into_iter().flatten();
        let owned = used.filter(|chunk| {
            let home = self.chunks.get(chunk).and_then(|found| found.home());
            home.and_then(|home| home.owner.as_ref())
                .is_some_and(|owner| owner.client == client)
        });
        owned.copied().collect()
    }

    /// Returns the services of the processes that watch a chunk.
    pub fn watchers(&self, chunk: ChunkId) -> Vec<(Process, u16)> {
        let home = self.chunks.get(&chunk).and_then(|found| found.home());
        let all = home.map(|home| home.subscribers.all()).unwrap_or_default();
        let each = all.into_iter();
        each.map(|((process, _), inbox)| (process, inbox)).collect()
    }
}
