//! The book of jobs, under arbitrary reports.

use super::*;

/// The launcher of a unit, and the process that started the launcher.
const STARTERS: [i32; 2] = [100, 1];

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

/// Returns the answer with these peers, all in their first life, by unit from `first` on.
fn peers_from(first: u32, numbers: &[u32]) -> Roster {
    let life = |(unit, peer): (u32, &u32)| UnitLife {
        unit,
        peer: PeerId(*peer),
        incarnation: 1,
    };
    Roster::Complete((first..).zip(numbers).map(life).collect())
}

fn peers(numbers: &[u32]) -> Roster {
    peers_from(0, numbers)
}

#[test]
fn who_left_has_joined() {
    let mut jobs = Jobs::default();
    let unit = |unit: u32| match unit {
        0 => identity("job", "solver", 0, 2, 0),
        1 => identity("job", "solver", 1, 2, 1),
        _ => identity("job", "reader", 0, 1, 2),
    };
    assert!(!jobs.joined(&unit(0), PeerId(7), 1, Some(&STARTERS)));
    jobs.left(PeerId(7), 1);
    let missing = jobs.roster(&unit(0), &Wanted::Job);
    let names = ["solver.1", "unit 2"].map(String::from).to_vec();
    assert_eq!(missing, Roster::Missing(names));
    assert!(jobs.joined(&unit(2), PeerId(5), 1, Some(&STARTERS)));
    assert!(jobs.joined(&unit(1), PeerId(6), 1, Some(&STARTERS)));
    assert_eq!(jobs.roster(&unit(1), &Wanted::Job), peers(&[7, 6, 5]));
    let solver = Wanted::Program("solver".into());
    assert_eq!(jobs.roster(&unit(2), &solver), peers(&[7, 6]));
    assert!(jobs.numbers().contains(&PeerId(7)));
    // Another job finds the program as long as the job lives.
    let other = Identity::by_hand("other");
    jobs.joined(&other, PeerId(9), 1, Some(&STARTERS));
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
    jobs.joined(&unit, PeerId(0), 1, Some(&STARTERS));
    let ended = jobs.ended("job", 0, ("a.0", "ended"), 100);
    assert_eq!(ended, Ok(false), "it has joined");
    let ended = jobs.ended("job", 2, ("a.2", "was killed by signal 9"), 100);
    assert_eq!(ended, Ok(true));
    let absent = Roster::Absent {
        unit: "a.2".into(),
        how: "was killed by signal 9".into(),
    };
    assert_eq!(jobs.roster(&unit, &Wanted::Job), absent);
    assert_eq!(jobs.roster(&unit, &Wanted::Program("a".into())), absent);
}

/// Those that wait for some units neither wait for the others nor hear of their end.
#[test]
fn some_units_are_asked_for_by_number() {
    let mut jobs = Jobs::default();
    let unit = |unit: u32| Identity {
        units: 5,
        ..identity("job", "a", unit, 5, unit)
    };
    let some = |units: &[u32]| Wanted::Units(units.to_vec());
    jobs.joined(&unit(1), PeerId(8), 1, Some(&STARTERS));
    let missing = jobs.roster(&unit(1), &some(&[1, 2]));
    assert_eq!(missing, Roster::Missing(vec!["a.2".into()]));
    assert!(
        !jobs.joined(&unit(2), PeerId(9), 1, Some(&STARTERS)),
        "all live"
    );
    assert!(jobs.left(PeerId(8), 1), "the living are too few");
    assert_eq!(jobs.ended("job", 4, ("a.4", "ended"), 100), Ok(true));
    assert_eq!(
        jobs.roster(&unit(2), &some(&[1, 2])),
        peers_from(1, &[8, 9])
    );
    assert_eq!(jobs.roster(&unit(2), &some(&[2])), peers_from(2, &[9]));
    let absent = Roster::Absent {
        unit: "a.4".into(),
        how: "ended".into(),
    };
    assert_eq!(jobs.roster(&unit(2), &some(&[2, 3, 4])), absent);
    let missing = jobs.roster(&unit(2), &some(&[2, 3, u32::MAX]));
    let names = ["a.3".into(), format!("unit {}", u32::MAX)];
    assert_eq!(missing, Roster::Missing(names.to_vec()));
    assert!(
        jobs.joined(&unit(3), PeerId(7), 1, Some(&STARTERS)),
        "one left"
    );
    assert_eq!(
        jobs.roster(&unit(2), &some(&[1, 2, 3])),
        peers_from(1, &[8, 9, 7])
    );
    jobs.joined(&unit(0), PeerId(6), 1, Some(&STARTERS));
    assert!(!jobs.left(PeerId(6), 1), "nobody waits");
}

