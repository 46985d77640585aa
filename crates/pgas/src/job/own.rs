//! This unit's part of a segment, as the fabric represents it.

use samite_fabric::{Phased, Segment, SegmentKey};

/// See the module documentation.
#[derive(Debug)]
pub(crate) enum Own {
    Phased(Phased),
    Registered(Segment),
}

impl Own {
    pub(crate) fn key(&self) -> SegmentKey {
        match self {
            Own::Phased(own) => own.key(),
            Own::Registered(own) => own.key(),
        }
    }

    pub(crate) fn is_registered(&self) -> bool {
        matches!(self, Own::Registered(_))
    }

    pub(crate) fn phased(self) -> Option<Phased> {
        match self {
            Own::Phased(own) => Some(own),
            Own::Registered(_) => None,
        }
    }
}
