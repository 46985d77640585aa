//! A run from its begin to its end: its actors, and what happens to them.

use super::{Happening, World};
use crate::simulated::plan::{Plan, Victim};
use crate::simulated::reader::ReaderRank;
use crate::simulated::watcher::Watcher;
use crate::simulated::world::Seen;
use crate::simulated::writer::WriterRank;
use samite_stage::protocol::{Answer, Event, Notice, Peer, decode};
use std::cmp::Reverse;
use std::collections::HashMap;

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
    block_stores: Vec<Peer>,
}

/// Runs a plan to its end and checks it; returns what was seen.
pub(crate) fn run(plan: Plan) -> Seen {
    let mut run = Run {
        world: World::new(plan),
        actors: HashMap::new(),
        block_stores: Vec::new(),
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
        for _ in 0..self.world.plan.block_stores {
            let block_store = self.world.start_block_store();
            self.block_stores.push(block_store);
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
            Happening::ToCoordinator(from, bytes) => {
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
                    self.world.seen.add(crate::simulated::name_of(fault));
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
            Victim::BlockStore(number) => Some(self.block_stores[number])
                .filter(|block_store| self.world.block_stores.contains_key(block_store)),
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
        self.world.block_stores.remove(&peer);
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
            Victim::BlockStore(_) => "killed block store",
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
        assert_eq!(world.coordinator.figures(), [], "streams are left");
        assert_eq!(
            world.coordinator.subscriptions(),
            0,
            "subscriptions are left"
        );
        for (&peer, block_store) in &world.block_stores {
            assert!(
                block_store.buffers.is_empty(),
                "{peer} still has {:?}",
                block_store.buffers.keys()
            );
            assert_eq!((block_store.used, block_store.disk), (0, 0));
            assert_eq!(world.coordinator.admission().used_at(peer), 0);
        }
        for (&(stream, step), ranks) in &world.told {
            // Who was told that its part is committed has not been told wrong by a stream that ends
            // well.
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
        crate::simulated::sequence::check(world);
    }
}
