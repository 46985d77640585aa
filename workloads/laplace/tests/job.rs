//! The two programs of the job as real processes: exact results however the cells travel, a slow
//! analysis, and what is said when somebody is lost.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use samite::{Fabric, Identity, Mask};
use samite_laplace::Error;
use samite_laplace::job::{analysis, solver};
use samite_testkit::{Failed, Outcome, Unit, Units, Who, check, point, units};

/// A small job of this many solver units and the analysis, which is the last unit of the test.
fn job(solvers: u32) -> Units {
    units(solvers + 1)
}

fn is_analysis(unit: &Unit) -> bool {
    unit.rank + 1 == unit.size
}

/// Joins as `samite run` would have it: two programs in one job.
fn join(unit: &Unit) -> Outcome<Fabric> {
    let (program, rank, size) = match is_analysis(unit) {
        true => ("analysis", 0, 1),
        false => ("solver", unit.rank, unit.size - 1),
    };
    let identity = Identity {
        program: program.into(),
        rank,
        size,
        ..unit.identity()
    };
    Ok(Fabric::join(&unit.domain, identity, unit.config.clone())?)
}

fn failed(error: Error) -> Failed {
    Failed::new(chain(&error))
}

/// An error and its causes, as the command shows them.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn solver_args(size: usize, steps: u64) -> solver::Args {
    solver::Args { size, steps }
}

fn analysis_args(unit: &Unit, delay: Duration) -> analysis::Args {
    analysis::Args {
        report: report(unit),
        no_check: false,
        delay,
    }
}

fn report(unit: &Unit) -> PathBuf {
    std::env::temp_dir().join(format!("samite-laplace-{}.html", unit.domain))
}

/// Runs a job to its end. The analysis compares the field with the sequential run by itself and fails
/// if a bit differs; what it prints is looked at, too.
fn run(name: &str, solvers: u32, mask: Mask, size: usize, steps: u64, delay: Duration) {
    let body = |unit: &Unit| {
        let fabric = join(unit)?;
        if !is_analysis(unit) {
            return solver::run(&fabric, &solver_args(size, steps), &mut io::sink())
                .map_err(failed);
        }
        let mut out = Vec::new();
        analysis::run(&fabric, &analysis_args(unit, delay), &mut out).map_err(failed)?;
        let html = std::fs::read_to_string(report(unit))?;
        std::fs::remove_file(report(unit))?;
        let text = String::from_utf8_lossy(&out);
        let cells = size * size * solvers as usize;
        let way = if mask.map {
            "copied by messages"
        } else {
            "read in place"
        };
        for expected in [
            format!("{cells} of {cells} cells are equal, bit by bit"),
            format!("0 to {steps}, each whole and in order, {way}"),
        ] {
            check!(text.contains(&expected), "\"{expected}\" is not in\n{text}");
            check!(
                html.contains(&expected),
                "\"{expected}\" is not in the report"
            );
        }
        Ok(())
    };
    job(solvers).mask(mask).conduct_bare(name, body, |_| {});
}

const AT_ONCE: Duration = Duration::ZERO;

#[test]
fn one_unit_is_exact() {
    run("one_unit_is_exact", 1, Mask::default(), 50, 40, AT_ONCE);
}

#[test]
fn two_units_are_exact() {
    run("two_units_are_exact", 2, Mask::default(), 64, 100, AT_ONCE);
}

#[test]
fn three_units_are_exact() {
    run(
        "three_units_are_exact",
        3,
        Mask::default(),
        33,
        100,
        AT_ONCE,
    );
}

/// Rows longer than an eager message, fields longer than one piece.
#[test]
fn long_rows_are_exact() {
    run("long_rows_are_exact", 2, Mask::default(), 1100, 3, AT_ONCE);
}

#[test]
fn one_unit_without_shared_memory_is_exact() {
    let name = "one_unit_without_shared_memory_is_exact";
    run(name, 1, Mask::MESSAGES_ONLY, 50, 40, AT_ONCE);
}

#[test]
fn three_units_without_shared_memory_are_exact() {
    let name = "three_units_without_shared_memory_are_exact";
    run(name, 3, Mask::MESSAGES_ONLY, 33, 60, AT_ONCE);
}

