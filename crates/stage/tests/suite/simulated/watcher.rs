//! A subscriber of the simulator: what it is told is compared, step by step, with what the plan
//! says is written.

use crate::simulated::plan::Plan;
use crate::simulated::world::World;
use samite_stage::Region;
use samite_stage::protocol::{
    Answer, Fault, Interest, News, Peer, Request, Start, Step, Ticket, WatchId, Written,
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Opening,
    Asking,
    Resting,
    Done,
}

pub(crate) struct Watcher {
    pub(crate) number: usize,
    peer: Peer,
    stage: Stage,
    id: Option<WatchId>,
    tickets: u64,
    /// The first step of which it was not told; `None` before the first news of one that begins
    /// where it can.
    pub(crate) next: Option<Step>,
    failures: u32,
}

/// What the plan says of a box in a step: nothing, what is to be told, or that there is no such
/// box.
fn planned(plan: &Plan, step: Step, interest: &Interest) -> Option<Result<(Region, u64), ()>> {
    let layouts: Vec<_> = (0..plan.writers)
        .map(|rank| plan.layout(step, rank))
        .collect();
    let variables = layouts.iter().flat_map(|layout| &layout.variables);
    let named: Vec<_> = variables
        .filter(|variable| variable.name == interest.variable)
        .collect();
    let shape = named.first()?.shape.clone();
    let asked = match &interest.region {
        Some(region) => region.clone(),
        None => Region::whole(&shape).unwrap(),
    };
    let fits = asked.dims() == shape.len() && asked.upper().iter().zip(&shape).all(|(u, s)| u <= s);
    if !fits {
        return Some(Err(()));
    }
    let blocks = named.iter().flat_map(|variable| &variable.blocks);
    let parts: Vec<Region> = blocks
        .filter_map(|block| block.region.intersection(&asked))
        .filter(|part| !part.is_empty())
        .collect();
    let dims = 0..asked.dims();
    let least = |dim: usize| parts.iter().map(|part| part.lower()[dim]).min();
    let most = |dim: usize| parts.iter().map(|part| part.upper()[dim]).max();
    let lower: Vec<u64> = dims.clone().map(least).collect::<Option<_>>()?;
    let upper: Vec<u64> = dims.map(most).collect::<Option<_>>()?;
    let elements = parts.iter().map(|part| part.volume().unwrap()).sum();
    Some(Ok((Region::new(&lower, &upper).unwrap(), elements)))
}

impl Watcher {
    pub(crate) fn start(
        world: &mut World,
        peer: Peer,
        number: usize,
        next: Option<Step>,
    ) -> Watcher {
        let plan = &world.plan.watches[number];
        let known = match plan.start {
            Start::Step(step) => Some(step),
            _ => None,
        };
        if next.is_some() {
            world.seen.add("subscriber came back");
        }
        let mut watcher = Watcher {
            number,
            peer,
            stage: Stage::Opening,
            id: None,
            tickets: 0,
            next: next.or(known),
            failures: 0,
        };
        watcher.open(world);
        watcher
    }

    pub(crate) fn is_done(&self) -> bool {
        self.stage == Stage::Done
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    fn open(&mut self, world: &mut World) {
        self.stage = Stage::Opening;
        let plan = world.plan.watches[self.number].clone();
        let request = Request::OpenWatch {
            ticket: self.ticket(),
            stream: "field".into(),
            interest: Box::new(plan.interest),
            start: self.next.map_or(plan.start, Start::Step),
            most: plan.most,
            timeout: 500,
        };
        world.say(self.peer, request);
    }

    fn rest(&mut self, world: &mut World) {
        self.stage = Stage::Resting;
        let slow = world.plan.watches[self.number].slow;
        let time = world.rng.u64(0..=slow);
        world.timer(self.peer, time);
    }

    pub(crate) fn on_timer(&mut self, world: &mut World) {
        match (self.stage, self.id) {
            (Stage::Resting, Some(watch)) => {
                self.stage = Stage::Asking;
                let request = Request::Watch {
                    ticket: self.ticket(),
                    watch,
                    timeout: world.plan.timeout,
                };
                world.say(self.peer, request);
            }
            (Stage::Resting, None) => self.open(world),
            _ => {}
        }
    }

    pub(crate) fn on_answer(&mut self, world: &mut World, answer: Answer) {
        match (answer, self.stage) {
            (Answer::Watching { watch, .. }, Stage::Opening) => {
                self.id = Some(watch);
                self.rest(world);
            }
            (Answer::News(news), Stage::Asking) => {
                match *news {
                    News::Written(written) => {
                        world.seen.add("written");
                        self.is_right(world, &written);
                        self.told(world, written.step, written.step);
                    }
                    News::Missed { first, last } => {
                        world.seen.add("missed");
                        assert!(first <= last);
                        self.told(world, first, last);
                    }
                }
                self.rest(world);
            }
            (Answer::Failed(Fault::NoSuchBox { step, .. }), Stage::Asking) => {
                let interest = &world.plan.watches[self.number].interest;
                assert_eq!(planned(&world.plan, step, interest), Some(Err(())));
                self.told(world, step, step);
                self.rest(world);
            }
            (Answer::End(end), Stage::Asking) => {
                world.seen.add("end of a subscription");
                let watch = self.id.expect("it is open");
                world.is_end(watch.stream, end);
                let committed = world.committed[&watch.stream];
                self.nothing_between(world, committed);
                self.stage = Stage::Done;
                world.say(self.peer, Request::CloseWatch { watch });
            }
            (Answer::Failed(fault), stage) => self.on_fault(world, fault, stage),
            (answer, stage) => panic!("{answer:?} while {stage:?}"),
        }
    }

    fn on_fault(&mut self, world: &mut World, fault: Fault, stage: Stage) {
        self.failures += 1;
        match (fault, stage) {
            (Fault::NoStream { .. }, Stage::Opening) if self.failures < 8 => self.rest(world),
            (Fault::NoStream { .. }, Stage::Opening) => self.stage = Stage::Done,
            (Fault::NothingWritten { whom, .. }, Stage::Asking) => {
                assert!(!whom.is_empty());
                if self.failures < 40 {
                    return self.rest(world);
                }
                self.stage = Stage::Done;
                let watch = self.id.expect("it is open");
                world.say(self.peer, Request::CloseWatch { watch });
            }
            (fault, stage) => panic!("{fault:?} while {stage:?}"),
        }
    }

    fn is_right(&self, world: &World, written: &Written) {
        let interest = &world.plan.watches[self.number].interest;
        let planned = planned(&world.plan, written.step, interest);
        let told = Some(Ok((written.region.clone(), written.elements)));
        assert_eq!(told, planned, "step {}", written.step);
        let layout = world.plan.layout(written.step, 0);
        let mut variables = layout.variables.iter();
        let variable = variables.find(|variable| variable.name == interest.variable);
        let expected = variable.map(|variable| (variable.dtype, variable.shape.clone()));
        assert_eq!(Some((written.dtype, written.shape.clone())), expected);
    }

    /// It was told of these steps, or that they are missed: of all between it and the last ones
    /// there is nothing to tell.
    fn told(&mut self, world: &World, first: Step, last: Step) {
        assert!(self.next.is_none_or(|next| first >= next), "told twice");
        self.nothing_between(world, first);
        self.next = Some(last + 1);
    }

    fn nothing_between(&self, world: &World, first: Step) {
        let interest = &world.plan.watches[self.number].interest;
        for step in self.next.unwrap_or(first)..first {
            assert_eq!(
                planned(&world.plan, step, interest),
                None,
                "step {step} was left out"
            );
        }
    }
}
