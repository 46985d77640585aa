//! Operations that borrow buffers of their caller: the scopes that outlive them, and what happens
//! when a peer continues to copy into such a buffer.

use crate::fabric::{Core, Fabric};
use crate::handle::{Handle, Received, Scoped, Sent};
use crate::node::agent::client::ClaimedPiece;
use crate::ops::{Ending, Pull, Work};
use crate::waiting::{For, Waiting};
use crate::{Error, Match, Named, PeerId, Result, Whom};
use samite_mem::lend::{self, Lender, Recall};
use std::time::Duration;

impl Fabric {
    /// Runs `f`, in which operations may borrow buffers of the caller; returns when all of them
    /// have ended. At the deadline, those still in progress are given up.
    ///
    /// `E`, the error type of `f`, may be any that is made from [`Error`], such as
    /// `Box<dyn std::error::Error>`. The compiler cannot guess it, so the closure says what it
    /// returns.
    ///
    /// ```
    /// # #![deny(warnings)]
    /// # use samite_fabric::{Config, Fabric, Identity, Match};
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// let (out, mut into) = ([1; 8], [0; 8]);
    /// fabric.scope(|scope| -> samite_fabric::Result<()> {
    ///     scope.irecv(Match::any(7), &mut into)?;
    ///     scope.isend(fabric.me(), 7, &out)?;
    ///     Ok(())
    /// })?;
    /// assert_eq!(into, out);
    /// # Ok::<(), samite_fabric::Error>(())
    /// ```
    ///
    /// # Errors
    /// That of `f`; otherwise the first error of an operation that was started in it and that `f`
    /// has not waited for itself: [`Error::Truncated`], [`Error::PeerLost`], [`Error::Timeout`] for
    /// those given up. Cancelled operations are not reported.
    pub fn scope<'f, 'env, R, E: From<Error>>(
        &'f self,
        f: impl for<'s> FnOnce(&Scope<'s, 'env, 'f>) -> Result<R, E>,
    ) -> Result<R, E> {
        let mut open = OpenScope::new(self)?;
        let level = open.level;
        let result = self.lend_in(level, Recalls::AtDeadline, |lender| {
            f(&Scope {
                fabric: self,
                lender,
                level,
            })
        });
        match (result, open.close()) {
            (Ok(_), Some(error)) => Err(error.into()),
            (result, _) => result,
        }
    }

    /// Lends buffers to the operations of one call, which waits for them itself.
    pub(crate) fn lending<'env, R>(
        &self,
        f: impl for<'s> FnOnce(&'s Lender<'s, 'env>, u16) -> Result<R>,
    ) -> Result<R> {
        let open = OpenScope::new(self)?;
        let level = open.level;
        self.lend_in(level, Recalls::AtOnce, |lender| f(lender, level))
    }

    /// Lends buffers to the operations of a scope, and at the end takes back what is still lent. A
    /// peer that is in the middle of copying into one, and neither finishes nor dies, is ended by
    /// the agent. Without an agent nobody would report its end, so this process aborts.
    fn lend_in<'env, R>(
        &self,
        level: u16,
        recalls: Recalls,
        f: impl for<'s> FnOnce(&'s Lender<'s, 'env>) -> R,
    ) -> R {
        let deadline = self.deadline();
        let mut waiting = Waiting::new(&self.0, deadline);
        waiting.of = Some(For {
            what: "the end of a scope",
            whom: Whom::Any,
            others: 0,
        });
        let mut overdue = Overdue::default();
        let mut is_first = true;
        let recall = || {
            let Some(mut core) = self.0.core() else {
                return Recall::Again; // This is a fork, in which nothing is lent.
            };
            // Rests before a turn, which may panic in a handler, and even after a turn that brought
            // something: neither a panic nor the frames of others stop the clock.
            if !std::mem::replace(&mut is_first, false) {
                waiting.rest(&mut core, &mut || false);
            }
            let waited = waiting.waited();
            let is_over = recalls == Recalls::AtOnce || waited >= deadline;
            if overdue.since.is_none() && is_over {
                core.give_up_lent(level, recalls, deadline);
                // Sends that had not left make room for those of other threads.
                core.tell();
                overdue.begin(waited, core.held());
                // From now on the peers that still copy have a deadline of their own.
                waiting.without_deadline();
            }
            if let Some(held) = overdue.look(waited, self.0.grace(), || core.held()) {
                if core.engine.agent_lost {
                    let holders = held.iter().map(|held| {
                        let (slot, life) = held.holder;
                        let peer = slot.of(self.me().node());
                        Named::new(peer, core.engine.name_of(peer, Some(life))).to_string()
                    });
                    return Recall::Abort(format!(
                        "{} still copies into a buffer of this process, and the agent is gone",
                        holders.collect::<Vec<_>>().join(", ")
                    ));
                }
                // The agent may take long.
                waiting.unlocked(&mut core, || self.evict(&held));
            }
            waiting.turn(&mut core);
            Recall::Again
        };
        lend::scope(recall, f)
    }
}

