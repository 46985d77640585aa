//! What servers tell of commits, and what the owners of chunks have committed: the events of
//! subscriptions.
//!
//! A server tells by notes. While another process owns a chunk, no server is told of a commit, so
//! none can tell: then this process looks itself into the page of the owner ([`crate::page`]). Both
//! come into one queue for each subscription, in the order of the versions, each once.

use super::words::OwnersPage;
use super::{Client, OwnGuards};
use crate::error::{Error, Result};
use crate::page::TAGS;
use crate::protocol::{
    Answer, ChunkId, Event, Policy, Request, ServerId, SubscriptionId, Told, Version,
};
use crate::service::{ASLEEP, OWNED};
use samite_fabric::rpc;
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

/// How long a thread that waits for an event yields its processor before it waits as usual.
const YIELDING: Duration = Duration::from_micros(200);

/// How often such a thread looks before that, if an owner may be about to commit: some
/// microseconds.
const SPINS: u32 = 64;

/// The most bytes of events that wait to be taken. Servers tell of no more than a few before they
/// are taken.
const INBOX: u64 = 64 << 20;

/// The most events of an owner that wait to be taken; the others wait in its page.
const WINDOW: u64 = 64;

/// The number of the next subscription of this process.
static NEXT_SUBSCRIPTION: AtomicU64 = AtomicU64::new(0);

/// What the server has told, by subscription.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// `None` before the first subscription.
    inbox: Option<rpc::Server>,
    told: HashMap<SubscriptionId, Queue, foldhash::fast::FixedState>,
    /// The streams that wait for a thread to deliver events, and the number of such threads.
    wakers: HashMap<SubscriptionId, (ServerId, Waker)>,
    deliverers: u32,
}

/// The events of a subscription that have come and were not taken.
#[derive(Debug, Default)]
struct Queue {
    told: VecDeque<Told>,
    /// If this process looks itself what the owner of the chunk commits.
    watch: Option<Watch>,
}

/// How a process looks what the owner of a chunk commits.
#[derive(Debug)]
struct Watch {
    chunk: ChunkId,
    bytes: u64,
    policy: Policy,
    own: OwnGuards,
    /// The last event that has come.
    last: Version,
    /// The page of the present owner.
    page: Option<OwnersPage>,
}

/// The threads that sleep until there is a commit say so to the owners of the chunks. Dropped, they
/// do not sleep any more.
struct Sleeping(Vec<OwnGuards>);

impl Drop for Sleeping {
    fn drop(&mut self) {
        for own in &self.0 {
            // ORDERING: an owner that sees an older value sends one message too many.
            own.count.u64(ASLEEP).fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A thread that delivers events to streams. When the last one leaves, the streams look themselves.
struct Deliverer<'a>(&'a Client);

impl Drop for Deliverer<'_> {
    fn drop(&mut self) {
        let wakers = {
            let mut events = self.0.events();
            events.deliverers -= 1;
            match events.deliverers {
                0 => std::mem::take(&mut events.wakers),
                _ => HashMap::new(),
            }
        };
        wakers.into_values().for_each(|(_, waker)| waker.wake());
    }
}

impl Client {
    /// Subscribes to the commits of a chunk of that length. `own`: the words by which this process
    /// reads it without messages, if it may look itself what an owner commits. Returns the answer.
    pub(crate) fn subscribe(
        &self,
        (chunk, bytes, own): (ChunkId, u64, Option<&OwnGuards>),
        (policy, with_content): (Policy, bool),
        after: Version,
    ) -> Result<(SubscriptionId, Answer)> {
        let own = own.filter(|own| own.lease.is_none());
        let watch = own.map(|own| Watch {
            chunk,
            bytes,
            policy,
            own: own.clone(),
            last: after,
            page: None,
        });
        let watches = watch.is_some();
        // ORDERING: only the number counts.
        let id = SubscriptionId(NEXT_SUBSCRIPTION.fetch_add(1, Ordering::Relaxed));
        let inbox = {
            let mut events = self.events();
            if events.inbox.is_none() {
                events.inbox = self.fabric.serve_own(INBOX);
            }
            let inbox = events.inbox.as_ref().ok_or(Error::TooMany { most: 0 })?;
            let number = inbox.service().number();
            let told = VecDeque::new();
            events.told.insert(id, Queue { told, watch });
            number
        };
        let request = Request::Subscribe {
            chunk,
            id,
            inbox,
            after,
            policy,
            with_content,
            prefetch: self
                .own_server
                .filter(|own| with_content && *own != chunk.home()),
            watches,
        };
        let deadline = self.fabric.deadline();
        let answer = self.ask(chunk.home(), deadline, "a subscription", &request);
        if !matches!(answer, Ok(Answer::Subscribed)) {
            self.events().told.remove(&id);
        }
        if answer.is_err() {
            // It may be there, and let writers wait.
            self.tell_later(chunk.home(), Request::Unsubscribe { chunk, id });
        }
        Ok((id, answer?))
    }

