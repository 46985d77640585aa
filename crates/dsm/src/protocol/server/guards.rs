//! Guards, drafts and commits: what clients ask the cache of a chunk for.

use super::{Chunk, MOST_HELD, Server, ServerAction, Waiting, fail};
use crate::protocol::message::Fault;
use crate::protocol::{CacheEvent, ChunkId, GuardId, Mode, Process, Ticket};

impl Server {
    pub(super) fn acquire(
        &mut self,
        asker: (Process, Ticket),
        (chunk, mode): (ChunkId, Mode),
        at: u64,
        waiting: Waiting,
        actions: &mut Vec<ServerAction>,
    ) {
        if !self.knows(chunk) {
            return fail(asker, self.no_chunk(chunk), actions);
        }
        if mode == Mode::Write && self.home(chunk).is_some_and(|home| home.is_final()) {
            return fail(asker, Fault::Immutable, actions);
        }
        self.wait(asker, at, waiting);
        let (from, ticket) = asker;
        self.used.entry(from).or_default().insert(chunk);
        match mode {
            Mode::Read => {
                self.at_cache(chunk, CacheEvent::Acquire { from, ticket, mode }, actions);
            }
            Mode::Write => match self.home(chunk) {
                Some(home) => {
                    home.gate.push_back(asker);
                    self.admit(chunk, actions);
                }
                // The home looks after the subscribers when it is committed.
                None => self.at_cache(chunk, CacheEvent::Acquire { from, ticket, mode }, actions),
            },
        }
    }

    /// Lets the first of those that want to take a version ask for a guard, if there is one that
    /// nobody has taken.
    pub(super) fn take(&mut self, chunk: ChunkId, actions: &mut Vec<ServerAction>) {
        while let Some(home) = self.home(chunk)
            && !home.is_taking
            && home.directory.version().0 > home.taken
            && let Some((from, ticket)) = home.takers.front().copied()
        {
            home.is_taking = true;
            let mode = Mode::Read;
            self.at_cache_once(chunk, CacheEvent::Acquire { from, ticket, mode }, actions);
        }
    }

    /// One that wanted to take a version has got it, or no longer waits.
    pub(super) fn takes_no_more(&mut self, chunk: ChunkId, asker: (Process, Ticket)) {
        let Some(home) = self.home(chunk) else {
            return;
        };
        if home.takers.front() == Some(&asker) {
            home.is_taking = false;
        }
        home.takers.retain(|taker| *taker != asker);
    }

    /// Lets those write that need not wait for a subscriber.
    pub(super) fn admit(&mut self, chunk: ChunkId, actions: &mut Vec<ServerAction>) {
        while let Some(home) = self.home(chunk)
            && !home.late.is_empty()
            && home.has_room(0)
            && let Some(commit) = home.late.pop_front()
        {
            self.at_directory_once(chunk, commit, actions);
            self.take(chunk, actions);
        }
        while let Some(found) = self.chunks.get_mut(&chunk)
            && let writers = found.cache.writers()
            && let Some(home) = found.home_mut()
            && let Some((from, ticket)) = home.gate.front().copied()
        {
            if !home.has_room(writers) {
                break;
            }
            home.gate.pop_front();
            let mode = Mode::Write;
            self.at_cache_once(chunk, CacheEvent::Acquire { from, ticket, mode }, actions);
            self.take(chunk, actions);
        }
        let is_blocked = |chunk: &Chunk| {
            chunk
                .home()
                .is_some_and(|home| home.waits() || home.directory.waiting() > 0)
                || chunk.cache.is_blocked()
        };
        match self.chunks.get(&chunk).is_some_and(is_blocked) {
            true => _ = self.blocked.insert(chunk),
            false => _ = self.blocked.remove(&chunk),
        }
    }

    /// Gives memory for a version that is put later.
    pub(super) fn draft(
        &mut self,
        (to, ticket): (Process, Ticket),
        chunk: ChunkId,
        actions: &mut Vec<ServerAction>,
    ) {
        if self.home(chunk).is_none() {
            return fail((to, ticket), self.no_chunk(chunk), actions);
        }
        match self.new_draft((to, ticket), chunk) {
            Some(draft) => actions.push(ServerAction::Draft {
                to,
                ticket,
                chunk,
                draft,
            }),
            None => {
                let most = MOST_HELD as u64;
                fail((to, ticket), Fault::TooMany { most }, actions);
            }
        }
    }

    /// Returns the number of a new draft; `None` if the process has too many.
    pub fn new_draft(
        &mut self,
        (to, ticket): (Process, Ticket),
        chunk: ChunkId,
    ) -> Option<GuardId> {
        let drafts = self.drafts.values().filter(|(of, ..)| *of == to);
        if drafts.take(MOST_HELD).count() == MOST_HELD {
            return None;
        }
        let draft = self.next_guard;
        self.next_guard.0 += 1;
        self.drafts.insert(draft, (to, chunk, ticket));
        self.used.entry(to).or_default().insert(chunk);
        Some(draft)
    }

    /// Returns true if a process was given that draft of a chunk, and has not put it.
    pub fn has_draft(&self, client: Process, chunk: ChunkId, draft: GuardId) -> bool {
        let found = self.drafts.get(&draft);
        found.is_some_and(|(of, at, _)| (*of, *at) == (client, chunk))
    }

    pub(super) fn commit(
        &mut self,
        (from, ticket): (Process, Ticket),
        (chunk, guard): (ChunkId, GuardId),
        tag: u64,
        sent: Option<(Process, Ticket)>,
        actions: &mut Vec<ServerAction>,
    ) {
        if !self.chunks.contains_key(&chunk) {
            return fail((from, ticket), self.no_chunk(chunk), actions);
        }
        // One whose guard has ended must not take the place of another one that is on its way.
        let is_out = self.has_guard(from, chunk, guard);
        let Some(found) = self.chunks.get_mut(&chunk) else {
            return;
        };
        if is_out {
            found.sent = sent;
        }
        let commit = CacheEvent::Commit {
            from,
            ticket,
            guard,
            tag,
        };
        self.at_cache(chunk, commit, actions);
        self.ended(from, chunk, guard);
        if let Some(found) = self.chunks.get_mut(&chunk)
            && found.home().is_some()
        {
            found.sent = None; // At another home, it is needed until the answer.
        }
    }

    pub(super) fn release(
        &mut self,
        from: Process,
        chunk: ChunkId,
        guard: GuardId,
        actions: &mut Vec<ServerAction>,
    ) {
        if self.is_owners(chunk, guard) {
            return; // The service has to say that it has ended.
        }
        if self.has_draft(from, chunk, guard) {
            self.drafts.remove(&guard);
            return actions.push(ServerAction::Discard { chunk, guard });
        }
        self.at_cache(chunk, CacheEvent::Release { from, guard }, actions);
        self.ended(from, chunk, guard);
    }

    /// A guard has ended, if it was the client's.
    pub(super) fn ended(&mut self, client: Process, chunk: ChunkId, guard: GuardId) {
        if self.has_guard(client, chunk, guard) {
            self.given.remove(&guard);
        }
    }

    /// A client no longer waits for a guard.
    pub(super) fn cancel(
        &mut self,
        chunk: ChunkId,
        (from, ticket): (Process, Ticket),
        actions: &mut Vec<ServerAction>,
    ) {
        if let Some(home) = self.home(chunk) {
            home.gate.retain(|asker| *asker != (from, ticket));
        }
        self.takes_no_more(chunk, (from, ticket));
        self.at_cache(chunk, CacheEvent::Cancel { from, ticket }, actions);
    }
}
