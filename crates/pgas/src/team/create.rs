//! How teams begin and end.

use super::{Inner, Team, TeamId};
use crate::collective::Kind;
use crate::job::Job;
use crate::{Error, Group, Result};
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

impl Team {
    /// The team of all units. Collective over the job.
    pub(crate) fn world(job: &Rc<Job>) -> Result<Team> {
        let team = Team::assemble(job, TeamId(0), Group::first(job.peers.len() as u32));
        team.barrier()?;
        Ok(team)
    }

    fn assemble(job: &Rc<Job>, id: TeamId, group: Group) -> Team {
        let rank = group.position(job.me).unwrap_or(0);
        let peers = group.into_iter().map(|unit| job.peers[unit.index()]);
        let inner = Rc::new(Inner {
            job: job.clone(),
            id,
            rank,
            peers: peers.collect(),
            group,
            calls: Cell::new(0),
            board: OnceCell::new(),
            locks: RefCell::default(),
        });
        job.teams.borrow_mut().insert(id, Rc::downgrade(&inner));
        Team(inner)
    }

    /// A team of the units in `group`. Collective over this team, also for those that are not in `group`
    /// (they get `None`). Members may call with different groups, as long as those are disjoint and each
    /// is called by exactly its members.
    ///
    /// # Errors
    /// [`Error::NotAMember`]: a unit of `group` is not in this team. A lost member.
    pub fn create(&self, group: &Group) -> Result<Option<Team>> {
        let job = &self.0.job;
        let stranger = group.into_iter().find(|unit| self.rank_of(*unit).is_none());
        if let Some(stranger) = stranger {
            return Err(self.0.refuse_next(Error::NotAMember(stranger)));
        }
        // Each leader proposes the next of its own numbers: no two leaders have a number in common.
        let number = job.teams_named.get() + 1;
        let leads = group.members().first() == Some(&job.me);
        if leads {
            job.teams_named.set(number);
        }
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
        self.0.locks.borrow().end();
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.job.teams.borrow_mut().remove(&self.id);
        if let Some(Some(board)) = self.board.get() {
            board.free(&self.job);
        }
    }
}
