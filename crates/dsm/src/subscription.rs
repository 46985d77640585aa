//! Subscriptions to the commits of a chunk.

use crate::chunk::{Chunk, Elem};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::guard::{Committed, Snapshot};
use crate::protocol::{
    ChunkId, Content, Ended, Event, Mode, Policy, Request, ServerId, SubscriptionId, Told, Version,
    most_contents,
};
use crate::stream::{EventStream, VersionStream};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// The most events that are acknowledged by one note.
const BATCH: u32 = 32;

/// How long a wait is after whose end the server is asked who keeps others from committing, and how
/// long it may take to answer.
const WORTH_ASKING: Duration = Duration::from_millis(100);
const ASKED: Duration = Duration::from_millis(200);

/// What comes with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carry {
    /// Nothing: a reader asks for the version.
    Notice,
    /// The content of its version, or where it is: a reader need not ask.
    Content,
    /// Where the content is, after the server of this process has got it. The same as
    /// [`Carry::Notice`] if this process asks the home of the chunk itself.
    Prefetch,
}

/// A subscription: tells of commits in the order of their versions, each once. An event is told
/// when its version can be read. An iterator over events, which never ends. Thread: any; one at a
/// time.
///
/// The server hears that events were taken when this process asks it for anything, or waits for
/// events; with a mark of one event ([`Policy::Lossless`]), at once.
///
/// A handler of events is a loop of the caller's own thread, or a function that
/// [`Handlers`](crate::Handlers) calls in it, and may do with the chunk what it likes: write it, or
/// subscribe again. [`Subscription::into_events`] is for programs that await events.
///
/// Dropped, it ends; a subscription that begins at [`Subscription::after`] goes on.
#[derive(Debug)]
pub struct Subscription<T: Elem> {
    chunk: Chunk<T>,
    /// The id of the chunk, and that of the subscription there: others if the home was lost.
    at: Mutex<(ChunkId, SubscriptionId)>,
    /// Which commits are told, and whether with content.
    wants: (Policy, bool),
    after: Version,
    /// Those that have arrived; the content of a version comes with its event.
    events: VecDeque<(Event, Option<Content>)>,
    /// How many may be taken before the server has to hear of it, and how many were.
    batch: u32,
    taken: u32,
    /// The last event that a server has told: later ones were seen in the page of an owner.
    told: Version,
    /// Whether a writer may wait for each event that is not taken.
    is_awaited: bool,
    /// Why there are no more events than those that have arrived.
    ended: Mutex<Option<Ended>>,
}

impl<T: Elem> Subscription<T> {
    pub(crate) fn begin(
        chunk: Chunk<T>,
        (policy, with_content): (Policy, bool),
        after: Version,
    ) -> Result<Self> {
        let wants = (policy, with_content);
        let at = chunk.begin_subscription(wants, after)?;
        (chunk.client.log).subscribed(at, policy, after);
        // The server may not let as many wait.
        let content = with_content.then(|| chunk.len() * size_of::<T>() as u64);
        let policy = policy.within(content);
        Ok(Subscription {
            chunk,
            at: Mutex::new(at),
            wants,
            after,
            events: VecDeque::new(),
            batch: match policy {
                // Before it may get no more content.
                Policy::Every => content.map_or(BATCH, |bytes| {
                    let half = most_contents(bytes) / 2;
                    u32::try_from(half).unwrap_or(BATCH).clamp(1, BATCH)
                }),
                Policy::Lossless { high_water } => (high_water / 2).clamp(1, BATCH),
                Policy::Latest => 1,
            },
            taken: 0,
            told: after,
            is_awaited: matches!(policy, Policy::Lossless { high_water: 0 | 1 }),
            ended: Mutex::new(None),
        })
    }

