//! Guards and drafts that come with memory to write to, which may have to be allocated before.

use super::ChunkService;
use super::memory::Beginning;
use crate::protocol::{Answer, ChunkId, GuardId, Process, ServerEvent, Ticket};
use samite_fabric::{Growing, Phased, SegmentKey};

/// A guard that is given when its memory is there.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) to: (Process, Ticket),
    chunk: ChunkId,
    pub(super) guard: GuardId,
    answer: Answer,
    growing: Growing,
}

impl ChunkService {
    /// Returns the next draft for a process that has put one, if there is memory at once.
    pub(super) fn next_draft(
        &mut self,
        (to, ticket): (Process, Ticket),
        chunk: ChunkId,
    ) -> Option<(GuardId, SegmentKey)> {
        let bytes = self.server.bytes(chunk)?;
        let segment = self.memory.spare(bytes)?;
        let Some(draft) = self.server.new_draft((to, ticket), chunk) else {
            self.memory.set_free(segment);
            return None;
        };
        let key = self.memory.lend(to, draft, segment).ok()?;
        Some((draft, key))
    }

    /// Answers with memory to write to, as soon as there is some.
    pub(super) fn give_memory(
        &mut self,
        to: (Process, Ticket),
        (chunk, guard): (ChunkId, GuardId),
        answer: Answer,
    ) -> Option<ServerEvent> {
        let bytes = self.server.bytes(chunk).unwrap_or(0);
        match self.memory.begin(bytes) {
            Ok(Beginning::There(segment)) => self.give(to, (chunk, guard), answer, segment),
            Ok(Beginning::Grows(growing)) => {
                self.growing.push_back(Given {
                    to,
                    chunk,
                    guard,
                    answer,
                    growing,
                });
                None
            }
            Err(error) => Some(no_memory(to, (chunk, guard), &error)),
        }
    }

    /// Gives a guard, or a draft, with memory to write to.
    fn give(
        &mut self,
        (to, ticket): (Process, Ticket),
        (chunk, guard): (ChunkId, GuardId),
        mut answer: Answer,
        segment: Phased,
    ) -> Option<ServerEvent> {
        match self.memory.lend(to, guard, segment) {
            Ok(key) => {
                if let Answer::Given { buffer, .. } | Answer::Drafted { buffer, .. } = &mut answer {
                    *buffer = Some(key);
                }
                self.answer(to, ticket, &answer);
                None
            }
            Err(error) => Some(no_memory((to, ticket), (chunk, guard), &error)),
        }
    }

    /// Allocates the next part of the first buffer that grows.
    pub(super) fn grow(&mut self) {
        let Some(first) = self.growing.front_mut() else {
            return;
        };
        let grown = match first.growing.step() {
            Ok(false) => return,
            Ok(true) => Ok(()),
            Err(error) => Err(error),
        };
        let Some(Given {
            to,
            chunk,
            guard,
            answer,
            growing,
        }) = self.growing.pop_front()
        else {
            return;
        };
        let follows = match grown.and_then(|()| self.memory.grown(growing)) {
            Ok(segment) => self.give(to, (chunk, guard), answer, segment),
            Err(error) => Some(no_memory(to, (chunk, guard), &error)),
        };
        follows.into_iter().for_each(|event| self.on_event(event));
    }
}

fn no_memory(
    (to, ticket): (Process, Ticket),
    (chunk, guard): (ChunkId, GuardId),
    error: &samite_fabric::Error,
) -> ServerEvent {
    ServerEvent::NoMemory {
        to,
        ticket,
        chunk,
        guard,
        why: error.to_string(),
    }
}
