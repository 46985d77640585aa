//! The layout of a writer rank's part of a step, its hash, and where its blocks lie.
//!
//! A layout is sent once, and then its hash is: a steady step costs a few words per rank, however
//! many blocks it has. So the position of a block must follow from the layout: the *packing rule*
//! puts the blocks of a slot one after another, in the order of the layout, each at a multiple of
//! [`ALIGN`] bytes.

use super::Fault;
use crate::space::{Dims, MAX_DIMS, overlap_within};
use crate::{Dtype, Region};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// Alignment of blocks in their buffer: two cache lines, so that no two blocks share one.
pub const ALIGN: u64 = 128;

/// How many looks the search for overlaps may take for each block of a variable, on average, and
/// how many for a few blocks in any case. The search must not take much longer than the message
/// did, since a single thread decides about all streams. The blocks of a grid take 10 to 25 looks
/// for each of their dimensions.
const LOOKS: u64 = 256;
const LEAST_LOOKS: u64 = 1 << 20;

/// Identifies a layout: equal layouts have equal hashes on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LayoutHash(pub u128);

/// An attribute of a step or a variable.
///
/// ```
/// # use samite_fabric::{Config, Fabric, Identity};
/// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
/// use samite_stage::{Attribute, Stage};
/// let stage = Stage::join(&fabric)?;
/// let mut writer = stage.write("field").as_rank("writer", 0, 1).open()?;
/// let mut step = writer.step()?;
/// step.attribute("unit", Attribute::Text("K".into()));
/// step.attribute("origin", Attribute::Reals(vec![0.0, 0.5]));
/// step.commit()?;
/// writer.close()?;
///
/// let mut reader = stage.read("field").as_rank("reader", 0, 1).open()?;
/// let step = reader.next_step()?.expect("one was written");
/// if let Some(Attribute::Text(unit)) = step.attribute("unit") {
///     assert_eq!(unit, "K");
/// }
/// # Ok::<(), samite_stage::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Attribute {
    Text(String),
    Integer(i64),
    Real(f64),
    Integers(#[serde(deserialize_with = "super::decode::list")] Vec<i64>),
    Reals(Vec<f64>),
}

/// A box of a variable that one rank has written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// The box.
    pub region: Region,
    /// The slot of the part that contains its bytes.
    pub slot: u32,
}

/// A variable as one rank has written it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Shape of the whole array; the same at all ranks.
    #[serde(deserialize_with = "super::decode::few")]
    pub shape: Dims,
    /// Its attributes.
    #[serde(deserialize_with = "super::decode::list")]
    pub attributes: Vec<(String, Attribute)>,
    /// The boxes that the rank has written; none is empty.
    #[serde(deserialize_with = "super::decode::list")]
    pub blocks: Vec<Block>,
}

/// Everything that one rank has written to a step, without the bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Layout {
    /// The variables; their names are unique.
    #[serde(deserialize_with = "super::decode::list")]
    pub variables: Vec<Variable>,
}

/// Where the packing rule puts the blocks of a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Offset of each block in the buffer of its slot, variable by variable.
    pub offsets: Vec<u64>,
    /// Bytes that each slot needs; multiples of [`ALIGN`].
    pub slots: Vec<u64>,
}

impl Layout {
    /// Returns its hash.
    pub fn hash(&self) -> LayoutHash {
        self.hash_and_length().0
    }

    /// Returns its hash, and its length in a message in bytes.
    pub(super) fn hash_and_length(&self) -> (LayoutHash, u64) {
        let encoded = super::encode(self);
        let hash = LayoutHash(xxhash_rust::xxh3::xxh3_128(&encoded));
        (hash, encoded.len() as u64)
    }

    /// Returns the number of blocks of all variables.
    pub fn blocks(&self) -> usize {
        self.variables.iter().map(|v| v.blocks.len()).sum()
    }

