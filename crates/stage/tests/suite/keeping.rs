//! Writers that compute a step from the one that they committed last, in place.

#![allow(
    clippy::result_large_err,
    reason = "errors name boxes; they are rare, and never on the way of a byte"
)]

use crate::staged::{Play, is_right, next, rows, stage, value};
use ndarray::{Array2, ArrayViewD, Ix2};
use samite_fabric::{Fabric, Mask};
use samite_stage::{Error, Method, Settings, StepWriter, Writer};
use samite_testkit::{MESSAGES_ONLY, Outcome, check, of_first_node, pause, point, same};
use std::path::PathBuf;

const SHAPE: [u64; 2] = [64, 100];

fn folder(domain: &str) -> PathBuf {
    std::env::temp_dir().join(format!("samite-{domain}"))
}

/// One step may be unread: who reads slowly holds the writer up at every step.
fn settings(fabric: &Fabric, method: Method) -> Settings {
    Settings {
        steps: Some(1),
        folder: folder(of_first_node(fabric.domain().unwrap_or_default())),
        ..Settings::of(method)
    }
}

/// The step whose values a variable has: each variable has others.
fn of(name: &str, step: u64) -> u64 {
    step + 1000 * u64::from(name.as_bytes()[0])
}

fn holds(step: u64, from: u64, array: ArrayViewD<'_, f64>) -> Outcome {
    let array = array.into_dimensionality::<Ix2>();
    check!(
        array.is_ok_and(|array| is_right(step, (from, 0), array)),
        "not the values of step {step}"
    );
    Ok(())
}

/// Rows `from..to` of `u` and of `v`, each cell out of the same cell of the last step; and what
/// stays between the two.
fn compute(step: &mut StepWriter<'_>, (from, to): (u64, u64)) -> Outcome {
    let number = step.number();
    let block = [from..to, 0..SHAPE[1]];
    step.put(
        "put",
        SHAPE,
        [from, 0],
        rows(of("put", number), from..to, SHAPE[1]).view(),
    )?;
    for name in ["u", "v"] {
        let extent = [to - from, SHAPE[1]];
        let (last, mut new) = step.alloc_with_last::<f64>(name, SHAPE, [from, 0], extent)?;
        same!(last.map(|last| last.number()), number.checked_sub(1));
        let Some(last) = last else {
            new.assign(&rows(of(name, number), from..to, SHAPE[1]).into_dyn());
            continue;
        };
        let old = last.view::<f64>(name, block.clone())?;
        check!(old.is_some(), "{name} was allocated");
        let Some(old) = old else { continue };
        holds(of(name, number - 1), from, old.view())?;
        // From one step to the next every value grows by the same.
        new.assign(&old);
        new += value(1, 0, 0);
        // Nothing of the old one has changed, wherever the new one was written.
        holds(of(name, number - 1), from, old)?;
        let other = last.view::<f64>("v", [from + 1..to, 3..7])?;
        let other = other.and_then(|other| other.into_dimensionality::<Ix2>().ok());
        check!(other.is_some_and(|other| is_right(of("v", number - 1), (from + 1, 3), other)));
        let whole = last.view::<f64>("u", ..)?;
        same!(whole.is_some(), to - from == SHAPE[0]);
        check!(matches!(
            last.view::<i64>("u", ..),
            Err(Error::Clash { .. })
        ));
        check!(matches!(
            last.view::<f64>("put", ..),
            Err(Error::NotAllocated { .. })
        ));
        check!(matches!(
            last.view::<f64>("u", [0_u64..65, 0..1]),
            Err(Error::OutsideArray { .. })
        ));
    }
    Ok(())
}

fn write(field: &mut Writer, rows: (u64, u64)) -> Outcome {
    let mut step = field.step()?;
    compute(&mut step, rows)?;
    step.commit_and_keep()?;
    Ok(())
}

fn read(fabric: &Fabric, method: Method, steps: u64) -> Outcome {
    let stage = stage(fabric, settings(fabric, method))?;
    let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
    point("open");
    for number in 0..steps {
        let step = next(&mut reader)?;
        same!(step.number(), number);
        for name in ["u", "v", "put"] {
            let all: Array2<f64> = step.get(name, ..)?;
            check!(
                is_right(of(name, number), (0, 0), all.view()),
                "{name} of {number}"
            );
        }
    }
    check!(reader.next_step()?.is_none());
    Ok(())
}

