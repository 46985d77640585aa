//! The server of chunks on the fabric: a service that the agent of a domain
//! [hosts](samite_fabric::agent::host).
//!
//! ```text
//!   requests, losses, time ──> Server::on_event ──> Memory (contents, buffers) ──> answers
//! ```
//! A long buffer is allocated part by part, one part in each poll, so that other requests are
//! answered meanwhile.
//!
//! # Files
//! `mod` (requests and answers) · `here` (requests of this process) · `sending` (to others) ·
//! `giving` (memory to write to) · `owners` (clients that own chunks) · `memory` (the contents of
//! chunks) · `copying` (long contents, part by part) · `words` (read guards without messages) ·
//! `stopped` (leases of clients) · `others` (other servers) · `unit` (a server that is a unit of a
//! job) · `recorder` (the event log, and how active chunks are)

mod copying;
mod giving;
mod here;
mod memory;
mod others;
mod owners;
mod recorder;
mod sending;
mod stopped;
mod unit;
mod words;

use self::giving::Given;
use self::memory::{Arrived, Memory};
use self::others::Others;
use self::recorder::Recorder;
use self::sending::{To, Unsent};
use self::stopped::{LOOK, Stopped};
pub(crate) use self::unit::life_of;
use self::words::Words;
pub(crate) use self::words::{ASLEEP, FENCED, LINE, OWNED, WORDS};
use crate::protocol::{
    Answer, ChunkId, Content, Counters, Ended, Fault, INLINE, Message, Mode, Op, Overview, Process,
    PutFrom, Request, Server, ServerAction, ServerEvent, ServerId, Subscriber, Telling, Ticket,
    Told,
};
use samite_fabric::agent::{self, Lost, Owned, Starter};
use samite_fabric::rpc::{Inbound, Life, ServiceId};
use samite_fabric::{Fabric, rpc};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

/// Starts the server of chunks at the agent of the first node: there is one for the domain.
pub const STARTER: Starter = Starter {
    name: "chunks",
    start: |fabric, _| match agent::is_on_head(fabric) {
        true => vec![Box::new(ChunkService::new(fabric))],
        false => Vec::new(),
    },
};

/// Maximum bytes of requests of one process that wait to be handled, besides the first request.
const INBOX: u64 = 16 << 20;

/// How long the service sleeps while answers wait to be sent.
const SOON: Duration = Duration::from_millis(5);

/// How long the service sleeps while it has more old memory than it needs.
const TIDY: Duration = Duration::from_secs(1);

/// The longest message, in bytes: a chunk of the largest active message, and what names it.
const LONGEST: usize = 64 << 20;

/// The most notes of a message.
pub(crate) const MOST_NOTES: u64 = 16 << 10;

/// The server of chunks of a domain.
#[derive(Debug)]
pub struct ChunkService {
    fabric: Fabric,
    me: Process,
    inbox: rpc::Server,
    server: Server,
    memory: Memory,
    words: Words,
    stopped: Stopped,
    others: Others,
    /// The chunks that are closed while clients still have read guards that they took themselves.
    closing: BTreeSet<ChunkId>,
    /// The contents that requests brought, until they are committed or refused.
    arrived: HashMap<(Process, Ticket), Arrived>,
    /// The puts of drafts, and the chunks that they are of: the answer brings the next draft.
    drafted: HashMap<(Process, Ticket), ChunkId>,
    /// The words that requests have changed, as they were before.
    changed: HashMap<(Process, Ticket), u64>,
    /// The guards whose memory is being allocated; the first one grows.
    growing: VecDeque<Given>,
    unsent: BTreeMap<Process, Unsent>,
    /// The processes that have asked for anything.
    clients: BTreeSet<Process>,
    /// Those that took no answers for so long that their requests, guards and drafts have ended,
    /// and may live.
    given_up: BTreeSet<Process>,
    /// The requests of this process, which come without messages, and their answers; the number of
    /// the last one; the one that is being handled.
    here: HashMap<Ticket, Option<Answer>>,
    last_here: u32,
    asking: Option<Ticket>,
    counters: Counters,
    recorder: Recorder,
}

impl ChunkService {
    /// Starts to serve, as the agent of a domain does.
    pub fn new(fabric: &Fabric) -> ChunkService {
        let others = Others::new(ServerId::default(), None, u64::MAX);
        ChunkService::with(fabric, others)
    }

