//! `stage-archive` and `stage-replay`: programs of a workflow that write a stream as a Zarr store,
//! and a Zarr store as a stream. The programs at the other end of the stream cannot tell.

#[cfg(feature = "zarr")]
pub(crate) use store::{archive, replay};

use clap::Parser;
use std::path::PathBuf;

/// Writes every step of a stream to a Zarr store (version 3), which Python, Julia and C++ read.
///
/// One unit. The first step that it reads replaces all steps of the store from that number on;
/// earlier ones stay.
#[derive(Parser)]
#[cfg_attr(
    not(feature = "zarr"),
    allow(dead_code, reason = "only a build with Zarr reads them")
)]
pub(crate) struct ArchiveArgs {
    /// Name of the stream
    #[arg(long)]
    stream: String,

    /// Folder of the store
    #[arg(long)]
    folder: PathBuf,
}

/// Writes the steps of a Zarr store to a stream; its units share the rows of each array.
#[derive(Parser)]
#[cfg_attr(
    not(feature = "zarr"),
    allow(dead_code, reason = "only a build with Zarr reads them")
)]
pub(crate) struct ReplayArgs {
    /// Name of the stream
    #[arg(long)]
    stream: String,

    /// Folder of the store
    #[arg(long)]
    folder: PathBuf,

    /// Read one array of any store, by its path within it, as the only variable of one step.
    /// Default: all steps that `stage-archive` wrote
    #[arg(long)]
    array: Option<String>,
}

#[cfg(not(feature = "zarr"))]
mod missing {
    use super::{ArchiveArgs, ReplayArgs};
    use anyhow::{Result, bail};
    use samite::Fabric;

    const MISSING: &str = "this `samite` was built without Zarr: build it with \
                           `cargo build --release --features samite-cli/zarr`, which needs a C compiler";

    pub(crate) fn archive(_: &Fabric, _: &ArchiveArgs) -> Result<()> {
        bail!(MISSING)
    }

    pub(crate) fn replay(_: &Fabric, _: &ReplayArgs) -> Result<()> {
        bail!(MISSING)
    }
}
#[cfg(not(feature = "zarr"))]
pub(crate) use missing::{archive, replay};

#[cfg(feature = "zarr")]
mod store {
    use super::{ArchiveArgs, ReplayArgs};
    use crate::screen::say;
    use anyhow::{Context, Result};
    use ndarray::{ArrayViewD, IxDyn};
    use samite::Fabric;
    use samite::program::Summary;
    use samite::stage::file::Content;
    use samite::stage::file::zarr::{Zarr, ZarrArray};
    use samite::stage::protocol::{Attribute, Block, Layout, Variable};
    use samite::stage::space::Grid;
    use samite::stage::{Element, Region, Stage, StepReader, StepWriter, for_dtype};

    pub(crate) fn archive(fabric: &Fabric, args: &ArchiveArgs) -> Result<()> {
        let units = fabric.identity().size;
        anyhow::ensure!(
            units == 1,
            "only one unit can write a store: start 1 unit instead of {units}"
        );
        let stage = Stage::join(fabric)?;
        let store = Zarr::open(&args.folder)?;
        store.begin(&args.stream)?;
        let (mut steps, mut bytes) = (0, 0);
        for step in stage.reader(&args.stream)? {
            let step = step?;
            if steps == 0 {
                // Removes what an older run left. Steps before this one stay: they may be the
                // beginning of this stream, from a reader that was started again.
                store.remove_from(step.number())?;
            }
            bytes += keep(&store, &step)?;
            steps += 1;
        }
        let older = store.steps()?.len().saturating_sub(steps);
        let summary = Summary::new(format_args!("The stream {} as Zarr", args.stream))
            .row("store", args.folder.display())
            .row("steps", steps)
            .row("older steps that stay", older)
            .row("bytes", bytes);
        say(format_args!("{summary}"))
    }

    /// Writes a step, block by block. Returns the number of bytes.
    fn keep(store: &Zarr, step: &StepReader) -> Result<usize> {
        let (mut layout, mut blocks) = (Layout::default(), Vec::new());
        for variable in step.variables() {
            // If an operator changed the array, its blocks no longer match: write it whole.
            let regions: Vec<Region> = match step.is_as_written(&variable.name)? {
                true => step
                    .blocks(&variable.name)?
                    .map(|(_, region)| region.clone())
                    .collect(),
                false => vec![Region::whole(&variable.shape)?],
            };
            for region in &regions {
                let read =
                    for_dtype!(variable.dtype, T => bytes::<T>(step, &variable.name, region));
                blocks.push(read?);
            }
            let regions = regions.into_iter();
            layout.variables.push(Variable {
                name: variable.name.clone(),
                dtype: variable.dtype,
                shape: variable.shape.clone(),
                attributes: variable.attributes.clone(),
                blocks: regions.map(|region| Block { region, slot: 0 }).collect(),
            });
        }
        let attributes: Vec<(String, Attribute)> = step
            .attributes()
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .collect();
        let blocks: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
        let content = Content {
            layout: &layout,
            blocks: &blocks,
            attributes: &attributes,
        };
        store.write(step.number(), &[content])?;
        Ok(blocks.iter().map(|block| block.len()).sum())
    }

    /// Reads a box into dense bytes.
    fn bytes<T: Element>(step: &StepReader, name: &str, region: &Region) -> Result<Vec<u8>> {
        let array = step.get::<T, IxDyn>(name, region)?;
        let elements = array
            .as_slice()
            .context("the array is not in row-major order")?;
        Ok(bytemuck::cast_slice(elements).to_vec())
    }

    pub(crate) fn replay(fabric: &Fabric, args: &ReplayArgs) -> Result<()> {
        let stage = Stage::join(fabric)?;
        let store = Zarr::open(&args.folder)?;
        let own = fabric.identity();
        let part = (own.rank.into(), own.size.into());
        let mut writer = stage.writer(&args.stream)?;
        // An array of a foreign store becomes the only variable of one step.
        if let Some(path) = &args.array {
            let array = store.array(path)?;
            let name = path.rsplit('/').next().unwrap_or(path);
            let mut step = writer.step()?;
            put(&mut step, name, &array, part)?;
            step.commit()?;
            return Ok(writer.close()?);
        }
        let steps = store.steps()?;
        anyhow::ensure!(
            !steps.is_empty(),
            "{} has no steps: name one of its arrays with --array",
            args.folder.display()
        );
        for number in steps {
            let mut step = writer.step()?;
            for name in store.names(number)? {
                put(&mut step, &name, &store.variable(number, &name)?, part)?;
            }
            for (name, value) in store.attributes(number)? {
                step.attribute(&name, value);
            }
            step.commit()
                .with_context(|| format!("step {number} of {}", args.folder.display()))?;
        }
        Ok(writer.close()?)
    }

    /// Puts this unit's rows of an array.
    fn put(
        step: &mut StepWriter<'_>,
        name: &str,
        array: &ZarrArray,
        (rank, size): (u64, u64),
    ) -> Result<()> {
        let shape = array.shape();
        let rows = Grid::along(&shape, 0, size)?.part(rank);
        if rows.is_empty() {
            return Ok(());
        }
        let extent: Vec<usize> = rows.shape().iter().map(|extent| *extent as usize).collect();
        for_dtype!(array.dtype(), T => {
            let values = array.read::<T>(&rows)?;
            let view = ArrayViewD::from_shape(IxDyn(&extent), &values)?;
            step.put(name, &shape[..], rows.lower(), view)?;
        });
        Ok(())
    }
}
