//! Where the input of a call lies: runs of a segment that the unit of the call maps.

use crate::frame::word;
use crate::runtime::map::CHUNK;
use samite_fabric::SegmentKey;

/// The most bytes of one input.
pub const INPUT_MAX: u64 = 16 << 20;
/// The most levels of one input.
pub const LEVELS_MAX: usize = 16;

/// Runs of equal length in a segment, in order: those of a box of an array, for example. With the
/// levels `[(2, 100), (3, 10)]` they begin at `offset`, and 10, 20, 100, 110 and 120 bytes after
/// it.
///
/// ```text
///   24 key   8 offset   8 run   4 element   4 number of levels   then 8 count  8 stride, for each
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The segment.
    pub key: SegmentKey,
    /// Where the first run begins, in bytes.
    pub offset: u64,
    /// Length of each run, in bytes.
    pub run: u64,
    /// Size of an element, in bytes: from 1 to [`CHUNK`](crate::CHUNK). A kernel gets whole ones.
    pub element: u32,
    /// How often the runs are repeated, and how many bytes apart: the outermost level first.
    pub levels: Vec<(u64, u64)>,
}

impl Input {
    /// Returns one range of a segment, as elements of this size.
    pub fn range(key: SegmentKey, offset: u64, len: u64, element: u32) -> Input {
        Input {
            key,
            offset,
            run: len,
            element,
            levels: Vec::new(),
        }
    }

    /// Returns its length in bytes; `None` if that exceeds 64 bits.
    pub fn bytes(&self) -> Option<u64> {
        let counts = self.levels.iter().map(|(count, _)| *count);
        counts
            .into_iter()
            .try_fold(self.run, |bytes, count| bytes.checked_mul(count))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.key.to_bytes().to_vec();
        let counts = u64::from(self.element) | (self.levels.len() as u64) << 32;
        let words = [self.offset, self.run, counts].into_iter();
        let of_levels = self.levels.iter();
        let of_levels = of_levels.flat_map(|(count, stride)| [*count, *stride]);
        words
            .chain(of_levels)
            .for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes
    }

    /// Decodes an input, and returns it with what follows; `None` if it is cut off, or longer than
    /// one may be.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Input, &[u8])> {
        let (key, rest) = bytes.split_first_chunk::<24>()?;
        let long =
            |at: usize| Some(u64::from(word(rest, at)?) | u64::from(word(rest, at + 4)?) << 32);
        let (element, levels) = (word(rest, 16)?, word(rest, 20)?);
        if levels > LEVELS_MAX as u32 {
            return None;
        }
        let level = |at: u32| {
            let at = 24 + at as usize * 16;
            Some((long(at)?, long(at + 8)?))
        };
        let input = Input {
            key: SegmentKey::from_bytes(key),
            offset: long(0)?,
            run: long(8)?,
            element,
            levels: (0..levels).map(level).collect::<Option<_>>()?,
        };
        // Runs without bytes would be endless work for nothing.
        let is_whole =
            (1..=CHUNK as u32).contains(&element) && input.bytes()?.is_multiple_of(element.into());
        let is_bounded = input.run > 0 && is_whole && input.bytes()? <= INPUT_MAX;
        let rest = rest.get(24 + levels as usize * 16..)?;
        is_bounded.then_some((input, rest))
    }

    /// Returns where each run begins, in bytes; `None` for one that exceeds 64 bits.
    pub(crate) fn runs(self) -> impl Iterator<Item = Option<u64>> {
        let count: u64 = self.levels.iter().map(|(count, _)| *count).product();
        (0..count).map(move |number| {
            let mut left = number;
            let mut offset = self.offset;
            for (count, stride) in self.levels.iter().rev() {
                offset = offset.checked_add((left % count).checked_mul(*stride)?)?;
                left /= count;
            }
            Some(offset)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_fabric::PeerId;

    fn input(run: u64, levels: &[(u64, u64)]) -> Input {
        Input {
            key: SegmentKey {
                peer: PeerId(1),
                segment: 2,
                incarnation: 3,
                generation: 4,
                bytes: 5,
            },
            offset: 7,
            run,
            element: 1,
            levels: levels.to_vec(),
        }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        for input in [input(1, &[]), input(8, &[(2, 100), (3, 10)])] {
            let mut bytes = input.encode();
            bytes.extend(b"rest");
            assert_eq!(Input::decode(&bytes), Some((input, &b"rest"[..])));
        }
        let runs: Vec<_> = input(8, &[(2, 100), (3, 10)]).runs().flatten().collect();
        assert_eq!(runs, [7, 17, 27, 107, 117, 127]);
    }

    #[test]
    fn what_is_too_long_is_refused() {
        let most = 1 << 32;
        for input in [
            input(0, &[(most, 1)]),
            input(INPUT_MAX + 1, &[]),
            input(most, &[(most, 1), (most, 1)]),
            input(1, &[(1, 1); LEVELS_MAX + 1]),
        ] {
            assert_eq!(Input::decode(&input.encode()), None, "{input:?}");
        }
        let whole = input(8, &[(2, 100)]).encode();
        for len in 0..whole.len() {
            assert_eq!(Input::decode(&whole[..len]), None, "{len}");
        }
        for element in [0, 3, CHUNK as u32 + 1] {
            let of_element = Input {
                element,
                ..input(8, &[])
            };
            assert_eq!(Input::decode(&of_element.encode()), None, "{element}");
        }
        assert_eq!(input(1, &[(2, u64::MAX)]).runs().last(), Some(None));
    }
}
