//! The table of peers: which processes are alive, their incarnations, and what the agent knows of
//! them.
//!
//! ```text
//!   0        header: magic, fences, agent
//!   128      the epoch of membership, alone in its line: everybody polls it
//!   192      counter of news about jobs, slots that were ever used
//!   4 KiB    slots, 1 KiB each: state, incarnation, process id, processors, names
//! ```
//!
//! Only the agent writes it; the kernel lets all others only read it ([`samite_mem::Published`]). A
//! reported death makes others free what the dead process was using, so it must be true, whatever
//! the other processes of the domain do. A page exists once the agent has written to it.

use super::Slot;
use crate::{Error, Identity, PeerInfo};
use rustix::fd::{BorrowedFd, OwnedFd};
use samite_mem::sync::Ordering;
use samite_mem::{PEERS_MAX, Published, Publisher};
use serde::{Deserialize, Serialize};

/// Words of a set of processors.
pub(crate) const CPU_WORDS: usize = 16;

/// The processors that a process may run on, one bit each.
pub(crate) type Cpus = [u64; CPU_WORDS];

const MAGIC: u64 = u64::from_le_bytes(*b"samite\0\x03");
const FENCES: u64 = 8;
const NODE: u64 = 24;
const AGENT_PID: u64 = 16;
const EPOCH: u64 = 128;
const ROSTER: u64 = 192;
/// Number of slots that were ever used.
const USED: u64 = 200;

const SLOTS: u64 = 4096;
const SLOT_BYTES: u64 = 1024;
const BYTES: u64 = SLOTS + PEERS_MAX as u64 * SLOT_BYTES;

const STATE: u64 = 0;
const INCARNATION: u64 = 4;
const PID: u64 = 8;
const IDENTITY_LEN: u64 = 16;
const CPUS: u64 = 24;
const IDENTITY: u64 = CPUS + size_of::<Cpus>() as u64;
const IDENTITY_MAX: usize = (SLOT_BYTES - IDENTITY) as usize;

/// State of a slot. Within one incarnation it only advances, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) enum State {
    /// A process that joined and is alive.
    Alive = 1,
    /// It died; its memory is reclaimed when all others have seen that.
    Dead = 2,
    /// No process; also the state of a slot that was never written.
    Free = 3,
}

fn place(peer: Slot) -> u64 {
    SLOTS + peer.index() as u64 * SLOT_BYTES
}

/// The table, as all processes read it.
#[derive(Clone, Debug)]
pub(crate) struct PeerTable(Published);

/// The table, as the agent writes it.
#[derive(Debug)]
pub(crate) struct PeerTableWriter(Publisher);

impl PeerTable {
    /// Maps the table behind a descriptor that the agent sent.
    pub(crate) fn attach(fd: OwnedFd) -> Result<PeerTable, Error> {
        let table = Published::attach(fd)?;
        if table.len() != BYTES || table.u64(0) != MAGIC {
            return Err(Error::Memory(
                "the agent keeps no table of peers of this version".into(),
            ));
        }
        // Pairs with the Release store in `create`.
        table.acquire();
        Ok(PeerTable(table))
    }

    /// Returns whether senders rely on `membarrier` (all processes must agree).
    pub(crate) fn fences(&self) -> bool {
        self.0.u64(FENCES) != 0
    }

    /// Returns the number of this node in the domain.
    pub(crate) fn node(&self) -> u32 {
        self.0.u64(NODE) as u32
    }

    /// Returns the process id of the agent; that of the process itself in a domain of one.
    pub(crate) fn agent_pid(&self) -> i32 {
        self.0.u64(AGENT_PID) as i32
    }

    /// Returns the epoch, which rises with every join, leave and death.
    pub(crate) fn epoch(&self) -> u64 {
        let epoch = self.0.u64(EPOCH);
        // Pairs with the Release in `publish_epoch`.
        self.0.acquire();
        epoch
    }

    /// Returns whether nobody joined, left or died since this epoch: one load of a line that
    /// changes only then. Orders nothing.
    #[inline(always)]
    pub(crate) fn is_at(&self, epoch: u64) -> bool {
        self.0.u64(EPOCH) == epoch
    }

    /// Returns how many slots were ever used.
    pub(crate) fn used(&self) -> u32 {
        self.0.u64(USED).min(PEERS_MAX as u64) as u32
    }

    /// Returns a counter that rises when a program has all of its units, when a unit will never
    /// join, and when one joins or leaves a job that the living units alone do not complete: then
    /// asking the agent is worthwhile. A hint: the agent's answer decides, and the epoch rises
    /// after it.
    pub(crate) fn roster(&self) -> u64 {
        self.0.u64(ROSTER)
    }

