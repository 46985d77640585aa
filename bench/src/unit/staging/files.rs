//! A stream of one step in a file, written and read back like a program with the method `file`
//! does.

use super::end::Shape;
use super::{Result, Rounds, bail};
use ndarray::{Array2, ArrayView2};
use samite::Fabric;
use samite::stage::file::Durability;
use samite::stage::{Configuration, Method, Settings, Stage};
use std::time::Instant;

/// Returns the seconds of an operation, from the opening of the stream to its close; `None` for an
/// unknown operation.
pub(super) fn run(
    fabric: &Fabric,
    operation: &str,
    shape: Shape,
    (iters, warmup): Rounds,
) -> Result<Option<f64>> {
    let durability = match operation {
        "write" | "read" => Durability::System,
        "write-synced" => Durability::Close,
        _ => return Ok(None),
    };
    let folder = tempfile::tempdir()?;
    let settings = Settings {
        durability,
        folder: folder.path().to_owned(),
        ..Settings::of(Method::File)
    };
    let stage = Stage::join_with(fabric, Configuration::of(settings))?;
    let mut values = Array2::zeros((shape.rows as usize, shape.columns as usize));
    shape.fill(values.view_mut(), 1);
    let mut found = values.clone();
    let mut spent = 0.0;
    for round in 0..warmup + iters {
        let stream = format!("bench-{round}");
        let start = Instant::now();
        write(&stage, &stream, shape, values.view())?;
        let mut seconds = start.elapsed().as_secs_f64();
        // Every file is read back for `read`, and the last one in any case, to check its content.
        let is_last = round + 1 == warmup + iters;
        if is_last || operation == "read" {
            found.fill(0.0);
            let start = Instant::now();
            read(&stage, &stream, &mut found)?;
            if operation == "read" {
                seconds = start.elapsed().as_secs_f64();
            }
        }
        if is_last {
            shape.check(found.view(), 1)?;
        }
        if round >= warmup {
            spent += seconds;
        }
        std::fs::remove_dir_all(folder.path().join(&stream))?;
    }
    Ok(Some(spent))
}

fn write(stage: &Stage, stream: &str, shape: Shape, values: ArrayView2<'_, f64>) -> Result<()> {
    let mut writer = stage.write(stream).as_rank("writer", 0, 1).open()?;
    let mut step = writer.step()?;
    step.put("u", [shape.rows, shape.columns], [0u64, 0], values)?;
    step.commit()?;
    Ok(writer.close()?)
}

fn read(stage: &Stage, stream: &str, into: &mut Array2<f64>) -> Result<()> {
    let mut reader = stage.read(stream).as_rank("reader", 0, 1).open()?;
    let (Some(step), Some(into)) = (reader.next_step()?, into.as_slice_mut()) else {
        bail!("the step is not in its file");
    };
    Ok(step.read_into("u", .., into)?)
}
