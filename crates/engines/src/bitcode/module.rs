//! From bitcode to an object of machine code.
//!
//! # Invariants
//! M1 The context, the module and the machine belong to one call of [`compile`], and are dropped in
//!    the reverse order in which they were made.
//! M2 Functions, globals and types are those of that module, used while it lives; texts of LLVM's
//!    objects are copied at once.

use super::ALLOWED;
use super::ffi::{Context, Llvm, Machine, Module, Owned, Value, diagnose, said};
use super::header::unwrapped;
use crate::Refused;
use crate::native::host;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::null_mut;

// Numbers of `llvm-c`.
const AGGRESSIVE: c_int = 3;
const PIC: c_int = 2;
const SMALL: c_int = 3;
const OBJECT: c_int = 1;
const RETURN_STATUS: c_int = 2;
const EXTERNAL: c_int = 0;
const INTEGER: c_int = 8;
const POINTER: c_int = 12;
const FUNCTION: u32 = u32::MAX;

fn invalid(text: String) -> Refused {
    Refused::Invalid(text)
}

/// Checks bitcode and compiles it, for the processor of this machine.
pub(super) fn compile(llvm: &Llvm, code: &[u8], entries: &[String]) -> Result<Vec<u8>, Refused> {
    let context = context(llvm);
    let module = checked(llvm, &context, code, entries)?;
    check_triple(llvm, module.get())?;
    let machine = machine(llvm).map_err(Refused::NoEngine)?;
    check_layout(llvm, module.get(), machine.get())?;
    optimise(llvm, &module, &machine)?;
    emit(llvm, &module, &machine)
}

/// Checks bitcode that was compiled for Linux on this processor, as far as that needs no compiler
/// for it.
pub(super) fn check(
    llvm: &Llvm,
    code: &[u8],
    entries: &[String],
    processor: &str,
) -> Result<(), Refused> {
    let context = context(llvm);
    let module = checked(llvm, &context, code, entries)?;
    // SAFETY: M2.
    let triple = unsafe { copied((llvm.LLVMGetTarget)(module.get())) };
    match platform(&triple) == (processor, true) {
        true => Ok(()),
        false => Err(invalid(format!(
            "it was compiled for \"{triple}\", not for Linux on {processor}"
        ))),
    }
}

fn context(llvm: &Llvm) -> Owned<Context> {
    // SAFETY: F2, M1.
    let context: Owned<Context> =
        unsafe { Owned::new((llvm.LLVMContextCreate)(), llvm.LLVMContextDispose) };
    let to = (&raw const *llvm).cast_mut().cast();
    // SAFETY: F3; `llvm` outlives the context.
    unsafe { (llvm.LLVMContextSetDiagnosticHandler)(context.get(), diagnose, to) };
    context
}

/// Reads bitcode, and checks what it imports and that it has these entries.
fn checked(
    llvm: &Llvm,
    context: &Owned<Context>,
    code: &[u8],
    entries: &[String],
) -> Result<Owned<Module>, Refused> {
    let module = parse(llvm, context, unwrapped(code)?)?;
    check_symbols(llvm, module.get())?;
    for entry in entries {
        check_entry(llvm, module.get(), entry)?;
    }
    Ok(module)
}

fn parse(llvm: &Llvm, context: &Owned<Context>, code: &[u8]) -> Result<Owned<Module>, Refused> {
    let mut module = null_mut();
    // SAFETY: F2; the buffer is a copy, and is not kept by the parser.
    let failed = unsafe {
        let (start, name) = (code.as_ptr().cast(), c"code".as_ptr());
        let buffer = (llvm.LLVMCreateMemoryBufferWithMemoryRangeCopy)(start, code.len(), name);
        let buffer = Owned::new(buffer, llvm.LLVMDisposeMemoryBuffer);
        (llvm.LLVMParseBitcodeInContext2)(context.get(), buffer.get(), &mut module) != 0
    };
    if failed || module.is_null() {
        return Err(invalid(format!("LLVM cannot read it: {}", said())));
    }
    // SAFETY: F2, M1.
    let module = unsafe { Owned::new(module, llvm.LLVMDisposeModule) };
    let mut why = null_mut();
    // SAFETY: F2, M1.
    let (failed, why) = unsafe {
        let failed = (llvm.LLVMVerifyModule)(module.get(), RETURN_STATUS, &mut why) != 0;
        (failed, llvm.text(why))
    };
    match failed {
        true => Err(invalid(format!("LLVM refuses it: {}", why.trim()))),
        false => Ok(module),
    }
}