#[test]
fn a_name_is_used_by_one_run_after_another() {
    let mut jobs = Jobs::default();
    let first = identity("job", "a", 0, 3, 0);
    jobs.joined(&first, PeerId(0), 1, Some(&STARTERS));
    jobs.left(PeerId(0), 1);
    jobs.joined(&first, PeerId(0), 2, Some(&STARTERS));
    jobs.joined(
        &identity("job", "a", 1, 3, 1),
        PeerId(1),
        1,
        Some(&STARTERS),
    );
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
        jobs.joined(&unit, PeerId(0), number, Some(&STARTERS));
        jobs.left(PeerId(0), number);
    }
    assert!(jobs.jobs.len() <= ABANDONED_MAX + 1);
}

/// Returns the approximate bytes of remembered texts and entries.
fn bytes(jobs: &Jobs) -> usize {
    let units = jobs.jobs.values().flat_map(|job| job.units.values());
    let unit = |unit: &Unit| {
        size_of::<Unit>()
            + match unit {
                Unit::Joined { identity, .. } => identity.job.len() + identity.program.len(),
                Unit::Absent { name, how } => name.len() + how.len(),
            }
    };
    units.map(unit).sum()
}

#[test]
fn who_tells_without_end_fills_no_memory() {
    let mut jobs = Jobs::default();
    let unit = identity("job", "a", 0, 3, 0);
    jobs.joined(&unit, PeerId(0), 1, Some(&STARTERS));
    let long = "ä".repeat(100_000);
    for number in 0..100_000 {
        // The job's own launcher, a stranger to the job, and unknown jobs.
        let _ = jobs.ended("job", number, (&long[..20], "ended"), 100);
        let _ = jobs.ended("job", number, ("a", "ended"), 99);
        let name = format!("job {number}");
        let _ = jobs.ended(&name, number % 10, ("a", "ended"), 99);
    }
    let _ = jobs.ended("job", 1, (&long, &long), 100);
    assert_eq!(jobs.jobs["job"].units.len(), 3, "there are no others");
    assert!(jobs.jobs.len() <= TOLD_MAX + 1);
    assert!(bytes(&jobs) < 64 << 10, "{}", bytes(&jobs));
    for number in 0..2 * UNITS_MAX {
        let _ = jobs.ended("never joined", number, (&long[..400], &long[..400]), 98);
    }
    assert!(bytes(&jobs) < UNITS_MAX as usize * 1024);
    let other = identity("job", "a", 1, 3, 1);
    assert!(jobs.check(&other).is_ok(), "it is known");
    assert!(jobs.jobs.contains_key("never joined"));
    // That job has no living member, so it is dropped.
    let late = identity("late", "a", 0, 3, 0);
    assert_eq!(jobs.check(&late), Ok(()));
    assert!(!jobs.jobs.contains_key("never joined"));
}

#[test]
fn a_job_that_lives_gives_way_to_nobody() {
    let mut jobs = Jobs::default();
    for number in 0..UNITS_MAX {
        let unit = identity(&format!("job {number}"), "a", 0, 3, 0);
        jobs.joined(&unit, PeerId(number), 1, Some(&STARTERS));
    }
    let late = identity("late", "a", 0, 3, 0);
    assert!(jobs.check(&late).is_err(), "no more are remembered");
    jobs.left(PeerId(7), 1);
    assert_eq!(jobs.check(&late), Ok(()));
    assert!(!jobs.jobs.contains_key("job 7"));
}

/// A process that a unit starts has inherited the unit's identity.
#[test]
fn a_unit_is_one_process() {
    let mut jobs = Jobs::default();
    let unit = identity("job", "a", 0, 3, 0);
    assert_eq!(jobs.check(&unit), Ok(()));
    jobs.joined(&unit, PeerId(4), 1, Some(&STARTERS));
    let refused = jobs.check(&unit).unwrap_err();
    assert!(refused.contains("unit 0 of job job has already joined, as peer 4"));
    assert!(refused.contains("SAMITE_DOMAIN") && refused.contains("SAMITE_UNIT"));
    // It may join again.
    jobs.left(PeerId(4), 1);
    assert_eq!(jobs.check(&unit), Ok(()));
}

