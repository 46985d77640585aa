//! The world of a run: time, the network, the block stores, the coordinator, and what must hold at
//! every moment.

mod block_stores;
mod run;

use crate::simulated::plan::{Plan, Victim};
use crate::simulated::sequence::Log;
use block_stores::BlockStore;
use fastrand::Rng;
pub(crate) use run::run;
use samite_stage::protocol::{
    Action, Answer, BufferId, Coordinator, EndOfStream, Event, Failure, Fault, Notice, Peer,
    ReaderId, Request, Step, StreamId, Ticket, WriterId, encode,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};

/// What may happen at a time.
#[derive(Debug)]
enum Happening {
    ToCoordinator(Peer, Vec<u8>),
    ToPeer(Peer, Vec<u8>),
    LostHeard(Peer),
    Timer(Peer),
    Tick,
    Kill(Victim),
    StartWriter(u32),
    StartReader(usize, u32),
    StartWatcher(usize, Option<Step>),
}

/// What happened how often, over all runs: a simulator that never gets somewhere proves nothing
/// about it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Seen(pub BTreeMap<&'static str, u64>);

impl Seen {
    pub(crate) fn add(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    pub(crate) fn merge(&mut self, other: Seen) {
        for (what, times) in other.0 {
            *self.0.entry(what).or_default() += times;
        }
    }
}

/// Everything but the actors.
pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) seen: Seen,
    /// What each group got.
    pub(crate) logs: BTreeMap<(StreamId, u64), Log>,
    /// What readers hold: a buffer may not be freed meanwhile.
    pub(crate) held: HashMap<(Peer, Ticket), Vec<BufferId>>,
    /// What writers keep of the step that they committed last, from the answer to it until they
    /// send the next commit.
    pub(crate) kept: HashMap<Peer, Vec<BufferId>>,
    /// Committed steps of each stream.
    pub(crate) committed: BTreeMap<StreamId, Step>,
    /// The ranks that were told that their part of a step is committed.
    pub(crate) told: BTreeMap<(StreamId, Step), HashSet<u32>>,
    /// The ranks that have closed a stream.
    closed: BTreeMap<StreamId, HashSet<u32>>,
    /// By which questions they do, until these are answered.
    closing: HashMap<(Peer, Ticket), WriterId>,
    /// Streams that have ended well.
    well: HashSet<StreamId>,
    /// Streams that were forgotten as soon as they had ended: nobody read them, and how many steps
    /// they had is not known.
    unread: HashSet<StreamId>,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    happenings: HashMap<u64, Happening>,
    next: u64,
    next_peer: u32,
    /// When the last message of a pair arrives: the next one not before.
    arrival: HashMap<(Peer, bool), u64>,
    block_stores: BTreeMap<Peer, BlockStore>,
    questions: HashMap<(Peer, Ticket), (u64, String)>,
    coordinator: Coordinator,
    tick_at: Option<u64>,
}

/// Longest time that passes between a deadline and its news, beside the ways of question and
/// answer.
const SLACK: u64 = 2;

impl World {
    fn new(plan: Plan) -> Self {
        World {
            now: 0,
            rng: Rng::with_seed(plan.seed ^ 0x5eed),
            seen: Seen::default(),
            logs: BTreeMap::new(),
            held: HashMap::new(),
            kept: HashMap::new(),
            committed: BTreeMap::new(),
            told: BTreeMap::new(),
            closed: BTreeMap::new(),
            closing: HashMap::new(),
            well: HashSet::new(),
            unread: HashSet::new(),
            events: BinaryHeap::new(),
            happenings: HashMap::new(),
            next: 0,
            next_peer: 0,
            arrival: HashMap::new(),
            block_stores: BTreeMap::new(),
            questions: HashMap::new(),
            coordinator: Coordinator::new(),
            tick_at: None,
            plan,
        }
    }

    fn at(&mut self, time: u64, what: Happening) {
        self.events.push(Reverse((time, self.next)));
        self.happenings.insert(self.next, what);
        self.next += 1;
    }

    fn new_peer(&mut self) -> Peer {
        self.next_peer += 1;
        // The slot of one that is gone comes again, in another life.
        Peer::new(self.next_peer % 5, self.next_peer)
    }

    /// When a message that leaves now arrives.
    fn way(&mut self, peer: Peer, to_coordinator: bool) -> u64 {
        let time = self.now + self.rng.u64(0..=self.plan.delay);
        let last = self.arrival.entry((peer, to_coordinator)).or_default();
        *last = time.max(*last);
        *last
    }

    /// A rank says that it has written all; it has closed unless it is refused.
    pub(crate) fn closes(&mut self, peer: Peer, ticket: Ticket, writer: WriterId) {
        let closed = self.closed.entry(writer.stream).or_default();
        closed.insert(writer.rank);
        self.closing.insert((peer, ticket), writer);
    }

