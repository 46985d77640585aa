//! Floor 3: global memory. Units, groups, teams, global pointers, collectives, locks, distributed data.
//!
//! # Files
//! `unit`, `group`, `team/` (who) · `pointer` (names of bytes) · `job` (names become memory) ·
//! `local` (memory of one unit) · `segment` (memory of a team) · `collective/` · `array/`
#![forbid(unsafe_code)]

pub mod array;
mod atomic;
mod collective;
mod error;
mod group;
mod job;
mod local;
mod lock;
mod pointer;
mod segment;
mod team;
mod unit;

pub use atomic::{AtomicElem, Update};
pub use bytemuck::{Pod, Zeroable};
pub use collective::{
    BitAnd, BitOr, BitXor, Located, LogicalAnd, LogicalOr, Max, MaxLoc, Min, MinLoc, Op, Operator,
    Pending, Prod, Source, Sum, Target,
};
pub use error::Error;
pub use group::Group;
pub use job::Pgas;
pub use lock::{GlobalGuard, GlobalLock, Guard, Lock};
pub use pointer::{DartPtr, Flags, GlobalPtr, Origin};
pub use samite_fabric::{Handle, test_all, wait_all};
pub use segment::{
    Fetch, Local, Part, Phase, Place, ReadOnly, Segment, Shared, Signal, SignalOp, Strided,
    Updates, Wanted,
};
pub use team::{Team, TeamId};
pub use unit::{Elem, Unit};

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The bytes of elements.
#[inline(always)]
pub(crate) fn bytes_of<T: Elem>(elements: &[T]) -> &[u8] {
    match size_of::<T>() {
        0 => &[],
        _ => bytemuck::cast_slice(elements),
    }
}

/// The bytes of elements, to be written.
#[inline(always)]
pub(crate) fn bytes_of_mut<T: Elem>(elements: &mut [T]) -> &mut [u8] {
    match size_of::<T>() {
        0 => &mut [],
        _ => bytemuck::cast_slice_mut(elements),
    }
}

/// Bytes that `count` elements take.
pub(crate) fn bytes_for<T: Elem>(count: u64) -> Result<u64> {
    let size = size_of::<T>() as u64;
    let bytes = count.checked_mul(size).filter(|bytes| *bytes < 1 << 63);
    bytes.ok_or(Error::TooLarge { count, size })
}
