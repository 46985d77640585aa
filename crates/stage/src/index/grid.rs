//! Blocks that are all combinations of some intervals per dimension.

use crate::Region;
use crate::space::Dims;
use std::ops::Range;

/// The intervals of each dimension, in order; they do not overlap, but may have gaps.
#[derive(Clone, Debug)]
pub(super) struct GridIndex {
    axes: Box<[Axis]>,
    /// Number of the block in each cell, row-major; empty if blocks are numbered like cells.
    order: Box<[u32]>,
}

#[derive(Clone, Debug)]
struct Axis {
    lower: Box<[u64]>,
    upper: Box<[u64]>,
}

impl Axis {
    /// Returns the intervals of the blocks in dimension `dim`; `None` if two of them overlap, or
    /// one is empty.
    fn of(blocks: &[Region], dim: usize) -> Option<Self> {
        let sides = blocks.iter().map(|b| (b.lower()[dim], b.upper()[dim]));
        let mut sides: Vec<(u64, u64)> = sides.collect();
        sides.sort_unstable();
        sides.dedup();
        let disjoint = sides.windows(2).all(|pair| pair[0].1 <= pair[1].0);
        if !disjoint || sides.iter().any(|(lower, upper)| lower == upper) {
            return None;
        }
        let (lower, upper): (Vec<u64>, Vec<u64>) = sides.into_iter().unzip();
        Some(Axis {
            lower: lower.into(),
            upper: upper.into(),
        })
    }

    /// Returns the intervals that share points with `from..to`.
    fn touched(&self, from: u64, to: u64) -> Range<usize> {
        let first = self.upper.partition_point(|&upper| upper <= from);
        let end = self.lower.partition_point(|&lower| lower < to);
        first..end.max(first)
    }
}

impl GridIndex {
    /// Returns the blocks as a grid, if they are one: as many blocks as cells, one in each.
    pub(super) fn recognise(blocks: &[Region], dims: usize) -> Option<Self> {
        if blocks.is_empty() {
            return None;
        }
        let axes: Box<[Axis]> = (0..dims)
            .map(|dim| Axis::of(blocks, dim))
            .collect::<Option<_>>()?;
        let cells = axes
            .iter()
            .try_fold(1usize, |cells, axis| cells.checked_mul(axis.lower.len()))?;
        if cells != blocks.len() {
            return None;
        }
        let mut order = vec![u32::MAX; cells];
        for (at, block) in blocks.iter().enumerate() {
            let cell = axes.iter().enumerate().fold(0, |cell, (dim, axis)| {
                let place = axis.lower.partition_point(|&l| l < block.lower()[dim]);
                cell * axis.lower.len() + place
            });
            if order[cell] != u32::MAX {
                return None; // two blocks in one cell
            }
            order[cell] = at as u32;
        }
        if order
            .iter()
            .enumerate()
            .all(|(cell, &at)| cell as u32 == at)
        {
            order.clear();
        }
        Some(GridIndex {
            axes,
            order: order.into(),
        })
    }

    pub(super) fn blocks(&self) -> usize {
        self.axes.iter().map(|axis| axis.lower.len()).product()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let axes = self
            .axes
            .iter()
            .map(|a| size_of::<Axis>() + 16 * a.lower.len());
        axes.sum::<usize>() + 4 * self.order.len()
    }

    pub(super) fn query(&self, asked: &Region) -> impl Iterator<Item = (u32, Region)> + '_ {
        // A box that cannot touch any block gets an empty range, and so no cells.
        let ranges: Vec<Range<usize>> = if asked.dims() == self.axes.len() && !asked.is_empty() {
            let sides = asked.lower().iter().zip(asked.upper());
            let sides = sides.zip(&self.axes);
            sides
                .map(|((&from, &to), axis)| axis.touched(from, to))
                .collect()
        } else {
            Vec::from([Range::default()])
        };
        let asked = asked.clone();
        let count = ranges.iter().map(Range::len).product::<usize>();
        (0..count).map(move |mut rest| {
            let (mut lower, mut upper) = (
                Dims::from_slice(asked.lower()),
                Dims::from_slice(asked.upper()),
            );
            // Decode the number of the touched cell, the fastest dimension first.
            let (mut cell, mut stride) = (0, 1);
            for (dim, axis) in self.axes.iter().enumerate().rev() {
                let place = ranges[dim].start + rest % ranges[dim].len();
                rest /= ranges[dim].len();
                cell += place * stride;
                stride *= axis.lower.len();
                lower[dim] = lower[dim].max(axis.lower[place]);
                upper[dim] = upper[dim].min(axis.upper[place]);
            }
            let block = self.order.get(cell).copied().unwrap_or(cell as u32);
            (
                block,
                Region::new(&lower, &upper).expect("the interval touches the box"),
            )
        })
    }
}
