//! Which units of each job have joined, whatever became of them later. Pure: no IO.
//!
//! Starting is a collective act: a unit that has joined counts for all units of its job, even if it
//! has left or died before the others looked. So the agent remembers, per job and unit, which peer
//! and incarnation it became, for as long as the job lives: until all of its units have joined, or
//! are known never to join, and none of them is a member any more.
//!
//! Any process of the user can send the agent any request. So a process that reports the end of a
//! unit must be an ancestor of those that joined here, and what is remembered is bounded.
//!
//! Units of other nodes count like those of this one: their agents report them.

use crate::{Identity, PeerId, UnitLife};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The most remembered jobs that have no member and still miss units.
const ABANDONED_MAX: usize = 64;
/// The most of those without any joined unit for which one process has reported ends.
const TOLD_MAX: usize = 8;
/// The most units remembered, of all jobs together; no job has more. The answer that names them all
/// is one packet, whatever their numbers are.
pub(super) const UNITS_MAX: u32 = 7000;
/// The most bytes kept of a name, or of how a unit ended.
const TEXT_MAX: usize = 200;
/// The most ancestors of a process that are examined.
const ANCESTORS_MAX: usize = 64;

/// The book of jobs.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    jobs: BTreeMap<String, Job>,
    /// Rises with each job, to find the oldest one.
    begun: u64,
}

#[derive(Debug)]
struct Job {
    units: BTreeMap<u32, Unit>,
    /// The units of the whole job, as those that joined said; the maximum until one has.
    wanted: u32,
    number: u64,
    /// The ancestors of the first unit that joined on this node: one of them started the job here.
    /// `None`: no unit has joined here.
    starters: Option<Vec<i32>>,
    /// The process that reported the end of a unit.
    told_by: Option<i32>,
}

/// What became of a unit.
#[derive(Debug)]
enum Unit {
    Joined {
        identity: Identity,
        peer: PeerId,
        incarnation: u32,
        alive: bool,
    },
    /// It ended before it joined.
    Absent { name: String, how: String },
}

/// The units for which a process waits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Wanted {
    /// All units of a job.
    Job,
    /// The units of the job with these numbers.
    Units(Vec<u32>),
    /// The units of a program of the job, or, if the complete job has no such program, of another
    /// job.
    Program(String),
    /// Those units of the job that have neither joined nor ended: complete when there are none.
    Coming,
}

/// The answer: whether all of them have joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Roster {
    /// In the order of their numbers for a job, of their ranks for a program, and of the request
    /// for [`Wanted::Units`].
    Complete(Vec<UnitLife>),
    /// Some have not joined yet.
    Missing(Vec<String>),
    /// A unit ended before it joined.
    Absent { unit: String, how: String },
}

impl Unit {
    /// Returns the process that the unit became, if it has joined.
    fn life(&self) -> Option<UnitLife> {
        match self {
            Unit::Joined {
                identity,
                peer,
                incarnation,
                ..
            } => Some(UnitLife {
                unit: identity.unit,
                peer: *peer,
                incarnation: *incarnation,
            }),
            Unit::Absent { .. } => None,
        }
    }

    /// Returns the answer to those that wait for the unit, if it ended before it joined.
    fn absent(&self) -> Option<Roster> {
        match self {
            Unit::Joined { .. } => None,
            Unit::Absent { name, how } => Some(Roster::Absent {
                unit: name.clone(),
                how: how.clone(),
            }),
        }
    }
}

impl Jobs {
    /// Checks whether a process can be the unit that it claims to be, and one more unit can be
    /// remembered.
    pub(crate) fn check(&mut self, identity: &Identity) -> Result<(), String> {
        let Identity {
            rank,
            size,
            unit,
            units,
            ..
        } = *identity;
        // A unit that was started by hand may know its rank but not its number: a program has as
        // many units as it says.
        if units > UNITS_MAX || unit >= units || rank >= size {
            return Err(format!(
                "unit {unit} of {units}, rank {rank} of {size}: a unit is one of its job, of at most {UNITS_MAX}, \
                 and its rank one of its program"
            ));
        }
        let job = &identity.job;
        if job.len() > TEXT_MAX {
            let has = job.len();
            return Err(format!(
                "the name of the job has {has} bytes, of at most {TEXT_MAX}"
            ));
        }
        let known = self.jobs.get(job).and_then(|job| job.units.get(&unit));
        // Two processes as the same unit would make its name ambiguous.
        if let Some(Unit::Joined {
            peer, alive: true, ..
        }) = known
        {
            return Err(format!(
                "unit {unit} of job {} has already joined, as {peer}, and has not left. If this process is \
                 that unit, use a clone of its Fabric. If a unit started it, start it without any SAMITE_ \
                 variable but SAMITE_DOMAIN. Processes of a job that are started by hand need numbers of their \
                 own: SAMITE_RANK, or SAMITE_UNIT and SAMITE_UNITS if the job has several programs",
                cut(job)
            ));
        }
        self.check_size(identity)?;
        self.make_room_for(job, unit)
    }

