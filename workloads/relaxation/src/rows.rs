//! Fields, wherever their cells are.

use std::cell::RefCell;

/// Rows of a field, which are copied in and out: a pass over the field relaxes private rows, which
/// stay in the cache.
///
/// A field contains the interior cells of one part, `rows() x cols()` of them, without boundary and
/// halo cells.
pub trait Rows {
    /// Returns the number of cells in a row.
    fn cols(&self) -> usize;
    /// Returns the number of rows of the field.
    fn rows(&self) -> usize;
    /// Copies row `row` (counted from the first of this field) to `out`, which has `cols()` cells.
    fn load(&self, row: usize, out: &mut [f64]);
}

/// Rows that can also be written.
pub trait RowsMut: Rows {
    /// Copies `from`, which has `cols()` cells, to row `row`.
    fn store(&self, row: usize, from: &[f64]);
}

/// A field in private memory, for tests and for a single process.
#[derive(Clone, Debug)]
pub struct VecRows {
    cols: usize,
    cells: RefCell<Vec<f64>>,
}

impl VecRows {
    /// Returns a field of `rows x cols` zeros.
    pub fn new(rows: usize, cols: usize) -> Self {
        Self {
            cols,
            cells: RefCell::new(vec![0.0; rows * cols]),
        }
    }

    /// Returns all cells, row by row.
    pub fn to_vec(&self) -> Vec<f64> {
        self.cells.borrow().clone()
    }
}

impl Rows for VecRows {
    fn cols(&self) -> usize {
        self.cols
    }

    fn rows(&self) -> usize {
        self.cells.borrow().len() / self.cols
    }

    fn load(&self, row: usize, out: &mut [f64]) {
        let start = row * self.cols;
        out.copy_from_slice(&self.cells.borrow()[start..start + self.cols]);
    }
}

impl RowsMut for VecRows {
    fn store(&self, row: usize, from: &[f64]) {
        let start = row * self.cols;
        self.cells.borrow_mut()[start..start + self.cols].copy_from_slice(from);
    }
}
