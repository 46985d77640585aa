//! The same program with every method; staging servers that die.

#![allow(
    clippy::result_large_err,
    reason = "errors name boxes; they are rare, and never on the way of a byte"
)]

use crate::staged::{Play, is_right, next, rows, stage};
use ndarray::{Array2, s};
use rustix::process::{Resource, Rlimit, setrlimit};
use samite_fabric::{Fabric, Mask};
use samite_stage::protocol::{Attribute, Fault};
use samite_stage::{Error, Method, Settings};
use samite_testkit::{MESSAGES_ONLY, Outcome, Who, check, of_first_node, pause, point, same};
use std::path::PathBuf;

/// A megabyte a step: sixteen pieces, where it is cut.
const SHAPE: [u64; 2] = [256, 512];

fn folder(domain: &str) -> PathBuf {
    std::env::temp_dir().join(format!("samite-{domain}"))
}

fn settings(fabric: &Fabric, method: Method, replicas: u32) -> Settings {
    Settings {
        replicas,
        steps: Some(8),
        folder: folder(of_first_node(fabric.domain().unwrap_or_default())),
        ..Settings::of(method)
    }
}

/// Two ranks put and allocate rows; one reader takes boxes across them.
fn any_method(fabric: &Fabric, me: u32, method: Method) -> Outcome {
    let stage = stage(fabric, settings(fabric, method, 1))?;
    if me < 2 {
        let mut field = stage.write("field").as_rank("solver", me, 2).open()?;
        for number in 0..4 {
            let (from, to) = (128 * u64::from(me), 128 * u64::from(me) + 128);
            let mut step = field.step()?;
            same!(step.number(), number);
            let whole = rows(number, from..to, 512);
            step.put("u", SHAPE, [from, 0], whole.slice(s![..100, ..]))?;
            let mut rest = step.alloc::<f64>("u", SHAPE, [from + 100, 0], [28_u64, 512])?;
            rest.assign(&whole.slice(s![100.., ..]).into_dyn());
            if me == 0 {
                let turned = rows(number, 0..30, 20);
                step.put("v", [20_u64, 30], [0_u64, 0], turned.t())?;
                step.put::<f64, _>("none", [5_u64, 0], [0_u64, 0], Array2::zeros((5, 0)).view())?;
                step.attribute("time", Attribute::Integer(number as i64));
            }
            step.commit()?;
        }
        return Ok(field.close()?);
    }
    let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
    for number in 0..4 {
        let step = next(&mut reader)?;
        same!((step.number(), step.writers()), (number, 2));
        same!(
            step.attribute("time"),
            Some(&Attribute::Integer(number as i64))
        );
        let all: Array2<f64> = step.get("u", ..)?;
        check!(is_right(number, (0, 0), all.view()));
        let part: Array2<f64> = step.get("u", [90_u64..140, 500..509])?;
        check!(is_right(number, (90, 500), part.view()), "{part}");
        let turned: Array2<f64> = step.get("v", ..)?;
        check!(is_right(number, (0, 0), turned.t()), "{turned}");
        check!(step.variable("none").is_ok());
        check!(matches!(
            step.get::<i64, ndarray::Ix2>("u", ..),
            Err(Error::Clash { .. })
        ));
    }
    check!(reader.next_step()?.is_none());
    Ok(())
}

fn with(name: &str, method: Method, mask: Mask) {
    let play = Play {
        servers: if method == Method::Server { 2 } else { 0 },
        ..Play::of(3, mask)
    };
    play.run(
        name,
        |fabric, me| any_method(fabric, me, method),
        |cluster| {
            cluster.all_end();
            let _ = std::fs::remove_dir_all(folder(cluster.domain()));
        },
    );
}

#[test]
fn local() {
    with("methods::local", Method::Local, Mask::default());
}

#[test]
fn local_by_messages() {
    with("methods::local_by_messages", Method::Local, MESSAGES_ONLY);
}

#[test]
fn server() {
    with("methods::server", Method::Server, Mask::default());
}

#[test]
fn server_by_messages() {
    with("methods::server_by_messages", Method::Server, MESSAGES_ONLY);
}

#[test]
fn file() {
    with("methods::file", Method::File, Mask::default());
}

