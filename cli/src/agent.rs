//! `samite agent`: the process that holds the memory of a domain.

use crate::screen::size;
use anyhow::{Context, Result};
use samite::agent::{self, AgentConfig};
use samite::config::{Config, Layers};
use samite::host::Host;
use samite::stage::service::{self, Room, Service};
use samite::{Fabric, FabricConfig};
use samite_mem::PEERS_MAX;
use std::ffi::OsString;
use std::io::Write;
use std::panic::catch_unwind;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Shared memory that each process takes for its messages: memory is granted in steps of so many bytes.
const MESSAGES: u64 = 2 << 20;

/// How long the last words of an agent may take.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Bytes of disk that streams may spill to.
pub(crate) const SPILL: u64 = 8 << 30;

/// Options of `samite agent`.
#[derive(clap::Args)]
pub(crate) struct AgentArgs {
    /// The domain
    #[arg(long)]
    domain: String,
}

/// The agent's command for `samite run`; none if the domain has one already: the job joins it.
///
/// # Errors
/// There is an agent of this name, which cannot be talked to.
pub(crate) fn command(executable: &Path, domain: &str) -> Result<Option<Vec<OsString>>> {
    let patience = std::time::Duration::from_secs(2);
    match agent::facts(domain, patience) {
        Ok(_) => return Ok(None),
        Err(error) if agent::domains().iter().any(|name| name == domain) => {
            return Err(error.into());
        }
        Err(_) => {}
    }
    Ok(Some(vec![
        executable.into(),
        "agent".into(),
        "--domain".into(),
        domain.into(),
    ]))
}

/// Runs the agent of a domain until it is told to stop. Prints `ready` once it can be reached.
pub(crate) fn run(args: &AgentArgs) -> Result<ExitCode> {
    let settings = match std::env::var(samite::variable::CONFIG) {
        Ok(text) => Config::from_toml(&text)?,
        Err(_) => {
            Layers::default()
                .user_file()?
                .own_environment()?
                .resolve()?
                .config
        }
    };
    let budget = settings
        .memory
        .budget
        .set()
        .map_or_else(budget_by_rule, |bytes| bytes.get());
    let config = AgentConfig {
        domain: args.domain.clone(),
        budget,
    };
    let steward = config.clone();
    agent::run(&config, || {
        std::thread::spawn(move || {
            let served = catch_unwind(|| serve_streams(&steward));
            let why = match served {
                Ok(Ok(())) => "their service has ended".to_owned(),
                Ok(Err(error)) => format!("{error:#}"),
                Err(_) => "their service has panicked, which is a defect of Samite".to_owned(),
            };
            // All streams and their blocks are gone: no unit should wait for them until its deadline.
            let domain = &steward.domain;
            say(format!(
                "the agent of domain {domain} ends, since its streams are not served any more: {why}"
            ));
            std::process::exit(1);
        });
        println!("ready");
        let _ = std::io::stdout().flush();
    })
    .with_context(|| format!("the agent of domain {}", args.domain))?;
    Ok(ExitCode::SUCCESS)
}

/// Says its last words. Nobody may be reading them, or a reader that stands still: the agent ends all the same.
fn say(words: String) {
    let (said, is_said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = writeln!(std::io::stderr(), "{words}");
        let _ = said.send(());
    });
    let _ = is_said.recv_timeout(LAST_WORDS);
}

/// Coordinates the streams of the domain and keeps their blocks, as one more peer, for as long as this process lives.
fn serve_streams(agent: &AgentConfig) -> Result<()> {
    let config = FabricConfig {
        background: true,
        ..FabricConfig::default()
    };
    let fabric = Fabric::join(&agent.domain, service::steward_identity(), config)?;
    let room = Room {
        memory: room_of(agent.budget),
        disk: SPILL,
        folder: std::env::temp_dir(),
    };
    Ok(Service::steward(&fabric, room).run(|_| true)?)
}

/// Why so many units cannot run in one domain, whatever they do; `budget` is what was set.
pub(crate) fn too_small(units: u64, budget: Option<u64>) -> Option<String> {
    // The units, the agent, and the agent's own peer that serves streams.
    let processes = units + 2;
    if processes > PEERS_MAX as u64 {
        return Some(format!(
            "{units} units are too many: a domain has room for {} beside its agent",
            PEERS_MAX - 2
        ));
    }
    let least = (units + 1) * MESSAGES;
    let budget = budget.filter(|budget| *budget < least)?;
    Some(format!(
        "memory.budget is {}, and {units} units and the agent need {} for their messages alone",
        size(budget),
        size(least)
    ))
}

/// Half of the memory that could be allocated now: the programs need the other half for themselves.
pub(crate) fn budget_by_rule() -> u64 {
    (Host::read().memory_available / 2).max(64 << 20)
}

/// What blocks of streams may have of a budget; the rest is for what units share beside them.
pub(crate) fn room_of(budget: u64) -> u64 {
    budget / 4 * 3
}
