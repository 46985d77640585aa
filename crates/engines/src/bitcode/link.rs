//! From an object of machine code to functions in memory, by ORC's linker.
//!
//! # Invariants
//! O1 Each code has a linker of its own, with one library that holds the offered functions and the
//!    object, and is linked to no other one: nothing else of the process can be found.
//! O2 [`Linked`] keeps the linker, and the linker keeps the memory of the functions.
//! O3 The linker is used by the thread that made it, then by the one that drops it.

use super::ALLOWED;
use super::ffi::{
    Address, Dylib, Failure, Jit, Llvm, Searched, Session, Wanted, is_broken, report, said, say,
};
use crate::Refused;
use crate::native::{Entry, Prepared, host};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, mpsc};

/// What the linker needs for one object, in bytes, besides the object.
const LINKER: u64 = 256 << 10;
const EXPORTED: u8 = 1;
const CALLABLE: u8 = 4;
const STATIC: c_int = 0;
const ALL_SYMBOLS: c_int = 1;

/// A linker with code in it.
struct Linked {
    jit: *mut Jit,
    llvm: Arc<Llvm>,
}

// SAFETY: O3.
unsafe impl Send for Linked {}
// SAFETY: O3: a shared reference allows nothing.
unsafe impl Sync for Linked {}

impl Drop for Linked {
    fn drop(&mut self) {
        // A thread that LLVM has failed on may hold its locks.
        if !is_broken() {
            // SAFETY: O2; a failure has no consequence.
            let _ = unsafe { self.llvm.failed((self.llvm.LLVMOrcDisposeLLJIT)(self.jit)) };
        }
    }
}

fn wrong(why: String) -> Refused {
    Refused::Invalid(format!("it cannot be linked: {why}"))
}

/// Links an object of a checked module, and looks its entries up.
pub(super) fn link(llvm: &Arc<Llvm>, object: &[u8], names: &[String]) -> Result<Prepared, Refused> {
    let mut jit = null_mut();
    // SAFETY: F2: without a builder, for this machine.
    let created = unsafe { llvm.failed((llvm.LLVMOrcCreateLLJIT)(&mut jit, null_mut())) };
    created.map_err(|why| Refused::NoEngine(format!("LLVM has no linker here: {why}")))?;
    let linked = Linked {
        jit,
        llvm: llvm.clone(),
    };
    // SAFETY: O2; the error reporter gets an `Llvm` that `linked` keeps, so it outlives the
    // session.
    let (session, dylib) = unsafe {
        let session = (llvm.LLVMOrcLLJITGetExecutionSession)(jit);
        let to = Arc::as_ptr(llvm).cast();
        (llvm.LLVMOrcExecutionSessionSetErrorReporter)(session, report, to);
        let create = llvm.LLVMOrcExecutionSessionCreateBareJITDylib;
        (session, create(session, c"kernel".as_ptr()))
    };
    offer(llvm, jit, dylib).map_err(wrong)?;
    // SAFETY: F2: the linker takes the buffer, a copy of the object.
    let added = unsafe {
        let (start, name) = (object.as_ptr().cast(), c"kernel".as_ptr());
        let copy = llvm.LLVMCreateMemoryBufferWithMemoryRangeCopy;
        let buffer = copy(start, object.len(), name);
        llvm.failed((llvm.LLVMOrcLLJITAddObjectFile)(jit, dylib, buffer))
    };
    added.map_err(wrong)?;
    let found = lookup(llvm, (jit, session, dylib), names)?;
    let entries = names.iter().map(|name| {
        let entry = found.iter().find(|(found, _)| found == name);
        let (_, address) = entry.ok_or_else(|| Refused::Entry(name.clone()))?;
        // SAFETY: O2, and `module` has checked that the function has this type.
        Ok(unsafe { std::mem::transmute::<*const c_void, Entry>(*address as *const c_void) })
    });
    let entries = entries.collect::<Result<Vec<_>, Refused>>()?;
    // SAFETY: R1: O2, and the author's promise.
    Ok(unsafe { Prepared::new(entries, Arc::new(linked), object.len() as u64 + LINKER) })
}

