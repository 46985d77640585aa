//! The world of a run: time, the network, the keepers, the steward, and what must hold at every moment.

mod keepers;

use crate::plan::{Plan, Victim};
use crate::reader::ReaderRank;
use crate::sequence::Log;
use crate::watcher::Watcher;
use crate::writer::WriterRank;
use fastrand::Rng;
use keepers::Keeper;
use samite_stage::protocol::{
    Action, Answer, BufferId, EndOfStream, Event, Failure, Fault, Notice, Peer, ReaderId, Request,
    Step, Steward, StreamId, Ticket, WriterId, decode, encode,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};

/// What may happen at a time.
#[derive(Debug)]
enum Happening {
    ToSteward(Peer, Vec<u8>),
    ToPeer(Peer, Vec<u8>),
    LostHeard(Peer),
    Timer(Peer),
    Tick,
    Kill(Victim),
    StartWriter(u32),
    StartReader(usize, u32),
    StartWatcher(usize, Option<Step>),
}

/// What happened how often, over all runs: a simulator that never gets somewhere proves nothing about it.
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
    /// What writers keep of the step that they committed last, from the answer to it until they send the next commit.
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
    /// Streams that were forgotten as soon as they had ended: nobody read them, and how many steps they had is not known.
    unread: HashSet<StreamId>,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    happenings: HashMap<u64, Happening>,
    next: u64,
    next_peer: u32,
    /// When the last message of a pair arrives: the next one not before.
    arrival: HashMap<(Peer, bool), u64>,
    keepers: BTreeMap<Peer, Keeper>,
    questions: HashMap<(Peer, Ticket), (u64, String)>,
    steward: Steward,
    tick_at: Option<u64>,
}

/// Longest time that passes between a deadline and its news, beside the ways of question and answer.
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
            keepers: BTreeMap::new(),
            questions: HashMap::new(),
            steward: Steward::new(),
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
    fn way(&mut self, peer: Peer, to_steward: bool) -> u64 {
        let time = self.now + self.rng.u64(0..=self.plan.delay);
        let last = self.arrival.entry((peer, to_steward)).or_default();
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

    /// A stream that has ended well was closed by every rank; one that has failed was not closed by the rank that it names.
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

    /// A peer speaks to the steward. A question must be answered in time.
    pub(crate) fn say(&mut self, from: Peer, request: Request) {
        if let Some((ticket, patience)) = question(&request) {
            let until = self.now + patience + 2 * self.plan.delay + SLACK;
            let text = format!("{request:?}");
            assert!(
                self.questions
                    .insert((from, ticket), (until, text))
                    .is_none(),
                "a ticket twice"
            );
        }
        let time = self.way(from, true);
        self.at(time, Happening::ToSteward(from, encode(&request)));
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
        let running = self.steward.figures().into_iter();
        let running = running.filter(|stream| stream.end.is_none());
        let running: Vec<StreamId> = running.map(|stream| stream.id).collect();
        for Action::Send(to, notice) in self.steward.on_event(self.now, event) {
            if let Notice::Answer { ticket, answer } = &notice {
                self.is_answered(to, *ticket, answer);
            }
            let time = self.way(to, false);
            self.at(time, Happening::ToPeer(to, encode(&notice)));
        }
        for figures in self.steward.figures() {
            self.committed.insert(figures.id, figures.committed);
        }
        let there: HashSet<StreamId> = self.steward.figures().iter().map(|at| at.id).collect();
        let ended = running.into_iter().filter(|id| !there.contains(id));
        self.unread.extend(ended);
        if let Some(wake) = self.steward.wake_at() {
            let time = wake.max(self.now);
            if self.tick_at.is_none_or(|at| at > time) {
                self.tick_at = Some(time);
                self.at(time, Happening::Tick);
            }
        }
        for &keeper in self.keepers.keys() {
            assert!(
                self.steward.governor().used_at(keeper) <= self.plan.memory,
                "G1"
            );
        }
    }
}

/// Whether a stream has not ended. When it has, because a rank was lost, another rank may not know it yet.
fn figures_run(steward: &Steward, stream: StreamId) -> bool {
    let mut figures = steward.figures().into_iter();
    figures.any(|figures| figures.id == stream && figures.end.is_none())
}

