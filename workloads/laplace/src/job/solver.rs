//! The program `laplace-solver`: one unit of the solver.

use std::io::Write;
use std::time::{Duration, Instant};

use clap::Parser;
use samite::program::Reporter;
use samite::{Fabric, Match, PeerId, Segment};

use super::borders::Borders;
use super::field::{BUFFERS, Field, Layout, Stamp};
use super::protocol::{self, Announcement, Doing, GO, Hello, RELEASED, Times, tag};
use crate::{Change, Error, Part, Problem, Progress, Rows, Solver};

/// Solves the Laplace problem by red-black over-relaxation, together with the other units.
///
/// Every step stays in shared memory until the program "analysis" has read it there. If the analysis
/// is slower, the solver waits for it: no step is lost or overwritten while it is read. The wait is
/// bounded by the setting fabric.deadline; after it the unit ends with an error that names the
/// analysis and the step.
#[derive(Clone, Debug, Parser)]
#[command(name = "laplace-solver")]
pub struct Args {
    /// Rows and columns of the part of each unit
    #[arg(long, default_value_t = 2048)]
    pub size: usize,
    /// Sweeps over the whole rectangle
    #[arg(long, default_value_t = 400)]
    pub steps: u64,
}

/// Rows between two looks at what peers want while a step is computed: a reader that cannot map this
/// memory asks for rows by message. A look that finds nothing costs nothing beside so many rows.
const ROWS_PER_LOOK: usize = 32;

/// Runs one unit. Collective over the program; returns when the analysis is done with the last step.
///
/// # Errors
///
/// [`Error::Fabric`] when a neighbour or the analysis is lost or does not answer in time.
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let (rank, units) = (fabric.identity().rank, fabric.identity().size);
    let problem = Problem::stacked(args.size, units as usize)?;
    let part = problem.part(rank as usize, units as usize)?;
    let layout = Layout::new(&problem, part);
    let segment = fabric
        .allocate(layout.bytes())
        .doing(|| "making room for the field".into())?;
    let analysis = protocol::analysis(fabric)?;
    let unit = Unit {
        fabric,
        analysis,
        layout,
        segment,
    };
    unit.introduce(&problem, args.steps)?;
    let times = unit.solve(problem, part, args.steps, out)?;
    unit.take_leave(times)
}

/// A solver unit as seen by itself.
struct Unit<'f> {
    fabric: &'f Fabric,
    analysis: PeerId,
    layout: Layout,
    segment: Segment<'f>,
}

impl Unit<'_> {
    fn introduce(&self, problem: &Problem, steps: u64) -> Result<(), Error> {
        let hello = Hello {
            rows: problem.rows(),
            cols: problem.cols(),
            steps,
            segment: self.segment.key(),
        };
        self.tell(tag::HELLO, &protocol::to_json(&hello)?)
    }

    /// All steps, from the initial field on.
    fn solve(
        &self,
        problem: Problem,
        part: Part,
        steps: u64,
        out: &mut dyn Write,
    ) -> Result<Times, Error> {
        let solvers = protocol::solvers(self.fabric)?;
        let bytes = self.segment.bytes();
        let mut borders = Borders::new(self.fabric, &solvers, part, bytes, self.layout);
        let mut solver = Solver::new(problem, part);
        let mut reporter = (part.unit == 0).then(|| Reporter::new(out, steps));
        let (mut stepping, mut waiting) = (Duration::ZERO, Duration::ZERO);

        self.publish(0, |field| {
            solver.fill_initial(field);
            Ok(Change::default())
        })?;
        let begin = Instant::now();
        for step in 1..=steps {
            let start = Instant::now();
            self.wait_for_room(step)?;
            waiting += start.elapsed();

            let start = Instant::now();
            let old = self.field(step - 1);
            self.publish(step, |new| solver.step(&old, new, &mut borders))?;
            stepping += start.elapsed();
            if let Some(reporter) = &mut reporter {
                let elapsed = begin.elapsed();
                reporter.report(step, || speed(&problem, step, steps, elapsed))?;
            }
        }
        Ok(Times {
            computing: stepping.saturating_sub(borders.spent),
            exchanging: borders.spent,
            waiting,
        })
    }

    /// Waits until the analysis has read what is in the buffer that `step` goes to.
    fn wait_for_room(&self, step: u64) -> Result<(), Error> {
        let Some(read) = step.checked_sub(BUFFERS) else {
            return Ok(());
        };
        self.fabric
            .await_signal(self.analysis, RELEASED)
            .doing(|| format!("waiting for the analysis to have read step {read}"))
    }

    /// Writes a step between the two halves of its stamp, and announces it.
    fn publish(
        &self,
        step: u64,
        write: impl FnOnce(&Attentive<'_>) -> Result<Change, Error>,
    ) -> Result<(), Error> {
        let stamp = Stamp::of(self.segment.bytes(), self.layout, step);
        stamp.begin();
        let change = write(&self.field(step))?;
        stamp.end();
        self.tell(tag::STEP, &Announcement { step, change }.to_bytes())
    }

    fn field(&self, step: u64) -> Attentive<'_> {
        Attentive {
            field: Field::of(self.segment.bytes(), self.layout, step),
            fabric: self.fabric,
        }
    }

    /// Keeps the memory until the analysis is done with it. The analysis may take its time as long as
    /// it says that it is there.
    fn take_leave(&self, times: Times) -> Result<(), Error> {
        self.tell(tag::TIMES, &protocol::to_json(&times)?)?;
        loop {
            let mut word = [0; GO.len()];
            self.fabric
                .recv(Match::from(self.analysis, tag::END), &mut word)
                .doing(|| "waiting for the analysis to be done with the last step".into())?;
            if word == GO {
                return Ok(());
            }
        }
    }

    fn tell(&self, tag: u64, bytes: &[u8]) -> Result<(), Error> {
        self.fabric
            .send(self.analysis, tag, bytes)
            .doing(|| "telling the analysis".into())
    }
}

/// How fast the whole job is, for the progress bar.
fn speed(problem: &Problem, step: u64, of: u64, elapsed: Duration) -> String {
    let progress = Progress {
        step,
        of,
        cells: problem.cells(),
        elapsed,
    };
    format!("{:.0} Mcells/s", progress.cells_per_second() / 1e6)
}

/// A field that is written while peers are heard.
struct Attentive<'a> {
    field: Field,
    fabric: &'a Fabric,
}

impl Rows for Attentive<'_> {
    fn cols(&self) -> usize {
        self.field.cols()
    }

    fn rows(&self) -> usize {
        self.field.rows()
    }

    fn load(&self, row: usize, out: &mut [f64]) {
        self.field.load(row, out);
    }

    fn store(&self, row: usize, from: &[f64]) {
        self.field.store(row, from);
        if row.is_multiple_of(ROWS_PER_LOOK) {
            self.fabric.progress();
        }
    }
}
