//! The contents of chunks: short ones as they are, long ones in segments.
//!
//! A segment is lent to its writer, who has it as `&mut [T]`; when it is committed, everybody may
//! read it, and processes of this node map it. The memory of old versions is used again when nobody
//! reads it any more.

use crate::protocol::{ChunkId, Content, GuardId, INLINE, Process, Subscriber, Version};
use samite_fabric::{Fabric, Growing, Owned, Phased, Remote, Result, SegmentKey};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// How long old memory is kept for the next writers, in milliseconds, however much there is.
const KEPT: u64 = 1000;

/// The most segments: the services of an agent have 4096 of them together.
const MOST_SEGMENTS: usize = 3072;

/// What a chunk contains.
#[derive(Debug)]
enum Stored {
    Zeros,
    Inline(Vec<u8>),
    /// A segment that is read.
    Segment(Phased),
    /// A segment of another server, that is read, and is mapped here.
    Mapped(Remote),
}

/// The memory of a server.
#[derive(Debug)]
pub(super) struct Memory {
    fabric: Fabric,
    contents: HashMap<ChunkId, Arc<Stored>>,
    /// The versions that are on their way to backups.
    held: HashMap<ChunkId, Stored>,
    /// The last versions of chunks of other homes, for the time when these are lost.
    replicas: HashMap<ChunkId, Stored>,
    /// The contents that subscribers were told of and have not taken, the oldest first.
    told: BTreeMap<Subscriber, VecDeque<(Version, Arc<Stored>)>>,
    /// Segments that writers have.
    lent: BTreeMap<GuardId, (Process, Phased)>,
    /// Segments of old versions, and of guards that ended without a commit, and since when. Kept
    /// for the next writers; if there are more of them than others, for [`KEPT`].
    free: VecDeque<(u64, Phased)>,
    /// The time, in milliseconds.
    now: u64,
    /// Bytes of segments: of all, and of those in `free`.
    used: u64,
    freed: u64,
    /// The number of segments, without those that grow.
    segments: usize,
}

impl Memory {
    pub(super) fn new(fabric: &Fabric) -> Memory {
        Memory {
            fabric: fabric.clone(),
            contents: HashMap::new(),
            held: HashMap::new(),
            replicas: HashMap::new(),
            told: BTreeMap::new(),
            lent: BTreeMap::new(),
            free: VecDeque::new(),
            now: 0,
            used: 0,
            freed: 0,
            segments: 0,
        }
    }

    pub(super) fn create(&mut self, chunk: ChunkId) {
        self.contents.insert(chunk, Arc::new(Stored::Zeros));
    }

    /// A chunk was removed.
    pub(super) fn free(&mut self, chunk: ChunkId) {
        if let Some(stored) = self.contents.remove(&chunk) {
            self.let_go(stored);
        }
        if let Some(held) = self.held.remove(&chunk) {
            self.drop_arrived(Arrived(held));
        }
    }

    /// Returns the content of a chunk, or where it is.
    pub(super) fn content(&self, chunk: ChunkId) -> Content {
        let stored = self.contents.get(&chunk);
        stored.map_or(Content::Zeros, |stored| stored.content())
    }

    /// Returns what was written under a guard, or brought with a commit, while it waits for the
    /// answer of another server.
    pub(super) fn written(&self, guard: GuardId, sent: Option<&Arrived>) -> Content {
        let lent = self.lent.get(&guard);
        match (sent, lent) {
            (Some(Arrived(stored)), _) => stored.content(),
            (None, Some((_, segment))) => Content::Segment(segment.key()),
            (None, None) => Content::Zeros,
        }
    }

    /// Takes the next version of a chunk from where it was written: it is sent to backups before it
    /// is the content.
    pub(super) fn hold(&mut self, chunk: ChunkId, guard: GuardId, sent: Option<Arrived>) {
        let next = self.take_written(guard, sent);
        self.hold_arrived(chunk, next);
    }

    /// As [`Memory::hold`], for what has arrived from another server.
    pub(super) fn hold_arrived(&mut self, chunk: ChunkId, Arrived(stored): Arrived) {
        if let Some(other) = self.held.insert(chunk, stored) {
            self.drop_arrived(Arrived(other));
        }
    }

