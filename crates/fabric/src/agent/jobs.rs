//! Which units of each job have joined, whatever became of them since. Pure: no IO.
//!
//! Starting is a collective act: a unit that has joined counts for all units of its job, also when it has left
//! or died before the others looked. So the agent remembers, per job and unit, which peer it became and in which
//! incarnation, for as long as the job lives: until all of its units have joined, or are known never to join,
//! and none of them is a member any more.

use crate::{Identity, PeerId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Jobs without a member of which units are still missing: so many are remembered.
const ABANDONED_MAX: usize = 64;

/// The book of jobs.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    jobs: BTreeMap<String, Job>,
    /// Rises with each job, so that the oldest one is known.
    begun: u64,
}

#[derive(Debug)]
struct Job {
    units: BTreeMap<u32, Unit>,
    /// Units of the whole job, as those that joined said; the most there can be until one has.
    wanted: u32,
    number: u64,
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

/// Whom somebody waits for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Wanted {
    /// All units of a job.
    Job,
    /// The units of a program of the job, or, if the complete job has no such program, of another job.
    Program(String),
}

/// Whether they have all joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Roster {
    /// Their numbers and incarnations: by unit for a job, by rank for a program.
    Complete(Vec<(PeerId, u32)>),
    /// These have not joined yet.
    Missing(Vec<String>),
    /// This one ended before it joined.
    Absent { unit: String, how: String },
}

impl Jobs {
    /// A unit has joined. Returns whether that made its program, and so perhaps its job, complete.
    pub(crate) fn joined(&mut self, identity: &Identity, peer: PeerId, incarnation: u32) -> bool {
        let job = self.job(&identity.job);
        let came_before = matches!(job.units.get(&identity.unit), Some(Unit::Joined { .. }));
        if came_before && !job.lives() {
            // Nobody is left of the run that had this name.
            job.units.clear();
        }
        job.wanted = identity.units;
        let unit = Unit::Joined {
            identity: identity.clone(),
            peer,
            incarnation,
            alive: true,
        };
        job.units.insert(identity.unit, unit);
        let joined = job.of_program(&identity.program).len();
        self.prune();
        joined >= identity.size as usize
    }

    /// A unit has left or died.
    pub(crate) fn left(&mut self, peer: PeerId, incarnation: u32) {
        let lives = self
            .jobs
            .values_mut()
            .flat_map(|job| job.units.values_mut());
        for unit in lives {
            if let Unit::Joined {
                peer: who,
                incarnation: which,
                alive,
                ..
            } = unit
                && (*who, *which) == (peer, incarnation)
            {
                *alive = false;
            }
        }
        self.prune();
    }

    /// The process of a unit has ended, says who started it. Returns whether the unit had not joined.
    pub(crate) fn ended(&mut self, job: &str, unit: u32, name: &str, how: &str) -> bool {
        let job = self.job(job);
        let joined = matches!(job.units.get(&unit), Some(Unit::Joined { .. }));
        if !joined {
            let absent = Unit::Absent {
                name: name.to_owned(),
                how: how.to_owned(),
            };
            job.units.insert(unit, absent);
        }
        self.prune();
        !joined
    }

    /// The numbers that units of living jobs have or had: whoever is told a job's units means those by them.
    pub(crate) fn numbers(&self) -> BTreeSet<PeerId> {
        let living = self.jobs.values().filter(|job| job.lives());
        let units = living.flat_map(|job| job.units.values());
        let numbers = units.filter_map(|unit| match unit {
            Unit::Joined { peer, .. } => Some(*peer),
            Unit::Absent { .. } => None,
        });
        numbers.collect()
    }

