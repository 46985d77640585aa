//! Shared objects of machine code, loaded by the system's loader from memory.
//!
//! They are not sandboxed: [`crate::native`] says what that means. An object gets the functions of
//! the fabric as a table: it exports `samite_bind`, which `include/samite_kernel.h` defines, and
//! needs no symbols of the process. Libraries that it names are found as for every program.
//!
//! Before the loader sees it, the headers are checked: a file for another machine, a truncated one
//! or bytes that are no shared object are refused. What is behind the headers is not checked: the
//! loader trusts the file, as its author is trusted.
//!
//! # Cost
//! No compilation: loading takes about 50 us. A call takes a few ns.

mod header;
#[allow(unsafe_code, reason = "loads shared objects")]
mod load;
mod symbols;

use crate::native::check_length;
use crate::{Code, Engine, Kind, Refused};

pub use crate::native::CODE_MAX;
pub use header::machine;
pub use symbols::check;

/// The engine; see the module's documentation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Elf;

impl Engine for Elf {
    fn kind(&self) -> Kind {
        Kind::Elf
    }

    fn prepare(&self, code: &[u8], entries: &[String]) -> Result<Box<dyn Code>, Refused> {
        check_length(code)?;
        let bytes = header::check(code)?;
        Ok(Box::new(load::load(code, entries, bytes)?))
    }
}
