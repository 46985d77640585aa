//! Too little of everything: descriptors, shared memory.

use rustix::process::{Resource, Rlimit, setrlimit};
use samite_fabric::{Error, Fabric, Match, PeerId, wait_all};
use samite_testkit::pattern::{pattern, verify};
use samite_testkit::{
    Failed, Outcome, Unit, Who, check, matches_or_fail, pause, point, same, say, units,
};
use std::time::Duration;

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// 64 descriptors are enough for 32 units on a node and their agent, when all talk to all.
#[test]
fn sixty_four_descriptors_for_thirty_two_units() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let me = members
            .iter()
            .position(|member| *member == fabric.me())
            .unwrap_or(0);
        let mut sends = Vec::new();
        for (rank, to) in members.iter().enumerate() {
            let seed = (me * 100 + rank) as u64;
            sends.push(fabric.isend(*to, 1, pattern(seed, 1000))?);
            if (me + rank) % 8 == 0 {
                sends.push(fabric.isend(*to, 2, pattern(seed, 100_000))?);
            }
        }
        for (rank, from) in members.iter().enumerate() {
            let seed = (rank * 100 + me) as u64;
            verify(seed, &fabric.recv_vec(Match::from(*from, 1))?.1)?;
            if (me + rank) % 8 == 0 {
                verify(seed, &fabric.recv_vec(Match::from(*from, 2))?.1)?;
            }
        }
        wait_all(sends)?;
        if me == 0 {
            say(&format!("a unit has {} descriptors", open_descriptors()));
        }
        Ok(fabric.barrier(members)?)
    };
    let before = |_: Who| {
        let limit = Rlimit {
            current: Some(64),
            maximum: Some(64),
        };
        setrlimit(Resource::Nofile, limit).expect("a limit may be lowered");
    };
    let name = "faults::scarce::sixty_four_descriptors_for_thirty_two_units";
    // Bodies of 32 x 32 pairs: a quarter of a MiB each.
    units(32).budget(1 << 30).before(before).run(name, body);
}

/// Far more bytes than the budget, and than a receiver keeps, go to one that waits for something
/// else: what it does not expect stays with the sender, and all of it arrives when it is asked for.
#[test]
fn more_messages_than_memory() {
    const COUNT: u64 = 6000;
    const SIZE: usize = 10_000;
    const MOST: u64 = 12 << 20;
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        if fabric.me() == members[0] {
            let sends: Result<Vec<_>, _> = (0..COUNT)
                .map(|n| fabric.isend(members[1], n, pattern(n, SIZE)))
                .collect();
            // Behind all of them, and not held up by any.
            fabric.signal(members[1], 1)?;
            wait_all(sends?)?;
        } else {
            let before = peak()?;
            fabric.await_signal(members[0], 1)?;
            let grown = peak()? - before;
            check!(grown < MOST, "{grown} bytes for what nobody expects");
            let mut buffer = vec![0; SIZE];
            for number in (0..COUNT).rev() {
                fabric.recv(Match::from(members[0], number), &mut buffer)?;
                verify(number, &buffer)?;
            }
        }
        Ok(fabric.barrier(members)?)
    };
    units(2)
        .budget(4 << 20)
        .run("faults::scarce::more_messages_than_memory", body);
}

