//! Messages: blocking, borrowed in a scope, owned, in place, active.

use crate::agent::client::Held;
use crate::engine::{Arrived, weight};
use crate::fabric::{Core, Fabric, Patience};
use crate::handle::{Handle, Received, Scoped, Sent};
use crate::ops::{Ending, Key, NO_SCOPE, Outcome as Ended, Pull, Status, Viewed, Work};
use crate::proto::rendezvous::push_eager;
use crate::transport::{Class, Push};
use crate::view::View;
use crate::wire::kind;
use crate::{Error, Match, PeerId, Result, Whom};
use samite_mem::SharedBytes;
use samite_mem::lend::{self, Lender, ReadBuf, Recall, WriteBuf};
use samite_mem::ring::Body;
use std::time::Duration;

impl Fabric {
    /// Sends `bytes` to a peer. Completion: local; small messages are on their way, large ones have
    /// been taken by the receiver (or have left for one that had begun to take them), and so have small ones once it
    /// has 1 MiB of this peer that it has not asked for.
    /// Errors: [`Error::PeerLost`], [`Error::Timeout`]; [`Error::NotReceived`] if the receive that had matched it was
    /// given up meanwhile.
    #[inline]
    pub fn send(&self, to: PeerId, tag: u64, bytes: &[u8]) -> Result<()> {
        if self.send_now(to, tag, bytes)? {
            return Ok(());
        }
        self.lending(NO_SCOPE, |lender| {
            let key = self.start_send(to, tag, lender.read(bytes), NO_SCOPE)?;
            self.finish(key).map(|_| ())
        })
    }

    /// Sends a message that fits into one frame, if nothing waits before it and there is room.
    #[inline]
    fn send_now(&self, to: PeerId, tag: u64, bytes: &[u8]) -> Result<bool> {
        let core = &mut *self.core.borrow_mut();
        let (eager_max, inline_max) = (core.engine.eager_max, core.engine.caps.inline_max);
        let len = bytes.len() as u64;
        if len > eager_max || !core.engine.may_send_at_once(to, len) {
            return Ok(false);
        }
        let body = Body::Slice(bytes);
        let push = push_eager(&mut core.transport, to, tag, &body, inline_max);
        if push != Push::Done {
            return Ok(false);
        }
        core.engine.unpolled -= weight(len);
        Ok(true)
    }

    /// Receives a message into `buffer`. Completion: the bytes are there. Errors:
    /// [`Error::Truncated`] (the message is consumed), [`Error::PeerLost`] for a directed receive,
    /// [`Error::Timeout`]: a message that was being copied by then is consumed, too, and its send ends with
    /// [`Error::NotReceived`], unless all of it had left.
    #[inline]
    pub fn recv(&self, wants: Match, buffer: &mut [u8]) -> Result<Status> {
        if let Some(result) = self.core.borrow_mut().recv_now(wants, buffer) {
            return result;
        }
        self.lending(NO_SCOPE, |lender| {
            let key = self.start_recv(
                wants,
                Work::Receive {
                    buf: lender.write(buffer),
                },
                NO_SCOPE,
            )?;
            match self.finish(key)? {
                Ended::Received(status, _) => Ok(status),
                other => Err(unexpected(&other)),
            }
        })
    }

    /// Receives a message of any length.
    pub fn recv_vec(&self, wants: Match) -> Result<(Status, Vec<u8>)> {
        let key = self.start_recv(wants, Work::ReceiveAny { view: false }, NO_SCOPE)?;
        match self.finish(key)? {
            Ended::Viewed(status, Viewed::Copied(bytes)) => Ok((status, bytes)),
            Ended::Received(status, Some(bytes)) => Ok((status, bytes)),
            other => Err(unexpected(&other)),
        }
    }

