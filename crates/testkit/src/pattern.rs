//! Position-dependent bytes: a byte that is lost, duplicated or moved is noticed.

use crate::{Failed, Outcome};

#[inline(always)]
fn word(seed: u64, index: u64) -> u64 {
    // splitmix64: every word of every seed is different.
    let mut z = seed
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(index)
        .wrapping_add(1);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns `len` bytes of the pattern of a seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (index, chunk) in bytes.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(seed, index as u64).to_le_bytes()[..chunk.len()]);
    }
    bytes
}

/// Checks that `bytes` are the pattern of a seed; otherwise reports where they begin to differ.
#[track_caller]
pub fn verify(seed: u64, bytes: &[u8]) -> Outcome {
    for (index, chunk) in bytes.chunks(8).enumerate() {
        if chunk != &word(seed, index as u64).to_le_bytes()[..chunk.len()] {
            let at = index * 8;
            return Err(Failed::new(format!(
                "byte {at} of {} and on are {chunk:?}, expected {:?}",
                bytes.len(),
                word(seed, index as u64).to_le_bytes(),
            )));
        }
    }
    Ok(())
}
