//! Memory of freed buffers: used again for buffers of the same length, or given back to the
//! machine.

use super::BlockStore;
use crate::protocol::Peer;
use samite_fabric::{Owned, Phased};
use std::time::{Duration, Instant};

/// How long freed memory waits for a buffer of its length: longer than most steps take to compute,
/// so that its pages are not given back and taken again between them.
const IDLE: Duration = Duration::from_secs(5);

/// Memory of a freed buffer.
#[derive(Debug)]
pub(super) struct Freed {
    pub(super) phased: Phased,
    since: Instant,
    /// Whom it was lent to when it was freed.
    pub(super) lent: Option<Peer>,
}

impl BlockStore {
    /// From now on nobody needs it; `lent`: to whom it was lent.
    pub(super) fn set_free(&mut self, phased: Phased, lent: Option<Peer>) {
        let since = Instant::now();
        self.free.push_back(Freed {
            phased,
            since,
            lent,
        });
    }

    /// Freed memory of the same length that nobody reads any more.
    pub(super) fn reuse(&mut self, bytes: u64) -> Option<Phased> {
        for _ in 0..self.free.len() {
            let freed = self.free.pop_front()?;
            if freed.phased.key().bytes != bytes {
                self.free.push_back(freed);
                continue;
            }
            let Freed {
                phased,
                since,
                lent,
            } = freed;
            phased.shut();
            match phased.own().map(Owned::renew) {
                Ok(Ok(phased)) => return Some(phased),
                Ok(Err(error)) => {
                    tracing::warn!(%error, "freed memory cannot be used again");
                    self.used -= bytes;
                }
                // Somebody still uses it.
                Err(refused) => {
                    let phased = refused.0;
                    self.free.push_back(Freed {
                        phased,
                        since,
                        lent,
                    });
                }
            }
        }
        None
    }

    /// Gives freed memory back until so many bytes more fit.
    pub(super) fn make_room(&mut self, bytes: u64) {
        let memory = self.capacity.memory;
        self.give_back(|used, _| used.saturating_add(bytes) > memory);
    }

    /// Gives back all freed memory; whether there was any.
    pub(super) fn give_idle_back(&mut self) -> bool {
        let before = self.free.len();
        self.give_back(|_, _| true);
        self.free.len() < before
    }

    /// Gives back what nobody had a use for.
    pub(in crate::service) fn tidy(&mut self) {
        if !self.free.is_empty() {
            let now = Instant::now();
            self.give_back(|_, since| now.duration_since(since) >= IDLE);
        }
    }

    /// Gives back the freed memory of which `is_due` says so, told how much is used and since when
    /// it is free.
    fn give_back(&mut self, is_due: impl Fn(u64, Instant) -> bool) {
        for _ in 0..self.free.len() {
            let Some(freed) = self.free.pop_front() else {
                return;
            };
            if !is_due(self.used, freed.since) {
                self.free.push_back(freed);
                continue;
            }
            let Freed { phased, lent, .. } = freed;
            let bytes = phased.key().bytes;
            phased.shut();
            match phased.own() {
                Ok(owned) => {
                    drop(owned);
                    self.used -= bytes;
                }
                // Somebody still uses it, or died and not all have seen that: it is looked at again
                // later.
                Err(refused) => self.set_free(refused.0, lent),
            }
        }
    }

    /// Bytes that no buffer uses now.
    pub(super) fn free_bytes(&self) -> u64 {
        self.free.iter().map(|freed| freed.phased.key().bytes).sum()
    }
}
