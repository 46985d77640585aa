//! The C interface of LLVM 22, as far as it is used, loaded at run time.
//!
//! # Invariants
//! F1 The declarations below are those of `llvm-c` 22. [`load`] accepts no other major version. The
//!    library stays loaded until the process ends: it has threads' variables and exit handlers.
//! F2 Strings and objects that LLVM returns are owned, and disposed of by an [`Owned`] or by
//!    [`Llvm::text`], unless a function documents that it keeps them.
//! F3 Callbacks do not unwind, and use only variables of their thread. LLVM compiles on the thread
//!    that calls it.
#![allow(non_snake_case, reason = "the names of LLVM")]

use crate::Refused;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::Sender;

/// The version whose interface this is.
const MAJOR: c_uint = super::LLVM as c_uint;
/// Names of the library: of Debian and others, since LLVM 18 and before.
const NAMES: [&str; 3] = ["libLLVM.so.22.1", "libLLVM-22.so", "libLLVM.so.22"];

macro_rules! opaque {
    ($($name:ident)*) => { $(pub(super) enum $name {})* };
}
opaque!(Context Diagnostic Buffer Module Value Type Target Machine Layout Options Failure
    Builder Jit Session Dylib Symbol Unit);

/// A symbol and its address.
#[repr(C)]
pub(super) struct Address {
    pub(super) name: *mut Symbol,
    pub(super) address: u64,
    pub(super) flags: [u8; 2],
}

/// What a lookup searches, and for what.
#[repr(C)]
pub(super) struct Searched {
    pub(super) dylib: *mut Dylib,
    pub(super) all: c_int,
}
#[repr(C)]
pub(super) struct Wanted {
    pub(super) name: *mut Symbol,
    pub(super) weak: c_int,
}

type Text = *const c_char;
type Found = unsafe extern "C" fn(*mut Failure, *const Address, usize, *mut c_void);
type Initialize = unsafe extern "C" fn();

