//! A peer that is stopped is not dead: waits for it end at their deadline and name it; when it goes
//! on, so does everything.

use rustix::process::{Pid, Signal, kill_process};
use samite_fabric::{Error, Fabric, Match, PeerId, Whom};
use samite_testkit::pattern::{pattern, verify};
use samite_testkit::{
    Failed, Outcome, Unit, Who, check, matches_or_fail, pause, point, same, units,
};
use std::sync::Barrier;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// Every kind of wait names the stopped peer; the messages of before and after arrive.
#[test]
fn a_deadline_names_who_is_stopped() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let (zero, one) = (members[0], members[1]);
        if fabric.me() == one {
            let mut bytes = [0; 8];
            point("running");
            same!(fabric.recv(Match::from(zero, 1), &mut bytes)?.len, 5);
            fabric.send(zero, 2, &pattern(2, 300_000))?;
            return Ok(fabric.barrier(members)?);
        }
        pause("go");
        fabric.set_deadline(Duration::from_millis(100));
        let late = fabric.recv(Match::from(one, 2), &mut [0; 8]);
        matches_or_fail!(late, Err(Error::Timeout { whom, .. }) if *whom == Whom::Peer(one));
        let late = fabric.send(one, 3, &pattern(1, 1 << 20));
        matches_or_fail!(late, Err(Error::Timeout { whom, .. }) if *whom == Whom::Peer(one));
        let late = fabric.barrier(members);
        matches_or_fail!(late, Err(Error::Timeout { whom, .. }) if *whom == Whom::Peer(one));
        fabric.set_deadline(Duration::from_secs(30));
        fabric.send(one, 1, b"hello")?; // It fits into the ring: done without the other side.
        point("said");
        verify(2, &fabric.recv_vec(Match::from(one, 2))?.1)?;
        Ok(fabric.barrier(members)?)
    };
    units(2).orchestrate(
        "faults::stopped::a_deadline_names_who_is_stopped",
        body,
        |cluster| {
            cluster.wait_point(Who::Unit(1), "running");
            cluster.wait_point(Who::Unit(0), "go");
            cluster.stop(Who::Unit(1));
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(0), "said");
            cluster.go_on(Who::Unit(1));
        },
    );
}

/// Stopped and continued many times in the middle of a stream of large messages: nothing is lost.
#[test]
fn a_stream_survives_stops() {
    const COUNT: u64 = 60;
    const SIZE: usize = 2 << 20;
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let mut buffer = vec![0; SIZE];
        for round in 0..COUNT {
            if fabric.me() == members[0] {
                fabric.send(members[1], round, &pattern(round, SIZE))?;
            } else {
                fabric.recv(Match::from(members[0], round), &mut buffer)?;
                verify(round, &buffer)?;
            }
            if round % 6 == 0 && round < 48 {
                point("flowing");
            }
        }
        Ok(fabric.barrier(members)?)
    };
    units(2).orchestrate(
        "faults::stopped::a_stream_survives_stops",
        body,
        |cluster| {
            for round in 0..8 {
                let who = Who::Unit(round % 2);
                cluster.wait_point(who, "flowing");
                cluster.stop(who);
                // The other one runs dry: it waits, asleep, for the stopped one.
                cluster.wait_asleep(Who::Unit(1 - round % 2));
                cluster.go_on(who);
            }
        },
    );
}

/// The agent is stopped: what needs no agent goes on; a death is heard when the agent goes on.
#[test]
fn a_stopped_agent_delays_and_loses_nothing() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        if fabric.me() == members[2] {
            pause("running");
            pause("to die");
            return Ok(());
        }
        let pair = &members[..2];
        let talk = || -> Outcome {
            for size in [8, 5000, 100_000, 1 << 20] {
                let receive = fabric.irecv(Match::any(1), vec![0; size])?;
                let other = pair[usize::from(fabric.me() == pair[0])];
                fabric.send(other, 1, &pattern(1, size))?;
                verify(1, &receive.wait()?.1.unwrap_or_default())?;
                fabric.barrier(pair)?;
            }
            Ok(())
        };
        talk()?; // Whoever talks for the first time needs the agent, for memory.
        pause("running");
        talk()?;
        point("waiting");
        let lost = fabric.recv(Match::from(members[2], 1), &mut [0]);
        matches_or_fail!(lost, Err(Error::PeerLost { .. }));
        Ok(fabric.barrier(pair)?)
    };
    units(3).orchestrate(
        "faults::stopped::a_stopped_agent_delays_and_loses_nothing",
        body,
        |cluster| {
            cluster.wait_all("running");
            cluster.stop(Who::Agent);
            (0..3).for_each(|rank| cluster.release(Who::Unit(rank)));
            cluster.wait_point(Who::Unit(2), "to die");
            cluster.wait_point(Who::Unit(0), "waiting");
            cluster.wait_point(Who::Unit(1), "waiting");
            cluster.kill(Who::Unit(2));
            cluster.go_on(Who::Agent);
        },
    );
}

