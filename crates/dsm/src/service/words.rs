//! Words of shared memory by which clients take read guards without a message.
//!
//! ```text
//!   client                                      server
//!   own word += 1                               chunk's word = 0           (it closes the chunk)
//!   chunk's word == number of its version ?     own words of the clients all 0 ?
//!     yes: it has a read guard                    yes: somebody may write
//!     no:  own word -= 1, a note                  no:  it waits for notes
//! ```
//! Each side first writes its word and then reads the other's, with sequential consistency, so at
//! least one of them sees the other. A client writes to no memory but its own: the words of a
//! client that has died are forgotten. Those of a client that is stopped for too long are not
//! waited for (`fence`); the server says so behind its word, and gives its version another number,
//! so that it has to ask again when it goes on.
//!
//! Behind the chunk's word is the present version while the chunk is open
//! ([`crate::published`]): a client that does not know the version finds it there.

use crate::protocol::{ChunkId, Content, Process, Version};
use crate::published::{bytes_for, publish, withdraw};
use samite_fabric::{Fabric, Remote, Segment, SegmentKey};
use samite_mem::SharedBytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// Bytes from one word to the next: the words of two chunks share no cache line.
pub(crate) const LINE: u64 = 64;

/// The number of words in a segment of a client.
pub(crate) const WORDS: u64 = 1024;

/// The bytes of a segment of a server: there are few segments, and contents of 4 KiB.
const SEGMENT: u64 = 256 << 10;

/// Where a client's word says that it counts for nothing, in bytes from the word.
pub(crate) const FENCED: u64 = 8;

/// A client that takes read guards of a chunk itself.
#[derive(Debug)]
struct Enrolled {
    client: Process,
    /// Its segment, and where the word is in it.
    key: SegmentKey,
    remote: Remote,
    offset: u64,
}

impl Enrolled {
    fn reads(&self) -> bool {
        let word = self.remote.mapped().map(|bytes| bytes.u64(self.offset));
        // ORDERING: the server has closed the chunk; see the module.
        word.is_some_and(|word| word.load(Ordering::SeqCst) > 0)
    }

    /// Says to the client whether its word counts.
    fn set_fenced(&self, is_fenced: bool) {
        if let Some(bytes) = self.remote.mapped() {
            let word = bytes.u64(self.offset + FENCED);
            // ORDERING: a client that sees a later version of the chunk sees this, too.
            word.store(is_fenced.into(), Ordering::SeqCst);
        }
    }
}

/// A part of a server's segments.
#[derive(Clone, Copy, Debug)]
struct Place {
    segment: usize,
    offset: u64,
    bytes: u64,
}

/// A chunk that has a word.
#[derive(Debug)]
struct Word {
    place: Place,
    clients: Vec<Enrolled>,
    /// The clients whose words count for nothing, until they ask again.
    fenced: BTreeSet<Process>,
}

impl Word {
    /// Says to a client whether its words count.
    fn set_fenced(&self, client: Process, is_fenced: bool) {
        let of_client = self.clients.iter().filter(|one| one.client == client);
        of_client.for_each(|one| one.set_fenced(is_fenced));
    }
}

/// The words of a server.
#[derive(Debug)]
pub(super) struct Words {
    fabric: Fabric,
    segments: Vec<Segment>,
    /// The bytes of the last segment that were ever used.
    filled: u64,
    words: BTreeMap<ChunkId, Word>,
    /// The chunks that are open, their versions and tags.
    open: BTreeMap<ChunkId, (Version, u64)>,
    /// The numbers of the versions that are in use.
    numbers: BTreeMap<ChunkId, (Version, u64)>,
    /// The places of chunks that were removed, by their lengths.
    unused: BTreeMap<u64, Vec<Place>>,
    /// Each version of a chunk has another number.
    last: u64,
}

impl Words {
    pub(super) fn new(fabric: &Fabric) -> Words {
        Words {
            fabric: fabric.clone(),
            segments: Vec::new(),
            filled: SEGMENT,
            words: BTreeMap::new(),
            open: BTreeMap::new(),
            numbers: BTreeMap::new(),
            unused: BTreeMap::new(),
            last: 0,
        }
    }

    /// Returns the number of the present version of a chunk.
    pub(super) fn number(&mut self, chunk: ChunkId, version: Version) -> u64 {
        match self.numbers.get(&chunk) {
            Some((of, number)) if *of == version => *number,
            _ => {
                self.last += 1;
                self.numbers.insert(chunk, (version, self.last));
                self.last
            }
        }
    }

    /// Opens a chunk, and publishes the version.
    pub(super) fn open(
        &mut self,
        chunk: ChunkId,
        (version, tag): (Version, u64),
        content: impl FnOnce() -> Content,
    ) {
        let number = self.number(chunk, version);
        self.open.insert(chunk, (version, tag));
        if let Some(word) = self.words.get(&chunk) {
            let place = self.bytes(word.place);
            publish(&place, chunk, &(version, tag, content()));
            // ORDERING: who sees it open sees the version.
            place.u64(0).store(number, Ordering::SeqCst);
        }
    }

    pub(super) fn close(&mut self, chunk: ChunkId) {
        self.open.remove(&chunk);
        if let Some(word) = self.words.get(&chunk) {
            let place = self.bytes(word.place);
            // ORDERING: what follows reads the words of clients; see the module.
            place.u64(0).store(0, Ordering::SeqCst);
            withdraw(&place);
        }
    }

