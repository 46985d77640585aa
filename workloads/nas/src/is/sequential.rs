//! The ranking by one unit that has all keys: counts, then sums. The distributed one is compared
//! with it.

use super::problem::{PASSES, Problem};
use super::verify::FOLLOWED;

/// All keys and the counts of the last pass.
#[derive(Clone, Debug)]
pub struct Sequential {
    problem: Problem,
    keys: Vec<u32>,
    /// For each value, how many keys are smaller.
    smaller: Vec<u64>,
}

impl Sequential {
    /// Returns the keys before the first pass.
    pub fn new(problem: Problem) -> Sequential {
        Sequential {
            problem,
            keys: problem.generate(0..problem.keys()),
            smaller: vec![0; problem.values() as usize],
        }
    }

    /// Sets the two keys of the pass and ranks all keys.
    pub fn rank(&mut self, pass: u64) {
        for (number, key) in self.problem.marks(pass) {
            self.keys[number as usize] = key;
        }
        self.smaller.fill(0);
        for &key in &self.keys {
            self.smaller[key as usize] += 1;
        }
        let mut sum = 0;
        for count in &mut self.smaller {
            sum += std::mem::replace(count, sum);
        }
    }

    /// Returns the ranks of the followed keys after the last pass.
    pub fn followed(&self) -> [u64; FOLLOWED] {
        let rank = |number: u64| self.smaller[self.keys[number as usize] as usize];
        self.problem.followed().map(rank)
    }

    /// Returns how many keys are smaller than a value after the last pass.
    pub fn smaller(&self, value: u32) -> u64 {
        self.smaller[value as usize]
    }

    /// Returns the keys after the last pass.
    pub fn keys(&self) -> &[u32] {
        &self.keys
    }

    /// Returns all keys in the order of their ranks.
    pub fn sorted(&self) -> Vec<u32> {
        let mut next = self.smaller.clone();
        let mut sorted = vec![0; self.keys.len()];
        for &key in &self.keys {
            sorted[next[key as usize] as usize] = key;
            next[key as usize] += 1;
        }
        sorted
    }

    /// Does one untimed pass and the timed ones. Returns how many of the followed keys had their
    /// published ranks, and whether the order is right.
    pub fn verify(&mut self) -> (u64, bool) {
        self.rank(1);
        let mut right = 0;
        for pass in 1..=PASSES {
            self.rank(pass);
            for (at, rank) in self.followed().into_iter().enumerate() {
                right += u64::from(rank == self.problem.expected_rank(at, pass));
            }
        }
        (right, self.sorted().is_sorted())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Class;

    /// Guards the generator and the published tables together.
    #[test]
    fn the_published_ranks_are_found() {
        for class in [Class::S, Class::W, Class::A, Class::B] {
            let mut sequential = Sequential::new(Problem::new(class));
            assert_eq!(sequential.verify(), (50, true), "class {class}");
        }
    }

    #[test]
    fn one_wrong_key_is_noticed() {
        let problem = Problem::new(Class::S);
        let mut sequential = Sequential::new(problem);
        let followed = problem.followed()[2] as usize;
        sequential.keys[followed] = sequential.keys[followed].wrapping_sub(40) % problem.values();
        assert!(sequential.verify().0 < 50);
    }
}
