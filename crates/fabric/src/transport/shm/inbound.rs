//! Rings that others write for this process.

use super::outbound::OutboundRing;
use super::{BODY_MAX, Shm};
use crate::PeerId;
use crate::node::Layout;
use crate::node::Slot;
use crate::transport::{Change, Incoming, Sink};
use samite_mem::ring::{Body, CELLS, Consumer, RING_BYTES, SharedRing, bulk_bytes};
use samite_mem::sync::Ordering;
use samite_mem::{Corrupt, NEWS_WORDS, SharedBytes};

/// The reading end of the ring from one peer.
#[derive(Debug)]
pub(super) struct InboundRing {
    consumer: Consumer<SharedRing>,
    idle: u32,
    /// A frame is being delivered. It counts as delivered even if a handler panicked in it.
    in_hand: bool,
}

/// Frames taken from one ring before the next ring gets its turn.
pub(super) const TURN: u32 = 32;
/// Frames taken in one poll; the next poll continues with the next ring.
const POLL_MAX: usize = 256;
/// A ring that was empty this often is no longer polled; its next frame sets the news bit again.
const IDLE_MAX: u32 = 4096;
/// With so few rings, polling them all costs nothing, so none is dropped.
const ALWAYS: usize = 4;
/// Polls between two looks at the news bits.
const LOOK: u32 = 16;
/// Polls between two looks at the clock while nothing arrives: reading it takes as long as several
/// polls, and delays what arrives. After a sleep it is read in any case.
const LOOK_IDLE: u32 = 16 * LOOK;
/// Polls between two looks at the clock while frames arrive.
const LOOK_BUSY: u32 = 64 * LOOK;

impl Shm {
    /// Serves the rings in turn. However early a poll ends, the next one begins with the next ring
    /// (T6).
    #[inline]
    pub(super) fn poll_rings<S: Sink>(&mut self, sink: &mut S) -> usize {
        let mut arrived = 0;
        for _ in 0..self.polled.len() {
            // A ring that broke its rules has left the list.
            if self.turn >= self.polled.len() {
                self.turn = 0;
            }
            let Some(peer) = self.polled.get(self.turn) else {
                break;
            };
            let peer = Slot(*peer);
            let got = self.drain(peer, sink);
            arrived += got;
            if got == 0 && self.polled.len() > ALWAYS && self.forget_if_idle(peer) {
                self.polled.swap_remove(self.turn);
                continue;
            }
            self.turn += 1;
            if sink.satisfied() || arrived >= POLL_MAX {
                break;
            }
        }
        // Counted also while frames arrive: a peer that sends all the time does not hide new ones.
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(LOOK) || self.polled.is_empty() {
            arrived += self.look(arrived > 0, sink);
        }
        arrived
    }

    /// Looks for peers that have begun to send. If nothing arrives, and now and then if something
    /// does, also for what no news bit tells of.
    #[inline(never)]
    fn look<S: Sink>(&mut self, is_busy: bool, sink: &mut S) -> usize {
        let arrived = self.look_for_news(sink);
        let every = if is_busy { LOOK_BUSY } else { LOOK_IDLE };
        match self.polls.is_multiple_of(every) {
            true => arrived + self.look_around(sink),
            false => arrived,
        }
    }

    /// Delivers the frames of a peer's ring, until its turn is over or the sink has what it waited
    /// for.
    #[inline]
    fn drain<S: Sink>(&mut self, from: Slot, sink: &mut S) -> usize {
        let Some(Some(inbound)) = self.inbound.get_mut(from.index()) else {
            return 0;
        };
        if !inbound.consumer.ready() {
            inbound.idle = inbound.idle.saturating_add(1);
            return 0;
        }
        inbound.idle = 0;
        // A frame from the peer ends a burst towards it.
        if let Some(Some(outbound)) = self.outbound.get_mut(from.index()) {
            outbound.answered();
        }
        let (layout, outbound, me) = (&self.layout, &self.outbound, self.me);
        let bulk = move || {
            let own = outbound.get(from.index()).filter(|_| from == me);
            Bulk::of(layout, own.and_then(Option::as_ref))
        };
        let peer = from.of(self.node);
        let mut taken = 0;
        while taken < TURN {
            match inbound.take(peer, bulk, sink) {
                Ok(true) => {
                    taken += 1;
                    if taken > 1 {
                        inbound.consumer.look_ahead();
                    }
                    if sink.satisfied() {
                        break;
                    }
                }
                Ok(false) => break,
                Err(what) => {
                    self.drop_inbound(from);
                    sink.change(Change::Corrupt {
                        peer: from.of(self.node),
                        what,
                    });
                    return taken as usize + 1;
                }
            }
        }
        taken as usize
    }