    /// Returns the version that is held, or else the content.
    pub(super) fn next_content(&self, chunk: ChunkId) -> Content {
        let held = self.held.get(&chunk);
        held.map_or_else(|| self.content(chunk), Stored::content)
    }

    /// Makes the version that is held the content. Returns false if there is none.
    pub(super) fn adopt_held(&mut self, chunk: ChunkId) -> bool {
        let held = self.held.remove(&chunk);
        held.is_some_and(|stored| {
            self.adopt_from(chunk, Arrived(stored));
            true
        })
    }

    /// Keeps a version of a chunk of another home, in place of an older one.
    pub(super) fn keep(&mut self, chunk: ChunkId, Arrived(stored): Arrived) {
        if let Some(old) = self.replicas.insert(chunk, stored) {
            self.drop_arrived(Arrived(old));
        }
    }

    /// A version of a chunk of another home is not needed any more.
    pub(super) fn unkeep(&mut self, chunk: ChunkId) {
        if let Some(old) = self.replicas.remove(&chunk) {
            self.drop_arrived(Arrived(old));
        }
    }

    /// Makes what was kept of a chunk of another home the content of a chunk of this one.
    pub(super) fn take_over(&mut self, of: ChunkId, chunk: ChunkId) {
        let stored = self.replicas.remove(&of).unwrap_or(Stored::Zeros);
        self.contents.insert(chunk, Arc::new(stored));
    }

    /// Makes what has arrived from another server the content of a chunk.
    pub(super) fn adopt_from(&mut self, chunk: ChunkId, Arrived(stored): Arrived) {
        if let Some(old) = self.contents.insert(chunk, Arc::new(stored)) {
            self.let_go(old);
        }
    }

    /// Returns the content of a chunk, and keeps it until the subscriber has taken that version.
    pub(super) fn tell(&mut self, chunk: ChunkId, to: Subscriber, version: Version) -> Content {
        if let Some(stored) = self.contents.get(&chunk) {
            let told = self.told.entry(to).or_default();
            told.push_back((version, stored.clone()));
        }
        self.content(chunk)
    }

    /// A subscriber has taken the events up to a version; or takes no more of them (`None`).
    pub(super) fn took(&mut self, who: Subscriber, version: Option<Version>) {
        let Some(told) = self.told.get_mut(&who) else {
            return;
        };
        let is_taken = |of: &Version| version.is_none_or(|version| *of <= version);
        let taken = told.iter().take_while(|(of, _)| is_taken(of)).count();
        let taken: Vec<_> = told.drain(..taken).collect();
        if told.is_empty() {
            self.told.remove(&who);
        }
        taken
            .into_iter()
            .for_each(|(_, stored)| self.let_go(stored));
    }

    /// Frees what nobody needs any more.
    fn let_go(&mut self, stored: Arc<Stored>) {
        if let Ok(Stored::Segment(segment)) = Arc::try_unwrap(stored) {
            self.set_free(segment);
        }
    }

    /// Returns old memory of that length that nobody reads any more, or begins to allocate some.
    pub(super) fn begin(&mut self, bytes: u64) -> Result<Beginning> {
        if let Some(segment) = self.reuse(bytes) {
            return Ok(Beginning::There(segment));
        }
        if self.segments >= MOST_SEGMENTS && !self.give_back(0, u64::MAX) {
            return Err(samite_fabric::Error::Memory(format!(
                "the server has the contents of {MOST_SEGMENTS} chunks and old versions of more \
                 than 4096 bytes, and no more: use fewer, larger chunks"
            )));
        }
        let grow = |memory: &Memory| memory.fabric.grow_phased(bytes);
        let growing = match grow(self) {
            Err(samite_fabric::Error::Budget { .. }) if self.give_back(0, u64::MAX) => grow(self)?,
            grown => grown?,
        };
        Ok(Beginning::Grows(growing))
    }

    /// Returns memory that was being allocated, once it is there.
    pub(super) fn grown(&mut self, growing: Growing) -> Result<Phased> {
        let segment = growing.publish(None)?;
        self.segments += 1;
        self.used += segment.key().bytes;
        Ok(segment)
    }

    /// Stores content that has arrived.
    pub(super) fn store(&mut self, data: Vec<u8>) -> Result<Arrived> {
        if data.len() as u64 <= INLINE {
            return Ok(Arrived(Stored::Inline(data)));
        }
        self.copy(data)
    }

