//! `cargo xtask stress`: runs suites of many processes while some of the processes are late.
//!
//! A round runs the test binary of a suite while random processes below it (units, agents,
//! launchers) are stopped for up to a second each, or beside eight processes that spin. The test
//! process, which runs the watchdog, is not stopped. The seed decides when the next process is
//! stopped, which of those running then, and for how long. Their progress depends on the system, so
//! a seed repeats the pressure of a round but not its course.
//!
//! A round fails if a test fails, if it has not ended after `--limit`, or if it leaves processes
//! behind. All processes started here end with this command, also on Ctrl-C.
//!
//! Files: `suites` (the suites, what is left out and why) · `round` (one run) · `stops` (which
//! process, when, for how long) · `processes` (finding, signalling and ending them).

mod processes;
mod round;
mod stops;
mod suites;

pub(crate) use processes::{SPIN, START, spin, start};
pub(crate) use suites::{TOGETHER, modules};

use crate::arrows::metadata;
use anyhow::{Context, Result, bail};
use round::{Ended, Pressure, Program, round};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only suites whose name begins with this (`pgas`, `pgas/lock`)
    suite: Option<String>,
    /// Only tests whose name contains this
    #[arg(long)]
    test: Option<String>,
    /// Rounds of each kind
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    /// Seed of the first round; the next one has the next number
    #[arg(long)]
    seed: Option<u64>,
    /// Only rounds of this kind
    #[arg(long)]
    only: Option<Pressure>,
    /// Seconds after which a round has failed
    #[arg(long, default_value_t = 900)]
    limit: u64,
    /// List the suites and what is left out, and run nothing
    #[arg(long)]
    list: bool,
    /// A program to run instead of a suite
    #[arg(last = true, conflicts_with_all = ["suite", "test", "list"])]
    program: Vec<OsString>,
}

/// The rounds of one suite under one kind of pressure, for the table.
struct Row {
    suite: String,
    pressure: Pressure,
    rounds: u64,
    stops: u64,
    time: Duration,
    failures: Vec<Failure>,
}

struct Failure {
    seed: u64,
    why: String,
    log: PathBuf,
}

/// Runs the requested rounds. Fails if a round failed.
pub(crate) fn stress(options: &Options) -> Result<()> {
    if options.list {
        return list();
    }
    processes::adopt_orphans()?;
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let logs = Path::new(&metadata()?.target_directory).join("stress");
    std::fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let mut work = Work {
        options,
        seed,
        logs,
        interrupted: Arc::default(),
        rows: Vec::new(),
    };
    match options.program.split_first() {
        Some((path, arguments)) => {
            work.catch_interrupts()?;
            let (path, arguments) = (path.clone(), arguments.to_vec());
            let folder = std::env::current_dir().context("there is no current folder")?;
            work.rounds(
                "program",
                &Program {
                    path,
                    arguments,
                    folder,
                },
            )?;
        }
        None => {
            let mut built = Vec::new();
            for suite in suites::suites(options.suite.as_deref())? {
                let (program, tests) = suite.build(options.test.as_deref())?;
                built.push((suite.name, program, tests));
            }
            // Until here, Ctrl-C ends cargo and this command in the usual way.
            work.catch_interrupts()?;
            for (name, program, tests) in &built {
                println!("{name}: {tests} tests");
                work.rounds(name, program)?;
            }
        }
    }
    work.summary()
}

fn list() -> Result<()> {
    for suite in suites::suites(None)? {
        println!("{}", suite.name);
    }
    println!("\nleft out:");
    for (suite, tests, why) in suites::LEFT_OUT {
        println!("{suite} {tests}: {why}");
    }
    Ok(())
}

struct Work<'a> {
    options: &'a Options,
    seed: u64,
    logs: PathBuf,
    interrupted: Arc<AtomicBool>,
    rows: Vec<Row>,
}

