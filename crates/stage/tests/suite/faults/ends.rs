//! How streams end: well by `close` alone, as failed by everything else.

use crate::faults::waited::{Waits, compute_until};
use crate::faults::{SHAPE, check_step, write};
use crate::staged::{Play, next, rows, stage};
use samite_fabric::{Fabric, Mask};
use samite_stage::protocol::{EndOfStream, Failure, Fault};
use samite_stage::{Error, Method, Reader, Result, Settings, Stage, Writer};
use samite_testkit::{Cluster, Outcome, check, full_name, of_first_node, pause, point, same};
use std::path::PathBuf;
use std::time::Duration;

fn folder(domain: &str) -> PathBuf {
    std::env::temp_dir().join(format!("samite-{domain}"))
}

fn settings(fabric: &Fabric, method: Method) -> Settings {
    Settings {
        lease: Duration::from_secs(2),
        steps: Some(8),
        folder: folder(of_first_node(fabric.domain().unwrap_or_default())),
        ..Settings::of(method)
    }
}

fn is_failure(error: &Error, (of, expected): (u32, Failure)) -> bool {
    match error {
        Error::Fault(Fault::WriterFailed {
            stream,
            program,
            rank,
            how,
        }) => {
            let is_known = program.as_ref().is_none_or(|program| program == "solver");
            is_known && (stream.as_str(), *rank, *how) == ("field", of, expected)
        }
        _ => false,
    }
}

/// There is no next step: a rank has failed, and the reader knows how.
fn fails(reader: &mut Reader, (rank, how): (u32, Failure)) -> Outcome {
    let end = reader.next_step().map(|step| step.is_some());
    check!(
        end.as_ref()
            .is_err_and(|error| is_failure(error, (rank, how))),
        "{end:?}"
    );
    same!(reader.end(), Some(EndOfStream::WriterFailed { rank, how }));
    Ok(())
}

/// Nothing is left when all have ended.
fn all_end(cluster: &mut Cluster) {
    cluster.all_end();
    let _ = std::fs::remove_dir_all(folder(cluster.domain()));
}

/// Writes some steps, and comes to an error that nobody mends.
fn write_some(stage: &Stage, from: u64, steps: u64) -> Result<()> {
    let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
    assert_eq!(field.next_step(), from);
    for _ in 0..steps {
        write(&mut field)?;
    }
    let half = field.step()?;
    Err(Error::Spoiled {
        step: half.number(),
    })
}

/// A writer that leaves by an error or a panic has not closed its stream: it may go on, and else
/// its readers hear of it after the last step that it has committed.
fn a_dropped_writer(name: &str, method: Method) {
    let play = Play {
        servers: if method == Method::Server { 2 } else { 0 },
        ..Play::of(2, Mask::default())
    };
    let body = |fabric: &Fabric, me: u32| {
        let stage = stage(fabric, settings(fabric, method))?;
        if me == 0 {
            check!(write_some(&stage, 0, 3).is_err());
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let failed = write_some(&stage, 3, 2);
                panic!("as it is wanted: {failed:?}");
            }));
            check!(panicked.is_err());
            // The process lives on: it is not for its death that readers are told.
            pause("dropped");
            return Ok(());
        }
        let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
        let mut steps = 0;
        let mut ends = 0;
        for step in &mut reader {
            match step {
                Ok(step) => {
                    same!((step.number(), ends), (steps, 0));
                    check_step(&step)?;
                    steps += 1;
                }
                Err(error) => {
                    check!(is_failure(&error, (0, Failure::GaveUp)), "{error}");
                    ends += 1;
                }
            }
        }
        same!((steps, ends), (5, 1));
        fails(&mut reader, (0, Failure::GaveUp))?;
        point("told");
        Ok(())
    };
    play.run(name, body, |cluster| {
        cluster.wait_point(play.actor(0), "dropped");
        cluster.wait_point(play.actor(1), "told");
        cluster.release(play.actor(0));
        all_end(cluster);
    });
}

