//! Which of this unit's threads has its place in the queue of a lock. A unit has one place.
//!
//! ```text
//!   Idle --call--> Busy --has the lock--> Held --gives it back--> Busy --> Idle
//!                   | left something unfinished
//!                   v
//!   Interrupted --call--> Leaving --call ends--> Interrupted     Leaving --continues it--> Busy
//! ```
//! In `Busy`, `Leaving` and `Held`, the place belongs to one thread (for a guard, to the thread
//! that has it). Only that thread changes the state, the ticket and what is left unfinished.

use crate::lock::Lock;
use crate::{Error, Result};
use std::sync::atomic::{AtomicU8, Ordering};

/// The states; see the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::lock) enum State {
    Idle,
    Held,
    /// A call is under way.
    Busy,
    /// A call is under way, and something is left unfinished.
    Leaving,
    /// A call ended before it got its answer.
    Interrupted,
}

#[derive(Debug)]
pub(in crate::lock) struct CallState(AtomicU8);

impl CallState {
    pub(in crate::lock) fn new() -> Self {
        CallState(AtomicU8::new(State::Idle as u8))
    }

    #[inline(always)]
    pub(in crate::lock) fn state(&self) -> State {
        // ORDERING: Relaxed: the place is this thread's, or the exchange in `Lock::begin` follows.
        match self.0.load(Ordering::Relaxed) {
            0 => State::Idle,
            1 => State::Held,
            2 => State::Busy,
            3 => State::Leaving,
            _ => State::Interrupted,
        }
    }

    /// Sets the state. The caller has the place.
    #[inline(always)]
    pub(super) fn set(&self, state: State) {
        // ORDERING: Release pairs with the Acquire in `Lock::begin`: the next thread sees the
        // ticket and the unfinished rest.
        self.0.store(state as u8, Ordering::Release);
    }
}

/// A call of a lock, which has the place and frees it at its end.
pub(super) struct Call<'l>(&'l Lock);

impl Lock {
    /// Begins a call. Errors: the unit holds the lock, or another call is under way.
    #[inline(always)]
    pub(super) fn begin(&self) -> Result<Call<'_>> {
        let was = self.call.state();
        let (from, to) = match was {
            State::Idle => (was, State::Busy),
            State::Interrupted => (was, State::Leaving),
            State::Held | State::Busy | State::Leaving => return Err(Error::AlreadyHeld),
        };
        // ORDERING: Acquire pairs with the Release in `CallState::set`.
        let word = &self.call.0;
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        match word.compare_exchange(from as u8, to as u8, acquire, relaxed) {
            Ok(_) => Ok(Call(self)),
            Err(_) => Err(Error::AlreadyHeld),
        }
    }

    /// Begins to give back a lock that is held.
    #[inline(always)]
    pub(super) fn begin_giving(&self) -> Call<'_> {
        self.call.set(State::Busy);
        Call(self)
    }
}

impl Call<'_> {
    /// Ends the call with the lock held.
    #[inline(always)]
    pub(super) fn hold(self) {
        self.0.call.set(State::Held);
        std::mem::forget(self);
    }

    pub(super) fn has_left(&self) -> bool {
        self.0.call.state() == State::Leaving
    }
}

impl Drop for Call<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.call.set(match self.has_left() {
            true => State::Interrupted,
            false => State::Idle,
        });
    }
}
