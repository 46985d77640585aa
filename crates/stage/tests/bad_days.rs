//! Processes that are killed, memory that is short, blocks that do not fit together.
//!
//! `SAMITE_SEED` runs the random kills of a seed again; the seed of every run is printed.

#![allow(
    clippy::result_large_err,
    reason = "errors name boxes; they are rare, and never on the way of a byte"
)]

mod staged;

use ndarray::{Array2, Ix2};
use samite_fabric::{Fabric, Mask};
use samite_stage::protocol::{EndOfStream, Fault, Policy, Start};
use samite_stage::{Error, Settings};
use samite_testkit::{Cast, MESSAGES_ONLY, Outcome, Unit, Who, check, pause, point, same};
use staged::{Play, is_right, next, rows, stage};
use std::time::Duration;

const SHAPE: [u64; 2] = [64, 64];

/// Writers and readers each, of which all but the last are killed.
const LIVES: u32 = 51;

/// Steps of the last writer.
const LAST: u64 = 12;

fn write(field: &mut samite_stage::Writer<'_>) -> samite_stage::Result<u64> {
    let mut step = field.step()?;
    let number = step.number();
    step.put("u", SHAPE, [0_u64, 0], rows(number, 0..64, 64).view())?;
    step.commit()?;
    Ok(number)
}

fn check_step(step: &samite_stage::StepReader<'_>) -> Outcome {
    let all: Array2<f64> = step.get("u", ..)?;
    check!(
        is_right(step.number(), (0, 0), all.view()),
        "step {}",
        step.number()
    );
    Ok(())
}

/// Even actors are lives of the writer, odd ones of a reader; the last is a reader that sees every step.
fn one_life(unit: &Unit, me: u32) -> Outcome {
    if me == 2 * LIVES {
        let fabric = unit.join()?;
        let stage = stage(&fabric, Settings::default())?;
        let mut all = stage.read("field").as_rank("archive", 0, 1).open()?;
        point("open");
        let mut steps = 0;
        while let Some(step) = all.next_step()? {
            same!(step.number(), steps);
            check_step(&step)?;
            steps += 1;
        }
        same!(all.end(), Some(EndOfStream::Closed));
        check!(steps >= LAST, "{steps} steps");
        return Ok(());
    }
    pause("born");
    let fabric = unit.join()?;
    let stage = stage(&fabric, Settings::default())?;
    if me.is_multiple_of(2) {
        let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
        point("open");
        let mut left = LAST;
        // All but the last are killed long before.
        while left > 0 || me != 2 * LIVES - 2 {
            write(&mut field)?;
            left = left.saturating_sub(1);
        }
        pause("written");
        return Ok(());
    }
    let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
    point("open");
    let mut last = None;
    while let Some(step) = reader.next_step()? {
        check!(
            last < Some(step.number()),
            "{last:?} before {}",
            step.number()
        );
        last = Some(step.number());
        check_step(&step)?;
    }
    check!(
        me == 2 * LIVES - 1,
        "the stream ended under a reader in the middle"
    );
    Ok(())
}

