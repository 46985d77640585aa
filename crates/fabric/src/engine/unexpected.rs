//! Unexpected messages: what is kept from a peer until a receive asks for it, and how the peer is
//! throttled.
//!
//! A message that matches no posted receive is copied to private memory. A receiver that keeps
//! [`OFFER_AT`] bytes from a peer tells it so (PACE): from then on that peer offers its messages,
//! however short, and their bytes stay with it until they are received. At [`STOP_AT`] bytes, the
//! peer sends no more offers either. When receives have taken half of what was kept, the peer is
//! told that, too.
//!
//! The keys of signals that nobody has awaited are also kept, and count as messages of no bytes.
//!
//! A sender learns its pace when it polls, so it polls once per [`UNPOLLED`] bytes that it sends.
//! Between the receiver's telling and the sender's hearing there are at most these bytes, one ring,
//! and what one poll takes. A peer of which [`MOST`] is kept ignores its pace, and is shut out.
//!
//! What a process has sent is kept when it is gone, even when its number is reassigned.
//!
//! # What it does not do
//! If two units of a program send each other more than [`OFFER_AT`] bytes by blocking sends, and
//! receive afterwards, they wait until the deadline. What a process sends to itself is not counted:
//! that is its own responsibility.

use super::{Arrived, Engine};
use crate::ops::Status;
use crate::transport::Incoming;
use crate::{Match, PeerId};
use samite_mem::ring::Body;

/// Bytes kept from one peer before it is asked to offer its messages.
const OFFER_AT: u64 = 1 << 20;
/// Bytes kept before it is asked to stop: after that, only descriptions of offers are added.
const STOP_AT: u64 = 32 << 20;
/// The most that is kept from a peer; one that follows its pace never reaches it.
const MOST: u64 = 64 << 20;
/// What a message takes besides its bytes.
const ENTRY: u64 = 128;
/// Bytes of sends between two polls.
pub(crate) const UNPOLLED: u64 = 256 << 10;

/// How a peer may send messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Pace {
    /// Short messages at once.
    #[default]
    Go,
    /// All messages as offers.
    Offer,
    /// Not now.
    Stop,
    /// None at all: it is an agent, which never receives. No peer says so of itself.
    Closed,
}

impl Pace {
    fn of(word: u64) -> Option<Pace> {
        [Pace::Go, Pace::Offer, Pace::Stop]
            .into_iter()
            .find(|pace| *pace as u64 == word)
    }

    /// Returns the pace to tell a peer of which so much is kept.
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

/// Returns how much a message counts.
#[inline(always)]
pub(crate) fn weight(bytes: u64) -> u64 {
    bytes + ENTRY
}

impl Arrived {
    fn weight(&self) -> u64 {
        match self {
            Arrived::Bytes(bytes) | Arrived::Departed(_, bytes) => weight(bytes.len() as u64),
            Arrived::Offer(_) => ENTRY,
            // Not its sender's fault, but that of this process, once for each panic that it
            // survives.
            Arrived::Back(..) => 0,
        }
    }
}

impl Engine {
    /// Keeps a message that matches no posted receive.
    ///
    /// # Errors
    /// The peer continues although it was told to stop.
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

    /// Uncounts a kept message that has found its receive.
    pub(crate) fn unkeep(&mut self, from: PeerId, arrived: &Arrived) {
        match arrived {
            Arrived::Departed(..) => self.departed -= arrived.weight(),
            _ => self.unexpected_less(from, arrived.weight()),
        }
    }

    /// Delivers a message again that a receive with `wants` took, and could not return to its
    /// caller; keeps it if no other receive wants it.
    pub(crate) fn put_back(&mut self, wants: Match, status: Status, bytes: Vec<u8>) {
        let Status { from, tag, .. } = status;
        let departed = status.incarnation != self.incarnation(from);
        let posted = match departed {
            true => self.matcher.take_posted_any(tag),
            false => self.matcher.take_posted(from, tag),
        };
        if let Some(key) = posted {
            let life = (from, status.incarnation);
            return self.deliver_of(key, life, tag, &Body::Slice(&bytes));
        }
        let arrived = Arrived::Back(status.incarnation, bytes.into());
        self.matcher.put_back(wants, (from, tag), arrived, departed);
    }

    /// Called when the number of a process that is gone is reassigned. What is kept from the old
    /// process then matches receives from any source only. For all such processes together as much
    /// is kept as for one peer; the oldest messages are dropped first.
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

    /// Drops the kept messages of a peer for which `which` returns true.
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
            self.post_pace(to, pace as u64);
        }
    }

    /// Sender: handles the pace at which a peer wants its messages from now on.
    pub(super) fn pace_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        self.peer(frame.from).pace = Pace::of(frame.arg).ok_or("a pace")?;
        Ok(())
    }

    /// Returns whether a signal may be sent. The keys of those that nobody has awaited are kept
    /// like messages.
    #[inline]
    pub(crate) fn may_signal(&mut self, to: PeerId, key: u64) -> bool {
        // A process in a barrier polls, and keeps none of its signals.
        key >= crate::proto::barrier::KEYS
            || !self.must_poll() && !matches!(self.peer(to).pace, Pace::Stop | Pace::Closed)
    }

    /// Returns whether a poll is due before the next short frame.
    #[inline(always)]
    pub(crate) fn must_poll(&self) -> bool {
        self.unpolled < weight(0)
    }

    /// Counts a short frame that is sent without a poll.
    #[inline(always)]
    pub(crate) fn spend_unpolled(&mut self) {
        self.unpolled = self.unpolled.saturating_sub(weight(0));
    }

    /// Counts a short frame that the peer answers: several answers are read in one poll.
    pub(crate) fn spend_answered(&mut self) {
        self.unpolled = self.unpolled.saturating_sub(UNPOLLED / 16);
    }

    /// Returns how many bytes fit inline in a frame to the peer if a short message may be sent at
    /// once: its receiver is known, nothing is queued before it, the receiver has room for
    /// unexpected messages, and this process has polled recently enough to know that.
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
