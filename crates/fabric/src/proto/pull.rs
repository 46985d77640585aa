//! The receiver's side of a rendezvous that it copies itself: from a mapped segment, or from the
//! sender's process through the kernel, perhaps with the sender's help. The protocol and its
//! invariants are in `rendezvous`.

use crate::Error;
use crate::engine::{Engine, Step};
use crate::ops::{Ending, Key, Pull, Source, Then, Work};
use crate::wire::kind;
use samite_mem::copy::cooperative::Claim;
use samite_mem::ring::Body;

impl Engine {
    /// Copies a piece of a message on this side.
    pub(crate) fn pull(&mut self, key: Key) -> Step {
        let Some(op) = self.ops.get(key) else {
            return Step::Done;
        };
        let Work::Pull(pull) = &mut op.work else {
            return Step::Done;
        };
        let word = pull.claim.clone();
        let claim = Claim::new(&word, pull.status.len.div_ceil(pull.piece));
        if let Some(ending) = pull.ending.take() {
            if !pull.let_go() {
                // Do not wait for the sender here: it may have been stopped, or killed, inside its
                // piece.
                pull.ending = Some(ending);
                return Step::Stuck;
            }
            return match ending {
                Ending::Fail(error) => self.end_pull(key, Err(error)),
                Ending::Stream => self.stream_instead(key),
            };
        }
        let Some(piece) = claim.take_front() else {
            if claim.spoilt() {
                return self.refused(key, std::io::Error::other("the sender was refused"));
            }
            if claim.revoked() {
                pull.ending = Some(Ending::Fail(Error::Cancelled));
                return Step::Moved;
            }
            return if claim.finished() {
                self.end_pull(key, Ok(()))
            } else {
                Step::Stuck
            };
        };
        let offset = piece * pull.piece;
        let len = pull.piece.min(pull.status.len - offset);
        if let Err(error) = pull.copy(offset, len) {
            return self.refused(key, error);
        }
        // V1: the last look at the word comes after the last byte.
        if claim.intact() {
            self.end_pull(key, Ok(()))
        } else {
            Step::Moved
        }
    }

    pub(crate) fn end_pull(&mut self, key: Key, result: Result<(), Error>) -> Step {
        let Some(op) = self.ops.get(key) else {
            return Step::Done;
        };
        let Work::Pull(pull) = &op.work else {
            return Step::Done;
        };
        let (from, send) = (pull.status.from, pull.send);
        match pull.then {
            Then::Complete => {
                let kind = match &result {
                    Ok(()) => kind::ATS,
                    Err(_) => kind::REFUSED,
                };
                self.post(from, kind, send, &[]);
            }
            Then::Handle { .. } => {
                if let Err(what) = self.post_unasked(from, kind::ATS, send) {
                    self.corrupt(from, what, kind::ATS as u64);
                    return Step::Moved; // The loss of the peer ends it.
                }
            }
        }
        match result {
            Ok(()) => self.complete(key),
            Err(error) => self.ops.finish(key, Err(error)),
        }
        Step::Done
    }

    /// Handles a refused kernel copy (EPERM in a container, a process that is just dying): restarts
    /// as a stream (V3), once the sender no longer writes into the buffer.
    fn refused(&mut self, key: Key, error: std::io::Error) -> Step {
        let Some(op) = self.ops.get(key) else {
            return Step::Done;
        };
        let Work::Pull(pull) = &mut op.work else {
            return Step::Done;
        };
        pull.ending = Some(Ending::Stream);
        let from = pull.status.from;
        tracing::warn!(%error, %from, "the kernel copy was refused; going on through the ring");
        self.peer(from).route.kernel = Some(false);
        Step::Moved
    }

    fn stream_instead(&mut self, key: Key) -> Step {
        let Some(op) = self.ops.get(key) else {
            return Step::Done;
        };
        if let Work::Pull(pull) = std::mem::replace(&mut op.work, Work::None) {
            self.collect(key, pull.buf, pull.status, pull.send, pull.then);
        }
        Step::Done
    }
}

impl Pull {
    /// Stops further pieces. Returns whether nobody writes into the buffer any more, either: a
    /// sender that was never told where the buffer is does not, whatever its claim word says.
    pub(crate) fn let_go(&self) -> bool {
        let claim = Claim::new(&self.claim, self.status.len.div_ceil(self.piece));
        claim.revoke();
        !self.helped || claim.quiet()
    }

    /// Copies a piece.
    fn copy(&mut self, offset: u64, len: u64) -> std::io::Result<()> {
        match &self.source {
            Source::Mapped(bytes) => {
                self.buf.fill(offset, &Body::Shared { bytes, offset, len });
                Ok(())
            }
            &Source::Process { pid, address } => {
                let mut done = 0;
                while done < len {
                    let at = offset + done;
                    match self
                        .buf
                        .fill_from_process(at, len - done, pid, address + at)?
                    {
                        0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                        n => done += n,
                    }
                }
                Ok(())
            }
        }
    }
}
