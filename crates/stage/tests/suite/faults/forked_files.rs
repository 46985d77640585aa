//! A writer of files whose fork lives on when it is killed: the fork has its descriptors, and
//! writes nothing.

use crate::faults::waited::{Waits, compute_until};
use crate::faults::{life_of, write_in_life};
use crate::staged::{Play, next, stage};
use samite_fabric::{Fabric, Mask};
use samite_stage::protocol::{EndOfStream, Failure, Fault};
use samite_stage::{Error, Method, Settings};
use samite_testkit::{Failed, Outcome, check, full_name, of_first_node, pause, point, same};
use std::path::PathBuf;
use std::time::Duration;

const SHAPE: [u64; 2] = [16, 16];
const LEASE: Duration = Duration::from_millis(300);

fn folder(domain: &str) -> PathBuf {
    std::env::temp_dir().join(format!("samite-{domain}"))
}

/// Where the fork says which process it is.
fn number(domain: &str) -> PathBuf {
    folder(domain).join("fork")
}

/// A process that has all files of this one, and does nothing.
fn fork_a_sleeper(domain: &str) -> Outcome {
    let child = fork::fork().map_err(|error| Failed::new(format!("fork: {error:?}")))?;
    let fork::Fork::Parent(child) = child else {
        // Whoever listens to the parent hears when it ends.
        let _ = fork::close_fd();
        // Until the test ends it, which is its moment; this is the end of a test that has failed.
        std::thread::sleep(Duration::from_secs(120));
        std::process::exit(0);
    };
    Ok(std::fs::write(number(domain), child.to_string())?)
}

fn end_the_sleeper(domain: &str) {
    let child = std::fs::read_to_string(number(domain)).expect("it was written");
    let child = child.parse().ok().and_then(rustix::process::Pid::from_raw);
    let child = child.expect("a process");
    rustix::process::kill_process(child, rustix::process::Signal::KILL).expect("it sleeps");
    // Nobody of this test is its parent: it is gone, or a zombie with nothing, when its files are.
    let files = format!("/proc/{}/fd", child.as_raw_nonzero());
    while std::fs::read_dir(&files).is_ok_and(|mut files| files.next().is_some()) {
        std::thread::yield_now();
    }
}

#[test]
fn a_fork_of_a_killed_writer_is_no_writer() {
    let play = Play::of(3, Mask::default());
    let body = |fabric: &Fabric, me: u32| -> Outcome {
        let domain = of_first_node(fabric.domain().unwrap_or_default()).to_owned();
        if me == 2 {
            pause("begin");
        }
        let settings = Settings {
            lease: LEASE,
            folder: folder(&domain),
            ..Settings::of(Method::File)
        };
        let stage = stage(fabric, settings)?;
        if me == 1 {
            let waits = Waits::of(fabric);
            let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
            for number in 0..2 {
                let step = next(&mut reader)?;
                same!((step.number(), life_of(&step, SHAPE)?), (number, 0));
            }
            pause("read");
            let failed = reader.next_step().map(|step| step.is_some());
            let how = Failure::GaveUp;
            check!(
                matches!(&failed, Err(Error::Fault(Fault::WriterFailed { rank: 0, how: was, .. })) if *was == how),
                "{failed:?}"
            );
            pause("told");
            for number in 2..5 {
                let step = waits.during(|| next(&mut reader))?;
                same!((step.number(), life_of(&step, SHAPE)?), (number, 1));
                point(&format!("step {number}"));
            }
            check!(reader.next_step()?.is_none());
            same!(reader.end(), Some(EndOfStream::Closed));
            return Ok(());
        }
        let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
        if me == 0 {
            write_in_life(&mut field, 0, SHAPE)?;
            write_in_life(&mut field, 0, SHAPE)?;
            fork_a_sleeper(&domain)?;
            pause("two steps");
            return Ok(());
        }
        // The fork has the lock; a while later nobody has, and this one is still there.
        same!(write_in_life(&mut field, 1, SHAPE)?, 2);
        pause("computing");
        compute_until(fabric, 2, 3 * LEASE)?;
        same!(write_in_life(&mut field, 1, SHAPE)?, 3);
        let second = stage.write("field").as_rank("solver", 0, 1).open();
        check!(second.is_err(), "two writers of a rank");
        compute_until(fabric, 2, 2 * LEASE)?;
        same!(write_in_life(&mut field, 1, SHAPE)?, 4);
        Ok(field.close()?)
    };
    let name = full_name(module_path!(), "a_fork_of_a_killed_writer_is_no_writer");
    play.run(&name, body, |cluster| {
        let (first, reader, second) = (play.actor(0), play.actor(1), play.actor(2));
        cluster.wait_point(first, "two steps");
        cluster.wait_point(reader, "read");
        cluster.kill(first);
        cluster.wait_gone(first);
        cluster.release(reader);
        cluster.wait_point(reader, "told");
        cluster.wait_point(second, "begin");
        cluster.release(second);
        cluster.wait_point(second, "computing");
        cluster.release(reader);
        cluster.wait_point(reader, "step 2");
        end_the_sleeper(cluster.domain());
        cluster.release(second);
        cluster.all_end();
        let _ = std::fs::remove_dir_all(folder(cluster.domain()));
    });
}
