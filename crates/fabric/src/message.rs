//! Messages: blocking, borrowed in a scope, owned, in place, active.

use crate::engine::Arrived;
use crate::fabric::{Core, Fabric, Patience};
use crate::hold::Hold;
use crate::ops::{Key, Outcome as Ended, Status, Viewed, Work};
use crate::proto::rendezvous::push_eager;
use crate::transport::{Change, Class, Incoming, Push, Sink, Transport};
use crate::wire::kind;
use crate::{Error, Match, PeerId, Result, Whom};
use samite_mem::SharedBytes;
use samite_mem::lend::{self, Lender, ReadBuf, Recall, WriteBuf};
use samite_mem::ring::Body;
use std::marker::PhantomData;
use std::time::Duration;

/// How long a process that gave up waits for a peer that still holds one of its buffers before it
/// aborts: the peer neither finished its system call, nor died.
const GRACE: Duration = Duration::from_secs(10);

impl Fabric {
    /// Sends `bytes` to a peer. Completion: local; small messages are on their way, large ones have
    /// been taken by the receiver. Errors: [`Error::PeerLost`], [`Error::Timeout`].
    #[inline]
    pub fn send(&self, to: PeerId, tag: u64, bytes: &[u8]) -> Result<()> {
        if self.send_now(to, tag, bytes)? {
            return Ok(());
        }
        self.lending(|lender| {
            let key = self.start_send(to, tag, lender.read(bytes))?;
            self.finish(key).map(|_| ())
        })
    }

    /// Sends a message that fits into one frame, if nothing waits before it and there is room.
    #[inline]
    fn send_now(&self, to: PeerId, tag: u64, bytes: &[u8]) -> Result<bool> {
        let core = &mut *self.core.borrow_mut();
        if let Some(error) = core.engine.gone(to) {
            return Err(error);
        }
        let (eager_max, inline_max) = (core.engine.eager_max, core.engine.caps.inline_max);
        if bytes.len() as u64 > eager_max || !core.engine.peers[to.index()].outbox.is_empty() {
            return Ok(false);
        }
        let body = Body::Slice(bytes);
        Ok(push_eager(&mut core.transport, to, tag, &body, inline_max) == Push::Done)
    }

    /// Receives a message into `buffer`. Completion: the bytes are there. Errors:
    /// [`Error::Truncated`] (the message is consumed), [`Error::PeerLost`] for a directed receive,
    /// [`Error::Timeout`].
    #[inline]
    pub fn recv(&self, wants: Match, buffer: &mut [u8]) -> Result<Status> {
        if let Some(result) = self.core.borrow_mut().recv_now(wants, buffer) {
            return result;
        }
        self.lending(|lender| {
            let key = self.start_recv(
                wants,
                Work::Receive {
                    buf: lender.write(buffer),
                },
            )?;
            match self.finish(key)? {
                Ended::Received(status, _) => Ok(status),
                other => Err(unexpected(&other)),
            }
        })
    }

    /// Receives a message of any length.
    pub fn recv_vec(&self, wants: Match) -> Result<(Status, Vec<u8>)> {
        let key = self.start_recv(wants, Work::ReceiveAny { view: false })?;
        match self.finish(key)? {
            Ended::Viewed(status, Viewed::Copied(bytes)) => Ok((status, bytes)),
            Ended::Received(status, Some(bytes)) => Ok((status, bytes)),
            other => Err(unexpected(&other)),
        }
    }

