//! The machines of [`protocol`](crate::protocol) on the fabric: the process that coordinates, and keeps.
//!
//! A *service* is a peer that has a [`Steward`], a `Keeper`, or both. The agent of a node runs one with both beside
//! its own loop; a dedicated staging unit (method `server`) runs one with a keeper; a domain of one process has one in
//! the process itself, turned by whoever waits.
//!
//! ```text
//!   frames ──> the server's inbox ([`samite_fabric::rpc`])
//!   turn:      letters, losses and time ──> Steward::on_event ──> answers and orders ──> frames, or the own keeper
//! ```
//!
//! # Files
//! `mod` (the loop) · `keeper` (buffers, and what is spilled of them) · `letter` (what is said) · `units` (whether
//! a job still needs its servers) · `unsent` (what peers have not taken yet)

mod keeper;
mod letter;
mod units;
mod unsent;

use crate::Result;
use crate::clock::Clock;
use crate::protocol::{self, Action, Event, Notice, Peer, Request, Steward};
use keeper::Keeper;
use samite_fabric::rpc::{Asked, Server, Service as Number};
use samite_fabric::{Fabric, Identity};
use std::collections::BTreeSet;
use std::time::Duration;
use units::Units;
use unsent::Unsent;

pub use keeper::{Kept, Room};
pub(crate) use keeper::{LOAD, segment_key};
use letter::Packed;
pub(crate) use letter::{KeeperAnswer, KeeperAsk, Letter, life, own};

/// The program name by which the steward's process is found in a domain.
const STEWARD: &str = "samite-steward";

/// How long a service sleeps when nothing is due: it looks whether it is to stop.
const NAP: Duration = Duration::from_millis(500);

/// How long it sleeps when it waits for something that no letter tells.
const SOON: Duration = Duration::from_millis(5);

/// Most bytes that wait of one peer to be heard, beside the first letter.
const INBOX: u64 = 16 << 20;

/// What the agent's process says of itself as a peer.
pub fn steward_identity() -> Identity {
    Identity::by_hand(STEWARD)
}

/// The steward of a domain, if it is there.
pub(crate) fn find_steward(fabric: &Fabric) -> Option<Peer> {
    let peers = fabric.peers();
    let mut stewards = peers.iter().filter(|info| info.identity.program == STEWARD);
    stewards
        .next()
        .map(|info| Peer::new(info.peer.0, info.incarnation))
}

/// A process that coordinates streams, keeps blocks, or both.
pub struct Service {
    fabric: Fabric,
    server: Server,
    /// Whose orders the keeper carries out.
    at: Peer,
    /// Here, if this process is it.
    steward: Option<Steward>,
    keeper: Keeper,
    /// Who has said something, or has something to take, and was not seen to be gone when it looked last: at that many changes.
    peers: BTreeSet<Peer>,
    changes: Option<u64>,
    /// Letters that living peers have not taken yet.
    unsent: Unsent,
    /// Peers that did not take what was for them: as good as gone, as long as they live.
    deaf: BTreeSet<Peer>,
    clock: Clock,
}

impl Service {
    /// Coordinates all streams of the domain, and keeps blocks in `room`.
    pub fn steward(fabric: &Fabric, room: Room) -> Service {
        let me = letter::own(fabric);
        let mut service = Service::new(fabric, me, Some(Steward::new()), room);
        let keep = service.keeper.introduction();
        service.said(me, keep);
        service
    }

    /// Keeps blocks in `room` for the steward of the domain, as a staging server does (method `server`).
    ///
    /// # Errors
    /// A domain without a steward.
    pub fn keeper(fabric: &Fabric, room: Room) -> Result<Service> {
        let steward = crate::desk::await_steward(fabric)?;
        let service = Service::new(fabric, steward, None, room);
        let introduction = Packed::note(&Letter::Request(service.keeper.introduction()));
        introduction.send(fabric, &service.server, steward, fabric.deadline())?;
        Ok(service)
    }

    fn new(fabric: &Fabric, at: Peer, steward: Option<Steward>, room: Room) -> Service {
        Service {
            fabric: fabric.clone(),
            server: fabric.serve(Number::STAGING, INBOX),
            at,
            steward,
            keeper: Keeper::new(fabric, room),
            peers: BTreeSet::new(),
            changes: None,
            unsent: Unsent::default(),
            deaf: BTreeSet::new(),
            clock: Clock::new(),
        }
    }

