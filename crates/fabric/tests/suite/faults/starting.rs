//! Starting and leaving: who has joined stays found, who cannot join leaves no trace, and nobody
//! speaks for another process.

use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType};
use rustix::process::{Resource, Rlimit, setrlimit};
use samite_fabric::{Error, Fabric, PeerId};
use samite_testkit::{
    Failed, Outcome, Unit, Who, check, matches_or_fail, pause, point, same, units,
};
use std::time::Duration;

fn number_of(fabric: &Fabric, job: &[PeerId]) -> Outcome<usize> {
    let mut numbers: Vec<PeerId> = job.to_vec();
    numbers.sort_unstable();
    numbers.dedup();
    check!(numbers.contains(&fabric.me()), "{job:?}");
    Ok(numbers.len())
}

/// A unit that looks only when all others have joined and gone again.
fn looks_late(name: &str, killed: bool) {
    let body = move |unit: &Unit| -> Outcome {
        let fabric = unit.join()?;
        if unit.rank > 0 {
            same!(number_of(&fabric, &fabric.job()?)?, 3);
            same!(fabric.program("unit")?.len(), 3);
            pause("met");
            return Ok(());
        }
        pause("joined");
        let members = || {
            let domain = fabric.domain().unwrap_or_default();
            samite_fabric::agent::facts(domain, Duration::from_secs(5))
                .map(|facts| facts.peers.len())
        };
        // The agent hears of a death when the kernel says so.
        while members()? > 1 {
            std::thread::yield_now();
        }
        let all = fabric.job()?;
        same!(number_of(&fabric, &all)?, 3);
        same!(fabric.program("unit")?, all.clone());
        for left in &all[1..] {
            let sent = fabric.send(*left, 1, b"anybody there?");
            matches_or_fail!(sent, Err(Error::PeerLost { incarnation: 1, .. }));
        }
        Ok(())
    };
    let units = units(3).config(|config| config.deadline = Duration::from_secs(5));
    units.orchestrate_bare(name, body, |cluster| {
        cluster.wait_point(Who::Unit(0), "joined");
        for who in [Who::Unit(1), Who::Unit(2)] {
            cluster.wait_point(who, "met");
        }
        for who in [Who::Unit(1), Who::Unit(2)] {
            match killed {
                true => cluster.kill(who),
                false => cluster.release(who),
            }
            cluster.wait_gone(who);
        }
        cluster.release(Who::Unit(0));
    });
}

#[test]
fn who_has_left_had_joined() {
    looks_late("faults::starting::who_has_left_had_joined", false);
}

#[test]
fn who_has_died_had_joined() {
    looks_late("faults::starting::who_has_died_had_joined", true);
}

/// Join, meet, leave: the others may be anywhere between.
#[test]
fn meeting_is_all_they_do() {
    let body = |unit: &Unit| -> Outcome {
        let fabric = unit.join()?;
        same!(number_of(&fabric, &fabric.job()?)?, 4);
        Ok(())
    };
    let units = units(4).config(|config| config.deadline = Duration::from_secs(5));
    units.orchestrate_bare("faults::starting::meeting_is_all_they_do", body, |_| ());
}

/// A connection to the agent that says what it likes.
pub(crate) struct Stranger(OwnedFd);

impl Stranger {
    pub(crate) fn connect(domain: &str) -> Outcome<Stranger> {
        let user = rustix::process::getuid().as_raw();
        let name = format!("samite/{user}/{domain}");
        let connect = || {
            let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
            let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
            rustix::net::connect(&socket, &address)?;
            Ok(Stranger(socket))
        };
        Ok(connect().map_err(|error: rustix::io::Errno| std::io::Error::from(error))?)
    }

    pub(crate) fn say(&self, request: &str) -> Outcome {
        let sent = rustix::net::send(&self.0, request.as_bytes(), SendFlags::NOSIGNAL);
        same!(sent, Ok(request.len()));
        Ok(())
    }

    pub(crate) fn hear(&self) -> Outcome<String> {
        let mut answer = [0; 4096];
        let (got, _) = rustix::net::recv(&self.0, &mut answer, RecvFlags::empty())
            .map_err(std::io::Error::from)?;
        Ok(String::from_utf8_lossy(&answer[..got]).into_owned())
    }

    pub(crate) fn ask(domain: &str, request: &str) -> Outcome<String> {
        let stranger = Stranger::connect(domain)?;
        stranger.say(request)?;
        stranger.hear()
    }
}

