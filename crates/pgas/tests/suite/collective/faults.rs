//! Members that call something else, or with other arguments, and members that die.

use samite_fabric::testing::live_again;
use samite_fabric::{Error as Below, Fabric, Match, PeerId};
use samite_pgas::{Error, GlobalPtr, Group, Max, Named, Pgas, Segment, Sum, Team, Unit, Wanted};
use samite_testkit::{
    Cluster, MESSAGES_ONLY, Outcome, Who, check, everywhere, full_name, maps_all, pause, point,
    same, simulate, simulate_on, units,
};
use std::time::Duration;

type Answer = Result<(), Error>;

/// Pairs of calls that do not fit: what the last member calls, and what all others do.
fn calls(team: &Team, which: u32, odd: bool) -> (&'static str, Answer) {
    let (size, long) = (team.size() as usize, 5000);
    let mut all = vec![0u64; size * long];
    match (which, odd) {
        (0, true) => ("kind", team.barrier()),
        (0, false) => ("kind", team.all_reduce(&[1], &mut [0], Sum)),
        (1, _) => ("root", team.broadcast(u32::from(odd), &mut [0])),
        (2, _) => ("root", team.broadcast(u32::from(odd), &mut all)),
        (3, _) => ("root", team.gather(u32::from(odd), &[7], &mut all[..size])),
        (4, true) => ("count", team.all_gather(&[1], &mut all[..size])),
        (4, false) => ("count", team.all_gather(&[1, 2], &mut all[..2 * size])),
        (5, true) => (
            "count",
            team.all_reduce(&vec![1; long], &mut vec![0; long], Sum),
        ),
        (5, false) => ("count", team.all_reduce(&[1], &mut [0], Sum)),
        (6, true) => ("operator", team.all_reduce(&[1], &mut [0], Max)),
        (6, false) => ("operator", team.all_reduce(&[1], &mut [0], Sum)),
        (7, true) => ("element", team.scan(&[1u8], &mut [0], Sum)),
        (7, false) => ("element", team.scan(&[1u16], &mut [0], Sum)),
        (8, true) => (
            "counts",
            team.all_gather_v(&[1], &mut all[..size], &vec![1; size]),
        ),
        (8, false) => {
            let mut counts = vec![1; size];
            counts[size - 1] = 2;
            let total = size + 1;
            (
                "counts",
                team.all_gather_v(&[1], &mut all[..total], &counts),
            )
        }
        _ => unreachable!("there are nine"),
    }
}

// Nobody hangs; who differs from its neighbour hears of it; and the team can be used afterwards.
everywhere!(others_call_something_else, 3, |fabric, _| {
    let pgas = Pgas::new(fabric)?;
    let world = pgas.world();
    let odd = world.rank() == 2;
    // Also as the first call of a team.
    for which in 0..9 {
        let team = world.duplicate()?;
        for turn in 0..2 {
            let (what, answer) = calls(&team, which, odd);
            // Rank 0 follows rank 2 around the ring. Rank 1 may be content, where it only gives.
            let mapped = maps_all(fabric);
            let hears = mapped || world.rank() != 1;
            match answer {
                Err(Error::Mismatch { .. }) => {}
                Ok(()) if !hears => {}
                other => check!(false, "{what} {which} {turn}: {other:?}"),
            }
            let mut sum = [0];
            team.all_reduce(&[1], &mut sum, Sum)?;
            same!(sum, [3]);
        }
    }
    Ok(world.barrier()?)
});

// The same where the forms differ as well: one waits, the others do not.
everywhere!(others_call_it_in_another_form, 3, |fabric, _| {
    let pgas = Pgas::new(fabric)?;
    let world = pgas.world();
    let odd = world.rank() == 2;
    for count in [1, 5000] {
        let mine = vec![1_u64; count];
        let answer = match odd {
            true => world.iall_reduce(mine, Max)?.wait().map(drop),
            false => world.all_reduce(&mine, &mut vec![0; count], Sum),
        };
        match answer {
            Err(Error::Mismatch { what, .. }) => same!(what, "the operator"),
            // Rank 1 follows rank 0 around the ring, which has the same operator.
            Ok(()) if world.rank() == 1 && !maps_all(fabric) => {}
            other => check!(false, "{count}: {other:?}"),
        }
        let mut sum = [0];
        world.all_reduce(&[1], &mut sum, Sum)?;
        same!(sum, [3]);
    }
    Ok(world.barrier()?)
});

