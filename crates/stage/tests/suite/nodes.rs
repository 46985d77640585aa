//! Streams between simulated nodes: units of one node map each other's memory, nodes reach each
//! other by RMA with and without bypass, or by messages alone, and frames overtake each other. Unit
//! 0 coordinates and keeps blocks, as an agent does; the suites of processes run as if on several
//! nodes with `SAMITE_TEST_NODES`.

#![allow(
    clippy::result_large_err,
    reason = "errors name boxes; they are rare, and never on the way of a byte"
)]

use crate::staged::{MEMORY, is_right, next, rows, stage};
use ndarray::Array2;
use samite_fabric::transport::sim::Scenario;
use samite_fabric::{Fabric, Match, PeerId};
use samite_stage::method::Method;
use samite_stage::protocol::Fault;
use samite_stage::service::{Capacity, Staging};
use samite_stage::{Error, News, Settings};
use samite_testkit::{Outcome, check, full_name, same, simulate_as, three_nodes, two_nodes};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Ranks of the writer, and of the reader.
const WRITERS: u32 = 3;
const READERS: u32 = 2;
const ROWS: u64 = 120;
/// More than one frame of each rank.
const COLUMNS: u64 = 70;
const STEPS: u64 = 4;

/// Tags of messages to unit 0.
const DONE: u64 = 7;

/// A rank that is away is given up before anybody's deadline is over.
fn settings(method: Method) -> Settings {
    let away = Duration::from_secs(1);
    Settings {
        lease: away,
        linger: away,
        ..Settings::of(method)
    }
}

/// Serves until all of these have said that they are done.
fn serve(fabric: &Fabric, others: &[PeerId]) -> Outcome {
    serve_by(
        &mut Staging::new(fabric, Capacity::of_memory(MEMORY)),
        others,
    )
}

fn serve_by(staging: &mut Staging, others: &[PeerId]) -> Outcome {
    let mut left: Vec<PeerId> = others.to_vec();
    let mut received = Ok(());
    staging.run(|fabric| {
        while received.is_ok() && fabric.probe(Match::any(DONE)).is_some() {
            received = fabric.recv(Match::any(DONE), &mut []).map(|status| {
                left.retain(|peer| *peer != status.from);
            });
        }
        received.is_ok() && !left.is_empty()
    })?;
    check!(
        staging.figures().iter().all(|stream| stream.end.is_some()),
        "{:?}",
        staging.figures()
    );
    Ok(received?)
}

/// Each rank writes a third of the rows, and each reader takes boxes across all of them.
fn streamed(fabric: &Fabric, me: u32, method: Method) -> Outcome {
    let stage = stage(fabric, settings(method))?;
    if let Some(rank) = me.checked_sub(READERS) {
        let field = stage.write("field").as_rank("solver", rank, WRITERS);
        let mut field = field.open()?;
        let each = ROWS / u64::from(WRITERS);
        let first = each * u64::from(rank);
        for number in 0..STEPS {
            let mut step = field.step()?;
            same!(step.number(), number);
            let mine = rows(number, first..first + each, COLUMNS);
            step.put("u", [ROWS, COLUMNS], [first, 0], mine.view())?;
            step.commit()?;
        }
        return Ok(field.close()?);
    }
    let mut watch = stage.watch("field", "u").region([0..1, 0..1]).open()?;
    let reader = stage.read("field").as_rank("analysis", me, READERS);
    let mut reader = reader.open()?;
    for number in 0..STEPS {
        let step = next(&mut reader)?;
        same!((step.number(), step.writers()), (number, WRITERS));
        let all: Array2<f64> = step.get("u", ..)?;
        check!(is_right(number, (0, 0), all.view()), "step {number}");
        let part: Array2<f64> = step.get("u", [35_u64..85, 60..63])?;
        check!(is_right(number, (35, 60), part.view()), "step {number}");
    }
    check!(reader.next_step()?.is_none());
    for number in 0..STEPS {
        match watch.next(fabric.deadline())? {
            Some(News::Written(written)) => same!(written.step, number),
            other => check!(false, "{other:?}"),
        }
    }
    Ok(())
}

fn on(name: &str, scenario: impl Fn(u64, u32) -> Scenario, method: Method) {
    let name = full_name(module_path!(), name);
    let scenario = |seed| scenario(seed, 1 + READERS + WRITERS).with_host();
    simulate_as(scenario, &name, 0..4, |fabric: &Fabric, all: &[PeerId]| {
        let me = all.iter().position(|peer| *peer == fabric.me());
        match me.unwrap_or_default() {
            0 => serve(fabric, &all[1..]),
            me => {
                let ended = streamed(fabric, me as u32 - 1, method);
                fabric.send(all[0], DONE, &[])?;
                ended
            }
        }
    });
}

#[test]
fn a_stream_by_messages() {
    on("nodes::a_stream_by_messages", Scenario::new, Method::Stream);
}

#[test]
fn a_stream_on_two_nodes() {
    on("nodes::a_stream_on_two_nodes", two_nodes, Method::Stream);
}

