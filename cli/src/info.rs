//! `samite info`: the features of the machine and the fabric, and what was chosen.

use crate::agent::budget_by_rule;
use crate::screen::{say, size, table, warn};
use anyhow::Result;
use comfy_table::Table;
use samite::host::Host;
use samite::{CostModel, FabricConfig, Identity};
use std::process::ExitCode;
use std::time::Duration;

/// Options of `samite info`.
#[derive(clap::Args)]
pub(crate) struct InfoArgs {
    /// Measure the copy engines now and keep the figures
    #[arg(long)]
    calibrate: bool,
    /// Also show the members of this domain
    #[arg(long)]
    domain: Option<String>,
}

/// Prints the information.
pub(crate) fn run(args: &InfoArgs) -> Result<ExitCode> {
    let host = Host::read();
    say(format_args!(
        "samite {}\n\n{}\n",
        env!("CARGO_PKG_VERSION"),
        machine(&host)
    ))?;
    say(format_args!("\n{}\n", transports(&host)))?;
    let (model, origin) = costs(args.calibrate)?;
    say(format_args!("\n{}\n", engines(&model, origin)?))?;
    if let Some(domain) = &args.domain {
        say(format_args!("\n{}\n", members(domain)?))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn machine(host: &Host) -> Table {
    let mut rows = table(&["machine", ""]);
    let caches: Vec<String> = host
        .caches
        .iter()
        .map(|(level, bytes)| format!("L{level} {}", size(*bytes)))
        .collect();
    rows.add_row(["processor", &host.cpu]);
    rows.add_row(["cores", &host.cores.to_string()]);
    rows.add_row(["caches", &caches.join(", ")]);
    rows.add_row(["kernel", &host.kernel]);
    rows.add_row(["page", &size(host.page_bytes)]);
    rows.add_row(["huge pages, private memory", &host.huge_private]);
    let shared = match host.huge_shared.as_str() {
        "never" => "off by default (never); segments of 2 MiB and more are collapsed on request",
        other => other,
    };
    rows.add_row(["huge pages, shared memory", shared]);
    let memory = format!(
        "{} of {}",
        size(host.memory_available),
        size(host.memory_total)
    );
    rows.add_row(["memory available", &memory]);
    rows.add_row(["budget of a domain, by rule", &size(budget_by_rule())]);
    let services: Vec<&str> = samite::services().iter().map(|one| one.name).collect();
    rows.add_row(["services of its agent", &services.join(", ")]);
    rows
}

fn transports(host: &Host) -> Table {
    let mut rows = table(&["transport", "chosen", "why"]);
    rows.add_row([
        "shm",
        "yes",
        "all units are on this node: rings, mapped segments, kernel copy",
    ]);
    rows.add_row([
        "sim",
        "no",
        "a simulated network for tests; never chosen for a job",
    ]);
    // Indented rows are features of shm.
    let (chosen, why) = match samite_mem::enable_asymmetric_fences() {
        true => ("yes", "a sender pays nothing for a receiver that may sleep"),
        false => (
            "no",
            "every send costs a full fence; the kernel refuses membarrier",
        ),
    };
    rows.add_row(["  membarrier", chosen, why]);
    let spin = format!(
        "spin 50 us, yield 200 us, sleep; no spin when more than {} units run",
        host.cores
    );
    rows.add_row(["  waiting", "", &spin]);
    rows
}

/// Returns the figures and their origin.
fn costs(calibrate: bool) -> Result<(CostModel, &'static str)> {
    if calibrate {
        let model = samite::calibration::measure()?;
        samite::calibration::save(&model)?;
        return Ok((model, "measured now"));
    }
    let model = samite::calibration::load_or_measure(|what| warn(format_args!("{what}")));
    let origin = if model.host.is_empty() {
        "a guess: measuring failed"
    } else {
        "measured on this host"
    };
    Ok((model, origin))
}

fn engines(model: &CostModel, origin: &str) -> Result<String> {
    let alone = samite::Fabric::alone(Identity::by_hand("info"), FabricConfig::default())?;
    // Whether the kernel copies depends on the ptrace setting, so it is tried.
    let kernel = crate::copy_probe::try_with(samite::config::PtracerName::Launcher);
    let caps = alone.caps_to(alone.me());
    let mut rows = table(&[
        "message of private memory",
        "ring",
        "kernel",
        "cooperative",
        "chosen",
    ]);
    for rate in &model.rates {
        let rates = [rate.ring, rate.kernel, rate.cooperative]
            .map(|rate| format!("{:.1} GB/s", rate / 1e3));
        let chosen = model.choose(rate.bytes, kernel.is_ok(), kernel.is_ok());
        let [ring, kernel, cooperative] = rates;
        rows.add_row([
            size(rate.bytes),
            ring,
            kernel,
            cooperative,
            format!("{chosen:?}").to_lowercase(),
        ]);
    }
    let refused = kernel.err().map_or(String::new(), |why| {
        format!("\nkernel copy: not chosen: {why}")
    });
    Ok(format!(
        "{rows}\nfigures: {origin}\n\
         up to {}: inside the cells of the ring\n\
         up to {}: at once (eager), through the bulk area of the ring\n\
         above: offered, then moved as the table says\n\
         from or to a segment: direct, one copy at memory speed, or none for a view{refused}",
        size(caps.inline_max),
        size(model.eager_max),
    ))
}

fn members(domain: &str) -> Result<String> {
    let facts = samite::agent::facts(domain, Duration::from_secs(2))?;
    let mut rows = table(&["peer", "incarnation", "job", "program", "rank", "pid"]);
    for peer in &facts.peers {
        let identity = &peer.identity;
        rows.add_row([
            peer.peer.0.to_string(),
            peer.incarnation.to_string(),
            identity.job.clone(),
            identity.program.clone(),
            format!("{} of {}", identity.rank, identity.size),
            peer.pid.to_string(),
        ]);
    }
    let memory = format!(
        "domain {}: agent {}, {} of {} granted, {} resident",
        facts.domain,
        facts.agent_pid,
        size(facts.used),
        size(facts.budget),
        size(facts.resident)
    );
    Ok(format!("{memory}\n{rows}"))
}
