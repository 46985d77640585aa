//! How one dimension is distributed: pure arithmetic on indices.

/// Which of `p` parts owns which index of a dimension of `n` indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dist {
    /// Not cut: part 0 owns all indices, and it is the only part.
    Whole,
    /// One run of consecutive indices per part. Lengths differ by at most one; the longer runs come
    /// first.
    Block,
    /// Part `i % p` owns index `i`.
    Cyclic,
    /// Blocks of this length are dealt out in turn.
    BlockCyclic(u64),
    /// Like `BlockCyclic`, but the owner stores tile after tile instead of whole rows.
    Tiled(u64),
}

/// A dimension that is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Axis {
    pub(crate) extent: u64,
    pub(crate) dist: Dist,
    pub(crate) parts: u32,
    /// Ghost cells on either side of the block of a part.
    pub(crate) halo: u64,
    /// Block distribution: length of the shorter blocks.
    short: u64,
    /// Block distribution: how many blocks are longer by one.
    longer: u64,
}

impl Axis {
    pub(crate) fn new(extent: u64, dist: Dist, parts: u32) -> Axis {
        Axis {
            extent,
            dist,
            parts,
            halo: 0,
            short: extent / u64::from(parts),
            longer: extent % u64::from(parts),
        }
    }

    /// Returns the length of the blocks that are dealt out in turn; `None` if each part has one
    /// block.
    #[inline]
    fn deal(&self) -> Option<u64> {
        match self.dist {
            Dist::Whole | Dist::Block => None,
            Dist::Cyclic => Some(1),
            Dist::BlockCyclic(len) | Dist::Tiled(len) => Some(len),
        }
    }

    /// Returns the first index of a part. Block distribution only.
    #[inline]
    fn start(&self, part: u32) -> u64 {
        let part = u64::from(part);
        part * self.short + part.min(self.longer)
    }

    /// Returns the part that owns an index, and which of its indices that is.
    #[inline]
    pub(crate) fn locate(&self, index: u64) -> (u32, u64) {
        if let Some(len) = self.deal() {
            let (block, parts) = (index / len, u64::from(self.parts));
            return ((block % parts) as u32, block / parts * len + index % len);
        }
        let split = self.longer * (self.short + 1);
        if index < split {
            let len = self.short + 1;
            ((index / len) as u32, index % len)
        } else {
            let rest = index - split;
            ((self.longer + rest / self.short) as u32, rest % self.short)
        }
    }

    /// Returns the `local`-th index of a part.
    #[inline]
    pub(crate) fn index(&self, part: u32, local: u64) -> u64 {
        match self.deal() {
            None => self.start(part) + local,
            Some(len) => {
                let block = local / len * u64::from(self.parts) + u64::from(part);
                block * len + local % len
            }
        }
    }

    /// Returns how many of the indices below `index` a part owns.
    #[inline]
    pub(crate) fn below(&self, part: u32, index: u64) -> u64 {
        let Some(len) = self.deal() else {
            let start = self.start(part);
            return index.clamp(start, self.start(part + 1)) - start;
        };
        let (block, within) = (index / len, index % len);
        let (rounds, turn) = (block / u64::from(self.parts), block % u64::from(self.parts));
        let own = match u64::from(part).cmp(&turn) {
            std::cmp::Ordering::Less => len,
            std::cmp::Ordering::Equal => within,
            std::cmp::Ordering::Greater => 0,
        };
        rounds * len + own
    }

    /// Returns how many indices a part owns.
    #[inline]
    pub(crate) fn len(&self, part: u32) -> u64 {
        match self.deal() {
            None => self.short + u64::from(u64::from(part) < self.longer),
            Some(_) => self.below(part, self.extent),
        }
    }

    /// Returns the same with ghost cells; a part without indices has none.
    #[inline]
    pub(crate) fn stored(&self, part: u32) -> u64 {
        match self.len(part) {
            0 => 0,
            len => len + 2 * self.halo,
        }
    }

    /// Returns the edge of the tiles that a part stores one after the other. Without tiles, that is
    /// all it stores.
    #[inline]
    pub(crate) fn tile(&self, stored: u64) -> u64 {
        match self.dist {
            Dist::Tiled(len) => len.min(stored),
            _ => stored,
        }
    }

    /// Returns how many indices, beginning with the `local`-th of a part, are consecutive.
    #[inline]
    pub(crate) fn run(&self, part: u32, local: u64) -> u64 {
        let left = self.len(part) - local;
        self.deal().map_or(left, |len| left.min(len - local % len))
    }

