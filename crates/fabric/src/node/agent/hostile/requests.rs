//! Arbitrary requests from a process that has joined, also in the name of others.

use crate::Identity;
use crate::PeerId;
use crate::membership::NodeLife;
use crate::node::Slot;
use crate::node::agent::control::{Answer, Request};
use crate::node::agent::{Life, Node, Wanted};
use crate::node::{Cpus, EXTENTS};
use samite_testkit::fuzz::{self, Rng, mutate, word};

const BUDGET: u64 = 64 << 20;

fn small(random: &mut Rng) -> u32 {
    match random.u32(..3) {
        0 => word(random) as u32,
        _ => random.u32(..4),
    }
}

fn name(random: &mut Rng) -> String {
    match random.u32(..6) {
        0 => String::new(),
        1 => "\u{1f9f5}\0\"\\".repeat(random.usize(..400)),
        2 => "victim".to_owned(),
        _ => format!("j{}", random.u32(..3)),
    }
}

fn identity(random: &mut Rng) -> Identity {
    Identity {
        job: name(random),
        program: name(random),
        rank: small(random),
        size: small(random),
        unit: small(random),
        units: small(random),
    }
}

/// Returns a random request of any kind, for a number that may be its own.
fn request(random: &mut Rng, (peer, incarnation): Life) -> Request {
    let (peer, incarnation) = match random.u32(..4) {
        0 => (Slot(small(random)), small(random)),
        _ => (peer, incarnation),
    };
    match random.u32(..9) {
        0 => Request::Join {
            identity: identity(random),
            cpus: std::array::from_fn(|_| word(random)),
        },
        1 => Request::Confirm {
            address: vec![1; random.usize(..2000)],
        },
        2 => Request::Extent {
            peer,
            incarnation,
            bytes: word(random),
        },
        3 => Request::GiveBack {
            peer,
            incarnation,
            offset: EXTENTS + random.u64(..8) * (2 << 20),
            bytes: random.u64(..4) * (2 << 20),
        },
        4 => Request::Leave { peer, incarnation },
        5 => Request::Roster {
            asker: identity(random),
            wanted: match random.u32(..4) {
                0 => Wanted::Job,
                1 => Wanted::Coming,
                2 => Wanted::Units((0..random.u32(..100)).map(|_| small(random)).collect()),
                _ => Wanted::Program(name(random)),
            },
        },
        6 => Request::Ended {
            job: name(random),
            unit: small(random),
            name: name(random),
            how: name(random),
        },
        7 => Request::Evict {
            peer,
            incarnation,
            holder: (Slot(small(random)), small(random)),
            claim: match random.bool() {
                true => EXTENTS + random.u64(..8) * 128,
                false => word(random),
            },
        },
        _ => Request::Facts {
            after: random.bool().then(|| PeerId(small(random))),
        },
    }
}

/// Whatever is requested, the agent answers, and others keep what they have.
#[test]
fn no_request_breaks_a_node() {
    let whole = "agent::hostile::requests::no_request_breaks_a_node";
    fuzz::rounds(whole, 300, |_, random| {
        let mut node = Node::create(NodeLife::HEAD, BUDGET).expect("an arena");
        let pid = std::process::id() as i32;
        let cpus = Cpus::default();
        let of_victim = Identity::by_hand("victim");
        let victim = node.admit(1, None, &cpus, &of_victim).expect("a seat");
        let had = node.grant(victim, 4 << 20).expect("an extent");
        let own = Identity::by_hand("j0");
        let mut own = node.admit(pid, None, &cpus, &own).expect("a seat");
        for _ in 0..60 {
            let who = if random.u32(..5) == 0 { victim } else { own };
            let request = request(random, who);
            // Some requests are mutated as text, so that malformed ones occur, too.
            let mut text = serde_json::to_vec(&request).expect("a request can be said");
            if random.u32(..4) == 0 {
                mutate(random, &mut text);
            }
            let Ok(request) = serde_json::from_slice::<Request>(&text) else {
                continue;
            };
            if let Request::Join { identity, cpus } = &request {
                if let Ok(member) = node.candidate(pid, cpus, identity) {
                    if random.bool() {
                        own = (member.peer, member.incarnation);
                        node.seat(member);
                    } else {
                        node.unseat(member.peer);
                    }
                }
            } else {
                let answer = node.answer("domain", request, pid);
                let answer = answer.unwrap_or_else(Answer::Refused);
                let said = serde_json::to_vec(&answer).expect("an answer can be said");
                serde_json::from_slice::<Answer>(&said).expect("and understood");
            }
            // Whatever happened, the victim is still a member, with its identity.
            node.reclaim();
            assert!(node.member(victim).is_some());
            let info = node.layout().peers.info(victim.0).expect("it is there");
            assert_eq!((info.peer.slot(), info.incarnation), victim);
            assert_eq!(info.identity, of_victim);
        }
        assert!(node.give_back(victim, had));
    });
}
