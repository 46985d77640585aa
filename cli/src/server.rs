//! `stage-server`: a program of a workflow whose units keep the blocks of streams with the method `server`.

use anyhow::{Context, Result};
use clap::Parser;
use samite::config::Bytes;
use samite::stage::service::{Room, Service};
use samite::{Fabric, agent};
use std::time::Duration;

/// Keeps blocks of streams until the other units of the job have left.
#[derive(Parser)]
pub(crate) struct ServerArgs {
    /// Memory for blocks in each server, with its unit; by default an equal part of three quarters of the domain's
    #[arg(long)]
    memory: Option<Bytes>,

    /// Disk for blocks that readers are slow to take (the policy `spill`)
    #[arg(long, default_value = "0 B")]
    disk: Bytes,
}

pub(crate) fn run(fabric: &Fabric, args: &ServerArgs) -> Result<()> {
    let room = Room {
        memory: args
            .memory
            .map_or_else(|| part_of_domain(fabric), |bytes| Ok(bytes.get()))?,
        disk: args.disk.get(),
        folder: std::env::temp_dir(),
    };
    let mut service =
        Service::keeper(fabric, room).context("this unit cannot be a staging server")?;
    Ok(service.run_for_job()?)
}

/// Its part of the memory of the domain.
fn part_of_domain(fabric: &Fabric) -> Result<u64> {
    let domain = fabric.domain().context(
        "a staging server is a program of a workflow: start it with `samite run FILE.toml`",
    )?;
    let facts = agent::facts(domain, Duration::from_secs(5))?;
    Ok(facts.budget / 4 * 3 / u64::from(fabric.identity().size.max(1)))
}
