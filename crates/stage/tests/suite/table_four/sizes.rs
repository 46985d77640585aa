//! "Dimension overflow": sizes and places are 64 bits everywhere.

use crate::staged::{Play, is_right, next, rows, stage};
use ndarray::{Array1, Array2, Ix2};
use samite_fabric::{Fabric, Mask};
use samite_stage::{Error, Region, Settings};
use samite_testkit::{Outcome, Unit, check, full_name, maps_host, same};

/// Positions are 64 bits everywhere.
#[test]
fn a_dimension_above_32_bits() {
    let play = Play::of(2, Mask::default());
    let body = |fabric: &Fabric, me: u32| {
        let stage = stage(fabric, Settings::default())?;
        let long = (1_u64 << 33) + 5;
        if me == 0 {
            let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
            let mut step = field.step()?;
            step.put("u", [long, 8], [long - 6, 0], rows(0, 0..6, 8).view())?;
            step.commit()?;
            return Ok(field.close()?);
        }
        let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
        let step = next(&mut reader)?;
        let end: Array2<f64> = step.get("u", [long - 4..long - 1, 3..8])?;
        check!(is_right(0, (2, 3), end.view()), "{end}");
        let hole = step.get::<f64, Ix2>("u", [long - 7..long, 0..8]);
        check!(matches!(hole, Err(Error::Hole { .. })), "{hole:?}");
        // More than any memory: the hole is found before any is asked for.
        let all = step.get::<f64, Ix2>("u", ..).map(drop);
        check!(matches!(all, Err(Error::Hole { .. })), "{all:?}");
        Ok(())
    };
    play.run(
        &full_name(module_path!(), "a_dimension_above_32_bits"),
        body,
        |_| (),
    );
}

/// More bytes than 32 bits count.
const LONG: u64 = (1 << 32) + 4096;

/// BlockOffsets on both sides of every border that a narrower number has.
fn places() -> impl Iterator<Item = u64> {
    [0, 1 << 31, 1 << 32].into_iter().flat_map(|border: u64| {
        let first = border.saturating_sub(2);
        first..border + 2
    })
}

fn mark(place: u64) -> u8 {
    (place % 251) as u8 + 1
}

/// Only some bytes of it are written and read: the memory is there, the time is not needed.
#[test]
fn a_block_above_two_to_the_32_bytes() {
    let play = Play {
        // A buffer is somewhat larger than what it is asked for.
        memory: 5 << 30,
        ..Play::of(2, Mask::default())
    };
    let body = |unit: &Unit, me: u32| -> Outcome {
        let fabric = unit.join()?;
        let stage = stage(&fabric, Settings::default())?;
        if me == 0 {
            let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
            let mut step = field.step()?;
            let mut block = step.alloc::<u8>("u", [LONG], [0_u64], [LONG])?;
            for place in places().chain([LONG - 1]) {
                block[[place as usize]] = mark(place);
            }
            step.commit()?;
            return Ok(field.close()?);
        }
        let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
        let step = next(&mut reader)?;
        let view = step.view::<u8>("u", ..)?;
        // It is one block.
        let mapped = maps_host(&fabric).then_some(LONG);
        same!(view.map(|view| view.len() as u64), mapped);
        for place in places().chain([LONG - 1]) {
            let box_of_one: Array1<u8> = step.get("u", Region::at(&[place], &[1])?)?;
            same!((place, box_of_one[0]), (place, mark(place)));
        }
        Ok(())
    };
    let units = play.units().budget(6 << 30);
    let name = full_name(module_path!(), "a_block_above_two_to_the_32_bytes");
    play.run_units(units, &name, body, |_| ());
}

/// Every byte of it. Needs 3 GiB of shared memory and as much again for the reader; by hand:
/// `cargo test --release -p samite-stage --test table_four -- --ignored`.
#[test]
#[ignore = "needs 7 GiB of memory"]
fn a_block_of_three_gibibytes() {
    const WORDS: u64 = 3 << 27;
    let play = Play {
        memory: 4 << 30,
        ..Play::of(2, Mask::default())
    };
    let body = |unit: &Unit, me: u32| {
        let fabric = unit.join()?;
        let stage = stage(&fabric, Settings::default())?;
        if me == 0 {
            let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
            let mut step = field.step()?;
            let mut block = step.alloc::<u64>("u", [WORDS], [0_u64], [WORDS])?;
            let words = block.iter_mut().zip(0_u64..);
            words.for_each(|(word, at)| *word = at * 3);
            step.commit()?;
            return Ok(field.close()?);
        }
        let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
        let step = next(&mut reader)?;
        let view = step.view::<u64>("u", ..)?;
        check!(view.is_some());
        let view = view.into_iter().flatten().zip(0_u64..);
        check!(view.into_iter().all(|(word, at)| *word == at * 3));
        let all: Array1<u64> = step.get("u", ..)?;
        check!(all.iter().zip(0_u64..).all(|(word, at)| *word == at * 3));
        Ok(())
    };
    let units = play.units().budget(6 << 30);
    play.run_units(
        units,
        &full_name(module_path!(), "a_block_of_three_gibibytes"),
        body,
        |_| (),
    );
}