    /// Returns memory that nobody else uses.
    pub(super) fn owned(&mut self, segment: Phased) -> Result<Owned> {
        segment.shut();
        segment.own().map_err(|refused| {
            let (segment, error) = *refused;
            self.set_free(segment);
            error
        })
    }

    /// Returns memory that is complete, to be read.
    pub(super) fn given(&mut self, owned: Owned) -> Result<Phased> {
        let bytes = owned.key().bytes;
        owned.give(true).inspect_err(|_| {
            self.used -= bytes;
            self.segments -= 1;
        })
    }

    /// Lends memory to the writer that has that guard.
    pub(super) fn lend(
        &mut self,
        to: Process,
        guard: GuardId,
        mut segment: Phased,
    ) -> Result<SegmentKey> {
        if let Err(error) = segment.lend() {
            self.set_free(segment);
            return Err(error);
        }
        let key = segment.key();
        self.lent.insert(guard, (to, segment));
        Ok(key)
    }

    /// Lets the process to which memory was lent put into it by messages, because it does not map
    /// it. Returns false if that is not possible.
    pub(super) fn expose(&mut self, from: Process, guard: GuardId) -> bool {
        let lent = self.lent.get(&guard);
        if !lent.is_some_and(|(to, segment)| *to == from && !segment.is_reading()) {
            return false;
        }
        let Some((to, segment)) = self.lent.remove(&guard) else {
            return false;
        };
        segment.shut();
        let bytes = segment.key().bytes;
        let (segment, is_exposed) = match segment.own().map(|owned| owned.give(false)) {
            Ok(Ok(segment)) => (segment, true),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the memory of a guard is lost");
                self.used -= bytes;
                self.segments -= 1;
                return false;
            }
            // It maps the memory, and uses it.
            Err(refused) => (refused.0, false),
        };
        self.lent.insert(guard, (to, segment));
        is_exposed
    }

    /// Takes back what was lent to a process under that guard, to be read from now on. Returns
    /// false if the process still has it, if it was lent to another one, or if there is none.
    pub(super) fn take_back(&mut self, from: Process, guard: GuardId) -> bool {
        match self.lent.get_mut(&guard) {
            Some((to, segment)) if *to == from => {
                if segment.is_reading() || segment.turn(true).is_ok() {
                    return true;
                }
                // The engine, too, uses what is exposed; no put by messages changes it any more.
                segment.shut();
                segment.turn(true).is_ok()
            }
            _ => false,
        }
    }

    /// Takes back what was lent to a process as a draft, to be put; `None` if the process still has
    /// it, or if there is none.
    pub(super) fn take_draft(&mut self, from: Process, draft: GuardId) -> Option<Arrived> {
        if !self.take_back(from, draft) {
            return None;
        }
        let (_, segment) = self.lent.remove(&draft)?;
        Some(Arrived(Stored::Segment(segment)))
    }

    /// Takes back a draft that was lent to a process, and that it lets others read.
    pub(super) fn take_published(&mut self, from: Process, draft: GuardId) -> Option<Arrived> {
        let (to, segment) = self.lent.get_mut(&draft)?;
        let is_taken = *to == from && segment.take_published().unwrap_or(false);
        let (_, segment) = is_taken.then(|| self.lent.remove(&draft))??;
        Some(Arrived(Stored::Segment(segment)))
    }

    /// Returns old memory of that length that nobody reads any more, if there is any.
    pub(super) fn spare(&mut self, bytes: u64) -> Option<Phased> {
        self.reuse(bytes)
    }

    /// Makes what was sent, or written in place under a guard, the content of a chunk.
    pub(super) fn adopt(&mut self, chunk: ChunkId, guard: GuardId, sent: Option<Arrived>) {
        let new = self.take_written(guard, sent);
        self.adopt_from(chunk, new);
    }

    /// Returns what was sent, or written in place under a guard.
    fn take_written(&mut self, guard: GuardId, sent: Option<Arrived>) -> Arrived {
        let lent = self.lent.remove(&guard).map(|(_, lent)| lent);
        match (sent, lent) {
            (Some(sent), lent) => {
                lent.into_iter().for_each(|lent| self.set_free(lent));
                sent
            }
            (None, Some(segment)) => Arrived(Stored::Segment(segment)),
            (None, None) => Arrived(Stored::Zeros),
        }
    }

    /// Frees what was lent under a guard.
    pub(super) fn discard(&mut self, guard: GuardId) {
        if let Some((_, lent)) = self.lent.remove(&guard) {
            lent.shut(); // Its writer may not know yet that it has ended.
            self.set_free(lent);
        }
    }

    /// Frees what was sent for a commit that did not take place.
    pub(super) fn drop_arrived(&mut self, Arrived(stored): Arrived) {
        if let Stored::Segment(segment) = stored {
            self.set_free(segment);
        }
    }

    pub(super) fn set_free(&mut self, segment: Phased) {
        self.freed += segment.key().bytes;
        self.free.push_back((self.now, segment));
    }

    /// Returns true if there is more old memory than other memory.
    pub(super) fn has_surplus(&self) -> bool {
        self.freed > self.used.saturating_sub(self.freed)
    }

    /// Gives back what is old for long, if there is more of it than other memory.
    pub(super) fn tidy(&mut self, now: u64) {
        self.now = now;
        if self.has_surplus() {
            let others = self.used.saturating_sub(self.freed);
            self.give_back(others, now.saturating_sub(KEPT));
        }
    }

    fn reuse(&mut self, bytes: u64) -> Option<Phased> {
        for _ in 0..self.free.len() {
            let (since, segment) = self.free.pop_front()?;
            if segment.key().bytes != bytes {
                self.free.push_back((since, segment));
                continue;
            }
            segment.shut();
            match segment.own().map(Owned::renew) {
                Ok(Ok(segment)) => {
                    self.freed -= bytes;
                    return Some(segment);
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, "old memory cannot be used again");
                    self.freed -= bytes;
                    self.used -= bytes;
                    self.segments -= 1;
                }
                // Somebody still reads it.
                Err(refused) => self.free.push_back((since, refused.0)),
            }
        }
        None
    }

    /// Gives old memory back that nobody reads any more, and that is free since `since` or longer,
    /// until `most` bytes of it are left. Returns true if there was any.
    fn give_back(&mut self, most: u64, since: u64) -> bool {
        let before = self.freed;
        for _ in 0..self.free.len() {
            if self.freed <= most {
                break;
            }
            let Some((free, segment)) = self.free.pop_front() else {
                break;
            };
            if free > since {
                self.free.push_back((free, segment));
                continue;
            }
            let bytes = segment.key().bytes;
            segment.shut();
            match segment.own() {
                Ok(owned) => {
                    drop(owned);
                    self.freed -= bytes;
                    self.used -= bytes;
                    self.segments -= 1;
                }
                Err(refused) => self.free.push_back((free, refused.0)),
            }
        }
        self.freed < before
    }

    /// Returns the bytes of shared memory in use.
    pub(super) fn used(&self) -> u64 {
        self.used
    }
}