/// Where the file of the writer below may not grow any more: in the middle of the data of step 3.
const HALF_A_STEP: u64 = 5 << 20;

/// From now on the system ends this process at the byte of a file that lies there: no moment to be
/// hit, and no core.
fn die_in_the_middle_of_a_file() -> Outcome {
    for (what, limit) in [(Resource::Core, 0), (Resource::Fsize, HALF_A_STEP)] {
        let limit = Rlimit {
            current: Some(limit),
            maximum: Some(limit),
        };
        setrlimit(what, limit)?;
    }
    Ok(())
}

/// What a life of the writer writes as a step: another one would write something else.
fn of_life(life: u64, step: u64) -> u64 {
    step + 1000 * life
}

/// A writer of files dies when a part of a step is in its file; the next one goes on, and a reader
/// sees no seam: each step is that of one life.
#[test]
fn a_file_goes_on_after_a_crash() {
    let play = Play::of(3, Mask::default());
    let file = |domain: &str| folder(domain).join("a%2ffield/rank-0.samite");
    let body = |fabric: &Fabric, me: u32| {
        if me == 1 {
            pause("begin");
            let path = file(of_first_node(fabric.domain().unwrap_or_default()));
            same!(std::fs::metadata(path)?.len(), HALF_A_STEP);
        }
        let stage = stage(fabric, settings(fabric, Method::File, 1))?;
        if me == 2 {
            let mut reader = stage.read("a/field").as_rank("analysis", 0, 1).open()?;
            for number in 0..5 {
                let step = next(&mut reader)?;
                same!(step.number(), number);
                let life = u64::from(number >= 3);
                let all: Array2<f64> = step.get("u", ..)?;
                check!(is_right(of_life(life, number), (0, 0), all.view()));
                let half: Array2<f64> = step.get("half", [0..128_u64, 0..512])?;
                check!(is_right(of_life(life, number), (0, 0), half.view()));
                let hole = step.get::<f64, ndarray::Ix2>("half", ..);
                check!(matches!(hole, Err(Error::Hole { .. })), "{hole:?}");
            }
            check!(reader.at(2)?.is_some());
            check!(reader.next_step()?.is_none());
            return Ok(());
        }
        let life = u64::from(me);
        let mut field = stage.write("a/field").as_rank("solver", 0, 1).open()?;
        same!(field.next_step(), if me == 0 { 0 } else { 3 });
        while field.next_step() < 5 {
            let mut step = field.step()?;
            let whole = rows(of_life(life, step.number()), 0..256, 512);
            step.put("u", SHAPE, [0_u64, 0], whole.view())?;
            step.put("half", SHAPE, [0_u64, 0], whole.slice(s![..128, ..]))?;
            if me == 0 && step.number() == 3 {
                die_in_the_middle_of_a_file()?;
            }
            step.commit()?;
        }
        Ok(field.close()?)
    };
    play.run("methods::a_file_goes_on_after_a_crash", body, |cluster| {
        cluster.let_die(play.actor(0));
        cluster.wait_gone(play.actor(0));
        cluster.wait_point(play.actor(1), "begin");
        cluster.release(play.actor(1));
        cluster.all_end();
        let _ = std::fs::remove_dir_all(folder(cluster.domain()));
    });
}

/// When a server is killed: after three steps, or while the third is written.
#[derive(Clone, Copy, PartialEq)]
enum When {
    Between,
    Within,
}

