//! What only the simulated network can do: repeat a run, kill at any moment, be slow and narrow.
//!
//! `SAMITE_SIM_SEED=N` repeats one seed of any of these.

use samite_fabric::transport::Rma;
use samite_fabric::transport::sim::Scenario;
use samite_fabric::{Atomic, Error, Fabric, Match, PeerId, Width, wait_all};
use samite_testkit::contract::{Case, active, onesided, order, sizes, waiting};
use samite_testkit::pattern::{pattern, verify};
use samite_testkit::{Failed, Outcome, check, same, seeds, two_nodes};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Everybody talks to everybody; in which order one hears the others.
fn hear(fabric: &Fabric) -> Outcome<Vec<(u32, u64)>> {
    let members = fabric.job()?;
    let mut sends = Vec::new();
    for number in 0..40 {
        for to in &members {
            sends.push(fabric.isend(*to, number, vec![1; (number as usize * 300) % 9000])?);
        }
    }
    let mut heard = Vec::new();
    for _ in 0..40 * members.len() {
        let (status, _) = fabric.recv_vec(Match::any(0).masked(0))?;
        heard.push((status.from.0, status.tag));
    }
    wait_all(sends)?;
    fabric.barrier(&members)?;
    Ok(heard)
}

/// The same seed gives the same run, message by message; other seeds give others.
#[test]
fn a_seed_is_a_run() {
    let run = |seed| -> Vec<Vec<(u32, u64)>> {
        let heard = Scenario::new(seed, 4).run(hear);
        heard
            .into_iter()
            .map(|heard| heard.unwrap_or_else(|why| panic!("seed {seed}: {why}")))
            .collect()
    };
    let runs: Vec<_> = (0..4).map(run).collect();
    for (seed, heard) in runs.iter().enumerate() {
        assert_eq!(
            *heard,
            run(seed as u64),
            "seed {seed} gave two different runs"
        );
    }
    assert!(
        runs.iter().any(|heard| *heard != runs[0]),
        "all seeds gave the same run"
    );
}

/// Who walks all peers meets them in one order, in every run.
#[test]
fn peers_come_by_number() {
    let ended = Scenario::new(1, 12).on_nodes(3).run(|fabric| -> Outcome {
        let members = fabric.job()?;
        for to in &members {
            fabric.signal(*to, 1)?;
        }
        for from in &members {
            fabric.await_signal(*from, 1)?;
        }
        let peers = fabric.peers();
        let numbers: Vec<PeerId> = peers.iter().map(|info| info.peer).collect();
        check!(numbers.len() == 12 && numbers.is_sorted(), "{numbers:?}");
        Ok(fabric.barrier(&members)?)
    });
    for end in ended {
        end.unwrap_or_else(|why| panic!("{why}"));
    }
}

/// Talks to all others, small and large, until everybody has seen the victim's death.
fn until_the_death(fabric: &Fabric, victim: PeerId) -> Outcome {
    let members = fabric.job()?;
    let others: Vec<PeerId> = members
        .iter()
        .copied()
        .filter(|to| *to != fabric.me())
        .collect();
    let mut seen = false;
    let lost = |error: Error| match error {
        Error::PeerLost { peer, .. } if peer == victim => Ok(()),
        other => Err(Failed::new(other)),
    };
    for round in 0..30u64 {
        let len = if round % 4 == 3 { 50_000 } else { 100 };
        let mut receives = Vec::new();
        for from in &others {
            match fabric.irecv(Match::from(*from, round), vec![0; len]) {
                Ok(handle) => receives.push(handle),
                Err(error) => lost(error)?,
            }
        }
        let mut sends = Vec::new();
        for to in &others {
            match fabric.isend(*to, round, pattern(round, len)) {
                Ok(handle) => sends.push(handle),
                Err(error) => lost(error)?,
            }
        }
        for handle in receives {
            match handle.wait() {
                Ok((_, bytes)) => verify(round, &bytes.unwrap_or_default())?,
                Err(error) => {
                    seen = true;
                    lost(error)?;
                }
            }
        }
        for handle in sends {
            handle.wait().map(|_| ()).or_else(lost)?;
        }
    }
    if !seen {
        // It was to die after all this: then that is waited for.
        match fabric.recv(Match::from(victim, 1 << 40), &mut [0]) {
            Ok(_) => return Err(Failed::new("a message that nobody sent")),
            Err(error) => lost(error)?,
        }
    }
    let rest: Vec<PeerId> = members
        .into_iter()
        .filter(|member| *member != victim)
        .collect();
    Ok(fabric.barrier(&rest)?)
}

