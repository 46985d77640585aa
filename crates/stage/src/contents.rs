//! The variables of a step, and their blocks: boxes, and an index of them. Built once, and used for
//! all steps with the same layout.

use crate::index::Index;
use crate::protocol::{
    Attribute, BlockOffsets, Interest, Layout, LayoutHash, PartRecord, Step, StepRecord,
};
use crate::space::{Dims, first_hole};
use crate::{Dtype, Error, Region, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the writers declare about their arrays; the same for many steps.
pub(crate) struct Contents {
    pub(crate) hash: LayoutHash,
    /// Number of ranks that wrote it.
    pub(crate) ranks: u32,
    pub(crate) variables: Vec<Indexed>,
}

/// A variable, with the blocks of all ranks.
pub(crate) struct Indexed {
    pub(crate) info: Variable,
    pub(crate) index: Index,
    pub(crate) blocks: Vec<BlockAt>,
}

/// The owner of a block, and its position.
pub(crate) struct BlockAt {
    pub(crate) region: Region,
    pub(crate) rank: u32,
    pub(crate) slot: u32,
    /// Its number among the blocks of its rank, which is its index in the list of offsets.
    pub(crate) number: usize,
    /// Its offset by the packing rule.
    pub(crate) packed: u64,
}

/// A variable of a step, as a reader sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Shape of the whole array.
    pub shape: Dims,
    /// Its attributes.
    pub attributes: Vec<(String, Attribute)>,
}

/// Numbers of blocks and buffers of each rank that a step with these layouts must have.
pub(crate) struct Counts(Vec<(usize, usize)>);

impl Counts {
    pub(crate) fn of(layouts: &[Arc<Layout>]) -> Counts {
        let count = |layout: &Arc<Layout>| {
            let blocks = layout.variables.iter().flat_map(|one| &one.blocks);
            let slots = blocks.clone().map(|block| block.slot as usize + 1);
            (blocks.count(), slots.max().unwrap_or(0))
        };
        Counts(layouts.iter().map(count).collect())
    }

    /// Checks that a step has as many parts as ranks, each with a buffer and an offset for every
    /// block.
    ///
    /// # Errors
    /// It does not: reading would access missing entries.
    pub(crate) fn check(&self, record: &StepRecord) -> Result<()> {
        let fits = |(part, &(blocks, slots)): (&PartRecord, &(usize, usize))| {
            let placed = match &part.places {
                BlockOffsets::Packed => blocks,
                BlockOffsets::Listed(offsets) => offsets.len(),
            };
            placed >= blocks && part.slots.len() >= slots
        };
        let mut pairs = record.parts.iter().zip(&self.0);
        match record.parts.len() == self.0.len() && pairs.all(fits) {
            true => Ok(()),
            false => Err(Error::Nonsense(format!(
                "a step {} whose parts are not those of its layout",
                record.step
            ))),
        }
    }
}

impl Contents {
    /// Returns the contents of an empty step.
    pub(crate) fn none() -> Contents {
        Contents {
            hash: LayoutHash(0),
            ranks: 0,
            variables: Vec::new(),
        }
    }

    /// Returns the contents of a step with the layouts of all writer ranks.
    pub(crate) fn new(hash: LayoutHash, layouts: &[Arc<Layout>]) -> Result<Contents> {
        let mut variables: Vec<(Variable, Vec<BlockAt>)> = Vec::new();
        let mut known: BTreeMap<&str, usize> = BTreeMap::new();
        // Group the blocks of all ranks by variable; the lowest rank that names one describes it.
        for (rank, layout) in (0..).zip(layouts) {
            let packing = layout.packing()?;
            let mut number = 0;
            for written in &layout.variables {
                let at = *known.entry(&written.name).or_insert_with(|| {
                    let info = Variable {
                        name: written.name.clone(),
                        dtype: written.dtype,
                        shape: written.shape.clone(),
                        attributes: written.attributes.clone(),
                    };
                    variables.push((info, Vec::new()));
                    variables.len() - 1
                });
                for block in &written.blocks {
                    variables[at].1.push(BlockAt {
                        region: block.region.clone(),
                        rank,
                        slot: block.slot,
                        number,
                        packed: packing.offsets[number],
                    });
                    number += 1;
                }
            }
        }
        let indexed = variables
            .into_iter()
            .map(|(info, blocks)| Indexed::new(info, blocks));
        Ok(Contents {
            hash,
            ranks: layouts.len() as u32,
            variables: indexed.collect::<Result<_>>()?,
        })
    }
}

impl Contents {
    /// Returns true if some of a box was written, or if it does not fit its variable, which the
    /// reader is to see.
    pub(crate) fn touches(&self, only: &Interest) -> bool {
        let mut variables = self.variables.iter();
        let variable = variables.find(|variable| variable.info.name == only.variable);
        variable.is_some_and(|variable| match &only.region {
            Some(region) => {
                let whole = Region::whole(&variable.info.shape);
                let fits = whole
                    .is_ok_and(|whole| whole.dims() == region.dims() && whole.contains(region));
                !fits || variable.index.query(region).next().is_some()
            }
            None => variable.index.blocks() > 0,
        })
    }
}

impl Indexed {
    pub(crate) fn new(info: Variable, blocks: Vec<BlockAt>) -> Result<Indexed> {
        let regions: Vec<Region> = blocks.iter().map(|block| block.region.clone()).collect();
        Ok(Indexed {
            info,
            index: Index::new(&regions)?,
            blocks,
        })
    }

    /// Returns true if the blocks cover a box.
    pub(crate) fn covers(&self, region: &Region) -> bool {
        let parts = self.index.query(region);
        let covered: u64 = parts.map(|(_, part)| part.volume().unwrap_or(0)).sum();
        Some(covered) == region.volume()
    }

    /// Returns the error for a box that the blocks do not cover.
    pub(crate) fn hole(&self, step: Step, region: &Region) -> Error {
        let parts: Vec<Region> = self.index.query(region).map(|(_, part)| part).collect();
        Error::Hole {
            step,
            variable: self.info.name.clone(),
            asked: region.clone(),
            hole: first_hole(region, &parts).unwrap_or_else(|| region.clone()),
        }
    }
}
