//! One-sided operations on a segment that is not mapped: the requester's side of
//! [`crate::proto::rma_over_am`], [`crate::proto::batch`] and [`crate::proto::rma`].
//!
//! Every frame or piece takes a credit, and waits for one while too many are unanswered or too many
//! bytes are queued: a put of any length holds a bounded number of bytes here. Every operation is
//! refused once the owner's incarnation that its key names has ended, even if its number has been
//! reassigned.

use crate::engine::Engine;
use crate::fabric::{Core, Fabric};
use crate::ops::{Key, Work};
use crate::proto::rma::{self, Piece};
use crate::rpc::{Life, ServiceId};
use crate::transport::{RemoteKey, RmaAddress, RmaVerb};
use crate::wire::{RemoteAddress, Words, kind};
use crate::{Atomic, Error, Handle, Outcome, PeerId, Result, SegmentKey, Whom, Width, WordUpdate};
use samite_mem::lend::{ReadBuf, WriteBuf};
use std::time::Duration;

fn place(key: SegmentKey, offset: u64) -> RemoteAddress {
    RemoteAddress {
        segment: key.segment,
        generation: key.generation,
        incarnation: key.incarnation,
        offset,
    }
}

fn rma_address(key: &RemoteKey, offset: u64) -> RmaAddress {
    let key = key.clone();
    RmaAddress { key, offset }
}

fn piece_of(key: SegmentKey, op: Key, at: u64, bytes: u64) -> Piece {
    Piece {
        peer: key.peer,
        segment: key.segment,
        op,
        at,
        bytes,
    }
}

/// An operation whose frames are being posted. If that ends early, by an error or by a panicking
/// handler, the operation is abandoned: answers to what was already requested are dropped.
struct Posting<'a> {
    fabric: &'a Fabric,
    request: Option<Key>,
}

impl Drop for Posting<'_> {
    fn drop(&mut self) {
        if let Some(request) = self.request {
            self.fabric.0.with(|core| core.engine.ops.forget(request));
        }
    }
}

impl Fabric {
    /// Waits until one more active message may be in flight to a peer, which fetches it if it is
    /// long; then posts it.
    pub(crate) fn post_active(
        &self,
        to: PeerId,
        handler: u16,
        bytes: &[u8],
        reply: bool,
    ) -> Result<Key> {
        let has_credit = |engine: &mut Engine| match engine.gone(to) {
            Some(error) => Err(error),
            None => Ok(engine.has_credit_for(to, bytes.len() as u64)? && engine.has_credit(to)),
        };
        self.with_credit(self.deadline(), to, has_credit, |engine| {
            engine.send_active(to, handler, bytes, reply)
        })
    }

    /// Waits until one more request or note may be in flight to a service of one incarnation of a
    /// peer; then posts it, for that operation, or for none.
    pub(crate) fn post_to_service(
        &self,
        service: ServiceId,
        to: Life,
        deadline: Duration,
        request: Key,
        bytes: &[u8],
    ) -> Result<()> {
        let Life { peer, incarnation } = to;
        let (number, is_own) = (service.number(), peer == self.me());
        let has_room = |engine: &mut Engine| match engine.lost_life(peer, incarnation) {
            Some(error) => Err(error),
            None if !engine.has_credit_for(peer, bytes.len() as u64)? => Ok(false),
            None if is_own => Ok(request != 0 || engine.takes_own_note(number)),
            None => Ok(!engine.must_poll() && engine.has_capacity(peer)),
        };
        self.with_credit(deadline, peer, has_room, |engine| {
            if let Some(op) = engine.ops.get(request) {
                op.work = Work::Reply;
            }
            match is_own {
                true => engine.asked(peer, number, request, bytes.to_vec()),
                false => {
                    engine.spend_answered();
                    engine.post_active(peer, number, bytes, request);
                }
            }
        })?;
        if is_own {
            // A serving thread may be parked or asleep.
            self.0.with(Core::tell);
            self.bell(peer).nudge();
        }
        Ok(())
    }

    /// Waits for credit and posts a request in one step, because other threads post, too.
    fn with_credit<T>(
        &self,
        deadline: Duration,
        to: PeerId,
        mut has_credit: impl FnMut(&mut Engine) -> Result<bool>,
        mut post: impl FnMut(&mut Engine) -> T,
    ) -> Result<T> {
        let what = "credit for a request";
        let mut posted = |engine: &mut Engine| match has_credit(engine) {
            Ok(true) => Some(Ok(post(engine))),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        };
        let posted = self.after_announcement(|| {
            self.wait_within(deadline, what, Whom::Peer(to), &mut posted)?
        })?;
        self.0.lock()?.flush();
        Ok(posted)
    }

