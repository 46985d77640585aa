//! `samite ps`: the domains of this user on this machine, and the jobs and processes in each.

use crate::process::{Process, Started, started};
use crate::screen::{printable, say, size, table};
use anyhow::Result;
use samite::agent::{self, DomainFacts};
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;

/// How long an agent may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Options of `samite ps`.
#[derive(clap::Args)]
pub(crate) struct PsArgs {
    /// Only this domain
    #[arg(long)]
    domain: Option<String>,
    /// Print them as JSON
    #[arg(long)]
    json: bool,
}

/// A domain.
#[derive(Serialize)]
struct Domain {
    domain: String,
    #[serde(flatten)]
    found: Found,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Found {
    Facts(Facts),
    /// The agent does not answer.
    Error {
        error: String,
    },
}

#[derive(Serialize)]
struct Facts {
    agent: Process,
    /// Bytes that its processes may share, and those that are granted to them.
    budget: u64,
    granted: u64,
    jobs: Vec<Job>,
}

#[derive(Serialize)]
struct Job {
    job: String,
    programs: Vec<Program>,
}

#[derive(Serialize)]
struct Program {
    program: String,
    /// How many units the program has; those that have ended are not listed.
    size: u32,
    units: Vec<Unit>,
}

#[derive(Serialize)]
struct Unit {
    rank: u32,
    /// Whether it is a member of the domain. A unit that is not has not joined yet, or has left.
    joined: bool,
    #[serde(flatten)]
    process: Process,
}

/// Prints the domains.
pub(crate) fn run(args: &PsArgs) -> Result<ExitCode> {
    let names = match &args.domain {
        Some(name) => vec![name.clone()],
        None => agent::domains(),
    };
    let started = started();
    let mut domains = Vec::new();
    for name in names {
        let found = match agent::facts(&name, TIMEOUT) {
            Ok(facts) => Found::Facts(Facts::new(&facts, &started)),
            // The one that was asked for has to be there.
            Err(error) if args.domain.is_some() => return Err(error.into()),
            // It ended meanwhile.
            Err(_) if !agent::domains().contains(&name) => continue,
            Err(error) => Found::Error {
                error: error.to_string(),
            },
        };
        domains.push(Domain {
            domain: name,
            found,
        });
    }
    if args.json {
        let all = serde_json::json!({ "domains": domains });
        say(format_args!("{all:#}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    if domains.is_empty() {
        say(format_args!("no domain of yours is on this machine\n"))?;
    }
    for (at, domain) in domains.iter().enumerate() {
        let line = if at > 0 { "\n" } else { "" };
        say(format_args!("{line}{}", domain.text()))?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Facts {
    /// `started`: the units that launchers of this machine have started.
    fn new(facts: &DomainFacts, started: &[Started]) -> Facts {
        let mut jobs: Vec<Job> = Vec::new();
        // The agent is a peer as well, since it hosts services.
        let peers = facts.peers.iter();
        let peers = peers.filter(|peer| peer.pid != facts.agent_pid);
        for peer in peers {
            let of = &peer.identity;
            let unit = Unit::new(of.rank, true, peer.pid);
            program(&mut jobs, &of.job, &of.program, of.size).push(unit);
        }
        let is_member = |one: &Started| facts.peers.iter().any(|peer| peer.pid == one.pid);
        let of_domain = started.iter().filter(|one| one.domain == facts.domain);
        for one in of_domain.filter(|one| !is_member(one)) {
            let unit = Unit::new(one.rank, false, one.pid);
            program(&mut jobs, &one.job, &one.program, one.size).push(unit);
        }
        jobs.sort_by(|a, b| a.job.cmp(&b.job));
        for program in jobs.iter_mut().flat_map(|job| &mut job.programs) {
            program.units.sort_by_key(|unit| unit.rank);
        }
        Facts {
            agent: Process::read(facts.agent_pid),
            budget: facts.budget,
            granted: facts.used,
            jobs,
        }
    }
}

/// Returns the units of a program of a job, which are added if they are new.
fn program<'a>(jobs: &'a mut Vec<Job>, job: &str, name: &str, size: u32) -> &'a mut Vec<Unit> {
    let at = jobs.iter().position(|own| own.job == job);
    let at = at.unwrap_or_else(|| {
        jobs.push(Job {
            job: job.to_owned(),
            programs: Vec::new(),
        });
        jobs.len() - 1
    });
    let programs = &mut jobs[at].programs;
    let at = programs.iter().position(|own| own.program == name);
    let at = at.unwrap_or_else(|| {
        programs.push(Program {
            program: name.to_owned(),
            size,
            units: Vec::new(),
        });
        programs.len() - 1
    });
    &mut programs[at].units
}

impl Unit {
    fn new(rank: u32, joined: bool, pid: i32) -> Unit {
        Unit {
            rank,
            joined,
            process: Process::read(pid),
        }
    }
}

impl Domain {
    fn text(&self) -> String {
        let name = printable(&self.domain);
        let facts = match &self.found {
            Found::Facts(facts) => facts,
            Found::Error { error } => return format!("domain {name}: {}\n", printable(error)),
        };
        let Process { pid, state, .. } = facts.agent;
        let (granted, budget) = (size(facts.granted), size(facts.budget));
        let line = format!("domain {name}: agent {pid} ({state}), {granted} of {budget} granted");
        if facts.jobs.is_empty() {
            return format!("{line}; no process is in it\n");
        }
        let mut rows = table(&["job", "unit", "pid", "state", "age", "resident"]);
        for job in &facts.jobs {
            for program in &job.programs {
                for unit in &program.units {
                    let process = &unit.process;
                    let joined = if unit.joined { "" } else { ", not joined" };
                    let age = Duration::from_secs(process.age.as_secs());
                    rows.add_row([
                        printable(&job.job),
                        format!(
                            "{}.{} of {}",
                            printable(&program.program),
                            unit.rank,
                            program.size
                        ),
                        process.pid.to_string(),
                        format!("{}{joined}", process.state),
                        humantime::format_duration(age).to_string(),
                        size(process.resident),
                    ]);
                }
            }
        }
        format!("{line}\n{rows}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_move_the_cursor() {
        const NAME: &str = "a\x1b[2J\rb";
        let unit = Unit::new(0, true, 1);
        let programs = vec![Program {
            program: NAME.to_owned(),
            size: 1,
            units: vec![unit],
        }];
        let job = NAME.to_owned();
        let facts = Facts {
            agent: Process::read(1),
            budget: 1,
            granted: 0,
            jobs: vec![Job { job, programs }],
        };
        let error = NAME.to_owned();
        for found in [Found::Facts(facts), Found::Error { error }] {
            let domain = NAME.to_owned();
            let text = Domain { domain, found }.text();
            let is_plain = |line: &str| !line.chars().any(char::is_control);
            assert!(text.contains("b") && text.lines().all(is_plain), "{text:?}");
        }
    }
}
