//! How long something takes that is not one wait of the fabric.

use crate::Result;
use samite_fabric::{Error, Fabric, Whom};
use std::time::{Duration, Instant};

/// The time from the first look on, as far as the process ran.
#[derive(Debug, Default)]
pub(crate) struct Waited {
    begun: Option<Instant>,
    waited: samite_fabric::Waited,
}

impl Waited {
    /// Looks at the clock; how long it was.
    #[cold]
    pub(crate) fn look(&mut self, deadline: Duration) -> Duration {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        self.waited.look(begun.elapsed(), deadline);
        self.waited.so_far()
    }

    /// Looks at the clock; whether it was as long as that.
    pub(crate) fn is_over(&mut self, deadline: Duration) -> bool {
        self.look(deadline) >= deadline
    }
}

/// Attempts at words that others may be changing all the time: of those there is no end.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    count: u32,
    waited: Waited,
}

/// So many are nothing to speak of: nobody looks at the clock.
const FEW: u32 = 64;

impl Attempts {
    /// One more, after one that was in vain. Errors: the deadline.
    #[inline(always)]
    pub(crate) fn again(
        &mut self,
        fabric: &Fabric,
        what: &'static str,
        whom: impl FnOnce() -> Whom,
    ) -> Result<()> {
        if self.count < FEW {
            self.count += 1;
            return Ok(());
        }
        self.look(fabric, what, whom())
    }

    #[cold]
    fn look(&mut self, fabric: &Fabric, what: &'static str, whom: Whom) -> Result<()> {
        // Perhaps the unit that is in the way needs this core.
        std::thread::yield_now();
        let after = fabric.deadline();
        match self.waited.is_over(after) {
            true => Err(Error::Timeout { what, whom, after }.into()),
            false => Ok(()),
        }
    }
}
