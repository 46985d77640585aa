//! The requests of a process, and their answers.

use crate::error::{Error, Result};
use crate::protocol::{
    Answer, ChunkId, Counters, GuardId, Message, Policy, Process, Request, SubscriptionId, Ticket,
    Told, Version,
};
use crate::service::{ChunkService, LINE, WORDS};
use samite_fabric::agent::{self, Host};
use samite_fabric::rpc::{self, Life, ServiceId};
use samite_fabric::{Fabric, Layer, Named, Segment, SegmentKey};
use samite_mem::SharedBytes;
use std::any::Any;
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// How long the server may take beyond the time that it was given.
const GRACE: Duration = Duration::from_secs(2);

/// How long a domain may exist before its server of chunks.
const BEGINNING: Duration = Duration::from_secs(5);

/// How long a thread that waits for an event yields its processor before it waits as usual.
const YIELDING: Duration = Duration::from_micros(200);

/// The most bytes of events that wait to be taken. Servers tell of no more than a few before they
/// are taken.
const INBOX: u64 = 64 << 20;

/// The number of the next subscription of this process.
static NEXT_SUBSCRIPTION: AtomicU64 = AtomicU64::new(0);

/// The name of this layer of a fabric.
const LAYER: &str = "dsm";

/// What a joining process waits for, in errors.
const SERVER: &str = "the server of chunks";

/// Sends the requests of this process and waits for answers. Chunks share it.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) fabric: Fabric,
    server: Life,
    /// In a domain of one process: the server, driven by waiting threads, and the layer that
    /// excludes a second one.
    own: Option<Mutex<(ChunkService, Host, Layer)>>,
    /// The chunks that this process has handles of.
    pub(crate) chunks: Mutex<HashMap<ChunkId, Weak<dyn Any + Send + Sync>>>,
    words: Mutex<Words>,
    events: Mutex<Events>,
    /// Notes that go with the next message: those that nobody waits for, and those that could not
    /// be sent in time.
    unsent: Mutex<Vec<Request>>,
}

/// What the server has told, by subscription.
#[derive(Debug, Default)]
struct Events {
    /// `None` before the first subscription.
    inbox: Option<rpc::Server>,
    told: HashMap<SubscriptionId, VecDeque<Told>>,
}

/// The words in which this process counts read guards that it takes itself: one for each chunk that
/// it has ever opened.
#[derive(Debug, Default)]
struct Words {
    segments: Vec<Segment>,
    numbers: HashMap<ChunkId, u64>,
}

/// The two words by which this process takes read guards of a chunk without a message.
#[derive(Debug)]
pub(crate) struct OwnGuards {
    /// The number of such guards that this process has.
    pub(crate) count: SharedBytes,
    /// Written by the server: whether there may be any, and of which version.
    pub(crate) open: SharedBytes,
}

/// A request without an answer so far. Dropped, it tells the server to forget the request:
/// otherwise the server gives a guard that nobody ends.
struct Asked<'a> {
    client: &'a Client,
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
            self.client.tell_later(forget);
        } else if let Err(error) = self.client.tell(forget) {
            tracing::debug!(%error, "a request is forgotten later");
        }
    }
}

impl Client {
    pub(crate) fn new(fabric: &Fabric) -> Result<Client> {
        // In a domain of one process there is no other server. A simulated domain has no name.
        let own = match (fabric.domain(), agent::find_host(fabric)) {
            (None, None) => {
                let only = fabric.layer(LAYER).ok_or(Error::SecondDsm)?;
                Some(Mutex::new((
                    ChunkService::new(fabric),
                    Host::default(),
                    only,
                )))
            }
            _ => None,
        };
        let server = match own {
            Some(_) => Life {
                peer: fabric.me(),
                incarnation: fabric.incarnation(),
            },
            None => await_server(fabric)?,
        };
        Ok(Client {
            fabric: fabric.clone(),
            server,
            own,
            chunks: Mutex::default(),
            words: Mutex::default(),
            events: Mutex::default(),
            unsent: Mutex::default(),
        })
    }