#[test]
fn long_rows_without_shared_memory_are_exact() {
    let name = "long_rows_without_shared_memory_are_exact";
    run(name, 2, Mask::MESSAGES_ONLY, 1100, 3, AT_ONCE);
}

#[test]
fn the_field_before_the_first_step_is_analysed() {
    run(
        "the_field_before_the_first_step_is_analysed",
        2,
        Mask::default(),
        8,
        0,
        AT_ONCE,
    );
}

/// The solver could do all steps while the analysis sleeps once.
#[test]
fn a_slow_analysis_loses_and_tears_nothing() {
    let name = "a_slow_analysis_loses_and_tears_nothing";
    run(name, 2, Mask::default(), 40, 12, Duration::from_millis(20));
}

/// More steps than a test has time for.
const ENDLESS: u64 = u64::MAX / 2;

/// Tells the test that all are at work: the solver's first unit has reported a second time, which is
/// after step 1, so the analysis has read step 0.
#[derive(Default)]
struct AtWork {
    reports: u32,
}

impl Write for AtWork {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.reports += 1;
        if self.reports == 2 {
            point("at work");
        }
        Ok(())
    }
}

/// Runs a unit of a job that will not end well; what it says.
fn last_words(unit: &Unit) -> Outcome<String> {
    let fabric = join(unit)?;
    let ended = if is_analysis(unit) {
        analysis::run(&fabric, &analysis_args(unit, AT_ONCE), &mut io::sink())
    } else {
        solver::run(&fabric, &solver_args(16, ENDLESS), &mut AtWork::default())
    };
    match ended {
        Ok(()) => Err(Failed::new("the job ended well")),
        Err(error) => Ok(chain(&error)),
    }
}

#[test]
fn a_lost_solver_is_named() {
    let body = |unit: &Unit| {
        let text = last_words(unit)?;
        // The other solver may see the loss, or that the analysis has left because of it.
        let expected = if is_analysis(unit) {
            "solver.1"
        } else {
            "was lost"
        };
        check!(text.contains(expected), "it says: {text}");
        Ok(())
    };
    job(2).conduct_bare("a_lost_solver_is_named", body, |cast| {
        cast.wait_point(Who::Unit(0), "at work");
        cast.kill(Who::Unit(1));
    });
}

#[test]
fn a_lost_analysis_is_named() {
    let body = |unit: &Unit| {
        let text = last_words(unit)?;
        check!(
            text.contains("the analysis") && text.contains("was lost"),
            "it says: {text}"
        );
        Ok(())
    };
    job(1).conduct_bare("a_lost_analysis_is_named", body, |cast| {
        cast.wait_point(Who::Unit(0), "at work");
        cast.kill(Who::Unit(1));
    });
}

/// The solver waits, but not for ever.
#[test]
fn a_stopped_analysis_is_waited_for_until_the_deadline() {
    let name = "a_stopped_analysis_is_waited_for_until_the_deadline";
    let body = |unit: &Unit| {
        let text = last_words(unit)?;
        let said = "waiting for the analysis to have read step";
        check!(
            text.contains(said) && text.contains("within 3s"),
            "it says: {text}"
        );
        point("given up");
        Ok(())
    };
    let job = job(1).config(|config| config.deadline = Duration::from_secs(3));
    job.conduct_bare(name, body, |cast| {
        cast.wait_point(Who::Unit(0), "at work");
        cast.stop(Who::Unit(1));
        cast.wait_point(Who::Unit(0), "given up");
        cast.kill(Who::Unit(1));
    });
}

#[test]
fn units_with_different_arguments_are_refused() {
    let body = |unit: &Unit| {
        let fabric = join(unit)?;
        if !is_analysis(unit) {
            // What becomes of the solver when the analysis refuses is seen above.
            let args = solver_args(16, 5 + u64::from(unit.rank));
            let _ = solver::run(&fabric, &args, &mut io::sink());
            return Ok(());
        }
        let ended = analysis::run(&fabric, &analysis_args(unit, AT_ONCE), &mut io::sink());
        check!(
            matches!(ended, Err(Error::Disagreement { unit: 1 })),
            "it is {ended:?}"
        );
        Ok(())
    };
    let name = "units_with_different_arguments_are_refused";
    job(2).conduct_bare(name, body, |_| {});
}
