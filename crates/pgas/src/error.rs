//! The errors of global memory.

use crate::Unit;
use samite_fabric::Named;

/// An error of global memory, or of a call that does not fit the memory that it names.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the fabric: a lost peer, a deadline, the budget.
    #[error(transparent)]
    Fabric(#[from] samite_fabric::Error),
    /// A unit of the team or job died, and the call depends on it.
    #[error("{unit} was lost during {what}")]
    UnitLost {
        /// The unit.
        unit: Named<Unit>,
        /// What was under way.
        what: &'static str,
    },
    /// Elements that lie outside of the memory.
    #[error("elements {first}..{end} lie outside the {len} elements of {unit}")]
    OutOfRange {
        /// The unit whose memory it is.
        unit: Named<Unit>,
        /// The first element.
        first: u64,
        /// One past the last element.
        end: u64,
        /// The number of elements in the memory.
        len: u64,
    },
    /// A rank that the team does not have.
    #[error("rank {rank} is outside a team of {size}")]
    NoSuchRank {
        /// The rank.
        rank: u32,
        /// The size of the team.
        size: u32,
    },
    /// A unit that the job, the team or the group of this global memory does not have.
    #[error(
        "{0} is not a member of the team, of this global memory, or of the job: use units of `Team::group` or \
         `Pgas::group`; only members of a group begin it with `Pgas::of`"
    )]
    NotAMember(Named<Unit>),
    /// A pointer to memory that was freed, or that never was.
    #[error("the pointer ({pointer}) refers to memory that was freed or never allocated")]
    BadPointer {
        /// The pointer in words.
        pointer: String,
    },
    /// A size that exceeds any address space.
    #[error("{count} elements of {size} bytes are more than 2^62 bytes")]
    TooLarge {
        /// The number of elements.
        count: u64,
        /// The bytes of one element.
        size: u64,
    },
    /// Private memory for a result could not be allocated.
    #[error("no private memory for a result of {bytes} bytes")]
    OutOfMemory {
        /// The number of bytes.
        bytes: u64,
    },
    /// A unit with which global memory begins has not joined the job, has not begun it, or has
    /// ended.
    #[error("{}; {remedy}", not_begun(unit.as_ref(), how))]
    NotBegun {
        /// The unit. `None` if it has not joined the job: then `how` names it, and others that have
        /// not.
        unit: Option<Named<Unit>>,
        /// What is known of it.
        how: String,
        /// What to change.
        remedy: &'static str,
    },
    /// Global memory has already begun on this fabric.
    #[error(
        "this fabric already has global memory; use the existing `Pgas` (a library makes a team of its \
         own with `Team::duplicate`), or drop it with all its teams and segments first"
    )]
    AlreadyBegun,
    /// An update that the type of the elements does not support.
    #[error("elements of type {0} do not support this update (bitwise updates need integers)")]
    NoSuchUpdate(&'static str),
    /// The buffers of one call do not fit together.
    #[error("{what}: expected {expected} elements, found {found}")]
    WrongLength {
        /// Which buffer.
        what: &'static str,
        /// The number of elements that are needed.
        expected: u64,
        /// The number of elements that were given.
        found: u64,
    },
    /// The members of a team called different collectives, or one with different arguments.
    #[error("{unit} {}", crate::collective::differs(what, *theirs, *ours))]
    Mismatch {
        /// The unit that differs from this one.
        unit: Named<Unit>,
        /// Which argument.
        what: &'static str,
        /// Its value there.
        theirs: u64,
        /// Its value here.
        ours: u64,
    },
    /// A member could not allocate the memory for its part.
    #[error("{0} could not allocate its part; its own error says why")]
    NoMemory(Named<Unit>),
    /// A member could not take part in a collective, which therefore ended at all others.
    #[error("{0} could not take part in a collective; its own error says why")]
    Refused(Named<Unit>),
    /// A part could not change its phase, because a process is attached to it in another way.
    #[error("the part of {0} could not change its phase; its own error says why")]
    NoPhase(Named<Unit>),
    /// Registered memory has no phases.
    #[error("registered memory is always shared; to change phases, allocate the memory")]
    AlwaysShared,
    /// The checking mode found two unordered accesses.
    #[error("a data race: {0}")]
    Conflict(Box<crate::Conflict>),
    /// A unit died while it held a lock.
    #[error(
        "{unit} died while holding the lock, and may have left the data that it guards half changed; \
         take the lock with `recover` to repair it"
    )]
    HolderLost {
        /// The holder that died.
        unit: Named<Unit>,
    },
    /// The unit that asks for the lock already holds it, or waits for it in another thread, or asks
    /// from an operator or a handler during the wait. Locks are not recursive.
    #[error("this unit already holds the lock, or is waiting for it; locks are not recursive")]
    AlreadyHeld,
    /// Another thread of this unit is in a collective of this team, or this call comes from an
    /// operator of one. This call did not begin.
    #[error(
        "another thread of this unit is in a collective of this team; give each thread a team of its own \
         (`Team::duplicate`), or let them take turns, in the same order at every unit"
    )]
    TeamInUse,
    /// No segment number is free at all members of the team at once.
    #[error(
        "no segment number is free at all members; free some segments, or allocate fewer, larger ones"
    )]
    NoSegment,
    /// An error of a distributed array or map.
    #[error(transparent)]
    Array(#[from] crate::array::ArrayError),
}

fn not_begun(unit: Option<&Named<Unit>>, how: &str) -> String {
    match unit {
        Some(unit) => format!("{unit} has not begun global memory ({how})"),
        None => format!("global memory has not begun: {how}"),
    }
}

samite_mem::error_codes!(Error, "pgas", {
    UnitLost = 200, OutOfRange = 201, NoSuchRank = 202, NotAMember = 203, BadPointer = 204,
    TooLarge = 205, OutOfMemory = 206, AlreadyBegun = 207, NoSuchUpdate = 208, WrongLength = 209,
    Mismatch = 210, NoMemory = 211, Refused = 212, NoPhase = 213, AlwaysShared = 214,
    Conflict = 215, HolderLost = 216, AlreadyHeld = 217, NoSegment = 218, TeamInUse = 219,
    NotBegun = 220,
}, inner: Fabric, Array);
