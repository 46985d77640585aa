//! A home, servers and clients of one chunk, with all messages that are under way.

use super::super::*;
use std::collections::VecDeque;

/// A message from the home to a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Down {
    /// With the data of the version.
    Granted(CacheEvent, u8),
    Other(CacheEvent),
}

/// A message from a server to the home.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Up {
    /// With the data.
    Commit(DirectoryEvent, u8),
    Other(DirectoryEvent),
}

/// A server, and what it has received and sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Server {
    pub(super) cache: Cache,
    /// The content of its copy.
    pub(super) copy: u8,
    /// Whether clients may take read guards themselves: a word of shared memory.
    is_open: bool,
    /// Whether the server waits until they have none.
    is_closing: bool,
    /// The number of times that it has not waited for a client which had taken a guard itself.
    fences: u8,
    /// What the writer has sent, until it is committed.
    written: u8,
    pub(super) down: VecDeque<Down>,
    pub(super) up: VecDeque<Up>,
    /// Whether the home takes it for lost.
    pub(super) is_lost: bool,
    /// Whether it has dropped a copy without a word to the home.
    has_evicted: bool,
}

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Client {
    Idle,
    Waits(Mode),
    /// A guard, and the content that it saw.
    Reads(GuardId, u8),
    Writes(GuardId),
    Commits(u8),
    /// It has counted a read guard of its own, and not yet looked whether it may have one.
    Counts,
    /// It has taken a read guard, and saw this content.
    Took(u8),
    Dead,
}

/// What a client knows of its server, and the server of its lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Lease {
    /// The version that it was given last, and the fences of the server then.
    known: Option<(Version, u8)>,
    /// Its lease was over while it had a guard, or counted one.
    is_stale: bool,
    /// The server does not wait for the guards that it takes itself.
    is_fenced: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) directory: Directory,
    /// The content of the last committed version.
    pub(super) content: u8,
    pub(super) servers: Vec<Server>,
    /// The clients, and their servers.
    pub(super) clients: Vec<(usize, Client)>,
    leases: Vec<Lease>,
    /// Each commit has other data.
    written: u8,
    next: GuardId,
    /// The first broken rule.
    pub(super) broken: Option<String>,
}

/// Something that can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Acquire(usize, Mode),
    Cancel(usize),
    /// A client counts a read guard of its own.
    Count(usize),
    /// It looks whether it may have one.
    Look(usize),
    Release(usize),
    Commit(usize),
    Die(usize),
    /// The lease of a client is over.
    Fence(usize),
    /// The next message from a server arrives at the home.
    Up(usize),
    /// The next message from the home arrives at a server.
    Down(usize),
    /// The home learns that a server is lost.
    Lose(usize),
    /// A server needs the memory of its copy.
    Evict(usize),
}

pub(in crate::protocol) fn process(number: usize) -> Process {
    Process {
        peer: samite_fabric::PeerId(number as u32),
        incarnation: 1,
    }
}

/// The clients have other numbers than the servers.
const CLIENTS: usize = 100;

impl World {
    /// `clients`: the server of each.
    pub(super) fn new(servers: usize, clients: &[usize]) -> World {
        let server = Server {
            cache: Cache::default(),
            copy: 0,
            is_open: false,
            is_closing: false,
            fences: 0,
            written: 0,
            down: VecDeque::new(),
            up: VecDeque::new(),
            is_lost: false,
            has_evicted: false,
        };
        World {
            directory: Directory::default(),
            content: 0,
            servers: vec![server; servers],
            clients: clients.iter().map(|at| (*at, Client::Idle)).collect(),
            leases: vec![Lease::default(); clients.len()],
            written: 0,
            next: GuardId(1),
            broken: None,
        }
    }

