//! A packed R-tree: bulk-loaded by sort-tile-recursive, stored flat.

use crate::Region;

/// Children of a node.
const FAN: usize = 16;

/// The blocks in tiled order, the boxes around each [`FAN`] of them, around each [`FAN`] of those,
/// and so on.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    dims: usize,
    /// The block at each position of the tiled order.
    numbers: Box<[u32]>,
    /// Level 0: the blocks. Each box is `dims` lower corners, followed by `dims` upper ones.
    levels: Box<[Box<[u64]>]>,
}

impl Tree {
    pub(super) fn build(blocks: &[Region], dims: usize) -> Self {
        let mut numbers: Vec<u32> = (0..blocks.len() as u32).collect();
        tile(&mut numbers, blocks, 0, dims);
        let level: Vec<u64> = numbers
            .iter()
            .map(|&number| &blocks[number as usize])
            .flat_map(|block| block.lower().iter().chain(block.upper()).copied())
            .collect();
        let mut levels = vec![level.into_boxed_slice()];
        while let Some(below) = levels.last()
            && below.len() > 2 * dims * FAN
        {
            let above: Vec<u64> = below
                .chunks(2 * dims * FAN)
                .flat_map(|children| around(children, dims))
                .collect();
            levels.push(above.into());
        }
        Tree {
            dims,
            numbers: numbers.into(),
            levels: levels.into(),
        }
    }

    pub(super) fn blocks(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let levels = self
            .levels
            .iter()
            .map(|level| size_of_val(level) + 8 * level.len());
        levels.sum::<usize>() + 4 * self.numbers.len()
    }

    pub(super) fn query(&self, asked: &Region) -> impl Iterator<Item = (u32, Region)> + '_ {
        let top = self.levels.len() - 1;
        let roots = self.levels[top].len() / (2 * self.dims);
        let mut open = Vec::new();
        if asked.dims() == self.dims {
            open.extend((0..roots).rev().map(|place| (top, place)));
        }
        let asked = asked.clone();
        std::iter::from_fn(move || {
            while let Some((level, place)) = open.pop() {
                let corners = &self.levels[level][2 * self.dims * place..][..2 * self.dims];
                let (lower, upper) = corners.split_at(self.dims);
                if !meets(lower, upper, &asked) {
                    continue;
                }
                if level == 0 {
                    let block = Region::new(lower, upper).expect("it was a box");
                    return Some((self.numbers[place], block.intersection(&asked)?));
                }
                let below = self.levels[level - 1].len() / (2 * self.dims);
                let children = place * FAN..below.min((place + 1) * FAN);
                open.extend(children.rev().map(|child| (level - 1, child)));
            }
            None
        })
    }
}

fn meets(lower: &[u64], upper: &[u64], asked: &Region) -> bool {
    let sides = asked.lower().iter().zip(asked.upper());
    let mut sides = lower.iter().zip(upper).zip(sides);
    sides.all(|((&lower, &upper), (&from, &to))| lower.max(from) < upper.min(to))
}

/// Returns the smallest box around boxes. Empty blocks count too: a box that is slightly too large
/// is still correct.
fn around(boxes: &[u64], dims: usize) -> Vec<u64> {
    let mut around = boxes[..2 * dims].to_vec();
    for corners in boxes.chunks_exact(2 * dims) {
        for dim in 0..dims {
            around[dim] = around[dim].min(corners[dim]);
            around[dims + dim] = around[dims + dim].max(corners[dims + dim]);
        }
    }
    around
}

/// Orders the blocks so that [`FAN`] consecutive ones are close to one another: slabs along one
/// dimension, slabs of those along the next, and so on. Each slab is a whole number of nodes.
fn tile(numbers: &mut [u32], blocks: &[Region], dim: usize, dims: usize) {
    let middle = |&number: &u32| {
        let block = &blocks[number as usize];
        // Halves each corner first, so that the sum does not overflow.
        block.lower()[dim] / 2 + block.upper()[dim] / 2
    };
    numbers.sort_by_key(middle);
    if dim + 1 == dims || numbers.len() <= FAN {
        return;
    }
    let nodes = numbers.len().div_ceil(FAN);
    let slabs = (nodes as f64).powf(1.0 / (dims - dim) as f64).ceil() as usize;
    let slab = nodes.div_ceil(slabs) * FAN;
    for part in numbers.chunks_mut(slab) {
        tile(part, blocks, dim + 1, dims);
    }
}
