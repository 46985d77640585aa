//! A coordinator that does not answer for a while.

use crate::faults::{SHAPE, check_step, write};
use crate::staged::{Play, next, rows, stage};
use ndarray::Array1;
use samite_fabric::{Fabric, Mask};
use samite_stage::{Error, Settings};
use samite_testkit::{Outcome, Who, check, full_name, pause, same};
use std::time::Duration;

/// The coordinator takes no time to decide on a question that its reader has given up: the answer
/// is what the reader gets when it asks again, and nothing stays held.
#[test]
fn a_frozen_coordinator_passes_no_step_over() {
    const STEPS: u64 = 6;
    let play = Play::of(2, Mask::default());
    let body = |fabric: &Fabric, me: u32| {
        let stage = stage(fabric, Settings::default())?;
        if me == 0 {
            let options = stage.write("field").as_rank("solver", 0, 1);
            let mut field = options.limits(1, u64::MAX).open()?;
            while field.next_step() < STEPS {
                write(&mut field)?;
            }
            return Ok(field.close()?);
        }
        let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
        for _ in 0..2 {
            check_step(&next(&mut reader)?)?;
        }
        fabric.set_deadline(Duration::from_millis(100));
        pause("two steps");
        let frozen = reader.next_step().map(|step| step.is_some());
        let is_late = matches!(
            frozen,
            Err(Error::Fabric(samite_fabric::Error::Timeout { .. }))
        );
        check!(is_late, "{frozen:?}");
        pause("given up");
        fabric.set_deadline(Duration::from_secs(20));
        for number in 2..STEPS {
            let step = next(&mut reader)?;
            check!(
                step.number() == number,
                "{} and not {number}",
                step.number()
            );
            check_step(&step)?;
        }
        check!(reader.next_step()?.is_none(), "a step too many");
        Ok(())
    };
    let name = full_name(module_path!(), "a_frozen_coordinator_passes_no_step_over");
    play.run(&name, body, |cluster| {
        let (coordinator, reader) = (Who::Unit(0), play.actor(1));
        cluster.wait_point(reader, "two steps");
        cluster.stop(coordinator);
        cluster.release(reader);
        cluster.wait_point(reader, "given up");
        cluster.go_on(coordinator);
        cluster.release(reader);
    });
}

fn is_late<T>(outcome: samite_stage::Result<T>) -> Outcome {
    let error = outcome.err();
    let is_late = matches!(
        error,
        Some(Error::Fabric(samite_fabric::Error::Timeout { .. }))
    );
    check!(is_late, "{error:?}");
    Ok(())
}

/// A writer gives up a step that it begins (`begins`) or commits under a frozen coordinator, and
/// goes on when that does.
fn a_writer_under_a_frozen_coordinator(name: &str, begins: bool) {
    const STEPS: u64 = 5;
    let play = Play::of(2, Mask::default());
    let body = |fabric: &Fabric, me: u32| {
        let stage = stage(fabric, Settings::default())?;
        if me == 1 {
            let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
            for number in 0..STEPS {
                let step = next(&mut reader)?;
                same!(step.number(), number);
                check_step(&step)?;
            }
            check!(reader.next_step()?.is_none(), "a step too many");
            return Ok(());
        }
        let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
        same!(write(&mut field)?, 0);
        if begins {
            fabric.set_deadline(Duration::from_millis(100));
            pause("frozen");
            is_late(field.step().map(|_| ()))?;
        } else {
            let mut step = field.step()?;
            step.put("u", SHAPE, [0_u64, 0], rows(1, 0..64, 64).view())?;
            fabric.set_deadline(Duration::from_millis(100));
            pause("frozen");
            is_late(step.commit())?;
        }
        pause("given up");
        fabric.set_deadline(Duration::from_secs(20));
        // What was committed is not written again.
        let first = if begins { 1 } else { 2 };
        for number in first..STEPS {
            same!(write(&mut field)?, number);
        }
        Ok(field.close()?)
    };
    play.run(name, body, |cluster| {
        let (coordinator, writer) = (Who::Unit(0), play.actor(0));
        cluster.wait_point(writer, "frozen");
        cluster.stop(coordinator);
        cluster.release(writer);
        cluster.wait_point(writer, "given up");
        cluster.go_on(coordinator);
        cluster.release(writer);
    });
}

#[test]
fn a_step_that_was_begun_under_a_frozen_coordinator_can_be_begun_again() {
    let name = full_name(
        module_path!(),
        "a_step_that_was_begun_under_a_frozen_coordinator_can_be_begun_again",
    );
    a_writer_under_a_frozen_coordinator(&name, true);
}

