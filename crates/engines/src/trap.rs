//! Why a call ended without a result, and why code was not accepted.

use crate::Rights;

/// Why a call ended without a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trap {
    /// It ran longer than it may.
    #[error(
        "the kernel ran longer than its limit of time (`Limits::run` and `time` of the call, `Policy::run_max` of the unit)"
    )]
    Time,
    /// It reached outside of its memory, or wrote to memory that is granted for reading.
    #[error("the kernel reached outside of its memory, or wrote to a read-only segment: {0}")]
    Memory(String),
    /// It used a grant that the call does not have.
    #[error(
        "the kernel used grant {0}, which this call does not have: grant a segment under that number at this unit (`Mobile::grant`), and see `Limits::grants` of the call"
    )]
    NotGranted(u32),
    /// It used a granted segment in a way that the grant does not allow.
    #[error("the kernel may not {wants} the segment of grant {grant}, which is granted to {has}")]
    Rights {
        /// The number of the grant.
        grant: u32,
        /// What it wanted.
        wants: Rights,
        /// What it may.
        has: Rights,
    },
    /// It reached outside of a granted segment.
    #[error(
        "bytes {offset}..{end} are outside of the segment of grant {grant}, which has {bytes} bytes"
    )]
    Range {
        /// The number of the grant.
        grant: u32,
        /// First byte.
        offset: u64,
        /// One past the last byte.
        end: u64,
        /// Length of the segment.
        bytes: u64,
    },
    /// An atomic access was not aligned to 8 bytes.
    #[error("byte {offset} of the segment of grant {grant} is not aligned to 8 bytes")]
    Misaligned {
        /// The number of the grant.
        grant: u32,
        /// The byte.
        offset: u64,
    },
    /// It named a unit that does not exist.
    #[error("the kernel named unit {0}, which does not exist")]
    NoUnit(u32),
    /// It named an entry that its code does not have.
    #[error("the code has no entry {0}")]
    NoEntry(u32),
    /// It asked for more effects than one call may.
    #[error("the kernel sent more than {0} messages in one call")]
    Effects(usize),
    /// It asked for something that the call may not do.
    #[error("this call may not {0}")]
    Forbidden(&'static str),
    /// A payload is longer than allowed.
    #[error("a payload of {bytes} bytes is longer than the {most} that are allowed")]
    Payload {
        /// Its length.
        bytes: u64,
        /// The most that is allowed.
        most: u64,
    },
    /// Its input is not within reach: there is no such segment, or it is not mapped here, or is
    /// shorter.
    #[error("{0}")]
    Input(String),
    /// It called itself too deeply.
    #[error("the kernel used up its stack")]
    Stack,
    /// It failed on purpose.
    #[error("the kernel failed with code {code}{}{text}", if text.is_empty() { "" } else { ": " })]
    Failed {
        /// Its code.
        code: i32,
        /// Its text.
        text: String,
    },
    /// Anything else: a division by zero, an unreachable instruction, a panic.
    #[error("the kernel was stopped: {0}")]
    Other(String),
}

impl Trap {
    /// Longest text of a failure, in bytes.
    const TEXT_MAX: usize = 256;

    /// Makes the failure of a kernel with a number and a text, which is cut after 256 bytes.
    pub fn failed(code: i32, text: &str) -> Trap {
        let text = text[..text.floor_char_boundary(Trap::TEXT_MAX)].to_owned();
        Trap::Failed { code, text }
    }
}

/// Why code was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is no valid code of its kind.
    #[error("the code is not valid: {0}")]
    Invalid(String),
    /// It imports something that is not offered.
    #[error("the code imports {0}, which is not offered to moved code")]
    Import(String),
    /// It lacks an entry that the capsule names.
    #[error("the code has no function `{0}` with the type of an entry: (address, length) -> i32")]
    Entry(String),
    /// It is longer than allowed.
    #[error("code of {bytes} bytes is longer than {most}")]
    TooLong {
        /// Its length.
        bytes: u64,
        /// The most that is allowed.
        most: u64,
    },
    /// This build or machine has no engine for it.
    #[error("{0}")]
    NoEngine(String),
    /// Something that it needs is used up now: another try may succeed.
    #[error("{0}")]
    ForNow(String),
}