/// A thread that asks the agent, which is stopped, has nobody wait but itself.
#[test]
fn a_stopped_agent_stops_who_asks_it() {
    let body = |unit: &Unit| -> Outcome {
        if unit.rank == 1 {
            pause("born");
        }
        let fabric = &unit.join()?;
        if unit.rank == 1 {
            same!(fabric.job()?.len(), 2);
            return Ok(());
        }
        let talk = || -> Outcome {
            fabric.send(fabric.me(), 1, &[1; 8])?;
            fabric.recv(Match::any(1), &mut [0; 8])?;
            Ok(())
        };
        talk()?;
        pause("joined");
        let both = &Barrier::new(2);
        std::thread::scope(|threads| {
            let asks = threads.spawn(move || {
                both.wait();
                fabric.job()
            });
            both.wait();
            for _ in 0..10_000 {
                talk()?;
            }
            point("talked");
            let job = asks.join().map_err(|_| Failed::new("a panic"))?;
            same!(job?.len(), 2);
            Ok(())
        })
    };
    let units = units(2).config(|config| config.deadline = Duration::from_secs(1000));
    units.orchestrate_bare(
        "faults::stopped::a_stopped_agent_stops_who_asks_it",
        body,
        |cluster| {
            cluster.wait_point(Who::Unit(0), "joined");
            cluster.wait_point(Who::Unit(1), "born");
            cluster.stop(Who::Agent);
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(0), "talked");
            cluster.go_on(Who::Agent);
            cluster.release(Who::Unit(1));
        },
    );
}

/// A process is stopped for longer than its deadline while it waits for its job, and then hears
/// news of another one: it has hardly waited.
#[test]
fn who_was_stopped_goes_on_waiting_for_its_job() {
    let body = |unit: &Unit| -> Outcome {
        if unit.rank == 1 {
            pause("born");
        }
        let fabric = &unit.join()?;
        same!(fabric.job()?.len(), 2);
        Ok(())
    };
    let deadline = Duration::from_secs(4);
    let units = units(2).config(move |config| config.deadline = deadline);
    let name = "faults::stopped::who_was_stopped_goes_on_waiting_for_its_job";
    units.orchestrate_bare(name, body, |cluster| {
        let (waits, late) = (Who::Unit(0), Who::Unit(1));
        cluster.wait_point(late, "born");
        cluster.wait_members(1);
        cluster.wait_asleep(waits);
        cluster.stop(waits);
        std::thread::sleep(deadline + Duration::from_secs(1));
        let told = samite_fabric::agent::unit_ended(
            cluster.domain(),
            "another",
            0,
            ("other.0", "ended"),
            Duration::from_secs(30),
        );
        told.unwrap();
        cluster.go_on(waits);
        cluster.wait_asleep(waits);
        cluster.release(late);
    });
}

/// A process is stopped and continued again and again while it waits for the agent to take it in,
/// as under a debugger.
#[test]
fn stopped_while_it_joins() {
    let body = |unit: &Unit| -> Outcome {
        pause("born");
        let fabric = unit.join()?;
        same!(fabric.peers().len(), 1);
        Ok(())
    };
    units(1).orchestrate_bare("faults::stopped::stopped_while_it_joins", body, |cluster| {
        let who = Who::Unit(0);
        cluster.wait_point(who, "born");
        cluster.stop(Who::Agent);
        cluster.release(who);
        for _ in 0..5 {
            cluster.wait_asleep(who);
            cluster.stop(who);
            cluster.go_on(who);
        }
        cluster.go_on(Who::Agent);
    });
}

/// A process is stopped, while it waits for the agent, for longer than its deadline: it goes on
/// waiting.
#[test]
fn a_stop_is_no_wait_for_the_agent() {
    let deadline = Duration::from_secs(2);
    let body = move |fabric: &Fabric, _: &[PeerId]| -> Outcome {
        pause("the agent is to stop");
        let domain = fabric.domain().unwrap_or_default();
        let facts = samite_fabric::agent::facts(domain, deadline)?;
        same!(facts.peers.len(), 1);
        Ok(())
    };
    let name = "faults::stopped::a_stop_is_no_wait_for_the_agent";
    units(1).orchestrate(name, body, |cluster| {
        let who = Who::Unit(0);
        cluster.wait_point(who, "the agent is to stop");
        cluster.stop(Who::Agent);
        cluster.release(who);
        cluster.wait_asleep(who);
        cluster.stop(who);
        std::thread::sleep(deadline + Duration::from_secs(1));
        cluster.go_on(who);
        cluster.wait_asleep(who);
        cluster.go_on(Who::Agent);
    });
}

