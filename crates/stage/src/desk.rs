//! One process that writes or reads: its questions, and the answers to them.

use crate::protocol::{self, Answer, KeeperInfo, Peer, Request, Ticket};
use crate::service::{self, KeeperAnswer, KeeperAsk, Room, Staging, ToStore, life};
use crate::{Error, Result};
use samite_fabric::rpc::{Call, Service as Number};
use samite_fabric::{Fabric, Identity, Layer};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What the steward may need beyond the patience that it was given.
const GRACE: Duration = Duration::from_secs(2);

/// How long a domain may be there before its steward is, and one staging server before the others.
const BEGINNING: Duration = Duration::from_secs(5);

/// Between two questions for servers that are not there yet.
const PAUSE: Duration = Duration::from_millis(2);

/// How long a wait gives its processor away before it rests as the fabric does.
const GIVING_WAY: Duration = Duration::from_micros(200);

/// What stages are called among the layers of a fabric.
const LAYER: &str = "stage";

/// What a process that begins waits for.
const STEWARD: &str = "the steward of streams";

/// Where this process asks, and waits for answers. Streams share it.
pub(crate) struct Desk {
    pub(crate) fabric: Fabric,
    pub(crate) steward: Peer,
    /// In a domain of one process: the service, turned by whoever waits, and the right to be the only one.
    service: Option<Mutex<(Staging, Layer)>>,
}

impl Desk {
    pub(crate) fn new(fabric: &Fabric) -> Result<Desk> {
        // In a domain of one process nobody else can be it; a simulated one has no name.
        let service = match (fabric.domain(), service::find_steward(fabric)) {
            (None, None) => {
                let only = fabric.layer(LAYER).ok_or(Error::SecondStage)?;
                let service = Staging::new(fabric, Room::of_memory(u64::MAX));
                Some(Mutex::new((service, only)))
            }
            _ => None,
        };
        let steward = match service {
            Some(_) => service::own(fabric),
            None => await_steward(fabric)?,
        };
        Ok(Desk {
            fabric: fabric.clone(),
            steward,
            service,
        })
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
        let bytes = protocol::encode(&request);
        let deadline = self.fabric.deadline();
        self.fabric
            .note(Number::COORDINATOR, life(self.steward), deadline, &bytes)?;
        self.serve();
        Ok(())
    }

    /// Asks the steward a question whose answer is waited for by [`Desk::answer`], perhaps more than once. One that is
    /// dropped is forgotten.
    pub(crate) fn ask_later(&self, question: impl FnOnce(Ticket) -> Request) -> Result<Call> {
        let encode = |id| protocol::encode(&question(Ticket(id)));
        self.call(Number::COORDINATOR, self.steward, encode)
    }

    fn call(
        &self,
        service: Number,
        whom: Peer,
        encode: impl FnOnce(u64) -> Vec<u8>,
    ) -> Result<Call> {
        let deadline = self.fabric.deadline();
        let call = self.fabric.call(service, life(whom), deadline, encode)?;
        self.serve();
        Ok(call)
    }

    /// Asks the steward, and waits for the answer. A fault is an error.
    pub(crate) fn ask(
        &self,
        what: &'static str,
        question: impl FnOnce(Ticket) -> Request,
    ) -> Result<Answer> {
        self.ask_within(self.fabric.deadline(), what, question)
    }

    /// As [`Desk::ask`], for a question with another deadline than the fabric's.
    pub(crate) fn ask_within(
        &self,
        deadline: Duration,
        what: &'static str,
        question: impl FnOnce(Ticket) -> Request,
    ) -> Result<Answer> {
        let mut call = self.ask_later(question)?;
        self.answer_within(deadline, what, &mut call)
    }

    /// Waits for the answer to a question that was asked before: after a time-out, and only then, it can be waited for
    /// again. A fault is an error.
    pub(crate) fn answer(&self, what: &'static str, call: &mut Call) -> Result<Answer> {
        self.answer_within(self.fabric.deadline(), what, call)
    }

    /// As [`Desk::answer`], with another deadline than the fabric's.
    pub(crate) fn answer_within(
        &self,
        deadline: Duration,
        what: &'static str,
        call: &mut Call,
    ) -> Result<Answer> {
        match decoded(&self.wait(deadline, what, call)?)? {
            Answer::Failed(fault) => Err(fault.into()),
            answer => Ok(answer),
        }
    }

    /// Asks a keeper, and waits for the bytes. The slot of a keeper that died may be that of another process by now, which
    /// knows nothing of the buffer.
    pub(crate) fn ask_keeper(
        &self,
        deadline: Duration,
        keeper: Peer,
        ask: KeeperAsk,
    ) -> Result<Vec<u8>> {
        let encode = |_| protocol::encode(&ToStore::Ask(ask));
        let mut call = self.call(Number::BLOCK_STORE, keeper, encode)?;
        let answer = self.wait(deadline, "a keeper of blocks", &mut call)?;
        decoded::<KeeperAnswer>(&answer)?.map_err(Error::Keeper)
    }

    /// The staging servers of the domain: all ranks of a program of which one is there.
    ///
    /// # Errors
    /// None comes in time.
    pub(crate) fn await_servers(&self, stream: &str) -> Result<Vec<KeeperInfo>> {
        let begin = Instant::now();
        let deadline = self.fabric.deadline();
        loop {
            let answer = self.ask("the staging servers", |ticket| Request::Keepers { ticket })?;
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
            let info = peers.find(|info| info.peer == server.peer.id())?;
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

    fn wait(&self, deadline: Duration, what: &'static str, call: &mut Call) -> Result<Vec<u8>> {
        let deadline = deadline.saturating_add(GRACE);
        if self.service.is_some() {
            return Ok(call.wait_stepping(deadline, what, || self.serve())?);
        }
        match self.give_way(call) {
            Some(answer) => Ok(answer?),
            None => Ok(call.wait(deadline, what)?),
        }
    }

    /// Looks for an answer without spinning: the steward has no processor of its own, and where the units of a job fill the
    /// machine, one that spins keeps it from answering.
    fn give_way(&self, call: &mut Call) -> Option<samite_fabric::Result<Vec<u8>>> {
        let begin = Instant::now();
        loop {
            self.fabric.progress();
            match call.take() {
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

/// What an answer says.
fn decoded<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8]) -> Result<T> {
    let nonsense = || Error::Nonsense(format!("an answer of {} bytes", bytes.len()));
    protocol::decode(bytes).ok_or_else(nonsense)
}

/// The steward of a domain, which may be about to begin. One that is there has as long to answer as every peer.
pub(crate) fn await_steward(fabric: &Fabric) -> Result<Peer> {
    use samite_fabric::Error::{NoHandler, Timeout};
    let deadline = fabric.deadline();
    let find = || service::find_steward(fabric);
    let within = deadline.min(BEGINNING);
    let steward = match fabric.wait_stepping_within(within, STEWARD, &[], find, || false) {
        Err(Timeout { .. }) => return Err(Error::NoSteward),
        found => found?,
    };
    // An empty request is answered as soon as there is a service.
    let mut hello = fabric.call(Number::COORDINATOR, life(steward), deadline, |_| Vec::new())?;
    match hello.wait(deadline, STEWARD) {
        Err(NoHandler { .. }) => Err(Error::NoSteward),
        answered => Ok(answered.map(|_| steward)?),
    }
}
