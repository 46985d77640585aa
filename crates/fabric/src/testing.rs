//! For tests of what a hostile peer can do: frames that no honest fabric sends, in any state of the
//! protocols, and the tables in shared memory. Only with the feature `testing`, which no production
//! build has.
//!
//! A process whose transport is [tampered](tamper) with runs any program; what it sends is another
//! thing. So every key, ticket and length in its frames is one that was really given out.

use crate::ops::Work;
pub use crate::transport::RawFrame;
pub use crate::transport::tampered::Tamper;
use crate::transport::tampered::{self, Tampered};
use crate::transport::{Change, Push, Sink};
use crate::{Fabric, PeerId, Slot};
use samite_mem::copy::cooperative::Claim;
use samite_mem::ring::RING_BYTES;
use samite_mem::sync::Ordering;
use samite_mem::{Arena, LINE, Span};
use std::time::Duration;

/// From now on what `fabric` sends goes through `tamper`.
pub fn tamper(fabric: &Fabric, tamper: Box<dyn Tamper>) {
    Tampered::put_before(&mut fabric.0.core().unwrap().transport, tamper);
}

/// Sends one frame as it is, past the engine of `fabric`.
pub fn send(fabric: &Fabric, to: PeerId, frame: &RawFrame) -> Push {
    tampered::push(&mut fabric.0.core().unwrap().transport, to, frame)
}

/// Delivers a frame to the engine of `fabric`, as if `from` had sent it.
pub fn receive(fabric: &Fabric, from: PeerId, frame: &RawFrame) {
    let core = &mut *fabric.0.core().unwrap();
    core.engine.frame(frame.incoming(from));
    core.engine.flush(&mut core.transport);
}

/// Lets `fabric` believe that a peer was lost and that its number has another life, to which it
/// listens.
pub fn live_again(fabric: &Fabric, peer: PeerId) {
    let engine = &mut fabric.0.core().unwrap().engine;
    let caps = engine.route(peer).caps;
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
    let core = &mut *fabric.0.core().unwrap();
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