/// A process is stopped and continued for as long as it waits for the agent: each time, the kernel
/// would begin the wait anew.
#[test]
fn stops_do_not_renew_a_wait_for_the_agent() {
    let body = |fabric: &Fabric, _: &[PeerId]| -> Outcome {
        pause("the agent is to stop");
        let domain = fabric.domain().unwrap_or_default();
        let late = samite_fabric::agent::facts(domain, Duration::from_millis(300));
        matches_or_fail!(late.map(|_| ()), Err(Error::Join { .. }));
        pause("the wait has ended");
        Ok(())
    };
    let name = "faults::stopped::stops_do_not_renew_a_wait_for_the_agent";
    units(1).orchestrate(name, body, |cluster| {
        let who = Who::Unit(0);
        cluster.wait_point(who, "the agent is to stop");
        cluster.stop(Who::Agent);
        let pid = Pid::from_raw(cluster.pid(who));
        let (waits, has_ended) = std::sync::mpsc::channel::<()>();
        cluster.release(who);
        std::thread::scope(|threads| {
            threads.spawn(move || {
                let signal = |signal| pid.map(|pid| kill_process(pid, signal));
                let pause = Duration::from_millis(50);
                while has_ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                    signal(Signal::STOP);
                    signal(Signal::CONT);
                }
            });
            cluster.wait_point(who, "the wait has ended");
            drop(waits);
        });
        cluster.release(who);
        cluster.go_on(Who::Agent);
    });
}

/// The agent is stopped, and a unit has no memory left for what it is to send: meanwhile it answers
/// others.
#[test]
fn who_waits_for_memory_answers_others() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let (zero, one, two) = (members[0], members[1], members[2]);
        if fabric.me() == zero {
            pause("asks");
            same!(fabric.request(one, 7, &[])?.wait()?, Vec::<u8>::new());
            point("answered");
            pause("the agent is back");
            fabric.signal(one, 1)?;
        } else if fabric.me() == one {
            // Without bytes: for these there would have to be memory, too.
            fabric.on(7, |_, _| None);
            let mut all = Vec::new();
            for bytes in [64 << 10, 4 << 10, 128] {
                let refused = loop {
                    match fabric.allocate(bytes) {
                        Ok(segment) => all.push(segment),
                        Err(error) => break error,
                    }
                };
                matches_or_fail!(refused, Error::Budget { .. });
            }
            pause("has no memory");
            // The first that it says to this unit.
            let send = fabric.isend(two, 1, b"hello".to_vec())?;
            point("sends");
            fabric.await_signal(zero, 1)?;
            check!(!send.has_ended(), "sent without a ring");
            drop(all);
            send.wait()?;
        } else {
            same!(fabric.recv(Match::from(one, 1), &mut [0; 8])?.len, 5);
        }
        Ok(fabric.barrier(members)?)
    };
    let name = "faults::stopped::who_waits_for_memory_answers_others";
    units(3)
        .budget(16 << 20)
        .orchestrate(name, body, |cluster| {
            cluster.wait_point(Who::Unit(1), "has no memory");
            cluster.wait_point(Who::Unit(0), "asks");
            cluster.stop(Who::Agent);
            cluster.release(Who::Unit(1));
            cluster.wait_point(Who::Unit(1), "sends");
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(0), "answered");
            cluster.go_on(Who::Agent);
            cluster.wait_point(Who::Unit(0), "the agent is back");
            cluster.release(Who::Unit(0));
        });
}

/// A member whose deadline is over is not at the barrier any more: nobody passes without it, and
/// one after another comes again.
#[test]
fn who_goes_back_is_waited_for() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let (root, one) = (members[0], members[1]);
        let (short, long) = (Duration::from_millis(100), Duration::from_secs(30));
        for _ in 0..3 {
            if fabric.me() == one {
                fabric.set_deadline(short);
                let late = fabric.barrier(members);
                matches_or_fail!(late, Err(Error::Timeout { whom, .. }) if *whom == Whom::Peer(root));
                fabric.set_deadline(long);
                fabric.signal(root, 1)?;
                fabric.await_signal(root, 2)?;
            } else if fabric.me() == root {
                fabric.await_signal(one, 1)?;
                fabric.set_deadline(short);
                let late = fabric.barrier(members);
                matches_or_fail!(late, Err(Error::Timeout { whom, .. }) if *whom == Whom::Peer(one));
                fabric.set_deadline(long);
                fabric.signal(one, 2)?;
            }
            // The third one is there all the time.
            fabric.barrier(members)?;
        }
        Ok(())
    };
    units(3).run("faults::stopped::who_goes_back_is_waited_for", body);
}

