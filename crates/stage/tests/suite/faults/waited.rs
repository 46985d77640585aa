//! How long a process has waited for files, which no coordinator knows: it says so from inside its
//! wait.

use samite_fabric::{Fabric, PeerId};
use samite_testkit::{Outcome, check};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The number of the handler that is asked.
const ASKED: u16 = 77;

/// A process that answers, while it waits, since when it does.
pub(crate) struct Waits(Arc<Mutex<Since>>);

#[derive(Clone, Copy, PartialEq)]
enum Since {
    /// It does something else.
    Never,
    /// It has not been asked since it began.
    Begun,
    Asked(Instant),
}

impl Waits {
    /// Who waits answers by its fabric: whatever waits there looks for what others ask.
    pub(crate) fn of(fabric: &Fabric) -> Waits {
        let since = Arc::new(Mutex::new(Since::Never));
        let told = since.clone();
        fabric.on(ASKED, move |_, _| {
            let mut since = locked(&told);
            let waited = match *since {
                Since::Never => Duration::ZERO,
                Since::Begun => {
                    *since = Since::Asked(Instant::now());
                    Duration::ZERO
                }
                Since::Asked(first) => first.elapsed(),
            };
            Some((waited.as_millis() as u64).to_le_bytes().to_vec())
        });
        Waits(since)
    }

    /// Waits for something.
    pub(crate) fn during<T>(&self, wait: impl FnOnce() -> T) -> T {
        *locked(&self.0) = Since::Begun;
        let waited = wait();
        *locked(&self.0) = Since::Never;
        waited
    }
}

fn locked(since: &Mutex<Since>) -> MutexGuard<'_, Since> {
    since.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Computes until a unit says that it has waited for so long.
pub(crate) fn compute_until(fabric: &Fabric, unit: u32, has_waited: Duration) -> Outcome {
    let peers = fabric.peers();
    let mut peers = peers.iter();
    let peer = peers.find(|info| info.identity.unit == unit && info.identity.program == "unit");
    check!(peer.is_some(), "unit {unit} is not there");
    let peer = peer.map_or(PeerId(0), |info| info.peer);
    loop {
        let answer = fabric.request(peer, ASKED, &[])?.wait()?;
        let waited = answer.try_into().map(u64::from_le_bytes).unwrap_or(0);
        if Duration::from_millis(waited) >= has_waited {
            return Ok(());
        }
        std::thread::yield_now();
    }
}