    /// Waits for the next commit, up to the deadline of the fabric.
    ///
    /// # Errors
    /// [`Error::NoEvent`]: call it again to wait longer. [`Error::Lagged`]: the next call returns
    /// the oldest event that is known.
    pub fn next_event(&mut self) -> Result<Event> {
        self.next_within(self.chunk.client.fabric.deadline())
    }

    /// As [`Subscription::next_event`], with another deadline.
    ///
    /// # Errors
    /// As [`Subscription::next_event`].
    pub fn next_within(&mut self, deadline: Duration) -> Result<Event> {
        let (event, _) = self.pop(deadline)?;
        self.took();
        Ok(event)
    }

    /// As [`Subscription::next_event`], and returns the content of that version. It came with the
    /// event if the subscription is one [with content](Chunk::subscribe_with_content), and is
    /// asked for otherwise.
    ///
    /// # Errors
    /// [`Error::NoEvent`]. [`Error::Lagged`]: a later version was committed before the content of
    /// this one was taken; that cannot happen with [`Policy::Lossless`] and content, unless this
    /// process was stopped. Others, if the content cannot be had: the event counts as taken.
    pub fn next_version(&mut self) -> Result<Snapshot<T>> {
        let (event, content) = self.pop(self.chunk.client.fabric.deadline())?;
        self.version_of(event, content)
    }

    /// Returns the content of the version of an event that was taken last.
    pub(crate) fn version_of(
        &mut self,
        event: Event,
        content: Option<Content>,
    ) -> Result<Snapshot<T>> {
        let found = self.find_version(event, content);
        // Also if its content cannot be had: a writer may wait for that.
        self.took();
        found?.ok_or_else(|| self.lagged(1))
    }

    /// Returns the content of an event's version; `None` if a later version is there.
    fn find_version(&self, event: Event, content: Option<Content>) -> Result<Option<Snapshot<T>>> {
        let mut told = match content {
            Some(content) => match self.chunk.content(&content) {
                // Its memory is lost with its server.
                Err(Error::Lost { .. }) if self.chunk.is_replicated() => None,
                content => Some(content?),
            },
            None => None,
        };
        Ok(match told.take() {
            Some(content) => content.map(|content| {
                Snapshot(Arc::new(Committed {
                    content,
                    version: event.version,
                    tag: event.tag,
                    number: 0,
                }))
            }),
            None => Some(self.chunk.snapshot()?).filter(|found| found.version() == event.version),
        })
    }

    /// Returns the events as a stream, to be awaited.
    pub fn into_events(self) -> EventStream<T> {
        EventStream::new(self)
    }

    /// Returns the versions, as [`Subscription::next_version`] returns them, as a stream.
    pub fn into_versions(self) -> VersionStream<T> {
        VersionStream::new(self)
    }

    /// Waits until one of several subscriptions has an event, and returns its place: the first of
    /// them if several have.
    ///
    /// # Errors
    /// [`Error::NoEvent`], which names the chunk of the first one; there is none if `all` is empty.
    /// [`Error::Freed`] and [`Error::Lost`] name the chunk of one that will have no more events.
    pub fn select(all: &mut [&mut Subscription<T>], deadline: Duration) -> Result<usize> {
        if let Some(ready) = all.iter().position(|one| !one.events.is_empty()) {
            return Ok(ready);
        }
        let Some(first) = all.first() else {
            return Err(Error::NoEvent {
                chunk: String::new(),
                after: deadline,
                holders: Vec::new(),
                last: None,
            });
        };
        let client = first.chunk.client.clone();
        let begin = client.fabric.now();
        let ids_of = |all: &[&mut Subscription<T>]| all.iter().map(|one| one.id()).collect();
        let mut ids: Vec<_> = ids_of(all);
        let mut found = client.told(&ids);
        loop {
            if let Some((id, told)) = found {
                let place = ids.iter().position(|of| *of == id);
                let place = place.ok_or_else(|| Error::Nonsense(format!("{id:?}")))?;
                all[place].add(told)?;
                if !all[place].events.is_empty() {
                    return Ok(place);
                }
            }
            for one in all.iter() {
                one.check_ended()?;
            }
            ids = ids_of(all);
            let homes: Vec<_> = all.iter().map(|one| one.home()).collect();
            let left = deadline.saturating_sub(client.fabric.now().saturating_sub(begin));
            found = match client.await_events(&homes, left, || client.told(&ids)) {
                Err(Error::Fabric(samite_fabric::Error::PeerLost { .. }))
                    if all.iter().any(|one| one.has_lost_home()) =>
                {
                    None
                }
                told => Some(told?.ok_or_else(|| all[0].no_event(deadline))?),
            };
        }
    }

