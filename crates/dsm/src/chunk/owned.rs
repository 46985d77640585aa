//! Versions that are committed without a message, because this process owns the chunk
//! ([`crate::page`]).

use super::{Chunk, Elem};
use crate::client::millis;
use crate::error::{Error, Result};
use crate::guard::{Buffer, Held, Holds, WriteGuard};
use crate::log::Call;
use crate::owner::{DraftAt, Owner, Ownership, Written};
use crate::protocol::{Answer, GuardId, INLINE, Mode, Protocol, Request, Version};
use samite_fabric::Borrowed;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

/// How long a process waits for others to end their guards before it writes as usual.
const PATIENCE: Duration = Duration::from_millis(1);

/// A guard to write a chunk that this process owns.
#[derive(Debug)]
pub(crate) struct OwnGuard<T: Elem> {
    chunk: Chunk<T>,
    /// The number by which the chunk is owned.
    number: u64,
    /// Where it is written, if it is long.
    draft: Option<DraftAt>,
    has_ended: bool,
}

impl<T: Elem> OwnGuard<T> {
    /// Returns a guard of the home in place of this one, and its memory: the chunk is written under
    /// locks, and not owned any more. If another process has committed in between, the guard is
    /// lost.
    pub(crate) fn give_up(
        mut self,
        buffer: Option<Buffer<T>>,
    ) -> Result<(Held<T>, Option<Buffer<T>>)> {
        let chunk = self.chunk.clone();
        let mut ownership = chunk.ownership();
        self.has_ended = true;
        let version = ownership.owner(self.number).map(|owner| {
            owner.take_back();
            owner.page.version()
        });
        if version.is_none() {
            self.draft
                .into_iter()
                .for_each(|draft| chunk.releases(draft));
            return Err(chunk.fenced());
        }
        ownership.forgo();
        drop(ownership);
        // The home uses that memory again when this process has copied what is there.
        let draft = self.draft.take().inspect(|draft| chunk.releases(*draft));
        let given = chunk.acquire_at_home(Mode::Write)?;
        if Some(given.version) != version {
            return Err(chunk.fenced());
        }
        if draft.is_none() {
            return Ok((given.held, buffer));
        }
        let mut guard = given.writer()?;
        guard.copy_from_slice(Buffer::as_slice(&buffer));
        guard.into_held().ok_or_else(|| chunk.fenced())
    }

    /// Commits what was written under the guard, and ends it.
    pub(crate) fn commit(mut self, buffer: Option<Buffer<T>>, tag: u64) -> Result<Version> {
        self.has_ended = true;
        let (chunk, number) = (&self.chunk, self.number);
        match (buffer, self.draft) {
            (Some(Buffer::Mapped(borrowed)), Some(draft)) => {
                let ownership = chunk.ownership();
                chunk.commit_draft((ownership, number), (draft, borrowed), tag)
            }
            (buffer, _) => {
                let bytes = bytemuck::cast_slice(Buffer::as_slice(&buffer));
                chunk.commit_owned((chunk.ownership(), number), Written::Here(bytes), tag)
            }
        }
    }
}

impl<T: Elem> Drop for OwnGuard<T> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut ownership = self.chunk.ownership();
        if let Some(draft) = self.draft {
            self.chunk.keep_draft(&mut ownership, draft);
        }
        if let Some(owner) = ownership.owner(self.number) {
            owner.take_back();
            if !owner.goes_on() {
                ownership.end();
            }
        }
    }
}

impl<T: Elem> Chunk<T> {
    fn ownership(&self) -> MutexGuard<'_, Ownership> {
        let ownership = self.shared.ownership.lock();
        ownership.unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a short chunk as [`Chunk::put`] does, if this process owns it and nobody has a guard.
    pub(crate) fn put_owned(&self, elements: &[T], tag: u64) -> Option<Result<Version>> {
        if self.is_long() {
            return None;
        }
        let mut ownership = self.owns()?;
        let number = ownership.begin()?.number;
        let written = Written::Here(bytemuck::cast_slice(elements));
        Some(self.commit_owned((ownership, number), written, tag))
    }

