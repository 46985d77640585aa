//! `samite info`: the features of the machine and the fabric, and what was chosen.

use crate::agent::budget_by_rule;
use crate::screen::{note, printable, say, size, table};
use anyhow::{Context, Result};
use comfy_table::Table;
use samite::agent::{DomainFacts, NodeFacts};
use samite::host::Host;
use samite::{CostModel, FabricConfig, Identity};
use serde::Serialize;
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
    /// Print it as JSON; sizes are in bytes, rates in bytes per second
    #[arg(long)]
    json: bool,
}

/// All of it.
#[derive(Serialize)]
struct Info {
    version: &'static str,
    machine: Machine,
    transports: Vec<Feature>,
    copies: Copies,
    domain: Option<Domain>,
}

#[derive(Serialize)]
struct Machine {
    processor: String,
    cores: usize,
    caches: Vec<Cache>,
    kernel: String,
    page: u64,
    huge_pages_private: String,
    huge_pages_shared: String,
    memory_available: u64,
    memory_total: u64,
    /// The budget of a domain, by rule.
    budget: u64,
    /// What its agent hosts.
    services: Vec<&'static str>,
}

#[derive(Serialize)]
struct Cache {
    level: u32,
    bytes: u64,
}

/// A transport, or a feature of one.
#[derive(Serialize)]
struct Feature {
    name: &'static str,
    /// The transport that it is a feature of.
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<&'static str>,
    /// `None`: it is no choice.
    chosen: Option<bool>,
    why: String,
}

/// How messages of private memory are copied.
#[derive(Serialize)]
struct Copies {
    figures: &'static str,
    sizes: Vec<Rates>,
    /// The longest message inside the cells of a ring, and the longest that is sent at once.
    inline_max: u64,
    eager_max: u64,
    /// Why the kernel does not copy, if it does not.
    kernel_refused: Option<String>,
}

#[derive(Serialize)]
struct Rates {
    bytes: u64,
    ring: f64,
    kernel: f64,
    cooperative: f64,
    chosen: String,
}

#[derive(Serialize)]
struct Domain {
    domain: String,
    agent_pid: i32,
    granted: u64,
    budget: u64,
    resident: u64,
    members: Vec<Member>,
    /// Of a domain of several nodes, this one first.
    nodes: Vec<NodeFacts>,
}

#[derive(Serialize)]
struct Member {
    peer: u32,
    incarnation: u32,
    job: String,
    program: String,
    rank: u32,
    size: u32,
    pid: i32,
}

