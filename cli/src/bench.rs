//! `samite bench`: compares our figures with those of the peers.

use crate::screen::say;
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use samite::pgas::Pgas;
use samite_bench::{Options, Programs};
use samite_nas::Class;
use samite_nas::is::Problem;
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `samite bench`.
#[derive(clap::Args)]
pub(crate) struct BenchArgs {
    /// The bench to run
    #[arg(value_parser = samite_bench::BENCHES)]
    name: String,
    /// Write the figures to this file, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Shorter measurements, for a quick look rather than a comparison
    #[arg(long)]
    quick: bool,
    /// Only the cases whose names contain this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Interleaved repeats of each case; the figure is their median
    #[arg(long, default_value_t = Options::default().repeats)]
    repeats: u32,
    /// The two cores to run on
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    cpus: Option<Vec<usize>>,
}

/// The contestants that a bench starts (hidden commands).
#[derive(clap::Args)]
pub(crate) struct RankArgs {
    /// The control folder
    folder: PathBuf,
}

impl RankArgs {
    /// Returns the folder of the fifos.
    pub(crate) fn folder(&self) -> &std::path::Path {
        &self.folder
    }
}

/// The programs of this executable that benches measure.
pub(crate) const PROGRAMS: Programs = Programs { is, has_lammps };

fn has_lammps() -> bool {
    samite_lammps::Lammps::open(&[]).is_ok()
}

/// Sorts the integers of a class of NPB IS. Returns the seconds of the timed passes.
fn is(pgas: &Pgas, class: &str) -> Result<Option<f64>> {
    let Ok(class) = Class::from_str(class, true) else {
        return Ok(None);
    };
    let outcome = samite_nas::is::run(pgas, Problem::new(class), |_, _| Ok(()))?;
    ensure!(outcome.is_verified(), "the keys are not in order");
    Ok(Some(outcome.time.as_secs_f64()))
}

/// Runs a bench and prints its table.
pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode> {
    let exe = std::env::current_exe().context("cannot find this executable")?;
    let exe = exe.display().to_string();
    let job = |role: &str| {
        let words = [&exe, "run", "-n", "{ranks}", &exe, role];
        Some(words.iter().map(|word| (*word).to_owned()).collect())
    };
    let options = Options {
        json: args.json.clone(),
        repeats: args.repeats,
        quick: args.quick,
        cpus: args.cpus.clone(),
        only: args.only.clone(),
        ours: job("bench-unit"),
        limit: job("bench-limit"),
    };
    let figures = samite_bench::run(&args.name, options)?;
    say(format_args!("{figures}\n"))?;
    Ok(ExitCode::SUCCESS)
}
