//! `samite doctor`: checks this machine, and predicts what a workflow needs before it runs.
//!
//! # Files
//! `machine` (checks of the machine) · `plan` (bytes, memory, loads of a workflow's streams) ·
//! `stream` (those of one stream) · `advice` (findings about a plan) · `methods` (what the methods
//! of streams need) · `refusal` (what `samite run` refuses) · `paper` (the plan as text)

mod advice;
mod machine;
mod methods;
mod paper;
mod plan;
mod refusal;
mod stream;

use crate::edges;
use crate::run::{UsageError, about};
use crate::screen::say;
use crate::style::{Out, paint};
use crate::{builtin, settings};
use anyhow::Result;
use clap::builder::styling::AnsiColor;
use comfy_table::{ContentArrangement, Table, presets};
use plan::Plan;
pub(crate) use refusal::refuse;
use samite::config::Resolved;
use samite::stage::method::graph::Edge;
use samite_launch::{Builtins, Program, Run, Workflow};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `samite doctor`; a workflow adds its own.
#[derive(clap::Args)]
pub(crate) struct DoctorArgs {
    /// Print the findings, and the plan of the workflow, as JSON
    #[arg(long)]
    json: bool,
    /// Change a setting, as `samite run` takes it
    #[arg(long, value_name = "NAME=VALUE", action = clap::ArgAction::Append)]
    config: Vec<String>,
    /// Change the workflow, as `samite run` takes it
    #[arg(long, value_name = "NAME=VALUE", action = clap::ArgAction::Append)]
    set: Vec<String>,
    /// A workflow that the machine should be able to run
    file: Option<PathBuf>,
}

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As it should be.
    #[serde(rename = "ok")]
    Good,
    /// Samite runs, but slower, or without an optional feature.
    Note,
    /// Samite cannot run like this.
    Bad,
}

#[derive(Serialize)]
struct Finding {
    state: State,
    what: &'static str,
    found: String,
    /// What to do; empty if nothing.
    remedy: String,
}

impl Finding {
    fn new(
        what: &'static str,
        state: State,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let remedy = if state == State::Good {
            String::new()
        } else {
            remedy.into()
        };
        Self {
            state,
            what,
            found: found.into(),
            remedy,
        }
    }
}

/// Checks the machine, and what a workflow with these values of its parameters needs of it.
pub(crate) fn doctor(
    args: &DoctorArgs,
    workflow: Option<Workflow>,
    assignments: &[String],
) -> Result<ExitCode> {
    let workflow = match (workflow, &args.file) {
        (None, Some(file)) => Some(Workflow::read(file)?),
        (workflow, _) => workflow,
    };
    let Some(mut workflow) = workflow else {
        if !args.set.is_empty() {
            return Err(UsageError("--set changes a workflow, but none was given".into()).into());
        }
        let settings = settings::resolve(None, &args.config)?;
        let two = [Program::new("unit", "").units(2)];
        let findings = [machine::findings(&two, &settings.config)];
        if args.json {
            let report = Report::new(None, &findings, None);
            return print_json(&report, report.ready);
        }
        return Ok(code(conclude(&findings, None)?));
    };
    for assignment in assignments {
        workflow.set(assignment)?;
    }
    let mut checked = Vec::new();
    for run in workflow.runs()? {
        let check = Check::of(args, &run.workflow);
        checked.push((about(&run, check)?, run));
    }
    if args.json {
        return print_reports(&checked);
    }
    let mut is_ready = true;
    for (check, run) in &checked {
        let path = run.workflow.path().display();
        let what = match &run.folder {
            Some(_) => format!("{path} with {} ({} units)", run.label, check.plan.units),
            None => format!("{path} ({} units)", check.plan.units),
        };
        if run.folder.is_some() {
            say(format_args!("The run with {}:\n\n", run.label))?;
        }
        say(format_args!("{}\n", paper::text(&check.plan)))?;
        is_ready &= conclude(&check.findings(), Some(&what))?;
    }
    Ok(code(is_ready))
}

