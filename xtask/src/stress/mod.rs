//! `cargo xtask stress`: what a suite of many processes says when some of them are late.
//!
//! A round runs the test binary of a suite while random processes below it (units, agents,
//! launchers) are stopped for up to a second each, or beside eight processes that spin. The test
//! itself, whose watchdog it is, is not stopped. The seed decides when the next one is stopped,
//! which of those that run then, and for how long; the system decides how far they have got, so a
//! seed repeats a round's pressure and not its course.
//!
//! A round fails when a test fails, when it has not ended after `--limit`, and when it leaves
//! processes behind. Whatever was started here ends with this command, Ctrl-C included.
//!
//! Files: `suites` (what there is, what is left out and why) · `round` (one run) · `stops` (whom,
//! when, for how long) · `processes` (finding, signalling, ending them).

mod processes;
mod round;
mod stops;
mod suites;

pub(crate) use processes::{SPIN, START, spin, start};

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
    /// Only one of the two kinds
    #[arg(long)]
    only: Option<Pressure>,
    /// Seconds after which a round has failed
    #[arg(long, default_value_t = 900)]
    limit: u64,
    /// Say what there is and what is left out, and run nothing
    #[arg(long)]
    list: bool,
    /// A program that is run instead of a suite
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

/// Runs what is asked for; fails when a round did.
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
            // Before, Ctrl-C ends cargo and this command as it ends all others.
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

    /// All rounds of one program.
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

    /// One round, unless it was interrupted before.
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

/// Why a round failed, if it did: by the names of the tests where its output has them.
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

/// Columns of equal width.
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