    /// Delivers everything in the ring of a lost peer, whatever the sink waits for: this is the
    /// last look at it (T4). A ring never holds more frames than cells, and no more are added.
    pub(super) fn last_words<S: Sink>(&mut self, from: Slot, sink: &mut S) {
        // One extra round for the bulk area.
        for _ in 0..=CELLS {
            let Some(Some(inbound)) = self.inbound.get_mut(from.index()) else {
                return;
            };
            match inbound.take(from.of(self.node), || Bulk::Told(&self.layout), sink) {
                Ok(true) => {}
                Ok(false) => return,
                Err(what) => {
                    self.drop_inbound(from);
                    return sink.change(Change::Corrupt {
                        peer: from.of(self.node),
                        what,
                    });
                }
            }
        }
    }

    fn forget_if_idle(&mut self, peer: Slot) -> bool {
        let Some(Some(inbound)) = self.inbound.get_mut(peer.index()) else {
            return true;
        };
        if inbound.idle < IDLE_MAX {
            return false;
        }
        self.bell.forget(peer.index());
        if inbound.consumer.ready() {
            self.bell.keep(peer.index());
            inbound.idle = 0;
            return false;
        }
        self.news_seen[peer.index() / 64] &= !(1 << (peer.index() % 64));
        true
    }

    /// Starts polling the rings whose news bits were set since the last look.
    pub(super) fn look_for_news<S: Sink>(&mut self, sink: &mut S) -> usize {
        let mut arrived = 0;
        for word in 0..NEWS_WORDS {
            let mut fresh = self.bell.news(word) & !self.news_seen[word];
            while fresh != 0 {
                let peer = Slot(word as u32 * 64 + fresh.trailing_zeros());
                fresh &= fresh - 1;
                if self.known.get(peer.index()).is_none_or(Option::is_none) {
                    // It joined before it sent: its join is reported before its first frame.
                    arrived += self.membership(sink);
                }
                let is_known = self.known.get(peer.index()).is_some_and(Option::is_some);
                if is_known && !self.look_for_ring(peer) && !self.dismiss(peer) {
                    continue;
                }
                // Also for a number without a process: a process that joins with it is looked for
                // again (`membership`).
                self.news_seen[word] |= 1 << (peer.index() % 64);
                if is_known {
                    self.poll_from_now(peer);
                    arrived += self.drain(peer, sink);
                }
            }
        }
        arrived
    }

    /// Clears the news bit of a peer that has no ring: anybody can set one, and a peer that was
    /// shut out does. It must be cleared, because the first frame of a future ring only sets a bit
    /// that is clear. Returns whether that ring was published meanwhile (D2).
    #[cold]
    fn dismiss(&mut self, peer: Slot) -> bool {
        self.bell.forget(peer.index());
        let came = self.look_for_ring(peer);
        if came {
            self.bell.keep(peer.index());
        }
        came
    }

    fn poll_from_now(&mut self, peer: Slot) {
        if !self.polled.contains(&peer.0) {
            self.polled.push(peer.0);
        }
    }

    /// Starts polling the rings that have frames although no news bit says so: others can clear
    /// these bits, too.
    pub(super) fn look_at_all_rings(&mut self) {
        for peer in (0..self.known.len() as u32).map(Slot) {
            if self.known[peer.index()].is_none()
                || self.polled.contains(&peer.0)
                || !self.look_for_ring(peer)
            {
                continue;
            }
            let inbound = self.inbound[peer.index()].as_ref();
            if inbound.is_some_and(|inbound| inbound.consumer.ready()) {
                self.bell.keep(peer.index());
                self.news_seen[peer.index() / 64] |= 1 << (peer.index() % 64);
                self.poll_from_now(peer);
            }
        }
    }

    /// Opens the ring of a peer that has published one.
    pub(super) fn look_for_ring(&mut self, from: Slot) -> bool {
        if self.inbound.len() <= from.index() {
            self.inbound.resize_with(from.index() + 1, || None);
        }
        if self.inbound[from.index()].is_some() {
            return true;
        }
        // ORDERING: Acquire pairs with the Release store in `open`.
        let offset = self.layout.inbox(self.me, from).load(Ordering::Acquire);
        if offset == 0 {
            return false;
        }
        let bytes = match self.outbound.get(from.index()) {
            // This process's own blocks can be reached in no other way.
            Some(Some(own)) if from == self.me => Some(own.ring_bytes()),
            _ => self.layout.arena().bytes(offset, RING_BYTES).ok(),
        };
        let Some(ring) = bytes.and_then(|bytes| SharedRing::new(bytes).ok()) else {
            return false;
        };
        self.inbound[from.index()] = Some(InboundRing {
            consumer: Consumer::new(ring),
            idle: 0,
            in_hand: false,
        });
        true
    }