    /// Returns the bytes of all blocks; saturates at 64 bits.
    pub fn bytes(&self) -> u64 {
        let blocks = |v: &Variable| {
            let element = v.dtype.bytes();
            let bytes = v.blocks.iter().map(|block| block.region.bytes(element));
            bytes.fold(0u64, |sum, bytes| {
                sum.saturating_add(bytes.unwrap_or(u64::MAX))
            })
        };
        let variables = self.variables.iter().map(blocks);
        variables.fold(0, u64::saturating_add)
    }

    /// Returns the number of slots that its blocks name.
    pub fn slots(&self) -> usize {
        let blocks = self.variables.iter().flat_map(|v| &v.blocks);
        blocks
            .map(|block| block.slot as usize + 1)
            .max()
            .unwrap_or(0)
    }

    /// Returns the positions of its blocks by the packing rule.
    ///
    /// # Errors
    /// A block or a slot whose size exceeds 64 bits.
    pub fn packing(&self) -> Result<Packing, Fault> {
        let mut slots = vec![0u64; self.slots()];
        let mut offsets = Vec::with_capacity(self.blocks());
        for variable in &self.variables {
            for block in &variable.blocks {
                let uncountable = || Fault::Uncountable {
                    variable: variable.name.clone(),
                    block: Box::new(block.region.clone()),
                };
                let bytes = block
                    .region
                    .bytes(variable.dtype.bytes())
                    .map_err(|_| uncountable())?;
                let end = &mut slots[block.slot as usize];
                offsets.push(*end);
                *end = end
                    .checked_add(bytes)
                    .and_then(|end| end.checked_next_multiple_of(ALIGN))
                    .ok_or_else(uncountable)?;
            }
        }
        Ok(Packing { offsets, slots })
    }

    /// Checks that it can be part of a step, sent by rank `rank`.
    ///
    /// # Errors
    /// A variable that occurs twice, or has more than [`MAX_DIMS`] dimensions; a block with another
    /// number of dimensions than its array, or outside it; too many bytes.
    pub fn check(&self, rank: u32) -> Result<(), Fault> {
        let mut names = HashSet::new();
        for variable in &self.variables {
            if !names.insert(variable.name.as_str()) {
                return Err(Fault::VariableTwice {
                    rank,
                    variable: variable.name.clone(),
                });
            }
            variable.check_shape()?;
            for block in &variable.blocks {
                variable.check(rank, &block.region)?;
            }
        }
        Ok(())
    }
}

/// Checks that no two blocks of a variable overlap; `rank` returns the rank of each.
///
/// # Errors
/// The first overlap; so many blocks in each other's way that looking for one takes too long.
pub(crate) fn check_disjoint(
    variable: &str,
    blocks: &[Region],
    rank: impl Fn(usize) -> u32,
) -> Result<(), Fault> {
    let most = LOOKS * blocks.len() as u64 + LEAST_LOOKS;
    let found = overlap_within(blocks, most).map_err(|_| Fault::Entangled {
        variable: variable.to_owned(),
        blocks: blocks.len() as u64,
    })?;
    match found {
        None => Ok(()),
        Some((one, other)) => Err(Fault::Overlap {
            variable: variable.to_owned(),
            one: rank(one),
            one_block: Box::new(blocks[one].clone()),
            other: rank(other),
            other_block: Box::new(blocks[other].clone()),
        }),
    }
}

impl Variable {
    /// Readers and subscribers get the shape of a variable even if it has no blocks, so it is
    /// checked.
    fn check_shape(&self) -> Result<(), Fault> {
        let dims = self.shape.len();
        match dims <= MAX_DIMS {
            true => Ok(()),
            false => Err(Fault::TooManyDimensions {
                variable: self.name.clone(),
                dims: dims as u64,
                most: MAX_DIMS as u64,
            }),
        }
    }