// The text of the error says what differs, there and here.
everywhere!(the_difference_is_named, 2, |fabric, _| {
    let pgas = Pgas::new(fabric)?;
    let (world, me) = (pgas.world(), pgas.me().0);
    let answer = world.broadcast(me, &mut [0u64; 4]);
    let expected = Error::Mismatch {
        unit: Unit(1 - me).into(),
        what: "the root",
        theirs: u64::from(1 - me),
        ours: u64::from(me),
    };
    same!(answer, Err(expected));
    let mut room = [0u64; 16];
    let mine = [0u64; 5];
    let answer = world.all_gather(&mine[..4 + me as usize], &mut room[..8 + 2 * me as usize]);
    let text = answer
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    let numbers = format!("({} there, {} here)", 5 - me, 4 + me);
    check!(
        text.contains("the count") && text.contains(&numbers),
        "{text}"
    );
    let answer = match me {
        0 => world.barrier(),
        _ => world.scan(&[1.5], &mut [0.0], Sum),
    };
    let text = answer
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    let [theirs, ours] = match me {
        0 => ["a scan", "a barrier"],
        _ => ["a barrier", "a scan"],
    };
    let sentence = format!(
        "{}.{} called {theirs}, and this unit {ours}: all members must call the same collectives in the same order",
        fabric.identity().program,
        1 - me
    );
    same!(text, sentence);
    let mine = [1u64];
    let answer = match me {
        0 => world.all_reduce(&mine, &mut [0], Max),
        _ => world.all_reduce(&mine, &mut [0], Sum),
    };
    let text = answer
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    let operators = ["(Sum there, Max here)", "(Max there, Sum here)"][me as usize];
    check!(text.ends_with(operators), "{text}");
    Ok(world.barrier()?)
});

// Counts that only two members know of, blocking and not.
everywhere!(blocks_of_other_lengths, 3, |fabric, _| {
    let pgas = Pgas::new(fabric)?;
    let (world, me) = (pgas.world(), pgas.me().0);
    // Rank 0 gives 3 elements to rank 1, which expects 2.
    let given = if me == 0 { [2, 3, 2] } else { [2, 2, 2] };
    let source = vec![7u32; given.iter().sum::<u64>() as usize];
    let mut room = [0; 6];
    let blocking = world.all_to_all_v(&source, &given, &mut room, &[2; 3]);
    let pending = world
        .iall_to_all_v(source, &given, &[2; 3])?
        .wait()
        .map(|_| ());
    for (form, answer) in [("blocking", blocking), ("pending", pending)] {
        let named = match &answer {
            Err(Error::Mismatch { theirs, ours, .. }) => (*theirs, *ours) == (12, 8),
            _ => false,
        };
        match me {
            1 => check!(named, "{form}: {answer:?}"),
            _ => check!(
                matches!(answer, Err(Error::Mismatch { .. } | Error::Refused(_))),
                "{form}: {answer:?}"
            ),
        }
    }
    Ok(world.barrier()?)
});

// A member whose own arguments do not fit tells the others, which do not wait for it.
everywhere!(refused_at_one, 3, |fabric, _| {
    let pgas = Pgas::new(fabric)?;
    let (world, me) = (pgas.world(), pgas.me().0);
    let mut room = vec![0u64; 9000];
    for turn in 0..4 {
        let short = usize::from(me == 1);
        let answer = match turn {
            0 => world.all_gather(&[1, 2], &mut room[..6 - short]),
            1 => world.all_gather(&vec![1; 3000], &mut room[..9000 - short]),
            2 => world.broadcast(if me == 1 { 9 } else { 0 }, &mut room),
            _ => {
                let counts = vec![2; if me == 1 { 4 } else { 3 }];
                world.all_to_all_v(&[1; 6], &counts, &mut room[..6], &[2; 3])
            }
        };
        match (me, answer) {
            (1, Err(Error::WrongLength { .. } | Error::NoSuchRank { .. })) => {}
            (0 | 2, Err(Error::Refused(Named { id: Unit(1), .. }))) => {}
            (_, other) => check!(false, "turn {turn}: {other:?}"),
        }
        let pending = world.iall_reduce(vec![1; 3], Sum)?;
        same!(pending.wait()?, vec![3; 3]);
    }
    Ok(world.barrier()?)
});

