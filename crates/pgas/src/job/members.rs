//! Who shares global memory: some units of a job, and how they begin it.
//!
//! Each member finds the others, listens to them, and then agrees with them on the number of this
//! life ([`samite_fabric::Layer::begin`]). So no member sends anything of a life before all of them
//! listen, and nobody takes a message of an earlier life for one of this, although the members of
//! the lives may differ.

use crate::{Error, Group, Result, Unit};
use samite_fabric::{Error as Below, Fabric, Layer, Named, PeerId, UnitLife, Whom};
use std::collections::HashMap;

/// Which units of the job begin global memory together.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which<'g> {
    /// All.
    Job,
    /// Those of this unit's program.
    Program,
    /// These.
    Group(&'g Group),
}

/// The units that begin global memory together; all of them have joined the job.
#[derive(Debug)]
pub(crate) struct Members {
    pub(super) fabric: Fabric,
    pub(super) layer: Layer,
    pub(super) me: Unit,
    pub(super) group: Group,
    /// By position in the group.
    pub(super) peers: Vec<PeerId>,
    /// Which life of a peer is the unit: peer numbers are reused.
    pub(super) lives: HashMap<PeerId, u32>,
    /// What to do if one of them does not begin.
    remedy: &'static str,
}

impl Members {
    /// Waits until they have joined, and for no other unit.
    ///
    /// # Errors
    /// As [`crate::Pgas::of`].
    pub(crate) fn wait_for(fabric: &Fabric, which: Which<'_>) -> Result<Members> {
        let me = Unit(fabric.identity().unit);
        which.check(fabric)?;
        let layer = fabric.layer("global memory").ok_or(Error::AlreadyBegun)?;
        let remedy = which.remedy(fabric);
        let units = match which {
            Which::Job => fabric.job_lives(),
            Which::Program => fabric.program_lives(),
            Which::Group(group) => {
                let units: Vec<u32> = group.into_iter().map(|unit| unit.0).collect();
                fabric.unit_lives(&units)
            }
        };
        let mut units: Vec<UnitLife> = units.map_err(|error| not_joined(error, remedy))?;
        units.sort_unstable_by_key(|unit| unit.unit);
        units.dedup_by_key(|unit| unit.unit);
        let life = |unit: &UnitLife| (unit.peer, unit.incarnation);
        let group: Group = units.iter().map(|unit| Unit(unit.unit)).collect();
        if !group.contains(me) {
            return Err(Error::NotAMember(me.into()));
        }
        Ok(Members {
            fabric: fabric.clone(),
            layer,
            me,
            group,
            peers: units.iter().map(|unit| unit.peer).collect(),
            lives: units.iter().map(life).collect(),
            remedy,
        })
    }

    pub(crate) fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    pub(crate) fn peers(&self) -> &[PeerId] {
        &self.peers
    }

    /// Agrees with the others on the number of this life. Collective over the members.
    ///
    /// # Errors
    /// [`Error::NotBegun`] names a unit that is lost, or has not come within the deadline.
    pub(super) fn agree(&self) -> Result<u64> {
        let begun = match self.lost() {
            Some(lost) => Err(lost),
            None => self.layer.begin(&self.peers),
        };
        begun.map_err(|error| self.not_begun(error))
    }

    /// Returns why a member is lost, if one is. The fabric would wait for another process that has
    /// the number of a lost one by now.
    fn lost(&self) -> Option<Below> {
        let lost = |peer: &PeerId| self.fabric.lost_life(*peer, *self.lives.get(peer)?);
        self.peers.iter().find_map(lost)
    }

    fn not_begun(&self, error: Below) -> Error {
        let (peer, how) = match &error {
            Below::PeerLost { peer, .. } => (peer.id, "it has ended".into()),
            Below::NoSuchPeer(peer) => (*peer, "it has ended".into()),
            Below::Timeout {
                whom:
                    Named {
                        id: Whom::Peer(peer),
                        ..
                    },
                after,
                ..
            } => match self.lost() {
                Some(lost @ Below::PeerLost { .. }) => return self.not_begun(lost),
                // It answers when all have come, and tells of one that has not if it can.
                _ if self.peers.first() == Some(peer) => {
                    let how =
                        format!("no answer from it within {after:?}; is another unit missing?");
                    (*peer, how)
                }
                _ => (*peer, format!("nothing was heard of it within {after:?}")),
            },
            _ => return error.into(),
        };
        let Some(at) = self.peers.iter().position(|member| *member == peer) else {
            return error.into();
        };
        let unit = self.group.members()[at];
        let name = self.fabric.name_of(peer, self.lives.get(&peer).copied());
        Error::NotBegun {
            unit: Some(unit),
            name: name.map_or_else(|| unit.to_string(), |name| name.to_string()),
            how,
            remedy: self.remedy,
        }
    }
}

impl Which<'_> {
    fn check(self, fabric: &Fabric) -> Result<()> {
        let Which::Group(group) = self else {
            return Ok(());
        };
        let (me, units) = (Unit(fabric.identity().unit), fabric.identity().units);
        let last = group.members().last().copied();
        match last.filter(|last| last.0 >= units) {
            _ if !group.contains(me) => Err(Error::NotAMember(me.into())),
            Some(stranger) => Err(Error::NotAMember(stranger.into())),
            None => Ok(()),
        }
    }

    /// Returns what to do if a unit does not begin.
    fn remedy(self, fabric: &Fabric) -> &'static str {
        let has_other_programs = fabric.identity().size < fabric.identity().units;
        match self {
            Which::Job if has_other_programs => {
                "if only the units of one program use it, let these begin it by `Pgas::of_program`"
            }
            Which::Job => "if only some units use it, let these begin it by `Pgas::of`",
            Which::Program => "every unit of the program begins it, by `Pgas::of_program`",
            Which::Group(_) => "every unit of the group begins it, by `Pgas::of` of the same group",
        }
    }
}

/// Adds the remedy to the error of units that have not joined.
fn not_joined(error: Below, remedy: &'static str) -> Error {
    match error {
        Below::Absent { unit, how, .. } => Error::NotBegun {
            unit: None,
            name: unit,
            how: format!("it has not joined the job: {how}"),
            remedy,
        },
        error => error.into(),
    }
}
