//! The side of a process that owns a chunk: how it begins, commits, and stops. The protocol is that
//! of its [page](crate::page).

mod drafts;

pub(crate) use self::drafts::DraftAt;

use self::drafts::Drafts;
use crate::client::Client;
use crate::clock;
use crate::page::{Page, Placed, TAGS};
use crate::places::Place;
use crate::protocol::{ChunkId, GuardId, Process, Reader, Request, Version};
use crate::service::{ASLEEP, LINE, OWNED};
use samite_fabric::rpc::ServiceId;
use samite_fabric::{Borrowed, Fabric, Published};
use samite_mem::SharedBytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often a process has to write a chunk before it asks to own it.
const OFTEN: u32 = 4;

/// The same for a process that was refused, or has soon lost a chunk, again and again.
const SELDOM: u32 = 256;

/// How many guards and puts make an ownership worth its messages.
const WORTH_IT: u64 = 64;

/// How often a writer looks whether a reader ends its guard, before it asks the home.
const LOOKS: u32 = 200;

/// How often a process writes before it looks whether the home is lost.
const LOOK: u64 = 256;

/// After how many nanoseconds it looks in any case.
const LOOK_AFTER: u64 = 10_000_000;

/// How a process writes a chunk.
#[derive(Debug)]
pub(crate) struct Ownership {
    owner: Option<Owner>,
    /// How often it has written since it asked last, and how often it has to before it asks.
    writes: u32,
    patience: u32,
    /// Whether a thread asks just now.
    is_asking: bool,
}

impl Default for Ownership {
    fn default() -> Ownership {
        Ownership {
            owner: None,
            writes: 0,
            patience: OFTEN,
            is_asking: false,
        }
    }
}

/// What a process has of a chunk that it owns.
#[derive(Debug)]
pub(crate) struct Owner {
    client: Arc<Client>,
    chunk: ChunkId,
    place: Place,
    pub(crate) page: Page,
    /// The home's word, and what it says as long as this process owns the chunk.
    word: SharedBytes,
    pub(crate) number: u64,
    /// The words of those that read without messages.
    readers: Vec<(SharedBytes, Reader)>,
    /// Of a long chunk.
    drafts: Drafts,
    /// Whether a guard to write is out.
    is_in_hand: bool,
    /// How often it has begun to write a version, and how many it has committed.
    begun: u64,
    commits: u64,
    /// When it has looked last whether the home is lost.
    looked: u64,
}

/// What an owner has written.
#[derive(Debug)]
pub(crate) enum Written<'a> {
    /// A short chunk.
    Here(&'a [u8]),
    /// A long one.
    InDraft(DraftAt, Published),
}

/// Why a process cannot write a chunk that it has owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// It owns it no more.
    Ended,
    /// Another thread writes it, or somebody reads it.
    Busy,
}

impl Ownership {
    /// Counts a write. Returns true if it is time to ask; then the answer has to be told.
    pub(crate) fn is_time_to_ask(&mut self) -> bool {
        if self.owner.is_some() || self.is_asking {
            return false;
        }
        self.writes = self.writes.saturating_add(1);
        let is_time = self.writes > self.patience;
        if is_time {
            (self.writes, self.is_asking) = (0, true);
        }
        is_time
    }

    /// It was refused.
    pub(crate) fn refused(&mut self) {
        self.is_asking = false;
        self.patience = self.patience.saturating_mul(4).min(SELDOM);
    }

    pub(crate) fn begins(&mut self, owner: Owner) {
        self.is_asking = false;
        self.owner = Some(owner);
    }

    /// Begins to write the next version, if this process owns the chunk and nobody has a guard.
    pub(crate) fn begin(&mut self) -> Option<&mut Owner> {
        let owner = self.owner.as_mut()?;
        match owner.begin() {
            Ok(()) => self.owner.as_mut(),
            Err(Stop::Busy) => None,
            Err(Stop::Ended) => {
                self.end();
                None
            }
        }
    }

    /// Returns memory to write a version in, if this process owns the chunk and has some. No
    /// version is begun when this returns.
    pub(crate) fn take_draft(&mut self) -> Option<(DraftAt, Borrowed)> {
        let owner = self.owner.as_mut().filter(|owner| !owner.is_in_hand)?;
        if owner.begin_page().is_err() {
            self.end();
            return None;
        }
        let draft = owner.take_draft();
        owner.page.take_back();
        if !owner.goes_on() {
            self.end();
        }
        draft
    }

    /// Keeps memory to write to, which is not borrowed. Returns false if this process does not own
    /// the chunk, or has enough.
    pub(crate) fn keep_draft(&mut self, draft: DraftAt) -> bool {
        self.look();
        let owner = self.owner.as_mut();
        owner.is_some_and(|owner| owner.drafts.keep(draft))
    }

    /// Ends what the home has ended: the home gets its memory back.
    pub(crate) fn look(&mut self) {
        let owner = self.owner.as_ref();
        if owner.is_some_and(|owner| !owner.is_in_hand && !owner.is_owner()) {
            self.end();
        }
    }

    /// Returns true if this process owns the chunk, as far as it knows.
    pub(crate) fn has_begun(&self) -> bool {
        self.owner.is_some()
    }

    /// Returns what it has of the chunk that it owns by that number.
    pub(crate) fn owner(&mut self, number: u64) -> Option<&mut Owner> {
        self.owner.as_mut().filter(|owner| owner.number == number)
    }

    /// It owns the chunk no more, and does not ask again.
    pub(crate) fn forgo(&mut self) {
        self.owner = None;
        self.patience = u32::MAX;
    }