    /// Receives a message where it lies: if the sender sent it from a segment and it is mapped here,
    /// nothing is copied, and the sender's operation ends when the view is dropped. Otherwise the view
    /// holds a private copy.
    pub fn recv_view(&self, wants: Match) -> Result<View<'_>> {
        let key = self.start_recv(wants, Work::ReceiveAny { view: true })?;
        let (status, bytes, send) = match self.finish(key)? {
            Ended::Viewed(status, Viewed::InPlace { offset, send, hold }) => (
                status,
                self.node.layout.arena().bytes(offset, status.len)?,
                Some((send, hold)),
            ),
            Ended::Viewed(status, Viewed::Copied(bytes)) | Ended::Received(status, Some(bytes)) => {
                (status, SharedBytes::adopt(bytes), None)
            }
            other => return Err(unexpected(&other)),
        };
        Ok(View {
            fabric: self,
            status,
            bytes,
            send,
        })
    }

    /// Starts to send a buffer that the operation owns; [`Handle::wait`] gives it back.
    pub fn isend(&self, to: PeerId, tag: u64, bytes: Vec<u8>) -> Result<Handle<'_, Sent>> {
        self.start_send(to, tag, ReadBuf::owned(bytes))
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
        self.start_send(to, tag, ReadBuf::shared(bytes))
            .map(|key| Handle::new(self, key))
    }

    /// Starts to receive into a buffer that the operation owns.
    pub fn irecv(&self, wants: Match, buffer: Vec<u8>) -> Result<Handle<'_, Received>> {
        let work = Work::Receive {
            buf: WriteBuf::owned(buffer),
        };
        self.start_recv(wants, work)
            .map(|key| Handle::new(self, key))
    }

    /// Starts to receive into shared memory (a segment).
    pub fn irecv_shared(&self, wants: Match, buffer: SharedBytes) -> Result<Handle<'_, Received>> {
        let work = Work::Receive {
            buf: WriteBuf::shared(buffer),
        };
        self.start_recv(wants, work)
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
                let len = match arrived {
                    Arrived::Bytes(bytes) => bytes.len() as u64,
                    Arrived::Offer(offer) => offer.len,
                };
                Status { from, tag, len }
            })
    }

    /// Runs `f`, in which operations may borrow buffers of the caller; returns when all of them have
    /// ended. After the deadline what is left is given up.
    pub fn scope<'env, R>(&self, f: impl for<'s> FnOnce(&Scope<'s, 'env, '_>) -> R) -> R {
        self.lending(|lender| {
            f(&Scope {
                fabric: self,
                lender,
            })
        })
    }

    /// Lends buffers; at the end takes back what is still lent.
    fn lending<'env, R>(&self, f: impl for<'s> FnOnce(&'s Lender<'s, 'env>) -> R) -> R {
        let mut patience = Patience::default();
        let mut given_up = None;
        let recall = || {
            let mut core = self.core.borrow_mut();
            let core = &mut *core;
            if core.turn() > 0 {
                patience.moved();
            } else {
                patience.rest(core, self.spin(), Duration::MAX);
            }
            let now = patience.now();
            if patience.waited() >= self.deadline() && given_up.is_none() {
                given_up = Some(now);
                core.give_up_lent();
            }
            match given_up {
                Some(at) if now - at > GRACE => Recall::Abort(core.who_holds()),
                _ => Recall::Again,
            }
        };
        lend::scope(recall, f)
    }

    pub(crate) fn start_send(&self, to: PeerId, tag: u64, buf: ReadBuf) -> Result<Key> {
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
        if !core.engine.peers[to.index()].outbox.is_empty()
            || core.engine.push_send(key, to, &mut core.transport) == Push::Full
        {
            core.engine.queue_send(to, key);
        }
        Ok(key)
    }

    /// Inlined: the work is written where it stays, instead of being moved three times.
    #[inline(always)]
    pub(crate) fn start_recv(&self, wants: Match, work: Work) -> Result<Key> {
        let core = &mut *self.core.borrow_mut();
        let engine = &mut core.engine;
        let key = engine.ops.add(wants.source, "receive", work);
        match engine.matcher.take_unexpected(wants) {
            Some((from, tag, Arrived::Bytes(bytes))) => {
                engine.deliver(key, from, tag, &Body::Slice(&bytes));
            }
            Some((from, tag, Arrived::Offer(offer))) => {
                engine.accept(key, from, tag, offer);
                engine.flush(&mut core.transport);
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
    fn finish(&self, key: Key) -> Result<Ended> {
        let result = self.wait_op(key);
        if matches!(result, Err(Error::Timeout { .. } | Error::AgentLost(_))) {
            let core = &mut *self.core.borrow_mut();
            core.engine.give_up(key);
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
        self.credit(to)?;
        let core = &mut *self.core.borrow_mut();
        core.engine.send_active(to, handler, bytes, false);
        core.engine.flush(&mut core.transport);
        Ok(())
    }

    /// Sends an active message whose handler answers. [`Handle::wait`] gives the reply.
    pub fn request(&self, to: PeerId, handler: u16, bytes: &[u8]) -> Result<Handle<'_, Vec<u8>>> {
        self.credit(to)?;
        let core = &mut *self.core.borrow_mut();
        let key = core.engine.send_active(to, handler, bytes, true);
        core.engine.flush(&mut core.transport);
        Ok(Handle::new(self, key))
    }

    /// Waits until one more request may be on its way to a peer.
    pub(crate) fn credit(&self, to: PeerId) -> Result<()> {
        self.wait(
            "credit for a request",
            Whom::Peer(to),
            |engine| match engine.gone(to) {
                Some(error) => Some(Err(error)),
                None => engine.has_credit(to).then_some(Ok(())),
            },
        )?
    }
}

/// Polls in which a blocking receive looks for its message before it is posted: some microseconds.
const DIRECT_POLLS: u32 = 2000;

/// Takes frames for the engine, and the one message that a blocking receive is waiting for straight
/// into its buffer: no operation, no queue.
struct Direct<'a> {
    engine: &'a mut crate::engine::Engine,
    wants: Match,
    buffer: &'a mut [u8],
    got: Option<Result<Status>>,
    /// Something that may be the message is kept by the engine, or the world has changed.
    look: bool,
}

impl Sink for Direct<'_> {
    #[inline(always)]
    fn frame(&mut self, frame: Incoming<'_>) {
        let ours = frame.kind == kind::EAGER
            && self.got.is_none()
            && !self.look
            && self.wants.accepts(frame.from, frame.arg)
            // Receives posted before this one go first.
            && !self.engine.matcher.has_posted();
        if !ours {
            self.look |= frame.kind != kind::EAGER || self.wants.accepts(frame.from, frame.arg);
            self.engine.frame(frame);
            return;
        }
        let body = crate::proto::payload(&frame, 0);
        let (message, buffer) = (body.len(), self.buffer.len() as u64);
        self.got = Some(if message > buffer {
            Err(Error::Truncated {
                from: frame.from,
                message,
                buffer,
            })
        } else {
            body.copy_to(0, &mut self.buffer[..message as usize]);
            Ok(Status {
                from: frame.from,
                tag: frame.arg,
                len: message,
            })
        });
    }

    fn change(&mut self, change: Change) {
        self.look = true;
        self.engine.change(change);
    }

    #[inline(always)]
    fn satisfied(&self) -> bool {
        self.got.is_some()
    }
}

