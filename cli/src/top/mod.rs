//! `samite top`: shows a running domain live: streams and their readers, chunks, memory, and which
//! process waits for which.
//!
//! It joins the domain as a background peer, and queries the agent, the coordinator, the block
//! stores and the servers of chunks, but no other unit: what a unit waits for is read where it has
//! published that.
//!
//! # Files
//! `sample` (queries) · `report` (the contents, and `--json`) · `chunks` (of coherent memory) ·
//! `tables` (as cells) · `frame` (as lines that fit) · `screen` (the terminal)

mod chunks;
mod frame;
mod report;
mod sample;
mod screen;
mod tables;

use crate::run::UsageError;
use crate::screen::{printable, say};
use anyhow::{Result, bail};
use report::Report;
use samite::agent::DomainFacts;
use sample::Source;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

/// Options of `samite top`.
#[derive(clap::Args)]
pub(crate) struct TopArgs {
    /// The domain; not needed if there is only one
    #[arg(long, env = "SAMITE_DOMAIN")]
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
        say(format_args!("{}", once(&Report::new(&first, None))))?;
    } else {
        screen::live(&stage, first, args.interval)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the report as text: rows are wrapped if the output is a terminal, and none is left out.
fn once(report: &Report) -> String {
    let size = crossterm::terminal::size();
    let width = size.ok().filter(|_| std::io::stdout().is_terminal());
    let lines = frame::lines(report, width.map(|(width, _)| width), None);
    lines
        .iter()
        .map(|line| format!("{}\n", line.text))
        .collect()
}

/// How long each agent may take to say who is in its domain.
const ASKED: Duration = Duration::from_millis(500);

/// Returns the domain of this user on this machine, if there is exactly one.
fn only_domain() -> Result<String> {
    let domains = samite::agent::domains();
    match &domains[..] {
        [domain] => Ok(domain.clone()),
        [] => bail!(
            "this machine has no domain of yours: start a workflow with `samite run`, or an agent with `samite agent`"
        ),
        several => {
            let lines: String = several.iter().map(|domain| described(domain)).collect();
            let message = format!(
                "this machine has several domains of yours; choose one with --domain NAME:{lines}"
            );
            Err(UsageError(message).into())
        }
    }
}

/// Returns a line about a domain: its name, its agent and its programs. It is not joined for that.
fn described(domain: &str) -> String {
    let facts = samite::agent::facts(domain, ASKED).ok();
    line_about(domain, facts.as_ref())
}

fn line_about(domain: &str, facts: Option<&DomainFacts>) -> String {
    let domain = printable(domain);
    let Some(facts) = facts else {
        return format!("\n  {domain} (its agent does not answer)");
    };
    let mut programs: BTreeMap<&str, u32> = BTreeMap::new();
    let peers = facts
        .peers
        .iter()
        .filter(|peer| peer.pid != facts.agent_pid);
    for peer in peers {
        *programs.entry(&peer.identity.program).or_default() += 1;
    }
    let programs: Vec<String> = programs
        .iter()
        .map(|(program, count)| format!("{count} x {}", printable(program)))
        .collect();
    let programs = match programs.is_empty() {
        true => "no programs".to_owned(),
        false => programs.join(", "),
    };
    format!("\n  {domain} (agent {}: {programs})", facts.agent_pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite::{Identity, PeerId, PeerInfo};

    #[test]
    fn names_do_not_move_the_cursor() {
        const NAME: &str = "a\x1b[2J\rb";
        let facts = DomainFacts {
            domain: NAME.to_owned(),
            agent_pid: 1,
            budget: 1,
            used: 0,
            resident: 0,
            reclaiming: 0,
            peers: vec![PeerInfo {
                peer: PeerId(0),
                incarnation: 1,
                identity: Identity::by_hand(NAME),
                pid: 2,
            }],
            nodes: Vec::new(),
        };
        for facts in [Some(&facts), None] {
            let text = line_about(NAME, facts);
            let is_plain = |line: &str| !line.chars().any(char::is_control);
            assert!(text.lines().all(is_plain), "{text:?}");
        }
    }
}
