//! Code that is applied to staged data.

use samite::dsm::{Chunk, Dsm};
use samite::mobile::{Capsule, Mobile};
use samite::stage::method::Method;
use samite::stage::service::{BlockStoreService, Capacity};
use samite::stage::{Configuration, Settings};
use samite::stage::{Region, Stage, StepReader};
use samite::{Fabric, Map, MapError, Mapped, Mask, Match, PeerId};
use samite_testkit::{
    Cluster, Failed, MESSAGES_ONLY, Outcome, TWO_NODES, Who, check, full_name, pause, same, units,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// `above` replies with the numbers of its input that are greater than its argument; `count` with
/// how many there are, after the number of bytes that precede them; `fails` with nothing.
const KERNELS: &str = r#"(module
  (import "samite" "memory" (memory 2))
  (import "samite" "reply" (func $reply (param i32 i32)))
  (import "samite" "fail" (func $fail (param i32 i32 i32)))
  (func (export "above") (param $at i32) (param $len i32) (result i32)
    (local $from i32) (local $end i32) (local $to i32) (local $bound i64)
    (local.set $bound (i64.load offset=16 (local.get $at)))
    (local.set $from (i32.add (local.get $at) (i32.const 32)))
    (local.set $end (i32.add (local.get $at) (local.get $len)))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $from) (local.get $end)))
        (i64.store (local.get $to) (i64.load (local.get $from)))
        (local.set $to (i32.add (local.get $to) (i32.shl
          (i64.gt_u (i64.load (local.get $from)) (local.get $bound)) (i32.const 3))))
        (local.set $from (i32.add (local.get $from) (i32.const 8)))
        (br $next)))
    (call $reply (i32.const 0) (local.get $to))
    (i32.const 0))
  (func (export "count") (param $at i32) (param $len i32) (result i32)
    (i64.store (i32.const 0) (i64.load (local.get $at)))
    (i64.store (i32.const 8)
      (i64.extend_i32_u (i32.shr_u (i32.sub (local.get $len) (i32.const 16)) (i32.const 3))))
    (call $reply (i32.const 0) (i32.const 16))
    (i32.const 0))
  (func (export "fails") (param $at i32) (param $len i32) (result i32)
    (i32.const 7)))"#;

const ROWS: u64 = 400;
const COLUMNS: u64 = 500;

/// The number in a row and column.
fn number(row: u64, column: u64) -> u64 {
    (row * COLUMNS + column).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40
}

/// Units that map the blocks, no unit does, or some.
const WAYS: [(&str, samite::Mask); 3] = [
    ("mapped", samite_testkit::ONE_NODE),
    ("messages", MESSAGES_ONLY),
    ("two_nodes", TWO_NODES),
];

/// The tag under which a unit says how many bytes it has sent for calls.
const SENT: u64 = 6;

/// Runs unit 0 with a step that units 1 and 2 have written; these run what it sends meanwhile.
fn run(name: &str, way: usize, reader: fn(&Mobile, &StepReader) -> Outcome) {
    run_within(name, way, 0..=u64::MAX, reader);
}

/// As [`run`], and checks how many bytes units 1 and 2 send for calls.
fn run_within(
    name: &str,
    way: usize,
    within: RangeInclusive<u64>,
    reader: fn(&Mobile, &StepReader) -> Outcome,
) {
    let body = |fabric: &Fabric, _: &[_]| {
        let unit = fabric.identity().unit;
        let stage = Stage::join(fabric)?;
        let mobile = Mobile::new(fabric)?;
        let members = fabric.job()?;
        if let Some(rank) = unit.checked_sub(1) {
            let mut writer = stage.write("field").as_rank("writer", rank, 2).open()?;
            let mut step = writer.step()?;
            let first = ROWS / 2 * u64::from(rank);
            let own = ndarray::Array2::from_shape_fn(
                ((ROWS / 2) as usize, COLUMNS as usize),
                |(row, column)| number(first + row as u64, column as u64),
            );
            step.put("u", [ROWS, COLUMNS], [first, 0], own.view())?;
            step.commit()?;
            fabric.barrier(&members)?;
            fabric.send(members[0], SENT, &fabric.upcall_bytes().to_le_bytes())?;
            writer.close()?;
        } else {
            let mut field = stage.read("field").as_rank("reader", 0, 1).open()?;
            let step = field.next_step()?;
            let step = step.ok_or_else(|| Failed::new("no step"))?;
            reader(&mobile, &step)?;
            drop(step);
            fabric.barrier(&members)?;
            for writer in &members[1..] {
                let mut sent = [0; 8];
                fabric.recv(Match::from(*writer, SENT), &mut sent)?;
                let sent = u64::from_le_bytes(sent);
                check!(within.contains(&sent), "{sent} bytes");
            }
        }
        Ok(())
    };
    let units = units(3).mask(WAYS[way].1).services(samite::services());
    units.run(name, body);
}

