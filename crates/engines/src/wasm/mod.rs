//! WebAssembly, by wasmtime: the default engine for moved code, and the only one with a sandbox.
//!
//! # The memory of a kernel
//! A kernel imports its memory, `samite.memory`, and declares how much it needs for itself. The
//! granted segments follow it, mapped ([`window`]): a load or store there costs what it costs in
//! native code. The rest of the 4 GiB is not accessible.
//!
//! ```text
//!   0            own                 end of the memory     base(0)        base(1)
//!   | the kernel's | payload of the call | (one page free) | segment 0 ... | segment 1 ... | traps
//!     data, stack                                            shared with all units
//! ```
//!
//! * A segment is mapped if it consists of whole pages: its address and its length are multiples
//!   of the size of a page. One whose length is a multiple of 2 MiB is.
//!   Others, and those beyond [`WINDOWS_MAX`], are reached by the functions `load64`, `copy_in` and
//!   so on (`imports`), which also check each access.
//! * A segment granted for reading is mapped for reading: the processor refuses a store.
//! * The mapping follows the grants of the unit, not those of the call. A call whose grants were
//!   narrowed uses an instance that maps only these.
//! * Words that other units change meanwhile are accessed by the atomic instructions of
//!   WebAssembly, or by the functions. The compiler may merge plain loads.
//!
//! # Limits
//! A call has a number of ticks of 1 ms ([`ticker`]); the compiled code looks at them in loops and
//! calls, and functions that copy do so each time. Without a thread that ticks, no kernel runs. Its
//! memory does not grow: a kernel that asks for more is stopped. Its stack has 128 KiB: a thread
//! that has less than 256 KiB left runs no kernel. A module that would take the compiler too much
//! time or memory is refused before it is compiled ([`cost`]).
//!
//! # Cost
//! A call: 13 ns more than that of a function (4 here, 5 in wasmtime, 4 in compiled code), one copy
//! of the payload in, one of each effect out. An instance: about 25 us with one window; its first
//! call takes 5 us more than others, most of them for the first page of a window, or 0.4 us after
//! [`Instance::warm_up`]. Compilation: 0.2 ms for a small kernel.

mod cost;
mod entries;
mod imports;
mod ticker;
#[allow(unsafe_code, reason = "maps granted segments")]
mod window;

use crate::{Code, Context, Engine, Grants, Instance, Kind, PAYLOAD_MAX, Refused, Trap};
pub use entries::entries;
use imports::{Grows, MODULE, State};
use std::sync::Arc;
use ticker::Ticker;
use wasmparser::WasmFeatures;
use wasmtime::{Config, InstancePre, Linker, Memory, MemoryType, Module, Store, TypedFunc};

/// Longest module, in bytes.
pub const CODE_MAX: u64 = 1 << 20;
/// The most memory that a kernel may declare for itself, in pages of 64 KiB.
const OWN_PAGES_MAX: u64 = 256;
/// Granted segments are mapped below this address.
pub const WINDOWS_MAX: u64 = 0xf000_0000;
/// A page of WebAssembly.
const PAGE: u64 = 64 << 10;
/// Bytes of a kernel's stack.
const STACK: usize = 128 << 10;
/// What the stack of a thread must have left when a call begins: that of the kernel, and that of
/// the functions which the kernel calls.
const STACK_LEFT_MIN: usize = 256 << 10;

/// The engine; see the module's documentation.
#[derive(Clone)]
pub struct Wasm {
    engine: wasmtime::Engine,
    linker: Arc<Linker<State>>,
    ticker: Arc<Ticker>,
    left_behind: Arc<window::LeftBehind>,
}

impl std::fmt::Debug for Wasm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wasm")
    }
}

