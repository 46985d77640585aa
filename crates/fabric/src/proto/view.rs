//! Messages that are read in place, in the sender's segment ([`crate::Fabric::recv_view`]).
//!
//! The lease of a view keeps the memory alive. Its content is up to the sender: a sender that gave
//! the send up (its deadline was over) revokes the claim word *before* it reuses its buffer, and
//! the view notices that.
//!
//! # Invariants
//! W1 The sender gets ATS (or REFUSED) when the view is dropped, and not before, whatever it asked
//!    meanwhile: until then its claim word is not used for another message (V2 of `rendezvous`).
//! W2 No other incarnation of the sender's number is told about a view, and the claim word of a
//!    sender that is gone is not read: its memory may have been reused.

use crate::PeerId;
use crate::engine::Engine;
use crate::node::ClaimWord;
use crate::ops::Key;
use crate::wire::kind;
use samite_mem::copy::cooperative::Claim;

/// Messages that are being viewed.
#[derive(Debug, Default)]
pub(crate) struct Views {
    open: Vec<Viewing>,
    last: u64,
}

#[derive(Debug)]
struct Viewing {
    id: u64,
    from: PeerId,
    send: Key,
    /// The sender's word; or, once the sender is gone, whether it had withdrawn the message.
    word: Result<ClaimWord, bool>,
}

impl Viewing {
    fn is_withdrawn(&self) -> bool {
        match &self.word {
            Ok(word) => Claim::new(word, 0).revoked_after_reading(),
            Err(was_withdrawn) => *was_withdrawn,
        }
    }
}

impl Views {
    /// Registers a view of a message; returns its id.
    pub(crate) fn begin(&mut self, from: PeerId, send: Key, word: ClaimWord) -> u64 {
        self.last += 1;
        let word = Ok(word);
        let id = self.last;
        self.open.push(Viewing {
            id,
            from,
            send,
            word,
        });
        id
    }

    /// Returns whether a message of a peer is being viewed.
    pub(crate) fn shows(&self, from: PeerId, send: Key) -> bool {
        let is_it = |view: &Viewing| view.from == from && view.send == send && view.word.is_ok();
        self.open.iter().any(is_it)
    }

    /// Returns whether the sender withdrew a message while it was viewed.
    pub(crate) fn is_withdrawn(&self, id: u64) -> bool {
        let view = self.open.iter().find(|view| view.id == id);
        view.is_some_and(Viewing::is_withdrawn)
    }

    /// Handles the loss of a sender (W2).
    pub(crate) fn part(&mut self, from: PeerId) {
        for view in self.open.iter_mut().filter(|view| view.from == from) {
            view.word = Err(view.is_withdrawn());
        }
    }
}

impl Engine {
    /// Ends a dropped view and tells the sender, if it is alive (W1, W2). `was_taken`: whether its
    /// message was received.
    pub(crate) fn end_view(&mut self, id: u64, was_taken: bool) {
        let Some(index) = self.views.open.iter().position(|view| view.id == id) else {
            return;
        };
        let view = self.views.open.swap_remove(index);
        if view.word.is_ok() {
            let kind = if was_taken { kind::ATS } else { kind::REFUSED };
            self.post(view.from, kind, view.send, &[]);
        }
    }
}