/// Copies a text that an object of LLVM owns.
///
/// # Safety
/// M2.
unsafe fn copied(text: *const c_char) -> String {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// Returns the processor and the system of a triple.
fn platform(triple: &str) -> (&str, bool) {
    let processor = match triple.split('-').next() {
        Some("arm64") => "aarch64",
        processor => processor.unwrap_or(""),
    };
    (processor, triple.contains("linux"))
}

fn check_triple(llvm: &Llvm, module: *mut Module) -> Result<(), Refused> {
    // SAFETY: M2, F2.
    let (triple, this) = unsafe {
        let triple = copied((llvm.LLVMGetTarget)(module));
        (triple, llvm.text((llvm.LLVMGetDefaultTargetTriple)()))
    };
    match platform(&triple) == platform(&this) {
        true => Ok(()),
        false => Err(invalid(format!(
            "it was compiled for \"{triple}\", and this machine is \"{this}\""
        ))),
    }
}

/// Returns the functions or the global variables of a module.
fn all(
    first: *mut Value,
    next: unsafe extern "C" fn(*mut Value) -> *mut Value,
) -> impl Iterator<Item = *mut Value> {
    let some = |value: *mut Value| (!value.is_null()).then_some(value);
    // SAFETY: M2.
    std::iter::successors(some(first), move |value| some(unsafe { next(*value) }))
}

fn name(llvm: &Llvm, value: *mut Value) -> String {
    let mut len = 0;
    // SAFETY: M2: the name has that length.
    let name = unsafe {
        let start = (llvm.LLVMGetValueName2)(value, &mut len);
        std::slice::from_raw_parts(start.cast::<u8>(), len)
    };
    String::from_utf8_lossy(name).into_owned()
}

/// Checks that the module uses only what is offered, and prepares its functions for the processor
/// of this machine.
fn check_symbols(llvm: &Llvm, module: *mut Module) -> Result<(), Refused> {
    let offered = host::symbols();
    let is_offered =
        |name: &str| ALLOWED.contains(&name) || offered.iter().any(|(offered, _)| *offered == name);
    // SAFETY: M2.
    let (function, global) = unsafe {
        (
            (llvm.LLVMGetFirstFunction)(module),
            (llvm.LLVMGetFirstGlobal)(module),
        )
    };
    for function in all(function, llvm.LLVMGetNextFunction) {
        // SAFETY: M2.
        let (is_declared, intrinsic) = unsafe {
            let is_declared = (llvm.LLVMIsDeclaration)(function) != 0;
            (is_declared, (llvm.LLVMGetIntrinsicID)(function))
        };
        let name = name(llvm, function);
        if is_declared && intrinsic == 0 && !is_offered(&name) {
            return Err(Refused::Import(name));
        }
        // The processor that the compiler was told would take precedence over this one.
        for attribute in [c"target-cpu", c"target-features", c"tune-cpu"] {
            let len = attribute.count_bytes() as u32;
            // SAFETY: M2; a string of this length.
            unsafe {
                let remove = llvm.LLVMRemoveStringAttributeAtIndex;
                remove(function, FUNCTION, attribute.as_ptr(), len);
            }
        }
    }
    for global in all(global, llvm.LLVMGetNextGlobal) {
        let name = name(llvm, global);
        // SAFETY: M2.
        let (is_declared, is_local) = unsafe {
            let is_declared = (llvm.LLVMIsDeclaration)(global) != 0;
            (is_declared, (llvm.LLVMIsThreadLocal)(global) != 0)
        };
        if is_declared {
            return Err(Refused::Import(name));
        }
        let is_run_at_start = name == "llvm.global_ctors" || name == "llvm.global_dtors";
        if is_local || is_run_at_start {
            return Err(invalid(format!(
                "it has variables of threads, or code that runs at its start: {name}"
            )));
        }
    }
    Ok(())
}

/// Checks that there is an entry of this name, by its type.
fn check_entry(llvm: &Llvm, module: *mut Module, entry: &str) -> Result<(), Refused> {
    let refused = || Refused::Entry(entry.to_owned());
    let name = CString::new(entry).map_err(|_| refused())?;
    // SAFETY: M2; a function type has as many parameters as it counts.
    let fits = unsafe {
        let function = (llvm.LLVMGetNamedFunction)(module, name.as_ptr());
        if function.is_null()
            || (llvm.LLVMIsDeclaration)(function) != 0
            || (llvm.LLVMGetLinkage)(function) != EXTERNAL
        {
            return Err(refused());
        }
        let of = (llvm.LLVMGlobalGetValueType)(function);
        let is_i32 =
            |of| (llvm.LLVMGetTypeKind)(of) == INTEGER && (llvm.LLVMGetIntTypeWidth)(of) == 32;
        let mut parameters = [null_mut(); 2];
        (llvm.LLVMCountParamTypes)(of) == 2 && {
            (llvm.LLVMGetParamTypes)(of, parameters.as_mut_ptr());
            let is_pointer = (llvm.LLVMGetTypeKind)(parameters[0]) == POINTER;
            is_pointer && is_i32(parameters[1]) && is_i32((llvm.LLVMGetReturnType)(of))
        }
    };
    fits.then_some(()).ok_or_else(refused)
}

/// Returns a description of this machine's processor.
fn machine(llvm: &Llvm) -> Result<Owned<Machine>, String> {
    let (mut target, mut why) = (null_mut(), null_mut());
    // SAFETY: F2: the texts are owned, and disposed of with the guards.
    unsafe {
        let own = |text| Owned::new(text, llvm.LLVMDisposeMessage);
        let triple = own((llvm.LLVMGetDefaultTargetTriple)());
        let processor = own((llvm.LLVMGetHostCPUName)());
        let features = own((llvm.LLVMGetHostCPUFeatures)());
        if (llvm.LLVMGetTargetFromTriple)(triple.get(), &mut target, &mut why) != 0 {
            return Err(format!(
                "LLVM does not know this machine: {}",
                llvm.text(why)
            ));
        }
        let (triple, processor, features) = (triple.get(), processor.get(), features.get());
        let create = llvm.LLVMCreateTargetMachine;
        let machine = create(target, triple, processor, features, AGGRESSIVE, PIC, SMALL);
        match machine.is_null() {
            true => Err("LLVM cannot compile for this machine".into()),
            false => Ok(Owned::new(machine, llvm.LLVMDisposeTargetMachine)),
        }
    }
}

fn check_layout(llvm: &Llvm, module: *mut Module, machine: *mut Machine) -> Result<(), Refused> {
    // SAFETY: M2, F2.
    let (layout, this) = unsafe {
        let this = (llvm.LLVMCreateTargetDataLayout)(machine);
        let this = Owned::new(this, llvm.LLVMDisposeTargetData);
        let layout = copied((llvm.LLVMGetDataLayoutStr)(module));
        (
            layout,
            llvm.text((llvm.LLVMCopyStringRepOfTargetData)(this.get())),
        )
    };
    match layout == this {
        true => Ok(()),
        false => Err(invalid(format!(
            "its data layout is \"{layout}\", and that of this machine is \"{this}\""
        ))),
    }
}

fn optimise(llvm: &Llvm, module: &Owned<Module>, machine: &Owned<Machine>) -> Result<(), Refused> {
    // SAFETY: M1, F2.
    let done = unsafe {
        let options = (llvm.LLVMCreatePassBuilderOptions)();
        let options = Owned::new(options, llvm.LLVMDisposePassBuilderOptions);
        let passes = c"default<O3>".as_ptr();
        llvm.failed((llvm.LLVMRunPasses)(
            module.get(),
            passes,
            machine.get(),
            options.get(),
        ))
    };
    done.map_err(|why| invalid(format!("LLVM cannot optimise it: {why}")))
}

fn emit(llvm: &Llvm, module: &Owned<Module>, machine: &Owned<Machine>) -> Result<Vec<u8>, Refused> {
    let (mut why, mut buffer) = (null_mut(), null_mut());
    // SAFETY: M1, F2.
    let (failed, why) = unsafe {
        let emit = llvm.LLVMTargetMachineEmitToMemoryBuffer;
        let failed = emit(machine.get(), module.get(), OBJECT, &mut why, &mut buffer) != 0;
        (failed, llvm.text(why))
    };
    let said = said();
    if failed || !said.is_empty() {
        let text = format!("LLVM cannot compile it: {why}{said}");
        if !failed {
            // SAFETY: F2.
            unsafe { (llvm.LLVMDisposeMemoryBuffer)(buffer) };
        }
        return Err(invalid(text));
    }
    // SAFETY: F2: a buffer has this start and size; it is copied before it is disposed of.
    unsafe {
        let buffer = Owned::new(buffer, llvm.LLVMDisposeMemoryBuffer);
        let size = (llvm.LLVMGetBufferSize)(buffer.get());
        let start: *const u8 = (llvm.LLVMGetBufferStart)(buffer.get()).cast();
        Ok(std::slice::from_raw_parts(start, size).to_vec())
    }
}
