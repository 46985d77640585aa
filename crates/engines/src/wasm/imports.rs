//! The functions that a kernel imports from `samite`: all numbers are plain integers, addresses are
//! offsets in its memory.
//!
//! | function | does |
//! |---|---|
//! | `me() -> i32`, `units() -> i32`, `origin() -> i32`, `hops() -> i32` | where it runs, how many units there are, who called first, how often it may still move |
//! | `base(grant) -> i32` | address of a granted segment in its memory; 0 if it is not mapped |
//! | `len(grant) -> i64` | length of a granted segment |
//! | `load64(grant, offset: i64) -> i64`, `store64(grant, offset, value)` | an aligned word |
//! | `add64(grant, offset, value) -> i64`, `cas64(grant, offset, expected, new) -> i64` | atomics; return what was there |
//! | `copy_in(grant, offset, to, len)`, `copy_out(grant, offset, from, len)` | bytes of a segment to its own memory, and back |
//! | `forward(unit, entry, from, len)` | goes on there when this call has returned |
//! | `spawn(unit, entry, from, len)` | a further call |
//! | `reply(from, len)` | ends the call at its origin |
//! | `fail(code, from, len)` | ends the call at its origin, with an error and a text |
//! | `define(from, len) -> i32`, `inject(unit, code, entry, from, len)` | makes new code, and calls it |
//!
//! A function that is called wrongly stops the kernel: the trap says why.

use super::ticker::Clock;
use super::window::{Private, Window};
use crate::{Context, PAYLOAD_MAX, Trap};
use wasmparser::ValType::{self, I32, I64};
use wasmtime::{Caller, Engine, Linker, ResourceLimiter, StoreLimits, StoreLimitsBuilder};

/// The module from which kernels import.
pub(super) const MODULE: &str = "samite";

/// A function by its name, with the types of its parameters and results.
type Offered = (&'static str, &'static [ValType], &'static [ValType]);

/// What [`linker`] offers: a module is checked before it is compiled, and without an engine.
pub(super) const OFFERED: [Offered; 18] = [
    ("me", &[], &[I32]),
    ("units", &[], &[I32]),
    ("origin", &[], &[I32]),
    ("hops", &[], &[I32]),
    ("base", &[I32], &[I32]),
    ("len", &[I32], &[I64]),
    ("load64", &[I32, I64], &[I64]),
    ("store64", &[I32, I64, I64], &[]),
    ("add64", &[I32, I64, I64], &[I64]),
    ("cas64", &[I32, I64, I64, I64], &[I64]),
    ("copy_in", &[I32, I64, I32, I32], &[]),
    ("copy_out", &[I32, I64, I32, I32], &[]),
    ("forward", &[I32, I32, I32, I32], &[]),
    ("spawn", &[I32, I32, I32, I32], &[]),
    ("reply", &[I32, I32], &[]),
    ("fail", &[I32, I32, I32], &[]),
    ("define", &[I32, I32], &[I32]),
    ("inject", &[I32, I32, I32, I32, I32], &[]),
];

/// The most elements of a table of functions.
const TABLE_MAX: usize = 4096;

/// The data of a store.
pub(super) struct State {
    /// The context of the running call.
    pub(super) context: Option<Box<Context>>,
    /// Why it was stopped.
    pub(super) trap: Option<Trap>,
    /// The memory of the kernel.
    pub(super) private: Option<Private>,
    pub(super) windows: Vec<Window>,
    /// Bytes on their way between the two.
    scratch: Vec<u8>,
    clock: Clock,
    /// When the running call is to end, by this clock.
    ends: u64,
    /// A kernel has the memory that it is given, and no other.
    pub(super) limits: Bounds,
}

/// What the store of a kernel may have. Its memory does not grow: a kernel that asks for more is
/// stopped, as most would go on as if they had it.
pub(super) struct Bounds(StoreLimits);

/// The error of a kernel whose memory was to grow.
#[derive(Debug, thiserror::Error)]
#[error("its memory does not grow")]
pub(super) struct Grows;

impl ResourceLimiter for Bounds {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        match desired > current {
            true => Err(Grows.into()),
            false => Ok(true),
        }
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.0.table_growing(current, desired, maximum)
    }

    fn instances(&self) -> usize {
        self.0.instances()
    }

    fn tables(&self) -> usize {
        self.0.tables()
    }

    fn memories(&self) -> usize {
        self.0.memories()
    }
}

impl State {
    pub(super) fn new(clock: Clock) -> State {
        let limits = StoreLimitsBuilder::new().memories(0);
        State {
            context: None,
            trap: None,
            private: None,
            windows: Vec::new(),
            scratch: Vec::new(),
            clock,
            ends: 0,
            limits: Bounds(limits.tables(4).table_elements(TABLE_MAX).build()),
        }
    }

