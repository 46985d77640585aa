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
        // What the context has refused ends it, whatever the function made of that.
        let ended = match context.stopped() {
            Some(trap) => Err(trap.clone()),
            None => ended,
        };
        (context, ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Grant, Limits, Rights};
    use samite_mem::Arena;

    /// Runs a function that has a segment, of 64 bytes, for reading.
    fn run(
        function: impl Fn(&mut Context, &[u8]) -> Result<(), Trap> + Send + Sync + 'static,
    ) -> Result<(), Trap> {
        let arena = Arena::create(2 << 20).unwrap();
        let (bytes, rights) = (arena.bytes(0, 64).unwrap(), Rights::Read);
        let grants = Grants::default().with(0, Some(Grant { bytes, rights }));
        let mut context = Context::new(0, 2, grants.clone());
        context.begin(Limits::default(), 0, 0);
        let mut instance = Function::new(function).instance(&grants).unwrap();
        let (mut context, ended) = instance.call(0, Box::new(context), b"payload");
        // The next call begins anew.
        context.begin(Limits::default(), 0, 0);
        assert_eq!(context.load(0, 0), Ok(0));
        ended
    }

    /// As in WebAssembly, which is stopped there, the first wrong use ends the call.
    #[test]
    fn a_trap_that_is_handled_ends_the_call() {
        type Wrong = fn(&mut Context) -> Result<(), Trap>;
        let wrong: [(Wrong, Trap); 6] = [
            (|context| context.load(5, 0).map(drop), Trap::NotGranted(5)),
            (
                |context| context.load(0, 4).map(drop),
                Trap::Misaligned {
                    grant: 0,
                    offset: 4,
                },
            ),
            (|context| context.forward(7, 0, &[]), Trap::NoUnit(7)),
            (|context| context.spawn(0, 256, &[]), Trap::NoEntry(256)),
            (|context| context.inject(0, 0, 0, &[]), Trap::NoEntry(0)),
            (
                |context| context.reply(&[0; 64 << 10 | 1]),
                Trap::Payload {
                    bytes: 64 << 10 | 1,
                    most: 64 << 10,
                },
            ),
        ];
        for (wrong, trap) in wrong {
            let first = trap.clone();
            let ended = run(move |context, payload| {
                assert_eq!(wrong(context), Err(first.clone()));
                // Nothing more is done.
                assert_eq!(context.load(0, 0), Err(first.clone()));
                assert_eq!(context.read(0, 0, &mut [0]), Err(first.clone()));
                assert_eq!(context.len(0), Err(first.clone()));
                assert_eq!(context.reply(payload), Err(first.clone()));
                assert_eq!(context.define(payload), Err(first.clone()));
                assert_eq!(context.forward(1, 0, payload), Err(first.clone()));
                assert!(context.effects().is_empty() && context.replied().is_none());
                Ok(())
            });
            assert_eq!(ended, Err(trap.clone()));
            // Another error, or a panic, does not take its place.
            let fails = move |context: &mut Context, _: &[u8]| {
                let _ = wrong(context);
                Err(Trap::failed(7, "another"))
            };
            assert_eq!(run(fails), Err(trap.clone()));
            let panics = move |context: &mut Context, _: &[u8]| {
                wrong(context).unwrap();
                Ok(())
            };
            assert_eq!(run(panics), Err(trap));
        }
        // Whether there is an address may be asked.
        let asks = |context: &mut Context, _: &[u8]| {
            assert_eq!((context.base(5), context.base(0).is_some()), (None, true));
            context.reply(b"yes")
        };
        assert_eq!(run(asks), Ok(()));
    }
}
