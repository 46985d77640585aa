//! Creates and ends teams.

use super::{Inner, Team, TeamId, Teams};
use crate::collective::{Block, Board};
use crate::job::Job;
use crate::{Group, Result};
use parking_lot::Mutex;
use samite_mem::Biased;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

impl Team {
    /// Creates the team of all members of this global memory. Collective over them.
    pub(crate) fn world(job: &Arc<Job>) -> Result<Team> {
        let team = Team::assemble(job, &Arc::default(), TeamId(0), job.group.clone());
        let block = Block::new(job, &team.0.peers);
        let mut words = vec![[0; 2]; job.peers.len()];
        team.all_gather(&[block.words()], &mut words)?;
        team.share(block, &words, &team)?;
        Ok(team)
    }

    /// Gives the team a board, if all its members map each other's memory. `words`: what they
    /// announced about their blocks. Collective over `parent`.
    fn share(&self, block: Block, words: &[[u64; 2]], parent: &Team) -> Result<()> {
        let blocks = block.map(&self.0.job, words);
        let mut mapped = vec![0; parent.size() as usize];
        let told = parent.all_gather(&[u8::from(blocks.is_some())], &mut mapped);
        if let Err(error) = told {
            // Other members may already know it.
            block.leave_behind();
            return Err(error);
        }
        let ranks = self.0.group.into_iter().map(|unit| parent.rank_of(unit));
        let everybody = ranks.flatten().all(|rank| mapped[rank as usize] == 1);
        if let Some(blocks) = blocks.filter(|_| everybody) {
            // Never set twice.
            let _ = self
                .0
                .board
                .set(Arc::new(Board::new(&self.0, block, &blocks)));
        }
        Ok(())
    }

    fn assemble(job: &Arc<Job>, teams: &Arc<Teams>, id: TeamId, group: Group) -> Team {
        let rank = group.position(job.me).unwrap_or(0);
        let inner = Arc::new(Inner {
            job: job.clone(),
            teams: teams.clone(),
            id,
            rank,
            peers: job.peers_of(&group).into(),
            group,
            turns: Biased::new(()),
            calls: AtomicU64::new(0),
            board: OnceLock::new(),
            locks: Mutex::default(),
        });
        teams.known.lock().insert(id, Arc::downgrade(&inner));
        Team(inner)
    }

    /// Creates a team of the units in `group`. Collective over this team: units that are not in
    /// `group` call it as well and get `None`. Members may pass different groups, if these are
    /// disjoint and each is passed by exactly its members.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let pgas = samite_pgas::Pgas::new(&fabric)?;
    /// # let world = pgas.world();
    /// use samite_pgas::{Group, Unit};
    /// let even: Group = pgas.group().into_iter().filter(|unit| unit.0 % 2 == 0).collect();
    /// if let Some(team) = world.create(&even)? { // all units call it; members get the team
    ///     team.barrier()?;
    /// }
    /// # Ok::<(), samite_pgas::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`NotAMember`](crate::Error::NotAMember): a unit of `group` is not in this team. A lost
    /// member.
    pub fn create(&self, group: &Group) -> Result<Option<Team>> {
        let (job, teams) = (&self.0.job, &self.0.teams);
        let _turn = self.0.long_turn()?;
        let stranger = group.into_iter().find(|unit| self.rank_of(*unit).is_none());
        if let Some(stranger) = stranger {
            return Err(self.0.refuse_next(job.not_a_member(stranger)));
        }
        // Each leader proposes the next of its own numbers. Leaders have no numbers in common.
        let leads = group.members().first() == Some(&job.me);
        // ORDERING: Relaxed: the numbers only have to differ.
        let number = match leads {
            true => teams.named.fetch_add(1, Ordering::Relaxed) + 1,
            false => 0,
        };
        let proposal = (job.me.0 as u64) << 32 | number as u64;
        let is_in = group.contains(job.me);
        let peers = job.peers_of(group);
        let block = Block::new(job, if is_in { &peers } else { &[] });
        let [low, high] = block.words();
        let mut all = vec![[0; 3]; self.size() as usize];
        // On a board that is broken already, the call sends nothing.
        let sends = !self.0.board.get().is_some_and(|board| board.is_broken());
        if let Err(error) = self.all_gather(&[[proposal, low, high]], &mut all) {
            if sends {
                // Other members may already know the block.
                block.leave_behind();
            }
            return Err(error);
        }
        let ranks = group.into_iter().filter_map(|unit| self.rank_of(unit));
        let said: Vec<[u64; 3]> = ranks.map(|rank| all[rank as usize]).collect();
        let Some([id, ..]) = said.first().filter(|_| is_in) else {
            self.all_gather(&[0u8], &mut vec![0; self.size() as usize])?;
            return Ok(None);
        };
        let team = Team::assemble(job, teams, TeamId(*id), group.clone());
        let words: Vec<[u64; 2]> = said.iter().map(|[_, low, high]| [*low, *high]).collect();
        team.share(block, &words, self)?;
        Ok(Some(team))
    }

    /// Creates another team of the same members. Collective.
    pub fn duplicate(&self) -> Result<Team> {
        let team = self.create(&self.0.group)?;
        team.ok_or_else(|| self.0.job.not_a_member(self.0.job.me))
    }

    /// Creates one team for each `color`, of the members that pass it. Collective.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let pgas = samite_pgas::Pgas::new(&fabric)?;
    /// # let world = pgas.world();
    /// use samite_pgas::Sum;
    /// // The units of each row of a grid with two columns.
    /// let row = world.split_by(u64::from(world.rank() / 2))?;
    /// let mut sum = [0.0];
    /// row.all_reduce(&[1.0], &mut sum, Sum)?;
    /// assert_eq!(sum[0], f64::from(row.size()));
    /// # Ok::<(), samite_pgas::Error>(())
    /// ```
    pub fn split_by(&self, color: u64) -> Result<Team> {
        let _turn = self.0.long_turn()?;
        let mut colors = vec![0; self.size() as usize];
        self.all_gather(&[color][..], &mut colors[..])?;
        let alike = self.0.group.into_iter().zip(&colors);
        let alike = alike.filter(|(_, other)| **other == color);
        let team = self.create(&alike.map(|(unit, _)| unit).collect())?;
        team.ok_or_else(|| self.0.job.not_a_member(self.0.job.me))
    }

    /// Ends the team. Collective: when it returns, no member uses the team any more. Dropping the
    /// last clone frees its local resources without synchronising with the others, and so does an
    /// error, including [`TeamInUse`](crate::Error::TeamInUse). The memory in which the members
    /// meet is reused once all of them have dropped the team; after an error, it is not reused.
    pub fn destroy(self) -> Result<()> {
        if let Err(error) = self.barrier() {
            // Others may come to the board later.
            self.0.board.get().inspect(|board| board.abandon());
            return Err(error);
        }
        self.0.locks.lock().end();
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.teams.known.lock().remove(&self.id);
    }
}
