//! Boxes of numbers whose type is known only at run time: the inputs and the results of operators.

use crate::array::{cut, lengths};
use crate::slots::zeroed_words;
use crate::space::Dims;
use crate::{Dtype, Element, Region, Result};
use ndarray::{ArrayViewD, ArrayViewMutD, IxDyn};

/// Type and shape of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Type of its elements.
    pub dtype: Dtype,
    /// Extents, the slowest first.
    pub shape: Dims,
}

/// A box for reading; it may be in the memory of the writer's node.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    dtype: Dtype,
    /// The box within the array.
    region: &'a Region,
    /// The box that `bytes` contains densely; it contains `region`.
    block: &'a Region,
    bytes: &'a [u8],
}

/// A box in the memory of this process, dense and row-major.
#[derive(Clone, Debug)]
pub struct Tile {
    dtype: Dtype,
    region: Region,
    bytes: usize,
    /// Words, so that every type is aligned.
    words: Vec<u64>,
}

impl<'a> Input<'a> {
    /// Returns the box `region` of `bytes`, which contains the box `block` densely.
    pub(crate) fn new(
        dtype: Dtype,
        region: &'a Region,
        block: &'a Region,
        bytes: &'a [u8],
    ) -> Self {
        Input {
            dtype,
            region,
            block,
            bytes,
        }
    }

    /// Returns the type of its elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns its box within the array.
    pub fn region(&self) -> &'a Region {
        self.region
    }

    /// Returns its numbers; `None` if they have another type.
    pub fn view<T: Element>(&self) -> Option<ArrayViewD<'a, T>> {
        if T::DTYPE != self.dtype {
            return None;
        }
        let extent = IxDyn(&lengths(&self.block.shape()));
        let whole = ArrayViewD::from_shape(extent, bytemuck::cast_slice(self.bytes)).ok()?;
        Some(cut(whole, self.block.lower(), self.region))
    }
}

impl Tile {
    /// Returns a box of zeros.
    ///
    /// # Errors
    /// Not enough memory.
    pub(crate) fn zeros(dtype: Dtype, region: Region) -> Result<Tile> {
        let bytes = region.bytes(dtype.bytes())?;
        let words = zeroed_words(bytes)?;
        Ok(Tile {
            dtype,
            region,
            bytes: bytes as usize,
            words,
        })
    }

    /// Returns the type of its elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns its box within the array.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns its numbers for writing; `None` if they have another type.
    pub fn view_mut<T: Element>(&mut self) -> Option<ArrayViewMutD<'_, T>> {
        if T::DTYPE != self.dtype {
            return None;
        }
        let extent = lengths(&self.region.shape());
        ArrayViewMutD::from_shape(IxDyn(&extent), bytemuck::cast_slice_mut(self.bytes_mut())).ok()
    }

    /// Returns it as the input of an operator.
    pub(crate) fn input(&self) -> Input<'_> {
        Input::new(self.dtype, &self.region, &self.region, self.bytes())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.bytes]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.bytes]
    }
}
