//! Eager: the whole message is sent at once; the sender is done when the frame has left.
//!
//! Bytes: header and tag in the first line, up to 272 bytes inline, more in the bulk area. One
//! frame, no answer. An unexpected message is copied into private memory of the receiver, which
//! keeps a bounded amount per peer (`engine/unexpected`).

use crate::engine::{Arrived, Engine};
use crate::transport::Incoming;
use samite_mem::ring::Body;

/// Returns the payload of a frame that has no inline words of its own.
#[inline(always)]
pub(crate) fn payload<'a>(frame: &'a Incoming<'a>, skip: usize) -> Body<'a> {
    if frame.body.is_empty() {
        Body::Slice(frame.inline.get(skip..).unwrap_or_default())
    } else {
        frame.body
    }
}

impl Engine {
    #[inline(always)]
    pub(crate) fn eager_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let body = payload(frame, 0);
        match self.matcher.take_posted(frame.from, frame.arg) {
            Some(key) => {
                self.fulfilled = true;
                self.deliver(key, frame.from, frame.arg, &body);
                Ok(())
            }
            None => {
                let mut bytes = smallvec::SmallVec::from_elem(0, body.len() as usize);
                body.copy_to(0, &mut bytes);
                self.keep(frame.from, frame.arg, Arrived::Bytes(bytes))
            }
        }
    }
}
