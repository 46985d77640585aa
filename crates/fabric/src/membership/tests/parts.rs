//! Single rules of the protocol, each in the smallest domain that shows it.

use super::super::ledger::Ledger;
use super::super::message::{NodeEntry, SlotEntry, Standing, encode};
use super::super::nodes::Node;
use super::super::{Action, Config, Departure, Event, Membership, NodeId, NodeLife, State};
use super::config;
use super::world::{Step, World};
use crate::Slot;
use crate::node::{RemoteTable, RemoteTableWriter};
use samite_mem::PEERS_MAX;

/// Starts a domain of these hosts and lets it settle.
fn domain(config: Config, hosts: &[u8]) -> World {
    let mut world = World::new(config);
    for host in hosts {
        world.step(&Step::Start { host: *host });
        settle(&mut world);
    }
    world
}

fn settle(world: &mut World) {
    world.settle(|_| 0);
    world.checked().unwrap();
}

fn life(world: &World, host: u8) -> Option<(u32, u32)> {
    let life = world.processes[&world.on_host(host)?].machine.life()?;
    Some((life.node.number(), life.incarnation))
}

#[test]
fn tables_longer_than_a_message_travel_in_pieces() {
    let mut world = domain(config(), &[0, 1]);
    for host in [0, 1] {
        let process = world.on_host(host).unwrap();
        for slot in 0..PEERS_MAX as u32 {
            let at_once = false;
            world.step(&Step::Turn {
                process,
                slot,
                at_once,
            });
        }
    }
    settle(&mut world);
    world.check_rest(|_| true).unwrap();
    world.step(&Step::Start { host: 2 });
    settle(&mut world);
    world.check_rest(|_| true).unwrap();
    let seen = &world.processes[&world.on_host(2).unwrap()].seen;
    assert_eq!(seen.units.len(), 2 * PEERS_MAX);
}

#[test]
fn a_follower_that_is_stopped_costs_what_has_been_sent() {
    let mut world = domain(config(), &[0, 1, 2]);
    let (owner, follower) = (world.on_host(1).unwrap(), world.on_host(2).unwrap());
    world.step(&Step::Stop { process: follower });
    for turn in 0..3000 {
        let (process, slot, at_once) = (owner, turn % 5, false);
        world.step(&Step::Turn {
            process,
            slot,
            at_once,
        });
    }
    // `step` checked the bounds after each step.
    world.checked().unwrap();
    settle(&mut world);
    world.check_rest(|_| true).unwrap();
    assert!(world.ended.is_empty());
}

#[test]
fn an_agent_that_was_stopped_hears_before_it_judges() {
    let mut world = domain(config(), &[0, 1, 2]);
    let head = world.on_host(0).unwrap();
    world.step(&Step::Stop { process: head });
    world.settle_without_wakening(|_| 0);
    assert!(
        world
            .processes
            .values()
            .all(|p| p.host == 0 || p.seen.head_lost)
    );
    world.step(&Step::Continue { process: head });
    world.step(&Step::Tick { process: head });
    settle(&mut world);
    world.check_rest(|_| true).unwrap();
    assert!(world.ended.is_empty(), "{:?}", world.ended);
}

/// A node whose connection broke while the head was stopped has the time to call again.
#[test]
fn a_head_that_was_stopped_waits_for_who_reconnects() {
    let mut world = domain(Config::default(), &[0, 1]);
    let head = world.on_host(0).unwrap();
    let [connection] = world.connections()[..] else {
        panic!("one connection of two nodes");
    };
    world.step(&Step::Stop { process: head });
    let keeps = [0, 0];
    world.step(&Step::Break { connection, keeps });
    world.step(&Step::Wait(60_000));
    world.step(&Step::Continue { process: head });
    // It hears that the connection broke, and then of the time; the call comes afterwards.
    let end = 1;
    world.step(&Step::Deliver { connection, end });
    world.step(&Step::Tick { process: head });
    world.step(&Step::Wait(2000));
    world.step(&Step::Tick { process: head });
    settle(&mut world);
    world.check_rest(|_| true).unwrap();
    assert!(world.ended.is_empty(), "{:?}", world.ended);
    assert_eq!(life(&world, 1), Some((1, 0)));
}

