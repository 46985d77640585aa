//! Processes that are killed or come late, readers that are slow, blocks that do not fit together.
//!
//! `SAMITE_SEED` runs the random kills of a seed again; the seed of every run is printed.

#![allow(
    clippy::result_large_err,
    reason = "errors name boxes; they are rare, and never on the way of a byte"
)]

mod anybody;
mod circles;
mod copies;
mod ends;
mod for_job;
mod forked_files;
mod forks;
mod frozen;
mod kills;
mod policies;
mod ranks;
mod restarts;
mod servers;
mod slots;
mod stages;
mod waited;

use crate::staged::{is_right, rows};
use ndarray::{Array2, s};
use samite_testkit::{Outcome, check, same};

const SHAPE: [u64; 2] = [64, 64];

/// What happens by chance: as `SAMITE_SEED` says, or anew.
fn random() -> fastrand::Rng {
    let seed = std::env::var("SAMITE_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("SAMITE_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

fn write(field: &mut samite_stage::Writer) -> samite_stage::Result<u64> {
    write_in_life(field, 0, SHAPE)
}

/// Lives of a writer write different values at every place, in every step: one that has values of
/// two is seen.
const LIVES: u64 = 1 << 16;

/// Writes a step, in four blocks, as a life of the writer does.
fn write_in_life(
    field: &mut samite_stage::Writer,
    life: u64,
    [height, width]: [u64; 2],
) -> samite_stage::Result<u64> {
    let mut step = field.step()?;
    let number = step.number();
    let whole = rows(number + life * LIVES, 0..height, width);
    for part in 0..4 {
        let (first, last) = (part * height / 4, (part + 1) * height / 4);
        let block = whole.slice(s![first as usize..last as usize, ..]);
        step.put("u", [height, width], [first, 0], block)?;
    }
    step.commit()?;
    Ok(number)
}

/// Which life of the writer has written a step, every value of it.
fn life_of(step: &samite_stage::StepReader, [height, width]: [u64; 2]) -> Outcome<u64> {
    let all: Array2<f64> = step.get("u", ..)?;
    same!(all.dim(), (height as usize, width as usize));
    let number = step.number();
    let content = (all[[0, 0]] / crate::staged::value(1, 0, 0)) as u64;
    let life = content.saturating_sub(number) / LIVES;
    check!(
        is_right(number + life * LIVES, (0, 0), all.view()),
        "step {number}, which begins as life {life} of its writer has written it"
    );
    Ok(life)
}

fn check_step(step: &samite_stage::StepReader) -> Outcome {
    same!(life_of(step, SHAPE)?, 0);
    Ok(())
}

fn check_never(what: &str) -> Outcome {
    check!(false, "{what}");
    Ok(())
}