    /// Checks that a unit says the same about the size of its job and of its program as the living
    /// units.
    fn check_size(&self, identity: &Identity) -> Result<(), String> {
        let units = self.jobs.get(&identity.job).into_iter();
        let there = units.flat_map(|job| job.units.values());
        let there = there.filter_map(|unit| match unit {
            Unit::Joined {
                identity,
                alive: true,
                ..
            } => Some(identity),
            _ => None,
        });
        let name = |of: &Identity| format!("{}.{}", cut(&of.program), of.rank);
        let says = |what: &str, here: u32, there: u32, other: &Identity| {
            format!(
                "{} of job {} says that {what} {here} units, but {}, which has joined, says {there}: give all \
                 of them the same number (SAMITE_SIZE, or SAMITE_UNITS if the job has several programs)",
                name(identity),
                cut(&identity.job),
                name(other),
            )
        };
        for other in there {
            if other.program == identity.program && other.size != identity.size {
                let what = "its program has";
                return Err(says(what, identity.size, other.size, other));
            }
            if other.units != identity.units {
                return Err(says("the job has", identity.units, other.units, other));
            }
        }
        Ok(())
    }

    /// Makes room to remember one more unit. Jobs without living members are dropped, but not the
    /// unit's own.
    fn make_room_for(&mut self, name: &str, unit: u32) -> Result<(), String> {
        let job = self.jobs.get(name);
        let is_known = job.is_some_and(|job| job.units.contains_key(&unit));
        while !is_known && self.known() >= UNITS_MAX as usize {
            if !self.forget_oldest(|of, job| of != name && !job.lives()) {
                return Err(format!(
                    "the jobs of this domain have had {} units, more than are remembered; let some of the jobs end",
                    self.known()
                ));
            }
        }
        Ok(())
    }

    /// Returns the number of remembered units.
    fn known(&self) -> usize {
        self.jobs.values().map(|job| job.units.len()).sum()
    }

    /// Forgets the oldest of the jobs that `which` selects, first those without a joined unit;
    /// returns whether there was one.
    fn forget_oldest(&mut self, which: impl Fn(&str, &Job) -> bool) -> bool {
        let some = self.jobs.iter().filter(|(name, job)| which(name, job));
        let oldest = some.min_by_key(|(_, job)| (job.starters.is_some(), job.number));
        let Some((oldest, _)) = oldest else {
            return false;
        };
        let oldest = oldest.clone();
        self.jobs.remove(&oldest).is_some()
    }

    /// Records a unit that has joined, a process with these ancestors; `None`: on another node.
    /// Returns whether those that wait for units should ask: its program is complete, or others of
    /// its job have left, and are no longer seen among the living.
    pub(crate) fn joined(
        &mut self,
        identity: &Identity,
        peer: PeerId,
        incarnation: u32,
        ancestors: Option<&[i32]>,
    ) -> bool {
        let job = self.job(&identity.job);
        let came_before = matches!(job.units.get(&identity.unit), Some(Unit::Joined { .. }));
        let is_of_another = match (ancestors, job.told_by) {
            (Some(ancestors), Some(told_by)) => !ancestors.contains(&told_by),
            _ => false,
        };
        if (came_before || is_of_another) && !job.lives() {
            // No process is left of the earlier run of this name; or none of it ever joined, and
            // the process that reported its units did not start this one.
            *job = Job::new(job.number);
        }
        if let Some(ancestors) = ancestors {
            job.starters.get_or_insert_with(|| ancestors.to_vec());
        }
        job.wanted = identity.units;
        let unit = Unit::Joined {
            identity: identity.clone(),
            peer,
            incarnation,
            alive: true,
        };
        job.units.insert(identity.unit, unit);
        let has_left = |unit: &Unit| matches!(unit, Unit::Joined { alive: false, .. });
        let some_left = job.units.values().any(has_left);
        let joined = job.of_program(&identity.program).len();
        self.prune();
        some_left || joined >= identity.size as usize
    }

    /// Records a unit that has left or died. Returns whether those that wait for units should ask:
    /// its job is not complete, so they may wait for this unit among others.
    pub(crate) fn left(&mut self, peer: PeerId, incarnation: u32) -> bool {
        let mut is_awaited = false;
        for job in self.jobs.values_mut() {
            let is_incomplete = job.units.len() < job.wanted as usize;
            for unit in job.units.values_mut() {
                if let Unit::Joined {
                    peer: who,
                    incarnation: which,
                    alive,
                    ..
                } = unit
                    && (*who, *which) == (peer, incarnation)
                {
                    *alive = false;
                    is_awaited |= is_incomplete;
                }
            }
        }
        self.prune();
        is_awaited
    }

