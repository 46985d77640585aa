//! The updates of RandomAccess (HPC Challenge): powers of x modulo a polynomial over GF(2).

/// x^64 modulo the polynomial x^64 + x^2 + x + 1.
const POLYNOMIAL: u64 = 7;

/// The sequence x^n from some n on; a number is both what is written and, by its low bits, the
/// index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    next: u64,
}

impl Sequence {
    /// Returns the sequence from x^`n` on, in O(log `n`).
    pub fn from(n: u64) -> Sequence {
        let (mut next, mut square, mut left) = (1, 2, n);
        while left > 0 {
            if left % 2 == 1 {
                next = product(next, square);
            }
            square = product(square, square);
            left /= 2;
        }
        Sequence { next }
    }
}

impl Iterator for Sequence {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let number = self.next;
        self.next = times_x(number);
        Some(number)
    }
}

fn times_x(a: u64) -> u64 {
    a << 1 ^ if a >> 63 == 1 { POLYNOMIAL } else { 0 }
}

fn product(a: u64, b: u64) -> u64 {
    (0..64).rev().fold(0, |sum, bit| {
        times_x(sum) ^ if b >> bit & 1 == 1 { a } else { 0 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_arrives_where_steps_do() {
        let mut steps = Sequence::from(0);
        for n in 0..2000 {
            assert_eq!(steps, Sequence::from(n));
            steps.next();
        }
        let far = 1_317_624_576_693_539_401 - 3;
        assert_eq!(
            Sequence::from(far).nth(3),
            Some(1),
            "the period is published"
        );
    }

    #[test]
    fn powers_are_reduced_by_the_polynomial() {
        assert_eq!(Sequence::from(0).take(3).collect::<Vec<_>>(), [1, 2, 4]);
        assert_eq!(Sequence::from(63).take(2).collect::<Vec<_>>(), [1 << 63, 7]);
    }
}
