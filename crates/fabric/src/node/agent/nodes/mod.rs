//! The agents of other nodes, for a node that is one of several: the driver of
//! [`membership`](crate::membership), on TCP.
//!
//! ```text
//!   Server::turn                                  the agents of other nodes
//!     Nodes::tell_slots: own slots that changed --->
//!     Nodes::serve:      what they have sent    <---
//!       Action::Unit                                the table of other nodes' units
//!       Action::RaiseEpoch                          the epoch of this node: processes look again
//! ```
//!
//! These connections carry membership alone: a few bytes when a process joins or leaves, and a beat
//! every half second. What units send each other goes by a [transport](crate::transport).
//!
//! # Files
//! `network` (what an agent is started with) · `mod` (events and actions) · `connection` (bytes) ·
//! `greeting` (who is trusted, pure) · `session` (whose messages are trusted, pure) · `told` (what
//! the others know of this node's slots, pure) · `over` (why a node cannot go on, in sentences)

mod connection;
mod greeting;
mod network;
mod over;
mod session;
mod told;

pub use greeting::Secret;
pub(crate) use network::Far;
pub use network::{FarTransport, Network, NodeFacts};

use super::listener::Listener;
use super::node::{Node, Report};
use crate::membership::{Action, Config, Event, Link, Membership, NAME_MAX, NodeLife, WhyClosed};
use crate::node::{Others, RemoteTableWriter, Slot};
use crate::{Error, Result};
use connection::{Connection, Ended, News};
use network::resolve;
use over::Over;
use rustix::event::{PollFd, Timespec};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};
use told::Told;

/// Callers that have not greeted yet: the one that has not for longest makes room for the next, so
/// that silent ones do not keep a node from reconnecting.
const STRANGERS_MAX: usize = 16;
/// How often the connections are looked at again before a tick, if something has arrived.
const ROUNDS_MAX: usize = 8;
/// How long a node waits to be admitted.
const ADMISSION: Duration = Duration::from_secs(30);

/// The agents of other nodes; see the module's documentation.
#[derive(Debug)]
pub(super) struct Nodes {
    network: Network,
    machine: Membership,
    listener: Listener,
    address: SocketAddr,
    /// A random number of the life of the domain.
    domain: u64,
    life: Option<NodeLife>,
    table: RemoteTableWriter,
    connections: BTreeMap<Link, Connection>,
    accepted: u64,
    /// The other nodes.
    known: BTreeMap<u32, NodeFacts>,
    told: Told,
    start: Instant,
    ticked: Option<Instant>,
    /// What other agents have reported, for the node.
    reports: Vec<Report>,
    config: Config,
    /// Why the first agent was not reached, or did not admit this node, when it was last called.
    obstacle: Option<Over>,
    /// Set if this node cannot go on.
    over: Option<Over>,
}

/// What the node has to do.
#[derive(Debug, Default)]
struct Due {
    raise_epoch: bool,
}

impl Nodes {
    /// Listens, and waits until this node is a member of its domain; returns its life.
    pub(super) fn begin(domain: &str, network: &Network) -> Result<(Nodes, NodeLife)> {
        let fail = |why: String| Error::Join {
            domain: domain.to_owned(),
            why,
        };
        // Also written as an address of IPv6.
        if network.listen.ip().to_canonical().is_unspecified() {
            return Err(fail(format!(
                "an agent does not listen on all interfaces: name an address of this machine \
                 instead of {}",
                network.listen.ip()
            )));
        }
        if network.name.is_empty() || network.name.len() > NAME_MAX {
            return Err(fail(format!(
                "the name of a node has 1 to {NAME_MAX} bytes"
            )));
        }
        let listener = TcpListener::bind(network.listen).map_err(|error| {
            fail(format!(
                "the agent cannot listen on {}: {error}",
                network.listen
            ))
        })?;
        let address = listener.set_nonblocking(true);
        let address = address.and_then(|()| listener.local_addr());
        let address = address.map_err(|error| fail(error.to_string()))?;
        let config = Config::default();
        let number = u64::from_le_bytes(greeting::random());
        let said = address.to_string();
        let (name, said) = (network.name.as_str(), said.as_bytes());
        let machine = match &network.join {
            None => Membership::head(config.clone(), number, name, said),
            Some(head) => {
                let head = resolve(head).map_err(fail)?;
                Membership::member(config.clone(), name, said, head.to_string().as_bytes())
            }
        };
        let mut nodes = Nodes {
            network: network.clone(),
            machine,
            listener: Listener::new(listener.into()),
            address,
            domain: number,
            life: network.join.is_none().then_some(NodeLife::HEAD),
            table: RemoteTableWriter::create()?,
            connections: BTreeMap::new(),
            accepted: 0,
            known: BTreeMap::new(),
            // Some beats, as the machine wants it.
            told: Told::new(Duration::from_millis(2 * config.beat)),
            start: Instant::now(),
            ticked: None,
            reports: Vec::new(),
            config,
            obstacle: None,
            over: None,
        };
        let life = nodes.wait_for_admission();
        let life = life.map_err(|why| fail(why.sentence(network)))?;
        tracing::info!(domain, node = %life, %address, "agent is a member");
        Ok((nodes, life))
    }