impl Core {
    /// A blocking receive whose message is the next thing to arrive. `None`: post it and wait.
    #[inline]
    fn recv_now(&mut self, wants: Match, buffer: &mut [u8]) -> Option<Result<Status>> {
        if self.engine.is_busy() || self.engine.matcher.unexpected_len() > 0 {
            return None;
        }
        let polls = if self.transport.crowded() {
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

    /// The deadline of a scope is over: gives up every operation that holds a lent buffer. It cannot
    /// tell them from others of the same kind, which is right too: the scope's thread owns them all.
    fn give_up_lent(&mut self) {
        let lent = |op: &crate::ops::Op| match &op.work {
            Work::Send { buf, .. } | Work::Stream { buf, .. } | Work::Assist { buf, .. } => {
                buf.is_lent()
            }
            Work::Receive { buf } => buf.is_lent(),
            Work::Collect(collect) => collect.buf.is_lent(),
            Work::Pull(pull) => pull.buf.is_lent(),
            _ => false,
        };
        for key in self.engine.ops.pending(lent) {
            self.engine.give_up(key);
        }
    }

    fn who_holds(&self) -> String {
        let held = self
            .engine
            .ops
            .pending(|op| matches!(op.work, Work::Pull(_)));
        format!(
            "{} operations are still being copied by peers that do not answer",
            held.len()
        )
    }
}

impl crate::engine::Engine {
    pub(crate) fn queue_send(&mut self, to: PeerId, key: Key) {
        self.queue(to, Class::Request, crate::engine::Queued::Send(key));
    }

    /// Ends an operation because its owner no longer wants it.
    pub(crate) fn give_up(&mut self, key: Key) {
        self.matcher.cancel(|posted| *posted == key);
        let Some(op) = self.ops.get(key) else { return };
        let offered = matches!(
            op.work,
            Work::Send { .. } | Work::Assist { .. } | Work::Stream { .. }
        );
        let peer = op.peer.filter(|_| offered);
        self.fail(key, Error::Cancelled, true);
        if let Some(peer) = peer {
            self.post(peer, Class::Request, kind::WITHDRAW, key, &[]);
        }
    }
}

fn unexpected(ended: &Ended) -> Error {
    unreachable!("an operation ended as {ended:?}, which is not how it can end")
}

/// A message in place; see [`Fabric::recv_view`].
#[derive(Debug)]
pub struct View<'f> {
    fabric: &'f Fabric,
    status: Status,
    bytes: SharedBytes,
    /// The send to be told, and what keeps its memory.
    send: Option<(u64, Hold)>,
}

impl View<'_> {
    /// Sender, tag and length.
    pub fn status(&self) -> Status {
        self.status
    }

