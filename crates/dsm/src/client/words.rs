//! The words of shared memory by which this process takes guards without messages: its own, and
//! those of servers; and the pages of the chunks that are owned.

use super::Client;
use crate::clock;
use crate::error::{Error, Result};
use crate::page::{self, Page};
use crate::places::{Place, Places};
use crate::protocol::{Answer, ChunkId, Request};
use crate::published::{bytes_for, read_page};
use crate::service::{LINE, WORDS};
use samite_fabric::{Fabric, Remote, Segment, SegmentKey};
use samite_mem::SharedBytes;
use std::collections::HashMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// The words in which this process counts read guards that it takes itself: one for each chunk that
/// it has ever opened.
#[derive(Debug, Default)]
pub(super) struct Words {
    segments: Vec<Segment>,
    numbers: HashMap<ChunkId, u64>,
}

/// The two words by which this process takes read guards of a chunk without a message.
#[derive(Clone, Debug)]
pub(crate) struct OwnGuards {
    /// The number of such guards that this process has, and whether that counts.
    pub(crate) count: SharedBytes,
    /// Written by the server: whether there may be any, and of which version; and that version.
    pub(crate) open: SharedBytes,
    /// Written by a server that has the chunk from another home, or by the home of a chunk with
    /// replicas: until when what it has is valid.
    pub(crate) lease: Option<SharedBytes>,
}

impl OwnGuards {
    /// Returns true if the copy of the server is valid now.
    #[inline]
    pub(crate) fn has_lease(&self) -> bool {
        self.lease.as_ref().is_none_or(|until| {
            // ORDERING: an older value is an earlier end.
            clock::nanoseconds() < until.u64(0).load(Ordering::Relaxed)
        })
    }
}

/// The most chunks that a process owns: some megabytes of pages.
const MOST_PAGES: usize = 256;

/// The page of the process that owns a chunk.
#[derive(Clone, Debug)]
pub(crate) struct OwnersPage {
    pub(crate) page: Page,
    /// The number by which it owns the chunk.
    pub(crate) number: u64,
    _mapped: Remote,
}

/// The pages of the chunks that this process owns.
#[derive(Debug, Default)]
pub(super) struct Pages {
    places: Places,
    /// How many it has.
    used: usize,
    /// Those that it does not need any more, and that the home may still read.
    ending: Vec<(Place, Page)>,
}

impl Pages {
    fn take(&mut self, fabric: &Fabric, bytes: u64) -> Option<(Place, Page)> {
        let ended = self
            .ending
            .extract_if(.., |(_, page)| page.last().is_some());
        let ended: Vec<_> = ended.map(|(place, _)| place).collect();
        ended.into_iter().for_each(|place| self.give_back(place));
        if self.used >= MOST_PAGES {
            return None;
        }
        let place = self.places.take(fabric, page::bytes_for(bytes))?;
        self.used += 1;
        Some((place, Page::at(self.places.bytes(place), bytes)?))
    }

    fn give_back(&mut self, place: Place) {
        self.places.give_back(place);
        self.used -= 1;
    }
}

impl Client {
    /// Asks to take read guards of a chunk without messages; `None` if that is not possible.
    pub(crate) fn enroll(&self, chunk: ChunkId, bytes: u64) -> Result<Option<OwnGuards>> {
        let Some((segment, offset, count)) = self.word(chunk) else {
            return Ok(None);
        };
        let request = Request::Enroll {
            chunk,
            segment,
            offset,
        };
        let answer = self.ask(
            self.near(chunk),
            self.fabric.deadline(),
            "a chunk",
            &request,
        )?;
        let Answer::Enrolled { word, lease } = answer else {
            return Err(Error::Nonsense(format!("{answer:?}")));
        };
        let Some((key, offset)) = word else {
            return Ok(None);
        };
        let most = bytes_for(bytes);
        let Some(open) = self.word_at(key, offset, most) else {
            return Ok(None);
        };
        let lease = match lease {
            None => None,
            Some((key, offset)) => match self.word_at(key, offset, LINE) {
                None => return Ok(None),
                lease => lease,
            },
        };
        Ok(Some(OwnGuards { count, open, lease }))
    }

    /// Returns a line of a server's memory, and what follows up to `most` bytes, if it is mapped
    /// here. Without it, guards are asked for.
    pub(crate) fn word_at(&self, key: SegmentKey, offset: u64, most: u64) -> Option<SharedBytes> {
        let remote = self.fabric.attach(key).ok()?;
        let line = remote.mapped().filter(|bytes| bytes.contains(offset, LINE));
        let line = line.filter(|_| offset.is_multiple_of(8));
        line.map(|bytes| bytes.slice(offset, most.min(bytes.len() - offset)))
    }

    /// Returns the word in which this process counts its read guards of a chunk; `None` if there is
    /// no memory.
    fn word(&self, chunk: ChunkId) -> Option<(SegmentKey, u64, SharedBytes)> {
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let Words { segments, numbers } = &mut *words;
        let next = numbers.len() as u64;
        let number = *numbers.entry(chunk).or_insert(next);
        while number / WORDS >= segments.len() as u64 {
            segments.push(self.fabric.allocate(WORDS * LINE).ok()?);
        }
        let segment = &segments[(number / WORDS) as usize];
        let offset = number % WORDS * LINE;
        Some((segment.key(), offset, segment.bytes().slice(offset, LINE)))
    }

    /// Returns the page of the process that owns a chunk of that length by that number; `None` if
    /// it owns it no more, or is not mapped here.
    pub(crate) fn page_of(
        &self,
        own: &OwnGuards,
        (chunk, bytes, number): (ChunkId, u64, u64),
    ) -> Option<OwnersPage> {
        let at = read_page(&own.open, chunk)?;
        let (page, mapped) = Page::attach(&self.fabric, at, bytes)?;
        // ORDERING: what was read is of that owner.
        let is_owned = own.open.u64(0).load(Ordering::SeqCst) == number;
        is_owned.then_some(OwnersPage {
            page,
            number,
            _mapped: mapped,
        })
    }

    /// Returns a new page of this process for a chunk of that length, and where others find it;
    /// `None` if there is no memory.
    pub(crate) fn new_page(&self, bytes: u64) -> Option<(Place, Page, (SegmentKey, u64))> {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let (place, page) = pages.take(&self.fabric, bytes)?;
        let at = pages.places.key(place);
        Some((place, page, at))
    }

    /// This process does not need a page any more.
    pub(crate) fn drop_page(&self, place: Place, page: Page) {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.ending.push((place, page));
    }

    /// Nobody but this process has ever heard of a page.
    pub(crate) fn give_page_back(&self, place: Place) {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.give_back(place);
    }
}