/// Puts, gets and atomics by RMA at a unit that dies, in the middle of them or before: each ends,
/// with its effect or with the loss, and nothing else.
#[test]
fn death_with_rma_in_flight() {
    let body = |fabric: &Fabric| -> Outcome {
        let members = fabric.job()?;
        let segment = fabric.allocate(1 << 20)?;
        let victim = members[2];
        let lost = |error: Error| match error {
            Error::PeerLost { peer, .. } if peer == victim => Ok(()),
            other => Err(Failed::new(other)),
        };
        if fabric.me() == victim {
            // It dies here at the latest.
            return match fabric.recv(Match::any(1), &mut [0]) {
                Ok(_) => Err(Failed::new("a message that nobody sent")),
                Err(_) => {
                    drop(segment);
                    Ok(())
                }
            };
        }
        let key = loop {
            match fabric.look_up(victim, segment.key().segment) {
                Ok(Some(key)) => break key,
                Ok(None) => {}
                Err(error) => return lost(error),
            }
        };
        let remote = match fabric.attach(key) {
            Ok(remote) => remote,
            Err(error) => return lost(error),
        };
        let mut bytes = vec![0; 200_000];
        loop {
            let put = remote.put_nb(0, &bytes);
            let add = remote.atomic_nb(1 << 19, Atomic::Add, Width::W64, 1, 0);
            let got = remote.get(0, &mut bytes);
            let put = put.and_then(|put| put.wait());
            let add = add.and_then(|add| add.wait());
            let ended = [put.map(|_| ()), add.map(|_| ()), got];
            let Some(error) = ended.into_iter().find_map(Result::err) else {
                continue;
            };
            return lost(error);
        }
    };
    for seed in seeds(0..30) {
        let at = Duration::from_micros(seed * seed % 900);
        for rma in [Rma::Bypasses, Rma::NeedsProgress] {
            let scenario = Scenario::new(seed, 3).with_rma(rma).unordered();
            let ended = scenario.kill(2, at).run(body);
            for (unit, end) in ended.into_iter().take(2).enumerate() {
                end.unwrap_or_else(|why| panic!("seed {seed}, {rma:?}, unit {unit}: {why}"));
            }
        }
    }
}

/// Gets are never all started, for the program always wants more of them than the network takes; a
/// put is complete all the same.
#[test]
fn gets_do_not_keep_a_put_waiting() {
    let body = |fabric: &Fabric| -> Outcome {
        let members = fabric.job()?;
        let segment = fabric.allocate(64)?;
        if fabric.me() == members[0] {
            let key = fabric.look_up(members[1], segment.key().segment)?;
            let remote = fabric.attach(key.ok_or_else(|| Failed::new("no segment"))?)?;
            // The remote key is here when two answers are.
            remote.get(0, &mut [0; 8])?;
            remote.get(0, &mut [0; 8])?;
            let window = (0..100).map(|_| remote.get_nb(0, 8));
            let mut window = window.collect::<Result<VecDeque<_>, _>>()?;
            let mut put = remote.put_nb(8, b"it comes")?;
            for _ in 0..2000 {
                let oldest = window.pop_front().expect("there are a hundred");
                oldest.wait()?;
                window.push_back(remote.get_nb(0, 8)?);
                if let Some(ended) = put.test() {
                    ended?;
                    return Ok(fabric.barrier(&members)?);
                }
            }
            return Err(Failed::new("the put is not complete"));
        }
        Ok(fabric.barrier(&members)?)
    };
    for rma in [Rma::Bypasses, Rma::NeedsProgress] {
        let mut scenario = Scenario::new(1, 2).with_rma(rma);
        scenario.in_flight_max = 4;
        let ended = scenario.run(body);
        for (unit, end) in ended.into_iter().enumerate() {
            end.unwrap_or_else(|why| panic!("{rma:?}, unit {unit}: {why}"));
        }
    }
}