#[test]
fn a_step_that_was_committed_under_a_frozen_coordinator_is_committed_once() {
    let name = full_name(
        module_path!(),
        "a_step_that_was_committed_under_a_frozen_coordinator_is_committed_once",
    );
    a_writer_under_a_frozen_coordinator(&name, false);
}

/// A writer gives up a put under a frozen coordinator, and keeps the step, which it can only drop.
/// It has asked for all memory, which another writer gets although the step is still there.
#[test]
fn memory_that_was_asked_for_under_a_frozen_coordinator_is_given_back() {
    const MEMORY: u64 = 4 << 20;
    const BLOCK: [u64; 1] = [3 << 20];
    let play = Play {
        memory: MEMORY,
        ..Play::of(2, Mask::default())
    };
    let body = |fabric: &Fabric, me: u32| {
        let stage = stage(fabric, Settings::default())?;
        let block = Array1::<u8>::ones(BLOCK[0] as usize);
        if me == 0 {
            let field = stage.write("field").as_rank("solver", 0, 1);
            let mut field = field.discard_unread().open()?;
            let mut step = field.step()?;
            fabric.set_deadline(Duration::from_millis(100));
            pause("frozen");
            is_late(step.put("u", BLOCK, [0_u64], block.view()))?;
            let again = step.put("v", BLOCK, [0_u64], block.view());
            check!(matches!(again, Err(Error::Spoiled { .. })), "{again:?}");
            pause("given up");
            fabric.set_deadline(Duration::from_secs(20));
            drop(step);
            // The step can be begun again.
            let mut step = field.step()?;
            step.put("u", BLOCK, [0_u64], block.view())?;
            step.commit()?;
            return Ok(field.close()?);
        }
        let other = stage.write("other").as_rank("other", 0, 1);
        // Without the memory, it would end so.
        let other = other.discard_unread().timeout(Duration::from_secs(20));
        let mut other = other.open()?;
        pause("open");
        let mut step = other.step()?;
        step.put("u", BLOCK, [0_u64], block.view())?;
        step.commit()?;
        other.close()?;
        pause("written");
        Ok(())
    };
    let name = full_name(
        module_path!(),
        "memory_that_was_asked_for_under_a_frozen_coordinator_is_given_back",
    );
    play.run(&name, body, |cluster| {
        let coordinator = Who::Unit(0);
        let (writer, other) = (play.actor(0), play.actor(1));
        cluster.wait_point(other, "open");
        cluster.wait_point(writer, "frozen");
        cluster.stop(coordinator);
        cluster.release(writer);
        cluster.wait_point(writer, "given up");
        cluster.go_on(coordinator);
        cluster.release(other);
        cluster.wait_point(other, "written");
        cluster.release(writer);
        cluster.release(other);
    });
}

/// A process gives up an opening under a frozen coordinator: when that goes on, the rank is free.
#[test]
fn an_opening_that_was_given_up_takes_no_rank() {
    let play = Play::of(2, Mask::default());
    let body = |fabric: &Fabric, me: u32| {
        let stage = stage(fabric, Settings::default())?;
        let write = || stage.write("field").as_rank("solver", 0, 1).open();
        let read = || stage.read("field").as_rank("analysis", 0, 1).open();
        if me == 0 {
            fabric.set_deadline(Duration::from_millis(100));
            pause("frozen");
            is_late(write().map(|_| ()))?;
            pause("given up");
            fabric.set_deadline(Duration::from_secs(20));
            let mut field = write()?;
            same!(crate::faults::write(&mut field)?, 0);
            pause("written");
            return Ok(field.close()?);
        }
        pause("begins");
        fabric.set_deadline(Duration::from_millis(100));
        is_late(read().map(|_| ()))?;
        pause("given up");
        fabric.set_deadline(Duration::from_secs(20));
        let mut reader = read()?;
        check_step(&next(&mut reader)?)?;
        check!(reader.next_step()?.is_none(), "a step too many");
        Ok(())
    };
    let name = full_name(module_path!(), "an_opening_that_was_given_up_takes_no_rank");
    play.run(&name, body, |cluster| {
        let coordinator = Who::Unit(0);
        let (writer, reader) = (play.actor(0), play.actor(1));
        cluster.wait_point(reader, "begins");
        cluster.wait_point(writer, "frozen");
        cluster.stop(coordinator);
        cluster.release(writer);
        cluster.wait_point(writer, "given up");
        cluster.go_on(coordinator);
        cluster.release(writer);
        cluster.wait_point(writer, "written");
        cluster.stop(coordinator);
        cluster.release(reader);
        cluster.wait_point(reader, "given up");
        cluster.go_on(coordinator);
        cluster.release(reader);
        cluster.release(writer);
    });
}
