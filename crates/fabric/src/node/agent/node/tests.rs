//! Which processes are alive, and what each owns, whatever processes say.

use super::*;
use crate::UnitLife;
use crate::membership::NodeLife;
use crate::node::State;
use crate::node::agent::control;
use crate::node::agent::jobs::{Roster, UNITS_MAX};
use rustix::fd::AsFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::collections::BTreeSet;

/// The agent can report any number of peers with any names.
#[test]
fn the_facts_of_a_full_domain_fit_into_answers() {
    let mut node = Node::create(NodeLife::HEAD, 1 << 20).unwrap();
    let mut names = Vec::new();
    for number in 0..PEERS_MAX {
        let identity = Identity {
            job: format!("{number:0>600}"),
            ..Identity::by_hand("long")
        };
        let cpus = Cpus::default();
        node.admit(std::process::id() as i32, None, &cpus, &identity)
            .unwrap();
        names.push(identity.job);
    }
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (here, there) = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    let (mut told, mut after) = (Vec::new(), None);
    loop {
        let answer = node.answer("full", Request::Facts { after }, 0).unwrap();
        control::send(here.as_fd(), &answer, &[]).unwrap();
        let (answer, _) = control::receive::<Answer>(there.as_fd()).unwrap();
        let Answer::Facts(facts, more) = answer else {
            panic!("{answer:?}");
        };
        after = facts.peers.last().map(|info| info.peer);
        told.extend(facts.peers.into_iter().map(|info| info.identity.job));
        if !more {
            break;
        }
    }
    assert_eq!(told, names);
}

/// A job may have the most units that are remembered, with the longest numbers.
#[test]
fn the_roster_of_a_large_job_fits_into_an_answer() {
    let life = |unit| UnitLife {
        unit,
        peer: PeerId(u32::MAX),
        incarnation: u32::MAX,
    };
    let roster = Roster::Complete((0..UNITS_MAX).map(life).collect());
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (here, there) = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    control::send(here.as_fd(), &Answer::Roster(roster.clone()), &[]).unwrap();
    let (answer, _) = control::receive::<Answer>(there.as_fd()).unwrap();
    assert!(matches!(answer, Answer::Roster(told) if told == roster));
}

/// Whatever the table contains, the agent knows which processes are alive, and their incarnations.
#[test]
fn the_table_is_published_and_never_believed() {
    let mut node = Node::create(NodeLife::HEAD, 16 << 20).unwrap();
    let scribble = |node: &Node, state: State, incarnation: u32| {
        for peer in (0..PEERS_MAX as u32).map(Slot) {
            node.table.publish(peer, state, incarnation);
        }
        node.table.publish_used(0);
        node.table.publish_epoch(u64::MAX);
    };
    let identity = Identity::by_hand("scribbled");
    let admit = |node: &mut Node| {
        let cpus = Cpus::default();
        node.admit(std::process::id() as i32, None, &cpus, &identity)
            .unwrap()
    };
    let mut living = BTreeSet::new();
    let mut granted = Vec::new();
    for round in 0..12u32 {
        let state = [State::Free, State::Alive, State::Dead][round as usize % 3];
        scribble(&node, state, [u32::MAX, 0, 7][round as usize / 3 % 3]);
        let life = admit(&mut node);
        assert!(living.insert(life.0), "{} is given twice", life.0);
        assert_eq!(node.layout.peers.state(life.0), (State::Alive, life.1));
        assert_eq!(node.layout.peers.used(), node.slots.used());
        granted.push((life, node.grant(life, 1).map(|span| span.offset).ok()));
        scribble(&node, State::Free, u32::MAX);
        if round % 4 == 3 {
            // A process among others is lost: only its own memory is reclaimed, and its number gets
            // a new incarnation.
            let member = node.member(life).unwrap();
            node.lose(member);
            living.remove(&life.0);
            for peer in &living {
                node.layout.set_seen_epoch(*peer, node.epoch);
            }
            let used = node.book.used();
            node.reclaim();
            assert!(node.book.used() <= used);
            assert!(node.book.of(life).is_empty());
            let next = admit(&mut node);
            assert_eq!(next, (life.0, life.1 + 1));
            living.insert(next.0);
        }
    }
    let had: Vec<_> = granted
        .iter()
        .filter(|(life, _)| node.member(*life).is_some())
        .collect();
    for (life, offset) in had {
        let spans = node.book.of(*life);
        assert_eq!(spans.first().map(|span| span.offset), *offset, "{life:?}");
    }
}

/// A process that claims to have seen future deaths does not release the memory of those who die
/// later.
#[test]
fn a_death_is_not_seen_before_it_happens() {
    let mut node = Node::create(NodeLife::HEAD, 16 << 20).unwrap();
    let identity = Identity::by_hand("foresees");
    let mut lives = (0..2).map(|_| {
        let cpus = Cpus::default();
        node.admit(std::process::id() as i32, None, &cpus, &identity)
            .unwrap()
    });
    let (first, second) = (lives.next().unwrap(), lives.next().unwrap());
    drop(lives);
    node.grant(second, 1).unwrap();
    node.layout.set_seen_epoch(first.0, u64::MAX);
    let member = node.member(second).unwrap();
    node.lose(member);
    assert!(node.is_reclaiming(), "the survivor has not looked");
    node.layout
        .set_seen_epoch(first.0, node.layout.peers.epoch());
    node.reclaim();
    assert!(!node.is_reclaiming() && node.book.used() == 0);
}
