//! What can go wrong with moved code, as messages for the user.

use crate::{Hash, Trust};
use samite_engines::{Refused, Trap};
use std::fmt;
use std::time::Duration;

/// Failures of calls, and code that cannot be used.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The fabric below: a lost peer, a deadline.
    #[error(transparent)]
    Fabric(#[from] samite_fabric::Error),
    /// A second [`Mobile`](crate::Mobile) on one fabric.
    #[error("this process runs moved code already: clone the `Mobile` that it has")]
    Second,
    /// There is no unit of this number.
    #[error("this job has no unit {unit}: it has {units}")]
    NoUnit {
        /// The number.
        unit: u32,
        /// How many there are.
        units: u32,
    },
    /// Bytes that are not a valid capsule.
    #[error("this is not a valid capsule: {0}")]
    BadCapsule(String),
    /// A signature that does not fit.
    #[error("the signature of capsule {0} does not fit: it was changed, or signed by another key")]
    BadSignature(Hash),
    /// A capsule has no entry of that name.
    #[error("the capsule has no entry `{entry}`: it has {entries}")]
    NoEntry {
        /// The name.
        entry: String,
        /// Those that it has.
        entries: String,
    },
    /// Code that is not accepted here.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A payload that is too long.
    #[error("a payload of {bytes} bytes is longer than {most}: put it into a segment")]
    TooLong {
        /// Its length.
        bytes: u64,
        /// The most that is allowed.
        most: u64,
    },
    /// The call failed at a unit.
    #[error("{0}")]
    Failed(Box<Failure>),
    /// No reply within the deadline.
    #[error(
        "no reply to a call of `{entry}` at {to} within {after:?}: it may still run; does that unit have a `Mobile`, and make progress (`Mobile::serve`, or any wait)?"
    )]
    Late {
        /// The entry.
        entry: String,
        /// The unit that was called.
        to: String,
        /// The time that was waited.
        after: Duration,
    },
    /// A reply of another length than the operation needs.
    #[error("the code replied with {is} bytes, where {should} are needed")]
    BadReply {
        /// Its length.
        is: u64,
        /// What it should be.
        should: u64,
    },
    /// More calls than fit.
    #[error("{0} calls of this process are not answered yet: wait for some of them")]
    TooMany(usize),
    /// Addresses outside of what is spread over units ([`operation`](crate::operation)).
    #[error(
        "{count} words from address {address} on are not at one unit: each of {units} units has {words}"
    )]
    BadAddress {
        /// The first address.
        address: u64,
        /// How many words are meant.
        count: u64,
        /// Words of each unit.
        words: u64,
        /// How many units there are.
        units: u64,
    },
    /// Data that cannot be laid out over units in this way.
    #[error("data cannot be spread over units like this: {0}")]
    BadLayout(String),
    /// An operation has found something else than its structure.
    #[error("what an operation has found is damaged, or not meant for it: {0}")]
    Damaged(String),
    /// A global pointer into memory whose owner has not granted it to kernels.
    #[error(
        "{0} is not in the segment that was granted to kernels: grant the one that it points to"
    )]
    NotGranted(String),
}

samite_mem::error_codes!(Error, "mobile", {
    Second = 601, NoUnit = 602, BadCapsule = 603, BadSignature = 604, NoEntry = 605, Refused = 606,
    TooLong = 607, Failed = 608, Late = 609, TooMany = 610, BadAddress = 611, BadLayout = 612,
    Damaged = 613, NotGranted = 614, BadReply = 615,
}, inner: Fabric);

/// Why a call failed, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why.
    pub cause: Cause,
    /// In words.
    pub text: String,
    /// The units that the call went through, the last one being that at which it failed. Of a long
    /// way, these are the last ones.
    pub path: Vec<u32>,
    /// Whether units are missing at the beginning of the path.
    pub is_part: bool,
    /// The names of the units of the path.
    pub(crate) names: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |at: usize| match self.names.get(at) {
            Some(name) => name.clone(),
            None => format!("unit {}", self.path[at]),
        };
        match self.path.len() {
            0 => write!(f, "a call failed: {}", self.text),
            1 => write!(f, "a call failed at {}: {}", name(0), self.text),
            len => {
                let path: Vec<_> = (0..len).map(name).collect();
                let (path, start) = (path.join(" -> "), if self.is_part { "... -> " } else { "" });
                let last = name(len - 1);
                write!(
                    f,
                    "a call failed at {last}: {} (path: {start}{path})",
                    self.text
                )
            }
        }
    }
}

macro_rules! causes {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// Why a call failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Cause {
            $($(#[$doc])* $name = $number,)*
        }

        impl Cause {
            pub(crate) fn of(number: u8) -> Cause {
                match number {
                    $($number => Cause::$name,)*
                    _ => Cause::Other,
                }
            }
        }
    };
}

causes! {
    /// It ran longer than it may.
    Time = 1,
    /// It reached outside of its memory, used up its stack, or stored to a segment that is granted
    /// for reading.
    Memory = 2,
    /// It used a segment that is not granted to it, or not in this way, or outside of its range.
    Grant = 3,
    /// It named a unit or an entry that does not exist.
    Target = 4,
    /// It sent too much, or did what this call may not do.
    Forbidden = 5,
    /// It failed on purpose.
    Failed = 6,
    /// It was stopped for another reason: a division by zero, a panic.
    Other = 7,
    /// No unit that was asked has the code any more, or one has sent something else in its place.
    NoCode = 8,
    /// The unit does not accept the code: its trust, the processor, an import, a missing entry,
    /// repeated timeouts; or the caller is no unit of its job.
    Refused = 9,
    /// Too many calls, capsules or answers wait, in all or from this caller; or the unit has no
    /// thread to compile code.
    Busy = 10,
    /// A unit was lost that the call may have been at.
    Lost = 11,
    /// The unit does not reach the input of the call: there is no such segment on its node, or it
    /// is shorter.
    Input = 12,
}

impl From<&Trap> for Cause {
    fn from(trap: &Trap) -> Cause {
        match trap {
            Trap::Time => Cause::Time,
            Trap::Memory(_) | Trap::Stack => Cause::Memory,
            Trap::NotGranted(_)
            | Trap::Rights { .. }
            | Trap::Range { .. }
            | Trap::Misaligned { .. } => Cause::Grant,
            Trap::NoUnit(_) | Trap::NoEntry(_) => Cause::Target,
            Trap::Effects(_) | Trap::Forbidden(_) | Trap::Payload { .. } => Cause::Forbidden,
            Trap::Input(_) => Cause::Input,
            Trap::Failed { .. } => Cause::Failed,
            Trap::Other(_) => Cause::Other,
        }
    }
}

/// Returns the sentence for a capsule that names a function which a unit does not have.
pub(crate) fn not_defined(name: &str) -> String {
    format!("the program of this unit has not defined `{name}` (`Mobile::define`)")
}

/// Returns the sentence for code that a unit does not trust.
pub(crate) fn not_trusted(hash: &Hash, kinds: &str, trust: Trust) -> String {
    format!(
        "capsule {hash} has code for {kinds}, and this unit accepts {trust}: sign it with a key that the unit lists, or list its hash, and let `Policy::trust` of the unit allow listed code of this kind"
    )
}