    /// Returns state and incarnation of a slot.
    pub(crate) fn state(&self, peer: Slot) -> (State, u32) {
        let at = place(peer);
        let state = match self.0.u32(at + STATE) {
            1 => State::Alive,
            2 => State::Dead,
            _ => State::Free,
        };
        // Pairs with the Release store in `publish`.
        self.0.acquire();
        (state, self.0.u32(at + INCARNATION))
    }

    /// Returns what a peer said of itself when it joined; `None` for an empty slot. If the state is
    /// unchanged afterwards, all of it is of one incarnation.
    pub(crate) fn info(&self, slot: Slot) -> Option<PeerInfo> {
        let (state, incarnation) = self.state(slot);
        if state == State::Free {
            return None;
        }
        let at = place(slot);
        let len = self.0.u64(at + IDENTITY_LEN).min(IDENTITY_MAX as u64);
        let mut text = vec![0; len as usize];
        self.0.read(at + IDENTITY, &mut text);
        let pid = self.pid(slot);
        // Orders a later load of the state after these loads.
        self.0.acquire();
        Some(PeerInfo {
            peer: slot.of(self.node()),
            incarnation,
            identity: serde_json::from_slice(&text).ok()?,
            pid,
        })
    }

    /// Returns the process id of a peer.
    pub(crate) fn pid(&self, peer: Slot) -> i32 {
        self.0.u64(place(peer) + PID) as i32
    }

    /// Returns the processors on which a peer may run.
    pub(crate) fn cpus(&self, peer: Slot) -> Cpus {
        let at = place(peer) + CPUS;
        std::array::from_fn(|index| self.0.u64(at + 8 * index as u64))
    }
}

impl PeerTableWriter {
    /// Creates the table of an empty node. `fences`: see [`PeerTable::fences`].
    pub(crate) fn create(node: u32, fences: bool) -> Result<PeerTableWriter, Error> {
        let table = PeerTableWriter(Publisher::create(BYTES)?);
        table.set(NODE, node.into());
        table.set(FENCES, fences.into());
        table.set(AGENT_PID, std::process::id().into());
        // ORDERING: Release pairs with `acquire` in `attach`.
        table.0.bytes().u64(0).store(MAGIC, Ordering::Release);
        Ok(table)
    }

    /// Returns the descriptor by which others map it.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    /// Returns the table for reading.
    pub(crate) fn reader(&self) -> PeerTable {
        PeerTable(self.0.published())
    }

    fn set(&self, at: u64, word: u64) {
        // ORDERING: Relaxed: published by the Release store of a state, or of the epoch.
        self.0.bytes().u64(at).store(word, Ordering::Relaxed);
    }

    /// Fills a free slot for a new process, not visible to others yet.
    pub(crate) fn admit(
        &self,
        peer: Slot,
        pid: i32,
        cpus: &Cpus,
        identity: &Identity,
    ) -> Result<(), Error> {
        let text = serde_json::to_vec(identity).map_err(|e| Error::Memory(e.to_string()))?;
        if text.len() > IDENTITY_MAX {
            return Err(Error::Memory(format!(
                "the names of job and program take {} bytes, {IDENTITY_MAX} are kept; shorten them",
                text.len()
            )));
        }
        let at = place(peer);
        self.set(at + PID, pid as u64);
        self.set(at + IDENTITY_LEN, text.len() as u64);
        for (index, word) in cpus.iter().enumerate() {
            self.set(at + CPUS + 8 * index as u64, *word);
        }
        self.0.bytes().write(at + IDENTITY, &text);
        Ok(())
    }

    /// Publishes the state and the incarnation of a slot.
    pub(crate) fn publish(&self, peer: Slot, state: State, incarnation: u32) {
        let (at, bytes) = (place(peer), self.0.bytes());
        bytes
            .u32(at + INCARNATION)
            .store(incarnation, Ordering::Relaxed);
        // ORDERING: Release pairs with `acquire` in `state`.
        bytes.u32(at + STATE).store(state as u32, Ordering::Release);
    }

    /// Publishes the epoch after the table changed.
    pub(crate) fn publish_epoch(&self, epoch: u64) {
        // ORDERING: Release pairs with `acquire` in `epoch`.
        self.0.bytes().u64(EPOCH).store(epoch, Ordering::Release);
    }

    /// See [`PeerTable::used`].
    pub(crate) fn publish_used(&self, used: u32) {
        self.set(USED, used.into());
    }

    /// See [`PeerTable::roster`].
    pub(crate) fn bump_roster(&self) {
        let roster = self.0.published().u64(ROSTER);
        self.set(ROSTER, roster + 1);
    }
}