#[test]
fn a_stream_on_three_nodes() {
    on(
        "nodes::a_stream_on_three_nodes",
        three_nodes,
        Method::Stream,
    );
}

#[test]
fn local_on_two_nodes() {
    on("nodes::local_on_two_nodes", two_nodes, Method::Local);
}

#[test]
fn local_on_three_nodes() {
    on("nodes::local_on_three_nodes", three_nodes, Method::Local);
}

/// The coordinator answers a question after the subscriber has given up. That is no answer to the
/// next question, which has a deadline of its own.
#[test]
fn a_late_answer_is_not_that_to_the_next_question() {
    const STOP: u64 = 8;
    const GO: u64 = 9;
    let name = full_name(
        module_path!(),
        "a_late_answer_is_not_that_to_the_next_question",
    );
    let scenario = |seed| Scenario::new(seed, 3).with_host();
    simulate_as(scenario, &name, 0..4, |fabric: &Fabric, all: &[PeerId]| {
        let (server, watcher, writer) = (all[0], all[1], all[2]);
        if fabric.me() == server {
            let mut staging = Staging::new(fabric, Capacity::of_memory(MEMORY));
            staging.run(|fabric| fabric.probe(Match::any(STOP)).is_none())?;
            fabric.send(watcher, STOP, &[])?;
            // It hears nothing until the watcher has given up.
            fabric.recv(Match::any(GO), &mut [])?;
            return serve_by(&mut staging, &all[1..]);
        }
        let stage = stage(fabric, settings(Method::Stream))?;
        if fabric.me() == writer {
            let field = stage.write("field").as_rank("solver", 0, 1);
            let mut field = field.discard_unread().open()?;
            fabric.recv(Match::any(GO), &mut [])?;
            // The first question is answered before there is anything.
            let second = Duration::from_secs(1);
            let slept = fabric.wait_stepping_within(second, "", &[], || None::<()>, || false);
            check!(slept.is_err());
            let mut step = field.step()?;
            step.put(
                "u",
                [ROWS, COLUMNS],
                [0, 0],
                rows(0, 0..ROWS, COLUMNS).view(),
            )?;
            step.commit()?;
            field.close()?;
        } else {
            let mut watch = stage.watch("field", "u").open()?;
            fabric.send(server, STOP, &[])?;
            fabric.recv(Match::any(STOP), &mut [])?;
            let given_up = watch.next(Duration::from_millis(10));
            let is_late = matches!(
                &given_up,
                Err(Error::Fabric(samite_fabric::Error::Timeout { .. }))
            );
            check!(is_late, "{given_up:?}");
            fabric.send(writer, GO, &[])?;
            fabric.send(server, GO, &[])?;
            match watch.next(Duration::from_secs(5))? {
                Some(News::Written(written)) => same!(written.step, 0),
                other => check!(false, "{other:?}"),
            }
        }
        Ok(fabric.send(server, DONE, &[])?)
    });
}

/// Readers that were told of the death, in all seeds.
static FAILED: AtomicU32 = AtomicU32::new(0);

/// A rank of the writer is killed at some time. Readers get all steps, or whole ones up to an error
/// that names it.
fn ends_with_its_writer(fabric: &Fabric, me: u32) -> Outcome {
    if me >= READERS {
        // What it says of the death of another rank, or of its own, is not looked at.
        drop(streamed(fabric, me, Method::Stream));
        return Ok(());
    }
    let stage = stage(fabric, settings(Method::Stream))?;
    let mut reader = stage
        .read("field")
        .as_rank("analysis", me, READERS)
        .open()?;
    for number in 0.. {
        match reader.next_step() {
            Ok(Some(step)) => {
                same!(step.number(), number);
                let all: Array2<f64> = step.get("u", ..)?;
                check!(is_right(number, (0, 0), all.view()), "step {number}");
            }
            Ok(None) => {
                same!(number, STEPS);
                break;
            }
            Err(Error::Fault(Fault::WriterFailed { .. })) => {
                // ORDERING: the simulation joins its threads before it is read.
                FAILED.fetch_add(1, Ordering::Relaxed);
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[test]
fn a_writer_on_another_node_dies() {
    let name = full_name(module_path!(), "a_writer_on_another_node_dies");
    let dies = READERS + WRITERS;
    let scenario = |seed| {
        let at = Duration::from_micros(200 * (seed + 1));
        two_nodes(seed, 1 + dies).with_host().kill(dies, at)
    };
    simulate_as(scenario, &name, 0..12, |fabric: &Fabric, all: &[PeerId]| {
        let me = all.iter().position(|peer| *peer == fabric.me());
        match me.unwrap_or_default() as u32 {
            0 => serve(fabric, &all[1..dies as usize]),
            me => {
                let ended = ends_with_its_writer(fabric, me - 1);
                let told = fabric.send(all[0], DONE, &[]);
                if me != dies {
                    told?;
                }
                ended
            }
        }
    });
    assert_ne!(
        FAILED.load(Ordering::Relaxed),
        0,
        "no seed ends in the middle"
    );
}