    /// Does what has to be done now; whether there was anything. Blocks for no longer than a part of a buffer's memory takes
    /// to be found.
    pub fn turn(&mut self) -> bool {
        // What a peer said before it died counts: what had come when it was seen to be gone is taken before that. What others
        // say is heard after it, so that nobody is given what the dead had. Letters that come meanwhile are not waited for.
        let gone = self.look();
        let mut news = !gone.is_empty();
        if news {
            self.hear_last_words(gone);
        }
        for _ in 0..self.server.waiting() {
            let Some(asked) = self.server.take() else {
                break;
            };
            news = true;
            self.hear(asked);
        }
        self.send_again();
        let now = self.now();
        let due = self.steward.as_ref().and_then(Steward::wake_at);
        if due.is_some_and(|due| due <= now) {
            self.happened(Event::Tick);
        }
        self.forget_deaf();
        news |= self.keeper.is_busy();
        for report in self.keeper.work() {
            news = true;
            self.report(report);
        }
        for (from, id, answer) in self.keeper.answers() {
            news = true;
            self.answer(from, id, &answer);
        }
        self.keeper.tidy();
        news
    }

    /// Hears what these have said, and forgets them.
    fn hear_last_words(&mut self, gone: Vec<Peer>) {
        for peer in &gone {
            while let Some(asked) = self.server.take_of(life(*peer)) {
                self.hear(asked);
            }
        }
        gone.into_iter().for_each(|peer| self.forget(peer));
    }

    fn hear(&mut self, asked: Asked) {
        let from = Peer::new(asked.from.peer.0, asked.from.incarnation);
        let Some(letter) = protocol::decode::<Letter>(&asked.bytes) else {
            tracing::warn!(%from, "{} bytes that are no letter", asked.bytes.len());
            return;
        };
        if !self.knows(from) {
            tracing::debug!(%from, ?letter, "a letter of somebody who is not there");
            return;
        }
        if asked.id.is_some() && self.unsent.is_full(from) {
            tracing::warn!(%from, "a question of a process that does not take its answers");
            return;
        }
        match (letter, asked.id) {
            (Letter::Request(request), id) if request.ticket().map(|ticket| ticket.0) == id => {
                self.said(from, request);
            }
            (Letter::Order(order), None) if from == self.at => self.obey(order),
            (Letter::Ask(ask), Some(id)) => {
                if let Some(answer) = self.keeper.answer(from, id, ask) {
                    self.answer(from, id, &answer);
                }
            }
            (letter, id) => tracing::warn!(%from, ?letter, ?id, "a letter that does not fit"),
        }
    }

