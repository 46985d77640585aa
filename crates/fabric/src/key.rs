//! Keys of segments.

use crate::PeerId;
use serde::{Deserialize, Serialize};

/// Names a segment to other processes. Send it in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SegmentKey {
    /// The owner.
    pub peer: PeerId,
    /// Its number at the owner.
    pub segment: u32,
    /// Incarnation of the owner.
    pub incarnation: u32,
    /// Which use of the segment number this is; the key of a freed segment is refused.
    pub generation: u32,
    /// Length in bytes.
    pub bytes: u64,
}

impl SegmentKey {
    /// Encodes the key into 24 bytes for a message.
    pub fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..4].copy_from_slice(&self.peer.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.segment.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.generation.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[16..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// Decodes a key from [`SegmentKey::to_bytes`].
    pub fn from_bytes(bytes: &[u8; 24]) -> SegmentKey {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        SegmentKey {
            peer: PeerId(word(0)),
            segment: word(4),
            generation: word(8),
            incarnation: word(12),
            bytes: word(16) as u64 | (word(20) as u64) << 32,
        }
    }
}