    /// Records that the process of a unit has ended, as reported by process `by`, which started it.
    /// Returns whether the unit had not joined.
    ///
    /// # Errors
    /// `by` did not start the job, or there is no such unit.
    pub(crate) fn ended(
        &mut self,
        job: &str,
        unit: u32,
        (name, how): (&str, &str),
        by: i32,
    ) -> Result<bool, String> {
        if unit >= UNITS_MAX || job.len() > TEXT_MAX {
            return Err(format!(
                "there is no unit {unit}, or the name of its job is too long: a job has at most {UNITS_MAX} units, \
                 and its name {TEXT_MAX} bytes"
            ));
        }
        // Anyone can send this, so the sender must have started the job, as far as that is known.
        match self.jobs.get(job) {
            Some(job) if !job.is_told_by(by) => {
                return Err(format!("process {by} did not start this job"));
            }
            Some(_) => {}
            None => self.forget_told(by),
        }
        self.make_room_for(job, unit)?;
        let job = self.job(job);
        if unit >= job.wanted {
            let wanted = job.wanted;
            self.prune();
            return Err(format!("unit {unit} of {wanted}: there is none"));
        }
        job.told_by = Some(by);
        let joined = matches!(job.units.get(&unit), Some(Unit::Joined { .. }));
        if !joined {
            let absent = Unit::Absent {
                name: cut(name),
                how: cut(how),
            };
            job.units.insert(unit, absent);
        }
        self.prune();
        Ok(!joined)
    }

    /// Forgets the oldest of too many jobs that only this process has reported.
    fn forget_told(&mut self, by: i32) {
        let is_told = |job: &Job| {
            let has_joined = job.starters.is_some() || job.lives();
            !has_joined && job.told_by == Some(by)
        };
        if self.jobs.values().filter(|job| is_told(job)).count() >= TOLD_MAX {
            self.forget_oldest(|_, job| is_told(job));
        }
    }

    /// Returns the living unit of a job with this number, if it is on another node than `here`.
    pub(crate) fn elsewhere(&self, identity: &Identity, here: u32) -> Option<(PeerId, u32)> {
        match self.jobs.get(&identity.job)?.units.get(&identity.unit)? {
            Unit::Joined {
                peer,
                incarnation,
                alive: true,
                ..
            } if peer.node() != here => Some((*peer, *incarnation)),
            _ => None,
        }
    }

    /// Returns the numbers that units of living jobs have or had: others know the units of a job by
    /// them.
    pub(crate) fn numbers(&self) -> BTreeSet<PeerId> {
        let living = self.jobs.values().filter(|job| job.lives());
        let units = living.flat_map(|job| job.units.values());
        let numbers = units.filter_map(|unit| match unit {
            Unit::Joined { peer, .. } => Some(*peer),
            Unit::Absent { .. } => None,
        });
        numbers.collect()
    }

    /// Returns whether the units that `asker` asks about have joined.
    pub(crate) fn roster(&self, asker: &Identity, wanted: &Wanted) -> Roster {
        let none = Job::new(0);
        let own = self.jobs.get(&asker.job).unwrap_or(&none);
        match wanted {
            Wanted::Job => own.all(asker.units),
            Wanted::Units(units) => own.these(units),
            Wanted::Coming if own.units.len() >= asker.units as usize => {
                Roster::Complete(Vec::new())
            }
            Wanted::Coming => own.missing(0..asker.units),
            Wanted::Program(name) => {
                let has = !own.of_program(name).is_empty();
                if has || own.units.len() < asker.units as usize {
                    return own.program(name, asker.units);
                }
                let others = self.jobs.values().filter(|job| job.lives());
                let found = others.map(|job| job.program(name, job.wanted));
                let mut complete = found.filter(|found| matches!(found, Roster::Complete(_)));
                let missing = Roster::Missing(vec![format!("a unit of {name}")]);
                complete.next().unwrap_or(missing)
            }
        }
    }

    fn job(&mut self, name: &str) -> &mut Job {
        self.begun += 1;
        let begun = self.begun;
        let entry = self.jobs.entry(name.to_owned());
        entry.or_insert_with(|| Job::new(begun))
    }

    /// Forgets jobs that no process can ask for any more.
    fn prune(&mut self) {
        self.jobs
            .retain(|_, job| job.lives() || job.units.len() < job.wanted as usize);
        if self.jobs.values().filter(|job| !job.lives()).count() > ABANDONED_MAX {
            self.forget_oldest(|_, job| !job.lives());
        }
    }
}

