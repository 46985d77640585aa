//! The configuration of a test that runs in several processes.

use crate::{Cluster, Outcome, Unit, Who, child};
use samite_fabric::agent::Starter;
use samite_fabric::{Config, Fabric, Mask, PeerId};
use std::time::Duration;

/// Number of units of a test, and how to run them.
#[derive(Clone, Debug)]
pub struct Units {
    pub(crate) count: u32,
    /// The programs of the job, with their numbers of units.
    pub(crate) programs: Vec<(&'static str, u32)>,
    pub(crate) budget: u64,
    pub(crate) config: Config,
    pub(crate) before: Option<fn(Who)>,
    pub(crate) services: Vec<Starter>,
    pub(crate) hosts: u32,
    pub(crate) seed: Option<u64>,
    pub(crate) timeout: Duration,
}

/// Creates the configuration of `count` units in a fresh domain with its agent.
pub fn units(count: u32) -> Units {
    Units {
        count,
        programs: vec![("unit", count)],
        budget: 256 << 20,
        config: Config {
            deadline: Duration::from_secs(30),
            ..Config::default()
        },
        before: None,
        services: Vec::new(),
        hosts: hosts(),
        seed: None,
        timeout: Duration::from_secs(60),
    }
}

/// As [`units`], for a job of several programs: the units of the first one come first.
pub fn programs(programs: &[(&'static str, u32)]) -> Units {
    Units {
        programs: programs.to_vec(),
        ..units(programs.iter().map(|(_, units)| units).sum())
    }
}

/// In the children: the test that they belong to, and their role.
pub(crate) const NAME: &str = "SAMITE_TEST_NAME";
pub(crate) const ROLE: &str = "SAMITE_TEST_ROLE";

/// In the agents of a test on several nodes: the name of the node, and where the first one listens.
pub(crate) const HOST: &str = "SAMITE_TEST_HOST";
pub(crate) const HEAD: &str = "SAMITE_TEST_HEAD";

/// Number of nodes on which the units behave as if they were, in tests that do not specify it:
/// `cargo xtask test` runs suites again with [`Mask::nodes`] 2 and 3.
const NODES: &str = "SAMITE_TEST_NODES";

/// Number of nodes of a test that does not specify it, as for [`Units::hosts`].
const HOSTS: &str = "SAMITE_TEST_HOSTS";

fn hosts() -> u32 {
    let hosts = std::env::var(HOSTS).ok();
    hosts.map_or(1, |text| {
        let hosts = text.parse();
        hosts.unwrap_or_else(|_| panic!("{HOSTS} is \"{text}\", which is not a number"))
    })
}

/// Returns `mask`, with the number of nodes for this run of the tests.
fn on_nodes(mask: Mask) -> Mask {
    match std::env::var(NODES) {
        Ok(text) if mask.nodes == 0 => {
            let nodes = text.parse();
            let nodes =
                nodes.unwrap_or_else(|_| panic!("{NODES} is \"{text}\", which is not a number"));
            Mask { nodes, ..mask }
        }
        _ => mask,
    }
}

impl Units {
    /// Returns the program of a unit, its rank there, and the number of units of the program.
    pub(crate) fn program_of(&self, unit: u32) -> (&'static str, u32, u32) {
        let mut first = 0;
        for (program, size) in &self.programs {
            if unit < first + size {
                return (program, unit - first, *size);
            }
            first += size;
        }
        panic!("unit {unit} belongs to no program")
    }

    /// Sets the domain's budget of shared memory, in bytes.
    pub fn budget(self, bytes: u64) -> Units {
        Units {
            budget: bytes,
            ..self
        }
    }

    /// Changes the settings of all units.
    pub fn config(mut self, change: impl FnOnce(&mut Config)) -> Units {
        change(&mut self.config);
        self
    }

    /// Sets what the units must not use. See [`ONE_NODE`](crate::ONE_NODE).
    pub fn mask(self, mask: Mask) -> Units {
        self.config(|config| config.mask = mask)
    }

    /// Sets what every process does first (limits, another user).
    pub fn before(self, before: fn(Who)) -> Units {
        Units {
            before: Some(before),
            ..self
        }
    }

    /// Sets the services that the agent hosts, like `samite agent`; by default, there are none.
    pub fn services(self, services: Vec<Starter>) -> Units {
        Units { services, ..self }
    }

    /// Runs the units on so many nodes of one domain, in turn: each with an agent and shared memory
    /// of its own, connected by TCP on the loopback interface.
    pub fn hosts(self, hosts: u32) -> Units {
        Units {
            hosts: hosts.max(1),
            ..self
        }
    }

    /// In a round of [`crate::fuzz::rounds`]: gives the processes the same seed.
    pub fn seed(self, seed: u64) -> Units {
        Units {
            seed: Some(seed),
            ..self
        }
    }

    /// Sets the timeout of the watchdog.
    pub fn timeout(self, timeout: Duration) -> Units {
        Units { timeout, ..self }
    }

    /// Runs `body` in every unit after it has joined, with the members by rank. All must succeed.
    /// `name` is the full name of the calling test.
    pub fn run(self, name: &str, body: impl Fn(&Fabric, &[PeerId]) -> Outcome) {
        self.orchestrate(name, body, Cluster::all_end);
    }

    /// Does the same as [`Units::run`]; meanwhile, `orchestrator` runs in the test itself and may
    /// stop and kill units. The units that it kills are not checked; all others must succeed.
    pub fn orchestrate(
        self,
        name: &str,
        body: impl Fn(&Fabric, &[PeerId]) -> Outcome,
        orchestrator: impl FnOnce(&mut Cluster),
    ) {
        let joined = |unit: &Unit| {
            let fabric = unit.join()?;
            let members = fabric.job()?;
            // Units that end or are killed from here on were found by all others.
            fabric.barrier(&members)?;
            body(&fabric, &members)
        };
        self.orchestrate_bare(name, joined, orchestrator);
    }

    /// Does the same as [`Units::orchestrate`], for bodies that join by themselves, or not at all.
    pub fn orchestrate_bare(
        self,
        name: &str,
        body: impl Fn(&Unit) -> Outcome,
        orchestrator: impl FnOnce(&mut Cluster),
    ) {
        if std::env::var(NAME).as_deref() == Ok(name) {
            self.be_a_child(body);
        }
        let mut cluster = Cluster::start(name, &self);
        orchestrator(&mut cluster);
        cluster.all_end();
        cluster.close();
    }

    fn be_a_child(self, body: impl Fn(&Unit) -> Outcome) -> ! {
        let before = |who| {
            if let Some(before) = self.before {
                before(who);
            }
        };
        if std::env::var(ROLE).as_deref() == Ok("agent") {
            child::run_agent(self.budget, self.services.clone(), || before(Who::Agent));
        }
        let config = Config {
            mask: on_nodes(self.config.mask),
            ..self.config
        };
        child::run_unit(config, |unit| {
            before(Who::Unit(unit.rank));
            body(unit)
        })
    }
}

/// Returns true if this unit maps the memory of all present peers.
pub fn maps_all(fabric: &Fabric) -> bool {
    let peers = fabric.peers();
    peers.iter().all(|info| fabric.caps_to(info.peer).map)
}

/// Returns true if this unit maps the memory of the peer that hosts the services of the domain.
pub fn maps_host(fabric: &Fabric) -> bool {
    let host = samite_fabric::agent::find_head(fabric);
    host.is_some_and(|host| fabric.caps_to(host.peer).map)
}

/// Returns true if a test can run here. Otherwise the test is skipped by name, with a hint about
/// what is missing; `SAMITE_TEST_REQUIRE_ALL=1` turns the skip into a failure.
pub fn require(test: &str, condition: bool, otherwise: &str) -> bool {
    if condition {
        return true;
    }
    let strict = std::env::var("SAMITE_TEST_REQUIRE_ALL").is_ok_and(|value| value == "1");
    assert!(!strict, "{test} cannot run here: {otherwise}");
    println!("skipped: {test}: {otherwise}");
    false
}