    /// Sends a request and waits for its answer, for `GRACE` longer than the server may take.
    pub(crate) fn ask(
        &self,
        deadline: Duration,
        what: &'static str,
        request: &Request,
    ) -> Result<Answer> {
        let notes = std::mem::take(&mut *self.unsent());
        let encoded = encode(&notes, Some(request));
        let called = self
            .fabric
            .call(ServiceId::CHUNKS, self.server, deadline, |_| encoded);
        let answer = called
            .map_err(Error::from)
            .and_then(|call| self.answered(call, deadline, what));
        if answer.is_err() {
            // It is unknown whether they have arrived, and arriving twice changes nothing.
            self.unsent().extend(notes);
        }
        let answer = answer?;
        match postcard::take_from_bytes(&answer) {
            Ok((answer, [])) => Ok(answer),
            _ => Err(Error::Nonsense(format!("{} bytes", answer.len()))),
        }
    }

    fn answered(
        &self,
        mut call: rpc::Call,
        deadline: Duration,
        what: &'static str,
    ) -> Result<Vec<u8>> {
        let mut asked = Asked {
            client: self,
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
    pub(crate) fn tell(&self, note: Request) -> Result<()> {
        self.tell_later(note);
        self.send_notes()?;
        self.serve();
        Ok(())
    }

    /// Sends a note with the next message.
    pub(crate) fn tell_later(&self, note: Request) {
        self.unsent().push(note);
    }

    /// Ends a guard or a draft; later, if that cannot be told now.
    pub(crate) fn release(&self, chunk: ChunkId, guard: GuardId) {
        let note = Request::Release { chunk, guard };
        if std::thread::panicking() {
            self.tell_later(note);
        } else if let Err(error) = self.tell(note) {
            // The server ends the guard when it learns of the end of this process.
            tracing::debug!(%error, "a guard is released later");
        }
    }

    fn unsent(&self) -> MutexGuard<'_, Vec<Request>> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send_notes(&self) -> Result<()> {
        let notes = std::mem::take(&mut *self.unsent());
        if notes.is_empty() {
            return Ok(());
        }
        let deadline = self.fabric.deadline();
        let encoded = encode(&notes, None);
        let sent = self
            .fabric
            .note(ServiceId::CHUNKS, self.server, deadline, &encoded);
        if sent.is_err() {
            self.unsent().extend(notes);
        }
        Ok(sent?)
    }

    /// Returns what the server has done so far.
    pub(crate) fn counters(&self) -> Result<Counters> {
        let deadline = self.fabric.deadline();
        match self.ask(deadline, "the counters of chunks", &Request::Count)? {
            Answer::Counted(counters) => Ok(counters),
            other => Err(Error::Nonsense(format!("{other:?}"))),
        }
    }

    /// Subscribes to the commits of a chunk. Returns the answer.
    pub(crate) fn subscribe(
        &self,
        chunk: ChunkId,
        (policy, with_content): (Policy, bool),
        after: Version,
    ) -> Result<(SubscriptionId, Answer)> {
        // ORDERING: only the number counts.
        let id = SubscriptionId(NEXT_SUBSCRIPTION.fetch_add(1, Ordering::Relaxed));
        let inbox = {
            let mut events = self.events();
            if events.inbox.is_none() {
                events.inbox = self.fabric.serve_own(INBOX);
            }
            let inbox = events.inbox.as_ref().ok_or(Error::TooMany { most: 0 })?;
            let number = inbox.service().number();
            events.told.insert(id, VecDeque::new());
            number
        };
        let request = Request::Subscribe {
            chunk,
            id,
            inbox,
            after,
            policy,
            with_content,
        };
        let answer = self.ask(self.fabric.deadline(), "a subscription", &request);
        if !matches!(answer, Ok(Answer::Subscribed)) {
            self.events().told.remove(&id);
        }
        Ok((id, answer?))
    }

    /// Ends a subscription.
    pub(crate) fn end_subscription(&self, chunk: ChunkId, id: SubscriptionId) {
        self.events().told.remove(&id);
        let note = Request::Unsubscribe { chunk, id };
        if std::thread::panicking() {
            self.tell_later(note);
        } else if let Err(error) = self.tell(note) {
            tracing::debug!(%error, "a subscription is ended later");
        }
    }

    /// Waits until the server has told one of these subscriptions anything. Returns `None` after
    /// the deadline.
    pub(crate) fn await_told(
        &self,
        ids: &[SubscriptionId],
        deadline: Duration,
    ) -> Result<Option<(SubscriptionId, Told)>> {
        if let Err(error) = self.send_notes() {
            tracing::debug!(%error, "notes wait");
        }
        let begin = self.fabric.now();
        let passed = || self.fabric.now().saturating_sub(begin);
        // A server that has no processor of its own gets this one.
        while self.own.is_none() && passed() < YIELDING.min(deadline) {
            self.fabric.progress();
            if let Some(told) = self.told(ids) {
                return Ok(Some(told));
            }
            std::thread::yield_now();
        }
        let has_more = Cell::new(false);
        let look = || {
            has_more.set(self.serve());
            self.told(ids)
        };
        let what = "a commit of another process";
        let left = deadline.saturating_sub(passed());
        let peer = [self.server.peer];
        let told = self
            .fabric
            .wait_stepping_within(left, what, &peer, look, || has_more.get());
        match told {
            Ok(told) => Ok(Some(told)),
            Err(samite_fabric::Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns what one of these subscriptions was told.
    fn told(&self, ids: &[SubscriptionId]) -> Option<(SubscriptionId, Told)> {
        let mut events = self.events();
        let Events { inbox, told } = &mut *events;
        while let Some(heard) = inbox.as_ref().and_then(rpc::Server::take) {
            if heard.from != self.server {
                continue;
            }
            match postcard::take_from_bytes::<Told>(&heard.bytes) {
                // Others are of subscriptions that have ended.
                Ok((new, [])) => {
                    if let Some(queue) = told.get_mut(&new.id) {
                        queue.push_back(new);
                    }
                }
                _ => tracing::debug!("{} bytes that are no events", heard.bytes.len()),
            }
        }
        let next = |id: &SubscriptionId| Some((*id, told.get_mut(id)?.pop_front()?));
        ids.iter().find_map(next)
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks to take read guards of a chunk without messages; `None` if that is not possible.
    pub(crate) fn enroll(&self, chunk: ChunkId) -> Result<Option<OwnGuards>> {
        let Some((segment, offset, count)) = self.word(chunk) else {
            return Ok(None);
        };
        let request = Request::Enroll {
            chunk,
            segment,
            offset,
        };
        let answer = self.ask(self.fabric.deadline(), "a chunk", &request)?;
        let Answer::Enrolled { word } = answer else {
            return Err(Error::Nonsense(format!("{answer:?}")));
        };
        let Some((key, offset)) = word else {
            return Ok(None);
        };
        let remote = self.fabric.attach(key)?;
        let word = remote.mapped().filter(|bytes| bytes.contains(offset, 8));
        let open = word.filter(|_| offset.is_multiple_of(8));
        let open = open.map(|bytes| bytes.slice(offset, 8));
        Ok(open.map(|open| OwnGuards { count, open }))
    }

    /// Returns the word in which this process counts its read guards of a chunk; `None` if there is
    /// no memory.
    fn word(&self, chunk: ChunkId) -> Option<(SegmentKey, u64, SharedBytes)> {
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let Words { segments, numbers } = &mut *words;
        let next = numbers.len() as u64;
        let number = *numbers.entry(chunk).or_insert(next);
        while number / WORDS >= segments.len() as u64 {
            segments.push(self.fabric.allocate(WORDS * LINE).ok()?);
        }
        let segment = &segments[(number / WORDS) as usize];
        let offset = number % WORDS * LINE;
        Some((segment.key(), offset, segment.bytes().slice(offset, 8)))
    }

    /// Returns a process as errors name it.
    pub(crate) fn named(&self, process: Process) -> Named<Process> {
        let name = self.fabric.name_of(process.peer, Some(process.incarnation));
        Named::new(process, name)
    }

    /// Gives the server of this process one turn, if there is one. Returns whether there was
    /// anything to do.
    fn serve(&self) -> bool {
        self.own.as_ref().is_some_and(|own| {
            let (service, host, _) = &mut *own.lock().unwrap_or_else(PoisonError::into_inner);
            self.fabric.progress();
            host.turn(&self.fabric, &mut [service])
        })
    }
}

fn encode(notes: &[Request], request: Option<&Request>) -> Vec<u8> {
    let message = Message { notes, request };
    postcard::to_stdvec(&message).expect("plain data are encodable")
}

/// Finds the server of a domain, which may be about to start.
fn await_server(fabric: &Fabric) -> Result<Life> {
    use samite_fabric::Error::{NoHandler, Timeout};
    let deadline = fabric.deadline();
    let find = || agent::find_host(fabric);
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
