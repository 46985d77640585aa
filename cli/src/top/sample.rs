//! Queries the state of a domain: from the agent, the coordinator, the block stores and the servers
//! of chunks, and from the kernel for the processes.

use crate::process::Process;
use anyhow::{Context, Result};
use samite::agent::{self, DomainFacts, ServiceFacts};
use samite::dsm::{self, Dsm};
use samite::stage::{Overview, Stage};
use samite::{Fabric, FabricConfig, Identity, PeerWait};
use std::time::{Duration, Instant};

/// How long each of them may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The state of a process that a signal or a debugger has stopped.
pub(super) const STOPPED: &str = "stopped";

/// The program name of this peer.
pub(super) const PROGRAM: &str = "samite-top";

/// A membership in the domain.
pub(super) struct Source {
    domain: String,
    fabric: Fabric,
}

/// A connection to the coordinator and to the servers of chunks.
pub(super) struct Connected<'f> {
    source: &'f Source,
    stage: Stage,
    /// `None` if the domain has no server of chunks.
    dsm: Option<Dsm>,
}

/// The state of the domain at one time.
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) facts: DomainFacts,
    /// The services that the agent hosts.
    pub(super) services: Vec<ServiceFacts>,
    pub(super) overview: Overview,
    /// The chunks.
    pub(super) chunks: dsm::protocol::Overview,
    /// What processes of this node wait for, as they say.
    pub(super) waits: Vec<PeerWait>,
    /// The processes of the peers in `facts`.
    pub(super) processes: Vec<Process>,
}

impl Source {
    pub(super) fn join(domain: &str) -> Result<Source> {
        let config = FabricConfig {
            background: true,
            deadline: TIMEOUT,
            ..FabricConfig::default()
        };
        let fabric = Fabric::join(domain, Identity::by_hand(PROGRAM), config)
            .with_context(|| format!("the domain {domain}"))?;
        Ok(Source {
            domain: domain.to_owned(),
            fabric,
        })
    }

    pub(super) fn stage(&self) -> Result<Connected<'_>> {
        let stage = Stage::join(&self.fabric)?;
        let dsm = match Dsm::join(&self.fabric) {
            Err(dsm::Error::NoServer) => None,
            joined => Some(joined?),
        };
        Ok(Connected {
            source: self,
            stage,
            dsm,
        })
    }
}

impl Connected<'_> {
    /// Queries all of them.
    ///
    /// # Errors
    /// The agent, or its coordinator, does not answer: the domain is gone, or its agent is stopped.
    pub(super) fn sample(&self) -> Result<Sample> {
        let overview = self.stage.overview(TIMEOUT)?;
        let chunks = self.dsm.as_ref().map(|dsm| dsm.overview(TIMEOUT));
        let chunks = chunks.transpose()?.unwrap_or_default();
        let facts = agent::facts(&self.source.domain, TIMEOUT)?;
        let services = agent::services(&self.source.fabric, TIMEOUT)?;
        let waits = self.source.fabric.waits();
        let processes = facts.peers.iter().map(|peer| Process::read(peer.pid));
        Ok(Sample {
            at: Instant::now(),
            processes: processes.collect(),
            overview,
            chunks,
            waits,
            services,
            facts,
        })
    }
}
