//! A chunk, and the ways to get at its content.
//!
//! # Files
//! `mod` (the handle, subscriptions, errors) · `read` (read guards, snapshots) · `put` (what is
//! written without a guard) · `given` (guards that a server gives) · `owned` (what is written while
//! this process owns the chunk)

mod given;
mod located;
mod owned;
mod put;
mod read;

pub use self::located::HomeGuard;
pub(crate) use self::owned::OwnGuard;

use crate::client::{Client, OwnGuards, OwnersPage};
use crate::error::{Error, Result};
use crate::guard::Committed;
use crate::log::Call;
use crate::owner::{DraftAt, Ownership};
use crate::protocol::{
    Answer, ChunkId, Fault, GuardId, Kind, Policy, Protocol, Request, ServerId, SubscriptionId,
    Token, Version,
};
use crate::subscription::{Carry, Subscription};
use samite_fabric::{Borrowed, SegmentKey};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// What a chunk may consist of: plain data, the same in every process.
pub trait Elem: bytemuck::Pod + Send + Sync {}

impl<T: bytemuck::Pod + Send + Sync> Elem for T {}

/// Returns the type of elements, as servers compare it.
pub(crate) fn kind_of<T>() -> Kind {
    Kind {
        name: std::any::type_name::<T>().to_owned(),
        size: size_of::<T>() as u64,
    }
}

/// A named array of a fixed length that several processes read and write. Any clone, in any
/// process, is the same chunk. A process keeps the version that it read last until it reads the
/// chunk again, or has dropped all handles of it. Thread: any.
#[derive(Debug)]
pub struct Chunk<T> {
    pub(crate) client: Arc<Client>,
    shared: Arc<Shared<T>>,
}

/// What all handles of a chunk in this process share.
#[derive(Debug)]
struct Shared<T> {
    client: Arc<Client>,
    id: ChunkId,
    /// The id that it had at its first home.
    origin: ChunkId,
    name: String,
    bytes: u64,
    protocol: Protocol,
    /// Whether other servers have it, too; and where it is if one of them has taken it over.
    is_replicated: bool,
    next: OnceLock<Arc<Shared<T>>>,
    /// Whether guards to write, and to read, are asked for at the home.
    writes_at_home: AtomicBool,
    reads_at_home: bool,
    /// Whether the memory of the server can be mapped here, as far as is known.
    maps: AtomicBool,
    /// Set before the first read guard; `None` if they cannot be taken without messages.
    own: OnceLock<Option<OwnGuards>>,
    /// How many were taken so.
    hits: AtomicU64,
    /// Whether the home is lost, as an error has said: the words that it wrote are still mapped.
    is_lost: AtomicBool,
    /// The version that was read last.
    last: Mutex<Option<Arc<Committed<T>>>>,
    /// Memory of the server for the next draft.
    spare: Mutex<Option<DraftAt>>,
    /// How this process owns it, if it does, or will; and the page of the process that does.
    ownership: Mutex<Ownership>,
    page: Mutex<Option<Arc<OwnersPage>>>,
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let spare = self.spare.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(draft) = spare.take() {
            self.client.release(self.id.home(), self.id, draft.id);
        }
    }
}

impl<T> Clone for Chunk<T> {
    fn clone(&self) -> Self {
        Chunk {
            client: self.client.clone(),
            shared: self.shared.clone(),
        }
    }
}

impl<T: Elem> Chunk<T> {
    /// Returns the handle of a chunk that the server has found.
    pub(crate) fn open(
        client: &Arc<Client>,
        id: ChunkId,
        name: &str,
        (bytes, protocol, origin): (u64, Protocol, ChunkId),
    ) -> Chunk<T> {
        let known = || client.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        let client = client.clone();
        let found = known().get(&id).and_then(Weak::upgrade);
        if let Some(shared) = found.and_then(|shared| shared.downcast().ok()) {
            return Chunk { client, shared };
        }
        let shared = Arc::new(Shared {
            client: client.clone(),
            id,
            origin,
            name: name.to_owned(),
            bytes,
            protocol,
            is_replicated: client.topology.replicas(name).is_some(),
            next: OnceLock::new(),
            writes_at_home: AtomicBool::new(protocol.is_written_at_home()),
            reads_at_home: protocol == Protocol::HomeOnly,
            maps: AtomicBool::new(true),
            own: OnceLock::new(),
            hits: AtomicU64::new(0),
            is_lost: AtomicBool::new(false),
            last: Mutex::new(None),
            spare: Mutex::new(None),
            ownership: Mutex::default(),
            page: Mutex::new(None),
        });
        let weak = Arc::downgrade(&shared);
        known().insert(id, weak);
        client.log.opened(id, name, bytes);
        Chunk { client, shared }
    }

    /// Returns its id at the home that this handle knows.
    pub(crate) fn id(&self) -> ChunkId {
        self.shared.id
    }

    /// Returns the id that it had at its first home: the same in all processes, at all times.
    pub(crate) fn origin(&self) -> ChunkId {
        self.shared.origin
    }