#[test]
fn a_dropped_writer_is_no_end_of_a_stream() {
    let name = full_name(module_path!(), "a_dropped_writer_is_no_end_of_a_stream");
    a_dropped_writer(&name, Method::Stream);
}

#[test]
fn a_dropped_writer_is_no_end_beside_servers() {
    let name = full_name(module_path!(), "a_dropped_writer_is_no_end_beside_servers");
    a_dropped_writer(&name, Method::Server);
}

#[test]
fn a_dropped_writer_is_no_end_of_files() {
    let name = full_name(module_path!(), "a_dropped_writer_is_no_end_of_files");
    a_dropped_writer(&name, Method::File);
}

/// As a writer that is killed: with files, too, readers do not wait for ever, and do not take it
/// for the end.
fn a_killed_writer(name: &str, method: Method, how: Failure) {
    let play = Play::of(2, Mask::default());
    let body = |fabric: &Fabric, me: u32| {
        let stage = stage(fabric, settings(fabric, method))?;
        if me == 0 {
            let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
            write(&mut field)?;
            write(&mut field)?;
            pause("two steps");
            return Ok(());
        }
        let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
        for number in 0..2 {
            let step = next(&mut reader)?;
            same!(step.number(), number);
            check_step(&step)?;
        }
        pause("read");
        fails(&mut reader, (0, how))
    };
    play.run(name, body, |cluster| {
        let (writer, reader) = (play.actor(0), play.actor(1));
        cluster.wait_point(writer, "two steps");
        cluster.wait_point(reader, "read");
        cluster.kill(writer);
        cluster.wait_gone(writer);
        cluster.release(reader);
        all_end(cluster);
    });
}

#[test]
fn a_killed_writer_is_no_end_of_a_stream() {
    let name = full_name(module_path!(), "a_killed_writer_is_no_end_of_a_stream");
    a_killed_writer(&name, Method::Stream, Failure::Died);
}

#[test]
fn a_killed_writer_is_no_end_of_files() {
    let name = full_name(module_path!(), "a_killed_writer_is_no_end_of_files");
    a_killed_writer(&name, Method::File, Failure::GaveUp);
}

/// Steps that are asked for by number are not those that come next.
fn a_step_beyond_the_end(name: &str, method: Method) {
    let play = Play::of(2, Mask::default());
    let body = |fabric: &Fabric, me: u32| -> Outcome {
        let stage = stage(fabric, settings(fabric, method))?;
        if me == 0 {
            let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
            for _ in 0..3 {
                write(&mut field)?;
            }
            return Ok(field.close()?);
        }
        let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
        check!(reader.at(7)?.is_none());
        same!(reader.end(), Some(EndOfStream::Closed));
        let steps: Result<Vec<u64>> = (&mut reader)
            .map(|step| step.map(|step| step.number()))
            .collect();
        same!(steps?, [0, 1, 2]);
        check!(reader.next_step()?.is_none());
        Ok(())
    };
    play.run(name, body, all_end);
}

#[test]
fn a_step_beyond_the_end_passes_none_over() {
    let name = full_name(module_path!(), "a_step_beyond_the_end_passes_none_over");
    a_step_beyond_the_end(&name, Method::Stream);
}

#[test]
fn a_step_beyond_the_end_of_files_passes_none_over() {
    let name = full_name(
        module_path!(),
        "a_step_beyond_the_end_of_files_passes_none_over",
    );
    a_step_beyond_the_end(&name, Method::File);
}

/// How long a question may wait at the coordinator in tests of who computes: they wait for many
/// such times.
const DEADLINE: Duration = Duration::from_millis(50);

