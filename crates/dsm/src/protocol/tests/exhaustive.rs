//! Everything that can happen to a chunk with a few servers and clients, in every order.

use super::super::{Mode, State};
use super::world::{Client, Step, World};
use stateright::{Checker, Model, Property};

/// How often each may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Left {
    acquires: u8,
    cancels: u8,
    deaths: u8,
    losses: u8,
    fences: u8,
    evictions: u8,
}

struct Few {
    servers: usize,
    clients: &'static [usize],
    left: Left,
}

impl Model for Few {
    type State = (World, Left);
    type Action = Step;

    fn init_states(&self) -> Vec<Self::State> {
        vec![(World::new(self.servers, self.clients), self.left)]
    }

    fn actions(&self, (world, left): &Self::State, actions: &mut Vec<Step>) {
        actions.extend(world.deliveries());
        for (at, (server, client)) in world.clients.iter().enumerate() {
            if world.servers[*server].is_lost {
                continue;
            }
            if left.deaths > 0 && !matches!(client, Client::Idle | Client::Dead) {
                actions.push(Step::Die(at));
            }
            let has_guard = matches!(
                client,
                Client::Reads(..) | Client::Writes(_) | Client::Counts | Client::Took(_)
            );
            if left.fences > 0 && has_guard {
                actions.push(Step::Fence(at));
            }
            match client {
                Client::Idle if left.acquires > 0 => {
                    let modes = [Mode::Read, Mode::Write];
                    actions.extend(modes.map(|mode| Step::Acquire(at, mode)));
                    actions.push(Step::Count(at));
                }
                Client::Counts => actions.push(Step::Look(at)),
                Client::Waits(_) if left.cancels > 0 => actions.push(Step::Cancel(at)),
                Client::Reads(..) | Client::Took(_) => actions.push(Step::Release(at)),
                Client::Writes(_) => actions.extend([Step::Release(at), Step::Commit(at)]),
                _ => {}
            }
        }
        for (at, server) in world.servers.iter().enumerate() {
            if left.losses > 0 && !server.is_lost {
                actions.push(Step::Lose(at));
            }
            if left.evictions > 0 && !server.is_lost && server.cache.version().is_some() {
                actions.push(Step::Evict(at));
            }
        }
    }

    fn next_state(&self, (world, left): &Self::State, step: Step) -> Option<Self::State> {
        let (mut world, mut left) = (world.clone(), *left);
        match step {
            Step::Acquire(..) | Step::Count(_) => left.acquires -= 1,
            Step::Cancel(_) => left.cancels -= 1,
            Step::Die(_) => left.deaths -= 1,
            Step::Lose(_) => left.losses -= 1,
            Step::Fence(_) => left.fences -= 1,
            Step::Evict(_) => left.evictions -= 1,
            _ => {}
        }
        world.step(step);
        Some((world, left))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn is_reached<const STATE: usize>(_: &Few, (world, _): &(World, Left)) -> bool {
            let servers = world.servers.iter().filter(|server| !server.is_lost);
            servers
                .map(|server| server.cache.state())
                .any(|state| state as usize == STATE)
        }
        vec![
            Property::always("every rule holds", |_, (world, _): &(World, Left)| {
                world.broken.is_none()
            }),
            Property::sometimes("I", is_reached::<{ State::I as usize }>),
            Property::sometimes("IS", is_reached::<{ State::IS as usize }>),
            Property::sometimes("IM", is_reached::<{ State::IM as usize }>),
            Property::sometimes("S", is_reached::<{ State::S as usize }>),
            Property::sometimes("SM", is_reached::<{ State::SM as usize }>),
            Property::sometimes("SI", is_reached::<{ State::SI as usize }>),
            Property::sometimes("SIM", is_reached::<{ State::SIM as usize }>),
            Property::sometimes("E", is_reached::<{ State::E as usize }>),
            Property::sometimes("EI", is_reached::<{ State::EI as usize }>),
            Property::sometimes("M", is_reached::<{ State::M as usize }>),
            Property::sometimes("MS", is_reached::<{ State::MS as usize }>),
            Property::sometimes("MI", is_reached::<{ State::MI as usize }>),
        ]
    }
}

/// Explores all, and returns what was found.
fn explore(servers: usize, clients: &'static [usize], left: Left) -> impl Checker<Few> {
    let few = Few {
        servers,
        clients,
        left,
    };
    let checker = few.checker().spawn_bfs().join();
    if let Some(path) = checker.discovery("every rule holds") {
        let steps: Vec<Step> = path.clone().into_actions();
        let (world, _) = path.last_state();
        panic!("{:?} after {steps:?}", world.broken);
    }
    assert!(checker.is_done());
    checker
}

/// Explores all: many states.
fn explore_many(servers: usize, clients: &'static [usize], left: Left) {
    let count = explore(servers, clients, left).unique_state_count();
    assert!(count > 10_000, "{count}");
}

/// Each state of a copy is reached.
#[test]
fn two_servers_with_three_clients() {
    let left = Left {
        acquires: 4,
        ..Left::default()
    };
    explore(2, &[0, 0, 1], left).assert_properties();
}

#[test]
fn clients_die_and_give_up() {
    let left = Left {
        acquires: 4,
        cancels: 1,
        deaths: 1,
        ..Left::default()
    };
    explore_many(2, &[0, 1, 1], left);
}

#[test]
fn servers_are_lost() {
    let left = Left {
        acquires: 4,
        losses: 1,
        ..Left::default()
    };
    explore_many(3, &[0, 1, 2], left);
}

#[test]
fn leases_end() {
    let left = Left {
        acquires: 5,
        fences: 1,
        ..Left::default()
    };
    explore_many(2, &[0, 0, 1], left);
}

#[test]
fn copies_are_evicted() {
    let left = Left {
        acquires: 4,
        evictions: 2,
        ..Left::default()
    };
    explore_many(2, &[0, 0, 1], left);
}
