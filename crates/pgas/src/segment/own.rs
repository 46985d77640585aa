//! This unit's part of a segment, as the fabric has it.

use samite_fabric::{Gated, Segment, SegmentKey};

/// See the module's text.
#[derive(Debug)]
pub(super) enum Own {
    Gated(Gated),
    Registered(Segment),
}

impl Own {
    pub(super) fn key(&self) -> SegmentKey {
        match self {
            Own::Gated(own) => own.key(),
            Own::Registered(own) => own.key(),
        }
    }

    pub(super) fn is_registered(&self) -> bool {
        matches!(self, Own::Registered(_))
    }

    pub(super) fn gated(self) -> Option<Gated> {
        match self {
            Own::Gated(own) => Some(own),
            Own::Registered(_) => None,
        }
    }
}