fn code(is_ready: bool) -> ExitCode {
    match is_ready {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// A run that is to be checked.
struct Check {
    settings: Resolved,
    programs: Vec<Program>,
    edges: Vec<Edge>,
    plan: Plan,
}

impl Check {
    /// Follows the same steps as `samite run`, so that an error of the workflow is found here, too.
    fn of(args: &DoctorArgs, workflow: &Workflow) -> Result<Self> {
        let settings = settings::resolve(Some(workflow), &args.config)?;
        let programs = workflow.programs(&Builtins {
            executable: std::env::current_exe()?,
            names: builtin::BUILTINS,
        })?;
        let edges = edges::edges(workflow, &settings)?;
        settings::check_streams(workflow, &edges, &settings)?;
        let plan = Plan::new(&programs, &edges, &settings.config)?;
        Ok(Self {
            settings,
            programs,
            edges,
            plan,
        })
    }

    fn findings(&self) -> [Vec<Finding>; 2] {
        let mut advice = advice::findings(&self.plan, &self.programs);
        advice.extend(methods::findings(
            &self.programs,
            &self.edges,
            &self.settings,
        ));
        let machine = machine::findings(&self.programs, &self.settings.config);
        [advice, machine]
    }
}

/// What `--json` prints; for a sweep, a list of one for each run.
#[derive(Serialize)]
struct Report<'a> {
    /// The values that a sweep gives this run.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<&'a str>,
    /// Whether no finding is bad.
    ready: bool,
    findings: Vec<&'a Finding>,
    plan: Option<&'a Plan>,
}

impl<'a> Report<'a> {
    fn new(run: Option<&'a str>, findings: &'a [Vec<Finding>], plan: Option<&'a Plan>) -> Self {
        let findings: Vec<&Finding> = findings.iter().flatten().collect();
        Self {
            run,
            ready: findings.iter().all(|finding| finding.state != State::Bad),
            findings,
            plan,
        }
    }
}

fn print_reports(checked: &[(Check, Run)]) -> Result<ExitCode> {
    let findings: Vec<_> = checked.iter().map(|(check, _)| check.findings()).collect();
    let reports = checked
        .iter()
        .zip(&findings)
        .map(|((check, run), findings)| {
            let label = run.folder.is_some().then_some(&*run.label);
            Report::new(label, findings, Some(&check.plan))
        });
    let reports: Vec<Report<'_>> = reports.collect();
    let is_ready = reports.iter().all(|report| report.ready);
    match &reports[..] {
        [report] if report.run.is_none() => print_json(report, is_ready),
        reports => print_json(&reports, is_ready),
    }
}

fn print_json(report: &impl Serialize, is_ready: bool) -> Result<ExitCode> {
    say(format_args!("{}\n", serde_json::to_string_pretty(report)?))?;
    Ok(code(is_ready))
}

/// Prints the findings and the conclusion. Returns false if one of them is bad.
fn conclude(findings: &[Vec<Finding>], what: Option<&str>) -> Result<bool> {
    for findings in findings {
        say(format_args!("{}\n", table(findings)))?;
    }
    let bad = findings.iter().flatten();
    let bad = bad.filter(|finding| finding.state == State::Bad).count();
    match (bad, what) {
        (0, None) => say(format_args!("This machine is ready.\n"))?,
        (0, Some(what)) => say(format_args!("This machine is ready for {what}.\n"))?,
        (bad, _) => say(format_args!(
            "{bad} of these keep Samite from running here; what to do is beside them.\n"
        ))?,
    }
    Ok(bad == 0)
}

fn table(findings: &[Finding]) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    for finding in findings {
        let state = match finding.state {
            State::Good => "ok",
            State::Note => "note",
            State::Bad => "BAD",
        };
        table.add_row([state, finding.what, &finding.found, &finding.remedy]);
    }
    let lines = table.lines();
    lines.map(|line| colored(line.trim_end()) + "\n").collect()
}

/// Colours the state at the beginning of a line.
fn colored(line: &str) -> String {
    let colors = [
        ("ok", AnsiColor::Green),
        ("note", AnsiColor::Yellow),
        ("BAD", AnsiColor::Red),
    ];
    // Where a finding takes several lines, only the first one has it.
    let has = |word: &str| line.get(1..).is_some_and(|line| line.starts_with(word));
    match colors.iter().find(|(word, _)| has(word)) {
        Some((word, color)) => line.replacen(word, &paint(Out::Stdout, *color, word), 1),
        None => line.to_owned(),
    }
}