/// A handler panics on frames that others have overtaken: those come next, in order, though nothing
/// else arrives.
#[test]
fn what_overtook_a_panic_comes_after_it() {
    const NOTES: u8 = 30;
    let body = |fabric: &Fabric| -> Outcome {
        let members = fabric.job()?;
        if fabric.me() == members[0] {
            (0..NOTES).try_for_each(|note| fabric.tell(members[1], 1, &[note]))?;
            return Ok(fabric.await_signal(members[1], 1)?);
        }
        let (told, notes) = std::sync::mpsc::channel();
        fabric.on(1, move |_, bytes| {
            let _ = told.send(bytes[0]);
            assert!(bytes[0] % 3 != 0, "a handler");
            None
        });
        for note in 0..NOTES {
            let next = || {
                let note = fabric.wait_until("a note", &[members[0]], || notes.try_recv().ok());
                Ok::<_, Failed>(note?)
            };
            let next = loop {
                if let Ok(next) = catch_unwind(AssertUnwindSafe(next)) {
                    break next?;
                }
            };
            same!(next, note);
        }
        Ok(fabric.signal(members[0], 1)?)
    };
    for seed in seeds(0..10) {
        let ended = Scenario::new(seed, 2).unordered().run(body);
        for (unit, end) in ended.into_iter().enumerate() {
            end.unwrap_or_else(|why| panic!("seed {seed}, unit {unit}: {why}"));
        }
    }
}

/// A handler panics while a get waits for room between its pieces: the caller that catches that has
/// its buffer again.
#[test]
fn a_panic_in_the_middle_of_a_get() {
    const BYTES: usize = 3 << 20;
    for seed in seeds(0..10) {
        let ended = two_nodes(seed, 2).run(|fabric| -> Outcome {
            let members = fabric.job()?;
            let segment = fabric.allocate(BYTES as u64)?;
            fabric.barrier(&members)?;
            let other = members[usize::from(members[0] == fabric.me())];
            let key = fabric.look_up(other, segment.key().segment)?;
            let remote = fabric.attach(key.ok_or(Failed::new("no such segment"))?)?;
            // The remote key is here when two answers are.
            remote.get(0, &mut [0; 8])?;
            remote.get(0, &mut [0; 8])?;
            let mut calls = 0;
            fabric.on(1, move |_, _| {
                calls += 1;
                assert!(calls > 1, "a handler");
                None
            });
            let mut into = vec![1; BYTES];
            fabric.tell(fabric.me(), 1, b"")?;
            let ended = catch_unwind(AssertUnwindSafe(|| remote.get(0, &mut into)));
            check!(ended.is_err(), "the panic is told");
            remote.get(0, &mut into)?;
            check!(into.iter().all(|byte| *byte == 0), "bytes of the segment");
            Ok(fabric.barrier(&members)?)
        });
        for end in ended {
            end.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        }
    }
}

/// Death at many moments: each pending operation ends, what arrived is whole, the others go on.
#[test]
fn death_at_any_moment() {
    for seed in seeds(0..60) {
        let at = Duration::from_micros(seed * seed % 1500);
        let ended = Scenario::new(seed, 4)
            .kill(3, at)
            .run(|fabric| until_the_death(fabric, PeerId::new(3, 0)));
        for (unit, end) in ended.into_iter().take(3).enumerate() {
            if let Err(why) = end {
                panic!(
                    "seed {seed}, death at {at:?}, unit {unit}: {why}\n  repeat it with: SAMITE_SIM_SEED={seed} \
                     cargo test -p samite-fabric --test suite death_at_any_moment"
                );
            }
        }
    }
}

