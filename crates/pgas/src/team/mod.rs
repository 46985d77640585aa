//! Teams: units that call collectives together.

mod create;
mod turn;

use crate::collective::Board;
use crate::job::Job;
use crate::{Error, Group, Result, Unit};
use parking_lot::Mutex;
use samite_fabric::{Fabric, PeerId};
use samite_mem::Biased;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};
pub(crate) use turn::stepping;

/// Names a team: the unit that led its creation and how many it had led before. Never reused, and
/// the same at all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TeamId(pub u64);

impl TeamId {
    /// Returns a hash of the id. Use its high bits: the low ones depend only on those of the id.
    pub(crate) fn mixed(self) -> u64 {
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// A team, as one of its members sees it. Ranks ascend with units. Cheap to clone; a clone is the
/// same team ([`Team::duplicate`] makes another one of the same members).
///
/// One thread of a unit at a time calls collectives of a team. A second one gets
/// [`Error::TeamInUse`] and does not take part. Give each thread a team of its own if several call
/// collectives at the same time.
#[derive(Clone, Debug)]
pub struct Team(pub(crate) Arc<Inner>);

/// The teams that a unit is a member of.
#[derive(Debug, Default)]
struct Teams {
    known: Mutex<HashMap<TeamId, Weak<Inner>>>,
    /// How many teams this unit has numbered.
    named: AtomicU32,
}

/// What the clones of a team share.
pub(crate) struct Inner {
    pub(crate) job: Arc<Job>,
    teams: Arc<Teams>,
    pub(crate) id: TeamId,
    pub(crate) rank: u32,
    pub(crate) group: Group,
    /// By rank.
    pub(crate) peers: Arc<[PeerId]>,
    /// Held by the thread that calls a collective.
    turns: Biased<()>,
    /// The number of collectives called, which distinguishes their messages. Changed by the thread
    /// that has the turn.
    pub(crate) calls: AtomicU64,
    /// The board that its members share, if they map each other's memory.
    pub(crate) board: OnceLock<Arc<Board>>,
    pub(crate) locks: Mutex<crate::lock::Table>,
}

impl Team {
    /// Returns the team's id.
    pub fn id(&self) -> TeamId {
        self.0.id
    }

    /// Returns this unit's team with that id, if a clone of it exists.
    pub(crate) fn of_this_unit(&self, id: TeamId) -> Option<Team> {
        let known = self.0.teams.known.lock();
        known.get(&id).and_then(Weak::upgrade).map(Team)
    }

    /// Returns this unit's rank, `0..size`.
    pub fn rank(&self) -> u32 {
        self.0.rank
    }

    /// Returns the number of members.
    pub fn size(&self) -> u32 {
        self.0.peers.len() as u32
    }

    /// Returns the members.
    pub fn group(&self) -> &Group {
        &self.0.group
    }

    /// Returns the unit with a rank. O(1).
    pub fn unit(&self, rank: u32) -> Result<Unit> {
        let unit = self.0.group.members().get(rank as usize);
        unit.copied().ok_or(Error::NoSuchRank {
            rank,
            size: self.size(),
        })
    }

    /// Returns the rank of a unit, or `None` if it is not a member. O(1) or O(log n), like
    /// [`Group::position`].
    pub fn rank_of(&self, unit: Unit) -> Option<u32> {
        self.0.group.position(unit)
    }

    /// Returns the fabric below.
    pub fn fabric(&self) -> &Fabric {
        &self.0.job.fabric
    }

    /// Returns the fabric's peer number of a member.
    pub fn peer(&self, rank: u32) -> Result<PeerId> {
        let peer = self.0.peers.get(rank as usize);
        peer.copied().ok_or(Error::NoSuchRank {
            rank,
            size: self.size(),
        })
    }

    /// Returns the fabric's peer numbers of all members, by rank.
    pub fn peers(&self) -> &[PeerId] {
        &self.0.peers
    }
}

impl Inner {
    /// Returns the team's id and its members, for the checking mode.
    pub(crate) fn members(&self) -> (u64, &[PeerId]) {
        (self.id.0, &self.peers)
    }
}

impl std::fmt::Debug for Inner {
    /// Omits `turns`: formatting would hold it, and another thread would be refused.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut team = f.debug_struct("Team");
        team.field("id", &self.id).field("rank", &self.rank);
        team.field("group", &self.group).finish_non_exhaustive()
    }
}

impl PartialEq for Team {
    /// Returns true for the same team, not merely for the same members.
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}
