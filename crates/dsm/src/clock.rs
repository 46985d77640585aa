//! The clock by which processes of a node compare times.

use rustix::time::{ClockId, clock_gettime};

/// Returns the nanoseconds of the monotonic clock, which all processes of a node share.
#[inline]
pub(crate) fn nanoseconds() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let rest = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}
