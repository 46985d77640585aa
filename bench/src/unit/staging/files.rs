//! A step in a file of its own, written and read back.

use super::end::Shape;
use super::{Result, Rounds};
use ndarray::ArrayView2;
use samite::stage::file::{Archive, Content, StepFile};
use samite::stage::protocol::{Block, Layout, Variable};
use samite::stage::{Dtype, Region};
use std::path::Path;
use std::time::{Duration, Instant};

/// Seconds of an operation; `None` where there is none of this name.
pub(super) fn run(operation: &str, shape: Shape, (iters, warmup): Rounds) -> Result<Option<f64>> {
    let mut values = vec![0.0; (shape.rows * shape.columns) as usize];
    let dims = (shape.rows as usize, shape.columns as usize);
    shape.fill(ndarray::ArrayViewMut2::from_shape(dims, &mut values)?, 1);
    let (mut found, mut spent) = (vec![0.0; values.len()], Duration::ZERO);
    let parent = tempfile::tempdir()?;
    for round in 0..warmup + iters {
        let folder = parent.path().join(round.to_string());
        let mut start = Instant::now();
        match operation {
            "write" | "read" => write(&folder, shape, &values, false)?,
            "write-synced" => write(&folder, shape, &values, true)?,
            _ => return Ok(None),
        }
        if operation == "read" {
            start = Instant::now();
            read(&folder, shape, &mut found)?;
        }
        if round >= warmup {
            spent += start.elapsed();
        }
        if round + 1 == warmup + iters {
            read(&folder, shape, &mut found)?;
            shape.check(ArrayView2::from_shape(dims, &found)?, 1)?;
        }
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(Some(spent.as_secs_f64()))
}

fn whole(shape: Shape) -> Result<Region> {
    Ok(Region::whole(&[shape.rows, shape.columns])?)
}

fn write(folder: &Path, shape: Shape, values: &[f64], is_synced: bool) -> Result<()> {
    let region = whole(shape)?;
    let layout = Layout {
        variables: vec![Variable {
            name: "u".to_owned(),
            dtype: Dtype::F64,
            shape: region.shape(),
            attributes: Vec::new(),
            blocks: vec![Block { region, slot: 0 }],
        }],
    };
    let bytes = bytemuck::cast_slice(values);
    let mut file = StepFile::create(folder, "bench", 0, 1)?;
    let content = Content {
        layout: &layout,
        blocks: &[bytes],
        attributes: &[],
    };
    file.append(0, content)?;
    if is_synced {
        file.sync()?;
    }
    Ok(file.finish()?)
}

fn read(folder: &Path, shape: Shape, into: &mut [f64]) -> Result<()> {
    let archive = Archive::open(folder)?;
    let bytes = bytemuck::cast_slice_mut(into);
    Ok(archive.step(0)?.read_into("u", &whole(shape)?, bytes)?)
}