#[test]
fn a_name_belongs_to_the_life_that_is_connected() {
    let mut world = domain(config(), &[0, 1]);
    // Host 101 has the same name as host 1.
    world.step(&Step::Start { host: 101 });
    settle(&mut world);
    assert_eq!((life(&world, 1), life(&world, 101)), (Some((1, 0)), None));
    let process = world.on_host(1).unwrap();
    world.step(&Step::Kill { process });
    settle(&mut world);
    assert_eq!(life(&world, 101), Some((1, 1)));
}

#[test]
fn numbers_of_the_gone_are_given_again_when_there_are_no_others() {
    let config = Config {
        nodes: 3,
        ..config()
    };
    let mut world = domain(config, &[0, 1, 2]);
    world.step(&Step::Start { host: 3 });
    settle(&mut world);
    assert_eq!(world.on_host(3), None, "the domain is full");
    for host in [2, 1] {
        let process = world.on_host(host).unwrap();
        world.step(&Step::Kill { process });
        settle(&mut world);
    }
    for (host, expected) in [(3, (2, 1)), (1, (1, 1))] {
        world.step(&Step::Start { host });
        settle(&mut world);
        assert_eq!(life(&world, host), Some(expected));
    }
    world.check_rest(|_| true).unwrap();
}

#[test]
fn of_two_that_do_not_reach_each_other_one_goes() {
    let mut world = domain(config(), &[0, 1, 2, 3]);
    for hosts in [(1, 2), (1, 3)] {
        world.step(&Step::Cut { hosts });
    }
    settle(&mut world);
    let members = |world: &World| [1, 2, 3].map(|host| life(world, host).is_some());
    assert_eq!(members(&world), [false, true, true], "two complain of one");
    world.step(&Step::Cut { hosts: (2, 3) });
    settle(&mut world);
    assert_eq!(
        members(&world),
        [false, true, false],
        "the last one to join"
    );
}

#[test]
fn a_silent_head_is_told_of_in_time() {
    let mut world = domain(config(), &[0, 1]);
    let member = world.on_host(1).unwrap();
    world.step(&Step::Cut { hosts: (0, 1) });
    let mut lost_after = 0;
    while !world.processes[&member].seen.head_lost && lost_after < 1000 {
        world.step(&Step::Wait(10));
        world.step(&Step::Tick { process: member });
        lost_after += 10;
    }
    assert!((60..=80).contains(&lost_after), "{lost_after}");
}

/// A node that joins while a slot is not free yet learns who the dead unit was.
#[test]
fn what_the_dead_said_is_told_to_nodes_that_never_knew_them() {
    let mut agent = Membership::head(config(), 1, "head", &[0]);
    let node = NodeId::new(1).unwrap();
    agent.nodes.insert(node, Node::new(0, &[1], 0));
    let told = encode(&SlotEntry {
        sequence: 1,
        slot: Slot(2),
        incarnation: 3,
        state: State::Dead,
        identity: b"unit",
    });
    agent.apply_slots(node, 0, &told).unwrap();
    let mut table = RemoteTableWriter::create().unwrap();
    for action in &agent.out {
        let Action::Unit {
            peer,
            incarnation,
            state,
            identity,
        } = action
        else {
            panic!("{action:?}");
        };
        assert!(table.learn(*peer, *incarnation, *state, identity));
    }
    let fd = table.fd().try_clone_to_owned().unwrap();
    let found = RemoteTable::attach(fd).unwrap().get(node.unit(Slot(2)));
    let found = found.map(|found| (found.incarnation, found.state, found.said));
    let unit = b"unit".as_slice().into();
    assert_eq!(found, Some((3, State::Dead, unit)));
}

