//! One process that writes or reads: its questions, and the answers to them.

use crate::protocol::{Answer, KeeperInfo, Peer, Request, Ticket};
use crate::service::{self, CLIENT, KeeperAsk, Letter, Room, Service};
use crate::{Error, Result};
use samite_fabric::{Fabric, Identity, Layer, PeerId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// What the steward may need beyond the patience that it was given.
const GRACE: Duration = Duration::from_secs(2);

/// How long a domain may be there before its steward is, and one staging server before the others.
const BEGINNING: Duration = Duration::from_secs(5);

/// Between two questions for servers that are not there yet.
const PAUSE: Duration = Duration::from_millis(2);

/// How long a wait gives its processor away before it rests as the fabric does.
const GIVING_WAY: Duration = Duration::from_micros(200);

/// Questions of this process so far. An answer that comes late is to none of a stage that was opened since.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// What stages are called among the layers of a fabric.
const LAYER: &str = "stage";

/// The answers that have come over a fabric, for all of its desks. The handler that puts them there does not own it: it
/// ends with the last desk.
#[derive(Default)]
struct Inbox(Mutex<Answers>);

#[derive(Default)]
struct Answers {
    letters: VecDeque<Letter>,
    /// Questions whose answers somebody wants, and of whom. Others are dropped as they come.
    awaited: BTreeMap<Ticket, Peer>,
}

/// Where this process asks, and waits for answers. Streams share it.
pub(crate) struct Desk {
    pub(crate) fabric: Fabric,
    pub(crate) steward: Peer,
    inbox: Arc<Inbox>,
    /// In a domain of one process: the service, turned by whoever waits, and the right to be the only one.
    service: Option<Mutex<(Service, Layer)>>,
}

impl Desk {
    pub(crate) fn new(fabric: &Fabric) -> Result<Desk> {
        // In a domain of one process nobody else can be it.
        let alone = fabric.domain().is_none();
        let only = match alone {
            true => Some(fabric.layer(LAYER).ok_or(Error::SecondStage)?),
            false => None,
        };
        let inbox = Inbox::of(fabric);
        let room = Room::of_memory(u64::MAX);
        let serve = |only| Mutex::new((Service::steward(fabric, room), only));
        let service = only.map(serve);
        let steward = match alone {
            true => service::own(fabric),
            false => await_steward(fabric)?,
        };
        Ok(Desk {
            fabric: fabric.clone(),
            steward,
            inbox,
            service,
        })
    }

    /// A number for a question to the steward, whose answer is kept from now on until it is taken or
    /// [given up](Desk::give_up).
    pub(crate) fn ticket(&self) -> Ticket {
        self.ticket_for(self.steward)
    }

    fn ticket_for(&self, whom: Peer) -> Ticket {
        // ORDERING: Relaxed: the numbers differ, nothing else follows from them.
        let ticket = Ticket(1 + ASKED.fetch_add(1, Ordering::Relaxed));
        self.inbox.answers().awaited.insert(ticket, whom);
        ticket
    }

    /// Nobody wants the answer to this question any more.
    pub(crate) fn give_up(&self, ticket: Ticket) {
        let mut answers = self.inbox.answers();
        answers.awaited.remove(&ticket);
        answers
            .letters
            .retain(|letter| ticket_of(letter) != Some(ticket));
    }

    /// How long a question may wait at the steward.
    pub(crate) fn patience(&self) -> u64 {
        self.fabric.deadline().as_millis() as u64
    }

    /// The same, for who does not want to wait longer than `left`.
    pub(crate) fn patience_of(&self, left: Option<Duration>) -> u64 {
        let left = left.map_or(u64::MAX, |left| left.as_millis() as u64);
        self.patience().min(left)
    }

    /// Tells the steward; no answer comes.
    pub(crate) fn tell(&self, request: Request) -> Result<()> {
        service::send(&self.fabric, self.steward, &Letter::Request(request))?;
        self.serve();
        Ok(())
    }

    /// Tells the steward a question whose answer is waited for by [`Desk::answer`], perhaps more than once. One that could not be
    /// told has no answer.
    pub(crate) fn ask_later(&self, question: impl FnOnce(Ticket) -> Request) -> Result<Ticket> {
        let ticket = self.ticket();
        match self.tell(question(ticket)) {
            Ok(()) => Ok(ticket),
            Err(error) => {
                self.give_up(ticket);
                Err(error)
            }
        }
    }

    /// Asks the steward, and waits for the answer. A fault is an error.
    pub(crate) fn ask(
        &self,
        what: &'static str,
        ticket: Ticket,
        request: Request,
    ) -> Result<Answer> {
        self.ask_within(self.fabric.deadline(), what, ticket, request)
    }

    /// As [`Desk::ask`], for a question with another deadline than the fabric's.
    pub(crate) fn ask_within(
        &self,
        deadline: Duration,
        what: &'static str,
        ticket: Ticket,
        request: Request,
    ) -> Result<Answer> {
        let answer = self
            .tell(request)
            .and_then(|()| self.answer_within(deadline, what, ticket));
        if answer.is_err() {
            self.give_up(ticket);
        }
        answer
    }

    /// Waits for the answer to a question that was told before, which is kept if it comes later: after a time-out, and only then,
    /// it can be waited for again. A fault is an error.
    pub(crate) fn answer(&self, what: &'static str, ticket: Ticket) -> Result<Answer> {
        self.answer_within(self.fabric.deadline(), what, ticket)
    }

    /// As [`Desk::answer`], with another deadline than the fabric's.
    pub(crate) fn answer_within(
        &self,
        deadline: Duration,
        what: &'static str,
        ticket: Ticket,
    ) -> Result<Answer> {
        let found = self.wait(deadline, what, (self.steward, false), ticket);
        let is_open =
            |error: &Error| matches!(error, Error::Fabric(samite_fabric::Error::Timeout { .. }));
        if found.as_ref().is_err_and(|error| !is_open(error)) {
            self.give_up(ticket);
        }
        match found? {
            Letter::Answer(_, Answer::Failed(fault)) => Err(fault.into()),
            Letter::Answer(_, answer) => Ok(answer),
            other => Err(Error::Nonsense(format!("{other:?}"))),
        }
    }

    /// Asks a keeper, and waits for the bytes. The slot of a keeper that died may be that of another process by now, which
    /// knows nothing of the buffer.
    pub(crate) fn ask_keeper(
        &self,
        deadline: Duration,
        keeper: Peer,
        make: impl FnOnce(Ticket) -> KeeperAsk,
    ) -> Result<Vec<u8>> {
        let slot = PeerId(keeper.slot());
        if let Some(lost) = self.fabric.lost_life(slot, keeper.incarnation()) {
            return Err(lost.into());
        }
        let ticket = self.ticket_for(keeper);
        let answer = service::send(&self.fabric, keeper, &Letter::Ask(make(ticket)))
            .and_then(|()| self.wait(deadline, "a keeper of blocks", (keeper, true), ticket));
        match answer.inspect_err(|_| self.give_up(ticket))? {
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
            keepers.retain(|keeper| keeper.peer != self.steward);
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
            let mut peers = peers.iter();
            let info = peers.find(|info| info.peer.0 == server.peer.slot())?;
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

    /// Waits for an answer of a peer; where its slot `may_pass` to another process, it ends when that has happened.
    fn wait(
        &self,
        deadline: Duration,
        what: &'static str,
        (of, may_pass): (Peer, bool),
        ticket: Ticket,
    ) -> Result<Letter> {
        let whom = PeerId(of.slot());
        let take = || self.take(ticket);
        let lost = || match may_pass {
            true => self.fabric.lost_life(whom, of.incarnation()),
            false => None,
        };
        let deadline = deadline.saturating_add(GRACE);
        let whom: &[PeerId] = if whom == self.fabric.me() {
            &[]
        } else {
            &[whom]
        };
        let serves = self.service.is_some();
        let found = match serves || may_pass {
            // A service of this process has to work for its own answer.
            true => self
                .fabric
                .wait_stepping_within(
                    deadline,
                    what,
                    whom,
                    || {
                        self.serve();
                        take().map(Ok).or_else(|| lost().map(Err))
                    },
                    || self.inbox.answers().position(ticket).is_some(),
                )
                .flatten(),
            false => match self.give_way(take) {
                Some(letter) => Ok(letter),
                None => self.fabric.wait_until_within(deadline, what, whom, take),
            },
        };
        Ok(found?)
    }

    /// An answer that has come.
    fn take(&self, ticket: Ticket) -> Option<Letter> {
        let mut answers = self.inbox.answers();
        let at = answers.position(ticket)?;
        answers.awaited.remove(&ticket);
        answers.letters.remove(at)
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
        if let Some(service) = &self.service {
            let (service, _) = &mut *service.lock().unwrap_or_else(PoisonError::into_inner);
            self.fabric.progress();
            while service.turn() {
                self.fabric.progress();
            }
        }
    }
}

impl Inbox {
    /// That of a fabric.
    fn of(fabric: &Fabric) -> Arc<Inbox> {
        fabric.shared(LAYER, |inbox| {
            receive(fabric, inbox.clone());
            Inbox::default()
        })
    }

    /// Nobody panics with half of a change made.
    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answers {
    fn position(&self, ticket: Ticket) -> Option<usize> {
        let is_it = |letter: &Letter| ticket_of(letter) == Some(ticket);
        self.letters.iter().position(is_it)
    }
}

/// Keeps the answers that somebody waits for, of whom it asked, as long as there is a desk.
fn receive(fabric: &Fabric, inbox: Weak<Inbox>) {
    let own = fabric.incarnation();
    fabric.on(CLIENT, move |from, bytes| {
        let inbox = inbox.upgrade()?;
        let (from, letter) = service::open(from, own, bytes)?;
        let mut answers = inbox.answers();
        let asked = ticket_of(&letter).and_then(|ticket| answers.awaited.get(&ticket));
        match asked == Some(&from) {
            true => answers.letters.push_back(letter),
            false => tracing::debug!(%from, ?letter, "an answer that nobody waits for"),
        }
        None
    });
}

/// The question that a letter answers.
fn ticket_of(letter: &Letter) -> Option<Ticket> {
    match letter {
        Letter::Answer(ticket, _) => Some(*ticket),
        Letter::Kept(answer) => Some(answer.ticket),
        Letter::Request(_) | Letter::Order(_) | Letter::Ask(_) => None,
    }
}

/// The steward of a domain, which may be about to begin. One that is there has as long to answer as every peer.
pub(crate) fn await_steward(fabric: &Fabric) -> Result<Peer> {
    let deadline = fabric.deadline();
    let appear = |what, find: &dyn Fn() -> Option<Result<Peer>>| {
        let deadline = deadline.min(BEGINNING);
        match fabric.wait_stepping_within(deadline, what, &[], find, || false) {
            Ok(found) => found,
            Err(samite_fabric::Error::Timeout { .. }) => Err(Error::NoSteward),
            Err(error) => Err(error.into()),
        }
    };
    let there = || service::find_steward(fabric).map(Ok);
    let steward = appear("the steward of streams", &there)?;
    let listening = || {
        let takes = service::takes_letters(fabric, steward);
        takes.map(|takes| takes.then_some(steward)).transpose()
    };
    appear("the steward of streams", &listening)
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_fabric::Config;

    /// Who asks again and again is not to remember every question that could not be told.
    #[test]
    fn a_question_that_was_not_told_is_forgotten() {
        let fabric = Fabric::alone(Identity::by_hand("reader"), Config::default()).unwrap();
        let desk = Desk {
            inbox: Inbox::of(&fabric),
            fabric,
            // Nobody has this place.
            steward: Peer::new(7, 1),
            service: None,
        };
        for _ in 0..3 {
            let asked = desk.ask_later(|ticket| Request::Figures { ticket });
            assert!(asked.is_err(), "{asked:?}");
            let ticket = desk.ticket();
            let told = desk.ask("figures", ticket, Request::Figures { ticket });
            assert!(told.is_err(), "{told:?}");
            assert!(desk.inbox.answers().awaited.is_empty());
        }
    }
}
