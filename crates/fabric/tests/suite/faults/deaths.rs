//! Death of the agent, of whom somebody waits for, and what becomes of a dead unit's number.

use samite_fabric::{
    Atomic, Error, Fabric, Identity, Match, Named, PeerId, SegmentKey, Status, Whom, Width,
    WordUpdate,
};
use samite_testkit::pattern::{pattern, verify};
use samite_testkit::{
    Failed, Outcome, Unit, Who, check, matches_or_fail, pause, point, same, units,
};
use std::time::Duration;

/// Nanoseconds of the clock that all processes of the machine share.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Who sleeps in a wait is woken by the death of whom it waits for. The time it took is printed.
#[test]
fn a_sleeper_is_woken_by_a_death() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        if fabric.me() == members[1] {
            pause("alive");
            return Ok(());
        }
        // Everything that may wait: a directed receive, a large send, a signal.
        let send = fabric.isend(members[1], 1, pattern(1, 1 << 20))?;
        let receive = fabric.irecv(Match::from(members[1], 1), vec![0; 8])?;
        point("waiting");
        let lost = fabric.recv(Match::from(members[1], 2), &mut [0; 8]);
        let at = now();
        matches_or_fail!(lost, Err(Error::PeerLost { peer, incarnation: 1 }) if *peer == members[1]);
        matches_or_fail!(receive.wait(), Err(Error::PeerLost { .. }));
        matches_or_fail!(send.wait(), Err(Error::PeerLost { .. }));
        matches_or_fail!(
            fabric.await_signal(members[1], 1),
            Err(Error::PeerLost { .. })
        );
        point(&format!("lost at {at}"));
        Ok(())
    };
    units(2).orchestrate(
        "faults::deaths::a_sleeper_is_woken_by_a_death",
        body,
        |cluster| {
            cluster.wait_point(Who::Unit(1), "alive");
            cluster.wait_point(Who::Unit(0), "waiting");
            cluster.wait_asleep(Who::Unit(0));
            let start = now();
            cluster.kill(Who::Unit(1));
            cluster.all_end();
            let lost = cluster
                .lines(Who::Unit(0))
                .iter()
                .find_map(|line| line.strip_prefix("@point lost at "));
            let at: u64 = lost
                .and_then(|at| at.parse().ok())
                .expect("the survivor says when");
            println!(
                "PeerLost {} us after kill -9",
                (at.saturating_sub(start)) / 1000
            );
        },
    );
}

/// Without the agent: memory stays readable, messages go on, what needs the agent is a clear error.
#[test]
fn the_agent_is_killed() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let me = members
            .iter()
            .position(|member| *member == fabric.me())
            .unwrap_or(0);
        let segment = fabric.allocate(3 << 20)?;
        segment.bytes().write(0, &pattern(me as u64, 3 << 20));
        let other = members[1 - me];
        fabric.send(other, 1, &segment.key().to_bytes())?;
        let mut key = [0; 24];
        fabric.recv(Match::from(other, 1), &mut key)?;
        let remote = fabric.attach(samite_fabric::SegmentKey::from_bytes(&key))?;
        fabric.barrier(members)?;
        pause("agent alive");
        // A wait for anybody says what happened; one for a living peer goes on.
        let start = std::time::Instant::now();
        let any = fabric.recv(Match::any(9), &mut [0; 8]);
        matches_or_fail!(any, Err(Error::AgentLost(domain)) if Some(domain.as_str()) == fabric.domain());
        check!(
            start.elapsed() < fabric.deadline(),
            "the loss of the agent was not noticed"
        );
        let refused = fabric.allocate(16 << 20).map(|_| ());
        matches_or_fail!(refused, Err(Error::Memory(_) | Error::AgentLost(_)));
        let mut bytes = vec![0; 3 << 20];
        remote.get(0, &mut bytes)?;
        verify(1 - me as u64, &bytes)?;
        segment.bytes().read(0, &mut bytes);
        verify(me as u64, &bytes)?;
        for size in [8, 100_000, 3 << 20] {
            let send = fabric.isend(other, 2, pattern(2, size))?;
            verify(2, &fabric.recv_vec(Match::from(other, 2))?.1)?;
            send.wait()?;
        }
        let identity = samite_fabric::Identity::by_hand("late");
        let late = Fabric::join(
            fabric.domain().unwrap_or_default(),
            identity,
            Default::default(),
        );
        matches_or_fail!(late.map(|_| ()), Err(Error::Join { .. }));
        Ok(fabric.barrier(members)?)
    };
    units(2).orchestrate("faults::deaths::the_agent_is_killed", body, |cluster| {
        cluster.wait_all("agent alive");
        cluster.kill(Who::Agent);
        cluster.wait_gone(Who::Agent);
        cluster.release(Who::Unit(0));
        cluster.release(Who::Unit(1));
    });
}