/// Kills the writer or the reader after a random time, and lets the next one go on.
fn kill_them_all(cast: &mut Cast, play: &Play) {
    let seed = std::env::var("SAMITE_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("SAMITE_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut now = [0, 1];
    let begin = |cast: &mut Cast, who: Who| {
        cast.wait_point(who, "born");
        cast.release(who);
    };
    // The one that sees all comes before any step is taken.
    begin(cast, play.actor(now[0]));
    cast.wait_point(play.actor(2 * LIVES), "open");
    begin(cast, play.actor(now[1]));
    while now != [2 * LIVES - 2, 2 * LIVES - 1] {
        let side = match now {
            [writer, _] if writer == 2 * LIVES - 2 => 1,
            [_, reader] if reader == 2 * LIVES - 1 => 0,
            _ => usize::from(random.bool()),
        };
        let who = play.actor(now[side]);
        if random.u8(..4) > 0 {
            cast.wait_point(who, "open");
        }
        // At any point of what it does.
        std::thread::sleep(Duration::from_micros(random.u64(0..4000)));
        cast.kill(who);
        cast.wait_gone(who);
        now[side] += 2;
        begin(cast, play.actor(now[side]));
    }
    // The stream ends when the last reader has opened it.
    cast.wait_point(play.actor(2 * LIVES - 1), "open");
    cast.release(play.actor(2 * LIVES - 2));
}

fn killed_again_and_again(name: &str, mask: Mask) {
    let play = Play::of(2 * LIVES + 1, mask);
    let units = play.units().patience(Duration::from_secs(400));
    play.run_units(units, name, one_life, |cast| kill_them_all(cast, &play));
}

#[test]
fn writers_and_readers_are_killed_again_and_again() {
    killed_again_and_again(
        "writers_and_readers_are_killed_again_and_again",
        Mask::default(),
    );
}

#[test]
fn writers_and_readers_are_killed_again_and_again_by_messages() {
    killed_again_and_again(
        "writers_and_readers_are_killed_again_and_again_by_messages",
        MESSAGES_ONLY,
    );
}

/// The steward dies under a writer that waits, a reader that waits and a reader that has a step.
fn without_steward(fabric: &Fabric, me: u32) -> Outcome {
    let stage = stage(fabric, Settings::default())?;
    let is_typed = |error: Error| {
        let lost = matches!(
            error,
            Error::Fabric(
                samite_fabric::Error::PeerLost { .. } | samite_fabric::Error::NoSuchPeer(_)
            )
        );
        check!(lost, "{error}");
        Ok(())
    };
    if me == 0 {
        let mut field = stage
            .write("field")
            .as_rank("solver", 0, 1)
            .limits(1, u64::MAX)
            .open()?;
        write(&mut field)?;
        point("written");
        return match write(&mut field) {
            Err(error) => is_typed(error),
            Ok(_) => check_never("a step beyond the limit"),
        };
    }
    let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
    let step = next(&mut reader)?;
    point("held");
    let gone = match reader.at(7) {
        Err(error) => error,
        Ok(_) => return check_never("a step that nobody wrote"),
    };
    is_typed(gone)?;
    // The memory that is mapped is still there, the rest is an error.
    match step.get::<f64, Ix2>("u", ..) {
        Ok(all) => check!(is_right(0, (0, 0), all.view())),
        Err(Error::Fault(Fault::Damaged { step, .. })) => same!(step, 0),
        Err(other) => check!(false, "{other}"),
    }
    Ok(())
}

fn check_never(what: &str) -> Outcome {
    check!(false, "{what}");
    Ok(())
}

fn steward_dies(name: &str, mask: Mask) {
    let play = Play::of(2, mask);
    play.run(name, without_steward, |cast| {
        cast.wait_point(play.actor(0), "written");
        cast.wait_point(play.actor(1), "held");
        cast.kill(Who::Unit(0));
    });
}

#[test]
fn the_steward_dies() {
    steward_dies("the_steward_dies", Mask::default());
}

#[test]
fn the_steward_dies_by_messages() {
    steward_dies("the_steward_dies_by_messages", MESSAGES_ONLY);
}

/// A writer waits for a dead reader no longer than its lease says.
#[test]
fn a_writer_goes_on_when_the_lease_of_a_dead_reader_is_over() {
    let name = "a_writer_goes_on_when_the_lease_of_a_dead_reader_is_over";
    let play = Play::of(2, Mask::default());
    let body = |fabric: &Fabric, me: u32| {
        let settings = Settings {
            lease: Duration::from_millis(50),
            ..Settings::default()
        };
        let stage = stage(fabric, settings)?;
        if me == 0 {
            let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
            let _step = next(&mut reader)?;
            pause("held");
            return check_never("it was killed");
        }
        let mut field = stage
            .write("field")
            .as_rank("solver", 0, 1)
            .limits(1, u64::MAX)
            .discard_unread()
            .open()?;
        pause("open");
        for number in 0..6 {
            same!(write(&mut field)?, number);
            if number == 0 {
                pause("first");
            }
        }
        Ok(())
    };
    play.run(name, body, |cast| {
        cast.wait_point(play.actor(1), "open");
        cast.release(play.actor(1));
        cast.wait_point(play.actor(1), "first");
        cast.wait_point(play.actor(0), "held");
        cast.kill(play.actor(0));
        cast.release(play.actor(1));
    });
}

/// Ten steps for a reader that is open and takes none until they are written.
fn by_policy(name: &str, policy: Policy, limit: u64, disk: u64, expected: &[u64]) {
    let play = Play {
        disk,
        ..Play::of(2, Mask::default())
    };
    let body = |fabric: &Fabric, me: u32| {
        let settings = Settings {
            policy,
            steps: Some(limit),
            ..Settings::default()
        };
        let stage = stage(fabric, settings)?;
        if me == 0 {
            let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
            pause("open");
            for number in 0..10 {
                same!(write(&mut field)?, number);
            }
            pause("written");
            return Ok(());
        }
        let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
        pause("open");
        let mut steps = Vec::new();
        for step in &mut reader {
            let step = step?;
            check_step(&step)?;
            steps.push(step.number());
            if steps.len() == expected.len() {
                point("enough");
            }
        }
        same!(steps, expected);
        Ok(())
    };
    play.run(name, body, |cast| {
        let (writer, reader) = (play.actor(0), play.actor(1));
        cast.wait_point(writer, "open");
        cast.wait_point(reader, "open");
        cast.release(writer);
        cast.wait_point(writer, "written");
        cast.release(reader);
        cast.wait_point(reader, "enough");
        cast.release(writer);
    });
}

#[test]
fn the_oldest_are_dropped() {
    by_policy(
        "the_oldest_are_dropped",
        Policy::DropOldest,
        3,
        0,
        &[7, 8, 9],
    );
}

#[test]
fn the_newest_are_dropped() {
    by_policy(
        "the_newest_are_dropped",
        Policy::DropNewest,
        3,
        0,
        &[0, 1, 2],
    );
}

#[test]
fn only_the_latest() {
    by_policy("only_the_latest", Policy::Latest, 3, 0, &[9]);
}

#[test]
fn every_fourth() {
    by_policy("every_fourth", Policy::Every(4), 3, 0, &[0, 4, 8]);
}

#[test]
fn what_is_beyond_the_limit_lies_on_disk() {
    let all: Vec<u64> = (0..10).collect();
    let name = "what_is_beyond_the_limit_lies_on_disk";
    by_policy(name, Policy::Spill, 2, 1 << 20, &all);
}

/// Who is to blame is said at the deadline.
#[test]
fn a_full_stream_says_why() {
    let play = Play::of(2, Mask::default());
    let body = |fabric: &Fabric, me: u32| {
        let stage = stage(fabric, Settings::default())?;
        if me == 1 {
            pause("begin");
            let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
            pause("open");
            check_step(&next(&mut reader)?)?;
            check_step(&next(&mut reader)?)?;
            return Ok(());
        }
        let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
        write(&mut field)?;
        write(&mut field)?;
        fabric.set_deadline(Duration::from_millis(30));
        let nobody = write(&mut field);
        let is_it = matches!(
            nobody,
            Err(Error::Fault(Fault::NobodyReads { steps: 2, .. }))
        );
        check!(is_it, "{nobody:?}");
        pause("nobody");
        match write(&mut field) {
            Err(Error::Fault(Fault::ReadersBehind {
                group, steps: 2, ..
            })) => same!(group, "analysis"),
            other => check!(false, "{other:?}"),
        }
        Ok(())
    };
    play.run("a_full_stream_says_why", body, |cast| {
        let (writer, reader) = (play.actor(0), play.actor(1));
        cast.wait_point(writer, "nobody");
        cast.wait_point(reader, "begin");
        cast.release(reader);
        cast.wait_point(reader, "open");
        cast.release(writer);
        cast.wait_gone(writer);
        cast.release(reader);
    });
}

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
    play.run("memory_is_short", body, |_| ());
}

