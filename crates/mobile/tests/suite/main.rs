//! The tests of moved code between processes, in one program.

/// Creates the tests `mapped`, `messages` and `two_nodes` in a module: units that map each other's
/// memory, none of them, or some. `run` gets the name of the test, and what the units must not use.
macro_rules! on_processes {
    ($name:ident, $run:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn mapped() {
                let name = samite_testkit::full_name(module_path!(), "mapped");
                $run(&name, samite_fabric::Mask::default());
            }

            #[test]
            fn messages() {
                let name = samite_testkit::full_name(module_path!(), "messages");
                $run(&name, samite_testkit::MESSAGES_ONLY);
            }

            #[test]
            fn two_nodes() {
                let name = samite_testkit::full_name(module_path!(), "two_nodes");
                $run(&name, samite_testkit::TWO_NODES);
            }
        }
    };
}

mod calls;
mod chases;
mod faults;
mod handle;
mod holders;
mod hostile;
mod limits;
mod llvm;
mod many;
mod native;
mod operations;
mod paths;
mod processors;
mod rust;
mod trust;

use samite_fabric::{Fabric, Mask};
use samite_mobile::{Call, Cause, Error, Failure, Limits, Mobile, Policy, Registered};
use samite_testkit::{Failed, Outcome, units};
use std::time::Duration;

/// The head of a kernel in text: what most of them import, and the beginning of its entry `run`.
/// Its payload is at `$at`.
const HEAD: &str = r#"(module
  (import "samite" "memory" (memory 1))
  (import "samite" "me" (func $me (result i32)))
  (import "samite" "units" (func $units (result i32)))
  (import "samite" "hops" (func $hops (result i32)))
  (import "samite" "origin" (func $origin (result i32)))
  (import "samite" "reply" (func $reply (param i32 i32)))
  (import "samite" "forward" (func $forward (param i32 i32 i32 i32)))
  (import "samite" "spawn" (func $spawn (param i32 i32 i32 i32)))
  (import "samite" "fail" (func $fail (param i32 i32 i32)))
  (import "samite" "load64" (func $load64 (param i32 i64) (result i64)))
  (import "samite" "store64" (func $store64 (param i32 i64 i64)))
  (import "samite" "add64" (func $add64 (param i32 i64 i64) (result i64)))
  (import "samite" "base" (func $base (param i32) (result i32)))
  (import "samite" "define" (func $define (param i32 i32) (result i32)))
  (import "samite" "inject" (func $inject (param i32 i32 i32 i32 i32)))
  (func $run (export "run") (param $at i32) (param $len i32) (result i32) (local $x i64) "#;

/// Returns a module with the entry `run`.
fn kernel(body: &str) -> String {
    format!("{HEAD} {body} (i32.const 0)))")
}

/// Limits of kernels that end by themselves, however busy the machine is.
fn self_bounded_limits() -> Limits {
    Limits {
        run: Duration::from_secs(60),
        time: Duration::from_secs(60),
        ..Limits::default()
    }
}

/// The policy that goes with them.
fn self_bounded_policy() -> Policy {
    Policy {
        run_max: Duration::from_secs(60),
        ..Policy::default()
    }
}

/// Begins to run moved code, with that policy.
fn begin(fabric: &Fabric) -> samite_mobile::Result<Mobile> {
    let mobile = Mobile::new(fabric)?;
    mobile.set_policy(self_bounded_policy());
    Ok(mobile)
}

/// Calls the entry `run`, with those limits.
fn call(
    mobile: &Mobile,
    unit: u32,
    code: &Registered,
    payload: &[u8],
) -> samite_mobile::Result<Call> {
    mobile.call_within(unit, code, "run", payload, self_bounded_limits())
}

/// Returns what runs a body in that many units, whose numbers it gets.
fn runs(count: u32, body: fn(&Fabric, u32) -> Outcome) -> impl Fn(&str, Mask) {
    move |name, mask| {
        let body = |fabric: &Fabric, _: &[_]| body(fabric, fabric.identity().unit);
        units(count).mask(mask).run(name, body);
    }
}

/// As [`runs`], for bodies that have much to compile, on a machine that is busy.
fn runs_long(count: u32, body: fn(&Fabric, u32) -> Outcome) -> impl Fn(&str, Mask) {
    move |name, mask| {
        let body = |fabric: &Fabric, _: &[_]| body(fabric, fabric.identity().unit);
        let units = units(count).mask(mask).timeout(Duration::from_secs(400));
        let units = units.config(|config| config.deadline = Duration::from_secs(300));
        units.run(name, body);
    }
}

/// Returns why a call failed.
fn failure(ended: samite_mobile::Result<Vec<u8>>) -> Outcome<Box<Failure>> {
    match ended {
        Err(Error::Failed(failure)) => Ok(failure),
        other => Err(Failed::new(format!("not a failed call: {other:?}"))),
    }
}

/// Checks why a call failed.
fn fails(ended: samite_mobile::Result<Vec<u8>>, cause: Cause) -> Outcome<String> {
    let failure = failure(ended)?;
    samite_testkit::check!(failure.cause == cause, "{failure} ({:?})", failure.cause);
    Ok(failure.to_string())
}
