//! Many small accesses in one frame: updates of words, and gets of equally long elements, at
//! irregular places.
//!
//! Over messages, each frame carries as many accesses as fit into a body, and is answered once. On
//! mapped memory, each access is made at once. The owner checks each place separately. Source: the
//! aggregation of conveyors (Maley and DeVinney, IA^3 2019), with one hop.

use super::rma_over_am::{NOT_NOW, OK};
use crate::atomic::{apply, atomic_code, atomic_of};
use crate::engine::{Access, Engine};
use crate::ops::Key;
use crate::transport::Incoming;
use crate::wire::{RemoteAddress, Words, kind};
use crate::{Atomic, PeerId, Width};

/// One update of a word: its place and the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordUpdate {
    /// Offset in bytes; a multiple of the width.
    pub offset: u64,
    /// The operand.
    pub value: u64,
}

impl Engine {
    /// Returns how many updates a frame carries.
    pub(crate) fn updates_of_frame(&self, to: PeerId) -> usize {
        (self.route(to).caps.body_max / 16).max(1) as usize
    }

    /// Returns how many elements of `size` bytes one frame requests: their places, and the elements
    /// in the answer, must fit into a body. `None`: not even one does, so each is a separate get.
    pub(crate) fn elements_of_frame(&self, to: PeerId, size: u64) -> Option<usize> {
        let count = self.route(to).caps.body_max / size.max(8);
        (count > 0).then_some(count as usize)
    }

    /// Requests updates of words: as many as fit into a frame.
    pub(crate) fn post_updates(
        &mut self,
        to: PeerId,
        request: Key,
        place: RemoteAddress,
        (op, width): (Atomic, Width),
        part: &[WordUpdate],
    ) {
        let [a, b, c] = place.words();
        let inline = Words([a, b, c, atomic_code(op, width)]).bytes();
        let words = part.iter().flat_map(|update| [update.offset, update.value]);
        let body = words.flat_map(u64::to_le_bytes).collect();
        self.post_request(to, kind::UPDATES, request, &inline, Some(body));
    }

    /// Requests elements of `size` bytes, as many as fit into a frame; they belong at `at` in the
    /// request.
    pub(crate) fn post_gather(
        &mut self,
        to: PeerId,
        request: Key,
        place: RemoteAddress,
        (size, at): (u64, u64),
        part: &[u64],
    ) {
        let [a, b, c] = place.words();
        let inline = Words([a, b, c, size, at]).bytes();
        let body = part
            .iter()
            .flat_map(|offset| offset.to_le_bytes())
            .collect();
        self.post_request(to, kind::GATHER, request, &inline, Some(body));
    }

    pub(crate) fn updates_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let (place, [code]) = RemoteAddress::read(frame.inline).ok_or("updates")?;
        let (op, width) = atomic_of(code).ok_or("the operation of updates")?;
        self.may_ask(frame.from)?;
        let body = frame.body.to_vec();
        let (pairs, []) = body.as_chunks::<16>() else {
            return Err("the length of updates");
        };
        let mut refused = OK;
        let mut updated = 0;
        for pair in pairs {
            let Words([offset, value]) = Words::<2>::read(pair).ok_or("an update")?;
            match self.offered_word(RemoteAddress { offset, ..place }, width) {
                Ok(bytes) => {
                    apply(bytes, offset, op, width, value, 0);
                    updated += width.bytes();
                }
                Err(status) => refused = status,
            }
        }
        self.served.put(updated);
        match refused {
            OK => self.answer(frame.from, frame.arg, OK, 0),
            status => self.refuse(frame.from, frame.arg, status, place),
        }
        Ok(())
    }

    pub(crate) fn gather_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let (place, [size, at]) = RemoteAddress::read(frame.inline).ok_or("a gather")?;
        self.may_ask(frame.from)?;
        let body = frame.body.to_vec();
        let (offsets, []) = body.as_chunks::<8>() else {
            return Err("the places of a gather");
        };
        // Check before allocating anything: the answer is one frame.
        let bytes = size.checked_mul(offsets.len() as u64);
        let bytes =
            bytes.filter(|bytes| size > 0 && *bytes <= self.route(frame.from).caps.body_max);
        let bytes = bytes.ok_or("the size of a gather")?;
        let mut gathered = vec![0; bytes as usize];
        let elements = gathered.chunks_exact_mut(size as usize);
        for (element, offset) in elements.zip(offsets) {
            let offset = u64::from_le_bytes(*offset);
            let status = match self.offered_access(RemoteAddress { offset, ..place }, size) {
                Ok(Access::Shared(bytes)) => {
                    bytes.read(offset, element);
                    continue;
                }
                Ok(Access::Reading(bytes)) => {
                    let start = offset as usize;
                    let from = &bytes.as_slice::<u8>()[start..start + size as usize];
                    element.copy_from_slice(from);
                    continue;
                }
                Ok(Access::Withdrawn(_)) => NOT_NOW,
                Err(status) => status,
            };
            self.refuse(frame.from, frame.arg, status, place);
            return Ok(());
        }
        self.served.got(bytes);
        let (from, words) = (frame.from, Words([at, 0]).bytes());
        self.post_body(from, kind::GET_REPLY, frame.arg, &words, gathered);
        Ok(())
    }
}
