//! `samite bench`: compares our figures with those of the peers.

use crate::screen::say;
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use samite::pgas::Pgas;
use samite_bench::{Absent, Options, Programs, Ran, Study};
use samite_nas::Class;
use samite_nas::is::Problem;
use samite_video::Size;
use samite_video::job::figures::Figures;
use samite_video::job::{Via, report};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
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
    #[arg(long, default_value_t = Options::default().repeats,
        value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// The two cores to run on
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    cpus: Option<Vec<usize>>,
    /// Of `video`, in place of its cases: run each way of Samite and each peer once at each size.
    /// Their figures and a page about all of them go to this folder; the figures of earlier runs
    /// there stay on the page, but not those of a system that fails
    #[arg(long, value_name = "DIR", conflicts_with_all = ["json", "repeats", "cpus"])]
    pages: Option<PathBuf>,
    /// The frames of each run for --pages; by default, those of the cases
    #[arg(long, value_name = "N", requires = "pages", value_parser = clap::value_parser!(u64).range(1..))]
    frames: Option<u64>,
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
    // As two machines, which this one is both of.
    const TWO_HOSTS: [&str; 8] = [
        "--hosts",
        "127.0.0.1,127.0.0.2",
        "--host-start",
        "env",
        "--host-transports",
        "tcp",
        "--host-devices",
        "lo",
    ];
    let is_network = args.name == "network";
    let job = |role: &str| {
        let hosts = if is_network { &TWO_HOSTS[..] } else { &[] };
        let words = [&[&exe, "run"], hosts, &["-n", "{ranks}", &exe, role]].concat();
        Some(words.iter().map(|word| (*word).to_owned()).collect())
    };
    let options = Options {
        repeats: args.repeats,
        quick: args.quick,
        cpus: args.cpus.clone(),
        only: args.only.clone(),
        ours: job("bench-unit"),
        limit: job("bench-limit").filter(|_| !is_network),
    };
    if let Some(folder) = &args.pages {
        return pages(args, &options, folder);
    }
    if let Some(path) = &args.json {
        // A long run must not end with figures that cannot be written.
        let folder = path.parent().filter(|folder| *folder != Path::new(""));
        ensure!(
            folder.is_none_or(Path::is_dir),
            "cannot write {}: there is no such folder",
            path.display()
        );
    }
    let figures = samite_bench::run(&args.name, &options)?;
    say(format_args!("{figures}\n"))?;
    if let Some(path) = &args.json {
        samite_report::replace(path, figures.json()?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the video by all systems, and writes the page about all figures in the folder.
fn pages(args: &BenchArgs, options: &Options, folder: &Path) -> Result<ExitCode> {
    ensure!(
        args.name == "video",
        "--pages is for the bench `video`: `{}` has none",
        args.name
    );
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let ways = Via::value_variants().iter();
    let ways = ways.filter(|via| **via != Via::Sequential);
    let ways: Vec<String> = ways.map(Via::to_string).collect();
    let study = Study {
        ways: &ways,
        frames: args.frames,
        options,
    };
    let path_of = |size: &str, system: &str| folder.join(format!("{size}-{system}.json"));
    let absent = study.run(|ran| {
        let path = path_of(ran.size, &ran.system);
        Ok(figures_of(ran)?.write(&path)?)
    })?;
    // The figures of an earlier run are not those of a system that fails now.
    for failure in &absent.failures {
        let path = path_of(&failure.case, &failure.peer);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => {}
        }
    }
    let mut files = Vec::new();
    for entry in folder.read_dir()? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            files.push(path);
        }
    }
    files.sort();
    let mut runs = Vec::new();
    for path in files {
        match Figures::read(&path) {
            Ok(run) => runs.push(run),
            // The folder may have other files.
            Err(error) => say(format_args!("not on the page: {error}\n"))?,
        }
    }
    // Those of Samite first.
    runs.sort_by_key(|run| run.label.is_none());
    let missing = reasons(&absent);
    let page = folder.join("video.html");
    report::write(&page, &runs, None, &missing)?;
    say(format_args!("{}\n", report::text(&runs)))?;
    for (system, why) in &missing {
        say(format_args!("without {system}: {why}\n"))?;
    }
    say(format_args!("page  {}\n", page.display()))?;
    let ours = absent.failures.iter();
    let ours: Vec<&str> = ours
        .filter(|failure| ways.contains(&failure.peer))
        .map(|failure| &*failure.peer)
        .collect();
    ensure!(ours.is_empty(), "Samite has failed: {}", ours.join(", "));
    Ok(ExitCode::SUCCESS)
}

fn figures_of(ran: &Ran) -> Result<Figures> {
    if ran.is_ours {
        let figures = Figures::parse(&ran.said, ran.system.as_ref())?;
        let label = Some(format!("Samite: {}", ran.system));
        return Ok(Figures { label, ..figures });
    }
    let size = Size::new(ran.width, ran.height)?;
    let figures = Figures::of_peer(&ran.system, size, ran.frames, &ran.said);
    Ok(figures?)
}

/// Returns the systems that did not run, each with the reason.
fn reasons(absent: &Absent) -> Vec<(String, String)> {
    let missing = absent.missing.iter();
    let missing = missing.map(|(system, what)| {
        let what = format!("it is not installed, or cannot be built: {what}");
        (system.clone(), what)
    });
    let failed = absent.failures.iter();
    let failed = failed.map(|failure| {
        let system = format!("{} at {}", failure.peer, failure.case);
        (system, failure.what.clone())
    });
    missing.chain(failed).collect()
}