    fn with(fabric: &Fabric, others: Others) -> ChunkService {
        let me = Life {
            peer: fabric.me(),
            incarnation: fabric.incarnation(),
        };
        ChunkService {
            fabric: fabric.clone(),
            inbox: fabric.serve(ServiceId::CHUNKS, INBOX),
            me: me.into(),
            server: Server::new(me.into(), others.id),
            memory: Memory::new(fabric),
            words: Words::new(fabric),
            stopped: Stopped::default(),
            others,
            closing: BTreeSet::new(),
            arrived: HashMap::new(),
            drafted: HashMap::new(),
            changed: HashMap::new(),
            growing: VecDeque::new(),
            unsent: BTreeMap::new(),
            clients: BTreeSet::new(),
            given_up: BTreeSet::new(),
            here: HashMap::new(),
            last_here: 0,
            asking: None,
            counters: Counters::default(),
            recorder: Recorder::new(fabric),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.fabric.now().as_millis()).unwrap_or(u64::MAX)
    }

    fn hear(&mut self, heard: Inbound) {
        let (from, ticket) = (Process::from(heard.from), heard.id.map(Ticket));
        // Any process can send anything at any rate: logged without contents, and not as a warning.
        let Some(Message { notes, request }) = decode(&heard.bytes) else {
            tracing::debug!(%from, "{} bytes that are no request", heard.bytes.len());
            return;
        };
        self.counters.received += 1;
        self.clients.insert(from);
        for note in notes {
            self.ask(from, None, note);
        }
        if let Some(request) = request {
            self.ask(from, ticket, request);
        }
    }

    /// Returns true if there is something to do that does not wait for a time.
    pub(crate) fn has_work(&self) -> bool {
        let has_messages = self.inbox.waiting() > 0 || !self.unsent.is_empty();
        has_messages || !self.growing.is_empty() || self.others.fetches()
    }

    /// Handles a request, or a note, which has no ticket.
    fn ask(&mut self, from: Process, ticket: Option<Ticket>, mut request: Request) {
        if ticket.is_some_and(|ticket| self.server.is_waiting((from, ticket))) {
            return; // A client that numbers two requests alike hears of the first.
        }
        self.recorder.request(from, ticket, &request);
        if let Some(chunk) = request.recalls() {
            self.recall(chunk);
        }
        if let Request::Forget { ticket } = request {
            self.forget_owner((from, ticket));
            if from == self.me {
                self.here.remove(&ticket);
            }
            self.drafted.remove(&(from, ticket));
            if let Some(arrived) = self.arrived.remove(&(from, ticket)) {
                self.memory.drop_arrived(arrived);
            }
        }
        if let Some(ticket) = ticket
            && let Err(fault) = self.receive((from, ticket), &mut request)
        {
            return self.answer(from, ticket, &Answer::Failed(fault));
        }
        match (request, ticket) {
            (Request::Disowned { chunk }, None) => self.recall_again(chunk),
            (Request::Drained { chunk }, _) => {
                let closed = self.drained(chunk);
                closed.into_iter().for_each(|event| self.on_event(event));
            }
            (
                Request::Enroll {
                    chunk,
                    segment,
                    offset,
                },
                Some(ticket),
            ) => {
                let word = match self.server.knows(chunk) {
                    true => {
                        let bytes = self.server.bytes(chunk).unwrap_or(0);
                        let content = || self.memory.content(chunk);
                        (self.words).enroll(from, (chunk, bytes), (segment, offset), content)
                    }
                    false => None,
                };
                let home = self.server.home_of(chunk).filter(|_| word.is_some());
                let lease = match home {
                    // Its backups may take it over when it is lost.
                    None if self.server.is_replicated(chunk) => {
                        Some(self.others.own_lease(&self.fabric))
                    }
                    home => home.map(|home| self.others.lease(&self.fabric, home)),
                };
                // Without a place for the lease, clients ask for each guard.
                let word = word.filter(|_| lease != Some(None));
                let lease = lease.flatten();
                self.answer(from, ticket, &Answer::Enrolled { word, lease });
            }
            (Request::Hello { server, topology }, Some(ticket)) => {
                let answer = match self.meets(from, server, topology) {
                    true => Answer::Welcome,
                    false => Answer::Failed(Fault::OtherTopology),
                };
                self.answer(from, ticket, &answer);
            }
            (Request::Hello { server, topology }, None) => _ = self.meets(from, server, topology),
            (Request::Between(message), None) => self.hear_server(from, message),
            (Request::Expose { guard }, Some(ticket)) => {
                let answer = match self.memory.expose(from, guard) {
                    true => Answer::Exposed,
                    // Its memory is gone with the guard.
                    false => Answer::Failed(Fault::Fenced),
                };
                self.answer(from, ticket, &answer);
            }
            (Request::Count, Some(ticket)) => {
                let counters = self.counters;
                self.answer(from, ticket, &Answer::Counted(counters));
            }
            (Request::Overview { chunk }, Some(ticket)) => {
                let answer = Answer::Overview(self.overview(chunk));
                self.answer(from, ticket, &answer);
            }
            (request, ticket) => self.on_event(ServerEvent::Request {
                from,
                ticket,
                request,
            }),
        }
    }

