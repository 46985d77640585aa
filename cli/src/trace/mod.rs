//! `samite trace`: what the processes of a run did with chunks, from their event logs: tables, a
//! trace for Perfetto, and the consistency checker.
//!
//! # Files
//! `tally` (sums for each chunk and process) · `tables` (on the terminal) · `export` (for Perfetto)

mod export;
mod tables;
mod tally;

use crate::run::UsageError;
use crate::screen::{note, printable, say};
use anyhow::{Context, Result, ensure};
use samite::dsm::history::{self, Report};
use samite::dsm::log::{EXTENSION, Level, Log, Run};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

/// Options of `samite trace`.
#[derive(clap::Args)]
pub(crate) struct TraceArgs {
    /// The folder of a run, or one with the folders of several runs, of which the last one is
    /// shown; `samite run --config dsm.log=full` writes them [default: the setting dsm.log_dir]
    folder: Option<PathBuf>,
    /// Write what happened to this file, for https://ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE.json", value_hint = clap::ValueHint::FilePath)]
    export: Option<PathBuf>,
    /// Check that what was read, written and told is consistent; if not, the exit code is 1
    #[arg(long)]
    check: bool,
    /// The number of chunks, of processes and of slow waits that are listed
    #[arg(long, value_name = "N", default_value_t = 20)]
    rows: usize,
}

pub(crate) fn run(args: &TraceArgs) -> Result<ExitCode> {
    let folder = match &args.folder {
        Some(folder) => folder.clone(),
        None => crate::settings::resolve(None, &[])?.config.dsm.log_dir,
    };
    let folder = run_folder(&folder)?;
    let Run { logs, not_begun } = Log::read_run(&folder)?;
    for path in not_begun {
        note(format_args!(
            "{} is left out: it ends inside its header, so its process was killed as it began",
            path.display()
        ));
    }
    if let Some(path) = &args.export {
        export::write(&logs, path)
            .with_context(|| format!("cannot write the trace to {}", path.display()))?;
    }
    say(format_args!("{}", tables::text(&folder, &logs, args.rows)))?;
    for log in logs.iter().filter(|log| log.missing > 0) {
        note(format_args!(
            "{} misses {} records: its disk was too slow",
            log.path.display(),
            log.missing
        ));
    }
    if !args.check {
        return Ok(ExitCode::SUCCESS);
    }
    let report = history::check(&logs);
    say(format_args!("{}", verdict(&report)))?;
    ensure!(
        report.chunks > 0 || logs.iter().any(|log| log.header.level == Level::Full),
        "nothing could be checked: run the job with --config dsm.log=full"
    );
    Ok(match report.is_consistent() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Returns the folder itself if it has logs, otherwise the folder in it whose logs are the last.
fn run_folder(folder: &Path) -> Result<PathBuf> {
    if folder.is_file() || has_logs(folder) {
        return Ok(folder.to_owned());
    }
    let entries = std::fs::read_dir(folder).map_err(|error| {
        UsageError(format!(
            "cannot read {}: {error}; give the folder of a run (samite run --config dsm.log=full)",
            folder.display()
        ))
    })?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let runs = paths.filter(|path| has_logs(path));
    let changed = |folder: &PathBuf| {
        let times =
            logs_in(folder).filter_map(|log| log.metadata().and_then(|of| of.modified()).ok());
        times.max().unwrap_or(SystemTime::UNIX_EPOCH)
    };
    // Without any, the reader of logs says so.
    Ok(runs
        .max_by_key(changed)
        .unwrap_or_else(|| folder.to_owned()))
}

fn has_logs(folder: &Path) -> bool {
    logs_in(folder).next().is_some()
}

fn logs_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|end| end == EXTENSION))
}

/// Returns what the checker has found, in words.
fn verdict(report: &Report) -> String {
    let mut text = format!(
        "\nchecked {} chunks: {} commits, {} reads, {} events: {}\n",
        report.chunks,
        report.commits,
        report.reads,
        report.events,
        match report.count {
            0 => "consistent".to_owned(),
            1 => "1 violation".to_owned(),
            count => format!("{count} violations"),
        }
    );
    for why in &report.unchecked {
        text += &format!("  not checked: {}\n", printable(why));
    }
    for violation in &report.violations {
        text += &format!("  {}\n", printable(&violation.to_string()));
    }
    let more = report.count - report.violations.len() as u64;
    if more > 0 {
        text += &format!("  and {more} more\n");
    }
    text
}
