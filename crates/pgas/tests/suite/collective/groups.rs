//! Global memory of some units of the job: of one program of a workflow, or of any group.

use samite_fabric::testing::{RawFrame, Tamper, tamper};
use samite_fabric::transport::sim::Scenario;
use samite_fabric::{Fabric, Match, Named, PeerId};
use samite_pgas::{
    AccessKind, Error, GlobalPtr, Group, Pgas, Signal, SignalOp, Sum, Unit, Update, Wanted,
};
use samite_testkit::{
    MESSAGES_ONLY, Outcome, TWO_NODES, Who, check, everywhere, matches_or_fail, own_nodes, pause,
    point, programs, same, seeds, simulate_as, three_nodes, two_nodes,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

const WORKFLOW: [(&str, u32); 2] = [("solver", 3), ("analysis", 2)];

fn group(units: &[u32]) -> Group {
    units.iter().copied().map(Unit).collect()
}

/// Uses everything that finds a unit by its number or its rank.
fn use_all(pgas: &Pgas, members: &Group) -> Outcome {
    let (world, me) = (pgas.world(), pgas.me());
    let (size, rank) = (members.len(), world.rank());
    same!(pgas.group(), *members);
    same!((pgas.units(), world.size()), (size, size));
    same!(Some(rank), members.position(me));
    let of_all = |of: &dyn Fn(u64) -> u64| -> u64 {
        members.into_iter().map(|unit| of(u64::from(unit.0))).sum()
    };
    let mut sum = [0];
    world.all_reduce(&[u64::from(me.0)], &mut sum, Sum)?;
    same!(sum[0], of_all(&|unit| unit));
    // By rank, and by pointer, whose unit is that of the job.
    let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
    let data = world.allocate::<u64>(8)?;
    data.put_value(next, 0, 100 + u64::from(me.0))?;
    let pointer = data.pointer(next, 1)?;
    same!(pointer.unit(), world.unit(next)?);
    pgas.put(pointer, &[200 + u64::from(me.0)])?;
    pgas.put_implicit(pointer.add(1), &[300 + u64::from(me.0)])?;
    pgas.flush(pointer.unit())?;
    pgas.fetch_op(pointer.add(2), Update::Sum, u64::from(me.0))?;
    world.barrier()?;
    let mut found = [0; 4];
    data.read_local(0, &mut found)?;
    let from = u64::from(world.unit(last)?.0);
    same!(found, [100 + from, 200 + from, 300 + from, from]);
    // A unit's own memory, and a signal.
    let own = pgas.allocate::<u64>(1)?;
    let mut all = vec![0; size as usize];
    world.all_gather(&[own.to_bits()], &mut all)?;
    let theirs = GlobalPtr::<u64>::from_bits(all[next as usize]);
    pgas.put(theirs, &[7])?;
    let signal = Signal {
        index: 5,
        op: SignalOp::Set,
        value: 9,
    };
    data.put_signal(next, 4, &[8], &data, signal)?;
    same!(data.wait_until_from(5, Wanted::Equal(9), last)?, 9);
    same!(data.get_value(rank, 4)?, 8);
    world.barrier()?;
    let mut found = [0];
    pgas.get(own, &mut found)?;
    same!(found, [7]);
    // Locks, teams, phases.
    let counter = world.global_lock(0_u64)?;
    for _ in 0..5 {
        *counter.acquire()? += 1;
    }
    let odd = world.split_by(u64::from(me.0 % 2))?;
    let mut sum = [0];
    odd.all_reduce(&[u64::from(me.0)], &mut sum, Sum)?;
    let alike = |unit: u64| {
        if unit % 2 == u64::from(me.0 % 2) {
            unit
        } else {
            0
        }
    };
    same!(sum[0], of_all(&alike));
    same!(*counter.acquire()?, 5 * u64::from(size));
    let mut data = data.into_local()?;
    data.as_mut_slice()[0] = 1;
    data.into_shared()?.free()?;
    // Whoever is no member is none.
    for unit in (0..6).map(Unit) {
        let is_none = !members.contains(unit);
        same!(pgas.node_of(unit).is_err(), is_none);
        if is_none {
            same!(pgas.node_of(unit), Err(Error::NotAMember(unit.into())));
            same!(pgas.flush(unit), Ok(()));
            let nowhere = own.at_unit(unit);
            same!(pgas.put(nowhere, &[1]), Err(Error::NotAMember(unit.into())));
            let with_it = Group::from_iter([me, unit]);
            same!(world.rank_of(unit), None);
            // Refused at all members alike.
            let refused = world.create(&with_it).map(drop);
            same!(refused, Err(Error::NotAMember(unit.into())));
        }
    }
    Ok(world.barrier()?)
}

fn is_of(fabric: &Fabric, program: &str) -> bool {
    fabric.identity().program == program
}

// The analysis has no global memory, and waits for a message of the solver.
everywhere!(
    one_program,
    [("solver", 3), ("analysis", 2)],
    |fabric, members| {
        if is_of(fabric, "solver") {
            for _ in 0..2 {
                use_all(&Pgas::of_program(fabric)?, &group(&[0, 1, 2]))?;
            }
            fabric.send(members[3 + fabric.identity().rank as usize % 2], 1, &[])?;
        } else {
            let messages = 2 - fabric.identity().rank;
            for _ in 0..messages {
                fabric.recv(Match::any(1), &mut [])?;
            }
        }
        Ok(())
    }
);

// Both programs have global memory, each its own; then they have one together, and then again each
// its own. They begin and end as often as they like.
everywhere!(
    two_programs,
    [("solver", 3), ("analysis", 2)],
    |fabric, _| {
        let (own, lives) = match is_of(fabric, "solver") {
            true => (group(&[0, 1, 2]), 3),
            false => (group(&[3, 4]), 1),
        };
        for _ in 0..2 {
            for _ in 0..lives {
                use_all(&Pgas::of_program(fabric)?, &own)?;
            }
            use_all(&Pgas::new(fabric)?, &Group::first(5))?;
        }
        Ok(())
    }
);

// A group with gaps; the others cannot be in it, and go their way.
everywhere!(some_units, 5, |fabric, _| {
    let (some, me) = (group(&[0, 2, 3]), Unit(fabric.identity().unit));
    let beyond = some.union(&group(&[7]));
    if !some.contains(me) {
        same!(
            Pgas::of(fabric, &some).err(),
            Some(Error::NotAMember(me.into()))
        );
        return Ok(());
    }
    let stranger = Pgas::of(fabric, &beyond).err();
    same!(stranger, Some(Error::NotAMember(Unit(7).into())));
    let pgas = Pgas::of(fabric, &some)?;
    same!(
        Pgas::of(fabric, &group(&[me.0])).err(),
        Some(Error::AlreadyBegun)
    );
    use_all(&pgas, &some)
});

// Groups that overlap, one after the other. Each unit begins another number of lives.
everywhere!(overlapping_groups, 5, |fabric, _| {
    let me = Unit(fabric.identity().unit);
    let groups: [&[u32]; 7] = [
        &[0, 1],
        &[2, 3, 4],
        &[1, 2],
        &[0, 1, 2, 3, 4],
        &[3],
        &[0, 3, 4],
        &[1, 2, 4],
    ];
    for turn in 0..3 {
        for units in groups {
            let units = group(units);
            if !units.contains(me) {
                continue;
            }
            let pgas = Pgas::of(fabric, &units)?;
            if turn == 0 {
                use_all(&pgas, &units)?;
            } else {
                // No barrier at the end.
                let mut all = vec![0; pgas.units() as usize];
                pgas.world().all_gather(&[me.0], &mut all)?;
                same!(all.into_iter().map(Unit).collect::<Group>(), units);
            }
        }
    }
    Ok(())
});

// Unit 1 begins while the others do not, gives up, and begins again: they have counted fewer lives.
everywhere!(one_gives_up_early, 3, |fabric, members| {
    if fabric.me() == members[1] {
        for _ in 0..3 {
            let early = fabric.within(Duration::from_millis(5), || Pgas::new(fabric));
            matches_or_fail!(early.err(), Some(Error::NotBegun { .. }));
        }
        fabric.send(members[0], 1, &[])?;
        fabric.send(members[2], 1, &[])?;
    } else {
        fabric.recv(Match::from(members[1], 1), &mut [])?;
    }
    use_all(&Pgas::new(fabric)?, &Group::first(3))
});

/// How many beginnings have failed after all members had agreed.
static FAILED_LATER: AtomicU32 = AtomicU32::new(0);

/// Unit 1 begins with a deadline that may be too short for any of its steps. Whether or not others
/// have begun by then, all of them can begin again.
fn fails_anywhere(fabric: &Fabric, members: &[PeerId]) -> Outcome {
    let long = Duration::from_millis(20);
    let soon = [0, 1, 3, 7, 12, 18, 25, 40].map(Duration::from_micros);
    for soon in soon.into_iter().cycle().take(32).chain([long]) {
        let is_odd = fabric.me() == members[1];
        let begun = fabric.within(if is_odd { soon } else { long }, || Pgas::new(fabric));
        let passed = match &begun {
            Ok(pgas) => fabric.within(long, || pgas.world().barrier()).is_ok(),
            Err(Error::NotBegun { .. }) => false,
            Err(_) => {
                FAILED_LATER.fetch_add(1, Relaxed);
                false
            }
        };
        let has_failed = fabric.agree_on_max(members, u64::from(!passed))?;
        check!(has_failed == 0 || soon < long, "{:?}", begun.err());
        if has_failed == 0 {
            use_all(&begun?, &Group::first(3))?;
        } else {
            fabric.within(long, || drop(begun));
        }
        fabric.barrier(members)?;
    }
    Ok(())
}

#[test]
fn a_beginning_fails_anywhere() {
    let name = "collective::groups::a_beginning_fails_anywhere";
    simulate_as(|seed| own_nodes(seed, 3), name, 0..8, fails_anywhere);
    simulate_as(|seed| two_nodes(seed, 3), name, 0..4, fails_anywhere);
    simulate_as(|seed| three_nodes(seed, 3), name, 0..4, fails_anywhere);
    let is_one_seed = std::env::var_os("SAMITE_SIM_SEED").is_some();
    let failed = FAILED_LATER.load(Relaxed);
    assert!(is_one_seed || failed > 0, "none failed in the exchange");
}

/// Holds back the messages of a unit to a peer.
struct HoldingBack {
    to: PeerId,
    holds: Arc<AtomicBool>,
    held: Vec<RawFrame>,
}

impl Tamper for HoldingBack {
    fn outgoing(&mut self, to: PeerId, frame: RawFrame, send: &mut dyn FnMut(PeerId, RawFrame)) {
        const EAGER: u8 = 1;
        let holds = self.holds.load(Relaxed);
        if holds && to == self.to && frame.kind == EAGER {
            self.held.push(frame);
            return;
        }
        if !holds {
            self.held.drain(..).for_each(|held| send(self.to, held));
        }
        send(to, frame);
    }
}

/// The first exchange fails at unit 1, after it has agreed with the others: the messages of unit 0
/// come when unit 1 has given up, and while it begins again. They are not taken for those of the
/// next life, which begins with one more unit.
#[test]
fn messages_of_a_failed_beginning_come_late() {
    let name = "collective::groups::messages_of_a_failed_beginning_come_late";
    simulate_as(
        |seed| own_nodes(seed, 4),
        name,
        0..8,
        |fabric, members| {
            let (me, first) = (fabric.identity().unit, group(&[0, 1, 2]));
            if me < 3 {
                let holds = Arc::new(AtomicBool::new(me == 0));
                let (to, held) = (members[1], Vec::new());
                let holding = HoldingBack {
                    to,
                    holds: holds.clone(),
                    held,
                };
                tamper(fabric, Box::new(holding));
                let soon = Duration::from_millis(5 + 5 * u64::from(me != 1));
                let begun = fabric.within(soon, || Pgas::of(fabric, &first));
                if me == 1 {
                    // It had agreed.
                    let is_late =
                        matches!(&begun, Err(error) if !matches!(error, Error::NotBegun { .. }));
                    check!(is_late, "{:?}", begun.err());
                }
                fabric.within(soon, || drop(begun));
                fabric.barrier(&members[..3])?;
                holds.store(false, Relaxed);
            }
            use_all(&Pgas::new(fabric)?, &Group::first(4))
        },
    );
}

/// The solver begins global memory with all units of the job, but the analysis never does: each of
/// its units names one of those that have not, and says what to do.
#[test]
fn a_program_that_does_not_begin_is_named() {
    let name = "collective::groups::a_program_that_does_not_begin_is_named";
    let scenario = |seed| own_nodes(seed, 5).of_programs(&WORKFLOW);
    simulate_as(scenario, name, 0..8, |fabric, members| {
        if is_of(fabric, "analysis") {
            for solver in &members[..3] {
                fabric.recv(Match::from(*solver, 1), &mut [])?;
            }
            return Ok(());
        }
        let begun = fabric.within(Duration::from_secs(1), || Pgas::new(fabric));
        let Err(error) = begun else {
            return Err(samite_testkit::Failed::new("it has begun"));
        };
        same!(
            error.to_string(),
            "analysis.0 has not begun global memory (nothing was heard of it within 1s); if only the \
             units of one program use it, let these begin it by `Pgas::of_program`"
        );
        matches_or_fail!(
            error,
            Error::NotBegun {
                unit: Some(Named { id: Unit(3), .. }),
                ..
            }
        );
        for analysis in &members[3..] {
            fabric.send(*analysis, 1, &[])?;
        }
        // What the error says helps.
        use_all(&Pgas::of_program(fabric)?, &group(&[0, 1, 2]))
    });
}

/// The same if the analysis has ended.
fn the_analysis_ends(fabric: &Fabric, _: &[PeerId]) -> Outcome {
    if is_of(fabric, "analysis") {
        return Ok(());
    }
    let error = Pgas::new(fabric).err().map(|error| error.to_string());
    let error = error.unwrap_or_default();
    check!(error.starts_with("analysis."), "{error}");
    check!(error.contains("(it has ended); if only"), "{error}");
    use_all(&Pgas::of_program(fabric)?, &group(&[0, 1, 2]))
}

#[test]
fn a_program_that_has_ended_is_named() {
    let name = "collective::groups::a_program_that_has_ended_is_named";
    programs(&WORKFLOW).run(name, the_analysis_ends);
}

#[test]
fn a_program_that_has_ended_is_named_on_several_nodes() {
    let name = "collective::groups::a_program_that_has_ended_is_named_on_several_nodes";
    let scenario = |seed| two_nodes(seed, 5).of_programs(&WORKFLOW);
    simulate_as(scenario, name, 0..4, the_analysis_ends);
}

/// Two units of the solver already wait when the analysis ends, and the first unit begins after
/// that: it tells those that wait, whose deadline does not expire.
#[test]
fn those_that_wait_hear_that_a_program_has_ended() {
    let name = "collective::groups::those_that_wait_hear_that_a_program_has_ended";
    programs(&WORKFLOW).run(name, |fabric, members| {
        let (first, analysis) = (members[0], &members[3..]);
        if is_of(fabric, "analysis") {
            fabric.recv(Match::from(first, 1), &mut [])?;
            return Ok(());
        }
        if fabric.me() == first {
            let waits = |peer: PeerId| {
                let waits = fabric.waits();
                let mut of_peer = waits.iter().filter(|wait| wait.peer == peer);
                of_peer.any(|wait| wait.what == "a barrier")
            };
            while !(waits(members[1]) && waits(members[2])) {
                fabric.progress();
            }
            for one in analysis {
                fabric.send(*one, 1, &[])?;
                let lost = fabric.recv(Match::from(*one, 2), &mut []);
                check!(lost.is_err(), "nothing was sent");
            }
        }
        let hour = Duration::from_secs(3600);
        let error = fabric.within(hour, || Pgas::new(fabric)).err();
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        check!(error.contains("(it has ended); if only"), "{error}");
        use_all(&Pgas::of_program(fabric)?, &group(&[0, 1, 2]))
    });
}

/// The preparation has ended before the solver starts, so a unit of the solver may have its peer
/// number.
#[test]
fn a_program_that_ended_first_is_named() {
    let body = |unit: &samite_testkit::Unit| {
        if unit.rank == 0 {
            unit.join()?;
            return Ok(());
        }
        pause("born");
        let fabric = unit.join()?;
        let solver = fabric.program("solver")?;
        for _ in 0..2 {
            let error = Pgas::new(&fabric).err();
            let error = error.ok_or_else(|| samite_testkit::Failed::new("it has begun"))?;
            let text = error.to_string();
            check!(text.contains("(it has ended); if only"), "{text}");
            check!(text.contains("`Pgas::of_program`"), "{text}");
            matches_or_fail!(
                error,
                Error::NotBegun {
                    unit: Some(Named { id: Unit(0), .. }),
                    ..
                }
            );
            fabric.barrier(&solver)?;
        }
        use_all(&Pgas::of_program(&fabric)?, &group(&[1, 2]))
    };
    let name = "collective::groups::a_program_that_ended_first_is_named";
    programs(&[("prep", 1), ("solver", 2)]).orchestrate_bare(name, body, |cluster| {
        cluster.wait_gone(Who::Unit(0));
        for unit in [1, 2] {
            cluster.wait_point(Who::Unit(unit), "born");
        }
        for unit in [1, 2] {
            cluster.release(Who::Unit(unit));
        }
    });
}

/// A unit of the analysis has not even joined: the solver begins with its own program all the same,
/// and the error of the whole job names it.
#[test]
fn a_program_that_has_not_joined() {
    let body = |unit: &samite_testkit::Unit| {
        if unit.rank == 4 {
            pause("has not joined");
            return Ok(());
        }
        let fabric = unit.join()?;
        if unit.rank == 3 {
            pause("has joined");
            return Ok(());
        }
        let early = fabric.within(Duration::from_millis(5), || Pgas::new(&fabric));
        let early = early.err().map(|error| error.to_string());
        let early = early.unwrap_or_default();
        check!(
            early.starts_with("global memory has not begun: "),
            "{early}"
        );
        check!(early.contains(" has not joined: "), "{early}");
        check!(early.contains("`Pgas::of_program`"), "{early}");
        use_all(&Pgas::of_program(&fabric)?, &group(&[0, 1, 2]))?;
        let some = group(&[0, 2]);
        if some.contains(Unit(unit.rank)) {
            use_all(&Pgas::of(&fabric, &some)?, &some)?;
        }
        point("done");
        Ok(())
    };
    let name = "collective::groups::a_program_that_has_not_joined";
    programs(&WORKFLOW).orchestrate_bare(name, body, |cluster| {
        for unit in 0..3 {
            cluster.wait_point(Who::Unit(unit), "done");
        }
        for (unit, at) in [(3, "has joined"), (4, "has not joined")] {
            cluster.wait_point(Who::Unit(unit), at);
            cluster.release(Who::Unit(unit));
        }
    });
}

/// Unit 4 of the analysis dies, and the solver does not notice. Unit 1 of the solver dies, and the
/// analysis has forgotten the death of its own long ago.
fn deaths(fabric: &Fabric, _: &[PeerId]) -> Outcome {
    let pgas = Pgas::of_program(fabric)?;
    let (world, me) = (pgas.world(), pgas.me());
    let data = world.allocate::<u64>(1)?;
    world.barrier()?;
    match me {
        Unit(4) => drop(pause("dies")),
        Unit(3) => {
            let lost = world.barrier();
            matches_or_fail!(
                lost,
                Err(Error::UnitLost {
                    unit: Named { id: Unit(4), .. },
                    ..
                })
            );
            drop((data, pgas));
            // It goes on alone.
            let alone = Pgas::of(fabric, &group(&[3]))?;
            same!(alone.world().size(), 1);
            let again = Pgas::of_program(fabric).err();
            same!(again, Some(Error::AlreadyBegun));
            drop(alone);
            let again = Pgas::of_program(fabric).err();
            matches_or_fail!(
                again,
                Some(Error::NotBegun {
                    unit: Some(Named { id: Unit(4), .. }),
                    ..
                })
            );
            point("knows");
        }
        _ => {
            pause("goes on");
            for turn in 0..100 {
                data.fetch_add(turn % 3, 0, 1)?;
                world.barrier()?;
            }
            if me == Unit(1) {
                pause("dies");
            }
            let lost = world.barrier();
            matches_or_fail!(
                lost,
                Err(Error::UnitLost {
                    unit: Named { id: Unit(1), .. },
                    ..
                })
            );
            drop((data, pgas));
            let rest = group(&[0, 2]);
            use_all(&Pgas::of(fabric, &rest)?, &rest)?;
        }
    }
    Ok(())
}

fn kill_both(cluster: &mut samite_testkit::Cluster) {
    cluster.wait_point(Who::Unit(4), "dies");
    for unit in 0..3 {
        cluster.wait_point(Who::Unit(unit), "goes on");
    }
    cluster.kill(Who::Unit(4));
    cluster.wait_gone(Who::Unit(4));
    cluster.wait_point(Who::Unit(3), "knows");
    for unit in 0..3 {
        cluster.release(Who::Unit(unit));
    }
    cluster.wait_point(Who::Unit(1), "dies");
    cluster.kill(Who::Unit(1));
    cluster.wait_gone(Who::Unit(1));
}

#[test]
fn a_death_concerns_the_members_only() {
    let name = "collective::groups::a_death_concerns_the_members_only";
    programs(&WORKFLOW).orchestrate(name, deaths, kill_both);
}

#[test]
fn a_death_concerns_the_members_only_by_messages() {
    let name = "collective::groups::a_death_concerns_the_members_only_by_messages";
    let units = programs(&WORKFLOW).mask(MESSAGES_ONLY);
    units.orchestrate(name, deaths, kill_both);
}

#[test]
fn a_death_concerns_the_members_only_on_two_nodes() {
    let name = "collective::groups::a_death_concerns_the_members_only_on_two_nodes";
    let units = programs(&WORKFLOW).mask(TWO_NODES);
    units.orchestrate(name, deaths, kill_both);
}

/// The checking mode names units by their numbers in the job, and takes no ordered accesses for
/// races.
#[test]
fn races_of_a_later_program_are_found() {
    let name = "collective::groups::races_of_a_later_program_are_found";
    let scenario = |seed| -> Scenario {
        let mut scenario = own_nodes(seed, 5).of_programs(&WORKFLOW);
        scenario.config.check = true;
        scenario
    };
    for seed in seeds(0..4) {
        let ended = scenario(seed).run(|fabric| -> Outcome<usize> {
            if is_of(fabric, "solver") {
                use_all(&Pgas::of_program(fabric)?, &group(&[0, 1, 2]))?;
                return Ok(0);
            }
            let pgas = Pgas::of_program(fabric)?;
            use_all(&pgas, &group(&[3, 4]))?;
            same!(pgas.conflicts(), []);
            let world = pgas.world();
            let data = world.allocate::<u64>(1)?;
            data.put_value(0, 0, 1)?;
            matches_or_fail!(world.barrier(), Err(Error::Conflict(_)));
            let found = pgas.conflicts();
            for conflict in &found {
                let units = group(&[conflict.earlier.unit.0, conflict.later.unit.0]);
                same!(units, group(&[3, 4]));
                same!(conflict.owner, Unit(3));
                same!(conflict.later.kind, AccessKind::Put);
            }
            Ok(found.len())
        });
        let found: Outcome<Vec<usize>> = ended.into_iter().collect();
        let found = found.unwrap_or_else(|why| panic!("{name}, seed {seed}: {why}"));
        assert_eq!(found.iter().sum::<usize>(), 1, "seed {seed}: {found:?}");
    }
}