/// Declares functions of LLVM as fields of [`Llvm`].
macro_rules! llvm {
    ($(fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// LLVM.
        pub(super) struct Llvm {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            library: ManuallyDrop<Library>,
        }

        impl Llvm {
            fn of(library: Library) -> Result<Llvm, String> {
                Ok(Llvm {
                    $($name: {
                        // SAFETY: F1.
                        let symbol = unsafe { library.get(stringify!($name)) };
                        *symbol.map_err(|_| concat!("it has no ", stringify!($name)))?
                    },)*
                    library: ManuallyDrop::new(library),
                })
            }
        }
    };
}

llvm! {
    fn LLVMInstallFatalErrorHandler(unsafe extern "C" fn(Text));
    fn LLVMDisposeMessage(*mut c_char);
    fn LLVMGetErrorMessage(*mut Failure) -> *mut c_char;
    fn LLVMDisposeErrorMessage(*mut c_char);

    fn LLVMContextCreate() -> *mut Context;
    fn LLVMContextDispose(*mut Context);
    fn LLVMContextSetDiagnosticHandler(
        *mut Context, unsafe extern "C" fn(*mut Diagnostic, *mut c_void), *mut c_void);
    fn LLVMGetDiagInfoDescription(*mut Diagnostic) -> *mut c_char;
    fn LLVMGetDiagInfoSeverity(*mut Diagnostic) -> c_int;
    fn LLVMCreateMemoryBufferWithMemoryRangeCopy(Text, usize, Text) -> *mut Buffer;
    fn LLVMGetBufferStart(*mut Buffer) -> Text;
    fn LLVMGetBufferSize(*mut Buffer) -> usize;
    fn LLVMDisposeMemoryBuffer(*mut Buffer);

    fn LLVMParseBitcodeInContext2(*mut Context, *mut Buffer, *mut *mut Module) -> c_int;
    fn LLVMDisposeModule(*mut Module);
    fn LLVMVerifyModule(*mut Module, c_int, *mut *mut c_char) -> c_int;
    fn LLVMGetTarget(*mut Module) -> Text;
    fn LLVMGetDataLayoutStr(*mut Module) -> Text;
    fn LLVMGetFirstFunction(*mut Module) -> *mut Value;
    fn LLVMGetNextFunction(*mut Value) -> *mut Value;
    fn LLVMGetFirstGlobal(*mut Module) -> *mut Value;
    fn LLVMGetNextGlobal(*mut Value) -> *mut Value;
    fn LLVMGetNamedFunction(*mut Module, Text) -> *mut Value;
    fn LLVMIsDeclaration(*mut Value) -> c_int;
    fn LLVMIsThreadLocal(*mut Value) -> c_int;
    fn LLVMGetIntrinsicID(*mut Value) -> c_uint;
    fn LLVMGetLinkage(*mut Value) -> c_int;
    fn LLVMGetValueName2(*mut Value, *mut usize) -> Text;
    fn LLVMGlobalGetValueType(*mut Value) -> *mut Type;
    fn LLVMGetReturnType(*mut Type) -> *mut Type;
    fn LLVMCountParamTypes(*mut Type) -> c_uint;
    fn LLVMGetParamTypes(*mut Type, *mut *mut Type);
    fn LLVMGetTypeKind(*mut Type) -> c_int;
    fn LLVMGetIntTypeWidth(*mut Type) -> c_uint;
    fn LLVMRemoveStringAttributeAtIndex(*mut Value, c_uint, Text, c_uint);

    fn LLVMGetDefaultTargetTriple() -> *mut c_char;
    fn LLVMGetHostCPUName() -> *mut c_char;
    fn LLVMGetHostCPUFeatures() -> *mut c_char;
    fn LLVMGetTargetFromTriple(Text, *mut *mut Target, *mut *mut c_char) -> c_int;
    fn LLVMCreateTargetMachine(
        *mut Target, Text, Text, Text, c_int, c_int, c_int) -> *mut Machine;
    fn LLVMDisposeTargetMachine(*mut Machine);
    fn LLVMCreateTargetDataLayout(*mut Machine) -> *mut Layout;
    fn LLVMCopyStringRepOfTargetData(*mut Layout) -> *mut c_char;
    fn LLVMDisposeTargetData(*mut Layout);
    fn LLVMTargetMachineEmitToMemoryBuffer(
        *mut Machine, *mut Module, c_int, *mut *mut c_char, *mut *mut Buffer) -> c_int;
    fn LLVMCreatePassBuilderOptions() -> *mut Options;
    fn LLVMDisposePassBuilderOptions(*mut Options);
    fn LLVMRunPasses(*mut Module, Text, *mut Machine, *mut Options) -> *mut Failure;

    fn LLVMOrcCreateLLJIT(*mut *mut Jit, *mut Builder) -> *mut Failure;
    fn LLVMOrcDisposeLLJIT(*mut Jit) -> *mut Failure;
    fn LLVMOrcLLJITGetExecutionSession(*mut Jit) -> *mut Session;
    fn LLVMOrcLLJITMangleAndIntern(*mut Jit, Text) -> *mut Symbol;
    fn LLVMOrcLLJITAddObjectFile(*mut Jit, *mut Dylib, *mut Buffer) -> *mut Failure;
    fn LLVMOrcExecutionSessionSetErrorReporter(
        *mut Session, unsafe extern "C" fn(*mut c_void, *mut Failure), *const c_void);
    fn LLVMOrcExecutionSessionCreateBareJITDylib(*mut Session, Text) -> *mut Dylib;
    fn LLVMOrcAbsoluteSymbols(*mut Address, usize) -> *mut Unit;
    fn LLVMOrcJITDylibDefine(*mut Dylib, *mut Unit) -> *mut Failure;
    fn LLVMOrcDisposeMaterializationUnit(*mut Unit);
    fn LLVMOrcExecutionSessionLookup(
        *mut Session, c_int, *const Searched, usize, *const Wanted, usize, Found, *mut c_void);
    fn LLVMOrcSymbolStringPoolEntryStr(*mut Symbol) -> Text;
}

/// Tells the thread that waits for this one why LLVM has failed.
type Answer = Box<dyn FnOnce(Refused)>;

thread_local! {
    /// What LLVM has said on this thread while it compiled code.
    static SAID: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    /// Who waits for this thread, if LLVM fails.
    static ANSWER: RefCell<Option<Answer>> = const { RefCell::new(None) };
}

/// LLVM has failed in this process, or does not end: a thread that never goes on may hold its
/// locks.
static BROKEN: AtomicBool = AtomicBool::new(false);

/// Returns whether LLVM has failed and must not be called again.
pub(super) fn is_broken() -> bool {
    // ORDERING: Relaxed: the flag alone; a call that misses it is refused or fails likewise.
    BROKEN.load(Relaxed)
}

/// Notes that LLVM must not be called again.
pub(super) fn give_up() {
    // ORDERING: Relaxed: as in `is_broken`.
    BROKEN.store(true, Relaxed);
}

/// Prepares this thread for a fatal error.
pub(super) fn guard<T: 'static>(answer: &Sender<Result<T, Refused>>) {
    let answer = answer.clone();
    // Nobody waits only if the thread that asked was ended by a panic.
    ANSWER.set(Some(Box::new(move |refused| {
        let _ = answer.send(Err(refused));
    })));
}

/// Returns what was said on this thread since the last call.
pub(super) fn said() -> String {
    SAID.take().join("; ")
}

pub(super) fn say(text: String) {
    SAID.with_borrow_mut(|said| said.push(text));
}

/// Called by LLVM before it ends the process. On a thread that compiles, it does not return.
unsafe extern "C" fn fatal(reason: Text) {
    let Some(answer) = ANSWER.take() else {
        return;
    };
    // SAFETY: F2: LLVM's string lasts until this function returns.
    let reason = unsafe { CStr::from_ptr(reason) }.to_string_lossy();
    give_up(); // The answer, sent below, makes it visible to the thread that waits.
    answer(Refused::Invalid(format!("LLVM failed: {reason}")));
    loop {
        std::thread::park();
    }
}

