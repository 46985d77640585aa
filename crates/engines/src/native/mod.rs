//! What the engines for machine code share: the functions that a kernel calls (`host`), and how an
//! entry is called (`run`).
//!
//! # Not sandboxed
//! Machine code runs as part of the process, with all of its rights:
//! * It can read and write all memory of the process, whatever it was granted; memory that is
//!   granted for reading is not protected from it.
//! * It can make any system call, and so use every file and socket that the user may.
//! * It has no limit of time, stack or memory. A call that does not end keeps its thread for ever;
//!   a fault ends the process.
//!
//! So it is for code whose author is trusted like the authors of the program. Grants, hops and
//! payloads are checked by the functions all the same: they catch mistakes, not malice.
//!
//! # A wrong use of a function
//! It is recorded, and the call ends with it whatever the kernel returns. From then on until the
//! kernel returns, no function does anything; all return 0.
//!
//! # Variables
//! Unlike instances of WebAssembly, all instances of one code share its variables.
#[allow(unsafe_code, reason = "is called by machine code")]
pub(crate) mod host;
#[allow(unsafe_code, reason = "calls machine code")]
mod run;

pub(crate) use run::{Entry, Prepared};

/// Longest code, in bytes.
pub const CODE_MAX: u64 = 16 << 20;

/// Checks the length of code.
pub(crate) fn check_length(code: &[u8]) -> Result<(), crate::Refused> {
    match code.len() as u64 {
        bytes if bytes > CODE_MAX => Err(crate::Refused::TooLong {
            bytes,
            most: CODE_MAX,
        }),
        _ => Ok(()),
    }
}
