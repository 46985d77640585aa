//! The program `laplace-monitor`: watches a coarse field, and steers the solver.

use std::io::Write;

use clap::Parser;
use ndarray::{ArrayD, IxDyn, Zip, array};
use samite::Fabric;
use samite::program::Units;
use samite::stage::Stage;

use samite_relaxation::larger;
use samite_relaxation::problem::INITIAL;

use crate::{COARSE, Error, FIELD, ORDERS, Rule, Steering};

/// Watches the solver's field as an edge transforms it, each unit its own part, and tells the
/// solver how to continue.
#[derive(Clone, Debug, Parser)]
#[command(name = "laplace-monitor")]
pub struct Args {
    /// How the solver is steered.
    #[command(flatten)]
    pub rule: Rule,
}

/// Runs one unit. Collective over the program; returns when it has told the solver to stop.
///
/// # Errors
/// [`Error::Stage`] if a stream is lost, or not linked, [`Error::Ended`] if the field ends before
/// that.
pub fn run(fabric: &Fabric, args: &Args, _: &mut dyn Write) -> Result<(), Error> {
    let units = Units::wait_for_all(fabric)?;
    let stage = Stage::join(fabric)?;
    let mut coarse = stage.reader(COARSE)?;
    let own = fabric.identity();
    // All units decide on the same command; one of them sends it.
    let mut orders = match own.rank {
        0 => Some(stage.write(ORDERS).as_rank(&own.program, 0, 1).open()?),
        _ => None,
    };
    let mut steering = Steering::new(&args.rule);
    let mut before = None;
    while let Some(step) = coarse.next_step()? {
        let (number, field) = (step.number(), step.mine::<f64, IxDyn>(FIELD)?.array);
        drop(step);
        let change = largest_change(number, before.as_ref(), &field)?;
        before = Some(field);
        let all = units.share(&change.to_ne_bytes())?;
        let all = all.iter().map(|bytes| bytes.as_slice().try_into());
        let all = all.map(|bytes| bytes.map_or(f64::NAN, f64::from_ne_bytes));
        let next = steering.decide(all.fold(0.0, larger));
        if let Some(orders) = &mut orders {
            let mut step = orders.step()?;
            let command = array![next.factor, f64::from(u8::from(next.stop))];
            step.put(ORDERS, [2_u64], [0_u64], command.view())?;
            step.commit()?;
        }
        if next.stop {
            if let Some(orders) = orders {
                orders.close()?;
            }
            return Ok(());
        }
    }
    let what = "the field ended before it was at rest";
    Err(Error::Ended(what.to_owned()))
}

/// Returns the largest change of a mean since the last look; before the first one, all cells were
/// equal. 0 for a unit without a part.
///
/// # Errors
/// [`Error::Figures`] if the shape of the field has changed.
fn largest_change(
    step: u64,
    before: Option<&ArrayD<f64>>,
    now: &ArrayD<f64>,
) -> Result<f64, Error> {
    let larger = |largest: f64, before: f64, now: f64| larger(largest, (now - before).abs());
    Ok(match before {
        None => now.fold(0.0, |largest, now| larger(largest, INITIAL, *now)),
        Some(before) if before.shape() != now.shape() => {
            let (now, before) = (now.shape(), before.shape());
            let what = format!("a part of the field has shape {now:?}, and had {before:?}");
            return Err(Error::Figures { step, what });
        }
        Some(before) => Zip::from(before)
            .and(now)
            .fold(0.0, |largest, before, now| larger(largest, *before, *now)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_change_of_a_mean() {
        let field = |cells: [f64; 3]| ArrayD::from_shape_vec(IxDyn(&[1, 3]), cells.into()).unwrap();
        let change = |before: Option<[f64; 3]>, now| {
            largest_change(7, before.map(field).as_ref(), &field(now)).unwrap()
        };
        assert_eq!(change(None, [INITIAL + 2.0, INITIAL - 5.0, INITIAL]), 5.0);
        assert_eq!(change(Some([1.0, 2.0, 3.0]), [1.5, 2.0, 2.0]), 1.0);
        // NaN does not count as convergence.
        assert!(change(Some([1.0, 2.0, 3.0]), [1.0, f64::NAN, 3.0]).is_nan());
        assert!(change(None, [f64::NAN, INITIAL, INITIAL]).is_nan());
        let other = field([1.0; 3])
            .into_shape_with_order(IxDyn(&[3, 1]))
            .unwrap();
        let wrong = largest_change(7, Some(&other), &field([1.0; 3]));
        assert!(
            matches!(wrong, Err(Error::Figures { step: 7, .. })),
            "{wrong:?}"
        );
    }
}
