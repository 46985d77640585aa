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
//!
//! One client may own the chunk: then the word has the mark [`OWNED`], and the owner takes the part
//! of the server in the protocol above, for the versions that it commits ([`crate::page`]).

use super::memory::{Arrived, Memory};
use crate::page::{Found, Page, Placed, TAGS};
use crate::places::{Place, Places};
use crate::protocol::{ChunkId, Commits, Content, Process, Reader, Server, Ticket, Version};
use crate::published::{bytes_for, publish, publish_page, withdraw};
use samite_fabric::{Fabric, Remote, SegmentKey};
use samite_mem::SharedBytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// Bytes from one word to the next: the words of two chunks share no cache line.
pub(crate) const LINE: u64 = 64;

/// The number of words in a segment of a client.
pub(crate) const WORDS: u64 = 1024;

/// Where a client's word says that it counts for nothing, in bytes from the word.
pub(crate) const FENCED: u64 = 8;

/// Where a client says how many of its threads sleep until there is a commit, in bytes from its
/// word.
pub(crate) const ASLEEP: u64 = 16;

/// The mark of the word of a chunk that a client owns.
pub(crate) const OWNED: u64 = 1 << 63;

/// More than an owner can commit.
const MOST_COMMITS: u64 = 1 << 48;

/// The most clients with words of a chunk that a client owns: it looks at all of them before each
/// commit.
const MOST_READERS: usize = 64;

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

/// A chunk that has a word.
#[derive(Debug)]
struct Word {
    place: Place,
    clients: Vec<Enrolled>,
    /// The clients whose words count for nothing, until they ask again.
    fenced: BTreeSet<Process>,
    owner: Option<Owner>,
}

/// A client that owns a chunk.
#[derive(Debug)]
struct Owner {
    client: Process,
    /// The request by which it owns the chunk.
    ticket: Ticket,
    page: Page,
    _mapped: Remote,
    /// The last version that the server knows.
    known: Version,
    is_recalled: bool,
}

impl Word {
    /// Says to a client whether its words count.
    fn set_fenced(&self, client: Process, is_fenced: bool) {
        let of_client = self.clients.iter().filter(|one| one.client == client);
        of_client.for_each(|one| one.set_fenced(is_fenced));
    }
}

impl Owner {
    /// Takes over what was committed up to that version. What an owner says that does not follow
    /// the protocol counts for nothing.
    fn adopt(
        &mut self,
        chunk: ChunkId,
        found: Found,
        (server, memory): (&Server, &mut Memory),
    ) -> Commits {
        let (known, last) = (self.known.0, found.version.0);
        let count = last.checked_sub(known);
        let count = count.filter(|count| (1..MOST_COMMITS).contains(count));
        let (Some(count), Some(content)) = (count, found.content) else {
            return Commits::default();
        };
        let (arrived, draft) = match content {
            Placed::Here(bytes) => (Some(Arrived::inline(bytes)), None),
            Placed::InDraft(draft, _) => {
                let has_it = server.has_draft(self.client, chunk, draft);
                let taken = has_it.then(|| memory.take_published(self.client, draft));
                (taken.flatten(), Some(draft))
            }
        };
        let Some(arrived) = arrived else {
            return Commits::default();
        };
        memory.adopt_from(chunk, arrived);
        self.known = found.version;
        let first = last.saturating_sub(TAGS - 2).max(known + 1);
        let tags = (first..=last).rev().map_while(|version| {
            let (tag, time) = self.page.commit_of(Version(version))?;
            let is_last = version == last;
            Some((if is_last { found.tag } else { tag }, time))
        });
        let mut tags: Vec<_> = tags.collect();
        if tags.is_empty() {
            tags.push((found.tag, 0)); // It commits faster than this process reads.
        }
        tags.reverse();
        Commits {
            count,
            last: tags,
            draft,
        }
    }
}

/// The words of a server.
#[derive(Debug)]
pub(super) struct Words {
    fabric: Fabric,
    places: Places,
    words: BTreeMap<ChunkId, Word>,
    /// The chunks that clients own.
    owned: BTreeSet<ChunkId>,
    /// The chunks that are open, their versions and tags.
    open: BTreeMap<ChunkId, (Version, u64)>,
    /// The numbers of the versions that are in use.
    numbers: BTreeMap<ChunkId, (Version, u64)>,
    /// Each version of a chunk has another number.
    last: u64,
}

