//! The services that an agent hosts: they serve a whole domain and must outlive every unit.
//!
//! A service is another user of the fabric, polled by a [`Host`] in a thread of the agent's
//! process. That thread joins the domain as a peer of its own ([`identity`]) and runs all services
//! of the process, which share its sleep. A service does blocking work (a disk) in a thread of its
//! own, and wakes the host by the [`Bell`](crate::Bell) of this process. A server that is not an
//! agent (a staging unit) hosts its services in the same way.
//!
//! Services in several processes talk to each other as to any peer, by [`rpc`](crate::rpc). Those
//! of one [`Starter`] are always in one process, and may share queues.

mod served;

use self::served::Units;
use super::AgentConfig;
use crate::membership::NodeId;
use crate::node::IDLE;
use crate::rpc::{Inbound, Life, Server, ServiceId};
use crate::{Config, Error, Fabric, Identity, PeerId, PeerInfo, Result};
use samite_mem::Corrupt;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// How long a host sleeps when nothing is due, before it checks whether it should stop. In unit
/// tests only a wake-up ends the sleep.
const LONGEST_SLEEP: Duration = if cfg!(test) {
    Duration::MAX
} else {
    Duration::from_millis(500)
};

/// The most bytes of questions for the host itself that wait per peer.
const INBOX: u64 = 1 << 10;

/// The program that an agent says it is.
const PROGRAM: &str = "samite-agent";

/// Returns what an agent's process says of itself as a peer.
pub fn identity() -> Identity {
    Identity::by_hand(PROGRAM)
}

/// Returns true if this is the identity of an agent's own process, which belongs to no other job.
pub(crate) fn is_agent(identity: &Identity) -> bool {
    identity.program == PROGRAM && identity.units == 1
}

/// Returns the peer that hosts the services of this node's agent, if it has joined. If the agent's
/// own host is missing, another process that hosts them is found by the name that it has given
/// itself.
pub fn find_host(fabric: &Fabric) -> Option<Life> {
    let near = living(fabric, Some(fabric.me().node()));
    let host = host_of(&near, fabric.0.node.layout.peers.agent_pid())?;
    Some(life_of(host))
}

/// Returns the peer that hosts the services of the whole domain, if it has joined: that of the
/// head, which is the agent of the first node. In a simulation it is the first unit that hosts any.
pub fn find_head(fabric: &Fabric) -> Option<Life> {
    let node = fabric.domain().map(|_| u32::from(NodeId::HEAD));
    if node.is_some() && is_on_head(fabric) {
        return find_host(fabric);
    }
    let hosts = living(fabric, node);
    // A unit may have the name of the program.
    let is_other = |info: &&PeerInfo| (!is_agent(&info.identity), info.peer);
    hosts.iter().min_by_key(is_other).map(life_of)
}

/// Returns whether a process hosts the services of its node's agent.
pub fn is_host(info: &PeerInfo) -> bool {
    // Not by `is_agent`: the host of a simulation is one of its units.
    info.identity.program == PROGRAM
}

/// Returns whether this process is on the node of the head.
pub fn is_on_head(fabric: &Fabric) -> bool {
    fabric.me().node() == u32::from(NodeId::HEAD)
}

/// Returns the living hosts on a node, or on all, by peer number.
fn living(fabric: &Fabric, node: Option<u32>) -> Vec<PeerInfo> {
    fabric.progress();
    let may = |peer: PeerId| node.is_none_or(|node| peer.node() == node);
    let core = fabric.0.lock();
    core.map_or_else(
        |_| Vec::new(),
        |core| core.engine.living_among(may, is_host),
    )
}

fn host_of(peers: &[PeerInfo], agent: i32) -> Option<&PeerInfo> {
    let hosts = peers.iter().filter(|info| is_host(info));
    hosts.min_by_key(|info| info.pid != agent)
}

fn life_of(info: &PeerInfo) -> Life {
    Life {
        peer: info.peer,
        incarnation: info.incarnation,
    }
}

/// Asks the agent of a domain which services it hosts, and what they own; returns none if its host
/// has not joined.
///
/// # Errors
/// [`Error::Timeout`], [`Error::PeerLost`]; [`Error::PeerCorrupt`] if the answer is invalid.
pub fn services(fabric: &Fabric, deadline: Duration) -> Result<Vec<ServiceFacts>> {
    let Some(host) = find_host(fabric) else {
        return Ok(Vec::new());
    };
    let mut call = fabric.call(ServiceId::HOST, host, deadline, |_| vec![0])?;
    let answer = call.wait(deadline, "what the agent hosts")?;
    postcard::from_bytes(&answer).map_err(|_| {
        fabric.named(Error::PeerCorrupt {
            peer: host.peer.into(),
            what: Corrupt {
                what: "the length of a list of services",
                value: answer.len() as u64,
            },
        })
    })
}