    /// Serves as long as `go_on` says so, which is asked after everything that happens, and now and then.
    pub fn run(&mut self, mut go_on: impl FnMut(&Fabric) -> bool) -> Result<()> {
        while go_on(&self.fabric) {
            self.turn();
            if self.keeper.is_busy() {
                self.fabric.progress();
                continue;
            }
            let due = self.steward.as_ref().and_then(Steward::wake_at);
            let now = self.now();
            let due = due.map(|due| Duration::from_millis(due.saturating_sub(now)));
            let longest = match self.keeper.is_waiting() || !self.unsent.is_empty() {
                true => SOON,
                false => NAP,
            };
            let nap = due.unwrap_or(longest).min(longest);
            let (server, keeper, changes) = (&self.server, &self.keeper, self.changes);
            let has_come = || server.waiting() > 0 || keeper.has_news();
            let fabric = &self.fabric;
            let waited = fabric.wait_stepping_within(
                nap.max(Duration::from_millis(1)),
                "work of the staging service",
                &[],
                || {
                    let news = has_come() || changes != Some(fabric.changes());
                    news.then_some(())
                },
                has_come,
            );
            match waited {
                Ok(()) | Err(samite_fabric::Error::Timeout { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Serves until the units of other programs of this job have come and have left again, or have ended without coming.
    ///
    /// # Errors
    /// The agent is lost.
    pub fn run_for_job(&mut self) -> Result<()> {
        let own = self.fabric.identity().clone();
        let mut units = Units::new(own.units.saturating_sub(own.size) as usize);
        self.run(|fabric| {
            let there = || {
                let peers = fabric.peers();
                let others = peers.iter().map(|info| &info.identity);
                let others = others.filter(|one| one.job == own.job && one.program != own.program);
                others.map(|one| one.unit).collect()
            };
            units.need_servers(there, || fabric.awaits_units().unwrap_or(true))
        })
    }

    /// How the streams stand; empty without a steward.
    pub fn figures(&self) -> Vec<crate::protocol::StreamFigures> {
        self.steward
            .as_ref()
            .map_or_else(Vec::new, Steward::figures)
    }

    /// Whether a letter of this peer is to be heard: it lives, or is not yet known to be gone.
    fn knows(&mut self, peer: Peer) -> bool {
        if self.deaf.contains(&peer) {
            return false;
        }
        self.peers.contains(&peer) || self.lives(peer) && self.peers.insert(peer)
    }

    fn lives(&self, peer: Peer) -> bool {
        lives(&self.fabric, peer)
    }

    fn said(&mut self, from: Peer, request: Request) {
        self.happened(Event::Said(from, request));
    }

    /// Tells the steward, and carries out what it wants.
    fn happened(&mut self, event: Event) {
        self.tell_who_is_slow();
        self.carry_out(event);
    }

    fn tell_who_is_slow(&mut self) {
        if let Some(slow) = self.unsent.who_is_slow() {
            self.carry_out(Event::Slow(slow));
        }
    }

    fn carry_out(&mut self, event: Event) {
        let now = self.now();
        let Some(steward) = &mut self.steward else {
            return;
        };
        for Action::Send(to, notice) in steward.on_event(now, event) {
            match notice {
                Notice::Order(order) if to == self.at => self.obey(order),
                Notice::Order(order) => self.send(to, Packed::note(&Letter::Order(order))),
                Notice::Answer { ticket, answer } => {
                    self.send(to, Packed::answer(ticket, &answer));
                }
            }
        }
    }

    fn obey(&mut self, order: crate::protocol::Order) {
        if let Some(report) = self.keeper.obey(order) {
            self.report(report);
        }
    }

    fn answer(&mut self, from: Peer, id: u64, answer: &KeeperAnswer) {
        self.send(from, Packed::response(id, protocol::encode(answer)));
    }

    fn report(&mut self, report: crate::protocol::Report) {
        let report = Request::Report(report);
        match self.steward {
            Some(_) => self.said(self.at, report),
            None => self.send(self.at, Packed::note(&Letter::Request(report))),
        }
    }

    /// Whoever is gone does not get it, and that is another event. A peer that lives and takes nothing now (it is stopped, or has
    /// too much before) gets it later, behind what it did not take before, and is given no steps meanwhile; one that has too much of
    /// that nevertheless is given up: whatever it has asked for, or said that it would carry out.
    fn send(&mut self, to: Peer, packed: Packed) {
        if self.deaf.contains(&to) {
            return;
        }
        let is_late = self.unsent.waits_for(to) || !self.delivered(to, &packed, SOON);
        if !is_late {
            return;
        }
        // What waits for it is dropped when it is seen to be gone.
        self.peers.insert(to);
        if !self.unsent.push(to, packed) {
            tracing::warn!(%to, "a process that takes no messages is given up");
            self.deaf.insert(to);
        }
    }

    /// Sends what peers had not taken.
    fn send_again(&mut self) {
        let mut unsent = std::mem::take(&mut self.unsent);
        // Whoever is gone has taken nothing, and is slow until it is forgotten.
        unsent.try_again(|to, letter| self.lives(to) && self.delivered(to, letter, Duration::ZERO));
        self.unsent = unsent;
        self.tell_who_is_slow();
    }

    /// A peer is gone, or as good as gone.
    fn forget(&mut self, peer: Peer) {
        self.peers.remove(&peer);
        // In this order: if it were slow no more before it is lost, it would be given steps, which nobody had then.
        self.carry_out(Event::Lost(peer));
        self.keeper.forget(peer);
        self.unsent.forget(peer);
        self.tell_who_is_slow();
    }

    /// Whoever has just been found to be deaf is lost to the steward.
    fn forget_deaf(&mut self) {
        let deaf = self.deaf.iter().copied();
        let known: Vec<Peer> = deaf.filter(|peer| self.peers.contains(peer)).collect();
        known.into_iter().for_each(|peer| self.forget(peer));
    }

    /// Whether that letter is done with: on its way, or for nobody.
    fn delivered(&self, to: Peer, letter: &Packed, patience: Duration) -> bool {
        if !self.lives(to) {
            return true;
        }
        let patience = patience.min(self.fabric.deadline());
        match letter.send(&self.fabric, &self.server, to, patience) {
            Ok(()) => true,
            Err(crate::Error::Fabric(samite_fabric::Error::Timeout { .. })) => false,
            Err(error) => {
                tracing::debug!(%to, %error, "a letter was not delivered");
                true
            }
        }
    }

    /// Who is gone since it looked last. Looking makes progress, so what those have said is in the inbox afterwards.
    fn look(&mut self) -> Vec<Peer> {
        let changes = self.fabric.changes();
        if self.changes == Some(changes) {
            return Vec::new();
        }
        self.changes = Some(changes);
        self.fabric.progress();
        let fabric = &self.fabric;
        self.deaf.retain(|peer| lives(fabric, *peer));
        let peers = self.peers.iter().copied();
        peers.filter(|peer| !lives(fabric, *peer)).collect()
    }

    /// In milliseconds, as the steward counts them.
    fn now(&mut self) -> u64 {
        self.clock.look().as_millis() as u64
    }
}

fn lives(fabric: &Fabric, peer: Peer) -> bool {
    let life = life(peer);
    fabric.lost_life(life.peer, life.incarnation).is_none()
}

#[cfg(test)]
mod tests;
