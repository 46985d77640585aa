//! The two programs of the job as real processes: exact results however the cells travel, a slow
//! analysis, and what is said when somebody is lost.
//!
//! Unit 0 of a test keeps the stream, as the agent of a node does; then come the solver's units,
//! then the analysis'.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use ndarray::ArrayView2;
use samite::stage::protocol::Attribute;
use samite::stage::service::{Capacity, Staging};
use samite::stage::{Reader, Stage, StepReader};
use samite::{Fabric, Identity, Mask};
use samite_laplace::Error;
use samite_laplace::job::{analysis, solver};
use samite_relaxation::problem::OMEGA;
use samite_relaxation::{Omega, Problem, Sequential};
use samite_testkit::{Failed, Outcome, Tracker, Unit, Units, Who, check, point, units};

/// Who a unit of a job is.
enum Part {
    BlockStore,
    Solver(Fabric),
    Analysis(Fabric),
}

/// A job.
#[derive(Clone, Copy)]
struct Job {
    solvers: u32,
    readers: u32,
}

impl Job {
    fn units(self) -> Units {
        units(1 + self.solvers + self.readers)
    }

    /// Joins as `samite run` would have it: two programs in one job, and the agent.
    fn join(self, unit: &Unit) -> Outcome<Part> {
        let Some(number) = unit.rank.checked_sub(1) else {
            let fabric =
                Fabric::join(&unit.domain, samite::agent::identity(), unit.config.clone())?;
            let capacity = Capacity {
                memory: 256 << 20,
                disk: 0,
                folder: std::env::temp_dir(),
            };
            let mut tracker = Tracker::expect(self.solvers + self.readers);
            Staging::new(&fabric, capacity).run(|fabric| tracker.remain(fabric))?;
            return Ok(Part::BlockStore);
        };
        let solves = number < self.solvers;
        let (program, rank, size) = match solves {
            true => ("solver", number, self.solvers),
            false => ("analysis", number - self.solvers, self.readers),
        };
        let identity = Identity {
            program: program.into(),
            rank,
            size,
            ..unit.identity()
        };
        let fabric = Fabric::join(&unit.domain, identity, unit.config.clone())?;
        Ok(match solves {
            true => Part::Solver(fabric),
            false => Part::Analysis(fabric),
        })
    }

    fn solver(self, rank: u32) -> Who {
        Who::Unit(1 + rank)
    }

    fn analysis(self) -> Who {
        Who::Unit(1 + self.solvers)
    }
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
    solver::Args {
        size,
        steps,
        omega: Omega::Best,
    }
}

fn analysis_args(unit: &Unit, delay: Duration) -> analysis::Args {
    analysis::Args {
        report: report(unit),
        order: 4,
        no_check: false,
        delay,
    }
}

fn report(unit: &Unit) -> PathBuf {
    std::env::temp_dir().join(format!("samite-laplace-{}.html", unit.domain))
}

/// Runs a job to its end. The analysis compares the field with the sequential run by itself and
/// fails if a bit differs; what it prints is looked at, too.
fn run(name: &str, job: Job, mask: Mask, size: usize, steps: u64, delay: Duration) {
    let body = |unit: &Unit| {
        let fabric = match job.join(unit)? {
            Part::BlockStore => return Ok(()),
            Part::Solver(fabric) => {
                return solver::run(&fabric, &solver_args(size, steps), &mut io::sink())
                    .map_err(failed);
            }
            Part::Analysis(fabric) => fabric,
        };
        let mut out = Vec::new();
        analysis::run(&fabric, &analysis_args(unit, delay), &mut out).map_err(failed)?;
        if fabric.identity().rank > 0 {
            return Ok(());
        }
        let html = std::fs::read_to_string(report(unit))?;
        std::fs::remove_file(report(unit))?;
        let text = String::from_utf8_lossy(&out);
        let cells = size * size * job.solvers as usize;
        // Rows of the solver's units and those of the analysis are cut apart at as many places.
        let parts = u64::from(job.solvers.max(job.readers)) * (steps + 1);
        let in_place = if mask.map { 0 } else { parts };
        for expected in [
            format!("{cells} of {cells} cells are equal, bit by bit"),
            format!("of {0} of {0} steps are equal up to rounding", steps + 1),
            format!("{in_place} of {parts} parts of steps"),
        ] {
            check!(text.contains(&expected), "\"{expected}\" is not in\n{text}");
            check!(
                html.contains(&expected),
                "\"{expected}\" is not in the report"
            );
        }
        Ok(())
    };
    job.units().mask(mask).orchestrate_bare(name, body, |_| {});
}

const AT_ONCE: Duration = Duration::ZERO;

