//! The result of a run: the summary on the terminal, and the report.

use std::io::Write;
use std::path::{Path, absolute};
use std::time::Duration;

use samite::program::Summary;
use samite_report::{Check, Diagram, Fact, Field, Picture, Report, Section, Table};

use super::analysis::Seen;
use super::figures::Found;
use crate::Error;
use samite_relaxation::problem::{BOTTOM, TOP};
use samite_relaxation::{Comparison, Distance, Moments, Problem, Progress, Residual};

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
    /// The figures of all steps.
    pub(super) table: Table,
    pub(super) picture: Picture,
    pub(super) residual: Residual,
    /// `None` if it was not requested.
    pub(super) comparison: Option<Comparison>,
    /// Number of steps whose figures equal those of the sequential run, if that was requested.
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
        self.write(report, &checks, &timings)?;
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

    fn write(&self, path: &Path, checks: &[Check], timings: &[Fact]) -> Result<(), Error> {
        let parts = self.first_rows.iter().enumerate();
        let parts: Vec<_> = parts
            .map(|(unit, first_row)| (*first_row, format!("unit {unit}")))
            .collect();
        let field = Field {
            picture: &self.picture,
            values: BOTTOM..TOP,
            caption: &format!(
                "The field after step {}, from 0 at the cold sides to 100 at the hot one.",
                self.steps()
            ),
            axes: ["row", "column"],
            side: &TOP.to_string(),
            parts: &parts,
        };
        let report = Report {
            title: "Laplace",
            summary: &format!(
                "A rectangle held at 100 on its top side and at 0 on the others, relaxed by {}, while {} \
                 of another program read every step from a stream.",
                units(self.writers),
                units(self.readers),
            ),
            checks,
            field: Some(field),
            facts: &[
                ("Parameters", self.parameters()),
                ("Time", timings.to_vec()),
            ],
            sections: &[
                Section {
                    title: "Moments over steps".into(),
                    diagrams: self.diagrams(),
                    bars: Vec::new(),
                    table: None,
                },
                Section {
                    title: "Moments per step".into(),
                    diagrams: Vec::new(),
                    bars: Vec::new(),
                    table: Some(self.table.clone()),
                },
            ],
        };
        Ok(report.write(path)?)
    }

    fn diagrams(&self) -> Vec<Diagram> {
        let diagram = |title: &str, value: &dyn Fn(&Found) -> f64| {
            let points = self.seen.found.iter();
            let points = points.map(|found| (found.step as f64, value(found)));
            Diagram::new(title, "step", points.collect())
        };
        let of_moments = |title: &str, value: fn(&Moments) -> f64| {
            diagram(title, &|found| value(&found.figures.moments))
        };
        let rms = |found: &Found| found.figures.distance.rms();
        let change = |found: &Found| found.change.unwrap_or(f64::NAN);
        vec![
            of_moments("Mean", Moments::mean),
            of_moments("Second central moment (variance)", Moments::variance),
            of_moments("Third central moment", Moments::third),
            of_moments("Fourth central moment", Moments::fourth),
            diagram("Distance to the analytic solution (rms)", &rms).of_differences(),
            diagram("Largest change of a cell in a step", &change)
                .of_differences()
                .logarithmic(),
        ]
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
                    self.seen.found.len()
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
        let distance = |found: Option<&Found>| found.map(|found| found.figures.distance);
        let [first, last]: [Distance; 2] = [self.seen.found.first(), self.seen.found.last()]
            .map(|found| distance(found).unwrap_or_default());
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
        let bytes = (self.problem.cells() * 8) as f64 * self.seen.found.len() as f64;
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
        self.seen.found.last().map_or(0, |found| found.step)
    }
}

fn units(units: u32) -> String {
    match units {
        1 => "1 unit".into(),
        _ => format!("{units} units"),
    }
}
