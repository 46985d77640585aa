//! One process that writes or reads: its questions, and the answers to them.

use crate::protocol::{Answer, KeeperInfo, Request, Ticket};
use crate::service::{self, CLIENT, KeeperAsk, Letter, Room, Service};
use crate::{Error, Result};
use samite_fabric::{Fabric, Identity, PeerId};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// What the steward may need beyond the patience that it was given.
const GRACE: Duration = Duration::from_secs(2);

/// How long a domain may be there before its steward is, and one staging server before the others.
const BEGINNING: Duration = Duration::from_secs(5);

/// Between two questions for servers that are not there yet.
const PAUSE: Duration = Duration::from_millis(2);

/// How long a wait gives its processor away before it rests as the fabric does.
const GIVING_WAY: Duration = Duration::from_micros(200);

/// Where this process asks, and waits for answers. Streams share it.
pub(crate) struct Desk<'f> {
    pub(crate) fabric: &'f Fabric,
    pub(crate) steward: PeerId,
    inbox: Rc<RefCell<VecDeque<(PeerId, Letter)>>>,
    tickets: Cell<u64>,
    /// In a domain of one process: the service, turned by whoever waits.
    service: RefCell<Option<Service<'f>>>,
}

impl<'f> Desk<'f> {
    pub(crate) fn new(fabric: &'f Fabric) -> Result<Desk<'f>> {
        // In a domain of one process nobody else can be it.
        let alone = fabric.domain().is_none();
        let service = alone.then(|| Service::steward(fabric, Room::of_memory(u64::MAX)));
        let steward = match alone {
            true => fabric.me(),
            false => await_steward(fabric)?,
        };
        let inbox = Rc::new(RefCell::new(VecDeque::new()));
        service::receive(fabric, CLIENT, &inbox);
        Ok(Desk {
            fabric,
            steward,
            inbox,
            tickets: Cell::new(0),
            service: RefCell::new(service),
        })
    }

    /// A number for a question.
    pub(crate) fn ticket(&self) -> Ticket {
        self.tickets.set(self.tickets.get() + 1);
        Ticket(self.tickets.get())
    }

    /// How long a question may wait at the steward.
    pub(crate) fn patience(&self) -> u64 {
        self.fabric.deadline().as_millis() as u64
    }

    /// Tells the steward; no answer comes.
    pub(crate) fn tell(&self, request: Request) -> Result<()> {
        service::send(self.fabric, self.steward, &Letter::Request(request))?;
        self.serve();
        Ok(())
    }

    /// Asks the steward, and waits for the answer. A fault is an error.
    pub(crate) fn ask(
        &self,
        what: &'static str,
        ticket: Ticket,
        request: Request,
    ) -> Result<Answer> {
        self.tell(request)?;
        self.answer(what, ticket)
    }

    /// Waits for the answer to a question that was told before.
    pub(crate) fn answer(&self, what: &'static str, ticket: Ticket) -> Result<Answer> {
        let is_it = |letter: &Letter| matches!(letter, Letter::Answer(of, _) if *of == ticket);
        match self.wait(what, self.steward, is_it)? {
            Letter::Answer(_, Answer::Failed(fault)) => Err(fault.into()),
            Letter::Answer(_, answer) => Ok(answer),
            other => Err(Error::Nonsense(format!("{other:?}"))),
        }
    }

    /// Asks a keeper, and waits for the bytes.
    pub(crate) fn ask_keeper(
        &self,
        keeper: PeerId,
        make: impl FnOnce(Ticket) -> KeeperAsk,
    ) -> Result<Vec<u8>> {
        let ticket = self.ticket();
        service::send(self.fabric, keeper, &Letter::Ask(make(ticket)))?;
        let is_it =
            |letter: &Letter| matches!(letter, Letter::Kept(answer) if answer.ticket == ticket);
        match self.wait("a keeper of blocks", keeper, is_it)? {
            Letter::Kept(answer) => answer.result.map_err(Error::Keeper),
            other => Err(Error::Nonsense(format!("{other:?}"))),
        }
    }

    /// The staging servers of the domain: all ranks of a program of which one is there.
    ///
    /// # Errors
    /// None comes in time.
    pub(crate) fn await_servers(&self, stream: &str) -> Result<Vec<KeeperInfo>> {
        let begin = Instant::now();
        let deadline = self.fabric.deadline();
        loop {
            let ticket = self.ticket();
            let answer = self.ask("the staging servers", ticket, Request::Keepers { ticket })?;
            let Answer::Keepers { mut keepers } = answer else {
                return Err(Error::Nonsense(format!("{answer:?}")));
            };
            // The agent is no server.
            keepers.retain(|keeper| keeper.peer.0 != self.steward.0);
            let waited = begin.elapsed();
            if self.are_all(&keepers) || !keepers.is_empty() && waited >= deadline.min(BEGINNING) {
                return Ok(keepers);
            }
            if waited >= deadline {
                return Err(Error::NoServers {
                    stream: stream.to_owned(),
                });
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Whether every rank of every program is there of which one rank is.
    fn are_all(&self, servers: &[KeeperInfo]) -> bool {
        let peers = self.fabric.peers();
        let identity = |server: &KeeperInfo| {
            let info = peers.iter().find(|info| info.peer.0 == server.peer.0)?;
            Some(&info.identity)
        };
        let known: Vec<&Identity> = servers.iter().filter_map(identity).collect();
        let same = |one: &Identity, other: &Identity| {
            (&one.job, &one.program) == (&other.job, &other.program)
        };
        let is_whole = |one: &&Identity| {
            let there = known.iter().filter(|other| same(one, other)).count();
            there >= one.size as usize
        };
        !known.is_empty() && known.len() == servers.len() && known.iter().all(is_whole)
    }

    fn wait(
        &self,
        what: &'static str,
        whom: PeerId,
        is_it: impl Fn(&Letter) -> bool,
    ) -> Result<Letter> {
        let take = || {
            let inbox = &mut *self.inbox.borrow_mut();
            let at = inbox.iter().position(|(_, letter)| is_it(letter))?;
            inbox.remove(at).map(|(_, letter)| letter)
        };
        let deadline = self.fabric.deadline();
        self.fabric.set_deadline(deadline + GRACE);
        let whom: &[PeerId] = if whom == self.fabric.me() {
            &[]
        } else {
            &[whom]
        };
        let found = match self.service.borrow().is_some() {
            // A service of this process has to work for its own answer.
            true => self.fabric.wait_stepping(
                what,
                whom,
                || {
                    self.serve();
                    take()
                },
                || !self.inbox.borrow().is_empty(),
            ),
            false => match self.give_way(take) {
                Some(letter) => Ok(letter),
                None => self.fabric.wait_until(what, whom, take),
            },
        };
        self.fabric.set_deadline(deadline);
        Ok(found?)
    }

    /// Looks for an answer without spinning: the steward has no processor of its own, and where the units of a job fill the
    /// machine, one that spins keeps it from answering.
    fn give_way(&self, take: impl Fn() -> Option<Letter>) -> Option<Letter> {
        let begin = Instant::now();
        loop {
            self.fabric.progress();
            match take() {
                None if begin.elapsed() < GIVING_WAY => std::thread::yield_now(),
                found => return found,
            }
        }
    }

    /// Turns the service of this process, if there is one.
    fn serve(&self) {
        if let Some(service) = &mut *self.service.borrow_mut() {
            self.fabric.progress();
            while service.turn() {
                self.fabric.progress();
            }
        }
    }
}

/// The steward of a domain, which may be about to begin.
pub(crate) fn await_steward(fabric: &Fabric) -> Result<PeerId> {
    let deadline = fabric.deadline();
    fabric.set_deadline(deadline.min(BEGINNING));
    let find = || service::find_steward(fabric);
    let found = fabric.wait_stepping("the steward of streams", &[], find, || false);
    fabric.set_deadline(deadline);
    match found {
        Ok(steward) => Ok(steward),
        Err(samite_fabric::Error::Timeout { .. }) => Err(Error::NoSteward),
        Err(error) => Err(error.into()),
    }
}
