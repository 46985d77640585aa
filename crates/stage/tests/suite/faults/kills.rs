//! Writers, readers and whoever coordinates them are killed at any point of what they do. (In
//! `anybody`: servers among them.)

use crate::faults::{SHAPE, check_never, life_of, random, write, write_in_life};
use crate::staged::{Play, is_right, next, stage};
use ndarray::Ix2;
use samite_fabric::{Fabric, Mask};
use samite_stage::protocol::{EndOfStream, Fault};
use samite_stage::{Error, Method, Settings, StepReader};
use samite_testkit::{
    Cluster, MESSAGES_ONLY, Outcome, Unit, Who, check, full_name, pause, point, same,
};
use std::time::Duration;

/// Writers and readers each, of which all but the last are killed.
const LIVES: u32 = 51;

/// Steps of the last writer.
const LAST: u64 = 12;

/// Even actors are lives of the writer, odd ones of a reader; the last is a reader that sees every
/// step.
fn one_life(unit: &Unit, me: u32, method: Method) -> Outcome {
    let settings = || Settings {
        replicas: 2,
        ..Settings::of(method)
    };
    if me == 2 * LIVES {
        let fabric = unit.join()?;
        let stage = stage(&fabric, settings())?;
        let mut all = stage.read("field").as_rank("archive", 0, 1).open()?;
        point("open");
        let (mut steps, mut life) = (0, 0);
        while let Some(step) = all.next_step()? {
            same!(step.number(), steps);
            life = later_life(&step, life)?;
            steps += 1;
        }
        same!(all.end(), Some(EndOfStream::Closed));
        same!(life, u64::from(LIVES) - 1);
        check!(steps >= LAST, "{steps} steps");
        return Ok(());
    }
    pause("born");
    let fabric = unit.join()?;
    let stage = stage(&fabric, settings())?;
    if me.is_multiple_of(2) {
        let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
        point("open");
        let mut left = LAST;
        // All but the last are killed long before.
        while left > 0 || me != 2 * LIVES - 2 {
            write_in_life(&mut field, u64::from(me / 2), SHAPE)?;
            left = left.saturating_sub(1);
        }
        pause("written");
        return Ok(field.close()?);
    }
    let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
    point("open");
    let (mut last, mut life) = (None, 0);
    while let Some(step) = reader.next_step()? {
        check!(
            last < Some(step.number()),
            "{last:?} before {}",
            step.number()
        );
        last = Some(step.number());
        life = later_life(&step, life)?;
    }
    check!(
        me == 2 * LIVES - 1,
        "the stream ended under a reader in the middle"
    );
    Ok(())
}

/// Which life of the writer has written all of a step: none before that of the step before.
fn later_life(step: &StepReader, before: u64) -> Outcome<u64> {
    let life = life_of(step, SHAPE)?;
    check!(
        (before..u64::from(LIVES)).contains(&life),
        "step {} of life {life} after one of life {before}",
        step.number()
    );
    Ok(life)
}

/// Kills the writer or the reader after a random time, and lets the next one go on.
fn kill_them_all(cluster: &mut Cluster, play: &Play) {
    let mut random = random();
    let mut now = [0, 1];
    let begin = |cluster: &mut Cluster, who: Who| {
        cluster.wait_point(who, "born");
        cluster.release(who);
    };
    // The one that sees all comes before any step is taken.
    begin(cluster, play.actor(now[0]));
    cluster.wait_point(play.actor(2 * LIVES), "open");
    begin(cluster, play.actor(now[1]));
    while now != [2 * LIVES - 2, 2 * LIVES - 1] {
        let side = match now {
            [writer, _] if writer == 2 * LIVES - 2 => 1,
            [_, reader] if reader == 2 * LIVES - 1 => 0,
            _ => usize::from(random.bool()),
        };
        let who = play.actor(now[side]);
        if random.u8(..4) > 0 {
            cluster.wait_point(who, "open");
        }
        // The delay is the test: it dies at any point of what it does.
        std::thread::sleep(Duration::from_micros(random.u64(0..4000)));
        cluster.kill(who);
        cluster.wait_gone(who);
        now[side] += 2;
        begin(cluster, play.actor(now[side]));
    }
    // The stream ends when the last reader has opened it.
    cluster.wait_point(play.actor(2 * LIVES - 1), "open");
    cluster.release(play.actor(2 * LIVES - 2));
}

