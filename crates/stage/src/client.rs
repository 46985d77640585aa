//! The client side of a writing or reading process: its requests and their answers.

use crate::clock::millis;
use crate::protocol::{self, Answer, BlockStoreInfo, Fault, Peer, Request, Ticket};
use crate::service::{self, BlockStoreAnswer, BlockStoreRequest, Capacity, Staging, ToStore, life};
use crate::{Error, Result};
use samite_fabric::agent;
use samite_fabric::rpc::{Call, ServiceId};
use samite_fabric::{Fabric, Identity, Layer, Named, PeerInfo};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// How long the coordinator may take beyond the timeout that it was given.
const GRACE: Duration = Duration::from_secs(2);

/// How long to wait at least for room for one of several requests.
const BRIEF: Duration = Duration::from_millis(1);

/// How long a domain may exist before its coordinator, and one staging server before the others.
pub(crate) const BEGINNING: Duration = Duration::from_secs(5);

/// The time between two requests for servers that have not joined yet, at first and at last.
const PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// The name of stages among the layers of a fabric.
const LAYER: &str = "stage";

/// What a joining process waits for, in errors.
pub(crate) const COORDINATOR: &str = "the coordinator of streams";

/// Sends the requests of this process and waits for answers. Streams share it.
pub(crate) struct Client {
    pub(crate) fabric: Fabric,
    pub(crate) coordinator: Peer,
    /// In a domain of one process: the services, driven by waiting threads, and the layer that
    /// excludes a second instance.
    service: Option<Mutex<(Staging, Layer)>>,
    /// The thread that made the first request, and whether the coordinator knows of others.
    first_thread: OnceLock<ThreadId>,
    has_told: AtomicBool,
    /// The run of the coordinator, once it was asked for.
    run: OnceLock<u64>,
}

impl Client {
    pub(crate) fn new(fabric: &Fabric) -> Result<Client> {
        // In a domain of one process there is no other coordinator. A simulated domain has no name.
        let service = match (fabric.domain(), service::find_coordinator(fabric)) {
            (None, None) => {
                let only = fabric.layer(LAYER).ok_or(Error::SecondStage)?;
                let service = Staging::new(fabric, Capacity::of_memory(u64::MAX));
                Some(Mutex::new((service, only)))
            }
            _ => None,
        };
        let coordinator = match service {
            Some(_) => service::own(fabric),
            None => await_coordinator(fabric)?,
        };
        Ok(Client {
            fabric: fabric.clone(),
            coordinator,
            service,
            first_thread: OnceLock::new(),
            has_told: AtomicBool::new(false),
            run: OnceLock::new(),
        })
    }

    /// Returns how long a request may wait at the coordinator, in milliseconds.
    pub(crate) fn timeout(&self) -> u64 {
        millis(self.fabric.deadline())
    }

    /// As [`Client::timeout`], but at most `left`.
    pub(crate) fn timeout_of(&self, left: Option<Duration>) -> u64 {
        let left = left.map_or(u64::MAX, millis);
        self.timeout().min(left)
    }

    /// Sends the coordinator a note, which has no answer.
    pub(crate) fn tell(&self, request: Request) -> Result<()> {
        let bytes = protocol::encode(&request);
        let deadline = self.fabric.deadline();
        self.fabric.note(
            ServiceId::COORDINATOR,
            life(self.coordinator),
            deadline,
            &bytes,
        )?;
        self.serve();
        Ok(())
    }

    /// Sends the coordinator a request. [`Client::answer`] waits for the answer, perhaps more than
    /// once. Dropping the call forgets it.
    pub(crate) fn request_later(&self, question: impl FnOnce(Ticket) -> Request) -> Result<Call> {
        self.tell_of_threads()?;
        let encode = |id| protocol::encode(&question(Ticket(id)));
        self.call(ServiceId::COORDINATOR, self.coordinator, encode)
    }

