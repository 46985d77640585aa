//! A link with latency, jitter and rate between real processes. Only lower bounds on time are
//! checked: a busy machine is late, and never early. What frames promise over a link is in
//! `contract`.

use samite_fabric::rpc::{Life, ServiceId};
use samite_fabric::{Config, Error, Fabric, Identity, Link, Mask, Match, PeerId};
use samite_testkit::{
    Outcome, TWO_NODES, Unit, Who, check, full_name, matches_or_fail, pattern, pause, point, same,
    say, units,
};
use std::time::{Duration, Instant};

/// Returns a link with this delay.
fn delayed(delay: Duration) -> Option<Link> {
    Some(Link {
        delay,
        ..Link::default()
    })
}

/// Returns the time on a clock that all processes of the machine share.
fn machine_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Sends 8 bytes to and fro: no round takes less than twice the delay. Prints the median.
fn rounds(fabric: &Fabric, members: &[PeerId], delay: Duration) -> Outcome {
    const ROUNDS: usize = 2000;
    let mut took = Vec::new();
    let mut bytes = [0; 8];
    let other = members[usize::from(fabric.me() == members[0])];
    fabric.barrier(members)?;
    for round in 0..ROUNDS as u64 {
        if fabric.me() != members[0] {
            fabric.recv(Match::from(other, round), &mut bytes)?;
            fabric.send(other, round, &bytes)?;
            continue;
        }
        let start = Instant::now();
        fabric.send(other, round, &round.to_le_bytes())?;
        fabric.recv(Match::from(other, round), &mut bytes)?;
        took.push(start.elapsed());
        same!(u64::from_le_bytes(bytes), round);
    }
    if fabric.me() == members[0] {
        took.sort_unstable();
        check!(took[0] >= 2 * delay, "a round took {:?}", took[0]);
        let (median, late) = (took[ROUNDS / 2], took[ROUNDS * 9 / 10]);
        say(&format!(
            "a round over a link of {delay:?}: median {median:?}, 9 of 10 within {late:?}"
        ));
    }
    Ok(fabric.barrier(members)?)
}

macro_rules! a_round_takes_two_delays {
    ($($name:ident: $micros:literal),*) => {$(
        #[test]
        fn $name() {
            let delay = Duration::from_micros($micros);
            units(2)
                .mask(Mask::MESSAGES_ONLY)
                .config(|config| config.link = delayed(delay))
                .run(&full_name(module_path!(), stringify!($name)), |fabric, members| {
                    rounds(fabric, members, delay)
                });
        }
    )*};
}

a_round_takes_two_delays!(
    a_round_over_1_us: 1,
    a_round_over_5_us: 5,
    a_round_over_20_us: 20,
    a_round_over_3_ms: 3000
);

/// More processes than processors.
#[test]
fn a_round_among_nine() {
    let delay = Duration::from_micros(200);
    let name = full_name(module_path!(), "a_round_among_nine");
    units(9)
        .mask(Mask::MESSAGES_ONLY)
        .config(|config| config.link = delayed(delay))
        .run(&name, |fabric, members| {
            const ROUNDS: u64 = 100;
            let me = members.iter().position(|member| *member == fabric.me());
            let me = me.unwrap_or(0);
            let next = members[(me + 1) % members.len()];
            let last = members[(me + members.len() - 1) % members.len()];
            fabric.barrier(members)?;
            let start = Instant::now();
            for round in 0..ROUNDS {
                if me == 0 {
                    fabric.send(next, round, b"go")?;
                }
                fabric.recv(Match::from(last, round), &mut [0; 2])?;
                if me != 0 {
                    fabric.send(next, round, b"go")?;
                }
            }
            let took = start.elapsed();
            if me == 0 {
                let hops = ROUNDS as u32 * members.len() as u32;
                check!(took >= hops * delay, "{hops} hops took {took:?}");
                say(&format!(
                    "a hop among 9 over a link of {delay:?}: {:?}",
                    took / hops
                ));
            }
            Ok(fabric.barrier(members)?)
        });
}

