//! "Out of RDMA memory", "out of main memory": the budget is reached. Whoever asks waits until
//! readers have gone on, or gets an error that says how much is in use where; what can never be is
//! refused at once; with the policy `spill` the disk takes over
//! (`what_is_beyond_the_limit_lies_on_disk` in `tests/faults`).

use crate::staged::{Play, is_right, next, rows, stage};
use ndarray::{Array1, Array2};
use samite_fabric::{Fabric, Mask};
use samite_stage::protocol::{Fault, Policy};
use samite_stage::{Error, Method, Settings};
use samite_testkit::{Outcome, Unit, check, full_name, pause, same};
use std::time::Duration;

/// A step that can never fit is refused at once, one that does not fit now at the deadline.
#[test]
fn memory_is_short() {
    let play = Play {
        memory: 1 << 20,
        ..Play::of(1, Mask::default())
    };
    let body = |fabric: &Fabric, _: u32| {
        let settings = Settings {
            steps: Some(9),
            ..Settings::default()
        };
        let stage = stage(fabric, settings)?;
        let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
        {
            let mut step = field.step()?;
            let large = step.alloc::<u8>("u", [2_u64 << 20], [0_u64], [2_u64 << 20]);
            let large = large.map(drop);
            let is_it = matches!(large, Err(Error::Fault(Fault::TooLarge { .. })));
            check!(is_it, "{large:?}");
            let endless = step
                .alloc::<u8>("v", [u64::MAX], [0_u64], [u64::MAX])
                .map(drop);
            check!(endless.is_err(), "more than there is");
        }
        let _reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
        let mut half = || {
            let mut step = field.step()?;
            step.alloc::<u8>("u", [400_u64 << 10], [0_u64], [400_u64 << 10])?
                .fill(7);
            step.commit()
        };
        half()?;
        half()?;
        fabric.set_deadline(Duration::from_millis(30));
        let third = half();
        let is_it = matches!(third, Err(Error::Fault(Fault::NoMemory { .. })));
        check!(is_it, "{third:?}");
        Ok(())
    };
    play.run(&full_name(module_path!(), "memory_is_short"), body, |_| ());
}

/// Each buffer is a segment of its block store, whatever its length: what is missing is said, and
/// what to do.
#[test]
fn numbers_of_segments_are_used_up() {
    const RANKS: u32 = 64;
    const VARIABLES: usize = 60;
    // The smallest buffer, full.
    const BYTES: u64 = 64 << 10;
    let play = Play {
        memory: 512 << 20,
        ..Play::of(1, Mask::default())
    };
    let body = |unit: &Unit, _: u32| {
        let fabric = unit.join()?;
        let stage = stage(&fabric, Settings::default())?;
        let open = |rank| stage.write("field").as_rank("solver", rank, RANKS).open();
        let ranks = (0..RANKS)
            .map(open)
            .collect::<samite_stage::Result<Vec<_>>>();
        let own = Array1::<u8>::zeros(BYTES as usize);
        let mut refused = None;
        for (rank, field) in (0_u64..).zip(&mut ranks?) {
            let mut step = field.step()?;
            let mut put = |variable| {
                let name = format!("u{variable}");
                let shape = [u64::from(RANKS) * BYTES];
                step.put(&name, shape, [rank * BYTES], own.view())
            };
            let put = (0..VARIABLES).try_for_each(&mut put);
            if let Err(error) = put.and_then(|()| step.commit()) {
                refused = Some((rank, error));
                break;
            }
        }
        match &refused {
            Some((rank, error @ Error::Fault(Fault::TooManyBuffers { buffers, most, .. }))) => {
                same!(*buffers, most + 1);
                same!(*rank, most / VARIABLES as u64);
                let said = error.to_string();
                let is_so = said.contains(&format!("{most} segments"));
                check!(is_so && !said.contains("memory"), "{said}");
            }
            other => check!(false, "{other:?}"),
        }
        Ok(())
    };
    let units = play.units().budget(1 << 30);
    let name = full_name(module_path!(), "numbers_of_segments_are_used_up");
    play.run_units(units, &name, body, |_| ());
}

/// 256 KiB.
const SHAPE: [u64; 2] = [128, 256];
const STEPS: u64 = 12;

fn write_all(fabric: &Fabric, settings: Settings) -> Outcome {
    let stage = stage(fabric, settings)?;
    let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
    for number in 0..STEPS {
        let mut step = field.step()?;
        let whole = rows(number, 0..SHAPE[0], SHAPE[1]);
        step.put("u", SHAPE, [0_u64, 0], whole.view())?;
        step.commit()?;
    }
    Ok(field.close()?)
}

fn read_all(fabric: &Fabric, settings: Settings) -> Outcome {
    let stage = stage(fabric, settings)?;
    let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
    pause("open");
    for number in 0..STEPS {
        let step = next(&mut reader)?;
        same!(step.number(), number);
        let all: Array2<f64> = step.get("u", ..)?;
        check!(is_right(number, (0, 0), all.view()), "step {number}");
    }
    check!(reader.next_step()?.is_none());
    Ok(())
}

/// Twelve steps through memory for less than three: the writer waits, and no step is lost.
fn through_little_memory(name: &str, method: Method, policy: Policy, disk: u64) {
    let play = Play {
        servers: if method == Method::Server { 2 } else { 0 },
        memory: if method == Method::Server {
            400 << 10
        } else {
            700 << 10
        },
        disk,
        ..Play::of(2, Mask::default())
    };
    let settings = || Settings {
        policy,
        steps: Some(STEPS),
        ..Settings::of(method)
    };
    let body = |fabric: &Fabric, me: u32| match me {
        0 => write_all(fabric, settings()),
        _ => read_all(fabric, settings()),
    };
    play.run(&full_name(module_path!(), name), body, |cluster| {
        // The writer has come as far as memory allows when the reader begins.
        cluster.wait_point(play.actor(1), "open");
        cluster.wait_asleep(play.actor(0));
        cluster.release(play.actor(1));
    });
}

#[test]
fn a_writer_waits_for_memory() {
    let name = "a_writer_waits_for_memory";
    through_little_memory(name, Method::Stream, Policy::Block, 0);
}

#[test]
fn a_writer_waits_for_memory_of_servers() {
    let name = "a_writer_waits_for_memory_of_servers";
    through_little_memory(name, Method::Server, Policy::Block, 0);
}

/// A server has less memory than its part of a step: it is refused with the name of the stream and
/// what there is.
#[test]
fn more_than_servers_have() {
    let play = Play {
        servers: 2,
        memory: 64 << 10,
        ..Play::of(1, Mask::default())
    };
    let body = |fabric: &Fabric, _: u32| {
        let stage = stage(fabric, Settings::of(Method::Server))?;
        let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
        let mut step = field.step()?;
        let whole = rows(0, 0..SHAPE[0], SHAPE[1]);
        let put = step.put("u", SHAPE, [0_u64, 0], whole.view());
        let refused = put.and_then(|()| step.commit());
        match refused {
            Err(Error::Fault(Fault::TooLarge { stream, limit, .. })) => {
                same!((stream.as_str(), limit), ("field", 64 << 10));
            }
            other => check!(false, "{other:?}"),
        }
        Ok(())
    };
    play.run(
        &full_name(module_path!(), "more_than_servers_have"),
        body,
        |_| (),
    );
}
