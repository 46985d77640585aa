//! The method `graph`: fan-out, fan-in, cycles, operators and promises, between real processes.

#![allow(
    clippy::result_large_err,
    reason = "errors name boxes; they are rare, and never on the way of a byte"
)]

mod cycles;
mod promises;

use crate::staged::{Play, is_right, next, rows, stage, value};
use ndarray::{Array1, Array2, Ix1, Ix2, array, s};
use samite_fabric::{Fabric, Identity, Mask};
use samite_stage::method::graph::{Applied, Edge, Extent, GraphError, Promise, Redistribution};
use samite_stage::protocol::{Failure, Fault, Policy};
use samite_stage::space::Dims;
use samite_stage::{Configuration, Dtype, Error, Method, Settings, Stage, Writer};
use samite_testkit::{MESSAGES_ONLY, Outcome, check, maps_host, pause, point, same};
use std::time::Duration;

fn linked(fabric: &Fabric, edges: Vec<Edge>) -> samite_stage::Result<Stage> {
    let settings = Settings {
        lease: Duration::from_millis(300),
        ..Settings::of(Method::Graph)
    };
    let configuration = Configuration {
        edges,
        ..Configuration::of(settings)
    };
    Stage::join_with(fabric, configuration)
}

const SHAPE: [u64; 2] = [9, 12];
const STEPS: u64 = 6;

/// One stream, three reader programs: all steps, every other one, and through operators.
fn fan_out_edges() -> Vec<Edge> {
    let all = Edge {
        name: "whole".into(),
        redistribute: Redistribution::Round,
        ..Edge::new("solver", "field", "all")
    };
    let second = Edge {
        policy: Some(Policy::Every(2)),
        redistribute: Redistribution::Count,
        ..Edge::new("solver", "field", "second")
    };
    let coarse = Edge {
        operators: ["mean 3", "mine:negated", "as f32"]
            .map(Applied::from)
            .into(),
        redistribute: Redistribution::Block,
        ..Edge::new("solver", "field", "coarse")
    };
    vec![all, second, coarse]
}

fn fan_out(fabric: &Fabric, me: u32) -> Outcome {
    let stage = linked(fabric, fan_out_edges())?;
    match me {
        0 | 1 => {
            let mut field = stage.write("field").as_rank("solver", me, 2).open()?;
            let (from, to) = [(0, 5), (5, 9)][me as usize];
            for number in 0..STEPS {
                let mut step = field.step()?;
                let part = rows(number, from..to, SHAPE[1]);
                step.put("u", SHAPE, [from, 0], part.view())?;
                step.commit()?;
                if me == 0 && number == 1 {
                    point("two steps");
                }
            }
            field.close()?;
        }
        2 | 3 => {
            let mut reader = stage.read("whole").as_rank("all", me - 2, 2).open()?;
            for number in 0..STEPS {
                let step = next(&mut reader)?;
                same!(step.number(), number);
                let own = step.mine::<f64, Ix2>("u")?;
                let items = own.regions.iter().map(|region| region.lower()[0]);
                let expected = (0..9).filter(|row| row % 2 == u64::from(me - 2));
                check!(items.eq(expected), "{:?}", own.regions);
                for (row, region) in own.array.rows().into_iter().zip(&own.regions) {
                    let row = row.insert_axis(ndarray::Axis(0));
                    check!(is_right(number, (region.lower()[0], 0), row));
                }
            }
            check!(reader.next_step()?.is_none());
        }
        4 => {
            // It comes when the others wait for it, and misses nothing.
            pause("second");
            let mut reader = stage.read("field").as_rank("second", 0, 1).open()?;
            for number in (0..STEPS).step_by(2) {
                let step = next(&mut reader)?;
                same!(step.number(), number);
                let own = step.mine::<f64, Ix2>("u")?;
                check!(is_right(number, (0, 0), own.array.view()));
            }
            check!(reader.next_step()?.is_none());
        }
        _ => coarse(&stage, me - 5)?,
    }
    Ok(())
}

/// Five readers of an array that is three by four at the end: some have nothing.
fn coarse(stage: &Stage, rank: u32) -> Outcome {
    stage.operator("negated", |x: f64| -x);
    let mut reader = stage.read("field").as_rank("coarse", rank, 5).open()?;
    for number in 0..STEPS {
        let step = next(&mut reader)?;
        let variable = step.variable("u")?;
        same!(
            (variable.dtype, &variable.shape[..]),
            (Dtype::F32, &[3, 4][..])
        );
        let mean = |y: u64, x: u64| -(value(number, 3 * y + 1, 3 * x + 1) as f32);
        let all: Array2<f32> = step.get("u", ..)?;
        check!(
            all.indexed_iter()
                .all(|((y, x), found)| *found == mean(y as u64, x as u64)),
            "{all}"
        );
        let part: Array2<f32> = step.get("u", [1_u64..3, 2..3])?;
        same!(part, array![[mean(1, 2)], [mean(2, 2)]]);
        check!(step.view::<f32>("u", ..)?.is_none(), "it lies nowhere");
        check!(matches!(
            step.get::<f64, Ix2>("u", ..),
            Err(Error::Clash { .. })
        ));
        let own = step.mine::<f32, Ix2>("u")?;
        same!(own.regions, step.mine_of("u")?);
        match &own.regions[..] {
            [] => check!(own.array.is_empty(), "{}", own.array),
            [region] => {
                let (y, x) = (region.lower()[0], region.lower()[1]);
                let right = |((dy, dx), found): ((usize, usize), &f32)| {
                    *found == mean(y + dy as u64, x + dx as u64)
                };
                check!(own.array.indexed_iter().all(right));
            }
            more => check!(false, "{more:?}"),
        }
    }
    check!(reader.next_step()?.is_none());
    Ok(())
}