/// Processes that are started by hand may say different sizes of their job.
#[test]
fn units_agree_about_the_size() {
    let mut jobs = Jobs::default();
    let first = identity("job", "a", 0, 3, 0);
    jobs.joined(&first, PeerId(0), 1, Some(&STARTERS));
    let mut other = identity("job", "a", 1, 2, 1);
    let refused = jobs.check(&other).unwrap_err();
    let sentence =
        "a.1 of job job says that its program has 2 units, but a.0, which has joined, says 3";
    assert!(refused.starts_with(sentence), "{refused}");
    (other.size, other.units) = (3, 4);
    let refused = jobs.check(&other).unwrap_err();
    assert!(
        refused.contains("says that the job has 4 units"),
        "{refused}"
    );
    // Of an earlier run of this name.
    jobs.left(PeerId(0), 1);
    assert_eq!(jobs.check(&other), Ok(()));
}

/// A job or program is not complete when it has enough units, if one of them has too high a number.
#[test]
fn units_are_counted_by_their_numbers() {
    let mut jobs = Jobs::default();
    let unit = |unit: u32, rank: u32| Identity {
        units: 4,
        ..identity("job", "a", rank, 2, unit)
    };
    jobs.joined(&unit(0, 0), PeerId(0), 1, Some(&STARTERS));
    jobs.joined(&unit(3, 2), PeerId(3), 1, Some(&STARTERS));
    let asker = Identity {
        units: 2,
        ..unit(0, 0)
    };
    let is_missing = |roster: Roster| matches!(roster, Roster::Missing(_));
    assert!(is_missing(jobs.roster(&asker, &Wanted::Job)));
    let program = Wanted::Program("a".into());
    assert!(is_missing(jobs.roster(&asker, &program)));
    jobs.joined(&unit(1, 1), PeerId(1), 1, Some(&STARTERS));
    assert_eq!(jobs.roster(&asker, &Wanted::Job), peers(&[0, 1]));
}

#[test]
fn only_who_started_a_job_tells_of_its_units() {
    let mut jobs = Jobs::default();
    let unit = identity("job", "a", 0, 3, 0);
    // Before a unit has joined, the starter is unknown.
    assert_eq!(jobs.ended("job", 1, ("a.1", "by a stranger"), 99), Ok(true));
    assert!(jobs.ended("job", 2, ("a.2", "ended"), 100).is_err());
    jobs.joined(&unit, PeerId(0), 1, Some(&STARTERS));
    assert!(matches!(
        jobs.roster(&unit, &Wanted::Job),
        Roster::Missing(_)
    ));
    assert!(jobs.ended("job", 1, ("a.1", "ended"), 99).is_err());
    assert_eq!(jobs.ended("job", 1, ("a.1", "ended"), 100), Ok(true));
    assert!(matches!(
        jobs.roster(&unit, &Wanted::Job),
        Roster::Absent { .. }
    ));
}

#[test]
fn a_run_that_never_began_does_not_end_the_next_one() {
    let mut jobs = Jobs::default();
    let unit = identity("job", "a", 0, 3, 0);
    for number in 0..3 {
        assert_eq!(jobs.ended("job", number, ("a", "ended"), 90), Ok(true));
    }
    jobs.joined(&unit, PeerId(0), 1, Some(&STARTERS));
    assert!(matches!(
        jobs.roster(&unit, &Wanted::Job),
        Roster::Missing(_)
    ));
}

#[test]
fn ancestors_are_found() {
    let own = ancestors(std::process::id() as i32);
    let parent = std::os::unix::process::parent_id() as i32;
    assert_eq!(own.first(), Some(&parent));
    assert!(ancestors(0).is_empty());
}

/// A unit of another node counts like one of this node. Its process was started elsewhere, so it
/// tells nothing about who may report the ends of units here.
#[test]
fn units_of_other_nodes_count() {
    let mut jobs = Jobs::default();
    let here = |unit: u32| identity("job", "solver", unit, 3, unit);
    let there = PeerId::new(2, 4);
    assert!(!jobs.joined(&here(1), there, 1, None));
    assert_eq!(jobs.ended("job", 0, ("solver.0", "failed"), 55), Ok(true));
    assert!(jobs.ended("job", 2, ("solver.2", "failed"), 56).is_err());
    let mut jobs = Jobs::default();
    assert!(!jobs.joined(&here(1), there, 1, None));
    assert!(!jobs.joined(&here(0), PeerId(7), 1, Some(&STARTERS)));
    assert!(jobs.ended("job", 2, ("solver.2", "failed"), 56).is_err());
    // It has left before the last one came.
    assert!(jobs.left(there, 1));
    assert!(jobs.joined(&here(2), PeerId(8), 1, Some(&STARTERS)));
    assert_eq!(jobs.roster(&here(0), &Wanted::Job), peers(&[7, there.0, 8]));
    // A second process says that it is the same unit.
    assert!(jobs.check(&here(0)).is_err());
}