    fn check(&self, rank: u32, block: &Region) -> Result<(), Fault> {
        if block.dims() != self.shape.len() {
            return Err(Fault::BlockDimensions {
                variable: self.name.clone(),
                block: Box::new(block.clone()),
                dims: block.dims() as u64,
                shape: self.shape.len() as u64,
            });
        }
        let inside = block.upper().iter().zip(&self.shape).all(|(u, s)| u <= s);
        if !inside {
            return Err(Fault::OutsideArray {
                variable: self.name.clone(),
                rank,
                block: Box::new(block.clone()),
                shape: self.shape.to_vec(),
            });
        }
        match block.bytes(self.dtype.bytes()) {
            Ok(_) => Ok(()),
            Err(_) => Err(Fault::Uncountable {
                variable: self.name.clone(),
                block: Box::new(block.clone()),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(lower: &[u64], upper: &[u64], slot: u32) -> Block {
        Block {
            region: Region::new(lower, upper).unwrap(),
            slot,
        }
    }

    fn variable(name: &str, dtype: Dtype, shape: &[u64], blocks: Vec<Block>) -> Variable {
        Variable {
            name: name.into(),
            dtype,
            shape: Dims::from_slice(shape),
            attributes: vec![("unit".into(), Attribute::Text("K".into()))],
            blocks,
        }
    }

    #[test]
    fn blocks_lie_one_after_another_in_their_slots() {
        let layout = Layout {
            variables: vec![
                variable(
                    "a",
                    Dtype::F64,
                    &[10, 10],
                    vec![
                        block(&[0, 0], &[1, 10], 0), // 80 bytes
                        block(&[1, 0], &[5, 10], 1), // 320
                        block(&[5, 0], &[6, 10], 0), // 80
                    ],
                ),
                variable("b", Dtype::I8, &[128], vec![block(&[0], &[128], 0)]),
                variable("c", Dtype::I8, &[9], vec![block(&[0], &[9], 0)]),
            ],
        };
        let packing = layout.packing().unwrap();
        assert_eq!(packing.offsets, [0, 0, 128, 256, 384]);
        assert_eq!(packing.slots, [512, 384]);
        assert_eq!(layout.check(0), Ok(()));
    }

    #[test]
    fn the_hash_names_every_part_of_a_layout() {
        let one = Layout {
            variables: vec![variable("a", Dtype::F64, &[8], vec![block(&[0], &[4], 0)])],
        };
        let mut others = vec![one.clone(); 5];
        others[0].variables[0].name = "b".into();
        others[1].variables[0].dtype = Dtype::I64;
        others[2].variables[0].shape[0] = 9;
        others[3].variables[0].blocks[0].slot = 1;
        others[4].variables[0].blocks[0] = block(&[0], &[5], 0);
        assert_eq!(one.hash(), one.clone().hash());
        for other in &others {
            assert_ne!(one.hash(), other.hash(), "{other:?}");
        }
        let there: Layout = super::super::decode(&super::super::encode(&one)).unwrap();
        assert_eq!(there, one);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let with = |variables| Layout { variables };
        let a = || variable("a", Dtype::F64, &[8], vec![block(&[0], &[4], 0)]);
        assert!(matches!(
            with(vec![a(), a()]).check(3),
            Err(Fault::VariableTwice { rank: 3, .. })
        ));
        let outside = variable("a", Dtype::F64, &[8], vec![block(&[0], &[9], 0)]);
        let said = with(vec![outside]).check(3).unwrap_err().to_string();
        assert_eq!(
            said,
            "block [0..9] of a of rank 3 is outside the array, whose shape is [8]"
        );
        let dims = variable("a", Dtype::F64, &[8, 1], vec![block(&[0], &[8], 0)]);
        assert!(matches!(
            with(vec![dims]).check(0),
            Err(Fault::BlockDimensions { .. })
        ));
        let huge = [1 << 40, 1 << 40];
        let huge = variable("a", Dtype::F64, &huge, vec![block(&[0, 0], &huge, 0)]);
        assert!(matches!(
            with(vec![huge.clone()]).check(0),
            Err(Fault::Uncountable { .. })
        ));
        assert!(with(vec![huge]).packing().is_err());
    }
}
