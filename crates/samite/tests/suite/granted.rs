//! Moved code at the owner of a global pointer.

use samite::mobile::{At, Capsule, Cause, Error, Function, Mobile, PAYLOAD_MAX, Rights};
use samite::pgas::{Group, Pgas, Unit};
use samite::{Fabric, GrantedSegment, PeerId};
use samite_testkit::{Outcome, check, same};

/// Adds the third word of the payload to the word at the address, and replies with the unit.
const ADD: &str = r#"(module
  (import "samite" "memory" (memory 1))
  (import "samite" "me" (func $me (result i32)))
  (import "samite" "add64" (func $add64 (param i32 i64 i64) (result i64)))
  (import "samite" "reply" (func $reply (param i32 i32)))
  (func (export "add") (param $at i32) (param $len i32) (result i32)
    (drop (call $add64 (i32.load (local.get $at)) (i64.load offset=8 (local.get $at))
      (i64.load offset=16 (local.get $at))))
    (i32.store (local.get $at) (call $me))
    (call $reply (local.get $at) (i32.const 4))
    (i32.const 0)))"#;

samite_testkit::everywhere!(calls_go_to_the_owner, 3, |fabric: &Fabric, _: &[PeerId]| {
    let function = Capsule::of_function("add", ["add"])?;
    owner(fabric, &function)
});

/// WebAssembly is compiled by a thread, which simulated time does not wait for.
#[test]
fn moved_code_goes_to_the_owner() {
    let name = samite_testkit::full_name(module_path!(), "moved_code_goes_to_the_owner");
    let body = |fabric: &Fabric, _: &[PeerId]| owner(fabric, &Capsule::from_wat(ADD)?);
    samite_testkit::units(3).run(&name, body);
}

fn owner(fabric: &Fabric, capsule: &Capsule) -> Outcome {
    let pgas = Pgas::new(fabric)?;
    let mobile = Mobile::new(fabric)?;
    mobile.define(
        "add",
        Function::new(|context, payload| {
            let (at, rest) = At::split(context.me(), payload)?;
            let mut more = [0; 8];
            more.copy_from_slice(rest);
            context.fetch_add(at.grant, at.offset, u64::from_le_bytes(more))?;
            context.reply(&at.unit.to_le_bytes())
        }),
    );
    let world = pgas.world();
    let other = world.allocate::<u64>(10)?;
    // The ranks of a team are not the numbers of its units.
    let group: Group = [Unit(1), Unit(2)].into_iter().collect();
    let team = world.create(&group)?;
    world.barrier()?;
    if let Some(team) = &team {
        let cells = team.allocate::<u64>(100)?;
        let granted = GrantedSegment::new(&mobile, 5, &cells, Rights::Write)?;
        if team.rank() == 0 {
            let code = mobile.register(capsule.clone())?;
            for rank in 0..2 {
                let cell = cells.pointer(rank, 7)?;
                let call = granted.call_at(cell, &code, "add", &5_u64.to_le_bytes())?;
                same!(call.wait()?, team.unit(rank)?.0.to_le_bytes());
                same!(cells.get_value(rank, 7)?, 5);
            }
            // Another segment, the end of this one, and a unit that has no part of it.
            let wrong = [other.pointer(0, 0)?, cells.pointer(0, 100)?];
            let nobody = cells.pointer(0, 0)?.at_unit(Unit(0));
            for pointer in wrong
                .into_iter()
                .chain([nobody, samite::pgas::GlobalPtr::NULL])
            {
                let called = granted.call_at(pointer, &code, "add", &[0; 8]);
                check!(matches!(called, Err(Error::NotGranted(_))), "{pointer}");
            }
            let most = PAYLOAD_MAX as usize - At::BYTES;
            let cell = cells.pointer(1, 0)?;
            let called = granted.call_at(cell, &code, "add", &vec![0; most + 1]);
            check!(matches!(called, Err(Error::TooLong { .. })));
            // An address that no grant has.
            let at = At {
                unit: 1,
                grant: 6,
                offset: 0,
            };
            let ended = mobile.call_at(at, &code, "add", &[0; 8])?.wait();
            let Err(Error::Failed(failure)) = ended else {
                return Err(samite_testkit::Failed::new("a grant that is not there"));
            };
            same!(failure.cause, Cause::Grant);
        }
        team.barrier()?;
        drop(granted);
        // Without the grant, the segment turns.
        cells.into_local()?.free()?;
    }
    world.barrier()?;
    other.free()?;
    Ok(())
}
