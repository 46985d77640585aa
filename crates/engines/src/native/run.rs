//! Calls of machine code.
//!
//! # Invariants
//! R1 An entry is a function of the type [`Entry`] in code that [`Prepared::keeps`] keeps loaded.
//!    Its author has promised that type, and that it uses what it is given as
//!    `include/samite_kernel.h` says; nothing can check it.
//! R2 The payload lies in a buffer of [`PAYLOAD_MAX`] bytes, which the instance keeps. While an
//!    entry runs, it is accessed by pointer alone.
//! R3 [`RUNNING`] is null, or points to the `Running` of the innermost `call` on this thread, which
//!    stays in place until that `call` returns, and is accessed through this pointer alone.
//! R4 No function of the fabric calls a kernel, so at most one reference is made from [`RUNNING`].

use crate::{Code, Context, Grants, Instance, PAYLOAD_MAX, Trap};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::Arc;

/// An entry: payload and its length; 0 for success.
pub(crate) type Entry = unsafe extern "C" fn(*mut u8, u32) -> i32;

/// The running call of a thread.
struct Running {
    context: Box<Context>,
    /// Bytes on their way between the kernel and the context.
    scratch: Vec<u8>,
}

thread_local! {
    static RUNNING: Cell<*mut Running> = const { Cell::new(null_mut()) };
}

/// Lets `f` use the context of the running call, with a buffer. A trap is recorded. Returns 0 after
/// a trap, and outside of calls: while the code is loaded, or on a thread of its own.
#[inline]
pub(super) fn with<T: Default>(f: impl FnOnce(&mut Context, &mut Vec<u8>) -> Result<T, Trap>) -> T {
    // SAFETY: R3, R4.
    let Some(running) = (unsafe { RUNNING.get().as_mut() }) else {
        return T::default();
    };
    if running.context.stopped().is_some() {
        return T::default();
    }
    match f(&mut running.context, &mut running.scratch) {
        Ok(value) => value,
        Err(trap) => {
            running.context.stop(trap);
            T::default()
        }
    }
}

/// A line of the payload's buffer, for its alignment.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Loaded code, by entry. A clone shares it.
#[derive(Clone)]
pub(crate) struct Prepared {
    entries: Arc<[Entry]>,
    #[expect(dead_code, reason = "it keeps the code loaded")]
    keeps: Arc<dyn Send + Sync>,
    /// Bytes of memory that the loaded code takes.
    bytes: u64,
}

impl Prepared {
    /// Creates code of entries that `keeps` keeps loaded, in so many bytes of memory.
    ///
    /// # Safety
    /// R1.
    pub(crate) unsafe fn new(
        entries: Vec<Entry>,
        keeps: Arc<dyn Send + Sync>,
        bytes: u64,
    ) -> Prepared {
        let entries = entries.into();
        Prepared {
            entries,
            keeps,
            bytes,
        }
    }
}

impl Code for Prepared {
    fn instance(&self, _: &Grants) -> Result<Box<dyn Instance>, Trap> {
        let lines = PAYLOAD_MAX as usize / size_of::<Line>();
        Ok(Box::new(Native {
            code: self.clone(),
            payload: vec![Line([0; 64]); lines],
            scratch: Vec::new(),
        }))
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// An instance.
struct Native {
    code: Prepared,
    payload: Vec<Line>,
    scratch: Vec<u8>,
}

impl Instance for Native {
    #[inline]
    fn call(
        &mut self,
        entry: u8,
        context: Box<Context>,
        payload: &[u8],
    ) -> (Box<Context>, Result<(), Trap>) {
        let Some(entry) = self.code.entries.get(entry as usize) else {
            return (context, Err(Trap::NoEntry(entry as u32)));
        };
        let len = payload.len();
        if len as u64 > PAYLOAD_MAX {
            let (bytes, most) = (len as u64, PAYLOAD_MAX);
            return (context, Err(Trap::Payload { bytes, most }));
        }
        let mut running = Running {
            context,
            scratch: std::mem::take(&mut self.scratch),
        };
        let to: *mut u8 = self.payload.as_mut_ptr().cast();
        let before = RUNNING.replace(&raw mut running);
        // SAFETY: R2, and the length was checked; R1 for the call. It may use the context through
        // `RUNNING`: R3.
        let ran = unsafe {
            std::ptr::copy_nonoverlapping(payload.as_ptr(), to, len);
            entry(to, len as u32)
        };
        RUNNING.set(before);
        let Running { context, scratch } = running;
        self.scratch = scratch;
        let ended = match (context.stopped(), ran) {
            (Some(trap), _) => Err(trap.clone()),
            (None, 0) => Ok(()),
            (None, code) => Err(Trap::Failed {
                code,
                text: String::new(),
            }),
        };
        (context, ended)
    }
}