/// Each kind of operation that waits for an answer takes two delays.
#[test]
fn whatever_is_answered_takes_two_delays() {
    const DELAY: Duration = Duration::from_millis(2);
    const SERVICE: ServiceId = ServiceId::COORDINATOR;
    let name = full_name(module_path!(), "whatever_is_answered_takes_two_delays");
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let (first, owner) = (members[0], members[1]);
        let segment = fabric.allocate(4096)?;
        let server = fabric.serve(SERVICE, 1 << 20);
        fabric.on(7, |_, bytes| Some(bytes.to_vec()));
        if fabric.me() == owner {
            fabric.send(first, 1, &segment.key().to_bytes())?;
            let mut responded = Ok(());
            let mut serve = || {
                while let Some(asked) = server.take() {
                    let id = asked.id.unwrap_or(0);
                    responded = server.respond(asked.from, id, &asked.bytes, DELAY);
                }
                let probed = fabric.probe(Match::from(first, 2));
                probed.is_some().then_some(())
            };
            fabric.wait_stepping("the end", &[first], &mut serve, || false)?;
            responded?;
            fabric.recv(Match::from(first, 2), &mut [])?;
            same!(
                segment
                    .bytes()
                    .u64(8)
                    .load(std::sync::atomic::Ordering::Relaxed),
                5
            );
            return Ok(());
        }
        let (_, key) = fabric.recv_vec(Match::from(owner, 1))?;
        let key = key.first_chunk().map(samite_fabric::SegmentKey::from_bytes);
        let key = key.ok_or_else(|| samite_testkit::Failed::new("a key is too short"))?;
        let remote = fabric.attach(key)?;
        check!(remote.mapped().is_none(), "memory is mapped past the link");
        let caps = fabric.caps_to(owner);
        check!(!caps.map && !caps.kernel_copy, "{caps:?}");
        let peers = fabric.peers();
        let info = peers.iter().find(|info| info.peer == owner);
        let life = Life {
            peer: owner,
            incarnation: info.map_or(0, |info| info.incarnation),
        };
        let mut took = Vec::new();
        let mut timed = |what, start: Instant| took.push((what, start.elapsed()));
        let start = Instant::now();
        remote.put(0, b"woven")?;
        timed("put", start);
        let (mut bytes, start) = ([0; 5], Instant::now());
        remote.get(0, &mut bytes)?;
        timed("get", start);
        same!(&bytes, b"woven");
        let start = Instant::now();
        same!(remote.fetch_add(8, 5)?, 0);
        timed("atomic", start);
        let start = Instant::now();
        let mut call = fabric.call(SERVICE, life, fabric.deadline(), |_| b"ask".to_vec())?;
        let response = call.wait_stepping(fabric.deadline(), "a response", &mut || false)?;
        timed("rpc", start);
        same!(response, b"ask".to_vec());
        let start = Instant::now();
        same!(fabric.request(owner, 7, b"echo")?.wait()?, b"echo".to_vec());
        timed("active message", start);
        fabric.send(owner, 2, b"")?;
        let early = took.iter().find(|(_, took)| *took < 2 * DELAY);
        check!(early.is_none(), "{early:?}");
        Ok(())
    };
    units(2)
        .mask(Mask::MESSAGES_ONLY)
        .config(|config| config.link = delayed(DELAY))
        .run(&name, body);
}

/// A link carries as many bytes per second as it says, whatever they are sent as.
#[test]
fn the_rate_is_kept() {
    const BYTES: usize = 1 << 20;
    let name = full_name(module_path!(), "the_rate_is_kept");
    let link = Link {
        rate: Some(10_000_000),
        ..Link::default()
    };
    units(2)
        .mask(Mask::MESSAGES_ONLY)
        .config(|config| config.link = Some(link))
        .run(&name, |fabric, members| {
            for part in [BYTES, 4096, 64] {
                let start = Instant::now();
                for number in 0..(BYTES / part) as u64 {
                    if fabric.me() == members[0] {
                        fabric.send(members[1], number, &pattern::pattern(number, part))?;
                    } else {
                        let (_, bytes) = fabric.recv_vec(Match::from(members[0], number))?;
                        same!(bytes.len(), part);
                        pattern::verify(number, &bytes)?;
                    }
                }
                // Both have sent by then: the first one knows when the last byte was there.
                fabric.barrier(members)?;
                let took = start.elapsed();
                if fabric.me() == members[0] {
                    check!(
                        took >= Duration::from_millis(100),
                        "1 MiB in parts of {part} bytes took {took:?}"
                    );
                    say(&format!(
                        "1 MiB at 10 MB/s in parts of {part} bytes: {took:?}"
                    ));
                }
            }
            Ok(())
        });
}

/// Between units of one node the memory is mapped, and nothing is delayed: the link lies only
/// between the nodes.
#[test]
fn the_link_lies_between_the_nodes() {
    const DELAY: Duration = Duration::from_millis(50);
    let name = full_name(module_path!(), "the_link_lies_between_the_nodes");
    units(3)
        .mask(TWO_NODES)
        .config(|config| config.link = delayed(DELAY))
        .run(&name, |fabric, members| {
            let map: Vec<bool> = members
                .iter()
                .map(|peer| fabric.caps_to(*peer).map)
                .collect();
            let is_second = fabric.me() == members[1];
            same!(map, [!is_second, is_second, !is_second]);
            let sent = machine_time().as_nanos() as u64;
            for to in members {
                fabric.send(*to, 1, &sent.to_le_bytes())?;
            }
            for from in members {
                let mut bytes = [0; 8];
                fabric.recv(Match::from(*from, 1), &mut bytes)?;
                let sent = Duration::from_nanos(u64::from_le_bytes(bytes));
                let took = machine_time().saturating_sub(sent);
                let is_far = (*from == members[1]) != is_second;
                check!(took >= DELAY || !is_far, "{from}: {took:?}");
            }
            Ok(fabric.barrier(members)?)
        });
}