/// A reader that comes when all is written finds the retained window, and steps by number in it.
#[test]
fn late_readers_find_what_is_retained() {
    let play = Play::of(2, Mask::default());
    let body = |fabric: &Fabric, me: u32| {
        let stage = stage(fabric, Settings::default())?;
        if me == 0 {
            let field = stage.write("field").as_rank("solver", 0, 1);
            let mut field = field.discard_unread().retain(4).precious_first().open()?;
            for _ in 0..10 {
                write(&mut field)?;
            }
            pause("written");
            return Ok(());
        }
        pause("begin");
        let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
        for number in [7, 9, 6, 0] {
            let step = reader.at(number)?;
            check!(step.is_some());
            step.iter().try_for_each(check_step)?;
        }
        let gone = reader.at(3).map(|step| step.is_some());
        check!(
            matches!(gone, Err(Error::Fault(Fault::Gone { step: 3, .. }))),
            "{gone:?}"
        );
        let late = stage
            .read("field")
            .as_rank("late", 0, 1)
            .start(Start::Latest);
        same!(next(&mut late.open()?)?.number(), 9);
        let exact = stage
            .read("field")
            .as_rank("exact", 0, 1)
            .start(Start::Step(8));
        same!(next(&mut exact.open()?)?.number(), 8);
        point("read");
        Ok(())
    };
    play.run("late_readers_find_what_is_retained", body, |cast| {
        cast.wait_point(play.actor(0), "written");
        cast.wait_point(play.actor(1), "begin");
        cast.release(play.actor(1));
        cast.wait_point(play.actor(1), "read");
        cast.release(play.actor(0));
    });
}

