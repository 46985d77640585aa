//! The layout of a node's shared memory: the words that every process may write. Words that only
//! the agent writes are in memory of their own (`peers`).
//!
//! ```text
//!   0        words of each process, 128 bytes each               (it writes them)
//!   .        doorbells, 128 bytes each                           (owner and its senders write)
//!   .        what each process waits for, 256 bytes each         (it writes them)
//!   .        inbox[to][from]: offset of the ring                 (from writes)
//!   .        directory[peer][segment]: contents (owner writes), users (`samite_mem::lease`)
//!   256 MiB  extents: everything else
//! ```
//!
//! All of it is sparse: a page exists once it has been written. No reader trusts anything here
//! (rule M5 of `samite_mem`): any process of the domain can write anywhere in it.

use super::Slot;
use super::table::{CPU_WORDS, Cpus, PeerTable};
use super::wait::{TEXT_MAX, WORDS as WORDS_OF_WAIT, WaitRecord};
use crate::Error;
use samite_mem::lease::{ENTRY_BYTES, Holder, OwnEntry};
use samite_mem::sync::{Ordering, fence};
use samite_mem::{Arena, DOORBELL_BYTES, Doorbell, PEERS_MAX, SharedBytes, Span};

const WORDS: u64 = 0;
const WORDS_BYTES: u64 = 128;
const BELLS: u64 = (WORDS + PEERS_MAX as u64 * WORDS_BYTES).next_multiple_of(4096);
const WAITS: u64 = (BELLS + PEERS_MAX as u64 * DOORBELL_BYTES).next_multiple_of(4096);
const WAIT_BYTES: u64 = 256;
/// The words of a wait begin with its number, 0 for none. Then come the words of its record.
const WAIT_WORDS: u64 = 8;
const WAIT_TEXT: u64 = WAIT_WORDS + 8 * WORDS_OF_WAIT as u64;
const _: () = assert!(WAIT_TEXT + TEXT_MAX as u64 <= WAIT_BYTES);
const INBOX: u64 = (WAITS + PEERS_MAX as u64 * WAIT_BYTES).next_multiple_of(4096);
const DIRECTORY: u64 = (INBOX + (PEERS_MAX * PEERS_MAX * 8) as u64).next_multiple_of(4096);
/// The most segments that one peer can offer at a time.
pub(crate) const SEGMENTS_MAX: u32 = 4096;
/// Entries in a page of a directory, which the agent reads as a whole.
const ENTRIES_OF_PAGE: u64 = 4096 / ENTRY_BYTES;
const _: () = assert!(SEGMENTS_MAX as u64 == 2 * 64 * ENTRIES_OF_PAGE);
const DIRECTORY_END: u64 = DIRECTORY + PEERS_MAX as u64 * SEGMENTS_MAX as u64 * ENTRY_BYTES;
/// First byte of the extents.
pub(crate) const EXTENTS: u64 = 256 << 20;
const _: () = assert!(DIRECTORY_END <= EXTENTS);

const COOKIE_ADDRESS: u64 = 0;
const COOKIE: u64 = 8;
const SEEN_EPOCH: u64 = 16;
/// Number of segments on which the process holds leases.
const LEASES: u64 = 24;
/// The pages of its directory that it ever used, one bit each.
const SEGMENTS: u64 = 32;
const OWN_WORDS: u64 = SEGMENTS + 16;
const _: () = assert!(OWN_WORDS <= WORDS_BYTES);

/// Returns the processors on which the calling thread may run.
pub(crate) fn own_cpus() -> Cpus {
    let mut cpus = [0; CPU_WORDS];
    if let Ok(set) = rustix::thread::sched_getaffinity(None) {
        for cpu in (0..CPU_WORDS * 64).filter(|cpu| set.is_set(*cpu)) {
            cpus[cpu / 64] |= 1 << (cpu % 64);
        }
    }
    cpus
}

/// An entry of a peer's directory of segments.
pub(crate) type Entry = samite_mem::lease::Entry<SharedBytes>;

/// A claim word, found by its offset: it divides the pieces of a message.
#[derive(Clone, Debug)]
pub(crate) struct ClaimWord(pub(crate) SharedBytes);

impl std::ops::Deref for ClaimWord {
    type Target = samite_mem::sync::AtomicU64;
    fn deref(&self) -> &Self::Target {
        self.0.u64(0)
    }
}

