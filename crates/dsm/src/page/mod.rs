//! The page of a process that owns a chunk: the versions that it commits, in its own memory.
//!
//! ```text
//!   0                           64         128                          192
//!   | ended | since | writer .. | begun .. | version | tag 0 | tag 1 .. | slot 0 | slot 1 | ..
//!                             .. 1024 x (tag, time)       a slot: where the content is, content
//! ```
//! A home lets a process that writes a chunk again and again own it. The owner commits by stores to
//! its page; the readers of its node, and those that wait for its commits, look there.
//! No message is sent, and no server has a turn. The page is written by the owner alone, but for
//! its first word, which is the home's: a process that was stopped in the middle of a commit, and
//! goes on when it owns nothing any more, changes nothing that counts.
//!
//! The content of a long chunk is not here: its slot says in which memory of the home it is, which
//! the owner was given as a draft, and lets others read.
//!
//! Version `v` is in the slot `v % 2`, its tag in the word `v % 2` beside the version, and the tag
//! and the time in the entry `v % 1024`. What a version is overwritten by is begun only when the
//! one in between is there. A commit is
//!
//! ```text
//!   owner                                       others
//!   begun = v + 1                               home:    its word = 0; begun == version ?
//!   the home's word says that it owns ?                    yes: nothing is committed any more
//!     no: begun = v, and it asks the home       reader:  its own word += 1; begun == version ?
//!   all words of the readers 0 ?                           yes: it has a read guard
//!     no: as above                              snapshot: reads version v, and its slot
//!   slot, tag and time                                     still version v ? yes: it has it
//!   version = v + 1                             both:    the home's word is as before ?
//!   is it ended ?
//!     yes: committed if that was after v + 1
//! ```
//! Each side first writes its word and then reads the other's, with sequential consistency, so at
//! least one of them sees the other (E. W. Dijkstra, Cooperating Sequential Processes, 1965). The
//! home that ends the ownership of a stopped process cannot wait for `begun`; it says so first
//! (`ended`), and then takes the version that it finds as the last one.
//!
//! # What it costs
//! A commit of 64 bytes: two stores with sequential consistency, of 8 ns each, the cache lines of
//! the words that it looks at (the home's, and one for each reader), which others seldom write,
//! and one that others fetch, of 50 to 100 ns: that of the version and the tags. A subscriber
//! needs that one only; a reader two more, for `begun` and the slot. There are no system calls,
//! unless a subscriber sleeps. For a long chunk, the owner changes the words of users of two
//! segments, which are one cache line each: eight compare-exchanges, of 5 ns, to publish one and as
//! many to take the other back; a reader attaches to one.

use crate::protocol::{GuardId, INLINE, Process, Version};
use crate::service::LINE;
use samite_fabric::{Fabric, PeerId, Remote, SegmentKey};
use samite_mem::SharedBytes;
use std::sync::atomic::{AtomicU64, Ordering, fence};

const ENDED: u64 = 0;
const SINCE: u64 = 8;
const WRITER: u64 = 16;
const BEGUN: u64 = LINE;
const VERSION: u64 = 2 * LINE;
const LAST_TAGS: u64 = 2 * LINE + 8;
const SLOTS: u64 = 3 * LINE;

/// The bytes of a slot before its content.
const HEAD: u64 = 8;

/// The number of tags that a page has: as many as a home knows commits of a chunk.
pub(crate) const TAGS: u64 = 1024;

/// The bytes of a tag and its time.
const TAG: u64 = 16;

/// Where the content of a slot is: at the home, as when the ownership began; here; or in a draft,
/// of which the slot has the number and the segment.
const AT_HOME: u64 = 0;
const HERE: u64 = 1;
const DRAFT: u64 = 2;

/// The bytes of the number of a draft, and of its segment.
const DRAFT_BYTES: u64 = 8 + 24;

/// What the home writes to `ENDED`: first this, and then the last version plus 2.
const ENDING: u64 = 1;

/// How often a reader tries that meets a writer.
const TRIES: u32 = 64;

/// Returns the bytes of the page of a chunk of that length.
pub(crate) fn bytes_for(bytes: u64) -> u64 {
    SLOTS + 2 * slot_for(bytes) + TAGS * TAG
}

fn last_tag(version: Version) -> u64 {
    LAST_TAGS + version.0 % 2 * 8
}

fn slot_for(bytes: u64) -> u64 {
    let content = if bytes <= INLINE { bytes } else { DRAFT_BYTES };
    (HEAD + content).next_multiple_of(LINE)
}

