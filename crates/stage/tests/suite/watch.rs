//! Subscriptions between processes: a layout that changes by step, a late subscriber, one that is
//! killed and goes on, a writer that is killed.

#![allow(
    clippy::result_large_err,
    reason = "errors name boxes; they are rare, and never on the way of a byte"
)]

use crate::staged::{Play, is_right, next, rows, stage};
use ndarray::Array2;
use samite_fabric::{Fabric, Mask};
use samite_stage::protocol::{EndOfStream, Failure, Fault, Start};
use samite_stage::{Error, News, Region, Settings, Watch, Writer, Written};
use samite_testkit::{MESSAGES_ONLY, Outcome, check, pause, point, same};
use std::time::Duration;

const SHAPE: [u64; 2] = [64, 20];

/// Long enough for whatever comes.
const LONG: Duration = Duration::from_secs(60);

/// The rows that a step has: eight of them, further down with every step, round and round.
fn rows_of(step: u64) -> std::ops::Range<u64> {
    let first = step * 8 % 64;
    first..first + 8
}

fn write(field: &mut Writer) -> samite_stage::Result<u64> {
    let mut step = field.step()?;
    let number = step.number();
    let there = rows_of(number);
    let array = rows(number, there.clone(), 20);
    step.put("u", SHAPE, [there.start, 0], array.view())?;
    step.commit()?;
    Ok(number)
}

/// The next news, which must be of a box that was written.
fn written(watch: &mut Watch) -> Outcome<Written> {
    match watch.next(LONG)? {
        Some(News::Written(written)) => Ok(written),
        other => {
            check!(false, "{other:?}");
            unreachable!("the check failed")
        }
    }
}

/// Steps 2, 10, 18 ... write the rows 16 to 23; the box has some of them.
fn is_told(watch: &mut Watch, step: u64) -> Outcome {
    let told = written(watch)?;
    same!(told.step, step);
    same!(told.region, Region::new(&[18, 3], &[22, 9])?);
    same!((told.elements, told.shape.to_vec()), (24, SHAPE.to_vec()));
    same!(watch.next_step(), Some(step + 1));
    Ok(())
}

const BOX: [std::ops::Range<u64>; 2] = [18..22, 3..9];

/// A writer, a subscriber, and a reader that takes only the steps that touch the box.
fn told_and_read(fabric: &Fabric, me: u32) -> Outcome {
    let stage = stage(fabric, Settings::default())?;
    if me == 0 {
        let field = stage.write("field").as_rank("solver", 0, 1);
        let mut field = field.discard_unread().open()?;
        pause("open");
        for number in 0..32 {
            same!(write(&mut field)?, number);
        }
        return Ok(field.close()?);
    }
    if me == 1 {
        let mut watch = stage.watch("field", "u").region(BOX).open()?;
        check!(watch.try_next()?.is_none());
        point("subscribed");
        for step in [2, 10, 18, 26] {
            is_told(&mut watch, step)?;
        }
        same!(watch.next(LONG)?, None);
        same!(watch.end(), Some(EndOfStream::Closed));
        return Ok(());
    }
    let reader = stage.read("field").as_rank("analysis", 0, 1);
    let mut reader = reader.only("u", BOX)?.open()?;
    point("subscribed");
    for number in [2, 10, 18, 26] {
        let step = next(&mut reader)?;
        same!(step.number(), number);
        let part: Array2<f64> = step.get("u", BOX)?;
        check!(is_right(number, (18, 3), part.view()), "{part}");
    }
    check!(reader.next_step()?.is_none());
    Ok(())
}

fn told_and_read_with(name: &str, mask: Mask) {
    let play = Play::of(3, mask);
    play.run(name, told_and_read, |cluster| {
        cluster.wait_point(play.actor(0), "open");
        cluster.wait_point(play.actor(1), "subscribed");
        cluster.wait_point(play.actor(2), "subscribed");
        cluster.release(play.actor(0));
    });
}

#[test]
fn a_box_that_some_steps_touch() {
    told_and_read_with("watch::a_box_that_some_steps_touch", Mask::default());
}

#[test]
fn a_box_that_some_steps_touch_by_messages() {
    told_and_read_with(
        "watch::a_box_that_some_steps_touch_by_messages",
        MESSAGES_ONLY,
    );
}

