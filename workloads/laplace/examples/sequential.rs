//! The Laplace job in one process, without a fabric: solver, analysis, checks and report.
//!
//! `cargo run --release -p samite-laplace --example sequential -- --size 256 --steps 500`

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use samite_laplace::problem::{INITIAL, OMEGA};
use samite_laplace::residual::ResidualRows;
use samite_laplace::table::moments_table;
use samite_laplace::{
    Check, Comparison, Distance, Fact, Moments, NoNeighbours, Picture, Problem, Progress, Report,
    Rows, Samples, Sequential, Solver, StepRecord, VecRows,
};

/// Solves the Laplace problem in one process and writes a report.
#[derive(Parser)]
struct Args {
    /// Interior cells per side of the square.
    #[arg(long, default_value_t = 256)]
    size: usize,
    /// Steps of over-relaxation.
    #[arg(long, default_value_t = 500)]
    steps: u64,
    /// The report.
    #[arg(long, default_value = "laplace.html")]
    report: PathBuf,
}

/// The analysis: what a reader of a step computes from its rows.
struct Analysis {
    samples: Samples,
    records: Vec<StepRecord>,
    row: Vec<f64>,
}

impl Analysis {
    fn look(&mut self, step: u64, field: &VecRows, max_change: Option<f64>) {
        let (mut moments, mut distance) = (Moments::EMPTY, Distance::default());
        for row in 0..field.rows() {
            field.load(row, &mut self.row);
            moments.add(&self.row);
            distance = distance.merge(self.samples.compare_row(row, &self.row));
        }
        self.records.push(StepRecord {
            step,
            moments,
            distance,
            max_change,
        });
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let problem = Problem::new(args.size, args.size)?;
    let mut solver = Solver::new(problem, problem.part(0, 1)?);
    let field = || VecRows::new(problem.rows(), problem.cols());
    let (mut old, mut new) = (field(), field());
    let mut analysis = Analysis {
        samples: Samples::new(&problem, 64),
        records: Vec::new(),
        row: vec![0.0; problem.cols()],
    };

    solver.fill_initial(&old);
    analysis.look(0, &old, None);
    let (mut solving, mut analysing) = (Duration::ZERO, Duration::ZERO);
    for step in 1..=args.steps {
        let start = Instant::now();
        let Ok(change) = solver.step(&old, &new, &mut NoNeighbours);
        std::mem::swap(&mut old, &mut new);
        solving += start.elapsed();
        let start = Instant::now();
        analysis.look(step, &old, Some(change.max));
        analysing += start.elapsed();
    }

    let start = Instant::now();
    let mut sequential = Sequential::new(problem);
    (0..args.steps).for_each(|_| _ = sequential.step());
    let checking = start.elapsed();
    let comparison = sequential.compare(0, &old);

    let progress = |elapsed| Progress {
        step: args.steps,
        of: args.steps,
        cells: problem.cells(),
        elapsed,
    };
    let timings = [
        ("solver", solving),
        ("analysis", analysing),
        ("in-place reference", checking),
    ]
    .map(|(name, elapsed)| {
        let ns = progress(elapsed).ns_per_cell();
        Fact::new(
            name,
            format!("{:.3} s ({ns:.2} ns/cell)", elapsed.as_secs_f64()),
        )
    });
    println!("{}", moments_table(&analysis.records, 12));
    for timing in &timings {
        println!("{}: {}", timing.name, timing.value);
    }
    let html = report(
        &problem,
        &args,
        &old,
        &analysis.records,
        comparison,
        &timings,
    )?;
    std::fs::write(&args.report, html)
        .with_context(|| format!("writing {}", args.report.display()))?;
    println!("report: {}", args.report.display());
    anyhow::ensure!(
        comparison.is_exact(),
        "the result differs from the reference: {comparison:?}"
    );
    Ok(())
}

fn report(
    problem: &Problem,
    args: &Args,
    field: &VecRows,
    records: &[StepRecord],
    comparison: Comparison,
    timings: &[Fact],
) -> anyhow::Result<String> {
    let mut picture = Picture::new(problem, 1024);
    let mut residual = ResidualRows::whole(problem);
    let mut row = vec![0.0; problem.cols()];
    for at in 0..field.rows() {
        field.load(at, &mut row);
        picture.add_row(at, &row);
        residual.push(&row);
    }
    let residual = residual.finish_whole();
    let distance = records
        .last()
        .map(|record| record.distance)
        .unwrap_or_default();
    let exact = format!(
        "{} of {} cells differ in a bit",
        comparison.different, comparison.cells
    );
    let report = Report {
        title: "Laplace, sequential",
        summary: "A rectangle held at 100 on its top side and at 0 on the others, relaxed in one process.",
        parameters: &[
            Fact::new("cells", format!("{} x {}", problem.rows(), problem.cols())),
            Fact::new("units", 1),
            Fact::new("steps", args.steps),
            Fact::new("omega", OMEGA),
            Fact::new("first value", INITIAL),
        ],
        checks: &[
            Check::new("Equal to the in-place solver", comparison.is_exact(), exact),
            Check::new(
                "Discrete residual",
                None,
                format!("max {:.3e}, rms {:.3e}", residual.max, residual.rms()),
            ),
            Check::new(
                "Distance to the analytic solution",
                None,
                format!("max {:.3}, rms {:.3}", distance.max, distance.rms()),
            ),
        ],
        timings,
        picture: &picture,
        first_rows: &[0],
        records,
    };
    Ok(report.to_html()?)
}
