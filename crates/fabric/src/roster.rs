//! Who is there: waiting until the units of a job, or of a program, have joined; what can be done
//! with a peer.
//!
//! Starting is a collective operation. A unit that has joined counts as started for its whole job,
//! whatever happens to it later: it may have printed a line and left, or died, before the others
//! looked. While all units are alive, the table of peers suffices. Otherwise the process asks the
//! agent, which remembers the units that have joined: once, and then only when a word of the table
//! of peers says that a program has become complete, that a unit ended before it joined, or that
//! one joined or left while others were missing or gone.

use crate::engine::Engine;
use crate::fabric::{Core, Fabric};
use crate::node::agent::{Roster, Wanted, client};
use crate::transport::Caps;
use crate::waited::Left;
use crate::{Error, Identity, PeerId, PeerInfo, Result, UnitLife};
use std::time::Duration;

/// Minimum deadline for an answer of the agent, however short the deadline of the wait is. The
/// agent needs far less.
const ANSWER: Duration = Duration::from_secs(5);

impl Fabric {
    /// Waits until all units of a program have joined, and returns their peer numbers by rank. The
    /// program belongs to this job or, if the job is complete and has no such program, to the first
    /// job of the domain that has one. Collective: no.
    ///
    /// # Errors
    /// As [`Fabric::job`].
    pub fn program(&self, name: &str) -> Result<Vec<PeerId>> {
        let wanted = Wanted::Program(name.to_owned());
        let (units, have_been) = self.wait_for_peers("the units of a program", &wanted)?;
        have_been?;
        Ok(units.into_iter().map(|unit| unit.peer).collect())
    }

    /// Waits until all units of this job have joined, and returns their peer numbers by unit.
    /// Collective: no. It succeeds for every unit of a job all of whose units join, whatever they
    /// do next: operations to a unit that has left or died end with [`Error::PeerLost`].
    ///
    /// # Errors
    /// [`Error::Absent`] names a unit that does not join: at once if its launcher reports that the
    /// unit has ended, otherwise at the deadline. [`Error::PeerLost`] if the number of a unit that
    /// has ended names another process by now; [`Fabric::job_lives`] returns such units.
    pub fn job(&self) -> Result<Vec<PeerId>> {
        let (units, have_been) = self.own("the units of the job", &Wanted::Job)?;
        have_been?;
        Ok(units.into_iter().map(|unit| unit.peer).collect())
    }

    /// As [`Fabric::job`], with the incarnation of each unit ([`Fabric::lost_life`]): so it also
    /// returns units that have ended and whose numbers other processes have by now.
    pub fn job_lives(&self) -> Result<Vec<UnitLife>> {
        Ok(self.own("the units of the job", &Wanted::Job)?.0)
    }

    /// As [`Fabric::program`], with the incarnation of each unit, also of those that have ended.
    pub fn lives_of(&self, program: &str) -> Result<Vec<UnitLife>> {
        let wanted = Wanted::Program(program.to_owned());
        Ok(self.wait_for_peers("the units of a program", &wanted)?.0)
    }

    /// As [`Fabric::job_lives`], for the units of this unit's program, by rank. Waits for no other
    /// unit.
    pub fn program_lives(&self) -> Result<Vec<UnitLife>> {
        let program = Wanted::Program(self.identity().program.clone());
        Ok(self.own("the units of this program", &program)?.0)
    }

    /// As [`Fabric::job_lives`], for the units of this job with these numbers, in this order. Waits
    /// for no other unit.
    pub fn unit_lives(&self, units: &[u32]) -> Result<Vec<UnitLife>> {
        let units = Wanted::Units(units.to_vec());
        Ok(self.own("some units of the job", &units)?.0)
    }

    /// As [`Fabric::wait_for_peers`], for units of this process's own job.
    fn own(&self, what: &'static str, wanted: &Wanted) -> Result<(Vec<UnitLife>, Result<()>)> {
        let (units, have_been) = self.wait_for_peers(what, wanted)?;
        let own = self.identity().unit;
        let mut other = units.iter().filter(|unit| unit.unit == own);
        if let Some(other) = other.find(|unit| unit.peer != self.me()) {
            let other = other.peer;
            return Err(Error::Absent {
                unit: format!("unit {own} as {}", self.me()),
                job: self.identity().job.clone(),
                how: format!("{other} is that unit; give each process a number of its own"),
            });
        }
        Ok((units, have_been))
    }

