//! `samite agent`: the process that holds the memory of a domain.

use anyhow::{Context, Result};
use samite::agent::{self, AgentConfig};
use samite::config::{Config, Layers};
use samite::host::Host;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Options of `samite agent`.
#[derive(clap::Args)]
pub(crate) struct AgentArgs {
    /// The domain
    #[arg(long)]
    domain: String,
}

/// The agent's command for `samite run`; none if the domain has one already: the job joins it.
pub(crate) fn command(executable: &Path, domain: &str) -> Option<Vec<OsString>> {
    let patience = std::time::Duration::from_secs(2);
    if agent::facts(domain, patience).is_ok() {
        return None;
    }
    Some(vec![
        executable.into(),
        "agent".into(),
        "--domain".into(),
        domain.into(),
    ])
}

/// Runs the agent of a domain until it is told to stop. Prints `ready` once it can be reached.
pub(crate) fn run(args: &AgentArgs) -> Result<ExitCode> {
    let settings = match std::env::var(samite::variable::CONFIG) {
        Ok(text) => Config::from_toml(&text)?,
        Err(_) => {
            Layers::default()
                .user_file()?
                .environment(std::env::vars())?
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
    agent::run(&config, || {
        println!("ready");
        let _ = std::io::stdout().flush();
    })
    .with_context(|| format!("the agent of domain {}", args.domain))?;
    Ok(ExitCode::SUCCESS)
}

/// Half of the memory that could be allocated now: the programs need the other half for themselves.
pub(crate) fn budget_by_rule() -> u64 {
    (Host::read().memory_available / 2).max(64 << 20)
}