/// Defines what the code may call.
fn offer(llvm: &Llvm, jit: *mut Jit, dylib: *mut Dylib) -> Result<(), String> {
    let memory: [*const c_void; ALLOWED.len()] = [
        libc::memcpy as *const c_void,
        libc::memmove as *const c_void,
        libc::memset as *const c_void,
        libc::memcmp as *const c_void,
        // It may return what memcmp returns: only whether it is 0 counts.
        libc::memcmp as *const c_void,
    ];
    let memory = ALLOWED.into_iter().zip(memory);
    let mut offered = Vec::new();
    for (name, address) in host::symbols().into_iter().chain(memory) {
        let name = CString::new(name).map_err(|error| error.to_string())?;
        offered.push(Address {
            // SAFETY: O2; a reference to the name is returned, which the unit takes below.
            name: unsafe { (llvm.LLVMOrcLLJITMangleAndIntern)(jit, name.as_ptr()) },
            address: address as u64,
            flags: [EXPORTED | CALLABLE, 0],
        });
    }
    // SAFETY: O1; the unit takes the names, and the library takes the unit, unless it fails.
    unsafe {
        let unit = (llvm.LLVMOrcAbsoluteSymbols)(offered.as_mut_ptr(), offered.len());
        let defined = llvm.failed((llvm.LLVMOrcJITDylibDefine)(dylib, unit));
        if defined.is_err() {
            (llvm.LLVMOrcDisposeMaterializationUnit)(unit);
        }
        defined
    }
}

type Found = Vec<(String, u64)>;

/// What a lookup answers to.
struct Answer<'a> {
    llvm: &'a Llvm,
    to: mpsc::Sender<Found>,
}

/// Receives the result of a lookup.
unsafe extern "C" fn answered(
    failure: *mut Failure,
    found: *const Address,
    count: usize,
    to: *mut c_void,
) {
    // SAFETY: `lookup` passes an `Answer` that lives until this was called, once; F2; on success
    // there are `count` addresses, whose names last until this returns.
    unsafe {
        let answer = &*to.cast::<Answer<'_>>();
        if let Err(why) = answer.llvm.failed(failure) {
            return say(why);
        }
        let found = (0..count).map(|at| {
            let found = &*found.add(at);
            let name = (answer.llvm.LLVMOrcSymbolStringPoolEntryStr)(found.name);
            let name = CStr::from_ptr(name).to_string_lossy().into_owned();
            (name, found.address)
        });
        // The receiver waits in `lookup`.
        let _ = answer.to.send(found.collect());
    }
}

/// Links what the entries need, and returns their addresses.
fn lookup(
    llvm: &Llvm,
    (jit, session, dylib): (*mut Jit, *mut Session, *mut Dylib),
    names: &[String],
) -> Result<Found, Refused> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    // The linker expects each name once.
    let names: BTreeSet<&String> = names.iter().collect();
    let mut wanted = Vec::new();
    for name in names {
        let c_name = CString::new(name.as_str()).map_err(|_| Refused::Entry(name.clone()))?;
        // SAFETY: O2; the lookup takes the reference to the name.
        let name = unsafe { (llvm.LLVMOrcLLJITMangleAndIntern)(jit, c_name.as_ptr()) };
        wanted.push(Wanted { name, weak: 0 });
    }
    let order = [Searched {
        dylib,
        all: ALL_SYMBOLS,
    }];
    let (to, found) = mpsc::channel();
    let answer = Answer { llvm, to };
    // SAFETY: O1, O3: without threads of its own, the linker has answered when this returns.
    unsafe {
        (llvm.LLVMOrcExecutionSessionLookup)(
            session,
            STATIC,
            order.as_ptr(),
            order.len(),
            wanted.as_ptr(),
            wanted.len(),
            answered,
            (&raw const answer).cast_mut().cast(),
        );
    }
    found.try_recv().map_err(|_| unresolved(&said()))
}

/// Returns what the linker says: it names symbols that it has not found in brackets.
fn unresolved(said: &str) -> Refused {
    let list = said.split_once("Symbols not found: [");
    let name = list.and_then(|(_, list)| list.split([',', ']']).next());
    match name {
        Some(name) => Refused::Import(name.trim().to_owned()),
        None => wrong(said.to_owned()),
    }
}