/// Joins only when told so; waits for the others by what they say of themselves.
fn rank_of(fabric: &Fabric, rank: u32) -> Outcome<PeerId> {
    let start = std::time::Instant::now();
    while start.elapsed() < fabric.deadline() {
        let peers = fabric.peers();
        if let Some(info) = peers.iter().find(|info| info.identity.rank == rank) {
            return Ok(info.peer);
        }
    }
    Err(Failed::new(format!("unit {rank} never came")))
}

/// Joins as a job of its own: while a job lives, the numbers of its units are not used again.
fn join_alone(unit: &Unit) -> Outcome<Fabric> {
    let identity = Identity {
        job: format!("{}-{}", unit.domain, unit.rank),
        ..unit.identity()
    };
    Ok(Fabric::join(&unit.domain, identity, unit.config.clone())?)
}

/// The number of a dead unit is used again: what the first life said is not said by the second, and
/// everything works with the second.
#[test]
fn a_number_is_used_again() {
    let body = |unit: &Unit| -> Outcome {
        if unit.rank == 2 {
            pause("outside");
        }
        let fabric = join_alone(unit)?;
        match unit.rank {
            0 => {
                let first = rank_of(&fabric, 1)?;
                fabric.await_signal(first, 8)?; // More were sent, and an unexpected message too.
                let view = fabric.irecv(Match::from(first, 50), vec![0; 8])?;
                point("heard");
                matches_or_fail!(view.wait(), Err(Error::PeerLost { incarnation: 1, .. }));
                point("lost");
                let second = rank_of(&fabric, 2)?;
                same!(second, first);
                let infos = fabric.peers();
                same!(
                    infos
                        .iter()
                        .find(|i| i.peer == second)
                        .map(|i| i.incarnation),
                    Some(2)
                );
                for size in [8, 5000, 1 << 20] {
                    let got = fabric.recv_vec(Match::from(second, 5))?.1;
                    same!(got.len(), size);
                    verify(size as u64, &got)?;
                    fabric.send(second, 6, &got)?;
                }
                fabric.set_deadline(Duration::from_millis(50));
                let stale = fabric.await_signal(second, 8);
                matches_or_fail!(
                    stale,
                    Err(Error::Timeout {
                        whom: Named {
                            id: Whom::Peer(_),
                            ..
                        },
                        ..
                    })
                );
                fabric.set_deadline(Duration::from_secs(30));
                fabric.signal(second, 1)?;
                let last = fabric.recv(Match::from(second, 7), &mut [0; 8]);
                same!(last.map(|status| status.len), Ok(3));
            }
            1 => {
                let zero = rank_of(&fabric, 0)?;
                fabric.send(zero, 5, b"of the first life")?;
                for _ in 0..3 {
                    fabric.signal(zero, 8)?;
                }
                pause("alive");
            }
            _ => {
                let zero = rank_of(&fabric, 0)?;
                for size in [8, 5000, 1 << 20] {
                    fabric.send(zero, 5, &pattern(size as u64, size))?;
                    verify(size as u64, &fabric.recv_vec(Match::from(zero, 6))?.1)?;
                }
                fabric.await_signal(zero, 1)?;
                fabric.send(zero, 7, b"end")?;
            }
        }
        Ok(())
    };
    units(3).orchestrate_bare("faults::deaths::a_number_is_used_again", body, |cluster| {
        cluster.wait_point(Who::Unit(2), "outside");
        cluster.wait_point(Who::Unit(1), "alive");
        cluster.wait_point(Who::Unit(0), "heard");
        cluster.kill(Who::Unit(1));
        cluster.wait_point(Who::Unit(0), "lost");
        cluster.wait_members(1);
        cluster.release(Who::Unit(2));
    });
}