    /// The bytes, where they lie.
    pub fn bytes(&self) -> &SharedBytes {
        &self.bytes
    }

    /// Whether nothing was copied.
    pub fn in_place(&self) -> bool {
        self.send.is_some()
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        let Some((send, _hold)) = self.send.take() else {
            return;
        };
        let core = &mut *self.fabric.core.borrow_mut();
        core.engine
            .post(self.status.from, Class::Reply, kind::TAKEN, send, &[]);
        core.engine.flush(&mut core.transport);
    }
}

/// Borrowing operations; see [`Fabric::scope`].
#[derive(Debug)]
pub struct Scope<'s, 'env, 'f> {
    fabric: &'f Fabric,
    lender: &'s Lender<'s, 'env>,
}

impl<'env, 'f> Scope<'_, 'env, 'f> {
    /// Starts to send a borrowed buffer.
    #[inline]
    pub fn isend(&self, to: PeerId, tag: u64, bytes: &'env [u8]) -> Result<Handle<'f, Sent>> {
        if self.fabric.send_now(to, tag, bytes)? {
            return Ok(Handle::ended(self.fabric));
        }
        let key = self.fabric.start_send(to, tag, self.lender.read(bytes))?;
        Ok(Handle::new(self.fabric, key))
    }

    /// Starts to receive into a borrowed buffer.
    #[inline]
    pub fn irecv(&self, wants: Match, buffer: &'env mut [u8]) -> Result<Handle<'f, Received>> {
        let work = Work::Receive {
            buf: self.lender.write(buffer),
        };
        Ok(Handle::new(
            self.fabric,
            self.fabric.start_recv(wants, work)?,
        ))
    }
}

/// A send has ended; the buffer, if the operation owned it.
pub type Sent = Option<Vec<u8>>;
/// A receive has ended; its status and the buffer, if the operation owned it.
pub type Received = (Status, Option<Vec<u8>>);

/// How the end of an operation becomes a value.
pub trait Outcome: Sized + sealed::From {}
impl<T: sealed::From> Outcome for T {}

#[expect(
    private_interfaces,
    reason = "sealed: nobody else implements or calls it"
)]
mod sealed {
    use crate::ops::{Outcome as Ended, Viewed};

    pub trait From: Sized {
        fn from(ended: Ended) -> Self;
    }

    /// How an operation ends that never had a place in the table.
    pub(super) const AT_ONCE: Ended = Ended::Word(0);

