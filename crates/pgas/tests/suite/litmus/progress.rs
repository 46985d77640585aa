//! Whose calls make what happen.

use crate::litmus::{litmus, rounds};
use samite_fabric::Fabric;
use samite_pgas::{Pgas, Signal, SignalOp};
use samite_testkit::{Who, pause, point, same, units};

/// Unit 1 waits for a line of text, outside of the library, while unit 0 works on its memory.
#[test]
fn shared_memory_needs_no_progress_of_its_owner() {
    let body = |fabric: &Fabric, _: &[samite_fabric::PeerId]| {
        let pgas = Pgas::new(fabric)?;
        let world = pgas.world();
        let data = world.allocate::<u64>(10_000)?;
        let lock = loop {
            let lock = world.lock()?;
            if lock.home() == 1 {
                break lock;
            }
        };
        world.barrier()?;
        if world.rank() == 1 {
            pause("outside of the library");
            same!(data.load(1, 0)?, 7);
        } else {
            point("waits for unit 1 to be outside");
            pause("it is");
            let from = vec![5; 10_000];
            data.put(1, 0, &from)?;
            data.put_implicit(1, 0, &from)?;
            pgas.flush_all()?;
            data.fetch_add(1, 0, 2)?;
            data.signal(
                1,
                Signal {
                    index: 1,
                    op: SignalOp::Set,
                    value: 1,
                },
            )?;
            let mut back = vec![0; 10_000];
            data.get(1, 0, &mut back)?;
            same!(back[..3], [7, 1, 5]);
            drop(lock.acquire()?);
            point("done");
        }
        Ok(world.barrier()?)
    };
    units(2).orchestrate(
        "litmus::progress::shared_memory_needs_no_progress_of_its_owner",
        body,
        |cluster| {
            cluster.wait_point(Who::Unit(0), "waits for unit 1 to be outside");
            cluster.wait_point(Who::Unit(1), "outside of the library");
            cluster.wait_point(Who::Unit(0), "it is");
            cluster.stop(Who::Unit(1));
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(0), "done");
            cluster.go_on(Who::Unit(1));
            cluster.release(Who::Unit(1));
        },
    );
}

litmus!(an_owner_that_makes_progress_answers, 2, |fabric, _| {
    // Over messages the owner's calls answer: here it does nothing but `progress`.
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let data = world.allocate::<u64>(2)?;
    if world.rank() == 0 {
        for round in 1..=rounds(fabric) {
            data.put_value(1, 0, round)?;
            same!(data.get_value(1, 0)?, round);
        }
        data.swap(1, 1, 1)?;
    } else {
        while data.load(1, 1)? == 0 {
            pgas.progress();
        }
    }
    Ok(world.barrier()?)
});
