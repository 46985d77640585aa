//! The sequential run with which a result is compared.

use std::io::Write;

use samite::program::Reporter;
use samite::stage::StepReader;

use super::FIELD;
use super::analysis::{SAMPLES, problem};
use super::figures::{Found, Kind};
use crate::Error;
use samite_relaxation::{Comparison, Samples, Sequential};

/// Computes everything again with the textbook algorithm. Compares the largest changes of the steps
/// exactly, their figures up to rounding, and the last step bit by bit, even if not all units have
/// taken it.
///
/// # Errors
/// [`Error::Figures`] for the first step with other figures, and if there is no step to compare.
pub(super) fn check(
    last: &StepReader,
    found: &[Found],
    kind: Kind,
    out: &mut dyn Write,
) -> Result<Comparison, Error> {
    let problem = problem(last)?;
    let checked = kind.checked(found);
    if checked.is_empty() {
        return Err(Error::Figures {
            step: last.number(),
            what: "the units of the analysis have no step in common, so nothing was checked".into(),
        });
    }
    let mut reporter = Reporter::new(out, last.number());
    let samples = Samples::new(&problem, SAMPLES);
    let mut sequential = Sequential::new(problem);
    let report = |done| reporter.report(done, || "checking against the sequential run".into());
    along(
        &mut sequential,
        found,
        last.number(),
        report,
        |field, change, ours| {
            same_change(ours.step, ours.change, change)?;
            if !checked.contains(&ours.step) {
                return Ok(());
            }
            let expected = kind.expected(field, &samples);
            ours.figures.check(ours.step, &expected)
        },
    )?;
    let mut row = vec![0.0; problem.cols()];
    let mut comparison = Comparison::default();
    for at in 0..problem.rows() {
        last.read_into(FIELD, [at..at + 1, 0..problem.cols()], &mut row)?;
        comparison = comparison.merge(sequential.compare_row(at, &row));
    }
    Ok(comparison)
}

/// Compares the largest change of a cell in a step with that of the sequential solver. It is exact:
/// the largest of the same numbers, in whatever order. The field before the first step has none.
///
/// # Errors
/// [`Error::Figures`] if it differs, or if a unit of the solver has reported none.
pub(super) fn same_change(step: u64, ours: Option<f64>, theirs: Option<f64>) -> Result<(), Error> {
    if ours.map(f64::to_bits) == theirs.map(f64::to_bits) {
        return Ok(());
    }
    let text =
        |change: Option<f64>| change.map_or("unknown".to_owned(), |change| change.to_string());
    Err(Error::Figures {
        step,
        what: format!(
            "the largest change of a cell is {}, and that of the sequential solver {}",
            text(ours),
            text(theirs)
        ),
    })
}

/// Computes up to step `last`, and calls `look` for the steps that were found, with the largest
/// change of a cell in this step.
fn along(
    sequential: &mut Sequential,
    found: &[Found],
    last: u64,
    mut report: impl FnMut(u64) -> std::io::Result<()>,
    mut look: impl FnMut(&Sequential, Option<f64>, &Found) -> Result<(), Error>,
) -> Result<(), Error> {
    // The policy may have dropped steps; not all units need to have the last one.
    let mut found = found.iter().peekable();
    for step in 0..=last {
        let change = (step > 0).then(|| sequential.step());
        if step > 0 {
            report(step)?;
        }
        while let Some(ours) = found.next_if(|ours| ours.step <= step) {
            look(sequential, change, ours)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_relaxation::Problem;

    #[test]
    fn the_field_is_that_of_the_last_step_whatever_was_found() {
        let problem = Problem::new(6, 5).unwrap();
        for steps in [&[0, 1, 2, 3, 4][..], &[0, 2], &[1], &[4], &[]] {
            let found = |step: &u64| Found {
                step: *step,
                change: None,
                figures: Kind::Moments.nothing(),
            };
            let found: Vec<Found> = steps.iter().map(found).collect();
            let (mut sequential, mut seen) = (Sequential::new(problem), Vec::new());
            let look = |field: &Sequential, change: Option<f64>, ours: &Found| {
                seen.push((ours.step, change, field.row(3).to_vec()));
                Ok(())
            };
            along(&mut sequential, &found, 4, |_| Ok(()), look).unwrap();
            let (mut plain, mut expected) = (Sequential::new(problem), Vec::new());
            for step in 0..=4 {
                let change = (step > 0).then(|| plain.step());
                if steps.contains(&step) {
                    expected.push((step, change, plain.row(3).to_vec()));
                }
            }
            assert_eq!(seen, expected);
            assert!((0..6).all(|row| sequential.row(row) == plain.row(row)));
        }
    }

    #[test]
    fn another_largest_change_is_found() {
        let change = 0.1 + 0.2;
        same_change(0, None, None).unwrap();
        same_change(1, Some(change), Some(change)).unwrap();
        for wrong in [Some(0.3), Some(f64::NAN), Some(0.0), None] {
            let judged = same_change(1, wrong, Some(change));
            let text = judged.unwrap_err().to_string();
            assert!(
                text.contains("the sequential solver 0.30000000000000004"),
                "{text}"
            );
        }
        assert!(same_change(0, Some(0.0), None).is_err());
    }
}