    /// Receives a message where it lies: if the sender sent it from a segment and it is mapped here,
    /// nothing is copied, and the sender's operation ends when the view is dropped; one that did not wait so long
    /// may have changed the bytes ([`View::is_withdrawn`]). Otherwise the view holds a private copy.
    pub fn recv_view(&self, wants: Match) -> Result<View<'_>> {
        let key = self.start_recv(wants, Work::ReceiveAny { view: true }, NO_SCOPE)?;
        let (status, bytes, view) = match self.finish(key)? {
            Ended::Viewed(status, Viewed::InPlace { bytes, view }) => (status, bytes, Some(view)),
            Ended::Viewed(status, Viewed::Copied(bytes)) | Ended::Received(status, Some(bytes)) => {
                (status, SharedBytes::adopt(bytes), None)
            }
            other => return Err(unexpected(&other)),
        };
        Ok(View::new(self, status, bytes, view))
    }

    /// Starts to send a buffer that the operation owns; [`Handle::wait`] gives it back.
    pub fn isend(&self, to: PeerId, tag: u64, bytes: Vec<u8>) -> Result<Handle<'_, Sent>> {
        self.start_send(to, tag, ReadBuf::owned(bytes), NO_SCOPE)
            .map(|key| Handle::new(self, key))
    }

    /// Starts to send bytes of shared memory (a segment): a peer that maps them copies them once,
    /// straight out of it, or views them. They must not change before the operation ends.
    pub fn isend_shared(
        &self,
        to: PeerId,
        tag: u64,
        bytes: SharedBytes,
    ) -> Result<Handle<'_, Sent>> {
        self.start_send(to, tag, ReadBuf::shared(bytes), NO_SCOPE)
            .map(|key| Handle::new(self, key))
    }

    /// Starts to receive into a buffer that the operation owns.
    pub fn irecv(&self, wants: Match, buffer: Vec<u8>) -> Result<Handle<'_, Received>> {
        let work = Work::Receive {
            buf: WriteBuf::owned(buffer),
        };
        self.start_recv(wants, work, NO_SCOPE)
            .map(|key| Handle::new(self, key))
    }

    /// Starts to receive into shared memory (a segment).
    pub fn irecv_shared(&self, wants: Match, buffer: SharedBytes) -> Result<Handle<'_, Received>> {
        let work = Work::Receive {
            buf: WriteBuf::shared(buffer),
        };
        self.start_recv(wants, work, NO_SCOPE)
            .map(|key| Handle::new(self, key))
    }

    /// The oldest message that a receive would take, if one is there. Does not consume it.
    pub fn probe(&self, wants: Match) -> Option<Status> {
        self.progress();
        let core = self.core.borrow();
        core.engine
            .matcher
            .peek_unexpected(wants)
            .map(|(from, tag, arrived)| {
                let now = core.engine.incarnation(from);
                let (incarnation, len) = match arrived {
                    Arrived::Bytes(bytes) => (now, bytes.len() as u64),
                    Arrived::Offer(offer) => (now, offer.len),
                    Arrived::Departed(incarnation, bytes) => (*incarnation, bytes.len() as u64),
                };
                Status {
                    from,
                    incarnation,
                    tag,
                    len,
                }
            })
    }

    /// Runs `f`, in which operations may borrow buffers of the caller; returns when all of them have
    /// ended. After the deadline what is left is given up.
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
    /// That of `f`; else the first error of an operation that was started in it and that `f` has not waited
    /// for itself: [`Error::Truncated`], [`Error::PeerLost`], [`Error::Timeout`] for what was given up. One
    /// that was cancelled is not among them.
    pub fn scope<'f, 'env, R, E: From<Error>>(
        &'f self,
        f: impl for<'s> FnOnce(&Scope<'s, 'env, 'f>) -> Result<R, E>,
    ) -> Result<R, E> {
        let mut open = OpenScope::new(self);
        let level = open.level;
        let result = self.lending(level, |lender| {
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

    /// Lends buffers to a scope, or to one call that has waited for its operation itself ([`NO_SCOPE`]). At the end
    /// takes back what is still lent: after the deadline, in that call at once. A peer that is in the middle of copying
    /// into it, and neither ends that nor dies, is ended by the agent. Without an agent nobody would hear of its end,
    /// and this process aborts.
    fn lending<'env, R>(&self, level: u16, f: impl for<'s> FnOnce(&'s Lender<'s, 'env>) -> R) -> R {
        let mut patience = Patience::default();
        let mut overdue = Overdue::default();
        let mut is_first = true;
        let recall = || {
            let core = &mut *self.core.borrow_mut();
            // Before a turn, which may panic in a handler, and also after one that brought something: neither that
            // nor the frames of others stop the clock.
            if !std::mem::replace(&mut is_first, false) {
                patience.rest(core, self.spin(), Duration::MAX, &mut || false);
            }
            let (waited, deadline) = (patience.waited(), self.deadline());
            if overdue.since.is_none() && (level == NO_SCOPE || waited >= deadline) {
                core.give_up_lent(level, deadline);
                overdue.begin(waited, core.held());
            }
            if let Some(held) = overdue.look(waited, self.grace.get(), || core.held()) {
                if core.engine.agent_lost {
                    let holders = held.iter().map(|held| held.holder.0.to_string());
                    return Recall::Abort(format!(
                        "{} still copies into a buffer of this process, and the agent is gone",
                        holders.collect::<Vec<_>>().join(", ")
                    ));
                }
                self.evict(&held);
            }
            if core.turn() > 0 {
                patience.moved();
            }
            Recall::Again
        };
        lend::scope(recall, f)
    }

    pub(crate) fn start_send(&self, to: PeerId, tag: u64, buf: ReadBuf, scope: u16) -> Result<Key> {
        let core = &mut *self.core.borrow_mut();
        if let Some(error) = core.engine.gone(to) {
            return Err(error);
        }
        let key = core.engine.ops.add(
            Some(to),
            "send",
            Work::Send {
                tag,
                buf,
                word: None,
            },
        );
        core.engine.ops.belong(key, scope);
        if !core.engine.peers[to.index()].outbox.is_empty()
            || core.engine.push_send(key, to, &mut core.transport) == Push::Full
        {
            core.engine.queue_send(to, key);
        }
        Ok(key)
    }

    /// Inlined: the work is written where it stays, instead of being moved three times.
    #[inline(always)]
    pub(crate) fn start_recv(&self, wants: Match, work: Work, scope: u16) -> Result<Key> {
        let core = &mut *self.core.borrow_mut();
        let engine = &mut core.engine;
        if engine.is_of_parent() {
            return Err(Error::Forked);
        }
        let key = engine.ops.add(wants.source, "receive", work);
        if scope != NO_SCOPE {
            engine.ops.belong(key, scope);
        }
        match engine.matcher.take_unexpected(wants) {
            Some((from, tag, arrived)) => {
                engine.unkeep(from, &arrived);
                match arrived {
                    Arrived::Bytes(bytes) => engine.deliver(key, from, tag, &Body::Slice(&bytes)),
                    Arrived::Offer(offer) => engine.accept(key, from, tag, offer),
                    Arrived::Departed(incarnation, bytes) => {
                        engine.deliver_of(key, (from, incarnation), tag, &Body::Slice(&bytes));
                    }
                }
                if engine.has_unsent() {
                    engine.flush(&mut core.transport);
                }
            }
            None => {
                if let Some(error) = wants.source.and_then(|source| engine.gone(source)) {
                    engine.ops.finish(key, Err(error.clone()));
                    engine.ops.take(key);
                    return Err(error);
                }
                engine.matcher.post(wants, key);
            }
        }
        Ok(key)
    }

    /// Waits for an operation; one that timed out is given up before the error is returned.
    #[inline]
    pub(crate) fn finish(&self, key: Key) -> Result<Ended> {
        let result = self.wait_op(key);
        if let Err(Error::Timeout { .. } | Error::AgentLost(_) | Error::Forked) = result {
            let core = &mut *self.core.borrow_mut();
            // Whoever waited is told; a scope is not told once more.
            core.engine.ops.belong(key, NO_SCOPE);
            core.engine.give_up(key, Error::Cancelled);
            core.engine.ops.detach(key);
            core.engine.flush(&mut core.transport);
        }
        result
    }

    /// Registers a handler of active messages. It runs inside the progress of this process, gets the
    /// sender and the bytes, and may return a reply; it cannot wait.
    pub fn on(&self, handler: u16, run: impl FnMut(PeerId, &[u8]) -> Option<Vec<u8>> + 'static) {
        self.core
            .borrow_mut()
            .engine
            .handlers
            .insert(handler, Box::new(run));
    }

    /// Sends an active message without a reply. Completion: local.
    pub fn tell(&self, to: PeerId, handler: u16, bytes: &[u8]) -> Result<()> {
        self.credit_for(to, bytes.len())?;
        let core = &mut *self.core.borrow_mut();
        core.engine.send_active(to, handler, bytes, false);
        core.engine.flush(&mut core.transport);
        Ok(())
    }

    /// Sends an active message whose handler answers. [`Handle::wait`] gives the reply.
    pub fn request(&self, to: PeerId, handler: u16, bytes: &[u8]) -> Result<Handle<'_, Vec<u8>>> {
        self.credit_for(to, bytes.len())?;
        let core = &mut *self.core.borrow_mut();
        let key = core.engine.send_active(to, handler, bytes, true);
        core.engine.flush(&mut core.transport);
        Ok(Handle::new(self, key))
    }
}

/// Messages that were given up, whose senders may still be copying, and for how long.
#[derive(Debug, Default)]
struct Overdue {
    since: Option<Duration>,
    /// Those of that moment: who came later has time of its own.
    held: Vec<Held>,
    /// Their time was over at the last look.
    is_late: bool,
}

impl Overdue {
    fn begin(&mut self, now: Duration, held: Vec<Held>) {
        *self = Overdue {
            since: Some(now),
            held,
            is_late: false,
        };
    }

    /// Who held a piece then and still does, when their time is over and a turn after that has not ended it: this
    /// process may have been stopped together with them.
    fn look(
        &mut self,
        now: Duration,
        grace: Duration,
        held: impl FnOnce() -> Vec<Held>,
    ) -> Option<Vec<Held>> {
        let was_late = self.is_late;
        self.is_late = now.saturating_sub(self.since?) > grace;
        if !was_late || !self.is_late {
            return None;
        }
        let held = held();
        let then = std::mem::take(&mut self.held);
        self.begin(now, held.clone());
        let still: Vec<Held> = held.into_iter().filter(|one| then.contains(one)).collect();
        (!still.is_empty()).then_some(still)
    }
}

impl Core {
    /// The deadline of a scope is over: gives up its operations that hold a lent buffer. Those of the scopes around
    /// it have a deadline that has not begun.
    fn give_up_lent(&mut self, level: u16, after: Duration) {
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
            let late = Error::Timeout {
                what: op.what,
                whom: op.peer.map_or(Whom::Any, Whom::Peer),
                after,
            };
            self.engine.give_up(key, late);
            if level == NO_SCOPE {
                // The call that waited for it was ended by a panic: nobody asks any more.
                self.engine.ops.detach(key);
            }
        }
    }

    /// Messages that were given up, and into whose buffers their senders may still be copying.
    fn held(&self) -> Vec<Held> {
        let pulls = self.engine.ops.running().filter_map(|op| match &op.work {
            Work::Pull(pull) => Some(pull),
            _ => None,
        });
        let is_given_up = |pull: &Pull| matches!(pull.ending, Some(Ending::Fail(_)));
        let given_up = pulls.filter(|pull| is_given_up(pull) && pull.helped);
        let held = given_up.map(|pull| Held {
            holder: (pull.status.from, pull.status.incarnation),
            claim: pull.claim_at,
        });
        held.collect()
    }
}

