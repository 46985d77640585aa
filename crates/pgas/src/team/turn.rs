//! Decides which thread of this unit may call collectives of a team.
//!
//! All members call the collectives of a team in the same order. Calls of two threads of a unit at
//! the same time have no order, so the second one is refused before it has called. An operator of a
//! collective runs inside a call, and is refused like another thread.

use super::Inner;
use crate::{Error, Result};
use samite_mem::Guard;
use std::cell::RefCell;

thread_local! {
    /// The addresses of the teams whose turn this thread has for several calls.
    static TURNS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The right to call collectives of a team, until it is dropped.
#[must_use]
pub(crate) struct Turn<'t> {
    /// `None` if the thread has a turn for several calls, and this is one of them.
    _held: Option<Guard<'t, ()>>,
}

/// The right to call several collectives of a team without interleaved calls of other threads.
#[must_use]
pub(crate) struct LongTurn<'t> {
    _turn: Turn<'t>,
}

impl Inner {
    /// Takes the turn for one collective.
    ///
    /// # Errors
    /// [`Error::TeamInUse`]: another thread has it, or an operator of a running collective asks for
    /// it.
    #[inline(always)]
    pub(crate) fn turn(&self) -> Result<Turn<'_>> {
        match self.turns.try_lock() {
            None if !self.has_long_turn() => Err(Error::TeamInUse),
            _held => Ok(Turn { _held }),
        }
    }

    #[cold]
    fn has_long_turn(&self) -> bool {
        TURNS.with_borrow(|teams| teams.contains(&self.address()))
    }

    /// Takes the turn for several collectives. Errors as for [`Inner::turn`].
    pub(crate) fn long_turn(&self) -> Result<LongTurn<'_>> {
        let _turn = self.turn()?;
        TURNS.with_borrow_mut(|teams| teams.push(self.address()));
        Ok(LongTurn { _turn })
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl Drop for LongTurn<'_> {
    fn drop(&mut self) {
        TURNS.with_borrow_mut(Vec::pop);
    }
}

/// Advances a collective in flight. Its operator does not share the turns of this thread.
pub(crate) fn stepping<R>(step: impl FnOnce() -> R) -> R {
    struct Before(Vec<usize>);
    impl Drop for Before {
        fn drop(&mut self) {
            TURNS.set(std::mem::take(&mut self.0));
        }
    }
    let _before = Before(TURNS.take());
    step()
}

#[cfg(test)]
mod tests {
    use crate::{Error, Op, Pgas, Team};
    use parking_lot::Mutex;
    use samite_fabric::{Config, Fabric, Identity};
    use samite_testkit::{Outcome, check, same, simulate};
    use std::fmt::Write;
    use std::sync::Arc;

    /// A team can be used while it is being printed.
    #[test]
    fn printing_takes_no_turn() -> Outcome {
        struct Printer<'t>(&'t Team, bool);
        impl Write for Printer<'_> {
            fn write_str(&mut self, _: &str) -> std::fmt::Result {
                self.1 &= self.0.0.turn().is_ok();
                Ok(())
            }
        }
        let fabric = Fabric::alone(Identity::by_hand("printing"), Config::default())?;
        let pgas = Pgas::new(&fabric)?;
        let mut printer = Printer(pgas.world(), true);
        write!(printer, "{:?}", pgas.world().lock()?)?;
        check!(printer.1, "it had the turn");
        Ok(())
    }

    /// An operator does not share its thread's turn.
    #[test]
    fn an_operator_has_no_turn() {
        let name = "team::turn::tests::an_operator_has_no_turn";
        simulate(name, 2, 0..4, |fabric, _| {
            let pgas = Pgas::new(fabric)?;
            let world = pgas.world();
            let _turn = world.0.long_turn()?;
            let (team, found) = (world.clone(), Arc::new(Mutex::new(None)));
            let finds = found.clone();
            let operator = Op::new(move |left: u64, right: u64| {
                *finds.lock() = Some(team.0.turn().err());
                left + right
            });
            let sum = world.iall_reduce(vec![1], operator)?;
            world.barrier()?;
            same!(sum.wait()?, [2]);
            let found = found.lock().take();
            same!(
                found.unwrap_or(Some(Error::TeamInUse)),
                Some(Error::TeamInUse)
            );
            Ok(world.barrier()?)
        });
    }

    /// A lock whose `free` is refused is still counted, so the pages end alike at all members.
    #[test]
    fn a_lock_is_counted_also_without_the_turn() {
        let name = "team::turn::tests::a_lock_is_counted_also_without_the_turn";
        simulate(name, 2, 0..2, |fabric, _| {
            let pgas = Pgas::new(fabric)?;
            let world = pgas.world();
            // The last lock of the first page.
            for _ in 0..63 {
                world.lock()?.free()?;
            }
            let lock = world.lock()?;
            if world.rank() == 0 {
                let turn = world.0.turn()?;
                same!(lock.free(), Err(Error::TeamInUse));
                drop(turn);
                world.barrier()?;
            } else {
                lock.free()?;
            }
            // The next page is the same at all members.
            world.lock()?.free()?;
            Ok(world.barrier()?)
        });
    }
}
