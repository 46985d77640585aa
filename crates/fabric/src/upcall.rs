//! Upcalls: frames for a layer above, which works on them when no lock is held.
//!
//! A handler of active messages ([`Fabric::on`]) runs inside the engine, so it has to be short and
//! cannot send. An upcall has two halves. [`Upcall::arrived`] runs inside the engine and only keeps
//! the frame. [`Upcall::work`] runs afterwards in the waiting thread that took the frame, without
//! the lock of the engine, and may send ([`Fabric::post_upcall`]). Other threads use the fabric
//! meanwhile.
//!
//! ```text
//!   sender                               receiver, in any wait and in Fabric::progress
//!   post_upcall   UPCALL, word  ------>  Core::turn: Upcall::arrived     keeps the frame
//!                 up to 272 bytes        then, unlocked: Upcall::work    runs it, and posts others
//!                 travel in cells
//! ```
//!
//! # Invariants
//! U1 A frame is handed over once, in the order of one sender's frames, with the incarnation of its
//!    sender. A frame of a lost peer is handed over before its loss is seen ([`Fabric::changes`]).
//! U2 After a frame, a change of membership or [`Fabric::want_work`], `work` runs again before a
//!    thread of this process sleeps: the flag is set under the lock under which sleepers look.
//!    Other threads are told only if `work` has done something, so one that always wants to work
//!    later keeps nobody awake.
//! U3 Frames that arrive before the upcall is set are kept, up to 1 MiB, and handed over then.
//! U4 Posting never waits. Without room it returns false, and the layer keeps what it wants
//!    to send.

use crate::engine::Engine;
use crate::fabric::{Core, Fabric};
use crate::rpc::Life;
use crate::transport::{Incoming, Push, Transport};
use crate::wire::{frame, kind};
use crate::{Error, PeerId, Result};
use samite_mem::Guard;
use samite_mem::ring::Body;
use std::sync::Arc;

/// Longest head of a frame: what travels in its first bytes.
pub const HEAD_MAX: usize = 48;

/// A layer that takes frames and works on them; see the module's documentation.
pub trait Upcall: Send + Sync {
    /// Keeps a frame: `bytes` begins with its head, and goes on in `rest`. Called inside the
    /// engine, so it must not use the fabric.
    fn arrived(&self, from: Life, word: u64, bytes: &[u8], rest: &Body<'_>);
    /// Works on what has arrived. Called without a lock; several threads may call it at once. It
    /// must not wait. Returns whether it has done something that another thread may wait for.
    fn work(&self, fabric: &Fabric) -> bool;
}

impl Fabric {
    /// Hands all frames of [`Fabric::post_upcall`] to `upcall` from now on, until it is replaced or
    /// removed. It must not own a clone of this fabric. Local.
    pub fn set_upcall(&self, upcall: Option<Arc<dyn Upcall>>) {
        let replaced = self.0.with(|core| {
            core.engine.upcall_wanted = upcall.is_some();
            if let Some(upcall) = &upcall {
                let early = std::mem::take(&mut core.engine.early);
                for (from, word, bytes) in early.frames {
                    upcall.arrived(from, word, &bytes, &Body::Slice(&[]));
                }
            }
            std::mem::replace(&mut core.engine.upcall, upcall)
        });
        drop(replaced); // Without the lock: it may own something that uses the fabric.
    }

    /// Returns the most bytes that one frame to a peer carries besides its head.
    pub fn upcall_max(&self, to: PeerId) -> u64 {
        let max = |core: &mut Core| {
            core.known(to);
            core.engine.route(to).caps.body_max
        };
        self.0.with(max).unwrap_or(0)
    }

    /// Returns how many bytes [`Fabric::post_upcall`] has sent so far: words, heads and payloads.
    /// The transport adds a head of its own to each frame, which does not count.
    pub fn upcall_bytes(&self) -> u64 {
        self.0.with(|core| core.engine.upcall_bytes).unwrap_or(0)
    }

