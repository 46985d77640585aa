//! Messages: blocking, owned, in place, active. Those with buffers borrowed in a scope are in
//! `scope`.

use crate::engine::{Arrived, Pace, weight};
use crate::fabric::{Core, Fabric};
use crate::handle::{Handle, Received, Sent};
use crate::ops::{Key, NO_SCOPE, Outcome as Ended, Status, Viewed, Work};
use crate::proto::rendezvous::{push_eager, zeroed};
use crate::rpc::KEPT;
use crate::transport::Push;
use crate::view::View;
use crate::wire::kind;
use crate::{Error, Match, PeerId, Result};
use samite_mem::SharedBytes;
use samite_mem::lend::{ReadBuf, WriteBuf};
use samite_mem::ring::Body;

impl Fabric {
    /// Sends `bytes` to a peer. Completion: local. Small messages have been sent; large ones have
    /// been taken by the receiver (or have left for a receiver that had begun to take them), and so
    /// have small ones once the receiver holds 1 MiB of unexpected messages from this process.
    /// Errors: [`Error::PeerLost`], [`Error::Timeout`]; [`Error::NotReceived`] if the matching
    /// receive was given up meanwhile; [`Error::NoMessages`] if the peer is an agent.
    #[inline]
    pub fn send(&self, to: PeerId, tag: u64, bytes: &[u8]) -> Result<()> {
        if self.send_now(to, tag, bytes)? {
            return Ok(());
        }
        self.lending(|lender, level| {
            let key = self.start_send(to, tag, lender.read(bytes), level)?;
            self.finish(key).map(|_| ())
        })
    }

    /// Sends a message that fits into one frame, if nothing is queued before it and there is room.
    #[inline]
    pub(crate) fn send_now(&self, to: PeerId, tag: u64, bytes: &[u8]) -> Result<bool> {
        let core = &mut *self.0.lock()?;
        let len = bytes.len() as u64;
        let Some(inline_max) = core.engine.may_send_at_once(to, len) else {
            return Ok(false);
        };
        let body = Body::Slice(bytes);
        let push = push_eager(&mut core.transport, to, tag, &body, inline_max);
        if push != Push::Done {
            return Ok(false);
        }
        core.engine.unpolled -= weight(len);
        Ok(true)
    }

    /// Receives a message into `buffer`. Completion: the bytes have arrived. Errors:
    /// [`Error::Truncated`] (the message is consumed), [`Error::PeerLost`] for a directed receive,
    /// [`Error::Timeout`]: a message that was being copied by then is consumed, too, and its send
    /// ends with [`Error::NotReceived`], unless all of it had left.
    #[inline]
    pub fn recv(&self, wants: Match, mut buffer: &mut [u8]) -> Result<Status> {
        let received = self.0.lock()?.recv_now(wants, buffer);
        if let Some(status) = received {
            let within = status.within(buffer.len() as u64);
            return within.map_err(|error| self.named(error));
        }
        self.lending(|lender, level| {
            let work = || Work::Receive {
                buf: lender.write(std::mem::take(&mut buffer)),
            };
            let key = self.start_recv(wants, work, level)?;
            match self.finish(key)? {
                Ended::Received(status, _) => Ok(status),
                other => Err(unexpected(&other)),
            }
        })
    }

    /// Receives a message of any length. If a handler panics meanwhile ([`Fabric::on`]), a message
    /// that this receive had taken is kept for the next one, behind those that its sender sent
    /// later under other tags.
    pub fn recv_vec(&self, wants: Match) -> Result<(Status, Vec<u8>)> {
        let key = self.start_recv(wants, || Work::ReceiveAny { view: false }, NO_SCOPE)?;
        match self.finish_here(key, &wants)? {
            Ended::Viewed(status, Viewed::Copied(bytes)) => Ok((status, bytes)),
            Ended::Received(status, Some(bytes)) => Ok((status, bytes)),
            other => Err(unexpected(&other)),
        }
    }

