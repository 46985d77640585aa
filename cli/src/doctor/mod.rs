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
use crate::run::UsageError;
use crate::screen::say;
use crate::{builtin, settings};
use anyhow::Result;
use comfy_table::{ContentArrangement, Table, presets};
use plan::Plan;
pub(crate) use refusal::refuse;
use samite_launch::{Builtins, Program, Workflow};
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `samite doctor`; a workflow adds its own.
#[derive(clap::Args)]
pub(crate) struct DoctorArgs {
    /// Print the plan of the workflow as JSON, and nothing else
    #[arg(long, requires = "file")]
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
#[derive(Clone, Copy, PartialEq)]
enum State {
    /// As it should be.
    Good,
    /// Samite runs, but slower, or without an optional feature.
    Note,
    /// Samite cannot run like this.
    Bad,
}

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
        let findings = machine::findings(&two, &settings.config);
        return conclude(&[findings], None);
    };
    for assignment in assignments {
        workflow.set(assignment)?;
    }
    // The same steps as in `samite run`, so that an error of the workflow is found here, too.
    let settings = settings::resolve(Some(&workflow), &args.config)?;
    let programs = workflow.programs(&Builtins {
        executable: std::env::current_exe()?,
        names: builtin::BUILTINS,
    })?;
    let edges = edges::edges(&workflow, &settings)?;
    settings::check_streams(&workflow, &edges, &settings)?;
    let plan = Plan::new(&programs, &edges, &settings.config)?;
    if args.json {
        say(format_args!("{}\n", serde_json::to_string_pretty(&plan)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    say(format_args!("{}\n", paper::text(&plan)))?;
    let machine = machine::findings(&programs, &settings.config);
    let mut advice = advice::findings(&plan, &programs);
    advice.extend(methods::findings(&programs, &edges, &settings));
    let what = format!("{} ({} units)", workflow.path().display(), plan.units);
    conclude(&[advice, machine], Some(&what))
}

/// Prints the findings and the conclusion.
fn conclude(findings: &[Vec<Finding>], what: Option<&str>) -> Result<ExitCode> {
    for findings in findings {
        say(format_args!("{}\n", table(findings)))?;
    }
    let bad = findings.iter().flatten();
    let bad = bad.filter(|finding| finding.state == State::Bad);
    match (bad.count(), what) {
        (0, None) => say(format_args!("This machine is ready.\n"))?,
        (0, Some(what)) => say(format_args!("This machine is ready for {what}.\n"))?,
        (bad, _) => {
            say(format_args!(
                "{bad} of these keep Samite from running here; what to do is beside them.\n"
            ))?;
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
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
    lines
        .map(|line| line.trim_end().to_owned() + "\n")
        .collect()
}