/// When operations with lent buffers are given up at the end of their scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recalls {
    /// The program has waited for none of them yet.
    AtDeadline,
    /// A call has waited for its operation, or was ended by a panic: nobody needs it any more.
    AtOnce,
}

/// Messages that were given up, whose senders may still be copying, and since when.
#[derive(Debug, Default)]
struct Overdue {
    since: Option<Duration>,
    /// The pieces that were held at that moment. A piece that is taken later has a grace period of
    /// its own.
    held: Vec<ClaimedPiece>,
    /// Whether their time was over at the last check.
    is_late: bool,
}

impl Overdue {
    fn begin(&mut self, now: Duration, held: Vec<ClaimedPiece>) {
        *self = Overdue {
            since: Some(now),
            held,
            is_late: false,
        };
    }

    /// Returns the pieces that were held then and still are, when their time is over and one more
    /// turn has not ended them: this process may have been stopped together with the peers.
    fn look(
        &mut self,
        now: Duration,
        grace: Duration,
        held: impl FnOnce() -> Vec<ClaimedPiece>,
    ) -> Option<Vec<ClaimedPiece>> {
        let was_late = self.is_late;
        self.is_late = now.saturating_sub(self.since?) > grace;
        if !was_late || !self.is_late {
            return None;
        }
        let held = held();
        let then = std::mem::take(&mut self.held);
        self.begin(now, held.clone());
        let still: Vec<ClaimedPiece> = held.into_iter().filter(|one| then.contains(one)).collect();
        (!still.is_empty()).then_some(still)
    }
}

impl Core {
    /// Gives up the operations of a scope that hold a lent buffer, when its deadline is over. The
    /// deadlines of the enclosing scopes have not begun.
    fn give_up_lent(&mut self, level: u16, recalls: Recalls, after: Duration) {
        let is_lent = |work: &Work| match work {
            Work::Send { buf, .. } | Work::Stream { buf, .. } | Work::Assist { buf, .. } => {
                buf.is_lent()
            }
            Work::Receive { buf } | Work::Get { buf, .. } => buf.is_lent(),
            Work::Collect(collect) => collect.buf.is_lent(),
            Work::Pull(pull) => pull.buf.is_lent(),
            _ => false,
        };
        let ours = |op: &crate::ops::Op| op.scope == level && is_lent(&op.work);
        for key in self.engine.ops.pending(ours) {
            let Some(op) = self.engine.ops.get(key) else {
                continue;
            };
            let (what, whom) = (op.what, op.peer.map_or(Whom::Any, Whom::Peer));
            let late = self.engine.timeout(what, whom, after, Some(key));
            self.engine.give_up(key, late);
            if recalls == Recalls::AtOnce {
                self.engine.ops.detach(key);
            }
        }
    }

    /// Returns the pieces of messages that were given up, and into whose buffers their senders may
    /// still be copying.
    fn held(&self) -> Vec<ClaimedPiece> {
        let pulls = self.engine.ops.running().filter_map(|op| match &op.work {
            Work::Pull(pull) => Some(pull),
            _ => None,
        });
        let is_given_up = |pull: &Pull| matches!(pull.ending, Some(Ending::Fail(_)));
        let given_up = pulls.filter(|pull| is_given_up(pull) && pull.helped);
        let held = given_up.map(|pull| ClaimedPiece {
            holder: (pull.status.from.slot(), pull.status.incarnation),
            claim: pull.claim_at,
        });
        held.collect()
    }
}

/// Borrowing operations; see [`Fabric::scope`].
#[derive(Debug)]
pub struct Scope<'s, 'env, 'f> {
    fabric: &'f Fabric,
    lender: &'s Lender<'s, 'env>,
    level: u16,
}

