//! This unit's part of a segment, as the fabric represents it.

use samite_fabric::{Phased, Segment, SegmentKey};

/// See the module's text.
#[derive(Debug)]
pub(super) enum Own {
    Phased(Phased),
    Registered(Segment),
}

impl Own {
    pub(super) fn key(&self) -> SegmentKey {
        match self {
            Own::Phased(own) => own.key(),
            Own::Registered(own) => own.key(),
        }
    }

    pub(super) fn is_registered(&self) -> bool {
        matches!(self, Own::Registered(_))
    }

    pub(super) fn phased(self) -> Option<Phased> {
        match self {
            Own::Phased(own) => Some(own),
            Own::Registered(_) => None,
        }
    }
}
