//! Compares whether two sequences have the same records, in any order.

use std::hash::{DefaultHasher, Hash, Hasher};

/// A digest of records that does not depend on their order: their number, the sum of their hashes
/// and the sum of the squares. The sums of parts add up to those of the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum {
    /// Number of records.
    pub records: u64,
    sum: u64,
    squares: u64,
}

impl Checksum {
    /// Returns the checksum of these records.
    pub fn of<R: Hash>(records: impl IntoIterator<Item = R>) -> Checksum {
        let mut all = Checksum::default();
        for record in records {
            let mut hasher = DefaultHasher::new();
            record.hash(&mut hasher);
            let hash = hasher.finish();
            all = all.plus(Checksum {
                records: 1,
                sum: hash,
                squares: hash.wrapping_mul(hash),
            });
        }
        all
    }

    /// Returns words whose wrapping sums are those of the whole.
    pub fn words(self) -> [u64; 3] {
        [self.records, self.sum, self.squares]
    }

    /// Reverses [`words`](Self::words).
    pub fn from_words([records, sum, squares]: [u64; 3]) -> Checksum {
        Checksum {
            records,
            sum,
            squares,
        }
    }

    /// Returns the checksum of the records of both.
    #[must_use]
    pub fn plus(self, other: Checksum) -> Checksum {
        Checksum {
            records: self.records.wrapping_add(other.records),
            sum: self.sum.wrapping_add(other.sum),
            squares: self.squares.wrapping_add(other.squares),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_forgotten_and_nothing_else() {
        let of = |records: &[&str]| Checksum::of(records);
        assert_eq!(of(&["a", "b", "b"]), of(&["b", "a", "b"]));
        for other in [
            &["a", "b"][..],
            &["a", "a", "b"],
            &["a", "b", "c"],
            &["ab", "b", ""],
        ] {
            assert_ne!(of(&["a", "b", "b"]), of(other));
        }
        let (whole, parts) = (of(&["a", "b", "c"]), of(&["c"]).plus(of(&["b", "a"])));
        assert_eq!(whole, parts);
        assert_eq!(Checksum::from_words(whole.words()), whole);
    }
}