impl Work<'_> {
    fn catch_interrupts(&self) -> Result<()> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&self.interrupted))
                .context("Ctrl-C cannot be caught")?;
        }
        Ok(())
    }

    /// Runs all rounds of one program.
    fn rounds(&mut self, name: &str, program: &Program) -> Result<()> {
        let both = Pressure::BOTH.into_iter();
        for pressure in both.filter(|one| self.options.only.is_none_or(|only| only == *one)) {
            let mut row = Row {
                suite: name.to_owned(),
                pressure,
                rounds: 0,
                stops: 0,
                time: Duration::ZERO,
                failures: Vec::new(),
            };
            for round in 0..self.options.rounds {
                self.one(program, self.seed.wrapping_add(round), &mut row)?;
            }
            self.rows.push(row);
        }
        Ok(())
    }

    /// Runs one round, unless interrupted.
    fn one(&self, program: &Program, seed: u64, row: &mut Row) -> Result<()> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (name, pressure) = (&row.suite, row.pressure);
        let file = format!("{}-{}-{seed}.log", name.replace('/', "-"), pressure.name());
        let log = self.logs.join(file);
        println!("{name}: {}, seed {seed} ...", pressure.name());
        let limit = Duration::from_secs(self.options.limit);
        let Some(ended) = round(program, pressure, seed, limit, &log, &self.interrupted)? else {
            return Ok(());
        };
        row.rounds += 1;
        row.stops += ended.stops;
        row.time += ended.time;
        if let Some(why) = failure(&ended, &log) {
            println!("{name}: FAILED: {why}\n  {}", log.display());
            row.failures.push(Failure { seed, why, log });
        }
        Ok(())
    }

    fn summary(&self) -> Result<()> {
        let head = [
            "suite", "with", "rounds", "stops", "time", "failures", "seed", "again",
        ];
        let mut table = vec![head.map(str::to_owned)];
        table.extend(self.rows.iter().map(|row| self.cells(row)));
        println!("\n{}", aligned(&table));
        let failures: Vec<(&Row, &Failure)> = self
            .rows
            .iter()
            .flat_map(|row| row.failures.iter().map(move |failure| (row, failure)))
            .collect();
        for (row, failure) in &failures {
            let (seed, why, log) = (failure.seed, &failure.why, failure.log.display());
            println!(
                "{} with {}, seed {seed}: {why}\n  {log}",
                row.suite,
                row.pressure.name()
            );
        }
        if self.interrupted.load(Ordering::Relaxed) {
            bail!("interrupted; what was running has been ended");
        }
        if !failures.is_empty() {
            bail!("{} rounds failed", failures.len());
        }
        Ok(())
    }

    fn cells(&self, row: &Row) -> [String; 8] {
        let first = row
            .failures
            .first()
            .map_or(self.seed, |failure| failure.seed);
        let kind = row.pressure.name();
        let mut again = format!("cargo xtask stress --only {kind} --seed {first}");
        if self.options.program.is_empty() {
            again.push_str(&format!(" {}", row.suite));
        }
        if let Some(test) = &self.options.test {
            again.push_str(&format!(" --test {test}"));
        }
        for (index, word) in self.options.program.iter().enumerate() {
            let before = if index == 0 { " --" } else { "" };
            again.push_str(&format!("{before} {word:?}"));
        }
        [
            row.suite.clone(),
            kind.to_owned(),
            row.rounds.to_string(),
            row.stops.to_string(),
            format!("{:.0} s", row.time.as_secs_f64()),
            row.failures.len().to_string(),
            first.to_string(),
            again,
        ]
    }
}

/// Returns why a round failed, if it did, with the names of the failed tests if its output has
/// them.
fn failure(ended: &Ended, log: &Path) -> Option<String> {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    match ended.status {
        None => {
            let late = text
                .lines()
                .filter_map(|line| line.strip_suffix(" has been running for over 60 seconds"));
            let late: Vec<&str> = late.collect();
            Some(format!("not done in time; {}", late.join(", ")))
        }
        Some(status) if !status.success() => {
            let failed = text
                .lines()
                .filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
            let failed: Vec<&str> = failed.collect();
            Some(format!("{status}; {}", failed.join(", ")))
        }
        Some(_) if !ended.left.is_empty() => {
            Some(format!("left behind: {}", ended.left.join(", ")))
        }
        Some(_) => None,
    }
}

/// Formats rows in aligned columns.
fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let cells = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