/// Slow, narrow, with hardly any room: what is refused for now is tried again, and nothing else
/// changes.
#[test]
fn a_narrow_network() {
    let cases: [(&str, Case); 6] = [
        ("order", order::messages_of_a_pair_stay_in_order),
        (
            "head of line",
            order::large_messages_do_not_block_small_ones,
        ),
        ("sizes", sizes::every_size_between_all_kinds_of_buffers),
        ("long requests", active::long_requests_and_long_replies),
        ("puts", onesided::everybody_puts_at_once),
        ("barriers", waiting::nobody_passes_a_barrier_early),
    ];
    for seed in seeds(0..2) {
        for (name, case) in cases {
            let mut scenario = Scenario::new(seed, 3);
            scenario.latency = Duration::from_micros(10)..Duration::from_millis(2);
            scenario.bandwidth = 200_000_000;
            scenario.in_flight_max = 4;
            scenario.body_max = 1500;
            scenario.config.deadline = Duration::from_secs(3600);
            let ended = scenario.run(|fabric| case(fabric, &fabric.job()?));
            for (unit, end) in ended.into_iter().enumerate() {
                end.unwrap_or_else(|why| panic!("seed {seed}, {name}, unit {unit}: {why}"));
            }
        }
    }
}

/// An operation with a unit of a node that disappears ends with the loss of its first life.
fn ends_with_old<T>(node: u32, ended: Result<T, Error>) -> Outcome {
    match ended {
        Err(Error::PeerLost { peer, incarnation }) if peer.node() == node => {
            same!(incarnation, 1);
            Ok(())
        }
        Err(other) => Err(Failed::new(other)),
        Ok(_) => Err(Failed::new("it ended as if the node were there")),
    }
}

/// Node 1 disappears and comes back. The units of the others hear of the death and of the return:
/// what they asked the old life for ends with its incarnation, and the new life is another peer.
fn through_a_return(fabric: &Fabric) -> Outcome {
    let members = fabric.job()?;
    let is_of_node = |peer: &PeerId| peer.node() == 1;
    let (of_node, others): (Vec<PeerId>, Vec<PeerId>) = members.iter().partition(|p| is_of_node(p));
    // The first one of them gathers the others.
    let all = [of_node.as_slice(), others.as_slice()].concat();
    let segment = fabric.allocate(4096)?;
    if is_of_node(&fabric.me()) && fabric.incarnation() == 1 {
        // It dies in a barrier that never ends.
        check!(fabric.barrier(&all).is_err());
        drop(segment);
        return Ok(());
    }
    if is_of_node(&fabric.me()) {
        for _ in &others {
            let (status, question) = fabric.recv_vec(Match::any(1))?;
            fabric.send(status.from, 2, &question)?;
        }
        return Ok(());
    }
    // Messages, gets and a barrier are under way when the node disappears.
    let waits = of_node
        .iter()
        .map(|peer| fabric.irecv(Match::from(*peer, 7), vec![0; 8]));
    let waits: Vec<_> = waits.collect();
    let large = fabric.isend(of_node[0], 8, pattern(8, 1 << 20));
    let gets = || -> Result<(), Error> {
        let key = loop {
            if let Some(key) = fabric.look_up(of_node[1], segment.key().segment)? {
                break key;
            }
        };
        let remote = fabric.attach(key)?;
        loop {
            remote.get(0, &mut [0; 4096])?;
        }
    };
    ends_with_old(1, gets())?;
    ends_with_old(1, fabric.barrier(&all))?;
    for wait in waits {
        ends_with_old(1, wait.and_then(|wait| wait.wait()))?;
    }
    ends_with_old(1, large.and_then(|large| large.wait()))?;
    for peer in of_node {
        let life = loop {
            let peers = fabric.peers();
            if let Some(info) = peers.iter().find(|info| info.peer == peer) {
                break info.incarnation;
            }
            // Time goes on.
            let nothing =
                fabric.within(Duration::from_millis(1), || fabric.recv_vec(Match::any(99)));
            check!(nothing.is_err());
        };
        check!(
            life > 1 << 20,
            "the life of a node that came back is {life}"
        );
        check!(fabric.lost_life(peer, 1).is_some(), "the old life is lost");
        fabric.send(peer, 1, &life.to_le_bytes())?;
        let mut answer = [0; 4];
        let status = fabric.recv(Match::from(peer, 2), &mut answer)?;
        same!(status.incarnation, life);
        same!(u32::from_le_bytes(answer), life);
    }
    Ok(fabric.barrier(&others)?)
}

