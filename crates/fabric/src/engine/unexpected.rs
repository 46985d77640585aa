//! What is kept of a peer until a receive asks for it, and what the peer hears of that.
//!
//! A message that nobody has posted a receive for is copied to private memory. A receiver that
//! keeps [`OFFER_AT`] bytes of a peer says so (PACE): from then on that peer offers its messages,
//! however short, and their bytes stay with it until they are received. With [`STOP_AT`] bytes of
//! offers it sends no more of them. When receives have taken half of what there was, the peer hears
//! of that, too.
//!
//! The keys of signals that nobody has awaited are kept, too, and count as messages of no bytes.
//!
//! A sender hears it when it polls; so it polls once per [`UNPOLLED`] bytes of what it sends.
//! Between saying and hearing lie at most these, a ring, and what one poll takes. A peer of which
//! [`MOST`] is kept does not listen, and is turned away.
//!
//! What a process had sent stays when it is gone, also when another one has its number by then.
//!
//! # What it does not do
//! A program in which two units send each other more than [`OFFER_AT`] bytes by blocking sends, and
//! receive afterwards, waits until the deadline. What a process sends to itself is not counted: it
//! is its own doing.

use super::{Arrived, Engine};
use crate::ops::Status;
use crate::transport::Incoming;
use crate::wire::kind;
use crate::{Match, PeerId};

/// Bytes of messages of one peer that are kept before it is asked to offer them.
const OFFER_AT: u64 = 1 << 20;
/// And before it is asked to stop: only descriptions of offers are still added.
const STOP_AT: u64 = 32 << 20;
/// Nobody who does what it is asked for is kept so much of.
const MOST: u64 = 64 << 20;
/// What a message takes beside its bytes.
const ENTRY: u64 = 128;
/// Bytes of sends between two looks at what came.
pub(crate) const UNPOLLED: u64 = 256 << 10;

/// How a peer may send messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Pace {
    /// Short ones at once.
    #[default]
    Go,
    /// All of them as offers.
    Offer,
    /// Not now.
    Stop,
}

impl Pace {
    fn of(word: u64) -> Option<Pace> {
        [Pace::Go, Pace::Offer, Pace::Stop]
            .into_iter()
            .find(|pace| *pace as u64 == word)
    }

    /// What a peer is to hear when so much of it is kept.
    fn after(self, kept: u64) -> Pace {
        match self {
            _ if kept >= STOP_AT => Pace::Stop,
            Pace::Stop if kept >= STOP_AT / 2 => Pace::Stop,
            Pace::Go if kept < OFFER_AT => Pace::Go,
            _ if kept < OFFER_AT / 2 => Pace::Go,
            _ => Pace::Offer,
        }
    }
}

/// What a message counts for.
#[inline(always)]
pub(crate) fn weight(bytes: u64) -> u64 {
    bytes + ENTRY
}

impl Arrived {
    fn weight(&self) -> u64 {
        match self {
            Arrived::Bytes(bytes) | Arrived::Departed(_, bytes) => weight(bytes.len() as u64),
            Arrived::Offer(_) => ENTRY,
            // Not its sender's doing, but that of this process, once for each panic that it
            // survives.
            Arrived::Back(..) => 0,
        }
    }
}

