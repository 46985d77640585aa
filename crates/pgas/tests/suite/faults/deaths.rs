//! A unit that dies while others wait for what they put into its memory.

use samite_fabric::{Error as Below, Fabric, PeerId};
use samite_pgas::{Error, GlobalPtr, Named, Pgas, Signal, SignalOp, Unit, Wanted};
use samite_testkit::{MESSAGES_ONLY, Who, check, matches_or_fail, pause, point, units};

/// Unit 1 stops answering and dies, while unit 0 waits in a flush for it; unit 2 is not concerned.
#[test]
fn a_unit_dies_inside_a_flush() {
    let body = |fabric: &Fabric, _: &[PeerId]| {
        let pgas = &Pgas::new(fabric)?;
        let world = pgas.world();
        let data = world.allocate::<u64>(5000)?;
        let survivors = world.split_by(u64::from(world.rank() % 2))?;
        world.barrier()?;
        if world.rank() == 1 {
            pause("does not answer");
            return Ok(());
        }
        if world.rank() == 0 {
            pause("may begin");
            for index in 0..200 {
                data.put_implicit(1, 20 * index, &[index; 20])?;
                data.put_implicit(2, 20 * index, &[index; 20])?;
            }
            // Those to another unit are complete all the same.
            pgas.flush(Unit(2))?;
            point("in the flush");
            let lost = pgas.flush(Unit(1));
            matches_or_fail!(lost, Err(Error::Fabric(Below::PeerLost { .. })));
            // It is told once; there is nothing left to complete.
            pgas.flush_all()?;
            matches_or_fail!(
                data.put_value(1, 0, 1),
                Err(Error::Fabric(Below::PeerLost { .. }))
            );
            let signal = Signal {
                index: 4999,
                op: SignalOp::Set,
                value: 9,
            };
            data.signal(2, signal)?;
            pgas.flush_all()?;
        } else {
            data.wait_until_from(4999, Wanted::Equal(9), 0)?;
            let mut found = [0; 4000];
            data.read_local(0, &mut found)?;
            check!(found.iter().zip(0..).all(|(value, at)| *value == at / 20));
        }
        // Collectives of everybody end with the loss.
        let lost = world.barrier();
        matches_or_fail!(
            lost,
            Err(Error::UnitLost {
                unit: Named { id: Unit(1), .. },
                ..
            })
        );
        Ok(survivors.barrier()?)
    };
    let units = units(3).mask(MESSAGES_ONLY);
    units.orchestrate(
        "faults::deaths::a_unit_dies_inside_a_flush",
        body,
        |cluster| {
            cluster.wait_point(Who::Unit(1), "does not answer");
            cluster.wait_point(Who::Unit(0), "may begin");
            cluster.release(Who::Unit(0));
            cluster.wait_point(Who::Unit(0), "in the flush");
            cluster.kill(Who::Unit(1));
            cluster.wait_gone(Who::Unit(1));
        },
    );
}

/// What a unit did before it died counts, also for who has followed a pointer to memory of a third
/// unit, and so has more to do while it waits: the signal and the death are found at the same look.
#[test]
fn a_signal_that_came_before_the_death() {
    let body = |fabric: &Fabric, _: &[PeerId]| {
        let pgas = &Pgas::new(fabric)?;
        let world = pgas.world();
        let words = world.allocate::<u64>(2)?;
        let own = pgas.allocate::<u64>(1)?;
        pgas.put(own, &[70 + u64::from(world.rank())])?;
        let mut all = [0; 3];
        world.all_gather(&[own.to_bits()], &mut all)?;
        world.barrier()?;
        match world.rank() {
            0 => {
                let mut found = [0];
                pgas.get(GlobalPtr::<u64>::from_bits(all[2]), &mut found)?;
                check!(found == [72]);
                world.barrier()?;
                pause("waits");
                let signal = words.wait_until_from(1, Wanted::Equal(5), 1);
                check!(signal == Ok(5), "{signal:?}");
                check!(words.get_value(0, 0)? == 6);
            }
            1 => {
                world.barrier()?;
                let signal = Signal {
                    index: 1,
                    op: SignalOp::Set,
                    value: 5,
                };
                words.put_signal(0, 0, &[6], &words, signal)?;
                pause("has signalled");
            }
            _ => {
                world.barrier()?;
                while fabric.lost(world.peer(1)?).is_none() {
                    fabric.progress();
                }
                point("has heard");
            }
        }
        Ok(())
    };
    let units = units(3).mask(MESSAGES_ONLY);
    let name = "faults::deaths::a_signal_that_came_before_the_death";
    units.orchestrate(name, body, |cluster| {
        cluster.wait_point(Who::Unit(0), "waits");
        cluster.wait_point(Who::Unit(1), "has signalled");
        cluster.kill(Who::Unit(1));
        cluster.wait_point(Who::Unit(2), "has heard");
        cluster.release(Who::Unit(0));
    });
}
