//! The program `laplace-steered-check`: repeats the steered run in one process.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use ndarray::Array2;
use samite::Fabric;
use samite::program::Summary;
use samite::stage::protocol::Attribute;
use samite::stage::{Stage, StepReader};

use samite_relaxation::problem::{BOTTOM, INITIAL, TOP};
use samite_relaxation::{Comparison, Problem, Sequential, larger};
use samite_report::{Check, Diagram, Fact, Field, Picture, Report, Section};

use crate::{Command, Error, FACTORS, FIELD, Rule, STREAM, Steering};

/// Longest side of the field's picture.
const PICTURE: usize = 1024;

/// Reads the solver's last field, and compares it with that of a sequential run that is steered by
/// the same rule.
#[derive(Clone, Debug, Parser)]
#[command(name = "laplace-steered-check")]
pub struct Args {
    /// How the solver is steered.
    #[command(flatten)]
    pub rule: Rule,
    /// Rows and columns of the field per mean that the monitor sees
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    pub coarse: u64,
    /// Where a report with the last field goes; without it, none is written
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Runs the only unit; returns when the solver has stopped and its field was compared.
///
/// # Errors
/// [`Error::Stage`] if the stream is lost, or not linked, [`Error::Ended`] if it had no steps or
/// was not ended in order, [`Error::Problem`] and [`Error::Figures`] (after the report was written)
/// if the result is not that of the sequential run.
pub fn run(fabric: &Fabric, args: &Args, out: &mut dyn Write) -> Result<(), Error> {
    let stage = Stage::join(fabric)?;
    let mut reader = stage.reader(STREAM)?;
    let (mut last, mut seen) = (None, 0_u64);
    let begin = Instant::now();
    while let Some(step) = reader.next_step()? {
        last = Some(step);
        seen += 1;
    }
    let elapsed = begin.elapsed();
    let Some(last) = last else {
        let what = "the solver closed its field before its first step";
        return Err(Error::Ended(what.to_owned()));
    };
    let problem = rectangle(&last)?;
    // Repeat the run with the same rule, and compare field and factors.
    let (sequential, expected) = steered(problem, args)?;
    let mut picture = Picture::new([problem.rows(), problem.cols()], PICTURE);
    let comparison = compare(&last, &sequential, problem, &mut picture)?;
    let factors = factors_of(&last);
    let right = factors == expected && comparison.is_exact();
    let (first, end) = (factors.first(), factors.last());
    let [first, end] = [first, end].map(|factor| factor.copied().unwrap_or_default());
    let facts = vec![
        Fact::new("cells", format!("{} x {}", problem.rows(), problem.cols())),
        Fact::new("solver units", last.writers()),
        Fact::new(
            "rounds",
            format!("{} of {} sweeps", factors.len(), args.rule.sweeps),
        ),
        Fact::new(
            "steps seen here",
            format!("{seen} of {}", last.number() + 1),
        ),
        Fact::new("factor", format!("{first:.4} to {end:.4}")),
        Fact::new("time", format!("{:.2} s", elapsed.as_secs_f64())),
    ];
    let detail = format!(
        "{} of {} cells, {} of {} factors",
        comparison.cells - comparison.different,
        comparison.cells,
        equal(&factors, &expected),
        expected.len()
    );
    let summary = Summary::new("Laplace, steered");
    let summary = facts.iter().fold(summary, |summary, fact| {
        summary.row(&fact.name, &fact.value)
    });
    write!(out, "{}", summary.verification(right, &detail))?;
    if let Some(path) = &args.report {
        let checks = [Check::new("equal to a sequential run", right, detail)];
        let factors = factors.iter().zip(1_u32..);
        let factors = factors.map(|(factor, round)| (f64::from(round), *factor));
        let report = Report {
            title: "Laplace, steered",
            summary: "A solver whose relaxation factor another program chose, round by round, while it ran.",
            checks: &checks,
            field: Some(Field {
                picture: &picture,
                values: BOTTOM..TOP,
                caption: "The field after the last round, from 0 at the cold sides to 100 at the hot one.",
                axes: ["row", "column"],
                side: &TOP.to_string(),
                parts: &[],
            }),
            facts: &[("Run", facts)],
            sections: &[Section {
                title: "Steering".into(),
                diagrams: vec![Diagram::new(
                    "Relaxation factor of each round",
                    "round",
                    factors.collect(),
                )],
                bars: Vec::new(),
                table: None,
            }],
        };
        report.write(path)?;
    }
    comparison.judge()?;
    if factors != expected {
        return Err(Error::Figures {
            step: last.number(),
            what: format!("the solver relaxed with {factors:?}, and it should be {expected:?}"),
        });
    }
    Ok(())
}

fn equal(factors: &[f64], expected: &[f64]) -> usize {
    let both = factors.iter().zip(expected);
    both.filter(|(one, other)| one.to_bits() == other.to_bits())
        .count()
}

fn factors_of(step: &StepReader) -> Vec<f64> {
    match step.attribute(FACTORS) {
        Some(Attribute::Reals(factors)) => factors.clone(),
        _ => Vec::new(),
    }
}

/// Compares the field with that of the sequential run, and draws it.
fn compare(
    step: &StepReader,
    sequential: &Sequential,
    problem: Problem,
    picture: &mut Picture,
) -> Result<Comparison, Error> {
    let mut row = vec![0.0; problem.cols()];
    let mut comparison = Comparison::default();
    for at in 0..problem.rows() {
        step.read_into(FIELD, [at..at + 1, 0..problem.cols()], &mut row)?;
        picture.add_row(at, &row);
        comparison = comparison.merge(sequential.compare_row(at, &row));
    }
    Ok(comparison)
}

/// Returns the rectangle of a step.
fn rectangle(step: &StepReader) -> Result<Problem, Error> {
    let shape = &step.variable(FIELD)?.shape;
    let extent = |dim: usize| shape.get(dim).map_or(0, |extent| *extent as usize);
    Ok(Problem::new(extent(0), extent(1))?)
}

/// Returns the sequential run, and the factors of its rounds.
fn steered(problem: Problem, args: &Args) -> Result<(Sequential, Vec<f64>), Error> {
    let mut sequential = Sequential::new(problem);
    let mut steering = Steering::new(&args.rule);
    let (mut command, mut factors) = (Command::first(), Vec::new());
    let mut before: Option<Array2<f64>> = None;
    let side = usize::try_from(args.coarse).unwrap_or(usize::MAX);
    while !command.stop {
        sequential.set_omega(command.factor)?;
        factors.push(command.factor);
        for _ in 0..args.rule.sweeps {
            sequential.step();
        }
        let now = means(&sequential, problem, side);
        let before = before.replace(now.clone());
        let before = before.unwrap_or_else(|| Array2::from_elem(now.raw_dim(), INITIAL));
        let changes = before
            .iter()
            .zip(&now)
            .map(|(before, now)| (now - before).abs());
        command = steering.decide(changes.fold(0.0, larger));
    }
    Ok((sequential, factors))
}

/// Returns means of blocks of `side` rows and columns: first down the columns of a block, then
/// across them.
fn means(field: &Sequential, problem: Problem, side: usize) -> Array2<f64> {
    let groups = |length: usize| length.div_ceil(side);
    let mut means = Array2::zeros((groups(problem.rows()), groups(problem.cols())));
    for (group, mut means) in means.rows_mut().into_iter().enumerate() {
        let first = group * side;
        let rows = first..first.saturating_add(side).min(problem.rows());
        let count = rows.len() as f64;
        let mut column = vec![0.0; problem.cols()];
        for row in rows {
            column
                .iter_mut()
                .zip(field.row(row))
                .for_each(|(sum, cell)| *sum += cell);
        }
        for (mean, columns) in means.iter_mut().zip(column.chunks(side)) {
            let sum: f64 = columns.iter().fold(0.0, |sum, column| sum + column / count);
            *mean = sum / columns.len() as f64;
        }
    }
    means
}
