//! What a test runs in several processes.

use crate::{Cluster, Outcome, Unit, Who, child};
use samite_fabric::agent::Starter;
use samite_fabric::{Config, Fabric, Mask, PeerId};
use std::time::Duration;

/// How many units a test runs, and how.
#[derive(Clone, Debug)]
pub struct Units {
    pub(crate) count: u32,
    pub(crate) budget: u64,
    pub(crate) config: Config,
    pub(crate) before: Option<fn(Who)>,
    pub(crate) services: Vec<Starter>,
    pub(crate) seed: Option<u64>,
    pub(crate) timeout: Duration,
}

/// `count` units of a fresh domain with its agent.
pub fn units(count: u32) -> Units {
    Units {
        count,
        budget: 256 << 20,
        config: Config {
            deadline: Duration::from_secs(30),
            ..Config::default()
        },
        before: None,
        services: Vec::new(),
        seed: None,
        timeout: Duration::from_secs(60),
    }
}

/// In the children: which test they are part of, and as what.
pub(crate) const NAME: &str = "SAMITE_TEST_NAME";
pub(crate) const ROLE: &str = "SAMITE_TEST_ROLE";

/// On how many nodes the units behave as if they were, in tests that do not say it themselves:
/// `cargo xtask test` runs suites once more with each of [`Mask::nodes`] 2 and 3.
const NODES: &str = "SAMITE_TEST_NODES";

/// `mask`, on as many nodes as this run of the tests wants.
fn on_nodes(mask: Mask) -> Mask {
    match std::env::var(NODES) {
        Ok(text) if mask.nodes == 0 => {
            let nodes = text.parse();
            let nodes =
                nodes.unwrap_or_else(|_| panic!("{NODES} is \"{text}\", which is no number"));
            Mask { nodes, ..mask }
        }
        _ => mask,
    }
}

impl Units {
    /// The domain's budget of shared memory, in bytes.
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

    /// What the units must not use. See [`ONE_NODE`](crate::ONE_NODE).
    pub fn mask(self, mask: Mask) -> Units {
        self.config(|config| config.mask = mask)
    }

    /// What every process does first (limits, another user).
    pub fn before(self, before: fn(Who)) -> Units {
        Units {
            before: Some(before),
            ..self
        }
    }

    /// What the agent hosts, as `samite agent` does; without it nothing.
    pub fn services(self, services: Vec<Starter>) -> Units {
        Units { services, ..self }
    }

    /// In a round of [`crate::fuzz::rounds`]: the processes are to have the same seed.
    pub fn seed(self, seed: u64) -> Units {
        Units {
            seed: Some(seed),
            ..self
        }
    }

    /// How long the watchdog waits.
    pub fn timeout(self, timeout: Duration) -> Units {
        Units { timeout, ..self }
    }

    /// Runs `body` in every unit, which has joined and knows the members by rank. All must succeed.
    /// `name` is the full name of the test that calls this.
    pub fn run(self, name: &str, body: impl Fn(&Fabric, &[PeerId]) -> Outcome) {
        self.orchestrate(name, body, Cluster::all_end);
    }

    /// As [`Units::run`]; meanwhile `orchestrator` runs in the test itself and may stop and kill.
    /// Units that it killed are not asked how they ended, all others must succeed.
    pub fn orchestrate(
        self,
        name: &str,
        body: impl Fn(&Fabric, &[PeerId]) -> Outcome,
        orchestrator: impl FnOnce(&mut Cluster),
    ) {
        let joined = |unit: &Unit| {
            let fabric = unit.join()?;
            let members = fabric.job()?;
            // Whoever ends or is killed from here on was found by all.
            fabric.barrier(&members)?;
            body(&fabric, &members)
        };
        self.orchestrate_bare(name, joined, orchestrator);
    }

    /// As [`Units::orchestrate`], for bodies that join by themselves, or not at all.
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

/// Whether this unit maps the memory of all that are there.
pub fn maps_all(fabric: &Fabric) -> bool {
    let peers = fabric.peers();
    peers.iter().all(|info| fabric.caps_to(info.peer).map)
}

/// Whether this unit maps the memory of the peer that hosts the services of an agent.
pub fn maps_host(fabric: &Fabric) -> bool {
    let host = samite_fabric::agent::find_host(fabric);
    host.is_some_and(|host| fabric.caps_to(host.peer).map)
}

/// Whether a test can run here. If not it is skipped by name, with what would make it run;
/// `SAMITE_TEST_REQUIRE_ALL=1` turns the skip into a failure.
pub fn require(test: &str, condition: bool, otherwise: &str) -> bool {
    if condition {
        return true;
    }
    let strict = std::env::var("SAMITE_TEST_REQUIRE_ALL").is_ok_and(|value| value == "1");
    assert!(!strict, "{test} cannot run here: {otherwise}");
    println!("skipped: {test}: {otherwise}");
    false
}