    /// Starts an operation of `frames` frames, each of which waits for its credit; it ends early
    /// when the operation does.
    fn request_far(
        &self,
        key: SegmentKey,
        what: &'static str,
        work: Work,
        frames: usize,
        post: impl FnMut(&mut Engine, Key, usize),
    ) -> Result<Key> {
        self.start_far(key, what, work, frames, Engine::has_credit, post)
    }

    /// As [`Fabric::request_far`], with credits of another kind.
    fn start_far(
        &self,
        key: SegmentKey,
        what: &'static str,
        work: Work,
        frames: usize,
        has_credit: impl Fn(&mut Engine, PeerId) -> bool,
        mut post: impl FnMut(&mut Engine, Key, usize),
    ) -> Result<Key> {
        let mut work = Some(work);
        let mut asking = Posting {
            fabric: self,
            request: None,
        };
        for frame in 0..frames {
            let may = |engine: &mut Engine| {
                engine.lives(key)?;
                Ok(has_credit(engine, key.peer))
            };
            // The operation is added with its first frame, so that none exists while nothing was
            // posted.
            let is_open = self.with_credit(self.deadline(), key.peer, may, |engine| {
                let ops = &mut engine.ops;
                let request = *asking.request.get_or_insert_with(|| {
                    ops.add(Some(key.peer), what, work.take().unwrap_or(Work::None))
                });
                let is_open = ops.get(request).is_some_and(|op| !op.has_ended());
                if is_open {
                    post(engine, request, frame);
                }
                is_open
            })?;
            if !is_open {
                break;
            }
        }
        asking.request.take().ok_or(Error::Cancelled)
    }

    /// Puts bytes into a checked range. They have been copied or sent when it returns.
    pub(crate) fn put_far(&self, key: SegmentKey, offset: u64, from: &[u8]) -> Result<Handle<u64>> {
        let limit = self.caps_to(key.peer).body_max.max(1) as usize;
        let frames = from.len().div_ceil(limit).max(1);
        let work = Work::Answer {
            left: frames as u64,
        };
        let request = self.request_far(key, "put", work, frames, |engine, request, frame| {
            let start = frame * limit;
            let part = &from[start..from.len().min(start + limit)];
            engine.post_put(key.peer, request, place(key, offset + start as u64), part);
        })?;
        Ok(Handle::new(self.clone(), request))
    }

    /// Requests bytes of a checked range from the owner; returns the operation.
    pub(crate) fn request_get(&self, key: SegmentKey, offset: u64, into: WriteBuf) -> Result<Key> {
        let len = into.len();
        let work = Work::Get { buf: into, got: 0 };
        self.request_far(key, "get", work, 1, |engine, request, _| {
            engine.post_get(key.peer, request, place(key, offset), len, 0);
        })
    }

    /// Requests a segment's remote key from its owner; `None` if there is no credit for that now.
    pub(crate) fn request_remote_key(&self, key: SegmentKey) -> Option<Handle<Vec<u8>>> {
        let core = &mut *self.0.lock().ok()?;
        let engine = &mut core.engine;
        if engine.lives(key).is_err() || !engine.has_credit(key.peer) {
            return None;
        }
        let request = engine.ops.add(Some(key.peer), "remote key", Work::Reply);
        // The owner refuses a key with too many bytes: operations by RMA stay inside the segment.
        let inline = Words(place(key, key.bytes).words()).bytes();
        engine.post_request(key.peer, kind::REMOTE_KEY, request, &inline, None);
        core.flush();
        Some(Handle::new(self.clone(), request))
    }

    /// As [`Fabric::put_far`], by RMA.
    pub(crate) fn put_rma(
        &self,
        key: SegmentKey,
        remote: &RemoteKey,
        offset: u64,
        from: &[u8],
    ) -> Result<Handle<u64>> {
        let pieces = from.len().div_ceil(rma::PIECE as usize).max(1);
        let has_room = Engine::has_rma_capacity;
        let work = Work::Answer { left: 1 };
        let request = self.start_far(key, "put", work, pieces, has_room, |engine, op, piece| {
            let start = piece * rma::PIECE as usize;
            let part = &from[start..from.len().min(start + rma::PIECE as usize)];
            let at = start as u64;
            let verb = RmaVerb::Put(
                rma_address(remote, offset + at),
                ReadBuf::owned(part.to_vec()),
            );
            let of = piece_of(key, op, at, part.len() as u64);
            engine.queue_piece(of, verb, piece + 1 == pieces);
        })?;
        Ok(Handle::new(self.clone(), request))
    }