/// A service of the domain.
pub trait Service: Send {
    /// Returns its display name.
    fn name(&self) -> &'static str;

    /// Returns what it owns now.
    fn owns(&self) -> Vec<Owned>;

    /// Does what is due, in bounded time: others are polled after it. Never blocks. Returns whether
    /// there was anything to do.
    fn poll(&mut self) -> bool;

    /// Returns after how long it must be polled again if nothing arrives earlier; zero for at once.
    /// Called before the host sleeps.
    fn next(&mut self) -> Duration;

    /// Returns whether something has arrived that [`Service::poll`] takes. Called before the host
    /// sleeps; must not use the fabric.
    fn has_news(&self) -> bool;

    /// Called when peers were lost, perhaps with a node, which loses all peers on it. What they had
    /// sent before has arrived.
    fn peers_lost(&mut self, lost: Lost<'_>);

    /// Called when it is no longer polled: it sends what it still has to send.
    fn end(&mut self);
}

/// The peers that are lost.
#[derive(Clone, Copy, Debug)]
pub struct Lost<'a>(&'a Fabric);

impl Lost<'_> {
    /// Returns whether this incarnation of a peer is lost.
    pub fn has(&self, life: Life) -> bool {
        self.0.lost_life(life.peer, life.incarnation).is_some()
    }
}

/// An amount of something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owned {
    /// Its name, in the plural.
    pub what: Cow<'static, str>,
    /// Their number; bytes, if it is memory.
    pub amount: u64,
    /// Whether it is memory.
    pub is_memory: bool,
}

impl Owned {
    /// Returns a number of things.
    pub fn count(what: &'static str, amount: u64) -> Owned {
        Owned {
            what: what.into(),
            amount,
            is_memory: false,
        }
    }

    /// Returns a number of bytes of a kind of memory.
    pub fn bytes(what: &'static str, amount: u64) -> Owned {
        Owned {
            is_memory: true,
            ..Owned::count(what, amount)
        }
    }
}

/// What an agent reports of a service that it hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceFacts {
    /// Its name.
    pub name: Cow<'static, str>,
    /// What it owns.
    pub owns: Vec<Owned>,
}

/// How services of an agent are started.
#[derive(Clone, Copy, Debug)]
pub struct Starter {
    /// Their common name.
    pub name: &'static str,
    /// Starts them in the agent of a domain. What peers send to them is delivered when all services
    /// have been started.
    pub start: fn(&Fabric, &AgentConfig) -> Vec<Box<dyn Service>>,
}

/// Joins a domain as its agent's peer, and hosts services for the lifetime of this process. Calls
/// `started` when all of them have started. Without services it does nothing else, and does not
/// join.
///
/// # Errors
/// The domain accepts no peers; the agent is lost; [`Error::ServicePanicked`].
pub fn host(agent: &AgentConfig, starters: &[Starter], started: impl FnOnce()) -> Result<()> {
    if starters.is_empty() {
        started();
        return Ok(());
    }
    let config = Config {
        background: true,
        ..Config::default()
    };
    let fabric = Fabric::join(&agent.domain, identity(), config)?;
    let mut host = Host {
        facts: Some(fabric.serve(ServiceId::HOST, INBOX)),
        ..Host::default()
    };
    let mut services: Vec<Box<dyn Service>> = Vec::new();
    let hosting = || {
        for starter in starters {
            host.running = starter.name;
            services.extend((starter.start)(&fabric, agent));
        }
        started();
        let mut all: Vec<&mut dyn Service> = Vec::new();
        for service in &mut services {
            all.push(&mut **service);
        }
        host.run(&fabric, &mut all, |_| true)
    };
    catch_unwind(AssertUnwindSafe(hosting)).unwrap_or_else(|_| {
        // Services are not dropped in an unfinished state: this process ends.
        std::mem::forget(services);
        Err(Error::ServicePanicked {
            service: host.running,
        })
    })
}

/// Polls services.
#[derive(Debug, Default)]
pub struct Host {
    /// The number of changes of membership that it had seen when it last checked.
    changes: Option<u64>,
    /// The service that is running, or ran last.
    running: &'static str,
    /// The server for questions about what an agent hosts, and for notes of units that only serve.
    facts: Option<Server>,
    /// In a unit that only serves: the other units of its job.
    units: Option<Units>,
}