    fn is_answered(&mut self, peer: Peer, ticket: Ticket, answer: &Answer) {
        if let Some(writer) = self.closing.remove(&(peer, ticket))
            && matches!(answer, Answer::Failed(Fault::ClosesEarly { .. }))
        {
            let closed = self.closed.entry(writer.stream).or_default();
            closed.remove(&writer.rank);
        }
    }

    /// A stream that has ended well was closed by every rank; one that has failed was not closed by
    /// the rank that it names.
    pub(crate) fn is_end(&mut self, stream: StreamId, end: EndOfStream) {
        let closed = self.closed.entry(stream).or_default();
        match end {
            EndOfStream::Closed => {
                assert_eq!(
                    closed.len(),
                    self.plan.writers as usize,
                    "closed by {closed:?}"
                );
                self.seen.add("closed well");
                self.well.insert(stream);
            }
            EndOfStream::WriterFailed { rank, how } => {
                assert!(!closed.contains(&rank), "rank {rank} {how}");
                self.seen.add(match how {
                    Failure::NeverCame => "never came",
                    Failure::Died => "died",
                    Failure::GaveUp => "gave up",
                    Failure::ClosedEarly => panic!("only files end so"),
                });
            }
        }
    }

    /// A peer speaks to the coordinator. A question must be answered in time.
    pub(crate) fn say(&mut self, from: Peer, request: Request) {
        if let Some((ticket, timeout)) = question(&request) {
            let until = self.now + timeout + 2 * self.plan.delay + SLACK;
            let text = format!("{request:?}");
            assert!(
                self.questions
                    .insert((from, ticket), (until, text))
                    .is_none(),
                "a ticket twice"
            );
        }
        let time = self.way(from, true);
        self.at(time, Happening::ToCoordinator(from, encode(&request)));
    }

    pub(crate) fn timer(&mut self, peer: Peer, after: u64) {
        let time = self.now + after;
        self.at(time, Happening::Timer(peer));
    }

    /// The log of a reader's group.
    pub(crate) fn log(&mut self, reader: ReaderId, program: usize) -> &mut Log {
        let first = !self.logs.keys().any(|(stream, _)| *stream == reader.stream);
        let log = self.logs.entry((reader.stream, reader.group));
        log.or_insert_with(|| Log {
            program,
            lives: Vec::new(),
            first,
        })
    }

    fn feed(&mut self, event: Event) {
        let running = self.coordinator.figures().into_iter();
        let running = running.filter(|stream| stream.end.is_none());
        let running: Vec<StreamId> = running.map(|stream| stream.id).collect();
        for Action::Send(to, notice) in self.coordinator.on_event(self.now, event) {
            if let Notice::Answer { ticket, answer } = &notice {
                self.is_answered(to, *ticket, answer);
            }
            let time = self.way(to, false);
            self.at(time, Happening::ToPeer(to, encode(&notice)));
        }
        for figures in self.coordinator.figures() {
            self.committed.insert(figures.id, figures.committed);
        }
        let there: HashSet<StreamId> = self.coordinator.figures().iter().map(|at| at.id).collect();
        let ended = running.into_iter().filter(|id| !there.contains(id));
        self.unread.extend(ended);
        if let Some(wake) = self.coordinator.wake_at() {
            let time = wake.max(self.now);
            if self.tick_at.is_none_or(|at| at > time) {
                self.tick_at = Some(time);
                self.at(time, Happening::Tick);
            }
        }
        for &block_store in self.block_stores.keys() {
            assert!(
                self.coordinator.admission().used_at(block_store) <= self.plan.memory,
                "G1"
            );
        }
    }
}

/// Whether a stream has not ended. When it has, because a rank was lost, another rank may not know
/// it yet.
fn figures_run(coordinator: &Coordinator, stream: StreamId) -> bool {
    let mut figures = coordinator.figures().into_iter();
    figures.any(|figures| figures.id == stream && figures.end.is_none())
}

fn question(request: &Request) -> Option<(Ticket, u64)> {
    match *request {
        Request::OpenWriter {
            ticket, timeout, ..
        }
        | Request::Begin {
            ticket, timeout, ..
        }
        | Request::Reserve {
            ticket, timeout, ..
        }
        | Request::OpenReader {
            ticket, timeout, ..
        }
        | Request::Next {
            ticket, timeout, ..
        }
        | Request::At {
            ticket, timeout, ..
        }
        | Request::OpenWatch {
            ticket, timeout, ..
        }
        | Request::Watch {
            ticket, timeout, ..
        } => Some((ticket, timeout)),
        Request::Commit { ticket, .. } | Request::CloseWriter { ticket, .. } => Some((ticket, 0)),
        _ => None,
    }
}
