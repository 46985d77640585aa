//! A chunk, and the ways to get at its content.

use crate::client::{Client, OwnGuards, millis};
use crate::error::{Error, Result};
use crate::guard::{
    Buffer, Committed, Content, Draft, Guard, Held, ReadGuard, Reads, Snapshot, Taken, WriteGuard,
};
use crate::log::Call;
use crate::protocol::{
    self, Answer, ChunkId, Fault, GuardId, INLINE, Kind, Mode, Op, Policy, Protocol, PutFrom,
    Request, ServerId, SubscriptionId, Token, Version,
};
use crate::published;
use crate::service::FENCED;
use crate::subscription::{Carry, Subscription};
use samite_fabric::{Borrowed, SegmentKey};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// What a chunk may consist of: plain data, the same in every process.
pub trait Elem: bytemuck::Pod + Send + Sync {}

impl<T: bytemuck::Pod + Send + Sync> Elem for T {}

/// How often the memory of a version may be given up while a snapshot fetches it.
const FETCHES: usize = 4;

/// The most bytes that a commit brings. What is longer is put into the memory of the server, which
/// takes a request more; a message has at most 64 MiB.
const MOST_SENT: u64 = 32 << 20;

/// The bytes that are put into the memory of the server at a time.
const PIECE: usize = 1 << 20;

