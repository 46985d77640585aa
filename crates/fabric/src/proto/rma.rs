//! Put, get and atomics by the RMA of the transport, for segments that are not mapped.
//!
//! The first operation on a segment asks its owner for the remote key (REMOTE_KEY), and the owner
//! registers the segment when it is asked. Until the key arrives, operations go by messages. A put
//! or get is done in pieces of [`PIECE`] bytes in memory of their own, and at most [`BYTES_MAX`]
//! bytes of them wait or are in flight to one peer. An operation that is given up therefore ends at
//! once, whatever becomes of its pieces, and the transport never holds a buffer of the program.
//!
//! # Order
//! The transport does not order operations (T7). Puts to a peer are numbered, and a flush, of which
//! at most one is in flight per peer, covers all that were started before it. A put is complete
//! when a flush has covered its last piece. A request to the peer (a message, a signal, an active
//! message) that is sent while puts are not covered waits behind a fence in the outbox, and leaves
//! when they are ([`PeerRma::flushed`]). If no put is in flight, this costs one load
//! (`Outbox::is_empty`).
//!
//! # Atomics
//! The processes on the target's node, at least the owner, access the same words with their
//! processors' atomics, and may sleep until a word changes. So the owner's progress performs an
//! atomic, since it uses these processors and is awake: by the RMA of the transport if that needs
//! the target's progress and says that its atomics are those of the processors
//! ([`Caps::atomics`](crate::transport::Caps)), otherwise by a message. An atomic that is started
//! while an earlier put is not complete goes by a message, behind the fence: it may be a signal.
//!
//! # Withdrawn segments
//! The owner ends the registration before it gets exclusive access to the memory or frees it (T11).
//! The transport refuses a later operation, which ends with [`Error::NoSuchSegment`], as on mapped
//! memory. A process that attaches again gets the key of the new registration.

use crate::engine::{Access, Engine, Queued, lost};
use crate::ops::{Key, Outcome, Work};
use crate::transport::{
    AnyTransport, Completed, Incoming, Push, Registration, RemoteKey, RmaError, RmaVerb, Transport,
};
use crate::wire::{RemoteAddress, Words, frame, kind};
use crate::{Error, PeerId};
use samite_mem::ring::Body;
use std::collections::VecDeque;

/// Bytes of a piece.
pub(crate) const PIECE: u64 = 64 << 10;
/// Bytes of pieces to one peer that may wait or be in flight, not counting the last.
const BYTES_MAX: u64 = 1 << 20;
/// The most pieces to one peer that may wait or be in flight.
const PIECES_MAX: usize = 256;

/// The RMA operations to one peer.
#[derive(Debug, Default)]
pub(crate) struct PeerRma {
    waiting: VecDeque<(Piece, RmaVerb)>,
    /// Pieces that wait or are in flight, and their bytes.
    pieces: usize,
    bytes: u64,
    /// Puts, counted by piece: how many were queued, how many were started, and how many are
    /// visible.
    put: u64,
    started: u64,
    flushed: u64,
    /// How many puts the flush in flight covers.
    flushing: Option<u64>,
    /// Operations whose last piece is a put that is not visible yet, with its number.
    unflushed: VecDeque<(u64, Key)>,
}

/// A part of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) peer: PeerId,
    pub(crate) segment: u32,
    pub(crate) op: Key,
    /// Its offset in the operation.
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

impl Piece {
    fn flush(peer: PeerId) -> Piece {
        Piece {
            peer,
            segment: 0,
            op: 0,
            at: 0,
            bytes: 0,
        }
    }
}

impl PeerRma {
    /// Returns the number of the last put queued: the next fence waits for the puts up to it.
    pub(crate) fn last_put(&self) -> u64 {
        self.put
    }

    /// Returns whether the puts up to this one are visible.
    pub(crate) fn has_flushed(&self, put: u64) -> bool {
        self.flushed >= put
    }

