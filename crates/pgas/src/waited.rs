//! How long something takes that is not one wait of the fabric.

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