/// Nobody leaves, takes memory or gives it back for another process.
#[test]
fn nobody_speaks_for_another() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let segment = fabric.allocate(4 << 20)?;
        if fabric.me() == members[0] {
            segment.bytes().fill(0x5a);
            let (other, domain) = (members[1].0, fabric.domain().unwrap_or_default());
            let about = format!(r#""peer":{other},"incarnation":1"#);
            let mut requests = vec![
                format!(r#"{{"Leave":{{{about}}}}}"#),
                format!(r#"{{"Extent":{{{about},"bytes":2097152}}}}"#),
            ];
            // All extents that there can be: the first one begins at 256 MiB.
            let extents = (0..128u64).map(|index| (256 << 20) + (index << 21));
            for bytes in [2u64 << 20, 4 << 20, 6 << 20] {
                let give_back = |offset: u64| {
                    format!(r#"{{"GiveBack":{{{about},"offset":{offset},"bytes":{bytes}}}}}"#)
                };
                requests.extend(extents.clone().map(give_back));
            }
            for request in requests {
                let answer = Stranger::ask(domain, &request)?;
                check!(answer.contains("Refused"), "{request}: {answer}");
            }
        } else {
            segment.bytes().fill(0xa5);
        }
        fabric.barrier(members)?;
        same!(fabric.peers().len(), 2);
        let mut bytes = vec![0; 4 << 20];
        segment.bytes().read(0, &mut bytes);
        let mine = if fabric.me() == members[0] {
            0x5a
        } else {
            0xa5
        };
        check!(
            bytes.iter().all(|byte| *byte == mine),
            "memory was given away"
        );
        Ok(fabric.barrier(members)?)
    };
    units(2).run("faults::starting::nobody_speaks_for_another", body);
}

/// A process forks, and the child drops the `Fabric` and a segment, and ends: the parent lives on.
#[test]
fn a_fork_is_nobody() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let (first, second) = (members[0], members[1]);
        if fabric.me() == second {
            same!(
                fabric.recv_vec(samite_fabric::Match::from(first, 7))?.1,
                b"alive"
            );
            fabric.send(first, 8, b"heard")?;
            return Ok(fabric.barrier(members)?);
        }
        let own = Fabric::join(
            fabric.domain().unwrap_or_default(),
            samite_fabric::Identity::by_hand("forks"),
            samite_fabric::Config::default(),
        )?;
        let segment = own.allocate(4 << 20)?;
        let key = segment.key();
        let child = fork::fork().map_err(|error| Failed::new(format!("fork: {error:?}")))?;
        let fork::Fork::Parent(child) = child else {
            drop(segment);
            drop(own);
            std::process::exit(0);
        };
        let child = rustix::process::Pid::from_raw(child);
        let ended = rustix::process::waitpid(child, rustix::process::WaitOptions::empty());
        let ended = ended.map_err(std::io::Error::from)?;
        same!(ended.and_then(|(_, status)| status.exit_status()), Some(0));
        let facts = samite_fabric::agent::facts(
            fabric.domain().unwrap_or_default(),
            Duration::from_secs(5),
        )?;
        same!(facts.peers.len(), 3);
        fabric.progress();
        fabric.attach(key)?.put(0, b"still there")?;
        fabric.send(own.me(), 1, b"to the one that forked")?;
        let mut bytes = [0; 32];
        let status = own.recv(samite_fabric::Match::from(first, 1), &mut bytes)?;
        same!(status.len, 22);
        fabric.send(second, 7, b"alive")?;
        same!(
            fabric.recv_vec(samite_fabric::Match::from(second, 8))?.1,
            b"heard"
        );
        Ok(fabric.barrier(members)?)
    };
    units(2).run("faults::starting::a_fork_is_nobody", body);
}