    /// Iterates over the parts that own indices in `lo..hi`, each once.
    pub(crate) fn touched(&self, lo: u64, hi: u64) -> impl Iterator<Item = u32> + use<> {
        let parts = self.parts;
        let (first, count) = match (lo < hi, self.deal()) {
            (false, _) => (0, 0),
            (true, Some(len)) => {
                let (first, last) = (lo / len, (hi - 1) / len);
                let count = (last - first + 1).min(u64::from(parts));
                ((first % u64::from(parts)) as u32, count as u32)
            }
            (true, None) => {
                let (first, last) = (self.locate(lo).0, self.locate(hi - 1).0);
                (first, last - first + 1)
            }
        };
        (0..count).map(move |step| ((u64::from(first) + u64::from(step)) % u64::from(parts)) as u32)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn dists() -> impl Strategy<Value = Dist> {
        prop_oneof![
            Just(Dist::Whole),
            Just(Dist::Block),
            Just(Dist::Cyclic),
            (1u64..9).prop_map(Dist::BlockCyclic),
            (1u64..9).prop_map(Dist::Tiled),
        ]
    }

    fn axes() -> impl Strategy<Value = Axis> {
        (dists(), 0u64..40, 1u32..8).prop_map(|(dist, extent, parts)| {
            Axis::new(extent, dist, if dist == Dist::Whole { 1 } else { parts })
        })
    }

    /// Finds the owner as the documentation of [`Dist`] says, index by index.
    fn owner(axis: &Axis, index: u64) -> u32 {
        let parts = u64::from(axis.parts);
        let dealt = |len: u64| (index / len % parts) as u32;
        match axis.dist {
            Dist::Whole => 0,
            Dist::Cyclic => dealt(1),
            Dist::BlockCyclic(len) | Dist::Tiled(len) => dealt(len),
            Dist::Block => {
                let mut end = 0;
                let longer = |part: &u32| u64::from(*part) < axis.extent % parts;
                (0..axis.parts)
                    .find(|part| {
                        end += axis.extent / parts + u64::from(longer(part));
                        index < end
                    })
                    .unwrap()
            }
        }
    }

    proptest! {
        #[test]
        fn indices_are_one_to_one_with_places(axis in axes()) {
            let mut counts = vec![0; axis.parts as usize];
            for index in 0..axis.extent {
                let part = owner(&axis, index);
                for other in 0..axis.parts {
                    prop_assert_eq!(axis.below(other, index), counts[other as usize]);
                }
                prop_assert_eq!(axis.locate(index), (part, counts[part as usize]));
                prop_assert_eq!(axis.index(part, counts[part as usize]), index);
                counts[part as usize] += 1;
            }
            for part in 0..axis.parts {
                prop_assert_eq!(axis.len(part), counts[part as usize]);
            }
        }

        #[test]
        fn runs_are_as_long_as_they_can_be(axis in axes()) {
            for part in 0..axis.parts {
                let len = axis.len(part);
                for local in 0..len {
                    let next = |steps: u64| axis.index(part, local) + steps;
                    let expected = (1..)
                        .take_while(|steps| local + steps < len
                            && axis.index(part, local + steps) == next(*steps)
                            // Blocks of one part that follow each other are still separate blocks.
                            && axis.deal().is_none_or(|deal| (local + steps) % deal != 0))
                        .count() as u64 + 1;
                    prop_assert_eq!(axis.run(part, local), expected);
                }
            }
        }

        #[test]
        fn touched_are_exactly_the_owners(axis in axes(), a in 0u64..40, b in 0u64..40) {
            let (lo, hi) = (a.min(b).min(axis.extent), a.max(b).min(axis.extent));
            let mut touched: Vec<u32> = axis.touched(lo, hi).collect();
            touched.sort_unstable();
            let mut owners: Vec<u32> = (lo..hi).map(|index| owner(&axis, index)).collect();
            owners.sort_unstable();
            owners.dedup();
            prop_assert_eq!(touched, owners);
        }

        #[test]
        fn huge_dimensions_do_not_overflow(
            dist in prop_oneof![
                Just(Dist::Block), Just(Dist::Cyclic), (1u64..u64::MAX).prop_map(Dist::BlockCyclic)],
            extent in 1u64.., parts in 1u32.., index: u64
        ) {
            let axis = Axis::new(extent, dist, parts);
            let index = index % extent;
            let (part, local) = axis.locate(index);
            prop_assert!(part < parts && local < axis.len(part));
            prop_assert_eq!(axis.index(part, local), index);
            prop_assert_eq!(axis.below(part, index), local);
        }
    }
}
