//! Floor 3: code that travels to the data.
//!
//! # Core objects
//! * [`Capsule`]: code in one or several forms, named by its BLAKE3 hash, perhaps signed.
//! * [`Mobile`]: registers code, grants segments of this unit, and calls code at other units
//!   ([`Mobile::call`], [`Mobile::call_at`]). Code travels to a unit that lacks it; later calls
//!   carry 32 bytes and the payload.
//! * [`Call`]: a call under way; it ends with the reply of a kernel, or as a [`Failure`] that names
//!   the units on its way.
//! * A kernel: code that a call runs, with a [`Context`]. It may move on to another unit
//!   ([`Context::forward`]), start further calls, reply, make new code, and use granted segments.
//!   It never waits.
//! * [`macro@mobile`]: the attribute that makes a kernel of a Rust function.
//! * [`Policy`]: which code a unit runs.
//!
//! # Files
//! `capsule` · `kernels` (what the attribute adds) · `trust` · `mobile` (the handle) · `call` ·
//! `at` (calls to the owner of an address) · `frame` (contents of frames) · `input` (where the
//! input of a call lies) · `local` (code that the process runs itself) · `calls` (those not
//! answered yet) · `members` (who may call) · `trail` (where calls came from) · `runtime/` (the
//! receiving half) · `operation/` (chases, look-ups, searches in remote data) · `error`
//!
//! # Rules
//! * Protocol state is in memory of this unit; nothing of it is shared.
//! * What another unit sends is checked before anything is allocated by it.
//! * A call ends once: with a reply, a failure, or the deadline of its caller.
//!
//! # Not guaranteed
//! * That a call whose result is [`Error::Late`] or a loss has not run, or runs no more.
//! * An order among calls, but those of one unit to another run in the order in which they were
//!   made if their code is there.
//!
//! ```
//! # use samite_fabric::{Config, Fabric, Identity};
//! # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
//! use samite_mobile::{Context, Mobile, Trap, mobile};
//!
//! #[mobile(crate = "samite_mobile")] // a program writes `#[mobile]`
//! fn sum(context: &mut Context, payload: &[u8]) -> Result<(), Trap> {
//!     let total: u64 = payload.iter().map(|byte| u64::from(*byte)).sum();
//!     context.reply(&total.to_le_bytes())
//! }
//!
//! let mobile = Mobile::new(&fabric)?;
//! sum::define(&mobile); // at each unit that is to run the function itself; others run WebAssembly
//! let code = mobile.register(sum::capsule()?)?;
//! let reply = mobile.call(0, &code, "sum", &[20, 22])?.wait()?;
//! assert_eq!(reply, 42_u64.to_le_bytes());
//! # Ok::<(), samite_mobile::Error>(())
//! ```
//!
//! A kernel as text, which any unit runs:
//! ```
//! # use samite_fabric::{Config, Fabric, Identity};
//! # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
//! use samite_mobile::{Capsule, Mobile};
//! let mobile = Mobile::new(&fabric)?;
//! let double = Capsule::from_wat(r#"(module
//!     (import "samite" "memory" (memory 1))
//!     (import "samite" "reply" (func $reply (param i32 i32)))
//!     (func (export "double") (param $at i32) (param $len i32) (result i32)
//!         (i64.store (local.get $at) (i64.shl (i64.load (local.get $at)) (i64.const 1)))
//!         (call $reply (local.get $at) (i32.const 8))
//!         (i32.const 0)))"#)?;
//! let double = mobile.register(double)?;
//! let reply = mobile.call(0, &double, "double", &21_u64.to_le_bytes())?.wait()?;
//! assert_eq!(reply, 42_u64.to_le_bytes());
//! # Ok::<(), samite_mobile::Error>(())
//! ```

#![forbid(unsafe_code)]

mod at;
mod call;
mod calls;
mod capsule;
mod error;
mod frame;
mod input;
mod kernels;
mod local;
mod members;
mod mobile;
#[cfg(feature = "wasm")]
pub mod operation;
mod runtime;
mod trail;
mod trust;

pub use at::At;
pub use call::Call;
pub use capsule::{Builder, CAPSULE_MAX, Capsule, Hash, Part, Processor};
pub use ed25519_dalek::{SigningKey, VerifyingKey};
pub use error::{Cause, Error, Failure};
pub use input::{INPUT_MAX, Input, LEVELS_MAX};
pub use kernels::Kernels;
pub use local::Local;
pub use mobile::{Counters, FAILURES_KEPT, Mobile, Registered};
pub use runtime::llvm::find_llvm;
pub use runtime::map::{ARGUMENT_MAX, CHUNK};
pub use samite_engines::{
    Context, Effect, Function, GRANTS_MAX, Grants, KERNEL_HEADER, Kind, Limits, PAYLOAD_MAX,
    Refused, Rights, Trap, clang,
};
pub use samite_mobile_macros::mobile;
pub use trust::{Policy, Trust};

/// Result of the operations of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