    impl From for super::Sent {
        fn from(ended: Ended) -> Self {
            match ended {
                Ended::Sent(buffer) => buffer,
                Ended::Word(_) => None,
                other => unreachable!("a send ended as {other:?}"),
            }
        }
    }
    impl From for super::Received {
        fn from(ended: Ended) -> Self {
            match ended {
                Ended::Received(status, buffer) => (status, buffer),
                Ended::Viewed(status, Viewed::Copied(bytes)) => (status, Some(bytes)),
                other => unreachable!("a receive ended as {other:?}"),
            }
        }
    }
    impl From for Vec<u8> {
        fn from(ended: Ended) -> Self {
            match ended {
                Ended::Bytes(bytes) => bytes,
                other => unreachable!("a request ended as {other:?}"),
            }
        }
    }
    impl From for u64 {
        fn from(ended: Ended) -> Self {
            match ended {
                Ended::Word(word) => word,
                Ended::Bytes(_) => 0,
                other => unreachable!("a one-sided operation ended as {other:?}"),
            }
        }
    }
}

/// An operation in flight: 16 bytes. Dropping it detaches: the operation goes on, its result is not
/// asked for. Wait, test, or `.await`.
#[derive(Debug)]
#[must_use = "an operation that nobody waits for ends whenever it likes"]
pub struct Handle<'f, T> {
    fabric: &'f Fabric,
    key: Key,
    kind: PhantomData<fn() -> T>,
}

const _: () = assert!(size_of::<Handle<'_, Sent>>() == 16);

/// No operation has this key: orders begin at 1.
const ENDED: Key = 0;

impl<'f, T: Outcome> Handle<'f, T> {
    pub(crate) fn new(fabric: &'f Fabric, key: Key) -> Self {
        Handle {
            fabric,
            key,
            kind: PhantomData,
        }
    }

    /// An operation that has ended already, without a place in the table.
    pub(crate) fn ended(fabric: &'f Fabric) -> Self {
        Handle::new(fabric, ENDED)
    }

    /// Waits for the end. An operation whose deadline is over is given up.
    #[inline]
    pub fn wait(self) -> Result<T> {
        if self.key == ENDED {
            return Ok(sealed::From::from(sealed::AT_ONCE));
        }
        let ended = self.fabric.finish(self.key)?;
        Ok(sealed::From::from(ended))
    }

    /// Whether it has ended; makes some progress, and leaves the result for [`Handle::wait`].
    pub fn has_ended(&self) -> bool {
        if self.key == ENDED {
            return true;
        }
        self.fabric.progress();
        let ops = &mut self.fabric.core.borrow_mut().engine.ops;
        ops.get(self.key).is_none_or(|op| op.has_ended())
    }

    /// The result, if it has ended; makes some progress.
    pub fn test(&mut self) -> Option<Result<T>> {
        if self.key == ENDED {
            return Some(Ok(sealed::From::from(sealed::AT_ONCE)));
        }
        self.fabric.progress();
        let ended = self.fabric.core.borrow_mut().engine.ops.take(self.key)?;
        Some(ended.map(sealed::From::from))
    }

    /// Gives the operation up. A receive that was not matched ends with [`Error::Cancelled`]; one that
    /// is being copied ends as soon as the other side is quiet. Wait for the handle to learn which.
    pub fn cancel(&mut self) {
        let core = &mut *self.fabric.core.borrow_mut();
        core.engine.give_up(self.key);
        core.engine.flush(&mut core.transport);
    }
}

/// Waits for all; the first error, after all have ended.
pub fn wait_all<'f, T: Outcome>(
    handles: impl IntoIterator<Item = Handle<'f, T>>,
) -> Result<Vec<T>> {
    let ended: Vec<_> = handles.into_iter().map(Handle::wait).collect();
    ended.into_iter().collect()
}

/// Whether all have ended; makes some progress.
pub fn test_all<T: Outcome>(handles: &[Handle<'_, T>]) -> bool {
    handles.iter().all(Handle::has_ended)
}

impl<T> Drop for Handle<'_, T> {
    fn drop(&mut self) {
        if self.key != ENDED {
            self.fabric.core.borrow_mut().engine.ops.detach(self.key);
        }
    }
}

impl<T: Outcome> std::future::Future for Handle<'_, T> {
    type Output = Result<T>;

    /// Makes progress itself and asks to be polled again: there is no hidden thread to wake it.
    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        match self.test() {
            Some(result) => std::task::Poll::Ready(result),
            None => {
                context.waker().wake_by_ref();
                std::task::Poll::Pending
            }
        }
    }
}
