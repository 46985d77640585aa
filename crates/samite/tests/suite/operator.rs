//! Moved code as the operator of a reduction.

use samite::mobile::{Capsule, Cause, Mobile, Policy, Trust};
use samite::pgas::{Pgas, Sum};
use samite::{Fabric, MovedOperator, OperatorError};
use samite_testkit::{MESSAGES_ONLY, Outcome, check, full_name, same, units};

/// `first` keeps the numbers of the lower ranks, unless they are zero: it does not commute. `fails`
/// fails if a number of the left is 13; `short` replies with nothing.
const KERNELS: &str = r#"(module
  (import "samite" "memory" (memory 1))
  (import "samite" "reply" (func $reply (param i32 i32)))
  (func (export "fails") (param $at i32) (param $len i32) (result i32)
    (if (i64.eq (i64.load (local.get $at)) (i64.const 13)) (then (return (i32.const 5))))
    (call $reply (local.get $at) (i32.shr_u (local.get $len) (i32.const 1)))
    (i32.const 0))
  (func (export "first") (param $at i32) (param $len i32) (result i32)
    (local $half i32) (local $left i32)
    (local.set $half (i32.shr_u (local.get $len) (i32.const 1)))
    (local.set $left (local.get $at))
    (loop $next
      (if (i64.eqz (i64.load (local.get $left)))
        (then (i64.store (local.get $left)
          (i64.load (i32.add (local.get $left) (local.get $half))))))
      (local.set $left (i32.add (local.get $left) (i32.const 8)))
      (br_if $next (i32.lt_u (local.get $left) (i32.add (local.get $at) (local.get $half)))))
    (call $reply (local.get $at) (local.get $half))
    (i32.const 0))
  (func (export "short") (param i32 i32) (result i32) (i32.const 0)))"#;

/// The operator of a rank in the middle reduces vectors of several lengths, in the order of ranks.
fn reduces(fabric: &Fabric) -> Outcome {
    let (mobile, pgas) = (Mobile::new(fabric)?, Pgas::new(fabric)?);
    let world = pgas.world();
    let code = match world.rank() {
        1 => Some(Capsule::from_wat(KERNELS)?),
        _ => None,
    };
    let first = MovedOperator::<u64>::new(&mobile, world, 1, code.as_ref(), "first")?;
    let rank = u64::from(world.rank());
    for len in [1, 7, 1024, 100_000] {
        // Element `i` is zero at the ranks below `i % size`.
        let size = u64::from(world.size());
        let own: Vec<u64> = (0..len)
            .map(|at| if rank < at % size { 0 } else { rank + 1 })
            .collect();
        let mut found = vec![0; len as usize];
        first.all_reduce(&own, &mut found)?;
        let right: Vec<u64> = (0..len).map(|at| at % size + 1).collect();
        same!(found, right);
    }
    Ok(())
}

#[test]
fn an_operator_travels() {
    let name = full_name(module_path!(), "an_operator_travels");
    units(4).run(&name, |fabric, _| reduces(fabric));
}

#[test]
fn an_operator_travels_by_messages() {
    let name = full_name(module_path!(), "an_operator_travels_by_messages");
    let units = units(4).mask(MESSAGES_ONLY);
    units.run(&name, |fabric, _| reduces(fabric));
}

/// An operator that fails at one member is an error at all, which go on; so is one that one member
/// does not accept, and none.
fn fails(fabric: &Fabric, are_mapped: bool) -> Outcome {
    let (mobile, pgas) = (Mobile::new(fabric)?, Pgas::new(fabric)?);
    let world = pgas.world();
    let code = Capsule::from_wat(KERNELS)?;
    let operator = MovedOperator::<u64>::new(&mobile, world, 0, Some(&code), "fails")?;
    // The members reduce a long vector in parts: the first number is seen by those who reduce the
    // first part.
    for (len, first) in [
        (3, 1),
        (3, 13),
        (3, 2),
        (100_000, 1),
        (100_000, 13),
        (100_000, 2),
    ] {
        let mut own = vec![1; len];
        if world.rank() == 0 {
            own[0] = first;
        }
        let ended = operator.all_reduce(&own, &mut vec![0; len]);
        check!(
            ended.is_err() == (first == 13),
            "{first} of {len}: {ended:?}"
        );
        let is_elsewhere = matches!(ended, Err(OperatorError::Elsewhere { .. }));
        let is_known = is_elsewhere || matches!(ended, Ok(()) | Err(OperatorError::Mobile(_)));
        check!(is_known, "{ended:?}");
        let mut elsewhere = [0];
        world.all_reduce(&[u32::from(is_elsewhere)], &mut elsewhere, Sum)?;
        if are_mapped && len > 3 {
            same!(elsewhere, [if first == 13 { world.size() - 1 } else { 0 }]);
        }
    }
    let short = MovedOperator::<u64>::new(&mobile, world, 0, Some(&code), "short")?;
    check!(short.all_reduce(&[1], &mut [0]).is_err());
    let none = MovedOperator::<u64>::new(&mobile, world, 2, None, "first");
    check!(
        matches!(none, Err(OperatorError::NoCapsule { root: 2 })),
        "{none:?}"
    );
    let unknown = MovedOperator::<u64>::new(&mobile, world, 0, Some(&code), "last");
    check!(
        matches!(unknown, Err(OperatorError::Mobile(_))),
        "{unknown:?}"
    );
    if world.rank() == 2 {
        mobile.set_policy(Policy {
            trust: Trust::Nothing,
            ..Policy::default()
        });
    }
    world.barrier()?;
    let other = Capsule::from_wat(&KERNELS.replace("13", "14"))?;
    let refused = MovedOperator::<u64>::new(&mobile, world, 0, Some(&other), "first");
    match (world.rank(), refused) {
        (2, Err(OperatorError::Mobile(samite::mobile::Error::Failed(failure)))) => {
            same!(failure.cause, Cause::Refused);
        }
        (2, other) => check!(false, "{other:?}"),
        (_, Err(OperatorError::Elsewhere { rank })) => same!(rank, 2),
        (_, other) => check!(false, "{other:?}"),
    }
    Ok(world.barrier()?)
}

#[test]
fn an_operator_that_fails() {
    let name = full_name(module_path!(), "an_operator_that_fails");
    units(3).run(&name, |fabric, _| fails(fabric, true));
}

#[test]
fn an_operator_that_fails_by_messages() {
    let name = full_name(module_path!(), "an_operator_that_fails_by_messages");
    let units = units(3).mask(MESSAGES_ONLY);
    units.run(&name, |fabric, _| fails(fabric, false));
}
