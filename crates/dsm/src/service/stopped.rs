//! Leases: a process that is stopped while its guards keep others waiting loses them after a while.
//!
//! A process that computes under a guard keeps it, however long that takes: it is alive, and those
//! that wait have deadlines of their own. One that is stopped (`SIGSTOP`, a debugger) cannot end
//! its guard, and may never go on. What it commits afterwards is refused.

use crate::protocol::Process;
use samite_fabric::Fabric;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a stopped process may keep others waiting.
pub(super) const LEASE: Duration = Duration::from_secs(2);

/// How often processes are looked at while they keep others waiting.
pub(super) const LOOK: Duration = Duration::from_millis(250);

/// The stopped processes that keep others waiting.
#[derive(Debug, Default)]
pub(super) struct Stopped {
    since: BTreeMap<Process, Duration>,
    looked: Duration,
}

impl Stopped {
    /// Returns true if it is time to look.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        now.saturating_sub(self.looked) >= LOOK
    }

    /// Returns the processes among `blockers` whose leases are over.
    pub(super) fn look(
        &mut self,
        fabric: &Fabric,
        blockers: impl FnOnce() -> BTreeSet<Process>,
    ) -> Vec<Process> {
        let now = fabric.now();
        if !self.is_due(now) {
            return Vec::new();
        }
        self.looked = now;
        let blockers = blockers();
        let stopped: BTreeSet<Process> = match blockers.is_empty() {
            true => BTreeSet::new(),
            false => blockers
                .into_iter()
                .filter(|one| is_stopped(fabric, *one))
                .collect(),
        };
        self.since.retain(|process, _| stopped.contains(process));
        for process in &stopped {
            self.since.entry(*process).or_insert(now);
        }
        let is_over = |since: &Duration| now.saturating_sub(*since) >= LEASE;
        let over = self.since.iter().filter(|(_, since)| is_over(since));
        over.map(|(process, _)| *process).collect()
    }
}

/// Returns true if a process of this node is stopped. Those of other nodes cannot be looked at.
fn is_stopped(fabric: &Fabric, process: Process) -> bool {
    if process.peer.node() != fabric.me().node() {
        return false;
    }
    let peers = fabric.peers();
    let same = |info: &&samite_fabric::PeerInfo| {
        (info.peer, info.incarnation) == (process.peer, process.incarnation)
    };
    let pid = peers.iter().find(same).map(|info| info.pid);
    let stat = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok());
    // The name of the program, in brackets, may contain anything.
    let state = stat.as_deref().and_then(|stat| stat.rsplit_once(") "));
    state.is_some_and(|(_, state)| state.starts_with(['T', 't']))
}
