//! Guards: access to the content of a chunk.

use crate::chunk::{Chunk, Elem, OwnGuard};
use crate::error::{Error, Result};
use crate::log::Call;
use crate::owner::DraftAt;
use crate::protocol::{Answer, Fault, GuardId, PutFrom, Request, ServerId, Token, Version};
use samite_fabric::{Borrowed, Remote, SegmentKey};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The content of a version: shared memory of its server, mapped here and leased, or a copy.
#[derive(Debug)]
pub(crate) enum Content<T> {
    Mapped(Remote),
    Copied(Vec<T>),
}

impl<T: Elem> Content<T> {
    pub(crate) fn as_slice(&self) -> &[T] {
        match self {
            Content::Mapped(remote) => match remote.readable() {
                Some(bytes) => bytes.as_slice(),
                None => unreachable!("only memory that is read is kept as mapped"),
            },
            Content::Copied(elements) => elements,
        }
    }
}

/// A committed version.
#[derive(Debug)]
pub(crate) struct Committed<T> {
    pub(crate) content: Content<T>,
    pub(crate) version: Version,
    pub(crate) tag: u64,
    /// The number by which read guards of it are taken without a message; 0 if it was not given.
    pub(crate) number: u64,
}

/// The content of one version of a chunk, which no later commit changes. Nobody waits for it.
/// Dereferences to the elements. Thread: any.
#[derive(Clone, Debug)]
pub struct Snapshot<T>(pub(crate) Arc<Committed<T>>);

impl<T: Elem> Snapshot<T> {
    /// Returns the version: the number of commits before it.
    pub fn version(&self) -> Version {
        self.0.version
    }

    /// Returns the tag that the version was committed with; 0 before the first commit.
    pub fn tag(&self) -> u64 {
        self.0.tag
    }

    /// Returns true if nothing was copied: the elements are in the memory of the server, which is
    /// mapped here.
    pub fn in_place(&self) -> bool {
        matches!(self.0.content, Content::Mapped(_))
    }
}

impl<T: Elem> Deref for Snapshot<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0.content.as_slice()
    }
}

/// What a guard has of its server, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Held<T: Elem> {
    pub(crate) chunk: Chunk<T>,
    /// The server that gave it.
    pub(crate) server: ServerId,
    pub(crate) guard: GuardId,
    /// Whether the server was told that it has ended, or knows.
    pub(crate) has_ended: bool,
}

impl<T: Elem> Drop for Held<T> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let (chunk, guard) = (self.chunk.id(), self.guard);
        self.chunk.client.log.ended(chunk, guard);
        self.chunk.client.release(self.server, chunk, guard);
    }
}

/// What a writer has, which ends when it is dropped.
#[derive(Debug)]
pub(crate) enum Holds<T: Elem> {
    Given(Held<T>),
    Owned(OwnGuard<T>),
}

/// A read guard that this process has taken without a message, if it was open: only then it is
/// recorded.
#[derive(Debug)]
pub(crate) struct Taken<T: Elem>(pub(crate) Chunk<T>, pub(crate) bool);

impl<T: Elem> Drop for Taken<T> {
    fn drop(&mut self) {
        if self.1 {
            self.0.client.log.ended(self.0.id(), GuardId(0));
        }
        self.0.give_up();
    }
}

/// How a read guard ends.
#[derive(Debug)]
pub(crate) enum Reads<T: Elem> {
    Given(#[allow(dead_code, reason = "it ends when dropped")] Held<T>),
    Taken(#[allow(dead_code, reason = "it ends when dropped")] Taken<T>),
}

/// A guard to read a chunk: as long as it exists, nothing is committed to the chunk. Dereferences
/// to the elements. Thread: any.
#[derive(Debug)]
pub struct ReadGuard<T: Elem> {
    pub(crate) snapshot: Snapshot<T>,
    pub(crate) reads: Reads<T>,
}

impl<T: Elem> ReadGuard<T> {
    /// Returns the version: the number of commits before it.
    pub fn version(&self) -> Version {
        self.snapshot.version()
    }

    /// Returns the tag that the version was committed with; 0 before the first commit.
    pub fn tag(&self) -> u64 {
        self.snapshot.tag()
    }

    /// Returns true if nothing was copied: the elements are in the memory of the server, which is
    /// mapped here.
    pub fn in_place(&self) -> bool {
        self.snapshot.in_place()
    }

    /// Returns true if this process took the guard without a message to the server.
    pub fn without_message(&self) -> bool {
        matches!(self.reads, Reads::Taken(_))
    }

    /// Returns the content, and ends the guard: the content stays.
    pub fn into_snapshot(self) -> Snapshot<T> {
        self.snapshot
    }
}

impl<T: Elem> Deref for ReadGuard<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.snapshot
    }
}

