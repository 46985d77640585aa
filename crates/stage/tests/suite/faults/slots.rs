//! A process that has the slot of one that died.

use crate::staged::stage;
use samite_fabric::{Fabric, PeerId};
use samite_stage::Settings;
use samite_stage::service::{Capacity, Staging};
use samite_testkit::{Outcome, Unit, Who, check, full_name, pause, point, same, units};
use std::path::PathBuf;

const COORDINATOR: Who = Who::Unit(0);
const FIRST: Who = Who::Unit(1);
const SECOND: Who = Who::Unit(2);

/// Tells the coordinator, which must not sleep, to go on.
fn word(domain: &str) -> PathBuf {
    std::env::temp_dir().join(format!("samite-{domain}-go"))
}

/// Serves the first one. Then it only makes progress, until the first one has died and the second
/// one, in the same slot, has asked; and serves again: it hears of the death and of the question at
/// the same time.
fn coordinate(unit: &Unit) -> Outcome {
    let fabric = Fabric::join(
        &unit.domain,
        samite_fabric::agent::identity(),
        unit.config.clone(),
    )?;
    let mut service = Staging::new(&fabric, Capacity::of_memory(1 << 20));
    point("coordinator");
    let here = |service: &Staging| {
        let figures = service.figures();
        figures.first().map_or(0, |stream| stream.here)
    };
    while here(&service) == 0 {
        service.turn();
        fabric.progress();
    }
    point("first");
    let word = word(&unit.domain);
    while !word.exists() {
        fabric.progress();
    }
    service.run(|fabric| fabric.peers().len() > 1)?;
    let _ = std::fs::remove_file(word);
    Ok(())
}

/// Joins until it has that slot, which is the lowest that is free when the agent has buried the one
/// that died.
fn join_as(unit: &Unit, slot: PeerId) -> Outcome<Fabric> {
    loop {
        let fabric = unit.join()?;
        if fabric.me() == slot {
            return Ok(fabric);
        }
    }
}

/// Who comes after a process that died is neither taken for it nor evicted for it.
#[test]
fn a_newcomer_in_the_slot_of_a_dead_process_is_another_one() {
    let name = full_name(
        module_path!(),
        "a_newcomer_in_the_slot_of_a_dead_process_is_another_one",
    );
    let body = |unit: &Unit| -> Outcome {
        let slot = PeerId(1);
        match unit.rank {
            0 => coordinate(unit),
            1 => {
                pause("born");
                let fabric = unit.join()?;
                same!(fabric.me(), slot);
                let stage = stage(&fabric, Settings::default())?;
                let _field = stage.write("field").as_rank("solver", 0, 1).open()?;
                pause("open");
                Ok(())
            }
            _ => {
                pause("born");
                let fabric = join_as(unit, slot)?;
                point("joined");
                let stage = stage(&fabric, Settings::default())?;
                // The rank of the one that died: it is let in when the coordinator hears of the
                // death.
                let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
                same!(field.next_step(), 0);
                let step = field.step()?;
                step.commit()?;
                check!(field.next_step() == 1);
                Ok(field.close()?)
            }
        }
    };
    units(3).orchestrate_bare(&name, body, |cluster| {
        cluster.wait_point(COORDINATOR, "coordinator");
        cluster.wait_point(FIRST, "born");
        cluster.release(FIRST);
        cluster.wait_point(COORDINATOR, "first");
        cluster.wait_point(FIRST, "open");
        cluster.kill(FIRST);
        cluster.wait_gone(FIRST);
        cluster.wait_point(SECOND, "born");
        cluster.release(SECOND);
        cluster.wait_point(SECOND, "joined");
        cluster.wait_asleep(SECOND);
        let _ = std::fs::write(word(cluster.domain()), "go");
        cluster.all_end();
    });
}
