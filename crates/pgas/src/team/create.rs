//! How teams begin and end.

use super::{Inner, Team, TeamId, Turns};
use crate::collective::Kind;
use crate::job::Job;
use crate::{Error, Group, Result};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

impl Team {
    /// The team of all units. Collective over the job.
    pub(crate) fn world(job: &Arc<Job>) -> Result<Team> {
        let team = Team::assemble(job, TeamId(0), Group::first(job.peers.len() as u32));
        team.barrier()?;
        Ok(team)
    }

    fn assemble(job: &Arc<Job>, id: TeamId, group: Group) -> Team {
        let rank = group.position(job.me).unwrap_or(0);
        let peers = group.into_iter().map(|unit| job.peers[unit.index()]);
        let inner = Arc::new(Inner {
            job: job.clone(),
            id,
            rank,
            peers: peers.collect(),
            group,
            turns: Turns::default(),
            calls: AtomicU64::new(0),
            board: OnceLock::new(),
            locks: Mutex::default(),
        });
        job.teams.lock().insert(id, Arc::downgrade(&inner));
        Team(inner)
    }

    /// A team of the units in `group`. Collective over this team, also for those that are not in `group`
    /// (they get `None`). Members may call with different groups, as long as those are disjoint and each
    /// is called by exactly its members.
    ///
    /// # Errors
    /// [`Error::NotAMember`]: a unit of `group` is not in this team. A lost member.
    pub fn create(&self, group: &Group) -> Result<Option<Team>> {
        let (job, _turn) = (&self.0.job, self.0.long_turn()?);
        let stranger = group.into_iter().find(|unit| self.rank_of(*unit).is_none());
        if let Some(stranger) = stranger {
            return Err(self.0.refuse_next(Error::NotAMember(stranger)));
        }
        // Each leader proposes the next of its own numbers: no two leaders have a number in common.
        let leads = group.members().first() == Some(&job.me);
        // ORDERING: Relaxed: that all numbers differ is enough.
        let number = match leads {
            true => job.teams_named.fetch_add(1, Ordering::Relaxed) + 1,
            false => 0,
        };
        let proposal = (job.me.0 as u64) << 32 | number as u64;
        let mut proposals = vec![0; self.size() as usize];
        self.all_gather(&[proposal][..], &mut proposals[..])?;
        let leader = group.members().first().and_then(|unit| self.rank_of(*unit));
        let Some(leader) = leader.filter(|_| group.contains(job.me)) else {
            return Ok(None);
        };
        let id = TeamId(proposals[leader as usize]);
        Ok(Some(Team::assemble(job, id, group.clone())))
    }

    /// Another team of the same members. Collective.
    pub fn duplicate(&self) -> Result<Team> {
        let team = self.create(&self.0.group)?;
        team.ok_or(Error::NotAMember(self.0.job.me))
    }

    /// Teams of the members that call with an equal `color`. Collective.
    pub fn split_by(&self, color: u64) -> Result<Team> {
        let _turn = self.0.long_turn()?;
        let mut colors = vec![0; self.size() as usize];
        self.all_gather(&[color][..], &mut colors[..])?;
        let alike = self.0.group.into_iter().zip(&colors);
        let alike = alike.filter(|(_, other)| **other == color);
        let team = self.create(&alike.map(|(unit, _)| unit).collect())?;
        team.ok_or(Error::NotAMember(self.0.job.me))
    }

    /// Ends the team. Collective: when it returns nobody uses it any more. Dropping the last clone frees
    /// what it has here without asking the others.
    pub fn destroy(self) -> Result<()> {
        self.meet_last(Kind::Barrier)?;
        self.0.locks.lock().end();
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.job.teams.lock().remove(&self.id);
        if let Some(Some(board)) = self.board.get() {
            board.free(&self.job);
        }
    }
}
