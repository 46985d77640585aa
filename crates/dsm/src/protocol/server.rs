//! All chunks of one server: their names, directories and caches, and the requests of clients.
//!
//! The server is the home of its chunks and caches them for its clients. What a cache and a
//! directory of the same server say to each other is handled at once.

use super::meetings::{Meetings, Outcome};
use super::message::{
    Answer, Event, Fault, INLINE, Kind, LONGEST_KIND, LONGEST_NAME, Op, Policy, PutFrom, Request,
};
use super::{
    Cache, CacheAction, CacheEvent, ChunkId, Directory, DirectoryAction, DirectoryEvent, GuardId,
    Mode, Process, Subscriber, Subscribers, SubscriptionId, Telling, Ticket, Token, Version,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The number of past commits of a chunk that a subscriber can catch up on.
const HISTORY: usize = 1024;

/// The most chunks of a server.
const MOST_CHUNKS: u64 = 1 << 20;

/// The most requests of a process that may wait.
const MOST_WAITING: usize = 4096;

/// The most subscriptions, and the most drafts, of a process.
const MOST_HELD: usize = 4096;

/// What happened to a server.
#[derive(Debug)]
pub enum ServerEvent {
    /// A client asks; `None` for a note.
    Request {
        /// The client.
        from: Process,
        /// The number of its request.
        ticket: Option<Ticket>,
        /// What it asks.
        request: Request,
    },
    /// A process is lost. All that it had sent has arrived.
    Lost(Process),
    /// The lease of a process is over: it is stopped, and keeps others waiting.
    Fence(Process),
    /// Memory for a write guard could not be allocated: the guard ends.
    NoMemory {
        /// The client that was to get the guard.
        to: Process,
        /// Its request.
        ticket: Ticket,
        /// The chunk.
        chunk: ChunkId,
        /// The guard.
        guard: GuardId,
        /// What the memory said.
        why: String,
    },
    /// No client has a read guard of the chunk that it took itself.
    Closed(ChunkId),
    /// Time has passed.
    Tick,
}

/// What a server has to do, in this order.
#[derive(Debug, PartialEq)]
pub enum ServerAction {
    /// Answer a request.
    Answer {
        /// The client.
        to: Process,
        /// Its request.
        ticket: Ticket,
        /// The answer.
        answer: Answer,
    },
    /// Answer with memory to write a version in.
    Draft {
        /// The client.
        to: Process,
        /// Its request.
        ticket: Ticket,
        /// The chunk.
        chunk: ChunkId,
        /// The number of the draft.
        draft: GuardId,
    },
    /// Tell a subscriber of commits.
    Tell {
        /// The chunk.
        chunk: ChunkId,
        /// What to tell.
        telling: Telling,
    },
    /// A subscriber has taken the events up to a version, or takes no more of them (`None`).
    Took {
        /// The subscriber.
        who: Subscriber,
        /// The version.
        version: Option<Version>,
    },
    /// Answer that there was no guard in time.
    Late {
        /// The client.
        to: Process,
        /// Its request.
        ticket: Ticket,
        /// The chunk.
        chunk: ChunkId,
        /// The processes that were given guards, and what for.
        holders: Vec<(Process, Mode)>,
        /// The number of other requests that wait for one.
        before: u64,
        /// The subscribers that have as many events to take as they may.
        full: Vec<Process>,
    },
    /// Change a word of the content; the result is what a put of that request brings. It comes
    /// before [`ServerAction::Adopt`].
    Change {
        /// The client.
        to: Process,
        /// Its request.
        ticket: Ticket,
        /// The chunk.
        chunk: ChunkId,
        /// Where the word is, in bytes.
        offset: u64,
        /// How it changes.
        op: Op,
    },
    /// A chunk is removed.
    Free {
        /// The chunk.
        chunk: ChunkId,
        /// Its subscribers, and their services.
        subscribers: Vec<(Subscriber, u16)>,
    },
    /// A chunk was created: its content is zeros.
    Create {
        /// The chunk.
        chunk: ChunkId,
        /// Its length in bytes.
        bytes: u64,
    },
    /// Answer with a guard and the content; for a write guard, with memory to write to.
    Give {
        /// The client.
        to: Process,
        /// Its request.
        ticket: Ticket,
        /// The chunk.
        chunk: ChunkId,
        /// The guard.
        guard: GuardId,
        /// Whether it comes with memory to write in place.
        in_place: bool,
        /// The last committed version.
        version: Version,
        /// Its tag.
        tag: u64,
    },
    /// Answer with the last committed version.
    Show {
        /// The client.
        to: Process,
        /// Its request.
        ticket: Ticket,
        /// The chunk.
        chunk: ChunkId,
        /// The version.
        version: Version,
        /// Its tag.
        tag: u64,
    },
    /// What was written under a guard is the content now. It comes before the answer to the commit.
    Adopt {
        /// The chunk.
        chunk: ChunkId,
        /// The guard.
        guard: GuardId,
        /// The request that brought the content; `None` if it was written in place.
        sent: Option<(Process, Ticket)>,
    },
    /// Clients may take read guards of this version themselves.
    Open {
        /// The chunk.
        chunk: ChunkId,
        /// The version.
        version: Version,
    },
    /// Clients may not do so any more; [`ServerEvent::Closed`] follows when they have none left.
    Close {
        /// The chunk.
        chunk: ChunkId,
    },
    /// What was written under a guard is dropped.
    Discard {
        /// The chunk.
        chunk: ChunkId,
        /// The guard.
        guard: GuardId,
    },
}

/// A request that waits.
#[derive(Debug)]
enum Waiting {
    /// For a chunk to be created.
    Open { name: String, kind: Kind },
    /// For a guard.
    Acquire { chunk: ChunkId, in_place: bool },
    /// For a guard, to write what it brought.
    Put { chunk: ChunkId, tag: u64 },
    /// For a version that nobody has taken.
    Take { chunk: ChunkId },
    /// For a guard, to change a word.
    Change {
        chunk: ChunkId,
        offset: u64,
        op: Op,
        tag: u64,
    },
    /// For others to come.
    Meet { name: String },
}

impl Waiting {
    /// Returns the chunk that it is about.
    fn chunk(&self) -> Option<ChunkId> {
        match self {
            Waiting::Open { .. } | Waiting::Meet { .. } => None,
            Waiting::Acquire { chunk, .. }
            | Waiting::Put { chunk, .. }
            | Waiting::Take { chunk }
            | Waiting::Change { chunk, .. } => Some(*chunk),
        }
    }
}

#[derive(Debug)]
struct Chunk {
    kind: Kind,
    bytes: u64,
    directory: Directory,
    cache: Cache,
    /// The last commits, the oldest first.
    history: VecDeque<Event>,
    subscribers: Subscribers,
    /// Requests to write that wait for subscribers.
    gate: VecDeque<(Process, Ticket)>,
    /// The last version that was taken.
    taken: Version,
    /// Requests to take one; the first of them may have asked the cache.
    takers: VecDeque<(Process, Ticket)>,
    is_taking: bool,
    /// The commit that is being carried out, if it brought the content.
    sent: Option<(Process, Ticket)>,
}

impl Chunk {
    /// Returns the processes that writers have to wait for.
    fn full(&self) -> impl Iterator<Item = Process> {
        let (present, _) = self.directory.version();
        self.subscribers.full(present)
    }
}

/// A server.
#[derive(Debug)]
pub struct Server {
    me: Process,
    names: BTreeMap<String, ChunkId>,
    chunks: BTreeMap<ChunkId, Chunk>,
    next_chunk: ChunkId,
    next_guard: GuardId,
    /// All requests that wait, with their deadlines.
    waiting: BTreeMap<(Process, Ticket), (u64, Waiting)>,
    deadlines: BTreeSet<(u64, Process, Ticket)>,
    /// The guards that are out.
    given: BTreeMap<GuardId, (Process, Ticket, ChunkId)>,
    /// The drafts that are out.
    drafts: BTreeMap<GuardId, (Process, ChunkId)>,
    /// The subscriptions of each process, and the chunks that they are of.
    subscriptions: BTreeMap<Subscriber, ChunkId>,
    /// The chunks that each process has ever asked for a guard or an event of.
    used: BTreeMap<Process, BTreeSet<ChunkId>>,
    /// The chunks whose clients are kept waiting by guards.
    blocked: BTreeSet<ChunkId>,
    meetings: Meetings,
}

impl Server {
    /// Returns a server without chunks.
    pub fn new(me: Process) -> Server {
        Server {
            me,
            names: BTreeMap::new(),
            chunks: BTreeMap::new(),
            next_chunk: ChunkId(0),
            next_guard: GuardId(1),
            waiting: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            given: BTreeMap::new(),
            drafts: BTreeMap::new(),
            subscriptions: BTreeMap::new(),
            used: BTreeMap::new(),
            blocked: BTreeSet::new(),
            meetings: Meetings::default(),
        }
    }

    /// Returns the number of chunks.
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Returns true if there are no chunks.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns the length of a chunk in bytes, if there is such a chunk.
    pub fn bytes(&self, chunk: ChunkId) -> Option<u64> {
        self.chunks.get(&chunk).map(|chunk| chunk.bytes)
    }

    /// Returns how much the server has of clients: requests, guards, drafts, subscriptions.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        let of_chunks = self.chunks.values().map(|chunk| {
            let waits = chunk.gate.len() + chunk.takers.len() + chunk.cache.waiting();
            waits + chunk.cache.holders().count() + chunk.subscribers.all().len()
        });
        let of_clients = self.waiting.len() + self.deadlines.len() + self.given.len();
        let held = self.drafts.len() + self.subscriptions.len() + self.used.len();
        of_chunks.sum::<usize>() + of_clients + held + self.meetings.len() + self.blocked.len()
    }

    /// Returns when [`ServerEvent::Tick`] is due, in milliseconds; `None` if nothing waits.
    pub fn wake_at(&self) -> Option<u64> {
        self.deadlines.first().map(|(at, ..)| *at)
    }

    /// Handles an event. `now`: milliseconds of any monotonic clock.
    pub fn on_event(&mut self, now: u64, event: ServerEvent) -> Vec<ServerAction> {
        let mut actions = Vec::new();
        match event {
            ServerEvent::Request {
                from,
                ticket: Some(ticket),
                request,
            } => self.request(now, (from, ticket), request, &mut actions),
            ServerEvent::Request {
                from,
                ticket: None,
                request: Request::Release { chunk, guard },
            } => self.release(from, chunk, guard, &mut actions),
            ServerEvent::Request {
                from,
                ticket: None,
                request: Request::Forget { ticket },
            } => self.forget((from, ticket), &mut actions),
            ServerEvent::Request {
                from,
                ticket: None,
                request: Request::Took { chunk, id, version },
            } => self.took(chunk, (from, id), version, &mut actions),
            ServerEvent::Request {
                from,
                ticket: None,
                request: Request::Unsubscribe { chunk, id },
            } => self.unsubscribe(chunk, (from, id), &mut actions),
            ServerEvent::Request { ticket: None, .. } => {} // Nobody waits for an answer.
            ServerEvent::Lost(process) => self.lost(process, &mut actions),
            ServerEvent::Fence(client) => {
                // First: the end of a guard may give the next one to the same process.
                self.given.retain(|_, (holder, ..)| *holder != client);
                for chunk in self.used.get(&client).cloned().unwrap_or_default() {
                    if let Some(found) = self.chunks.get_mut(&chunk) {
                        found.subscribers.fence(client);
                    }
                    self.at_cache(chunk, CacheEvent::Fence { client }, &mut actions);
                }
            }
            ServerEvent::NoMemory {
                to,
                ticket,
                chunk,
                guard,
                why,
            } => {
                let bytes = self.bytes(chunk).unwrap_or(0);
                fail((to, ticket), Fault::NoMemory { bytes, why }, &mut actions);
                self.release(to, chunk, guard, &mut actions);
            }
            ServerEvent::Closed(chunk) => self.at_cache(chunk, CacheEvent::Closed, &mut actions),
            ServerEvent::Tick => {}
        }
        self.expire(now, &mut actions);
        actions
    }

    fn request(
        &mut self,
        now: u64,
        asker: (Process, Ticket),
        request: Request,
        actions: &mut Vec<ServerAction>,
    ) {
        if self.waiting.contains_key(&asker) {
            return; // A client that numbers two requests alike hears of the first.
        }
        let may_wait = !matches!(
            request,
            Request::Commit { .. }
                | Request::Snapshot { .. }
                | Request::Release { .. }
                | Request::Subscribe { .. }
                | Request::Draft { .. }
        );
        if may_wait && self.has_too_many(asker.0) {
            let most = MOST_WAITING as u64;
            return fail(asker, Fault::TooMany { most }, actions);
        }
        let by = |timeout: u64| now.saturating_add(timeout);
        match request {
            Request::Open {
                name,
                kind,
                bytes,
                timeout,
            } => self.open(asker, (name, kind), bytes, by(timeout), actions),
            Request::Acquire {
                chunk,
                mode,
                in_place,
                timeout,
            } => {
                let waiting = Waiting::Acquire { chunk, in_place };
                self.acquire(asker, (chunk, mode), by(timeout), waiting, actions);
            }
            Request::Draft { chunk } => self.draft(asker, chunk, actions),
            Request::Put {
                chunk,
                tag,
                timeout,
                from,
            } => {
                if !self.chunks.contains_key(&chunk) {
                    return fail(asker, self.no_chunk(chunk), actions);
                }
                if let PutFrom::Draft(draft) = from
                    && self.drafts.remove(&draft) != Some((asker.0, chunk))
                {
                    return fail(asker, Fault::Fenced, actions);
                }
                let waiting = Waiting::Put { chunk, tag };
                self.acquire(asker, (chunk, Mode::Write), by(timeout), waiting, actions);
            }
            Request::Snapshot { chunk } => match self.chunks.get(&chunk) {
                Some(found) => {
                    let (version, tag) = found.directory.version();
                    let (to, ticket) = asker;
                    actions.push(ServerAction::Show {
                        to,
                        ticket,
                        chunk,
                        version,
                        tag,
                    });
                }
                None => fail(asker, self.no_chunk(chunk), actions),
            },
            Request::Take { chunk, timeout } => match self.chunks.get_mut(&chunk) {
                Some(found) => {
                    found.takers.push_back(asker);
                    self.used.entry(asker.0).or_default().insert(chunk);
                    self.wait(asker, by(timeout), Waiting::Take { chunk });
                    self.take(chunk, actions);
                }
                None => fail(asker, self.no_chunk(chunk), actions),
            },
            Request::Change {
                chunk,
                offset,
                op,
                tag,
                timeout,
            } => {
                let bytes = self.bytes(chunk).unwrap_or(u64::MAX);
                let fits = offset.checked_add(8).is_some_and(|end| end <= bytes);
                if self.bytes(chunk).is_some() && (!fits || bytes > INLINE) {
                    return fail(asker, Fault::Malformed, actions);
                }
                let waiting = Waiting::Change {
                    chunk,
                    offset,
                    op,
                    tag,
                };
                self.acquire(asker, (chunk, Mode::Write), by(timeout), waiting, actions);
            }
            Request::Free { chunk } => self.free(asker, chunk, actions),
            Request::Meet {
                name,
                count,
                bytes,
                timeout,
            } => self.meet(asker, (name, count), bytes, by(timeout), actions),
            Request::Commit {
                chunk,
                guard,
                tag,
                data,
                under,
            } => {
                let is_held = |token: Token| {
                    let given = self.given.get(&token.guard);
                    given.is_some_and(|(.., chunk)| *chunk == token.lock)
                };
                if !under.is_none_or(is_held) {
                    return fail(asker, Fault::Fenced, actions);
                }
                let sent = data.map(|_| asker);
                self.commit(asker, (chunk, guard), tag, sent, actions);
            }
            Request::Subscribe {
                chunk,
                id,
                inbox,
                after,
                policy,
                with_content,
            } => {
                let wants = (inbox, policy, with_content);
                self.subscribe(asker, (chunk, id), wants, after, actions);
            }
            Request::Release { chunk, guard } => self.release(asker.0, chunk, guard, actions),
            // About memory, which this machine does not know, and notes.
            Request::Enroll { .. }
            | Request::Drained { .. }
            | Request::Count
            | Request::Forget { .. }
            | Request::Took { .. }
            | Request::Unsubscribe { .. } => fail(asker, Fault::Malformed, actions),
        }
    }

    /// Returns true if a process may not wait for anything more.
    fn has_too_many(&self, process: Process) -> bool {
        let all = (process, Ticket(0))..=(process, Ticket(u64::MAX));
        let waiting = self.waiting.range(all);
        waiting.take(MOST_WAITING).count() == MOST_WAITING
    }

    /// Returns true if a request waits.
    pub fn is_waiting(&self, asker: (Process, Ticket)) -> bool {
        self.waiting.contains_key(&asker)
    }

    /// Returns true if a process was given a guard that has not ended.
    pub fn has_guard(&self, client: Process, guard: GuardId) -> bool {
        self.given.get(&guard).is_some_and(|(of, ..)| *of == client)
    }

    fn wait(&mut self, asker: (Process, Ticket), at: u64, waiting: Waiting) {
        self.deadlines.insert((at, asker.0, asker.1));
        self.waiting.insert(asker, (at, waiting));
    }

    fn waits_no_more(&mut self, asker: (Process, Ticket)) -> Option<Waiting> {
        let (at, waiting) = self.waiting.remove(&asker)?;
        self.deadlines.remove(&(at, asker.0, asker.1));
        Some(waiting)
    }

    fn open(
        &mut self,
        asker: (Process, Ticket),
        (name, kind): (String, Kind),
        bytes: Option<u64>,
        at: u64,
        actions: &mut Vec<ServerAction>,
    ) {
        if name.is_empty() || name.len() > LONGEST_NAME {
            return fail(asker, Fault::BadName, actions);
        }
        let is_whole = |bytes: u64| kind.size == 0 || bytes.is_multiple_of(kind.size);
        if kind.name.len() > LONGEST_KIND || !bytes.is_none_or(is_whole) {
            return fail(asker, Fault::Malformed, actions);
        }
        match (self.names.get(&name), bytes) {
            (Some(chunk), bytes) => {
                let answer = self.opened(*chunk, &kind, bytes);
                answer_to(asker, answer, actions);
            }
            (None, None) => self.wait(asker, at, Waiting::Open { name, kind }),
            (None, Some(_)) if self.chunks.len() as u64 >= MOST_CHUNKS => {
                fail(asker, Fault::TooMany { most: MOST_CHUNKS }, actions);
            }
            (None, Some(bytes)) => {
                let chunk = self.create(&name, &kind, bytes);
                actions.push(ServerAction::Create { chunk, bytes });
                answer_to(asker, self.opened(chunk, &kind, None), actions);
                self.found(chunk, &name, actions);
            }
        }
    }

    fn create(&mut self, name: &str, kind: &Kind, bytes: u64) -> ChunkId {
        let id = self.next_chunk;
        self.next_chunk.0 += 1;
        self.names.insert(name.to_owned(), id);
        let chunk = Chunk {
            kind: kind.clone(),
            bytes,
            directory: Directory::default(),
            cache: Cache::default(),
            history: VecDeque::new(),
            subscribers: Subscribers::default(),
            gate: VecDeque::new(),
            taken: Version::default(),
            takers: VecDeque::new(),
            is_taking: false,
            sent: None,
        };
        self.chunks.insert(id, chunk);
        id
    }

    /// Answers those that waited for a chunk of that name.
    fn found(&mut self, chunk: ChunkId, name: &str, actions: &mut Vec<ServerAction>) {
        let waited = |(asker, (_, waiting)): (&(Process, Ticket), &(u64, Waiting))| match waiting {
            Waiting::Open { name: of, kind } if of == name => Some((*asker, kind.clone())),
            _ => None,
        };
        let waited: Vec<_> = self.waiting.iter().filter_map(waited).collect();
        for (asker, kind) in waited {
            self.waits_no_more(asker);
            answer_to(asker, self.opened(chunk, &kind, None), actions);
        }
    }

    fn opened(&self, id: ChunkId, kind: &Kind, bytes: Option<u64>) -> Answer {
        let chunk = &self.chunks[&id];
        if chunk.kind != *kind || bytes.is_some_and(|bytes| bytes != chunk.bytes) {
            return Answer::Failed(Fault::Differs {
                kind: chunk.kind.clone(),
                bytes: chunk.bytes,
            });
        }
        Answer::Opened {
            chunk: id,
            bytes: chunk.bytes,
            version: chunk.directory.version().0,
        }
    }

    fn acquire(
        &mut self,
        asker: (Process, Ticket),
        (chunk, mode): (ChunkId, Mode),
        at: u64,
        waiting: Waiting,
        actions: &mut Vec<ServerAction>,
    ) {
        if !self.chunks.contains_key(&chunk) {
            return fail(asker, self.no_chunk(chunk), actions);
        }
        self.wait(asker, at, waiting);
        let (from, ticket) = asker;
        self.used.entry(from).or_default().insert(chunk);
        match mode {
            Mode::Read => {
                self.at_cache(chunk, CacheEvent::Acquire { from, ticket, mode }, actions);
            }
            Mode::Write => {
                if let Some(found) = self.chunks.get_mut(&chunk) {
                    found.gate.push_back(asker);
                }
                self.admit(chunk, actions);
            }
        }
    }

    /// Returns why a request of a chunk that is not there fails.
    fn no_chunk(&self, chunk: ChunkId) -> Fault {
        match chunk < self.next_chunk {
            true => Fault::Freed,
            false => Fault::Malformed,
        }
    }

    /// Lets the first of those that want to take a version ask for a guard, if there is one that
    /// nobody has taken.
    fn take(&mut self, chunk: ChunkId, actions: &mut Vec<ServerAction>) {
        while let Some(found) = self.chunks.get_mut(&chunk)
            && !found.is_taking
            && found.directory.version().0 > found.taken
            && let Some((from, ticket)) = found.takers.front().copied()
        {
            found.is_taking = true;
            let mode = Mode::Read;
            self.at_cache_once(chunk, CacheEvent::Acquire { from, ticket, mode }, actions);
        }
    }

    /// One that wanted to take a version has got it, or no longer waits.
    fn takes_no_more(&mut self, chunk: ChunkId, asker: (Process, Ticket)) {
        let Some(found) = self.chunks.get_mut(&chunk) else {
            return;
        };
        if found.takers.front() == Some(&asker) {
            found.is_taking = false;
        }
        found.takers.retain(|taker| *taker != asker);
    }

    /// Removes a chunk.
    fn free(&mut self, asker: (Process, Ticket), chunk: ChunkId, actions: &mut Vec<ServerAction>) {
        let Some(found) = self.chunks.remove(&chunk) else {
            return fail(asker, self.no_chunk(chunk), actions);
        };
        self.names.retain(|_, id| *id != chunk);
        self.blocked.remove(&chunk);
        let waited = self.waiting.iter();
        let waited = waited.filter(|(_, (_, waiting))| waiting.chunk() == Some(chunk));
        let waited: Vec<_> = waited.map(|(asker, _)| *asker).collect();
        for asker in waited {
            self.waits_no_more(asker);
            fail(asker, Fault::Freed, actions);
        }
        let given = self.given.extract_if(.., |_, (.., of)| *of == chunk);
        let given: Vec<_> = given.map(|(guard, _)| guard).collect();
        let drafts = self.drafts.extract_if(.., |_, (_, of)| *of == chunk);
        let ended = given.into_iter().chain(drafts.map(|(guard, _)| guard));
        actions.extend(ended.map(|guard| ServerAction::Discard { chunk, guard }));
        let subscribers = found.subscribers.all();
        for (who, _) in &subscribers {
            self.subscriptions.remove(who);
            let (who, version) = (*who, None);
            actions.push(ServerAction::Took { who, version });
        }
        actions.push(ServerAction::Free { chunk, subscribers });
        answer_to(asker, Answer::Freed, actions);
    }

    fn meet(
        &mut self,
        asker: (Process, Ticket),
        (name, count): (String, u64),
        bytes: Vec<u8>,
        at: u64,
        actions: &mut Vec<ServerAction>,
    ) {
        if name.is_empty() || name.len() > LONGEST_NAME {
            return fail(asker, Fault::BadName, actions);
        }
        if self.meetings.len() as u64 >= MOST_CHUNKS {
            return fail(asker, Fault::TooMany { most: MOST_CHUNKS }, actions);
        }
        let outcome = self.meetings.come(&name, count, asker, bytes);
        match outcome {
            Outcome::Waits => self.wait(asker, at, Waiting::Meet { name }),
            Outcome::Differs { count } => fail(asker, Fault::OtherCount { count }, actions),
            ended => self.met(ended, actions),
        }
    }

    /// Answers those that have met, or cannot any more.
    fn met(&mut self, outcome: Outcome, actions: &mut Vec<ServerAction>) {
        let (to, answer) = match outcome {
            Outcome::Met { to, all } => (to, Answer::Met(all)),
            Outcome::Broken { to, lost } => (to, Answer::Failed(Fault::Broken { lost })),
            Outcome::Waits | Outcome::Differs { .. } => return,
        };
        for asker in to {
            self.waits_no_more(asker);
            answer_to(asker, answer.clone(), actions);
        }
    }

    /// Lets those write that need not wait for a subscriber.
    fn admit(&mut self, chunk: ChunkId, actions: &mut Vec<ServerAction>) {
        while let Some(found) = self.chunks.get_mut(&chunk)
            && let Some((from, ticket)) = found.gate.front().copied()
        {
            let (present, _) = found.directory.version();
            if found.subscribers.room(present) <= found.cache.writers() as u64 {
                break;
            }
            found.gate.pop_front();
            let mode = Mode::Write;
            self.at_cache_once(chunk, CacheEvent::Acquire { from, ticket, mode }, actions);
            self.take(chunk, actions);
        }
        let is_blocked = |chunk: &Chunk| !chunk.gate.is_empty() || chunk.cache.is_blocked();
        match self.chunks.get(&chunk).is_some_and(is_blocked) {
            true => _ = self.blocked.insert(chunk),
            false => _ = self.blocked.remove(&chunk),
        }
    }

    /// Gives memory for a version that is put later.
    fn draft(
        &mut self,
        (to, ticket): (Process, Ticket),
        chunk: ChunkId,
        actions: &mut Vec<ServerAction>,
    ) {
        if !self.chunks.contains_key(&chunk) {
            return fail((to, ticket), self.no_chunk(chunk), actions);
        }
        match self.new_draft(to, chunk) {
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
    pub fn new_draft(&mut self, to: Process, chunk: ChunkId) -> Option<GuardId> {
        let drafts = self.drafts.values().filter(|(of, _)| *of == to);
        if drafts.take(MOST_HELD).count() == MOST_HELD {
            return None;
        }
        let draft = self.next_guard;
        self.next_guard.0 += 1;
        self.drafts.insert(draft, (to, chunk));
        self.used.entry(to).or_default().insert(chunk);
        Some(draft)
    }

    /// Returns true if a process was given that draft of a chunk, and has not put it.
    pub fn has_draft(&self, client: Process, chunk: ChunkId, draft: GuardId) -> bool {
        self.drafts.get(&draft) == Some(&(client, chunk))
    }

    fn subscribe(
        &mut self,
        (from, ticket): (Process, Ticket),
        (chunk, id): (ChunkId, SubscriptionId),
        (inbox, policy, with_content): (u16, Policy, bool),
        after: Version,
        actions: &mut Vec<ServerAction>,
    ) {
        let of_process = (from, SubscriptionId(0))..=(from, SubscriptionId(u64::MAX));
        if self.subscriptions.range(of_process).take(MOST_HELD).count() == MOST_HELD {
            let most = MOST_HELD as u64;
            return fail((from, ticket), Fault::TooMany { most }, actions);
        }
        if !self.chunks.contains_key(&chunk) {
            return fail((from, ticket), self.no_chunk(chunk), actions);
        }
        let is_new = !self.subscriptions.contains_key(&(from, id));
        let found = self.chunks.get_mut(&chunk).filter(|_| is_new);
        let Some(found) = found else {
            return fail((from, ticket), Fault::Malformed, actions);
        };
        let who = (from, id);
        (found.subscribers).add(who, inbox, (policy, with_content), after);
        self.subscriptions.insert(who, chunk);
        self.used.entry(from).or_default().insert(chunk);
        answer_to((from, ticket), Answer::Subscribed, actions);
        self.tell(chunk, actions);
    }

    fn took(
        &mut self,
        chunk: ChunkId,
        who: Subscriber,
        version: Version,
        actions: &mut Vec<ServerAction>,
    ) {
        if self.subscriptions.get(&who) != Some(&chunk) {
            return;
        }
        if let Some(found) = self.chunks.get_mut(&chunk) {
            found.subscribers.took(who, version);
        }
        let version = Some(version);
        actions.push(ServerAction::Took { who, version });
        self.tell(chunk, actions);
        self.admit(chunk, actions);
    }

    fn unsubscribe(&mut self, chunk: ChunkId, who: Subscriber, actions: &mut Vec<ServerAction>) {
        if self.subscriptions.get(&who) != Some(&chunk) {
            return;
        }
        self.subscriptions.remove(&who);
        if let Some(found) = self.chunks.get_mut(&chunk) {
            found.subscribers.remove(who);
        }
        actions.push(ServerAction::Took { who, version: None });
        self.admit(chunk, actions);
    }

    fn commit(
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
        let Some(found) = self.chunks.get_mut(&chunk) else {
            return;
        };
        found.sent = sent;
        let commit = CacheEvent::Commit {
            from,
            ticket,
            guard,
            tag,
        };
        self.at_cache(chunk, commit, actions);
        self.ended(from, guard);
        if let Some(found) = self.chunks.get_mut(&chunk) {
            found.sent = None;
        }
    }

    fn release(
        &mut self,
        from: Process,
        chunk: ChunkId,
        guard: GuardId,
        actions: &mut Vec<ServerAction>,
    ) {
        if self.has_draft(from, chunk, guard) {
            self.drafts.remove(&guard);
            return actions.push(ServerAction::Discard { chunk, guard });
        }
        self.at_cache(chunk, CacheEvent::Release { from, guard }, actions);
        self.ended(from, guard);
    }

    /// A guard has ended, if it was the client's.
    fn ended(&mut self, client: Process, guard: GuardId) {
        if self.has_guard(client, guard) {
            self.given.remove(&guard);
        }
    }

    /// A client no longer waits for an answer.
    fn forget(&mut self, (from, ticket): (Process, Ticket), actions: &mut Vec<ServerAction>) {
        match self.waits_no_more((from, ticket)) {
            Some(Waiting::Open { .. }) => {}
            Some(Waiting::Meet { name }) => self.meetings.leave(&name, (from, ticket)),
            Some(of_chunk) => {
                let chunk = of_chunk.chunk();
                chunk
                    .into_iter()
                    .for_each(|chunk| self.cancel(chunk, (from, ticket), actions));
            }
            None => {
                let mut given = self.given.iter();
                let found = given.find(|(_, (of, by, _))| (*of, *by) == (from, ticket));
                if let Some((guard, (.., chunk))) = found {
                    let (guard, chunk) = (*guard, *chunk);
                    self.release(from, chunk, guard, actions);
                }
            }
        }
    }

    /// A client no longer waits for a guard.
    fn cancel(
        &mut self,
        chunk: ChunkId,
        (from, ticket): (Process, Ticket),
        actions: &mut Vec<ServerAction>,
    ) {
        if let Some(found) = self.chunks.get_mut(&chunk) {
            found.gate.retain(|asker| *asker != (from, ticket));
        }
        self.takes_no_more(chunk, (from, ticket));
        self.at_cache(chunk, CacheEvent::Cancel { from, ticket }, actions);
    }

    /// Returns the processes whose guards, or events that they have not taken, keep others waiting,
    /// and the chunks where some do that may be guards which clients took themselves.
    pub fn blockers(&self) -> impl Iterator<Item = (ChunkId, Option<Process>)> {
        let blocked = self.blocked.iter();
        let blocked = blocked.filter_map(|id| Some((*id, self.chunks.get(id)?)));
        blocked.flat_map(|(id, chunk)| {
            let holders = chunk.cache.holders().map(|(holder, ..)| holder);
            let full = chunk.full().filter(|_| !chunk.gate.is_empty());
            let all = holders.chain(full).map(Some);
            all.chain([None]).map(move |holder| (id, holder))
        })
    }

    fn lost(&mut self, process: Process, actions: &mut Vec<ServerAction>) {
        let askers = self.waiting.keys().filter(|(asker, _)| *asker == process);
        let askers: Vec<_> = askers.copied().collect();
        for asker in askers {
            let waited = self.waits_no_more(asker);
            if let Some(Waiting::Take { chunk }) = waited {
                self.takes_no_more(chunk, asker);
            }
        }
        for broken in self.meetings.lost(process) {
            self.met(broken, actions);
        }
        self.given.retain(|_, (holder, ..)| *holder != process);
        let drafts = self.drafts.extract_if(.., |_, (of, _)| *of == process);
        let dropped = drafts.map(|(guard, (_, chunk))| ServerAction::Discard { chunk, guard });
        actions.extend(dropped);
        for chunk in self.used.remove(&process).unwrap_or_default() {
            if let Some(found) = self.chunks.get_mut(&chunk) {
                found.gate.retain(|(of, _)| *of != process);
                for who in found.subscribers.lost(process) {
                    self.subscriptions.remove(&who);
                    actions.push(ServerAction::Took { who, version: None });
                }
            }
            self.at_cache(chunk, CacheEvent::Gone { client: process }, actions);
        }
    }

    /// Ends the waits whose deadlines have passed.
    fn expire(&mut self, now: u64, actions: &mut Vec<ServerAction>) {
        while let Some((at, process, ticket)) = self.deadlines.first().copied()
            && at <= now
        {
            let asker = (process, ticket);
            match self.waits_no_more(asker) {
                Some(Waiting::Open { .. }) => fail(asker, Fault::NotFound, actions),
                Some(Waiting::Meet { name }) => {
                    self.meetings.leave(&name, asker);
                    let here = self.meetings.here(&name);
                    fail(asker, Fault::Missing { here }, actions);
                }
                Some(
                    Waiting::Acquire { chunk, .. }
                    | Waiting::Put { chunk, .. }
                    | Waiting::Take { chunk }
                    | Waiting::Change { chunk, .. },
                ) => {
                    actions.push(self.late(asker, chunk));
                    self.cancel(chunk, asker, actions);
                }
                None => unreachable!("each deadline is of a request that waits"),
            }
        }
    }

    fn late(&self, (to, ticket): (Process, Ticket), chunk: ChunkId) -> ServerAction {
        let found = &self.chunks[&chunk];
        let holders = found.cache.holders();
        let waiting = found.cache.waiting() + found.gate.len();
        let is_at_gate = found.gate.contains(&(to, ticket));
        let full = found.full().filter(|_| is_at_gate);
        ServerAction::Late {
            to,
            ticket,
            chunk,
            holders: holders.map(|(who, _, mode)| (who, mode)).collect(),
            before: (waiting as u64).saturating_sub(1),
            full: full.collect(),
        }
    }

    /// Tells subscribers of commits.
    fn tell(&mut self, chunk: ChunkId, actions: &mut Vec<ServerAction>) {
        if let Some(found) = self.chunks.get_mut(&chunk) {
            let (present, _) = found.directory.version();
            let tellings = found.subscribers.tell(present, &found.history);
            let each = tellings.into_iter();
            actions.extend(each.map(|telling| ServerAction::Tell { chunk, telling }));
        }
    }

    /// As [`Server::at_cache_once`]; then others may take a version, or write.
    fn at_cache(&mut self, id: ChunkId, event: CacheEvent, actions: &mut Vec<ServerAction>) {
        self.at_cache_once(id, event, actions);
        self.take(id, actions);
        self.admit(id, actions);
    }

    /// Lets the cache of a chunk handle an event, and its directory what the cache says, until both
    /// have nothing to say.
    fn at_cache_once(&mut self, id: ChunkId, event: CacheEvent, actions: &mut Vec<ServerAction>) {
        let begin = actions.len();
        let mut talk = Talk::default();
        talk.to_cache.push_back(event);
        while let Some(event) = talk.to_cache.pop_front() {
            let Some(chunk) = self.chunks.get_mut(&id) else {
                return;
            };
            let mut did = Vec::new();
            chunk.cache.on_event(event, &mut self.next_guard, &mut did);
            for action in did {
                if let Some(said) = self.cache_did(id, action, &mut talk, actions) {
                    self.at_directory(id, said, &mut talk);
                }
            }
        }
        if talk.has_committed {
            // At once when the last version is there: subscribers wait longer for their events than
            // the writer for its answer.
            let is_adopt = |action: &ServerAction| matches!(action, ServerAction::Adopt { .. });
            let last = actions[begin..].iter().rposition(is_adopt);
            let rest = actions.split_off(last.map_or(actions.len(), |last| begin + last + 1));
            self.tell(id, actions);
            actions.extend(rest);
        }
    }

    /// Carries out what a cache has decided. Returns what it says to the directory.
    fn cache_did(
        &mut self,
        id: ChunkId,
        action: CacheAction,
        talk: &mut Talk,
        actions: &mut Vec<ServerAction>,
    ) -> Option<DirectoryEvent> {
        let from = self.me;
        match action {
            CacheAction::Ask { access } => return Some(DirectoryEvent::Ask { from, access }),
            CacheAction::Recalled { keeps } => {
                return Some(DirectoryEvent::Recalled { from, keeps });
            }
            CacheAction::Commit {
                epoch, tag, writer, ..
            } => {
                return Some(DirectoryEvent::Commit {
                    from,
                    epoch,
                    tag,
                    writer,
                });
            }
            CacheAction::Give {
                to,
                ticket,
                guard,
                mode,
                version,
                tag,
            } => match self.waits_no_more((to, ticket)) {
                Some(Waiting::Put { tag, .. }) => {
                    talk.puts.push((guard, (to, ticket)));
                    talk.to_cache.push_back(CacheEvent::Commit {
                        from: to,
                        ticket,
                        guard,
                        tag,
                    });
                }
                Some(Waiting::Change {
                    offset, op, tag, ..
                }) => {
                    actions.push(ServerAction::Change {
                        to,
                        ticket,
                        chunk: id,
                        offset,
                        op,
                    });
                    talk.puts.push((guard, (to, ticket)));
                    talk.to_cache.push_back(CacheEvent::Commit {
                        from: to,
                        ticket,
                        guard,
                        tag,
                    });
                }
                Some(Waiting::Take { chunk }) => {
                    self.takes_no_more(chunk, (to, ticket));
                    if let Some(found) = self.chunks.get_mut(&id) {
                        found.taken = version;
                    }
                    self.given.insert(guard, (to, ticket, id));
                    actions.push(ServerAction::Give {
                        to,
                        ticket,
                        chunk: id,
                        guard,
                        in_place: false,
                        version,
                        tag,
                    });
                }
                Some(Waiting::Acquire { in_place, .. }) => {
                    self.given.insert(guard, (to, ticket, id));
                    actions.push(ServerAction::Give {
                        to,
                        ticket,
                        chunk: id,
                        guard,
                        in_place: in_place && mode == Mode::Write,
                        version,
                        tag,
                    });
                }
                other => unreachable!("{other:?} waits for no guard"),
            },
            CacheAction::Answer {
                to,
                ticket,
                version,
            } => {
                let answer = match version {
                    Some(version) => Answer::Committed {
                        version,
                        draft: None,
                    },
                    None => Answer::Failed(Fault::Fenced),
                };
                answer_to((to, ticket), answer, actions);
            }
            CacheAction::Adopt { guard } => {
                let put = talk.puts.iter().find(|(of, _)| *of == guard);
                let put = put.map(|(_, put)| *put);
                let chunk = self.chunks.get_mut(&id)?;
                actions.push(ServerAction::Adopt {
                    chunk: id,
                    guard,
                    sent: put.or(chunk.sent.take()),
                });
            }
            CacheAction::Discard { guard } => {
                actions.push(ServerAction::Discard { chunk: id, guard });
            }
            CacheAction::Open { version, .. } => {
                actions.push(ServerAction::Open { chunk: id, version });
            }
            CacheAction::Close => actions.push(ServerAction::Close { chunk: id }),
        }
        None
    }

    /// Lets the directory of a chunk handle what the cache says.
    fn at_directory(&mut self, id: ChunkId, event: DirectoryEvent, talk: &mut Talk) {
        let Some(chunk) = self.chunks.get_mut(&id) else {
            return;
        };
        let mut decided = Vec::new();
        chunk.directory.on_event(event, &mut decided);
        for action in decided {
            talk.to_cache.push_back(match action {
                DirectoryAction::Recall { keeps, .. } => CacheEvent::Recall { keeps },
                DirectoryAction::Grant {
                    access,
                    version,
                    tag,
                    epoch,
                    ..
                } => CacheEvent::Granted {
                    access,
                    version,
                    tag,
                    epoch,
                },
                DirectoryAction::Committed {
                    version,
                    tag,
                    writer,
                    ..
                } => {
                    chunk.history.push_back(Event {
                        version,
                        tag,
                        writer,
                    });
                    if chunk.history.len() > HISTORY {
                        chunk.history.pop_front();
                    }
                    talk.has_committed = true;
                    CacheEvent::Committed { version }
                }
                DirectoryAction::Fenced { .. } => CacheEvent::Fenced,
            });
        }
    }
}

/// What a cache and a directory of the same server say to each other.
#[derive(Default)]
struct Talk {
    to_cache: VecDeque<CacheEvent>,
    /// Puts whose turn has come: their guards are given, and their commits follow at once.
    puts: Vec<(GuardId, (Process, Ticket))>,
    has_committed: bool,
}

fn fail(asker: (Process, Ticket), fault: Fault, actions: &mut Vec<ServerAction>) {
    answer_to(asker, Answer::Failed(fault), actions);
}

fn answer_to((to, ticket): (Process, Ticket), answer: Answer, actions: &mut Vec<ServerAction>) {
    actions.push(ServerAction::Answer { to, ticket, answer });
}