/// How many read guards a process takes without a message before it looks whether the server is
/// lost.
const LOOK: u64 = 1024;

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
    name: String,
    bytes: u64,
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
    spare: Mutex<Option<(GuardId, SegmentKey)>>,
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let spare = self.spare.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some((draft, _)) = spare.take() {
            self.client.release(self.id.home(), self.id, draft);
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
        (bytes, protocol): (u64, Protocol),
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
            name: name.to_owned(),
            bytes,
            writes_at_home: AtomicBool::new(protocol.is_written_at_home()),
            reads_at_home: protocol == Protocol::HomeOnly,
            maps: AtomicBool::new(true),
            own: OnceLock::new(),
            hits: AtomicU64::new(0),
            is_lost: AtomicBool::new(false),
            last: Mutex::new(None),
            spare: Mutex::new(None),
        });
        let weak = Arc::downgrade(&shared);
        known().insert(id, weak);
        client.log.opened(id, name, bytes);
        Chunk { client, shared }
    }

    pub(crate) fn id(&self) -> ChunkId {
        self.shared.id
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

    /// Waits until nobody writes it, and returns a guard to read the last committed version:
    /// nothing is committed while the guard exists. Before the first commit all bytes are zero.
    /// Guards are given first come, first served.
    ///
    /// # Errors
    /// [`Error::Late`], which names the processes that have guards.
    pub fn read(&self) -> Result<ReadGuard<T>> {
        if let Some(guard) = self.read_known() {
            return Ok(guard);
        }
        if self.shared.own.get().is_none() {
            self.enroll()?;
        }
        if let Some(guard) = self.read_published() {
            return Ok(guard);
        }
        let given = self.acquire(Mode::Read)?;
        let snapshot = given.snapshot()?;
        *self.last() = Some(snapshot.0.clone());
        Ok(ReadGuard {
            snapshot,
            reads: Reads::Given(given.held),
        })
    }

    /// Prepares to take read guards without messages.
    fn enroll(&self) -> Result<()> {
        let is_near = self.client.near(self.id()) == self.id().home();
        let own = match self.shared.reads_at_home && !is_near {
            true => None,
            false => match self.client.enroll(self.id(), self.shared.bytes) {
                // Then the guard is asked for at the home, or the loss is told.
                Err(Error::Fabric(samite_fabric::Error::PeerLost { .. })) => return Ok(()),
                own => own?,
            },
        };
        // Another thread may have been faster: it has the same words.
        let _ = self.shared.own.set(own);
        Ok(())
    }

    /// Takes a read guard without a message, if the version that was read last is the present one.
    #[inline]
    fn read_known(&self) -> Option<ReadGuard<T>> {
        let own = self.shared.own.get()?.as_ref()?;
        let last = self.last();
        let committed = last.as_ref()?;
        // A chunk that is closed is not counted: the end of that would have to be told.
        // ORDERING: only hints; who has got the error has stored it.
        let is_lost = self.shared.is_lost.load(Ordering::Relaxed);
        if is_lost || own.open.u64(0).load(Ordering::Relaxed) != committed.number {
            return None;
        }
        let time = self.client.log.clock();
        // ORDERING: the count is written before the server's word is read; see `service/words`.
        own.count.u64(0).fetch_add(1, Ordering::SeqCst);
        let mut taken = Taken(self.clone(), false);
        let open = own.open.u64(0).load(Ordering::SeqCst);
        if open != committed.number || open == 0 || !own.has_lease() {
            drop(last);
            return None;
        }
        // ORDERING: only the number counts.
        let hits = self.shared.hits.fetch_add(1, Ordering::Relaxed);
        if hits % LOOK == LOOK - 1 && self.client.has_lost(self.id()) {
            drop(last);
            return None;
        }
        let at = (committed.version, committed.tag);
        self.client.log.hit(time, self.id(), at);
        taken.1 = true;
        Some(ReadGuard {
            snapshot: Snapshot(committed.clone()),
            reads: Reads::Taken(taken),
        })
    }

    /// Takes a read guard of the version that the server has published, without a message.
    fn read_published(&self) -> Option<ReadGuard<T>> {
        let own = self.shared.own.get()?.as_ref()?;
        // ORDERING: only a hint, as above.
        if own.open.u64(0).load(Ordering::Relaxed) == 0 || self.client.has_lost(self.id()) {
            return None;
        }
        let time = self.client.log.clock();
        // ORDERING: as above.
        own.count.u64(0).fetch_add(1, Ordering::SeqCst);
        let mut taken = Taken(self.clone(), false);
        let number = own.open.u64(0).load(Ordering::SeqCst);
        let (version, tag, content) = published::read(&own.open, self.id(), self.shared.bytes)?;
        let content = self.content(&content).ok().flatten()?;
        // The server may have closed the chunk meanwhile, and have waited for this process no more.
        // ORDERING: as above.
        let is_fenced = own.count.u64(FENCED).load(Ordering::SeqCst) != 0;
        let is_open = number != 0 && own.open.u64(0).load(Ordering::SeqCst) == number;
        if is_fenced || !is_open || !own.has_lease() {
            return None;
        }
        let committed = Arc::new(Committed {
            content,
            version,
            tag,
            number,
        });
        self.client.log.hit(time, self.id(), (version, tag));
        taken.1 = true;
        *self.last() = Some(committed.clone());
        Some(ReadGuard {
            snapshot: Snapshot(committed),
            reads: Reads::Taken(taken),
        })
    }

    /// Ends a read guard that was taken without a message.
    #[inline]
    pub(crate) fn give_up(&self) {
        let Some(Some(own)) = self.shared.own.get() else {
            return;
        };
        // ORDERING: as above.
        let is_last = own.count.u64(0).fetch_sub(1, Ordering::SeqCst) == 1;
        if is_last && own.open.u64(0).load(Ordering::SeqCst) == 0 {
            self.drained();
        }
    }

    /// Tells the server, which waits for that, that this process has no read guard of its own.
    #[cold]
    fn drained(&self) {
        let (server, chunk) = (self.client.near(self.id()), self.id());
        if let Err(error) = self.client.tell(server, Request::Drained { chunk }) {
            // The server learns of the end of this process.
            tracing::debug!(chunk = self.name(), %error, "the end of a guard was not told");
        }
    }

    fn last(&self) -> MutexGuard<'_, Option<Arc<Committed<T>>>> {
        let last = self.shared.last.lock();
        last.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody else has a guard, and returns one to write the whole chunk. The old
    /// content is not fetched: what the guard contains at first is unspecified.
    ///
    /// # Errors
    /// [`Error::Late`], which names the processes that have guards; [`Error::NoMemory`].
    pub fn write(&self) -> Result<WriteGuard<T>> {
        self.acquire(Mode::Write)?.writer()
    }

    /// As [`Chunk::write`], and the guard contains the last committed version.
    ///
    /// # Errors
    /// As [`Chunk::write`].
    pub fn update(&self) -> Result<WriteGuard<T>> {
        let given = self.acquire(Mode::Write)?;
        let old = given.snapshot()?;
        let mut guard = given.writer()?;
        guard.copy_from_slice(&old);
        Ok(guard)
    }

    /// Returns the last committed version without waiting for any guard. Only if others commit so
    /// often that the memory of each version is used again before it was fetched, this waits for a
    /// read guard.
    ///
    /// # Errors
    /// Those of the fabric, and then those of [`Chunk::read`].
    pub fn snapshot(&self) -> Result<Snapshot<T>> {
        let deadline = self.client.fabric.deadline();
        let began = self.client.log.clock();
        if let Some(found) = self.snapshot_published()? {
            (self.client.log).got(began, self.id(), (found.version(), found.tag()));
            return Ok(found);
        }
        for _ in 0..FETCHES {
            let request = Request::Snapshot { chunk: self.id() };
            let (version, tag, content) = match self.ask_home(deadline, "a snapshot", &request)? {
                Answer::Version {
                    version,
                    tag,
                    content,
                } => (version, tag, content),
                other => return Err(self.refused(other, "read", deadline)),
            };
            // The next version may have been committed meanwhile, and its memory be used again.
            if let Some(content) = self.content(&content)? {
                self.client.log.got(began, self.id(), (version, tag));
                return Ok(Snapshot(Arc::new(Committed {
                    content,
                    version,
                    tag,
                    number: 0,
                })));
            }
        }
        Ok(self.read()?.into_snapshot())
    }

    /// Returns the version that the home has published, without a message.
    fn snapshot_published(&self) -> Result<Option<Snapshot<T>>> {
        if self.client.near(self.id()) != self.id().home() {
            return Ok(None);
        }
        if self.shared.own.get().is_none() {
            self.enroll()?;
        }
        let Some(own) = self.shared.own.get().and_then(Option::as_ref) else {
            return Ok(None);
        };
        if self.client.has_lost(self.id()) || !own.has_lease() {
            return Ok(None);
        }
        // ORDERING: what is open is the present version.
        let open = own.open.u64(0).load(Ordering::SeqCst);
        if let Some(last) = self.last().as_ref()
            && last.number == open
            && open != 0
        {
            return Ok(Some(Snapshot(last.clone())));
        }
        let Some((version, tag, content)) =
            published::read(&own.open, self.id(), self.shared.bytes)
        else {
            return Ok(None);
        };
        let content = self.content(&content)?;
        Ok(content.map(|content| {
            Snapshot(Arc::new(Committed {
                content,
                version,
                tag,
                number: 0,
            }))
        }))
    }

    /// Writes the whole chunk and commits it under that tag, as soon as nobody has a guard: one
    /// request. Returns the new version.
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::Late`], which names the processes that have guards.
    pub fn put(&self, elements: &[T], tag: u64) -> Result<Version> {
        self.check_length(elements)?;
        match self.memory()? {
            Some((mut draft, None)) => {
                draft.copy_from_slice(elements);
                return draft.put(tag);
            }
            Some((mut draft, Some((key, id)))) => {
                self.put_far(self.id().home(), (key, id), elements)?;
                draft.id = None;
                return self.put_from(PutFrom::Draft(id), tag);
            }
            None => {}
        }
        let bytes = bytemuck::cast_slice(elements).to_vec();
        self.put_from(PutFrom::Inline(bytes), tag)
    }

    /// Returns memory to write the next version in, without a guard: others read and write the
    /// chunk meanwhile. [`Draft::put`] publishes it. What it contains at first is unspecified. A
    /// process has the memory of one more version while it keeps a chunk of which it has put
    /// drafts.
    ///
    /// # Errors
    /// [`Error::NoMemory`]; [`Error::TooMany`].
    pub fn draft(&self) -> Result<Draft<T>> {
        match self.memory()? {
            Some((draft, None)) => Ok(draft),
            Some((mut draft, Some((key, _)))) => {
                draft.buffer = Some(Buffer::Far(key, self.zeros()?));
                Ok(draft)
            }
            None => Ok(Draft {
                chunk: self.clone(),
                buffer: Some(Buffer::Sent(self.zeros()?)),
                id: None,
            }),
        }
    }

    /// Returns a draft in memory of the server, and if that is not mapped here, where it is: then
    /// the draft has no buffer. `None` if the content is to be sent.
    #[allow(clippy::type_complexity, reason = "only for the two functions above")]
    fn memory(&self) -> Result<Option<(Draft<T>, Option<(SegmentKey, GuardId)>)>> {
        if !self.wants_memory() {
            return Ok(None);
        }
        let spare = self.spare().take();
        let (id, key) = match spare {
            Some((id, key)) => (id, Some(key)),
            None => self.ask_draft()?,
        };
        let mut draft = Draft {
            chunk: self.clone(),
            buffer: None,
            id: Some(id),
        };
        let Some(key) = key else {
            return Err(Error::Nonsense("a draft without memory".to_owned()));
        };
        if let Some(borrowed) = self.borrow(self.id().home(), key)? {
            draft.buffer = Some(Buffer::Mapped(borrowed));
            return Ok(Some((draft, None)));
        }
        self.maps_not();
        Ok((self.shared.bytes > MOST_SENT).then_some((draft, Some((key, id)))))
    }

    fn ask_draft(&self) -> Result<(GuardId, Option<SegmentKey>)> {
        let deadline = self.client.fabric.deadline();
        let request = Request::Draft { chunk: self.id() };
        match self.ask_home(deadline, "memory of a chunk", &request)? {
            Answer::Drafted { draft, buffer } => Ok((draft, buffer)),
            other => Err(self.refused(other, "write", deadline)),
        }
    }

    /// Returns true if a writer needs memory of the server: it maps it, or the content is too long
    /// to be sent with a commit.
    fn wants_memory(&self) -> bool {
        let bytes = self.shared.bytes;
        bytes > MOST_SENT || bytes > INLINE && self.maps()
    }

    /// Puts content by messages into the memory of a guard or a draft that a server has given.
    pub(crate) fn put_far(
        &self,
        server: ServerId,
        (key, guard): (SegmentKey, GuardId),
        elements: &[T],
    ) -> Result<()> {
        let deadline = self.client.fabric.deadline();
        let request = Request::Expose { guard };
        match self.ask(server, deadline, "memory of a chunk", &request)? {
            Answer::Exposed => {}
            other => return Err(self.refused(other, "write", deadline)),
        }
        let remote = self.client.fabric.attach(key)?;
        let bytes: &[u8] = bytemuck::cast_slice(elements);
        // Two pieces are on the way at a time.
        let mut before = None;
        for (piece, at) in bytes.chunks(PIECE).zip((0_u64..).step_by(PIECE)) {
            let next = remote.put_nb(at, piece)?;
            if let Some(handle) = before.replace(next) {
                handle.wait()?;
            }
        }
        match before {
            Some(handle) => Ok(handle.wait().map(drop)?),
            None => Ok(()),
        }
    }

    pub(crate) fn put_from(&self, from: PutFrom, tag: u64) -> Result<Version> {
        let deadline = self.client.fabric.deadline();
        let request = Request::Put {
            chunk: self.id(),
            tag,
            from,
            timeout: millis(deadline),
        };
        let answer = self.commits(Call::Put, GuardId(0), tag, || {
            self.ask_home(deadline, "a put", &request)
        });
        match answer? {
            Answer::Committed { version, draft } => {
                if let Some(next) = draft
                    && let Some((other, _)) = self.spare().replace(next)
                {
                    self.client.release(self.id().home(), self.id(), other);
                }
                Ok(version)
            }
            other => Err(self.refused(other, "write", deadline)),
        }
    }

    fn spare(&self) -> MutexGuard<'_, Option<(GuardId, SegmentKey)>> {
        let spare = self.shared.spare.lock();
        spare.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the memory of the server can be mapped here, as far as is known.
    fn maps(&self) -> bool {
        // ORDERING: it only saves requests for memory that cannot be mapped.
        self.shared.maps.load(Ordering::Relaxed)
    }

    fn maps_not(&self) {
        // ORDERING: as above.
        self.shared.maps.store(false, Ordering::Relaxed);
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
            Carry::Prefetch => self.client.near(self.id()) != self.id().home(),
        };
        Subscription::begin(self.clone(), (policy, with_content), after)
    }

    pub(crate) fn begin_subscription(
        &self,
        policy: Policy,
        with_content: bool,
        after: Version,
    ) -> Result<SubscriptionId> {
        let wants = (policy, with_content);
        match self.client.subscribe(self.id(), wants, after)? {
            (id, Answer::Subscribed) => Ok(id),
            (_, other) => Err(self.refused(other, "read", self.client.fabric.deadline())),
        }
    }

    /// Waits for a version that nobody else takes, and returns a guard to read it: the next one for
    /// work that one process of several is to do. A version that is replaced before it is taken is
    /// taken by nobody; what a process has taken is lost with it.
    ///
    /// # Errors
    /// [`Error::Late`].
    pub fn take(&self) -> Result<ReadGuard<T>> {
        let deadline = self.client.fabric.deadline();
        let request = Request::Take {
            chunk: self.id(),
            timeout: millis(deadline),
        };
        let home = self.id().home();
        let words = ("take", "a version to take", Call::Take);
        let given = self.given(home, &request, words, deadline)?;
        let given = given.ok_or_else(|| self.not_at_home())?;
        Ok(ReadGuard {
            snapshot: given.snapshot()?,
            reads: Reads::Given(given.held),
        })
    }

    /// Copies the last committed version, as [`Chunk::snapshot`] gets it. Returns its version and
    /// tag.
    ///
    /// # Errors
    /// [`Error::Length`]; as [`Chunk::snapshot`].
    pub fn get(&self, into: &mut [T]) -> Result<(Version, u64)> {
        self.check_length(into)?;
        let snapshot = self.snapshot()?;
        into.copy_from_slice(&snapshot);
        Ok((snapshot.version(), snapshot.tag()))
    }

    /// Changes the word of 64 bits that begins at element `index`, at the home of the chunk: one
    /// request, as soon as nobody has a guard. The result is the next version, under that tag.
    /// Returns the word before.
    ///
    /// # Errors
    /// [`Error::NotAWord`]: the chunk is longer than 4 KiB, or ends before the word does;
    /// [`Error::Late`].
    pub fn delegate(&self, index: u64, op: Op, tag: u64) -> Result<u64> {
        let offset = index.checked_mul(size_of::<T>() as u64);
        let end = offset.and_then(|offset| offset.checked_add(8));
        let bytes = self.shared.bytes;
        let fits = bytes <= INLINE && end.is_some_and(|end| end <= bytes);
        let Some(offset) = offset.filter(|_| fits) else {
            return Err(Error::NotAWord {
                chunk: self.shared.name.clone(),
                index,
                bytes,
            });
        };
        let deadline = self.client.fabric.deadline();
        let request = Request::Change {
            chunk: self.id(),
            offset,
            op,
            tag,
            timeout: millis(deadline),
        };
        let answer = self.commits(Call::Change, GuardId(0), tag, || {
            self.ask_home(deadline, "a change", &request)
        });
        match answer? {
            Answer::Changed { old, .. } => Ok(old),
            other => Err(self.refused(other, "write", deadline)),
        }
    }

    /// Acquires guards of several chunks, always in the same order: processes that do so never wait
    /// for each other in a circle. Returns them in the order of `wanted`. A chunk that is wanted
    /// twice, and to be written, waits for itself.
    ///
    /// # Errors
    /// As [`Chunk::read`] and [`Chunk::write`]; then it has no guards.
    pub fn acquire_all(wanted: &[(&Chunk<T>, Mode)]) -> Result<Vec<Guard<T>>> {
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_by_key(|place| wanted[*place].0.id());
        let mut guards: Vec<_> = wanted.iter().map(|_| None).collect();
        for place in order {
            let (chunk, mode) = wanted[place];
            guards[place] = Some(match mode {
                Mode::Read => Guard::Read(chunk.read()?),
                Mode::Write => Guard::Write(chunk.update()?),
            });
        }
        Ok(guards.into_iter().flatten().collect())
    }

    /// Removes the chunk for all processes, and its memory when nobody reads it any more. Guards
    /// and snapshots can still be read; everything else that is done with it, or waits for it, ends
    /// with [`Error::Freed`]. Its name is free.
    ///
    /// # Errors
    /// [`Error::Freed`]: another process was first.
    pub fn free(self) -> Result<()> {
        let deadline = self.client.fabric.deadline();
        let request = Request::Free { chunk: self.id() };
        match self.ask_home(deadline, "the end of a chunk", &request)? {
            Answer::Freed => Ok(()),
            other => Err(self.refused(other, "free", deadline)),
        }
    }

    fn check_length(&self, elements: &[T]) -> Result<()> {
        let has = elements.len() as u64;
        match has == self.len() {
            true => Ok(()),
            false => Err(Error::Length {
                chunk: self.shared.name.clone(),
                has,
                len: self.len(),
            }),
        }
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
        let asked = self.client.ask(server, deadline, what, request);
        asked.map_err(|error| self.at(server, error))
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
        // ORDERING: as in `read_known`.
        self.shared.is_lost.store(true, Ordering::Relaxed);
        Error::Lost {
            chunk: self.shared.name.clone(),
            server: self.client.server_name(server),
            last: own.unwrap_or_default().max(known),
        }
    }

    /// Returns true if a lock of another server than the chunk's is held under a token. The home of
    /// the chunk looks itself after its own locks.
    pub(crate) fn holds(&self, token: Token) -> Result<bool> {
        let home = token.lock.home();
        if home == self.id().home() {
            return Ok(true);
        }
        let deadline = self.client.fabric.deadline();
        let request = Request::Holds { token };
        match self.client.ask(home, deadline, "a lock", &request)? {
            Answer::Holds(holds) => Ok(holds),
            other => Err(Error::Nonsense(format!("{other:?}"))),
        }
    }

    /// Asks this process's server for a guard, or the home if that is where guards are given.
    pub(crate) fn acquire(&self, mode: Mode) -> Result<Given<T>> {
        // ORDERING: it only saves requests that are refused.
        let at_home = match mode {
            Mode::Read => self.shared.reads_at_home,
            Mode::Write => self.shared.writes_at_home.load(Ordering::Relaxed),
        };
        let near = self.client.near(self.id());
        if at_home || near == self.id().home() {
            return self.acquire_at_home(mode);
        }
        match self.acquire_at(near, mode) {
            Ok(Some(given)) => return Ok(given),
            // The home has to be asked; then this process has no server of its own any more.
            Ok(None) => {}
            Err(Error::Fabric(_)) if self.client.near(self.id()) != near => {
                return self.acquire_at_home(mode);
            }
            Err(error) => return Err(error),
        }
        // ORDERING: as above.
        self.shared.writes_at_home.store(true, Ordering::Relaxed);
        self.acquire_at_home(mode)
    }

    pub(crate) fn acquire_at_home(&self, mode: Mode) -> Result<Given<T>> {
        let given = self.acquire_at(self.id().home(), mode)?;
        given.ok_or_else(|| self.not_at_home())
    }

    fn not_at_home(&self) -> Error {
        Error::Nonsense(format!("\"{}\" is not served at its home", self.name()))
    }

    fn acquire_at(&self, server: ServerId, mode: Mode) -> Result<Option<Given<T>>> {
        let deadline = self.client.fabric.deadline();
        let request = Request::Acquire {
            chunk: self.id(),
            mode,
            in_place: self.wants_memory(),
            timeout: millis(deadline),
        };
        let words = match mode {
            Mode::Read => ("read", "a guard to read a chunk", Call::Read),
            Mode::Write => ("write", "a guard to write a chunk", Call::Write),
        };
        self.given(server, &request, words, deadline)
    }

    /// Asks for a guard. `words`: what it is for, and what is waited for. Returns `None` if the
    /// home has to be asked.
    fn given(
        &self,
        server: ServerId,
        request: &Request,
        (word, what, call): (&'static str, &'static str, Call),
        deadline: Duration,
    ) -> Result<Option<Given<T>>> {
        let (log, id) = (&self.client.log, self.id());
        let began = log.asks(call, id);
        let given = self.ask_guard(server, request, (word, what), deadline);
        match &given {
            Ok(None) => {}
            Ok(Some(given)) => {
                let at = (given.version, given.tag);
                log.given((call, began), (id, given.held.guard), at);
            }
            Err(error) => log.failed((call, began), (id, GuardId(0)), error),
        }
        given
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

    fn ask_guard(
        &self,
        server: ServerId,
        request: &Request,
        (word, what): (&'static str, &'static str),
        deadline: Duration,
    ) -> Result<Option<Given<T>>> {
        match self.ask(server, deadline, what, request)? {
            Answer::Failed(Fault::AtHome) => Ok(None),
            Answer::Given {
                guard,
                version,
                tag,
                number,
                content,
                buffer,
            } => Ok(Some(Given {
                version,
                tag,
                number,
                content,
                buffer,
                held: Held {
                    chunk: self.clone(),
                    server,
                    guard,
                    has_ended: false,
                },
            })),
            other => Err(self.refused(other, word, deadline)),
        }
    }

    /// Returns the content of a version; `None` if its memory has been given up.
    pub(crate) fn content(&self, content: &protocol::Content) -> Result<Option<Content<T>>> {
        match content {
            protocol::Content::Zeros => Ok(Some(Content::Copied(self.zeros()?))),
            protocol::Content::Inline(bytes) => {
                let mut elements = self.zeros()?;
                let to: &mut [u8] = bytemuck::cast_slice_mut(&mut elements);
                if to.len() != bytes.len() {
                    return Err(Error::Nonsense(format!("{} bytes", bytes.len())));
                }
                to.copy_from_slice(bytes);
                Ok(Some(Content::Copied(elements)))
            }
            protocol::Content::Segment(key) if key.bytes == self.shared.bytes => {
                let remote = match self.client.fabric.attach(*key) {
                    Ok(remote) => remote,
                    Err(error) if is_given_up(&error) => return Ok(None),
                    Err(error) => return Err(self.at(self.id().home(), error.into())),
                };
                if remote.readable().is_some() {
                    return Ok(Some(Content::Mapped(remote)));
                }
                let mut elements = self.zeros()?;
                match remote.get(0, bytemuck::cast_slice_mut(&mut elements)) {
                    Ok(()) => Ok(Some(Content::Copied(elements))),
                    Err(error) if is_given_up(&error) => Ok(None),
                    Err(error) => Err(self.at(self.id().home(), error.into())),
                }
            }
            protocol::Content::Segment(key) => {
                Err(Error::Nonsense(format!("a segment of {} bytes", key.bytes)))
            }
        }
    }

    fn zeros(&self) -> Result<Vec<T>> {
        let mut elements = Vec::new();
        let len = usize::try_from(self.len()).unwrap_or(usize::MAX);
        let reserved = elements.try_reserve_exact(len);
        reserved.map_err(|error| Error::NoMemory {
            chunk: self.shared.name.clone(),
            bytes: self.shared.bytes,
            why: error.to_string(),
        })?;
        elements.resize(len, T::zeroed());
        Ok(elements)
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

/// What comes with a guard.
pub(crate) struct Given<T: Elem> {
    version: Version,
    tag: u64,
    number: u64,
    content: protocol::Content,
    buffer: Option<SegmentKey>,
    pub(crate) held: Held<T>,
}

impl<T: Elem> Given<T> {
    /// Returns the present version.
    fn snapshot(&self) -> Result<Snapshot<T>> {
        let content = self.held.chunk.content(&self.content)?;
        let given_up = || Error::Nonsense("the memory of a version that is read".to_owned());
        Ok(Snapshot(Arc::new(Committed {
            content: content.ok_or_else(given_up)?,
            version: self.version,
            tag: self.tag,
            number: self.number,
        })))
    }

    fn writer(self) -> Result<WriteGuard<T>> {
        let chunk = &self.held.chunk;
        let borrowed = match self.buffer {
            Some(key) => chunk.borrow(self.held.server, key)?,
            None => None,
        };
        if borrowed.is_none() && self.buffer.is_some() {
            chunk.maps_not();
        }
        let buffer = match (borrowed, self.buffer) {
            (Some(borrowed), _) => Buffer::Mapped(borrowed),
            (None, Some(key)) if chunk.shared.bytes > MOST_SENT => Buffer::Far(key, chunk.zeros()?),
            _ => Buffer::Sent(chunk.zeros()?),
        };
        Ok(WriteGuard {
            buffer: Some(buffer),
            version: self.version,
            held: self.held,
        })
    }
}

/// Returns true if a segment is gone because its version is no longer the present one.
fn is_given_up(error: &samite_fabric::Error) -> bool {
    use samite_fabric::Error::{NoSuchSegment, WrongPhase};
    matches!(error, NoSuchSegment { .. } | WrongPhase { .. })
}