const fn job(solvers: u32, readers: u32) -> Job {
    Job { solvers, readers }
}

#[test]
fn one_unit_is_exact() {
    let name = "job::one_unit_is_exact";
    run(name, job(1, 1), Mask::default(), 50, 40, AT_ONCE);
}

#[test]
fn two_units_are_exact() {
    let name = "job::two_units_are_exact";
    run(name, job(2, 1), Mask::default(), 64, 100, AT_ONCE);
}

#[test]
fn three_units_and_three_readers_are_exact() {
    let name = "job::three_units_and_three_readers_are_exact";
    run(name, job(3, 3), Mask::default(), 33, 100, AT_ONCE);
}

/// Rows longer than an eager message, blocks longer than one piece.
#[test]
fn long_rows_are_exact() {
    let name = "job::long_rows_are_exact";
    run(name, job(2, 1), Mask::default(), 1100, 3, AT_ONCE);
}

#[test]
fn one_unit_without_shared_memory_is_exact() {
    let name = "job::one_unit_without_shared_memory_is_exact";
    run(name, job(1, 1), Mask::MESSAGES_ONLY, 50, 40, AT_ONCE);
}

#[test]
fn three_units_without_shared_memory_are_exact() {
    let name = "job::three_units_without_shared_memory_are_exact";
    run(name, job(3, 1), Mask::MESSAGES_ONLY, 33, 60, AT_ONCE);
}

#[test]
fn long_rows_without_shared_memory_are_exact() {
    let name = "job::long_rows_without_shared_memory_are_exact";
    run(name, job(2, 1), Mask::MESSAGES_ONLY, 1100, 3, AT_ONCE);
}

#[test]
fn the_field_before_the_first_step_is_analysed() {
    let name = "job::the_field_before_the_first_step_is_analysed";
    run(name, job(2, 1), Mask::default(), 8, 0, AT_ONCE);
}

/// The solver could do all steps while the analysis sleeps once.
#[test]
fn a_slow_analysis_loses_and_tears_nothing() {
    let name = "job::a_slow_analysis_loses_and_tears_nothing";
    let slow = Duration::from_millis(20);
    run(name, job(2, 1), Mask::default(), 40, 12, slow);
}

/// More steps than a test has time for.
const ENDLESS: u64 = i64::MAX as u64;

/// Tells the test that all are at work: the solver's first unit has reported often enough that the
/// analysis must have read a step. And then when it has not reported for a deadline: it waits.
#[derive(Default)]
struct AtWork {
    reports: Arc<AtomicU32>,
}

impl AtWork {
    /// Longer than the deadline of the job.
    const LONG: Duration = Duration::from_secs(3);

    fn watch(&self) {
        let reports = self.reports.clone();
        std::thread::spawn(move || {
            loop {
                let before = reports.load(Relaxed);
                std::thread::sleep(AtWork::LONG);
                if reports.load(Relaxed) == before {
                    return point("waits");
                }
            }
        });
    }
}

impl Write for AtWork {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.reports.fetch_add(1, Relaxed) == 4 {
            point("at work");
            self.watch();
        }
        Ok(())
    }
}

/// Runs a unit of a job that will not end well; what it says.
fn last_words(job: Job, unit: &Unit) -> Outcome<Option<(bool, String)>> {
    let (solves, ended) = match job.join(unit)? {
        Part::BlockStore => return Ok(None),
        Part::Solver(fabric) => {
            let ended = solver::run(&fabric, &solver_args(16, ENDLESS), &mut AtWork::default());
            (true, ended)
        }
        Part::Analysis(fabric) => {
            let args = analysis_args(unit, AT_ONCE);
            (false, analysis::run(&fabric, &args, &mut io::sink()))
        }
    };
    match ended {
        Ok(()) => Err(Failed::new("the job ended well")),
        Err(error) => Ok(Some((solves, chain(&error)))),
    }
}

#[test]
fn a_lost_solver_is_named() {
    let job = job(2, 1);
    let body = |unit: &Unit| {
        let Some((solves, text)) = last_words(job, unit)? else {
            return Ok(());
        };
        // Whichever of the two is missed first: the other one ends because of it, without closing
        // its stream.
        let expected: &[&str] = match solves {
            true => &["was lost", "died or left"],
            false => &["solver.1 died", "solver.0 stopped without closing"],
        };
        let is_named = expected.iter().any(|words| text.contains(words));
        check!(is_named, "it says: {text}");
        Ok(())
    };
    let units = job
        .units()
        .config(|config| config.deadline = Duration::from_secs(15));
    units.orchestrate_bare("job::a_lost_solver_is_named", body, |cluster| {
        cluster.wait_point(job.solver(0), "at work");
        cluster.kill(job.solver(1));
    });
}

