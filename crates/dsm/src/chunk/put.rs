//! Versions that are written without a guard: puts, drafts, and changes at the home.

use super::read::is_given_up;
use super::{Chunk, Elem};
use crate::client::millis;
use crate::error::{Error, Result};
use crate::guard::{Buffer, Draft};
use crate::log::Call;
use crate::owner::DraftAt;
use crate::protocol::{Answer, GuardId, INLINE, Op, PutFrom, Request, ServerId, Version};
use samite_fabric::SegmentKey;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

/// The most bytes that a commit brings. What is longer is put into the memory of the server, which
/// takes a request more; a message has at most 64 MiB.
pub(super) const MOST_SENT: u64 = 32 << 20;

/// The bytes that are put into the memory of the server at a time.
const PIECE: usize = 1 << 20;

impl<T: Elem> Chunk<T> {
    /// Writes the whole chunk and commits it under that tag, as soon as nobody has a guard: one
    /// request. Returns the new version.
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::Late`], which names the processes that have guards.
    /// [`Error::Interrupted`]: the home was lost meanwhile.
    pub fn put(&self, elements: &[T], tag: u64) -> Result<Version> {
        self.check_length(elements)?;
        self.wherever(|chunk| chunk.put_here(elements, tag))
    }

    fn put_here(&self, elements: &[T], tag: u64) -> Result<Version> {
        if let Some(put) = self.put_owned(elements, tag) {
            return put;
        }
        match self.memory()? {
            None => {
                let bytes = bytemuck::cast_slice(elements).to_vec();
                self.put_from(PutFrom::Inline(bytes), tag)
            }
            Some(mut draft) if draft.buffer.is_some() => {
                draft.copy_from_slice(elements);
                draft.put(tag)
            }
            Some(draft) => draft.put_far(elements, tag),
        }
    }

    /// Returns memory to write the next version in, without a guard: others read and write the
    /// chunk meanwhile. [`Draft::put`] publishes it. What it contains at first is unspecified. A
    /// process has the memory of one more version while it keeps a chunk of which it has put
    /// drafts.
    ///
    /// # Errors
    /// [`Error::NoMemory`]; [`Error::TooMany`].
    pub fn draft(&self) -> Result<Draft<T>> {
        self.wherever(Chunk::draft_here)
    }

    fn draft_here(&self) -> Result<Draft<T>> {
        match self.memory()? {
            Some(mut draft) => {
                if draft.buffer.is_none() {
                    draft.buffer = Some(Buffer::Sent(self.zeros()?));
                }
                Ok(draft)
            }
            None => Ok(Draft {
                chunk: self.clone(),
                buffer: Some(Buffer::Sent(self.zeros()?)),
                at: None,
            }),
        }
    }

    /// Returns a draft in memory of the server; without a buffer, if that memory is not mapped
    /// here. `None` if the content is to be sent.
    pub(super) fn memory(&self) -> Result<Option<Draft<T>>> {
        if !self.wants_memory() {
            return Ok(None);
        }
        let mut draft = Draft {
            chunk: self.clone(),
            buffer: None,
            at: None,
        };
        if let Some((at, borrowed)) = self.own_draft() {
            (draft.at, draft.buffer) = (Some(at), Some(Buffer::Mapped(borrowed)));
            return Ok(Some(draft));
        }
        let spare = self.spare().take();
        let is_spare = spare.is_some();
        let mut at = match spare {
            Some(spare) => spare,
            None => self.ask_draft()?,
        };
        let home = self.id().home();
        let borrowed = match self.borrow(home, at.key) {
            // The home has taken the spare one back. It says why, if that is not over.
            Err(Error::Fabric(error)) if is_spare && is_given_up(&error) => {
                self.releases(at);
                at = self.ask_draft()?;
                self.borrow(home, at.key)
            }
            borrowed => borrowed,
        };
        draft.at = Some(at);
        if let Some(borrowed) = borrowed? {
            draft.buffer = Some(Buffer::Mapped(borrowed));
            return Ok(Some(draft));
        }
        self.maps_not();
        Ok((self.shared.bytes > MOST_SENT).then_some(draft))
    }

    /// Asks for memory of the home for a draft.
    pub(super) fn ask_draft(&self) -> Result<DraftAt> {
        let deadline = self.client.fabric.deadline();
        let request = Request::Draft { chunk: self.id() };
        match self.ask_home(deadline, "memory of a chunk", &request)? {
            Answer::Drafted {
                draft: id,
                buffer: Some(key),
            } => Ok(DraftAt { id, key }),
            Answer::Drafted { .. } => Err(Error::Nonsense("a draft without memory".to_owned())),
            other => Err(self.refused(other, "write", deadline)),
        }
    }

    /// Returns true if a writer needs memory of the server: it maps it, or the content is too long
    /// to be sent with a commit.
    pub(super) fn wants_memory(&self) -> bool {
        let bytes = self.shared.bytes;
        bytes > MOST_SENT || bytes > INLINE && self.maps()
    }

    /// Puts content by messages into the memory of a guard or a draft that a server has given.
    pub(crate) fn put_far(
        &self,
        server: ServerId,
        (key, guard): (SegmentKey, GuardId),
        elements: &[T],
    ) -> Result<()> {
        let deadline = self.client.fabric.deadline();
        let request = Request::Expose { guard };
        match self.ask(server, deadline, "memory of a chunk", &request)? {
            Answer::Exposed => {}
            other => return Err(self.refused(other, "write", deadline)),
        }
        let lost = |error: samite_fabric::Error| self.at(server, error.into());
        let remote = self.client.fabric.attach(key).map_err(lost)?;
        let bytes: &[u8] = bytemuck::cast_slice(elements);
        // Two pieces are on the way at a time.
        let mut before = None;
        for (piece, at) in bytes.chunks(PIECE).zip((0_u64..).step_by(PIECE)) {
            let next = remote.put_nb(at, piece).map_err(lost)?;
            if let Some(handle) = before.replace(next) {
                handle.wait().map_err(lost)?;
            }
        }
        match before {
            Some(handle) => handle.wait().map(drop).map_err(lost),
            None => Ok(()),
        }
    }

    pub(crate) fn put_from(&self, from: PutFrom, tag: u64) -> Result<Version> {
        let deadline = self.client.fabric.deadline();
        let request = Request::Put {
            chunk: self.id(),
            tag,
            from,
            timeout: millis(deadline),
        };
        let answer = self.commits(Call::Put, GuardId(0), tag, || {
            self.ask_commit(self.id().home(), deadline, "a put", &request)
        });
        match answer? {
            Answer::Committed { version, draft } => {
                if let Some((id, key)) = draft
                    && let Some(other) = self.spare().replace(DraftAt { id, key })
                {
                    self.client.release(self.id().home(), self.id(), other.id);
                }
                Ok(version)
            }
            other => Err(self.refused(other, "write", deadline)),
        }
    }

    pub(super) fn spare(&self) -> MutexGuard<'_, Option<DraftAt>> {
        let spare = self.shared.spare.lock();
        spare.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the memory of the server can be mapped here, as far as is known.
    pub(super) fn maps(&self) -> bool {
        // ORDERING: it only saves requests for memory that cannot be mapped.
        self.shared.maps.load(Ordering::Relaxed)
    }

    pub(super) fn maps_not(&self) {
        // ORDERING: as above.
        self.shared.maps.store(false, Ordering::Relaxed);
    }

    /// Changes the word of 64 bits that begins at element `index`, at the home of the chunk: one
    /// request, as soon as nobody has a guard. The result is the next version, under that tag.
    /// Returns the word before.
    ///
    /// # Errors
    /// [`Error::NotAWord`]: the chunk is longer than 4 KiB, or ends before the word does;
    /// [`Error::Late`]; [`Error::Interrupted`].
    pub fn delegate(&self, index: u64, op: Op, tag: u64) -> Result<u64> {
        let offset = index.checked_mul(size_of::<T>() as u64);
        let end = offset.and_then(|offset| offset.checked_add(8));
        let bytes = self.shared.bytes;
        let fits = bytes <= INLINE && end.is_some_and(|end| end <= bytes);
        let Some(offset) = offset.filter(|_| fits) else {
            return Err(Error::NotAWord {
                chunk: self.shared.name.clone(),
                index,
                bytes,
            });
        };
        self.wherever(|chunk| chunk.delegate_here(offset, op, tag))
    }

    fn delegate_here(&self, offset: u64, op: Op, tag: u64) -> Result<u64> {
        let deadline = self.client.fabric.deadline();
        let request = Request::Change {
            chunk: self.id(),
            offset,
            op,
            tag,
            timeout: millis(deadline),
        };
        let answer = self.commits(Call::Change, GuardId(0), tag, || {
            self.ask_commit(self.id().home(), deadline, "a change", &request)
        });
        match answer? {
            Answer::Changed { old, .. } => Ok(old),
            other => Err(self.refused(other, "write", deadline)),
        }
    }

    pub(super) fn check_length(&self, elements: &[T]) -> Result<()> {
        let has = elements.len() as u64;
        match has == self.len() {
            true => Ok(()),
            false => Err(Error::Length {
                chunk: self.shared.name.clone(),
                has,
                len: self.len(),
            }),
        }
    }
}