/// Computes until the coordinator has told somebody three times that its wait goes on: beyond its
/// deadline each time.
fn compute_while(stage: &Stage, who: &str) -> Outcome {
    let (mut times, mut last) = (0, 0);
    while times < 3 {
        let figures = stage.overview(Duration::from_secs(20))?.figures;
        let mut waits = figures.streams.iter().flat_map(|stream| &stream.waits);
        if let Some(wait) = waits.rfind(|wait| wait.who == who) {
            // It has asked again.
            times += u32::from(wait.ms < last);
            last = wait.ms;
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// A writer, or a reader, that computes for longer than any deadline keeps the others waiting, and
/// nothing ends.
#[test]
fn who_computes_is_not_dead() {
    let play = Play::of(2, Mask::default());
    let body = |fabric: &Fabric, me: u32| -> Outcome {
        let settings = Settings {
            steps: Some(1),
            ..settings(fabric, Method::Stream)
        };
        let stage = stage(fabric, settings)?;
        if me == 0 {
            let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
            pause("open");
            for number in 0..4 {
                if number < 2 {
                    compute_while(&stage, "analysis.0")?;
                }
                // It waits at the limit as long as the reader computes.
                fabric.set_deadline(DEADLINE);
                same!(write(&mut field)?, number);
                fabric.set_deadline(Duration::from_secs(20));
            }
            return Ok(field.close()?);
        }
        let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
        let hasty = stage.read("field").as_rank("hasty", 0, 1);
        let mut hasty = hasty.timeout(DEADLINE).open()?;
        pause("open");
        let late = hasty.next_step().map(|step| step.is_some());
        let is_late = matches!(&late, Err(Error::Fault(Fault::NoStep { whom, .. }))
            if whom == "solver.0 to commit step 0");
        check!(is_late, "{late:?}");
        drop(hasty);
        for number in 0..4 {
            fabric.set_deadline(DEADLINE);
            let step = next(&mut reader)?;
            fabric.set_deadline(Duration::from_secs(20));
            same!(step.number(), number);
            check_step(&step)?;
            // The writer has one more step to begin.
            if number == 2 {
                compute_while(&stage, "solver.0")?;
            }
        }
        check!(reader.next_step()?.is_none());
        Ok(())
    };
    let name = full_name(module_path!(), "who_computes_is_not_dead");
    play.run(&name, body, |cluster| {
        let (writer, reader) = (play.actor(0), play.actor(1));
        cluster.wait_point(writer, "open");
        cluster.wait_point(reader, "open");
        cluster.release(reader);
        cluster.release(writer);
        cluster.all_end();
    });
}

/// Steps that readers have not taken yet fill the memory, and nothing else does: their writer waits
/// for it as it waits at a limit.
#[test]
fn who_computes_and_has_the_memory_is_not_dead() {
    // Of two steps of 32 KiB, each in a buffer of 64 KiB.
    let play = Play {
        memory: 160 << 10,
        ..Play::of(2, Mask::default())
    };
    let body = |fabric: &Fabric, me: u32| -> Outcome {
        let stage = stage(fabric, settings(fabric, Method::Stream))?;
        if me == 0 {
            let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
            pause("open");
            fabric.set_deadline(DEADLINE);
            for number in 0..4 {
                same!(write(&mut field)?, number);
            }
            fabric.set_deadline(Duration::from_secs(20));
            return Ok(field.close()?);
        }
        let reader = stage.read("field").as_rank("analysis", 0, 1);
        let mut reader = reader.open()?;
        pause("open");
        for number in 0..4 {
            let step = next(&mut reader)?;
            same!(step.number(), number);
            check_step(&step)?;
            if number < 2 {
                compute_while(&stage, "solver.0")?;
            }
        }
        check!(reader.next_step()?.is_none());
        Ok(())
    };
    let name = full_name(
        module_path!(),
        "who_computes_and_has_the_memory_is_not_dead",
    );
    play.run(&name, body, |cluster| {
        let (writer, reader) = (play.actor(0), play.actor(1));
        cluster.wait_point(writer, "open");
        cluster.wait_point(reader, "open");
        cluster.release(reader);
        cluster.release(writer);
        cluster.all_end();
    });
}

/// With files, too: the writer goes on when its reader has waited for longer than its deadline,
/// whatever that takes.
#[test]
fn who_computes_and_writes_files_is_not_dead() {
    let play = Play::of(2, Mask::default());
    let body = |fabric: &Fabric, me: u32| -> Outcome {
        let stage = stage(fabric, settings(fabric, Method::File))?;
        if me == 0 {
            let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
            pause("computes");
            compute_until(fabric, 2, 4 * DEADLINE)?;
            same!(write(&mut field)?, 0);
            return Ok(field.close()?);
        }
        let waits = Waits::of(fabric);
        let reader = stage.read("field").as_rank("analysis", 0, 1);
        let mut hasty = reader.timeout(DEADLINE).open()?;
        let late = hasty.next_step().map(|step| step.is_some());
        check!(
            matches!(late, Err(Error::Fault(Fault::NoStep { .. }))),
            "{late:?}"
        );
        let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
        point("waits");
        fabric.set_deadline(DEADLINE);
        let step = waits.during(|| next(&mut reader));
        fabric.set_deadline(Duration::from_secs(20));
        let step = step?;
        same!(step.number(), 0);
        check_step(&step)?;
        check!(reader.next_step()?.is_none());
        Ok(())
    };
    let name = full_name(module_path!(), "who_computes_and_writes_files_is_not_dead");
    play.run(&name, body, |cluster| {
        let (writer, reader) = (play.actor(0), play.actor(1));
        cluster.wait_point(writer, "computes");
        cluster.wait_point(reader, "waits");
        cluster.release(writer);
        all_end(cluster);
    });
}

/// A step of two ranks: the rows of one of them.
fn write_half(field: &mut Writer, rank: u64) -> Result<u64> {
    let [height, width] = SHAPE;
    let mut step = field.step()?;
    let number = step.number();
    let (first, last) = (rank * height / 2, (rank + 1) * height / 2);
    let half = rows(number, first..last, width);
    step.put("u", SHAPE, [first, 0], half.view())?;
    step.commit()?;
    Ok(number)
}

/// Two ranks write 6 steps and 5, and close: nobody takes what is there for complete.
fn ranks_of_unequal_steps(name: &str, method: Method, how: Failure) {
    let play = Play::of(3, Mask::default());
    let body = |fabric: &Fabric, me: u32| -> Outcome {
        let stage = stage(fabric, settings(fabric, method))?;
        if me < 2 {
            let mut field = stage.write("field").as_rank("solver", me, 2).open()?;
            for number in 0..6 - u64::from(me) {
                same!(write_half(&mut field, me.into())?, number);
            }
            pause("written");
            let closed = field.close();
            let is_told = matches!(
                &closed,
                Err(Error::Fault(Fault::ClosesEarly {
                    rank: 1,
                    step: 5,
                    other: 0,
                    ..
                }))
            );
            // With files no rank knows what another one has written.
            check!(
                is_told == (me == 1 && method == Method::Stream),
                "{closed:?}"
            );
            check!(is_told || closed.is_ok(), "{closed:?}");
            return Ok(());
        }
        let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
        for number in 0..5 {
            let step = next(&mut reader)?;
            same!(step.number(), number);
            check_step(&step)?;
        }
        point("read");
        fails(&mut reader, (1, how))
    };
    play.run(name, body, |cluster| {
        let ranks = [play.actor(0), play.actor(1)];
        for rank in ranks {
            cluster.wait_point(rank, "written");
        }
        cluster.wait_point(play.actor(2), "read");
        for rank in ranks {
            cluster.release(rank);
        }
        all_end(cluster);
    });
}

#[test]
fn ranks_of_unequal_steps_do_not_end_a_stream() {
    let name = full_name(module_path!(), "ranks_of_unequal_steps_do_not_end_a_stream");
    ranks_of_unequal_steps(&name, Method::Stream, Failure::GaveUp);
}

#[test]
fn ranks_of_unequal_steps_do_not_end_files() {
    let name = full_name(module_path!(), "ranks_of_unequal_steps_do_not_end_files");
    ranks_of_unequal_steps(&name, Method::File, Failure::ClosedEarly);
}
