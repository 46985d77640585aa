//! Checks that the parts of the ranks fit together: one type and shape per variable, and no
//! overlapping blocks.
//!
//! What was checked once is not checked again: while every rank commits the layout of the last
//! complete step, a commit costs a comparison of hashes.

use super::store::Part;
use crate::protocol::{Fault, Layout, LayoutHash, check_disjoint};
use crate::space::Dims;
use crate::{Dtype, Region};
use std::collections::{BTreeMap, HashMap};

/// Type and shape of each variable, from the first rank that named it.
type Schema = HashMap<String, (u32, Dtype, Dims)>;

/// What is known to fit together.
#[derive(Debug, Default)]
pub(super) struct Checker {
    /// Layouts of all ranks in the last complete step.
    valid: Vec<LayoutHash>,
    /// The schema of the open step, from the first layout that differs from the rank's valid one.
    schema: Option<Schema>,
}

impl Checker {
    /// Checks a new part of a rank against `there`, the parts committed so far.
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
        // The first new layout in this step: collect what the parts so far have said.
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

    /// Checks a complete step for overlapping blocks. On success its layouts become the valid ones.
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
            check_disjoint(variable, &regions, |at| ranks[at])?;
        }
        self.valid = hashes().collect();
        self.schema = None;
        Ok(())
    }

    /// Forgets the open step's schema: one of its parts was refused after all.
    pub(super) fn forget_open(&mut self) {
        // Rebuilt from the remaining parts; the valid layouts are compared again as well.
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
