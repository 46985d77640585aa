//! The seam through which this crate gets its atomics and its threads, so that `--cfg loom` can
//! replace them.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::thread;
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::thread;

/// The cheap half of an asymmetric fence, on the side that runs often.
///
/// Pairs with [`heavy_fence`]. If the kernel offers `membarrier`, it only stops the compiler from
/// reordering.
#[inline(always)]
pub fn light_fence() {
    #[cfg(not(loom))]
    if crate::sys::asymmetric() {
        // ORDERING: the membarrier of `heavy_fence` does the processor's half.
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        return;
    }
    // ORDERING: SeqCst fences on both sides: one of the two is first.
    fence(Ordering::SeqCst);
}

/// The expensive half. After it, every store that another process made before its [`light_fence`]
/// is visible here, or that process sees what was stored here before this call.
pub fn heavy_fence() {
    #[cfg(not(loom))]
    if crate::sys::asymmetric() {
        crate::sys::membarrier();
        return;
    }
    // ORDERING: SeqCst fences on both sides: one of the two is first.
    fence(Ordering::SeqCst);
}

/// The cheap half of an asymmetric fence between threads of one process: it only stops the compiler
/// from reordering. Pairs with [`threads_heavy_fence`]; it is no fence if [`threads_asymmetric`] is
/// false.
#[inline(always)]
pub(crate) fn threads_light_fence() {
    #[cfg(not(loom))]
    // ORDERING: the membarrier of `threads_heavy_fence` does the processor's half.
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(loom)]
    // ORDERING: SeqCst fences on both sides: one of the two is first.
    fence(Ordering::SeqCst);
}

/// The expensive half: every thread of this process passes a full fence during this call.
pub(crate) fn threads_heavy_fence() {
    #[cfg(not(loom))]
    crate::sys::membarrier_threads();
    #[cfg(loom)]
    // ORDERING: SeqCst fences on both sides: one of the two is first.
    fence(Ordering::SeqCst);
}

/// Returns true if the kernel supports [`threads_heavy_fence`]; the first call registers this
/// process.
pub(crate) fn threads_asymmetric() -> bool {
    #[cfg(not(loom))]
    return crate::sys::membarrier_threads_registered();
    #[cfg(loom)]
    true
}
