//! Streams between processes: every byte is checked by what its place says it must be.

#![allow(
    clippy::reversed_empty_ranges,
    reason = "ndarray counts negative numbers from the end"
)]

use ndarray::{Array2, Array3, ArrayViewD, s};
use samite_fabric::{Fabric, Mask};
use samite_stage::protocol::{Attribute, EndOfStream, Start};
use samite_stage::service::{Capacity, Staging};
use samite_stage::{Dtype, Error, Region, Stage};
use samite_testkit::{MESSAGES_ONLY, Outcome, Tracker, check, maps_host, same, units};

const MEMORY: u64 = 64 << 20;

/// Unit 0 is the coordinator and block store until the others have left; the rest run `body` with
/// their number from 0.
fn staged(name: &str, count: u32, mask: Mask, body: impl Fn(&Fabric, u32) -> Outcome) {
    let unit = |unit: &samite_testkit::Unit| {
        if unit.rank > 0 {
            let fabric = unit.join()?;
            return body(&fabric, unit.rank - 1);
        }
        let fabric = Fabric::join(
            &unit.domain,
            samite_fabric::agent::identity(),
            unit.config.clone(),
        )?;
        let mut service = Staging::new(&fabric, Capacity::of_memory(MEMORY));
        let mut tracker = Tracker::expect(count);
        service.run(|fabric| tracker.remain(fabric))?;
        check!(
            service.figures().iter().all(|stream| stream.end.is_some()),
            "{:?}",
            service.figures()
        );
        Ok(())
    };
    units(count + 1)
        .mask(mask)
        .orchestrate_bare(name, unit, |_| ());
}

fn value(step: u64, y: u64, x: u64) -> f64 {
    (step * 1_000_000 + y * 1000 + x) as f64
}

fn is_right(step: u64, y0: u64, x0: u64, array: &ArrayViewD<'_, f64>) -> bool {
    array
        .indexed_iter()
        .all(|(at, found)| *found == value(step, y0 + at[0] as u64, x0 + at[1] as u64))
}

const SHAPE: [u64; 2] = [40, 30];

fn one_to_one(fabric: &Fabric, me: u32) -> Outcome {
    let stage = Stage::join(fabric)?;
    if me == 0 {
        let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
        for number in 0..6 {
            // An array with a border of ghost cells, of which only the inner part is the block.
            let whole = Array2::from_shape_fn((42, 32), |(y, x)| {
                match (y.checked_sub(1), x.checked_sub(1)) {
                    (Some(y), Some(x)) => value(number, y as u64, x as u64),
                    _ => -1.0,
                }
            });
            let mut step = field.step()?;
            same!(step.number(), number);
            step.put("u", SHAPE, [0_u64, 0], whole.slice(s![1..-1, 1..-1]))?;
            let other = whole.mapv(|value| -value);
            step.put("t", SHAPE, [0_u64, 0], other.slice(s![1..41, 1..31]))?;
            step.attribute("time", Attribute::Real(number as f64 / 2.0));
            step.commit()?;
        }
        return Ok(field.close()?);
    }
    let mut reader = stage.read("field").as_rank("analysis", 0, 1).open()?;
    for number in 0..6 {
        let Some(step) = reader.next_step()? else {
            check!(false, "the stream ended before step {number}");
            break;
        };
        same!(step.number(), number);
        same!(
            step.attribute("time"),
            Some(&Attribute::Real(number as f64 / 2.0))
        );
        let variable = step.variable("u")?;
        same!(
            (variable.dtype, variable.shape.to_vec()),
            (Dtype::F64, SHAPE.to_vec())
        );
        let all: Array2<f64> = step.get("u", ..)?;
        check!(is_right(number, 0, 0, &all.view().into_dyn()), "{all}");
        let part: Array2<f64> = step.get("t", [10_u64..33, 7..9])?;
        same!(part.shape(), &[23, 2]);
        let part = part.mapv(|value| -value).into_dyn();
        check!(is_right(number, 10, 7, &part.view()), "{part}");
        let view = step.view::<f64>("u", [3_u64..5, 28..30])?;
        same!(view.is_some(), maps_host(fabric));
        if let Some(view) = view {
            check!(is_right(number, 3, 28, &view), "{view}");
        }
        check!(matches!(
            step.get::<f32, ndarray::Ix2>("u", ..),
            Err(Error::Clash { .. })
        ));
        check!(matches!(
            step.get::<f64, ndarray::Ix2>("v", ..),
            Err(Error::NoVariable { .. })
        ));
        check!(matches!(
            step.get::<f64, ndarray::Ix3>("u", ..),
            Err(Error::Dimensions { .. })
        ));
        let outside = step.get::<f64, ndarray::Ix2>("u", [0_u64..41, 0..3]);
        check!(
            matches!(outside, Err(Error::OutsideArray { .. })),
            "{outside:?}"
        );
    }
    check!(reader.next_step()?.is_none());
    same!(reader.end(), Some(EndOfStream::Closed));
    Ok(())
}