    /// Receives a message in place: if the sender sent it from a segment that is mapped here,
    /// nothing is copied, and the sender's operation ends when the view is dropped; a sender that
    /// did not wait so long may have changed the bytes ([`View::is_withdrawn`]). Otherwise the view
    /// holds a private copy. If a handler panics meanwhile, a message that this receive had taken
    /// is kept for the next one, as [`Fabric::recv_vec`] says, and as a copy; without memory for
    /// that its sender gets [`Error::NotReceived`].
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let peer = fabric.me();
    /// use samite_fabric::Match;
    /// let segment = fabric.allocate(1 << 20)?;
    /// let sent = fabric.isend_shared(peer, 7, segment.bytes().clone())?;
    /// let view = fabric.recv_view(Match::from(peer, 7))?;
    /// assert_eq!(view.bytes().len(), 1 << 20);
    /// drop(view); // the sender may change its bytes from now on
    /// sent.wait()?;
    /// # Ok::<(), samite_fabric::Error>(())
    /// ```
    pub fn recv_view(&self, wants: Match) -> Result<View> {
        let key = self.start_recv(wants, || Work::ReceiveAny { view: true }, NO_SCOPE)?;
        let (status, bytes, view) = match self.finish_here(key, &wants)? {
            Ended::Viewed(status, Viewed::InPlace { bytes, view }) => (status, bytes, Some(view)),
            Ended::Viewed(status, Viewed::Copied(bytes)) | Ended::Received(status, Some(bytes)) => {
                (status, SharedBytes::adopt(bytes), None)
            }
            other => return Err(unexpected(&other)),
        };
        Ok(View::new(self.clone(), status, bytes, view))
    }

    /// Starts to send a buffer that the operation owns; [`Handle::wait`] returns it.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let peer = fabric.me();
    /// use samite_fabric::Match;
    /// let mut sent = fabric.isend(peer, 7, vec![1; 1 << 20])?;
    /// let received = fabric.irecv(Match::from(peer, 7), vec![0; 1 << 20])?;
    /// if sent.test().is_none() {
    ///     // ... compute, and test again
    /// }
    /// let (status, buffer) = received.wait()?;
    /// assert_eq!((status.len, buffer.map(|bytes| bytes[0])), (1 << 20, Some(1)));
    /// # Ok::<(), samite_fabric::Error>(())
    /// ```
    pub fn isend(&self, to: PeerId, tag: u64, bytes: Vec<u8>) -> Result<Handle<Sent>> {
        self.start_send(to, tag, ReadBuf::owned(bytes), NO_SCOPE)
            .map(|key| Handle::new(self.clone(), key))
    }

    /// Starts to send bytes of shared memory (a segment): a peer that maps them copies them once,
    /// directly, or views them. They must not change before the operation ends.
    pub fn isend_shared(&self, to: PeerId, tag: u64, bytes: SharedBytes) -> Result<Handle<Sent>> {
        self.start_send(to, tag, ReadBuf::shared(bytes), NO_SCOPE)
            .map(|key| Handle::new(self.clone(), key))
    }

    /// Starts to receive into a buffer that the operation owns.
    pub fn irecv(&self, wants: Match, buffer: Vec<u8>) -> Result<Handle<Received>> {
        let work = || Work::Receive {
            buf: WriteBuf::owned(buffer),
        };
        self.start_recv(wants, work, NO_SCOPE)
            .map(|key| Handle::new(self.clone(), key))
    }

    /// Starts to receive into shared memory (a segment).
    pub fn irecv_shared(&self, wants: Match, buffer: SharedBytes) -> Result<Handle<Received>> {
        let work = || Work::Receive {
            buf: WriteBuf::shared(buffer),
        };
        self.start_recv(wants, work, NO_SCOPE)
            .map(|key| Handle::new(self.clone(), key))
    }

    /// Returns the oldest message that a receive would take, if one has arrived. Does not consume
    /// it.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let peer = fabric.me();
    /// use samite_fabric::Match;
    /// assert!(fabric.probe(Match::any(7)).is_none());
    /// fabric.send(peer, 7, b"four")?;
    /// let status = fabric.probe(Match::any(7)).expect("its own messages arrive at once");
    /// let mut buffer = vec![0; status.len as usize];
    /// fabric.recv(Match::from(status.from, status.tag), &mut buffer)?;
    /// # Ok::<(), samite_fabric::Error>(())
    /// ```
    pub fn probe(&self, wants: Match) -> Option<Status> {
        self.progress();
        let core = self.0.lock().ok()?;
        core.engine
            .matcher
            .peek_unexpected(wants)
            .map(|(from, tag, arrived)| {
                let now = core.engine.incarnation(from);
                let (incarnation, len) = match arrived {
                    Arrived::Bytes(bytes) => (now, bytes.len() as u64),
                    Arrived::Offer(offer) => (now, offer.len),
                    Arrived::Departed(incarnation, bytes) | Arrived::Back(incarnation, bytes) => {
                        (*incarnation, bytes.len() as u64)
                    }
                };
                Status {
                    from,
                    incarnation,
                    tag,
                    len,
                }
            })
    }