/// What a process sent before it was killed arrives with its delay, and then its loss is reported.
#[test]
fn last_words_arrive_with_their_delay() {
    const WORDS: u64 = 50;
    const DELAY: Duration = Duration::from_millis(300);
    let name = full_name(module_path!(), "last_words_arrive_with_their_delay");
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        if fabric.me() == members[1] {
            for number in 0..WORDS {
                let sent = machine_time().as_nanos() as u64;
                let word = [number.to_le_bytes(), sent.to_le_bytes()].concat();
                fabric.send(members[0], 1, &word)?;
                fabric.signal(members[0], 3)?;
            }
            pause("sent");
            return Ok(());
        }
        for number in 0..WORDS {
            let (_, word) = fabric.recv_vec(Match::from(members[1], 1))?;
            let now = machine_time();
            let half = |at: usize| {
                word[at..]
                    .first_chunk()
                    .map(|half| u64::from_le_bytes(*half))
            };
            same!(half(0), Some(number));
            let sent = Duration::from_nanos(half(8).unwrap_or(0));
            check!(now >= sent + DELAY, "word {number} took {:?}", now - sent);
        }
        for _ in 0..WORDS {
            fabric.await_signal(members[1], 3)?;
        }
        let over = fabric.recv(Match::from(members[1], 1), &mut []);
        matches_or_fail!(over, Err(Error::PeerLost { .. }));
        Ok(())
    };
    units(2)
        .mask(Mask::MESSAGES_ONLY)
        .config(|config| config.link = delayed(DELAY))
        .orchestrate(&name, body, |cluster| {
            cluster.wait_point(Who::Unit(1), "sent");
            cluster.kill(Who::Unit(1));
        });
}

/// Units of a job that do not agree on a link do not read each other's frames as something else.
#[test]
fn both_ends_must_have_the_link() {
    let name = full_name(module_path!(), "both_ends_must_have_the_link");
    let body = |unit: &Unit| -> Outcome {
        let mut unit = unit.clone();
        if unit.rank == 0 {
            unit.config.link = None;
        }
        let fabric = unit.join()?;
        let members = fabric.job()?;
        let other = members[1 - unit.rank as usize];
        // The other's frame may come first: then it is the send that finds out.
        let sent = fabric.send(other, 1, b"8 bytes.");
        let got = sent.and_then(|()| fabric.recv_vec(Match::from(other, 1)));
        // The first of them to find out leaves.
        match got {
            Err(Error::PeerCorrupt { what, .. }) => {
                check!(what.what.contains("fabric.link"), "{what:?}");
                point("found out");
            }
            other => matches_or_fail!(other, Err(Error::PeerLost { .. })),
        }
        Ok(())
    };
    units(2)
        .mask(Mask::MESSAGES_ONLY)
        .config(|config| config.link = delayed(Duration::from_micros(10)))
        .orchestrate_bare(&name, body, |cluster| {
            cluster.all_end();
            let found = [0, 1].map(|unit| {
                let said = cluster.lines(Who::Unit(unit));
                said.iter().any(|line| line == "@point found out")
            });
            assert!(found.contains(&true), "neither unit found out");
        });
}

/// A link that would delay nothing, or nothing in time, is refused.
#[test]
fn a_link_without_sense_is_refused() {
    let join = |mask, link| {
        let config = Config {
            mask,
            link: Some(link),
            ..Config::default()
        };
        Fabric::alone(Identity::by_hand("link"), config)
    };
    let link = delayed(Duration::from_micros(5)).unwrap_or_default();
    assert!(join(Mask::MESSAGES_ONLY, link).is_ok());
    assert!(join(TWO_NODES, link).is_ok());
    let minute = Duration::from_secs(60);
    let stopped = Link {
        rate: Some(0),
        ..link
    };
    let shaky = Link {
        jitter: minute,
        ..link
    };
    let far = Link {
        delay: minute,
        ..link
    };
    // 64 KiB take 16 s, and the deadline is 30 s.
    let slow = Link {
        rate: Some(4096),
        ..link
    };
    let late = "less than fabric.deadline";
    for (mask, link, setting, why) in [
        (
            Mask::default(),
            link,
            "delay",
            "set fabric.nodes to 2 or more",
        ),
        (TWO_NODES, stopped, "rate", "without rate"),
        (TWO_NODES, shaky, "jitter", late),
        (TWO_NODES, far, "delay", late),
        (TWO_NODES, slow, "rate", late),
    ] {
        let refused = join(mask, link).err().map(|error| error.to_string());
        let refused = refused.unwrap_or_default();
        let setting = format!("fabric.link.{setting}: ");
        assert!(
            refused.contains(why) && refused.contains(&setting),
            "{refused}"
        );
    }
}