#[test]
fn a_field_from_one_to_one() {
    staged(
        "streams::a_field_from_one_to_one",
        2,
        Mask::default(),
        one_to_one,
    );
}

#[test]
fn a_field_from_one_to_one_by_messages() {
    staged(
        "streams::a_field_from_one_to_one_by_messages",
        2,
        MESSAGES_ONLY,
        one_to_one,
    );
}

/// Two writers with rows each, of different numbers, two readers with columns each.
fn rows_to_columns(fabric: &Fabric, me: u32) -> Outcome {
    let stage = Stage::join(fabric)?;
    if me < 2 {
        let mut field = stage.write("field").as_rank("solver", me, 2).open()?;
        for number in 0..5 {
            let border = 10 + number;
            let rows = if me == 0 { 0..border } else { border..40 };
            let mut step = field.step()?;
            let mut block = step.alloc("u", SHAPE, [rows.start, 0], [rows.end - rows.start, 30])?;
            let cells = block.indexed_iter_mut();
            cells.for_each(|(at, cell)| {
                *cell = value(number, rows.start + at[0] as u64, at[1] as u64)
            });
            // Only one of them has this one.
            if me == 1 {
                let ids = Array3::from_shape_fn((2, 3, 4), |(a, b, c)| {
                    (a * 100 + b * 10 + c) as i32 + number as i32
                });
                step.put("ids", [2_u64, 3, 4], [0_u64, 0, 0], ids.view())?;
            }
            step.commit()?;
        }
        return Ok(field.close()?);
    }
    let rank = u64::from(me - 2);
    let mut steps = 0;
    for step in stage
        .read("field")
        .as_rank("analysis", me - 2, 2)
        .start(Start::Earliest)
        .open()?
    {
        let step = step?;
        same!(step.number(), steps);
        let columns: Array2<f64> = step.get("u", [0..40, 15 * rank..15 * rank + 15])?;
        check!(
            is_right(steps, 0, 15 * rank, &columns.view().into_dyn()),
            "{columns}"
        );
        let ids: Array3<i32> = step.get("ids", [0_u64..2, 1..3, 2..3])?;
        same!(ids[[1, 0, 0]], 112 + steps as i32);
        same!(step.blocks("u")?.count(), 2);
        steps += 1;
    }
    same!(steps, 5);
    Ok(())
}

#[test]
fn rows_become_columns() {
    staged(
        "streams::rows_become_columns",
        4,
        Mask::default(),
        rows_to_columns,
    );
}

#[test]
fn rows_become_columns_by_messages() {
    staged(
        "streams::rows_become_columns_by_messages",
        4,
        MESSAGES_ONLY,
        rows_to_columns,
    );
}

/// A block that nobody wrote is an error that names it.
#[test]
fn a_hole_is_named() {
    staged(
        "streams::a_hole_is_named",
        2,
        Mask::default(),
        |fabric, me| {
            let stage = Stage::join(fabric)?;
            if me == 0 {
                let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
                let mut step = field.step()?;
                step.put(
                    "u",
                    [4_u64, 4],
                    [0_u64, 0],
                    Array2::<u16>::ones((4, 2)).view(),
                )?;
                step.put(
                    "u",
                    [4_u64, 4],
                    [2_u64, 2],
                    Array2::<u16>::ones((2, 2)).view(),
                )?;
                let other = step.put(
                    "u",
                    [4_u64, 4],
                    [0_u64, 2],
                    Array2::<u32>::ones((2, 2)).view(),
                );
                check!(matches!(other, Err(Error::TwoKinds { .. })), "{other:?}");
                let outside = step.put(
                    "u",
                    [4_u64, 4],
                    [0_u64, 3],
                    Array2::<u16>::ones((2, 2)).view(),
                );
                check!(
                    matches!(outside, Err(Error::BlockOutside { .. })),
                    "{outside:?}"
                );
                step.commit()?;
                return Ok(field.close()?);
            }
            for step in stage.read("field").as_rank("analysis", 0, 1).open()? {
                let step = step?;
                same!(
                    step.get::<u16, ndarray::Ix2>("u", [2_u64..4, 0..4])?.sum(),
                    8
                );
                let hole = Region::new(&[0, 2], &[2, 4])?;
                match step.get::<u16, ndarray::Ix2>("u", ..) {
                    Err(Error::Hole { hole: found, .. }) => same!(found, hole),
                    other => check!(false, "{other:?}"),
                }
            }
            Ok(())
        },
    );
}
