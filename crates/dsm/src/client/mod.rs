//! The requests of a process, and their answers.
//!
//! # Files
//! `mod` (requests, and the server of this process) · `events` (what is told) · `words` (shared
//! memory, where no message is needed)

mod events;
mod words;

use self::events::Events;
pub(crate) use self::words::{OwnGuards, OwnersPage};
use self::words::{Pages, Words};
use crate::error::{Error, Result};
use crate::log::{Role, Writer};
use crate::protocol::{
    Answer, ChunkId, Counters, GuardId, Message, Overview, Process, Request, ServerId, Ticket,
};
use crate::service::{ChunkService, MOST_NOTES, life_of};
use crate::topology::Topology;
use samite_fabric::agent::{self, Host};
use samite_fabric::rpc::{self, Life, ServiceId};
use samite_fabric::{Fabric, Layer, Named};
use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How long the server may take beyond the time that it was given.
const GRACE: Duration = Duration::from_secs(2);

/// How long a domain may exist before its server of chunks.
const BEGINNING: Duration = Duration::from_secs(5);

/// How often a server in a process that waits looks for what comes without a message: leases that
/// end, requests that are late.
const OFTEN: Duration = Duration::from_micros(20);

/// The name of this layer of a fabric.
const LAYER: &str = "dsm";

/// What a joining process waits for, in errors.
const SERVER: &str = "the server of chunks";

/// Sends the requests of this process and waits for answers. Chunks share it.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) fabric: Fabric,
    pub(crate) log: Writer,
    pub(crate) topology: Arc<Topology>,
    /// The servers that are known, by their places.
    servers: Mutex<BTreeMap<ServerId, Life>>,
    /// The server that this process uses for the chunks of all homes.
    own_server: Option<ServerId>,
    /// Whether that server is lost: then the homes are asked.
    own_is_lost: AtomicBool,
    /// In a domain of one process, and in a unit that is a server of the topology: the server,
    /// driven by waiting threads.
    own: Option<OwnServer>,
    /// The chunks that this process has handles of.
    pub(crate) chunks: Mutex<HashMap<ChunkId, Weak<dyn Any + Send + Sync>>>,
    /// The number of locks that this process holds.
    pub(crate) locks: AtomicUsize,
    words: Mutex<Words>,
    pages: Mutex<Pages>,
    events: Mutex<Events>,
    /// Notes that go with the next message to each server: those that nobody waits for, and those
    /// that could not be sent in time.
    unsent: Mutex<BTreeMap<ServerId, Vec<Request>>>,
}

/// The server of this process.
#[derive(Debug)]
struct OwnServer(Mutex<Serving>);

#[derive(Debug)]
struct Serving {
    service: ChunkService,
    host: Host,
    /// When the server had its last turn, and the number of changes of membership then.
    served: Duration,
    changes: u64,
    /// It excludes a second server in this process.
    _only: Layer,
}

impl OwnServer {
    fn lock(&self) -> MutexGuard<'_, Serving> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request without an answer so far. Dropped, it tells the server to forget the request:
/// otherwise the server gives a guard that nobody ends.
struct Asked<'a> {
    client: &'a Client,
    server: ServerId,
    ticket: Option<Ticket>,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else {
            return;
        };
        let forget = Request::Forget { ticket };
        if std::thread::panicking() {
            // To send may run handlers, which must not panic now.
            self.client.tell_later(self.server, forget);
        } else if let Err(error) = self.client.tell(self.server, forget) {
            tracing::debug!(%error, "a request is forgotten later");
        }
    }
}

