//! The atoms of one step.

use crate::error::{Error, Result};
use crate::ffi::Running;

/// The atoms of LAMMPS at one step, in its own memory and its own order. Nothing is copied.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// Steps since the simulation began.
    pub step: u64,
    /// Id of each atom, from 1 on.
    pub ids: &'a [i32],
    /// Position of each atom; it may be slightly outside the box until LAMMPS sorts its atoms
    /// again.
    pub positions: &'a [[f64; 3]],
    /// How often each atom crossed the periodic box, packed as in LAMMPS: [`Cell::image`].
    pub images: &'a [i32],
    /// The box.
    pub cell: Cell,
    pub(crate) running: &'a Running,
}

impl<'a> Snapshot<'a> {
    /// Returns the positions that the atoms would have without the periodic box, in the order of
    /// [`ids`](Self::ids).
    pub fn unwrapped(&self) -> impl ExactSizeIterator<Item = [f64; 3]> + use<'a> {
        let (cell, images) = (self.cell, self.images);
        let each = move |(position, image): (&[f64; 3], &i32)| cell.unwrap(*position, *image);
        self.positions.iter().zip(images).map(each)
    }

    /// Returns the value of a global vector compute of LAMMPS, such as `compute msd`, at this step.
    ///
    /// # Errors
    /// No compute has that name, or it has no vector.
    pub fn compute(&self, name: &str) -> Result<Vec<f64>> {
        self.running.compute(name)
    }
}

/// A periodic box with sides at right angles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// Its lower corner.
    pub lower: [f64; 3],
    /// Its upper corner.
    pub upper: [f64; 3],
}

/// Bits of one direction in an image, and the number that stands for zero crossings.
const IMAGE_BITS: u32 = 10;
const NO_ROUND: i32 = 1 << (IMAGE_BITS - 1);

impl Cell {
    pub(crate) fn new(lower: [f64; 3], upper: [f64; 3], tilt: [f64; 3]) -> Result<Self> {
        if tilt != [0.0; 3] {
            return Err(Error::Tilted);
        }
        Ok(Cell { lower, upper })
    }

    /// Returns how often an atom crossed the box in each direction.
    pub fn image(image: i32) -> [i32; 3] {
        let mask = (1 << IMAGE_BITS) - 1;
        [0, 1, 2].map(|dimension| ((image >> (dimension * IMAGE_BITS)) & mask) - NO_ROUND)
    }

    /// Returns the position without the periodic box.
    pub fn unwrap(&self, position: [f64; 3], image: i32) -> [f64; 3] {
        let rounds = Self::image(image);
        std::array::from_fn(|d| {
            position[d] + f64::from(rounds[d]) * (self.upper[d] - self.lower[d])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(rounds: [i32; 3]) -> i32 {
        (0..3).fold(0, |image, d| {
            image | (((rounds[d] + NO_ROUND) & 1023) << (d as u32 * IMAGE_BITS))
        })
    }

    #[test]
    fn images_are_unpacked_with_their_signs() {
        for rounds in [[0, 0, 0], [1, -1, 2], [-512, 511, 0], [511, -512, -3]] {
            assert_eq!(Cell::image(packed(rounds)), rounds);
        }
        // LAMMPS' own start value: 512 in each direction.
        assert_eq!(Cell::image(0x2008_0200), [0, 0, 0]);
    }

    #[test]
    fn a_round_is_the_length_of_the_box() {
        let cell = Cell::new([-1.0, 0.0, 2.0], [1.0, 10.0, 7.0], [0.0; 3]).unwrap();
        let there = cell.unwrap([0.5, 1.0, 3.0], packed([-2, 1, 3]));
        assert_eq!(there, [-3.5, 11.0, 18.0]);
        assert_eq!(
            Cell::new([0.0; 3], [1.0; 3], [0.0, 0.1, 0.0]),
            Err(Error::Tilted)
        );
    }
}
