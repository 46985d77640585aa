//! Read guards and snapshots, and the content of versions.

use super::{Chunk, Elem};
use crate::client::{OwnGuards, OwnersPage, millis};
use crate::error::{Error, Result};
use crate::guard::{Committed, Content, ReadGuard, Reads, Snapshot, Taken};
use crate::log::Call;
use crate::page::Placed;
use crate::protocol::{self, Answer, Mode, Request, Version};
use crate::published;
use crate::service::{FENCED, OWNED};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

/// How often the memory of a version may be given up while it is fetched.
const FETCHES: usize = 4;

/// How many read guards a process takes without a message before it looks whether the server is
/// lost.
const LOOK: u64 = 1024;

/// How often a reader looks whether the owner of a chunk has committed what it writes, before it
/// asks the home.
const LOOKS: u32 = 200;

impl<T: Elem> Chunk<T> {
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
        self.wherever(|chunk| {
            // Here it may have found that the home is lost.
            let is_here = chunk.id() == self.id();
            let known = if is_here { None } else { chunk.read_known() };
            match known {
                Some(guard) => Ok(guard),
                None => chunk.read_here(),
            }
        })
    }

    fn read_here(&self) -> Result<ReadGuard<T>> {
        if self.shared.own.get().is_none() {
            self.enroll()?;
        }
        if let Some(guard) = self.read_published() {
            return Ok(guard);
        }
        for _ in 0..FETCHES {
            let given = self.acquire(Mode::Read)?;
            if let Some(snapshot) = given.snapshot()? {
                *self.last() = Some(snapshot.0.clone());
                return Ok(ReadGuard {
                    snapshot,
                    reads: Reads::Given(given.held),
                });
            }
        }
        Err(self.fenced())
    }

    /// Prepares to take read guards without messages.
    pub(super) fn enroll(&self) -> Result<()> {
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

    /// Returns the words of the server that has the chunk, unless it is known to be lost.
    #[inline]
    pub(super) fn own_guards(&self) -> Option<&OwnGuards> {
        // ORDERING: only a hint; who has got the error has stored it.
        let is_lost = self.shared.is_lost.load(Ordering::Relaxed);
        if is_lost || self.shared.next.get().is_some() {
            return None; // It is lost, or another server has it now.
        }
        self.shared.own.get()?.as_ref()
    }

    /// Takes a read guard without a message, if the version that was read last is the present one.
    #[inline]
    pub(super) fn read_known(&self) -> Option<ReadGuard<T>> {
        let own = self.own_guards()?;
        // ORDERING: only a hint.
        let open = own.open.u64(0).load(Ordering::Relaxed);
        if open & OWNED != 0 {
            return self.read_owned(own, open);
        }
        let last = self.last();
        let committed = last.as_ref()?;
        // A chunk that is closed is not counted: the end of that would have to be told.
        if open != committed.number {
            return None;
        }
        let time = self.client.log.clock();
        // ORDERING: the count is written before the server's word is read; see `service/words`.
        own.count.u64(0).fetch_add(1, Ordering::SeqCst);
        let taken = Taken(self.clone(), false);
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
        // Its commit was seen earlier, so one look at the clock is enough.
        Some(self.read_of(committed.clone(), taken, (time, time)))
    }

    /// Takes a read guard of the version that the server has published, without a message.
    fn read_published(&self) -> Option<ReadGuard<T>> {
        let own = self.own_guards()?;
        // ORDERING: only a hint, as above.
        if own.open.u64(0).load(Ordering::Relaxed) == 0 || self.client.has_lost(self.id()) {
            return None;
        }
        *self.page() = None; // That of an owner of before.
        let began = self.client.log.clock();
        // ORDERING: as above.
        own.count.u64(0).fetch_add(1, Ordering::SeqCst);
        let taken = Taken(self.clone(), false);
        let number = own.open.u64(0).load(Ordering::SeqCst);
        if number & OWNED != 0 {
            return None; // Just now: it is asked for.
        }
        let committed = self.published(own, number).ok().flatten()?;
        // The server may have closed the chunk meanwhile, and have waited for this process no more.
        // ORDERING: as above.
        let is_fenced = own.count.u64(FENCED).load(Ordering::SeqCst) != 0;
        let is_open = number != 0 && own.open.u64(0).load(Ordering::SeqCst) == number;
        if is_fenced || !is_open || !own.has_lease() {
            return None;
        }
        *self.last() = Some(committed.clone());
        let ended = self.client.log.clock();
        Some(self.read_of(committed, taken, (began, ended)))
    }

    /// Returns the guard of a version that was taken without a message. `times`: before the version
    /// was looked at, and when it was still the present one or later.
    #[inline]
    fn read_of(
        &self,
        committed: Arc<Committed<T>>,
        mut taken: Taken<T>,
        times: (u64, u64),
    ) -> ReadGuard<T> {
        let at = (committed.version, committed.tag);
        self.client.log.hit(times, self.id(), at);
        taken.1 = true;
        ReadGuard {
            snapshot: Snapshot(committed),
            reads: Reads::Taken(taken),
        }
    }

    /// Takes a read guard of the version that the owner has committed last, without a message.
    fn read_owned(&self, own: &OwnGuards, number: u64) -> Option<ReadGuard<T>> {
        let began = self.client.log.clock();
        let page = self.owners_page(own, number)?;
        // ORDERING: the count is written before the owner's page is read; see `page`.
        own.count.u64(0).fetch_add(1, Ordering::SeqCst);
        let taken = Taken(self.clone(), false);
        if !(0..LOOKS).any(|_| page.page.is_idle()) {
            return None;
        }
        let committed = self.owned_version(own, &page, page.page.version())?;
        // The home may have ended the ownership meanwhile, and have waited for this process no
        // more.
        // ORDERING: as in `read_published`.
        let is_fenced = own.count.u64(FENCED).load(Ordering::SeqCst) != 0;
        if is_fenced || own.open.u64(0).load(Ordering::SeqCst) != number {
            return None;
        }
        // ORDERING: only the number counts.
        let hits = self.shared.hits.fetch_add(1, Ordering::Relaxed);
        if hits % LOOK == LOOK - 1 && self.client.has_lost(self.id()) {
            return None;
        }
        let ended = self.client.log.clock();
        Some(self.read_of(committed, taken, (began, ended)))
    }

    /// Returns the version that the owner has committed last, without a message.
    fn snapshot_owned(&self, own: &OwnGuards, number: u64) -> Option<Snapshot<T>> {
        let page = self.owners_page(own, number)?;
        let mut tries = (0..LOOKS).map(|_| page.page.version());
        let found = tries.find_map(|version| self.owned_version(own, &page, version))?;
        // ORDERING: what was read was the present version of that owner.
        let is_owned = own.open.u64(0).load(Ordering::SeqCst) == number;
        is_owned.then_some(Snapshot(found))
    }

    /// Returns a version of the owner; `None` if it is replaced meanwhile.
    fn owned_version(
        &self,
        own: &OwnGuards,
        page: &OwnersPage,
        version: Version,
    ) -> Option<Arc<Committed<T>>> {
        let is_it =
            |known: &Arc<Committed<T>>| (known.number, known.version) == (page.number, version);
        let known = self.last().clone();
        if let Some(known) = known.filter(is_it) {
            return Some(known);
        }
        let found = page.page.read_at(version)?;
        let committed = match found.content {
            Some(placed) => {
                let content = match placed {
                    Placed::Here(bytes) => protocol::Content::Inline(bytes),
                    Placed::InDraft(_, key) => protocol::Content::Segment(key),
                };
                let content = self.content(&content).ok().flatten()?;
                // Memory that was attached may have been written again before that.
                if page.page.version() != version {
                    return None;
                }
                Arc::new(Committed {
                    content,
                    version,
                    tag: found.tag,
                    number: page.number,
                })
            }
            None => {
                let published = self.published(own, page.number).ok().flatten();
                published.filter(|published| published.version == version)?
            }
        };
        *self.last() = Some(committed.clone());
        Some(committed)
    }

    /// Returns the page of the process that owns the chunk by that number.
    fn owners_page(&self, own: &OwnGuards, number: u64) -> Option<Arc<OwnersPage>> {
        let mut known = self.page();
        if let Some(page) = known.as_ref().filter(|page| page.number == number) {
            return Some(page.clone());
        }
        let at = (self.id(), self.shared.bytes, number);
        let page = Arc::new(self.client.page_of(own, at)?);
        *known = Some(page.clone());
        Some(page)
    }

    fn page(&self) -> MutexGuard<'_, Option<Arc<OwnersPage>>> {
        let page = self.shared.page.lock();
        page.unwrap_or_else(PoisonError::into_inner)
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
    pub(super) fn drained(&self) {
        let (server, chunk) = (self.client.near(self.id()), self.id());
        let note = Request::Drained { chunk };
        if std::thread::panicking() {
            self.client.tell_later(server, note);
        } else if let Err(error) = self.client.tell(server, note) {
            // The server learns of the end of this process.
            tracing::debug!(chunk = self.name(), %error, "the end of a guard was not told");
        }
    }

    pub(super) fn last(&self) -> MutexGuard<'_, Option<Arc<Committed<T>>>> {
        let last = self.shared.last.lock();
        last.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the last committed version without waiting for any guard. Only if others commit so
    /// often that the memory of each version is used again before it was fetched, this waits for a
    /// read guard.
    ///
    /// # Errors
    /// Those of the fabric, and then those of [`Chunk::read`].
    pub fn snapshot(&self) -> Result<Snapshot<T>> {
        self.wherever(Chunk::snapshot_here)
    }

    fn snapshot_here(&self) -> Result<Snapshot<T>> {
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
        let Some(own) = self.own_guards() else {
            return Ok(None);
        };
        if self.client.has_lost(self.id()) {
            return Ok(None);
        }
        // ORDERING: what is open is the present version.
        let open = own.open.u64(0).load(Ordering::SeqCst);
        if open & OWNED != 0 {
            return Ok(self.snapshot_owned(own, open));
        }
        let last = self.last().clone();
        let last = last.filter(|last| open != 0 && last.number == open);
        let found = match last {
            Some(last) => Some(last),
            None => self.published(own, 0)?,
        };
        // What was read before the end of a lease was the present version then.
        Ok(found.filter(|_| own.has_lease()).map(Snapshot))
    }

    /// Returns the version that a server has published. `number`: that by which it is read again.
    fn published(&self, own: &OwnGuards, number: u64) -> Result<Option<Arc<Committed<T>>>> {
        let found = published::read(&own.open, self.id(), self.shared.bytes);
        let Some((version, tag, content)) = found else {
            return Ok(None);
        };
        let content = self.content(&content)?;
        let committed = content.map(|content| Committed {
            content,
            version,
            tag,
            number,
        });
        Ok(committed.map(Arc::new))
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

    /// Waits for a version that nobody else takes, and returns a guard to read it: the next one for
    /// work that one process of several is to do. A version that is replaced before it is taken is
    /// taken by nobody; what a process has taken is lost with it.
    ///
    /// # Errors
    /// [`Error::Late`].
    pub fn take(&self) -> Result<ReadGuard<T>> {
        self.wherever(Chunk::take_here)
    }

    fn take_here(&self) -> Result<ReadGuard<T>> {
        let deadline = self.client.fabric.deadline();
        let request = Request::Take {
            chunk: self.id(),
            timeout: millis(deadline),
        };
        let home = self.id().home();
        let words = ("take", "a version to take", Call::Take);
        let given = self.given(home, &request, words, deadline)?;
        let given = given.ok_or_else(|| self.not_at_home())?;
        let snapshot = given.snapshot()?.ok_or_else(|| self.fenced())?;
        Ok(ReadGuard {
            snapshot,
            reads: Reads::Given(given.held),
        })
    }

    /// Returns the content of a version; `None` if its memory has been given up.
    pub(crate) fn content(&self, content: &protocol::Content) -> Result<Option<Content<T>>> {
        match content {
            protocol::Content::Zeros => Ok(Some(Content::Copied(self.zeros()?))),
            protocol::Content::Inline(bytes) => {
                let elements = self.elements(bytes)?;
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

    /// Returns the elements that these bytes are.
    fn elements(&self, bytes: &[u8]) -> Result<Vec<T>> {
        let mut elements = self.zeros()?;
        let to: &mut [u8] = bytemuck::cast_slice_mut(&mut elements);
        if to.len() != bytes.len() {
            return Err(Error::Nonsense(format!("{} bytes", bytes.len())));
        }
        to.copy_from_slice(bytes);
        Ok(elements)
    }

    pub(super) fn zeros(&self) -> Result<Vec<T>> {
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
}

/// Returns true if a segment is gone because its version is no longer the present one.
pub(super) fn is_given_up(error: &samite_fabric::Error) -> bool {
    use samite_fabric::Error::{NoSuchSegment, WrongPhase};
    matches!(error, NoSuchSegment { .. } | WrongPhase { .. })
}
