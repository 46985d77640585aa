//! Committing a step: what is sent and what is kept.

use super::StepWriter;
use crate::array::lengths;
use crate::last::WrittenStep;
use crate::method::graph::check_part;
use crate::protocol::{Attribute, BlockOffsets, Layout, LayoutRef, Part, encode};
use crate::slots::Finished;
use crate::staged::{Staged, own_slots};
use crate::writer::{Destination, Target};
use crate::{Error, Result};
use ndarray::{ArrayViewD, IxDyn};
use std::sync::Arc;

impl StepWriter<'_> {
    pub(super) fn finish(mut self, keep: bool) -> Result<()> {
        // It returns an error, or the step is committed.
        self.is_known = true;
        self.is_sound()?;
        let (edges, ranks) = &self.writer.promised;
        check_part(edges, self.number, &self.layout, *ranks)?;
        self.send_staged(keep)?;
        // The last step must not be read any more once the coordinator learns of the commit.
        self.last = None;
        let attributes = std::mem::take(&mut self.attributes);
        let layout = std::mem::take(&mut self.layout);
        let mut allocated = std::mem::take(&mut self.allocated);
        let keep = keep && !allocated.is_empty();
        // What this rank can read after the commit.
        let number = self.number;
        let kept = |stream: &str, blocks, slots| {
            keep.then(|| WrittenStep {
                stream: stream.to_owned(),
                number,
                blocks,
                slots,
            })
        };
        match (&mut self.writer.to, self.slots.take()) {
            (Target::BlockStores(block_stores), Some(slots)) => {
                let used = slots.used();
                let layout = without_empty(layout, &used);
                let Finished {
                    needs,
                    names,
                    memory,
                } = slots.finish()?;
                block_stores.remember(needs);
                let packed = layout.packing()?.offsets == self.offsets.concat();
                let part = Part {
                    step: self.number,
                    layout: LayoutRef::Same(layout.hash()),
                    slots: names,
                    places: match packed {
                        true => BlockOffsets::Packed,
                        false => BlockOffsets::Listed(self.offsets.concat().into()),
                    },
                    checksum: checksum(&attributes),
                    attributes,
                };
                let kept = match block_stores.place {
                    Destination::Near(_) => {
                        for block in &mut allocated {
                            block.slot = before(&used, block.slot as u32) as usize;
                        }
                        kept(&block_stores.stream, allocated, memory)
                    }
                    Destination::Servers { .. } => {
                        kept(&block_stores.stream, allocated, own_slots(&mut self.staged))
                    }
                };
                let hold = kept.as_ref().is_some_and(WrittenStep::needs_hold);
                block_stores.commit(part, layout, hold)?;
                self.writer.kept = kept.map(Arc::new);
            }
            (Target::Files(files), _) => {
                // In the order of the layout.
                self.staged.sort_by_key(|staged| staged.variable);
                let blocks: Vec<&[u8]> = self.staged.iter().map(Staged::bytes).collect();
                files.append(&layout, &blocks, &attributes)?;
                let kept = kept(&files.stream, allocated, own_slots(&mut self.staged));
                self.writer.kept = kept.map(Arc::new);
            }
            (Target::BlockStores(_), None) => return Err(Error::Nonsense("a step twice".into())),
        }
        self.done = true;
        Ok(())
    }

    /// Sends the blocks that were allocated here to the servers. Their memory is kept if `keep`.
    fn send_staged(&mut self, keep: bool) -> Result<()> {
        if self.slots.is_none() {
            return Ok(());
        }
        for staged in std::mem::take(&mut self.staged) {
            // As bytes: those of an element are one more dimension.
            let element = self.layout.variables[staged.variable].dtype.bytes();
            let mut extent = lengths(&staged.region.shape());
            extent.push(element as usize);
            let whole = ArrayViewD::from_shape(IxDyn(&extent), staged.bytes())
                .map_err(|error| Error::Nonsense(error.to_string()))?;
            self.scatter(staged.variable, staged.number, &staged.region, whole)?;
            if keep {
                self.staged.push(staged);
            }
        }
        Ok(())
    }
}

/// Renumbers the slots of a layout, without the empty ones.
fn without_empty(mut layout: Layout, used: &[bool]) -> Layout {
    for variable in &mut layout.variables {
        for block in &mut variable.blocks {
            block.slot = before(used, block.slot);
        }
    }
    layout
}

/// Returns the number of used slots before that one.
fn before(used: &[bool], slot: u32) -> u32 {
    used[..slot as usize].iter().filter(|used| **used).count() as u32
}

/// Returns a checksum of the attributes of a step. A step that is committed again after a restart
/// is considered the same if its layout and this checksum are: a hash of the blocks would read the
/// whole step again.
fn checksum(attributes: &[(String, Attribute)]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(&encode(&attributes))
}