/// The content of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Placed<B> {
    /// That of a short chunk.
    Here(B),
    /// That of a long one is in a draft of the owner, in memory of the home.
    InDraft(GuardId, SegmentKey),
}

/// A page, of any process of this node.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    page: SharedBytes,
    /// The bytes of the chunk.
    bytes: u64,
}

/// A version, as a page has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) version: Version,
    pub(crate) tag: u64,
    /// `None`: that of the home, when the ownership began.
    pub(crate) content: Option<Placed<Vec<u8>>>,
}

impl Page {
    /// Returns the page of a chunk of that length at a place; `None` if the place is too short.
    pub(crate) fn at(page: SharedBytes, bytes: u64) -> Option<Page> {
        let is_long_enough = page.contains(0, bytes_for(bytes));
        is_long_enough.then_some(Page { page, bytes })
    }

    /// Returns the page of a chunk of that length at a place of any process, and what keeps it
    /// mapped; `None` if it is not mapped here.
    pub(crate) fn attach(
        fabric: &Fabric,
        (key, at): (SegmentKey, u64),
        bytes: u64,
    ) -> Option<(Page, Remote)> {
        let mapped = fabric.attach(key).ok()?;
        let all = mapped.mapped().filter(|_| at.is_multiple_of(LINE))?;
        let most = bytes_for(bytes);
        let page = all.contains(at, most).then(|| all.slice(at, most))?;
        Some((Page::at(page, bytes)?, mapped))
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        self.page.u64(at)
    }

    fn slot(&self, version: Version) -> u64 {
        SLOTS + version.0 % 2 * slot_for(self.bytes)
    }

    fn tag(&self, version: Version) -> u64 {
        SLOTS + 2 * slot_for(self.bytes) + version.0 % TAGS * TAG
    }

    /// Prepares the page of a process that will own the chunk after that version.
    pub(crate) fn prepare(&self, writer: Process) {
        // ORDERING: nobody reads the page before the home says that there is one.
        let set = |at, value| self.word(at).store(value, Ordering::Relaxed);
        set(ENDED, 0);
        set(BEGUN, 0);
        set(VERSION, 0);
        set(SINCE, 0);
        let peer = u64::from(writer.peer.0) << 32;
        set(WRITER, peer | u64::from(writer.incarnation));
    }

    /// The home writes after which version the ownership begins, and its tag.
    pub(crate) fn set_since(&self, since: Version, tag: u64) {
        // ORDERING: the home's word says later that the page counts.
        let set = |at, value| self.word(at).store(value, Ordering::Relaxed);
        set(BEGUN, since.0);
        set(VERSION, since.0);
        set(SINCE, since.0);
        set(self.slot(since), AT_HOME);
        set(last_tag(since), tag);
        set(self.tag(since), tag);
        set(self.tag(since) + 8, 0);
    }

    /// Returns the version after which the ownership began.
    pub(crate) fn since(&self) -> Version {
        // ORDERING: it was written before the page was there.
        Version(self.word(SINCE).load(Ordering::Relaxed))
    }

    /// Returns the process that owns the chunk.
    pub(crate) fn writer(&self) -> Process {
        // ORDERING: as above.
        let writer = self.word(WRITER).load(Ordering::Relaxed);
        Process {
            peer: PeerId((writer >> 32) as u32),
            incarnation: writer as u32,
        }
    }

    /// Returns the last version.
    #[inline]
    pub(crate) fn version(&self) -> Version {
        // ORDERING: who sees a version sees its slot and its tag; and see the module.
        Version(self.word(VERSION).load(Ordering::SeqCst))
    }

