//! Versions that are committed without a message, because this process owns the chunk
//! ([`crate::page`]).

use super::{Chunk, Elem};
use crate::client::millis;
use crate::error::{Error, Result};
use crate::guard::{Buffer, Held, Holds, WriteGuard};
use crate::log::Call;
use crate::owner::{Owner, Ownership};
use crate::protocol::{Answer, GuardId, INLINE, Mode, Protocol, Request, Version};
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
    has_ended: bool,
}

impl<T: Elem> OwnGuard<T> {
    /// Returns a guard of the home in place of this one: the chunk is written under locks, and not
    /// owned any more. If another process has committed in between, the guard is lost.
    pub(crate) fn give_up(mut self) -> Result<Held<T>> {
        let chunk = self.chunk.clone();
        let mut ownership = chunk.ownership();
        self.has_ended = true;
        let version = ownership.owner(self.number).map(|owner| {
            owner.take_back();
            owner.page.version()
        });
        if version.is_none() {
            return Err(chunk.fenced());
        }
        ownership.forgo();
        drop(ownership);
        let given = chunk.acquire_at_home(Mode::Write)?;
        match Some(given.version) == version {
            true => Ok(given.held),
            false => Err(chunk.fenced()),
        }
    }

    /// Commits what was written under the guard, and ends it.
    pub(crate) fn commit(mut self, elements: &[T], tag: u64) -> Result<Version> {
        self.has_ended = true;
        let ownership = self.chunk.ownership();
        (self.chunk).commit_owned((ownership, self.number), elements, tag)
    }
}

impl<T: Elem> Drop for OwnGuard<T> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut ownership = self.chunk.ownership();
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

    /// As [`Chunk::put`], if this process owns the chunk and nobody has a guard.
    pub(crate) fn put_owned(&self, elements: &[T], tag: u64) -> Option<Result<Version>> {
        let mut ownership = self.owns()?;
        let number = ownership.begin()?.number;
        Some(self.commit_owned((ownership, number), elements, tag))
    }

    /// As [`Chunk::write`], if this process owns the chunk and nobody has a guard.
    pub(super) fn write_owned(&self) -> Result<Option<WriteGuard<T>>> {
        let Some(mut ownership) = self.owns() else {
            return Ok(None);
        };
        let elements = self.zeros()?;
        let Some(owner) = ownership.begin() else {
            return Ok(None);
        };
        let (version, number) = (owner.page.version(), owner.number);
        drop(ownership);
        let guard = OwnGuard {
            chunk: self.clone(),
            number,
            has_ended: false,
        };
        Ok(Some(WriteGuard {
            buffer: Some(Buffer::Sent(elements)),
            version,
            held: Holds::Owned(guard),
        }))
    }

    /// Commits the version that this process has begun to write.
    fn commit_owned(
        &self,
        (mut ownership, number): (MutexGuard<'_, Ownership>, u64),
        elements: &[T],
        tag: u64,
    ) -> Result<Version> {
        let answer = self.commits(Call::Put, GuardId(0), tag, || {
            let Some(owner) = ownership.owner(number) else {
                return Err(self.fenced());
            };
            let time = self.client.log.clock();
            let version = owner.commit(bytemuck::cast_slice(elements), tag, time);
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
        // Under a lock, only the home can tell that it is held when a commit takes place.
        if self.shared.bytes > INLINE || self.client.has_locks() {
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