fn killed_again_and_again(name: &str, method: Method, mask: Mask) {
    let play = Play {
        servers: if method == Method::Server { 2 } else { 0 },
        ..Play::of(2 * LIVES + 1, mask)
    };
    let units = play.units().timeout(Duration::from_secs(400));
    let part = |unit: &Unit, me| one_life(unit, me, method);
    play.run_units(units, name, part, |cluster| kill_them_all(cluster, &play));
}

#[test]
fn writers_and_readers_are_killed_again_and_again() {
    killed_again_and_again(
        &full_name(
            module_path!(),
            "writers_and_readers_are_killed_again_and_again",
        ),
        Method::Stream,
        Mask::default(),
    );
}

#[test]
fn writers_and_readers_are_killed_again_and_again_by_messages() {
    killed_again_and_again(
        &full_name(
            module_path!(),
            "writers_and_readers_are_killed_again_and_again_by_messages",
        ),
        Method::Stream,
        MESSAGES_ONLY,
    );
}

#[test]
fn writers_and_readers_are_killed_beside_servers() {
    killed_again_and_again(
        &full_name(
            module_path!(),
            "writers_and_readers_are_killed_beside_servers",
        ),
        Method::Server,
        Mask::default(),
    );
}

/// The coordinator dies under a writer that waits, a reader that waits and a reader that has a
/// step.
fn without_coordinator(fabric: &Fabric, me: u32, method: Method) -> Outcome {
    let stage = stage(fabric, Settings::of(method))?;
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

fn coordinator_dies(name: &str, method: Method, mask: Mask) {
    let play = Play {
        servers: if method == Method::Server { 2 } else { 0 },
        ..Play::of(2, mask)
    };
    let body = |fabric: &Fabric, me| without_coordinator(fabric, me, method);
    play.run(name, body, |cluster| {
        cluster.wait_point(play.actor(0), "written");
        cluster.wait_point(play.actor(1), "held");
        cluster.kill(Who::Unit(0));
    });
}

#[test]
fn the_coordinator_dies() {
    coordinator_dies(
        &full_name(module_path!(), "the_coordinator_dies"),
        Method::Stream,
        Mask::default(),
    );
}

#[test]
fn the_coordinator_dies_by_messages() {
    coordinator_dies(
        &full_name(module_path!(), "the_coordinator_dies_by_messages"),
        Method::Stream,
        MESSAGES_ONLY,
    );
}

/// The servers live on, and nobody says where a step goes.
#[test]
fn the_coordinator_dies_beside_servers() {
    coordinator_dies(
        &full_name(module_path!(), "the_coordinator_dies_beside_servers"),
        Method::Server,
        Mask::default(),
    );
}

/// A writer waits for a dead reader no longer than its lease says.
#[test]
fn a_writer_goes_on_when_the_lease_of_a_dead_reader_is_over() {
    let name = &full_name(
        module_path!(),
        "a_writer_goes_on_when_the_lease_of_a_dead_reader_is_over",
    );
    let play = Play::of(2, Mask::default());
    let body = |fabric: &Fabric, me: u32| {
        let settings = Settings {
            lease: Duration::from_millis(50),
            ..Settings::default()
        };
        let stage = stage(fabric, settings)?;
        if me == 0 {
            let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
            point("reading");
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
        Ok(field.close()?)
    };
    play.run(name, body, |cluster| {
        // A step that nobody reads is discarded: the reader comes before the first one.
        cluster.wait_point(play.actor(0), "reading");
        cluster.wait_point(play.actor(1), "open");
        cluster.release(play.actor(1));
        cluster.wait_point(play.actor(1), "first");
        cluster.wait_point(play.actor(0), "held");
        cluster.kill(play.actor(0));
        cluster.release(play.actor(1));
    });
}