/// Whoever asks to join and does not hear the answer is no member: the dead of the domain are not
/// kept for it.
#[test]
fn an_answer_that_nobody_hears_seats_nobody() {
    const NAME: &str = "faults::starting::an_answer_that_nobody_hears_seats_nobody";
    let body = |unit: &Unit| -> Outcome {
        if unit.rank == 1 {
            let fabric = unit.join()?;
            let _memory = fabric.allocate(4 << 20)?;
            pause("alive");
            return Ok(());
        }
        for round in 0..20 {
            let identity = format!(
                r#"{{"job":"ghosts","program":"ghost","rank":0,"size":1,"unit":0,"units":{round}}}"#
            );
            let cpus = [0u64; 16];
            let join = format!(r#"{{"Join":{{"identity":{identity},"cpus":{cpus:?}}}}}"#);
            let stranger = Stranger::connect(&unit.domain)?;
            stranger.say(&join)?;
            if round % 2 == 1 {
                let answer = stranger.hear()?;
                check!(answer.contains("Joined"), "{answer}");
            }
        }
        pause("asked");
        Ok(())
    };
    units(2).orchestrate_bare(NAME, body, |cluster| {
        cluster.wait_point(Who::Unit(1), "alive");
        cluster.wait_point(Who::Unit(0), "asked");
        cluster.wait_members(1);
        cluster.kill(Who::Unit(1));
        cluster.wait_members(0);
        cluster.release(Who::Unit(0));
    });
}

/// A process that was admitted and cannot map the arena is no member, although it lives on.
#[test]
fn who_cannot_map_the_arena_is_no_member() {
    const NAME: &str = "faults::starting::who_cannot_map_the_arena_is_no_member";
    let body = |unit: &Unit| -> Outcome {
        if unit.rank == 1 {
            let _fabric = unit.join()?;
            pause("alive");
            return Ok(());
        }
        let status = std::fs::read_to_string("/proc/self/statm")?;
        let pages: u64 = status
            .split(' ')
            .next()
            .and_then(|pages| pages.parse().ok())
            .unwrap_or(0);
        let limit = Rlimit {
            current: Some(pages * 4096 + (32 << 20)),
            maximum: None,
        };
        setrlimit(Resource::As, limit).map_err(std::io::Error::from)?;
        check!(unit.join().is_err(), "the arena is larger than the limit");
        point("refused");
        pause("waits");
        Ok(())
    };
    units(2).orchestrate_bare(NAME, body, |cluster| {
        cluster.wait_point(Who::Unit(1), "alive");
        cluster.wait_point(Who::Unit(0), "refused");
        cluster.wait_members(1);
        cluster.kill(Who::Unit(1));
        cluster.wait_members(0);
        cluster.release(Who::Unit(0));
    });
}

/// A process that a unit starts has inherited who the unit is, and is told so: the units of the job
/// would not agree on who is which.
#[test]
fn a_unit_is_one_process() {
    let body = |unit: &Unit| -> Outcome {
        let fabric = unit.join()?;
        let again = unit.join().map(|_| ());
        let is_told = |Failed(why): &Failed| why.contains("has already joined");
        check!(again.as_ref().is_err_and(is_told), "{again:?}");
        let members = fabric.job()?;
        same!(members.get(unit.rank as usize), Some(&fabric.me()));
        pause("met");
        // When the first one has left, it may come again.
        drop(fabric);
        unit.join()?;
        Ok(())
    };
    let name = "faults::starting::a_unit_is_one_process";
    units(2).orchestrate_bare(name, body, |cluster| {
        for who in [Who::Unit(0), Who::Unit(1)] {
            cluster.wait_point(who, "met");
        }
        cluster.release(Who::Unit(0));
        cluster.release(Who::Unit(1));
    });
}

/// A unit that ended before it joined is named at once, by what its launcher says of it.
#[test]
fn who_never_joins_is_named() {
    let body = |unit: &Unit| -> Outcome {
        if unit.rank == 2 {
            pause("does not join");
            return Ok(());
        }
        let fabric = unit.join()?;
        point("joined");
        for met in [fabric.job(), fabric.program("unit")] {
            let error = met.err().map(|error| error.to_string());
            let job = &unit.domain;
            let text = format!("unit.2 of job \"{job}\" has not joined: ended with exit code 3");
            same!(error, Some(text));
        }
        Ok(())
    };
    // Nobody would wait for so long.
    let units = units(3).config(|config| config.deadline = Duration::from_secs(3600));
    units.orchestrate_bare(
        "faults::starting::who_never_joins_is_named",
        body,
        |cluster| {
            cluster.wait_point(Who::Unit(2), "does not join");
            for who in [Who::Unit(0), Who::Unit(1)] {
                cluster.wait_point(who, "joined");
                cluster.wait_asleep(who);
            }
            cluster.release(Who::Unit(2));
            cluster.wait_gone(Who::Unit(2));
            let domain = cluster.domain().to_owned();
            let deadline = Duration::from_secs(30);
            let end = ("unit.2", "ended with exit code 3");
            samite_fabric::agent::unit_ended(&domain, &domain, 2, end, deadline)
                .expect("the agent is there");
        },
    );
}

/// A unit of which nothing is heard is named at the deadline.
#[test]
fn who_is_silent_is_named() {
    let body = |unit: &Unit| -> Outcome {
        if unit.rank == 1 {
            pause("does not join");
            return Ok(());
        }
        let fabric = unit.join()?;
        fabric.set_deadline(Duration::from_millis(50));
        let met = fabric.job();
        check!(
            matches!(&met, Err(Error::Absent { unit, how, .. }) if unit == "unit.1" && how.contains("50ms")),
            "{met:?}"
        );
        Ok(())
    };
    units(2).orchestrate_bare(
        "faults::starting::who_is_silent_is_named",
        body,
        |cluster| {
            cluster.wait_gone(Who::Unit(0));
            cluster.release(Who::Unit(1));
        },
    );
}