/// One of two servers is killed; three or four more steps follow.
fn a_server_dies(fabric: &Fabric, me: u32, replicas: u32, when: When) -> Outcome {
    let stage = stage(fabric, settings(fabric, Method::Server, replicas))?;
    if me == 0 {
        let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
        let mut is_done = false;
        while field.next_step() < 6 {
            let mut step = field.step()?;
            let number = step.number();
            step.put("u", SHAPE, [0_u64, 0], rows(number, 0..256, 512).view())?;
            if number == 2 && when == When::Within && !is_done {
                is_done = true;
                pause("three steps");
            }
            match step.commit() {
                Ok(()) => {}
                // It is written again, to the server that is left.
                Err(Error::Fault(Fault::BlockStoreLost { step: 2, .. })) => same!(replicas, 1),
                Err(other) => check!(false, "{other}"),
            }
            if number == 2 && when == When::Between {
                pause("three steps");
            }
        }
        return Ok(field.close()?);
    }
    let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
    {
        let held = next(&mut reader)?;
        pause("one step held");
        // What was taken before the loss: all of it with another copy, or where it is mapped.
        let all = held.get::<f64, ndarray::Ix2>("u", ..);
        match all {
            Ok(all) => check!(is_right(0, (0, 0), all.view())),
            Err(Error::Fault(Fault::Damaged { step: 0, .. })) => same!(replicas, 1),
            Err(other) => check!(false, "{other}"),
        }
    }
    for number in 1..6 {
        match reader.next_step() {
            Ok(Some(step)) => {
                same!(step.number(), number);
                // The step that was being written is written again, where its writer heard of the
                // loss in time.
                let again = number == 2 && when == When::Within;
                let is_whole = replicas == 2 || number > 2 || again;
                match step.get::<f64, ndarray::Ix2>("u", ..) {
                    Ok(all) => check!(is_whole && is_right(number, (0, 0), all.view())),
                    // It was taken before anybody had noticed the loss.
                    Err(Error::Fault(Fault::Damaged { step, .. })) => {
                        same!((is_whole, step), (false, number));
                    }
                    Err(other) => check!(false, "step {number}: {other}"),
                }
            }
            Err(Error::Fault(Fault::Damaged { step, block_stores })) => {
                same!((replicas, step, block_stores.len()), (1, number, 1));
                check!(number <= 2);
            }
            other => check!(
                false,
                "step {number}: {:?}",
                other.map(|step| step.is_some())
            ),
        }
    }
    check!(reader.next_step()?.is_none());
    point("all read");
    Ok(())
}

fn loss(name: &str, replicas: u32, when: When, mask: Mask) {
    let play = Play {
        servers: 2,
        ..Play::of(2, mask)
    };
    play.run(
        name,
        |fabric, me| a_server_dies(fabric, me, replicas, when),
        |cluster| {
            cluster.wait_point(play.actor(0), "three steps");
            cluster.wait_point(play.actor(1), "one step held");
            cluster.kill(Who::Unit(1));
            cluster.wait_gone(Who::Unit(1));
            cluster.release(play.actor(1));
            cluster.release(play.actor(0));
            cluster.wait_point(play.actor(1), "all read");
        },
    );
}

#[test]
fn two_replicas_lose_nothing() {
    let name = "methods::two_replicas_lose_nothing";
    loss(name, 2, When::Between, Mask::default());
}

#[test]
fn two_replicas_lose_nothing_by_messages() {
    let name = "methods::two_replicas_lose_nothing_by_messages";
    loss(name, 2, When::Between, MESSAGES_ONLY);
}

#[test]
fn two_replicas_lose_nothing_within_a_step() {
    let name = "methods::two_replicas_lose_nothing_within_a_step";
    loss(name, 2, When::Within, Mask::default());
}

#[test]
fn two_replicas_lose_nothing_within_a_step_by_messages() {
    let name = "methods::two_replicas_lose_nothing_within_a_step_by_messages";
    loss(name, 2, When::Within, MESSAGES_ONLY);
}

#[test]
fn one_replica_is_an_error_that_names_the_server() {
    let name = "methods::one_replica_is_an_error_that_names_the_server";
    loss(name, 1, When::Between, Mask::default());
}

#[test]
fn one_replica_within_a_step_by_messages() {
    let name = "methods::one_replica_within_a_step_by_messages";
    loss(name, 1, When::Within, MESSAGES_ONLY);
}

/// Nobody has started servers.
#[test]
fn no_server() {
    Play::of(1, Mask::default()).run(
        "methods::no_server",
        |fabric, _| {
            let stage = stage(fabric, Settings::of(Method::Server))?;
            fabric.set_deadline(std::time::Duration::from_millis(30));
            let opened = stage.writer("field").map(drop);
            check!(matches!(opened, Err(Error::NoServers { .. })), "{opened:?}");
            Ok(())
        },
        |_| (),
    );
}