/// One of the guards of [`Chunk::acquire_all`].
#[derive(Debug)]
pub enum Guard<T: Elem> {
    /// To read.
    Read(ReadGuard<T>),
    /// To write. It contains the last committed version.
    Write(WriteGuard<T>),
}

/// The memory that a writer has.
#[derive(Debug)]
pub(crate) enum Buffer<T> {
    /// Of the server, mapped here.
    Mapped(Borrowed),
    /// Put into memory of the server before the commit.
    Far(SegmentKey, Vec<T>),
    /// Sent with the commit.
    Sent(Vec<T>),
}

/// A guard to write a chunk, alone. Readers see nothing of it before [`WriteGuard::commit`]; a
/// guard that is dropped without a commit, also by a panic or the end of the process, changes
/// nothing. Dereferences to the elements. Thread: any.
#[derive(Debug)]
pub struct WriteGuard<T: Elem> {
    /// `None` after the commit has begun.
    pub(crate) buffer: Option<Buffer<T>>,
    pub(crate) version: Version,
    /// Dropped last: the memory is given back when the server is told.
    pub(crate) held: Holds<T>,
}

impl<T: Elem> WriteGuard<T> {
    /// Returns the version that this one follows.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Publishes what was written, under a tag of the caller's choice: readers see all of it or
    /// nothing. Returns the new version. Completion: the version is the present one at the home of
    /// the chunk.
    ///
    /// # Errors
    /// [`Error::Fenced`]: this process was taken for dead, and nothing is committed.
    /// [`Error::Interrupted`]: the home of a chunk with replicas was lost; it says whether that is
    /// known. After an error of the fabric it is unknown whether it is committed.
    pub fn commit(self, tag: u64) -> Result<Version> {
        self.commit_if(tag, None)
    }

    /// As [`WriteGuard::commit`], if that lock is still held: by this process, or by another one
    /// that has passed its token on.
    ///
    /// # Errors
    /// [`Error::Fenced`](crate::Error::Fenced) also if the lock is not held any more.
    pub fn commit_under(self, tag: u64, lock: Token) -> Result<Version> {
        self.commit_if(tag, Some(lock))
    }

    fn commit_if(self, tag: u64, under: Option<Token>) -> Result<Version> {
        let WriteGuard { buffer, held, .. } = self;
        match held {
            Holds::Given(held) => held.commit(buffer, tag, under),
            Holds::Owned(guard) => match under {
                None => guard.commit(buffer, tag),
                // Only the home can tell that the lock is held when the commit takes place.
                Some(_) => {
                    let (held, buffer) = guard.give_up(buffer)?;
                    held.commit(buffer, tag, under)
                }
            },
        }
    }

    /// Returns what it has of its home, and its memory; `None` if its process owns the chunk.
    pub(crate) fn into_held(self) -> Option<(Held<T>, Option<Buffer<T>>)> {
        match self.held {
            Holds::Given(held) => Some((held, self.buffer)),
            Holds::Owned(_) => None,
        }
    }
}

impl<T: Elem> Held<T> {
    fn commit(
        mut self,
        buffer: Option<Buffer<T>>,
        tag: u64,
        under: Option<Token>,
    ) -> Result<Version> {
        let data = match buffer {
            Some(Buffer::Far(key, elements)) => {
                let put = (self.chunk).put_far(self.server, (key, self.guard), &elements);
                put.map_err(|error| of_commit(&self.chunk, error))?;
                None
            }
            // The server gets its memory back before it is asked to publish it.
            Some(Buffer::Mapped(borrowed)) => {
                drop(borrowed);
                None
            }
            Some(Buffer::Sent(elements)) => Some(bytemuck::cast_slice(&elements).to_vec()),
            None => None,
        };
        let chunk = self.chunk.clone();
        // The home of the chunk looks itself after its own locks.
        if let Some(token) = under.filter(|token| token.lock.home() != chunk.id().home()) {
            chunk.check_lock(token)?;
        }
        let request = Request::Commit {
            chunk: chunk.id(),
            guard: self.guard,
            tag,
            data,
            under,
        };
        let deadline = chunk.client.fabric.deadline();
        let answer = chunk.commits(Call::Commit, self.guard, tag, || {
            let asked = chunk.ask_commit(self.server, deadline, "a commit", &request);
            asked.map_err(|error| of_commit(&chunk, error))
        })?;
        // A commit that was refused does not end the guard, nor does one that has no answer: then
        // it is released.
        self.has_ended = matches!(
            (&answer, under),
            (Answer::Committed { .. }, _) | (Answer::Failed(Fault::Fenced), None)
        );
        match answer {
            Answer::Committed { version, .. } => Ok(version),
            other => Err(chunk.refused(other, "write", deadline)),
        }
    }
}