/// The solver waits for an analysis that is not there any more, but not for ever: it could come
/// back.
#[test]
fn a_lost_analysis_is_named() {
    not_there("job::a_lost_analysis_is_named", |cluster, job| {
        cluster.kill(job.analysis());
        cluster.wait_point(job.solver(0), "given up");
    });
}

/// A process that is stopped lives, so the solver waits for it; when it has died it is given up.
#[test]
fn a_stopped_analysis_is_given_up_when_it_dies() {
    let name = "job::a_stopped_analysis_is_given_up_when_it_dies";
    not_there(name, |cluster, job| {
        cluster.stop(job.analysis());
        cluster.wait_point(job.solver(0), "waits");
        let said = cluster.lines(job.solver(0));
        assert!(
            !said.iter().any(|line| line.contains("given up")),
            "{said:?}"
        );
        cluster.kill(job.analysis());
        cluster.wait_point(job.solver(0), "given up");
    });
}

fn not_there(name: &str, end: impl Fn(&mut samite_testkit::Cluster, Job)) {
    let job = job(1, 1);
    let body = |unit: &Unit| {
        let Some((_, text)) = last_words(job, unit)? else {
            return Ok(());
        };
        check!(text.contains("analysis"), "it says: {text}");
        point("given up");
        Ok(())
    };
    let units = job
        .units()
        .config(|config| config.deadline = Duration::from_secs(2));
    units.orchestrate_bare(name, body, |cluster| {
        cluster.wait_point(job.solver(0), "at work");
        end(cluster, job);
    });
}

#[test]
fn units_with_different_arguments_are_refused() {
    let job = job(2, 1);
    let body = |unit: &Unit| {
        let rank = unit.rank.saturating_sub(1);
        match job.join(unit)? {
            Part::Solver(fabric) => {
                let args = solver_args(16 + rank as usize, 5);
                let ended = solver::run(&fabric, &args, &mut io::sink());
                let text = ended.as_ref().map_err(|error| chain(error));
                // Who commits first hears that the other one has left.
                let words = [
                    "shape",
                    "border",
                    "closed",
                    "lost",
                    "before it was complete",
                ];
                check!(
                    text.is_err_and(|text| words.iter().any(|word| text.contains(word))),
                    "it is {ended:?}"
                );
            }
            Part::Analysis(fabric) => {
                let ended = analysis::run(&fabric, &analysis_args(unit, AT_ONCE), &mut io::sink());
                check!(ended.is_err(), "it is {ended:?}");
            }
            Part::BlockStore => {}
        }
        Ok(())
    };
    let name = "job::units_with_different_arguments_are_refused";
    let units = job
        .units()
        .config(|config| config.deadline = Duration::from_secs(15));
    units.orchestrate_bare(name, body, |_| {});
}

/// A step of a solver that is one unit: its cells, and what it says of it.
#[derive(Clone)]
struct Step {
    cells: [f64; 64],
    steps: Option<i64>,
    change: Option<f64>,
}

/// The field before the first sweep: all cells are 25.
const START: [f64; 64] = [25.0; 64];

/// Returns the only step of a run without sweeps.
fn only(cells: [f64; 64]) -> Vec<Step> {
    let (steps, change) = (Some(0), None);
    vec![Step {
        cells,
        steps,
        change,
    }]
}

/// Returns the two steps of a run of one sweep.
fn swept() -> [Step; 2] {
    let mut sequential = Sequential::new(Problem::new(8, 8).expect("a small problem"));
    let step = |cells, change| Step {
        cells,
        steps: Some(1),
        change,
    };
    let first = step(START, None);
    let change = sequential.step();
    let mut cells = [0.0; 64];
    for (row, cells) in cells.chunks_mut(8).enumerate() {
        cells.copy_from_slice(sequential.row(row));
    }
    [first, step(cells, Some(change))]
}

/// A solver that writes these steps. At most one of them is ahead of the readers.
fn write(fabric: &Fabric, steps: &[Step]) -> Outcome {
    let stage = Stage::join(fabric)?;
    let mut writer = stage.write("laplace").limits(1, u64::MAX).open()?;
    for one in steps {
        let mut step = writer.step()?;
        let field = ArrayView2::from_shape((8, 8), &one.cells).map_err(Failed::new)?;
        step.put("u", [8_u64, 8], [0_u64, 0], field)?;
        if let Some(steps) = one.steps {
            step.attribute("steps", Attribute::Integer(steps));
            step.attribute("omega", Attribute::Real(OMEGA));
        }
        if let Some(change) = one.change {
            step.attribute("change 0", Attribute::Real(change));
        }
        step.commit()?;
    }
    Ok(writer.close()?)
}

