//! The units of other nodes, in memory that the agent writes and all processes of its node read.
//!
//! ```text
//!   0        magic, records that were ever used
//!   4 KiB    records: version, peer, two copies of what is known of it
//!            a copy: incarnation, state, what the unit said of itself
//! ```
//!
//! A peer keeps its record for ever, so readers find it again without a search. The lowest bit of
//! the version tells which copy is current. The agent writes the other copy, and then raises the
//! version. A reader looks at the version before and after, and starts again only if a change was
//! completed meanwhile: it never waits for the agent, which may have been killed in the middle of a
//! change. Changes are announced by the epoch of the [table of peers](super::PeerTable), which is
//! raised after them.

use super::State;
use crate::membership::IDENTITY_MAX;
use crate::{Error, PeerId};
use rustix::fd::{BorrowedFd, OwnedFd};
use samite_mem::sync::Ordering;
use samite_mem::{Published, Publisher};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The most units of other nodes that a node can know of: as many as an agent can name in an
/// answer.
pub(crate) const REMOTE_MAX: u32 = 8192;

const MAGIC: u64 = u64::from_le_bytes(*b"samnode\x02");
const USED: u64 = 8;
const RECORDS: u64 = 4096;
const RECORD_BYTES: u64 = (COPIES + 2 * COPY_BYTES).next_multiple_of(64);
const BYTES: u64 = RECORDS + REMOTE_MAX as u64 * RECORD_BYTES;

const VERSION: u64 = 0;
const PEER: u64 = 4;
const COPIES: u64 = 8;

/// Within a copy.
const INCARNATION: u64 = 0;
const STATE: u64 = 4;
const LEN: u64 = 8;
const SAID: u64 = 12;
const COPY_BYTES: u64 = SAID + SAID_MAX as u64;
/// Longest statement of a unit about itself, in bytes.
pub(crate) const SAID_MAX: usize = IDENTITY_MAX;

/// What is known of a unit of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) peer: PeerId,
    pub(crate) incarnation: u32,
    pub(crate) state: State,
    pub(crate) said: Box<[u8]>,
}

/// The table, as all processes of the node read it. Clones share what they have found.
#[derive(Clone, Debug)]
pub(crate) struct RemoteTable {
    table: Published,
    found: Arc<Mutex<HashMap<PeerId, u32>>>,
}

/// The table, as the agent writes it.
#[derive(Debug)]
pub(crate) struct RemoteTableWriter {
    table: Publisher,
    records: HashMap<PeerId, u32>,
}

fn place(record: u32) -> u64 {
    RECORDS + u64::from(record) * RECORD_BYTES
}

/// Returns the place of the copy that is current under a version.
fn copy(record: u32, version: u32) -> u64 {
    place(record) + COPIES + u64::from(version % 2) * COPY_BYTES
}

impl RemoteTable {
    /// Maps the table behind a descriptor that the agent sent.
    pub(crate) fn attach(fd: OwnedFd) -> Result<RemoteTable, Error> {
        let table = Published::attach(fd)?;
        if table.len() != BYTES || table.u64(0) != MAGIC {
            return Err(Error::Memory(
                "the agent keeps no table of other nodes of this version".into(),
            ));
        }
        Ok(RemoteTable {
            table,
            found: Arc::default(),
        })
    }

    /// Returns how many records were ever used.
    pub(crate) fn used(&self) -> u32 {
        let used = self.table.u64(USED).min(REMOTE_MAX.into()) as u32;
        // Pairs with the Release store in `learn`.
        self.table.acquire();
        used
    }

    /// Returns the peer of a record that was used.
    pub(crate) fn peer(&self, record: u32) -> PeerId {
        PeerId(self.table.u32(place(record) + PEER))
    }

    /// Returns a record that was used.
    pub(crate) fn read(&self, record: u32) -> Remote {
        let at = place(record);
        let mut version = self.table.u32(at + VERSION);
        loop {
            // Pairs with the Release store in `learn`.
            self.table.acquire();
            let copy = copy(record, version);
            let len = self.table.u32(copy + LEN).min(SAID_MAX as u32);
            let mut said = vec![0; len as usize].into_boxed_slice();
            self.table.read(copy + SAID, &mut said);
            let remote = Remote {
                peer: self.peer(record),
                incarnation: self.table.u32(copy + INCARNATION),
                state: state_of(self.table.u32(copy + STATE)),
                said,
            };
            // Pairs with the Release fence in `write`: if any of these loads saw a later change of
            // this copy, the next one sees that it is not current any more.
            self.table.acquire();
            let later = self.table.u32(at + VERSION);
            if later == version {
                return remote;
            }
            version = later;
        }
    }

    /// Returns what is known of a peer.
    pub(crate) fn get(&self, peer: PeerId) -> Option<Remote> {
        let record = {
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            for record in found.len() as u32..self.used() {
                found.insert(self.peer(record), record);
            }
            *found.get(&peer)?
        };
        Some(self.read(record))
    }
}

fn state_of(word: u32) -> State {
    match word {
        1 => State::Alive,
        2 => State::Dead,
        _ => State::Free,
    }
}

