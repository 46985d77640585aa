//! All chunks of one server: their names, directories and caches, and the requests of clients.
//!
//! The server is the home of its chunks and caches them for its clients. What a cache and a
//! directory of the same server say to each other is handled at once. It also caches chunks of
//! other homes: then the two talk by [messages](Between).
//!
//! # Files
//! `mod` (requests, what waits, and its end) · `action` (what happens, and what is to be done) ·
//! `chunk` (a chunk at its home, or cached) · `names` (chunks are created, found and removed) ·
//! `guards` (guards, drafts, commits) · `owner` (clients that own a chunk) · `told` (subscriptions
//! and meetings) · `talk` (caches and directories) · `others` (other servers) · `replicas`,
//! `replicate` and `take_over` (other servers have each version, and take chunks over) · `seek`
//! (the names of such chunks) · `overview` (for people)

mod action;
mod chunk;
mod guards;
mod names;
mod others;
mod overview;
mod owner;
mod replicas;
mod replicate;
mod seek;
mod take_over;
mod talk;
mod told;

pub use self::action::{ServerAction, ServerEvent, Written};

use self::chunk::{Chunk, Home};
use self::replicas::Replica;
use self::seek::Seeking;

use super::meetings::Meetings;
use super::message::{Answer, Fault, INLINE, Kind, Op, Protocol, PutFrom, Request};
use super::{CacheEvent, ChunkId, GuardId, Mode, Process, ServerId, Subscriber, Ticket, Token};
use samite_fabric::SegmentKey;
use std::collections::{BTreeMap, BTreeSet};

/// The most chunks of a server.
const MOST_CHUNKS: u64 = 1 << 20;

/// The most chunks that one request removes.
const MOST_FREED: usize = 1024;

/// The most servers of a topology.
const MOST_SERVERS: usize = 4096;

/// The most requests of a process that may wait.
const MOST_WAITING: usize = 4096;

/// The most subscriptions, and the most drafts, of a process.
const MOST_HELD: usize = 4096;

/// A request that waits.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Hash))]
enum Waiting {
    /// For a chunk to be created: with that many bytes, if the request is to create it.
    Open {
        name: String,
        kind: Kind,
        create: Option<(u64, Protocol)>,
    },
    /// For the successor of a home that is lost. The id is an earlier one.
    Successor { chunk: ChunkId },
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
    /// For a guard, to own the chunk. Where its page is.
    Own {
        chunk: ChunkId,
        page: (SegmentKey, u64),
    },
    /// For others to come.
    Meet { name: String },
}

impl Waiting {
    /// Returns the chunk that it is about.
    fn chunk(&self) -> Option<ChunkId> {
        match self {
            Waiting::Open { .. } | Waiting::Meet { .. } | Waiting::Successor { .. } => None,
            Waiting::Acquire { chunk, .. }
            | Waiting::Put { chunk, .. }
            | Waiting::Take { chunk }
            | Waiting::Own { chunk, .. }
            | Waiting::Change { chunk, .. } => Some(*chunk),
        }
    }
}

/// A server.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, PartialEq, Hash))]
pub struct Server {
    me: Process,
    id: ServerId,
    /// The other servers that are known.
    servers: BTreeMap<ServerId, Process>,
    /// How often copies of the chunks of a home have become void here; and at other servers, of the
    /// chunks of this one, as they say.
    terms: BTreeMap<Process, u64>,
    terms_of: BTreeMap<Process, u64>,
    names: BTreeMap<String, ChunkId>,
    chunks: BTreeMap<ChunkId, Chunk>,
    /// The chunks of other homes of which this server has each version, and their names.
    replicas: BTreeMap<ChunkId, Replica>,
    replica_names: BTreeMap<String, ChunkId>,
    /// The chunks of other homes that this server has no memory for, and the replicas of older
    /// versions that it keeps until the home has heard of that.
    refusals: BTreeMap<ChunkId, Option<ChunkId>>,
    /// The present ids of chunks that are here, or of which replicas are, by ids that they had.
    moved: BTreeMap<ChunkId, ChunkId>,
    /// Servers that ask whether it is their turn to take a chunk over, of a home that this server
    /// does not know to be lost.
    turns: Vec<(ChunkId, Vec<ChunkId>, Process)>,
    /// The names that other servers are asked for.
    seeking: BTreeMap<String, Seeking>,
    /// The servers that were known, and are lost.
    gone: BTreeSet<ServerId>,
    next_chunk: ChunkId,
    next_guard: GuardId,
    /// All requests that wait, with their deadlines.
    waiting: BTreeMap<(Process, Ticket), (u64, Waiting)>,
    deadlines: BTreeSet<(u64, Process, Ticket)>,
    /// The guards that are out.
    given: BTreeMap<GuardId, (Process, Ticket, ChunkId)>,
    /// The drafts that are out.
    drafts: BTreeMap<GuardId, (Process, ChunkId, Ticket)>,
    /// The subscriptions of each process, and the chunks that they are of.
    subscriptions: BTreeMap<Subscriber, ChunkId>,
    /// The chunks that each process has ever asked for a guard or an event of.
    used: BTreeMap<Process, BTreeSet<ChunkId>>,
    /// The chunks whose clients are kept waiting by guards.
    blocked: BTreeSet<ChunkId>,
    meetings: Meetings,
    /// The last tokens of locks of other servers that commits have required.
    tokens: BTreeMap<ChunkId, GuardId>,
}