/// Returns what runs [`run`] with a reader.
fn reads(reader: fn(&Mobile, &StepReader) -> Outcome) -> impl Fn(&str, usize) {
    move |name, way| run(name, way, reader)
}

/// Creates a test for each of [`WAYS`]. `run` gets its name and its way.
macro_rules! in_all_ways {
    ($name:ident, $run:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn mapped() {
                $run(&full_name(module_path!(), WAYS[0].0), 0);
            }

            #[test]
            fn messages() {
                $run(&full_name(module_path!(), WAYS[1].0), 1);
            }

            #[test]
            fn two_nodes() {
                $run(&full_name(module_path!(), WAYS[2].0), 2);
            }
        }
    };
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Checks that the parts are the whole box, each point once.
fn is_whole(parts: &[Mapped], region: &Region) -> Outcome {
    let mut points = 0;
    for (at, part) in parts.iter().enumerate() {
        check!(region.contains(&part.region), "{}", part.region);
        points += part.region.volume().unwrap_or(0);
        let others = parts[..at].iter();
        check!(
            others
                .clone()
                .all(|other| !other.region.intersects(&part.region))
        );
    }
    same!(Some(points), region.volume());
    Ok(())
}

/// A filter returns what the reader would have found, for boxes of any shape and results of any
/// length.
fn filters(mobile: &Mobile, step: &StepReader) -> Outcome {
    let code = mobile.register(Capsule::from_wat(KERNELS)?)?;
    let boxes = [
        Region::whole(&[ROWS, COLUMNS])?,
        Region::new(&[0, 0], &[1, 1])?,
        Region::new(&[150, 13], &[287, 44])?,
        Region::new(&[0, COLUMNS - 1], &[ROWS, COLUMNS])?,
        Region::new(&[7, 3], &[7, 5])?,
    ];
    for region in boxes {
        // All pass; about one in a hundred; none.
        for bound in [0, (1 << 24) / 100 * 99, 1 << 24] {
            let map = Map::new(mobile, &code, "above").argument(&u64::to_le_bytes(bound));
            let parts = map.at(&[1, 2]).run(step, "u", &region)?;
            is_whole(&parts, &region)?;
            for part in parts {
                let (lower, upper) = (part.region.lower(), part.region.upper());
                let rows = lower[0]..upper[0];
                let all = rows
                    .flat_map(|row| (lower[1]..upper[1]).map(move |column| number(row, column)));
                let right: Vec<u64> = all.filter(|number| *number > bound).collect();
                same!(numbers(&part.bytes), right);
            }
        }
    }
    Ok(())
}

in_all_ways!(a_filter, reads(filters));

/// Each piece says how much precedes it.
fn positions(mobile: &Mobile, step: &StepReader) -> Outcome {
    let code = mobile.register(Capsule::from_wat(KERNELS)?)?;
    let region = Region::new(&[10, 20], &[350, 480])?;
    let parts = Map::new(mobile, &code, "count")
        .at(&[2, 1])
        .run(step, "u", &region)?;
    is_whole(&parts, &region)?;
    for part in parts {
        let replies = numbers(&part.bytes);
        let pieces: BTreeMap<u64, u64> = replies.chunks(2).map(|pair| (pair[0], pair[1])).collect();
        let mut precede = 0;
        for (before, count) in pieces {
            same!(before, precede);
            precede += count * 8;
        }
        same!(Some(precede / 8), part.region.volume());
    }
    Ok(())
}

in_all_ways!(positions_of_pieces, reads(positions));

/// A kernel that fails, a variable that is not there, and a box outside are errors; the units go
/// on.
fn failures(mobile: &Mobile, step: &StepReader) -> Outcome {
    let code = mobile.register(Capsule::from_wat(KERNELS)?)?;
    let map = |entry: &str| Map::new(mobile, &code, entry).at(&[1, 2]);
    let ended = map("fails").run(step, "u", ..);
    check!(
        matches!(&ended, Err(MapError::Mobile(samite::mobile::Error::Failed(failure)))
            if failure.cause == samite::mobile::Cause::Failed),
        "{ended:?}"
    );
    let ended = map("count").run(step, "v", ..);
    check!(matches!(ended, Err(MapError::Stage(_))), "{ended:?}");
    let ended = map("count").run(step, "u", [0..ROWS + 1, 0..1]);
    check!(matches!(ended, Err(MapError::Stage(_))), "{ended:?}");
    let ended = map("nothing").run(step, "u", ..);
    check!(
        matches!(
            ended,
            Err(MapError::Mobile(samite::mobile::Error::NoEntry { .. }))
        ),
        "{ended:?}"
    );
    let parts = map("count").run(step, "u", ..)?;
    is_whole(&parts, &Region::whole(&[ROWS, COLUMNS])?)
}

