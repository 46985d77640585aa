//! Floor 3: global memory over the segments of a job.
//!
//! Source: DART (Zhou et al., PGAS 2014) for units, groups, teams, pointers and locks; OpenSHMEM
//! 1.5 for signals; the phases and their soundness rules are our own.
//!
//! # Core objects
//! * [`Pgas`]: this unit among those that share global memory: all units of its job, those of its
//!   program, or any others. Local allocation, access by pointer, flush.
//! * [`Group`], [`Team`]: a set of units, and units that call collectives together.
//! * [`Segment`]: elements at every member of a team, by rank and index, in a phase: [`Shared`]
//!   (put, get, updates, signals), [`Local`] (`&mut [T]` for the owner), [`ReadOnly`] (`&[T]` for
//!   all).
//! * [`GlobalPtr`]: 16 bytes that name an element anywhere.
//! * Collectives: [`Team::barrier`], [`Team::all_reduce`] and others, blocking or as [`Pending`].
//! * [`Lock`], [`GlobalLock`]: queue locks; [`mod@array`]: distributed arrays and maps.
//!
//! # Files
//! `pgas` (entry point) · `unit`, `group`, `team/` (participants) · `pointer` (global addresses) ·
//! `job` (the members; resolves addresses to memory) · `local` (memory of one unit) · `implicit`
//! (operations without a handle) · `unfinished` (what calls left incomplete at their deadline) ·
//! `waited` (deadlines of operations that are several waits) · `segment/` (memory of a team and
//! access to it) · `atomic` (updates) · `collective/` · `lock/` · `array/` · `check/` (finds races)
//! · `ending` (when units leave) · `error`
//!
//! # Imports
//! One cycle remains among the parts: `job`, `team/`, `segment/`, `collective/` and `lock/table`.
//! Every wait advances collectives, so `job` keeps those in flight; it knows nothing else about the
//! other four. A team owns its board and the pages of its locks, and its members agree by
//! collectives when it is created. Collectives are functions of a team, and take parts of segments
//! as arguments. Inside `collective/`, a call in flight is a run, and some of its messages are
//! expected for as long as it is in flight (`pending`, `run`, `messages`).
//!
//! Everything returns an `error`, which holds what the checker, the collectives and the arrays
//! found (`check/`, `collective/`, `array/`). The checker begins with the members of the job.
//!
//! # Threads
//! Any thread may use everything here. Puts, gets and updates of mapped memory take no lock: a
//! pointer is looked up in a table of the thread (`job/pointers`). One thread at a time calls the
//! collectives of a team (`team/turn`) or the functions of a lock (`lock/drive/call_state`). A
//! second thread gets an error and has called nothing; what it passed by value (`free`, `destroy`)
//! is dropped. While an operator runs or a thread waits, the thread holds the turn of its team, the
//! collective in flight that it advances, the rest of a lock call that it continues, and nothing
//! else; other threads skip all of these. The lock of this unit's own heap is held while the heap
//! grows.
//!
//! # Rules
//! * No `unsafe`, and no reference to memory that others may write: phases prove exclusive or
//!   read-only access.
//! * Mapped memory is accessed by a load, a store or a memcpy; other memory over messages. Every
//!   test runs on both paths.
//! * Every wait has a deadline, makes progress, and ends when a unit that it depends on is lost.
//! * A fork of a unit has private zeroes in place of mapped memory: a put, get or update by rank or
//!   pointer may succeed there, but reaches no other process. Calls that need another unit return
//!   [`samite_fabric::Error::Forked`]. This holds only if no other thread of the unit was inside a
//!   call at the fork: a lock that such a thread held is never released in the fork.
//!
//! ```
//! # use samite_fabric::{Config, Fabric, Identity};
//! use samite_pgas::{Pgas, Sum};
//! # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
//! let pgas = Pgas::new(&fabric)?; // one unit here; four under `samite run -n 4`
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
pub use samite_fabric::{Handle, Named, Scoped, test_all, wait_all};
pub use segment::{
    Fetch, Local, Location, Part, Phase, ReadOnly, Segment, Shared, Signal, SignalOp, Strided,
    Unturned, Updates, Wanted,
};
pub use team::{Team, TeamId};
pub use unit::{Elem, Unit};

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Returns the bytes of elements.
#[inline(always)]
pub(crate) fn bytes_of<T: Elem>(elements: &[T]) -> &[u8] {
    match size_of::<T>() {
        0 => &[],
        _ => bytemuck::cast_slice(elements),
    }
}

/// Returns the bytes of elements, for writing.
#[inline(always)]
pub(crate) fn bytes_of_mut<T: Elem>(elements: &mut [T]) -> &mut [u8] {
    match size_of::<T>() {
        0 => &mut [],
        _ => bytemuck::cast_slice_mut(elements),
    }
}

/// Returns a vector of zeros, or an error if memory is exhausted.
pub(crate) fn zeros<T: Elem>(count: u64) -> Result<Vec<T>> {
    let bytes = bytes_for::<T>(count)?;
    // The kernel supplies zeroed pages, so they are not touched before their first use.
    let zeros = usize::try_from(count)
        .ok()
        .map(bytemuck::allocation::try_zeroed_vec);
    zeros
        .and_then(std::result::Result::ok)
        .ok_or(Error::OutOfMemory { bytes })
}

/// Returns the number of bytes of `count` elements.
pub(crate) fn bytes_for<T: Elem>(count: u64) -> Result<u64> {
    let size = size_of::<T>() as u64;
    let bytes = count.checked_mul(size).filter(|bytes| *bytes < 1 << 62);
    bytes.ok_or(Error::TooLarge { count, size })
}
