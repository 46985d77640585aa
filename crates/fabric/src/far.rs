//! One-sided operations on a segment that is reached by messages only: this side of
//! [`crate::proto::rma_over_am`] and [`crate::proto::batch`].
//!
//! Every frame takes a credit, and waits for one where too many are unanswered or too many bytes wait to be
//! sent: a put of any length holds a bounded number of bytes here. Every operation is refused when the life
//! of the owner that its key is of has ended, also if another process has the owner's number by now.

use crate::engine::Engine;
use crate::fabric::Fabric;
use crate::ops::{Key, Work};
use crate::wire::Place;
use crate::{Atomic, Error, Handle, Outcome, PeerId, Result, SegmentKey, Whom, Width, WordUpdate};
use samite_mem::lend::WriteBuf;

fn place(key: SegmentKey, offset: u64) -> Place {
    Place {
        segment: key.segment,
        generation: key.generation,
        incarnation: key.incarnation,
        offset,
    }
}

impl Fabric {
    /// Waits until one more active message may be on its way to a peer, which fetches it if it is long.
    pub(crate) fn credit_for(&self, to: PeerId, bytes: usize) -> Result<()> {
        self.credit_if(to, |engine| match engine.gone(to) {
            Some(error) => Err(error),
            None => Ok(engine.has_credit_for(to, bytes as u64)? && engine.has_credit(to)),
        })
    }

    fn credit_if(
        &self,
        to: PeerId,
        mut has: impl FnMut(&mut Engine) -> Result<bool>,
    ) -> Result<()> {
        self.wait("credit for a request", Whom::Peer(to), |engine| {
            match has(engine) {
                Ok(true) => Some(Ok(())),
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            }
        })?
    }

    /// Starts an operation of `frames` frames, each of which waits for its credit; it ends early when the
    /// operation does.
    fn ask_far(
        &self,
        key: SegmentKey,
        what: &'static str,
        work: Work,
        frames: usize,
        mut post: impl FnMut(&mut Engine, Key, usize),
    ) -> Result<Key> {
        let mut work = Some(work);
        let mut request = None;
        for frame in 0..frames {
            let credit = self.credit_if(key.peer, |engine| {
                self.lives(engine, key)?;
                Ok(engine.has_credit(key.peer))
            });
            let core = &mut *self.core.borrow_mut();
            if let Err(error) = credit {
                // What was asked for already is answered to nobody.
                request
                    .into_iter()
                    .for_each(|request| core.engine.ops.forget(request));
                return Err(error);
            }
            let ops = &mut core.engine.ops;
            let request = *request.get_or_insert_with(|| {
                ops.add(Some(key.peer), what, work.take().unwrap_or(Work::None))
            });
            if ops.get(request).is_none_or(|op| op.has_ended()) {
                return Ok(request);
            }
            post(&mut core.engine, request, frame);
            core.engine.flush(&mut core.transport);
        }
        request.ok_or(Error::Cancelled)
    }

    /// Puts bytes into a range that was checked. They are copied, or have left, when it returns.
    pub(crate) fn put_far(
        &self,
        key: SegmentKey,
        offset: u64,
        from: &[u8],
    ) -> Result<Handle<'_, u64>> {
        let limit = self.caps().body_max.max(1) as usize;
        let frames = from.len().div_ceil(limit).max(1);
        let work = Work::Answer {
            left: frames as u64,
        };
        let request = self.ask_far(key, "put", work, frames, |engine, request, frame| {
            let start = frame * limit;
            let part = &from[start..from.len().min(start + limit)];
            engine.post_put(key.peer, request, place(key, offset + start as u64), part);
        })?;
        Ok(Handle::new(self, request))
    }

    /// Gets bytes of a range that was checked.
    pub(crate) fn get_far<T: Outcome>(
        &self,
        key: SegmentKey,
        offset: u64,
        into: WriteBuf,
    ) -> Result<Handle<'_, T>> {
        let len = into.len();
        let work = Work::Get { buf: into, got: 0 };
        let request = self.ask_far(key, "get", work, 1, |engine, request, _| {
            engine.post_get(key.peer, request, place(key, offset), len, 0);
        })?;
        Ok(Handle::new(self, request))
    }

    /// One atomic on a place that was checked.
    pub(crate) fn atomic_far(
        &self,
        key: SegmentKey,
        offset: u64,
        op: (Atomic, Width),
        operands: (u64, u64),
    ) -> Result<Handle<'_, u64>> {
        let work = Work::Answer { left: 1 };
        let request = self.ask_far(key, "atomic", work, 1, |engine, request, _| {
            engine.post_atomic(key.peer, request, place(key, offset), op, operands);
        })?;
        Ok(Handle::new(self, request))
    }

    /// Updates of words at places that were checked; at least one.
    pub(crate) fn updates_far(
        &self,
        key: SegmentKey,
        op: (Atomic, Width),
        updates: &[WordUpdate],
    ) -> Result<Handle<'_, u64>> {
        let of_frame = self.core.borrow().engine.updates_of_frame();
        let frames = updates.len().div_ceil(of_frame);
        let work = Work::Answer {
            left: frames as u64,
        };
        let request = self.ask_far(key, "updates", work, frames, |engine, request, frame| {
            let start = frame * of_frame;
            let part = &updates[start..updates.len().min(start + of_frame)];
            engine.post_updates(key.peer, request, place(key, 0), op, part);
        })?;
        Ok(Handle::new(self, request))
    }

    /// Gets elements of `size` bytes at places that were checked; at least one byte of one.
    pub(crate) fn gather_far<T: Outcome>(
        &self,
        key: SegmentKey,
        size: u64,
        offsets: &[u64],
        into: WriteBuf,
    ) -> Result<Handle<'_, T>> {
        let of_frame = self.core.borrow().engine.elements_of_frame(size);
        let each = of_frame.unwrap_or(1);
        let frames = offsets.len().div_ceil(each);
        let work = Work::Get { buf: into, got: 0 };
        let request = self.ask_far(key, "get", work, frames, |engine, request, frame| {
            let start = frame * each;
            let part = &offsets[start..offsets.len().min(start + each)];
            let at = start as u64 * size;
            match of_frame {
                Some(_) => engine.post_gather(key.peer, request, place(key, 0), (size, at), part),
                None => engine.post_get(key.peer, request, place(key, part[0]), size, at),
            }
        })?;
        Ok(Handle::new(self, request))
    }
}
