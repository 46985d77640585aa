//! Whole workflows, as a user runs them: `samite run` in a domain of its own, from which one figure
//! is taken.
//!
//! `workflow FIGURE NAME WORDS…`: `NAME` is one of [`FILES`]; `servers=N` among the words adds N
//! staging servers to it, the others are passed to `samite run` unchanged. `workflow FIGURE NAME
//! WORDS… vs NAME WORDS…` runs both alternately, and returns the quotient of their medians.

use super::held::{self, Watch};
use super::{Context, Result, bail, ensure};
use crate::control::Command;
use crate::figures::median;
use crate::unit::video;
use rustix::process::getppid;
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use serde_json::Value;
use std::process::{self, Stdio};
use std::time::Instant;

/// The workflows, and their names here.
const FILES: [(&str, &str); 3] = [
    (
        "synthetic",
        include_str!("../../../../workflows/synthetic.toml"),
    ),
    (
        "lammps-msd",
        include_str!("../../../../workflows/lammps-msd.toml"),
    ),
    ("video", include_str!("../../../../workflows/video.toml")),
];

/// Variables that the units of this bench got, and those of the workflow must not get.
pub(in crate::unit) const TOLD: [&str; 9] = [
    "SAMITE_DOMAIN",
    "SAMITE_JOB",
    "SAMITE_PROGRAM",
    "SAMITE_RANK",
    "SAMITE_SIZE",
    "SAMITE_UNIT",
    "SAMITE_UNITS",
    "SAMITE_LAUNCHER",
    "SAMITE_CONFIG",
];