impl Wasm {
    /// Creates the engine.
    ///
    /// # Errors
    /// [`Refused::NoEngine`] if this processor has no compiler.
    pub fn new() -> Result<Wasm, Refused> {
        let mut config = Config::new();
        config.epoch_interruption(true);
        config.max_wasm_stack(STACK);
        // With threads, which are for atomic instructions: memory is not shared.
        config.wasm_features(WasmFeatures::all(), false);
        config.wasm_features(cost::FEATURES, true);
        // What nobody reads here would take a part of the time of the compiler.
        config.wasm_backtrace_max_frames(None);
        config.generate_address_map(false);
        config.native_unwind_info(false);
        // Windows lie in the address space behind the memory (`window`).
        config.memory_reservation(window::SPACE as u64);
        config.memory_may_move(false);
        let none = |error: wasmtime::Error| {
            Refused::NoEngine(format!("WebAssembly cannot be compiled here: {error:#}"))
        };
        let engine = wasmtime::Engine::new(&config).map_err(none)?;
        let linker = imports::linker(&engine).map_err(none)?;
        Ok(Wasm {
            ticker: Arc::new(Ticker::new(engine.clone())),
            linker: Arc::new(linker),
            left_behind: Arc::default(),
            engine,
        })
    }
}

impl Engine for Wasm {
    fn kind(&self) -> Kind {
        Kind::Wasm
    }

    fn prepare(&self, code: &[u8], entries: &[String]) -> Result<Box<dyn Code>, Refused> {
        if code.len() as u64 > CODE_MAX {
            let (bytes, most) = (code.len() as u64, CODE_MAX);
            return Err(Refused::TooLong { bytes, most });
        }
        let known = entries::known(code)?;
        if let Some(missing) = entries.iter().find(|entry| !known.entries.contains(entry)) {
            return Err(Refused::Entry(missing.clone()));
        }
        let module = Module::new(&self.engine, code);
        let module = module.map_err(|error| Refused::Invalid(format!("{error:#}")))?;
        Ok(Box::new(Prepared {
            wasm: self.clone(),
            module,
            own: known.own,
            entries: entries.to_vec(),
        }))
    }
}

/// Compiled code.
struct Prepared {
    wasm: Wasm,
    module: Module,
    /// Pages that the kernel has for itself.
    own: u64,
    entries: Vec<String>,
}

impl Prepared {
    fn start(&self, grants: &Grants) -> wasmtime::Result<Running> {
        // No code of the kernel runs yet, so the clock need not.
        may_begin(&self.wasm.ticker).map_err(wasmtime::Error::msg)?;
        let engine = &self.wasm.engine;
        let own = self.own * PAGE;
        let end = own + PAYLOAD_MAX;
        let windows = window::plan(grants, end + PAGE);
        if !windows.is_empty() && !self.wasm.left_behind.may_map() {
            return Err(wasmtime::Error::msg(
                "segments could not be mapped in this process too often: it lacks address space or mappings (vm.max_map_count); restart it",
            ));
        }
        let mut store = Store::new(engine, State::new(self.wasm.ticker.clock()));
        let pages = end.div_ceil(PAGE) as u32;
        let memory = Memory::new(&mut store, MemoryType::new(pages, Some(pages)))?;
        // From now on: the kernel has this memory, and no other.
        store.limiter(|state| &mut state.limits);
        let (mut store, private) =
            window::map(store, memory, end, &windows, &self.wasm.left_behind)?;
        let state = store.data_mut();
        state.windows = windows;
        state.private = Some(private);
        let mut linker = (*self.wasm.linker).clone();
        linker.define(&mut store, MODULE, "memory", memory)?;
        store.set_epoch_deadline(ticker::TICKS_OF_START);
        let pre: InstancePre<State> = linker.instantiate_pre(&self.module)?;
        let instance = pre.instantiate(&mut store)?;
        let entries = (self.entries.iter())
            .map(|entry| instance.get_typed_func(&mut store, entry))
            .collect::<wasmtime::Result<_>>()?;
        Ok(Running {
            payload: own,
            memory: u64::from(pages) * PAGE,
            entries,
            ticker: self.wasm.ticker.clone(),
            store,
        })
    }
}

impl Code for Prepared {
    fn instance(&self, grants: &Grants) -> Result<Box<dyn Instance>, Trap> {
        let running = self.start(grants);
        let running = running.map_err(|error| Trap::Other(format!("{error:#}")))?;
        Ok(Box::new(running))
    }

    fn bytes(&self) -> u64 {
        let image = self.module.image_range();
        (image.end as usize - image.start as usize) as u64
    }
}

