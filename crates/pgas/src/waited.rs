//! Operations that are not a single wait of the fabric: how long they take, and a message to all.

use crate::Result;
use samite_fabric::{Error, Fabric, PeerId, Whom};
use std::time::{Duration, Instant};

/// The time since the first look, without time during which the process was stopped.
#[derive(Debug, Default)]
pub(crate) struct Waited {
    begun: Option<Instant>,
    waited: samite_fabric::Waited,
}

impl Waited {
    /// Reads the clock and returns the time waited.
    #[cold]
    pub(crate) fn look(&mut self, deadline: Duration) -> Duration {
        let begun = *self.begun.get_or_insert_with(Instant::now);
        self.waited.look(begun.elapsed(), deadline);
        self.waited.so_far()
    }

    /// Reads the clock and returns true if the deadline has passed.
    pub(crate) fn is_over(&mut self, deadline: Duration) -> bool {
        self.look(deadline) >= deadline
    }
}

/// Sends an active message to those of these peers that are others and not gone: to each as soon as
/// it takes messages. One deadline covers all.
#[cold]
pub(crate) fn tell_all(fabric: &Fabric, peers: &[PeerId], handler: u16, bytes: &[u8]) {
    let mut late = peers.to_vec();
    late.retain(|peer| *peer != fabric.me());
    let tell = || {
        late.retain(|peer| {
            let told = fabric.within(Duration::ZERO, || fabric.tell(*peer, handler, bytes));
            matches!(told, Err(Error::Timeout { .. }))
        });
        late.is_empty().then_some(())
    };
    if let Err(error) = fabric.wait_stepping("credit to tell all others", &[], tell, || false) {
        tracing::debug!(%error, "some units were not told");
    }
}

/// Retries on words that others may change all the time. Without a deadline they might never end.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    count: u32,
    waited: Waited,
}

/// Up to this many retries, the clock is not read.
const FEW: u32 = 64;

impl Attempts {
    /// Counts a retry after a failed attempt. Errors: the deadline.
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
        // The conflicting unit may need this core.
        std::thread::yield_now();
        let after = fabric.deadline();
        match self.waited.is_over(after) {
            true => Err(fabric.named(Error::timeout(what, whom, after)).into()),
            false => Ok(()),
        }
    }
}