    /// As [`Fabric::request_get`], by RMA.
    pub(crate) fn get_rma(
        &self,
        key: SegmentKey,
        remote: &RemoteKey,
        offset: u64,
        into: WriteBuf,
    ) -> Result<Key> {
        let len = into.len();
        let pieces = len.div_ceil(rma::PIECE).max(1) as usize;
        let has_room = Engine::has_rma_capacity;
        let work = Work::Get { buf: into, got: 0 };
        self.start_far(key, "get", work, pieces, has_room, |engine, op, piece| {
            let at = piece as u64 * rma::PIECE;
            let bytes = rma::PIECE.min(len - at);
            let into = WriteBuf::owned(vec![0; bytes as usize]);
            let verb = RmaVerb::Get(rma_address(remote, offset + at), into);
            engine.queue_piece(piece_of(key, op, at, bytes), verb, piece + 1 == pieces);
        })
    }

    /// As [`Fabric::atomic_far`], by RMA; `None` if RMA should not do it.
    pub(crate) fn atomic_rma(
        &self,
        key: SegmentKey,
        remote: &RemoteKey,
        offset: u64,
        op: (Atomic, Width),
        operands: (u64, u64),
    ) -> Result<Option<Handle<u64>>> {
        let core = &mut *self.0.lock()?;
        let engine = &mut core.engine;
        engine.lives(key)?;
        if !engine.may_do_atomic(key.peer) {
            return Ok(None);
        }
        let work = Work::Answer { left: 1 };
        let request = engine.ops.add(Some(key.peer), "atomic", work);
        let verb = RmaVerb::Atomic(rma_address(remote, offset), op, operands);
        engine.queue_piece(piece_of(key, request, 0, op.1.bytes()), verb, true);
        core.flush();
        Ok(Some(Handle::new(self.clone(), request)))
    }

    /// Performs one atomic on a checked place.
    pub(crate) fn atomic_far(
        &self,
        key: SegmentKey,
        offset: u64,
        op: (Atomic, Width),
        operands: (u64, u64),
    ) -> Result<Handle<u64>> {
        let work = Work::Answer { left: 1 };
        let request = self.request_far(key, "atomic", work, 1, |engine, request, _| {
            engine.post_atomic(key.peer, request, place(key, offset), op, operands);
        })?;
        Ok(Handle::new(self.clone(), request))
    }

    /// Updates words at checked places; at least one.
    pub(crate) fn updates_far(
        &self,
        key: SegmentKey,
        op: (Atomic, Width),
        updates: &[WordUpdate],
    ) -> Result<Handle<u64>> {
        let of_frame = self.0.lock()?.engine.updates_of_frame(key.peer);
        let frames = updates.len().div_ceil(of_frame);
        let work = Work::Answer {
            left: frames as u64,
        };
        let request =
            self.request_far(key, "updates", work, frames, |engine, request, frame| {
                let start = frame * of_frame;
                let part = &updates[start..updates.len().min(start + of_frame)];
                engine.post_updates(key.peer, request, place(key, 0), op, part);
            })?;
        Ok(Handle::new(self.clone(), request))
    }

    /// Gets elements of `size` bytes at checked places; at least one byte of one.
    pub(crate) fn gather_far<T: Outcome>(
        &self,
        key: SegmentKey,
        size: u64,
        offsets: &[u64],
        into: WriteBuf,
    ) -> Result<Handle<T>> {
        let of_frame = self.0.lock()?.engine.elements_of_frame(key.peer, size);
        let each = of_frame.unwrap_or(1);
        let frames = offsets.len().div_ceil(each);
        let work = Work::Get { buf: into, got: 0 };
        let request = self.request_far(key, "get", work, frames, |engine, request, frame| {
            let start = frame * each;
            let part = &offsets[start..offsets.len().min(start + each)];
            let at = start as u64 * size;
            match of_frame {
                Some(_) => engine.post_gather(key.peer, request, place(key, 0), (size, at), part),
                None => engine.post_get(key.peer, request, place(key, part[0]), size, at),
            }
        })?;
        Ok(Handle::new(self.clone(), request))
    }
}