/// What was prepared for a segment of a dead unit does not reach that of another unit which has its
/// number by now, although number and generation of the segment are the same.
#[test]
fn an_old_remote_does_not_reach_a_new_life() {
    const BYTES: u64 = 4096;
    let body = |unit: &Unit| -> Outcome {
        if unit.rank == 2 {
            pause("outside");
        }
        let fabric = join_alone(unit)?;
        if unit.rank == 0 {
            let first = rank_of(&fabric, 1)?;
            let mut key = [0; 24];
            fabric.recv(Match::from(first, 1), &mut key)?;
            let old = SegmentKey::from_bytes(&key);
            let remote = fabric.attach(old)?;
            remote.put(0, &[1; 8])?;
            point("attached");
            matches_or_fail!(
                fabric.recv(Match::from(first, 2), &mut []),
                Err(Error::PeerLost { incarnation: 1, .. })
            );
            point("lost");
            let second = rank_of(&fabric, 2)?;
            fabric.recv(Match::from(second, 1), &mut key)?;
            let new = SegmentKey::from_bytes(&key);
            same!(
                (new.peer, new.segment, new.generation),
                (old.peer, old.segment, old.generation)
            );
            same!((old.incarnation, new.incarnation), (1, 2));
            let is_lost = |error: &Error| matches!(error, Error::PeerLost { incarnation: 1, .. });
            matches_or_fail!(remote.put(0, &[1; 8]), Err(error) if is_lost(error));
            matches_or_fail!(remote.put_nb(8, &[1; 8]).and_then(|h| h.wait()), Err(error) if is_lost(error));
            matches_or_fail!(remote.get(0, &mut [0; 8]), Err(error) if is_lost(error));
            matches_or_fail!(remote.fetch_add(16, 1), Err(error) if is_lost(error));
            let updates = [WordUpdate {
                offset: 24,
                value: 1,
            }];
            let updated = remote.update_batch(Atomic::Add, Width::W64, &updates);
            matches_or_fail!(updated.and_then(|h| h.wait()), Err(error) if is_lost(error));
            matches_or_fail!(remote.get_batch(8, &[0]).and_then(|h| h.wait()), Err(error) if is_lost(error));
            let mut seen = vec![0; BYTES as usize];
            fabric.attach(new)?.get(0, &mut seen)?;
            same!(seen, vec![2; BYTES as usize]);
            return Ok(fabric.send(second, 2, &[])?);
        }
        let zero = rank_of(&fabric, 0)?;
        let segment = fabric.allocate(BYTES)?;
        segment.bytes().fill(unit.rank as u8);
        fabric.send(zero, 1, &segment.key().to_bytes())?;
        let last = fabric.recv(Match::from(zero, 2), &mut []);
        check!(last.is_ok(), "{last:?}");
        let mut seen = vec![0; BYTES as usize];
        segment.bytes().read(0, &mut seen);
        same!(seen, vec![2; BYTES as usize]);
        Ok(())
    };
    let name = "faults::deaths::an_old_remote_does_not_reach_a_new_life";
    units(3)
        .mask(samite_testkit::MESSAGES_ONLY)
        .orchestrate_bare(name, body, |cluster| {
            cluster.wait_point(Who::Unit(2), "outside");
            cluster.wait_point(Who::Unit(0), "attached");
            cluster.kill(Who::Unit(1));
            cluster.wait_point(Who::Unit(0), "lost");
            cluster.wait_members(1);
            cluster.release(Who::Unit(2));
        });
}

