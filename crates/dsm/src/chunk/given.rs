//! Guards that a server gives.

use super::put::MOST_SENT;
use super::{Chunk, Elem};
use crate::client::millis;
use crate::error::{Error, Result};
use crate::guard::{Buffer, Committed, Guard, Held, Holds, Snapshot, WriteGuard};
use crate::log::Call;
use crate::protocol::{self, Answer, Fault, GuardId, Mode, Request, ServerId, Version};
use samite_fabric::SegmentKey;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl<T: Elem> Chunk<T> {
    /// Waits until nobody else has a guard, and returns one to write the whole chunk. The old
    /// content is not fetched: what the guard contains at first is unspecified.
    ///
    /// # Errors
    /// [`Error::Late`], which names the processes that have guards; [`Error::NoMemory`].
    pub fn write(&self) -> Result<WriteGuard<T>> {
        self.wherever(|chunk| match chunk.write_owned()? {
            Some(guard) => Ok(guard),
            None => chunk.acquire(Mode::Write)?.writer(),
        })
    }

    /// As [`Chunk::write`], and the guard contains the last committed version.
    ///
    /// # Errors
    /// As [`Chunk::write`].
    pub fn update(&self) -> Result<WriteGuard<T>> {
        self.wherever(|chunk| {
            if let Some(mut guard) = chunk.write_owned()? {
                guard.copy_from_slice(&chunk.snapshot()?);
                return Ok(guard);
            }
            let given = chunk.acquire(Mode::Write)?;
            let old = given.snapshot()?.ok_or_else(|| chunk.fenced())?;
            let mut guard = given.writer()?;
            guard.copy_from_slice(&old);
            Ok(guard)
        })
    }

    /// Acquires guards of several chunks, always in the same order: processes that do so never wait
    /// for each other in a circle. Returns them in the order of `wanted`. A chunk that is wanted
    /// twice, and to be written, waits for itself.
    ///
    /// # Errors
    /// As [`Chunk::read`] and [`Chunk::write`]; then it has no guards.
    pub fn acquire_all(wanted: &[(&Chunk<T>, Mode)]) -> Result<Vec<Guard<T>>> {
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_by_key(|place| wanted[*place].0.origin());
        let mut guards: Vec<_> = wanted.iter().map(|_| None).collect();
        for place in order {
            let (chunk, mode) = wanted[place];
            guards[place] = Some(match mode {
                Mode::Read => Guard::Read(chunk.read()?),
                Mode::Write => Guard::Write(chunk.update()?),
            });
        }
        Ok(guards.into_iter().flatten().collect())
    }

    /// Asks this process's server for a guard, or the home if that is where guards are given.
    pub(crate) fn acquire(&self, mode: Mode) -> Result<Given<T>> {
        // ORDERING: it only saves requests that are refused.
        let at_home = match mode {
            Mode::Read => self.shared.reads_at_home,
            Mode::Write => self.shared.writes_at_home.load(Ordering::Relaxed),
        };
        let near = self.client.near(self.id());
        if at_home || near == self.id().home() {
            return self.acquire_at_home(mode);
        }
        match self.acquire_at(near, mode) {
            Ok(Some(given)) => return Ok(given),
            // The home has to be asked; then this process has no server of its own any more.
            Ok(None) => {}
            Err(Error::Fabric(_)) if self.client.near(self.id()) != near => {
                return self.acquire_at_home(mode);
            }
            Err(error) => return Err(error),
        }
        // ORDERING: as above.
        self.shared.writes_at_home.store(true, Ordering::Relaxed);
        self.acquire_at_home(mode)
    }

    pub(crate) fn acquire_at_home(&self, mode: Mode) -> Result<Given<T>> {
        let given = self.acquire_at(self.id().home(), mode)?;
        given.ok_or_else(|| self.not_at_home())
    }

    pub(super) fn not_at_home(&self) -> Error {
        Error::Nonsense(format!("\"{}\" is not served at its home", self.name()))
    }

    pub(super) fn acquire_at(&self, server: ServerId, mode: Mode) -> Result<Option<Given<T>>> {
        let deadline = self.client.fabric.deadline();
        let request = Request::Acquire {
            chunk: self.id(),
            mode,
            in_place: self.wants_memory(),
            timeout: millis(deadline),
        };
        let words = match mode {
            Mode::Read => ("read", "a guard to read a chunk", Call::Read),
            Mode::Write => ("write", "a guard to write a chunk", Call::Write),
        };
        self.given(server, &request, words, deadline)
    }

    /// Asks for a guard. `words`: what it is for, and what is waited for. Returns `None` if the
    /// home has to be asked.
    pub(super) fn given(
        &self,
        server: ServerId,
        request: &Request,
        (word, what, call): (&'static str, &'static str, Call),
        deadline: Duration,
    ) -> Result<Option<Given<T>>> {
        let (log, id) = (&self.client.log, self.id());
        let began = log.asks(call, id);
        let given = self.ask_guard(server, request, (word, what), deadline);
        match &given {
            Ok(None) => {}
            Ok(Some(given)) => {
                let at = (given.version, given.tag);
                log.given((call, began), (id, given.held.guard), at);
            }
            Err(error) => log.failed((call, began), (id, GuardId(0)), error),
        }
        given
    }

    pub(super) fn ask_guard(
        &self,
        server: ServerId,
        request: &Request,
        (word, what): (&'static str, &'static str),
        deadline: Duration,
    ) -> Result<Option<Given<T>>> {
        match self.ask(server, deadline, what, request)? {
            Answer::Failed(Fault::AtHome) => Ok(None),
            Answer::Given {
                guard,
                version,
                tag,
                number,
                content,
                buffer,
            } => Ok(Some(Given {
                version,
                tag,
                number,
                content,
                buffer,
                held: Held {
                    chunk: self.clone(),
                    server,
                    guard,
                    has_ended: false,
                },
            })),
            other => Err(self.refused(other, word, deadline)),
        }
    }
}

/// What comes with a guard.
pub(crate) struct Given<T: Elem> {
    pub(super) version: Version,
    pub(super) tag: u64,
    number: u64,
    pub(super) content: protocol::Content,
    buffer: Option<SegmentKey>,
    pub(crate) held: Held<T>,
}

impl<T: Elem> Given<T> {
    /// Returns the present version; `None` if this process was stopped since, so that the guard was
    /// revoked, and the memory is used again.
    pub(super) fn snapshot(&self) -> Result<Option<Snapshot<T>>> {
        let content = self.held.chunk.content(&self.content)?;
        let committed = content.map(|content| Committed {
            content,
            version: self.version,
            tag: self.tag,
            number: self.number,
        });
        Ok(committed.map(Arc::new).map(Snapshot))
    }

    pub(super) fn writer(self) -> Result<WriteGuard<T>> {
        let chunk = &self.held.chunk;
        let borrowed = match self.buffer {
            Some(key) => chunk.borrow(self.held.server, key)?,
            None => None,
        };
        if borrowed.is_none() && self.buffer.is_some() {
            chunk.maps_not();
        }
        let buffer = match (borrowed, self.buffer) {
            (Some(borrowed), _) => Buffer::Mapped(borrowed),
            (None, Some(key)) if chunk.shared.bytes > MOST_SENT => Buffer::Far(key, chunk.zeros()?),
            _ => Buffer::Sent(chunk.zeros()?),
        };
        Ok(WriteGuard {
            buffer: Some(buffer),
            version: self.version,
            held: Holds::Given(self.held),
        })
    }
}