    /// Puts a draft, if this process owns the chunk and nobody has a guard; otherwise returns the
    /// memory of the draft.
    pub(crate) fn put_draft(
        &self,
        (draft, borrowed): (DraftAt, Borrowed),
        tag: u64,
    ) -> std::result::Result<Result<Version>, Borrowed> {
        let Some(mut ownership) = self.owns() else {
            return Err(borrowed);
        };
        let Some(number) = ownership.begin().map(|owner| owner.number) else {
            return Err(borrowed);
        };
        Ok(self.commit_draft((ownership, number), (draft, borrowed), tag))
    }

    /// As [`Chunk::write`], if this process owns the chunk and nobody has a guard.
    pub(super) fn write_owned(&self) -> Result<Option<WriteGuard<T>>> {
        if self.is_long() {
            return Ok(self.write_long());
        }
        let Some(mut ownership) = self.owns() else {
            return Ok(None);
        };
        let buffer = Buffer::Sent(self.zeros()?);
        Ok(ownership
            .begin()
            .map(|owner| self.own_guard(owner, buffer, None)))
    }

    fn write_long(&self) -> Option<WriteGuard<T>> {
        let mut ownership = self.owns()?;
        if let Some(guard) = self.begin_long(&mut ownership) {
            return guard;
        }
        // The home is asked while other threads may go on.
        drop(ownership);
        let spare = self.spare().take();
        let draft = spare.or_else(|| self.ask_draft().ok())?;
        let mut ownership = self.ownership();
        self.keep_draft(&mut ownership, draft);
        self.begin_long(&mut ownership).flatten()
    }

    /// Begins to write; `Some(None)` if that is not possible, `None` if there is no memory for it.
    #[allow(clippy::option_option, reason = "two ways not to begin")]
    fn begin_long(&self, ownership: &mut Ownership) -> Option<Option<WriteGuard<T>>> {
        let Some(owner) = ownership.begin() else {
            return Some(None);
        };
        match owner.take_draft() {
            Some((draft, borrowed)) => {
                let buffer = Buffer::Mapped(borrowed);
                Some(Some(self.own_guard(owner, buffer, Some(draft))))
            }
            None => {
                owner.take_back();
                None
            }
        }
    }

    fn own_guard(&self, owner: &Owner, buffer: Buffer<T>, draft: Option<DraftAt>) -> WriteGuard<T> {
        WriteGuard {
            buffer: Some(buffer),
            version: owner.page.version(),
            held: Holds::Owned(OwnGuard {
                chunk: self.clone(),
                number: owner.number,
                draft,
                has_ended: false,
            }),
        }
    }

    /// Returns memory for a draft, if this process owns the chunk and has some.
    pub(super) fn own_draft(&self) -> Option<(DraftAt, Borrowed)> {
        self.ownership().take_draft()
    }

    /// Looks whether the home has ended the ownership of this process, if it is about to ask it in
    /// any case.
    pub(super) fn look_after_ownership(&self) {
        if let Ok(mut ownership) = self.shared.ownership.try_lock() {
            ownership.look();
        }
    }

    /// Keeps memory of the home for the next version; the home gets it back if this process does
    /// not own the chunk.
    fn keep_draft(&self, ownership: &mut Ownership, draft: DraftAt) {
        if !ownership.keep_draft(draft) {
            self.releases(draft);
        }
    }

    /// A draft of this process that is not borrowed any more was not put.
    pub(crate) fn drops(&self, draft: DraftAt) {
        if !self.ownership().keep_draft(draft) {
            self.client.release(self.id().home(), self.id(), draft.id);
        }
    }

    /// The home gets a draft back with the next message.
    pub(super) fn releases(&self, draft: DraftAt) {
        let chunk = self.id();
        self.client.release_later(chunk.home(), chunk, draft.id);
    }

