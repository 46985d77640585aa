//! Floor 2, beside `engines`: the attribute `#[mobile]`, which makes kernels of Rust functions. Use
//! it as `samite::mobile::mobile`; this crate knows nothing of the runtime.
//!
//! The attribute leaves the function as it is, and adds what `samite_mobile` needs to call it. When
//! the standard library of `wasm32-unknown-unknown` is installed, it also compiles the source to
//! WebAssembly, and embeds the module.
//!
//! # Why an attribute that starts the compiler
//! The other way, a build script that compiles a folder of kernels, needs a second file, a second
//! place for helpers, and a line in the manifest of each user. Here the kernel stays where it is
//! used, and a mistake is shown at its place. The price: about 0.2 s per attribute and build.
//!
//! # Files
//! `source` (the program that is compiled) · `compile` (runs the compiler, reads its errors) ·
//! `kernels` (reads what the attribute is on, and writes the items that are added) ·
//! `guest/prelude.rs` (what a kernel finds in place of `samite::mobile`)
//!
//! # Rules
//! R1 The same tokens are compiled twice, natively and as WebAssembly: what runs does not depend on
//!    where it runs. What expands to something else in another build, such as `cfg`, is refused. So
//!    is a kernel that needs anything from outside of the attribute, when WebAssembly is compiled.
//!    The exception is `usize`, and `isize`: it has 64 bits natively, and 32 in WebAssembly, where
//!    arithmetic wraps accordingly. Only numbers in the source that do not fit are refused.
//! R2 The name of a function has the hash of its source, so a unit whose program was built from
//!    another source does not run that in its place. The source is compared: without the target of
//!    WebAssembly (R3), a helper outside of the attribute may differ all the same.
//! R3 Without the target, everything compiles. `HAS_WASM` says so.

#![forbid(unsafe_code)]

mod compile;
mod kernels;
mod source;

use proc_macro::TokenStream;

/// Makes a kernel of a function, or of each function of a module that is not private: a function
/// that other units call with a payload, where the data is.
///
/// A kernel has the type `fn(&mut Context, &[u8]) -> Result<(), Trap>`. It stays a function that
/// the program can call. Beside a function `sum`, there is a type `sum` with
///
/// * `sum::capsule() -> Result<Capsule, Error>`: the capsule, for `Mobile::register`. Its entries
///   are the kernels, numbered from 0 in their order. It has the name of the function, and the
///   WebAssembly if there is one.
/// * `sum::define(&Mobile)`: lets this unit run the function itself when the capsule is called
///   here. A unit that has not called it runs the WebAssembly, as far as its policy allows.
/// * `sum::HAS_WASM: bool`: whether the capsule has WebAssembly.
///
/// On a module, these three are items of the module. Its private functions, its types and constants
/// are there for its kernels.
///
/// # WebAssembly
/// It is compiled when the compiler has the target (`rustup target add wasm32-unknown-unknown`),
/// and takes about 0.2 s per attribute. Without the target, a call to a unit that has not defined
/// the function fails. A program that needs the WebAssembly says so:
/// `const _: () = assert!(sum::HAS_WASM, "rustup target add wasm32-unknown-unknown");`.
/// `SAMITE_MOBILE_WASM=off` in the environment of the build skips it, for example in an editor that
/// expands the attribute on each change.
///
/// There a kernel has `core`, the methods of `f32` and `f64` that `std` adds, those of `Context`
/// that the table of `docs/mobile.md` lists, `Trap::failed`, and the items inside of the attribute.
/// Other items of the program, other crates and `std` are not there: the build fails, and names the
/// place where one is used. No memory can be allocated. A kernel has another name than the
/// functions that kernels call, such as `exp` and `memcpy`.
///
/// # Both forms
/// Arithmetic wraps in WebAssembly, as in a release build, and a panic ends the call in both forms.
/// `usize` and `isize` have 32 bits in WebAssembly, and 64 natively: a number in the source that
/// does not fit is an error of the build, but what a kernel computes wraps. Use `u64` for offsets
/// and lengths of segments.
///
/// A method of `Context` that fails ends the call, with its error. WebAssembly is stopped there. A
/// function that handles the error goes on until it returns, but all of its later uses of these
/// methods fail and do nothing.
///
/// # Options
/// `#[mobile(crate = "path")]` is the path of `samite::mobile` in a program that has it under
/// another one.
#[proc_macro_attribute]
pub fn mobile(options: TokenStream, item: TokenStream) -> TokenStream {
    kernels::expand(options.into(), item.into(), compile::compile).into()
}
