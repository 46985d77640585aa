//! Which variables a step has, and which blocks: boxes, and an index of them. Built once, and used for as many steps as have that
//! layout.

use crate::index::Index;
use crate::protocol::{Attribute, Layout, LayoutHash, Step};
use crate::space::{Dims, first_hole};
use crate::{Dtype, Error, Region, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the writers say of their arrays; the same for many steps.
pub(crate) struct Contents {
    pub(crate) hash: LayoutHash,
    /// How many ranks have written it.
    pub(crate) ranks: u32,
    pub(crate) variables: Vec<Indexed>,
}

/// A variable of all ranks.
pub(crate) struct Indexed {
    pub(crate) info: Variable,
    pub(crate) index: Index,
    pub(crate) blocks: Vec<BlockAt>,
}

/// Whose block it is, and where.
pub(crate) struct BlockAt {
    pub(crate) region: Region,
    pub(crate) rank: u32,
    pub(crate) slot: u32,
    /// Its number among the blocks of its rank, by which its place is listed.
    pub(crate) number: usize,
    /// Its place by the packing rule.
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
    /// Facts about it.
    pub attributes: Vec<(String, Attribute)>,
}

impl Contents {
    /// Of the layouts of all writer ranks.
    pub(crate) fn new(hash: LayoutHash, layouts: &[Arc<Layout>]) -> Result<Contents> {
        let mut variables: Vec<(Variable, Vec<BlockAt>)> = Vec::new();
        let mut known: BTreeMap<&str, usize> = BTreeMap::new();
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

impl Indexed {
    pub(crate) fn new(info: Variable, blocks: Vec<BlockAt>) -> Result<Indexed> {
        let regions: Vec<Region> = blocks.iter().map(|block| block.region.clone()).collect();
        Ok(Indexed {
            info,
            index: Index::new(&regions)?,
            blocks,
        })
    }

    /// The error of a box that the blocks do not cover.
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
