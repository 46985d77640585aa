//! The one seam through which this crate gets its atomics, so that `--cfg loom` can replace them.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The cheap half of an asymmetric fence, on the side that runs often.
///
/// Pairs with [`heavy_fence`]. Where the kernel offers `membarrier`, only the compiler is held back.
#[inline(always)]
pub fn light_fence() {
    #[cfg(not(loom))]
    if crate::sys::asymmetric() {
        // ORDERING: the processor's half is done by the membarrier of `heavy_fence`.
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        return;
    }
    // ORDERING: SeqCst fences on both sides: one of the two is first.
    fence(Ordering::SeqCst);
}

/// The dear half: after it, every store that another process made before its [`light_fence`] is
/// visible here, or that process sees what was stored here before this call.
pub fn heavy_fence() {
    #[cfg(not(loom))]
    if crate::sys::asymmetric() {
        crate::sys::membarrier();
        return;
    }
    // ORDERING: SeqCst fences on both sides: one of the two is first.
    fence(Ordering::SeqCst);
}
