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

/// The bits of a number that count within one life of a server; those above say which life it is,
/// and, from [`SERVER_BITS`] on, which server.
const LIFE_BITS: u32 = 32;
const SERVER_BITS: u32 = 48;

impl ServerId {
    /// Returns the first of the numbers that this server gives to its chunks and guards in the life
    /// of that incarnation. Those of a later life are larger.
    pub(crate) fn first_number(self, incarnation: u32) -> u64 {
        let life = u64::from(incarnation & 0xffff) << LIFE_BITS;
        u64::from(self.0) << SERVER_BITS | life
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
    pub(crate) fn is_of(self, incarnation: u32) -> bool {
        (self.0 >> LIFE_BITS) as u16 == incarnation as u16
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
        Version(self.0 + 1)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}", self.0)
    }
}