    /// Returns the chunk.
    pub fn chunk(&self) -> &Chunk<T> {
        &self.chunk
    }

    /// Returns the version after which it goes on: a subscription that begins there tells of the
    /// same commits.
    pub fn after(&self) -> Version {
        self.after
    }

    fn pop(&mut self, deadline: Duration) -> Result<(Event, Option<Content>)> {
        let began = self.chunk.client.log.clock();
        if self.events.is_empty() {
            // Writers may wait for them, also if there is an event already.
            self.chunk.client.send_all_notes();
            self.await_told(deadline)?;
        }
        self.pop_known(began)
            .ok_or_else(|| Error::Nonsense("no event".to_owned()))
    }

    /// Waits for events, also those of another home if this one is lost.
    fn await_told(&mut self, deadline: Duration) -> Result<()> {
        let client = self.chunk.client.clone();
        let begin = client.fabric.now();
        while self.events.is_empty() {
            let found = match client.told(&[self.id()]) {
                Some(found) => Some(found),
                None => {
                    self.check_ended()?;
                    let left = deadline.saturating_sub(client.fabric.now().saturating_sub(begin));
                    let id = self.id();
                    match client.await_events(&[self.home()], left, || client.told(&[id])) {
                        Err(Error::Fabric(samite_fabric::Error::PeerLost { .. }))
                            if self.chunk.is_replicated() =>
                        {
                            continue;
                        }
                        found => found.map_err(|error| self.lost_or(error))?,
                    }
                }
            };
            let (_, told) = found.ok_or_else(|| self.no_event(deadline))?;
            self.add(told)?;
        }
        Ok(())
    }

    fn lost_or(&self, error: Error) -> Error {
        match error {
            Error::Fabric(samite_fabric::Error::PeerLost { .. }) => {
                self.chunk.lost(self.home(), self.after)
            }
            error => error,
        }
    }

    /// Returns the next event that has arrived. `began`: when the wait for it began, for the log.
    pub(crate) fn pop_known(&mut self, began: u64) -> Option<(Event, Option<Content>)> {
        let (event, content) = self.events.pop_front()?;
        self.after = event.version;
        (self.chunk.client.log).event(began, self.at(), &event);
        Some((event, content))
    }

