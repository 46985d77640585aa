//! Which thread of this unit calls a collective of a team.
//!
//! The members call the collectives of a team in one order. Two threads of a unit that call them at the same time
//! have none, so the second one is turned away before it has changed anything.

use super::Inner;
use crate::{Error, Result};
use parking_lot::Mutex;
use samite_mem::{Biased, Guard};
use std::thread::ThreadId;

/// Who has the turn.
#[derive(Debug)]
pub(super) struct Turns {
    /// Held for a call.
    lock: Biased<()>,
    /// The thread that holds it for several calls.
    several: Mutex<Option<ThreadId>>,
}

/// The right to call collectives of a team; it ends when it is dropped.
#[must_use]
pub(crate) struct Turn<'t> {
    /// `None`: the thread has a turn for several calls, and this is one of them.
    _held: Option<Guard<'t, ()>>,
}

/// The right to call several collectives of a team, without those of other threads between them.
#[must_use]
pub(crate) struct LongTurn<'t> {
    turns: &'t Turns,
    turn: Turn<'t>,
}

impl Default for Turns {
    fn default() -> Self {
        Turns {
            lock: Biased::new(()),
            several: Mutex::default(),
        }
    }
}

impl Inner {
    /// The turn, for one collective.
    ///
    /// # Errors
    /// [`Error::TeamInUse`]: another thread has it, or an operator of a collective that is being called wants it.
    #[inline(always)]
    pub(crate) fn turn(&self) -> Result<Turn<'_>> {
        match self.turns.lock.try_lock() {
            Some(held) => Ok(Turn { _held: Some(held) }),
            None => self.turn_inside(),
        }
    }

    #[cold]
    fn turn_inside(&self) -> Result<Turn<'_>> {
        let is_inside = *self.turns.several.lock() == Some(std::thread::current().id());
        match is_inside {
            true => Ok(Turn { _held: None }),
            false => Err(Error::TeamInUse),
        }
    }

    /// The turn, for what takes several collectives. Errors as for [`Inner::turn`].
    pub(crate) fn long_turn(&self) -> Result<LongTurn<'_>> {
        let (turns, turn) = (&self.turns, self.turn()?);
        *turns.several.lock() = Some(std::thread::current().id());
        Ok(LongTurn { turns, turn })
    }
}

impl Drop for LongTurn<'_> {
    fn drop(&mut self) {
        // One inside of another one leaves that as it is.
        if self.turn._held.is_some() {
            *self.turns.several.lock() = None;
        }
    }
}
