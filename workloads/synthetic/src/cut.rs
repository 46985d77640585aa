//! Which writer writes which part, and which reader requests which boxes.

use clap::ValueEnum;
use samite::stage::Region;
use samite::stage::space::Grid;

use crate::Error;

/// Random boxes that a reader requests in a step.
const BOXES: usize = 4;

/// How the writers share the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cut {
    /// Along the slowest dimension.
    Rows,
    /// Along the second dimension.
    Second,
    /// Along the fastest dimension.
    Columns,
    /// In all dimensions, as cubic as possible.
    Blocks,
}

impl Cut {
    /// Returns the part of a rank. It may be empty.
    ///
    /// # Errors
    /// An invalid shape.
    pub fn part(self, shape: &[u64], rank: u32, size: u32) -> Result<Region, Error> {
        let (last, size) = (shape.len().saturating_sub(1), u64::from(size));
        let grid = match self {
            Cut::Rows => Grid::along(shape, 0, size),
            Cut::Second => Grid::along(shape, last.min(1), size),
            Cut::Columns => Grid::along(shape, last, size),
            Cut::Blocks => Grid::cubic(shape, size),
        };
        Ok(grid?.part(rank.into()))
    }
}

/// The access pattern of the readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pattern {
    /// Rows of the slowest dimension: all readers together read everything.
    Rows,
    /// Parts along the second dimension: everything.
    Second,
    /// Columns of the fastest dimension: everything.
    Columns,
    /// Blocks: everything.
    Blocks,
    /// Columns, which become rows: everything.
    Transpose,
    /// Four boxes at random positions, at most a quarter of each dimension.
    Boxes,
    /// One hundredth of the columns, different ones in each step.
    Percent,
}

impl Pattern {
    /// Returns the boxes that a rank requests in a step; none is empty.
    ///
    /// # Errors
    /// An invalid shape.
    pub fn boxes(
        self,
        shape: &[u64],
        (rank, size): (u32, u32),
        step: u64,
    ) -> Result<Vec<Region>, Error> {
        let boxes = match self {
            Pattern::Rows => vec![Cut::Rows.part(shape, rank, size)?],
            Pattern::Second => vec![Cut::Second.part(shape, rank, size)?],
            Pattern::Columns | Pattern::Transpose => vec![Cut::Columns.part(shape, rank, size)?],
            Pattern::Blocks => vec![Cut::Blocks.part(shape, rank, size)?],
            Pattern::Boxes => {
                let mut random = fastrand::Rng::with_seed(step << 32 | u64::from(rank));
                let boxes = (0..BOXES).map(|_| random_box(shape, &mut random));
                boxes.collect::<Result<_, Error>>()?
            }
            Pattern::Percent => {
                let mut whole = Region::whole(shape)?;
                // The columns move on with each step and rank.
                if let Some(columns) = shape.last().filter(|columns| **columns > 0) {
                    let width = (columns / 100).max(1);
                    let turn = step * u64::from(size) + u64::from(rank);
                    let (mut lower, mut upper) = (vec![0; shape.len()], shape.to_vec());
                    let last = shape.len() - 1;
                    lower[last] = turn * width % (columns - width + 1);
                    upper[last] = lower[last] + width;
                    whole = Region::new(&lower, &upper)?;
                }
                vec![whole]
            }
        };
        Ok(boxes.into_iter().filter(|one| !one.is_empty()).collect())
    }
}

fn random_box(shape: &[u64], random: &mut fastrand::Rng) -> Result<Region, Error> {
    let mut extent = |most: &u64| random.u64(1..=(most / 4).max(1)).min(*most);
    let extents: Vec<u64> = shape.iter().map(&mut extent).collect();
    let starts = shape.iter().zip(&extents);
    let starts: Vec<u64> = starts
        .map(|(most, extent)| random.u64(0..=most - extent))
        .collect();
    Ok(Region::at(&starts, &extents)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite::stage::space::{first_hole, first_overlap};

    #[test]
    fn cuts_and_patterns_of_everything_cover_it_once() {
        let shape = [13, 7, 10];
        let whole = Region::whole(&shape).unwrap();
        for ranks in [1, 2, 3, 5, 16] {
            let cut = |cut: Cut| (0..ranks).map(move |rank| cut.part(&shape, rank, ranks).unwrap());
            let asked = |pattern: Pattern| {
                (0..ranks).flat_map(move |rank| pattern.boxes(&shape, (rank, ranks), 9).unwrap())
            };
            let all: [Vec<Region>; 6] = [
                cut(Cut::Rows).collect(),
                cut(Cut::Columns).collect(),
                asked(Pattern::Second).collect(),
                cut(Cut::Blocks).collect(),
                asked(Pattern::Transpose).collect(),
                asked(Pattern::Blocks).collect(),
            ];
            for parts in all {
                let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
                assert_eq!(first_overlap(&parts), None, "{parts:?}");
                assert_eq!(first_hole(&whole, &parts), None, "{parts:?}");
            }
        }
    }

    #[test]
    fn random_boxes_and_columns_lie_inside() {
        for shape in [vec![1], vec![3, 1000], vec![40, 1, 9]] {
            let whole = Region::whole(&shape).unwrap();
            for step in 0..50 {
                for pattern in [Pattern::Boxes, Pattern::Percent] {
                    let boxes = pattern.boxes(&shape, (1, 3), step).unwrap();
                    assert!(boxes.iter().all(|one| whole.contains(one)), "{boxes:?}");
                    assert_eq!(
                        boxes.len(),
                        if pattern == Pattern::Boxes { BOXES } else { 1 }
                    );
                }
            }
        }
        let columns = Pattern::Percent.boxes(&[3, 1000], (1, 3), 2).unwrap();
        assert_eq!(columns[0].shape()[..], [3, 10]);
        assert_eq!(Pattern::Percent.boxes(&[0, 5], (0, 1), 0).unwrap(), []);
    }
}
