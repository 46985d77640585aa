//! Floor 3: one memory out of the segments of a job.
//!
//! Source: DART (Zhou et al., PGAS 2014) for units, groups, teams, pointers and locks; OpenSHMEM
//! 1.5 for signals; the phases, and what is sound about them, are our own.
//!
//! # Core objects
//! * [`Pgas`]: this unit among the units of its job. Local allocation, access by pointer, flush.
//! * [`Group`], [`Team`]: sets of units; units that call collectives together.
//! * [`Segment`]: elements at every member of a team, by rank and index, in a phase: [`Shared`]
//!   (put, get, updates, signals), [`Local`] (`&mut [T]` for the owner), [`ReadOnly`] (`&[T]` for
//!   all).
//! * [`GlobalPtr`]: 16 bytes that name an element anywhere.
//! * Collectives: [`Team::barrier`], [`Team::all_reduce`] and their kind, blocking and as
//!   [`Pending`].
//! * [`Lock`], [`GlobalLock`]: queue locks; [`mod@array`]: distributed arrays and maps.
//!
//! # Files
//! `pgas` (the whole) · `unit`, `group`, `team/` (who) · `pointer` (names of bytes) · `job` (names
//! become memory) · `local` (memory of one unit) · `implicit` (operations without a handle) ·
//! `unfinished` (what calls at their deadline have left in the middle) · `waited` (deadlines of
//! what is not one wait) · `segment/` (memory of a team, and all access to it) · `atomic` (updates)
//! · `collective/` · `lock/` · `array/` · `check/` (finds races) · `ending` (who leaves when) ·
//! `error`
//!
//! # Imports
//! One circle is left: `job`, `team/`, `segment/`, `collective/` and `lock/table`. Whatever waits
//! moves collectives on, so `job` keeps those that are in flight; it knows nothing else of the
//! other four. A team keeps its board and the pages of its locks, which end with it, and its
//! members agree by collectives when it begins. Collectives are functions of a team, and take parts
//! of segments as arguments.
//!
//! # Threads
//! Any thread may use any of it. What is mapped is put, got and updated without a lock: a pointer
//! is looked up in a table of the thread (`job/pointers`). A team's collectives are called by one
//! thread at a time (`team/turn`), and so are the functions of a lock (`lock/drive/call_state`); a
//! second thread gets an error and has called nothing. What it gave away in that call (`free`,
//! `destroy`) is dropped. While an operator runs or anything is waited for, a thread holds the turn
//! of its team, the collective in flight that it moves on, the rest of a call of a lock that it
//! goes on with, and nothing else; other threads pass by all of these. The lock of this unit's own
//! heap is held while the heap grows.
//!
//! # Rules
//! * No `unsafe`, and no reference to memory that others may write: phases prove that they do not.
//! * What is mapped is reached by a load, a store or a memcpy; all else has a path over messages,
//!   and every test runs on both.
//! * Whatever waits has a deadline, makes progress, and ends when a unit that it depends on is
//!   lost.
//! * A fork of a unit has private zeroes in place of what was mapped: a put, get or update of them
//!   by rank or pointer may end there without an error, and reaches nobody. What needs another unit
//!   ends with [`samite_fabric::Error::Forked`].
//!   That is so if no other thread of the unit was inside a call when it forked: a lock that such a
//!   thread held is never free in the fork.
//!
//! ```
//! # use samite_fabric::{Config, Fabric, Identity};
//! use samite_pgas::{Pgas, Sum};
//! # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
//! let pgas = Pgas::new(&fabric)?; // a job of one here; `samite run -n 4` makes it four
//! let world = pgas.world();
//! let mut part = world.allocate::<f64>(100)?.into_local()?;
//! part.as_mut_slice().fill(0.5);
//! let part = part.into_shared()?;
//! let neighbour = (world.rank() + 1) % world.size();
//! let mut total = [0.0];
//! world.all_reduce(&[part.get_value(neighbour, 99)?], &mut total, Sum)?;
//! assert_eq!(total[0], 0.5 * f64::from(world.size()));
//! part.free()?;
//! # Ok::<(), samite_pgas::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod array;
mod atomic;
mod check;
mod collective;
mod ending;
mod error;
mod group;
mod implicit;
mod job;
mod local;
mod lock;
mod pgas;
mod pointer;
mod segment;
#[cfg(test)]
mod tampered;
mod team;
mod unfinished;
mod unit;
mod waited;
mod whole_words;

pub use atomic::{AtomicElem, Update};
pub use bytemuck::{Pod, Zeroable};
pub use check::{Access, AccessKind, Conflict};
pub use collective::{
    BitAnd, BitOr, BitXor, Buffers, Counts, Located, LogicalAnd, LogicalOr, Max, MaxLoc, Min,
    MinLoc, Op, Operator, Pending, Prod, Source, Sum, Target,
};
pub use error::Error;
pub use group::Group;
pub use lock::{GlobalGuard, GlobalLock, Guard, Lock};
pub use pgas::Pgas;
pub use pointer::{DartPtr, Flags, GlobalPtr, Origin};
pub use samite_fabric::{Handle, Scoped, test_all, wait_all};
pub use segment::{
    Fetch, Local, Location, Part, Phase, ReadOnly, Segment, Shared, Signal, SignalOp, Strided,
    Unturned, Updates, Wanted,
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

/// A vector of zeros, or an error where there is no memory for so many.
pub(crate) fn zeros<T: Elem>(count: u64) -> Result<Vec<T>> {
    let bytes = bytes_for::<T>(count)?;
    // Pages are had from the kernel as zeros, and are not touched before they are used.
    let zeros = usize::try_from(count)
        .ok()
        .map(bytemuck::allocation::try_zeroed_vec);
    zeros
        .and_then(std::result::Result::ok)
        .ok_or(Error::OutOfMemory { bytes })
}

/// Bytes that `count` elements take.
pub(crate) fn bytes_for<T: Elem>(count: u64) -> Result<u64> {
    let size = size_of::<T>() as u64;
    let bytes = count.checked_mul(size).filter(|bytes| *bytes < 1 << 62);
    bytes.ok_or(Error::TooLarge { count, size })
}