/// Returns a segment of a node as 32 bits, by which a leased range names its segment.
pub(crate) fn segment_id(peer: Slot, segment: u32) -> u64 {
    (peer.0 as u64) << 16 | segment as u64
}

/// Returns the segment that an id names.
pub(crate) fn segment_of(id: u64) -> (Slot, u32) {
    (Slot((id >> 16) as u32 & 0xffff), id as u32 & 0xffff)
}

/// A view of the fixed part of a node's memory.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    arena: Arena,
    fixed: SharedBytes,
    /// The table of peers.
    pub(crate) peers: PeerTable,
}

impl Layout {
    /// Returns the memory of a node: an existing arena, and the table of its peers.
    pub(crate) fn new(arena: Arena, peers: PeerTable) -> Result<Layout, Error> {
        let fixed = arena.bytes(0, EXTENTS)?;
        Ok(Layout {
            arena,
            fixed,
            peers,
        })
    }

    /// Returns the arena.
    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    fn words(peer: Slot) -> u64 {
        WORDS + peer.index() as u64 * WORDS_BYTES
    }

    /// Agent: initializes the words of a process that joins at `epoch`, before it reads them.
    pub(crate) fn begin(&self, peer: Slot, epoch: u64) {
        for word in (0..OWN_WORDS).step_by(8) {
            let begun = if word == SEEN_EPOCH { epoch } else { 0 };
            // ORDERING: Relaxed: the process gets its number afterwards, by a message.
            self.fixed
                .u64(Self::words(peer) + word)
                .store(begun, Ordering::Relaxed);
        }
        self.hide_wait(peer);
    }

    /// Owner: publishes what it waits for, under a number that is not 0.
    pub(crate) fn show_wait(&self, me: Slot, number: u64, wait: &WaitRecord) {
        let at = WAITS + me.index() as u64 * WAIT_BYTES;
        self.hide_wait(me);
        // ORDERING: Release pairs with the Acquire fence in `shown_wait`: whoever reads a word of
        // this wait does not find the number of the last one afterwards.
        fence(Ordering::Release);
        for (index, word) in wait.words.iter().enumerate() {
            self.fixed
                .u64(at + WAIT_WORDS + 8 * index as u64)
                .store(*word, Ordering::Relaxed);
        }
        self.fixed.write(at + WAIT_TEXT, &wait.text);
        // ORDERING: Release pairs with the Acquire load in `shown_wait`.
        self.fixed.u64(at).store(number, Ordering::Release);
    }

    /// Owner: withdraws what it has published.
    pub(crate) fn hide_wait(&self, me: Slot) {
        let at = WAITS + me.index() as u64 * WAIT_BYTES;
        self.fixed.u64(at).store(0, Ordering::Relaxed);
    }

    /// Returns what a process waits for, if it has published that.
    pub(crate) fn shown_wait(&self, peer: Slot) -> Option<WaitRecord> {
        let at = WAITS + peer.index() as u64 * WAIT_BYTES;
        // ORDERING: Acquire pairs with the Release store in `show_wait`.
        let number = self.fixed.u64(at).load(Ordering::Acquire);
        if number == 0 {
            return None;
        }
        let word = |index: usize| self.fixed.u64(at + WAIT_WORDS + 8 * index as u64);
        let words: [u64; WORDS_OF_WAIT] =
            std::array::from_fn(|index| word(index).load(Ordering::Relaxed));
        let len = words[WORDS_OF_WAIT - 1].min(TEXT_MAX as u64);
        let mut text = vec![0; len as usize];
        self.fixed.read(at + WAIT_TEXT, &mut text);
        // ORDERING: Acquire pairs with the Release fence in `show_wait`.
        fence(Ordering::Acquire);
        let is_same = self.fixed.u64(at).load(Ordering::Relaxed) == number;
        is_same.then_some(WaitRecord { words, text })
    }

    /// Owner: sets where its cookie for the probe of the kernel copy is.
    pub(crate) fn set_cookie(&self, me: Slot, address: u64, cookie: u64) {
        let at = Self::words(me);
        self.fixed.u64(at + COOKIE).store(cookie, Ordering::Relaxed);
        // ORDERING: Release pairs with the Acquire load in `cookie`.
        self.fixed
            .u64(at + COOKIE_ADDRESS)
            .store(address, Ordering::Release);
    }

