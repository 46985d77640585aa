//! Calls to the owner of an address.

use crate::mobile::{Mobile, Registered};
use crate::{Call, PAYLOAD_MAX, Result, Trap};

/// A byte of a segment that a unit grants to kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct At {
    /// The unit.
    pub unit: u32,
    /// The number of the grant.
    pub grant: u32,
    /// The offset in bytes.
    pub offset: u64,
}

impl At {
    /// Length of what a payload begins with: 0 `u32` grant, 4 `u32` 0, 8 `u64` offset, all
    /// little-endian.
    pub const BYTES: usize = 16;

    /// Returns these bytes. They do not name the unit, which is the one on which the kernel runs.
    pub fn to_bytes(self) -> [u8; At::BYTES] {
        let mut bytes = [0; At::BYTES];
        bytes[..4].copy_from_slice(&self.grant.to_le_bytes());
        bytes[8..].copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    /// Reads what a payload begins with, in a function that runs at `unit`; returns it, and the
    /// rest of the payload.
    ///
    /// # Errors
    /// [`Trap::Other`] if the payload is too short.
    pub fn split(unit: u32, payload: &[u8]) -> Result<(At, &[u8]), Trap> {
        let split = payload.split_first_chunk::<8>();
        let split = split.and_then(|(grant, rest)| Some((grant, rest.split_first_chunk::<8>()?)));
        let Some((grant, (offset, rest))) = split else {
            return Err(Trap::Other("a payload without an address".into()));
        };
        let at = At {
            unit,
            grant: u64::from_le_bytes(*grant) as u32,
            offset: u64::from_le_bytes(*offset),
        };
        Ok((at, rest))
    }
}

impl Mobile {
    /// Calls code at the unit that has an address, as [`Mobile::call`] does. The kernel finds the
    /// grant and the offset in the first [`At::BYTES`] of its payload, and then `payload`. Whether
    /// the unit grants that segment, and whether the offset lies inside, is checked where the
    /// kernel uses it. Completion: by the handle.
    ///
    /// # Errors
    /// As [`Mobile::call`]; the payload may have [`At::BYTES`] less.
    pub fn call_at(&self, at: At, code: &Registered, entry: &str, payload: &[u8]) -> Result<Call> {
        let most = PAYLOAD_MAX - At::BYTES as u64;
        let bytes = payload.len() as u64;
        if bytes > most {
            return Err(crate::Error::TooLong { bytes, most });
        }
        let mut all = crate::runtime::Payload::from_slice(&at.to_bytes());
        all.extend_from_slice(payload);
        self.call(at.unit, code, entry, &all)
    }
}
