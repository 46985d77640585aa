//! Floor 2, beside the fabric: what runs moved code. It knows capsule parts, granted memory and
//! limits; it knows nothing of peers, messages or hashes.
//!
//! # Core objects
//! * [`Engine`]: prepares code of one [`Kind`]. [`Code`]: prepared code, shared by threads.
//!   [`Instance`]: code with memory, for one call at a time.
//! * [`Context`]: what a running kernel sees (its unit, payload, granted memory) and what it has
//!   asked for ([`Effect`]): to go on elsewhere, to reply. A kernel never waits: effects are
//!   carried out after it has returned.
//! * [`Grants`]: segments that kernels may use, by number, each with [`Rights`].
//! * [`Trap`]: why a call ended without a result. A trap ends the call, never the process.
//!
//! # Files
//! `context` · `grant` · `trap` · `function` (functions of the program itself) · `wasm/` (wasmtime)
//! · `native/` (what the next two share) · `elf/` (shared objects) · `bitcode/` (LLVM) · `clang`
//! (how kernels in C are compiled)
//!
//! Kernels in C include `include/samite_kernel.h`: one source for all engines but the first.
//!
//! # Rules
//! E1 A kernel of a sandboxed engine reaches its own memory and the segments that are granted to
//!    the call, with the rights of the grant, and nothing else.
//! E2 What another process writes meanwhile is never behind a reference: granted memory is copied,
//!    accessed as atomics, or accessed by the compiled code of the kernel.
//! E3 Every call of a sandboxed engine ends: by itself, or by its limit of time. Code that would
//!    take its compiler too much is refused before it is compiled (`wasm/cost.rs`).
//! E4 `unsafe` is in these files alone: `wasm/window.rs`, `native/run.rs`, `native/host.rs`,
//!    `elf/load.rs`, `bitcode/ffi.rs`, `bitcode/module.rs`, `bitcode/link.rs`.
//! E5 Machine code (`bitcode`, `elf`) is not sandboxed: E1 and E3 do not hold for it ([`native`]).
//!
//! ```
//! use samite_engines::{Code, Context, Function, Grants, Limits};
//! let double: Function = Function::new(|context, payload| {
//!     let number = payload.first().copied().unwrap_or(0);
//!     context.reply(&[number * 2])
//! });
//! let mut context = Context::new(0, 1, Grants::default());
//! context.begin(Limits::default(), 0, u64::MAX);
//! let mut instance = double.instance(&Grants::default())?;
//! let (context, ended) = instance.call(0, Box::new(context), &[21]);
//! assert_eq!((ended, context.replied()), (Ok(()), Some(&[42][..])));
//! # Ok::<(), samite_engines::Trap>(())
//! ```

#![deny(unsafe_code)]

pub mod bitcode;
pub mod clang;
mod context;
pub mod elf;
mod function;
mod grant;
pub mod native;
mod trap;
#[cfg(feature = "wasm")]
pub mod wasm;

pub use context::{Context, Effect, Limits, PAYLOAD_MAX};
pub use function::Function;
pub use grant::{GRANTS_MAX, Grant, Grants, Rights};
pub use trap::{Refused, Trap};

/// The header for kernels in C.
pub const KERNEL_HEADER: &str = include_str!("../include/samite_kernel.h");

/// Which engine runs a piece of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A function that both processes have.
    Function,
    /// WebAssembly.
    Wasm,
    /// LLVM bitcode.
    Bitcode,
    /// A shared object of machine code.
    Elf,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 4] = [Kind::Function, Kind::Wasm, Kind::Bitcode, Kind::Elf];

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Function => "function",
            Kind::Wasm => "wasm",
            Kind::Bitcode => "bitcode",
            Kind::Elf => "elf",
        }
    }

    /// Returns whether code of this kind can do only what it was granted.
    pub const fn is_sandboxed(self) -> bool {
        matches!(self, Kind::Wasm)
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Prepares code of one kind.
pub trait Engine: Send + Sync {
    /// Returns the kind of code that it runs.
    fn kind(&self) -> Kind;
    /// Checks and compiles code with the given entries. Takes from 50 us (ELF) to some 7 s
    /// (the largest WebAssembly module); LLVM is given up after 20 s.
    ///
    /// # Errors
    /// [`Refused`]: it is no code of this kind, imports what is not offered, or lacks an entry.
    fn prepare(&self, code: &[u8], entries: &[String]) -> Result<Box<dyn Code>, Refused>;
}

/// Code that is ready to run.
pub trait Code: Send + Sync {
    /// Gives it memory, and the segments of these grants.
    ///
    /// # Errors
    /// A [`Trap`], if there is no memory for it.
    fn instance(&self, grants: &Grants) -> Result<Box<dyn Instance>, Trap>;

    /// Returns how many bytes of memory the compiled code takes; 0 if it is not known.
    fn bytes(&self) -> u64 {
        0
    }
}

/// Code with memory. What a call leaves in that memory, the next call of the same instance may
/// find; an instance whose call has trapped is dropped.
pub trait Instance: Send {
    /// Runs an entry with a payload. What the kernel asked for is in the context, which is
    /// returned.
    fn call(
        &mut self,
        entry: u8,
        context: Box<Context>,
        payload: &[u8],
    ) -> (Box<Context>, Result<(), Trap>);

    /// Has the next call find what it needs near the processor and mapped, as far as that takes
    /// less than a millisecond.
    fn warm_up(&mut self) {}

    /// Returns how many bytes of memory it has for itself; 0 if that is not known.
    fn memory(&self) -> u64 {
        0
    }
}