    /// Returns process id, address and value of a peer's cookie.
    pub(crate) fn cookie(&self, peer: Slot) -> (i32, u64, u64) {
        let at = Self::words(peer);
        // ORDERING: Acquire pairs with the Release store in `set_cookie`.
        let address = self.fixed.u64(at + COOKIE_ADDRESS).load(Ordering::Acquire);
        let cookie = self.fixed.u64(at + COOKIE).load(Ordering::Relaxed);
        (self.peers.pid(peer), address, cookie)
    }

    /// Owner: sets the epoch up to which it has acted on all deaths; it will not touch memory of
    /// those dead.
    pub(crate) fn set_seen_epoch(&self, me: Slot, epoch: u64) {
        // ORDERING: Release pairs with the Acquire load in `seen_epoch`.
        self.fixed
            .u64(Self::words(me) + SEEN_EPOCH)
            .store(epoch, Ordering::Release);
    }

    /// Returns the epoch up to which a peer has acted.
    pub(crate) fn seen_epoch(&self, peer: Slot) -> u64 {
        // ORDERING: Acquire pairs with the Release store in `set_seen_epoch`.
        self.fixed
            .u64(Self::words(peer) + SEEN_EPOCH)
            .load(Ordering::Acquire)
    }

    /// Returns a peer's doorbell.
    pub(crate) fn doorbell(&self, peer: Slot) -> Doorbell<SharedBytes> {
        let at = BELLS + peer.index() as u64 * DOORBELL_BYTES;
        match Doorbell::new(self.fixed.slice(at, DOORBELL_BYTES)) {
            Ok(bell) => bell,
            Err(_) => unreachable!("doorbells are aligned by the layout"),
        }
    }

    /// Returns the word with the place of the ring from one peer to another; 0 while there is none.
    pub(crate) fn inbox(&self, to: Slot, from: Slot) -> &samite_mem::sync::AtomicU64 {
        self.fixed
            .u64(INBOX + (to.index() * PEERS_MAX + from.index()) as u64 * 8)
    }

    fn entry_at(peer: Slot, segment: u32) -> u64 {
        DIRECTORY + (peer.index() as u64 * SEGMENTS_MAX as u64 + segment as u64) * ENTRY_BYTES
    }

    /// Returns a peer's entry of a segment; `None` if the number is invalid.
    pub(crate) fn entry(&self, peer: Slot, segment: u32) -> Option<Entry> {
        if segment >= SEGMENTS_MAX || peer.index() >= PEERS_MAX {
            return None;
        }
        let words = self.fixed.slice(Self::entry_at(peer, segment), ENTRY_BYTES);
        Entry::new(words).ok()
    }

    /// Returns this process as a holder of leases.
    pub(crate) fn holder(&self, me: Slot) -> Holder {
        let out = self.fixed.slice(Self::words(me) + LEASES, 8);
        Holder::new(self.arena.clone(), me.index(), out)
    }

    /// Owner: returns the entry of a future segment.
    pub(crate) fn own_entry(&self, me: Slot, segment: u32, holder: &Holder) -> Option<OwnEntry> {
        let entry = self.entry(me, segment)?;
        let page = segment as u64 / ENTRIES_OF_PAGE;
        // ORDERING: Release pairs with the Acquire load in `entries`; set before the segment is
        // offered.
        self.fixed
            .u64(Self::words(me) + SEGMENTS + page / 64 * 8)
            .fetch_or(1 << (page % 64), Ordering::Release);
        Some(OwnEntry {
            holder: holder.clone(),
            entry,
            id: segment_id(me, segment),
        })
    }

    /// Agent: returns the entries in the pages of a peer's directory that it ever used. Reading
    /// other pages would allocate them.
    fn entries(&self, peer: Slot) -> impl Iterator<Item = Entry> {
        let at = Self::words(peer) + SEGMENTS;
        // ORDERING: Acquire pairs with the Release in `own_entry`.
        let used = [at, at + 8].map(|at| self.fixed.u64(at).load(Ordering::Acquire));
        let page = |segment: &u32| *segment as u64 / ENTRIES_OF_PAGE;
        (0..SEGMENTS_MAX)
            .filter(move |segment| {
                let page = page(segment);
                used[(page / 64) as usize] & 1 << (page % 64) != 0
            })
            .filter_map(move |segment| self.entry(peer, segment))
    }

