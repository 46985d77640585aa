//! A lying agent: its messages are altered in flight. It harms only itself. A lying head makes no
//! other agent break a rule.

use super::super::message::{Message, NodeEntry, SlotEntry, encode, entries};
use super::super::{Event, Link, Membership, NodeLife, Refusal, State};
use super::config;
use super::world::{Item, Step, World};
use fastrand::Rng;
use serde::{Deserialize, Serialize};

const SEEDS: u64 = 600;

/// Replaces one entry of a list.
fn lie_in<'a, T: Serialize + Deserialize<'a>>(
    list: &'a [u8],
    random: &mut Rng,
    change: impl Fn(&mut T, &mut Rng),
) -> Vec<u8> {
    let mut all: Vec<T> = entries(list).filter_map(Result::ok).collect();
    if all.is_empty() {
        return vec![random.u8(..); random.usize(..9)];
    }
    let index = random.usize(..all.len());
    change(&mut all[index], random);
    all.iter().flat_map(encode).collect()
}

fn near(number: u64, random: &mut Rng) -> u64 {
    match random.u32(..4) {
        0 => number.wrapping_sub(1),
        1 => number + 1,
        2 => number + (1 << 20),
        _ => random.u64(..),
    }
}

fn lie_of_slot(entry: &mut SlotEntry<'_>, random: &mut Rng) {
    match random.u32(..4) {
        0 => entry.sequence = near(entry.sequence, random),
        1 => entry.incarnation = near(entry.incarnation.into(), random) as u32,
        2 => entry.identity = &[7; 2000],
        _ => entry.state = [State::Alive, State::Dead, State::Free][random.usize(..3)],
    }
}

fn lie_of_node(entry: &mut NodeEntry<'_>, random: &mut Rng) {
    match random.u32(..3) {
        0 => entry.epoch = near(entry.epoch, random),
        1 => entry.life.incarnation = near(entry.life.incarnation.into(), random) as u32,
        _ => entry.life.node = NodeLife::HEAD.node,
    }
}

/// Returns something other than what the agent sent. The lie does not use the name of another
/// agent.
fn lie(truth: &[u8], victims: &[NodeLife], random: &mut Rng) -> Vec<u8> {
    let mut bytes = truth.to_vec();
    let list;
    let told = Message::decode(truth).expect("the machine says what can be read");
    let is_greeting = matches!(told, Message::Hello { .. } | Message::Join { .. });
    match (random.u32(..8), told) {
        (0, _) => bytes.truncate(random.usize(..bytes.len())),
        (1, _) => bytes.extend([random.u8(..); 20_000]),
        (2, _) if !is_greeting => {
            let index = random.usize(..bytes.len());
            bytes[index] ^= 1 << random.u32(..8);
        }
        (3, _) => bytes = (0..random.usize(..40)).map(|_| random.u8(..)).collect(),
        (4, _) => {
            list = victims.iter().flat_map(encode).collect::<Vec<u8>>();
            bytes = Message::Beat { unreachable: &list }.encode();
        }
        (5, _) => bytes = Message::Refused(Refusal::Gone).encode(),
        (_, Message::Slots { after, entries }) => {
            list = lie_in(entries, random, lie_of_slot);
            let after = match random.bool() {
                true => after,
                false => near(after, random),
            };
            let entries = &list;
            bytes = Message::Slots { after, entries }.encode();
        }
        (_, Message::Nodes { after, entries }) => {
            list = lie_in(entries, random, lie_of_node);
            let entries = &list;
            bytes = Message::Nodes { after, entries }.encode();
        }
        (_, Message::SlotsSeen(seen)) => bytes = Message::SlotsSeen(near(seen, random)).encode(),
        (_, Message::NodesSeen(seen)) => bytes = Message::NodesSeen(near(seen, random)).encode(),
        (
            _,
            Message::Hello {
                domain, from, to, ..
            },
        ) => {
            let hello = Message::Hello {
                version: 1,
                domain,
                from,
                to,
                nodes: random.u64(..20),
                slots: random.u64(..20),
            };
            bytes = hello.encode();
        }
        (turn, _) => {
            let entries = &[turn as u8; 3];
            bytes = Message::Nodes { after: 0, entries }.encode();
        }
    }
    bytes
}

/// Runs a domain of four hosts, one of which lies now and then.
fn run(seed: u64, liar: u8) -> (World, u64) {
    let mut random = Rng::with_seed(seed);
    let mut world = World::new(config());
    for host in 0..4 {
        world.step(&Step::Start { host });
        world.settle(|len| random.usize(..len));
    }
    let liar = world.on_host(liar).unwrap();
    let lives = world.processes.values().filter_map(|p| p.machine.life());
    let victims: Vec<NodeLife> = lives.collect();
    world.distrust(liar);
    for _ in 0..150 {
        let processes: Vec<u64> = world.processes.keys().copied().collect();
        let process = processes[random.usize(..processes.len())];
        let steps = world.deliveries();
        let step = match random.u32(..10) {
            0..6 if !steps.is_empty() => steps[random.usize(..steps.len())].clone(),
            6..9 => Step::Turn {
                process,
                slot: random.u32(..3),
                at_once: random.bool(),
            },
            9 => Step::Wait(2),
            _ => Step::Tick { process },
        };
        if let Step::Deliver { connection, end } = step
            && let Some((from, Item::Message(bytes))) = world.next_item(connection, end)
            && from == liar
            && random.u32(..4) == 0
        {
            *bytes = lie(bytes, &victims, &mut random);
        }
        world.step(&step);
    }
    world.settle(|len| random.usize(..len));
    (world, liar)
}

#[test]
fn a_member_that_lies_harms_itself_alone() {
    let mut lost = 0;
    for seed in 0..SEEDS {
        let (world, liar) = run(seed, 3);
        let told = world
            .checked()
            .and_then(|()| world.check_rest(|id| id != liar));
        if let Err(rule) = told {
            panic!("seed {seed}: {rule}");
        }
        for host in 0..3 {
            let process = world.on_host(host).map(|id| &world.processes[&id]);
            let life = process.and_then(|process| process.machine.life());
            assert_eq!(
                life.map(|life| life.incarnation),
                Some(0),
                "seed {seed}: host {host}"
            );
        }
        lost += u64::from(world.head().unwrap().seen.members.len() < 3);
    }
    assert!(lost > SEEDS / 2, "{lost}: hardly a lie was told");
}

#[test]
fn a_head_that_lies_makes_nobody_break_a_rule() {
    let mut lost = 0;
    for seed in 0..SEEDS {
        let (world, _) = run(seed, 0);
        if let Err(rule) = world.checked() {
            panic!("seed {seed}: {rule}");
        }
        let members = world.processes.values().filter(|p| p.host != 0);
        lost += members.filter(|p| p.seen.head_lost).count() as u64;
    }
    assert!(lost > SEEDS / 2, "{lost}: hardly a lie was told");
}

#[test]
fn callers_that_say_nothing_are_counted_and_sent_away() {
    let mut head = Membership::head(config(), 1, "head", &[0]);
    let closes = |head: &mut Membership, number| {
        let link = Link::In(number);
        head.on_event(Event::Accepted { link }).len()
    };
    assert_eq!(
        (0..1024)
            .map(|number| closes(&mut head, number))
            .sum::<usize>(),
        0
    );
    assert_eq!(closes(&mut head, 1024), 1);
    for now in (0..100).step_by(10) {
        head.on_event(Event::Tick { now });
    }
    assert_eq!(closes(&mut head, 1025), 0);
}
