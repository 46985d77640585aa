//! Code that the process runs itself, at once: an operator of a collective, for example.

use crate::error::{Cause, Failure};
use crate::mobile::{Mobile, Registered};
use crate::{Error, Result};
use samite_engines::{Code, Context, Grants, Instance, Limits, PAYLOAD_MAX, Trap};
use std::sync::Arc;
use std::time::Duration;

/// An instance of code, for one thread at a time. It has no grants, and its kernels can only reply.
pub struct Local {
    code: Arc<dyn Code>,
    /// `None` after a call that has failed: its instance is not used again.
    instance: Option<Box<dyn Instance>>,
    context: Option<Box<Context>>,
    unit: u32,
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local").finish_non_exhaustive()
    }
}

impl Mobile {
    /// Has registered code compiled here, and returns an instance of it that the caller runs
    /// itself: no message is sent, and the calls of others go on meanwhile. Waits for the compiler.
    ///
    /// # Errors
    /// [`Error::Failed`] if this unit does not accept the code; those of [`Mobile::prefetch`].
    pub fn local(&self, code: &Registered) -> Result<Local> {
        let unit = self.unit();
        self.prefetch(code, &[unit])?.wait()?;
        let code = self
            .compiled(code.hash())
            .ok_or_else(|| failed(Cause::NoCode, "the code was dropped meanwhile", unit))?;
        let none = Grants::default();
        let instance = code.instance(&none);
        let instance = instance.map_err(|trap| stopped(&trap, unit))?;
        Ok(Local {
            code,
            instance: Some(instance),
            context: Some(Box::new(Context::new(unit, self.units(), none))),
            unit,
        })
    }
}

impl Local {
    /// Runs an entry, and returns its reply.
    ///
    /// # Errors
    /// [`Error::Failed`], with the cause. The next call has new memory.
    pub fn call(&mut self, entry: u8, payload: &[u8]) -> Result<&[u8]> {
        let limits = Limits {
            hops: 0,
            grants: 0,
            may_spawn: false,
            may_define: false,
            // Wall-clock time counts, also while other processes have the processor.
            run: Duration::from_secs(1),
            ..Limits::default()
        };
        let Some(mut context) = self.context.take() else {
            return Err(failed(
                Cause::Other,
                "an earlier call has panicked",
                self.unit,
            ));
        };
        context.begin(limits, self.unit, PAYLOAD_MAX);
        let instance = match self.instance.take() {
            Some(instance) => Ok(instance),
            None => self.code.instance(context.grants()),
        };
        let (context, ended) = match instance {
            Ok(mut instance) => {
                let (context, ended) = instance.call(entry, context, payload);
                self.instance = ended.is_ok().then_some(instance);
                (context, ended)
            }
            Err(trap) => (context, Err(trap)),
        };
        let context = self.context.insert(context);
        match ended {
            Ok(()) => Ok(context.replied().unwrap_or_default()),
            Err(trap) => Err(stopped(&trap, self.unit)),
        }
    }
}

fn stopped(trap: &Trap, unit: u32) -> Error {
    failed(Cause::from(trap), trap.to_string(), unit)
}

fn failed(cause: Cause, text: impl Into<String>, unit: u32) -> Error {
    let mut failure = Failure::new(cause, text);
    failure.through(unit);
    Error::Failed(Box::new(failure))
}
