//! Atomic operations on a word of shared memory. The processor carries them out, whichever process
//! requests them.

use samite_mem::SharedBytes;
use samite_mem::sync::Ordering;

/// An operation on a word. It returns the old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after what they do")]
pub enum Atomic {
    Load,
    Add,
    And,
    Or,
    Xor,
    Swap,
    Min,
    Max,
    CompareExchange,
}

const ATOMICS: [Atomic; 9] = [
    Atomic::Load,
    Atomic::Add,
    Atomic::And,
    Atomic::Or,
    Atomic::Xor,
    Atomic::Swap,
    Atomic::Min,
    Atomic::Max,
    Atomic::CompareExchange,
];

/// Width of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after what they are")]
pub enum Width {
    W32,
    W64,
}

impl Width {
    /// Returns the width in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Width::W32 => 4,
            Width::W64 => 8,
        }
    }
}

impl Atomic {
    /// Applies the operation to a word of mapped bytes. Returns the old value, or `None` if the
    /// word is out of range or misaligned.
    #[inline(always)]
    pub fn try_apply(
        self,
        bytes: &SharedBytes,
        offset: u64,
        width: Width,
        (a, b): (u64, u64),
    ) -> Option<u64> {
        let fits = bytes.contains(offset, width.bytes()) && offset.is_multiple_of(width.bytes());
        fits.then(|| apply(bytes, offset, self, width, a, b))
    }
}

/// Applies an atomic to mapped bytes and returns the old value; `offset` is in range and aligned.
#[inline(always)]
pub(crate) fn apply(
    bytes: &SharedBytes,
    offset: u64,
    op: Atomic,
    width: Width,
    a: u64,
    b: u64,
) -> u64 {
    // ORDERING: SeqCst throughout: a single total order of all atomics, which also orders the puts
    // around them. On x86-64, it costs the same as Release and Acquire.
    const O: Ordering = Ordering::SeqCst;
    macro_rules! on {
        ($word:expr, $int:ty) => {{
            let word = $word;
            let (a, b) = (a as $int, b as $int);
            (match op {
                Atomic::Load => word.load(O),
                Atomic::Add => word.fetch_add(a, O),
                Atomic::And => word.fetch_and(a, O),
                Atomic::Or => word.fetch_or(a, O),
                Atomic::Xor => word.fetch_xor(a, O),
                Atomic::Swap => word.swap(a, O),
                Atomic::Min => word.fetch_min(a, O),
                Atomic::Max => word.fetch_max(a, O),
                Atomic::CompareExchange => {
                    word.compare_exchange(a, b, O, O).unwrap_or_else(|old| old)
                }
            }) as u64
        }};
    }
    match width {
        Width::W32 => on!(bytes.u32(offset), u32),
        Width::W64 => on!(bytes.u64(offset), u64),
    }
}

/// Encodes an operation and its width as one word of a frame.
pub(crate) fn atomic_code(op: Atomic, width: Width) -> u64 {
    let op = ATOMICS.iter().position(|known| *known == op).unwrap_or(0) as u64;
    op | width.bytes() << 8
}

pub(crate) fn atomic_of(code: u64) -> Option<(Atomic, Width)> {
    let width = match code >> 8 {
        4 => Width::W32,
        8 => Width::W64,
        _ => return None,
    };
    Some((*ATOMICS.get((code & 0xff) as usize)?, width))
}