    /// Agent: ends the leases of a dead process in the directories of the first `peers` slots.
    pub(crate) fn end_leases_of(&self, dead: Slot, peers: u32) {
        for entry in (0..peers).map(Slot).flat_map(|peer| self.entries(peer)) {
            entry.clear(dead.index());
        }
        self.fixed
            .u64(Self::words(dead) + LEASES)
            .store(0, Ordering::Relaxed);
    }

    /// Agent: returns whether a process holds leases.
    pub(crate) fn has_leases(&self, peer: Slot) -> bool {
        // ORDERING: Acquire pairs with the Release of the holder, which updates the count after
        // each lease ends.
        self.fixed
            .u64(Self::words(peer) + LEASES)
            .load(Ordering::Acquire)
            != 0
    }

    /// Agent: returns whether any process holds a lease on memory of this peer.
    pub(crate) fn is_leased(&self, peer: Slot) -> bool {
        self.entries(peer).any(|entry| !entry.who().is_empty())
    }

    /// Agent: clears the rings and segments of a dead peer before its slot is reused. Only the
    /// first `peers` slots were ever used: reading a page of the others would allocate it.
    pub(crate) fn wipe(&self, peer: Slot, peers: u32) -> Result<(), Error> {
        for other in (0..peers).map(Slot) {
            self.inbox(peer, other).store(0, Ordering::Relaxed);
            self.inbox(other, peer).store(0, Ordering::Relaxed);
        }
        let directory = Span {
            offset: Self::entry_at(peer, 0),
            bytes: SEGMENTS_MAX as u64 * ENTRY_BYTES,
        };
        self.arena.release(directory)?;
        let bell = BELLS + peer.index() as u64 * DOORBELL_BYTES;
        self.fixed.slice(bell, DOORBELL_BYTES).fill(0);
        Ok(())
    }

    /// Returns the claim word at an offset that another process sent, as memory of its own; `None`
    /// if the offset is invalid.
    pub(crate) fn claim_word(&self, offset: u64) -> Option<ClaimWord> {
        let inside = offset >= EXTENTS && offset.is_multiple_of(samite_mem::LINE);
        inside
            .then(|| self.arena.bytes(offset, 8).ok())
            .flatten()
            .map(ClaimWord)
    }

    /// Returns the tables, as far as the first `peers` slots use them, and the memory of segments,
    /// unchecked: their contents, which peer writes them (`None`: all), and where they are.
    #[cfg(feature = "testing")]
    pub(crate) fn tables(&self, peers: u32) -> Vec<(&'static str, Option<Slot>, Span)> {
        let span = |offset, bytes| Span { offset, bytes };
        let bells = span(BELLS, peers as u64 * DOORBELL_BYTES);
        let mut tables = vec![("doorbells", None, bells)];
        for peer in (0..peers).map(Slot) {
            let own = span(Self::words(peer), OWN_WORDS);
            tables.push(("words", Some(peer), own));
            let wait = span(WAITS + peer.index() as u64 * WAIT_BYTES, WAIT_BYTES);
            tables.push(("waits", Some(peer), wait));
            const LISTED: u32 = 64;
            let directory = span(Self::entry_at(peer, 0), LISTED as u64 * ENTRY_BYTES);
            tables.push(("directory", Some(peer), directory));
            for segment in 0..LISTED {
                let Some(seen) = self.entry(peer, segment).and_then(|entry| entry.look()) else {
                    continue;
                };
                let users = Self::entry_at(peer, segment) + ENTRY_BYTES / 2;
                tables.push(("users", None, span(users, ENTRY_BYTES / 2)));
                if !seen.private {
                    let memory = span(seen.place, seen.bytes);
                    tables.push(("segment", Some(peer), memory));
                }
            }
            for to in (0..peers as u64).map(|to| to * PEERS_MAX as u64) {
                let word = INBOX + (to + peer.index() as u64) * 8;
                tables.push(("inbox", Some(peer), span(word, 8)));
            }
        }
        tables
    }

    /// Returns the part of the arena from which extents are cut.
    pub(crate) fn extents(&self) -> Span {
        Span {
            offset: EXTENTS,
            bytes: self.arena.len() - EXTENTS,
        }
    }
}
