//! Random numbers.

/// A small generator of random numbers (splitmix64).
pub(in crate::protocol::tests) struct Random(pub(in crate::protocol::tests) u64);

impl Random {
    pub(in crate::protocol::tests) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(in crate::protocol::tests) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub(in crate::protocol::tests) fn is(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(in crate::protocol::tests) fn of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        let place = self.below(all.len() as u64) as usize;
        all.get(place).copied()
    }
}
