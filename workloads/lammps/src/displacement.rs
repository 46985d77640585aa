//! Mean square displacement: how far the atoms have moved from their initial positions.
//!
//! MSD(t) = 1/N sum over atoms i of |r_i(t) - r_i(0)|^2, with unwrapped positions, and atoms
//! matched by their id: as computed by LAMMPS' `compute msd` (`src/compute_msd.cpp` there; without
//! its options). Any subset of the atoms gives a [`Displacement`], and subsets merge, so that
//! readers may share the atoms of a step.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// The initial positions of all atoms.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    /// By id of the atom, from 1 on.
    positions: Vec<[f64; 3]>,
}

impl Origin {
    /// Returns the positions of all atoms, with ids from 1 to their number, in any order; positions
    /// are unwrapped.
    ///
    /// # Errors
    /// Other ids, an id that occurs twice, or different numbers of positions and ids.
    pub fn new(ids: &[i32], positions: impl ExactSizeIterator<Item = [f64; 3]>) -> Result<Self> {
        let unknown = [f64::NAN; 3];
        let mut origin = Origin {
            positions: vec![unknown; ids.len()],
        };
        let mut is_known = vec![false; ids.len()];
        for (id, position) in pairs(ids, positions)? {
            let index = origin.index(id)?;
            if std::mem::replace(&mut is_known[index], true) {
                return Err(Error::Twice(id.into()));
            }
            origin.positions[index] = position;
        }
        Ok(origin)
    }

    /// Returns the number of atoms.
    pub fn atoms(&self) -> usize {
        self.positions.len()
    }

    /// Returns how far these atoms, all or some of them, have moved.
    ///
    /// # Errors
    /// An atom that did not exist at the start, or different numbers of positions and ids.
    pub fn displacement(
        &self,
        ids: &[i32],
        positions: impl ExactSizeIterator<Item = [f64; 3]>,
    ) -> Result<Displacement> {
        let mut sum = Displacement::default();
        for (id, position) in pairs(ids, positions)? {
            let origin = self.positions[self.index(id)?];
            for ((sum, here), there) in sum.squares.iter_mut().zip(position).zip(origin) {
                *sum += (here - there) * (here - there);
            }
            sum.atoms += 1;
        }
        Ok(sum)
    }

    fn index(&self, id: i32) -> Result<usize> {
        let index = usize::try_from(i64::from(id) - 1).ok();
        let unknown = Error::Atom {
            id: id.into(),
            atoms: self.atoms(),
        };
        index.filter(|&index| index < self.atoms()).ok_or(unknown)
    }
}

fn pairs<P: ExactSizeIterator<Item = [f64; 3]>>(
    ids: &[i32],
    positions: P,
) -> Result<impl Iterator<Item = (i32, [f64; 3])>> {
    if ids.len() != positions.len() {
        let (ids, positions) = (ids.len(), positions.len());
        return Err(Error::Lengths { ids, positions });
    }
    Ok(ids.iter().copied().zip(positions))
}

/// The summed squares of the distances of some atoms; mergeable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Displacement {
    /// Number of atoms.
    pub atoms: u64,
    /// Sum of the squares in each direction.
    pub squares: [f64; 3],
}

impl Displacement {
    /// Merges the displacements of two disjoint sets of atoms.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        Displacement {
            atoms: self.atoms + other.atoms,
            squares: std::array::from_fn(|d| self.squares[d] + other.squares[d]),
        }
    }

    /// Returns their mean; zeros without atoms.
    pub fn mean(&self) -> MeanSquare {
        let atoms = self.atoms.max(1) as f64;
        let along = self.squares.map(|sum| sum / atoms);
        MeanSquare {
            along,
            total: along.iter().sum(),
        }
    }
}

/// The four numbers of LAMMPS' `compute msd`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeanSquare {
    /// In each direction.
    pub along: [f64; 3],
    /// Of the distance.
    pub total: f64,
}

/// Returns the sum that the study's analysis computes instead of displacements: the squares of the
/// wrapped positions, unmatched and not normalised. Only for comparable timing.
pub fn study_sum(positions: &[[f64; 3]]) -> f64 {
    let squares = |position: &[f64; 3]| position.iter().map(|x| x * x).sum::<f64>();
    positions.iter().map(squares).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns atoms that moved by different vectors, in a shuffled order.
    fn moved(count: i32, seed: u64) -> (Vec<i32>, Vec<[f64; 3]>, [f64; 3]) {
        let mut ids: Vec<i32> = (1..=count).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut ids);
        let step = |id: i32| [f64::from(id), -2.0, 0.5 * f64::from(id % 7)];
        let there = |id: i32| {
            let from = start(id);
            std::array::from_fn(|d| from[d] + step(id)[d])
        };
        let positions = ids.iter().map(|&id| there(id)).collect();
        let squares = (1..=count).fold([0.0; 3], |sum: [f64; 3], id| {
            std::array::from_fn(|d| sum[d] + step(id)[d].powi(2))
        });
        (ids, positions, squares)
    }

    fn start(id: i32) -> [f64; 3] {
        [f64::from(id * 3), f64::from(-id), f64::from(id * id)]
    }

    fn origin(count: i32) -> Origin {
        let ids: Vec<i32> = (1..=count).rev().collect();
        Origin::new(&ids, ids.iter().map(|&id| start(id))).unwrap()
    }

    #[test]
    fn atoms_are_matched_by_their_number() {
        let (ids, positions, squares) = moved(100, 1);
        let sum = origin(100)
            .displacement(&ids, positions.into_iter())
            .unwrap();
        assert_eq!((sum.atoms, sum.squares), (100, squares));
        let mean = sum.mean();
        assert_eq!(mean.along, squares.map(|sum| sum / 100.0));
        assert_eq!(mean.total, mean.along.iter().sum::<f64>());
    }

    #[test]
    fn parts_merge_to_the_whole() {
        let (ids, positions, squares) = moved(100, 2);
        let origin = origin(100);
        let part = |from: usize, to: usize| {
            origin
                .displacement(&ids[from..to], positions[from..to].iter().copied())
                .unwrap()
        };
        let whole = part(0, 33).merge(part(33, 33)).merge(part(33, 100));
        // Halves and small integers: their squares are exact, in any order.
        assert_eq!((whole.atoms, whole.squares), (100, squares));
        assert_eq!(Displacement::default().mean().total, 0.0);
    }

    #[test]
    fn strangers_doubles_and_lost_positions_are_named() {
        let two = || [[0.0; 3]; 2].into_iter();
        let stranger = |id: i64| Error::Atom { id, atoms: 2 };
        assert_eq!(Origin::new(&[1, 3], two()), Err(stranger(3)));
        assert_eq!(Origin::new(&[0, 1], two()), Err(stranger(0)));
        assert_eq!(Origin::new(&[2, 2], two()), Err(Error::Twice(2)));
        let lengths = Error::Lengths {
            ids: 1,
            positions: 2,
        };
        assert_eq!(Origin::new(&[1], two()), Err(lengths));
        let origin = Origin::new(&[2, 1], two()).unwrap();
        assert_eq!(
            origin.displacement(&[1, i32::MIN], two()),
            Err(stranger(i32::MIN.into()))
        );
    }

    #[test]
    fn the_study_sums_positions() {
        assert_eq!(study_sum(&[[1.0, 2.0, 3.0], [0.0, -4.0, 0.5]]), 30.25);
    }
}
