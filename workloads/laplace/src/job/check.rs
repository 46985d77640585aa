//! The sequential run that a result is compared with.

use std::io::Write;

use samite::program::Reporter;
use samite::stage::StepReader;
use samite::stage::space::Grid;

use super::FIELD;
use super::analysis::problem;
use super::figures::{Found, Kind};
use crate::{Comparison, Error, Sequential};

/// Computes all again as the textbook has it: figures of the steps up to rounding, the last step bit by bit.
///
/// # Errors
/// [`Error::Figures`] of the first step that has other figures, and when there is no step to compare.
pub(super) fn check(
    last: &StepReader<'_>,
    found: &[Found],
    kind: Kind,
    readers: u32,
    out: &mut dyn Write,
) -> Result<Comparison, Error> {
    let problem = problem(last)?;
    let shape = [problem.rows() as u64];
    let grid = Grid::along(&shape, 0, readers.into()).map_err(samite::stage::Error::from)?;
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
    let mut done = 0;
    for ours in found {
        // The policy may have dropped some between.
        while done < ours.step {
            sequential.step();
            done += 1;
            reporter.report(done, || "checking against the sequential run".into())?;
        }
        if checked.contains(&ours.step) {
            let expected = kind.expected(&sequential, &cuts);
            ours.figures.check(ours.step, &expected)?;
        }
    }
    let mut row = vec![0.0; problem.cols()];
    let mut comparison = Comparison::default();
    for at in 0..problem.rows() {
        last.read_into(FIELD, [at..at + 1, 0..problem.cols()], &mut row)?;
        comparison = comparison.merge(sequential.compare_row(at, &row));
    }
    Ok(comparison)
}