/// Node 1 disappears while the others wait for its units, and comes back. Then all enter a barrier
/// with the same list, the root last.
fn at_a_barrier_through_a_return(fabric: &Fabric) -> Outcome {
    let members = fabric.job()?;
    let root = members[0];
    let returns = fabric.me().node() == 1;
    if returns && fabric.incarnation() == 1 {
        check!(fabric.recv(Match::any(1), &mut [0]).is_err());
        return Ok(());
    }
    if !returns {
        ends_with_old(1, fabric.barrier(&members))?;
    }
    let pause = || fabric.within(Duration::from_millis(1), || fabric.recv_vec(Match::any(99)));
    if fabric.me() == root {
        while fabric.peers().len() < members.len() {
            check!(pause().is_err());
        }
        for member in &members[1..] {
            fabric.signal(*member, 1)?;
        }
        check!(pause().is_err(), "the others come meanwhile");
    } else {
        fabric.await_signal(root, 1)?;
    }
    fabric.barrier(&members)?;
    Ok(fabric.barrier(&members)?)
}

/// The root of a barrier that a loss has ended does not refuse those that come to the next one,
/// with the new life of the lost member.
#[test]
fn a_barrier_with_a_new_life() {
    for seed in seeds(0..10) {
        let at = Duration::from_micros(500);
        let scenario = Scenario::new(seed, 6).on_nodes(3).kill_node(1, at);
        let scenario = scenario.start_node(1, at + Duration::from_secs(1));
        let ended = scenario.run(at_a_barrier_through_a_return);
        let mut ended = ended.into_iter().enumerate();
        let failed = ended.find(|(life, end)| end.is_err() && ![1, 4].contains(life));
        assert!(failed.is_none(), "seed {seed}, life and end: {failed:?}");
    }
}

/// A node disappears with all of its units while messages, gets and barriers are under way, and
/// comes back.
#[test]
fn a_node_disappears_and_comes_back() {
    for seed in seeds(0..40) {
        let at = Duration::from_micros(seed * seed * 3 % 900);
        let rma = [Rma::None, Rma::Bypasses, Rma::NeedsProgress][seed as usize % 3];
        let mut scenario = Scenario::new(seed, 6).on_nodes(3).with_rma(rma);
        scenario.is_ordered = seed % 2 == 0;
        let scenario = scenario
            .kill_node(1, at)
            .start_node(1, at + Duration::from_secs(1));
        let ended = scenario.run(through_a_return);
        assert_eq!(ended.len(), 8, "six units, two of which have two lives");
        // What units 1 and 4 see when they die is theirs alone.
        let mut others = ended.into_iter().enumerate();
        let failed = others.find(|(life, end)| end.is_err() && ![1, 4].contains(life));
        assert!(
            failed.is_none(),
            "seed {seed}, death at {at:?}, life and end: {failed:?}"
        );
    }
}

/// A node joins late, leaves in order with its last unit, and comes back: as another life.
#[test]
fn a_node_joins_leaves_and_comes_back() {
    let body = |fabric: &Fabric| -> Outcome {
        let members = fabric.job()?;
        let is_late = |peer: &PeerId| peer.node() == 1;
        let (late, others): (Vec<PeerId>, Vec<PeerId>) = members.iter().partition(|p| is_late(p));
        if is_late(&fabric.me()) && fabric.incarnation() > 1 {
            let sent = others.iter().map(|peer| fabric.send(*peer, 5, &[]));
            return Ok(sent.collect::<Result<(), Error>>()?);
        }
        fabric.barrier(&members)?;
        if is_late(&fabric.me()) {
            return Ok(());
        }
        for peer in &late {
            ends_with_old(1, fabric.recv(Match::from(*peer, 4), &mut []))?;
        }
        for _ in &late {
            let status = fabric.recv(Match::any(5), &mut [])?;
            check!(late.contains(&status.from));
            check!(status.incarnation > 1 << 20, "{status:?}");
        }
        Ok(())
    };
    for seed in seeds(0..10) {
        let scenario = Scenario::new(seed, 5).on_nodes(2);
        let scenario = scenario
            .start_node(1, Duration::from_millis(50))
            .start_node(1, Duration::from_secs(2));
        let ended = scenario.run(body);
        assert_eq!(ended.len(), 7, "five units, two of which have two lives");
        let failed: Vec<_> = ended
            .iter()
            .enumerate()
            .filter(|(_, end)| end.is_err())
            .collect();
        assert!(failed.is_empty(), "seed {seed}, life and end: {failed:?}");
    }
}