    /// Returns that a chunk is closed, if no client has a read guard of its own any more.
    fn drained(&mut self, chunk: ChunkId) -> Option<ServerEvent> {
        if !self.closing.contains(&chunk) || self.words.readers(chunk).next().is_some() {
            return None;
        }
        self.closing.remove(&chunk);
        Some(ServerEvent::Closed(chunk))
    }

    /// Checks and stores the content that a request brings.
    fn receive(&mut self, asker: (Process, Ticket), request: &mut Request) -> Result<(), Fault> {
        if let Request::Commit { chunk, .. } | Request::Put { chunk, .. } = request
            && self.server.bytes(*chunk).is_none()
        {
            return Ok(()); // The state machine refuses it.
        }
        let (chunk, data) = match request {
            Request::Commit {
                chunk,
                guard,
                data: None,
                ..
            } => {
                // The state machine refuses a guard that has ended.
                let has_ended = !self.server.has_guard(asker.0, *chunk, *guard);
                return match has_ended || self.memory.take_back(asker.0, *guard) {
                    true => Ok(()),
                    false => Err(Fault::Malformed),
                };
            }
            Request::Commit {
                chunk,
                data: Some(data),
                ..
            }
            | Request::Put {
                chunk,
                from: PutFrom::Inline(data),
                ..
            } => (*chunk, std::mem::take(data)),
            Request::Put {
                chunk,
                from: PutFrom::Draft(draft),
                ..
            } => {
                if !self.server.has_draft(asker.0, *chunk, *draft) {
                    return Err(Fault::Fenced);
                }
                let draft = self.memory.take_draft(asker.0, *draft);
                self.arrives(asker, draft.ok_or(Fault::Malformed)?);
                self.drafted.insert(asker, *chunk);
                return Ok(());
            }
            Request::Subscribe { inbox, .. } if ServiceId::own(*inbox).is_none() => {
                return Err(Fault::Malformed);
            }
            _ => return Ok(()),
        };
        let bytes = data.len() as u64;
        if self.server.bytes(chunk) != Some(bytes) {
            return Err(Fault::Malformed);
        }
        let stored = self.memory.store(data);
        let stored = stored.map_err(|error| Fault::NoMemory {
            bytes,
            why: error.to_string(),
        })?;
        self.arrives(asker, stored);
        Ok(())
    }

    fn arrives(&mut self, asker: (Process, Ticket), content: Arrived) {
        if let Some(other) = self.arrived.insert(asker, content) {
            self.memory.drop_arrived(other);
        }
    }