impl crate::engine::Engine {
    pub(crate) fn queue_send(&mut self, to: PeerId, key: Key) {
        self.queue(to, Class::Request, crate::engine::Queued::Send(key));
    }

    /// Ends an operation because its owner no longer wants it, or cannot wait longer.
    pub(crate) fn give_up(&mut self, key: Key, why: Error) {
        self.matcher.cancel(|posted| *posted == key);
        let Some(op) = self.ops.get(key) else { return };
        let offered = matches!(
            op.work,
            Work::Send { .. } | Work::Assist { .. } | Work::Stream { .. }
        );
        let peer = op.peer.filter(|_| offered);
        self.fail(key, why, true);
        if let Some(peer) = peer {
            self.post(peer, Class::Request, kind::WITHDRAW, key, &[]);
        }
    }
}

fn unexpected(ended: &Ended) -> Error {
    unreachable!("an operation ended as {ended:?}, which is not how it can end")
}

/// Borrowing operations; see [`Fabric::scope`].
#[derive(Debug)]
pub struct Scope<'s, 'env, 'f> {
    fabric: &'f Fabric,
    lender: &'s Lender<'s, 'env>,
    level: u16,
}

/// A scope from its beginning to its end, also if that is a panic.
struct OpenScope<'f> {
    fabric: &'f Fabric,
    level: u16,
    is_open: bool,
}

