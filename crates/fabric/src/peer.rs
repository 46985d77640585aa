//! Who is there.

use serde::{Deserialize, Serialize};

/// Number of a process in the domain of this node; an index into the table of peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PeerId(pub u32);

impl PeerId {
    /// As an index.
    #[inline(always)]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for PeerId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "peer {}", self.0)
    }
}

/// What a process says of itself when it joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The job it belongs to.
    pub job: String,
    /// Its program in the workflow.
    pub program: String,
    /// Index among the units of its program.
    pub rank: u32,
    /// Units of its program.
    pub size: u32,
    /// Index among all units of the job; never changes.
    pub unit: u32,
    /// Units of the job.
    pub units: u32,
}

impl Identity {
    /// A process that was started by hand: a job of its own.
    pub fn by_hand(program: &str) -> Self {
        Identity {
            job: format!("{program}-{}", std::process::id()),
            program: program.to_owned(),
            rank: 0,
            size: 1,
            unit: 0,
            units: 1,
        }
    }
}

/// A peer as seen from here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerInfo {
    /// Its number.
    pub peer: PeerId,
    /// Which life of the number.
    pub incarnation: u32,
    /// What it said of itself.
    pub identity: Identity,
    /// Its process id.
    pub pid: i32,
}
