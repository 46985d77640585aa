//! Leaving: a unit that is done does not take its memory away from those who are not.

use samite_fabric::{Fabric, PeerId};
use samite_pgas::{Pgas, Segment, Unit, Update};
use samite_testkit::{
    Cluster, MESSAGES_ONLY, Outcome, Who, check, everywhere, full_name, pause, point, same, units,
};
use std::time::Duration;

/// Puts, gets and updates at the part of a member that may have left.
fn visit(pgas: &Pgas, data: &Segment<u64>, rank: u32) -> Outcome {
    let me = u64::from(pgas.me().0);
    let pointer = data.pointer(rank, 10 * me)?;
    for turn in 1..=100 {
        data.put(rank, 10 * me, &[turn; 4])?;
        let mut found = [0; 4];
        data.get(rank, 10 * me, &mut found)?;
        same!(found, [turn; 4]);
        same!(data.fetch_add(rank, 10 * me + 5, 2)?, 2 * (turn - 1));
        pgas.put(pointer.add(6), &[turn])?;
        pgas.fetch_op(pointer.add(6), Update::Sum, 1)?;
        same!(data.get_value(rank, 10 * me + 6)?, turn + 1);
        data.put_implicit(rank, 10 * me + 7, &[turn])?;
    }
    Ok(())
}

// No barrier at the end: unit 0 is done at once, the others are not.
everywhere!(the_first_to_be_done, 3, |fabric, _| {
    let pgas = Pgas::new(fabric)?;
    let world = pgas.world();
    let data = world.allocate::<u64>(100)?;
    let kept = world.register(vec![7_u64; 10])?;
    let lock = world.global_lock(1_u64)?;
    if pgas.me() != Unit(0) {
        visit(&pgas, &data, 0)?;
        same!(kept.get_value(0, 9)?, 7);
        for _ in 0..20 {
            *lock.acquire()? += 1;
        }
    }
    Ok(())
});

// What is dropped and not freed is let go when all have dropped it, long before the end.
everywhere!(what_all_have_dropped_goes, 3, |fabric, _| {
    let pgas = Pgas::new(fabric)?;
    let world = pgas.world();
    let mut before = None;
    for turn in 0..60 {
        let data = world.allocate::<u64>(100_000)?;
        if turn % 3 == u64::from(world.rank()) {
            for other in 0..3 {
                data.put_value(other, 99_999, turn)?;
            }
        }
        drop(data);
        let few = world.split_by(u64::from(world.rank() == 0))?;
        drop(few.allocate::<u64>(100_000)?);
        drop(few.lock()?);
        if turn >= 5 {
            let now = fabric.shared_bytes();
            let before = *before.get_or_insert(now);
            check!(
                now <= before + (3 << 20),
                "turn {turn}: {now} after {before}"
            );
        }
    }
    Ok(())
});

/// Unit 1 dies. Unit 0 is done, while unit 2 is still at its memory, which only the two share.
fn survivors(fabric: &Fabric, _: &[PeerId]) -> Outcome {
    let pgas = Pgas::new(fabric)?;
    let world = pgas.world();
    let few = world.split_by(u64::from(pgas.me() == Unit(1)))?;
    let data = few.allocate::<u64>(100)?;
    few.barrier()?;
    match pgas.me() {
        Unit(0) => point("done"),
        Unit(1) => drop(pause("dies")),
        _ => {
            pause("goes on");
            visit(&pgas, &data, 0)?;
        }
    }
    Ok(())
}

fn one_dies(cluster: &mut Cluster) {
    cluster.wait_point(Who::Unit(1), "dies");
    cluster.wait_point(Who::Unit(2), "goes on");
    cluster.wait_point(Who::Unit(0), "done");
    cluster.kill(Who::Unit(1));
    cluster.wait_gone(Who::Unit(1));
    cluster.wait_asleep(Who::Unit(0));
    cluster.release(Who::Unit(2));
}

#[test]
fn the_survivors_end_together() {
    let name = full_name(module_path!(), "the_survivors_end_together");
    units(3).orchestrate(&name, survivors, one_dies);
}

#[test]
fn the_survivors_end_together_by_messages() {
    let name = full_name(module_path!(), "the_survivors_end_together_by_messages");
    let units = units(3).mask(MESSAGES_ONLY);
    units.orchestrate(&name, survivors, one_dies);
}

/// A panic waits for nobody: the deadline is longer than any test.
#[test]
fn a_panic_does_not_wait() {
    let name = full_name(module_path!(), "a_panic_does_not_wait");
    let body = |fabric: &Fabric, _: &[PeerId]| {
        let patient = fabric.deadline();
        let pgas = Pgas::new(fabric)?;
        let data = pgas.world().allocate::<u64>(10)?;
        pgas.world().barrier()?;
        if pgas.me() == Unit(0) {
            fabric.set_deadline(Duration::from_secs(100_000));
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _all = (data, pgas);
                std::panic::resume_unwind(Box::new(()));
            }));
            check!(panicked.is_err());
            fabric.set_deadline(patient);
            point("unwound");
        } else {
            pause("computes");
            // It finds that the other one is not there, and does not hang.
            check!(pgas.world().barrier().is_err());
        }
        Ok(())
    };
    units(2).orchestrate(&name, body, |cluster| {
        cluster.wait_point(Who::Unit(1), "computes");
        cluster.wait_point(Who::Unit(0), "unwound");
        cluster.wait_gone(Who::Unit(0));
        cluster.release(Who::Unit(1));
    });
}