/// A subscriber is killed while it waits; another one goes on where it was. A third is late, and
/// misses what is gone.
#[test]
fn a_killed_subscriber_is_followed_by_another() {
    let name = "watch::a_killed_subscriber_is_followed_by_another";
    let play = Play::of(4, Mask::default());
    let body = |fabric: &Fabric, me: u32| {
        let stage = stage(fabric, Settings::default())?;
        if me == 0 {
            let field = stage.write("field").as_rank("solver", 0, 1);
            let mut field = field.discard_unread().retain(16).open()?;
            for stop in [8, 16, 40] {
                pause("written");
                while write(&mut field)? + 1 < stop {}
            }
            pause("written");
            return Ok(field.close()?);
        }
        let watch = stage.watch("field", "u").region(BOX);
        match me {
            1 => {
                let mut watch = watch.open()?;
                point("open");
                is_told(&mut watch, 2)?;
                point("told");
                watch.next(LONG)?;
                check!(false, "it was killed");
            }
            2 => {
                pause("born");
                // Step 3 is where the first one was.
                let mut watch = watch.start(Start::Step(3)).open()?;
                is_told(&mut watch, 10)?;
                point("told");
                for step in [18, 26, 34] {
                    is_told(&mut watch, step)?;
                }
                same!(watch.next(LONG)?, None);
            }
            _ => {
                pause("born");
                let mut watch = watch.start(Start::Step(3)).open()?;
                same!(watch.next(LONG)?, Some(News::Missed { first: 3, last: 23 }));
                same!(watch.next_step(), Some(24));
                is_told(&mut watch, 26)?;
                is_told(&mut watch, 34)?;
                same!(watch.try_next()?, None);
                point("told");
            }
        }
        Ok(())
    };
    play.run(name, body, |cluster| {
        let [writer, first, second, late] = [0, 1, 2, 3].map(|number| play.actor(number));
        cluster.wait_point(writer, "written");
        cluster.wait_point(first, "open");
        cluster.release(writer);
        cluster.wait_point(first, "told");
        cluster.wait_point(writer, "written");
        cluster.wait_asleep(first);
        cluster.kill(first);
        cluster.wait_gone(first);
        cluster.release(writer);
        cluster.wait_point(writer, "written");
        cluster.wait_point(second, "born");
        cluster.release(second);
        cluster.wait_point(second, "told");
        cluster.release(writer);
        cluster.wait_point(writer, "written");
        cluster.wait_point(late, "born");
        cluster.release(late);
        cluster.wait_point(late, "told");
        cluster.release(writer);
    });
}

/// The deadline names whom the next step waits for; a writer that is killed is named when its lease
/// is over.
#[test]
fn a_lost_writer_is_named() {
    let name = "watch::a_lost_writer_is_named";
    let play = Play::of(3, Mask::default());
    let body = |fabric: &Fabric, me: u32| {
        let settings = Settings {
            lease: Duration::from_secs(3),
            ..Settings::default()
        };
        let stage = stage(fabric, settings)?;
        if me < 2 {
            let field = stage.write("field").as_rank("solver", me, 2);
            let mut field = field.discard_unread().open()?;
            pause("open");
            let mut step = field.step()?;
            let half = u64::from(me) * 32;
            let array = rows(0, half..half + 32, 20);
            step.put("u", SHAPE, [half, 0], array.view())?;
            step.commit()?;
            pause("written");
            return Ok(field.close()?);
        }
        let mut watch = stage.watch("field", "u").open()?;
        point("watching");
        let told = written(&mut watch)?;
        same!((told.step, told.elements), (0, 64 * 20));
        same!(told.region, Region::whole(&SHAPE)?);
        match watch.next(Duration::from_millis(5)) {
            Err(Error::Fault(Fault::NothingWritten { whom, .. })) => {
                same!(whom, "solver.0 to commit step 1, and 1 more");
            }
            other => check!(false, "{other:?}"),
        }
        point("waited");
        for _ in 0..2 {
            match watch.next(LONG) {
                Err(Error::Fault(Fault::WriterFailed {
                    rank: 1,
                    how: Failure::Died,
                    ..
                })) => {}
                other => check!(false, "{other:?}"),
            }
        }
        Ok(())
    };
    play.run(name, body, |cluster| {
        cluster.wait_point(play.actor(2), "watching");
        for writer in [play.actor(0), play.actor(1)] {
            cluster.wait_point(writer, "open");
            cluster.release(writer);
        }
        cluster.wait_point(play.actor(0), "written");
        cluster.wait_point(play.actor(1), "written");
        cluster.wait_point(play.actor(2), "waited");
        cluster.kill(play.actor(1));
        cluster.release(play.actor(0));
    });
}