    fn on_event(&mut self, event: ServerEvent) {
        self.recorder.event(&event);
        let now = self.now();
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.server.on_event(now, event) {
                events.extend(self.act(action));
            }
        }
    }

    /// Carries out an action. Returns what follows from it, to be handled after the other actions.
    fn act(&mut self, action: ServerAction) -> Option<ServerEvent> {
        self.recorder.action(&action, &self.server);
        match action {
            ServerAction::Answer {
                to,
                ticket,
                mut answer,
            } => {
                if let Some(arrived) = self.arrived.remove(&(to, ticket)) {
                    self.memory.drop_arrived(arrived);
                }
                if let Some(chunk) = self.drafted.remove(&(to, ticket))
                    && let Answer::Committed { draft, .. } = &mut answer
                {
                    *draft = self.next_draft((to, ticket), chunk);
                }
                if let Some(old) = self.changed.remove(&(to, ticket))
                    && let Answer::Committed { version, .. } = answer
                {
                    answer = Answer::Changed { version, old };
                }
                self.answer(to, ticket, &answer);
            }
            ServerAction::Draft {
                to,
                ticket,
                chunk,
                draft,
            } => {
                let answer = Answer::Drafted {
                    draft,
                    buffer: None,
                };
                return self.give_memory((to, ticket), (chunk, draft), answer);
            }
            ServerAction::Send { to, message } => self.say(to, message),
            ServerAction::Forward {
                to,
                chunk,
                guard,
                sent,
                epoch,
                tag,
                writer,
            } => self.forward(to, (chunk, guard), sent, (epoch, tag, writer)),
            ServerAction::AdoptFrom { from, chunk } => {
                self.counters.commits += 1;
                self.take_from(from, chunk, true);
            }
            ServerAction::DropFrom { from, chunk } => self.take_from(from, chunk, false),
            ServerAction::DropCopy { chunk } => self.drop_copy(chunk),
            ServerAction::Hold { chunk, written } => self.hold(chunk, written),
            ServerAction::Keep { from, chunk } => self.keep_from(from, chunk),
            ServerAction::Unkeep { chunk } => self.memory.unkeep(chunk),
            ServerAction::TakeOver {
                of, chunk, lost, ..
            } => self.take_over((of, lost), chunk),
            ServerAction::Own {
                to,
                ticket,
                chunk,
                page,
                version,
                tag,
            } => return self.own((to, ticket), chunk, page, (version, tag)),
            ServerAction::Tell { chunk, telling } => self.tell(chunk, telling),
            ServerAction::Took { who, version } => self.memory.took(who, version),
            ServerAction::Free { chunk, subscribers } => self.free(chunk, subscribers),
            ServerAction::Change {
                to,
                ticket,
                chunk,
                offset,
                op,
            } => self.change((to, ticket), chunk, offset, op),
            ServerAction::Late {
                to,
                ticket,
                chunk,
                mut holders,
                before,
                full,
            } => {
                let readers = self.words.readers(chunk);
                holders.extend(readers.map(|reader| (reader, Mode::Read)));
                let late = Answer::Failed(Fault::Late {
                    holders,
                    before,
                    full,
                });
                return self.act(ServerAction::Answer {
                    to,
                    ticket,
                    answer: late,
                });
            }
            ServerAction::Open {
                chunk,
                version,
                tag,
            } => {
                let content = || self.memory.content(chunk);
                self.words.open(chunk, (version, tag), content);
            }
            ServerAction::Close { chunk } => {
                self.counters.closed += 1;
                self.words.close(chunk);
                self.closing.insert(chunk);
                return self.drained(chunk);
            }
            ServerAction::Create { chunk, .. } => self.memory.create(chunk),
            ServerAction::Show {
                to,
                ticket,
                chunk,
                version,
                tag,
            } => {
                let content = self.memory.content(chunk);
                let answer = Answer::Version {
                    version,
                    tag,
                    content,
                };
                self.answer(to, ticket, &answer);
            }
            ServerAction::Give {
                to,
                ticket,
                chunk,
                guard,
                in_place,
                version,
                tag,
            } => {
                self.words.gives(to, chunk);
                self.others.uses(chunk);
                self.counters.guards += 1;
                let answer = Answer::Given {
                    guard,
                    version,
                    tag,
                    number: self.words.number(chunk, version),
                    content: self.memory.content(chunk),
                    buffer: None,
                };
                let bytes = self.server.bytes(chunk).unwrap_or(0);
                if !in_place || bytes <= INLINE {
                    self.answer(to, ticket, &answer);
                    return None;
                }
                return self.give_memory((to, ticket), (chunk, guard), answer);
            }
            ServerAction::Adopt { chunk, guard, sent } => {
                self.counters.commits += 1;
                if self.memory.adopt_held(chunk) {
                    return None;
                }
                let sent = match self.others.forwarded.remove(&guard) {
                    None => sent.and_then(|asker| self.arrived.remove(&asker)),
                    forwarded => forwarded,
                };
                self.memory.adopt(chunk, guard, sent);
            }
            ServerAction::Discard { chunk, guard } => {
                if let Some(forwarded) = self.others.forwarded.remove(&guard) {
                    self.memory.drop_arrived(forwarded);
                }
                self.memory.discard(guard);
                let at = self.growing.iter().position(|given| given.guard == guard);
                if let Some(given) = at.and_then(|at| self.growing.remove(at)) {
                    let (to, ticket) = given.to;
                    let fault = match self.server.bytes(chunk) {
                        Some(_) => Fault::Fenced,
                        None => Fault::Freed,
                    };
                    self.answer(to, ticket, &Answer::Failed(fault));
                }
            }
        }
        None
    }

    /// Returns the most active chunks, or that one, for people.
    fn overview(&self, only: Option<ChunkId>) -> Overview {
        let readers = |chunk| self.words.readers(chunk).collect();
        let name = |chunk| self.recorder.name(chunk);
        let mut found = (self.server).overview(only, self.recorder.activity(only), name, readers);
        for figures in &mut found.chunks {
            if let Some(at) = self.words.version(figures.chunk) {
                (figures.version, figures.tag) = at;
            }
        }
        found
    }

    /// Tells a subscriber of commits.
    fn tell(&mut self, chunk: ChunkId, telling: Telling) {
        let Telling {
            to,
            inbox,
            events,
            missed,
            with_content,
        } = telling;
        let last = events.last().filter(|_| with_content);
        let version = last.map(|last| last.version);
        let content = version.map(|version| self.memory.tell(chunk, to, version));
        let (process, id) = to;
        let told = Told {
            id,
            events,
            missed,
            content,
            ended: None,
            is_seen: false,
        };
        self.tell_inbox(process, inbox, &told);
    }

    /// Tells subscribers that there are no more events.
    pub(super) fn tell_end(&mut self, subscribers: Vec<(Subscriber, u16)>, why: Ended) {
        for ((process, id), inbox) in subscribers {
            let told = Told {
                id,
                events: Vec::new(),
                missed: 0,
                content: None,
                ended: Some(why),
                is_seen: false,
            };
            self.tell_inbox(process, inbox, &told);
        }
    }

    fn tell_inbox(&mut self, to: Process, inbox: u16, told: &Told) {
        if let Some(service) = ServiceId::own(inbox) {
            self.counters.told += 1;
            self.send(to, To::Inbox(service), encode(told));
        }
    }

    /// A chunk was removed.
    fn free(&mut self, chunk: ChunkId, subscribers: Vec<(Subscriber, u16)>) {
        self.closing.remove(&chunk);
        self.words.free(chunk);
        self.drop_copy(chunk);
        self.tell_end(subscribers, Ended::Freed);
    }

    /// Changes a word of a short chunk: what a put of that request would bring.
    fn change(&mut self, asker: (Process, Ticket), chunk: ChunkId, offset: u64, op: Op) {
        let bytes = self.server.bytes(chunk).unwrap_or(0);
        let mut content = match self.memory.content(chunk) {
            Content::Inline(content) => content,
            _ => vec![0; bytes as usize],
        };
        let word = content
            .get_mut(offset as usize..)
            .and_then(|rest| rest.first_chunk_mut::<8>());
        let Some(word) = word else {
            return; // The state machine has checked it.
        };
        let old = u64::from_le_bytes(*word);
        *word = op.apply(old).to_le_bytes();
        self.arrives(asker, Arrived::inline(content));
        self.changed.insert(asker, old);
    }

    /// Ends the guards of processes that are stopped and keep others waiting.
    fn fence(&mut self) {
        if self.stopped.is_due(self.fabric.now()) {
            // The note of a client that has no guard left may have been lost.
            self.check_closing();
            for chunk in self.words.recalled() {
                self.recall_again(chunk);
            }
        }
        let (server, words) = (&self.server, &self.words);
        let blockers = || {
            let blockers = server.blockers();
            let all = blockers.flat_map(|(chunk, holder)| {
                let readers = holder.is_none().then(|| words.readers(chunk));
                holder.into_iter().chain(readers.into_iter().flatten())
            });
            all.collect()
        };
        for process in self.stopped.look(&self.fabric, blockers) {
            tracing::warn!(%process, "a process that is stopped loses its guards");
            self.end_ownerships(process);
            self.on_event(ServerEvent::Fence(process));
            for chunk in &self.closing {
                if self.words.readers(*chunk).any(|reader| reader == process) {
                    self.words.fence(process, *chunk);
                }
            }
            self.check_closing();
        }
        for server in self.server.blocking_servers() {
            if self.others.lease_of(server, self.fabric.now()).is_zero() {
                self.not_fetched_from(server);
                tracing::warn!(%server, "a server that does not answer loses its copies");
                self.on_event(ServerEvent::FenceServer(server));
            }
        }
    }

    /// Looks whether the clients of chunks that are closed have read guards of their own left.
    fn check_closing(&mut self) {
        for chunk in self.closing.clone() {
            let closed = self.drained(chunk);
            closed.into_iter().for_each(|event| self.on_event(event));
        }
    }

    /// A process is lost.
    fn forget(&mut self, process: Process) {
        // Those that own what it has read do not look at its words any more.
        for chunk in self.words.owned_and_read_by(process) {
            self.recall(chunk);
        }
        self.words.forget(process);
        self.forget_server(process);
        self.end_requests(process);
        self.clients.remove(&process);
        self.given_up.remove(&process);
    }

    /// Ends the requests of a process, and the guards that it was given. Those that it took itself
    /// count as long as it lives.
    fn end_requests(&mut self, process: Process) {
        self.end_ownerships(process);
        self.unsent.remove(&process);
        self.drafted.retain(|(of, _), _| *of != process);
        self.changed.retain(|(of, _), _| *of != process);
        let arrived = self.arrived.keys().filter(|(of, _)| *of == process);
        let arrived: Vec<_> = arrived.copied().collect();
        self.on_event(ServerEvent::Lost(process));
        self.check_closing();
        for asker in arrived {
            if let Some(arrived) = self.arrived.remove(&asker) {
                self.memory.drop_arrived(arrived);
            }
        }
    }
}