impl Job {
    fn new(number: u64) -> Job {
        Job {
            units: BTreeMap::new(),
            wanted: UNITS_MAX,
            number,
            starters: None,
            told_by: None,
        }
    }

    /// Returns whether a process may report the end of a unit: it is an ancestor of the first unit
    /// that joined. As long as none has, it is the first process that reports any.
    fn is_told_by(&self, process: i32) -> bool {
        match (&self.starters, self.told_by) {
            (Some(starters), _) => starters.contains(&process),
            (None, Some(told_by)) => told_by == process,
            (None, None) => true,
        }
    }

    fn lives(&self) -> bool {
        self.units
            .values()
            .any(|unit| matches!(unit, Unit::Joined { alive: true, .. }))
    }

    /// Returns the units of a program that have joined, by rank.
    fn of_program(&self, name: &str) -> BTreeMap<u32, UnitLife> {
        let joined = self.units.values().filter_map(|unit| match unit {
            Unit::Joined { identity, .. } if identity.program == name => {
                Some((identity.rank, unit.life()?))
            }
            _ => None,
        });
        joined.collect()
    }

    fn all(&self, units: u32) -> Roster {
        let found = self.units.range(..units).map(|(_, unit)| unit);
        let found: Vec<UnitLife> = found.filter_map(Unit::life).collect();
        if found.len() == units as usize {
            return Roster::Complete(found);
        }
        self.absent(|_| true)
            .unwrap_or_else(|| self.missing(0..units))
    }

    fn these(&self, units: &[u32]) -> Roster {
        let found = units.iter().map_while(|unit| self.units.get(unit)?.life());
        let found: Vec<UnitLife> = found.collect();
        if found.len() == units.len() {
            return Roster::Complete(found);
        }
        let mut known = units.iter().filter_map(|unit| self.units.get(unit));
        known
            .find_map(Unit::absent)
            .unwrap_or_else(|| self.missing(units.iter().copied()))
    }

    fn program(&self, name: &str, units: u32) -> Roster {
        let found = self.of_program(name);
        let size = self.units.values().find_map(|unit| match unit {
            Unit::Joined { identity, .. } if identity.program == name => {
                Some((identity.unit.saturating_sub(identity.rank), identity.size))
            }
            _ => None,
        });
        let places = match size {
            Some((_, size)) if found.keys().copied().eq(0..size) => {
                return Roster::Complete(found.into_values().collect());
            }
            Some((first, size)) => first..first.saturating_add(size),
            // Any unit that has not joined may belong to the program.
            None => 0..units,
        };
        let is_of_program = |unit: &str| unit.rsplit_once('.').is_some_and(|(of, _)| of == name);
        self.absent(is_of_program)
            .unwrap_or_else(|| self.missing(places))
    }

    fn absent(&self, of_interest: impl Fn(&str) -> bool) -> Option<Roster> {
        let is_of_interest = |unit: &&Unit| match unit {
            Unit::Joined { .. } => false,
            Unit::Absent { name, .. } => of_interest(name),
        };
        self.units.values().find(is_of_interest)?.absent()
    }

    fn missing(&self, units: impl Iterator<Item = u32>) -> Roster {
        // As many as fit into a sentence.
        let missing = units.filter(|unit| !self.units.contains_key(unit)).take(4);
        Roster::Missing(missing.map(|unit| self.name(unit)).collect())
    }

    /// Returns the display name of a unit that never joined: by its program, if that is known, or
    /// only by its number.
    fn name(&self, unit: u32) -> String {
        let of_program = |known: &Unit| {
            let Unit::Joined { identity, .. } = known else {
                return None;
            };
            let first = identity.unit.checked_sub(identity.rank)?;
            let rank = unit
                .checked_sub(first)
                .filter(|rank| *rank < identity.size)?;
            Some(format!("{}.{rank}", identity.program))
        };
        let named = self.units.values().find_map(of_program);
        named.unwrap_or_else(|| format!("unit {unit}"))
    }
}

/// Cuts a text to the length that is kept.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_MAX)].to_owned()
}

/// Returns the process ids of the ancestors of a process, as far as they can be found.
pub(crate) fn ancestors(process: i32) -> Vec<i32> {
    let parent = |process: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name of the program, in parentheses, may contain any characters.
        let (_, rest) = stat.rsplit_once(')')?;
        let parent: i32 = rest.split_whitespace().nth(1)?.parse().ok()?;
        (parent > 0).then_some(parent)
    };
    let chain = std::iter::successors(parent(&process), parent);
    chain.take(ANCESTORS_MAX).collect()
}

#[cfg(test)]
mod tests;
