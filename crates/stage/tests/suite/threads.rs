//! One stage among threads: a writer and a reader at the same time, and a writer that moves between
//! steps.

#![allow(
    clippy::result_large_err,
    reason = "errors name boxes; they are rare, and never on the way of a byte"
)]

use crate::staged::{Play, is_right, rows, stage};
use samite_fabric::{Config, Fabric, Identity, Mask};
use samite_stage::file::{Archive, FileError, StepFile};
use samite_stage::method::graph::{Edge, GraphError, Input, Tile};
use samite_stage::protocol::Fault;
use samite_stage::service::{BlockStoreService, Capacity, CoordinatorService, Staging, Usage};
use samite_stage::{
    Configuration, Error, LastStep, News, Overview, Reader, Reading, Region, Result, Settings,
    Stage, StepReader, StepWriter, Variable, Watch, Watching, Writer, Writing,
};
use samite_testkit::{MESSAGES_ONLY, Outcome, same};
use std::thread::{scope, spawn, yield_now};
use std::time::{Duration, Instant};

const STEPS: u64 = 40;
const SHAPE: [u64; 2] = [64, 20];

/// All that a user gets of this crate can be sent to another thread, and be looked at by several.
#[test]
fn everything_may_be_used_from_any_thread() {
    fn any<T: Send + Sync>() {}
    any::<(Stage, Overview, Configuration, Settings, Error, Region)>();
    any::<(Writing<'_>, Writer, StepWriter<'_>, LastStep)>();
    any::<(Reading<'_>, Reader, StepReader, Variable)>();
    any::<(Watching, Watch, News)>();
    any::<(
        Staging,
        BlockStoreService,
        CoordinatorService,
        Capacity,
        Usage,
    )>();
    any::<(Archive, StepFile, FileError)>();
    any::<(Edge, GraphError, Input<'_>, Tile)>();
}

fn write(field: &mut Writer) -> Result<u64> {
    let mut step = field.step()?;
    let number = step.number();
    step.put("u", SHAPE, [0_u64, 0], rows(number, 0..64, 20).view())?;
    step.commit()?;
    Ok(number)
}

/// The steps that it took: all of the stream.
fn read(mut reader: Reader) -> Result<u64> {
    let mut taken = 0;
    while let Some(step) = reader.next_step()? {
        assert_eq!(step.number(), taken);
        let array = step.get("u", ..)?;
        assert!(is_right(taken, (0, 0), array.view()), "step {taken}");
        taken += 1;
    }
    Ok(taken)
}

/// A block whose memory did not come in time leaves no place in the queue behind, although its step
/// goes on: a smaller one of another stream does not wait behind it.
#[test]
fn a_block_that_is_given_up_delays_no_other_stream() -> Result<()> {
    // All that counts for a block store: it waits as long as anything is in use.
    const ALL: u64 = 1 << 48;
    let fabric = Fabric::alone(Identity::by_hand("alone"), Config::default())?;
    let stage = Stage::join(&fabric)?;
    let open = |stream, timeout| {
        let writing = stage.write(stream).discard_unread();
        writing.timeout(Duration::from_millis(timeout)).open()
    };
    // The timeout of the small one only ends a failure.
    let (mut held, mut large, mut small) = (
        open("held", 60_000)?,
        open("large", 1)?,
        open("small", 2000)?,
    );
    let mut held = held.step()?;
    held.alloc::<u8>("u", [9_u64], [0_u64], [9_u64])?;
    let others = || {
        let mut step = large.step()?;
        let given_up = step.alloc::<u8>("u", [ALL], [0_u64], [ALL]);
        assert!(
            matches!(given_up, Err(Error::Fault(Fault::NoMemory { .. }))),
            "{:?}",
            given_up.err()
        );
        let mut other = small.step()?;
        other.alloc::<u8>("u", [9_u64], [0_u64], [9_u64])?;
        other.commit()?;
        step.commit()
    };
    // A process with several threads may free what it has while one of them waits.
    scope(|threads| threads.spawn(others).join().expect("it ends"))?;
    held.commit()
}

/// One step waits at most, so that each side waits for the other all the time.
fn write_all(stage: &Stage, stream: &str) -> Result<()> {
    let field = stage.write(stream).as_rank("solver", 0, 1);
    let mut field = field.limits(1, 1 << 30).open()?;
    for _ in 0..STEPS {
        write(&mut field)?;
    }
    field.close()
}

/// Each stream has its writer and its reader in threads of their own, over one stage.
fn streams_among_threads(stage: &Stage, streams: &[&str]) -> Result<()> {
    scope(|threads| {
        let start = |stream: &&str| {
            let stream = stream.to_string();
            let name = stream.clone();
            let writer = threads.spawn(move || write_all(stage, &name));
            let reader = threads.spawn(move || {
                let reader = stage.read(&stream).as_rank("viewer", 0, 1);
                read(reader.open()?)
            });
            (writer, reader)
        };
        let started: Vec<_> = streams.iter().map(start).collect();
        for (writer, reader) in started {
            writer.join().expect("the writer panicked")?;
            assert_eq!(reader.join().expect("the reader panicked")?, STEPS);
        }
        Ok(())
    })
}

/// The process is its own coordinator, which is turned by whichever thread waits.
#[test]
fn threads_of_one_process_write_and_read() -> Result<()> {
    let identity = Identity::by_hand("alone");
    let fabric = Fabric::alone(identity, Config::default())?;
    let stage = Stage::join(&fabric)?;
    streams_among_threads(&stage, &["a", "b", "c"])
}

/// A thread that computes is waited for beyond the deadline of another one, which reads.
#[test]
fn a_thread_waits_for_another_thread_of_its_process() -> Result<()> {
    let fabric = Fabric::alone(Identity::by_hand("alone"), Config::default())?;
    let stage = Stage::join(&fabric)?;
    let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
    let deadline = Duration::from_millis(20);
    scope(|threads| {
        let reader = threads.spawn(|| {
            let reader = stage.read("field").as_rank("viewer", 0, 1);
            let mut reader = reader.open()?;
            fabric.set_deadline(deadline);
            let step = reader.next_step()?.expect("the stream goes on");
            Ok::<u64, Error>(step.number())
        });
        let begin = Instant::now();
        while begin.elapsed() < 10 * deadline && !reader.is_finished() {
            yield_now();
        }
        fabric.set_deadline(Duration::from_secs(20));
        assert_eq!(write(&mut field)?, 0);
        assert_eq!(reader.join().expect("the reader panicked")?, 0);
        field.close()
    })
}

fn threads_of_one_unit(name: &str, mask: Mask) {
    Play::of(1, mask).run(
        name,
        |fabric, _| {
            let stage = stage(fabric, Settings::default())?;
            Ok(streams_among_threads(&stage, &["a", "b"])?)
        },
        |_| {},
    );
}

#[test]
fn threads_of_one_unit_write_and_read() {
    threads_of_one_unit(
        "threads::threads_of_one_unit_write_and_read",
        Mask::default(),
    );
}

#[test]
fn threads_of_one_unit_write_and_read_by_messages() {
    let name = "threads::threads_of_one_unit_write_and_read_by_messages";
    threads_of_one_unit(name, MESSAGES_ONLY);
}

fn moved_writer(fabric: &Fabric) -> Outcome {
    let stage = stage(fabric, Settings::default())?;
    let field = stage.write("field").as_rank("solver", 0, 1);
    let mut field = field.discard_unread().retain(8).open()?;
    for number in 0..8 {
        let moved = spawn(move || write(&mut field).map(|written| (field, written)));
        let (back, written) = moved.join().expect("the thread panicked")?;
        same!(written, number);
        field = back;
    }
    // What it was opened by is not needed any more, and neither is the thread.
    drop(stage);
    Ok(spawn(move || field.close())
        .join()
        .expect("the thread panicked")?)
}

#[test]
fn a_writer_moves_to_another_thread_between_steps() {
    Play::of(1, Mask::default()).run(
        "threads::a_writer_moves_to_another_thread_between_steps",
        |fabric, _| moved_writer(fabric),
        |_| {},
    );
}
