//! LLVM bitcode, compiled for the processor on which it runs by LLVM 22.
//!
//! It is not sandboxed: [`crate::native`] says what that means. It is linked against the functions
//! of `include/samite_kernel.h` and those that compilers call for copies of memory ([`ALLOWED`]),
//! and against nothing else of the process: code that calls anything else is refused with its name.
//! This catches mistakes; it does not keep code from system calls.
//!
//! LLVM is loaded when an engine is created. Without it, everything else of this crate works.
//!
//! # Steps
//! `header`: what it says of itself, without LLVM. `module`: parse, check, optimise (the pipeline
//! of `-O3`, for this processor whatever the code was compiled for), emit an object. `link`: an
//! object becomes functions in memory.
//!
//! # Errors of LLVM
//! Code is compiled on a thread of its own, with a large stack. An error that LLVM calls fatal, and
//! after which it would end the process, parks that thread for ever and refuses the code; from then
//! on no code of this kind is accepted in this process. The same happens if LLVM does not finish
//! within [`COMPILE_MAX`]; the thread then goes on, for nobody.
//!
//! Truncated and foreign bytes are refused, but LLVM does not check for all damage: some modules
//! with a few changed bytes make it end the process. So bytes from elsewhere are compared with
//! their hash before they get here. What their author made on purpose needs no such error to do
//! harm.
//!
//! # Cost
//! Compilation: 4 ms for a kernel that only replies, 40 ms for a dozen of them; the first one twice
//! as much. A call: a few ns.
#[allow(unsafe_code, reason = "calls LLVM")]
mod ffi;
mod header;
#[allow(unsafe_code, reason = "links machine code")]
mod link;
#[allow(unsafe_code, reason = "reads and compiles bitcode")]
mod module;

use crate::native::check_length;
use crate::{Code, Engine, Kind, Refused};
use ffi::Llvm;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

pub use crate::native::CODE_MAX;
pub use header::producer;

/// The major version of the LLVM that compiles bitcode.
pub const LLVM: u16 = 22;

/// What code may call besides the functions of the fabric: LLVM itself makes such calls.
pub const ALLOWED: [&str; 5] = ["memcpy", "memmove", "memset", "memcmp", "bcmp"];

/// The stack of a thread that compiles: LLVM calls itself deeply.
const STACK: usize = 16 << 20;

/// How long LLVM may take for one piece of code: a hundred times what a large one takes on a busy
/// machine.
pub const COMPILE_MAX: Duration = Duration::from_secs(20);

/// LLVM, code, and the entries that it is to have.
type Task = (Arc<Llvm>, Vec<u8>, Vec<String>);

/// The engine; see the module's documentation.
#[derive(Clone)]
pub struct Bitcode {
    llvm: Arc<Llvm>,
}

impl std::fmt::Debug for Bitcode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bitcode")
    }
}

impl Bitcode {
    /// Creates the engine with LLVM 22 from this folder or file, or else from where the system's
    /// loader finds it. The first one takes about 20 ms.
    ///
    /// # Errors
    /// [`Refused::NoEngine`] says where it was looked for, and what to install.
    pub fn new(at: Option<&Path>) -> Result<Bitcode, Refused> {
        let llvm = Arc::new(ffi::load(at)?);
        Ok(Bitcode { llvm })
    }

    /// Checks code that is to run on a processor, named as in `std::env::consts::ARCH`, without
    /// compiling it: that LLVM can read it, what it was compiled for, what it imports, and that it
    /// has these entries.
    ///
    /// # Errors
    /// As [`Engine::prepare`].
    pub fn check(&self, code: &[u8], entries: &[String], processor: &str) -> Result<(), Refused> {
        let (llvm, code, entries) = self.begin(code, entries)?;
        let processor = processor.to_owned();
        on_a_thread(COMPILE_MAX, move |answer| {
            ffi::guard(answer);
            module::check(&llvm, &code, &entries, &processor)
        })
    }

    /// Returns what a thread of LLVM takes with it.
    ///
    /// # Errors
    /// [`Refused::TooLong`]; [`Refused::NoEngine`] once LLVM has failed in this process.
    fn begin(&self, code: &[u8], entries: &[String]) -> Result<Task, Refused> {
        check_length(code)?;
        if ffi::is_broken() {
            return Err(Refused::NoEngine(
                "LLVM has failed in this process before, and is not used any more: restart it"
                    .into(),
            ));
        }
        Ok((self.llvm.clone(), code.to_vec(), entries.to_vec()))
    }
}

impl Engine for Bitcode {
    fn kind(&self) -> Kind {
        Kind::Bitcode
    }

    fn prepare(&self, code: &[u8], entries: &[String]) -> Result<Box<dyn Code>, Refused> {
        let (llvm, code, entries) = self.begin(code, entries)?;
        let compiled = on_a_thread(COMPILE_MAX, move |answer| {
            ffi::guard(answer);
            module::compile(&llvm, &code, &entries)
                .and_then(|object| link::link(&llvm, &object, &entries))
        });
        Ok(Box::new(compiled?))
    }
}

/// Compiles code on a thread of its own, and waits for it so long. A thread that takes longer may
/// hold locks of LLVM for ever: LLVM is not used any more then.
fn on_a_thread<T: Send + 'static>(
    limit: Duration,
    compile: impl FnOnce(&Sender<Result<T, Refused>>) -> Result<T, Refused> + Send + 'static,
) -> Result<T, Refused> {
    let (answer, answered) = mpsc::channel();
    let compile = move || {
        let compiled = compile(&answer);
        // Nobody waits if it took too long, or if the thread that asked was ended by a panic.
        let _ = answer.send(compiled);
    };
    let builder = std::thread::Builder::new().name("samite llvm".into());
    let spawned = builder.stack_size(STACK).spawn(compile);
    spawned.map_err(|error| {
        Refused::ForNow(format!("no thread can be started to compile code: {error}"))
    })?;
    answered.recv_timeout(limit).unwrap_or_else(|error| {
        let why = match error {
            RecvTimeoutError::Disconnected => "the thread that compiled it ended early".into(),
            RecvTimeoutError::Timeout => {
                ffi::give_up();
                format!("LLVM did not compile it within {limit:?}; compile it to a shared object")
            }
        };
        Err(Refused::Invalid(why))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The only test of this crate's own that concerns LLVM: afterwards, it is not used any more.
    #[test]
    fn the_wait_for_a_compiler_that_never_ends_does() {
        let (end, ended) = mpsc::channel::<()>();
        let compiled = on_a_thread(Duration::from_millis(5), move |_| {
            let _ = ended.recv(); // Until the test is over.
            Ok(1)
        });
        let refused = compiled.unwrap_err().to_string();
        assert!(refused.contains("within 5ms"), "{refused}");
        assert!(ffi::is_broken());
        drop(end);
        assert_eq!(on_a_thread(COMPILE_MAX, |_| Ok(2)), Ok(2));
        let early = on_a_thread(COMPILE_MAX, |_| -> Result<(), _> { panic!("for the test") });
        assert!(early.unwrap_err().to_string().contains("ended early"));
    }
}
