//! Many small accesses in one frame: updates of words, and gets of equal elements, at places that follow
//! no pattern.
//!
//! Over messages each frame carries as many as fit into a body, and is answered once; on mapped memory each
//! access is made at once. The owner checks every place for itself. Source: the aggregation of conveyors
//! (Maley and DeVinney, IA^3 2019), with one hop.

use super::rma_over_am::{NO_SEGMENT, NOT_NOW, OK, OUT_OF_RANGE, apply, atomic_code, atomic_of};
use crate::engine::{Access, Engine};
use crate::ops::{Key, Work};
use crate::transport::{Class, Incoming};
use crate::wire::{Place, Words, kind};
use crate::{Atomic, PeerId, Width};
use samite_mem::lend::WriteBuf;

/// One update of a word: where, and the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordUpdate {
    /// Offset in bytes; a multiple of the width.
    pub offset: u64,
    /// The operand.
    pub value: u64,
}

impl Engine {
    /// Updates words by messages; ends when all are done.
    pub(crate) fn updates_over_am(
        &mut self,
        to: PeerId,
        place: Place,
        (op, width): (Atomic, Width),
        updates: &[WordUpdate],
    ) -> Key {
        let of_frame = (self.caps.body_max / 16).max(1) as usize;
        let left = updates.len().div_ceil(of_frame) as u64;
        let key = self.ops.add(Some(to), "updates", Work::Answer { left });
        self.peer(to).unanswered += 1;
        let [place, _] = place.words();
        let inline = Words([place, atomic_code(op, width)]).bytes();
        for part in updates.chunks(of_frame) {
            let words = part.iter().flat_map(|update| [update.offset, update.value]);
            let body = words.flat_map(u64::to_le_bytes).collect();
            self.post_body(to, Class::Request, kind::UPDATES, key, &inline, body);
        }
        key
    }

    /// Gets elements of `size` bytes by messages.
    pub(crate) fn gather_over_am(
        &mut self,
        to: PeerId,
        place: Place,
        size: u64,
        offsets: &[u64],
        buf: WriteBuf,
    ) -> Key {
        let key = self.ops.add(Some(to), "get", Work::Get { buf, got: 0 });
        self.peer(to).unanswered += 1;
        let [place, _] = place.words();
        // The places of a frame, and the elements of its answer, fit into a body.
        let of_frame = (self.caps.body_max / size.max(8)).max(1) as usize;
        for (frame, part) in offsets.chunks(of_frame).enumerate() {
            let at = (frame * of_frame) as u64 * size;
            let inline = Words([place, size, at]).bytes();
            let body = part
                .iter()
                .flat_map(|offset| offset.to_le_bytes())
                .collect();
            self.post_body(to, Class::Request, kind::GATHER, key, &inline, body);
        }
        key
    }

    pub(crate) fn updates_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let Words([place, code]) = Words::<2>::read(frame.inline).ok_or("updates")?;
        let (op, width) = atomic_of(code).ok_or("the operation of updates")?;
        let place = Place::of(&[place, 0]);
        let body = frame.body.to_vec();
        let mut status = OK;
        let mut updated = 0;
        for pair in body.as_chunks::<16>().0 {
            let Words([offset, value]) = Words::<2>::read(pair).ok_or("an update")?;
            let at = Place { offset, ..place };
            match self.offered_bytes(at, width.bytes()) {
                Ok(bytes) if offset.is_multiple_of(width.bytes()) => {
                    apply(bytes, offset, op, width, value, 0);
                    updated += width.bytes();
                }
                Ok(_) => status = OUT_OF_RANGE,
                Err(error) => status = error,
            }
        }
        self.served.put(updated);
        self.answer(frame.from, frame.arg, status, place.segment as u64);
        Ok(())
    }

    pub(crate) fn gather_arrived(&mut self, frame: &Incoming<'_>) -> Result<(), &'static str> {
        let Words([place, size, at]) = Words::<3>::read(frame.inline).ok_or("a gather")?;
        let place = Place::of(&[place, 0]);
        let body = frame.body.to_vec();
        let offsets = body.as_chunks::<8>().0;
        if size.saturating_mul(offsets.len() as u64) > self.caps.body_max.max(size) {
            return Err("the size of a gather");
        }
        let mut gathered = vec![0; offsets.len() * size as usize];
        let elements = gathered.chunks_exact_mut(size.max(1) as usize);
        for (element, offset) in elements.zip(offsets) {
            let offset = u64::from_le_bytes(*offset);
            let status = match self.offered_access(Place { offset, ..place }, size) {
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
                Err(NO_SEGMENT) => NO_SEGMENT,
                Err(status) => status,
            };
            self.answer(frame.from, frame.arg, status, place.segment as u64);
            return Ok(());
        }
        self.served.got(gathered.len() as u64);
        let words = Words([at]).bytes();
        self.post_body(
            frame.from,
            Class::Reply,
            kind::GOT,
            frame.arg,
            &words,
            gathered,
        );
        Ok(())
    }
}