fn question(request: &Request) -> Option<(Ticket, u64)> {
    match *request {
        Request::OpenWriter {
            ticket, patience, ..
        }
        | Request::Begin {
            ticket, patience, ..
        }
        | Request::Reserve {
            ticket, patience, ..
        }
        | Request::OpenReader {
            ticket, patience, ..
        }
        | Request::Next {
            ticket, patience, ..
        }
        | Request::At {
            ticket, patience, ..
        }
        | Request::OpenWatch {
            ticket, patience, ..
        }
        | Request::Watch {
            ticket, patience, ..
        } => Some((ticket, patience)),
        Request::Commit { ticket, .. } | Request::CloseWriter { ticket, .. } => Some((ticket, 0)),
        _ => None,
    }
}

/// A process that writes or reads.
enum Actor {
    Writer(WriterRank),
    Reader(ReaderRank),
    Watcher(Watcher),
}

/// A run and its actors.
struct Run {
    world: World,
    actors: HashMap<Peer, Actor>,
    keepers: Vec<Peer>,
}

/// Runs a plan to its end and checks it; returns what was seen.
pub(crate) fn run(plan: Plan) -> Seen {
    let mut run = Run {
        world: World::new(plan),
        actors: HashMap::new(),
        keepers: Vec::new(),
    };
    run.start();
    let mut events = 0u64;
    while let Some(Reverse((time, number))) = run.world.events.pop() {
        run.world.now = time;
        let happening = run
            .world
            .happenings
            .remove(&number)
            .expect("it was put there");
        run.happen(happening);
        events += 1;
        assert!(
            events < 200_000,
            "the run does not end; waiting: {:?}",
            run.world.questions.values()
        );
    }
    run.check_end();
    run.world.seen
}

impl Run {
    fn start(&mut self) {
        for _ in 0..self.world.plan.keepers {
            let keeper = self.world.start_keeper();
            self.keepers.push(keeper);
        }
        let plan = self.world.plan.clone();
        for rank in 0..plan.writers {
            let time = self.world.plan.delay + 1 + self.world.rng.u64(0..50);
            self.world.at(time, Happening::StartWriter(rank));
        }
        for (group, program) in plan.programs.iter().enumerate() {
            for rank in 0..program.reader.size {
                let time = program.from + self.world.rng.u64(0..30);
                self.world.at(time, Happening::StartReader(group, rank));
            }
        }
        for (number, watch) in plan.watches.iter().enumerate() {
            self.world
                .at(watch.from, Happening::StartWatcher(number, None));
        }
        for &(time, victim) in &plan.kills {
            self.world.at(time, Happening::Kill(victim));
        }
    }

    fn happen(&mut self, happening: Happening) {
        let world = &mut self.world;
        match happening {
            Happening::ToSteward(from, bytes) => {
                let request = decode(&bytes).expect("what was encoded");
                world.feed(Event::Said(from, request));
            }
            Happening::LostHeard(peer) => world.feed(Event::Lost(peer)),
            Happening::Tick => {
                if world.tick_at == Some(world.now) {
                    world.tick_at = None;
                    world.feed(Event::Tick);
                }
            }
            Happening::ToPeer(to, bytes) => {
                self.hear(to, decode(&bytes).expect("what was encoded"))
            }
            Happening::Timer(peer) => self.with(peer, |actor, world| match actor {
                Actor::Writer(writer) => writer.on_timer(world),
                Actor::Reader(reader) => reader.on_timer(world),
                Actor::Watcher(watcher) => watcher.on_timer(world),
            }),
            Happening::Kill(victim) => self.kill(victim),
            Happening::StartWriter(rank) => {
                let peer = world.new_peer();
                let writer = WriterRank::start(world, peer, rank);
                self.actors.insert(peer, Actor::Writer(writer));
            }
            Happening::StartReader(group, rank) => {
                let peer = world.new_peer();
                let reader = ReaderRank::start(world, peer, group, rank);
                self.actors.insert(peer, Actor::Reader(reader));
            }
            Happening::StartWatcher(number, next) => {
                let peer = world.new_peer();
                let watcher = Watcher::start(world, peer, number, next);
                self.actors.insert(peer, Actor::Watcher(watcher));
            }
        }
    }

    fn with(&mut self, peer: Peer, what: impl FnOnce(&mut Actor, &mut World)) {
        if let Some(mut actor) = self.actors.remove(&peer) {
            what(&mut actor, &mut self.world);
            self.actors.insert(peer, actor);
        }
    }

