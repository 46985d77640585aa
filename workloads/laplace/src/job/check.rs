//! The sequential run with which a result is compared.

use std::io::Write;

use samite::program::Reporter;
use samite::stage::StepReader;
use samite::stage::space::Grid;

use super::FIELD;
use super::analysis::problem;
use super::figures::{Found, Kind};
use crate::{Comparison, Error, Sequential};

/// Computes everything again with the textbook algorithm. Compares the figures of the steps up to
/// rounding, and the last step bit by bit, even if not all units have taken it.
///
/// # Errors
/// [`Error::Figures`] for the first step with other figures, and if there is no step to compare.
pub(super) fn check(
    last: &StepReader,
    found: &[Found],
    kind: Kind,
    readers: u32,
    out: &mut dyn Write,
) -> Result<Comparison, Error> {
    let problem = problem(last)?;
    let shape = [problem.rows() as u64];
    let grid = Grid::along(&shape, 0, readers.into()).map_err(samite::stage::Error::from)?;
    // The first row of each unit: the study computes block by block.
    let cuts = (0..readers).map(|rank| grid.part(rank.into()).lower()[0] as usize);
    let cuts: Vec<usize> = cuts.chain([problem.rows()]).collect();
    let checked = kind.checked(found);
    if checked.is_empty() {
        return Err(Error::Figures {
            step: last.number(),
            what: "the units of the analysis have no step in common, so nothing was checked".into(),
        });
    }
    let mut reporter = Reporter::new(out, last.number());
    let mut sequential = Sequential::new(problem);
    let report = |done| reporter.report(done, || "checking against the sequential run".into());
    along(
        &mut sequential,
        found,
        last.number(),
        report,
        |field, ours| {
            if !checked.contains(&ours.step) {
                return Ok(());
            }
            ours.figures.check(ours.step, &kind.expected(field, &cuts))
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

/// Computes up to step `last`, and calls `look` for the steps that were found.
fn along(
    sequential: &mut Sequential,
    found: &[Found],
    last: u64,
    mut report: impl FnMut(u64) -> std::io::Result<()>,
    mut look: impl FnMut(&Sequential, &Found) -> Result<(), Error>,
) -> Result<(), Error> {
    // The policy may have dropped steps; not all units need to have the last one.
    let mut found = found.iter().peekable();
    for step in 0..=last {
        if step > 0 {
            sequential.step();
            report(step)?;
        }
        while let Some(ours) = found.next_if(|ours| ours.step <= step) {
            look(sequential, ours)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Problem;

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
            let look = |field: &Sequential, ours: &Found| {
                seen.push((ours.step, field.row(3).to_vec()));
                Ok(())
            };
            along(&mut sequential, &found, 4, |_| Ok(()), look).unwrap();
            let (mut plain, mut expected) = (Sequential::new(problem), Vec::new());
            for step in 0..=4 {
                if step > 0 {
                    plain.step();
                }
                if steps.contains(&step) {
                    expected.push((step, plain.row(3).to_vec()));
                }
            }
            assert_eq!(seen, expected);
            assert!((0..6).all(|row| sequential.row(row) == plain.row(row)));
        }
    }
}
