//! One process that writes or reads: its questions, and the answers to them.

use crate::protocol::{Answer, Request, Ticket};
use crate::service::{self, CLIENT, KeeperAsk, Letter, Room, Service};
use crate::{Error, Result};
use samite_fabric::{Fabric, PeerId};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// What the steward may need beyond the patience that it was given.
const GRACE: Duration = Duration::from_secs(2);

/// How long a domain may be there before its steward is.
const BEGINNING: Duration = Duration::from_secs(5);

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
            false => self.fabric.wait_until(what, whom, take),
        };
        self.fabric.set_deadline(deadline);
        Ok(found?)
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
fn await_steward(fabric: &Fabric) -> Result<PeerId> {
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
