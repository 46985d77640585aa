//! `stage-server`: a program whose units keep the blocks of streams with the method `server`; and
//! `chunk-server`, whose units are servers of chunks.

use crate::screen::say;
use anyhow::{Context, Result};
use clap::ArgAction;
use clap::Parser;
use samite::config::Bytes;
use samite::dsm::Topology;
use samite::dsm::service::ChunkService;
use samite::program::{Summary, Units};
use samite::stage::service::{BlockStoreService, Capacity};
use samite::{Fabric, agent};
use std::time::Duration;

/// Serves chunks, as the server that the topology (the setting `dsm.topology`) says this unit is,
/// until the other units of the job have left.
#[derive(Parser)]
#[command(name = "chunk-server")]
pub(crate) struct ChunkServerArgs {}

pub(crate) fn run_chunk_server(fabric: &Fabric) -> Result<()> {
    let topology = Topology::of_process();
    let mut service = ChunkService::join(fabric, &topology)
        .context("this unit cannot be a server of chunks: does dsm.topology name it?")?;
    Ok(service.run_for_job()?)
}

/// Keeps blocks of streams until the other units of the job have left.
#[derive(Parser)]
pub(crate) struct ServerArgs {
    /// Memory for blocks in each server, with its unit; by default an equal part of three quarters
    /// of the domain's
    #[arg(long)]
    memory: Option<Bytes>,

    /// Disk in each server for blocks that readers are slow to take (the policy `spill`), in the
    /// folder for temporary files
    #[arg(long, default_value = "8 GiB")]
    disk: Bytes,

    /// Report at the end how evenly the servers were loaded, without accesses to mapped memory
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    report: bool,
}

pub(crate) fn run(fabric: &Fabric, args: &ServerArgs) -> Result<()> {
    let room = Capacity {
        memory: args
            .memory
            .map_or_else(|| part_of_domain(fabric), |bytes| Ok(bytes.get()))?,
        disk: args.disk.get(),
        folder: std::env::temp_dir(),
    };
    let units = args
        .report
        .then(|| Units::wait_for_all(fabric))
        .transpose()?;
    let mut service =
        BlockStoreService::join(fabric, room).context("this unit cannot be a staging server")?;
    service.run_for_job()?;
    if let Some(units) = units {
        report(fabric, &units)?;
    }
    Ok(())
}

/// Reports what the servers put and got for others, each as the mean and the maximum over servers.
fn report(fabric: &Fabric, units: &Units) -> Result<()> {
    let own = fabric.served();
    let own = [own.put_bytes, own.puts, own.get_bytes, own.gets];
    let said: Vec<u8> = own.iter().flat_map(|count| count.to_le_bytes()).collect();
    let all = units.share(&said)?;
    if fabric.identity().rank > 0 {
        return Ok(());
    }
    let counts = |what: usize| {
        let of = |said: &Vec<u8>| said.as_chunks().0.get(what).copied();
        let all = all.iter().filter_map(of).map(u64::from_le_bytes);
        all.collect::<Vec<u64>>()
    };
    let names = ["bytes put", "puts", "bytes got", "gets"];
    let mut summary = Summary::new("What the servers did");
    let mut largest: f64 = 0.0;
    for (what, name) in names.into_iter().enumerate() {
        let counts = counts(what);
        let mean = counts.iter().sum::<u64>() as f64 / counts.len().max(1) as f64;
        let most = counts.iter().max().copied().unwrap_or(0);
        let load = if mean > 0.0 { most as f64 / mean } else { 1.0 };
        largest = largest.max(load);
        let row = format_args!("{mean:.0} each; at most {most}, {load:.3} of it").to_string();
        summary = summary.row(name, row);
    }
    let largest = format_args!("{largest:.3} of the mean").to_string();
    say(format_args!("{}", summary.row("largest load", largest)))?;
    Ok(())
}

/// Returns this server's part of the memory of the domain.
fn part_of_domain(fabric: &Fabric) -> Result<u64> {
    let domain = fabric.domain().context(
        "a staging server is a program of a workflow: start it with `samite run FILE.toml`",
    )?;
    let facts = agent::facts(domain, Duration::from_secs(5))?;
    Ok(Capacity::part_of(facts.budget) / u64::from(fabric.identity().size.max(1)))
}