fn with_method(name: &str, method: Method, mask: Mask) {
    let play = Play {
        servers: if method == Method::Server { 2 } else { 0 },
        ..Play::of(3, mask)
    };
    let body = |fabric: &Fabric, me: u32| {
        if me == 2 {
            return read(fabric, method, 9);
        }
        let stage = stage(fabric, settings(fabric, method))?;
        let mut field = stage.write("field").as_rank("solver", me, 2).open()?;
        let own = [(0, 40), (40, 64)][me as usize];
        for number in 0..8 {
            if number == 3 {
                // Given up, and begun again: the last one is still there.
                compute(&mut field.step()?, own)?;
            }
            write(&mut field, own)?;
        }
        let mut step = field.step()?;
        compute(&mut step, own)?;
        step.commit()?;
        Ok(field.close()?)
    };
    play.run(name, body, |cluster| {
        cluster.all_end();
        let _ = std::fs::remove_dir_all(folder(cluster.domain()));
    });
}

#[test]
fn from_buffers_that_are_mapped() {
    with_method(
        "keeping::from_buffers_that_are_mapped",
        Method::Stream,
        Mask::default(),
    );
}

#[test]
fn by_messages() {
    with_method("keeping::by_messages", Method::Stream, MESSAGES_ONLY);
}

#[test]
fn beside_servers() {
    with_method("keeping::beside_servers", Method::Server, Mask::default());
}

#[test]
fn into_files() {
    with_method("keeping::into_files", Method::File, Mask::default());
}

/// What is kept, what is read and what is written are two buffers, used by turns: who writes has
/// left the old one when its memory is used again.
#[test]
fn memory_of_two_steps_is_enough() {
    const BUFFER: u64 = 192 << 10;
    let play = Play {
        memory: 2 * BUFFER,
        ..Play::of(2, Mask::default())
    };
    let body = |fabric: &Fabric, me: u32| {
        if me == 1 {
            return read(fabric, Method::Stream, 30);
        }
        let stage = stage(fabric, settings(fabric, Method::Stream))?;
        let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
        for _ in 0..30 {
            write(&mut field, (0, 64))?;
        }
        Ok(field.close()?)
    };
    play.run("keeping::memory_of_two_steps_is_enough", body, |_| ());
}

/// A writer is killed while it reads step 2 and writes step 3. The one that goes on finds nothing
/// to read in place, and all steps come.
#[test]
fn a_writer_is_killed_while_it_keeps_a_step() {
    let play = Play::of(3, Mask::default());
    let body = |fabric: &Fabric, me: u32| {
        if me == 2 {
            return read(fabric, Method::Stream, 7);
        }
        let stage = stage(fabric, settings(fabric, Method::Stream))?;
        if me == 1 {
            pause("born");
        }
        let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
        if me == 0 {
            (0..3).try_for_each(|_| write(&mut field, (0, 64)))?;
            let mut step = field.step()?;
            compute(&mut step, (0, 64))?;
            pause("keeping");
            return Ok(());
        }
        same!(field.next_step(), 3);
        let mut step = field.step()?;
        check!(step.last().is_none(), "another process kept it");
        for name in ["u", "v", "put"] {
            let whole = rows(of(name, 3), 0..64, SHAPE[1]);
            step.put(name, SHAPE, [0_u64, 0], whole.view())?;
        }
        step.commit()?;
        let mut step = field.step()?;
        check!(step.last().is_none(), "it was not to be kept");
        let whole = |name| rows(of(name, 4), 0..64, SHAPE[1]).into_dyn();
        step.put("put", SHAPE, [0_u64, 0], whole("put").view())?;
        for name in ["u", "v"] {
            let mut new = step.alloc::<f64>(name, SHAPE, [0_u64, 0], SHAPE)?;
            new.assign(&whole(name));
        }
        step.commit_and_keep()?;
        write(&mut field, (0, 64))?;
        write(&mut field, (0, 64))?;
        Ok(field.close()?)
    };
    play.run(
        "keeping::a_writer_is_killed_while_it_keeps_a_step",
        body,
        |cluster| {
            let (first, second) = (play.actor(0), play.actor(1));
            cluster.wait_point(play.actor(2), "open");
            cluster.wait_point(second, "born");
            cluster.wait_point(first, "keeping");
            cluster.kill(first);
            cluster.wait_gone(first);
            cluster.release(second);
        },
    );
}
