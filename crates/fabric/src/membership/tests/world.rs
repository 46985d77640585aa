//! Agents on hosts, and the network between them, which keeps the order of each connection and
//! promises nothing else. Host 0 has the head.
//!
//! The first broken rule is kept as a sentence; the driver of the world checks for it.

use super::super::{Action, Config, Event, Link, Membership, NodeLife, State};
use super::seen::{Seen, identity_of};
use crate::Slot;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The steps that can happen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// The next item on a connection arrives at one of its ends.
    Deliver {
        connection: u64,
        end: usize,
    },
    /// Time passes for all processes.
    Wait(u64),
    /// A process reads the clock.
    Tick {
        process: u64,
    },
    /// A connection breaks, and keeps this many of the items in flight to each end.
    Break {
        connection: u64,
        keeps: [usize; 2],
    },
    Start {
        host: u8,
    },
    Kill {
        process: u64,
    },
    Stop {
        process: u64,
    },
    Continue {
        process: u64,
    },
    /// A slot moves to its next state, from alive possibly straight to free.
    Turn {
        process: u64,
        slot: u32,
        at_once: bool,
    },
    Leave {
        process: u64,
    },
    /// Two hosts cannot reach each other: nothing arrives, and no error is reported.
    Cut {
        hosts: (u8, u8),
    },
    Heal,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Item {
    Accept,
    Connected,
    Message(Vec<u8>),
    Closed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Process {
    pub(super) host: u8,
    pub(super) machine: Membership,
    pub(super) seen: Seen,
    pub(super) units: BTreeMap<u32, (u32, State)>,
    pub(super) is_stopped: bool,
    pub(super) is_leaving: bool,
    links: BTreeMap<Link, u64>,
}

impl Process {
    /// Returns the living units.
    pub(super) fn living(&self) -> BTreeMap<u32, u32> {
        let alive = self.units.iter().filter(|(_, unit)| unit.1 == State::Alive);
        alive.map(|(slot, unit)| (*slot, unit.0)).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct End {
    process: u64,
    link: Link,
    is_open: bool,
    /// Items in flight to this end.
    pub(super) items: VecDeque<Item>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Connection {
    pub(super) ends: [End; 2],
    is_broken: bool,
}

/// The content of a node change, as the head reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Order {
    Joined(NodeLife),
    Gone(NodeLife),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    config: Config,
    pub(super) processes: BTreeMap<u64, Process>,
    /// Lives that ended on their own, and how.
    pub(super) ended: Vec<(NodeLife, Action)>,
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) cut: BTreeSet<(u8, u8)>,
    pub(super) orders: BTreeMap<(u64, u64), Order>,
    begun: u64,
    pub(super) liar: Option<u64>,
    pub(super) now: u64,
    /// The first rule that was broken.
    broken: Option<String>,
}

impl World {
    pub(super) fn new(config: Config) -> World {
        World {
            config,
            processes: BTreeMap::new(),
            ended: Vec::new(),
            connections: BTreeMap::new(),
            cut: BTreeSet::new(),
            orders: BTreeMap::new(),
            begun: 0,
            liar: None,
            now: 0,
            broken: None,
        }
    }

    pub(super) fn on_host(&self, host: u8) -> Option<u64> {
        let mut all = self.processes.iter();
        all.find(|(_, process)| process.host == host)
            .map(|(id, _)| *id)
    }

    pub(super) fn head(&self) -> Option<&Process> {
        self.processes.get(&self.on_host(0)?)
    }

    fn is_cut(&self, connection: &Connection) -> bool {
        let host = |end: usize| {
            self.processes
                .get(&connection.ends[end].process)
                .map(|p| p.host)
        };
        match (host(0), host(1)) {
            (Some(a), Some(b)) => self.cut.contains(&(a.min(b), a.max(b))),
            // The end of a process that is gone has already reported this.
            _ => false,
        }
    }

    /// Returns the deliveries that are possible now.
    pub(super) fn deliveries(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (id, connection) in &self.connections {
            if self.is_cut(connection) {
                continue;
            }
            for (end, to) in connection.ends.iter().enumerate() {
                let process = self.processes.get(&to.process);
                if process.is_some_and(|p| !p.is_stopped) && to.is_open && !to.items.is_empty() {
                    let connection = *id;
                    steps.push(Step::Deliver { connection, end });
                }
            }
        }
        steps
    }

    /// From now on a process lies: no rule is checked against its messages.
    pub(super) fn distrust(&mut self, liar: u64) {
        self.liar = Some(liar);
        let node = self.processes[&liar].machine.life().map(|life| life.node);
        for process in self.processes.values_mut() {
            process.seen.liar = node;
        }
    }

    /// Returns the processes that are not stopped.
    pub(super) fn running(&self) -> Vec<u64> {
        let running = self
            .processes
            .iter()
            .filter(|(_, process)| !process.is_stopped);
        running.map(|(id, _)| *id).collect()
    }

    /// Returns the first broken rule as an error.
    pub(super) fn checked(&self) -> Result<(), String> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    pub(super) fn connections(&self) -> Vec<u64> {
        self.connections.keys().copied().collect()
    }

    /// Returns the next item to arrive at an end, so that a test can alter it.
    pub(super) fn next_item(&mut self, connection: u64, end: usize) -> Option<(u64, &mut Item)> {
        let connection = self.connections.get_mut(&connection)?;
        let from = connection.ends[1 - end].process;
        Some((from, connection.ends[end].items.front_mut()?))
    }

    pub(super) fn step(&mut self, step: &Step) {
        match *step {
            Step::Deliver { connection, end } => self.deliver(connection, end),
            Step::Wait(time) => self.now += time,
            Step::Tick { process } => {
                let now = self.now;
                self.event(process, Event::Tick { now });
            }
            Step::Break { connection, keeps } => self.cut_off(connection, keeps),
            Step::Start { host } => self.start(host),
            Step::Kill { process } => {
                if let Some(killed) = self.processes.remove(&process) {
                    self.close_all(process, &killed);
                }
            }
            Step::Stop { process } => self.set_stopped(process, true),
            Step::Continue { process } => self.set_stopped(process, false),
            Step::Turn {
                process,
                slot,
                at_once,
            } => self.turn(process, slot, at_once),
            Step::Leave { process } => {
                if let Some(leaving) = self.processes.get_mut(&process) {
                    leaving.is_leaving = true;
                    self.event(process, Event::Leave);
                }
            }
            Step::Cut { hosts: (a, b) } => {
                self.cut.insert((a.min(b), a.max(b)));
            }
            Step::Heal => self.cut.clear(),
        }
        if let Err(rule) = self.check_bounds() {
            self.broken.get_or_insert(rule);
        }
    }

    fn set_stopped(&mut self, process: u64, is_stopped: bool) {
        if let Some(process) = self.processes.get_mut(&process) {
            process.is_stopped = is_stopped;
        }
    }

    fn start(&mut self, host: u8) {
        if self.on_host(host).is_some() {
            return;
        }
        self.begun += 1;
        let (config, name) = (self.config.clone(), format!("host{}", host % 100));
        let mut seen = Seen::default();
        let machine = if host == 0 {
            seen.domain = self.begun;
            Membership::head(config, self.begun, &name, &[host])
        } else {
            Membership::member(config, &name, &[host], &[0])
        };
        let process = Process {
            host,
            machine,
            seen,
            units: BTreeMap::new(),
            is_stopped: false,
            is_leaving: false,
            links: BTreeMap::new(),
        };
        self.processes.insert(self.begun, process);
        let now = self.now;
        self.event(self.begun, Event::Tick { now });
    }

    /// Closes all connections of a process, as the kernel does.
    fn close_all(&mut self, id: u64, process: &Process) {
        for connection in process.links.values() {
            if let Some(connection) = self.connections.get_mut(connection) {
                for end in &mut connection.ends {
                    if end.process == id {
                        end.is_open = false;
                    } else {
                        end.items.push_back(Item::Closed);
                    }
                }
            }
        }
        // Callers that it had not accepted learn of its end, too.
        for connection in self.connections.values_mut() {
            if connection.ends[1].process == id && connection.ends[1].is_open {
                connection.ends[1].is_open = false;
                connection.ends[0].items.push_back(Item::Closed);
            }
        }
    }

    fn cut_off(&mut self, connection: u64, keeps: [usize; 2]) {
        let Some(connection) = self.connections.get_mut(&connection) else {
            return;
        };
        connection.is_broken = true;
        for (end, keeps) in connection.ends.iter_mut().zip(keeps) {
            end.items.truncate(keeps);
            end.items.push_back(Item::Closed);
        }
    }

    fn turn(&mut self, id: u64, slot: u32, at_once: bool) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        let Some(life) = process.machine.life().filter(|_| !process.is_leaving) else {
            return;
        };
        let first = *life.incarnations().start();
        let (incarnation, state) = match process.units.get(&slot) {
            None => (first, State::Alive),
            Some((last, State::Free)) => (last + 1, State::Alive),
            Some((now, State::Alive)) if !at_once => (*now, State::Dead),
            Some((now, _)) => (*now, State::Free),
        };
        process.units.insert(slot, (incarnation, state));
        let slot = Slot(slot);
        let identity = &identity_of(incarnation);
        self.event(
            id,
            Event::Slot {
                slot,
                incarnation,
                state,
                identity,
            },
        );
    }

    fn deliver(&mut self, id: u64, end: usize) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let to = &mut connection.ends[end];
        let (process, link) = (to.process, to.link);
        let Some(item) = to.items.pop_front() else {
            return;
        };
        match item {
            Item::Accept => {
                connection.ends[0].items.push_back(Item::Connected);
                if let Some(process) = self.processes.get_mut(&process) {
                    process.links.insert(link, id);
                }
                self.event(process, Event::Accepted { link });
            }
            Item::Connected => self.event(process, Event::Connected { link }),
            Item::Message(bytes) => self.event(
                process,
                Event::Message {
                    link,
                    bytes: &bytes,
                },
            ),
            Item::Closed => {
                self.shut(id, end);
                self.event(process, Event::Closed { link });
            }
        }
    }

    /// Closes one end of a connection; nothing arrives there any more.
    fn shut(&mut self, id: u64, end: usize) {
        if let Some(connection) = self.connections.get_mut(&id) {
            let end = &mut connection.ends[end];
            end.is_open = false;
            end.items.clear();
            if let Some(process) = self.processes.get_mut(&end.process) {
                process.links.remove(&end.link);
            }
        }
        self.connections
            .retain(|_, connection| connection.ends.iter().any(|end| end.is_open));
    }

    fn event(&mut self, id: u64, event: Event<'_>) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        let actions = process.machine.on_event(event);
        let told = process
            .seen
            .take(&actions)
            .and_then(|()| self.note_orders(id, &actions));
        if let Err(rule) = told {
            self.broken.get_or_insert(format!("process {id}: {rule}"));
        }
        for action in actions {
            self.perform(id, action);
        }
    }

    fn perform(&mut self, id: u64, action: Action) {
        match action {
            Action::Connect { link, address } => self.connect(id, link, address[0]),
            Action::Send { link, bytes } => {
                if let Some((connection, end)) = self.end_of(id, link) {
                    let connection = self.connections.get_mut(&connection).unwrap();
                    if !connection.is_broken && connection.ends[1 - end].is_open {
                        connection.ends[1 - end]
                            .items
                            .push_back(Item::Message(bytes));
                    }
                } else {
                    self.broken
                        .get_or_insert(format!("process {id} speaks on closed {link:?}"));
                }
            }
            Action::Close { link, .. } => {
                if let Some((connection, end)) = self.end_of(id, link) {
                    let other = &mut self.connections.get_mut(&connection).unwrap().ends[1 - end];
                    other.items.push_back(Item::Closed);
                    self.shut(connection, end);
                } else {
                    self.broken
                        .get_or_insert(format!("process {id} closes {link:?} twice"));
                }
            }
            Action::Fenced | Action::Left | Action::NotAdmitted(_) => {
                let process = self.processes.remove(&id).unwrap();
                if let Some(life) = process.machine.life() {
                    self.ended.push((life, action));
                }
                if !process.links.is_empty() {
                    self.broken
                        .get_or_insert(format!("process {id} ended with connections"));
                }
                self.close_all(id, &process);
            }
            _ => {}
        }
    }

    fn end_of(&self, process: u64, link: Link) -> Option<(u64, usize)> {
        let id = *self.processes.get(&process)?.links.get(&link)?;
        let ends = &self.connections.get(&id)?.ends;
        let end = ends
            .iter()
            .position(|end| end.process == process && end.link == link)?;
        Some((id, end))
    }

    fn connect(&mut self, id: u64, link: Link, host: u8) {
        self.begun += 1;
        let connection = self.begun;
        let callee = self.on_host(host);
        let end = |process, link, is_open, item: Option<Item>| End {
            process,
            link,
            is_open,
            items: item.into_iter().collect(),
        };
        let nobody = callee.is_none().then_some(Item::Closed);
        let accept = callee.map(|_| Item::Accept);
        let link_in = Link::In(connection);
        let ends = [
            end(id, link, true, nobody),
            end(
                callee.unwrap_or_default(),
                link_in,
                callee.is_some(),
                accept,
            ),
        ];
        let is_broken = false;
        self.connections
            .insert(connection, Connection { ends, is_broken });
        self.processes
            .get_mut(&id)
            .unwrap()
            .links
            .insert(link, connection);
    }

    /// Lets all processes run for long enough that every agent has received everything that can be
    /// delivered.
    pub(super) fn settle(&mut self, pick: impl FnMut(usize) -> usize) {
        for process in self.processes.values_mut() {
            process.is_stopped = false;
        }
        self.settle_without_wakening(pick);
    }

    /// Does the same, but leaves stopped processes stopped.
    pub(super) fn settle_without_wakening(&mut self, mut pick: impl FnMut(usize) -> usize) {
        for _ in 0..5 * self.config.silence / self.config.beat {
            self.now += self.config.beat;
            for process in self.running() {
                self.step(&Step::Tick { process });
            }
            let mut rounds = 0;
            loop {
                let steps = self.deliveries();
                if steps.is_empty() || self.broken.is_some() {
                    break;
                }
                self.step(&steps[pick(steps.len())]);
                rounds += 1;
                if rounds > 20_000 {
                    self.broken
                        .get_or_insert("the agents do not come to rest".into());
                }
            }
        }
    }
}
