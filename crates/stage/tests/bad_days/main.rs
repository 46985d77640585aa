//! Processes that are killed or come late, readers that are slow, blocks that do not fit together.
//!
//! `SAMITE_SEED` runs the random kills of a seed again; the seed of every run is printed.

#![allow(
    clippy::result_large_err,
    reason = "errors name boxes; they are rare, and never on the way of a byte"
)]

mod anybody;
mod copies;
mod ends;
mod frozen;
mod kills;
mod policies;
mod ranks;
mod servers;
mod slots;
#[path = "../staged/mod.rs"]
mod staged;
mod stages;

use ndarray::Array2;
use samite_testkit::{Outcome, check};
use staged::{is_right, rows};

const SHAPE: [u64; 2] = [64, 64];

/// What happens by chance: as `SAMITE_SEED` says, or anew.
fn random() -> fastrand::Rng {
    let seed = std::env::var("SAMITE_SEED").ok();
    let seed = seed.and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("SAMITE_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

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

fn check_never(what: &str) -> Outcome {
    check!(false, "{what}");
    Ok(())
}
