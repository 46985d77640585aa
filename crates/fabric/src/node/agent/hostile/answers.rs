//! A process that has taken the agent's name and sends arbitrary answers.

use crate::node::Slot;
use crate::node::agent::client;
use crate::node::agent::control::{self, Answer};
use crate::node::agent::{AgentExtents, DomainFacts, Far, FarTransport, Roster, Wanted};
use crate::node::{EXTENTS, PeerTableWriter};
use crate::waited::Left;
use crate::{Config, Fabric, Identity, PeerInfo};
use crate::{PeerId, UnitLife};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{RecvFlags, SendFlags};
use samite_mem::{Arena, ExtentSource, Heap};
use samite_testkit::fuzz::{self, Rng, mutate, word};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BRIEF: Duration = Duration::from_millis(5);
const ARENA: u64 = EXTENTS + (16 << 20);

fn small(random: &mut Rng) -> u32 {
    match random.u32(..3) {
        0 => word(random) as u32,
        _ => random.u32(..3),
    }
}

/// Returns an extent, or something like one.
fn extent(random: &mut Rng) -> (u64, u64) {
    let some = |random: &mut Rng| random.u64(..8) * (2 << 20);
    match random.u32(..4) {
        0 => (word(random), word(random)),
        1 => (EXTENTS + word(random) % (16 << 20), some(random)),
        _ => (EXTENTS + some(random), some(random)),
    }
}

/// Returns a random answer of any kind.
fn answer(random: &mut Rng) -> Answer {
    match random.u32(..12) {
        0..=2 => Answer::Joined {
            peer: Slot(small(random)),
            incarnation: small(random),
            far: random.bool().then(|| Far {
                transport: FarTransport::default(),
                domain: word(random),
            }),
        },
        3 | 4 => {
            let (offset, bytes) = extent(random);
            Answer::Granted { offset, bytes }
        }
        5 => Answer::OverBudget {
            asked: word(random),
            used: word(random),
            budget: word(random),
        },
        6 | 7 => Answer::Done,
        8 => Answer::Roster(match random.u32(..3) {
            0 => {
                let count = random.usize(..100);
                let one = |_| UnitLife {
                    unit: small(random),
                    peer: PeerId(small(random)),
                    incarnation: small(random),
                };
                Roster::Complete((0..count).map(one).collect())
            }
            1 => Roster::Missing(vec!["a".repeat(random.usize(..100)); random.usize(..20)]),
            _ => Roster::Absent {
                unit: "\0".into(),
                how: "b".repeat(random.usize(..10_000)),
            },
        }),
        9 => {
            let facts = DomainFacts {
                domain: "\u{1f9f5}".into(),
                agent_pid: word(random) as i32,
                budget: word(random),
                used: word(random),
                resident: word(random),
                reclaiming: word(random) as usize,
                nodes: Vec::new(),
                peers: vec![PeerInfo {
                    peer: PeerId(small(random)),
                    incarnation: small(random),
                    identity: Identity::by_hand("c"),
                    pid: word(random) as i32,
                }],
            };
            Answer::Facts(facts, random.bool())
        }
        10 => Answer::Again,
        _ => Answer::Refused("d".repeat(random.usize(..1000))),
    }
}

/// Serves one connection; the request is ignored.
fn reply(listener: &OwnedFd, memory: [BorrowedFd<'_>; 2], random: &mut Rng) {
    let Ok(socket) = rustix::net::accept(listener) else {
        return;
    };
    let _ = control::set_timeout(socket.as_fd(), BRIEF);
    while random.u32(..8) > 0 {
        if rustix::net::recv(&socket, &mut [0; 4096], RecvFlags::empty())
            .map_or(0, |(count, _)| count)
            == 0
        {
            return;
        }
        let answer = answer(random);
        if random.u32(..4) == 0 {
            let mut text = serde_json::to_vec(&answer).expect("an answer can be said");
            mutate(random, &mut text);
            let _ = rustix::net::send(&socket, &text, SendFlags::NOSIGNAL);
            continue;
        }
        let mut fds = memory;
        match random.u32(..16) {
            0 => fds.reverse(),
            1 => fds[random.usize(..2)] = socket.as_fd(),
            _ => {}
        }
        let count = 2 - random.usize(..16) / 14;
        let _ = control::send(socket.as_fd(), &answer, &fds[..count]);
    }
}

/// Sends every request that a process can make. The results do not matter, only that every call
/// returns.
fn ask(domain: &str, arena: &Arena, random: &mut Rng) {
    let identity = Identity::by_hand("asker");
    match random.u32(..5) {
        0 => drop(client::facts(domain, BRIEF)),
        1 => drop(client::unit_ended(domain, "j", 0, ("j.0", "ended"), BRIEF)),
        2 => {
            let wanted = match random.bool() {
                true => Wanted::Job,
                false => Wanted::Units(vec![0, small(random)]),
            };
            drop(client::roster(
                domain,
                &identity,
                &wanted,
                &mut Left::new(BRIEF),
            ));
        }
        3 => {
            // Grants are arbitrary: the heap must not return a block that does not fit.
            let mut extents = AgentExtents::new(domain, (Slot(0), 1));
            let _ = extents.grant(word(random), BRIEF);
            let heap = Heap::new(arena.clone(), Box::new(extents), false);
            let mut blocks = Vec::new();
            for _ in 0..8 {
                let bytes = *random.choice(&[1, 5000, 2 << 20, 5 << 20]).unwrap_or(&1);
                let block = match random.bool() {
                    true => heap.grow(bytes, BRIEF).and_then(|growing| growing.block()),
                    false => heap.block_soon(bytes),
                };
                heap.tend();
                let Ok(block) = block else {
                    continue;
                };
                block.bytes().fill(7);
                assert_eq!(block.span().bytes, bytes);
                assert!(block.span().offset.is_multiple_of(128));
                blocks.push(block);
            }
        }
        _ => {
            let config = Config {
                deadline: BRIEF,
                ..Config::default()
            };
            if let Ok(fabric) = Fabric::join(domain, identity, config) {
                fabric.progress();
                let _ = fabric.peers();
                let _ = fabric.job();
                let _ = fabric.allocate(5000);
                let _ = fabric.isend(PeerId(small(random)), 1, vec![7; 3000]);
                fabric.progress();
            }
        }
    }
}

/// Ends the answering thread, even if the asking one panics.
struct Asking<'a>(&'a AtomicBool);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed: nothing is read because of it.
        self.0.store(false, Ordering::Relaxed);
    }
}

#[test]
fn no_answer_breaks_a_process() {
    let domain = format!("no-agent-{}", std::process::id());
    let listener = control::bind(&domain, 128).expect("nobody has the name");
    let name = "agent::hostile::answers::no_answer_breaks_a_process";
    fuzz::rounds(name, 300, |seed, random| {
        let arena = Arena::create(ARENA).expect("an arena");
        let fences = samite_mem::enable_asymmetric_fences();
        let table = PeerTableWriter::create(0, fences).expect("a table");
        let is_asked = AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Rng::with_seed(!seed);
                while is_asked.load(Ordering::Relaxed) {
                    if control::has_come(listener.as_fd(), BRIEF) {
                        reply(&listener, [arena.fd(), table.fd()], &mut random);
                    }
                }
            });
            let _asking = Asking(&is_asked);
            ask(&domain, &arena, random);
        });
    });
}
