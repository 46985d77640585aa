//! Readers that are slow, that are late, or that never come.

use crate::faults::copies::await_spilled;
use crate::faults::{check_step, write};
use crate::staged::{Play, next, stage};
use samite_fabric::{Fabric, Mask};
use samite_stage::protocol::{Fault, Policy, Start};
use samite_stage::{Error, Settings};
use samite_testkit::{check, full_name, pause, point, same};
use std::time::Duration;

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
            if disk > 0 {
                await_spilled(&stage, 1)?;
            }
            pause("written");
            return Ok(field.close()?);
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
    play.run(name, body, |cluster| {
        let (writer, reader) = (play.actor(0), play.actor(1));
        cluster.wait_point(writer, "open");
        cluster.wait_point(reader, "open");
        cluster.release(writer);
        cluster.wait_point(writer, "written");
        cluster.release(reader);
        cluster.wait_point(reader, "enough");
        cluster.release(writer);
    });
}

#[test]
fn the_oldest_are_dropped() {
    by_policy(
        &full_name(module_path!(), "the_oldest_are_dropped"),
        Policy::DropOldest,
        3,
        0,
        &[7, 8, 9],
    );
}

#[test]
fn the_newest_are_dropped() {
    by_policy(
        &full_name(module_path!(), "the_newest_are_dropped"),
        Policy::DropNewest,
        3,
        0,
        &[0, 1, 2],
    );
}

#[test]
fn only_the_latest() {
    by_policy(
        &full_name(module_path!(), "only_the_latest"),
        Policy::Latest,
        3,
        0,
        &[9],
    );
}

#[test]
fn every_fourth() {
    by_policy(
        &full_name(module_path!(), "every_fourth"),
        Policy::Every(4),
        3,
        0,
        &[0, 4, 8],
    );
}

#[test]
fn what_is_beyond_the_limit_lies_on_disk() {
    let all: Vec<u64> = (0..10).collect();
    let name = &full_name(module_path!(), "what_is_beyond_the_limit_lies_on_disk");
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
        let field = stage.write("field").as_rank("solver", 0, 1);
        // Slow readers are waited for as long as the writer wants, those who never come up to the
        // deadline.
        let mut field = field.timeout(Duration::from_millis(300)).open()?;
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
        Ok(field.close()?)
    };
    play.run(
        &full_name(module_path!(), "a_full_stream_says_why"),
        body,
        |cluster| {
            let (writer, reader) = (play.actor(0), play.actor(1));
            cluster.wait_point(writer, "nobody");
            cluster.wait_point(reader, "begin");
            cluster.release(reader);
            cluster.wait_point(reader, "open");
            cluster.release(writer);
            cluster.wait_gone(writer);
            cluster.release(reader);
        },
    );
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
            return Ok(field.close()?);
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
    play.run(
        &full_name(module_path!(), "late_readers_find_what_is_retained"),
        body,
        |cluster| {
            cluster.wait_point(play.actor(0), "written");
            cluster.wait_point(play.actor(1), "begin");
            cluster.release(play.actor(1));
            cluster.wait_point(play.actor(1), "read");
            cluster.release(play.actor(0));
        },
    );
}
