//! The machines of [`protocol`](crate::protocol) on the fabric: the process that coordinates, and keeps.
//!
//! A *service* is a peer that has a [`Steward`], a [`Keeper`], or both. The agent of a node runs one with both beside
//! its own loop; a dedicated staging unit (method `server`) runs one with a keeper; a domain of one process has one in
//! the process itself, turned by whoever waits.
//!
//! ```text
//!   frames ──> handlers put letters into the inbox (a handler cannot do more)
//!   turn:      letters, losses and time ──> Steward::on_event ──> answers and orders ──> frames, or the own keeper
//! ```
//!
//! # Files
//! `mod` (the loop) · `keeper` (buffers) · `letter` (what is sent under which number)

mod keeper;
mod letter;

use crate::Result;
use crate::protocol::{Action, Event, Notice, Peer, Request, Steward};
use keeper::Keeper;
use samite_fabric::{Fabric, Handle, Identity, PeerId, PeerInfo};
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

pub use keeper::Room;
pub(crate) use keeper::segment_key;
pub(crate) use letter::{CLIENT, KeeperAsk, Letter, receive, send};

/// The program name by which the steward's process is found in a domain.
const STEWARD: &str = "samite-steward";

/// How long a service sleeps when nothing is due: it looks whether it is to stop.
const NAP: Duration = Duration::from_millis(500);

/// How long a staging server waits for units of its job that it has never seen, when all others have left.
const MISSING: Duration = Duration::from_secs(10);

/// What has come and is not yet taken, with who sent it.
type Inbox = Rc<RefCell<VecDeque<(PeerId, Letter)>>>;

/// What the agent's process says of itself as a peer.
pub fn steward_identity() -> Identity {
    Identity::by_hand(STEWARD)
}

/// The steward of a domain, if it is there and takes letters.
pub(crate) fn find_steward(fabric: &Fabric) -> Option<PeerId> {
    let peers = fabric.peers();
    let mut stewards = peers.iter().filter(|info| info.identity.program == STEWARD);
    let steward = stewards.next()?.peer;
    let greeted = fabric
        .request(steward, letter::HELLO, &[])
        .and_then(Handle::wait);
    greeted.is_ok().then_some(steward)
}

/// A process that coordinates streams, keeps blocks, or both. One thread owns it, as it owns the fabric.
pub struct Service<'f> {
    fabric: &'f Fabric,
    inbox: Inbox,
    steward: Option<Steward>,
    keeper: Keeper<'f>,
    /// Who was there when it looked last, at that many changes.
    peers: Vec<PeerInfo>,
    changes: Option<u64>,
    start: Instant,
}