/// A unit that sends one message after the other, and looks at nothing else, hears that it is too
/// many.
#[test]
fn a_sender_that_never_looks_up_is_heard_out() {
    const COUNT: u64 = 4000;
    const SIZE: usize = 10_000;
    const MOST: u64 = 12 << 20;
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let (zero, one, other) = (members[0], members[1], members[2]);
        if fabric.me() == zero {
            for number in 0..COUNT {
                fabric.send(one, number, &pattern(number, SIZE))?;
                if number == 50 {
                    point("sending");
                }
            }
        } else if fabric.me() == one {
            let before = peak()?;
            // It takes part in everything while it waits.
            fabric.await_signal(other, 1)?;
            let grown = peak()? - before;
            check!(grown < MOST, "{grown} bytes for what nobody expects");
            let mut buffer = vec![0; SIZE];
            for number in 0..COUNT {
                fabric.recv(Match::from(zero, number), &mut buffer)?;
                verify(number, &buffer)?;
            }
        } else {
            pause("all quiet");
            fabric.signal(one, 1)?;
        }
        Ok(fabric.barrier(members)?)
    };
    units(3).orchestrate(
        "faults::scarce::a_sender_that_never_looks_up_is_heard_out",
        body,
        |cluster| {
            cluster.wait_point(Who::Unit(2), "all quiet");
            cluster.wait_point(Who::Unit(0), "sending");
            // It waits, in the middle of its messages, and so does the one that they are for.
            cluster.wait_asleep(Who::Unit(0));
            cluster.wait_asleep(Who::Unit(1));
            cluster.release(Who::Unit(2));
        },
    );
}

/// No memory even for a ring: messages wait and say so at their deadline; they leave when somebody
/// frees memory. Nothing is lost.
#[test]
fn no_memory_for_a_ring() {
    let body = |unit: &Unit| -> Outcome {
        // Nobody has talked yet: a barrier would have made both rings.
        let fabric = unit.join()?;
        let members = fabric.job()?;
        let (zero, one) = (members[0], members[1]);
        if fabric.me() == zero {
            // A ring is made at once only of memory that this process has; otherwise the signal
            // waits for the agent, and what is allocated meanwhile takes that memory.
            drop(fabric.allocate(2 << 20)?);
            fabric.signal(one, 1)?; // Our ring to the other one is made.
            let mut all = Vec::new();
            let refusal = loop {
                match fabric.allocate(2 << 20) {
                    Ok(segment) => all.push(segment),
                    Err(error) => break error,
                }
            };
            matches_or_fail!(refusal, Error::Budget { .. });
            check!(!all.is_empty(), "there was no memory from the start");
            fabric.signal(one, 2)?;
            pause("full");
            drop(all);
            same!(fabric.recv(Match::from(one, 1), &mut [0; 8])?.len, 5);
            verify(2, &fabric.recv_vec(Match::from(one, 2))?.1)?;
            fabric.await_signal(one, 3)?;
        } else {
            fabric.await_signal(zero, 1)?;
            fabric.await_signal(zero, 2)?;
            matches_or_fail!(fabric.allocate(100).map(|_| ()), Err(Error::Budget { .. }));
            fabric.set_deadline(Duration::from_millis(50));
            let first = fabric.isend(zero, 1, b"first".to_vec())?;
            let second = fabric.isend(zero, 2, pattern(2, 300_000))?;
            fabric.signal(zero, 3)?;
            let lost = fabric.send(zero, 1, b"never");
            matches_or_fail!(lost, Err(Error::Timeout { .. }));
            fabric.set_deadline(Duration::from_secs(30));
            point("stuck");
            first.wait()?;
            second.wait()?;
        }
        Ok(fabric.barrier(&members)?)
    };
    units(2).budget(16 << 20).orchestrate_bare(
        "faults::scarce::no_memory_for_a_ring",
        body,
        |cluster| {
            cluster.wait_point(Who::Unit(0), "full");
            cluster.wait_point(Who::Unit(1), "stuck");
            cluster.release(Who::Unit(0));
        },
    );
}

/// No memory for a long request: that request fails, and the next one is answered.
#[test]
fn no_memory_for_an_active_message() {
    const NAME: &str = "faults::scarce::no_memory_for_an_active_message";
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let (zero, one) = (members[0], members[1]);
        fabric.on(1, |_, bytes| Some(vec![bytes[0]]));
        fabric.barrier(members)?;
        if fabric.me() == one {
            let status = std::fs::read_to_string("/proc/self/statm")?;
            let pages = status
                .split(' ')
                .next()
                .and_then(|pages| pages.parse::<u64>().ok());
            let limit = Rlimit {
                current: Some(pages.unwrap_or(0) * 4096 + (32 << 20)),
                maximum: None,
            };
            setrlimit(Resource::As, limit).map_err(std::io::Error::from)?;
            fabric.signal(zero, 1)?;
        } else {
            fabric.await_signal(one, 1)?;
            // More than an arena of the allocator has reserved.
            let long = vec![7; 64 << 20];
            let refused = fabric.request(one, 1, &long)?.wait();
            matches_or_fail!(refused, Err(Error::Memory(why)) if why.contains("unit.1"));
            fabric.tell(one, 1, &long)?;
            same!(fabric.request(one, 1, &[8])?.wait()?, [8]);
        }
        Ok(fabric.barrier(members)?)
    };
    units(2).run(NAME, body);
}

