//! `samite top`: a running domain, live: streams and who reads them, queues, memory, who waits for
//! whom.
//!
//! It joins the domain as one more peer, in the background, and asks the agent, the coordinator and
//! the block store; no unit is disturbed.
//!
//! # Files
//! `sample` (asking) · `report` (what is shown, and `--json`) · `tables` (as text) · `screen` (the
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
    /// The domain; not needed where only one is there
    #[arg(long)]
    domain: Option<String>,
    /// Print the state of now as tables and end
    #[arg(long)]
    once: bool,
    /// Print the state of now as JSON and end
    #[arg(long, conflicts_with = "once")]
    json: bool,
    /// Time between two looks
    #[arg(long, default_value = "1s", value_parser = humantime::parse_duration)]
    interval: Duration,
}

/// Shows a domain until the person has seen enough, or once.
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

/// The domain of this user on this machine, if there is one and no other.
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