    pub(super) fn drop_inbound(&mut self, from: Slot) {
        if let Some(slot) = self.inbound.get_mut(from.index()) {
            *slot = None;
        }
        self.layout.inbox(self.me, from).store(0, Ordering::Relaxed);
        self.polled.retain(|peer| *peer != from.0);
        // Cleared without a second look: nothing from this incarnation will be accepted any more.
        self.bell.forget(from.index());
        self.news_seen[from.index() / 64] &= !(1 << (from.index() % 64));
    }

    /// Pretends that a ring was found empty so often.
    #[cfg(test)]
    pub(super) fn let_idle(&mut self, peer: Slot, idle: u32) {
        if let Some(Some(inbound)) = self.inbound.get_mut(peer.index()) {
            inbound.idle = idle;
        }
    }

    /// Pretends that a ring was empty for so long that it is no longer polled.
    #[cfg(test)]
    pub(super) fn stop_polling(&mut self, peer: Slot) {
        self.bell.forget(peer.index());
        self.news_seen[peer.index() / 64] &= !(1 << (peer.index() % 64));
        self.polled.retain(|polled| *polled != peer.0);
    }

    /// Returns whether, before a sleep, anything is pending for which the bell will not ring again.
    pub(super) fn something_there(&self) -> bool {
        let ready = |peer: &u32| {
            let inbound = self.inbound.get(*peer as usize);
            inbound.is_some_and(|i| i.as_ref().is_some_and(|i| i.consumer.ready()))
        };
        !self.layout.peers.is_at(self.epoch_seen)
            || self.polled.iter().any(ready)
            || (0..NEWS_WORDS).any(|word| self.bell.news(word) & !self.news_seen[word] != 0)
    }
}

/// Where the bulk area of a ring is.
enum Bulk<'a> {
    /// Where its producer, another process, says that it is.
    Told(&'a Layout),
    /// Its producer is this process, whose own blocks can be reached in no other way.
    Own(SharedBytes),
}

impl<'a> Bulk<'a> {
    fn of(layout: &'a Layout, own: Option<&OutboundRing>) -> Bulk<'a> {
        own.and_then(OutboundRing::bulk_bytes)
            .map_or(Bulk::Told(layout), Bulk::Own)
    }
}

impl InboundRing {
    /// Opens the bulk area, which was published before the frame with the first body; returns
    /// whether there is such a frame. Called whenever the ring runs empty; `bulk` is called only if
    /// needed.
    #[cold]
    fn attach_bulk<'a>(&mut self, bulk: impl FnOnce() -> Bulk<'a>) -> Result<bool, Corrupt> {
        if self.consumer.bulk_bytes() > 0 || self.consumer.next_has_body() != Some(true) {
            return Ok(false);
        }
        let bytes = match bulk() {
            Bulk::Own(bulk) => self.consumer.medium.use_bulk(bulk),
            Bulk::Told(layout) => {
                let most = bulk_bytes(BODY_MAX);
                self.consumer.medium.attach_bulk(layout.arena(), most)?
            }
        };
        self.consumer.set_bulk(bytes, BODY_MAX);
        match bytes {
            0 => Err(Corrupt {
                what: "a body without a bulk area",
                value: 0,
            }),
            _ => Ok(true),
        }
    }

    /// Consumes the frame in which a handler panicked.
    #[cold]
    fn skip(&mut self) {
        self.in_hand = false;
        self.consumer.advance();
    }

    /// Delivers one frame, or attaches the bulk area that it needs; returns whether there was one.
    #[inline(always)]
    fn take<'a, S: Sink>(
        &mut self,
        from: PeerId,
        bulk: impl FnOnce() -> Bulk<'a>,
        sink: &mut S,
    ) -> Result<bool, Corrupt> {
        if self.in_hand {
            self.skip();
        }
        let Some((frame, medium)) = self.consumer.peek_with_medium()? else {
            return self.attach_bulk(bulk);
        };
        let body = match frame.bulk {
            Some((offset, bytes)) => medium.body(offset, bytes),
            None => Body::Slice(&[]),
        };
        self.in_hand = true;
        sink.frame(Incoming {
            from,
            kind: frame.kind,
            arg: frame.arg,
            inline: frame.inline,
            body,
        });
        self.in_hand = false;
        self.consumer.advance();
        Ok(true)
    }
}
