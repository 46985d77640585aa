//! The processes that are units of this job, or were: those that may have code run here.

use samite_fabric::rpc::Life;
use std::collections::HashSet;

/// See the module's documentation. It grows only when a unit is started again.
#[derive(Debug, Default)]
pub(crate) struct Members {
    lives: HashSet<Life, foldhash::fast::RandomState>,
    /// The one that was asked for last: most frames come from the sender of the one before.
    last: Option<Life>,
}

impl Members {
    pub(crate) fn add(&mut self, lives: &[Life]) {
        self.lives.extend(lives);
    }

    #[inline]
    pub(crate) fn has(&mut self, life: Life) -> bool {
        if self.last == Some(life) {
            return true;
        }
        let has = self.lives.contains(&life);
        if has {
            self.last = Some(life);
        }
        has
    }
}
