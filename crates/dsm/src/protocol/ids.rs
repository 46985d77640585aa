//! The ids of processes, chunks, guards and requests.

use samite_fabric::PeerId;
use samite_fabric::rpc::Life;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One life of a process: a client, or a server. The next process with the same number is another
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Process {
    /// Its number in the fabric.
    pub peer: PeerId,
    /// Its incarnation.
    pub incarnation: u32,
}

impl From<Life> for Process {
    fn from(life: Life) -> Process {
        Process {
            peer: life.peer,
            incarnation: life.incarnation,
        }
    }
}

impl From<Process> for Life {
    fn from(process: Process) -> Life {
        Life {
            peer: process.peer,
            incarnation: process.incarnation,
        }
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.peer.fmt(f)
    }
}

/// A server of a domain: its place in the topology. The agent's is 0 where there is none.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ServerId(pub u16);

/// The bits of a number that count within one life of a server. Those above say which life it is:
/// the incarnation of its process, and the slot of that, because a server that is started again may
/// get another slot. From [`SERVER_BITS`] on they say which server; the last bit is free, for
/// meetings in event logs.
const LIFE_BITS: u32 = 32;
const SLOT_BITS: u32 = 42;
const SERVER_BITS: u32 = 51;
const _: () = assert!(samite_mem::PEERS_MAX <= 1 << (SERVER_BITS - SLOT_BITS));

impl ServerId {
    /// Returns the first of the numbers that this server gives to its chunks and guards in the life
    /// of that process.
    pub(crate) fn first_number(self, life: Process) -> u64 {
        u64::from(self.0) << SERVER_BITS | life.number()
    }
}

impl Process {
    /// Returns the bits of a number that say which life of a server it is of.
    fn number(self) -> u64 {
        let bits = |value: u32, from: u32, to: u32| {
            let mask = (1 << (to - from)) - 1;
            u64::from(value & mask) << from
        };
        let incarnation = bits(self.incarnation, LIFE_BITS, SLOT_BITS);
        bits(self.peer.0, SLOT_BITS, SERVER_BITS) | incarnation
    }
}

/// A chunk: a number of its home, which is not used again, also if the home is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChunkId(pub u64);

impl ChunkId {
    /// Returns the server that has the directory entry and the last committed version.
    pub fn home(self) -> ServerId {
        ServerId((self.0 >> SERVER_BITS) as u16)
    }

    /// Returns true if it is a chunk of that life of its home.
    pub(crate) fn is_of(self, life: Process) -> bool {
        let mask = (1 << SERVER_BITS) - (1 << LIFE_BITS);
        self.0 & mask == life.number()
    }
}

/// A guard that a server has given out; numbers are never reused. It is the fencing token of a
/// commit: a guard that was revoked commits nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GuardId(pub u64);

/// A request of one process, which chooses a different number for each of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket(pub u64);

/// A subscription of one process, which chooses a different number for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SubscriptionId(pub u64);

/// The version of a chunk: the number of commits so far.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Version(pub u64);

impl Version {
    /// Returns the version after this one.
    pub fn next(self) -> Version {
        Version(self.0.saturating_add(1))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that is started again has other numbers, also if its process has another slot and
    /// the same incarnation.
    #[test]
    fn each_life_of_a_server_has_its_numbers() {
        let life = |peer, incarnation| Process {
            peer: PeerId(peer),
            incarnation,
        };
        let lives = [life(3, 1), life(3, 2), life(4, 1), life(447, 1), life(0, 3)];
        for server in [0, 1, 4095].map(ServerId) {
            for (place, life) in lives.into_iter().enumerate() {
                let last = ChunkId(server.first_number(life) + u64::from(u32::MAX));
                assert_eq!(last.home(), server);
                let found = lives.iter().position(|life| last.is_of(*life));
                assert_eq!(found, Some(place));
                assert!(!crate::log::is_meeting(last.0));
            }
        }
    }
}