    /// Commits the version that this process has begun to write in a draft.
    fn commit_draft(
        &self,
        at: (MutexGuard<'_, Ownership>, u64),
        (draft, borrowed): (DraftAt, Borrowed),
        tag: u64,
    ) -> Result<Version> {
        match borrowed.publish() {
            Some(published) => self.commit_owned(at, Written::InDraft(draft, published), tag),
            None => {
                let (mut ownership, number) = at;
                self.releases(draft);
                if let Some(owner) = ownership.owner(number) {
                    owner.take_back();
                    ownership.look();
                }
                Err(Error::Nonsense("memory that is not lent".to_owned()))
            }
        }
    }

    /// Commits the version that this process has begun to write.
    fn commit_owned(
        &self,
        (mut ownership, number): (MutexGuard<'_, Ownership>, u64),
        written: Written<'_>,
        tag: u64,
    ) -> Result<Version> {
        let answer = self.commits(Call::Put, GuardId(0), tag, || {
            let Some(owner) = ownership.owner(number) else {
                if let Written::InDraft(draft, _) = written {
                    self.releases(draft);
                }
                return Err(self.fenced());
            };
            let time = self.client.log.clock();
            let version = owner.commit(written, tag, time);
            let is_committed = self.is_committed(owner, version);
            owner.wake();
            if !owner.goes_on() {
                ownership.end();
            }
            drop(ownership);
            match is_committed? {
                true => Ok(Answer::Committed {
                    version,
                    draft: None,
                }),
                false => Err(self.why_fenced()),
            }
        });
        match answer? {
            Answer::Committed { version, .. } => Ok(version),
            other => Err(self.refused(other, "write", Duration::ZERO)),
        }
    }

    /// Returns why the home has ended the ownership in the middle of a commit.
    fn why_fenced(&self) -> Error {
        let deadline = self.client.fabric.deadline();
        let request = Request::Snapshot { chunk: self.id() };
        match self.ask_home(deadline, "a chunk", &request) {
            Ok(Answer::Version { .. }) => self.fenced(),
            Ok(other) => self.refused(other, "write", deadline),
            Err(error) => error,
        }
    }

    /// Returns true if a version of its own was committed before the home has ended the ownership:
    /// that of a process which was stopped for too long.
    fn is_committed(&self, owner: &Owner, version: Version) -> Result<bool> {
        if !owner.page.is_ended() {
            return Ok(true);
        }
        // The home is about to say which version is the last one.
        let (fabric, home) = (&self.client.fabric, self.id().home());
        let look = || match owner.page.last() {
            Some(last) => Some(Ok(version <= last)),
            None if self.client.has_lost_home(self.id()) => {
                Some(Err(self.lost(home, Version::default())))
            }
            None => None,
        };
        let what = "the end of an ownership";
        fabric.wait_stepping_within(fabric.deadline(), what, &[], look, || true)?
    }

    /// Returns how this process owns the chunk, if it does; asks for that if it writes the chunk
    /// often.
    fn owns(&self) -> Option<MutexGuard<'_, Ownership>> {
        // Under a lock, only the home can tell that it is held when a commit takes place. What is
        // long is written in memory of the home.
        if self.client.has_locks() || self.is_long() && !self.maps() {
            return None;
        }
        self.client.serve_if_server();
        let mut ownership = self.ownership();
        if ownership.is_time_to_ask() {
            drop(ownership);
            let owner = self.ask_to_own();
            ownership = self.ownership();
            match owner {
                Some(owner) => ownership.begins(owner),
                None => ownership.refused(),
            }
        }
        ownership.has_begun().then_some(ownership)
    }

    fn is_long(&self) -> bool {
        self.shared.bytes > INLINE
    }

    /// Asks the home to let this process own the chunk.
    fn ask_to_own(&self) -> Option<Owner> {
        let is_possible = self.shared.protocol == Protocol::HomeMesi && !self.is_replicated();
        if !is_possible || self.client.near(self.id()) != self.id().home() {
            return None;
        }
        if self.shared.own.get().is_none() {
            self.enroll().ok()?;
        }
        let own = self.own_guards().filter(|own| own.lease.is_none())?;
        let (place, page, (segment, offset)) = self.client.new_page(self.shared.bytes)?;
        page.prepare(self.client.me());
        let request = Request::Own {
            chunk: self.id(),
            segment,
            offset,
            timeout: millis(PATIENCE),
        };
        let deadline = self.client.fabric.deadline();
        match self.ask_home(deadline, "to own a chunk", &request) {
            Ok(Answer::Owned { number, readers }) => {
                let word = (own.open.clone(), number);
                Owner::new(&self.client, self.id(), (place, page), word, readers)
            }
            Ok(_) => {
                self.client.give_page_back(place);
                None
            }
            // The home may have let it, and hears that nobody waits for the answer.
            Err(error) => {
                tracing::debug!(chunk = self.name(), %error, "a chunk is not owned");
                self.client.drop_page(place, page);
                None
            }
        }
    }
}
