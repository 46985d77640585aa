//! The official verification of a ranking.
//!
//! Five keys of every class are followed: their ranks in every pass are published, as a rank and a
//! rule for how it changes with the passes (NPB 3: `is.c`, partial verification). After the last
//! pass, the keys are sorted by their ranks, and the order must be right (full verification).

use super::problem::{PASSES, Problem};
use crate::Class;

/// Number of keys that are followed.
pub const FOLLOWED: usize = 5;

/// Checks that must succeed: the followed keys of every timed pass, and the order at the end.
pub const CHECKS: u64 = FOLLOWED as u64 * PASSES + 1;

impl Problem {
    /// Returns the numbers of the followed keys.
    pub fn followed(&self) -> [u64; FOLLOWED] {
        match self.class {
            Class::S => [48427, 17148, 23627, 62548, 4431],
            Class::W => [357773, 934767, 875723, 898999, 404505],
            Class::A => [2112377, 662041, 5336171, 3642833, 4250760],
            Class::B => [41869, 812306, 5102857, 18232239, 26860214],
            Class::C => [44172927, 72999161, 74326391, 129606274, 21736814],
        }
    }

    /// Returns the published rank of a followed key (by its index among them) after a timed pass:
    /// the number of smaller keys.
    pub fn expected_rank(&self, followed: usize, pass: u64) -> u64 {
        let (ranks, rising, shift): ([i64; FOLLOWED], _, i64) = match self.class {
            Class::S => ([0, 18, 346, 64917, 65463], [0, 1, 2].as_slice(), 0),
            Class::W => (
                [1249, 11698, 1039987, 1043896, 1048018],
                [0, 1].as_slice(),
                -2,
            ),
            Class::A => (
                [104, 17523, 123928, 8288932, 8388264],
                [0, 1, 2].as_slice(),
                -1,
            ),
            Class::B => (
                [33422937, 10244, 59149, 33135281, 99],
                [1, 2, 4].as_slice(),
                0,
            ),
            Class::C => (
                [61147, 882988, 266290, 133997595, 133525895],
                [0, 1, 2].as_slice(),
                0,
            ),
        };
        let rank = ranks[followed];
        let moved = match self.class {
            // Only here, the falling ranks are not shifted.
            Class::W if !rising.contains(&followed) => -(pass as i64),
            _ if rising.contains(&followed) => pass as i64 + shift,
            _ => -(pass as i64 + shift),
        };
        (rank + moved) as u64
    }
}