    /// Takes the context of a call that may take so many ticks.
    #[inline]
    pub(super) fn begin(&mut self, context: Box<Context>, ticks: u64) {
        self.context = Some(context);
        self.ends = self.clock.now().saturating_add(ticks);
    }

    /// Fails when the time of the call is over. The functions that copy look at the clock, because
    /// compiled code does so in loops and when a function begins: one may have thousands of copies
    /// in a row.
    #[inline]
    fn check_time(&self) -> Result<(), Trap> {
        match self.clock.now() < self.ends {
            true => Ok(()),
            false => Err(Trap::Time),
        }
    }

    /// Lets `f` use the context; a trap stops the kernel.
    #[inline]
    fn with<T>(
        &mut self,
        f: impl FnOnce(&mut Context) -> Result<T, Trap>,
    ) -> Result<T, wasmtime::Error> {
        let done = match self.context.as_deref_mut() {
            Some(context) => f(context),
            None => Err(Trap::Forbidden("call functions of samite before it runs")),
        };
        done.map_err(|trap| self.stop(trap))
    }

    /// As [`State::with`], with bytes of the kernel's memory.
    #[inline]
    fn with_bytes<T>(
        &mut self,
        (from, len): (u32, u32),
        f: impl FnOnce(&mut Context, &[u8]) -> Result<T, Trap>,
    ) -> Result<T, wasmtime::Error> {
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        let copied = self.copy(from, len, &mut bytes);
        let done = match copied {
            Ok(()) => self.with(|context| f(context, &bytes)),
            Err(trap) => Err(self.stop(trap)),
        };
        self.scratch = bytes;
        done
    }

    fn copy(&self, from: u32, len: u32, into: &mut Vec<u8>) -> Result<(), Trap> {
        self.check_time()?;
        if len as u64 > PAYLOAD_MAX {
            return Err(Trap::Payload {
                bytes: len as u64,
                most: PAYLOAD_MAX,
            });
        }
        let private = self.private.as_ref();
        match private.is_some_and(|private| private.read(from as u64, len as u64, into)) {
            true => Ok(()),
            false => Err(outside(from, len)),
        }
    }

    #[cold]
    fn stop(&mut self, trap: Trap) -> wasmtime::Error {
        self.trap = Some(trap);
        wasmtime::Error::msg("the kernel was stopped")
    }
}

fn outside(at: u32, len: u32) -> Trap {
    Trap::Memory(format!("{len} bytes at {at:#x} are not its own"))
}

type Call<'a> = Caller<'a, State>;

/// Returns a linker that offers these functions and nothing else.
pub(super) fn linker(engine: &Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    let all = &mut linker;
    all.func_wrap(MODULE, "me", |mut call: Call<'_>| {
        (call.data_mut()).with(|context| Ok(context.me()))
    })?;
    all.func_wrap(MODULE, "units", |mut call: Call<'_>| {
        (call.data_mut()).with(|context| Ok(context.units()))
    })?;
    all.func_wrap(MODULE, "origin", |mut call: Call<'_>| {
        (call.data_mut()).with(|context| Ok(context.origin()))
    })?;
    all.func_wrap(MODULE, "hops", |mut call: Call<'_>| {
        (call.data_mut()).with(|context| Ok(context.limits().hops as u32))
    })?;
    all.func_wrap(MODULE, "base", |call: Call<'_>, grant: u32| {
        let windows = &call.data().windows;
        let window = windows.iter().find(|window| window.grant == grant);
        window.map_or(0, |window| window.at as u32)
    })?;
    segments(all)?;
    effects(all)?;
    Ok(linker)
}

