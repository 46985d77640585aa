//! Words of shared memory by which clients take read guards without a message.
//!
//! ```text
//!   client                                      server
//!   own word += 1                               chunk's word = 0           (it closes the chunk)
//!   chunk's word == version + 1 ?               own words of the clients all 0 ?
//!     yes: it has a read guard                    yes: somebody may write
//!     no:  own word -= 1, a note                  no:  it waits for notes
//! ```
//! Each side first writes its word and then reads the other's, with sequential consistency, so at
//! least one of them sees the other. A client writes to no memory but its own: the words of a client
//! that has died are forgotten.

use crate::protocol::{ChunkId, Process, Version, open_word};
use samite_fabric::{Fabric, Remote, Segment, SegmentKey};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Bytes from one word to the next: the words of two chunks share no cache line.
pub(crate) const LINE: u64 = 64;

/// The number of words in a segment.
pub(crate) const WORDS: u64 = 1024;

/// A client that takes read guards of a chunk itself.
#[derive(Debug)]
struct Enrolled {
    client: Process,
    /// Its segment, and where the word is in it.
    remote: Remote,
    offset: u64,
}

impl Enrolled {
    fn reads(&self) -> bool {
        let word = self.remote.mapped().map(|bytes| bytes.u64(self.offset));
        // ORDERING: the server has closed the chunk; see the module.
        word.is_some_and(|word| word.load(Ordering::SeqCst) > 0)
    }
}

/// A chunk that has a word.
#[derive(Debug)]
struct Word {
    /// The number of its word.
    number: u64,
    clients: Vec<Enrolled>,
}

/// The words of a server.
#[derive(Debug)]
pub(super) struct Words {
    fabric: Fabric,
    segments: Vec<Segment>,
    words: BTreeMap<ChunkId, Word>,
    /// What the words contain, or would contain.
    open: BTreeMap<ChunkId, u64>,
}

impl Words {
    pub(super) fn new(fabric: &Fabric) -> Words {
        Words {
            fabric: fabric.clone(),
            segments: Vec::new(),
            words: BTreeMap::new(),
            open: BTreeMap::new(),
        }
    }

    pub(super) fn open(&mut self, chunk: ChunkId, version: Version) {
        self.set(chunk, open_word(version));
    }

    pub(super) fn close(&mut self, chunk: ChunkId) {
        self.set(chunk, 0);
    }

    fn set(&mut self, chunk: ChunkId, value: u64) {
        self.open.insert(chunk, value);
        if let Some(word) = self.words.get(&chunk) {
            let (segment, offset) = self.place(word.number);
            // ORDERING: what follows reads the words of clients; see the module.
            segment.bytes().u64(offset).store(value, Ordering::SeqCst);
        }
    }

    fn place(&self, number: u64) -> (&Segment, u64) {
        let segment = &self.segments[(number / WORDS) as usize];
        (segment, number % WORDS * LINE)
    }

    /// Lets a client take read guards of a chunk itself. Returns the place of the chunk's word;
    /// `None` if the client and this process do not map each other's memory, or if there is none.
    pub(super) fn enroll(
        &mut self,
        client: Process,
        chunk: ChunkId,
        (key, offset): (SegmentKey, u64),
    ) -> Option<(SegmentKey, u64)> {
        if key.peer != client.peer || !offset.is_multiple_of(8) {
            return None;
        }
        let remote = self.fabric.attach(key).ok()?;
        if !remote.mapped()?.contains(offset, 8) {
            return None;
        }
        if !self.words.contains_key(&chunk) {
            let number = self.words.len() as u64;
            if number / WORDS >= self.segments.len() as u64 {
                self.segments.push(self.fabric.allocate(WORDS * LINE).ok()?);
            }
            let clients = Vec::new();
            self.words.insert(chunk, Word { number, clients });
            let value = self.open.get(&chunk).copied().unwrap_or(0);
            self.set(chunk, value);
        }
        let word = self.words.get_mut(&chunk)?;
        word.clients.retain(|enrolled| enrolled.client != client);
        word.clients.push(Enrolled {
            client,
            remote,
            offset,
        });
        let number = word.number;
        let (segment, offset) = self.place(number);
        Some((segment.key(), offset))
    }

    /// Returns the clients that have read guards of a chunk which they took themselves.
    pub(super) fn readers(&self, chunk: ChunkId) -> impl Iterator<Item = Process> {
        let clients = self.words.get(&chunk).into_iter();
        let clients = clients.flat_map(|word| &word.clients);
        clients.filter(|one| one.reads()).map(|one| one.client)
    }

    pub(super) fn forget(&mut self, client: Process) {
        for word in self.words.values_mut() {
            word.clients.retain(|enrolled| enrolled.client != client);
        }
    }
}