impl Engine {
    /// Keeps a message that no receive was posted for.
    ///
    /// # Errors
    /// The peer goes on although it was told to stop.
    pub(crate) fn keep(
        &mut self,
        from: PeerId,
        tag: u64,
        arrived: Arrived,
    ) -> Result<(), &'static str> {
        self.unexpected_more(from, arrived.weight())?;
        self.matcher.keep(from, tag, arrived);
        Ok(())
    }

    pub(super) fn unexpected_more(&mut self, of: PeerId, bytes: u64) -> Result<(), &'static str> {
        if of != self.me {
            let peer = self.peer(of);
            peer.unexpected += bytes;
            if peer.unexpected > MOST {
                return Err("more messages than are kept of a peer that was told to stop");
            }
            self.tell_pace(of);
        }
        Ok(())
    }

    /// A message that was kept has its receive.
    pub(crate) fn unkeep(&mut self, from: PeerId, arrived: &Arrived) {
        match arrived {
            Arrived::Departed(..) => self.departed -= arrived.weight(),
            _ => self.unexpected_less(from, arrived.weight()),
        }
    }

    /// A message that a receive with `wants` got, and could not give to its caller, is kept again.
    pub(crate) fn put_back(&mut self, wants: Match, status: Status, bytes: Vec<u8>) {
        let departed = status.incarnation != self.incarnation(status.from);
        let arrived = Arrived::Back(status.incarnation, bytes.into());
        let from = (status.from, status.tag);
        self.matcher.put_back(wants, from, arrived, departed);
    }

    /// The number of a process that is gone has another life: what is kept of the old one is for
    /// receives of any source from now on. Of all of them together as much is kept as of one peer;
    /// the oldest give way.
    pub(super) fn keep_last_words(&mut self, of: PeerId) {
        let incarnation = self.incarnation(of);
        let mut bytes = 0;
        self.matcher.depart(of, |arrived| {
            bytes += arrived.weight();
            match arrived {
                Arrived::Bytes(bytes) => Arrived::Departed(incarnation, bytes),
                other => other,
            }
        });
        self.departed += bytes;
        while self.departed > MOST
            && let Some(oldest) = self.matcher.drop_departed(|arrived| arrived.weight() > 0)
        {
            self.departed -= oldest.weight();
            tracing::warn!(
                "messages of processes that are gone are dropped: nobody has received them"
            );
        }
    }

    /// Drops the kept messages of a peer that `which` says.
    pub(crate) fn drop_unexpected(&mut self, from: PeerId, which: impl Fn(&Arrived) -> bool) {
        let mut bytes = 0;
        self.matcher.drop_unexpected(from, |arrived| {
            let drops = which(arrived);
            bytes += u64::from(drops) * arrived.weight();
            drops
        });
        self.unexpected_less(from, bytes);
    }

    pub(super) fn unexpected_less(&mut self, from: PeerId, bytes: u64) {
        let peer = self.peer(from);
        peer.unexpected = peer.unexpected.saturating_sub(bytes);
        self.tell_pace(from);
    }

    fn tell_pace(&mut self, to: PeerId) {
        let peer = self.peer(to);
        let pace = peer.told.after(peer.unexpected);
        if std::mem::replace(&mut peer.told, pace) != pace {
            self.post(to, kind::PACE, pace as u64, &[]);
        }
    }

    /// Sender: how a peer wants its messages from now on.
    pub(super) fn pace_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        self.peer(frame.from).pace = Pace::of(frame.arg).ok_or("a pace")?;
        Ok(())
    }

    /// Whether a signal may leave. The keys of those that nobody has awaited are kept like
    /// messages.
    #[inline]
    pub(crate) fn may_signal(&mut self, to: PeerId, key: u64) -> bool {
        // Whoever is in a barrier looks at what comes, and keeps nothing of it.
        key >= crate::proto::barrier::KEYS || !self.must_poll() && self.peer(to).pace != Pace::Stop
    }

    /// Whether a look at what came is due before the next short frame.
    #[inline(always)]
    pub(crate) fn must_poll(&self) -> bool {
        self.unpolled < weight(0)
    }

    /// A short frame leaves without a look at what came.
    #[inline(always)]
    pub(crate) fn spend_unpolled(&mut self) {
        self.unpolled = self.unpolled.saturating_sub(weight(0));
    }

    /// Whether a short message may leave at once: its receiver is there, nothing waits before it,
    /// the receiver has room for what it does not expect, and this process has looked lately
    /// whether that is still so. Returns how many bytes a frame to it has inline.
    #[inline(always)]
    pub(crate) fn may_send_at_once(&self, to: PeerId, bytes: u64) -> Option<u64> {
        let peer = self.peers.get(to)?;
        let may = bytes <= peer.route.eager_max
            && peer.is_reachable()
            && peer.outbox.is_empty()
            && peer.pace == Pace::Go
            && self.unpolled >= weight(bytes);
        may.then_some(peer.route.caps.inline_max)
    }
}