/// Returns what an error of a commit under a guard means: the guard ends with the home.
fn of_commit<T: Elem>(chunk: &Chunk<T>, error: Error) -> Error {
    match error {
        Error::Lost { .. } if chunk.is_replicated() => chunk.interrupted(true),
        error => error,
    }
}

impl<T: Elem> Deref for WriteGuard<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        Buffer::as_slice(&self.buffer)
    }
}

impl<T: Elem> DerefMut for WriteGuard<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        Buffer::as_mut_slice(&mut self.buffer)
    }
}

impl<T: Elem> Buffer<T> {
    pub(crate) fn as_slice(buffer: &Option<Buffer<T>>) -> &[T] {
        match buffer {
            Some(Buffer::Mapped(borrowed)) => borrowed.as_slice(),
            Some(Buffer::Far(_, elements) | Buffer::Sent(elements)) => elements,
            None => &[],
        }
    }

    fn as_mut_slice(buffer: &mut Option<Buffer<T>>) -> &mut [T] {
        match buffer {
            Some(Buffer::Mapped(borrowed)) => borrowed.as_mut_slice(),
            Some(Buffer::Far(_, elements) | Buffer::Sent(elements)) => elements,
            None => &mut [],
        }
    }
}

/// The next version of a chunk, while it is written: nobody else sees it, and nobody waits for it.
/// One that is dropped changes nothing. Dereferences to the elements. Thread: any.
#[derive(Debug)]
pub struct Draft<T: Elem> {
    pub(crate) chunk: Chunk<T>,
    /// `None` after the put has begun.
    pub(crate) buffer: Option<Buffer<T>>,
    /// Its number at the server, and where it is, if it is memory of the server.
    pub(crate) at: Option<DraftAt>,
}

impl<T: Elem> Draft<T> {
    /// Publishes it under a tag, as soon as nobody has a guard of the chunk: one request. Returns
    /// the new version. Completion: as [`WriteGuard::commit`].
    ///
    /// # Errors
    /// [`Error::Late`](crate::Error::Late): it is dropped.
    pub fn put(mut self, tag: u64) -> Result<Version> {
        let chunk = &self.chunk;
        if chunk.is_replicated() && chunk.client.has_lost_home(chunk.id()) {
            // What was written is still here.
            return chunk.put(Buffer::as_slice(&self.buffer), tag);
        }
        if let Some(Buffer::Sent(elements)) = &self.buffer
            && let Some(put) = chunk.put_owned(elements, tag)
        {
            return put;
        }
        let from = match (self.buffer.take(), self.at.take()) {
            (Some(Buffer::Mapped(borrowed)), Some(draft)) => {
                match self.chunk.put_draft((draft, borrowed), tag) {
                    Ok(put) => return put,
                    // The server gets its memory back before it is asked to publish it.
                    Err(borrowed) => drop(borrowed),
                }
                PutFrom::Draft(draft.id)
            }
            (buffer, Some(draft)) => {
                self.at = Some(draft);
                return self.put_far(Buffer::as_slice(&buffer), tag);
            }
            (buffer, None) => {
                let elements = Buffer::as_slice(&buffer);
                PutFrom::Inline(bytemuck::cast_slice(elements).to_vec())
            }
        };
        self.chunk.put_from(from, tag)
    }

    /// As [`Draft::put`], of these elements, which are put into the memory of the server by
    /// messages first.
    pub(crate) fn put_far(mut self, elements: &[T], tag: u64) -> Result<Version> {
        let (chunk, at) = (self.chunk.clone(), self.at);
        let home = chunk.id().home();
        let lost = || Error::Nonsense("a draft without memory".to_owned());
        let draft = at.ok_or_else(lost)?;
        chunk.put_far(home, (draft.key, draft.id), elements)?; // Otherwise, it ends.
        self.at = None;
        chunk.put_from(PutFrom::Draft(draft.id), tag)
    }
}

impl<T: Elem> Drop for Draft<T> {
    fn drop(&mut self) {
        self.buffer = None;
        if let Some(draft) = self.at.take() {
            self.chunk.drops(draft);
        }
    }
}

impl<T: Elem> Deref for Draft<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        Buffer::as_slice(&self.buffer)
    }
}

impl<T: Elem> DerefMut for Draft<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        Buffer::as_mut_slice(&mut self.buffer)
    }
}
