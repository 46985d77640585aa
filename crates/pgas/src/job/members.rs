//! Who shares global memory: some units of a job, and how they begin it.
//!
//! Each member finds the others, listens to them, and then agrees with them on the number of this
//! life ([`samite_fabric::Layer::begin`]). So no member sends anything of a life before all of them
//! listen, and nobody takes a message of an earlier life for one of this, even if the earlier life
//! had other members.

use crate::{Error, Group, Result, Unit};
use samite_fabric::{Error as Below, Fabric, Layer, Named, PeerId, UnitLife, Whom};

/// What is known of a member that has left or died.
const ENDED: &str = "it has ended";

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
    /// By position in the group. Until all have begun, a member that has ended may have the number
    /// of another one.
    pub(super) peers: Vec<PeerId>,
    /// Which life of its peer number each member is, by position in the group.
    pub(super) incarnations: Vec<u32>,
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
        let group: Group = units.iter().map(|unit| Unit(unit.unit)).collect();
        if !group.contains(me) {
            return Err(not_a_member(fabric, me));
        }
        Ok(Members {
            fabric: fabric.clone(),
            layer,
            me,
            group,
            peers: units.iter().map(|unit| unit.peer).collect(),
            incarnations: units.iter().map(|unit| unit.incarnation).collect(),
            remedy,
        })
    }

    pub(crate) fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    pub(crate) fn peers(&self) -> &[PeerId] {
        &self.peers
    }

    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    /// Returns the incarnations of the members, by position in the group.
    pub(crate) fn incarnations(&self) -> &[u32] {
        &self.incarnations
    }

    /// Agrees with the others on the number of this life. Collective over the members.
    ///
    /// # Errors
    /// [`Error::NotBegun`] names a unit that is lost, or has not come within the deadline.
    pub(super) fn agree(&self) -> Result<u64> {
        let is_first = self.group.members().first() == Some(&self.me);
        // The first member tells the others, which may be waiting for it.
        if !is_first && let Some(at) = self.ended() {
            return Err(self.not_begun(at, ENDED.to_owned()));
        }
        let begun = self.layer.begin(&self.peers, &self.incarnations);
        begun.map_err(|error| self.explain(error))
    }

    /// Returns the position of a member that has ended, if one has. The fabric would wait for
    /// another process that has its number by now.
    fn ended(&self) -> Option<usize> {
        let mut members = self.peers.iter().zip(&self.incarnations);
        members.position(|(peer, incarnation)| {
            let lost = self.fabric.lost_life(*peer, *incarnation);
            matches!(lost, Some(Below::PeerLost { .. } | Below::NoSuchPeer(_)))
        })
    }

    fn explain(&self, error: Below) -> Error {
        let mut life = None;
        let (peer, how) = match &error {
            Below::PeerLost { peer, incarnation } => {
                // One that never was there has none.
                life = (*incarnation != 0).then_some(*incarnation);
                (peer.id, ENDED.to_owned())
            }
            Below::NoSuchPeer(peer) => (*peer, ENDED.to_owned()),
            Below::Timeout {
                whom:
                    Named {
                        id: Whom::Peer(peer),
                        ..
                    },
                after,
                ..
            } => match self.ended() {
                Some(at) => return self.not_begun(at, ENDED.to_owned()),
                // It answers when all have come, and names one that has not if it knows.
                None if self.peers.first() == Some(peer) => {
                    let how =
                        format!("no answer from it within {after:?}; is another unit missing?");
                    (*peer, how)
                }
                None => (*peer, format!("nothing was heard of it within {after:?}")),
            },
            _ => return error.into(),
        };
        let mut members = self.peers.iter().zip(&self.incarnations);
        let is_it = |member: (&PeerId, &u32)| {
            *member.0 == peer && life.is_none_or(|life| *member.1 == life)
        };
        match members.position(is_it) {
            Some(at) => self.not_begun(at, how),
            None => error.into(),
        }
    }

    fn not_begun(&self, at: usize, how: String) -> Error {
        let life = Some(self.incarnations[at]);
        let name = self.fabric.name_of(self.peers[at], life);
        Error::NotBegun {
            unit: Some(Named::new(self.group.members()[at], name)),
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
        if !group.contains(me) {
            return Err(not_a_member(fabric, me));
        }
        match group.members().last() {
            Some(last) if last.0 >= units => Err(Error::NotAMember((*last).into())),
            _ => Ok(()),
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

/// Returns the error of this unit, which is not a member.
fn not_a_member(fabric: &Fabric, me: Unit) -> Error {
    let name = fabric.name_of(fabric.me(), None);
    Error::NotAMember(Named::new(me, name))
}

/// Adds the remedy to the error of units that have not joined.
fn not_joined(error: Below, remedy: &'static str) -> Error {
    match error {
        Below::Absent { .. } => Error::NotBegun {
            unit: None,
            how: error.to_string(),
            remedy,
        },
        error => error.into(),
    }
}
