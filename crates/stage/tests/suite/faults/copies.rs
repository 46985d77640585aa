//! Copies of blocks that are lost with their servers.

use crate::staged::{Play, is_right, next, rows, stage};
use ndarray::Ix2;
use samite_fabric::{Fabric, Mask};
use samite_stage::protocol::Policy;
use samite_stage::{Error, Method, Settings, Stage, StepWriter};
use samite_testkit::{MESSAGES_ONLY, Outcome, Who, check, full_name, pause, same};
use std::time::{Duration, Instant};

/// Half a megabyte: pieces at every server.
const SHAPE: [u64; 2] = [256, 256];

/// Waits until so many block stores have something on disk.
pub(crate) fn await_spilled(stage: &Stage, block_stores: usize) -> Outcome {
    let begin = Instant::now();
    loop {
        let kept = stage.overview(Duration::from_secs(20))?.kept;
        let spilled = kept.iter().flatten().filter(|kept| kept.files > 0).count();
        if spilled >= block_stores {
            return Ok(());
        }
        let late = begin.elapsed() > Duration::from_secs(60);
        check!(!late, "nothing is spilled: {kept:?}");
    }
}

/// Steps are held, in memory and on disk, when one of two servers is killed.
#[test]
fn a_copy_on_disk_stands_for_the_other() {
    const STEPS: u64 = 6;
    let play = Play {
        servers: 2,
        disk: 16 << 20,
        ..Play::of(2, Mask::default())
    };
    let body = |fabric: &Fabric, me: u32| {
        let settings = Settings {
            replicas: 2,
            policy: Policy::Spill,
            steps: Some(2),
            ..Settings::of(Method::Server)
        };
        let stage = stage(fabric, settings)?;
        if me == 0 {
            let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
            pause("open");
            for number in 0..STEPS {
                let mut step = field.step()?;
                same!(step.number(), number);
                let whole = rows(number, 0..SHAPE[0], SHAPE[1]);
                step.put("u", SHAPE, [0_u64, 0], whole.view())?;
                step.commit()?;
            }
            await_spilled(&stage, 2)?;
            pause("written");
            return Ok(field.close()?);
        }
        let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
        pause("open");
        let mut held = Vec::new();
        for number in 0..STEPS {
            let step = next(&mut reader)?;
            same!(step.number(), number);
            held.push(step);
        }
        pause("held");
        for step in &held {
            let all = step.get::<f64, Ix2>("u", ..)?;
            check!(is_right(step.number(), (0, 0), all.view()));
        }
        Ok(())
    };
    let name = full_name(module_path!(), "a_copy_on_disk_stands_for_the_other");
    play.run(&name, body, |cluster| {
        let (writer, reader) = (play.actor(0), play.actor(1));
        cluster.wait_point(writer, "open");
        cluster.wait_point(reader, "open");
        cluster.release(writer);
        cluster.wait_point(writer, "written");
        cluster.release(reader);
        cluster.wait_point(reader, "held");
        cluster.kill(Who::Unit(2));
        cluster.wait_gone(Who::Unit(2));
        cluster.release(reader);
        cluster.wait_gone(reader);
        cluster.release(writer);
    });
}

/// A block that was not put is not published with its step, and the step can be written again.
#[test]
fn a_block_that_was_not_put_spoils_its_step() {
    let play = Play {
        servers: 2,
        ..Play::of(1, MESSAGES_ONLY)
    };
    let body = |fabric: &Fabric, _| {
        let stage = stage(fabric, Settings::of(Method::Server))?;
        let field = stage.write("field").as_rank("solver", 0, 1);
        let mut field = field.discard_unread().retain(1).open()?;
        let put = |step: &mut StepWriter<'_>, name| {
            let whole = rows(step.number(), 0..SHAPE[0], SHAPE[1]);
            step.put(name, SHAPE, [0_u64, 0], whole.view())
        };
        let mut step = field.step()?;
        put(&mut step, "u")?;
        put(&mut step, "v")?;
        step.commit()?;
        // It has the memory that the one before it needed.
        let mut step = field.step()?;
        put(&mut step, "u")?;
        pause("half");
        let lost = put(&mut step, "v");
        check!(lost.is_err(), "bytes for nobody");
        let again = put(&mut step, "v");
        let is_spoiled = |outcome| matches!(outcome, Err(Error::Spoiled { step: 1 }));
        check!(is_spoiled(again), "a block after one that was not put");
        check!(is_spoiled(step.commit()), "half of a block was committed");
        let mut step = field.step()?;
        same!(step.number(), 1);
        put(&mut step, "u")?;
        put(&mut step, "v")?;
        step.commit()?;
        let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
        let step = reader.at(1)?;
        check!(step.is_some(), "it is retained");
        let v = step.as_ref().map(|step| step.get::<f64, Ix2>("v", ..));
        let v = v.transpose()?;
        check!(v.is_some_and(|v| is_right(1, (0, 0), v.view())));
        Ok(())
    };
    let name = full_name(module_path!(), "a_block_that_was_not_put_spoils_its_step");
    play.run(&name, body, |cluster| {
        let writer = play.actor(0);
        cluster.wait_point(writer, "half");
        cluster.kill(Who::Unit(2));
        cluster.wait_gone(Who::Unit(2));
        cluster.release(writer);
    });
}
