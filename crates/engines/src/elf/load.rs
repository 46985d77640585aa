//! The system's loader.
//!
//! # Invariants
//! L1 Loading a shared object runs its code, and using its functions does. Its author is trusted
//!    with both: he has promised their types (R1 of `native/run.rs`).
//! L2 The loader knows an object by its path, and returns a loaded one for a path that it knows. No
//!    path is used twice (`path`).
//! L3 A symbol is used while the library is loaded: the code keeps it.

use crate::Refused;
use crate::native::host::{TABLE, Table};
use crate::native::{Entry, Prepared};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use std::ffi::c_void;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The function that gets the table.
pub(super) const BIND: &str = "samite_bind";
type Bind = unsafe extern "C" fn(*const Table) -> i32;

/// Loads a shared object whose headers were checked, and looks its entries up. It takes so many
/// bytes of memory.
pub(super) fn load(code: &[u8], entries: &[String], bytes: u64) -> Result<Prepared, Refused> {
    let file = file(code).map_err(|error| {
        let text = format!("machine code cannot be put in memory here: {error}");
        let lacking = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN];
        match Errno::from_io_error(&error) {
            Some(errno) if lacking.contains(&errno) => Refused::ForNow(text),
            _ => Refused::NoEngine(text),
        }
    })?;
    // SAFETY: L1, L2.
    let library = unsafe { Library::open(Some(path(file.as_raw_fd())), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| refused(&error))?;
    let bind = symbol(&library, BIND, None).ok_or_else(|| {
        Refused::Invalid(format!(
            "it exports no {BIND}: compile it with samite_kernel.h and -DSAMITE_ELF"
        ))
    })?;
    let home = Some(object_of(bind));
    let found = entries.iter().map(|name| {
        let entry = symbol(&library, name, home).ok_or_else(|| Refused::Entry(name.clone()))?;
        // SAFETY: L1: a function of this type.
        Ok(unsafe { std::mem::transmute::<*mut c_void, Entry>(entry) })
    });
    let found = found.collect::<Result<Vec<_>, Refused>>()?;
    // SAFETY: L1: a function of this type; the table is static.
    let bound = unsafe { std::mem::transmute::<*mut c_void, Bind>(bind)(&raw const TABLE) };
    if bound != 0 {
        return Err(Refused::Invalid(
            "it needs functions that this version of Samite does not have".into(),
        ));
    }
    // SAFETY: L1, L3.
    Ok(unsafe { Prepared::new(found, Arc::new(library), bytes) })
}

/// Returns a file in memory with these bytes, which nobody can change any more.
fn file(code: &[u8]) -> std::io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let name = "samite code";
    // Kernels before 6.3 do not know the flag; later ones may refuse to execute files without it.
    let created = rustix::fs::memfd_create(name, flags | MemfdFlags::EXEC);
    let created = created.or_else(|_| rustix::fs::memfd_create(name, flags))?;
    let mut file = File::from(created);
    drop(file.try_clone()?); // The loader of the system opens it once more.
    file.write_all(code)?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file)
}

/// Returns a path of a descriptor that was never used before. (Numbers of descriptors are, once
/// they are closed.)
fn path(fd: RawFd) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // ORDERING: Relaxed: only that each number is given once.
    let number = NEXT.fetch_add(1, Relaxed);
    // Slashes and points that the kernel skips spell the number, most significant bit first.
    let bits = (0..u64::BITS - number.leading_zeros()).rev();
    let bits = bits.map(|bit| match number >> bit & 1 {
        1 => "./",
        _ => "/",
    });
    format!("/proc/self/fd/{}{fd}", bits.collect::<String>())
}

/// Returns the address of a symbol; if `home` is given, of one that this object defines, not a
/// library that it uses.
fn symbol(library: &Library, name: &str, home: Option<*mut c_void>) -> Option<*mut c_void> {
    // SAFETY: the address is not used as anything here.
    let symbol = unsafe { library.get::<*mut c_void>(name) }.ok()?;
    let address = symbol.as_raw_ptr();
    let is_here = home.is_none_or(|home| object_of(address) == home);
    (is_here && !address.is_null()).then_some(address)
}

/// Returns the address at which the object that has this address is loaded.
fn object_of(address: *mut c_void) -> *mut c_void {
    let mut found = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: the function looks the address up and does not access it; `found` is valid.
    unsafe { libc::dladdr(address, &mut found) };
    found.dli_fbase
}

/// Returns what the loader says, without the path.
fn refused(error: &libloading::Error) -> Refused {
    let text = match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    };
    if let Some((_, symbol)) = text.split_once("undefined symbol: ") {
        let end = symbol.find([',', ' ', '"']).unwrap_or(symbol.len());
        return Refused::Import(symbol[..end].to_owned());
    }
    let text = match text.strip_prefix("/proc/") {
        Some(rest) => rest.split_once(": ").map_or(rest, |(_, text)| text),
        None => &text,
    };
    let text = format!("the loader refuses it: {text}");
    // As the C library says that descriptors, or memory, are used up.
    let lacks = [
        "Too many open files",
        "Cannot allocate memory",
        "out of memory",
    ];
    match lacks.iter().any(|lacking| text.contains(lacking)) {
        true => Refused::ForNow(text),
        false => Refused::Invalid(text),
    }
}