impl<'f> OpenScope<'f> {
    fn new(fabric: &'f Fabric) -> Self {
        OpenScope {
            fabric,
            level: fabric.core.borrow_mut().engine.ops.begin_scope(),
            is_open: true,
        }
    }

    /// Ends it; the first error of what was started in it.
    fn close(&mut self) -> Option<Error> {
        let was_open = std::mem::replace(&mut self.is_open, false);
        let ops = &mut self.fabric.core.borrow_mut().engine.ops;
        was_open.then(|| ops.end_scope()).flatten()
    }
}

impl Drop for OpenScope<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<'env, 'f> Scope<'_, 'env, 'f> {
    /// Starts to send a borrowed buffer.
    #[inline]
    pub fn isend(&self, to: PeerId, tag: u64, bytes: &'env [u8]) -> Result<Scoped<'_, Sent>> {
        if self.fabric.send_now(to, tag, bytes)? {
            return Ok(Scoped::new(Handle::sent(self.fabric)));
        }
        let buf = self.lender.read(bytes);
        let key = self.fabric.start_send(to, tag, buf, self.level)?;
        Ok(Scoped::new(Handle::new(self.fabric, key)))
    }

    /// As [`crate::Remote::get`], without waiting: the scope ends when the bytes are there.
    pub fn get(
        &self,
        remote: &crate::Remote<'f>,
        offset: u64,
        into: &'env mut [u8],
    ) -> Result<Scoped<'_, u64>> {
        if remote.get_at_once(offset, into)? {
            return Ok(Scoped::new(Handle::ended(self.fabric)));
        }
        self.get_far(remote, offset, into)
    }

    /// Asks the owner for bytes of a range that was checked.
    pub(crate) fn get_far(
        &self,
        remote: &crate::Remote<'f>,
        offset: u64,
        into: &'env mut [u8],
    ) -> Result<Scoped<'_, u64>> {
        let handle = remote.ask(offset, self.lender.write(into))?;
        let ops = &mut self.fabric.core.borrow_mut().engine.ops;
        ops.belong(handle.key(), self.level);
        Ok(Scoped::new(handle))
    }

    /// Starts to receive into a borrowed buffer.
    #[inline]
    pub fn irecv(&self, wants: Match, buffer: &'env mut [u8]) -> Result<Scoped<'_, Received>> {
        let work = Work::Receive {
            buf: self.lender.write(buffer),
        };
        let key = self.fabric.start_recv(wants, work, self.level)?;
        Ok(Scoped::new(Handle::new(self.fabric, key)))
    }
}