    pub(crate) fn start_send(&self, to: PeerId, tag: u64, buf: ReadBuf, scope: u16) -> Result<Key> {
        let core = &mut *self.0.lock()?;
        if let Some(error) = core.gone(to) {
            return Err(error);
        }
        if core.engine.peer(to).pace == Pace::Closed {
            return Err(core.engine.named(Error::NoMessages(to.into())));
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
        if !core.engine.peer(to).outbox.is_empty()
            || core.engine.push_send(key, to, &mut core.transport) == Push::Full
        {
            core.engine.queue_send(to, key);
            core.leave();
        }
        Ok(key)
    }

    /// Starts a receive. Inlined, and the work is made in its place instead of moved there three
    /// times: to read back, as a whole, fields that were just written stalls the processor.
    #[inline(always)]
    pub(crate) fn start_recv(
        &self,
        wants: Match,
        work: impl FnOnce() -> Work,
        scope: u16,
    ) -> Result<Key> {
        let core = &mut *self.0.lock()?;
        let engine = &mut core.engine;
        if engine.is_of_parent() {
            return Err(Error::Forked);
        }
        let key = engine.ops.add_with(wants.source, "receive", work);
        if scope != NO_SCOPE {
            engine.ops.belong(key, scope);
        }
        // A message that has already arrived goes first; otherwise the receive is posted.
        match engine.matcher.take_unexpected(wants) {
            Some((from, tag, arrived)) => {
                engine.unkeep(from, &arrived);
                match arrived {
                    Arrived::Bytes(bytes) => engine.deliver(key, from, tag, &Body::Slice(&bytes)),
                    Arrived::Offer(offer) => engine.accept(key, from, tag, offer),
                    Arrived::Departed(incarnation, bytes) | Arrived::Back(incarnation, bytes) => {
                        engine.deliver_old(key, (from, incarnation), tag, &bytes);
                    }
                }
                if engine.is_busy() {
                    core.flush();
                }
            }
            None => {
                if let Some(error) = wants.source.and_then(|source| core.gone(source)) {
                    core.engine.ops.finish(key, Err(error.clone()));
                    core.engine.ops.take(key);
                    return Err(error);
                }
                core.engine.matcher.post(wants, key);
            }
        }
        Ok(key)
    }

    /// Waits for an operation; if the wait ends first, it is given up before the error is returned.
    #[inline]
    pub(crate) fn finish(&self, key: Key) -> Result<Ended> {
        let result = self.wait_op(key);
        if let Err(
            Error::Timeout { .. } | Error::Interrupted | Error::AgentLost(_) | Error::Forked,
        ) = result
        {
            let mut core = self.0.lock()?;
            // Another thread's turn may have ended it since the last check.
            if let Some(ended) = core.engine.take(key) {
                return ended;
            }
            core.abandon(key);
        }
        result
    }

    /// As [`Fabric::finish`], for a receive without a handle or a buffer of the caller: if a
    /// handler panics meanwhile, it is given up, too. Otherwise it would take the next message,
    /// which nobody could ask for.
    fn finish_here(&self, key: Key, wants: &Match) -> Result<Ended> {
        let unwinding = Unwinding {
            fabric: self,
            key,
            wants,
        };
        let result = self.finish(key);
        std::mem::forget(unwinding);
        result
    }

    /// Registers a handler of active messages. It runs inside the progress of this process, gets
    /// the sender and the bytes, and may return a reply; it cannot wait. If it panics, so does the
    /// call in which it ran. A message that this call was receiving stays for the next receive,
    /// unless it was already in the buffer of a [`Fabric::recv`], or of a handle that the panic
    /// drops: then it is lost.
    ///
    /// A handler must not own a clone of this fabric: the process would then never leave its
    /// domain. While it runs, no other thread of this process can use the fabric: a handler that
    /// waits for a mutex waits forever if the thread that holds it uses the fabric.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let peer = fabric.me();
    /// use std::sync::mpsc;
    /// let (queue, work) = mpsc::channel();
    /// fabric.on(3, move |from, bytes| {
    ///     queue.send((from, bytes.to_vec())).ok(); // work that takes time is done elsewhere
    ///     None
    /// });
    /// fabric.tell(peer, 3, b"a task")?;
    /// while work.try_recv().is_err() {
    ///     fabric.progress(); // in which handlers run; so they do in every wait
    /// }
    /// # Ok::<(), samite_fabric::Error>(())
    /// ```
    ///
    /// # Panics
    /// Numbers from [`KEPT`] on are reserved for Samite.
    pub fn on(
        &self,
        handler: u16,
        run: impl FnMut(PeerId, &[u8]) -> Option<Vec<u8>> + Send + 'static,
    ) {
        assert!(
            handler < KEPT,
            "handler {handler:#x} is one of Samite's own"
        );
        let insert = |core: &mut Core| core.engine.handlers.insert(handler, Box::new(run));
        let replaced = self.0.with(insert);
        drop(replaced); // Without the lock: it may own something that uses the fabric.
    }

    /// Sends an active message without a reply. Completion: local.
    pub fn tell(&self, to: PeerId, handler: u16, bytes: &[u8]) -> Result<()> {
        self.of_users(to, handler)?;
        self.post_active(to, handler, bytes, false).map(|_| ())
    }

    /// Sends an active message whose handler replies. [`Handle::wait`] returns the reply.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let peer = fabric.me();
    /// fabric.on(3, |_from, bytes| Some(bytes.len().to_le_bytes().to_vec()));
    /// let reply = fabric.request(peer, 3, b"how long?")?.wait()?;
    /// assert_eq!(reply, 9_usize.to_le_bytes());
    /// # Ok::<(), samite_fabric::Error>(())
    /// ```
    pub fn request(&self, to: PeerId, handler: u16, bytes: &[u8]) -> Result<Handle<Vec<u8>>> {
        self.of_users(to, handler)?;
        let key = self.post_active(to, handler, bytes, true)?;
        Ok(Handle::new(self.clone(), key))
    }

    /// Checks that users may use this handler number.
    fn of_users(&self, peer: PeerId, handler: u16) -> Result<()> {
        match handler < KEPT {
            true => Ok(()),
            false => Err(self.named(Error::NoHandler {
                peer: peer.into(),
                handler,
            })),
        }
    }
}

/// A receive whose caller is unwound by a panic.
struct Unwinding<'a> {
    fabric: &'a Fabric,
    key: Key,
    wants: &'a Match,
}

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        self.fabric.0.with(|core| {
            core.put_back(self.key, *self.wants);
            core.abandon(self.key);
            core.tell();
        });
    }
}

