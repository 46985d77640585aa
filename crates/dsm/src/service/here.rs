//! Requests of the process that the server is a part of: they come and are answered without
//! messages.

use super::{ChunkService, encode};
use crate::protocol::{Answer, Message, Request, Ticket};
use samite_fabric::rpc::ServiceId;
use std::time::Duration;

/// The lower half of the numbers of requests that come without messages. In those of messages, it
/// is an index into a table, which is never that long.
pub(super) const HERE: u64 = u32::MAX as u64;

impl ChunkService {
    /// Handles notes of this process.
    pub(crate) fn note_here(&mut self, notes: Vec<Request>) {
        self.keep_leases();
        for note in notes {
            self.ask(self.me, None, note);
        }
        self.wake_for_memory();
    }

    /// Wakes a thread of this process, to allocate memory for which another thread, or another
    /// process, waits.
    pub(super) fn wake_for_memory(&self) {
        if !self.growing.is_empty() {
            self.wake();
        }
    }

    /// Handles notes and a request of this process. Returns the ticket of the request, for
    /// [`ChunkService::take_here`].
    pub(crate) fn ask_here(&mut self, notes: Vec<Request>, request: Request) -> Ticket {
        self.note_here(notes);
        self.last_here = self.last_here.wrapping_add(1);
        let ticket = Ticket(u64::from(self.last_here) << 32 | HERE);
        self.here.insert(ticket, None);
        self.asking = Some(ticket);
        self.ask(self.me, Some(ticket), request);
        self.asking = None;
        self.wake_for_memory();
        ticket
    }

    /// Returns the answer to a request of this process, if it is there. It is returned once.
    pub(crate) fn take_here(&mut self, ticket: Ticket) -> Option<Answer> {
        let answer = self.here.get_mut(&ticket)?.take()?;
        self.here.remove(&ticket);
        Some(answer)
    }

    /// Answers a request of this process. Unless it is the one that asks now, another thread waits
    /// for that.
    pub(super) fn answer_here(&mut self, ticket: Ticket, answer: &Answer) {
        let Some(waiting) = self.here.get_mut(&ticket) else {
            return; // It was forgotten.
        };
        *waiting = Some(answer.clone());
        if self.asking != Some(ticket) {
            self.wake();
        }
    }

    /// Wakes all threads of this process that wait: what arrives for a process does so.
    pub(super) fn wake(&self) {
        let nothing: Message = Message {
            notes: Vec::new(),
            request: None,
        };
        let (me, now) = (self.me.into(), Duration::ZERO);
        let woken = (self.fabric).note(ServiceId::CHUNKS, me, now, &encode(&nothing));
        if let Err(error) = woken {
            tracing::debug!(%error, "a thread looks for its answer later");
        }
    }
}