    /// It owns the chunk no more.
    pub(crate) fn end(&mut self) {
        if let Some(owner) = self.owner.take() {
            self.patience = match owner.begun {
                ..WORTH_IT => self.patience.saturating_mul(2).min(SELDOM),
                _ => OFTEN,
            };
            self.writes = 0;
        }
    }
}

impl Owner {
    /// Returns what a process has of a chunk that it owns from now on; `None`, and it owns it no
    /// more, if it does not map the words of all readers.
    pub(crate) fn new(
        client: &Arc<Client>,
        chunk: ChunkId,
        (place, page): (Place, Page),
        (word, number): (SharedBytes, u64),
        readers: Vec<Reader>,
    ) -> Option<Owner> {
        let mut owner = Owner {
            client: client.clone(),
            chunk,
            place,
            page,
            word,
            number,
            readers: Vec::new(),
            drafts: Drafts::default(),
            is_in_hand: false,
            begun: 0,
            commits: 0,
            looked: clock::nanoseconds(),
        };
        if number & OWNED == 0 {
            return None;
        }
        for reader in readers {
            let word = client.word_at(reader.segment, reader.offset, LINE)?;
            owner.readers.push((word, reader));
        }
        Some(owner)
    }

    /// Begins to write the next version.
    fn begin(&mut self) -> Result<(), Stop> {
        if self.is_in_hand {
            return Err(Stop::Busy);
        }
        self.begin_page()?;
        if !(0..LOOKS).any(|_| self.is_unread()) {
            self.page.take_back();
            return Err(Stop::Busy);
        }
        self.is_in_hand = true;
        Ok(())
    }

    /// Begins a version, whether others read or not.
    fn begin_page(&mut self) -> Result<(), Stop> {
        self.begun += 1;
        let now = clock::nanoseconds();
        let is_time =
            self.begun.is_multiple_of(LOOK) || now.saturating_sub(self.looked) > LOOK_AFTER;
        if is_time {
            self.looked = now;
        }
        if is_time && self.client.has_lost(self.chunk) {
            return Err(Stop::Ended);
        }
        self.page.begin();
        if !self.is_owner() {
            self.page.take_back();
            return Err(Stop::Ended);
        }
        Ok(())
    }

    fn is_owner(&self) -> bool {
        // ORDERING: see `page`.
        self.word.u64(0).load(Ordering::SeqCst) == self.number
    }

    /// Returns true if nobody has a read guard that it took itself.
    fn is_unread(&self) -> bool {
        std::hint::spin_loop();
        let mut words = self.readers.iter();
        // ORDERING: see `page`.
        words.all(|(word, _)| word.u64(0).load(Ordering::SeqCst) == 0)
    }

    /// Returns memory to write the version in that it has begun, if there is some that nobody
    /// reads.
    pub(crate) fn take_draft(&mut self) -> Option<(DraftAt, Borrowed)> {
        let fabric = &self.client.fabric;
        let taken = self.drafts.take(fabric);
        if let Some(draft) = self.drafts.surplus(fabric) {
            self.releases(draft.id);
        }
        taken
    }

    /// With its next message.
    fn releases(&self, guard: GuardId) {
        let chunk = self.chunk;
        self.client.release_later(chunk.home(), chunk, guard);
    }

    /// Commits what it has begun to write. `time`: for the log. Returns the version.
    pub(crate) fn commit(&mut self, content: Written<'_>, tag: u64, time: u64) -> Version {
        let placed = match &content {
            Written::Here(bytes) => Placed::Here(*bytes),
            Written::InDraft(draft, _) => Placed::InDraft(draft.id, draft.key),
        };
        let version = self.page.commit(&placed, tag, time);
        if let Written::InDraft(draft, published) = content {
            self.drafts.committed(draft, published);
        }
        (self.is_in_hand, self.commits) = (false, self.commits + 1);
        version
    }

    /// It does not write what it has begun.
    pub(crate) fn take_back(&mut self) {
        self.page.take_back();
        self.is_in_hand = false;
    }

    /// Wakes those that sleep until there is a commit.
    pub(crate) fn wake(&self) {
        for (word, reader) in &self.readers {
            // ORDERING: it has committed, and then looks; they say that they sleep, and then look.
            let is_asleep = word.u64(ASLEEP).load(Ordering::SeqCst) != 0;
            if let (true, Some(service)) = (is_asleep, reader.inbox.and_then(ServiceId::own)) {
                Owner::wake_one(&self.client.fabric, reader.client, service);
            }
        }
    }

    #[cold]
    fn wake_one(fabric: &Fabric, client: Process, service: ServiceId) {
        // Anything that arrives wakes it.
        let woken = fabric.note(service, client.into(), Duration::ZERO, &[]);
        if let Err(error) = woken {
            // What it has not taken yet wakes it, or it is lost.
            tracing::debug!(%client, %error, "a subscriber was not woken");
        }
    }

    /// Returns true if it may go on. Otherwise somebody waits for this process to stop.
    pub(crate) fn goes_on(&self) -> bool {
        // The records of its commits are the server's, which knows as many as the page has.
        let is_recorded = !self.client.log.is_full() || self.commits < TAGS / 2;
        self.is_owner() && is_recorded
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.is_in_hand {
            self.take_back();
        }
        // The home has taken what it wants of an ownership that it has ended.
        let has_ended = self.page.is_ended();
        let drafts = self.drafts.end(!has_ended);
        drafts.iter().for_each(|draft| self.releases(draft.id));
        self.client.drop_page(self.place, self.page.clone());
        let (server, chunk) = (self.chunk.home(), self.chunk);
        if !has_ended {
            self.client.tell_later(server, Request::Disowned { chunk });
        }
        if std::thread::panicking() {
            return;
        }
        if let Err(error) = self.client.send_notes(server) {
            // The server looks from time to time.
            tracing::debug!(%error, "the end of an ownership was not told");
        }
    }
}