    fn wait_for_admission(&mut self) -> Result<NodeLife, Over> {
        let until = Instant::now() + ADMISSION;
        let mut due = Due::default();
        loop {
            self.tick(&mut due)?;
            if let Some(why) = self.over.take() {
                return Err(why);
            }
            if let Some(life) = self.life {
                return Ok(life);
            }
            if Instant::now() > until {
                return Err(Over::NotAdmitted);
            }
            let ready = self.poll(self.wakes_in())?;
            self.hear(&ready, &mut due);
        }
    }

    /// Returns the descriptor of the table of other nodes' units.
    pub(super) fn table(&self) -> BorrowedFd<'_> {
        self.table.fd()
    }

    /// Returns what units are told: the transport between nodes, and the number of the domain.
    pub(super) fn far(&self) -> Far {
        Far {
            transport: self.network.transport.clone(),
            domain: self.domain,
        }
    }

    /// Returns the nodes of the domain, this one first.
    pub(super) fn facts(&self) -> Vec<NodeFacts> {
        let own = NodeFacts {
            number: self.life.map_or(0, |life| life.node.number()),
            name: self.network.name.clone(),
            address: self.address.to_string(),
        };
        std::iter::once(own)
            .chain(self.known.values().cloned())
            .collect()
    }

    /// Returns what has to be polled: [`Nodes::serve`] takes the events in the same order.
    pub(super) fn poll_fds(&self) -> Vec<PollFd<'_>> {
        let mut fds = vec![self.listener.poll_fd()];
        let all = self.connections.values();
        fds.extend(all.map(|other| PollFd::new(other, other.waits_for())));
        fds
    }

    /// Returns after how long [`Nodes::serve`] is due.
    pub(super) fn wakes_in(&self) -> Duration {
        let tick = self.next_tick();
        self.listener
            .resumes_in()
            .map_or(tick, |time| time.min(tick))
    }

    fn next_tick(&self) -> Duration {
        let beat = Duration::from_millis(self.config.beat);
        self.ticked
            .map_or(Duration::ZERO, |at| beat.saturating_sub(at.elapsed()))
    }

    /// Acts on what has happened on the connections, and on the state of the node's own slots.
    ///
    /// # Errors
    /// This node cannot go on as one of the domain.
    pub(super) fn serve(&mut self, ready: &[bool], node: &mut Node) -> Result<(), String> {
        let mut due = Due::default();
        self.hear(ready, &mut due);
        let ticked = self.tick(&mut due);
        self.settle(due, node);
        self.tell_slots(node);
        let over = ticked.err().map(Over::from).or(self.over);
        over.map_or(Ok(()), |why| Err(why.sentence(&self.network)))
    }

    /// Tells the machine of the time, if that is due, after everything that has arrived.
    fn tick(&mut self, due: &mut Due) -> Result<(), Errno> {
        if !self.next_tick().is_zero() {
            return Ok(());
        }
        for _ in 0..ROUNDS_MAX {
            let ready = self.poll(Duration::ZERO)?;
            if !ready.contains(&true) {
                break;
            }
            self.hear(&ready, due);
        }
        let at = Instant::now();
        self.ticked = Some(at);
        let now = at.duration_since(self.start).as_millis() as u64;
        self.tell(Event::Tick { now }, due);
        Ok(())
    }

    /// Waits for events on the listener and the connections.
    fn poll(&self, at_most: Duration) -> Result<Vec<bool>, Errno> {
        let mut fds = self.poll_fds();
        match rustix::event::poll(&mut fds, Some(&timespec(at_most))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect())
    }

    fn hear(&mut self, ready: &[bool], due: &mut Due) {
        let links: Vec<Link> = self.connections.keys().copied().collect();
        let ready_of = |place: usize| ready.get(place + 1).copied().unwrap_or(false);
        for (place, link) in links.into_iter().enumerate() {
            let Some(connection) = self.connections.get_mut(&link) else {
                continue;
            };
            let news = connection.serve(ready_of(place));
            self.take(link, news, due);
        }
        if ready.first().copied().unwrap_or(false) {
            self.accept();
        }
    }

    fn take(&mut self, link: Link, news: Vec<News>, due: &mut Due) {
        for news in news {
            match news {
                News::Open => {
                    let event = match link {
                        Link::Out(_) => Event::Connected { link },
                        Link::In(_) => Event::Accepted { link },
                    };
                    self.tell(event, due);
                }
                News::Message(bytes) => {
                    let bytes = &bytes;
                    self.tell(Event::Message { link, bytes }, due);
                }
                News::Closed(why) => {
                    tracing::debug!(?link, %why, "a connection of two agents is over");
                    let was = self.connections.remove(&link);
                    // A stranger was never mentioned, and what the machine has closed is over.
                    let is_known = was.is_some_and(|was| {
                        let is_stranger = was.is_greeting() && matches!(link, Link::In(_));
                        !is_stranger && !was.is_closing()
                    });
                    if is_known {
                        self.met(link, Over::Unreached(why));
                        self.tell(Event::Closed { link }, due);
                    }
                }
            }
            if !self.connections.contains_key(&link) {
                break;
            }
        }
    }

    /// Notes why a call of the first agent was in vain, until that has admitted this node.
    fn met(&mut self, link: Link, obstacle: Over) {
        if self.life.is_some() || matches!(link, Link::In(_)) {
            return;
        }
        self.obstacle = Some(obstacle);
        if obstacle.is_final() {
            self.over = Some(obstacle);
        }
    }

    /// Accepts those that call.
    fn accept(&mut self) {
        for _ in 0..STRANGERS_MAX {
            let Some(socket) = self.listener.accept() else {
                return;
            };
            // In the order in which they came.
            let all = self.connections.iter();
            let is_stranger = |(link, other): &(&Link, &Connection)| {
                matches!(link, Link::In(_)) && other.is_greeting()
            };
            let strangers: Vec<Link> = all.filter(is_stranger).map(|(link, _)| *link).collect();
            if strangers.len() >= STRANGERS_MAX {
                tracing::debug!("a caller that has not greeted makes room for another one");
                self.connections.remove(&strangers[0]);
            }
            self.accepted += 1;
            let secret = self.network.secret.clone();
            let connection = Connection::accepted(socket, secret, self.address);
            self.connections.insert(Link::In(self.accepted), connection);
        }
    }

    /// Tells the other agents of the slots of this node that have changed.
    pub(super) fn tell_slots(&mut self, node: &mut Node) {
        if self.life.is_none() {
            return;
        }
        let (mut due, now) = (Due::default(), Instant::now());
        for (slot, state, incarnation) in node.slots().published() {
            let said = || node.said_of(slot);
            let changes = self.told.changes(slot, (state, incarnation), said, now);
            for change in changes {
                let event = Event::Slot {
                    slot,
                    incarnation: change.incarnation,
                    state: change.state,
                    identity: &change.said,
                };
                self.tell(event, &mut due);
            }
        }
        self.settle(due, node);
    }

    /// Does what the node has to do after events.
    fn settle(&mut self, due: Due, node: &mut Node) {
        let mut announces = due.raise_epoch;
        for report in self.reports.drain(..) {
            announces |= node.learn(&report);
        }
        if announces {
            node.announce();
        }
    }

    /// Tells the machine of an event, and carries out what it wants.
    fn tell(&mut self, event: Event<'_>, due: &mut Due) {
        let mut closed = VecDeque::new();
        for action in self.machine.on_event(event) {
            self.act(action, due, &mut closed);
        }
        while let Some(link) = closed.pop_front() {
            for action in self.machine.on_event(Event::Closed { link }) {
                self.act(action, due, &mut closed);
            }
        }
    }

    fn act(&mut self, action: Action, due: &mut Due, closed: &mut VecDeque<Link>) {
        match action {
            Action::Connect { link, address } => {
                let address = std::str::from_utf8(&address).ok();
                let address = address.and_then(|text| text.parse::<SocketAddr>().ok());
                let secret = self.network.secret.clone();
                let call = address.map(|address| Connection::call(address, secret));
                match call {
                    Some(Ok(connection)) => {
                        self.connections.insert(link, connection);
                    }
                    Some(Err(error)) => {
                        tracing::debug!(%error, "an agent cannot be called");
                        self.met(link, Over::Unreached(error.into()));
                        closed.push_back(link);
                    }
                    None => closed.push_back(link),
                }
            }
            Action::Send { link, bytes } => {
                if let Some(connection) = self.connections.get_mut(&link) {
                    connection.send(&bytes);
                    let news = connection.serve(false);
                    // It is over: the next turn tells.
                    debug_assert!(news.iter().all(|news| matches!(news, News::Closed(_))));
                }
            }
            Action::Close { link, why } => {
                tracing::debug!(?link, %why, "a connection of two agents is closed");
                match why {
                    WhyClosed::RefusedBy(refusal) => self.met(link, Over::Refused(refusal)),
                    WhyClosed::Unanswered => self.met(link, Over::Unreached(Ended::NoAnswer)),
                    _ => {}
                }
                if let Some(connection) = self.connections.get_mut(&link) {
                    connection.close();
                }
            }
            Action::Admitted { domain, life } => (self.domain, self.life) = (domain, Some(life)),
            Action::NotAdmitted(refusal) => self.over = Some(Over::Refused(refusal)),
            Action::NodeJoined {
                life,
                name,
                address,
                ..
            } => {
                let facts = NodeFacts {
                    number: life.node.number(),
                    name: name.into(),
                    address: String::from_utf8_lossy(&address).into_owned(),
                };
                tracing::info!(node = %life, name = facts.name, "a node has joined");
                self.known.insert(facts.number, facts);
            }
            Action::NodeGone { life, how, .. } => {
                tracing::warn!(node = %life, ?how, "a node is gone");
                self.known.remove(&life.node.number());
            }
            Action::Unit {
                peer,
                incarnation,
                state,
                identity,
            } => {
                if !self.table.learn(peer, incarnation, state, &identity) {
                    tracing::error!(%peer, "a unit of another node is left out: the table is full");
                }
                self.reports.push(Report {
                    peer,
                    incarnation,
                    state,
                    said: identity,
                });
            }
            Action::RaiseEpoch => due.raise_epoch = true,
            Action::HeadLost { finally } => {
                let head = self.network.join.as_deref().unwrap_or_default();
                if self.life.is_none() && self.over.is_none() {
                    self.over = self.obstacle.or(Some(Over::Unreached(Ended::NoAnswer)));
                }
                tracing::warn!(head, finally, "the first agent of the domain is silent");
            }
            Action::HeadBack => tracing::info!("the first agent of the domain is back"),
            Action::Fenced => {
                self.over = Some(Over::Fenced);
            }
            Action::Left => self.over = Some(Over::Left),
        }
    }
}

pub(super) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    }
}

impl Node {
    /// Returns what other nodes are told of the unit in a slot, while it lives.
    fn said_of(&self, slot: Slot) -> Option<Vec<u8>> {
        let member = self.members().iter().find(|member| member.peer == slot)?;
        Some(Others::encode(
            &member.identity,
            member.pid,
            &member.address,
        ))
    }
}

#[cfg(test)]
mod tests;
