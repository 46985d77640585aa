//! One end of a stream, with its array.

use super::{Result, bail, ensure};
use ndarray::{Array2, ArrayView2, ArrayViewMut2, Ix2};
use samite::stage::{Reader, Stage, StepReader, Writer};

/// Which side copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    View,
    Put,
    Get,
    Copy,
}

impl Kind {
    pub(super) fn of(word: &str) -> Result<Kind> {
        Ok(match word {
            "view" => Kind::View,
            "put" => Kind::Put,
            "get" => Kind::Get,
            "copy" => Kind::Copy,
            other => bail!("`{other}` is not a kind of step"),
        })
    }

    fn puts(self) -> bool {
        matches!(self, Kind::Put | Kind::Copy)
    }

    fn gets(self) -> bool {
        matches!(self, Kind::Get | Kind::Copy)
    }
}

/// How much of a step a writer without an array of its own writes, and how much any reader checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Whole,
    Marks,
}

/// A power of two of doubles, rows x columns: the number of columns is the smallest power of two
/// that is not below the number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) rows: u64,
    pub(super) columns: u64,
    /// The columns that are read: the first, and their number.
    pub(super) first: u64,
    pub(super) width: u64,
}

impl Shape {
    /// Returns a step of `bytes`, of which all columns are read, or one in a hundred beginning at a
    /// third of them.
    pub(super) fn of(bytes: u64, is_slab: bool) -> Result<Shape> {
        let count = bytes / size_of::<f64>() as u64;
        ensure!(
            bytes.is_power_of_two() && count > 0,
            "the bytes of a step are a power of two"
        );
        let columns = 1 << count.trailing_zeros().div_ceil(2);
        let (first, width) = match is_slab {
            true => (columns / 3, (columns + 50) / 100),
            false => (0, columns),
        };
        ensure!(width > 0, "a slab of no columns");
        Ok(Shape {
            rows: count / columns,
            columns,
            first,
            width,
        })
    }

    /// Returns a value that is exact in a double, and differs by position and seed.
    fn value(&self, row: u64, column: u64, seed: u64) -> f64 {
        (row * self.columns + column) as f64 + seed as f64 * (1u64 << 40) as f64
    }

    pub(super) fn fill(&self, mut array: ArrayViewMut2<'_, f64>, seed: u64) {
        for (row, mut values) in (0..).zip(array.rows_mut()) {
            for (column, value) in (0..).zip(&mut values) {
                *value = self.value(row, column, seed);
            }
        }
    }

    /// Checks the part that is read.
    pub(super) fn check(&self, part: ArrayView2<'_, f64>, seed: u64) -> Result<()> {
        let is_right = (0..).zip(part.rows()).all(|(row, values)| {
            let mut columns = (self.first..).zip(values);
            columns.all(|(column, value)| *value == self.value(row, column, seed))
        });
        ensure!(
            is_right && part.dim() == (self.rows as usize, self.width as usize),
            "the values that were read are not those that were written"
        );
        Ok(())
    }

    /// Marks a step in the first and the last element.
    fn mark(&self, mut array: ArrayViewMut2<'_, f64>, number: u64) {
        for corner in self.corners() {
            array[corner] = -(number as f64);
        }
    }

    fn is_marked(&self, array: ArrayView2<'_, f64>, number: u64) -> bool {
        self.corners()
            .iter()
            .all(|corner| array[*corner] == -(number as f64))
    }

    /// Checks one number of each page, where all values are those of `seed`: this touches every
    /// page of a value.
    fn looks_right(&self, array: ArrayView2<'_, f64>, seed: u64) -> bool {
        const PAGE: usize = 4096 / size_of::<f64>();
        let step = (PAGE / self.columns as usize).max(1);
        // By index: `step_by` on these iterators would visit every element between two pages.
        (0..array.nrows()).step_by(step).all(|row| {
            (0..array.ncols()).step_by(PAGE).all(|column| {
                let expected = self.value(row as u64, self.first + column as u64, seed);
                array[[row, column]] == expected
            })
        })
    }

    fn corners(&self) -> [[usize; 2]; 2] {
        [[0, 0], [self.rows as usize - 1, self.columns as usize - 1]]
    }
}

/// A writer or a reader.
pub(super) struct End {
    shape: Shape,
    kind: Kind,
    /// Selects the values to write.
    seed: u64,
    /// The array of a rank that copies; empty otherwise.
    array: Array2<f64>,
    role: Role,
}

enum Role {
    Writes(Writer),
    Reads(Reader),
}

impl End {
    pub(super) fn writer(
        stage: &Stage,
        stream: &str,
        kind: Kind,
        shape: Shape,
        steps: u64,
    ) -> Result<End> {
        let writing = stage.write(stream).as_rank("writer", 0, 1);
        let writer = writing.limits(steps, u64::MAX).open()?;
        let mut array = array(kind.puts(), shape.rows, shape.columns);
        if kind.puts() {
            shape.fill(array.view_mut(), 0);
        }
        Ok(End::new(shape, kind, array, Role::Writes(writer)))
    }