    /// Tells the coordinator if several threads make requests: it must not conclude from the wait
    /// of one that this process cannot write or read. A failed attempt is repeated before the next
    /// request of such a thread.
    fn tell_of_threads(&self) -> Result<()> {
        let thread = std::thread::current().id();
        let is_first = *self.first_thread.get_or_init(|| thread) == thread;
        // ORDERING: pairs with the store below: the note was sent before the request of a thread
        // that sees it. Threads that do not see it tell again, which changes nothing.
        if !is_first && !self.has_told.load(Ordering::Acquire) {
            self.tell(Request::Threads)?;
            // ORDERING: pairs with the load above.
            self.has_told.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn call(
        &self,
        service: ServiceId,
        whom: Peer,
        encode: impl FnOnce(u64) -> Vec<u8>,
    ) -> Result<Call> {
        self.call_within(self.fabric.deadline(), service, whom, encode)
    }

    /// As [`Client::call`], but waits only for so long for room to send.
    fn call_within(
        &self,
        deadline: Duration,
        service: ServiceId,
        whom: Peer,
        encode: impl FnOnce(u64) -> Vec<u8>,
    ) -> Result<Call> {
        let call = self.fabric.call(service, life(whom), deadline, encode)?;
        self.serve();
        Ok(call)
    }

    /// Sends the coordinator a request and waits for the answer. A fault is an error.
    pub(crate) fn request(
        &self,
        what: &'static str,
        question: impl FnOnce(Ticket) -> Request,
    ) -> Result<Answer> {
        self.request_within(self.fabric.deadline(), what, question)
    }

    /// As [`Client::request`], for a request that opens something. If the answer does not come in
    /// time, the coordinator is told to undo it: nobody else could close what it opens.
    pub(crate) fn open(
        &self,
        what: &'static str,
        question: impl FnOnce(Ticket) -> Request,
    ) -> Result<Answer> {
        let mut call = self.request_later(question)?;
        let answer = self.answer(what, &mut call);
        if matches!(&answer, Err(Error::Fabric(error)) if error.is_given_up()) {
            let ticket = Ticket(call.id());
            // If the message does not arrive, the coordinator learns of the end of this process.
            let _ = self.tell(Request::Forget { ticket });
        }
        answer
    }

    /// As [`Client::request`], with another deadline than the fabric's.
    pub(crate) fn request_within(
        &self,
        deadline: Duration,
        what: &'static str,
        question: impl FnOnce(Ticket) -> Request,
    ) -> Result<Answer> {
        let mut call = self.request_later(question)?;
        self.answer_within(deadline, what, &mut call)
    }

    /// Waits for the answer to an earlier request. It may be called again only after a timeout. A
    /// fault is an error.
    pub(crate) fn answer(&self, what: &'static str, call: &mut Call) -> Result<Answer> {
        self.answer_within(self.fabric.deadline(), what, call)
    }

    /// As [`Client::answer`], with another deadline than the fabric's.
    pub(crate) fn answer_within(
        &self,
        deadline: Duration,
        what: &'static str,
        call: &mut Call,
    ) -> Result<Answer> {
        match decoded(&self.wait(deadline, what, call)?)? {
            Answer::Failed(mut fault) => {
                // The coordinator knows the names of block stores only.
                if let Fault::RankTaken { peer, .. } = &mut fault {
                    *peer = self.named(peer.id);
                }
                Err(fault.into())
            }
            answer => Ok(answer),
        }
    }

    /// Sends a request to a block store and waits for the bytes. If the block store died, another
    /// process may have its slot by now, and does not know the buffer.
    pub(crate) fn request_block_store(
        &self,
        deadline: Duration,
        block_store: Peer,
        ask: BlockStoreRequest,
    ) -> Result<Vec<u8>> {
        let encode = |_| protocol::encode(&ToStore::Ask(ask));
        let mut call = self.call(ServiceId::BLOCK_STORE, block_store, encode)?;
        let answer = self.wait(deadline, "a block store", &mut call)?;
        let answer = decoded::<BlockStoreAnswer>(&answer)?;
        answer.map_err(|why| Error::BlockStore {
            block_store: self.named(block_store),
            why,
        })
    }

    /// Sends a request to each of these block stores, and waits for all answers together. One that
    /// has no room for a request does not use up the time of the others. `None`
    /// for a block store that does not answer within `timeout`, or refuses.
    pub(crate) fn request_block_stores(
        &self,
        timeout: Duration,
        block_stores: impl Iterator<Item = Peer>,
        ask: &BlockStoreRequest,
    ) -> Vec<Option<Vec<u8>>> {
        let began = Instant::now();
        let encode = |_| protocol::encode(&ToStore::Ask(ask.clone()));
        let block_stores: Vec<Peer> = block_stores.collect();
        let each = (timeout / (2 * block_stores.len().max(1) as u32)).max(BRIEF);
        let calls: Vec<Result<Call>> = block_stores
            .into_iter()
            .map(|store| self.call_within(each, ServiceId::BLOCK_STORE, store, encode))
            .collect();
        let answer = |call: Result<Call>| {
            let left = timeout.saturating_sub(began.elapsed());
            let answer = self.wait_for(left, "a block store", &mut call.ok()?).ok()?;
            decoded::<BlockStoreAnswer>(&answer).ok()?.ok()
        };
        calls.into_iter().map(answer).collect()
    }

    /// Returns the number of the coordinator's run.
    pub(crate) fn run(&self) -> Result<u64> {
        if let Some(run) = self.run.get() {
            return Ok(*run);
        }
        match self.request("the run of the domain", |ticket| Request::Run { ticket })? {
            Answer::Run { run } => Ok(*self.run.get_or_init(|| run)),
            other => Err(Error::Nonsense(format!("{other:?}"))),
        }
    }

    /// Returns a block store as errors name it.
    pub(crate) fn named(&self, block_store: Peer) -> Named<Peer> {
        let (peer, life) = (block_store.id(), Some(block_store.incarnation()));
        Named::new(block_store, self.fabric.name_of(peer, life))
    }

    /// Waits for the staging servers of the domain: all ranks of each program of which one has
    /// joined.
    ///
    /// # Errors
    /// No server joins in time.
    pub(crate) fn await_servers(&self, stream: &str) -> Result<Vec<BlockStoreInfo>> {
        let begin = Instant::now();
        let (deadline, mut pause) = (self.fabric.deadline(), PAUSE.0);
        loop {
            let answer = self.request("the staging servers", |ticket| Request::BlockStores {
                ticket,
            })?;
            let Answer::BlockStores { mut block_stores } = answer else {
                return Err(Error::Nonsense(format!("{answer:?}")));
            };
            let peers = self.fabric.peers();
            block_stores.retain(|store| store.peer != self.coordinator && is_server(store, &peers));
            let waited = begin.elapsed();
            if are_all(&block_stores, &peers)
                || !block_stores.is_empty() && waited >= deadline.min(BEGINNING)
            {
                return Ok(block_stores);
            }
            if waited >= deadline {
                return Err(Error::NoServers {
                    stream: stream.to_owned(),
                });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    fn wait(&self, deadline: Duration, what: &'static str, call: &mut Call) -> Result<Vec<u8>> {
        self.wait_for(deadline.saturating_add(GRACE), what, call)
    }

    fn wait_for(&self, deadline: Duration, what: &'static str, call: &mut Call) -> Result<Vec<u8>> {
        if self.service.is_some() {
            return Ok(call.wait_stepping(deadline, what, || self.serve())?);
        }
        Ok(call.wait_yielding(deadline, what)?)
    }

    /// Gives the services of this process one turn, if there are any. Returns whether there was
    /// anything to do. A waiting thread repeats it up to its deadline: a turn may allocate only a
    /// part of a large step's memory.
    fn serve(&self) -> bool {
        self.service.as_ref().is_some_and(|service| {
            let (service, _) = &mut *service.lock().unwrap_or_else(PoisonError::into_inner);
            self.fabric.progress();
            service.turn()
        })
    }
}

/// Returns the process that keeps a block store, if it is among these peers: another process may
/// have its number by now.
fn process_of<'p>(store: &BlockStoreInfo, peers: &'p [PeerInfo]) -> Option<&'p PeerInfo> {
    let life = (store.peer.id(), store.peer.incarnation());
    let mut peers = peers.iter();
    peers.find(|info| (info.peer, info.incarnation) == life)
}

/// Returns whether a block store is that of a staging server. Those of agents are not.
fn is_server(store: &BlockStoreInfo, peers: &[PeerInfo]) -> bool {
    process_of(store, peers).is_some_and(|info| !agent::is_host(info))
}

/// Returns true if, for each program with a server, all ranks have joined.
fn are_all(servers: &[BlockStoreInfo], peers: &[PeerInfo]) -> bool {
    let processes = servers.iter().map(|server| process_of(server, peers));
    let known: Vec<&Identity> = processes.flatten().map(|info| &info.identity).collect();
    let same =
        |one: &Identity, other: &Identity| (&one.job, &one.program) == (&other.job, &other.program);
    let is_whole = |one: &&Identity| {
        let there = known.iter().filter(|other| same(one, other)).count();
        there >= one.size as usize
    };
    !known.is_empty() && known.len() == servers.len() && known.iter().all(is_whole)
}

/// Decodes an answer.
fn decoded<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8]) -> Result<T> {
    let nonsense = || Error::Nonsense(format!("an answer of {} bytes", bytes.len()));
    protocol::decode(bytes).ok_or_else(nonsense)
}

/// Finds the coordinator of a domain, which may be about to start. A running one has the usual
/// deadline to answer.
pub(crate) fn await_coordinator(fabric: &Fabric) -> Result<Peer> {
    use samite_fabric::Error::{NoHandler, Timeout};
    let deadline = fabric.deadline();
    let find = || service::find_coordinator(fabric);
    let within = deadline.min(BEGINNING);
    let coordinator = match fabric.wait_stepping_within(within, COORDINATOR, &[], find, || false) {
        Err(Timeout { .. }) => return Err(Error::NoCoordinator),
        found => found?,
    };
    // An empty request is answered as soon as there is a service.
    let mut hello = fabric.call(ServiceId::COORDINATOR, life(coordinator), deadline, |_| {
        Vec::new()
    })?;
    match hello.wait(deadline, COORDINATOR) {
        Err(NoHandler { .. }) => Err(Error::NoCoordinator),
        answered => Ok(answered.map(|_| coordinator)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_fabric::{Config, PeerId};

    /// A coordinator that was not told of a second thread takes its wait for a circle.
    #[test]
    fn a_note_of_threads_that_was_not_sent_is_sent_again() {
        let fabric = Fabric::alone(Identity::by_hand("alone"), Config::default()).unwrap();
        let mut client = Client::new(&fabric).unwrap();
        let ask = |client: &Client| {
            let asked = client.request("figures", |ticket| Request::Figures { ticket });
            (asked.is_ok(), client.has_told.load(Ordering::Acquire))
        };
        assert_eq!(ask(&client), (true, false));
        let coordinator = client.coordinator;
        let gone = Peer::new(coordinator.id().0, coordinator.incarnation() + 1);
        for (whom, expected) in [(gone, (false, false)), (coordinator, (true, true))] {
            client.coordinator = whom;
            let client = &client;
            let other = std::thread::scope(|threads| threads.spawn(|| ask(client)).join());
            assert_eq!(other.unwrap(), expected);
        }
    }

    /// A server that died, and whose number another process has by now, is neither counted nor
    /// used.
    #[test]
    fn servers_are_told_from_those_that_have_their_numbers_now() {
        let server = |rank: u32, incarnation: u32| PeerInfo {
            peer: PeerId(7 + rank),
            incarnation,
            identity: Identity {
                program: "servers".into(),
                rank,
                size: 2,
                ..Identity::by_hand("servers")
            },
            pid: 1,
        };
        let store = |rank: u32, incarnation: u32| BlockStoreInfo {
            peer: Peer::new(7 + rank, incarnation),
            capacity: 1,
        };
        let peers = [server(0, 3), server(1, 1)];
        assert!(is_server(&store(0, 3), &peers) && !is_server(&store(0, 2), &peers));
        assert!(are_all(&[store(0, 3), store(1, 1)], &peers));
        assert!(!are_all(&[store(0, 2), store(1, 1)], &peers));
        assert!(!are_all(&[store(0, 3)], &peers));
    }
}