/// Prints the information.
pub(crate) fn run(args: &InfoArgs) -> Result<ExitCode> {
    let host = Host::read();
    let facts = args.domain.as_deref();
    let facts = facts.map(|domain| samite::agent::facts(domain, Duration::from_secs(2)));
    let info = Info {
        version: env!("CARGO_PKG_VERSION"),
        transports: transports(&host),
        machine: Machine::new(host),
        copies: Copies::new(args.calibrate)?,
        domain: facts.transpose()?.map(Domain::new),
    };
    if args.json {
        say(format_args!("{}\n", serde_json::to_string_pretty(&info)?))?;
    } else {
        say(format_args!("{}", info.text()))?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Machine {
    fn new(host: Host) -> Machine {
        let caches = host.caches.into_iter();
        Machine {
            processor: host.cpu,
            cores: host.cores,
            caches: caches
                .map(|(level, bytes)| Cache { level, bytes })
                .collect(),
            kernel: host.kernel,
            page: host.page_bytes,
            huge_pages_private: host.huge_private,
            huge_pages_shared: host.huge_shared,
            memory_available: host.memory_available,
            memory_total: host.memory_total,
            budget: budget_by_rule(),
            services: samite::services().iter().map(|one| one.name).collect(),
        }
    }

    fn table(&self) -> Table {
        let mut rows = table(&["machine", ""]);
        let caches: Vec<String> = self
            .caches
            .iter()
            .map(|Cache { level, bytes }| format!("L{level} {}", size(*bytes)))
            .collect();
        rows.add_row(["processor", &self.processor]);
        rows.add_row(["cores", &self.cores.to_string()]);
        rows.add_row(["caches", &caches.join(", ")]);
        rows.add_row(["kernel", &self.kernel]);
        rows.add_row(["page", &size(self.page)]);
        rows.add_row(["huge pages, private memory", &self.huge_pages_private]);
        let shared = match self.huge_pages_shared.as_str() {
            "never" => {
                "off by default (never); segments of 2 MiB and more are collapsed on request"
            }
            other => other,
        };
        rows.add_row(["huge pages, shared memory", shared]);
        let memory = format!(
            "{} of {}",
            size(self.memory_available),
            size(self.memory_total)
        );
        rows.add_row(["memory available", &memory]);
        rows.add_row(["budget of a domain, by rule", &size(self.budget)]);
        rows.add_row(["services of its agent", &self.services.join(", ")]);
        rows
    }
}

fn transports(host: &Host) -> Vec<Feature> {
    let feature = |name, of, chosen, why: &str| Feature {
        name,
        of,
        chosen,
        why: why.to_owned(),
    };
    let shm = "all units are on this node: rings, mapped segments, kernel copy";
    let ucx = match samite::has_ucx() {
        true => {
            "units of other nodes, where agents of several nodes form a domain (samite agent --listen)"
        }
        false => "units of other nodes: install libucx0 (1.13 or newer) on each of them",
    };
    let sim = "a simulated network for tests; never chosen for a job";
    let link = "latency and rate between units that share no memory, for tests: set fabric.link";
    let has_fences = samite_mem::enable_asymmetric_fences();
    let fences = match has_fences {
        true => "a sender pays nothing for a receiver that may sleep",
        false => "every send costs a full fence; the kernel refuses membarrier",
    };
    let waiting = format!(
        "spin 50 us, yield 200 us, sleep; no spin when more than {} units run",
        host.cores
    );
    vec![
        feature("shm", None, Some(true), shm),
        feature("ucx", None, Some(samite::has_ucx()), ucx),
        feature("sim", None, Some(false), sim),
        feature("membarrier", Some("shm"), Some(has_fences), fences),
        feature("waiting", Some("shm"), None, &waiting),
        feature("link", Some("shm"), None, link),
    ]
}

impl Copies {
    fn new(calibrate: bool) -> Result<Copies> {
        let (model, figures) = costs(calibrate)?;
        let alone = samite::Fabric::alone(Identity::by_hand("info"), FabricConfig::default())?;
        // Whether the kernel copies depends on the ptrace setting, so it is tried.
        let kernel = crate::copy_probe::try_with(samite::config::PtracerName::Launcher);
        let caps = alone.caps_to(alone.me());
        let rates = model.rates.iter();
        let sizes = rates.map(|rate| {
            let chosen = model.choose(rate.bytes, kernel.is_ok(), kernel.is_ok());
            // They are measured in MB/s.
            Rates {
                bytes: rate.bytes,
                ring: rate.ring * 1e6,
                kernel: rate.kernel * 1e6,
                cooperative: rate.cooperative * 1e6,
                chosen: format!("{chosen:?}").to_lowercase(),
            }
        });
        Ok(Copies {
            figures,
            sizes: sizes.collect(),
            inline_max: caps.inline_max,
            eager_max: model.eager_max.min(caps.body_max),
            kernel_refused: kernel.err().map(|why| why.to_string()),
        })
    }
}

/// Returns the figures and their origin.
fn costs(calibrate: bool) -> Result<(CostModel, &'static str)> {
    if calibrate {
        let model = samite::calibration::measure()?;
        samite::calibration::save(&model).context("the figures could not be kept")?;
        return Ok((model, "measured now"));
    }
    let model = samite::calibration::load_or_measure(|what| note(format_args!("{what}")));
    let origin = if model.host.is_empty() {
        "a guess: this host could not be measured, was busy, or has no place for the figures (--calibrate says why)"
    } else {
        "measured on this host"
    };
    Ok((model, origin))
}

impl Domain {
    fn new(facts: DomainFacts) -> Domain {
        let peers = facts.peers.into_iter();
        Domain {
            domain: facts.domain,
            agent_pid: facts.agent_pid,
            granted: facts.used,
            budget: facts.budget,
            resident: facts.resident,
            members: peers
                .map(|peer| Member {
                    peer: peer.peer.0,
                    incarnation: peer.incarnation,
                    job: peer.identity.job,
                    program: peer.identity.program,
                    rank: peer.identity.rank,
                    size: peer.identity.size,
                    pid: peer.pid,
                })
                .collect(),
            nodes: facts.nodes,
        }
    }
}

impl Info {
    fn text(&self) -> String {
        let mut text = format!(
            "samite {}\n\n{}\n\n{}\n\n{}\n",
            self.version,
            self.machine.table(),
            self.transports(),
            self.copies.text()
        );
        if let Some(domain) = &self.domain {
            text.push_str(&format!("\n{}\n", domain.text()));
        }
        text
    }

    fn transports(&self) -> Table {
        let mut rows = table(&["transport", "chosen", "why"]);
        for Feature {
            name,
            of,
            chosen,
            why,
        } in &self.transports
        {
            let chosen = match chosen {
                Some(true) => "yes",
                Some(false) => "no",
                None => "",
            };
            // Features of a transport are indented.
            let indent = if of.is_some() { "  " } else { "" };
            rows.add_row([&format!("{indent}{name}"), chosen, why]);
        }
        rows
    }
}

impl Copies {
    fn text(&self) -> String {
        let mut rows = table(&[
            "message of private memory",
            "ring",
            "kernel",
            "cooperative",
            "chosen",
        ]);
        for rates in &self.sizes {
            let [ring, kernel, cooperative] = [rates.ring, rates.kernel, rates.cooperative]
                .map(|rate| format!("{:.1} GB/s", rate / 1e9));
            let chosen = rates.chosen.clone();
            rows.add_row([size(rates.bytes), ring, kernel, cooperative, chosen]);
        }
        let refused = self.kernel_refused.as_ref();
        let refused = refused.map_or(String::new(), |why| {
            format!("\nkernel copy: not chosen: {why}")
        });
        format!(
            "{rows}\nfigures: {}\n\
             up to {}: inside the cells of the ring\n\
             up to {}: at once (eager), through the bulk area of the ring\n\
             above: offered, then moved as the table says\n\
             from or to a segment: direct, one copy at memory speed, or none for a view{refused}",
            self.figures,
            size(self.inline_max),
            size(self.eager_max),
        )
    }
}

impl Domain {
    fn text(&self) -> String {
        let mut rows = table(&["peer", "incarnation", "job", "program", "rank", "pid"]);
        for member in &self.members {
            rows.add_row([
                member.peer.to_string(),
                member.incarnation.to_string(),
                printable(&member.job),
                printable(&member.program),
                format!("{} of {}", member.rank, member.size),
                member.pid.to_string(),
            ]);
        }
        let mut text = format!(
            "domain {}: agent {}, {} of {} granted, {} resident\n{rows}",
            printable(&self.domain),
            self.agent_pid,
            size(self.granted),
            size(self.budget),
            size(self.resident)
        );
        if !self.nodes.is_empty() {
            let mut rows = table(&["node", "name", "its agent listens at"]);
            for node in &self.nodes {
                rows.add_row([
                    node.number.to_string(),
                    printable(&node.name),
                    printable(&node.address),
                ]);
            }
            text.push_str(&format!("\n\nits nodes, this one first\n{rows}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_move_the_cursor() {
        let name = || "a\x1b[2J\rb".to_owned();
        let domain = Domain {
            domain: name(),
            agent_pid: 1,
            granted: 0,
            budget: 1,
            resident: 0,
            members: vec![Member {
                peer: 0,
                incarnation: 1,
                job: name(),
                program: name(),
                rank: 0,
                size: 1,
                pid: 1,
            }],
            nodes: Vec::new(),
        };
        let text = domain.text();
        let is_plain = |line: &str| !line.chars().any(char::is_control);
        assert!(text.lines().all(is_plain), "{text:?}");
    }
}
