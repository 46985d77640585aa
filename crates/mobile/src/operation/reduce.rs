//! A filter and a reduction over a granted segment: only the result travels.

use crate::capsule::Capsule;
use crate::mobile::{Mobile, Registered};
use crate::{Call, Context, Function, Limits, Result, Trap};
use std::time::Duration;

/// The name of the function.
const FUNCTION: &str = "samite.below";
/// What a function copies at once.
const PIECE: usize = 64 << 10;

/// The sum and the number of the 32-bit words of a segment that are below a bound.
#[derive(Debug)]
pub struct Below {
    mobile: Mobile,
    moved: Registered,
    function: Registered,
}

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The sum of the words.
    pub sum: u64,
    /// Their number.
    pub count: u64,
}

impl Below {
    /// Prepares the operation. Local.
    ///
    /// # Errors
    /// Those of [`Mobile::register`].
    pub fn new(mobile: &Mobile) -> Result<Below> {
        Ok(Below {
            moved: mobile.register(Capsule::from_wat(include_str!("reduce.wat"))?)?,
            function: mobile.register(Capsule::of_function(FUNCTION, ["below"])?)?,
            mobile: mobile.clone(),
        })
    }

    /// Makes the function known by which others may reduce segments of this unit. Local.
    pub fn serve(mobile: &Mobile) {
        mobile.define(FUNCTION, Function::new(below));
    }

    /// Starts it at a unit, by moved code or by its function, on `len` bytes from `offset` on of a
    /// segment that the unit grants, and that is mapped into the memory of kernels. Both are
    /// multiples of 64. [`Below::found`] reads the reply.
    ///
    /// # Errors
    /// Those of [`Mobile::call`].
    pub fn start(
        &self,
        unit: u32,
        moved: bool,
        (grant, bound): (u32, u32),
        (offset, len): (u64, u64),
    ) -> Result<Call> {
        let mut payload = [0; 24];
        payload[..4].copy_from_slice(&grant.to_le_bytes());
        payload[4..8].copy_from_slice(&bound.to_le_bytes());
        payload[8..16].copy_from_slice(&offset.to_le_bytes());
        payload[16..].copy_from_slice(&len.to_le_bytes());
        let code = if moved { &self.moved } else { &self.function };
        // Long enough for a segment of any size.
        let limits = Limits {
            run: Duration::from_secs(60),
            time: Duration::from_secs(60),
            hops: 0,
            ..Limits::default()
        };
        self.mobile.call_entry(unit, code, 0, &payload, limits)
    }

    /// Reads a reply.
    pub fn found(reply: &[u8]) -> Found {
        let word = |at: usize| {
            let bytes = reply.get(at..).and_then(|rest| rest.first_chunk());
            bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        Found {
            sum: word(0),
            count: word(8),
        }
    }
}

/// The function: what `reduce.wat` does, by copies of pieces.
fn below(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {
    let Some(payload) = payload.first_chunk::<24>() else {
        return Err(Trap::Other(
            "a payload that is not one of a reduction".into(),
        ));
    };
    let half = |at: usize| {
        let mut half = [0; 4];
        half.copy_from_slice(&payload[at..at + 4]);
        u32::from_le_bytes(half)
    };
    let word = |at: usize| u64::from(half(at)) | u64::from(half(at + 4)) << 32;
    let (grant, bound, offset, len) = (half(0), half(4), word(8), word(16));
    let (mut sum, mut count) = (0, 0);
    let mut piece = vec![0; PIECE.min(len as usize)];
    let mut at = 0;
    while at < len {
        let now = (len - at).min(PIECE as u64);
        let piece = &mut piece[..now as usize];
        context.read(grant, offset.saturating_add(at), piece)?;
        let (words, _) = piece.as_chunks::<4>();
        for word in words {
            let word = u32::from_le_bytes(*word);
            let is_below = word < bound;
            sum += if is_below { u64::from(word) } else { 0 };
            count += u64::from(is_below);
        }
        at += now;
    }
    let reply = [sum.to_le_bytes(), count.to_le_bytes()].concat();
    context.reply(&reply)
}
