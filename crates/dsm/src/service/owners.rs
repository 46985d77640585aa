//! Clients that own chunks: what the server does that they begin and end, and that their commits
//! reach it.

use super::ChunkService;
use crate::protocol::{Answer, ChunkId, Commits, Process, ServerEvent, Ticket, Version};
use samite_fabric::SegmentKey;

impl ChunkService {
    /// Lets a client own a chunk, if its memory is mapped here. Returns what follows.
    pub(super) fn own(
        &mut self,
        (to, ticket): (Process, Ticket),
        chunk: ChunkId,
        page: (SegmentKey, u64),
        (version, tag): (Version, u64),
    ) -> Option<ServerEvent> {
        let bytes = self.server.bytes(chunk).unwrap_or(u64::MAX);
        let present = (version, tag, self.memory.content(chunk));
        // One that was given up may have drafts that are not there any more.
        let owned = match self.given_up.contains(&to) {
            true => None,
            false => (self.words).own((to, ticket), (chunk, bytes), page, present),
        };
        let Some((number, mut readers)) = owned else {
            self.answer(to, ticket, &Answer::NotOwned);
            let commits = Commits::default();
            return Some(ServerEvent::Disowned { chunk, commits });
        };
        let watchers = self.server.watchers(chunk);
        for reader in &mut readers {
            let found = watchers.iter().find(|(of, _)| *of == reader.client);
            reader.inbox = found.map(|(_, inbox)| *inbox);
        }
        self.answer(to, ticket, &Answer::Owned { number, readers });
        None
    }

    /// Somebody asks for a chunk: its owner is to stop. If it is just writing, what it has
    /// committed so far counts, and it says when it has stopped.
    pub(super) fn recall(&mut self, chunk: ChunkId) {
        if !self.words.is_owned(chunk) {
            return;
        }
        let has_stopped = self.words.recall(chunk);
        self.takes_over(chunk, has_stopped);
    }

    /// The owner of a chunk may have stopped.
    pub(super) fn recall_again(&mut self, chunk: ChunkId) {
        if self.words.is_owned(chunk) && self.words.recall(chunk) {
            self.takes_over(chunk, true);
        }
    }

    /// A client does not wait for the answer to a request any more, by which it may own a chunk.
    pub(super) fn forget_owner(&mut self, asker: (Process, Ticket)) {
        for chunk in self.words.owned_by(asker.0) {
            if self.words.owner(chunk) == Some(asker) {
                self.takes_over(chunk, true);
            }
        }
    }

    /// A client that is stopped, or lost, owns nothing any more.
    pub(super) fn end_ownerships(&mut self, client: Process) {
        for chunk in self.words.owned_by(client) {
            self.takes_over(chunk, true);
        }
    }

    /// Takes over what the owner of a chunk has committed.
    fn takes_over(&mut self, chunk: ChunkId, ends: bool) {
        let Some((owner, _)) = self.words.owner(chunk) else {
            return;
        };
        let at = (&self.server, &mut self.memory);
        let commits = self.words.commits(chunk, ends, at);
        let commits = commits.unwrap_or_default();
        self.counters.commits += commits.count;
        self.recorder.owner_committed(chunk, owner, &commits);
        self.on_event(match ends {
            true => ServerEvent::Disowned { chunk, commits },
            false => ServerEvent::Adopted { chunk, commits },
        });
    }
}
