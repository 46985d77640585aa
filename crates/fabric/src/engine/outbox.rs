//! Frames that wait for their turn, per peer: replies first, then requests in order.

use super::Engine;
use crate::PeerId;
use crate::ops::Key;
use crate::transport::{AnyTransport, Class, Outgoing, Push, Transport};
use samite_mem::ring::Body;
use std::collections::VecDeque;

/// What waits.
#[derive(Debug)]
pub(crate) enum Queued {
    /// A frame.
    Frame {
        /// What it is.
        kind: u8,
        /// Its word.
        arg: u64,
        /// Its few bytes.
        inline: Vec<u8>,
        /// Its many bytes.
        body: Option<Vec<u8>>,
    },
    /// A send, whole or as an offer.
    Send(Key),
}

impl Queued {
    pub(super) fn frame(kind: u8, arg: u64, inline: &[u8], body: Option<Vec<u8>>) -> Queued {
        Queued::Frame {
            kind,
            arg,
            inline: inline.to_vec(),
            body,
        }
    }
}

/// The queues of one peer.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    replies: VecDeque<Queued>,
    requests: VecDeque<Queued>,
    dirty: bool,
}

impl Outbox {
    /// Requests that wait.
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether a request may leave now without passing others.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

impl Engine {
    pub(crate) fn queue(&mut self, to: PeerId, class: Class, queued: Queued) {
        let peer = self.peer(to);
        if peer.gone.is_some() {
            return;
        }
        match class {
            Class::Reply => peer.outbox.replies.push_back(queued),
            Class::Request => peer.outbox.requests.push_back(queued),
        }
        if !std::mem::replace(&mut peer.outbox.dirty, true) {
            self.dirty.push(to);
        }
    }

    /// Sends what waits, as far as there is room; how many frames left.
    pub(crate) fn flush(&mut self, transport: &mut AnyTransport) -> usize {
        let mut sent = 0;
        let mut index = 0;
        while index < self.dirty.len() {
            let to = self.dirty[index];
            sent += self.flush_class(to, Class::Reply, transport);
            sent += self.flush_class(to, Class::Request, transport);
            let outbox = &mut self.peer(to).outbox;
            if outbox.replies.is_empty() && outbox.requests.is_empty() {
                outbox.dirty = false;
                self.dirty.swap_remove(index);
            } else {
                index += 1;
            }
        }
        sent
    }

    fn flush_class(&mut self, to: PeerId, class: Class, transport: &mut AnyTransport) -> usize {
        let mut sent = 0;
        loop {
            let outbox = &mut self.peer(to).outbox;
            let queue = match class {
                Class::Reply => &mut outbox.replies,
                Class::Request => &mut outbox.requests,
            };
            let Some(queued) = queue.pop_front() else {
                return sent;
            };
            let push = match &queued {
                Queued::Frame {
                    kind,
                    arg,
                    inline,
                    body,
                } => {
                    let body = Body::Slice(body.as_deref().unwrap_or_default());
                    let (kind, arg) = (*kind, *arg);
                    transport.push(
                        to,
                        &Outgoing {
                            class,
                            kind,
                            arg,
                            inline,
                            body,
                        },
                    )
                }
                Queued::Send(key) => self.push_send(*key, to, transport),
            };
            match push {
                Push::Done => sent += 1,
                Push::Gone => {} // Its loss ends the operation; the frame is of no use.
                Push::Full => {
                    let outbox = &mut self.peer(to).outbox;
                    match class {
                        Class::Reply => outbox.replies.push_front(queued),
                        Class::Request => outbox.requests.push_front(queued),
                    }
                    return sent;
                }
            }
        }
    }
}