/// Signals to somebody who takes none wait here, so many of them; none that was accepted is lost.
#[test]
fn signals_to_somebody_who_is_stopped_are_bounded() {
    const MOST: u64 = 1_000_000;
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let (zero, one) = (members[0], members[1]);
        if fabric.me() == one {
            point("running");
            let (_, sent) = fabric.recv_vec(Match::from(zero, 1))?;
            for _ in 0..u64::from_le_bytes(sent.try_into().unwrap_or_default()) {
                fabric.await_signal(zero, 3)?;
            }
            return Ok(fabric.barrier(members)?);
        }
        pause("go");
        fabric.set_deadline(Duration::from_millis(100));
        let mut sent = 0;
        let late = loop {
            match fabric.signal(one, 3) {
                Ok(()) if sent < MOST => sent += 1,
                ended => break ended,
            }
        };
        matches_or_fail!(late, Err(Error::Timeout { whom, .. }) if *whom == Whom::Peer(one));
        fabric.set_deadline(Duration::from_secs(30));
        point("refused");
        fabric.send(one, 1, &sent.to_le_bytes())?;
        Ok(fabric.barrier(members)?)
    };
    let name = "faults::stopped::signals_to_somebody_who_is_stopped_are_bounded";
    units(2).orchestrate(name, body, |cluster| {
        cluster.wait_point(Who::Unit(1), "running");
        cluster.wait_point(Who::Unit(0), "go");
        cluster.stop(Who::Unit(1));
        cluster.release(Who::Unit(0));
        cluster.wait_point(Who::Unit(0), "refused");
        cluster.go_on(Who::Unit(1));
    });
}

/// The whole job is stopped for longer than its deadline, as Ctrl-Z does it, while it waits and
/// while it works: nobody was late. Time itself is what this is about, so it takes some.
#[test]
fn a_job_that_is_stopped_as_a_whole_is_not_late() {
    const DEADLINE: Duration = Duration::from_millis(1500);
    const STOP: Duration = Duration::from_millis(1800);
    const ROUNDS: u64 = 200;
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let me = members.iter().position(|peer| *peer == fabric.me());
        let me = me.unwrap_or_default();
        let (zero, large) = (members[0], 1 << 20);
        fabric.on(7, |_, bytes| Some(bytes.to_vec()));
        fabric.barrier(members)?;
        fabric.set_deadline(DEADLINE);
        point("waits");
        match me {
            0 => {
                pause("holds all up");
                for to in &members[1..] {
                    fabric.send(*to, 1, &pattern(1, large))?;
                }
            }
            1 => same!(fabric.request(zero, 7, b"hello")?.wait()?, b"hello"),
            2 => {
                let mut into = vec![0; large];
                fabric.scope(|scope| scope.irecv(Match::from(zero, 1), &mut into).map(drop))?;
                verify(1, &into)?;
            }
            _ => fabric.await_signal(members[2], 3)?,
        }
        match me {
            2 => fabric.signal(members[3], 3)?,
            1 | 3 => verify(1, &fabric.recv_vec(Match::from(zero, 1))?.1)?,
            _ => {}
        }
        fabric.barrier(members)?;
        let (right, left) = (members[(me + 1) % 4], members[(me + 3) % 4]);
        for round in 0..ROUNDS {
            let size = [8, 5000, large][round as usize % 3];
            let receive = fabric.irecv(Match::from(left, round), vec![0; size])?;
            fabric.send(right, round, &pattern(round, size))?;
            verify(round, &receive.wait()?.1.unwrap_or_default())?;
            if round % 50 == 10 {
                point("works");
            }
        }
        fabric.set_deadline(Duration::from_secs(30));
        Ok(fabric.barrier(members)?)
    };
    let everybody = [
        Who::Agent,
        Who::Unit(0),
        Who::Unit(1),
        Who::Unit(2),
        Who::Unit(3),
    ];
    let stop_all = |cluster: &mut samite_testkit::Cluster| {
        everybody.iter().for_each(|who| cluster.stop(*who));
        std::thread::sleep(STOP);
        everybody.iter().for_each(|who| cluster.go_on(*who));
    };
    let name = "faults::stopped::a_job_that_is_stopped_as_a_whole_is_not_late";
    units(4).orchestrate(name, body, |cluster| {
        cluster.wait_point(Who::Unit(0), "holds all up");
        for rank in 1..4 {
            cluster.wait_point(Who::Unit(rank), "waits");
            cluster.wait_asleep(Who::Unit(rank));
        }
        stop_all(cluster);
        cluster.release(Who::Unit(0));
        for rank in 0..2 {
            cluster.wait_point(Who::Unit(rank), "works");
            stop_all(cluster);
        }
    });
}