    /// Returns whether everything that can be started has been.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && (self.flushing.is_some() || self.started == self.flushed)
    }
}

impl Engine {
    /// Returns whether one more piece may be queued.
    pub(crate) fn has_rma_capacity(&mut self, to: PeerId) -> bool {
        let rma = &self.peer(to).outbox.rma;
        rma.bytes < BYTES_MAX && rma.pieces < PIECES_MAX
    }

    /// Returns whether an atomic may go by RMA: the owner's progress performs it, and no earlier
    /// request of this process is outstanding.
    pub(crate) fn may_do_atomic(&mut self, to: PeerId) -> bool {
        let peer = self.peer(to);
        let is_first = peer.outbox.is_empty() && peer.unanswered == 0;
        peer.route.caps.atomics && is_first && self.has_rma_capacity(to)
    }

    /// Queues a piece of an operation.
    pub(crate) fn queue_piece(&mut self, piece: Piece, verb: RmaVerb, is_last: bool) {
        let outbox = &mut self.peer(piece.peer).outbox;
        let rma = &mut outbox.rma;
        rma.pieces += 1;
        rma.bytes += piece.bytes;
        if matches!(verb, RmaVerb::Put(..)) {
            rma.put += 1;
            outbox.is_behind = true;
            if is_last {
                rma.unflushed.push_back((rma.put, piece.op));
            }
        }
        rma.waiting.push_back((piece, verb));
        self.mark_dirty(piece.peer);
    }

    /// Starts queued pieces, and a flush if there are puts that none covers; returns how many it
    /// started.
    pub(crate) fn flush_rma(&mut self, to: PeerId, transport: &mut AnyTransport) -> usize {
        let mut count = 0;
        loop {
            let rma = &mut self.peer(to).outbox.rma;
            let covered = rma.started;
            let is_uncovered = rma.flushing.is_none() && covered != rma.flushed;
            // Flush before queued pieces, too: a program that keeps asking may never let all of
            // them be started.
            let flush = is_uncovered && (count == 0 || rma.waiting.is_empty());
            let (piece, verb) = match flush {
                true => (Piece::flush(to), RmaVerb::Flush),
                false => match rma.waiting.pop_front() {
                    Some(waits) => waits,
                    None => return count,
                },
            };
            let is_put = matches!(verb, RmaVerb::Put(..));
            let refused = self.start_piece(piece, verb, transport);
            let rma = &mut self.peer(to).outbox.rma;
            match refused {
                Ok(()) if flush => {
                    rma.flushing = Some(covered);
                    rma.pieces += 1;
                }
                Ok(()) => rma.started += u64::from(is_put),
                Err(Some(verb)) if !flush => {
                    rma.waiting.push_front((piece, verb));
                    return count;
                }
                // There is no room for a flush, or the loss of the peer ends everything.
                Err(_) => return count,
            }
            count += 1;
        }
    }

    /// Starts a piece; returns it if the transport refused it for now.
    fn start_piece(
        &mut self,
        piece: Piece,
        verb: RmaVerb,
        transport: &mut AnyTransport,
    ) -> Result<(), Option<RmaVerb>> {
        self.started_pieces += 1;
        let id = self.started_pieces;
        match transport.start(piece.peer, id, verb) {
            Ok(()) => {
                self.pieces.insert(id, piece);
                Ok(())
            }
            Err(refused) => match *refused {
                (Push::Full, verb) => Err(Some(verb)),
                _ => Err(None),
            },
        }
    }

    /// Handles a piece that the transport has ended.
    pub(crate) fn piece_completed(&mut self, completed: Completed) {
        let Some(piece) = self.pieces.remove(&completed.id) else {
            return;
        };
        let Piece { peer, op, .. } = piece;
        let rma = &mut self.peer(peer).outbox.rma;
        rma.pieces = rma.pieces.saturating_sub(1);
        rma.bytes = rma.bytes.saturating_sub(piece.bytes);
        let error = match completed.result {
            Ok(word) => return self.piece_done(piece, completed.verb, word),
            Err(RmaError::Lost) => lost(peer, self.incarnation(peer)),
            Err(RmaError::Refused) => Error::NoSuchSegment {
                peer: peer.into(),
                segment: piece.segment,
            },
        };
        self.end_open(op, Err(error));
    }