/// A scope from beginning to end, even if it ends by a panic.
struct OpenScope<'f> {
    fabric: &'f Fabric,
    level: u16,
    is_open: bool,
}

impl<'f> OpenScope<'f> {
    fn new(fabric: &'f Fabric) -> Result<Self> {
        Ok(OpenScope {
            fabric,
            level: fabric.0.lock()?.engine.ops.begin_scope(),
            is_open: true,
        })
    }

    /// Ends the scope; returns the first error of an operation that was started in it.
    fn close(&mut self) -> Option<Error> {
        let was_open = std::mem::replace(&mut self.is_open, false);
        let engine = &mut self.fabric.0.lock().ok()?.engine;
        let error = was_open
            .then(|| engine.ops.end_scope(self.level))
            .flatten()?;
        Some(engine.named(error))
    }
}

impl Drop for OpenScope<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<'env> Scope<'_, 'env, '_> {
    /// Starts to send a borrowed buffer.
    #[inline]
    pub fn isend(&self, to: PeerId, tag: u64, bytes: &'env [u8]) -> Result<Scoped<'_, Sent>> {
        if self.fabric.send_now(to, tag, bytes)? {
            return Ok(Handle::at_once());
        }
        let buf = self.lender.read(bytes);
        let key = self.fabric.start_send(to, tag, buf, self.level)?;
        Ok(Handle::new(self.fabric, key))
    }

    /// As [`crate::Remote::get`], without waiting: the scope ends when the bytes have arrived.
    pub fn get(
        &self,
        remote: &crate::Remote,
        offset: u64,
        into: &'env mut [u8],
    ) -> Result<Scoped<'_, u64>> {
        if remote.get_at_once(offset, into)? {
            return Ok(Handle::ended());
        }
        self.get_far(remote, offset, into)
    }

    /// Requests bytes of a checked range from the owner.
    pub(crate) fn get_far(
        &self,
        remote: &crate::Remote,
        offset: u64,
        into: &'env mut [u8],
    ) -> Result<Scoped<'_, u64>> {
        let key = remote.request_get(offset, self.lender.write(into))?;
        self.fabric.0.lock()?.engine.ops.belong(key, self.level);
        Ok(Handle::new(self.fabric, key))
    }

    /// Starts to receive into a borrowed buffer.
    #[inline]
    pub fn irecv(&self, wants: Match, buffer: &'env mut [u8]) -> Result<Scoped<'_, Received>> {
        let mut buffer = buffer;
        let work = || Work::Receive {
            buf: self.lender.write(std::mem::take(&mut buffer)),
        };
        let key = self.fabric.start_recv(wants, work, self.level)?;
        Ok(Handle::new(self.fabric, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Slot;

    /// A peer is ended only if it held a piece when the message was given up, and still does after
    /// its time has been over for two checks: the first check may have been late because this
    /// process was stopped, and the peer perhaps, too.
    #[test]
    fn a_peer_that_still_copies_is_ended_at_the_second_look() {
        let s = Duration::from_secs;
        let (grace, held) = (s(10), |peer, claim| ClaimedPiece {
            holder: (Slot(peer), 1),
            claim,
        });
        let mut overdue = Overdue::default();
        assert_eq!(
            overdue.look(s(99), grace, || unreachable!()),
            None,
            "not begun"
        );
        overdue.begin(s(5), vec![held(1, 64), held(2, 64)]);
        assert_eq!(
            overdue.look(s(15), grace, || unreachable!()),
            None,
            "in time"
        );
        // Both were stopped: in the next turn, the first one ends its piece.
        assert_eq!(
            overdue.look(s(60), grace, || unreachable!()),
            None,
            "first look"
        );
        let now = vec![held(2, 64), held(2, 128), held(3, 64)];
        let late = overdue.look(s(61), grace, || now.clone());
        assert_eq!(late, Some(vec![held(2, 64)]));
        // Later ones have time of their own, and so does the one that the agent could not end.
        assert_eq!(overdue.look(s(62), grace, || unreachable!()), None);
        assert_eq!(
            overdue.look(s(72), grace, || unreachable!()),
            None,
            "first look"
        );
        assert_eq!(
            overdue.look(s(73), grace, || now.clone()),
            Some(now.clone())
        );
        // No piece is held any more.
        assert_eq!(
            overdue.look(s(90), grace, || unreachable!()),
            None,
            "first look"
        );
        assert_eq!(overdue.look(s(91), grace, Vec::new), None);
    }
}