impl<'f> Service<'f> {
    /// Coordinates all streams of the domain, and keeps blocks in `room`.
    pub fn steward(fabric: &'f Fabric, room: Room) -> Service<'f> {
        let mut service = Service::new(fabric, Some(Steward::new()), room);
        let keep = service.keeper.introduction();
        service.said(fabric.me(), keep);
        service
    }

    /// Keeps blocks in `room` for the steward of the domain, as a staging server does (method `server`).
    ///
    /// # Errors
    /// A domain without a steward.
    pub fn keeper(fabric: &'f Fabric, room: Room) -> Result<Service<'f>> {
        let steward = crate::desk::await_steward(fabric)?;
        let service = Service::new(fabric, None, room);
        letter::send(
            fabric,
            steward,
            &Letter::Request(service.keeper.introduction()),
        )?;
        Ok(service)
    }

    fn new(fabric: &'f Fabric, steward: Option<Steward>, room: Room) -> Service<'f> {
        let inbox = Inbox::default();
        letter::receive(fabric, letter::SERVICE, &inbox);
        fabric.on(letter::HELLO, |_, _| Some(Vec::new()));
        Service {
            fabric,
            inbox,
            steward,
            keeper: Keeper::new(fabric, room),
            peers: Vec::new(),
            changes: None,
            start: Instant::now(),
        }
    }

    /// Does what has to be done now; whether there was anything. Never blocks.
    pub fn turn(&mut self) -> bool {
        let mut news = false;
        // What a peer said before it died counts, so letters come first.
        while let Some((from, letter)) = self.take() {
            news = true;
            match letter {
                Letter::Request(request) => self.said(from, request),
                Letter::Order(order) => self.obey(from, order),
                Letter::Ask(ask) => self.answer(from, ask),
                Letter::Answer(..) | Letter::Kept(_) => {
                    tracing::warn!(%from, "an answer for somebody else");
                }
            }
        }
        news |= self.follow_membership();
        if let Some(steward) = &mut self.steward
            && steward
                .wake_at()
                .is_some_and(|due| due <= millis(self.start))
        {
            self.happened(Event::Tick);
        }
        self.keeper.tidy();
        news
    }

    /// Serves as long as `go_on` says so, which is asked after everything that happens, and now and then.
    pub fn run(&mut self, mut go_on: impl FnMut(&Fabric) -> bool) -> Result<()> {
        while go_on(self.fabric) {
            self.turn();
            let due = self.steward.as_ref().and_then(Steward::wake_at);
            let due = due.map(|due| Duration::from_millis(due.saturating_sub(millis(self.start))));
            self.fabric
                .set_deadline(due.unwrap_or(NAP).clamp(Duration::from_millis(1), NAP));
            let (inbox, changes) = (&self.inbox, self.changes);
            let fabric = self.fabric;
            let waited = fabric.wait_stepping(
                "work of the staging service",
                &[],
                || {
                    let news = !inbox.borrow().is_empty() || changes != Some(fabric.changes());
                    news.then_some(())
                },
                || !inbox.borrow().is_empty(),
            );
            match waited {
                Ok(()) | Err(samite_fabric::Error::Timeout { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Serves until the units of other programs of this job have come and have left again.
    ///
    /// # Errors
    /// The agent is lost.
    pub fn run_for_job(&mut self) -> Result<()> {
        let own = self.fabric.identity().clone();
        let expected = own.units.saturating_sub(own.size) as usize;
        let mut seen: BTreeSet<u32> = BTreeSet::new();
        let mut alone_since = None;
        self.run(|fabric| {
            let peers = fabric.peers();
            let others = peers.iter().map(|info| &info.identity);
            let others = others.filter(|one| one.job == own.job && one.program != own.program);
            let there: Vec<u32> = others.map(|one| one.unit).collect();
            seen.extend(&there);
            if !there.is_empty() {
                alone_since = None;
                return true;
            }
            if seen.is_empty() || seen.len() >= expected {
                return seen.is_empty();
            }
            alone_since.get_or_insert_with(Instant::now).elapsed() < MISSING
        })
    }

    /// How the streams stand; empty without a steward.
    pub fn figures(&self) -> Vec<crate::protocol::StreamFigures> {
        self.steward
            .as_ref()
            .map_or_else(Vec::new, Steward::figures)
    }

    fn take(&self) -> Option<(PeerId, Letter)> {
        self.inbox.borrow_mut().pop_front()
    }

    fn said(&mut self, from: PeerId, request: Request) {
        self.happened(Event::Said(Peer(from.0), request));
    }

    /// Tells the steward, and carries out what it wants.
    fn happened(&mut self, event: Event) {
        let now = millis(self.start);
        let Some(steward) = &mut self.steward else {
            return;
        };
        for Action::Send(to, notice) in steward.on_event(now, event) {
            let to = PeerId(to.0);
            match notice {
                Notice::Order(order) if to == self.fabric.me() => self.obey(to, order),
                notice => self.send(to, &Letter::of_notice(notice)),
            }
        }
    }

    fn obey(&mut self, from: PeerId, order: crate::protocol::Order) {
        let Some(report) = self.keeper.obey(order) else {
            return;
        };
        let report = Request::Report(report);
        match self.steward {
            Some(_) => self.said(from, report),
            None => self.send(from, &Letter::Request(report)),
        }
    }

    fn answer(&mut self, from: PeerId, ask: KeeperAsk) {
        let answer = self.keeper.answer(ask);
        self.send(from, &Letter::Kept(answer));
    }

    /// Whoever does not get it is gone, and that is another event.
    fn send(&self, to: PeerId, letter: &Letter) {
        if let Err(error) = letter::send(self.fabric, to, letter) {
            tracing::debug!(%to, %error, "a letter was not delivered");
        }
    }

    /// Tells the steward who is gone since it looked last.
    fn follow_membership(&mut self) -> bool {
        let changes = self.fabric.changes();
        if self.changes == Some(changes) {
            return false;
        }
        let there = self.fabric.peers();
        if !self.inbox.borrow().is_empty() {
            // Looking made progress: what came must be taken first.
            return true;
        }
        self.changes = Some(changes);
        let gone: Vec<_> = self
            .peers
            .iter()
            .filter(|known| !there.contains(known))
            .map(|known| known.peer)
            .collect();
        self.peers = there;
        for peer in gone {
            self.happened(Event::Lost(Peer(peer.0)));
        }
        true
    }
}

fn millis(start: Instant) -> u64 {
    start.elapsed().as_millis() as u64
}