    /// Returns the steps of the network: messages that may arrive.
    pub(super) fn deliveries(&self) -> Vec<Step> {
        let all = self.servers.iter().enumerate();
        let all = all.flat_map(|(at, server)| {
            let up = (!server.up.is_empty()).then_some(Step::Up(at));
            let down = (!server.down.is_empty()).then_some(Step::Down(at));
            up.into_iter().chain(down)
        });
        all.collect()
    }

    pub(super) fn step(&mut self, step: Step) {
        match step {
            Step::Acquire(client, mode) => {
                let acquire = CacheEvent::Acquire {
                    from: process(CLIENTS + client),
                    ticket: Ticket(0),
                    mode,
                };
                self.clients[client].1 = Client::Waits(mode);
                self.leases[client].is_fenced = false;
                self.at_cache(self.clients[client].0, acquire, 0);
            }
            Step::Cancel(client) => {
                let cancel = CacheEvent::Cancel {
                    from: process(CLIENTS + client),
                    ticket: Ticket(0),
                };
                self.clients[client].1 = Client::Idle;
                self.at_cache(self.clients[client].0, cancel, 0);
            }
            Step::Evict(at) => self.at_cache(at, CacheEvent::Evict, 0),
            Step::Count(client) => self.clients[client].1 = Client::Counts,
            Step::Look(client) => {
                let server = &self.servers[self.clients[client].0];
                let now = server
                    .cache
                    .version()
                    .map(|version| (version, server.fences));
                if server.is_open && self.leases[client].known == now {
                    self.clients[client].1 = Client::Took(server.copy);
                } else {
                    self.uncount(client, Client::Idle);
                }
            }
            Step::Release(client) if matches!(self.clients[client].1, Client::Took(_)) => {
                self.uncount(client, Client::Idle);
            }
            Step::Release(client) => {
                let (at, now) = self.clients[client];
                let (Client::Reads(guard, _) | Client::Writes(guard)) = now else {
                    unreachable!("{now:?}")
                };
                self.clients[client].1 = Client::Idle;
                self.leases[client].is_stale = false;
                let from = process(CLIENTS + client);
                self.at_cache(at, CacheEvent::Release { from, guard }, 0);
            }
            Step::Commit(client) => {
                let (at, now) = self.clients[client];
                let Client::Writes(guard) = now else {
                    unreachable!("{now:?}")
                };
                self.written += 1;
                self.clients[client].1 = Client::Commits(self.written);
                let commit = CacheEvent::Commit {
                    from: process(CLIENTS + client),
                    ticket: Ticket(0),
                    guard,
                    tag: u64::from(self.written),
                };
                self.at_cache(at, commit, self.written);
            }
            Step::Die(client) => {
                self.uncount(client, Client::Dead);
                let gone = process(CLIENTS + client);
                self.at_cache(self.clients[client].0, CacheEvent::Gone { client: gone }, 0);
            }
            Step::Fence(client) => {
                let at = self.clients[client].0;
                self.leases[client].is_stale = true;
                let fenced = process(CLIENTS + client);
                self.at_cache(at, CacheEvent::Fence { client: fenced }, 0);
                if self.servers[at].is_closing {
                    self.leases[client].is_fenced = true;
                    self.servers[at].fences += 1;
                    self.drain(at);
                }
            }
            Step::Up(server) => match self.servers[server].up.pop_front() {
                Some(Up::Commit(event, data)) => self.at_home(event, data),
                // A process that is lost is not heard any more.
                Some(Up::Other(_)) if self.servers[server].is_lost => {}
                Some(Up::Other(event)) => self.at_home(event, 0),
                None => unreachable!("nothing is under way"),
            },
            Step::Down(server) => match self.servers[server].down.pop_front() {
                Some(Down::Granted(event, data)) => {
                    self.servers[server].copy = data;
                    self.at_cache(server, event, data);
                }
                Some(Down::Other(event)) => self.at_cache(server, event, 0),
                None => unreachable!("nothing is under way"),
            },
            Step::Lose(server) => {
                self.servers[server].is_lost = true;
                self.servers[server].down.clear();
                let lost = process(server);
                self.at_home(DirectoryEvent::Lost { server: lost }, 0);
            }
        }
        self.check();
    }