#[test]
fn nobody_complains_of_the_gone() {
    let config = Config {
        nodes: 200,
        ..config()
    };
    let mut agent = Membership::member(config, "a", &[1], &[0]);
    agent.life = Some(NodeLife {
        node: NodeId::new(199).unwrap(),
        incarnation: 0,
    });
    for epoch in 1..=200 {
        let life = NodeLife {
            node: NodeId::new(1 + (epoch as u32 - 1) / 2).unwrap(),
            incarnation: 0,
        };
        let standing = match epoch % 2 {
            1 => Standing::Member {
                name: "b",
                address: &[2],
            },
            _ => Standing::Gone(Departure::Lost),
        };
        let entry = encode(&NodeEntry {
            epoch,
            life,
            standing,
        });
        if epoch < 200 {
            agent.apply_nodes(epoch - 1, &entry).unwrap();
        }
    }
    for now in (0..200).step_by(10) {
        agent.on_event(Event::Tick { now });
    }
    // The last node is a member that was never reached.
    assert_eq!(
        agent.unreachable(),
        encode(&NodeLife {
            node: NodeId::new(100).unwrap(),
            incarnation: 0
        })
    );
}

#[test]
fn a_head_that_leaves_tells_everybody() {
    let mut world = domain(config(), &[0, 1, 2]);
    let member = world.on_host(1).unwrap();
    world.step(&Step::Stop { process: member });
    // A change is in flight to the member when the head leaves.
    let process = world.on_host(2).unwrap();
    world.step(&Step::Kill { process });
    for _ in 0..5 {
        world.step(&Step::Wait(10));
        for process in world.running() {
            world.step(&Step::Tick { process });
            while let [step, ..] = &world.deliveries()[..] {
                world.step(step);
            }
        }
    }
    let process = world.on_host(0).unwrap();
    world.step(&Step::Leave { process });
    settle(&mut world);
    assert_eq!(world.on_host(0), None);
    let seen = &world.processes[&member].seen;
    assert!(seen.head_lost && seen.members.is_empty(), "{seen:?}");
}

#[test]
fn lives_of_a_node_share_no_incarnation() {
    let node = NodeId::new(5).unwrap();
    let mut last = 0;
    for incarnation in 0..=NodeLife::LAST {
        let range = NodeLife { node, incarnation }.incarnations();
        assert!(*range.start() > last && range.start() < range.end());
        last = *range.end();
    }
    assert_eq!(last, u32::MAX);
}

#[test]
fn a_ledger_tells_what_changed_after_a_number() {
    let mut ledger = Ledger::new();
    for (key, value) in [(1, 'a'), (2, 'b'), (1, 'c'), (3, 'd')] {
        ledger.set(key, value);
    }
    let after = |number| {
        ledger
            .after(number)
            .map(|(n, k, v)| (n, k, *v))
            .collect::<Vec<_>>()
    };
    assert_eq!(after(0), [(2, 2, 'b'), (3, 1, 'c'), (4, 3, 'd')]);
    assert_eq!(after(3), [(4, 3, 'd')]);
    assert_eq!(after(u64::MAX), []);
}

/// Memory that an agent needs for other nodes, measured by the bytes of its tables.
#[test]
fn a_hundred_thousand_units_on_a_thousand_nodes_fit() {
    const NODES: u32 = 1000;
    const UNITS: u32 = 100;
    let mut agent = Membership::head(Config::default(), 1, "head", &[0; 16]);
    for number in 1..=NODES {
        let node = NodeId::new(number).unwrap();
        let (incarnation, epoch) = (0, number.into());
        let standing = Standing::Member {
            name: "a node of the cluster",
            address: &[0; 16],
        };
        let life = NodeLife { node, incarnation };
        let entry = encode(&NodeEntry {
            epoch,
            life,
            standing,
        });
        agent.apply_nodes(epoch - 1, &entry).unwrap();
        for slot in 0..UNITS {
            let entry = SlotEntry {
                sequence: u64::from(slot) + 1,
                slot: Slot(slot),
                incarnation: 1,
                state: State::Alive,
                identity: &[7; 100],
            };
            let told = encode(&entry);
            agent.apply_slots(node, slot.into(), &told).unwrap();
        }
        agent.out.clear();
    }
    let of_node =
        |node: &Node| size_of::<(NodeId, Node)>() + node.address.len() + node.mirror.bytes();
    let bytes: usize = agent.nodes.values().map(of_node).sum();
    let per_unit = bytes as u64 / u64::from(NODES * UNITS);
    assert!(per_unit <= 16, "{bytes} bytes, {per_unit} for each unit");
}