in_all_ways!(what_fails, reads(failures));

/// Without any unit, the code runs at the reader.
fn here(mobile: &Mobile, step: &StepReader) -> Outcome {
    let code = mobile.register(Capsule::from_wat(KERNELS)?)?;
    let before = mobile.counters().calls;
    let parts = Map::new(mobile, &code, "count").run(step, "u", ..)?;
    is_whole(&parts, &Region::whole(&[ROWS, COLUMNS])?)?;
    same!(mobile.counters().calls - before, parts.len() as u64);
    Ok(())
}

in_all_ways!(without_other_units, reads(here));

/// A chunk, short or long, is filtered at its home, and what was committed before is seen.
fn chunk_is_filtered(
    fabric: &Fabric,
    mobile: &Mobile,
    (dsm, elements): (&Dsm, u64),
    is_mapped_elsewhere: bool,
) -> Outcome {
    let unit = mobile.unit();
    let members = fabric.job()?;
    let chunk = chunk_of(fabric, dsm, &format!("numbers-{elements}"), elements)?;
    for round in 0..3_u64 {
        if unit == 1 {
            let mut guard = chunk.write()?;
            let numbers = guard.iter_mut().enumerate();
            numbers.for_each(|(at, to)| *to = number(round, at as u64));
            guard.commit(round)?;
        }
        fabric.barrier(&members)?;
        if unit == 0 {
            let code = mobile.register(Capsule::from_wat(KERNELS)?)?;
            let bound = (1_u64 << 24) / 100 * 99;
            let map = Map::new(mobile, &code, "above").argument(&bound.to_le_bytes());
            let before = mobile.counters().calls;
            let parts = map.at(&[1, 2]).run_at_home(&chunk)?;
            is_whole(&parts, &Region::whole(&[elements])?)?;
            let found: Vec<u64> = parts.iter().flat_map(|part| numbers(&part.bytes)).collect();
            let all = (0..elements).map(|at| number(round, at));
            let right: Vec<u64> = all.filter(|number| *number > bound).collect();
            same!(found, right);
            // A chunk of at most 4 KiB comes with the guard.
            let is_here = elements * 8 <= 4096 || !is_mapped_elsewhere;
            same!(mobile.counters().calls > before, is_here);
        }
        fabric.barrier(&members)?;
    }
    Ok(())
}

/// Returns a chunk of unit 0. Collective.
fn chunk_of(fabric: &Fabric, dsm: &Dsm, name: &str, elements: u64) -> Outcome<Chunk<u64>> {
    let chunk = match fabric.identity().unit {
        0 => dsm.alloc::<u64>(name, elements)?,
        _ => dsm.lookup::<u64>(name)?,
    };
    fabric.barrier(&fabric.job()?)?;
    Ok(chunk)
}

fn chunks(name: &str, way: usize) {
    let body = |fabric: &Fabric, _: &[_]| {
        let mobile = Mobile::new(fabric)?;
        let dsm = Dsm::join(fabric)?;
        // It comes with the guard; it has one part; it has several.
        [100, 10_000, 300_000]
            .into_iter()
            .try_for_each(|elements| chunk_is_filtered(fabric, &mobile, (&dsm, elements), way != 1))
    };
    let units = units(3).mask(WAYS[way].1).services(samite::services());
    units.run(name, body);
}

in_all_ways!(chunks_at_their_home, chunks);