/// What a dead unit had is there for the others.
#[test]
fn memory_of_the_dead_comes_back() {
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        if fabric.me() == members[1] {
            let _all = fabric.allocate(24 << 20)?;
            pause("full");
            return Ok(());
        }
        pause("waiting");
        let start = std::time::Instant::now();
        loop {
            fabric.progress();
            match fabric.allocate(24 << 20) {
                Ok(segment) => {
                    let mut bytes = vec![1; 24 << 20];
                    segment.bytes().read(0, &mut bytes);
                    check!(
                        bytes.iter().all(|byte| *byte == 0),
                        "memory of the dead is not zeroed"
                    );
                    return Ok(());
                }
                Err(error) => matches_or_fail!(error, Error::Budget { .. }),
            }
            check!(
                start.elapsed() < fabric.deadline(),
                "memory of the dead never came back"
            );
        }
    };
    units(2).budget(32 << 20).orchestrate(
        "faults::scarce::memory_of_the_dead_comes_back",
        body,
        |cluster| {
            cluster.wait_point(Who::Unit(1), "full");
            cluster.wait_point(Who::Unit(0), "waiting");
            cluster.kill(Who::Unit(1));
            cluster.release(Who::Unit(0));
        },
    );
}

/// Most memory that this process ever had, in bytes, segments of shared memory among it.
fn peak() -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let bytes: Option<u64> = kilobytes.and_then(|text| text.trim().parse().ok());
    bytes
        .map(|kilobytes| kilobytes << 10)
        .ok_or_else(|| Failed::new("this process does not know its memory"))
}

/// By messages a large get takes no memory of the owner, nor one of whoever gets beside its buffer;
/// a large put takes none of whoever puts.
#[test]
fn large_gets_and_puts_are_not_queued() {
    const BYTES: usize = 96 << 20;
    const MOST: u64 = 24 << 20;
    let body = |fabric: &Fabric, members: &[PeerId]| -> Outcome {
        let (owner, other) = (members[0], members[1]);
        if fabric.me() == owner {
            let segment = fabric.allocate(BYTES as u64)?;
            segment.bytes().write(0, &pattern(1, BYTES));
            let before = peak()?;
            fabric.send(other, 1, &segment.key().to_bytes())?;
            fabric.recv(Match::from(other, 2), &mut [])?;
            let grown = peak()? - before;
            check!(grown < MOST, "the owner took {grown} bytes for it");
            return Ok(fabric.barrier(members)?);
        }
        let mut key = [0; 24];
        fabric.recv(Match::from(owner, 1), &mut key)?;
        let remote = fabric.attach(samite_fabric::SegmentKey::from_bytes(&key))?;
        same!(remote.mapped().is_none(), true);
        let mut bytes = vec![9; BYTES];
        let before = peak()?;
        remote.get(0, &mut bytes)?;
        verify(1, &bytes)?;
        remote.put(0, &bytes)?;
        remote.put_nb(0, &bytes)?.wait()?;
        let grown = peak()? - before;
        check!(grown < MOST, "who gets and puts took {grown} bytes for it");
        fabric.send(owner, 2, &[])?;
        Ok(fabric.barrier(members)?)
    };
    units(2)
        .mask(samite_testkit::MESSAGES_ONLY)
        .run("faults::scarce::large_gets_and_puts_are_not_queued", body);
}