    /// A client has no read guard of its own any more, and says so if its server waits for that.
    fn uncount(&mut self, client: usize, now: Client) {
        self.clients[client].1 = now;
        self.leases[client].is_stale = false;
        self.drain(self.clients[client].0);
    }

    fn drain(&mut self, at: usize) {
        let clients = self.clients.iter().zip(&self.leases);
        let mut clients = clients.filter(|((server, _), lease)| *server == at && !lease.is_fenced);
        let has_guard = |now: &Client| matches!(now, Client::Counts | Client::Took(_));
        let is_drained = clients.all(|((_, now), _)| !has_guard(now));
        if self.servers[at].is_closing && is_drained {
            self.servers[at].is_closing = false;
            self.at_cache(at, CacheEvent::Closed, 0);
        }
    }

    fn at_home(&mut self, event: DirectoryEvent, data: u8) {
        let mut actions = Vec::new();
        self.directory.on_event(event, &mut actions);
        for action in actions {
            let (to, message) = match action {
                DirectoryAction::Recall { to, keeps } => {
                    (to, Down::Other(CacheEvent::Recall { keeps }))
                }
                DirectoryAction::Grant {
                    to,
                    access,
                    version,
                    tag,
                    epoch,
                } => {
                    let granted = CacheEvent::Granted {
                        access,
                        version,
                        tag,
                        epoch,
                    };
                    (to, Down::Granted(granted, self.content))
                }
                DirectoryAction::Committed {
                    to, version, tag, ..
                } => {
                    if self.servers[to.peer.0 as usize].is_lost {
                        self.breaks("a commit of a lost server is visible");
                    }
                    if tag != u64::from(data) {
                        self.breaks("the tag is not the one of the data");
                    }
                    self.content = data;
                    (to, Down::Other(CacheEvent::Committed { version }))
                }
                DirectoryAction::Fenced { to } => (to, Down::Other(CacheEvent::Fenced)),
            };
            let to = &mut self.servers[to.peer.0 as usize];
            if !to.is_lost {
                to.down.push_back(message);
            }
        }
    }

    fn at_cache(&mut self, at: usize, event: CacheEvent, data: u8) {
        let mut actions = Vec::new();
        let server = &mut self.servers[at];
        server.cache.on_event(event, &mut self.next, &mut actions);
        let from = process(at);
        for action in actions {
            let server = &mut self.servers[at];
            let message = match action {
                CacheAction::Ask { access } => Up::Other(DirectoryEvent::Ask { from, access }),
                CacheAction::Recalled { keeps } => {
                    Up::Other(DirectoryEvent::Recalled { from, keeps })
                }
                CacheAction::Commit {
                    epoch, tag, writer, ..
                } => {
                    server.written = data;
                    let commit = DirectoryEvent::Commit {
                        from,
                        epoch,
                        tag,
                        writer,
                        versions: 1,
                    };
                    Up::Commit(commit, data)
                }
                CacheAction::Give {
                    to,
                    guard,
                    mode,
                    version,
                    ..
                } => {
                    let (copy, fences) = (server.copy, server.fences);
                    self.leases[to.peer.0 as usize - CLIENTS].known = Some((version, fences));
                    self.gives(to, guard, mode, copy);
                    continue;
                }
                CacheAction::Answer { to, version, .. } => {
                    self.answers(to, version);
                    continue;
                }
                CacheAction::Open { .. } => {
                    server.is_open = true;
                    continue;
                }
                CacheAction::Close => {
                    (server.is_open, server.is_closing) = (false, true);
                    self.drain(at);
                    continue;
                }
                CacheAction::Adopt { .. } => {
                    server.copy = server.written;
                    continue;
                }
                CacheAction::Discard { .. } => continue,
                CacheAction::Evicted => {
                    server.has_evicted = true;
                    continue;
                }
                CacheAction::Redirect { .. } => unreachable!("the home lets servers write"),
            };
            server.up.push_back(message);
        }
    }

