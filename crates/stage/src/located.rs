//! Where the bytes of a box lie: for code that goes to them, in the place of the bytes coming here.

use crate::array::Selection;
use crate::reader::Bytes;
use crate::step::StepReader;
use crate::step_buffers::{Runs, pieces};
use crate::{Dtype, Region, Result};
use samite_fabric::SegmentKey;

/// A part of a box, and where its bytes lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The part.
    pub region: Region,
    /// Its place; `None` if the part is in no memory that a segment names: on disk, in a file, or a
    /// result of an operator of the edge. Such a part is read ([`StepReader::read_into`]).
    pub place: Option<Place>,
}

/// Runs of bytes in a segment of a block store: row-major, all of the same length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The segment. It exists until the [`StepReader`] is dropped, or its process is lost. It may
    /// only be read.
    pub key: SegmentKey,
    /// Where the first run begins, in bytes.
    pub offset: u64,
    /// Length of a run, in bytes.
    pub run: u64,
    /// How often the runs are repeated, and how many bytes apart: the slowest dimension first.
    pub levels: Vec<(u64, u64)>,
}

impl StepReader {
    /// Returns where a box of a variable lies: in parts of at most `most` bytes (but at least one
    /// element), each inside one block, in the row-major order of each block. Together, the parts
    /// are the box. Also returns the type of its elements. Local.
    ///
    /// # Errors
    /// As [`StepReader::get`].
    pub fn locate(
        &self,
        name: &str,
        asked: impl Selection,
        most: u64,
    ) -> Result<(Dtype, Vec<Located>)> {
        let variable = self.find(name)?;
        let region = variable.part(asked)?;
        let dtype = variable.info.dtype;
        let element = dtype.bytes();
        let (None, Bytes::InStores(buffers, _)) = (variable.chain, &self.given.bytes) else {
            let parts = pieces(region, element, most)?.into_iter();
            let parts = parts.map(|region| Located {
                region,
                place: None,
            });
            return Ok((dtype, parts.collect()));
        };
        let mut located = Vec::new();
        for (block, part) in buffers.parts(variable.written, &region)? {
            let key = buffers.key(block);
            for region in pieces(part, element, most)? {
                let runs = Runs::of(&block.region, &region, element)?;
                let place = key.map(|(key, begin)| Place {
                    key,
                    offset: begin.saturating_add(runs.first),
                    run: runs.bytes,
                    levels: runs.levels,
                });
                located.push(Located { region, place });
            }
        }
        Ok((dtype, located))
    }
}
