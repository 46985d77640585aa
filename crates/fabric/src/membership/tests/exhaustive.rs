//! Everything that can happen to a head and one or two members with few faults, in every order.

use super::super::Config;
use super::world::{Step, World};
use stateright::{Checker, Model, Property};

/// How often each fault may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Left {
    beats: u8,
    turns: u8,
    breaks: u8,
    kills: u8,
    stops: u8,
}

/// The hosts that start, and the faults that may happen.
struct Few {
    hosts: u8,
    left: Left,
}

#[derive(Clone, Debug, PartialEq)]
enum Act {
    Wire(Step),
    Beat,
    Turn(Step),
    Break(Step),
    Kill(Step),
    Stop(Step),
}

/// The world, and the faults that may still happen. Agreement of the processes is checked when
/// nothing is in flight.
type State = (World, Left);

fn rule(state: &State) -> Result<(), String> {
    state.0.checked()?;
    if !state.0.deliveries().is_empty() {
        return Ok(());
    }
    let mut later = state.0.clone();
    later.settle(|_| 0);
    later.checked()?;
    later.check_rest(|_| true)
}

impl Model for Few {
    type State = State;
    type Action = Act;

    fn init_states(&self) -> Vec<State> {
        let mut world = World::new(Config {
            beat: 1,
            silence: 4,
            grace: 1,
            nodes: 4,
        });
        for host in 0..self.hosts {
            world.step(&Step::Start { host });
        }
        vec![(world, self.left)]
    }

    fn actions(&self, (world, left): &State, actions: &mut Vec<Act>) {
        actions.extend(world.deliveries().into_iter().map(Act::Wire));
        if left.beats > 0 {
            actions.push(Act::Beat);
        }
        for (process, known) in &world.processes {
            let process = *process;
            if left.turns > 0 && known.machine.life().is_some() && !known.is_stopped {
                let (slot, at_once) = (0, false);
                actions.push(Act::Turn(Step::Turn {
                    process,
                    slot,
                    at_once,
                }));
            }
            if left.kills > 0 {
                actions.push(Act::Kill(Step::Kill { process }));
            }
            if known.is_stopped {
                actions.push(Act::Wire(Step::Continue { process }));
            } else if left.stops > 0 {
                actions.push(Act::Stop(Step::Stop { process }));
            }
        }
        let missing = (0..self.hosts).filter(|host| world.on_host(*host).is_none());
        actions.extend(missing.map(|host| Act::Wire(Step::Start { host })));
        for connection in world.connections() {
            if left.breaks > 0 {
                let keeps = [0, 0];
                actions.push(Act::Break(Step::Break { connection, keeps }));
            }
        }
    }

    fn next_state(&self, (world, left): &State, act: Act) -> Option<State> {
        let (mut world, mut left) = (world.clone(), *left);
        let step = match act {
            Act::Wire(step) => step,
            Act::Beat => {
                left.beats -= 1;
                world.step(&Step::Wait(1));
                for process in world.running() {
                    world.step(&Step::Tick { process });
                }
                return Some((world, left));
            }
            Act::Turn(step) => {
                left.turns -= 1;
                step
            }
            Act::Break(step) => {
                left.breaks -= 1;
                step
            }
            Act::Kill(step) => {
                left.kills -= 1;
                step
            }
            Act::Stop(step) => {
                left.stops -= 1;
                step
            }
        };
        world.step(&step);
        Some((world, left))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("every rule holds", |_, state: &State| {
            rule(state).is_ok()
        })]
    }
}

fn explore(hosts: u8, left: Left, least: usize) {
    let checker = Few { hosts, left }.checker().spawn_dfs().join();
    if let Some(path) = checker.discovery("every rule holds") {
        let why = rule(path.last_state());
        panic!("{why:?} after {:#?}", path.into_actions());
    }
    let states = checker.unique_state_count();
    println!("{hosts} hosts, {left:?}: {states} states");
    assert!(
        states > least,
        "{states} states: hardly anything could happen"
    );
}

#[test]
fn a_head_and_a_member_in_every_order() {
    let left = Left {
        beats: 2,
        turns: 1,
        breaks: 1,
        kills: 1,
        stops: 0,
    };
    explore(2, left, 10_000);
}

#[test]
fn a_head_and_two_members_in_every_order() {
    let left = Left {
        kills: 1,
        turns: 1,
        ..Left::default()
    };
    explore(3, left, 10_000);
}