/// Receives what LLVM has to say about code.
pub(super) unsafe extern "C" fn diagnose(said: *mut Diagnostic, llvm: *mut c_void) {
    // SAFETY: `module` passes an `Llvm` that outlives the context; F2.
    unsafe {
        let llvm = &*llvm.cast::<Llvm>();
        let is_error = (llvm.LLVMGetDiagInfoSeverity)(said) == 0;
        let text = llvm.text((llvm.LLVMGetDiagInfoDescription)(said));
        if is_error {
            say(text);
        }
    }
}

/// Receives errors of the linker.
pub(super) unsafe extern "C" fn report(llvm: *mut c_void, failure: *mut Failure) {
    // SAFETY: `link` passes an `Llvm` that outlives the session; F2.
    let text = unsafe { (*llvm.cast::<Llvm>()).failed(failure) };
    text.map_or_else(say, |()| {});
}

impl Llvm {
    /// Takes a string of LLVM's.
    ///
    /// # Safety
    /// F2: it is null, or owned and not used any more.
    pub(super) unsafe fn text(&self, text: *mut c_char) -> String {
        if text.is_null() {
            return String::new();
        }
        // SAFETY: the caller's promise.
        unsafe {
            let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
            (self.LLVMDisposeMessage)(text);
            copy
        }
    }

    /// Takes a failure, and returns its text. Null is success.
    ///
    /// # Safety
    /// F2: it is null, or owned and not used any more.
    pub(super) unsafe fn failed(&self, failure: *mut Failure) -> Result<(), String> {
        if failure.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe {
            let text = (self.LLVMGetErrorMessage)(failure);
            let copy = CStr::from_ptr(text).to_string_lossy().into_owned();
            (self.LLVMDisposeErrorMessage)(text);
            Err(copy)
        }
    }
}

/// An object of LLVM, disposed of when it is dropped.
pub(super) struct Owned<T>(*mut T, unsafe extern "C" fn(*mut T));

impl<T> Owned<T> {
    /// # Safety
    /// F2: the object is owned, and this function disposes of it.
    pub(super) unsafe fn new(object: *mut T, dispose: unsafe extern "C" fn(*mut T)) -> Owned<T> {
        Owned(object, dispose)
    }

    pub(super) fn get(&self) -> *mut T {
        self.0
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the promise of `new`.
        unsafe { (self.1)(self.0) }
    }
}

/// Loads LLVM from this folder or file, or from where the system's loader looks.
pub(super) fn load(at: Option<&Path>) -> Result<Llvm, Refused> {
    let paths: Vec<PathBuf> = match at {
        Some(folder) if folder.is_dir() => NAMES.iter().map(|name| folder.join(name)).collect(),
        Some(file) => vec![file.to_owned()],
        None => NAMES.iter().map(PathBuf::from).collect(),
    };
    let mut causes = Vec::new();
    for path in &paths {
        // SAFETY: F1: loading LLVM runs its initialisers.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let loaded = library.map_err(|error| match std::error::Error::source(&error) {
            Some(source) => source.to_string(),
            None => error.to_string(),
        });
        match loaded.and_then(check) {
            Ok(llvm) => return Ok(llvm),
            Err(cause) => causes.push(format!("{}: {cause}", path.display())),
        }
    }
    Err(Refused::NoEngine(format!(
        "LLVM bitcode needs the library of LLVM {MAJOR}: install it (Debian: libllvm22), or name \
         its folder (`Policy::llvm` of this unit). Looked for {}",
        causes.join("; ")
    )))
}

/// Checks the version, and prepares LLVM for this processor.
fn check(library: Library) -> Result<Llvm, String> {
    type Version = unsafe extern "C" fn(*mut c_uint, *mut c_uint, *mut c_uint);
    // SAFETY: the type of this function since it exists (LLVM 16).
    let version = unsafe { library.get::<Version>("LLVMGetVersion") };
    let version = version.map_err(|_| "it is no LLVM, or an old one")?;
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: F1; valid pointers.
    unsafe { version(&mut major, &mut minor, &mut patch) };
    if major != MAJOR {
        return Err(format!("it is LLVM {major}.{minor}.{patch}"));
    }
    let llvm = Llvm::of(library)?;
    let target = match std::env::consts::ARCH {
        "x86_64" => "X86",
        "aarch64" => "AArch64",
        other => return Err(format!("there is no engine for {other}")),
    };
    // The initialisers are not made for several threads.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for part in [
        "TargetInfo",
        "Target",
        "TargetMC",
        "AsmParser",
        "AsmPrinter",
    ] {
        let name = format!("LLVMInitialize{target}{part}");
        // SAFETY: F1.
        let initialize = unsafe { llvm.library.get::<Initialize>(&*name) };
        let initialize = initialize.map_err(|_| format!("it is built without {target}"))?;
        // SAFETY: F1; the lock is held.
        unsafe { initialize() };
    }
    // SAFETY: F1, F3.
    unsafe { (llvm.LLVMInstallFatalErrorHandler)(fatal) };
    Ok(llvm)
}