impl Words {
    pub(super) fn new(fabric: &Fabric) -> Words {
        Words {
            fabric: fabric.clone(),
            places: Places::default(),
            words: BTreeMap::new(),
            owned: BTreeSet::new(),
            open: BTreeMap::new(),
            numbers: BTreeMap::new(),
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
        self.places.bytes(place)
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
                place: self.places.take(&self.fabric, bytes_for(bytes))?,
                clients: Vec::new(),
                fenced: BTreeSet::new(),
                owner: None,
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
        Some(self.places.key(word.place))
    }

    /// A chunk was removed. Its word may serve another chunk: no version of that one has a number
    /// that clients of this one know.
    pub(super) fn free(&mut self, chunk: ChunkId) {
        self.close(chunk);
        self.numbers.remove(&chunk);
        self.owned.remove(&chunk);
        if let Some(word) = self.words.remove(&chunk) {
            if let Some(owner) = word.owner {
                let last = owner.page.begin_to_end();
                owner.page.end(last);
            }
            self.places.give_back(word.place);
        }
    }

    /// Lets a client own a chunk of that length, whose present version is this one. Its page is at
    /// that place. Returns the number by which it owns the chunk, and the others that have words of
    /// it; `None` if that is not possible.
    pub(super) fn own(
        &mut self,
        (client, ticket): (Process, Ticket),
        (chunk, bytes): (ChunkId, u64),
        (key, at): (SegmentKey, u64),
        (version, tag, content): (Version, u64, Content),
    ) -> Option<(u64, Vec<Reader>)> {
        let word = self.words.get_mut(&chunk)?;
        // A client that has left, and may have joined again, has no words any more.
        word.clients.retain(|one| one.remote.is_offered());
        let is_possible = word.owner.is_none() && word.fenced.is_empty();
        if !is_possible || word.clients.len() > MOST_READERS || key.peer != client.peer {
            return None;
        }
        let (page, mapped) = Page::attach(&self.fabric, (key, at), bytes)?;
        page.set_since(version, tag);
        let readers = word.clients.iter().map(|one| Reader {
            client: one.client,
            segment: one.key,
            offset: one.offset,
            inbox: None,
        });
        let readers = readers.collect();
        word.owner = Some(Owner {
            client,
            ticket,
            page,
            _mapped: mapped,
            known: version,
            is_recalled: false,
        });
        self.owned.insert(chunk);
        let place = self.places.bytes(word.place);
        self.last += 1;
        let number = self.last | OWNED;
        publish(&place, chunk, &(version, tag, content));
        publish_page(&place, chunk, (key, at));
        // ORDERING: who sees that it is owned sees by whom.
        place.u64(0).store(number, Ordering::SeqCst);
        Some((number, readers))
    }

    /// Returns true if a client owns a chunk, or has not stopped to.
    pub(super) fn is_owned(&self, chunk: ChunkId) -> bool {
        self.owned.contains(&chunk)
    }

    /// Returns the client that owns a chunk, and the request by which it does.
    pub(super) fn owner(&self, chunk: ChunkId) -> Option<(Process, Ticket)> {
        let owner = self.words.get(&chunk)?.owner.as_ref()?;
        Some((owner.client, owner.ticket))
    }

    /// Returns the chunks that a client owns.
    pub(super) fn owned_by(&self, client: Process) -> Vec<ChunkId> {
        self.owned_where(|owner| owner.client == client)
    }

    /// Returns the chunks whose owners are to stop and have not, because they are writing.
    pub(super) fn recalled(&self) -> Vec<ChunkId> {
        self.owned_where(|owner| owner.is_recalled)
    }

    /// Returns the chunks that others own, and of which a client has a word.
    pub(super) fn owned_and_read_by(&self, client: Process) -> Vec<ChunkId> {
        let reads = |chunk: &&ChunkId| {
            let word = self.words.get(chunk);
            word.is_some_and(|word| word.clients.iter().any(|one| one.client == client))
        };
        self.owned.iter().filter(reads).copied().collect()
    }

    fn owned_where(&self, is_wanted: impl Fn(&Owner) -> bool) -> Vec<ChunkId> {
        let owner = |chunk| self.words.get(chunk).and_then(|word| word.owner.as_ref());
        let owned = self.owned.iter();
        let owned = owned.filter(|chunk| owner(chunk).is_some_and(&is_wanted));
        owned.copied().collect()
    }

    /// Returns the present version of a chunk that a client owns, and its tag.
    pub(super) fn version(&self, chunk: ChunkId) -> Option<(Version, u64)> {
        let owner = self.words.get(&chunk)?.owner.as_ref()?;
        owner.page.last_commit()
    }

    /// The owner of a chunk is to stop. Returns true if it has: it commits nothing any more.
    pub(super) fn recall(&mut self, chunk: ChunkId) -> bool {
        let Some(word) = self.words.get_mut(&chunk) else {
            return true;
        };
        let Some(owner) = &mut word.owner else {
            return true;
        };
        owner.is_recalled = true;
        let place = self.places.bytes(word.place);
        // First: without the mark of an owner, what is published counts as the present version.
        withdraw(&place);
        // ORDERING: what follows reads the owner's page; see `page`.
        place.u64(0).store(0, Ordering::SeqCst);
        owner.page.is_idle()
    }

    /// Takes what the owner of a chunk has committed since it was asked last: the content goes to
    /// the memory of the server. If the ownership ends, the owner hears of it.
    pub(super) fn commits(
        &mut self,
        chunk: ChunkId,
        ends: bool,
        (server, memory): (&Server, &mut Memory),
    ) -> Option<Commits> {
        let word = self.words.get_mut(&chunk)?;
        let owner = word.owner.as_mut()?;
        if !ends {
            let found = owner.page.read();
            let adopt = |found| owner.adopt(chunk, found, (server, memory));
            return Some(found.map_or_else(Commits::default, adopt));
        }
        let place = self.places.bytes(word.place);
        withdraw(&place); // As in `recall`.
        // ORDERING: the owner begins nothing any more.
        place.u64(0).store(0, Ordering::SeqCst);
        let last = owner.page.begin_to_end();
        // It has seen, or will, that it does not own the chunk before it begins another.
        let found = owner.page.read_last(last);
        let commits = owner.adopt(chunk, found, (server, memory));
        // What could not be taken over is not committed.
        owner.page.end(owner.known);
        word.owner = None;
        self.owned.remove(&chunk);
        Some(commits)
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
