//! Memory of freed buffers: reused for buffers of the same length, or returned to the machine.

use super::BlockStore;
use crate::protocol::Peer;
use samite_fabric::{Owned, Phased};
use std::time::{Duration, Instant};

/// How long freed memory waits for a buffer of its length: longer than most steps take to compute,
/// so that pages are not returned and allocated again between steps.
const IDLE: Duration = Duration::from_secs(5);

/// Memory of a freed buffer.
#[derive(Debug)]
pub(super) struct Freed {
    pub(super) phased: Phased,
    since: Instant,
    /// The peer that had borrowed it when it was freed.
    pub(super) lent: Option<Peer>,
}

impl BlockStore {
    /// Marks memory as free. `lent`: the peer that has borrowed it.
    pub(super) fn set_free(&mut self, phased: Phased, lent: Option<Peer>) {
        let since = Instant::now();
        self.free.push_back(Freed {
            phased,
            since,
            lent,
        });
    }

    /// Takes freed memory of the same length that no process reads any more.
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
                // It is still in use.
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

    /// Returns freed memory until `bytes` more bytes fit.
    pub(super) fn make_room(&mut self, bytes: u64) {
        let memory = self.capacity.memory;
        self.give_back(|used, _| used.saturating_add(bytes) > memory);
    }

    /// Returns all freed memory to the machine. Returns true if there was any.
    pub(super) fn give_idle_back(&mut self) -> bool {
        let before = self.free.len();
        self.give_back(|_, _| true);
        self.free.len() < before
    }

    /// Returns freed memory that was not reused in time.
    pub(in crate::service) fn tidy(&mut self) {
        if !self.free.is_empty() {
            let now = Instant::now();
            self.give_back(|_, since| now.duration_since(since) >= IDLE);
        }
    }

    /// Returns the freed memory for which `is_due(used, freed_at)` is true.
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
                // Still in use, or had by a process whose death not all have seen: tried again
                // later.
                Err(refused) => self.set_free(refused.0, lent),
            }
        }
    }

    /// Returns the number of bytes that no buffer uses now.
    pub(super) fn free_bytes(&self) -> u64 {
        self.free.iter().map(|freed| freed.phased.key().bytes).sum()
    }
}
