//! Operators that panic, in programs that catch it: the others are told, and nothing wrong is taken
//! for right.

use samite_pgas::{Error, Op, Pgas, Sum, Unit};
use samite_testkit::{Outcome, check, everywhere, maps_all, same};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

const COUNT: usize = 6000;

/// A sum that panics once, at unit 1, after some elements.
fn panics(pgas: &Pgas) -> Op<impl Fn(u64, u64) -> u64 + 'static> {
    let left = Cell::new(if pgas.me() == Unit(1) { 100 } else { u64::MAX });
    Op::new(move |a: u64, b: u64| {
        left.set(left.get() - 1);
        if left.get() == 0 {
            resume_unwind(Box::new("in the middle"));
        }
        a + b
    })
}

/// The call was refused: by unit 1, or by another one that had been refused before this one looked.
/// Whoever panicked refuses it itself.
fn told(me: Unit, answer: Result<(), Error>) -> Outcome {
    let is_refused = match answer {
        Err(Error::Refused(ref by)) => *by != me || me == Unit(1),
        _ => false,
    };
    check!(is_refused, "the answer is {answer:?}");
    Ok(())
}

everywhere!(in_a_blocking_one, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let mut sum = vec![0; COUNT];
    for turn in 0..2 {
        let team = world.duplicate()?;
        let given = vec![1_u64; COUNT * if turn == 0 { 1 } else { 3 }];
        let op = panics(pgas);
        let call = || match turn {
            0 => team.all_reduce(&given, &mut sum, op),
            _ => team.reduce_scatter(&given, &mut sum, op),
        };
        match catch_unwind(AssertUnwindSafe(call)) {
            // Over messages a block that is there does not depend on what unit 1 does afterwards.
            Ok(Ok(())) if turn == 1 && !maps_all(fabric) => {}
            Ok(answer) => told(pgas.me(), answer)?,
            Err(_) => same!(pgas.me(), Unit(1)),
        }
        // Other teams go on.
        world.all_reduce(&vec![2_u64; COUNT], &mut sum, Sum)?;
        let wrong = sum.iter().filter(|value| **value != 6).count();
        check!(wrong == 0, "{wrong} sums of another team are wrong");
    }
    Ok(())
});

everywhere!(in_a_pending_one, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    let mut pending = world.iall_reduce(vec![1_u64; COUNT], panics(pgas))?;
    let mut caught = false;
    let answer = loop {
        match catch_unwind(AssertUnwindSafe(|| pending.test())) {
            Ok(None) => {}
            Ok(Some(answer)) => break answer,
            Err(_) => caught = true,
        }
    };
    same!(caught, pgas.me() == Unit(1));
    told(pgas.me(), answer.map(drop))?;
    same!(world.iall_reduce(vec![2_u64], Sum)?.wait()?, [6]);
    Ok(())
});

// The operator of a pending call panics while unit 1 is in the next call, a blocking one.
everywhere!(while_the_next_one_waits, 3, |fabric, _| {
    let pgas = &Pgas::new(fabric)?;
    let world = pgas.world();
    for count in [1, COUNT] {
        let team = world.duplicate()?;
        let mut pending = team.iall_reduce(vec![1_u64; COUNT], panics(pgas))?;
        let (given, mut sum) = (vec![2_u64; count], vec![0; count]);
        match catch_unwind(AssertUnwindSafe(|| team.all_reduce(&given, &mut sum, Sum))) {
            // Over messages, the calls of a team do not wait for each other.
            Ok(Ok(())) if !maps_all(fabric) => check!(sum.iter().all(|sum| *sum == 6)),
            Ok(answer) => told(pgas.me(), answer)?,
            Err(_) => same!(pgas.me(), Unit(1)),
        }
        let answer = loop {
            match catch_unwind(AssertUnwindSafe(|| pending.test())) {
                Ok(None) => {}
                Ok(Some(answer)) => break answer,
                Err(_) => same!(pgas.me(), Unit(1)),
            }
        };
        told(pgas.me(), answer.map(drop))?;
        let mut sum = [0];
        team.all_reduce(&[3_u64], &mut sum, Sum)?;
        same!(sum, [9]);
    }
    Ok(())
});