/// A test of deaths on mapped memory and over messages: unit 1 is killed.
macro_rules! deaths {
    ($name:ident, $body:expr, $orchestrator:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn mapped() {
                let name = full_name(module_path!(), "mapped");
                units(3).orchestrate(&name, $body, $orchestrator);
            }

            #[test]
            fn messages() {
                let name = full_name(module_path!(), "messages");
                let units = units(3).mask(MESSAGES_ONLY);
                units.orchestrate(&name, $body, $orchestrator);
            }
        }
    };
}

fn lost(answer: Result<(), Error>) -> Outcome {
    match answer {
        Err(
            error @ Error::UnitLost {
                unit: Named { id: Unit(1), .. },
                ..
            },
        ) => {
            let text = error.to_string();
            check!(text.starts_with("unit.1 was lost during a"), "{text}");
            Ok(())
        }
        other => {
            check!(false, "{other:?}");
            Ok(())
        }
    }
}

fn kill_when_all_wait(cluster: &mut Cluster) {
    cluster.wait_all("here");
    for unit in [0, 2] {
        cluster.wait_asleep(Who::Unit(unit));
    }
    cluster.kill(Who::Unit(1));
}

/// Runs `call` at units 0 and 2 while unit 1, which never comes, is killed; then everything that
/// needs the world fails at once, and the team of the survivors works.
fn with_one_missing(fabric: &Fabric, call: impl FnOnce(&Team) -> Result<(), Error>) -> Outcome {
    with_memory(fabric, |_| Ok(()), |world, ()| call(world))
}

/// The same with what all three units make `before`.
fn with_memory<M>(
    fabric: &Fabric,
    before: impl FnOnce(&Team) -> Result<M, Error>,
    call: impl FnOnce(&Team, &M) -> Result<(), Error>,
) -> Outcome {
    let pgas = Pgas::new(fabric)?;
    let world = pgas.world();
    let memory = before(world)?;
    let others: Group = [Unit(0), Unit(2)].into_iter().collect();
    let alone: Group = [Unit(1)].into_iter().collect();
    let survivors = world.create(if pgas.me() == Unit(1) {
        &alone
    } else {
        &others
    })?;
    // Everything that is made once is there.
    world.all_reduce(&vec![1; 5000], &mut vec![0; 5000], Sum)?;
    if pgas.me() == Unit(1) {
        pause("here");
        return Ok(());
    }
    point("here");
    lost(call(world, &memory))?;
    lost(world.barrier())?;
    lost(world.iall_reduce(vec![1], Sum)?.wait().map(|_| ()))?;
    if let Some(survivors) = survivors {
        let mut sum = vec![0; 5000];
        survivors.all_reduce(&vec![1; 5000], &mut sum, Sum)?;
        same!(sum, vec![2; 5000]);
        survivors.barrier()?;
    }
    Ok(())
}

deaths!(
    before_a_barrier,
    |fabric: &Fabric, _: &[PeerId]| with_one_missing(fabric, |world| world.barrier()),
    kill_when_all_wait
);

deaths!(
    before_an_all_to_all,
    |fabric: &Fabric, _: &[PeerId]| {
        with_one_missing(fabric, |world| {
            let mut room = vec![0; 90_000];
            world.all_to_all(&vec![1u32; 90_000], &mut room)
        })
    },
    kill_when_all_wait
);

deaths!(
    before_a_reduction,
    |fabric: &Fabric, _: &[PeerId]| {
        with_one_missing(fabric, |world| {
            world.all_reduce(&vec![1.5; 90_000], &mut vec![0.0; 90_000], Sum)
        })
    },
    kill_when_all_wait
);

fn parts(world: &Team) -> Result<Segment<f64>, Error> {
    world.allocate(90_000)
}

deaths!(
    before_one_in_symmetric_memory,
    |fabric: &Fabric, _: &[PeerId]| {
        with_memory(fabric, parts, |world, memory| {
            world.all_reduce(memory.part(..45_000)?, memory.part(45_000..)?, Sum)
        })
    },
    kill_when_all_wait
);

deaths!(
    the_root_never_comes,
    |fabric: &Fabric, _: &[PeerId]| {
        with_one_missing(fabric, |world| world.broadcast(1, &mut vec![0; 90_000]))
    },
    kill_when_all_wait
);