    /// Returns true if other servers have it, too.
    pub(crate) fn is_replicated(&self) -> bool {
        self.shared.is_replicated
    }

    /// Returns it where it is now, if its home is known to be lost.
    pub(crate) fn moved(&self) -> Option<Chunk<T>> {
        let mut last = self.shared.next.get()?;
        while let Some(next) = last.next.get() {
            last = next;
        }
        Some(Chunk {
            client: self.client.clone(),
            shared: last.clone(),
        })
    }

    /// Another server has taken it over.
    pub(crate) fn moves_to(&self, id: ChunkId) -> Chunk<T> {
        let of = (self.shared.bytes, self.shared.protocol, self.shared.origin);
        let next = Chunk::open(&self.client, id, self.name(), of);
        if id == self.shared.id {
            return next;
        }
        let next = self.shared.next.get_or_init(|| next.shared);
        Chunk {
            client: self.client.clone(),
            shared: next.clone(),
        }
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the number of its elements.
    pub fn len(&self) -> u64 {
        match size_of::<T>() as u64 {
            0 => 0,
            size => self.shared.bytes / size,
        }
    }

    /// Returns true if it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Subscribes to the commits after a version: those after the present one are missed by nobody
    /// who asks for the version first. `Version::default()` is the one before the first commit.
    ///
    /// # Errors
    /// [`Error::TooMany`]; those of the fabric.
    pub fn subscribe(&self, policy: Policy, after: Version) -> Result<Subscription<T>> {
        Subscription::begin(self.clone(), (policy, false), after)
    }

    /// As [`Chunk::subscribe`], and each event brings the content of its version:
    /// [`Subscription::next_version`] returns it without a request. The server keeps the versions
    /// that were told of until they are taken, at most as many as the policy lets wait, and at most
    /// 512 MiB of them, or one version. Events beyond that come without their content, which is
    /// asked for; a lossless subscriber lets writers wait instead.
    ///
    /// # Errors
    /// As [`Chunk::subscribe`].
    pub fn subscribe_with_content(
        &self,
        policy: Policy,
        after: Version,
    ) -> Result<Subscription<T>> {
        Subscription::begin(self.clone(), (policy, true), after)
    }

    /// As [`Chunk::subscribe`], with what comes with each event.
    ///
    /// # Errors
    /// As [`Chunk::subscribe`].
    pub fn subscribe_carrying(
        &self,
        policy: Policy,
        carry: Carry,
        after: Version,
    ) -> Result<Subscription<T>> {
        let with_content = match carry {
            Carry::Notice => false,
            Carry::Content => true,
            Carry::Prefetch => {
                let moved = self.moved();
                let id = moved.as_ref().unwrap_or(self).id();
                self.client.near(id) != id.home()
            }
        };
        Subscription::begin(self.clone(), (policy, with_content), after)
    }

    /// Begins a subscription. Returns it, and the id that the chunk has.
    pub(crate) fn begin_subscription(
        &self,
        wants: (Policy, bool),
        after: Version,
    ) -> Result<(ChunkId, SubscriptionId)> {
        self.wherever(|chunk| {
            let home = chunk.id().home();
            let (policy, with_content) = wants;
            let may_watch = !with_content && !matches!(policy, Policy::Lossless { .. });
            let may_watch = may_watch && chunk.client.near(chunk.id()) == home;
            if may_watch && chunk.shared.own.get().is_none() {
                chunk.enroll()?;
            }
            let own = chunk.own_guards().filter(|_| may_watch);
            let at = (chunk.id(), chunk.shared.bytes, own);
            let answer = chunk.client.subscribe(at, wants, after);
            match answer.map_err(|error| chunk.at(home, error))? {
                (id, Answer::Subscribed) => Ok((chunk.id(), id)),
                (_, other) => Err(chunk.refused(other, "read", chunk.client.fabric.deadline())),
            }
        })
    }

    /// Removes the chunk for all processes, and its memory when nobody reads it any more. Guards
    /// and snapshots can still be read; everything else that is done with it, or waits for it, ends
    /// with [`Error::Freed`]. Its name is free.
    ///
    /// # Errors
    /// [`Error::Freed`]: another process was first.
    pub fn free(self) -> Result<()> {
        self.wherever(|chunk| {
            let deadline = chunk.client.fabric.deadline();
            let request = Request::Free { chunk: chunk.id() };
            match chunk.ask_home(deadline, "the end of a chunk", &request)? {
                Answer::Freed => Ok(()),
                other => Err(chunk.refused(other, "free", deadline)),
            }
        })
    }

    /// Asks the home of the chunk. A home that is lost is [`Error::Lost`].
    fn ask_home(
        &self,
        deadline: Duration,
        what: &'static str,
        request: &Request,
    ) -> Result<Answer> {
        self.ask(self.id().home(), deadline, what, request)
    }

    pub(crate) fn ask(
        &self,
        server: ServerId,
        deadline: Duration,
        what: &'static str,
        request: &Request,
    ) -> Result<Answer> {
        if server == self.id().home() && self.client.is_of_earlier_life(self.id())? {
            return Err(self.lost(server, Version::default()));
        }
        self.look_after_ownership();
        let asked = self.client.ask(server, deadline, what, request);
        asked.map_err(|error| self.at(server, error))
    }

    /// As [`Chunk::ask`], for a commit. [`Error::Lost`]: it was not asked for. If the home of a
    /// chunk with replicas is lost later, it is unknown whether it takes place.
    pub(crate) fn ask_commit(
        &self,
        server: ServerId,
        deadline: Duration,
        what: &'static str,
        request: &Request,
    ) -> Result<Answer> {
        if !self.is_replicated() {
            return self.ask(server, deadline, what, request);
        }
        if self.client.has_lost_home(self.id()) {
            return Err(self.lost(self.id().home(), Version::default()));
        }
        match self.ask(server, deadline, what, request) {
            Err(Error::Lost { .. }) | Ok(Answer::Failed(Fault::Lost { .. })) => {
                Err(self.interrupted(false))
            }
            answer => answer,
        }
    }

    /// Returns the error of a commit whose home is lost.
    pub(crate) fn interrupted(&self, is_known: bool) -> Error {
        Error::Interrupted {
            chunk: self.name().to_owned(),
            server: self.client.server_name(self.id().home()),
            is_known,
        }
    }

    /// Returns what an error means that a server, or its memory, has given.
    pub(crate) fn at(&self, server: ServerId, error: Error) -> Error {
        match error {
            Error::Fabric(samite_fabric::Error::PeerLost { .. }) if server == self.id().home() => {
                self.lost(server, Version::default())
            }
            error => error,
        }
    }

    /// Borrows memory that a server has given; returns `None` if it cannot be mapped.
    fn borrow(&self, server: ServerId, key: SegmentKey) -> Result<Option<Borrowed>> {
        let borrowed = self.client.fabric.borrow(key);
        borrowed.map_err(|error| self.at(server, error.into()))
    }

    /// Returns the error of a chunk whose server is lost.
    pub(crate) fn lost(&self, server: ServerId, known: Version) -> Error {
        let own = self.last().as_ref().map(|last| last.version);
        // ORDERING: as in `own_guards`.
        self.shared.is_lost.store(true, Ordering::Relaxed);
        Error::Lost {
            chunk: self.shared.name.clone(),
            server: self.client.server_name(server),
            last: own.unwrap_or_default().max(known),
        }
    }

    /// Asks its home whether a lock is held under a token. If it is not, the commit of this chunk
    /// is fenced.
    pub(crate) fn check_lock(&self, token: Token) -> Result<()> {
        let home = token.lock.home();
        let deadline = self.client.fabric.deadline();
        let request = Request::Holds { token };
        match self.client.ask(home, deadline, "a lock", &request)? {
            Answer::Holds(true) => Ok(()),
            Answer::Holds(false) => Err(self.fenced()),
            other => Err(Error::Nonsense(format!("{other:?}"))),
        }
    }

    /// Returns the error of a commit that came too late.
    pub(crate) fn fenced(&self) -> Error {
        Error::Fenced {
            chunk: self.name().to_owned(),
        }
    }

    /// Records a commit, which `commit` carries out.
    pub(crate) fn commits(
        &self,
        call: Call,
        guard: GuardId,
        tag: u64,
        commit: impl FnOnce() -> Result<Answer>,
    ) -> Result<Answer> {
        let (log, id) = (&self.client.log, self.id());
        let began = log.asks(call, id);
        let answer = commit();
        match &answer {
            Ok(Answer::Committed { version, .. } | Answer::Changed { version, .. }) => {
                log.committed((call, began), (id, guard), (*version, tag));
            }
            Ok(other) => {
                let error = self.refused(other.clone(), "write", Duration::ZERO);
                log.failed((call, began), (id, guard), &error);
            }
            Err(error) => log.failed((call, began), (id, guard), error),
        }
        answer
    }

    /// Returns the error for an answer that is not the expected one.
    pub(crate) fn refused(&self, answer: Answer, mode: &'static str, after: Duration) -> Error {
        let chunk = self.shared.name.clone();
        match answer {
            Answer::Failed(Fault::Fenced) => Error::Fenced { chunk },
            Answer::Failed(Fault::Freed) => Error::Freed { chunk },
            Answer::Failed(Fault::Immutable) => Error::Immutable { chunk },
            Answer::Failed(Fault::Lost { last }) => self.lost(self.id().home(), last),
            Answer::Failed(Fault::TooMany { most }) => Error::TooMany { most },
            Answer::Failed(Fault::NoMemory { bytes, why }) => Error::NoMemory { chunk, bytes, why },
            Answer::Failed(Fault::Late {
                holders,
                before,
                full,
            }) => {
                let (holders, full) = (holders.into_iter(), full.into_iter());
                let named = |(process, mode)| (self.client.named(process), mode);
                Error::Late {
                    chunk,
                    mode,
                    after,
                    holders: holders.map(named).collect(),
                    before,
                    full: full.map(|process| self.client.named(process)).collect(),
                }
            }
            other => Error::Nonsense(format!("{other:?}")),
        }
    }
}