    pub(super) fn reader(stage: &Stage, stream: &str, kind: Kind, shape: Shape) -> Result<End> {
        let reader = stage.read(stream).as_rank("reader", 0, 1).open()?;
        let mut array = array(kind.gets(), shape.rows, shape.width);
        // Touch its pages before the clock starts, as the peers do.
        array.fill(1.0);
        Ok(End::new(shape, kind, array, Role::Reads(reader)))
    }

    fn new(shape: Shape, kind: Kind, array: Array2<f64>, role: Role) -> Self {
        End {
            shape,
            kind,
            seed: 0,
            array,
            role,
        }
    }

    /// Ends the stream in order.
    pub(super) fn close(self) -> Result<()> {
        match self.role {
            Role::Writes(writer) => Ok(writer.close()?),
            Role::Reads(_) => Ok(()),
        }
    }

    /// Writes other values from now on.
    pub(super) fn change(&mut self) {
        self.seed += 1;
        match self.role {
            Role::Writes(_) if self.kind.puts() => {
                self.shape.fill(self.array.view_mut(), self.seed);
            }
            _ => self.array.fill(0.0),
        }
    }

    /// Writes or reads one step.
    pub(super) fn step(&mut self, look: Look) -> Result<()> {
        match &mut self.role {
            Role::Writes(writer) => {
                let whole = [self.shape.rows, self.shape.columns];
                let mut step = writer.step()?;
                if self.kind.puts() {
                    step.put("u", whole, [0u64, 0], self.array.view())?;
                } else {
                    let number = step.number();
                    let block = step.alloc::<f64>("u", whole, [0u64, 0], whole)?;
                    let block = block.into_dimensionality::<Ix2>()?;
                    match look {
                        Look::Whole => self.shape.fill(block, self.seed),
                        Look::Marks => self.shape.mark(block, number),
                    }
                }
                Ok(step.commit()?)
            }
            Role::Reads(reader) => {
                let Some(step) = reader.next_step()? else {
                    bail!("the stream has ended");
                };
                read(
                    &step,
                    self.kind,
                    look,
                    (self.shape, self.seed),
                    &mut self.array,
                )?;
                Ok(())
            }
        }
    }
}

/// Reads what the kind requires, and checks it.
fn read(
    step: &StepReader,
    kind: Kind,
    look: Look,
    (shape, seed): (Shape, u64),
    array: &mut Array2<f64>,
) -> Result<()> {
    let asked = [0..shape.rows, shape.first..shape.first + shape.width];
    if kind.gets() {
        let Some(into) = array.as_slice_mut() else {
            bail!("an array of its own lies together");
        };
        step.read_into("u", asked, into)?;
        return match look {
            Look::Whole => shape.check(array.view(), seed),
            Look::Marks => Ok(()),
        };
    }
    let Some(view) = step.view::<f64>("u", asked)? else {
        bail!("the step is not mapped here");
    };
    let view = view.into_dimensionality::<Ix2>()?;
    // While the clock runs, only marks or one number per page are checked.
    match (look, kind.puts()) {
        (Look::Whole, _) => shape.check(view, seed),
        (Look::Marks, true) => {
            ensure!(
                shape.looks_right(view, seed),
                "the values of step {} are not there",
                step.number()
            );
            Ok(())
        }
        (Look::Marks, false) => {
            let is_new = shape.is_marked(view, step.number());
            ensure!(is_new, "the marks of step {} are not there", step.number());
            Ok(())
        }
    }
}

/// Returns the array of a rank that copies.
fn array(is_wanted: bool, rows: u64, columns: u64) -> Array2<f64> {
    match is_wanted {
        true => Array2::zeros((rows as usize, columns as usize)),
        false => Array2::zeros((0, 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_those_of_the_peers() {
        let of = |bytes, is_slab| {
            let Shape {
                rows,
                columns,
                first,
                width,
            } = Shape::of(bytes, is_slab).unwrap();
            (rows, columns, first, width)
        };
        assert_eq!(of(128 << 20, true), (4096, 4096, 1365, 41));
        assert_eq!(of(1 << 20, false), (256, 512, 0, 512));
        assert!(Shape::of(24, false).is_err());
        assert!(Shape::of(4, false).is_err());
        assert!(Shape::of(64, true).is_err());
    }

    #[test]
    fn a_wrong_value_is_seen() {
        let shape = Shape::of(1 << 10, false).unwrap();
        let mut array = array(true, shape.rows, shape.columns);
        shape.fill(array.view_mut(), 3);
        assert!(shape.check(array.view(), 3).is_ok());
        assert!(shape.check(array.view(), 2).is_err());
        assert!(shape.looks_right(array.view(), 3));
        assert!(!shape.looks_right(array.view(), 2));
        array[[2, 3]] += 1.0;
        assert!(shape.check(array.view(), 3).is_err());
    }
}