/// The ranks of a writer do not agree: whoever commits last hears of it, by the names of both.
#[test]
fn ranks_that_do_not_fit_together() {
    let play = Play::of(2, Mask::default());
    let body = |fabric: &Fabric, me: u32| {
        let stage = stage(fabric, Settings::default())?;
        let ones = Array2::<f64>::ones((4, 4));
        let mut overlap = stage.write("overlap").as_rank("solver", me, 2).open()?;
        let mut shapes = stage.write("shapes").as_rank("solver", me, 2).open()?;
        pause("open");
        let mut step = overlap.step()?;
        step.put("u", [8_u64, 4], [3 * u64::from(me), 0], ones.view())?;
        let first = step.commit();
        let mut step = shapes.step()?;
        step.put(
            "u",
            [8 + u64::from(me), 4],
            [4 * u64::from(me), 0],
            ones.view(),
        )?;
        let second = step.commit();
        match me {
            0 => check!(first.is_ok() && second.is_ok(), "{first:?} {second:?}"),
            _ => {
                let is_it = matches!(first, Err(Error::Fault(Fault::Overlap { .. })));
                check!(is_it, "{first:?}");
                let is_it = matches!(second, Err(Error::Fault(Fault::ShapeDiffers { .. })));
                check!(is_it, "{second:?}");
            }
        }
        pause("done");
        Ok(())
    };
    play.run("ranks_that_do_not_fit_together", body, |cast| {
        for who in [play.actor(0), play.actor(1)] {
            cast.wait_point(who, "open");
            cast.release(who);
            cast.wait_point(who, "done");
        }
        cast.release(play.actor(0));
        cast.release(play.actor(1));
    });
}

/// Positions are 64 bits everywhere.
#[test]
fn a_dimension_above_32_bits() {
    let play = Play::of(2, Mask::default());
    let body = |fabric: &Fabric, me: u32| {
        let stage = stage(fabric, Settings::default())?;
        let long = (1_u64 << 33) + 5;
        if me == 0 {
            let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
            let mut step = field.step()?;
            step.put("u", [long, 8], [long - 6, 0], rows(0, 0..6, 8).view())?;
            return Ok(step.commit()?);
        }
        let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
        let step = next(&mut reader)?;
        let end: Array2<f64> = step.get("u", [long - 4..long - 1, 3..8])?;
        check!(is_right(0, (2, 3), end.view()), "{end}");
        let hole = step.get::<f64, Ix2>("u", [long - 7..long, 0..8]);
        check!(matches!(hole, Err(Error::Hole { .. })), "{hole:?}");
        // More than any memory: refused, never an abort.
        let all = step.get::<f64, Ix2>("u", ..).map(drop);
        check!(all.is_err());
        Ok(())
    };
    play.run("a_dimension_above_32_bits", body, |_| ());
}

/// Needs 3 GiB of shared memory and as much again for the reader.
#[test]
#[ignore = "needs 7 GiB of memory"]
fn a_block_of_three_gibibytes() {
    const WORDS: u64 = 3 << 27;
    let play = Play {
        memory: 4 << 30,
        ..Play::of(2, Mask::default())
    };
    let body = |unit: &Unit, me: u32| {
        let fabric = unit.join()?;
        let stage = stage(&fabric, Settings::default())?;
        if me == 0 {
            let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
            let mut step = field.step()?;
            let mut block = step.alloc::<u64>("u", [WORDS], [0_u64], [WORDS])?;
            let words = block.iter_mut().zip(0_u64..);
            words.for_each(|(word, at)| *word = at * 3);
            return Ok(step.commit()?);
        }
        let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
        let step = next(&mut reader)?;
        let view = step.view::<u64>("u", ..)?;
        check!(view.is_some());
        let view = view.into_iter().flatten().zip(0_u64..);
        check!(view.into_iter().all(|(word, at)| *word == at * 3));
        let all: ndarray::Array1<u64> = step.get("u", ..)?;
        check!(all.iter().zip(0_u64..).all(|(word, at)| *word == at * 3));
        Ok(())
    };
    let units = play.units().budget(6 << 30);
    play.run_units(units, "a_block_of_three_gibibytes", body, |_| ());
}
