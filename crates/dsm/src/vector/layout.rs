//! Which elements of an array are in which chunk: arithmetic alone.

use std::ops::Range;

/// Where the elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) len: u64,
    pub(super) chunk_len: u64,
}

impl Layout {
    pub(super) fn chunks(self) -> u64 {
        self.len.div_ceil(self.chunk_len)
    }

    pub(super) fn elements_of(self, chunk: u64) -> Range<u64> {
        let begin = chunk.saturating_mul(self.chunk_len).min(self.len);
        begin..begin.saturating_add(self.chunk_len).min(self.len)
    }

    pub(super) fn part(self, rank: u64, ranks: u64) -> Range<u64> {
        let ranks = u128::from(ranks.max(1));
        let bound = |rank: u128| {
            let chunk = u128::from(self.chunks()) * rank.min(ranks) / ranks;
            self.elements_of(chunk as u64).start // At most the number of chunks.
        };
        bound(rank.into())..bound(u128::from(rank) + 1)
    }

    /// Returns the pieces of a range, one for each chunk.
    pub(super) fn pieces(self, range: Range<u64>) -> impl Iterator<Item = Piece> {
        let chunks = match range.is_empty() {
            true => 0..0,
            false => range.start / self.chunk_len..(range.end - 1) / self.chunk_len + 1,
        };
        chunks.map(move |chunk| {
            let all = self.elements_of(chunk);
            let (begin, end) = (all.start.max(range.start), all.end.min(range.end));
            Piece {
                chunk,
                at: begin,
                // A chunk that is accessed fits into memory.
                inside: (begin - all.start) as usize..(end - all.start) as usize,
                is_whole: begin == all.start && end == all.end,
            }
        })
    }
}

/// The part of a range that is in one chunk.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// The number of the chunk.
    pub(super) chunk: u64,
    /// The index of the first element.
    pub(super) at: u64,
    /// Where the elements are in the chunk.
    pub(super) inside: Range<usize>,
    /// Whether it is all of the chunk.
    pub(super) is_whole: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_pieces(layout: Layout, range: Range<u64>) -> Vec<(u64, u64, Range<usize>, bool)> {
        let pieces = layout.pieces(range);
        let pieces = pieces.map(|piece| (piece.chunk, piece.at, piece.inside, piece.is_whole));
        pieces.collect()
    }

    #[test]
    fn a_range_is_cut_at_the_chunks() {
        let layout = Layout {
            len: 25,
            chunk_len: 10,
        };
        assert_eq!(layout.chunks(), 3);
        assert_eq!(layout.elements_of(2), 20..25);
        assert!(layout.elements_of(3).is_empty());
        assert_eq!(all_pieces(layout, 7..7), []);
        assert_eq!(all_pieces(layout, 3..4), [(0, 3, 3..4, false)]);
        let all = all_pieces(layout, 9..25);
        let first_two = [(0, 9, 9..10, false), (1, 10, 0..10, true)];
        assert_eq!(all[..2], first_two);
        assert_eq!(all[2..], [(2, 20, 0..5, true)]);
        let huge = Layout {
            len: u64::MAX,
            chunk_len: 1 << 40,
        };
        let last = all_pieces(huge, u64::MAX - 1..u64::MAX);
        let end = (1 << 40) - 1;
        assert_eq!(last, [((1 << 24) - 1, u64::MAX - 1, end - 1..end, false)]);
    }

    #[test]
    fn the_parts_are_all_of_it() {
        for (len, chunk_len) in [(0, 3), (1, 3), (25, 10), (1000, 7), (u64::MAX, 1 << 50)] {
            let layout = Layout { len, chunk_len };
            for ranks in [1, 2, 3, 64, 100_000] {
                let mut end = 0;
                for rank in 0..ranks {
                    let part = layout.part(rank, ranks);
                    assert_eq!(part.start, end, "{layout:?}, {rank} of {ranks}");
                    assert!(part.end == len || part.end.is_multiple_of(chunk_len));
                    end = part.end;
                }
                assert_eq!(end, len, "{layout:?}, {ranks}");
            }
        }
    }
}