    /// Returns true if a unit of this job has never joined but may still do so, because its
    /// launcher has not reported its end. Asks the agent, and waits for no unit. Collective: no.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn awaits_units(&self) -> Result<bool> {
        if self.domain().is_none() {
            return Ok(false);
        }
        Ok(matches!(
            self.roster(&Wanted::Coming, &mut Left::new(self.deadline().max(ANSWER)))?,
            Roster::Missing(_)
        ))
    }

    /// Returns the wanted units once all of them have joined, and an error if the peer number of
    /// one of them names another process by now.
    fn wait_for_peers(
        &self,
        what: &'static str,
        wanted: &Wanted,
    ) -> Result<(Vec<UnitLife>, Result<()>)> {
        let found = self.joined(what, wanted)?;
        // After this, peers of this node that the agent named are in the table, unless they have
        // gone.
        self.progress();
        let mut core = self.0.lock()?;
        let of_node = (found.iter()).filter(|unit| unit.peer.node() == self.me().node());
        let have_been = of_node.map(|unit| core.engine.has_been(unit.peer, unit.incarnation));
        // All are recorded, not only those before the first error.
        let have_been = have_been.fold(Ok(()), Result::and);
        // This may have ended operations of other threads.
        core.tell();
        Ok((found, have_been))
    }

    /// Returns the wanted units once all of them have joined. The agent is asked between two waits,
    /// because it may be slow, and other threads can use the fabric meanwhile.
    fn joined(&self, what: &'static str, wanted: &Wanted) -> Result<Vec<UnitLife>> {
        let deadline = self.deadline();
        let mut spent = Duration::ZERO;
        let (mut looked, mut asked) = (None, None);
        loop {
            let seen = self.wait_part(deadline, &mut spent, what, |engine| {
                let peers = &self.0.node.layout.peers;
                // All units of other nodes are looked through, however many the domain has: only
                // when something has changed.
                let now = Some((engine.changes, peers.epoch()));
                let is_old = std::mem::replace(&mut looked, now) == now;
                let living = match is_old {
                    true => None,
                    false => living(engine, self.identity(), wanted),
                };
                let news = self.domain().map(|_| peers.roster());
                let is_new = news != std::mem::replace(&mut asked, news);
                living.map(Some).or(is_new.then_some(None))
            });
            let found = match seen {
                Ok(Some(living)) => Some(living),
                Ok(None) => {
                    let rest = deadline.saturating_sub(spent);
                    let left = &mut Left::new(rest.max(ANSWER));
                    let found = self.request_roster(wanted, left)?;
                    spent += left.spent();
                    found
                }
                Err(Error::Timeout { .. }) if self.domain().is_some() => {
                    return self.at_deadline(wanted, deadline);
                }
                Err(error) => return Err(error),
            };
            if let Some(found) = found {
                return Ok(found);
            }
        }
    }

    /// Asks the agent for the units; returns them once they have all joined.
    fn request_roster(&self, wanted: &Wanted, left: &mut Left) -> Result<Option<Vec<UnitLife>>> {
        match self.roster(wanted, left)? {
            Roster::Complete(lives) => Ok(Some(lives)),
            Roster::Missing(_) => Ok(None),
            Roster::Absent { unit, how } => Err(self.absent(unit, how)),
        }
    }

    fn roster(&self, wanted: &Wanted, left: &mut Left) -> Result<Roster> {
        let domain = self.domain().unwrap_or_default();
        client::roster(domain, self.identity(), wanted, left)
    }

    /// Asks the agent once more: the word of the table of peers is only a hint.
    ///
    /// # Errors
    /// [`Error::Absent`] names the units that have not joined.
    fn at_deadline(&self, wanted: &Wanted, after: Duration) -> Result<Vec<UnitLife>> {
        match self.roster(wanted, &mut Left::new(ANSWER))? {
            Roster::Complete(lives) => Ok(lives),
            Roster::Absent { unit, how } => Err(self.absent(unit, how)),
            Roster::Missing(names) => {
                let how = format!(
                    "nothing was heard of it within {after:?}; was it started, and does it join?"
                );
                Err(self.absent(names.join(", "), how))
            }
        }
    }

    fn absent(&self, unit: String, how: String) -> Error {
        let job = self.identity().job.clone();
        Error::Absent { unit, job, how }
    }
}

