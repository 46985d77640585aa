//! What a run came to: the table on the terminal, and the report.

use std::io::Write;
use std::path::{Path, absolute};
use std::time::Duration;

use super::protocol::Times;
use crate::table::moments_table;
use crate::{
    Check, Comparison, Error, Fact, Picture, Problem, Progress, Report, Residual, StepRecord,
};

/// Steps in the table on the terminal.
const TABLE_STEPS: usize = 14;

/// All that is known after the last step.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) problem: Problem,
    /// The first row of each solver unit.
    pub(crate) first_rows: Vec<usize>,
    /// Whether all steps were read where they lie.
    pub(crate) in_place: bool,
    /// At least that of step 0.
    pub(crate) records: Vec<StepRecord>,
    pub(crate) picture: Picture,
    pub(crate) residual: Residual,
    /// Nothing if it was not asked for.
    pub(crate) comparison: Option<Comparison>,
    /// From the first step to the end of the last one.
    pub(crate) elapsed: Duration,
    /// What the analysis spent with rows.
    pub(crate) reading: Duration,
    pub(crate) checking: Duration,
    /// What the slowest solver unit spent.
    pub(crate) times: Times,
}

impl Outcome {
    /// Prints the table, writes the report and says where it is.
    pub(crate) fn show(&self, report: &Path, out: &mut dyn Write) -> Result<(), Error> {
        let (checks, timings) = (self.checks(), self.timings());
        std::fs::write(report, self.html(&checks, &timings)?).map_err(|source| Error::Report {
            path: report.to_path_buf(),
            source,
        })?;
        writeln!(out, "{}", moments_table(&self.records, TABLE_STEPS))?;
        let width = |names: &mut dyn Iterator<Item = &String>| names.map(String::len).max();
        let names = width(&mut checks.iter().map(|check| &check.name));
        let names = names.max(width(&mut timings.iter().map(|fact| &fact.name)));
        let names = names.unwrap_or_default();
        for check in &checks {
            let sign = match check.passed {
                Some(true) => "ok",
                Some(false) => "NO",
                None => "",
            };
            writeln!(out, "{sign:2} {:names$}  {}", check.name, check.detail)?;
        }
        for fact in &timings {
            writeln!(out, "   {:names$}  {}", fact.name, fact.value)?;
        }
        let path = absolute(report).unwrap_or_else(|_| report.to_path_buf());
        writeln!(out, "   {:names$}  {}", "Report", path.display())?;
        Ok(out.flush()?)
    }

    /// Whether the run was what it had to be.
    pub(crate) fn judge(&self) -> Result<(), Error> {
        match self.comparison {
            Some(Comparison {
                cells,
                different,
                first: Some(first),
            }) => Err(Error::Wrong {
                different,
                cells,
                row: first.row,
                col: first.col,
            }),
            _ => Ok(()),
        }
    }

    fn html(&self, checks: &[Check], timings: &[Fact]) -> Result<String, Error> {
        let (problem, units) = (&self.problem, self.first_rows.len());
        let report = Report {
            title: "Laplace",
            summary: &format!(
                "A rectangle held at 100 on its top side and at 0 on the others, relaxed by {units} {} \
                 while another process read every step {}.",
                if units == 1 { "unit" } else { "units" },
                if self.in_place {
                    "out of their memory"
                } else {
                    "by messages"
                },
            ),
            parameters: &[
                Fact::new("cells", format!("{} × {}", problem.rows(), problem.cols())),
                Fact::new("solver units", units),
                Fact::new("steps", self.steps()),
                Fact::new("over-relaxation", problem.omega()),
                Fact::new("steps are", self.way()),
            ],
            checks,
            timings,
            picture: &self.picture,
            first_rows: &self.first_rows,
            records: &self.records,
        };
        report.to_html()
    }

    fn checks(&self) -> Vec<Check> {
        let exact = match self.comparison {
            None => Check::new("Sequential run", None, "not compared (--no-check)"),
            Some(found) => Check::new(
                "Sequential run",
                found.is_exact(),
                format!(
                    "{} of {} cells are equal, bit by bit",
                    found.cells - found.different,
                    found.cells
                ),
            ),
        };
        // A lost or torn step would have ended the run.
        let whole = format!(
            "0 to {}, each whole and in order, {}",
            self.steps(),
            self.way()
        );
        let residual = &self.residual;
        let residual = format!("max {:.3e}, rms {:.3e}", residual.max, residual.rms());
        let distance = |record: Option<&StepRecord>| record.map(|record| record.distance);
        let first = distance(self.records.first()).unwrap_or_default();
        let last = distance(self.records.last()).unwrap_or_default();
        let distance = format!(
            "rms {:.3} (before the first step {:.3}), max {:.3}",
            last.rms(),
            first.rms(),
            last.max
        );
        vec![
            exact,
            Check::new("Steps analysed", true, whole),
            Check::new("Discrete residual", None, residual),
            Check::new("Distance to the series", None, distance),
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
        let Times {
            computing,
            exchanging,
            waiting,
        } = self.times;
        let mut facts = vec![
            Fact::new(
                "All steps",
                format!(
                    "{}, {:.2} ns per cell and step",
                    seconds(self.elapsed),
                    progress.ns_per_cell()
                ),
            ),
            Fact::new(
                "Slowest solver unit",
                format!(
                    "{} computing, {} at borders, {} waiting for the analysis",
                    seconds(computing),
                    seconds(exchanging),
                    seconds(waiting)
                ),
            ),
            Fact::new(
                "Analysis",
                format!(
                    "{} reading, {:.0} % of it beside the solver",
                    seconds(self.reading),
                    100.0 * self.overlap()
                ),
            ),
        ];
        if self.comparison.is_some() {
            facts.push(Fact::new("Sequential run", seconds(self.checking)));
        }
        facts
    }

    /// The part of the reading for which no solver unit had to wait.
    fn overlap(&self) -> f64 {
        let (waiting, reading) = (self.times.waiting.as_secs_f64(), self.reading.as_secs_f64());
        (1.0 - waiting / reading.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0)
    }

    fn steps(&self) -> u64 {
        self.records.last().map_or(0, |record| record.step)
    }

    fn way(&self) -> &'static str {
        if self.in_place {
            "read in place"
        } else {
            "copied by messages"
        }
    }
}
