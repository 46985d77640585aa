//! Do the parts of the ranks fit together: one type and shape per variable, no two blocks on the
//! same points.
//!
//! What was checked once is not checked again: while every rank commits the layout of the last
//! whole step, a commit costs a comparison of hashes.

use super::store::Part;
use crate::protocol::{Fault, Layout, LayoutHash};
use crate::space::{Dims, first_overlap};
use crate::{Dtype, Region};
use std::collections::{BTreeMap, HashMap};

/// Variables as the first rank to name each has said they are.
type Schema = HashMap<String, (u32, Dtype, Dims)>;

/// What is known to fit together.
#[derive(Debug, Default)]
pub(super) struct Checker {
    /// Layouts of all ranks in the last whole step.
    valid: Vec<LayoutHash>,
    /// Of the open step, once a layout comes that is not the rank's valid one.
    schema: Option<Schema>,
}

impl Checker {
    /// A rank's part comes in; `there` are those that are there already.
    pub(super) fn enter(
        &mut self,
        rank: u32,
        hash: LayoutHash,
        layout: &Layout,
        there: &[Option<Part>],
    ) -> Result<(), Fault> {
        if self.schema.is_none() && self.valid.get(rank as usize) == Some(&hash) {
            return Ok(());
        }
        let mut schema = self.schema.take().unwrap_or_else(|| {
            let mut schema = Schema::new();
            for (other, part) in there.iter().enumerate() {
                let layout = part.as_ref().map(|part| &part.layout);
                for variable in layout.into_iter().flat_map(|layout| &layout.variables) {
                    let said = (other as u32, variable.dtype, variable.shape.clone());
                    schema.entry(variable.name.clone()).or_insert(said);
                }
            }
            schema
        });
        let fits = compare(rank, layout, &schema);
        if fits.is_ok() {
            for variable in &layout.variables {
                let said = (rank, variable.dtype, variable.shape.clone());
                schema.entry(variable.name.clone()).or_insert(said);
            }
        }
        self.schema = Some(schema);
        fits
    }

    /// All parts are there: whether blocks overlap. On success the layouts are the valid ones from
    /// now on.
    pub(super) fn whole(&mut self, parts: &[(LayoutHash, &Layout)]) -> Result<(), Fault> {
        let hashes = || parts.iter().map(|(hash, _)| *hash);
        if self.schema.is_none() && hashes().eq(self.valid.iter().copied()) {
            return Ok(());
        }
        let mut blocks: BTreeMap<&str, (Vec<u32>, Vec<Region>)> = BTreeMap::new();
        for (rank, (_, layout)) in parts.iter().enumerate() {
            for variable in &layout.variables {
                let (ranks, regions) = blocks.entry(&variable.name).or_default();
                ranks.extend(variable.blocks.iter().map(|_| rank as u32));
                regions.extend(variable.blocks.iter().map(|block| block.region.clone()));
            }
        }
        for (variable, (ranks, regions)) in blocks {
            if let Some((one, other)) = first_overlap(&regions) {
                return Err(Fault::Overlap {
                    variable: variable.to_owned(),
                    one: ranks[one],
                    one_block: Box::new(regions[one].clone()),
                    other: ranks[other],
                    other_block: Box::new(regions[other].clone()),
                });
            }
        }
        self.valid = hashes().collect();
        self.schema = None;
        Ok(())
    }

    /// A part that had come in was refused after all: what it said of the variables does not count.
    pub(super) fn forget_open(&mut self) {
        // Built anew from the parts that are there; the valid layouts are compared again as well.
        self.schema = None;
        self.valid.clear();
    }
}

fn compare(rank: u32, layout: &Layout, schema: &Schema) -> Result<(), Fault> {
    for variable in &layout.variables {
        let Some((other, dtype, shape)) = schema.get(&variable.name) else {
            continue;
        };
        if *dtype != variable.dtype {
            return Err(Fault::DtypeDiffers {
                variable: variable.name.clone(),
                one: *other,
                one_dtype: *dtype,
                other: rank,
                other_dtype: variable.dtype,
            });
        }
        if *shape != variable.shape {
            return Err(Fault::ShapeDiffers {
                variable: variable.name.clone(),
                one: *other,
                one_shape: shape.to_vec(),
                other: rank,
                other_shape: variable.shape.to_vec(),
            });
        }
    }
    Ok(())
}
