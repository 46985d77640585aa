//! Kernels that move on: a pointer chase through all units. Only unit 0 has the code.

use crate::{begin, kernel, runs, self_bounded_limits};
use samite_fabric::Fabric;
use samite_mobile::{Capsule, Function, Rights};
use samite_testkit::{Outcome, check, same};

/// Entries of each unit's table.
const EACH: u64 = 1000;

/// Returns the successor of an entry: one cycle through all entries, in steps that lead from unit
/// to unit irregularly.
fn next(at: u64, units: u64) -> u64 {
    (at + 617) % (EACH * units)
}

/// Payload: depth left, address. Loads from segment 0 of the unit that has the address.
const CHASE: &str = "(local $depth i64) (local $address i64)
  (local.set $depth (i64.load (local.get $at)))
  (local.set $address (i64.load offset=8 (local.get $at)))
  (block $away (loop $here
    (if (i64.eqz (local.get $depth)) (then
      (i64.store (local.get $at) (local.get $address))
      (call $reply (local.get $at) (i32.const 8))
      (return (i32.const 0))))
    (br_if $away (i64.ne (i64.div_u (local.get $address) (i64.const 1000))
                         (i64.extend_i32_u (call $me))))
    (local.set $address (call $load64 (i32.const 0)
      (i64.mul (i64.const 8) (i64.rem_u (local.get $address) (i64.const 1000)))))
    (local.set $depth (i64.sub (local.get $depth) (i64.const 1)))
    (br $here)))
  (i64.store (local.get $at) (local.get $depth))
  (i64.store offset=8 (local.get $at) (local.get $address))
  (call $forward (i32.wrap_i64 (i64.div_u (local.get $address) (i64.const 1000)))
    (i32.const 0) (local.get $at) (i32.const 16))";

/// The same as a function.
fn chase() -> Function {
    Function::new(|context, payload| {
        let word = |at: usize| {
            payload
                .get(at..at + 8)
                .and_then(|bytes| bytes.try_into().ok())
        };
        let (mut depth, mut address) = match (word(0), word(8)) {
            (Some(depth), Some(address)) => {
                (u64::from_le_bytes(depth), u64::from_le_bytes(address))
            }
            _ => return Err(samite_mobile::Trap::Other("a short payload".into())),
        };
        while depth > 0 && address / EACH == u64::from(context.me()) {
            address = context.load(0, address % EACH * 8)?;
            depth -= 1;
        }
        if depth == 0 {
            return context.reply(&address.to_le_bytes());
        }
        let payload = [depth.to_le_bytes(), address.to_le_bytes()].concat();
        context.forward((address / EACH) as u32, 0, &payload)
    })
}

fn chased(fabric: &Fabric, unit: u32, capsule: &Capsule) -> Outcome {
    let units = u64::from(fabric.identity().units);
    let mobile = begin(fabric)?;
    let members = fabric.job()?;
    let segment = fabric.allocate(EACH * 8)?;
    for at in 0..EACH {
        let successor = next(u64::from(unit) * EACH + at, units);
        segment.bytes().write(at * 8, &successor.to_le_bytes());
    }
    mobile.grant(0, segment.bytes(), Rights::Read);
    mobile.define("chase", chase());
    fabric.barrier(&members)?;
    if unit == 0 {
        let code = mobile.register(capsule.clone())?;
        for depth in [0, 1, 10, 500] {
            let start = depth * 37 % (EACH * units);
            let expected = (0..depth).fold(start, |at, _| next(at, units));
            let first = (start / EACH) as u32;
            let payload = [depth.to_le_bytes(), start.to_le_bytes()].concat();
            let limits = self_bounded_limits();
            let reply = mobile
                .call_entry(first, &code, 0, &payload, limits)?
                .wait()?;
            same!(reply, expected.to_le_bytes());
        }
    }
    fabric.barrier(&members)?;
    let counters = mobile.counters();
    check!(counters.forwards > 50);
    // The first chase that moves goes from unit 0 to the last one, in their order: each gets the
    // code from the one before it.
    let passes_on = u64::from(u64::from(unit) + 1 < units);
    same!(counters.code_sent, passes_on * capsule.bytes().len() as u64);
    fabric.barrier(&members)?;
    Ok(())
}

fn chased_by_wasm(fabric: &Fabric, unit: u32) -> Outcome {
    chased(fabric, unit, &Capsule::from_wat(&kernel(CHASE))?)
}

on_processes!(a_chase_brings_its_code_along, runs(4, chased_by_wasm));

samite_testkit::everywhere!(a_chase_of_functions, 4, |fabric: &Fabric, _: &[_]| {
    let capsule = Capsule::of_function("chase", ["run"])?;
    chased(fabric, fabric.identity().unit, &capsule)
});