    fn gives(&mut self, to: Process, guard: GuardId, mode: Mode, copy: u8) {
        let client = &mut self.clients[to.peer.0 as usize - CLIENTS].1;
        if *client != Client::Waits(mode) {
            let now = *client;
            return self.breaks(&format!("a guard for a client that is {now:?}"));
        }
        *client = match mode {
            Mode::Read => Client::Reads(guard, copy),
            Mode::Write => Client::Writes(guard),
        };
    }

    fn answers(&mut self, to: Process, version: Option<Version>) {
        let client = &mut self.clients[to.peer.0 as usize - CLIENTS].1;
        if !matches!(client, Client::Commits(_)) {
            let now = *client;
            return self.breaks(&format!("an answer for a client that is {now:?}"));
        }
        *client = Client::Idle;
        let lease = &mut self.leases[to.peer.0 as usize - CLIENTS];
        let was_stale = std::mem::take(&mut lease.is_stale);
        if version.is_none() != was_stale {
            self.breaks("a commit was refused under a lease, or went on without one");
        }
    }

    fn breaks(&mut self, rule: &str) {
        self.broken.get_or_insert(rule.to_owned());
    }

    fn check(&mut self) {
        let servers = self.servers.iter().filter(|server| !server.is_lost);
        let guards =
            servers.flat_map(|server| server.cache.holders().map(move |all| (server, all)));
        let guards: Vec<_> = guards.collect();
        let writes = guards.iter().any(|(_, (.., mode))| *mode == Mode::Write);
        let mut broken = None;
        if writes && guards.len() > 1 {
            broken = Some("a writer is not alone");
        }
        for (server, (_, _, mode)) in &guards {
            let is_present = server.cache.version() == Some(self.directory.version().0);
            if *mode == Mode::Read && !(is_present && server.copy == self.content) {
                broken = Some("a read guard sees another content than the committed one");
            }
        }
        for ((at, client), lease) in self.clients.iter().zip(&self.leases) {
            if self.servers[*at].is_lost || lease.is_stale {
                continue;
            }
            match client {
                Client::Reads(_, seen) | Client::Took(seen) if *seen != self.content => {
                    broken = Some("the content changed under a read guard");
                }
                Client::Took(_) if writes => {
                    broken = Some("a writer is not alone: a client took a read guard itself");
                }
                _ => {}
            }
        }
        if self.deliveries().is_empty() {
            broken = broken.or(self.check_rest());
        }
        if let Some(broken) = broken {
            self.breaks(broken);
        }
    }

    /// Checks what holds when nothing is under way.
    fn check_rest(&self) -> Option<&'static str> {
        let live = || {
            self.servers
                .iter()
                .enumerate()
                .filter(|(_, one)| !one.is_lost)
        };
        for (at, server) in live() {
            let is_holder = self.directory.holders().contains(&process(at));
            if server.cache.version().is_some() && !is_holder {
                return Some("a server has a copy that the directory does not know of");
            }
            let is_owner = self.directory.owner() == Some(process(at));
            let owns = matches!(
                server.cache.state(),
                State::E | State::EI | State::M | State::MS | State::MI
            );
            // An owner that has dropped its copy is asked to give it up like any other.
            let agrees = is_owner == owns || (server.has_evicted && is_owner);
            if !agrees {
                return Some("the directory and a server disagree about the owner");
            }
        }
        let has_guard = live().any(|(_, server)| server.cache.holders().next().is_some());
        let mut clients = self.clients.iter();
        if has_guard || clients.any(|(_, now)| matches!(now, Client::Counts | Client::Took(_))) {
            return None;
        }
        if self.directory.waiting() > 0 {
            return Some("the home waits for ever");
        }
        if live().any(|(_, server)| server.cache.waiting() > 0) {
            return Some("a client waits for ever");
        }
        None
    }
}
