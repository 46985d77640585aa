//! Members that come to a collective after the others have given it up.

use samite_fabric::{Error as Below, Fabric, PeerId};
use samite_pgas::{Error, Named, Op, Pgas, Sum, Team, Unit};
use samite_testkit::{Cluster, MESSAGES_ONLY, Outcome, Who, check, pause, point, units};
use std::cell::Cell;
use std::time::Duration;

const COUNT: usize = 60_000;

/// A team of all units but unit 1, which gets one of its own. Everything that the first reduction
/// of a team makes is there.
fn without_unit_1(pgas: &Pgas) -> Outcome<Team> {
    let world = pgas.world();
    let few = world.split_by(u64::from(pgas.me() == Unit(1)))?;
    let mut sum = vec![0.0; COUNT];
    world.all_reduce(&vec![1.0; COUNT], &mut sum, Sum)?;
    few.all_reduce(&vec![1.0; COUNT], &mut sum, Sum)?;
    Ok(few)
}

/// A sum that pauses at this unit, once, when its first elements are added.
fn pausing(is_here: bool, name: &'static str) -> Op<impl Fn(f64, f64) -> f64> {
    let paused = Cell::new(!is_here);
    Op::new(move |a: f64, b: f64| {
        if !paused.replace(true) {
            pause(name);
        }
        a + b
    })
}

/// A reduction of two units, in the middle of which unit 0 pauses, has the right result.
fn reduce_two(pgas: &Pgas, few: &Team) -> Outcome {
    let mut sum = vec![0.0; COUNT];
    let add = pausing(pgas.me() == Unit(0), "in the middle");
    few.all_reduce(&vec![2.0; COUNT], &mut sum, add)?;
    let wrong = sum.iter().filter(|value| **value != 4.0).count();
    check!(wrong == 0, "{wrong} sums of another reduction are wrong");
    Ok(())
}

/// Units 0 and 2 wait for unit 1 in a reduction of all units and give it up. While they are in a
/// reduction of their own, unit 1 comes to the old one.
fn late(fabric: &Fabric, _: &[PeerId]) -> Outcome {
    let pgas = Pgas::new(fabric)?;
    let (world, me) = (pgas.world(), pgas.me());
    let few = without_unit_1(&pgas)?;
    let mut sum = vec![0.0; COUNT];
    let patient = fabric.deadline();
    if me == Unit(1) {
        pause("late");
        fabric.set_deadline(Duration::from_secs(2));
        let answer = world.all_reduce(&vec![1000.0; COUNT], &mut sum, Sum);
        let refused = matches!(
            answer,
            Err(Error::Refused(Named {
                id: Unit(0 | 2),
                ..
            }))
        );
        check!(refused, "a late unit is told so: {answer:?}");
        fabric.set_deadline(patient);
        point("answered");
        return Ok(());
    }
    fabric.set_deadline(Duration::from_millis(300));
    let answer = world.all_reduce(&vec![1.0; COUNT], &mut sum, Sum);
    let over = match &answer {
        Err(Error::Fabric(Below::Timeout { .. })) => true,
        // The other one has given up before.
        Err(Error::Refused(unit)) => *unit != me,
        _ => false,
    };
    check!(over, "{answer:?}");
    fabric.set_deadline(patient);
    reduce_two(&pgas, &few)?;
    // Nobody leaves before unit 1 has its answer.
    pause("right");
    Ok(())
}

fn orchestrate(cluster: &mut Cluster) {
    cluster.wait_point(Who::Unit(1), "late");
    cluster.wait_point(Who::Unit(0), "in the middle");
    // Unit 2 has done what it can do without unit 0: it waits for it, or has its result.
    cluster.wait_asleep(Who::Unit(2));
    cluster.release(Who::Unit(1));
    cluster.wait_point(Who::Unit(1), "answered");
    cluster.release(Who::Unit(0));
    for unit in [0, 2] {
        cluster.wait_point(Who::Unit(unit), "right");
        cluster.release(Who::Unit(unit));
    }
}

/// Unit 1 is stopped in the middle of a reduction of all units, until the others have given it up
/// and are in a reduction of their own: what it still writes goes to memory that nobody uses.
fn stopped(fabric: &Fabric, _: &[PeerId]) -> Outcome {
    let pgas = Pgas::new(fabric)?;
    let (world, me) = (pgas.world(), pgas.me());
    let few = without_unit_1(&pgas)?;
    let mut sum = vec![0.0; COUNT];
    let patient = fabric.deadline();
    if me != Unit(1) {
        fabric.set_deadline(Duration::from_millis(300));
    }
    let given = vec![if me == Unit(1) { 1000.0 } else { 1.0 }; COUNT];
    let add = pausing(me == Unit(1), "stopped");
    let answer = world.all_reduce(&given, &mut sum, add);
    let over = matches!(
        answer,
        Err(Error::Fabric(Below::Timeout { .. })
            | Error::Refused(Named {
                id: Unit(0 | 2),
                ..
            }))
    );
    check!(over, "{answer:?}");
    fabric.set_deadline(patient);
    if me == Unit(1) {
        point("answered");
        return Ok(());
    }
    reduce_two(&pgas, &few)
}

#[test]
fn one_is_stopped_in_the_middle() {
    units(3).orchestrate(
        "collective::late::one_is_stopped_in_the_middle",
        stopped,
        |cluster| {
            cluster.wait_point(Who::Unit(1), "stopped");
            cluster.wait_point(Who::Unit(0), "in the middle");
            cluster.wait_asleep(Who::Unit(2));
            cluster.release(Who::Unit(1));
            cluster.wait_point(Who::Unit(1), "answered");
            cluster.release(Who::Unit(0));
        },
    );
}

#[test]
fn one_comes_when_all_have_given_up() {
    units(3).orchestrate(
        "collective::late::one_comes_when_all_have_given_up",
        late,
        orchestrate,
    );
}

#[test]
fn one_comes_when_all_have_given_up_by_messages() {
    let units = units(3).mask(MESSAGES_ONLY);
    let name = "collective::late::one_comes_when_all_have_given_up_by_messages";
    units.orchestrate(name, late, orchestrate);
}