    fn piece_done(&mut self, piece: Piece, verb: RmaVerb, word: u64) {
        match verb {
            RmaVerb::Put(..) => {} // It ends when a flush has covered it.
            RmaVerb::Atomic(..) => self.end_open(piece.op, Ok(Outcome::Word(word))),
            RmaVerb::Get(_, bytes) => {
                let Some(Work::Get { buf, got }) = self.ops.get(piece.op).map(|op| &mut op.work)
                else {
                    return; // It was given up.
                };
                let bytes = bytes.into_owned().unwrap_or_default();
                buf.fill(piece.at, &Body::Slice(&bytes));
                *got += piece.bytes;
                if *got >= buf.len() {
                    self.end_get(piece.op);
                }
            }
            RmaVerb::Flush => self.puts_flushed(piece.peer),
        }
    }

    fn puts_flushed(&mut self, to: PeerId) {
        let outbox = &mut self.peer(to).outbox;
        let rma = &mut outbox.rma;
        let Some(flushed) = rma.flushing.take() else {
            return; // It belonged to a peer that was shut out.
        };
        rma.flushed = flushed;
        outbox.is_behind = rma.put != flushed;
        let mut ended = Vec::new();
        while let Some((put, op)) = rma.unflushed.front()
            && *put <= flushed
        {
            ended.push(*op);
            rma.unflushed.pop_front();
        }
        for op in ended {
            self.end_open(op, Ok(Outcome::Word(0)));
        }
        self.mark_dirty(to);
    }

    /// Ends an operation, unless it has ended before its pieces have.
    fn end_open(&mut self, op: Key, result: Result<Outcome, Error>) {
        if self.ops.get(op).is_some_and(|op| !op.has_ended()) {
            self.ops.finish(op, result);
        }
    }

    /// Owner: handles a peer's request for the remote key of a segment.
    pub(crate) fn remote_key_wanted(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let (place, []) = RemoteAddress::read(frame.inline).ok_or("a request for a remote key")?;
        self.may_ask(frame.from)?;
        let request = frame.arg;
        let wanted = Queued::RemoteKey { request, place };
        self.queue(frame.from, wanted);
        Ok(())
    }

    /// Owner: answers with the key, or with no bytes where peers should use messages.
    pub(crate) fn push_remote_key(
        &mut self,
        to: PeerId,
        (request, place): (u64, RemoteAddress),
        transport: &mut AnyTransport,
    ) -> Push {
        let key = self.remote_key(place, transport);
        let inline = Words([0, 0]).bytes();
        let body = Body::Slice(key.as_ref().map_or(&[], RemoteKey::as_bytes));
        transport.push(to, &frame(kind::REPLY, request, &inline, body))
    }

    /// Returns the remote key of a segment that is open here. It begins at a word boundary, because
    /// atomics check only the offset.
    fn remote_key(
        &mut self,
        place: RemoteAddress,
        transport: &mut AnyTransport,
    ) -> Option<RemoteKey> {
        let Ok(Access::Shared(bytes)) = self.offered_access(place, 0) else {
            return None;
        };
        let bytes = bytes.clone();
        let offered = self.offered.get_mut(&place.segment)?;
        if offered.registered.is_none() && bytes.address().is_multiple_of(8) {
            offered.registered = transport.register(&bytes);
        }
        offered.registered.as_ref().map(|(_, key)| key.clone())
    }

    /// Takes the registrations of all segments, to end them.
    pub(crate) fn take_registrations(&mut self) -> Vec<Registration> {
        let offered = self.offered.values_mut();
        let registered = offered.filter_map(|offered| offered.registered.take());
        registered.map(|(registration, _)| registration).collect()
    }
}
