//! What happens when a process leaves while peers may still use its buffers: they copy through the
//! kernel, and learn later that it has left.

use super::Engine;
use crate::Error;
use crate::ops::{Op, Ops, Work};
use samite_mem::copy::cooperative::Claim;

impl Engine {
    /// Called when this process leaves: peers take no further pieces of a message from it or for
    /// it. What they have copied from it by then is not delivered, because its bytes are freed
    /// next. Returns whether nobody writes into a buffer of this process any more.
    pub(crate) fn withdraw_all(&mut self) -> bool {
        let mut quiet = true;
        let all = |op: &Op| {
            matches!(
                op.work,
                Work::Send { .. } | Work::Assist { .. } | Work::Pull(_)
            )
        };
        for key in self.ops.pending(all) {
            match self.ops.get(key).map(|op| &op.work) {
                Some(Work::Send {
                    word: Some(word), ..
                })
                | Some(Work::Assist { word, .. }) => {
                    Claim::new(self.words.word(*word), 0).revoke();
                }
                // The message was not taken, so its sender is not told that it was.
                Some(Work::Pull(pull)) if pull.let_go() => {
                    self.ops.finish(key, Err(Error::Cancelled));
                }
                Some(Work::Pull(_)) => quiet = false,
                _ => {}
            }
        }
        quiet
    }

    /// Gives up everything that this leaving process shares with others. A buffer that a peer may
    /// still be writing into is never freed. Returns whether such a buffer lies in shared memory.
    pub(crate) fn end_all(&mut self) -> bool {
        let mut writes_on = false;
        if !self.withdraw_all() {
            for key in self.ops.pending(|op| matches!(op.work, Work::Pull(_))) {
                let Some(op) = self.ops.get(key) else {
                    continue;
                };
                if let Work::Pull(pull) = std::mem::replace(&mut op.work, Work::None) {
                    tracing::warn!(from = %pull.status.from, "a peer is still copying into a buffer, which is never freed");
                    writes_on |= pull.buf.as_shared().is_some();
                    std::mem::forget(pull);
                }
            }
        }
        self.ops = Ops::default();
        self.pieces.clear();
        self.offered.clear();
        self.deferred.clear();
        writes_on
    }
}