/// The figure taken from a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Figure<'c> {
    /// Seconds from its start to its end.
    Wall,
    /// The first number in the row of this name in its output.
    Row(&'c str),
    /// The maximum bytes of one process of this program.
    Held(&'c str),
    /// The number of this name in the file that it writes.
    Json(&'c str),
}

impl<'c> Figure<'c> {
    fn of(word: &'c str) -> Result<Figure<'c>> {
        Ok(match word.split_once(':') {
            Some(("held", program)) => Figure::Held(program),
            Some(("json", key)) => Figure::Json(key),
            None if word == "wall" => Figure::Wall,
            None if word == "step" => Figure::Row("a step"),
            None if word == "load" => Figure::Row("largest load"),
            None if word == "got" => Figure::Row("bytes got"),
            None if word == "slowdown" => Figure::Row("slowdown"),
            _ => bail!("`{word}` is not a figure of a workflow"),
        })
    }
}

/// Runs of each of two workflows.
const TURNS: usize = 5;

/// Runs it; `None` for an unknown workflow.
pub(super) fn run(command: &Command) -> Result<Option<f64>> {
    let figure = Figure::of(command.word(1))?;
    let words: Vec<&str> = command.words_from(2).collect();
    let runs: Vec<&[&str]> = words.split(|word| *word == "vs").collect();
    let [ours, theirs] = runs[..] else {
        return run_one(figure, &words);
    };
    let mut values = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        for (values, words) in values.iter_mut().zip([ours, theirs]) {
            let Some(value) = run_one(figure, words)? else {
                return Ok(None);
            };
            values.push(value);
        }
    }
    let [ours, theirs] = values.map(|mut values| median(&mut values).unwrap_or(f64::NAN));
    Ok(Some(ours / theirs))
}

/// The file of a workflow's figures.
const FIGURES: &str = "figures.json";

/// Runs a workflow that writes its figures to a file, and returns them.
pub(in crate::unit) fn figures(name: &str, words: &[&str]) -> Result<Value> {
    let words: Vec<&str> = [name].iter().chain(words).copied().collect();
    let run = run_file(Figure::Json(""), &words)?;
    run.map(|run| run.figures)
        .with_context(|| format!("there is no workflow {name}"))
}

/// What is known after a run.
struct Run {
    seconds: f64,
    said: String,
    held: Option<f64>,
    figures: Value,
}

fn run_one(figure: Figure<'_>, words: &[&str]) -> Result<Option<f64>> {
    let Some(run) = run_file(figure, words)? else {
        return Ok(None);
    };
    let what = words.join(" ");
    Ok(Some(match figure {
        Figure::Wall => run.seconds,
        Figure::Row(row) => number_in(&run.said, row)
            .with_context(|| format!("the workflow {what} did not say `{row}`"))?,
        Figure::Held(program) => run.held.context(program.to_owned())?,
        Figure::Json(key) => video::number(&run.figures, key)?,
    }))
}

/// `None` for an unknown workflow.
fn run_file(figure: Figure<'_>, words: &[&str]) -> Result<Option<Run>> {
    let (wanted, rest) = words.split_first().context("which workflow?")?;
    let Some((name, text)) = FILES.iter().find(|(name, _)| name == wanted) else {
        return Ok(None);
    };
    let mut words = Vec::new();
    let mut text = (*text).to_owned();
    for word in rest {
        match word.strip_prefix("servers=") {
            Some(servers) => text += &servers_of(servers.parse()?),
            None => words.push(word),
        }
    }
    // Files that a method leaves are removed with the folder.
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("workflow.toml"), text)?;
    let mut command = process::Command::new(std::env::current_exe()?);
    command.current_dir(folder.path());
    command.args(["run", "workflow.toml"]).args(words);
    let has_file = matches!(figure, Figure::Json(_));
    if has_file {
        command.args(["--figures", FIGURES]);
    }
    for name in TOLD {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    let start = Instant::now();
    let child = on_all_processors(|| Ok(command.spawn()?))?;
    let watch = match figure {
        Figure::Held(program) => Some(held::Watch::of_program(child.id(), program)),
        _ => None,
    };
    let output = child.wait_with_output()?;
    let seconds = start.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "the workflow {name} ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let figures = match has_file {
        true => serde_json::from_slice(&std::fs::read(folder.path().join(FIGURES))?)?,
        false => Value::Null,
    };
    Ok(Some(Run {
        seconds,
        said,
        held: watch.map(Watch::end).transpose()?,
        figures,
    }))
}

/// Returns a program of staging servers that report their load.
fn servers_of(units: u32) -> String {
    let (command, args) = ("stage-server", r#"["--report"]"#);
    format!(
        "\n[[program]]\nname = \"servers\"\ncommand = \"{command}\"\nargs = {args}\nunits = {units}\nprefix = false\n"
    )
}

/// Starts something that is not bound to the processor of this rank: it may run where the launcher
/// may, which is not pinned.
pub(in crate::unit) fn on_all_processors<T>(start: impl FnOnce() -> Result<T>) -> Result<T> {
    let own = sched_getaffinity(None)?;
    sched_setaffinity(None, &sched_getaffinity(getppid())?)?;
    let started = start();
    sched_setaffinity(None, &own)?;
    started
}

/// Returns the first number after a name at the beginning of a line.
fn number_in(said: &str, name: &str) -> Option<f64> {
    let mut lines = said.lines().map(str::trim_start);
    let rest = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix("  "))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::CpuSet;

    #[test]
    fn numbers_are_found_behind_their_names() {
        let said = "A title\n  a stepping  1\n  a step    2.50 ms, and more\n  slowdown  -0.3 %\n";
        assert_eq!(number_in(said, "a step"), Some(2.5));
        assert_eq!(number_in(said, "slowdown"), Some(-0.3));
        assert_eq!(number_in(said, "title"), None);
    }

    #[test]
    fn figures_have_names() {
        assert_eq!(Figure::of("wall").unwrap(), Figure::Wall);
        assert_eq!(Figure::of("held:agent").unwrap(), Figure::Held("agent"));
        assert!(Figure::of("speed").is_err());
    }

    #[test]
    fn the_workflows_of_the_cases_are_known() {
        for case in crate::staging::cases()
            .into_iter()
            .chain(crate::video::cases(false))
        {
            let line = case.measure.line(1);
            let Some(words) = line.strip_prefix("workflow ") else {
                continue;
            };
            let (figure, runs) = words.split_once(' ').unwrap();
            assert!(Figure::of(figure).is_ok(), "{line}");
            for run in runs.split(" vs ") {
                let (workflow, _) = run.split_once(' ').unwrap();
                assert!(FILES.iter().any(|(name, _)| *name == workflow), "{line}");
            }
        }
    }

    #[test]
    fn what_it_starts_may_run_everywhere() {
        let here = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|cpu| here.is_set(*cpu)).unwrap();
        let mut one = CpuSet::new();
        one.set(first);
        sched_setaffinity(None, &one).unwrap();
        let inside = on_all_processors(|| Ok(sched_getaffinity(None)?)).unwrap();
        assert!(inside.count() >= here.count());
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
    }

    #[test]
    fn a_workflow_that_there_is_not_is_no_mistake() {
        assert_eq!(run(&Command::of("workflow wall dance")).unwrap(), None);
    }
}