impl Host {
    /// Polls each service once, in order, after telling them of lost peers. Returns whether there
    /// was anything to do.
    pub fn turn(&mut self, fabric: &Fabric, services: &mut [&mut dyn Service]) -> bool {
        let changes = fabric.changes();
        if self.changes != Some(changes) {
            self.changes = Some(changes);
            // Receive what the lost peers had sent.
            fabric.progress();
            for service in &mut *services {
                self.running = service.name();
                service.peers_lost(Lost(fabric));
            }
        }
        let mut has_worked = false;
        for service in &mut *services {
            self.running = service.name();
            has_worked |= service.poll();
        }
        self.tell_facts(services);
        has_worked
    }

    /// Answers questions about what is hosted here. An answer that its requester does not take now
    /// is dropped.
    fn tell_facts(&mut self, services: &[&mut dyn Service]) {
        let Some(server) = &self.facts else {
            return;
        };
        // Only what is waiting now: a peer may ask endlessly.
        for _ in 0..server.waiting() {
            let Some(Inbound { from, id, .. }) = server.take() else {
                break;
            };
            let Some(id) = id else {
                if let Some(units) = &mut self.units {
                    units.serves(from);
                }
                continue;
            };
            let facts = services.iter().map(|service| ServiceFacts {
                name: service.name().into(),
                owns: service.owns(),
            });
            let facts: Vec<ServiceFacts> = facts.collect();
            let bytes = postcard::to_stdvec(&facts).expect("plain data is encodable");
            if let Err(error) = server.respond(from, id, &bytes, Duration::ZERO) {
                tracing::debug!(%error, "an answer to what is hosted was not taken");
            }
        }
    }

    /// Polls services as long as `go_on` returns true, which is called after every event, and now
    /// and then; then ends them, the last one first.
    ///
    /// # Errors
    /// The agent is lost.
    pub fn run(
        &mut self,
        fabric: &Fabric,
        services: &mut [&mut dyn Service],
        mut go_on: impl FnMut(&Fabric) -> bool,
    ) -> Result<()> {
        self.run_while(fabric, services, |_| go_on(fabric))
    }

    fn run_while(
        &mut self,
        fabric: &Fabric,
        services: &mut [&mut dyn Service],
        mut go_on: impl FnMut(&mut Host) -> bool,
    ) -> Result<()> {
        let mut ran = Ok(());
        while ran.is_ok() && go_on(self) {
            self.turn(fabric, services);
            let next = services.iter_mut().map(|service| service.next());
            let next = next.fold(LONGEST_SLEEP, Duration::min);
            if fabric.0.lock().is_ok_and(|core| core.engine.agent_lost) {
                let domain = fabric.domain().unwrap_or_default();
                ran = Err(Error::AgentLost(domain.to_owned()));
            } else if next.is_zero() {
                fabric.progress();
            } else {
                ran = self.sleep(fabric, services, next);
            }
        }
        for service in services.iter_mut().rev() {
            self.running = service.name();
            service.end();
        }
        ran
    }

    /// As [`Host::run`], until the other units of this job have joined and left, or have ended
    /// without joining. Other units that do the same are not waited for: what they serve differs,
    /// and so may their programs.
    ///
    /// # Errors
    /// As [`Host::run`].
    pub fn run_for_job(
        &mut self,
        fabric: &Fabric,
        services: &mut [&mut dyn Service],
    ) -> Result<()> {
        let others = fabric.identity().units.saturating_sub(1);
        self.facts = Some(fabric.serve(ServiceId::HOST, INBOX));
        self.units = Some(Units::new(others as usize));
        self.run_while(fabric, services, |host| {
            let units = host.units.as_mut();
            units.is_some_and(|units| units.go_on(fabric))
        })
    }

    /// Sleeps until something has arrived for a service, at most for the given time.
    fn sleep(
        &self,
        fabric: &Fabric,
        services: &[&mut dyn Service],
        longest: Duration,
    ) -> Result<()> {
        let has_come = || {
            let asked = self
                .facts
                .as_ref()
                .is_some_and(|server| server.waiting() > 0);
            asked || services.iter().any(|service| service.has_news())
        };
        let waited = fabric.wait_stepping_within(
            longest.max(Duration::from_millis(1)),
            IDLE,
            &[],
            || (has_come() || self.changes != Some(fabric.changes())).then_some(()),
            has_come,
        );
        match waited {
            Ok(()) | Err(Error::Timeout { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