    /// Whether they have joined of whom `asker` wants to know.
    pub(crate) fn roster(&self, asker: &Identity, wanted: &Wanted) -> Roster {
        let none = Job::new(0);
        let own = self.jobs.get(&asker.job).unwrap_or(&none);
        match wanted {
            Wanted::Job => own.all(asker.units),
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

    /// Forgets jobs that nobody can ask for any more.
    fn prune(&mut self) {
        self.jobs
            .retain(|_, job| job.lives() || job.units.len() < job.wanted as usize);
        let abandoned = || self.jobs.iter().filter(|(_, job)| !job.lives());
        if abandoned().count() > ABANDONED_MAX
            && let Some((oldest, _)) = abandoned().min_by_key(|(_, job)| job.number)
        {
            let oldest = oldest.clone();
            self.jobs.remove(&oldest);
        }
    }
}

impl Job {
    fn new(number: u64) -> Job {
        Job {
            units: BTreeMap::new(),
            wanted: u32::MAX,
            number,
        }
    }

    fn lives(&self) -> bool {
        self.units
            .values()
            .any(|unit| matches!(unit, Unit::Joined { alive: true, .. }))
    }

    /// The units of a program that have joined, by rank.
    fn of_program(&self, name: &str) -> BTreeMap<u32, (PeerId, u32)> {
        let joined = self.units.values().filter_map(|unit| match unit {
            Unit::Joined {
                identity,
                peer,
                incarnation,
                ..
            } if identity.program == name => Some((identity.rank, (*peer, *incarnation))),
            _ => None,
        });
        joined.collect()
    }

    fn all(&self, units: u32) -> Roster {
        let joined = |unit: &Unit| match unit {
            Unit::Joined {
                peer, incarnation, ..
            } => Some((*peer, *incarnation)),
            Unit::Absent { .. } => None,
        };
        let found: Vec<(PeerId, u32)> = self.units.values().filter_map(joined).collect();
        if found.len() >= units as usize {
            return Roster::Complete(found);
        }
        self.absent(|_| true)
            .unwrap_or_else(|| self.missing(0..units))
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
            Some((_, size)) if found.len() >= size as usize => {
                return Roster::Complete(found.into_values().collect());
            }
            Some((first, size)) => first..first.saturating_add(size),
            // Any of those that have not joined may be the program's.
            None => 0..units,
        };
        let is_of_program = |unit: &str| unit.rsplit_once('.').is_some_and(|(of, _)| of == name);
        self.absent(is_of_program)
            .unwrap_or_else(|| self.missing(places))
    }

    fn absent(&self, of_interest: impl Fn(&str) -> bool) -> Option<Roster> {
        self.units.values().find_map(|unit| match unit {
            Unit::Absent { name, how } if of_interest(name) => Some(Roster::Absent {
                unit: name.clone(),
                how: how.clone(),
            }),
            _ => None,
        })
    }

    fn missing(&self, units: std::ops::Range<u32>) -> Roster {
        // As many as a sentence can name.
        let missing = units.filter(|unit| !self.units.contains_key(unit)).take(4);
        Roster::Missing(missing.map(|unit| self.name(unit)).collect())
    }

    /// What a person calls a unit that nobody heard of: its program has others, or only its number is known.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(job: &str, program: &str, rank: u32, size: u32, unit: u32) -> Identity {
        Identity {
            job: job.into(),
            program: program.into(),
            rank,
            size,
            unit,
            units: 3,
        }
    }

    fn peers(numbers: &[u32]) -> Roster {
        Roster::Complete(numbers.iter().map(|peer| (PeerId(*peer), 1)).collect())
    }

    #[test]
    fn who_left_has_joined() {
        let mut jobs = Jobs::default();
        let unit = |unit: u32| match unit {
            0 => identity("job", "solver", 0, 2, 0),
            1 => identity("job", "solver", 1, 2, 1),
            _ => identity("job", "reader", 0, 1, 2),
        };
        assert!(!jobs.joined(&unit(0), PeerId(7), 1));
        jobs.left(PeerId(7), 1);
        let missing = jobs.roster(&unit(0), &Wanted::Job);
        let names = ["solver.1", "unit 2"].map(String::from).to_vec();
        assert_eq!(missing, Roster::Missing(names));
        assert!(jobs.joined(&unit(2), PeerId(5), 1));
        assert!(jobs.joined(&unit(1), PeerId(6), 1));
        assert_eq!(jobs.roster(&unit(1), &Wanted::Job), peers(&[7, 6, 5]));
        let solver = Wanted::Program("solver".into());
        assert_eq!(jobs.roster(&unit(2), &solver), peers(&[7, 6]));
        assert!(jobs.numbers().contains(&PeerId(7)));
        // Another job finds the program while the job lives.
        let other = Identity::by_hand("other");
        jobs.joined(&other, PeerId(9), 1);
        assert_eq!(jobs.roster(&other, &solver), peers(&[7, 6]));
        jobs.left(PeerId(6), 1);
        jobs.left(PeerId(5), 1);
        assert!(
            !jobs.numbers().contains(&PeerId(7)),
            "nobody is left of the job"
        );
        assert!(matches!(jobs.roster(&other, &solver), Roster::Missing(_)));
    }

    #[test]
    fn who_ended_before_joining_is_named() {
        let mut jobs = Jobs::default();
        let unit = identity("job", "a", 0, 3, 0);
        jobs.joined(&unit, PeerId(0), 1);
        assert!(!jobs.ended("job", 0, "a.0", "ended"), "it has joined");
        assert!(jobs.ended("job", 2, "a.2", "was killed by signal 9"));
        let absent = Roster::Absent {
            unit: "a.2".into(),
            how: "was killed by signal 9".into(),
        };
        assert_eq!(jobs.roster(&unit, &Wanted::Job), absent);
        assert_eq!(jobs.roster(&unit, &Wanted::Program("a".into())), absent);
    }

    #[test]
    fn a_name_is_used_by_one_run_after_another() {
        let mut jobs = Jobs::default();
        let first = identity("job", "a", 0, 3, 0);
        jobs.joined(&first, PeerId(0), 1);
        jobs.left(PeerId(0), 1);
        jobs.joined(&first, PeerId(0), 2);
        jobs.joined(&identity("job", "a", 1, 3, 1), PeerId(1), 1);
        assert!(matches!(
            jobs.roster(&first, &Wanted::Job),
            Roster::Missing(_)
        ));
    }

    #[test]
    fn abandoned_jobs_are_forgotten() {
        let mut jobs = Jobs::default();
        for number in 0..1000 {
            let unit = identity(&format!("job {number}"), "a", 0, 3, 0);
            jobs.joined(&unit, PeerId(0), number);
            jobs.left(PeerId(0), number);
        }
        assert!(jobs.jobs.len() <= ABANDONED_MAX + 1);
    }
}