/// What a unit of the analysis does first, and what it keeps until it ends.
type Before = fn(&Fabric) -> Outcome<Option<(Reader, StepReader)>>;

/// Checks what the analysis of such steps says; `None`: it succeeds.
fn analysed(name: &str, steps: &[Step], before: Before, why: Option<&str>) {
    let body = |unit: &Unit| {
        match job(1, 1).join(unit)? {
            Part::BlockStore => {}
            Part::Solver(fabric) => write(&fabric, steps)?,
            Part::Analysis(fabric) => {
                let _kept = before(&fabric)?;
                let args = analysis_args(unit, AT_ONCE);
                let ended = analysis::run(&fabric, &args, &mut io::sink());
                let _ = std::fs::remove_file(report(unit));
                let text = ended.map_err(|error| chain(&error));
                let is_expected = match (why, &text) {
                    (Some(why), Err(text)) => text.contains(why),
                    (None, ended) => ended.is_ok(),
                    (Some(_), Ok(())) => false,
                };
                check!(is_expected, "it is {text:?}");
            }
        }
        Ok(())
    };
    job(1, 1).units().orchestrate_bare(name, body, |_| {});
}

/// The analysis of such steps fails, and says why.
fn refused(name: &str, steps: &[Step], why: &str) {
    analysed(name, steps, |_| Ok(None), Some(why));
}

#[test]
fn a_solver_that_does_not_say_how_many_steps_there_are_is_refused() {
    let name = "job::a_solver_that_does_not_say_how_many_steps_there_are_is_refused";
    let mut steps = only(START);
    steps[0].steps = None;
    refused(name, &steps, "has no attribute `steps`");
}

#[test]
fn a_wrong_cell_is_an_error() {
    let mut cells = START;
    cells[9] = 25.0 + 1e-7;
    let name = "job::a_wrong_cell_is_an_error";
    refused(name, &only(cells), "that of the sequential solver");
}

/// All cells are equal, so one that is larger by a bit is the largest.
#[test]
fn a_wrong_extreme_is_an_error() {
    let mut cells = START;
    cells[9] = cells[9].next_up();
    let name = "job::a_wrong_extreme_is_an_error";
    refused(name, &only(cells), "the largest value");
}

#[test]
fn one_sweep_is_exact() {
    analysed("job::one_sweep_is_exact", &swept(), |_| Ok(None), None);
}

/// Too small a difference for any figure of the step: only the comparison of the cells finds it.
#[test]
fn a_wrong_bit_is_an_error() {
    let [first, mut last] = swept();
    // Neither the least nor the largest cell, nor the one that has changed most.
    let cell = &mut last.cells[4 * 8 + 4];
    *cell = cell.next_up();
    refused(
        "job::a_wrong_bit_is_an_error",
        &[first, last],
        "1 of 64 cells differ from the sequential solver, the first one in row 4, column 4",
    );
}

#[test]
fn a_wrong_largest_change_is_an_error() {
    let [first, mut last] = swept();
    last.change = last.change.map(f64::next_up);
    refused(
        "job::a_wrong_largest_change_is_an_error",
        &[first, last],
        "step 1: the largest change of a cell is",
    );
}

#[test]
fn an_unknown_largest_change_is_an_error() {
    let [first, mut last] = swept();
    last.change = None;
    refused(
        "job::an_unknown_largest_change_is_an_error",
        &[first, last],
        "step 1: the largest change of a cell is unknown",
    );
}

/// As after a restart of the analysis: the steps of its first life do not come again.
#[test]
fn a_first_step_that_is_missing_is_an_error() {
    fn take_the_first(fabric: &Fabric) -> Outcome<Option<(Reader, StepReader)>> {
        let stage = Stage::join(fabric)?;
        let mut reader = stage
            .read("laplace")
            .as_rank("other", 0, 1)
            .limits(1, u64::MAX)
            .open()?;
        drop(reader.next_step()?);
        // It is written when the first one has been released, and stays while this reader has it.
        let second = reader.next_step()?;
        let number = second.as_ref().map(StepReader::number);
        check!(number == Some(1), "it is {number:?}");
        Ok(second.map(|second| (reader, second)))
    }
    let name = "job::a_first_step_that_is_missing_is_an_error";
    let why = "step 0 is missing, although the policy drops no steps";
    analysed(name, &swept(), take_the_first, Some(why));
}

#[test]
fn a_cell_that_is_no_number_is_an_error() {
    let mut cells = START;
    cells[9] = f64::NAN;
    let name = "job::a_cell_that_is_no_number_is_an_error";
    refused(name, &only(cells), "that of the sequential solver");
}
