//! Which process each unit of the job is now.

use samite::{Error, Fabric, PeerId, PeerInfo, UnitLife};

/// The units as this process saw them at one moment.
pub(crate) struct Units {
    /// How many changes of membership this process had seen before that moment.
    changes: u64,
    /// The last life of each unit.
    lives: Vec<UnitLife>,
    /// The peer number of each life, or an error if another process has that number by now.
    peers: Vec<Result<PeerId, Error>>,
}

impl Units {
    /// Waits until all units of the job have joined.
    pub(crate) fn wait_for(fabric: &Fabric) -> Result<Units, Error> {
        let changes = fabric.changes();
        let lives = fabric.job_lives()?;
        Ok(Units::new(fabric, changes, lives, &fabric.peers()))
    }

    /// Returns the units as they are now, or `None` if membership has not changed. A unit that was
    /// started again has another life, usually with another peer number. A unit that has only ended
    /// keeps its last life, so that operations to it end as lost. Does not wait.
    pub(crate) fn renewed(&self, fabric: &Fabric) -> Option<Units> {
        let changes = fabric.changes();
        if changes == self.changes {
            return None;
        }
        let mut lives = self.lives.clone();
        let job = &fabric.identity().job;
        let living = fabric.peers();
        // Over a network, this process may see the next life of a unit before the loss of the
        // former one. Of two lives, that of the higher peer number counts, as for moved code.
        for info in &living {
            let unit = info.identity.unit;
            if info.identity.job == *job
                && let Some(life) = lives.get_mut(unit as usize)
            {
                let (peer, incarnation) = (info.peer, info.incarnation);
                *life = UnitLife {
                    unit,
                    peer,
                    incarnation,
                };
            }
        }
        Some(Units::new(fabric, changes, lives, &living))
    }

    /// `living` are all processes of the domain, by peer number.
    fn new(fabric: &Fabric, changes: u64, lives: Vec<UnitLife>, living: &[PeerInfo]) -> Units {
        let peer = |life: &UnitLife| {
            let at = living.binary_search_by_key(&life.peer, |info| info.peer);
            let is_another = at.is_ok_and(|at| living[at].incarnation != life.incarnation);
            let lost = is_another.then(|| fabric.lost_life(life.peer, life.incarnation));
            lost.flatten().map_or(Ok(life.peer), Err)
        };
        Units {
            changes,
            peers: lives.iter().map(peer).collect(),
            lives,
        }
    }

    /// Returns how many units the job has.
    pub(crate) fn len(&self) -> usize {
        self.peers.len()
    }

    /// Returns the peer that a unit is, or `None` if the job has no such unit.
    pub(crate) fn peer(&self, unit: u32) -> Option<&Result<PeerId, Error>> {
        self.peers.get(unit as usize)
    }

    /// Returns all peers, by unit.
    pub(crate) fn peers(&self) -> Result<Vec<PeerId>, Error> {
        self.peers.iter().cloned().collect()
    }

    /// Returns the unit that a peer is.
    pub(crate) fn unit(&self, peer: PeerId) -> Option<usize> {
        self.peers.iter().position(|of| *of == Ok(peer))
    }
}