impl agent::Service for ChunkService {
    fn name(&self) -> &'static str {
        "chunks"
    }

    fn owns(&self) -> Vec<Owned> {
        vec![
            Owned::count("chunks", self.server.len() as u64),
            Owned::bytes("shared memory", self.memory.used()),
        ]
    }

    fn poll(&mut self) -> bool {
        self.keep_leases();
        let has_fetched = self.fetched();
        self.keep_leases();
        let waiting = self.inbox.waiting();
        for _ in 0..waiting {
            let Some(heard) = self.inbox.take() else {
                break;
            };
            let Life { peer, incarnation } = heard.from;
            if self.fabric.lost_life(peer, incarnation).is_none() {
                self.hear(heard);
                // This process may have been stopped meanwhile.
                self.keep_leases();
            }
        }
        self.send_again();
        self.memory.tidy(self.now());
        let grows = !self.growing.is_empty();
        self.grow();
        self.fence();
        let is_due = self.server.wake_at().is_some_and(|at| at <= self.now());
        if is_due {
            self.on_event(ServerEvent::Tick);
        }
        waiting > 0 || grows || is_due || has_fetched
    }

    fn next(&mut self) -> Duration {
        if !self.growing.is_empty() {
            return Duration::ZERO;
        }
        let due = self.server.wake_at();
        let due = due.map(|at| Duration::from_millis(at.saturating_sub(self.now())));
        let due = due.unwrap_or(Duration::MAX);
        let is_blocked = self.server.blockers().next().is_some();
        let due = if is_blocked { due.min(LOOK) } else { due };
        let due = due.min(self.others.next(|| self.fabric.now()));
        let servers = self.server.blocking_servers().into_iter();
        let leases = servers.map(|server| self.others.lease_of(server, self.fabric.now()));
        let due = leases.min().map_or(due, |lease| due.min(lease));
        let due = match self.memory.has_surplus() {
            true => due.min(TIDY),
            false => due,
        };
        match self.unsent.is_empty() {
            true => due,
            false => due.min(SOON),
        }
    }

    fn has_news(&self) -> bool {
        self.inbox.waiting() > 0
    }

    fn peers_lost(&mut self, lost: Lost<'_>) {
        let gone = self.clients.iter().copied();
        let gone: Vec<Process> = gone.filter(|client| lost.has((*client).into())).collect();
        for process in gone {
            // Its last requests count: it may have committed before it died.
            while let Some(heard) = self.inbox.take_of(process.into()) {
                self.hear(heard);
            }
            self.forget(process);
        }
    }

    fn end(&mut self) {
        self.send_again();
    }
}

fn encode(message: &impl serde::Serialize) -> Vec<u8> {
    postcard::to_stdvec(message).expect("plain data are encodable")
}

/// Decodes a message; `None` if it is malformed.
fn decode(bytes: &[u8]) -> Option<Message> {
    // It begins with the number of its notes, which take more memory than bytes.
    let (notes, _) = postcard::take_from_bytes::<u64>(bytes).ok()?;
    if notes > MOST_NOTES {
        return None;
    }
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) if bytes.len() <= LONGEST => Some(message),
        _ => None,
    }
}
