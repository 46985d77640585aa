//! What is sent to other processes, and what waits because they do not take it.

use super::here::HERE;
use super::{ChunkService, encode};
use crate::protocol::{Answer, Ended, Process, ServerEvent, Ticket};
use samite_fabric::rpc::ServiceId;
use std::collections::VecDeque;
use std::time::Duration;

/// Maximum bytes of messages that wait for a process that does not take them. One that takes no
/// more is treated as lost.
const UNSENT: usize = 16 << 20;

/// How a process gets a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum To {
    /// As the answer to its request.
    Asker(Ticket),
    /// As a note to its service.
    Inbox(ServiceId),
}

/// The messages that a process has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    messages: VecDeque<(To, Vec<u8>)>,
    bytes: usize,
}

impl ChunkService {
    /// Sends an answer, or keeps it until the process takes it.
    pub(super) fn answer(&mut self, to: Process, ticket: Ticket, answer: &Answer) {
        if to == self.me && ticket.0 & HERE == HERE {
            return self.answer_here(ticket, answer);
        }
        self.send(to, To::Asker(ticket), encode(answer));
    }

    /// Sends a message, or keeps it until the process takes it.
    pub(super) fn send(&mut self, to: Process, how: To, bytes: Vec<u8>) {
        self.counters.sent += 1;
        if !self.unsent.contains_key(&to) && self.is_sent(to, how, &bytes) {
            return;
        }
        let unsent = self.unsent.entry(to).or_default();
        unsent.bytes += bytes.len();
        unsent.messages.push_back((how, bytes));
    }

    /// Returns true if a message is sent, or has no receiver any more.
    pub(super) fn is_sent(&self, to: Process, how: To, bytes: &[u8]) -> bool {
        let (to, now) = (to.into(), Duration::ZERO);
        let sent = match how {
            To::Asker(ticket) => self.inbox.respond(to, ticket.0, bytes, now),
            To::Inbox(service) => self.fabric.note(service, to, now, bytes),
        };
        !matches!(sent, Err(samite_fabric::Error::Timeout { .. }))
    }

    /// Sends the answers that were not taken before. A process that lets too many wait is treated
    /// as lost.
    pub(super) fn send_again(&mut self) {
        let mut unsent = std::mem::take(&mut self.unsent);
        for (to, unsent) in &mut unsent {
            while let Some((how, bytes)) = unsent.messages.front()
                && self.is_sent(*to, *how, bytes)
            {
                unsent.bytes -= bytes.len();
                unsent.messages.pop_front();
            }
        }
        unsent.retain(|_, unsent| !unsent.messages.is_empty());
        let deaf = unsent.iter().filter(|(_, unsent)| unsent.bytes > UNSENT);
        let deaf: Vec<Process> = deaf.map(|(to, _)| *to).collect();
        self.unsent = unsent;
        for process in deaf {
            if self.server.is_server(process) {
                // What it is told concerns its copies: without them, little is.
                self.on_event(ServerEvent::FenceServer(process));
                continue;
            }
            tracing::warn!(%process, "a process that takes no answers is given up");
            let subscribers = self.server.subscriptions_of(process);
            self.end_requests(process);
            self.given_up.insert(process);
            // It may live, and only be slow: it subscribes again.
            self.tell_end(subscribers, Ended::GivenUp);
        }
    }
}
