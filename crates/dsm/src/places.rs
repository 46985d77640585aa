//! Small places of shared memory: parts of segments of this process, used again by their lengths.

use samite_fabric::{Fabric, Segment, SegmentKey};
use samite_mem::SharedBytes;
use std::collections::BTreeMap;

/// The bytes of a segment: a process has few of them, and a place is at most as long.
const SEGMENT: u64 = 256 << 10;

/// A part of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    segment: usize,
    offset: u64,
    bytes: u64,
}

/// The places of a process.
#[derive(Debug, Default)]
pub(crate) struct Places {
    segments: Vec<Segment>,
    /// The bytes of the last segment that were ever used.
    filled: u64,
    /// The places that were given back, by their lengths.
    unused: BTreeMap<u64, Vec<Place>>,
}

impl Places {
    /// Returns a place of that length, whose content is unspecified; `None` if there is no memory.
    pub(crate) fn take(&mut self, fabric: &Fabric, bytes: u64) -> Option<Place> {
        if let Some(unused) = self.unused.get_mut(&bytes).and_then(Vec::pop) {
            return Some(unused);
        }
        if self.segments.is_empty() || self.filled + bytes > SEGMENT {
            self.segments.push(fabric.allocate(SEGMENT).ok()?);
            self.filled = 0;
        }
        let offset = self.filled;
        self.filled += bytes;
        Some(Place {
            segment: self.segments.len() - 1,
            offset,
            bytes,
        })
    }

    /// Nobody needs a place any more.
    pub(crate) fn give_back(&mut self, place: Place) {
        self.unused.entry(place.bytes).or_default().push(place);
    }

    /// Returns the memory of a place.
    pub(crate) fn bytes(&self, place: Place) -> SharedBytes {
        let segment = &self.segments[place.segment];
        segment.bytes().slice(place.offset, place.bytes)
    }

    /// Returns where other processes find a place.
    pub(crate) fn key(&self, place: Place) -> (SegmentKey, u64) {
        (self.segments[place.segment].key(), place.offset)
    }
}