/// Access to granted segments.
fn segments(all: &mut Linker<State>) -> wasmtime::Result<()> {
    all.func_wrap(MODULE, "len", |mut call: Call<'_>, grant: u32| {
        (call.data_mut()).with(|context| context.len(grant))
    })?;
    all.func_wrap(
        MODULE,
        "load64",
        |mut call: Call<'_>, grant: u32, at: u64| {
            (call.data_mut()).with(|context| context.load(grant, at))
        },
    )?;
    all.func_wrap(
        MODULE,
        "store64",
        |mut call: Call<'_>, grant: u32, at: u64, value: u64| {
            (call.data_mut()).with(|context| context.store(grant, at, value))
        },
    )?;
    all.func_wrap(
        MODULE,
        "add64",
        |mut call: Call<'_>, grant: u32, at: u64, value: u64| {
            (call.data_mut()).with(|context| context.fetch_add(grant, at, value))
        },
    )?;
    all.func_wrap(
        MODULE,
        "cas64",
        |mut call: Call<'_>, grant: u32, at: u64, expected: u64, new: u64| {
            let exchange =
                |context: &mut Context| context.compare_exchange(grant, at, expected, new);
            (call.data_mut()).with(exchange)
        },
    )?;
    all.func_wrap(
        MODULE,
        "copy_in",
        |mut call: Call<'_>, grant: u32, at: u64, to: u32, len: u32| {
            let state = call.data_mut();
            if let Err(trap) = state.check_time() {
                return Err(state.stop(trap));
            }
            let mut bytes = std::mem::take(&mut state.scratch);
            let whole = (len as u64).min(PAYLOAD_MAX + 1) as usize;
            bytes.clear();
            bytes.resize(whole, 0);
            let read = state.with(|context| {
                if len as u64 > PAYLOAD_MAX {
                    let (bytes, most) = (len as u64, PAYLOAD_MAX);
                    return Err(Trap::Payload { bytes, most });
                }
                context.read(grant, at, &mut bytes)
            });
            let private = state.private.as_ref();
            let fits = private.is_some_and(|private| private.write(to as u64, &bytes));
            state.scratch = bytes;
            match (read, fits) {
                (Ok(()), true) => Ok(()),
                (Ok(()), false) => Err(state.stop(outside(to, len))),
                (Err(error), _) => Err(error),
            }
        },
    )?;
    all.func_wrap(
        MODULE,
        "copy_out",
        |mut call: Call<'_>, grant: u32, at: u64, from: u32, len: u32| {
            let copy = |context: &mut Context, bytes: &[u8]| context.write(grant, at, bytes);
            (call.data_mut()).with_bytes((from, len), copy)
        },
    )?;
    Ok(())
}

/// What a kernel asks for.
fn effects(all: &mut Linker<State>) -> wasmtime::Result<()> {
    all.func_wrap(
        MODULE,
        "forward",
        |mut call: Call<'_>, unit: u32, entry: u32, from: u32, len: u32| {
            let forward = |context: &mut Context, bytes: &[u8]| context.forward(unit, entry, bytes);
            (call.data_mut()).with_bytes((from, len), forward)
        },
    )?;
    all.func_wrap(
        MODULE,
        "spawn",
        |mut call: Call<'_>, unit: u32, entry: u32, from: u32, len: u32| {
            let spawn = |context: &mut Context, bytes: &[u8]| context.spawn(unit, entry, bytes);
            (call.data_mut()).with_bytes((from, len), spawn)
        },
    )?;
    all.func_wrap(
        MODULE,
        "reply",
        |mut call: Call<'_>, from: u32, len: u32| {
            (call.data_mut()).with_bytes((from, len), Context::reply)
        },
    )?;
    all.func_wrap(
        MODULE,
        "fail",
        |mut call: Call<'_>, code: i32, from: u32, len: u32| -> Result<(), wasmtime::Error> {
            let fail = |_: &mut Context, bytes: &[u8]| {
                Err(Trap::failed(code, &String::from_utf8_lossy(bytes)))
            };
            (call.data_mut()).with_bytes((from, len), fail)
        },
    )?;
    all.func_wrap(
        MODULE,
        "define",
        |mut call: Call<'_>, from: u32, len: u32| {
            (call.data_mut()).with_bytes((from, len), Context::define)
        },
    )?;
    all.func_wrap(
        MODULE,
        "inject",
        |mut call: Call<'_>, unit: u32, code: u32, entry: u32, from: u32, len: u32| {
            let inject =
                |context: &mut Context, bytes: &[u8]| context.inject(unit, code, entry, bytes);
            (call.data_mut()).with_bytes((from, len), inject)
        },
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use wasmtime::{ExternType, Store};

    #[test]
    fn the_table_says_what_the_linker_offers() {
        let wasm = crate::wasm::Wasm::new().unwrap();
        let mut store = Store::new(&wasm.engine, State::new(wasm.ticker.clock()));
        let linked: Vec<_> = wasm.linker.iter(&mut store).collect();
        let shown = |types: Vec<String>| types.join(" ");
        let linked: BTreeMap<String, [String; 2]> = (linked.into_iter())
            .map(|(module, name, of)| {
                assert_eq!(module, MODULE);
                let ExternType::Func(of) = of.ty(&store) else {
                    panic!("{name} is no function")
                };
                let parameters = of.params().map(|of| of.to_string()).collect();
                let results = of.results().map(|of| of.to_string()).collect();
                (name.to_owned(), [shown(parameters), shown(results)])
            })
            .collect();
        let offered: BTreeMap<String, [String; 2]> = (OFFERED.iter())
            .map(|(name, parameters, results)| {
                let of = [parameters, results];
                let of = of.map(|of| shown(of.iter().map(ValType::to_string).collect()));
                ((*name).to_owned(), of)
            })
            .collect();
        assert_eq!(offered, linked);
    }
}