impl Core {
    /// Keeps what a receive took in the turn in which a handler panicked for the next matching
    /// receive.
    #[cold]
    fn put_back(&mut self, key: Key, wants: Match) {
        let engine = &mut self.engine;
        match engine.take(key) {
            Some(Ok(Ended::Viewed(status, Viewed::InPlace { bytes, view }))) => {
                let copy = zeroed(bytes.len()).map(|mut copy| {
                    bytes.read(0, &mut copy);
                    copy
                });
                drop(bytes); // Drops the lease, before the sender is told.
                // Without memory for it, it is not received, and its sender is told so.
                let was_taken = copy.is_some();
                if let Some(copy) = copy
                    && !engine.views.is_withdrawn(view)
                {
                    engine.put_back(wants, status, copy);
                }
                engine.end_view(view, was_taken);
            }
            Some(Ok(
                Ended::Viewed(status, Viewed::Copied(bytes)) | Ended::Received(status, Some(bytes)),
            )) => engine.put_back(wants, status, bytes),
            _ => {}
        }
    }

    /// Gives up an operation, and its scope, whose result nobody will ask for: its caller gets a
    /// panic instead.
    #[cold]
    fn abandon(&mut self, key: Key) {
        self.engine.ops.belong(key, NO_SCOPE);
        self.engine.give_up(key, Error::Cancelled);
        self.engine.ops.detach(key);
        self.flush();
        // A send that had not left makes room for that of another thread.
        self.tell();
    }
}

impl crate::engine::Engine {
    pub(crate) fn queue_send(&mut self, to: PeerId, key: Key) {
        self.queue(to, crate::engine::Queued::Send(key));
    }

    /// [`Self::deliver`] for the two rare kinds of kept messages.
    #[cold]
    fn deliver_old(&mut self, key: Key, from: (PeerId, u32), tag: u64, bytes: &[u8]) {
        self.deliver_of(key, from, tag, &Body::Slice(bytes));
    }

    /// Ends an operation because its owner no longer wants it, or cannot wait any longer.
    pub(crate) fn give_up(&mut self, key: Key, why: Error) {
        self.matcher.cancel(|posted| *posted == key);
        let Some(op) = self.ops.get(key) else { return };
        let offered = matches!(
            op.work,
            Work::Send { .. } | Work::Assist { .. } | Work::Stream { .. }
        );
        let peer = op.peer.filter(|_| offered);
        let has_left = peer.is_none_or(|peer| !self.take_back(peer, key));
        // Nobody reads the claim word of a send that has not left.
        self.fail(key, why, has_left);
        if let Some(peer) = peer
            && has_left
        {
            self.spend_answered();
            self.post(peer, kind::WITHDRAW, key, &[]);
        }
    }
}

fn unexpected(ended: &Ended) -> Error {
    unreachable!("an operation ended as {ended:?}, which is not how it can end")
}