impl Client {
    pub(crate) fn new(fabric: &Fabric, topology: Arc<Topology>) -> Result<Client> {
        let unit = fabric.identity();
        let id = topology.server_of(&unit.program, unit.rank);
        // In a domain of one process there is no other server. A simulated domain has no name.
        let is_alone = fabric.domain().is_none() && agent::find_head(fabric).is_none();
        let topology = if is_alone { Arc::default() } else { topology };
        let mut servers = BTreeMap::new();
        let mut own = None;
        if is_alone || id.is_some() {
            let only = fabric.layer(LAYER).ok_or(Error::SecondDsm)?;
            let service = match is_alone {
                true => ChunkService::new(fabric),
                false => ChunkService::join(fabric, &topology)?,
            };
            own = Some(OwnServer(Mutex::new(Serving {
                service,
                host: Host::default(),
                served: Duration::ZERO,
                changes: 0,
                _only: only,
            })));
            let me = Life {
                peer: fabric.me(),
                incarnation: fabric.incarnation(),
            };
            servers.insert(id.filter(|_| !is_alone).unwrap_or_default(), me);
        }
        let own_server = match is_alone {
            true => None,
            false => id.or(topology.server_for(&unit.program, unit.rank)),
        };
        let client = Client {
            fabric: fabric.clone(),
            log: Writer::open(fabric, Role::Client)?,
            own_server,
            own_is_lost: AtomicBool::new(false),
            topology,
            servers: Mutex::new(servers),
            own,
            chunks: Mutex::default(),
            locks: AtomicUsize::new(0),
            words: Mutex::default(),
            pages: Mutex::default(),
            events: Mutex::default(),
            unsent: Mutex::default(),
        };
        let only = client.own_server.unwrap_or_default();
        client.server(only)?; // To wait for it now, rather than when it is asked first.
        Ok(client)
    }

    /// Returns this process.
    pub(crate) fn me(&self) -> Process {
        Process {
            peer: self.fabric.me(),
            incarnation: self.fabric.incarnation(),
        }
    }

    /// Returns the server that this process asks for guards of a chunk.
    pub(crate) fn near(&self, chunk: ChunkId) -> ServerId {
        // ORDERING: a server that is lost refuses what it is asked.
        let is_lost = self.own_is_lost.load(Ordering::Relaxed);
        let own = self.own_server.filter(|_| !is_lost);
        own.unwrap_or(chunk.home())
    }

    /// Returns the process of a server; waits until it has joined.
    fn server(&self, server: ServerId) -> Result<Life> {
        let servers = || self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = servers().get(&server) {
            return Ok(*known);
        }
        let life = life_of(&self.fabric, &self.topology, server)?;
        servers().insert(server, life);
        Ok(life)
    }

    /// Returns true if the server is lost that this process asks for guards of a chunk. Makes some
    /// progress, to hear of it.
    pub(crate) fn has_lost(&self, chunk: ChunkId) -> bool {
        // One that reads again and again serves others meanwhile.
        match self.own {
            Some(_) => _ = self.serve(),
            None => _ = self.fabric.progress(),
        }
        let near = self.near(chunk);
        match near == chunk.home() {
            true => self.has_lost_home(chunk),
            false => self.is_lost(near),
        }
    }

    /// Returns true if the home of a chunk is lost, also if it was started again.
    pub(crate) fn has_lost_home(&self, chunk: ChunkId) -> bool {
        let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let life = servers.get(&chunk.home()).copied();
        drop(servers);
        let is_other = life.is_some_and(|life| !chunk.is_of(life.into()));
        is_other || self.is_lost(chunk.home())
    }

    /// Returns true if the home of a chunk was started again after the chunk was created; waits
    /// until the home has joined.
    pub(crate) fn is_of_earlier_life(&self, chunk: ChunkId) -> Result<bool> {
        let life = self.server(chunk.home())?;
        Ok(!chunk.is_of(life.into()))
    }

    /// Returns the name of a server, for errors.
    pub(crate) fn server_name(&self, server: ServerId) -> String {
        self.topology.name(server).to_owned()
    }

