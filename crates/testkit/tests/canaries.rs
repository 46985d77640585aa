//! Tests that must fail: a suite that cannot fail proves nothing.

use samite_testkit::{Failed, Outcome, Who, simulate, units};
use std::time::Duration;

/// A hang ends with what everybody was doing.
#[test]
#[should_panic(expected = "nothing happened for too long; the test waits for all units to end")]
fn a_hang_is_reported() {
    let hang = |_: &_, _: &[_]| -> Outcome {
        loop {
            std::thread::park();
        }
    };
    units(2)
        .timeout(Duration::from_secs(2))
        .run("a_hang_is_reported", hang);
}

/// The words of a unit that failed are in the report.
#[test]
#[should_panic(expected = "the words of unit 1")]
fn a_failure_is_reported() {
    let fail = |fabric: &samite_fabric::Fabric, members: &[_]| -> Outcome {
        fabric.barrier(members)?;
        match fabric.identity().unit {
            1 => Err(Failed::new("the words of unit 1")),
            _ => Ok(()),
        }
    };
    units(2).run("a_failure_is_reported", fail);
}

/// A panic in a unit is a failure too.
#[test]
#[should_panic(expected = "unit 0 failed")]
fn a_panic_is_reported() {
    units(1).run("a_panic_is_reported", |_, _| panic!("as it happens"));
}

/// A misspelt name runs no test in the children, successfully: that is a failure.
#[test]
#[should_panic(expected = "agent ended before it was at \"ready\"")]
fn a_misspelt_name_is_reported() {
    units(1).run("a_misspelt_nmae", |_, _| Ok(()));
}

/// A failure of the simulated network says its seed and how to repeat it.
#[test]
#[should_panic(expected = "repeat it with: SAMITE_SIM_SEED=3 cargo test")]
fn a_seed_is_reported() {
    simulate("a_seed_is_reported", 2, 3..4, |_, _| {
        Err(Failed::new("on purpose"))
    });
}

/// A unit that was killed without being asked to is a failure.
#[test]
#[should_panic(expected = "unit 0 failed")]
fn a_death_of_its_own_is_reported() {
    units(1).run("a_death_of_its_own_is_reported", |_, _| {
        std::process::abort()
    });
}

/// A unit that failed is not started again as if it had been killed.
#[test]
#[should_panic(expected = "unit 0 ended before it was killed")]
fn a_failure_before_a_second_start_is_reported() {
    let fail = |_: &_, _: &[_]| -> Outcome { Err(Failed::new("on purpose")) };
    let name = "a_failure_before_a_second_start_is_reported";
    units(1).orchestrate(name, fail, |cluster| cluster.start_again(Who::Unit(0)));
}