    /// Sends a frame to one incarnation of a peer: a word, a head of at most [`HEAD_MAX`] bytes and
    /// a payload. Completion: local. Returns false if there is no room, and then nothing was sent.
    ///
    /// # Errors
    /// [`Error::PeerLost`], [`Error::NoSuchPeer`], [`Error::TooLong`], [`Error::Forked`].
    ///
    /// # Panics
    /// If the head is longer than allowed.
    pub fn post_upcall(&self, to: Life, word: u64, head: &[u8], payload: &[u8]) -> Result<bool> {
        assert!(head.len() <= HEAD_MAX, "a head of {} bytes", head.len());
        let core = &mut *self.0.lock()?;
        if let Some(error) = core.lost_life(to.peer, to.incarnation) {
            return Err(error);
        }
        let caps = core.engine.route(to.peer).caps;
        let len = head.len() + payload.len();
        // Short frames are put together in few bytes, which take less time to be zeroed.
        let (mut short, mut long);
        let all: &mut [u8] = match len <= SHORT_MAX {
            true => {
                short = [0; SHORT_MAX];
                &mut short
            }
            false => {
                long = [0; INLINE_MAX];
                &mut long
            }
        };
        let (inline, body) = match all.get_mut(..len) {
            Some(all) if len as u64 <= caps.inline_max => {
                all[..head.len()].copy_from_slice(head);
                all[head.len()..].copy_from_slice(payload);
                (&*all, &[][..])
            }
            _ if payload.len() as u64 <= caps.body_max => (head, payload),
            _ => {
                return Err(Error::TooLong {
                    what: "a frame",
                    bytes: payload.len() as u64,
                    most: caps.body_max,
                });
            }
        };
        let outbox = &core.engine.peer(to.peer).outbox;
        if outbox.is_empty() {
            let frame = frame(kind::UPCALL, word, inline, Body::Slice(body));
            match core.transport.push(to.peer, &frame) {
                Push::Done => {
                    core.engine.upcall_bytes += WORD + len as u64;
                    return Ok(true);
                }
                Push::Full => {}
                Push::Gone => return Ok(true), // Its loss is about to be reported.
            }
        } else if !outbox.has_capacity() {
            return Ok(false);
        }
        (core.engine).post_body(to.peer, kind::UPCALL, word, inline, body.to_vec());
        core.engine.upcall_bytes += WORD + len as u64;
        core.leave();
        Ok(true)
    }

    /// Has [`Upcall::work`] called soon, by a waiting thread. Thread: any.
    pub fn want_work(&self) {
        self.0.with(|core| {
            core.engine.upcall_wanted = true;
            core.tell();
        });
        self.bell(self.me()).nudge();
    }

    /// Has [`Upcall::work`] called after the next turn of the engine, whenever that is: a thread
    /// that waits may sleep before it. For a layer that waits for room, or looks at a clock: while
    /// frames wait to be sent, turns are at most 500 us apart, and otherwise about a second.
    pub fn want_work_later(&self) {
        self.0.with(|core| core.engine.upcall_wanted = true);
    }

    /// Lets the upcall work, without the lock.
    #[cold]
    pub(crate) fn work(&self, core: &mut Guard<'_, Core>) {
        core.engine.upcall_wanted = false;
        let Some(upcall) = core.engine.upcall.clone() else {
            return;
        };
        let has_done = core.unlocked(|| {
            let has_done = upcall.work(self);
            // It may be the last reference, and own something that uses the fabric.
            drop(upcall);
            has_done
        });
        if has_done {
            core.tell(); // Threads that look at everything look at what it has done.
        }
    }
}

/// The most bytes that are kept for an upcall that is not there yet.
const EARLY_MAX: u64 = 1 << 20;

/// Frames that arrived before the upcall was set.
#[derive(Debug, Default)]
pub(crate) struct Early {
    frames: Vec<(Life, u64, Vec<u8>)>,
    bytes: u64,
}

impl Early {
    fn keep(&mut self, from: Life, frame: &Incoming<'_>) {
        let bytes = frame.inline.len() as u64 + frame.body.len() + 64;
        if self.bytes + bytes > EARLY_MAX {
            return tracing::warn!(from = %from.peer, "a frame for a layer that is not there");
        }
        self.bytes += bytes;
        let mut all = frame.inline.to_vec();
        all.extend(frame.body.to_vec());
        self.frames.push((from, frame.arg, all));
    }
}

/// Bytes of the word of a frame.
const WORD: u64 = 8;
/// The longest frame that travels in cells alone.
const INLINE_MAX: usize = 272;
const SHORT_MAX: usize = 64;

impl Engine {
    pub(crate) fn upcall_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let from = Life {
            peer: frame.from,
            incarnation: self.incarnation(frame.from),
        };
        match &self.upcall {
            Some(upcall) => {
                upcall.arrived(from, frame.arg, frame.inline, &frame.body);
                self.upcall_wanted = true;
            }
            None => self.early.keep(from, frame),
        }
        Ok(())
    }
}