fn fan_out_with(name: &str, mask: Mask) {
    let play = Play::of(10, mask);
    play.run(name, fan_out, |cluster| {
        cluster.wait_point(play.actor(0), "two steps");
        cluster.wait_point(play.actor(4), "second");
        cluster.release(play.actor(4));
        cluster.all_end();
    });
}

#[test]
fn one_writes_and_three_read() {
    fan_out_with("graph::one_writes_and_three_read", Mask::default());
}

#[test]
fn one_writes_and_three_read_by_messages() {
    fan_out_with(
        "graph::one_writes_and_three_read_by_messages",
        MESSAGES_ONLY,
    );
}

/// Of two variables one is made coarse, and only one becomes integers; a third passes as it is, and
/// can be seen in place.
#[test]
fn an_operator_is_for_the_variables_that_it_names() {
    let named = |apply: &str, names: &[&str]| Applied {
        variables: names.iter().map(|name| (*name).to_owned()).collect(),
        ..Applied::from(apply)
    };
    let edge = Edge {
        operators: vec![
            named("mean 3", &["u"]),
            named("scale 2", &["u", "v"]),
            named("as i32", &["v"]),
        ],
        ..Edge::new("solver", "field", "viewer")
    };
    let body = move |fabric: &Fabric, me: u32| {
        let stage = linked(fabric, vec![edge.clone()])?;
        if me == 0 {
            let mut field = stage.write("field").as_rank("solver", 0, 1).open()?;
            for number in 0..STEPS {
                let mut step = field.step()?;
                let all = rows(number, 0..SHAPE[0], SHAPE[1]);
                for name in ["u", "v", "w"] {
                    step.put(name, SHAPE, [0_u64, 0], all.view())?;
                }
                step.commit()?;
            }
            return Ok(field.close()?);
        }
        let mut reader = stage.read("field").as_rank("viewer", 0, 1).open()?;
        for number in 0..STEPS {
            let step = next(&mut reader)?;
            let u: Array2<f64> = step.get("u", ..)?;
            same!(u.dim(), (3, 4));
            let mean = |y: usize, x: usize| value(number, 3 * y as u64 + 1, 3 * x as u64 + 1);
            check!(
                u.indexed_iter()
                    .all(|((y, x), found)| *found == 2.0 * mean(y, x))
            );
            let v: Array2<i32> = step.get("v", ..)?;
            same!(v.dim(), (9, 12));
            let twice = |y: usize, x: usize| 2 * value(number, y as u64, x as u64) as i32;
            check!(
                v.indexed_iter()
                    .all(|((y, x), found)| *found == twice(y, x))
            );
            let w: Array2<f64> = step.get("w", ..)?;
            check!(w.dim() == (9, 12) && is_right(number, (0, 0), w.view()));
            let is_as_written = step.view::<f64>("w", ..)?.is_some();
            same!(is_as_written, maps_host(fabric));
            check!(step.view::<i32>("v", ..)?.is_none());
        }
        check!(reader.next_step()?.is_none());
        Ok(())
    };
    let name = "graph::an_operator_is_for_the_variables_that_it_names";
    Play::of(2, Mask::default()).run(name, body, |cluster| cluster.all_end());
}

/// Two programs call their streams alike; a third one reads both under names of its own.
#[test]
fn two_write_and_one_reads() {
    let edges = || {
        ["left", "right"].map(|from| Edge {
            name: format!("from {from}"),
            ..Edge::new(from, "out", "sum")
        })
    };
    let body = |fabric: &Fabric, me: u32| {
        let stage = linked(fabric, edges().into())?;
        if me < 2 {
            let program = ["left", "right"][me as usize];
            let mut out = stage.write("out").as_rank(program, 0, 1).open()?;
            for number in 0..5_u64 {
                let mut step = out.step()?;
                let numbers = Array1::from_elem(3, (10 * number + u64::from(me)) as f64);
                step.put("x", [3_u64], [0_u64], numbers.view())?;
                step.commit()?;
            }
            return Ok(out.close()?);
        }
        let mut left = stage.read("from left").as_rank("sum", 0, 1).open()?;
        let mut right = stage.read("from right").as_rank("sum", 0, 1).open()?;
        for number in 0..5 {
            let (one, other) = (next(&mut left)?, next(&mut right)?);
            let one: Array1<f64> = one.get("x", ..)?;
            let other: Array1<f64> = other.get("x", ..)?;
            same!(
                one + other,
                Array1::from_elem(3, 20.0 * f64::from(number) + 1.0)
            );
        }
        check!(left.next_step()?.is_none() && right.next_step()?.is_none());
        Ok(())
    };
    Play::of(3, Mask::default()).run("graph::two_write_and_one_reads", body, |cluster| {
        cluster.all_end()
    });
}
