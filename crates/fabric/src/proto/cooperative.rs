//! Cooperative: sender and receiver copy one large private message from both ends.
//!
//! The receiver says where its buffer is (HELP) and copies from the front. The sender, if it makes
//! progress meanwhile, writes from the back. The claim word of the offer divides the pieces, so
//! that a sender that is busy computing costs nothing. Invariants C1-C3 of
//! `samite_mem::copy::cooperative`.

use crate::engine::{Engine, Step};
use crate::ops::{Key, Work};
use crate::transport::Incoming;
use crate::wire::Help;
use samite_mem::copy::cooperative::Claim;

impl Engine {
    /// Sender: handles the receiver's request for help.
    pub(crate) fn help_wanted(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let help = Help::read(frame.inline).ok_or("a call for help")?;
        let from = frame.from;
        let Some(op) = self.ops.get(frame.arg).filter(|op| op.peer == Some(from)) else {
            return Ok(());
        };
        match std::mem::replace(&mut op.work, Work::None) {
            Work::Send {
                buf,
                word: Some(word),
                ..
            } if help.len <= buf.len() => {
                op.work = Work::Assist { buf, word, help };
                self.active.push_back(frame.arg);
            }
            other => op.work = other,
        }
        Ok(())
    }

    /// Sender: copies a piece from the back.
    pub(crate) fn assist(&mut self, key: Key) -> Step {
        let Some(op) = self.ops.get(key) else {
            return Step::Done;
        };
        let (Some(to), Work::Assist { buf, word, help }) = (op.peer, &op.work) else {
            return Step::Done;
        };
        let pid = self.peers.pid(to);
        let claim = Claim::new(self.words.word(*word), help.len.div_ceil(help.piece));
        let Some(piece) = claim.take_back() else {
            return Step::Done;
        };
        let offset = piece * help.piece;
        let len = help.piece.min(help.len - offset);
        let mut done = 0;
        while done < len {
            match buf.copy_to_process(offset + done, len - done, pid, help.address + offset + done)
            {
                Ok(n) if n > 0 => done += n,
                refusal => {
                    // The piece is lost to the receiver: it must start again as a stream (V3).
                    tracing::warn!(?refusal, %to, "the kernel copy was refused while helping");
                    claim.spoil();
                    break;
                }
            }
        }
        claim.done_back();
        if done < len { Step::Done } else { Step::Moved }
    }
}