/// Returns the units if all of them are alive now.
fn living(engine: &Engine, own: &Identity, wanted: &Wanted) -> Option<Vec<UnitLife>> {
    let life = |info: &PeerInfo| UnitLife {
        unit: info.identity.unit,
        peer: info.peer,
        incarnation: info.incarnation,
    };
    let is_of_job = |of: &Identity| of.job == own.job && of.unit < own.units;
    let mut of_job = engine.living(|info| is_of_job(&info.identity));
    of_job.sort_by_key(|info| info.identity.unit);
    let units = of_job.iter().map(|info| info.identity.unit);
    let is_complete = units.eq(0..own.units);
    let name = match wanted {
        Wanted::Program(name) => name,
        Wanted::Units(units) => {
            let found = |unit: &u32| {
                let at = of_job.partition_point(|info| info.identity.unit < *unit);
                let mut of_number = of_job[at..].iter();
                // Two processes say that they are this unit: the agent knows which one is.
                let (first, second) = (of_number.next()?, of_number.next());
                let is_it = |info: &&PeerInfo| info.identity.unit == *unit;
                (is_it(&first) && !second.as_ref().is_some_and(is_it)).then(|| life(first))
            };
            return units.iter().map(found).collect();
        }
        Wanted::Job | Wanted::Coming => {
            return is_complete.then(|| of_job.iter().map(life).collect());
        }
    };
    let of_own = of_job.iter().any(|info| info.identity.program == *name) || !is_complete;
    let is_it = |info: &PeerInfo| info.identity.program == *name;
    let all = engine.living(|info| is_it(info) && (!of_own || info.identity.job == own.job));
    let of_job_of = |first: &PeerInfo| {
        let units = all
            .iter()
            .filter(|info| info.identity.job == first.identity.job);
        let mut units: Vec<&PeerInfo> = units.collect();
        units.sort_by_key(|info| info.identity.rank);
        let ranks = units.iter().map(|info| info.identity.rank);
        let is_complete = ranks.eq(0..first.identity.size);
        is_complete.then(|| units.into_iter().map(life).collect())
    };
    all.iter().find_map(of_job_of)
}

impl Fabric {
    /// What can be done between a peer and this process, after the mask; nothing if there never was
    /// one. Local.
    pub fn caps_to(&self, peer: PeerId) -> Caps {
        let caps = |core: &mut Core| core.known(peer).map(|peer| peer.route.caps);
        self.0.with(caps).flatten().unwrap_or_default()
    }

    /// Which node a peer is on, or behaves as if it were on (`Mask`): equal for those that may
    /// map each other's memory. `None` if there never was one. Local.
    pub fn node_of(&self, peer: PeerId) -> Option<u32> {
        let mut core = self.0.core()?;
        let unit = core.known(peer)?.info.as_ref()?.identity.unit;
        let mask = core.engine.mask;
        Some(match mask.map {
            true => peer.0,
            false => peer.node() * mask.nodes.max(1) + mask.node_of(unit),
        })
    }

    /// The process id of a peer out of whose private memory this process should copy so many bytes:
    /// the kernel does it, and no other way is faster here.
    pub fn reads_private(&self, peer: PeerId, bytes: u64) -> Option<i32> {
        let engine = &mut self.0.lock().ok()?.engine;
        let fastest = engine.costs.choose(bytes, true, false) == crate::Choice::Kernel;
        (fastest && engine.kernel_works(peer)).then(|| engine.peers.pid(peer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::transport::{Caps, Change, Sink};

    /// An agent is among the peers, but takes no messages: sending it one is a mistake, for example
    /// of a program that counts its peers from 0.
    #[test]
    fn an_agent_takes_no_messages() {
        let fabric = Fabric::alone(Identity::by_hand("test"), Config::default()).unwrap();
        let agent = PeerInfo {
            peer: PeerId(5),
            incarnation: 1,
            identity: crate::agent::identity(),
            pid: 1,
        };
        let engine = |change| fabric.0.core().unwrap().engine.change(change);
        engine(Change::Joined(agent, Caps::default()));
        let refused = Err(Error::NoMessages(PeerId(5).into()));
        assert_eq!(fabric.send(PeerId(5), 1, &[1]), refused);
        assert_eq!(fabric.send(PeerId(5), 1, &[0; 1 << 20]), refused);
        assert_eq!(fabric.signal(PeerId(5), 1), refused);
        let sentence = "the agent receives no messages: it is not a unit; take the numbers of units from `job` or \
             `program`";
        let error = fabric.isend(PeerId(5), 1, vec![1]).unwrap_err();
        assert_eq!(error.to_string(), sentence);
    }

    /// Two processes say that they are the same unit: they are not two of its job.
    #[test]
    fn units_are_counted_by_their_numbers() {
        let identity = |unit: u32| Identity {
            job: "job".to_owned(),
            program: "test".to_owned(),
            rank: unit,
            size: 3,
            unit,
            units: 3,
        };
        let config = Config {
            deadline: Duration::from_millis(10),
            ..Config::default()
        };
        let fabric = Fabric::alone(identity(0), config).unwrap();
        let join = |peer: u32, unit: u32| {
            let info = PeerInfo {
                peer: PeerId(peer),
                incarnation: 1,
                identity: identity(unit),
                pid: 1,
            };
            let engine = &mut fabric.0.core().unwrap().engine;
            engine.change(Change::Joined(info, Caps::default()));
        };
        let is_late = |found: Result<Vec<PeerId>>| matches!(found, Err(Error::Timeout { .. }));
        join(5, 1);
        join(3, 1);
        for found in [fabric.job(), fabric.program("test")] {
            assert!(is_late(found));
        }
        join(4, 2);
        assert!(is_late(fabric.job()), "unit 1 is two");
        join(5, 7);
        let all = [0, 3, 4].map(PeerId);
        assert_eq!(fabric.job().unwrap(), all);
    }
}