/// Fails if an instance may not be made on this thread now.
#[inline]
fn may_begin(ticker: &Ticker) -> Result<(), &'static str> {
    // wasmtime puts the stack of a kernel below the caller, and does not look where that ends.
    match samite_mem::stack_left() {
        Some(left) if left >= STACK_LEFT_MIN => {}
        Some(_) => {
            return Err("the thread that runs kernels here has less than 256 KiB of stack left");
        }
        None => return Err("it is not known how much stack the thread that runs kernels here has"),
    }
    match ticker.is_own() {
        true => Ok(()),
        // A fork has no lease on the segments that are mapped (`window`, W4).
        false => Err("this process is a fork, and has none of the segments"),
    }
}

/// Fails if a kernel may not run on this thread now.
#[inline]
fn may_run(ticker: &Ticker) -> Result<(), &'static str> {
    may_begin(ticker)?;
    match ticker.tick() {
        true => Ok(()),
        false => Err("no thread can be started that would stop a kernel in time"),
    }
}

/// An instance.
struct Running {
    store: Store<State>,
    entries: Vec<TypedFunc<(u32, u32), i32>>,
    /// Where the payload of a call lies.
    payload: u64,
    /// Bytes of memory, without windows.
    memory: u64,
    ticker: Arc<Ticker>,
}

impl Instance for Running {
    fn memory(&self) -> u64 {
        self.memory
    }

    fn warm_up(&mut self) {
        self.ticker.tick();
        let state = self.store.data();
        let Some(private) = &state.private else {
            return;
        };
        private.populate(self.payload + PAGE);
        let mut left = window::POPULATED_MAX;
        for window in &state.windows {
            left -= private.populate_window(window, left);
        }
    }

    #[inline]
    fn call(
        &mut self,
        entry: u8,
        context: Box<Context>,
        payload: &[u8],
    ) -> (Box<Context>, Result<(), Trap>) {
        let Some(entry) = self.entries.get(entry as usize) else {
            return (context, Err(Trap::NoEntry(entry as u32)));
        };
        if let Err(why) = may_run(&self.ticker) {
            return (context, Err(Trap::Other(why.into())));
        }
        let limits = context.limits();
        let ticks = ticker::ticks(limits.run.min(limits.time));
        self.store.set_epoch_deadline(ticks);
        let state = self.store.data_mut();
        let written = match &state.private {
            Some(private) => private.write(self.payload, payload),
            None => false,
        };
        if !written {
            let (bytes, most) = (payload.len() as u64, PAYLOAD_MAX);
            return (context, Err(Trap::Payload { bytes, most }));
        }
        state.begin(context, ticks);
        let ran = entry.call(&mut self.store, (self.payload as u32, payload.len() as u32));
        let state = self.store.data_mut();
        let context = state.context.take();
        let Some(context) = context else {
            unreachable!("the functions of a kernel leave the context where it is")
        };
        let ended = match ran {
            Ok(0) => Ok(()),
            Ok(code) => Err(state.trap.take().unwrap_or(Trap::Failed {
                code,
                text: String::new(),
            })),
            Err(error) => Err(state.trap.take().unwrap_or_else(|| trap_of(&error))),
        };
        (context, ended)
    }
}

/// Returns why compiled code was stopped.
#[cold]
fn trap_of(error: &wasmtime::Error) -> Trap {
    use wasmtime::Trap as Wasm;
    match error.downcast_ref::<Wasm>() {
        Some(Wasm::Interrupt) => Trap::Time,
        Some(Wasm::StackOverflow) => Trap::Stack,
        Some(Wasm::MemoryOutOfBounds) => {
            let text = format!("{error:?}");
            let fault = text.lines().find(|line| line.contains("memory fault"));
            let fault =
                fault.map(|line| line.trim().trim_start_matches(|c: char| !c.is_alphabetic()));
            Trap::Memory(fault.unwrap_or("out of bounds").to_owned())
        }
        Some(other) => Trap::Other(other.to_string()),
        None => match error.downcast_ref::<Grows>() {
            Some(grows) => Trap::Memory(grows.to_string()),
            None => Trap::Other(format!("{error:#}")),
        },
    }
}

#[cfg(test)]
mod figures;
#[cfg(test)]
mod tests;
