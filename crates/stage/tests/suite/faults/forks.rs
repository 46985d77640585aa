//! A process that writes or reads forks, and the child drops everything that it has a copy of:
//! nothing of it was its own.

use crate::faults::{check_step, write};
use crate::staged::{Play, next, stage};
use samite_fabric::{Fabric, Mask};
use samite_stage::Settings;
use samite_testkit::{Failed, Outcome, check, full_name, pause, same};

const STEPS: u64 = 6;

/// What a child does with its copies, in the middle of a step; then it ends in order, as a program
/// that returns from `main`.
fn fork_and(child: impl FnOnce()) -> Outcome {
    let forked = fork::fork().map_err(|error| Failed::new(format!("fork: {error:?}")))?;
    let fork::Fork::Parent(pid) = forked else {
        child();
        std::process::exit(0);
    };
    let pid = rustix::process::Pid::from_raw(pid);
    let ended = rustix::process::waitpid(pid, rustix::process::WaitOptions::empty());
    let ended = ended.map_err(std::io::Error::from)?;
    same!(ended.and_then(|(_, status)| status.exit_status()), Some(0));
    Ok(())
}

fn writes(fabric: &Fabric) -> Outcome {
    let stage = stage(fabric, Settings::default())?;
    let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
    pause("open");
    same!(write(&mut field)?, 0);
    // The child has a copy of the writer, and of a step that is half written.
    let mut copies = Some((field, stage));
    let forked = fork_and(|| {
        if let Some((mut field, stage)) = copies.take() {
            if let Ok(step) = field.step() {
                drop(step);
            }
            drop((field, stage));
        }
    });
    forked?;
    let (mut field, _stage) = copies.ok_or_else(|| Failed::new("this is the parent"))?;
    for number in 1..STEPS {
        same!(write(&mut field)?, number);
    }
    Ok(field.close()?)
}

fn reads(fabric: &Fabric) -> Outcome {
    let stage = stage(fabric, Settings::default())?;
    let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
    pause("open");
    let step = next(&mut reader)?;
    same!(step.number(), 0);
    let mut copies = Some((step, reader));
    fork_and(|| drop(copies.take()))?;
    let (step, mut reader) = copies.ok_or_else(|| Failed::new("this is the parent"))?;
    // It is still held, and the reader is still open.
    check_step(&step)?;
    drop(step);
    for number in 1..STEPS {
        let step = next(&mut reader)?;
        same!(step.number(), number);
        check_step(&step)?;
    }
    check!(reader.next_step()?.is_none());
    Ok(())
}

/// Writer and reader fork, and their children drop a `Writer`, a step that is begun, a `Reader` and
/// a step that is held: none of them leaves, gives back, closes or releases in the name of its
/// parent.
#[test]
fn a_fork_says_nothing_for_its_parent() {
    let play = Play::of(2, Mask::default());
    let body = |fabric: &Fabric, me: u32| match me {
        0 => writes(fabric),
        _ => reads(fabric),
    };
    let name = full_name(module_path!(), "a_fork_says_nothing_for_its_parent");
    play.run(&name, body, |cluster| {
        let both = [play.actor(0), play.actor(1)];
        for who in both {
            cluster.wait_point(who, "open");
        }
        for who in both {
            cluster.release(who);
        }
        cluster.all_end();
    });
}
