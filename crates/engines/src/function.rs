//! Functions of the program itself: code that every process already has, called like moved code.

use crate::{Code, Context, Grants, Instance, Trap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

type Entry = Arc<dyn Fn(&mut Context, &[u8]) -> Result<(), Trap> + Send + Sync>;

/// Functions with the interface of a kernel, by entry.
#[derive(Clone, Default)]
pub struct Function(Vec<Entry>);

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Function").field(&self.0.len()).finish()
    }
}

impl Function {
    /// Creates code with one entry.
    pub fn new(
        entry: impl Fn(&mut Context, &[u8]) -> Result<(), Trap> + Send + Sync + 'static,
    ) -> Function {
        Function::default().and(entry)
    }

    /// Adds the next entry.
    pub fn and(
        mut self,
        entry: impl Fn(&mut Context, &[u8]) -> Result<(), Trap> + Send + Sync + 'static,
    ) -> Function {
        self.0.push(Arc::new(entry));
        self
    }
}

impl Code for Function {
    fn instance(&self, _: &Grants) -> Result<Box<dyn Instance>, Trap> {
        Ok(Box::new(self.clone()))
    }
}

impl Instance for Function {
    #[inline]
    fn call(
        &mut self,
        entry: u8,
        mut context: Box<Context>,
        payload: &[u8],
    ) -> (Box<Context>, Result<(), Trap>) {
        let Some(run) = self.0.get(entry as usize) else {
            return (context, Err(Trap::NoEntry(entry as u32)));
        };
        // A panic of a function ends the call, as a trap of other code does.
        let ran = catch_unwind(AssertUnwindSafe(|| run(&mut context, payload)));
        let ended = ran.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(Trap::Other(text.unwrap_or_else(|| "a panic".into())))
        });
        (context, ended)
    }
}