    /// Returns the next event, or has `waker` woken when there may be one.
    pub(crate) fn poll(&mut self, waker: &Waker) -> Poll<Result<(Event, Option<Content>)>> {
        loop {
            let began = self.chunk.client.log.clock();
            if let Some(next) = self.pop_known(began) {
                return Poll::Ready(Ok(next));
            }
            match self.chunk.client.poll_told((self.id(), self.home()), waker) {
                Some(told) => self.add(told)?,
                None => {
                    let before = self.at();
                    self.check_ended()?;
                    if self.at() == before {
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    pub(crate) fn id(&self) -> SubscriptionId {
        self.at().1
    }

    fn at(&self) -> (ChunkId, SubscriptionId) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.chunk.client
    }

    /// Returns the server that tells of the commits.
    pub(crate) fn home(&self) -> ServerId {
        self.at().0.home()
    }

    fn has_lost_home(&self) -> bool {
        self.chunk.client.has_lost_home(self.at().0)
    }

    /// Begins anew after the last event that was taken, if its home is lost, and another one has
    /// the chunk, or if its home has given this process up. There must be no event that has
    /// arrived.
    ///
    /// # Errors
    /// There will be no more events.
    pub(crate) fn check_ended(&self) -> Result<()> {
        let ended = *self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let is_lost = self.has_lost_home();
        match ended {
            Some(Ended::Freed) => Err(Error::Freed {
                chunk: self.chunk.name().to_owned(),
            }),
            None if !is_lost => Ok(()),
            _ if is_lost && !self.chunk.is_replicated() => {
                Err(self.chunk.lost(self.home(), self.after))
            }
            _ => self.begin_anew(),
        }
    }

    fn begin_anew(&self) -> Result<()> {
        let (chunk, id) = self.at();
        let at = self.chunk.begin_subscription(self.wants, self.after)?;
        self.chunk.client.end_subscription(chunk, id);
        (self.chunk.client.log).subscribed(at, self.wants.0, self.after);
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = at;
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }

    /// Returns the error of a wait, which says who has guards, and who has committed last.
    pub(crate) fn no_event(&self, after: Duration) -> Error {
        let client = &self.chunk.client;
        // A caller that only looks does not wait for that.
        let found = match after < WORTH_ASKING {
            true => None,
            false => client.overview(Some(self.at().0), ASKED).ok(),
        };
        let found = found.and_then(|mut found| found.chunks.pop());
        let (mut holders, mut last) = (Vec::new(), None);
        if let Some(found) = found {
            let writer = found.writer.into_iter().map(|who| (who, Mode::Write));
            let readers = found.readers.into_iter().map(|who| (who, Mode::Read));
            let named = |(who, mode)| (client.named(who), mode);
            holders = writer.chain(readers).map(named).collect();
            last = found.last_writer.map(|who| client.named(who));
        }
        Error::NoEvent {
            chunk: self.chunk.name().to_owned(),
            after,
            holders,
            last,
        }
    }

    /// Adds what was told.
    pub(crate) fn add(&mut self, told: Told) -> Result<()> {
        let Told {
            events,
            missed,
            content,
            ended,
            is_seen,
            ..
        } = told;
        if let (false, Some(last)) = (is_seen, events.last()) {
            self.told = last.version;
        }
        if ended.is_some() {
            *self.ended.get_mut().unwrap_or_else(PoisonError::into_inner) = ended;
        }
        let last = events.len().saturating_sub(1);
        let mut content = Some(content);
        let each = events.into_iter().enumerate().map(|(at, event)| {
            let content = content.take_if(|_| at == last).flatten();
            (event, content)
        });
        self.events.extend(each);
        if missed == 0 {
            return Ok(());
        }
        (self.chunk.client.log).missed(self.at(), missed);
        self.after.0 = self.after.0.saturating_add(missed);
        Err(self.lagged(missed))
    }

    fn lagged(&self, missed: u64) -> Error {
        Error::Lagged {
            chunk: self.chunk.name().to_owned(),
            missed,
        }
    }

    /// The last event was taken. Tells the server if that is worth a note.
    pub(crate) fn took(&mut self) {
        if self.after > self.told {
            return;
        }
        self.taken += 1;
        if self.taken < self.batch {
            return;
        }
        self.taken = 0;
        let (chunk, id) = self.at();
        let took = Request::Took {
            chunk,
            id,
            version: self.after,
        };
        let client = &self.chunk.client;
        if !self.is_awaited {
            client.tell_later(chunk.home(), took);
        } else if let Err(error) = client.tell(chunk.home(), took) {
            tracing::debug!(chunk = self.chunk.name(), %error, "an event is acknowledged later");
        }
    }
}

impl<T: Elem> Iterator for Subscription<T> {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.next_event())
    }
}

impl<T: Elem> Drop for Subscription<T> {
    fn drop(&mut self) {
        let (chunk, id) = self.at();
        self.chunk.client.end_subscription(chunk, id);
    }
}
