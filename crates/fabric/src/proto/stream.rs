//! Stream: a large message as fragments through the ring of the pair, in two copies that overlap.
//!
//! The receiver asks (STREAM), and the sender pushes DATA while there is room. Fragments of one
//! message arrive in order; those of several may alternate. For units that share only frames this
//! is the only way; elsewhere it is the one that needs no permission.

use crate::engine::{Budget, Engine, Step};
use crate::ops::{Collect, Key, Outcome, Status, Then, Work};
use crate::transport::{AnyTransport, Incoming, Push, Transport};
use crate::wire::{Words, frame, kind};
use samite_mem::lend::WriteBuf;

impl Engine {
    /// Prepares to receive a message as data.
    pub(crate) fn collect(
        &mut self,
        key: Key,
        buf: WriteBuf,
        status: Status,
        send: u64,
        then: Then,
    ) {
        let Some(op) = self.ops.get(key) else { return };
        op.work = Work::Collect(Box::new(Collect {
            buf,
            status,
            send,
            got: 0,
            then,
        }));
        self.post(status.from, kind::STREAM, send, &Words([key]).bytes());
        if status.len == 0 {
            self.complete(key);
        }
    }

    /// Sender: handles the receiver's request for the message as data.
    pub(crate) fn stream_wanted(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let Words([receive]) = Words::<1>::read(frame.inline).ok_or("a request for data")?;
        let from = frame.from;
        let Some(op) = self.ops.get(frame.arg).filter(|op| op.peer == Some(from)) else {
            return Ok(()); // The send was given up meanwhile; WITHDRAW has been sent.
        };
        let (buf, word) = match std::mem::replace(&mut op.work, Work::None) {
            Work::Send { buf, word, .. } => (buf, word),
            Work::Assist { buf, word, .. } => (buf, Some(word)),
            other => {
                op.work = other;
                return Ok(());
            }
        };
        op.work = Work::Stream {
            buf,
            receive,
            sent: 0,
        };
        if let Some(word) = word {
            self.words.give_back(word);
        }
        self.active.push_back(frame.arg);
        Ok(())
    }

    /// Sends fragments while there is room, up to the maximum of one turn.
    pub(crate) fn stream(&mut self, key: Key, transport: &mut AnyTransport) -> Step {
        let Some(to) = self.ops.get(key).and_then(|op| op.peer) else {
            return Step::Done;
        };
        let caps = self.route(to).caps;
        let piece = match caps.fragment {
            0 => self.costs.stream_piece,
            fragment => fragment,
        };
        // An empty fragment would be sent forever.
        let piece = piece.clamp(1, caps.body_max.max(1));
        let Some(op) = self.ops.get(key) else {
            return Step::Done;
        };
        let Work::Stream { buf, receive, sent } = &mut op.work else {
            return Step::Done;
        };
        let mut moved = false;
        let mut budget = Budget::new();
        while *sent < buf.len() {
            if budget.is_spent() {
                return Step::Moved;
            }
            let len = piece.min(buf.len() - *sent);
            let inline = Words([*sent]).bytes();
            let frame = frame(kind::DATA, *receive, &inline, buf.body(*sent, len));
            match transport.push(to, &frame) {
                Push::Done => {
                    budget.spend(len);
                    *sent += len;
                }
                Push::Full => return if moved { Step::Moved } else { Step::Stuck },
                Push::Gone => return Step::Done, // The loss of the peer ends the operation.
            }
            moved = true;
        }
        if let Work::Stream { buf, .. } = std::mem::replace(&mut op.work, Work::None) {
            self.ops.finish(key, Ok(Outcome::Sent(buf.into_owned())));
        }
        Step::Done
    }

    /// Handles a fragment of a message.
    pub(crate) fn data_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let Words([offset]) = Words::<1>::read(frame.inline).ok_or("a fragment")?;
        let from = frame.from;
        let Some(op) = self.ops.get(frame.arg).filter(|op| op.peer == Some(from)) else {
            return Ok(()); // The receive was cancelled.
        };
        let Work::Collect(collect) = &mut op.work else {
            return Ok(());
        };
        let len = frame.body.len();
        if offset != collect.got || len > collect.status.len - collect.got {
            return Err("the place of a fragment");
        }
        collect.buf.fill(offset, &frame.body);
        collect.got += len;
        if collect.got == collect.status.len {
            self.complete(frame.arg);
        }
        Ok(())
    }
}