impl Server {
    /// Returns a server without chunks.
    pub fn new(me: Process, id: ServerId) -> Server {
        Server {
            me,
            id,
            servers: BTreeMap::new(),
            terms: BTreeMap::new(),
            terms_of: BTreeMap::new(),
            names: BTreeMap::new(),
            chunks: BTreeMap::new(),
            replicas: BTreeMap::new(),
            replica_names: BTreeMap::new(),
            refusals: BTreeMap::new(),
            moved: BTreeMap::new(),
            turns: Vec::new(),
            seeking: BTreeMap::new(),
            gone: BTreeSet::new(),
            next_chunk: ChunkId(id.first_number(me)),
            next_guard: GuardId(id.first_number(me) + 1),
            waiting: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            given: BTreeMap::new(),
            drafts: BTreeMap::new(),
            subscriptions: BTreeMap::new(),
            used: BTreeMap::new(),
            blocked: BTreeSet::new(),
            meetings: Meetings::default(),
            tokens: BTreeMap::new(),
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

    /// Returns the length of a chunk in bytes, if there is such a chunk; 0 for one of another home
    /// that has not been granted yet.
    pub fn bytes(&self, chunk: ChunkId) -> Option<u64> {
        self.chunks.get(&chunk).map(|chunk| chunk.bytes)
    }

    /// Returns the part of a chunk that its home has, if this server is the home.
    fn home(&mut self, chunk: ChunkId) -> Option<&mut Home> {
        self.chunks.get_mut(&chunk).and_then(Chunk::home_mut)
    }

    /// Returns the state of the copy of a chunk.
    #[cfg(test)]
    pub(super) fn state(&self, chunk: ChunkId) -> Option<super::State> {
        self.chunks.get(&chunk).map(|chunk| chunk.cache.state())
    }

    /// Returns how much the server has of clients: requests, guards, drafts, subscriptions.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        let of_chunks = self.chunks.values().map(|chunk| {
            let at_home = chunk.home().map_or(0, |home| {
                let replication = home.replication.as_ref();
                let freeing = replication.map_or(0, |of| of.freeing.len() + of.deferred.len());
                let waits = home.gate.len() + home.takers.len() + home.late.len() + freeing;
                waits + home.subscribers.all().len()
            });
            at_home + chunk.cache.waiting() + chunk.cache.holders().count()
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
                for chunk in self.owned_by(client) {
                    self.disowned(chunk, &mut actions);
                }
                // First: the end of a guard may give the next one to the same process.
                self.given.retain(|_, (holder, ..)| *holder != client);
                for chunk in self.used.get(&client).cloned().unwrap_or_default() {
                    if let Some(home) = self.home(chunk) {
                        home.subscribers.fence(client);
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
            ServerEvent::Adopted { chunk, commits } => self.adopted(chunk, &commits, &mut actions),
            ServerEvent::Disowned { chunk, commits } => {
                self.adopted(chunk, &commits, &mut actions);
                self.disowned(chunk, &mut actions);
            }
            ServerEvent::Closed(chunk) => self.at_cache(chunk, CacheEvent::Closed, &mut actions),
            ServerEvent::Between { from, message } => self.hear(from, message, &mut actions),
            ServerEvent::Known { server, process } => {
                self.knows_server(server, process, &mut actions)
            }
            ServerEvent::Unkept { from, message } => self.unkept(from, &message, &mut actions),
            ServerEvent::Unfetched { chunk, why } => self.unfetched(chunk, &why, &mut actions),
            ServerEvent::Void(home) => self.void_copies(home, &mut actions),
            ServerEvent::FenceServer(server) => self.fence_server(server, &mut actions),
            ServerEvent::Evict(chunk) => self.at_cache(chunk, CacheEvent::Evict, &mut actions),
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
                protocol,
                replicas,
                timeout,
            } => {
                let made = (bytes, protocol, replicas);
                self.open(asker, (name, kind), made, by(timeout), actions);
            }
            Request::Successor { chunk, timeout } => {
                self.successor(asker, chunk, by(timeout), actions);
            }
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
                if self.home(chunk).is_none() {
                    return fail(asker, self.no_chunk(chunk), actions);
                }
                if let PutFrom::Draft(draft) = from {
                    if !self.has_draft(asker.0, chunk, draft) {
                        return fail(asker, Fault::Fenced, actions);
                    }
                    self.drafts.remove(&draft);
                }
                let waiting = Waiting::Put { chunk, tag };
                self.acquire(asker, (chunk, Mode::Write), by(timeout), waiting, actions);
            }
            Request::Snapshot { chunk } => match self.home(chunk) {
                Some(home) => {
                    let (version, tag) = home.directory.version();
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
            Request::Take { chunk, timeout } => match self.home(chunk) {
                Some(home) => {
                    home.takers.push_back(asker);
                    self.used.entry(asker.0).or_default().insert(chunk);
                    self.wait(asker, by(timeout), Waiting::Take { chunk });
                    self.take(chunk, actions);
                    self.admit(chunk, actions);
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
                if self.home(chunk).is_none() {
                    return fail(asker, self.no_chunk(chunk), actions);
                }
                let bytes = self.bytes(chunk).unwrap_or(u64::MAX);
                let fits = offset.checked_add(8).is_some_and(|end| end <= bytes);
                if !fits || bytes > INLINE {
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
            Request::Own {
                chunk,
                segment,
                offset,
                timeout,
            } => {
                if !self.may_own(chunk) {
                    return answer_to(asker, Answer::NotOwned, actions);
                }
                let page = (segment, offset);
                let waiting = Waiting::Own { chunk, page };
                self.acquire(asker, (chunk, Mode::Write), by(timeout), waiting, actions);
            }
            Request::Free { chunk } => self.free(asker, chunk, actions),
            Request::FreeAll { prefix } => self.free_all(asker, &prefix, actions),
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
                if self.is_owners(chunk, guard) {
                    return fail(asker, Fault::Malformed, actions);
                }
                let is_out = self.has_guard(asker.0, chunk, guard);
                if is_out && !under.is_none_or(|token| self.allows(token)) {
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
                prefetch,
                watches,
            } => {
                self.follow(chunk, prefetch);
                let wants = (inbox, policy, with_content, watches);
                self.subscribe(asker, (chunk, id), wants, after, actions);
            }
            Request::Release { chunk, guard } => self.release(asker.0, chunk, guard, actions),
            Request::Holds { token } => {
                let holds = self.holds(token);
                answer_to(asker, Answer::Holds(holds), actions);
            }
            // About memory, which this machine does not know, and notes.
            Request::Enroll { .. }
            | Request::Expose { .. }
            | Request::Drained { .. }
            | Request::Count
            | Request::Overview { .. }
            | Request::Forget { .. }
            | Request::Took { .. }
            | Request::Unsubscribe { .. }
            | Request::Disowned { .. }
            | Request::Hello { .. }
            | Request::Between(_) => fail(asker, Fault::Malformed, actions),
        }
    }

    /// Returns true if a lock of this server is held under a token.
    fn holds(&self, token: Token) -> bool {
        let given = self.given.get(&token.guard);
        given.is_some_and(|(.., chunk)| *chunk == token.lock)
    }

    /// Returns true if a commit may require a token: the lock is held, as far as this server knows.
    /// For a lock of another server, no later token was seen here; the client has asked that
    /// server.
    fn allows(&mut self, token: Token) -> bool {
        if token.lock.home() == self.id {
            return self.holds(token);
        }
        let last = self.tokens.entry(token.lock).or_insert(token.guard);
        let allows = *last <= token.guard;
        *last = token.guard.max(*last);
        allows
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

    /// Returns true if a process was given that guard of a chunk, and it has not ended.
    pub fn has_guard(&self, client: Process, chunk: ChunkId, guard: GuardId) -> bool {
        let found = self.given.get(&guard);
        found.is_some_and(|(of, _, at)| (*of, *at) == (client, chunk))
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

    /// A client no longer waits for an answer.
    fn forget(&mut self, (from, ticket): (Process, Ticket), actions: &mut Vec<ServerAction>) {
        match self.waits_no_more((from, ticket)) {
            Some(Waiting::Open { .. } | Waiting::Successor { .. }) => {}
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
                    return self.release(from, chunk, guard, actions);
                }
                let mut drafts = self.drafts.iter();
                let found = drafts.find(|(_, (of, _, by))| (*of, *by) == (from, ticket));
                if let Some((draft, (_, chunk, _))) = found {
                    let (draft, chunk) = (*draft, *chunk);
                    self.release(from, chunk, draft, actions);
                }
            }
        }
    }

    /// Returns the processes whose guards, or events that they have not taken, keep others waiting,
    /// and the chunks where some do that may be guards which clients took themselves.
    pub fn blockers(&self) -> impl Iterator<Item = (ChunkId, Option<Process>)> {
        let blocked = self.blocked.iter();
        let blocked = blocked.filter_map(|id| Some((*id, self.chunks.get(id)?)));
        blocked.flat_map(|(id, chunk)| {
            let holders = chunk.cache.holders().map(|(holder, ..)| holder);
            let full = chunk.home().filter(|home| home.waits()).into_iter();
            let full = full.flat_map(Home::full);
            let all = holders.chain(full).map(Some);
            all.chain([None]).map(move |holder| (id, holder))
        })
    }

    fn lost(&mut self, process: Process, actions: &mut Vec<ServerAction>) {
        for chunk in self.owned_by(process) {
            self.disowned(chunk, actions);
        }
        // First: its commits that wait are dropped, and must not be let in by what follows.
        self.lost_server(process, actions);
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
        let drafts = self.drafts.extract_if(.., |_, (of, ..)| *of == process);
        let dropped = drafts.map(|(guard, (_, chunk, _))| ServerAction::Discard { chunk, guard });
        actions.extend(dropped);
        for chunk in self.used.remove(&process).unwrap_or_default() {
            if let Some(home) = self.home(chunk) {
                home.gate.retain(|(of, _)| *of != process);
                for who in home.subscribers.lost(process) {
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
                Some(Waiting::Successor { chunk }) => {
                    let last = self.last_kept(chunk);
                    fail(asker, Fault::Lost { last }, actions);
                }
                Some(Waiting::Meet { name }) => {
                    self.meetings.leave(&name, asker);
                    let here = self.meetings.here(&name);
                    let mut absent = self.meetings.absent(&name);
                    absent.retain(|who| *who != asker.0);
                    fail(asker, Fault::Missing { here, absent }, actions);
                }
                Some(
                    Waiting::Acquire { chunk, .. }
                    | Waiting::Put { chunk, .. }
                    | Waiting::Take { chunk }
                    | Waiting::Own { chunk, .. }
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
        let gate = found.home().map_or(0, |home| home.gate.len());
        let waiting = found.cache.waiting() + gate;
        let at_gate = found
            .home()
            .filter(|home| home.gate.contains(&(to, ticket)));
        // Other servers that have the chunk for their clients count as holders.
        let holders = holders.map(|(who, _, mode)| (who, mode));
        ServerAction::Late {
            to,
            ticket,
            chunk,
            holders: holders.chain(found.servers_waited_for()).collect(),
            before: (waiting as u64).saturating_sub(1),
            full: at_gate.into_iter().flat_map(Home::full).collect(),
        }
    }
}

fn fail(asker: (Process, Ticket), fault: Fault, actions: &mut Vec<ServerAction>) {
    answer_to(asker, Answer::Failed(fault), actions);
}

fn answer_to((to, ticket): (Process, Ticket), answer: Answer, actions: &mut Vec<ServerAction>) {
    actions.push(ServerAction::Answer { to, ticket, answer });
}
