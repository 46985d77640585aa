//! Programs with large steps that die again and again: what they had comes back to a domain that
//! goes on.

use crate::staged::{Play, stage};
use ndarray::{Array2, ArrayView2};
use samite_fabric::{Fabric, Mask};
use samite_stage::protocol::EndOfStream;
use samite_stage::{Method, Settings};
use samite_testkit::{Cluster, MESSAGES_ONLY, Outcome, check, pause, same};
use std::time::Duration;

/// Writers and readers each, of which all but the last are killed.
const LIVES: u32 = 21;
/// What the domain may have of memory, and its streams as the agent has it.
const BUDGET: u64 = 1 << 30;
/// A step has 64 MiB: a page a row.
const SHAPE: [u64; 2] = [16384, 512];
/// Steps that each life of the writer commits.
const STEPS: u64 = 1;

/// The first and the last word of a row.
fn stamp(life: u32, step: u64, row: u64) -> [u64; 2] {
    let stamp = u64::from(life) << 48 | step << 32 | row;
    [stamp, !stamp]
}

fn fill(field: &mut Array2<u64>, life: u32, step: u64) {
    for (row, mut words) in (0..).zip(field.rows_mut()) {
        let [first, last] = stamp(life, step, row);
        (words[0], words[511]) = (first, last);
    }
}

/// Of the life that committed it, from the first row to the last.
fn check_rows(field: ArrayView2<u64>, step: u64) -> Outcome {
    let life = (step / STEPS) as u32;
    for (row, words) in (0..).zip(field.rows()) {
        let found = [words[0], words[511]];
        check!(
            found == stamp(life, step, row),
            "step {step}, row {row}: {found:x?}"
        );
    }
    Ok(())
}

/// Even actors are lives of the writer, odd ones of the reader. All but the last of each stop in
/// the middle of a step, and are killed there.
fn one_life(fabric: &Fabric, me: u32) -> Outcome {
    let (life, is_last) = (me / 2, me / 2 == LIVES - 1);
    let settings = Settings {
        // A step that is written, and those that the last two readers have not finished.
        steps: Some(6),
        ..Settings::of(Method::Stream)
    };
    let stage = stage(fabric, settings)?;
    if me.is_multiple_of(2) {
        let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
        let mut values = Array2::zeros(SHAPE.map(|extent| extent as usize));
        for _ in 0..STEPS {
            let mut step = field.step()?;
            fill(&mut values, life, step.number());
            step.put("u", SHAPE, [0_u64, 0], values.view())?;
            step.commit()?;
        }
        if !is_last {
            let mut step = field.step()?;
            step.put("u", SHAPE, [0_u64, 0], values.view())?;
            pause("inside");
        }
        return Ok(field.close()?);
    }
    let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
    while let Some(step) = reader.next_step()? {
        let values: Array2<u64> = step.get("u", ..)?;
        check_rows(values.view(), step.number())?;
        if !is_last && step.number() == STEPS * u64::from(life + 1) - 1 {
            pause("inside");
        }
    }
    check!(is_last, "the stream ended under a reader in the middle");
    same!(reader.end(), Some(EndOfStream::Closed));
    Ok(())
}

/// Each life ends when the next one of the other side has begun.
fn kill_by_turns(cluster: &mut Cluster, play: &Play) {
    for me in 0..2 * LIVES {
        let who = play.actor(me);
        cluster.wait_point(who, "born");
        cluster.release(who);
        if me < 2 * LIVES - 2 {
            cluster.wait_point(who, "inside");
        }
        if let Some(other) = me.checked_sub(1).filter(|other| *other < 2 * LIVES - 2) {
            cluster.kill(play.actor(other));
            cluster.wait_gone(play.actor(other));
        }
    }
}

fn restarts(name: &str, mask: Mask) {
    let play = Play {
        memory: BUDGET / 4 * 3,
        ..Play::of(2 * LIVES, mask)
    };
    let units = play.units().budget(BUDGET);
    let part = |unit: &samite_testkit::Unit, me| {
        pause("born");
        one_life(&unit.join()?, me)
    };
    let units = units.timeout(Duration::from_secs(400));
    play.run_units(units, name, part, |cluster| kill_by_turns(cluster, &play));
}

#[test]
fn large_steps_and_many_restarts() {
    restarts(
        "faults::restarts::large_steps_and_many_restarts",
        Mask::default(),
    );
}

#[test]
fn large_steps_and_many_restarts_by_messages() {
    let name = "faults::restarts::large_steps_and_many_restarts_by_messages";
    restarts(name, MESSAGES_ONLY);
}
