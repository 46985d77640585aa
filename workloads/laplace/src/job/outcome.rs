//! The result of a run: the summary on the terminal, and the report.

use std::io::Write;
use std::path::{Path, absolute};
use std::time::Duration;

use samite::program::Summary;

use super::analysis::Seen;
use crate::{
    Check, Comparison, Error, Fact, Picture, Problem, Progress, Report, Residual, StepRecord,
};

/// The field is called converged if it is closer than this to the solution of the discrete
/// equations (root of the mean square).
const CONVERGED: f64 = 1e-3;

/// Everything that is known after the last step.
pub(super) struct Outcome {
    pub(super) problem: Problem,
    /// The first row of each block.
    pub(super) first_rows: Vec<usize>,
    pub(super) writers: u32,
    pub(super) readers: u32,
    pub(super) seen: Seen,
    /// At least that of step 0.
    pub(super) records: Vec<StepRecord>,
    pub(super) picture: Picture,
    pub(super) residual: Residual,
    /// `None` if it was not requested.
    pub(super) comparison: Option<Comparison>,
    /// Number of steps whose figures are equal to those of the sequential run, if that was requested.
    pub(super) checked: usize,
    /// From the first step to the end of the last one.
    pub(super) elapsed: Duration,
    pub(super) checking: Duration,
    /// The seconds of the slowest solver unit: computing, at borders, waiting.
    pub(super) solver: [f64; 3],
}

impl Outcome {
    /// Writes the report, prints the summary and the path of the report.
    pub(super) fn show(&self, report: &Path, out: &mut dyn Write) -> Result<(), Error> {
        let (checks, timings) = (self.checks(), self.timings());
        std::fs::write(report, self.html(&checks, &timings)?).map_err(|source| Error::Report {
            path: report.to_path_buf(),
            source,
        })?;
        let mut summary = Summary::new("Laplace, and its moments by a stream");
        for Fact { name, value } in self.parameters().into_iter().chain(timings) {
            summary = summary.row(name, value);
        }
        for check in checks.iter().skip(1) {
            summary = summary.row(&check.name, &check.detail);
        }
        let path = absolute(report).unwrap_or_else(|_| report.to_path_buf());
        summary = summary.row("report", path.display());
        if let Some(found) = &self.comparison {
            summary = summary.verification(found.is_exact(), &checks[0].detail);
        }
        write!(out, "{summary}")?;
        Ok(out.flush()?)
    }

    fn html(&self, checks: &[Check], timings: &[Fact]) -> Result<String, Error> {
        let report = Report {
            title: "Laplace",
            summary: &format!(
                "A rectangle held at 100 on its top side and at 0 on the others, relaxed by {}, while {} \
                 of another program read every step from a stream.",
                units(self.writers),
                units(self.readers),
            ),
            parameters: &self.parameters(),
            checks,
            timings,
            picture: &self.picture,
            first_rows: &self.first_rows,
            records: &self.records,
        };
        report.to_html()
    }

    fn parameters(&self) -> Vec<Fact> {
        let problem = &self.problem;
        vec![
            Fact::new("cells", format!("{} × {}", problem.rows(), problem.cols())),
            Fact::new(
                "units",
                format!("{} write, {} read", self.writers, self.readers),
            ),
            Fact::new("steps", format!("0 to {}", self.steps())),
            Fact::new("over-relaxation", format!("{:.6}", problem.omega())),
            Fact::new(
                "read in place",
                format!(
                    "{} of {} parts of steps",
                    self.seen.in_place, self.seen.parts
                ),
            ),
        ]
    }

    fn checks(&self) -> Vec<Check> {
        let exact = match self.comparison {
            None => Check::new(
                "equal to a sequential run",
                None,
                "not compared (--no-check)",
            ),
            Some(found) => Check::new(
                "equal to a sequential run",
                found.is_exact(),
                format!(
                    "{} of {} cells are equal, bit by bit, and so is the largest \
                     change of each step; the moments and distances of {} of {} steps are equal up to \
                     rounding",
                    found.cells - found.different,
                    found.cells,
                    self.checked,
                    self.records.len()
                ),
            ),
        };
        // The residual is the sum over four neighbours.
        let off = self.residual.rms() / 4.0;
        let error = off / self.problem.jacobi_gap();
        let converged = format!(
            "after {} steps, the cells differ from the means of their four neighbours by {off:.1e} \
             (root of the mean square), so the field is within {error:.1e} of the solution of the \
             discrete equations",
            self.steps()
        );
        let converged = match error < CONVERGED {
            true => Check::new("converged", true, converged),
            false => Check::new(
                "not yet converged",
                None,
                format!("{converged}; more steps bring it closer"),
            ),
        };
        let distance = |record: Option<&StepRecord>| record.map(|record| record.distance);
        let first = distance(self.records.first()).unwrap_or_default();
        let last = distance(self.records.last()).unwrap_or_default();
        let distance = format!(
            "the field, from 0 to 100, differs from the analytic solution by {:.2e} (root of the mean \
             square; {:.1} before the first step), at most {:.2e}",
            last.rms(),
            first.rms(),
            last.max
        );
        vec![
            exact,
            converged,
            Check::new("distance to the exact solution", None, distance),
        ]
    }

    fn timings(&self) -> Vec<Fact> {
        let progress = Progress {
            step: self.steps(),
            of: self.steps(),
            cells: self.problem.cells(),
            elapsed: self.elapsed,
        };
        let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
        let bytes = (self.problem.cells() * 8) as f64 * self.records.len() as f64;
        let [computing, exchanging, waiting] = self.solver;
        let mut facts = vec![
            Fact::new(
                "all steps",
                format!(
                    "{}, {:.2} ns per cell and step, {:.2} GB/s staged",
                    seconds(self.elapsed),
                    progress.ns_per_cell(),
                    bytes / self.elapsed.as_secs_f64() / 1e9
                ),
            ),
            Fact::new(
                "slowest solver unit",
                format!(
                    "{computing:.2} s computing, {exchanging:.2} s at borders, {waiting:.2} s waiting for the analysis"
                ),
            ),
            Fact::new(
                "slowest unit of the analysis",
                format!(
                    "{} reading, {} waiting for steps",
                    seconds(self.seen.reading),
                    seconds(self.seen.waiting)
                ),
            ),
        ];
        if self.comparison.is_some() {
            facts.push(Fact::new("sequential run", seconds(self.checking)));
        }
        facts
    }

    fn steps(&self) -> u64 {
        self.records.last().map_or(0, |record| record.step)
    }
}

fn units(units: u32) -> String {
    match units {
        1 => "1 unit".into(),
        _ => format!("{units} units"),
    }
}