deaths!(
    while_it_is_pending,
    |fabric: &Fabric, _: &[PeerId]| {
        with_one_missing(fabric, |world| {
            let pending = world.iall_gather(vec![1u64; 9000])?;
            pending.wait().map(|_| ())
        })
    },
    kill_when_all_wait
);

// Somewhere inside: everybody goes round and round, in place and through staging memory, until unit
// 1 is killed. The results up to then are right.
deaths!(
    in_the_middle,
    |fabric: &Fabric, _: &[PeerId]| {
        let pgas = Pgas::new(fabric)?;
        let (world, me) = (pgas.world(), u64::from(pgas.me().0));
        let count = 60_000;
        let (from, into) = (world.allocate::<u64>(count)?, world.allocate::<u64>(count)?);
        if me == 1 {
            point("here");
        }
        let mut turn = 0;
        loop {
            let mine = vec![me + turn; count as usize];
            let mut sum = vec![0; count as usize];
            let answer = match turn % 2 {
                0 => world.all_reduce(&mine, &mut sum, Sum),
                _ => {
                    from.write_local(0, &mine)?;
                    let answer = world.all_reduce(from.part(..)?, into.part(..)?, Sum);
                    into.read_local(0, &mut sum)?;
                    answer
                }
            };
            if answer.is_err() {
                return lost(answer);
            }
            check!(sum.iter().all(|sum| *sum == 3 * turn + 3), "turn {turn}");
            turn += 1;
        }
    },
    |cluster: &mut Cluster| {
        cluster.wait_point(Who::Unit(1), "here");
        cluster.kill(Who::Unit(1));
    }
);

/// Another process has the number of unit 1 by now: a member that had not seen unit 1 die waits
/// for nobody, neither in a collective nor for a signal or a lock, and a pointer that it has not
/// followed yet does not lead to the other process.
fn a_stranger(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let pgas = Pgas::new(fabric)?;
    let world = pgas.world();
    let words = world.allocate::<u64>(1)?;
    let mut locks = [world.lock()?, world.lock()?];
    locks.sort_by_key(samite_pgas::Lock::home);
    check!(locks[0].home() == 0);
    if world.rank() == 1 {
        std::mem::forget(locks[0].acquire()?);
    }
    // So much that it gets a segment of its own: unit 0 already uses the first one.
    let mut theirs = [pgas.allocate::<u64>(1 << 20)?.to_bits()];
    world.broadcast(1, &mut theirs)?;
    if world.rank() == 0 {
        live_again(fabric, members[1]);
        let signalled = words.wait_until_from(0, Wanted::Equal(1), 1);
        let is_lost = matches!(signalled, Err(Error::Fabric(Below::PeerLost { .. })));
        check!(is_lost, "{signalled:?}");
        let acquired = locks[0].acquire();
        check!(
            matches!(acquired, Err(Error::HolderLost { .. })),
            "{acquired:?}"
        );
        lost(world.barrier())?;
        let answer = pgas.put(GlobalPtr::from_bits(theirs[0]), &[7u64]);
        let is_lost = matches!(answer, Err(Error::Fabric(Below::PeerLost { .. })));
        check!(is_lost, "{answer:?}");
        return Ok(());
    }
    // Not before unit 0 has its answer.
    let never = || fabric.recv(Match::from(members[0], 1), &mut []);
    check!(fabric.within(Duration::from_millis(100), never).is_err());
    Ok(())
}

#[test]
fn a_number_is_used_again() {
    for nodes in [1, 2] {
        let name = "collective::faults::a_number_is_used_again";
        simulate_on(nodes, name, 2, 0..4, a_stranger);
    }
}

/// A unit that is no member ends the next call of a team: nobody listens.
#[test]
fn only_members_end_a_call() {
    simulate(
        "collective::faults::only_members_end_a_call",
        3,
        0..4,
        |fabric, members| {
            let pgas = Pgas::new(fabric)?;
            let (world, me) = (pgas.world(), pgas.me());
            let team = world.split_by(u64::from(me == Unit(2)))?;
            let mut ids = [0; 3];
            world.all_gather(&[team.id().0], &mut ids)?;
            if me == Unit(2) {
                // Life, team, call; refused.
                let words = [1, ids[0], 1, 2, 0, 0, 0].map(u64::to_le_bytes).concat();
                fabric.tell(members[0], 0xd500, &words)?;
            }
            world.barrier()?;
            team.barrier()?;
            Ok(world.barrier()?)
        },
    );
}
