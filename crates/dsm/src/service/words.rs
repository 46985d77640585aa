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
//! waited for (`fence`); its version gets another number, so that it has to ask again when it goes
//! on.

use crate::protocol::{ChunkId, Process, Version};
use samite_fabric::{Fabric, Remote, Segment, SegmentKey};
use std::collections::{BTreeMap, BTreeSet};
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
}

/// A chunk that has a word.
#[derive(Debug)]
struct Word {
    /// The number of its word.
    number: u64,
    clients: Vec<Enrolled>,
    /// The clients whose words count for nothing, until they ask again.
    fenced: BTreeSet<Process>,
}

/// The words of a server.
#[derive(Debug)]
pub(super) struct Words {
    fabric: Fabric,
    segments: Vec<Segment>,
    words: BTreeMap<ChunkId, Word>,
    /// The chunks that are open.
    open: BTreeSet<ChunkId>,
    /// The numbers of the versions that are in use.
    numbers: BTreeMap<ChunkId, (Version, u64)>,
    /// The numbers of words whose chunks were removed.
    unused: Vec<u64>,
    /// Each version of a chunk has another number.
    last: u64,
}

impl Words {
    pub(super) fn new(fabric: &Fabric) -> Words {
        Words {
            fabric: fabric.clone(),
            segments: Vec::new(),
            words: BTreeMap::new(),
            open: BTreeSet::new(),
            numbers: BTreeMap::new(),
            unused: Vec::new(),
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

    pub(super) fn open(&mut self, chunk: ChunkId, version: Version) {
        let number = self.number(chunk, version);
        self.open.insert(chunk);
        self.set(chunk, number);
    }

    pub(super) fn close(&mut self, chunk: ChunkId) {
        self.open.remove(&chunk);
        self.set(chunk, 0);
    }

    fn set(&mut self, chunk: ChunkId, value: u64) {
        if let Some(word) = self.words.get(&chunk) {
            let (segment, offset) = self.place(word.number);
            // ORDERING: what follows reads the words of clients; see the module.
            segment.bytes().u64(offset).store(value, Ordering::SeqCst);
        }
    }

    /// No longer waits for the read guards of a client of a chunk that is closed.
    pub(super) fn fence(&mut self, client: Process, chunk: ChunkId) {
        self.numbers.remove(&chunk);
        if let Some(word) = self.words.get_mut(&chunk) {
            word.fenced.insert(client);
        }
    }

    /// A client is given a guard: from now on it knows the number, and its words count.
    pub(super) fn gives(&mut self, client: Process, chunk: ChunkId) {
        if let Some(word) = self.words.get_mut(&chunk) {
            word.fenced.remove(&client);
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
            let next = (self.words.len() + self.unused.len()) as u64;
            let number = self.unused.last().copied().unwrap_or(next);
            if number / WORDS >= self.segments.len() as u64 {
                self.segments.push(self.fabric.allocate(WORDS * LINE).ok()?);
            }
            let word = Word {
                number,
                clients: Vec::new(),
                fenced: BTreeSet::new(),
            };
            self.words.insert(chunk, word);
            self.unused.pop_if(|unused| *unused == number);
            if self.open.contains(&chunk) {
                let number = self.numbers.get(&chunk).map_or(0, |(_, number)| *number);
                self.set(chunk, number);
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
        let number = word.number;
        let (segment, offset) = self.place(number);
        Some((segment.key(), offset))
    }

    /// A chunk was removed. Its word may serve another chunk: no version of that one has a number
    /// that clients of this one know.
    pub(super) fn free(&mut self, chunk: ChunkId) {
        self.close(chunk);
        self.numbers.remove(&chunk);
        if let Some(word) = self.words.remove(&chunk) {
            self.unused.push(word.number);
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
            let place = words.enroll(me, chunk, (segment.key(), 0));
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
