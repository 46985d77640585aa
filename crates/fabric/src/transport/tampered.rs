//! A transport that wraps another one and sends what a hostile peer might. Only with the feature
//! `testing`.

use super::{
    AnyTransport, Change, Clock, Completed, Incoming, NotStarted, Outgoing, Push, RawFrame,
    Registration, RemoteKey, RmaVerb, Sink, Sleep, Transport,
};
use crate::PeerId;
use samite_mem::SharedBytes;
use samite_mem::ring::{Body, INLINE_BYTES};
use std::collections::VecDeque;
use std::time::Duration;

/// Decides what a process sends instead of its fabric's frames.
pub trait Tamper: Send {
    /// Called for a `frame` to `to`: calls `send` for each frame to send instead.
    fn outgoing(&mut self, to: PeerId, frame: RawFrame, send: &mut dyn FnMut(PeerId, RawFrame));

    /// Called for a frame that has arrived. Returns whether the process should see it.
    fn incoming(&mut self, _from: PeerId, _frame: &RawFrame) -> bool {
        true
    }
}

/// A transport that wraps another one; see [`Tamper`].
pub(crate) struct Tampered {
    /// `None` only inside [`Tampered::put_before`].
    inner: Option<AnyTransport>,
    tamper: Box<dyn Tamper>,
    /// Frames that found no room yet.
    waiting: VecDeque<(PeerId, RawFrame)>,
}

impl std::fmt::Debug for Tampered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tampered").field(&self.inner).finish()
    }
}

/// The most frames that wait; older ones are dropped.
const WAITING_MAX: usize = 64;

pub(crate) fn push(transport: &mut AnyTransport, to: PeerId, frame: &RawFrame) -> Push {
    // What exceeds a ring cannot be sent: the excess is cut off.
    let inline = &frame.inline[..frame.inline.len().min(INLINE_BYTES - 16)];
    let body = &frame.body[..frame.body.len().min(super::shm::BODY_MAX as usize)];
    let outgoing = Outgoing {
        class: frame.class,
        kind: frame.kind,
        arg: frame.arg,
        inline,
        body: Body::Slice(body),
    };
    transport.push(to, &outgoing)
}

impl Tampered {
    /// Wraps `transport` in a tampered one.
    pub(crate) fn put_before(transport: &mut AnyTransport, tamper: Box<dyn Tamper>) {
        let tampered = AnyTransport::Tampered(Box::new(Tampered {
            inner: None,
            tamper,
            waiting: VecDeque::new(),
        }));
        let inner = std::mem::replace(transport, tampered);
        if let AnyTransport::Tampered(tampered) = transport {
            tampered.inner = Some(inner);
        }
    }

    fn inner(&self) -> &AnyTransport {
        self.inner.as_ref().expect("it is there after `put_before`")
    }

    fn inner_mut(&mut self) -> &mut AnyTransport {
        self.inner.as_mut().expect("it is there after `put_before`")
    }

    /// Sends waiting frames in order; a peer that is gone or full does not delay the others.
    fn flush(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|(to, frame)| push(self.inner_mut(), *to, frame) == Push::Full);
        self.waiting = waiting;
    }
}

impl Tampered {
    fn listening<'a>(
        &'a mut self,
        sink: &'a mut dyn Sink,
    ) -> (Option<&'a mut AnyTransport>, Listening<'a>) {
        let tamper = self.tamper.as_mut();
        (self.inner.as_mut(), Listening { sink, tamper })
    }
}

impl Transport for Tampered {
    fn name(&self) -> &'static str {
        "tampered"
    }

    fn now(&self) -> Duration {
        self.inner().now()
    }

    fn clock(&self) -> Clock {
        self.inner().clock()
    }

    fn push(&mut self, to: PeerId, frame: &Outgoing<'_>) -> Push {
        self.flush();
        if self.waiting.len() >= WAITING_MAX {
            // A peer that accepts nothing must not make this process wait.
            self.waiting.pop_front();
        }
        let frame = RawFrame::of(frame);
        let waiting = &mut self.waiting;
        let mut send = |to, frame| waiting.push_back((to, frame));
        self.tamper.outgoing(to, frame, &mut send);
        self.flush();
        Push::Done
    }

    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize {
        self.flush();
        let (inner, mut listening) = self.listening(sink);
        inner.map_or(0, |inner| inner.poll(&mut listening))
    }

    fn announce<S: Sink>(&mut self, peer: PeerId, sink: &mut S) {
        let (inner, mut listening) = self.listening(sink);
        if let Some(inner) = inner {
            inner.announce(peer, &mut listening);
        }
    }

    fn announce_sleep(&mut self, there: &mut dyn FnMut() -> bool) -> Option<Sleep> {
        self.flush();
        let sleep = self.inner_mut().announce_sleep(there)?;
        if self.waiting.is_empty() {
            return Some(sleep);
        }
        // No bell rings when a full ring has room again.
        sleep.sleep(Duration::from_millis(1));
        None
    }

    fn waker(&self, peer: PeerId) -> Option<super::sim::Waker> {
        self.inner().waker(peer)
    }

    fn leave(&mut self) {
        self.inner_mut().leave();
    }

    fn yield_now(&mut self) {
        self.inner_mut().yield_now();
    }

    fn oversubscribed(&self) -> bool {
        self.inner().oversubscribed()
    }

    fn register(&mut self, bytes: &SharedBytes) -> Option<(Registration, RemoteKey)> {
        self.inner_mut().register(bytes)
    }

    fn deregister(&mut self, registration: Registration) {
        self.inner_mut().deregister(registration);
    }

    fn start(&mut self, to: PeerId, id: u64, verb: RmaVerb) -> Result<(), NotStarted> {
        self.inner_mut().start(to, id, verb)
    }
}

/// Shows what arrives to the [`Tamper`].
struct Listening<'a> {
    sink: &'a mut dyn Sink,
    tamper: &'a mut dyn Tamper,
}

impl Sink for Listening<'_> {
    fn frame(&mut self, frame: Incoming<'_>) {
        if self.tamper.incoming(frame.from, &RawFrame::arrived(&frame)) {
            self.sink.frame(frame);
        }
    }

    fn change(&mut self, change: Change) {
        self.sink.change(change);
    }

    fn completed(&mut self, completed: Completed) {
        self.sink.completed(completed);
    }

    fn satisfied(&self) -> bool {
        self.sink.satisfied()
    }
}
