//! The functions that machine code calls, as `include/samite_kernel.h` declares them. They do what
//! those of WebAssembly do (`wasm/imports.rs`), with pointers in the place of offsets.
//!
//! # Invariants
//! H1 Pointers and lengths that a kernel passes are those of memory that it may read, or write if
//!    the function writes there. This is the contract of the header; only null is checked.
//! H2 No reference to such memory is made: it may lie in a granted segment, which others write. Its
//!    bytes are copied by pointer.

use super::run::with;
use crate::{Context, PAYLOAD_MAX, Trap};
use std::ffi::c_void;
use std::ptr::null_mut;

/// Declares the table that a shared object gets, in the order of the header, and the list of the
/// same functions by name.
macro_rules! functions {
    ($($name:ident: $kind:ty,)*) => {
        /// The functions, as a shared object gets them.
        #[repr(C)]
        pub(crate) struct Table {
            bytes: u64,
            $($name: $kind,)*
        }

        /// The only table.
        pub(crate) static TABLE: Table = Table {
            bytes: size_of::<Table>() as u64,
            $($name,)*
        };

        /// Returns the functions by the names that bitcode calls.
        pub(crate) fn symbols() -> Vec<(&'static str, *const c_void)> {
            vec![$((concat!("samite_", stringify!($name)), $name as $kind as *const c_void)),*]
        }
    };
}

type Bytes = unsafe extern "C" fn(*const u8, u32);
type To = unsafe extern "C" fn(u32, u32, *const u8, u32);

functions! {
    me: extern "C" fn() -> u32,
    units: extern "C" fn() -> u32,
    origin: extern "C" fn() -> u32,
    hops: extern "C" fn() -> u32,
    base: extern "C" fn(u32) -> *mut c_void,
    len: extern "C" fn(u32) -> u64,
    load64: extern "C" fn(u32, u64) -> u64,
    store64: extern "C" fn(u32, u64, u64),
    add64: extern "C" fn(u32, u64, u64) -> u64,
    cas64: extern "C" fn(u32, u64, u64, u64) -> u64,
    copy_in: unsafe extern "C" fn(u32, u64, *mut u8, u32),
    copy_out: unsafe extern "C" fn(u32, u64, *const u8, u32),
    forward: To,
    spawn: To,
    reply: Bytes,
    fail: unsafe extern "C" fn(i32, *const u8, u32),
    define: unsafe extern "C" fn(*const u8, u32) -> u32,
    inject: unsafe extern "C" fn(u32, u32, u32, *const u8, u32),
}

/// Lets `f` use the context, with a copy of bytes of the kernel.
///
/// # Safety
/// H1.
#[inline]
unsafe fn with_bytes<T: Default>(
    (from, len): (*const u8, u32),
    f: impl FnOnce(&mut Context, &[u8]) -> Result<T, Trap>,
) -> T {
    with(|context, scratch| {
        check(from, len)?;
        let len = len as usize;
        scratch.clear();
        scratch.reserve(len);
        // SAFETY: H1, H2; the vector has room for the bytes, and the copy initialises them. A null
        // pointer has the length 0.
        unsafe {
            std::ptr::copy_nonoverlapping(from, scratch.as_mut_ptr(), len);
            scratch.set_len(len);
        }
        f(context, scratch)
    })
}

fn check(at: *const u8, len: u32) -> Result<(), Trap> {
    if len as u64 > PAYLOAD_MAX {
        let (bytes, most) = (len as u64, PAYLOAD_MAX);
        return Err(Trap::Payload { bytes, most });
    }
    if at.is_null() && len > 0 {
        return Err(Trap::Memory(format!("{len} bytes at a null pointer")));
    }
    Ok(())
}

extern "C" fn me() -> u32 {
    with(|context, _| Ok(context.me()))
}

extern "C" fn units() -> u32 {
    with(|context, _| Ok(context.units()))
}

extern "C" fn origin() -> u32 {
    with(|context, _| Ok(context.origin()))
}

extern "C" fn hops() -> u32 {
    with(|context, _| Ok(context.limits().hops as u32))
}

extern "C" fn base(grant: u32) -> *mut c_void {
    let address = with(|context, _| Ok(context.base(grant).unwrap_or(0)));
    match address {
        0 => null_mut(),
        address => std::ptr::with_exposed_provenance_mut(address as usize),
    }
}

extern "C" fn len(grant: u32) -> u64 {
    with(|context, _| context.len(grant))
}

extern "C" fn load64(grant: u32, at: u64) -> u64 {
    with(|context, _| context.load(grant, at))
}

extern "C" fn store64(grant: u32, at: u64, value: u64) {
    with(|context, _| context.store(grant, at, value))
}

extern "C" fn add64(grant: u32, at: u64, value: u64) -> u64 {
    with(|context, _| context.fetch_add(grant, at, value))
}

extern "C" fn cas64(grant: u32, at: u64, expected: u64, new: u64) -> u64 {
    with(|context, _| context.compare_exchange(grant, at, expected, new))
}

/// # Safety
/// H1.
unsafe extern "C" fn copy_in(grant: u32, at: u64, to: *mut u8, len: u32) {
    with(|context, scratch| {
        check(to, len)?;
        scratch.clear();
        scratch.resize(len as usize, 0);
        context.read(grant, at, scratch)?;
        // SAFETY: H1, H2; a null pointer has the length 0.
        unsafe { std::ptr::copy_nonoverlapping(scratch.as_ptr(), to, scratch.len()) };
        Ok(())
    })
}

/// # Safety
/// H1.
unsafe extern "C" fn copy_out(grant: u32, at: u64, from: *const u8, len: u32) {
    // SAFETY: H1.
    unsafe {
        with_bytes((from, len), |context, bytes| {
            context.write(grant, at, bytes)
        })
    }
}

/// # Safety
/// H1.
unsafe extern "C" fn forward(unit: u32, entry: u32, from: *const u8, len: u32) {
    let forward = |context: &mut Context, bytes: &[u8]| context.forward(unit, entry, bytes);
    // SAFETY: H1.
    unsafe { with_bytes((from, len), forward) }
}

/// # Safety
/// H1.
unsafe extern "C" fn spawn(unit: u32, entry: u32, from: *const u8, len: u32) {
    let spawn = |context: &mut Context, bytes: &[u8]| context.spawn(unit, entry, bytes);
    // SAFETY: H1.
    unsafe { with_bytes((from, len), spawn) }
}

/// # Safety
/// H1.
unsafe extern "C" fn reply(from: *const u8, len: u32) {
    // SAFETY: H1.
    unsafe { with_bytes((from, len), Context::reply) }
}

/// # Safety
/// H1.
unsafe extern "C" fn fail(code: i32, from: *const u8, len: u32) {
    let fail =
        |_: &mut Context, bytes: &[u8]| Err(Trap::failed(code, &String::from_utf8_lossy(bytes)));
    // SAFETY: H1.
    unsafe { with_bytes((from, len), fail) }
}

/// # Safety
/// H1.
unsafe extern "C" fn define(from: *const u8, len: u32) -> u32 {
    // SAFETY: H1.
    unsafe { with_bytes((from, len), Context::define) }
}

/// # Safety
/// H1.
unsafe extern "C" fn inject(unit: u32, code: u32, entry: u32, from: *const u8, len: u32) {
    let inject = |context: &mut Context, bytes: &[u8]| context.inject(unit, code, entry, bytes);
    // SAFETY: H1.
    unsafe { with_bytes((from, len), inject) }
}
