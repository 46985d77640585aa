//! For tests of what a hostile peer can do: frames that no honest fabric sends, in any state of the
//! protocols, and the tables in shared memory. Only with the feature `testing`, which no production
//! build has.
//!
//! A process whose transport is [tampered](tamper) with runs any program; what it sends is another
//! thing. So every key, ticket and length in its frames is one that was really given out.

use crate::ops::Work;
pub use crate::transport::RawFrame;
use crate::transport::{
    AnyTransport, Change, Completed, Incoming, NotStarted, Outgoing, Push, Registration, RemoteKey,
    RmaVerb, Sink, Sleep, Transport,
};
use crate::{Fabric, PeerId, Slot};
use samite_mem::copy::cooperative::Claim;
use samite_mem::ring::{Body, INLINE_BYTES, RING_BYTES};
use samite_mem::sync::Ordering;
use samite_mem::{Arena, LINE, SharedBytes, Span};
use std::collections::VecDeque;
use std::time::Duration;

/// Decides what a process sends in place of what its fabric wants to send.
pub trait Tamper: Send {
    /// `frame` is to go to `to`: calls `send` for each frame that goes out instead.
    fn outgoing(&mut self, to: PeerId, frame: RawFrame, send: &mut dyn FnMut(PeerId, RawFrame));

    /// A frame has arrived. Returns whether the process is to see it.
    fn incoming(&mut self, from: PeerId, frame: &RawFrame) -> bool;
}

/// From now on what `fabric` sends goes through `tamper`.
pub fn tamper(fabric: &Fabric, tamper: Box<dyn Tamper>) {
    let core = &mut *fabric.0.core.lock();
    let tampered = Tampered {
        inner: None,
        tamper,
        waiting: VecDeque::new(),
    };
    let tampered = AnyTransport::Tampered(Box::new(tampered));
    let inner = std::mem::replace(&mut core.transport, tampered);
    if let AnyTransport::Tampered(tampered) = &mut core.transport {
        tampered.inner = Some(inner);
    }
}

/// Sends one frame as it is, past the engine of `fabric`.
pub fn send(fabric: &Fabric, to: PeerId, frame: &RawFrame) -> Push {
    push(&mut fabric.0.core.lock().transport, to, frame)
}

/// Delivers a frame to the engine of `fabric`, as if `from` had sent it.
pub fn receive(fabric: &Fabric, from: PeerId, frame: &RawFrame) {
    let core = &mut *fabric.0.core.lock();
    core.engine.frame(frame.incoming(from));
    core.engine.flush(&mut core.transport);
}

/// Lets `fabric` believe that a peer was lost and that its number has another life, to which it
/// listens.
pub fn live_again(fabric: &Fabric, peer: PeerId) {
    let engine = &mut fabric.0.core.lock().engine;
    let caps = engine.caps(peer);
    let info = engine.peers.get(peer).and_then(|peer| peer.info.clone());
    if let Some(mut info) = info {
        let incarnation = info.incarnation;
        engine.change(Change::Lost { peer, incarnation });
        info.incarnation += 1;
        engine.change(Change::Joined(info, caps));
    }
}

/// How long `fabric` waits for a peer that copies into a buffer which it takes back, before it has
/// that one ended.
pub fn set_grace(fabric: &Fabric, grace: Duration) {
    fabric.0.set_grace(grace);
}

/// `fabric` takes a piece of a message that it helps to copy, and does not end it, as a process
/// does that is stopped there. Whether it helps with one.
pub fn take_piece(fabric: &Fabric) -> bool {
    let core = &mut *fabric.0.core.lock();
    let engine = &core.engine;
    let taken = engine.ops.running().find_map(|op| match &op.work {
        Work::Assist { word, help, .. } => {
            Claim::new(engine.words.word(*word), help.len.div_ceil(help.piece)).take_back()
        }
        _ => None,
    });
    taken.is_some()
}

/// The arena that `fabric` is in. What this process has blocks in, or a lease on, cannot be reached
/// by it.
pub fn arena(fabric: &Fabric) -> Arena {
    fabric.0.node.layout.arena().clone()
}

/// A table of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// What it holds.
    pub name: &'static str,
    /// Which peer writes it; `None`: everybody.
    pub writer: Option<PeerId>,
    /// Where it is.
    pub span: Span,
}

/// The tables of the arena that the first `peers` slots use, with the rings between them, the
/// segments that are offered, and who uses those.
pub fn tables(fabric: &Fabric, peers: u32) -> Vec<Table> {
    let layout = &fabric.0.node.layout;
    let node = fabric.me().node();
    let table = |(name, writer, span): (_, Option<Slot>, _)| Table {
        name,
        writer: writer.map(|slot| slot.of(node)),
        span,
    };
    let mut tables: Vec<Table> = layout.tables(peers).into_iter().map(table).collect();
    for to in (0..peers).map(Slot) {
        for from in (0..peers).map(Slot) {
            // ORDERING: Acquire pairs with the Release store in `open`.
            let offset = layout.inbox(to, from).load(Ordering::Acquire);
            let span = Span {
                offset,
                bytes: RING_BYTES,
            };
            tables.push(table(("ring", Some(from), span)));
        }
    }
    // Others may have written there before: what lies outside, or where no word begins, is no
    // table.
    let (first, last) = (layout.extents().offset, layout.arena().len());
    let is_inside = |span: Span| {
        let end = span.offset.checked_add(span.bytes);
        span.offset >= first && end.is_some_and(|end| end <= last)
    };
    tables.retain(|table| {
        let is_ours = table.name != "ring" && table.name != "segment";
        is_ours || table.span.offset.is_multiple_of(LINE) && is_inside(table.span)
    });
    tables
}

/// A transport in front of another one; see [`Tamper`].
pub(crate) struct Tampered {
    /// `None` only inside [`tamper`].
    inner: Option<AnyTransport>,
    tamper: Box<dyn Tamper>,
    /// What found no room yet.
    waiting: VecDeque<(PeerId, RawFrame)>,
}

impl std::fmt::Debug for Tampered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tampered").field(&self.inner).finish()
    }
}

/// So many frames wait; those before them are lost.
const WAITING_MAX: usize = 64;

fn push(transport: &mut AnyTransport, to: PeerId, frame: &RawFrame) -> Push {
    // What does not fit into a ring at all cannot be sent: the ends that lie beyond are cut.
    let inline = &frame.inline[..frame.inline.len().min(INLINE_BYTES - 16)];
    let body = &frame.body[..frame
        .body
        .len()
        .min(crate::transport::shm::BODY_MAX as usize)];
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
    fn inner(&self) -> &AnyTransport {
        self.inner.as_ref().expect("it is there after `tamper`")
    }

    fn inner_mut(&mut self) -> &mut AnyTransport {
        self.inner.as_mut().expect("it is there after `tamper`")
    }

    /// Sends what waits, in order; a peer that is gone or full does not delay the others.
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

    pub(crate) fn waker(&self, peer: PeerId) -> Option<crate::transport::sim::Waker> {
        self.inner().waker(peer)
    }
}

impl Transport for Tampered {
    fn name(&self) -> &'static str {
        "tampered"
    }

    fn now(&self) -> Duration {
        self.inner().now()
    }

    fn push(&mut self, to: PeerId, frame: &Outgoing<'_>) -> Push {
        self.flush();
        if self.waiting.len() >= WAITING_MAX {
            // Somebody takes nothing any more: that is no reason for this process to wait.
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
        // Nobody rings when a full ring has room again.
        sleep.sleep(Duration::from_millis(1));
        None
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

/// Shows what arrives to the one who tampers.
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