    /// Ends a subscription.
    pub(crate) fn end_subscription(&self, chunk: ChunkId, id: SubscriptionId) {
        let waker = {
            let mut events = self.events();
            events.told.remove(&id);
            events.wakers.remove(&id)
        };
        drop(waker); // Without the lock: it is foreign code.
        let note = Request::Unsubscribe { chunk, id };
        if std::thread::panicking() {
            self.tell_later(chunk.home(), note);
        } else if let Err(error) = self.tell(chunk.home(), note) {
            tracing::debug!(%error, "a subscription is ended later");
        }
    }

    /// Waits until `find` finds anything among what these servers have told. Returns `None` after
    /// the deadline.
    pub(crate) fn await_events<V>(
        &self,
        from: &[ServerId],
        deadline: Duration,
        mut find: impl FnMut() -> Option<V>,
    ) -> Result<Option<V>> {
        self.send_all_notes();
        if self.watches_owners() {
            // Its commit needs no server, to which this thread would leave its processor.
            if let Some(found) = (0..SPINS).find_map(|_| find()) {
                return Ok(Some(found));
            }
        }
        let begin = self.fabric.now();
        let passed = || self.fabric.now().saturating_sub(begin);
        // A server that has no processor of its own gets this one.
        while self.own.is_none() && passed() < YIELDING.min(deadline) {
            self.fabric.progress();
            if let Some(found) = find() {
                return Ok(Some(found));
            }
            std::thread::yield_now();
        }
        // What is committed from now on wakes this thread.
        let _sleeping = self.sleeps();
        if let Some(found) = find() {
            return Ok(Some(found));
        }
        let has_more = Cell::new(false);
        let look = || {
            has_more.set(self.serve());
            find()
        };
        let what = "a commit of another process";
        let left = deadline.saturating_sub(passed());
        let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let lives = from.iter().filter_map(|server| servers.get(server));
        let peers: Vec<_> = lives.map(|life| life.peer).collect();
        drop(servers);
        let found = self
            .fabric
            .wait_stepping_within(left, what, &peers[..], look, || has_more.get());
        match found {
            Ok(found) => Ok(Some(found)),
            Err(samite_fabric::Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Looks once what a subscription was told. If that is nothing, `waker` is woken later: by a
    /// thread that delivers events, or at once if there is none.
    pub(crate) fn poll_told(
        &self,
        (id, home): (SubscriptionId, ServerId),
        waker: &Waker,
    ) -> Option<Told> {
        self.send_all_notes();
        self.fabric.progress();
        self.serve();
        let (_, told) = self.look(&[id], Some((id, home, waker)))?;
        Some(told)
    }

    /// Returns true if a server is lost, as far as is known.
    pub(crate) fn is_lost(&self, server: ServerId) -> bool {
        let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let life = servers.get(&server);
        life.is_none_or(|life| self.fabric.lost_life(life.peer, life.incarnation).is_some())
    }

    /// Delivers events to streams until `is_wanted` returns false, or the deadline.
    pub(crate) fn deliver(
        &self,
        deadline: Duration,
        mut is_wanted: impl FnMut() -> bool,
    ) -> Result<()> {
        self.events().deliverers += 1;
        let _deliverer = Deliverer(self);
        let look = || {
            let none = self.told(&[]);
            debug_assert!(none.is_none());
            self.wake_lost();
            (!is_wanted()).then_some(())
        };
        self.await_events(&[], deadline, look).map(drop)
    }

    /// Wakes the streams whose homes are lost.
    fn wake_lost(&self) {
        let lost: Vec<_> = {
            let mut events = self.events();
            let lost = events.wakers.extract_if(|_, (home, _)| self.is_lost(*home));
            lost.collect()
        };
        lost.into_iter().for_each(|(_, (_, waker))| waker.wake());
    }

    /// Returns what one of these subscriptions was told.
    pub(crate) fn told(&self, ids: &[SubscriptionId]) -> Option<(SubscriptionId, Told)> {
        self.look(ids, None)
    }

    /// As [`Client::told`]. If that is nothing, `waiting` waits from now on.
    fn look(
        &self,
        ids: &[SubscriptionId],
        waiting: Option<(SubscriptionId, ServerId, &Waker)>,
    ) -> Option<(SubscriptionId, Told)> {
        let (mut woken, mut seen) = (Vec::new(), Vec::new());
        let mut events = self.events();
        let Events {
            inbox,
            told,
            wakers,
            deliverers,
        } = &mut *events;
        while let Some(heard) = inbox.as_ref().and_then(rpc::Server::take) {
            let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
            if !servers.values().any(|life| *life == heard.from) {
                continue;
            }
            drop(servers);
            match postcard::take_from_bytes::<Told>(&heard.bytes) {
                // Others are of subscriptions that have ended.
                Ok((new, [])) => {
                    let id = new.id;
                    let Some(queue) = told.get_mut(&id) else {
                        continue;
                    };
                    if let Some(new) = queue.hears(new, &mut seen) {
                        woken.extend(wakers.remove(&id));
                        queue.told.push_back(new);
                    }
                }
                _ => tracing::debug!("{} bytes that are no events", heard.bytes.len()),
            }
        }
        for (id, queue) in told.iter_mut() {
            if let Some(new) = queue.watches(*id, self) {
                woken.extend(wakers.remove(id));
                queue.told.push_back(new);
            }
        }
        let next = |id: &SubscriptionId| Some((*id, told.get_mut(id)?.told.pop_front()?));
        let found = ids.iter().find_map(next);
        if let (None, Some((id, home, waker))) = (&found, waiting) {
            let waiting = (home, waker.clone());
            match deliverers {
                0 => woken.push(waiting),
                _ => woken.extend(wakers.insert(id, waiting)),
            }
        }
        drop(events);
        for (server, took) in seen {
            // At once: this thread may be about to sleep, and the server waits for it.
            if let Err(error) = self.tell(server, took) {
                tracing::debug!(%error, "events are acknowledged later");
            }
        }
        woken.into_iter().for_each(|(_, waker)| waker.wake());
        found
    }

    /// Returns true if another process owns a chunk that this one watches.
    fn watches_owners(&self) -> bool {
        let events = self.events();
        let watches = events
            .told
            .values()
            .filter_map(|queue| queue.watch.as_ref());
        let mut pages = watches.map(|watch| watch.page.is_some());
        pages.any(|is_owned| is_owned)
    }

    /// A thread is going to sleep until there is an event.
    fn sleeps(&self) -> Sleeping {
        let events = self.events();
        let watches = events
            .told
            .values()
            .filter_map(|queue| queue.watch.as_ref());
        let all: Vec<_> = watches.map(|watch| watch.own.clone()).collect();
        for own in &all {
            // ORDERING: it says so, and then looks; an owner commits, and then looks at this.
            own.count.u64(ASLEEP).fetch_add(1, Ordering::SeqCst);
        }
        Sleeping(all)
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Returns what is new in what a server has told. Of what this process has seen itself, the
    /// server hears.
    fn hears(&mut self, mut new: Told, seen: &mut Vec<(ServerId, Request)>) -> Option<Told> {
        let Some(watch) = &mut self.watch else {
            return Some(new);
        };
        let Some(first) = new.events.first().map(|first| first.version) else {
            return Some(new); // The chunk was removed.
        };
        if watch.policy == Policy::Every {
            let after = watch.last.next();
            new.missed = new.missed.min(first.0.saturating_sub(after.0));
        }
        let old = new.events.iter();
        let old = old.take_while(|event| event.version <= watch.last).count();
        if old > 0 {
            new.events.drain(..old);
            let (chunk, id, version) = (watch.chunk, new.id, watch.last);
            seen.push((chunk.home(), Request::Took { chunk, id, version }));
        }
        let last = new.events.last()?;
        watch.last = last.version;
        Some(new)
    }

    /// Returns what the owner of the chunk has committed since.
    fn watches(&mut self, id: SubscriptionId, client: &Client) -> Option<Told> {
        let watch = self.watch.as_mut()?;
        // ORDERING: it is the present owner whose page is read.
        let number = watch.own.open.u64(0).load(Ordering::SeqCst);
        if number & OWNED == 0 {
            watch.page = None;
            return None;
        }
        if watch.page.as_ref().is_none_or(|page| page.number != number) {
            let at = (watch.chunk, watch.bytes, number);
            watch.page = client.page_of(&watch.own, at);
        }
        let page = &watch.page.as_ref()?.page;
        let (version, tag) = page.last_commit()?;
        // What was committed before is told by the server.
        let is_new = version > watch.last && watch.last >= page.since();
        let room = WINDOW.saturating_sub(self.told.len() as u64);
        if !is_new || room == 0 {
            return None;
        }
        let next = match watch.policy {
            Policy::Latest => version,
            _ => watch.last.next(),
        };
        let first = next.0.max(version.0.saturating_sub(TAGS - WINDOW));
        let last = version.0.min(first.saturating_add(room - 1));
        let writer = page.writer();
        let events = (first..=last).map(|at| {
            let at = Version(at);
            let tag = match at == version {
                true => tag,
                false => page.commit_of(at)?.0,
            };
            Some(Event {
                version: at,
                tag,
                writer,
            })
        });
        // It commits faster than this process reads; the next time, others are the last ones.
        let events: Vec<Event> = events.collect::<Option<_>>()?;
        // ORDERING: what was read is of that owner, and was committed.
        if watch.own.open.u64(0).load(Ordering::SeqCst) != number {
            return None;
        }
        watch.last = Version(last);
        Some(Told {
            id,
            events,
            missed: first - next.0,
            content: None,
            ended: None,
            is_seen: true,
        })
    }
}