    fn hear(&mut self, to: Peer, notice: Notice) {
        match notice {
            Notice::Order(order) => self.world.obey(to, order),
            Notice::Answer { ticket, answer } => {
                let asked = self.world.questions.remove(&(to, ticket));
                if !self.actors.contains_key(&to) {
                    return; // it died
                }
                let (until, question) = asked.expect("one answer to a question");
                let now = self.world.now;
                assert!(
                    now <= until,
                    "at {now}, too late by {}: {question} -> {answer:?}",
                    now - until
                );
                if let Answer::Failed(fault) | Answer::Waiting(fault) = &answer {
                    self.world.seen.add(crate::name_of(fault));
                }
                self.with(to, |actor, world| match actor {
                    Actor::Writer(writer) => writer.on_answer(world, answer),
                    Actor::Reader(reader) => reader.on_answer(world, ticket, answer),
                    Actor::Watcher(watcher) => watcher.on_answer(world, answer),
                });
            }
        }
    }

    fn kill(&mut self, victim: Victim) {
        let matches = |actor: &Actor| match (victim, actor) {
            (Victim::Writer(rank, _), Actor::Writer(writer)) => writer.rank == rank,
            (Victim::Reader(group, rank, _), Actor::Reader(reader)) => {
                (reader.group, reader.rank) == (group, rank)
            }
            (Victim::Watcher(number, _), Actor::Watcher(watcher)) => watcher.number == number,
            _ => false,
        };
        let peer = match victim {
            Victim::Keeper(number) => {
                Some(self.keepers[number]).filter(|keeper| self.world.keepers.contains_key(keeper))
            }
            _ => self
                .actors
                .iter()
                .find(|(_, actor)| matches(actor))
                .map(|(&peer, _)| peer),
        };
        let Some(peer) = peer else {
            return; // not started yet, or dead
        };
        let actor = self.actors.remove(&peer);
        let done = match &actor {
            Some(Actor::Writer(writer)) => writer.is_done(),
            Some(Actor::Reader(reader)) => reader.is_done(),
            Some(Actor::Watcher(watcher)) => watcher.is_done(),
            None => false,
        };
        self.world.keepers.remove(&peer);
        self.world.questions.retain(|(from, _), _| *from != peer);
        self.world.held.retain(|(from, _), _| *from != peer);
        self.world.kept.remove(&peer);
        let heard = self.world.way(peer, true);
        self.world.at(heard, Happening::LostHeard(peer));
        let later = self.world.now + self.world.rng.u64(0..1500);
        match victim {
            _ if done => {}
            Victim::Writer(rank, true) => self.world.at(later, Happening::StartWriter(rank)),
            Victim::Reader(group, rank, true) => {
                self.world.at(later, Happening::StartReader(group, rank))
            }
            Victim::Watcher(number, true) => {
                let next = match &actor {
                    Some(Actor::Watcher(watcher)) => watcher.next,
                    _ => None,
                };
                self.world.at(later, Happening::StartWatcher(number, next));
            }
            _ => {}
        }
        self.world.seen.add(match victim {
            Victim::Writer(..) => "killed writer",
            Victim::Reader(..) => "killed reader",
            Victim::Keeper(_) => "killed keeper",
            Victim::Watcher(..) => "killed subscriber",
        });
    }

    /// Nothing is left of anything.
    fn check_end(&mut self) {
        let world = &mut self.world;
        assert!(
            world.questions.is_empty(),
            "never answered: {:?}",
            world.questions
        );
        assert!(world.held.is_empty(), "still held: {:?}", world.held);
        assert!(world.kept.is_empty(), "still kept: {:?}", world.kept);
        assert_eq!(world.steward.figures(), [], "streams are left");
        assert_eq!(world.steward.subscriptions(), 0, "subscriptions are left");
        for (&peer, keeper) in &world.keepers {
            assert!(
                keeper.buffers.is_empty(),
                "{peer} still has {:?}",
                keeper.buffers.keys()
            );
            assert_eq!((keeper.used, keeper.disk), (0, 0));
            assert_eq!(world.steward.governor().used_at(peer), 0);
        }
        for (&(stream, step), ranks) in &world.told {
            // Who was told that its part is committed has not been told wrong by a stream that ends well.
            let is_known = world.well.contains(&stream) && !world.unread.contains(&stream);
            if let Some(&committed) = world.committed.get(&stream).filter(|_| is_known) {
                assert!(
                    step < committed,
                    "the stream ended well after {committed} steps, and {ranks:?} have committed step {step}"
                );
            }
            let everybody = ranks.len() == world.plan.writers as usize;
            if everybody && !world.unread.contains(&stream) {
                let committed = world.committed[&stream];
                assert!(
                    step < committed,
                    "step {step} was committed by all and is lost: there are {committed}"
                );
            }
        }
        crate::sequence::check(world);
    }
}
