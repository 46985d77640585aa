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
    /// Waits until one more active message may be on its way to a peer, which fetches it if it is long; posts it
    /// then.
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
        self.with_credit(to, has_credit, |engine| {
            engine.send_active(to, handler, bytes, reply)
        })
    }

    /// Waits for credit and posts a request in one step: other threads post, too.
    fn with_credit<T>(
        &self,
        to: PeerId,
        mut has_credit: impl FnMut(&mut Engine) -> Result<bool>,
        mut post: impl FnMut(&mut Engine) -> T,
    ) -> Result<T> {
        let what = "credit for a request";
        let posted = self.wait(what, Whom::Peer(to), |engine| match has_credit(engine) {
            Ok(true) => Some(Ok(post(engine))),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        })??;
        self.0.core.lock().flush();
        Ok(posted)
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
            let has_credit = |engine: &mut Engine| {
                self.lives(engine, key)?;
                Ok(engine.has_credit(key.peer))
            };
            let posted = self.with_credit(key.peer, has_credit, |engine| {
                let ops = &mut engine.ops;
                let request = *request.get_or_insert_with(|| {
                    ops.add(Some(key.peer), what, work.take().unwrap_or(Work::None))
                });
                let is_open = ops.get(request).is_some_and(|op| !op.has_ended());
                if is_open {
                    post(engine, request, frame);
                }
                is_open
            });
            match (posted, request) {
                (Ok(true), _) => {}
                (Ok(false), Some(request)) => return Ok(request),
                (Ok(false), None) => return Err(Error::Cancelled),
                (Err(error), request) => {
                    // What was asked for already is answered to nobody.
                    let ops = &mut self.0.core.lock().engine.ops;
                    request.into_iter().for_each(|request| ops.forget(request));
                    return Err(error);
                }
            }
        }
        request.ok_or(Error::Cancelled)
    }

    /// Puts bytes into a range that was checked. They are copied, or have left, when it returns.
    pub(crate) fn put_far(&self, key: SegmentKey, offset: u64, from: &[u8]) -> Result<Handle<u64>> {
        let limit = self.caps_to(key.peer).body_max.max(1) as usize;
        let frames = from.len().div_ceil(limit).max(1);
        let work = Work::Answer {
            left: frames as u64,
        };
        let request = self.ask_far(key, "put", work, frames, |engine, request, frame| {
            let start = frame * limit;
            let part = &from[start..from.len().min(start + limit)];
            engine.post_put(key.peer, request, place(key, offset + start as u64), part);
        })?;
        Ok(Handle::new(self.clone(), request))
    }

    /// Asks the owner for bytes of a range that was checked; the operation.
    pub(crate) fn ask_get(&self, key: SegmentKey, offset: u64, into: WriteBuf) -> Result<Key> {
        let len = into.len();
        let work = Work::Get { buf: into, got: 0 };
        self.ask_far(key, "get", work, 1, |engine, request, _| {
            engine.post_get(key.peer, request, place(key, offset), len, 0);
        })
    }

    /// One atomic on a place that was checked.
    pub(crate) fn atomic_far(
        &self,
        key: SegmentKey,
        offset: u64,
        op: (Atomic, Width),
        operands: (u64, u64),
    ) -> Result<Handle<u64>> {
        let work = Work::Answer { left: 1 };
        let request = self.ask_far(key, "atomic", work, 1, |engine, request, _| {
            engine.post_atomic(key.peer, request, place(key, offset), op, operands);
        })?;
        Ok(Handle::new(self.clone(), request))
    }

    /// Updates of words at places that were checked; at least one.
    pub(crate) fn updates_far(
        &self,
        key: SegmentKey,
        op: (Atomic, Width),
        updates: &[WordUpdate],
    ) -> Result<Handle<u64>> {
        let of_frame = self.0.core.lock().engine.updates_of_frame(key.peer);
        let frames = updates.len().div_ceil(of_frame);
        let work = Work::Answer {
            left: frames as u64,
        };
        let request = self.ask_far(key, "updates", work, frames, |engine, request, frame| {
            let start = frame * of_frame;
            let part = &updates[start..updates.len().min(start + of_frame)];
            engine.post_updates(key.peer, request, place(key, 0), op, part);
        })?;
        Ok(Handle::new(self.clone(), request))
    }

    /// Gets elements of `size` bytes at places that were checked; at least one byte of one.
    pub(crate) fn gather_far<T: Outcome>(
        &self,
        key: SegmentKey,
        size: u64,
        offsets: &[u64],
        into: WriteBuf,
    ) -> Result<Handle<T>> {
        let of_frame = self.0.core.lock().engine.elements_of_frame(key.peer, size);
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
        Ok(Handle::new(self.clone(), request))
    }
}
