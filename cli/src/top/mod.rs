//! `samite top`: shows a running domain live: streams and their readers, queues, memory, and which
//! process waits for which.
//!
//! It joins the domain as a background peer, and queries the agent, the coordinator and the block
//! stores, but no unit.
//!
//! # Files
//! `sample` (queries) · `report` (the contents, and `--json`) · `tables` (as text) · `screen` (the
//! terminal)

mod report;
mod sample;
mod screen;
mod tables;

use crate::screen::say;
use anyhow::{Result, bail};
use report::Report;
use sample::Source;
use std::process::ExitCode;
use std::time::Duration;

/// Options of `samite top`.
#[derive(clap::Args)]
pub(crate) struct TopArgs {
    /// The domain; not needed if there is only one
    #[arg(long)]
    domain: Option<String>,
    /// Print the current state as tables and exit
    #[arg(long)]
    once: bool,
    /// Print the current state as JSON and exit
    #[arg(long, conflicts_with = "once")]
    json: bool,
    /// Time between two updates
    #[arg(long, default_value = "1s", value_parser = humantime::parse_duration)]
    interval: Duration,
}

/// Shows a domain until the user quits, or once.
pub(crate) fn run(args: &TopArgs) -> Result<ExitCode> {
    let domain = match &args.domain {
        Some(domain) => domain.clone(),
        None => only_domain()?,
    };
    let source = Source::join(&domain)?;
    let stage = source.stage()?;
    let first = stage.sample()?;
    if args.json {
        let report = Report::new(&first, None);
        say(format_args!("{}\n", serde_json::to_string_pretty(&report)?))?;
    } else if args.once {
        say(format_args!("{}", tables::text(&Report::new(&first, None))))?;
    } else {
        screen::live(&stage, first, args.interval)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the domain of this user on this machine, if there is exactly one.
fn only_domain() -> Result<String> {
    let domains = samite::agent::domains();
    match &domains[..] {
        [domain] => Ok(domain.clone()),
        [] => bail!(
            "this machine has no domain of yours: start a workflow with `samite run`, or an agent with `samite agent`"
        ),
        several => bail!(
            "this machine has several domains of yours: choose one of them with --domain: {}",
            several.join(", ")
        ),
    }
}