    /// A server did not answer because it is lost: another process may take its place.
    fn loses(&self, server: ServerId, error: &Error) {
        if matches!(error, Error::Fabric(samite_fabric::Error::PeerLost { .. })) {
            let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
            servers.remove(&server);
            self.unsent().remove(&server);
            if self.own_server == Some(server) {
                tracing::warn!(
                    server = self.server_name(server),
                    "this process asks the homes of chunks, because its server is lost"
                );
                // ORDERING: as in `near`.
                self.own_is_lost.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Sends a request and waits for its answer, for `GRACE` longer than the server may take.
    pub(crate) fn ask(
        &self,
        server: ServerId,
        deadline: Duration,
        what: &'static str,
        request: &Request,
    ) -> Result<Answer> {
        let life = self.server(server)?;
        if self.unsent().keys().any(|of| *of != server) {
            // What this waits for may in turn wait for these.
            self.send_all_notes();
        }
        if let Some(own) = self.own_at(life) {
            return self.ask_here(own, server, (deadline, what), request);
        }
        if self
            .unsent()
            .get(&server)
            .is_some_and(|notes| notes.len() as u64 > MOST_NOTES / 2)
        {
            self.send_notes(server)?;
        }
        let notes = self.unsent().remove(&server).unwrap_or_default();
        let encoded = encode(&notes, Some(request));
        let called = self
            .fabric
            .call(ServiceId::CHUNKS, life, deadline, |_| encoded);
        let answer = called
            .map_err(Error::from)
            .and_then(|call| self.answered(call, server, deadline, what));
        if answer.is_err() && !notes.is_empty() {
            // It is unknown whether they have arrived, and arriving twice changes nothing.
            self.unsent().entry(server).or_default().extend(notes);
        }
        let answer = answer.inspect_err(|error| self.loses(server, error))?;
        match postcard::take_from_bytes(&answer) {
            Ok((answer, [])) => Ok(answer),
            _ => Err(Error::Nonsense(format!("{} bytes", answer.len()))),
        }
    }

    /// Returns the server of this process, if that is the one.
    fn own_at(&self, life: Life) -> Option<&OwnServer> {
        let me = (self.fabric.me(), self.fabric.incarnation());
        let own = self.own.as_ref();
        own.filter(|_| (life.peer, life.incarnation) == me)
    }

    /// Asks the server of this process: nothing is encoded or sent.
    fn ask_here(
        &self,
        own: &OwnServer,
        server: ServerId,
        (deadline, what): (Duration, &'static str),
        request: &Request,
    ) -> Result<Answer> {
        let notes = self.unsent().remove(&server).unwrap_or_default();
        let ticket = own.lock().service.ask_here(notes, request.clone());
        let mut asked = Asked {
            client: self,
            server,
            ticket: Some(ticket),
        };
        let take = || own.lock().service.take_here(ticket);
        let answer = match take() {
            Some(answer) => {
                self.serve(); // Others wait for it, too.
                answer
            }
            None => {
                let has_more = Cell::new(false);
                let look = || {
                    has_more.set(self.serve());
                    take()
                };
                let deadline = deadline.saturating_add(GRACE);
                (self.fabric).wait_stepping_within(deadline, what, &[], look, || has_more.get())?
            }
        };
        asked.ticket = None;
        Ok(answer)
    }

    fn answered(
        &self,
        mut call: rpc::Call,
        server: ServerId,
        deadline: Duration,
        what: &'static str,
    ) -> Result<Vec<u8>> {
        let mut asked = Asked {
            client: self,
            server,
            ticket: Some(Ticket(call.id())),
        };
        let deadline = deadline.saturating_add(GRACE);
        let answer = match self.own {
            Some(_) => call.wait_stepping(deadline, what, || self.serve()),
            None => call.wait_yielding(deadline, what),
        }?;
        asked.ticket = None;
        Ok(answer)
    }

    /// Sends a note, which has no answer; later, if it cannot be sent now.
    pub(crate) fn tell(&self, server: ServerId, note: Request) -> Result<()> {
        self.tell_later(server, note);
        self.send_notes(server)
    }

    /// Sends a note with the next message.
    pub(crate) fn tell_later(&self, server: ServerId, note: Request) {
        self.unsent().entry(server).or_default().push(note);
    }

    /// Ends a guard or a draft that a server has given; later, if that cannot be told now.
    pub(crate) fn release(&self, server: ServerId, chunk: ChunkId, guard: GuardId) {
        let note = Request::Release { chunk, guard };
        if std::thread::panicking() {
            self.tell_later(server, note);
        } else if let Err(error) = self.tell(server, note) {
            // The server ends the guard when it learns of the end of this process.
            tracing::debug!(%error, "a guard is released later");
        }
    }

    /// As [`Client::release`], with the next message.
    pub(crate) fn release_later(&self, server: ServerId, chunk: ChunkId, guard: GuardId) {
        self.tell_later(server, Request::Release { chunk, guard });
    }

    fn unsent(&self) -> MutexGuard<'_, BTreeMap<ServerId, Vec<Request>>> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the notes that wait for a message to that server.
    pub(crate) fn send_notes(&self, server: ServerId) -> Result<()> {
        let notes = self.unsent().remove(&server).unwrap_or_default();
        if notes.is_empty() {
            return Ok(());
        }
        self.send_these(server, notes)?;
        self.serve();
        Ok(())
    }

    fn send_these(&self, server: ServerId, notes: Vec<Request>) -> Result<()> {
        let life = self.server(server);
        if let Some(own) = life.as_ref().ok().and_then(|life| self.own_at(*life)) {
            own.lock().service.note_here(notes);
            return Ok(());
        }
        let deadline = self.fabric.deadline();
        let encoded = encode(&notes, None);
        let sent = life.and_then(|life| {
            let sent = self
                .fabric
                .note(ServiceId::CHUNKS, life, deadline, &encoded);
            sent.map_err(Error::from)
        });
        if let Err(error) = &sent {
            self.unsent().entry(server).or_default().extend(notes);
            self.loses(server, error);
        }
        sent
    }

    /// Sends the notes that wait for a message.
    pub(crate) fn send_all_notes(&self) {
        let servers: Vec<ServerId> = self.unsent().keys().copied().collect();
        for server in servers {
            if let Err(error) = self.send_notes(server) {
                tracing::debug!(%error, "notes wait");
            }
        }
    }

    /// Returns what all servers have done so far.
    pub(crate) fn counters(&self) -> Result<Counters> {
        let deadline = self.fabric.deadline();
        let mut all = Counters::default();
        for server in self.topology.servers() {
            match self.ask(server, deadline, "the counters of chunks", &Request::Count)? {
                Answer::Counted(counters) => all.add(&counters),
                other => return Err(Error::Nonsense(format!("{other:?}"))),
            }
        }
        Ok(all)
    }

    /// Removes the chunks of all homes whose names begin with a text. A home that is lost has none.
    ///
    /// # Errors
    /// The first one of any home: the others have removed theirs.
    pub(crate) fn free_all(&self, prefix: &str) -> Result<()> {
        let deadline = self.fabric.deadline();
        let request = Request::FreeAll {
            prefix: prefix.to_owned(),
        };
        let free_at = |server| loop {
            match self.ask(server, deadline, "the end of chunks", &request)? {
                Answer::FreedSome { more: true } => {}
                Answer::FreedSome { more: false } => return Ok(()),
                other => return Err(Error::Nonsense(format!("{other:?}"))),
            }
        };
        let freed = self.topology.servers().map(|server| match free_at(server) {
            Err(Error::Fabric(samite_fabric::Error::PeerLost { .. })) => Ok(()),
            freed => freed,
        });
        // All are asked, not only those before the first error.
        freed.fold(Ok(()), Result::and)
    }

    /// Returns what its home says of a chunk, or what the servers say of the most active ones.
    pub(crate) fn overview(&self, chunk: Option<ChunkId>, deadline: Duration) -> Result<Overview> {
        let servers = match chunk {
            Some(chunk) => vec![chunk.home()],
            None => self.topology.servers().collect(),
        };
        let (request, mut all) = (Request::Overview { chunk }, Overview::default());
        for server in servers {
            match self.ask(server, deadline, "an overview of chunks", &request)? {
                Answer::Overview(overview) => all.add(overview),
                other => return Err(Error::Nonsense(format!("{other:?}"))),
            }
        }
        for server in std::mem::take(&mut all.servers) {
            // One that is lost, or does not answer, has nothing to say.
            if chunk.is_none()
                && self.own.is_none()
                && !self.knows(server)
                && let Ok(overview) = self.overview_of(server.into(), deadline, &request)
            {
                all.add(overview);
            }
        }
        all.servers.clear();
        Ok(all)
    }

    /// Returns true if a process is a server of this process's topology.
    fn knows(&self, server: Process) -> bool {
        let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        servers.values().any(|life| Process::from(*life) == server)
    }

    /// Asks a server of another topology, which the agent knows of: a process beside a job, without
    /// the job's settings, sees all of its chunks.
    fn overview_of(&self, server: Life, deadline: Duration, request: &Request) -> Result<Overview> {
        let (service, encoded) = (ServiceId::CHUNKS, encode(&[], Some(request)));
        let mut call = self.fabric.call(service, server, deadline, |_| encoded)?;
        match postcard::from_bytes(&call.wait(deadline, "an overview of chunks")?) {
            Ok(Answer::Overview(overview)) => Ok(overview),
            other => Err(Error::Nonsense(format!("{other:?}"))),
        }
    }

    /// Returns a process as errors name it.
    pub(crate) fn named(&self, process: Process) -> Named<Process> {
        let name = self.fabric.name_of(process.peer, Some(process.incarnation));
        Named::new(process, name)
    }

    /// Returns true if this process holds a lock.
    pub(crate) fn has_locks(&self) -> bool {
        // ORDERING: of the thread that has the lock; it is only a hint for others.
        self.locks.load(Ordering::Relaxed) > 0
    }

    /// Gives the server of this process one turn, if there is one, in a call that sends nothing.
    pub(crate) fn serve_if_server(&self) {
        if self.own.is_some() {
            self.serve();
        }
    }

    /// Gives the server of this process one turn, if there is one. Returns whether there was
    /// anything to do.
    fn serve(&self) -> bool {
        self.own.as_ref().is_some_and(|own| {
            let own = &mut *own.lock();
            self.fabric.progress();
            let (now, changes) = (self.fabric.now(), self.fabric.changes());
            let is_soon = now.saturating_sub(own.served) < OFTEN && own.changes == changes;
            if is_soon && !own.service.has_work() {
                return false;
            }
            (own.served, own.changes) = (now, changes);
            own.host.turn(&self.fabric, &mut [&mut own.service])
        })
    }
}

fn encode(notes: &[Request], request: Option<&Request>) -> Vec<u8> {
    let message = Message { notes, request };
    postcard::to_stdvec(&message).expect("plain data are encodable")
}

/// Finds the server of a domain, which may be about to start.
pub(crate) fn await_server(fabric: &Fabric) -> Result<Life> {
    use samite_fabric::Error::{NoHandler, Timeout};
    let deadline = fabric.deadline();
    let find = || agent::find_head(fabric);
    let within = deadline.min(BEGINNING);
    let server = match fabric.wait_stepping_within(within, SERVER, &[], find, || false) {
        Err(Timeout { .. }) => return Err(Error::NoServer),
        found => found?,
    };
    // An empty request is answered as soon as there is a service.
    let mut hello = fabric.call(ServiceId::CHUNKS, server, deadline, |_| Vec::new())?;
    match hello.wait(deadline, SERVER) {
        Err(NoHandler { .. }) => Err(Error::NoServer),
        answered => Ok(answered.map(|_| server)?),
    }
}

/// Returns a duration in whole milliseconds, at least one unless it is zero.
pub(crate) fn millis(duration: Duration) -> u64 {
    let whole = u64::try_from(duration.as_nanos().div_ceil(1_000_000));
    whole.unwrap_or(u64::MAX)
}
