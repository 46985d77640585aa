//! What lies where in the segment of a solver unit, and how it is seen that a step is whole.
//!
//! ```text
//!   0      128    256         384       4096
//!   +------+------+-----------+-- ... --+------------------+------------------+
//!   | stamp| stamp| rows that |         | buffer 0:        | buffer 1:        |
//!   | of 0 | of 1 | travel    |         | rows x cols f64  | rows x cols f64  |
//!   +------+------+-----------+-- ... --+------------------+------------------+
//!     each: begun, ended                  step k is in buffer k % BUFFERS
//! ```
//!
//! A stamp is two words, each the number of a step plus one (0: none). The writer sets `begun`, then
//! writes cells, then sets `ended`. Whoever finds `ended == k` before it reads, and `begun == k` after
//! it, has read step k and nothing else.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use samite::SharedBytes;

use crate::{Part, Problem, Rows};

/// Fields per unit: one that is read while the next is written. With these two the solver waits for
/// an analysis on the same two cores less than one hundredth of its time, so there is no third.
pub(crate) const BUFFERS: u64 = 2;

const PAGE: u64 = 4096;
/// Stamps lie on lines of their own (two: neighbouring lines are fetched together).
const STAMP: u64 = 128;

/// Where things are in the segment of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl Layout {
    pub(crate) fn new(problem: &Problem, part: Part) -> Self {
        Self {
            rows: part.rows,
            cols: problem.cols(),
        }
    }

    pub(crate) fn row_bytes(self) -> u64 {
        self.cols as u64 * 8
    }

    /// Length of the segment.
    pub(crate) fn bytes(self) -> u64 {
        self.field(BUFFERS)
    }

    /// First byte of the buffer that step `step` goes to.
    pub(crate) fn field_of(self, step: u64) -> u64 {
        self.field(step % BUFFERS)
    }

    /// First byte of the word that says which step was begun in that buffer.
    pub(crate) fn begun(self, step: u64) -> u64 {
        step % BUFFERS * STAMP
    }

    /// First byte of the word that says which step was ended in it.
    pub(crate) fn ended(self, step: u64) -> u64 {
        self.begun(step) + 8
    }

    /// First byte of one of the four rows that travel to and from the neighbours.
    pub(crate) fn border(self, which: u64) -> u64 {
        BUFFERS * STAMP + which * self.row_bytes()
    }

    fn field(self, buffer: u64) -> u64 {
        let field_bytes = (self.rows as u64 * self.row_bytes()).next_multiple_of(PAGE);
        self.border(4).next_multiple_of(PAGE) + buffer * field_bytes
    }
}

/// A field in shared memory.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    bytes: SharedBytes,
    rows: usize,
    cols: usize,
}

impl Field {
    /// A field of `rows` rows at the beginning of `bytes`.
    pub(crate) fn new(bytes: SharedBytes, rows: usize, cols: usize) -> Self {
        assert!(bytes.contains(0, rows as u64 * cols as u64 * 8));
        Self { bytes, rows, cols }
    }

    /// The field of a step in a segment.
    pub(crate) fn of(segment: &SharedBytes, layout: Layout, step: u64) -> Self {
        let bytes = layout.rows as u64 * layout.row_bytes();
        let bytes = segment.slice(layout.field_of(step), bytes);
        Self::new(bytes, layout.rows, layout.cols)
    }
}

impl Rows for Field {
    fn cols(&self) -> usize {
        self.cols
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn load(&self, row: usize, out: &mut [f64]) {
        assert_eq!(out.len(), self.cols);
        self.bytes.read_f64s((row * self.cols) as u64, out);
    }

    fn store(&self, row: usize, from: &[f64]) {
        assert_eq!(from.len(), self.cols);
        self.bytes.write_f64s((row * self.cols) as u64, from);
    }
}

/// The stamp of the buffer of a step, as its writer sees it.
#[derive(Debug)]
pub(crate) struct Stamp<'a> {
    begun: &'a AtomicU64,
    ended: &'a AtomicU64,
    word: u64,
}

impl<'a> Stamp<'a> {
    pub(crate) fn of(segment: &'a SharedBytes, layout: Layout, step: u64) -> Self {
        Self {
            begun: segment.u64(layout.begun(step)),
            ended: segment.u64(layout.ended(step)),
            word: step + 1,
        }
    }

    /// Before the first cell is written: what was in the buffer is no more.
    pub(crate) fn begin(&self) {
        self.begun.store(self.word, Ordering::Relaxed);
        // ORDERING: Release, pairs with the Acquire fence in `Source::read`: who reads a cell that is
        // written from here on also reads this `begun`.
        fence(Ordering::Release);
    }

    /// After the last cell is written: the buffer holds the step.
    pub(crate) fn end(&self) {
        // ORDERING: Release, pairs with the Acquire load of `ended` in `Source::read`.
        self.ended.store(self.word, Ordering::Release);
    }
}

/// Whether a word of a stamp is that of `step`. Otherwise the step it is of.
pub(crate) fn is_of(step: u64, word: u64) -> Result<(), Option<u64>> {
    if word == step + 1 {
        Ok(())
    } else {
        Err(word.checked_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(rows: usize, cols: usize) -> (Layout, SharedBytes) {
        let layout = Layout { rows, cols };
        (
            layout,
            SharedBytes::adopt(vec![0; layout.bytes() as usize + 8]),
        )
    }

    #[test]
    fn nothing_overlaps() {
        for (rows, cols) in [(1, 1), (3, 5), (2048, 2048), (7, 100_000)] {
            let layout = Layout { rows, cols };
            let field_bytes = rows as u64 * layout.row_bytes();
            assert!(layout.begun(BUFFERS - 1) + STAMP <= layout.border(0));
            assert!(layout.border(4) <= layout.field_of(0));
            assert!(layout.field_of(0) + field_bytes <= layout.field_of(1));
            assert!(layout.field_of(1) + field_bytes <= layout.bytes());
            assert_eq!(layout.field_of(0), layout.field_of(BUFFERS));
            assert_eq!(layout.field_of(1) % PAGE, 0);
        }
    }

    #[test]
    fn rows_come_back_as_they_were_stored() {
        let (layout, segment) = segment(3, 5);
        let (old, new) = (
            Field::of(&segment, layout, 0),
            Field::of(&segment, layout, 1),
        );
        let row = [1.5, -0.0, f64::MAX, 1e-308, 5.0];
        old.store(2, &row);
        new.store(0, &[7.0; 5]);
        let mut back = [0.0; 5];
        old.load(2, &mut back);
        assert_eq!(back.map(f64::to_bits), row.map(f64::to_bits));
        Field::of(&segment, layout, 3).load(0, &mut back);
        assert_eq!(back, [7.0; 5]);
    }

    #[test]
    fn a_stamp_tells_a_whole_step_from_any_other() {
        let (layout, segment) = segment(1, 1);
        let word = |at| segment.u64(at).load(Ordering::Relaxed);
        let before = |step| is_of(step, word(layout.ended(step)));
        let after = |step| is_of(step, word(layout.begun(step)));
        assert_eq!(before(0), Err(None));
        Stamp::of(&segment, layout, 0).begin();
        assert_eq!(before(0), Err(None));
        Stamp::of(&segment, layout, 0).end();
        assert_eq!((before(0), after(0)), (Ok(()), Ok(())));
        assert_eq!(before(2), Err(Some(0)));
        Stamp::of(&segment, layout, 2).begin();
        // Step 0 is being overwritten: whoever was reading it finds out.
        assert_eq!((before(0), after(0)), (Ok(()), Err(Some(2))));
    }
}