/// Whoever writes a chunk waits while code is applied to it: all parts are of one version.
fn version_of_all_parts(fabric: &Fabric) -> Outcome {
    const ELEMENTS: u64 = 300_000;
    const TIMES: u64 = 20;
    const DONE: u64 = 5;
    let members = fabric.job()?;
    let mobile = Mobile::new(fabric)?;
    let dsm = Dsm::join(fabric)?;
    let chunk = chunk_of(fabric, &dsm, "versions", ELEMENTS)?;
    let write = |round: u64| -> Outcome {
        let mut guard = chunk.write()?;
        guard.iter_mut().for_each(|to| *to = round);
        Ok(guard.commit(round).map(|_| ())?)
    };
    match mobile.unit() {
        0 => {
            write(1)?;
            fabric.barrier(&members)?;
            let code = mobile.register(Capsule::from_wat(KERNELS)?)?;
            let map = Map::new(&mobile, &code, "above").argument(&0_u64.to_le_bytes());
            let map = map.at(&[2]);
            let mut versions = BTreeSet::new();
            for _ in 0..TIMES {
                let parts = map.run_at_home(&chunk)?;
                check!(parts.len() > 1, "{} part", parts.len());
                let found: Vec<u64> = parts.iter().flat_map(|part| numbers(&part.bytes)).collect();
                same!(found.len() as u64, ELEMENTS);
                check!(
                    found.iter().all(|number| *number == found[0]),
                    "several versions"
                );
                versions.insert(found[0]);
            }
            fabric.send(members[1], DONE, &[])?;
            check!(versions.len() > 1, "nobody wrote: {versions:?}");
        }
        1 => {
            fabric.barrier(&members)?;
            let mut round = 1;
            while fabric.probe(Match::from(members[0], DONE)).is_none() {
                round += 1;
                write(round)?;
            }
            fabric.recv(Match::from(members[0], DONE), &mut [])?;
        }
        _ => fabric.barrier(&members)?,
    }
    Ok(fabric.barrier(&members)?)
}

#[test]
fn a_map_sees_one_version() {
    let name = full_name(module_path!(), "a_map_sees_one_version");
    let units = units(3).services(samite::services());
    units.run(&name, |fabric, _| version_of_all_parts(fabric));
}

/// The code goes to units that map the data, if there are any: the reader runs none of it.
fn where_the_data_is(mobile: &Mobile, step: &StepReader) -> Outcome {
    let code = mobile.register(Capsule::from_wat(KERNELS)?)?;
    let map = Map::new(mobile, &code, "count").at(&[1, 2]);
    let parts = map.run(step, "u", ..)?;
    is_whole(&parts, &Region::whole(&[ROWS, COLUMNS])?)?;
    same!(mobile.counters().calls, 0);
    Ok(())
}

#[test]
fn it_runs_where_the_data_is() {
    let name = full_name(module_path!(), "it_runs_where_the_data_is");
    run(&name, 0, where_the_data_is);
}

#[test]
fn it_runs_at_the_node_of_the_data() {
    let name = full_name(module_path!(), "it_runs_at_the_node_of_the_data");
    run(&name, 2, where_the_data_is);
}

/// One number in a hundred passes, and what the reader is sent is a part of the 1.6 MB as small.
fn one_in_a_hundred(mobile: &Mobile, step: &StepReader) -> Outcome {
    let code = mobile.register(Capsule::from_wat(KERNELS)?)?;
    let bound = (1_u64 << 24) / 100 * 99;
    let map = Map::new(mobile, &code, "above").argument(&bound.to_le_bytes());
    let parts = map.at(&[1, 2]).run(step, "u", ..)?;
    let found: u64 = parts.iter().map(|part| part.bytes.len() as u64).sum();
    check!(found > ROWS * COLUMNS * 8 / 200, "{found} bytes");
    same!(mobile.counters().calls, 0);
    Ok(())
}

#[test]
fn only_the_result_travels() {
    let name = full_name(module_path!(), "only_the_result_travels");
    let most = ROWS * COLUMNS * 8 / 50;
    run_within(&name, 2, 1..=most, one_in_a_hundred);
}

/// A unit that is killed is replaced by another one.
#[test]
fn a_unit_is_killed() {
    const END: u64 = 3;
    let body = |fabric: &Fabric, members: &[PeerId]| {
        let unit = fabric.identity().unit;
        let stage = Stage::join(fabric)?;
        let mobile = Mobile::new(fabric)?;
        match unit {
            0 => {
                let mut field = stage.read("field").as_rank("reader", 0, 1).open()?;
                let step = field.next_step()?;
                let step = step.ok_or_else(|| Failed::new("no step"))?;
                let code = mobile.register(Capsule::from_wat(KERNELS)?)?;
                let map = Map::new(&mobile, &code, "count").at(&[1, 2]);
                map.run(&step, "u", ..)?;
                pause("killed");
                let parts = map.run(&step, "u", ..)?;
                is_whole(&parts, &Region::whole(&[ROWS, COLUMNS])?)?;
                same!(mobile.counters().calls, 0);
                drop(step);
                fabric.send(members[1], END, &[])?;
            }
            1 => {
                let mut writer = stage.write("field").as_rank("writer", 0, 1).open()?;
                let mut step = writer.step()?;
                let (rows, columns) = (ROWS as usize, COLUMNS as usize);
                let own = ndarray::Array2::from_shape_fn((rows, columns), |(row, column)| {
                    number(row as u64, column as u64)
                });
                step.put("u", [ROWS, COLUMNS], [0, 0], own.view())?;
                step.commit()?;
                fabric.recv(Match::from(members[0], END), &mut [])?;
            }
            _ => mobile.serve(fabric.deadline(), || None)?,
        }
        Ok(())
    };
    let name = full_name(module_path!(), "a_unit_is_killed");
    let units = units(3).services(samite::services());
    units.orchestrate(&name, body, |cluster: &mut Cluster| {
        cluster.wait_point(Who::Unit(0), "killed");
        cluster.kill(Who::Unit(2));
        cluster.release(Who::Unit(0));
        cluster.all_end();
    });
}