/// Memory for a writer.
#[derive(Debug)]
pub(super) enum Beginning {
    There(Phased),
    Grows(Growing),
}

/// Content that was sent, stored.
#[derive(Debug)]
pub(super) struct Arrived(Stored);

impl Arrived {
    /// Content of a short chunk.
    pub(super) fn inline(bytes: Vec<u8>) -> Arrived {
        Arrived(Stored::Inline(bytes))
    }

    /// The content of a chunk that nobody has written.
    pub(super) fn zeros() -> Arrived {
        Arrived(Stored::Zeros)
    }

    /// Content in memory of this server.
    pub(super) fn own(segment: Phased) -> Arrived {
        Arrived(Stored::Segment(segment))
    }

    /// Content that stays in the memory of another server, and is mapped here.
    pub(super) fn mapped(remote: Remote) -> Arrived {
        Arrived(Stored::Mapped(remote))
    }
}

impl Stored {
    /// Returns the content, or where it is.
    fn content(&self) -> Content {
        match self {
            Stored::Zeros => Content::Zeros,
            Stored::Inline(bytes) => Content::Inline(bytes.clone()),
            Stored::Segment(segment) => Content::Segment(segment.key()),
            Stored::Mapped(remote) => Content::Segment(remote.key()),
        }
    }
}
