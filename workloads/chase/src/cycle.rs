/// One random cycle through all words of a table that is spread over servers. The same seed gives
/// the same cycle everywhere.
#[derive(Clone, Debug)]
pub struct Cycle {
    next: Vec<u64>,
}

impl Cycle {
    /// Creates a cycle through `words` words (Sattolo's algorithm: a random permutation with one
    /// cycle).
    pub fn new(words: u64, seed: u64) -> Cycle {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut next: Vec<u64> = (0..words).collect();
        for at in (1..next.len()).rev() {
            next.swap(at, random.usize(..at));
        }
        Cycle { next }
    }

    /// Returns the words of a range of addresses.
    ///
    /// # Panics
    /// If the range is not inside the table.
    pub fn part(&self, begin: u64, words: u64) -> &[u64] {
        &self.next[begin as usize..][..words as usize]
    }

    /// Follows `depth` addresses.
    pub fn follow(&self, depth: u64, address: u64) -> u64 {
        (0..depth).fold(address, |at, _| self.next[at as usize])
    }

    /// Returns how many of `depth` steps from an address on read the words of another server than
    /// the step before: what makes code move.
    pub fn moves(&self, depth: u64, address: u64, words: u64) -> u64 {
        let (mut at, mut moves) = (address, 0);
        for _ in 0..depth {
            let next = self.next[at as usize];
            moves += u64::from(next / words != at / words);
            at = next;
        }
        moves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_one_cycle() {
        let cycle = Cycle::new(1000, 5);
        let mut seen = vec![false; 1000];
        let mut at = 0;
        for _ in 0..1000 {
            assert!(!std::mem::replace(&mut seen[at as usize], true));
            at = cycle.follow(1, at);
        }
        assert_eq!(at, 0);
        assert_eq!(cycle.follow(1000, 77), 77);
        assert_eq!(cycle.moves(1000, 0, 1000), 0);
        assert!(cycle.moves(1000, 0, 500) > 300);
    }
}