impl RemoteTableWriter {
    /// Creates a table without records.
    pub(crate) fn create() -> Result<RemoteTableWriter, Error> {
        let table = Publisher::create(BYTES)?;
        // ORDERING: Relaxed: its descriptor is sent afterwards.
        table.bytes().u64(0).store(MAGIC, Ordering::Relaxed);
        Ok(RemoteTableWriter {
            table,
            records: HashMap::new(),
        })
    }

    /// Returns the descriptor by which others map it.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.table.fd()
    }

    /// Records the state of a unit. What it said of itself stays when it is gone, until the number
    /// has another one. Returns false if there is no room, or it said too much.
    pub(crate) fn learn(
        &mut self,
        peer: PeerId,
        incarnation: u32,
        state: State,
        said: &[u8],
    ) -> bool {
        let next = self.records.len() as u32;
        let record = match self.records.get(&peer) {
            Some(record) => *record,
            None if next < REMOTE_MAX => next,
            None => return false,
        };
        if said.len() > SAID_MAX {
            return false;
        }
        let version = self.write(record, incarnation, state, said);
        let bytes = self.table.bytes();
        if record == next {
            let word = bytes.u32(place(record) + PEER);
            word.store(peer.0, Ordering::Relaxed);
        }
        let word = bytes.u32(place(record) + VERSION);
        // ORDERING: Release pairs with `acquire` in `read`: whoever sees the version sees the copy.
        word.store(version, Ordering::Release);
        if record == next {
            self.records.insert(peer, record);
            // ORDERING: Release pairs with `acquire` in `used`.
            bytes
                .u64(USED)
                .store(u64::from(next) + 1, Ordering::Release);
        }
        true
    }

    /// Writes the copy of a record that is not current; returns the version that makes it current.
    fn write(&self, record: u32, incarnation: u32, state: State, said: &[u8]) -> u32 {
        let bytes = self.table.bytes();
        // ORDERING: Relaxed: only this thread writes.
        let word = |at: u64| bytes.u32(at).load(Ordering::Relaxed);
        let version = word(place(record) + VERSION);
        let next = version.wrapping_add(1);
        let (from, to) = (copy(record, version), copy(record, next));
        let is_new = record as usize == self.records.len();
        let mut kept = Vec::new();
        let said = match !is_new && word(from + INCARNATION) == incarnation {
            true => {
                kept.resize(word(from + LEN) as usize, 0);
                bytes.read(from + SAID, &mut kept);
                &kept[..]
            }
            false => said,
        };
        // ORDERING: Relaxed, after a Release fence: whoever sees one of these stores sees that the
        // copy had not been current any more since the version of the last change.
        samite_mem::sync::fence(Ordering::Release);
        let store = |at: u64, word: u32| bytes.u32(to + at).store(word, Ordering::Relaxed);
        store(INCARNATION, incarnation);
        store(STATE, state as u32);
        store(LEN, said.len() as u32);
        bytes.write(to + SAID, said);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readers find what was learnt last, whole, while the writer changes it.
    #[test]
    fn records_are_whole() {
        let mut writer = RemoteTableWriter::create().unwrap();
        let reader = RemoteTable::attach(writer.fd().try_clone_to_owned().unwrap()).unwrap();
        let peer = |number: u32| PeerId::new(1 + number % 7, number / 7);
        assert_eq!(reader.get(peer(0)), None);
        let rounds = if cfg!(miri) { 10 } else { 20_000_u32 };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=rounds {
                    let said = vec![round as u8; round as usize % SAID_MAX];
                    for number in 0..9 {
                        assert!(writer.learn(peer(number), round, State::Alive, &said));
                    }
                }
            });
            let mut last = 0;
            while last < rounds {
                let Some(found) = reader.get(peer(8)) else {
                    continue;
                };
                let round = found.incarnation;
                assert!(round >= last && found.peer == peer(8), "{found:?}");
                assert_eq!(found.said.len(), round as usize % SAID_MAX);
                assert!(found.said.iter().all(|byte| *byte == round as u8));
                last = round;
            }
        });
        let mut writer = RemoteTableWriter::create().unwrap();
        assert!(!writer.learn(peer(0), 1, State::Alive, &[0; SAID_MAX + 1]));
        assert!(writer.learn(peer(0), 1, State::Alive, b"said"));
        assert!(writer.learn(peer(0), 1, State::Dead, b""));
        let reader = RemoteTable::attach(writer.fd().try_clone_to_owned().unwrap()).unwrap();
        let found = reader.get(peer(0)).unwrap();
        assert_eq!((found.state, &*found.said), (State::Dead, &b"said"[..]));
    }
    /// A writer that is killed in the middle of a change stops no reader: what was known before is
    /// still there, whole.
    #[test]
    fn a_writer_that_stops_does_not_stop_the_readers() {
        let mut writer = RemoteTableWriter::create().unwrap();
        let reader = RemoteTable::attach(writer.fd().try_clone_to_owned().unwrap()).unwrap();
        let peer = PeerId::new(1, 0);
        for incarnation in 1..4 {
            let said = vec![incarnation as u8; SAID_MAX];
            assert!(writer.learn(peer, incarnation, State::Alive, &said));
            // The change of which this is the beginning is never completed.
            writer.write(0, incarnation + 1, State::Alive, b"another one");
            let found = reader.get(peer).unwrap();
            assert_eq!(
                (found.incarnation, found.state),
                (incarnation, State::Alive)
            );
            assert_eq!(*found.said, said);
        }
    }
}
