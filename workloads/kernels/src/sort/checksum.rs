//! Whether two sequences of records have the same records, in whatever order.

use std::hash::{DefaultHasher, Hash, Hasher};

/// What is left of records when their order is forgotten: how many there are, the sum of their
/// hashes and the sum of the squares. Sums of parts are that of the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum {
    /// Records.
    pub records: u64,
    sum: u64,
    squares: u64,
}

impl Checksum {
    /// Of these records.
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

    /// As words whose sums, with wrapping, are those of the whole.
    pub fn words(self) -> [u64; 3] {
        [self.records, self.sum, self.squares]
    }

    /// The reverse.
    pub fn from_words([records, sum, squares]: [u64; 3]) -> Checksum {
        Checksum {
            records,
            sum,
            squares,
        }
    }

    /// Of the records of both.
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