    /// Returns true if no version is being written.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        // ORDERING: see the module. First what has begun: if the version is that one, it is the
        // last.
        let begun = self.word(BEGUN).load(Ordering::SeqCst);
        self.version().0 == begun
    }

    /// The owner begins to write the next version. Until it has committed, or has taken that back,
    /// nobody takes a read guard.
    #[inline]
    pub(crate) fn begin(&self) {
        // ORDERING: see the module.
        let next = self.version().next();
        self.word(BEGUN).store(next.0, Ordering::SeqCst);
    }

    /// The owner does not write the next version.
    pub(crate) fn take_back(&self) {
        // ORDERING: see the module.
        let version = self.version();
        self.word(BEGUN).store(version.0, Ordering::SeqCst);
    }

    /// The owner commits the version that it has begun: content as long as the chunk. Returns the
    /// version.
    #[inline]
    pub(crate) fn commit(&self, content: &Placed<&[u8]>, tag: u64, time: u64) -> Version {
        let next = self.version().next();
        let slot = self.slot(next);
        // ORDERING: who sees any of what follows sees that it has begun.
        fence(Ordering::Release);
        // ORDERING: before the version.
        let set = |at, value| self.word(at).store(value, Ordering::Relaxed);
        match content {
            Placed::Here(bytes) => {
                set(slot, HERE);
                self.page.write(slot + HEAD, bytes);
            }
            Placed::InDraft(draft, key) => {
                set(slot, DRAFT);
                set(slot + HEAD, draft.0);
                self.page.write(slot + HEAD + 8, &key.to_bytes());
            }
        }
        set(self.tag(next), tag);
        set(self.tag(next) + 8, time);
        set(last_tag(next), tag);
        // ORDERING: see the module.
        self.word(VERSION).store(next.0, Ordering::SeqCst);
        next
    }

    /// Returns the present version; `None` if the owner writes faster than it can be read.
    pub(crate) fn read(&self) -> Option<Found> {
        (0..TRIES).find_map(|_| self.read_at(self.version()))
    }

    /// Returns a version, if it is the present one.
    pub(crate) fn read_at(&self, version: Version) -> Option<Found> {
        let found = self.read_last(version);
        self.is_at_most(version.0).then_some(found)
    }

    /// Returns the last version of an owner that commits no more than one other.
    pub(crate) fn read_last(&self, version: Version) -> Found {
        let slot = self.slot(version);
        // ORDERING: who sees the version sees its slot.
        let content = match self.word(slot).load(Ordering::Relaxed) {
            HERE if self.bytes <= INLINE => {
                let mut content = vec![0; self.bytes as usize];
                self.page.read(slot + HEAD, &mut content);
                Some(Placed::Here(content))
            }
            DRAFT if self.bytes > INLINE => {
                // ORDERING: as above.
                let draft = GuardId(self.word(slot + HEAD).load(Ordering::Relaxed));
                let mut key = [0; 24];
                self.page.read(slot + HEAD + 8, &mut key);
                Some(Placed::InDraft(draft, SegmentKey::from_bytes(&key)))
            }
            _ => None,
        };
        // ORDERING: as above.
        let tag = self.word(last_tag(version)).load(Ordering::Relaxed);
        Found {
            version,
            tag,
            content,
        }
    }

    /// Returns the present version and its tag; `None` if another one is committed meanwhile.
    #[inline]
    pub(crate) fn last_commit(&self) -> Option<(Version, u64)> {
        let version = self.version();
        // ORDERING: as above.
        let tag = self.word(last_tag(version)).load(Ordering::Relaxed);
        self.is_at_most(version.0).then_some((version, tag))
    }

    /// Returns the tag and the time of a commit; `None` if it is not known any more. It must not be
    /// later than the present version.
    pub(crate) fn commit_of(&self, version: Version) -> Option<(u64, u64)> {
        let at = self.tag(version);
        // ORDERING: as above.
        let tag = self.word(at).load(Ordering::Relaxed);
        let time = self.word(at + 8).load(Ordering::Relaxed);
        let is_known = self.is_at_most(version.0.saturating_add(TAGS - 2));
        is_known.then_some((tag, time))
    }

    /// Returns true if no later version than that one was committed when what was read before was
    /// read. So the one after the next was not begun.
    fn is_at_most(&self, version: u64) -> bool {
        // ORDERING: the reads before come before the one below.
        fence(Ordering::Acquire);
        self.word(VERSION).load(Ordering::Relaxed) <= version
    }

    /// The home begins to end the ownership. Returns the last version.
    pub(crate) fn begin_to_end(&self) -> Version {
        // ORDERING: see the module.
        self.word(ENDED).store(ENDING, Ordering::SeqCst);
        self.version()
    }

    /// The home has ended the ownership, and does not need the page any more. The owner hears which
    /// version is the last one when it looks.
    pub(crate) fn end(&self, last: Version) {
        // ORDERING: what is read of the page was read before; and see the module.
        let ended = last.0.saturating_add(2);
        self.word(ENDED).store(ended, Ordering::SeqCst);
    }

    /// Returns true if the home has begun to end the ownership.
    pub(crate) fn is_ended(&self) -> bool {
        // ORDERING: see the module.
        self.word(ENDED).load(Ordering::SeqCst) != 0
    }

    /// Returns the last version of an ownership that has ended; `None` if the home has not said it
    /// yet.
    pub(crate) fn last(&self) -> Option<Version> {
        // ORDERING: see the module.
        let ended = self.word(ENDED).load(Ordering::SeqCst);
        ended.checked_sub(2).map(Version)
    }
}

#[cfg(test)]
mod orders;
#[cfg(test)]
mod tests;