    /// No longer waits for the read guards of a client of a chunk that is closed.
    pub(super) fn fence(&mut self, client: Process, chunk: ChunkId) {
        self.numbers.remove(&chunk);
        if let Some(word) = self.words.get_mut(&chunk) {
            word.fenced.insert(client);
            word.set_fenced(client, true);
        }
    }

    /// A client is given a guard: from now on it knows the number, and its words count.
    pub(super) fn gives(&mut self, client: Process, chunk: ChunkId) {
        if let Some(word) = self.words.get_mut(&chunk)
            && word.fenced.remove(&client)
        {
            word.set_fenced(client, false);
        }
    }

    fn bytes(&self, place: Place) -> SharedBytes {
        let segment = &self.segments[place.segment];
        segment.bytes().slice(place.offset, place.bytes)
    }

    /// Returns a place of that length; `None` if there is no memory.
    fn take_place(&mut self, bytes: u64) -> Option<Place> {
        if let Some(unused) = self.unused.get_mut(&bytes).and_then(Vec::pop) {
            return Some(unused);
        }
        if self.filled + bytes > SEGMENT {
            self.segments.push(self.fabric.allocate(SEGMENT).ok()?);
            self.filled = 0;
        }
        let offset = self.filled;
        self.filled += bytes;
        Some(Place {
            segment: self.segments.len() - 1,
            offset,
            bytes,
        })
    }

    /// Lets a client take read guards of a chunk itself. Returns the place of the chunk's word;
    /// `None` if the client and this process do not map each other's memory, or if there is none.
    pub(super) fn enroll(
        &mut self,
        client: Process,
        (chunk, bytes): (ChunkId, u64),
        (key, offset): (SegmentKey, u64),
        content: impl FnOnce() -> Content,
    ) -> Option<(SegmentKey, u64)> {
        if key.peer != client.peer || !offset.is_multiple_of(8) {
            return None;
        }
        let remote = self.fabric.attach(key).ok()?;
        if !remote.mapped()?.contains(offset, LINE) {
            return None;
        }
        if !self.words.contains_key(&chunk) {
            let word = Word {
                place: self.take_place(bytes_for(bytes))?,
                clients: Vec::new(),
                fenced: BTreeSet::new(),
            };
            self.words.insert(chunk, word);
            if let Some(at) = self.open.get(&chunk).copied() {
                self.open(chunk, at, content);
            }
        }
        let word = self.words.get_mut(&chunk)?;
        // A process that has joined twice counts in two words.
        let is_same = |one: &Enrolled| (one.client, one.key, one.offset) == (client, key, offset);
        // What it had before it left, and joined again, is gone.
        let is_gone = |one: &Enrolled| one.client == client && !one.remote.is_offered();
        word.clients
            .retain(|enrolled| !is_same(enrolled) && !is_gone(enrolled));
        word.clients.push(Enrolled {
            client,
            key,
            remote,
            offset,
        });
        let is_fenced = word.fenced.contains(&client);
        word.set_fenced(client, is_fenced);
        let place = word.place;
        Some((self.segments[place.segment].key(), place.offset))
    }

    /// A chunk was removed. Its word may serve another chunk: no version of that one has a number
    /// that clients of this one know.
    pub(super) fn free(&mut self, chunk: ChunkId) {
        self.close(chunk);
        self.numbers.remove(&chunk);
        if let Some(word) = self.words.remove(&chunk) {
            let place = word.place;
            self.unused.entry(place.bytes).or_default().push(place);
        }
    }

    /// Returns the clients that have read guards of a chunk which they took themselves.
    pub(super) fn readers(&self, chunk: ChunkId) -> impl Iterator<Item = Process> {
        let words = self.words.get(&chunk).into_iter();
        words.flat_map(|word| {
            let clients = word.clients.iter().filter(|one| one.reads());
            let clients = clients.map(|one| one.client);
            clients.filter(|client| !word.fenced.contains(client))
        })
    }

    pub(super) fn forget(&mut self, client: Process) {
        for word in self.words.values_mut() {
            word.clients.retain(|enrolled| enrolled.client != client);
            word.fenced.remove(&client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_fabric::{Config, Identity};

    /// A process that leaves and joins again and again has the words of its last time.
    #[test]
    fn who_joins_again_has_one_word() {
        let fabric = Fabric::alone(Identity::by_hand("words"), Config::default());
        let fabric = fabric.expect("a domain of its own");
        let (mut words, chunk) = (Words::new(&fabric), ChunkId(4));
        let me = Process {
            peer: fabric.me(),
            incarnation: fabric.incarnation(),
        };
        for _ in 0..20 {
            let segment = fabric.allocate(LINE).expect("there is memory");
            let zeros = || Content::Zeros;
            let place = words.enroll(me, (chunk, 100), (segment.key(), 0), zeros);
            assert!(place.is_some());
            // ORDERING: one thread.
            segment.bytes().u64(0).store(1, Ordering::SeqCst);
            assert_eq!(words.readers(chunk).collect::<Vec<_>>(), [me]);
            assert_eq!(words.words[&chunk].clients.len(), 1);
        }
        words.forget(me);
        assert_eq!(words.words[&chunk].clients.len(), 0);
    }
}