/// The blocks are at a staging server on another node, which runs the code itself.
#[test]
fn a_staging_server_runs_it() {
    const END: u64 = 4;
    let body = |fabric: &Fabric, members: &[PeerId]| {
        let unit = fabric.identity().unit;
        let mobile = Mobile::new(fabric)?;
        let settings = Configuration::of(Settings::of(Method::Server));
        match unit {
            0 => {
                fabric.barrier(members)?;
                let stage = Stage::join_with(fabric, settings)?;
                let mut field = stage.read("field").as_rank("reader", 0, 1).open()?;
                let step = field.next_step()?;
                let step = step.ok_or_else(|| Failed::new("no step"))?;
                let code = mobile.register(Capsule::from_wat(KERNELS)?)?;
                let map = Map::new(&mobile, &code, "count").at(&[1]);
                let parts = map.run(&step, "u", ..)?;
                is_whole(&parts, &Region::whole(&[ROWS, COLUMNS])?)?;
                same!(mobile.counters().calls, 0);
                drop(step);
                for member in &members[1..] {
                    fabric.send(*member, END, &[])?;
                }
            }
            1 => {
                let mut store = BlockStoreService::join(fabric, Capacity::of_memory(64 << 20))?;
                fabric.barrier(members)?;
                store.run(|fabric| fabric.probe(Match::any(END)).is_none())?;
            }
            _ => {
                fabric.barrier(members)?;
                let stage = Stage::join_with(fabric, settings)?;
                let mut writer = stage.write("field").as_rank("writer", 0, 1).open()?;
                let mut step = writer.step()?;
                let (rows, columns) = (ROWS as usize, COLUMNS as usize);
                let own = ndarray::Array2::from_shape_fn((rows, columns), |(row, column)| {
                    number(row as u64, column as u64)
                });
                step.put("u", [ROWS, COLUMNS], [0, 0], own.view())?;
                step.commit()?;
                fabric.recv(Match::from(members[0], END), &mut [])?;
            }
        }
        Ok(())
    };
    let name = full_name(module_path!(), "a_staging_server_runs_it");
    let mask = Mask {
        nodes: 3,
        ..Mask::default()
    };
    let units = units(3).mask(mask).services(samite::services());
    units.run(&name, body);
}

/// Elements of any size are whole in each piece, and one that is longer than a piece is an error.
#[test]
fn elements_of_any_size() {
    let body = |fabric: &Fabric, _: &[_]| {
        let mobile = Mobile::new(fabric)?;
        let code = mobile.register(Capsule::from_wat(KERNELS)?)?;
        let dsm = Dsm::join(fabric)?;
        let chunk = dsm.alloc::<[u64; 3]>("triples", 10_000)?;
        let mut guard = chunk.write()?;
        guard.iter_mut().for_each(|triple| *triple = [1, 2, 3]);
        guard.commit(1)?;
        let map = Map::new(&mobile, &code, "count").at(&[0]);
        let parts = map.run_at_home(&chunk)?;
        is_whole(&parts, &Region::whole(&[10_000])?)?;
        for part in parts {
            for piece in numbers(&part.bytes).chunks(2) {
                same!((piece[0] % 24, piece[1] % 3), (0, 0));
            }
        }
        let long = dsm.alloc::<[[u64; 4096]; 2]>("long", 2)?;
        let ended = map.run_at_home(&long);
        check!(
            matches!(
                ended,
                Err(MapError::Mobile(samite::mobile::Error::TooLong { .. }))
            ),
            "{ended:?}"
        );
        Ok(())
    };
    let name = full_name(module_path!(), "elements_of_any_size");
    let units = units(1).services(samite::services());
    units.run(&name, body);
}
