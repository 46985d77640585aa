//! A blocking receive whose message arrives next: no operation, no queue, one copy from the ring
//! into the caller's buffer. Whatever else arrives meanwhile goes to the engine as usual.
//!
//! It is used only while no other thread waits, since what arrives may be for that thread.
//!
//! It never competes with the [`Matcher`](crate::Matcher): it is used only while no receive is
//! posted and no message is kept, so the next wanted message is the right one. It saves most of a
//! short receive: the operation, the queue and, for an unexpected message, a copy.

use crate::engine::{Engine, UNPOLLED};
use crate::fabric::Core;
use crate::transport::{Change, Completed, Incoming, Sink, Transport};
use crate::wire::kind;
use crate::{Match, Status};

/// Polls for which a blocking receive looks for its message before it is posted: a few
/// microseconds.
const DIRECT_POLLS: u32 = 2000;

/// A sink that takes frames for the engine, and copies the one message for which a blocking receive
/// waits straight into its buffer: no operation, no queue.
struct Direct<'a> {
    engine: &'a mut Engine,
    wants: Match,
    buffer: &'a mut [u8],
    got: Option<Status>,
    /// The engine has kept something that may be the message, or membership has changed.
    look: bool,
}

impl Sink for Direct<'_> {
    #[inline(always)]
    fn frame(&mut self, frame: Incoming<'_>) {
        let ours = frame.kind == kind::EAGER
            && self.got.is_none()
            && !self.look
            && self.wants.accepts(frame.from, frame.arg)
            // Receives posted earlier go first.
            && !self.engine.matcher.has_posted();
        if !ours {
            self.look |= frame.kind != kind::EAGER || self.wants.accepts(frame.from, frame.arg);
            self.engine.frame(frame);
            // The engine's answers leave in a turn; a peer that broke the rules is not read here
            // any more.
            self.look |= self.engine.is_busy() || self.engine.shut;
            return;
        }
        let body = crate::proto::payload(&frame, 0);
        let fits = body.len().min(self.buffer.len() as u64);
        body.copy_to(0, &mut self.buffer[..fits as usize]);
        self.got = Some(Status {
            from: frame.from,
            incarnation: self.engine.incarnation(frame.from),
            tag: frame.arg,
            len: body.len(),
        });
    }

    fn change(&mut self, change: Change) {
        self.look = true;
        self.engine.change(change);
    }

    fn completed(&mut self, completed: Completed) {
        self.look = true;
        self.engine.completed(completed);
    }

    #[inline(always)]
    fn satisfied(&self) -> bool {
        self.got.is_some()
    }
}

impl Core {
    /// Receives a message that arrives next; if it is longer than the buffer, its beginning.
    /// `None`: post the receive and wait.
    #[inline]
    pub(crate) fn recv_now(&mut self, wants: Match, buffer: &mut [u8]) -> Option<Status> {
        if !self.engine.may_bypass() || !self.waiters.is_empty() {
            return None;
        }
        self.engine.unpolled = UNPOLLED;
        let polls = if self.transport.oversubscribed() {
            1
        } else {
            DIRECT_POLLS
        };
        let mut sink = Direct {
            engine: &mut self.engine,
            wants,
            buffer,
            got: None,
            look: false,
        };
        for _ in 0..polls {
            self.transport.poll(&mut sink);
            if sink.got.is_some() {
                return sink.got;
            }
            if sink.look {
                return None;
            }
            std::hint::spin_loop();
        }
        None
    }
}