/// A process says much and leaves; another one gets its number before all of that is received. It
/// is received, as said by the old one, and no receive that names the new one takes it.
#[test]
fn last_words_outlive_the_number() {
    const WORDS: u64 = 50;
    let body = |unit: &Unit| -> Outcome {
        if unit.rank == 2 {
            pause("outside");
        }
        let fabric = join_alone(unit)?;
        if unit.rank == 0 {
            let next = |wants: Match| -> Outcome<(Status, u64)> {
                let mut bytes = [0; 8];
                let status = fabric.recv(wants, &mut bytes)?;
                Ok((status, u64::from_le_bytes(bytes)))
            };
            let first = next(Match::any(1))?.0.from;
            same!(next(Match::from(first, 1))?.1, 1);
            point("heard");
            let second = rank_of(&fabric, 2)?;
            same!(second, first);
            let (status, word) = next(Match::from(second, 1))?;
            same!((status.incarnation, word), (2, 1000));
            for number in 2..WORDS {
                let probed = fabric.probe(Match::any(1));
                let (status, word) = next(Match::any(1))?;
                same!(probed, Some(status));
                same!((status.from, status.incarnation, word), (first, 1, number));
            }
            same!(fabric.probe(Match::any(1)), None);
            return Ok(fabric.send(second, 2, &[])?);
        }
        let zero = rank_of(&fabric, 0)?;
        if unit.rank == 1 {
            for number in 0..WORDS {
                fabric.send(zero, 1, &number.to_le_bytes())?;
            }
            return Ok(());
        }
        fabric.send(zero, 1, &1000u64.to_le_bytes())?;
        fabric.recv(Match::from(zero, 2), &mut [])?;
        Ok(())
    };
    let name = "faults::deaths::last_words_outlive_the_number";
    units(3).orchestrate_bare(name, body, |cluster| {
        cluster.wait_point(Who::Unit(2), "outside");
        cluster.wait_point(Who::Unit(0), "heard");
        cluster.wait_gone(Who::Unit(1));
        cluster.wait_members(1);
        cluster.release(Who::Unit(2));
    });
}

/// One that came, sent and left before anybody looked is heard all the same, and then lost.
#[test]
fn a_short_visit_is_noticed() {
    let body = |unit: &Unit| -> Outcome {
        if unit.rank == 1 {
            pause("outside");
            let fabric = unit.join()?;
            let zero = rank_of(&fabric, 0)?;
            fabric.send(zero, 1, b"I was here")?;
            return Ok(());
        }
        let fabric = unit.join()?;
        pause("not looking");
        let mut bytes = [0; 16];
        let status = fabric.recv(Match::any(1), &mut bytes)?;
        same!(&bytes[..status.len as usize], b"I was here");
        matches_or_fail!(
            fabric.send(status.from, 1, b"?"),
            Err(Error::PeerLost { .. })
        );
        Ok(())
    };
    units(2).orchestrate_bare(
        "faults::deaths::a_short_visit_is_noticed",
        body,
        |cluster| {
            cluster.wait_point(Who::Unit(0), "not looking");
            cluster.wait_point(Who::Unit(1), "outside");
            cluster.release(Who::Unit(1));
            cluster.wait_gone(Who::Unit(1));
            cluster.release(Who::Unit(0));
        },
    );
}

/// Half of the units die at once while all talk to all; the other half loses no message of its own.
#[test]
fn half_of_them_die_at_once() {
    const ROUNDS: u64 = 400;
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let me = members
            .iter()
            .position(|member| *member == fabric.me())
            .unwrap_or(0);
        let mut buffer = vec![0; 20_000];
        let mut lost = 0;
        for round in 0..ROUNDS {
            for (rank, to) in members.iter().enumerate().filter(|(rank, _)| *rank != me) {
                match fabric.send(*to, round, &pattern(round, 5_000)) {
                    Ok(()) => {}
                    Err(Error::PeerLost { peer, .. }) if peer == *to && rank > 2 => {}
                    Err(error) => return Err(error.into()),
                }
            }
            for (rank, from) in members.iter().enumerate().filter(|(rank, _)| *rank != me) {
                match fabric.recv(Match::from(*from, round), &mut buffer) {
                    Ok(status) => verify(round, &buffer[..status.len as usize])?,
                    Err(Error::PeerLost { peer, .. }) if peer == *from && rank > 2 => lost += 1,
                    Err(error) => return Err(error.into()),
                }
            }
            if round == 20 {
                point("talking");
            }
        }
        // Units that are not killed in time end with the others' leaving; nobody asks them.
        check!(me > 2 || lost > 0, "nobody was lost");
        Ok(fabric.barrier(&members[..3])?)
    };
    units(6).orchestrate(
        "faults::deaths::half_of_them_die_at_once",
        body,
        |cluster| {
            for rank in 3..6 {
                cluster.wait_point(Who::Unit(rank), "talking");
            }
            for rank in 3..6 {
                cluster.kill(Who::Unit(rank));
            }
        },
    );
}
