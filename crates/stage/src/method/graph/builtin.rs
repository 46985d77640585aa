//! The built-in operators.

use super::numbers::{Input, Kind, Tile};
use super::operator::Operator;
use crate::space::Dims;
use crate::{Dtype, Element, Region, for_dtype};
use ndarray::{ArrayD, ArrayViewD, Axis, Slice, Zip};
use num_traits::AsPrimitive;

/// Converts the numbers to another type.
pub(super) struct As(pub(super) Dtype);

/// Multiplies by one number and adds another one. One of the two is neutral: `x * 1.0` and `x +
/// 0.0` equal `x`, except for the sign of a zero, so one operator is enough.
pub(super) struct Linear {
    pub(super) scale: f64,
    pub(super) offset: f64,
}

/// Every n-th element.
pub(super) struct Stride(pub(super) u64);

/// Means of blocks of n.
pub(super) struct Mean(pub(super) u64);

/// Returns the type of the results computed from numbers of that type.
fn computed(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::F32 => Dtype::F32,
        _ => Dtype::F64,
    }
}

/// Returns the numbers of a box as `f64`.
fn floats(input: &Input<'_>) -> Option<ArrayD<f64>> {
    for_dtype!(input.dtype(), T => Some(input.view::<T>()?.mapv(|x| x.as_())))
}

/// Stores numbers in a box, converted to its type.
fn put(floats: &ArrayViewD<'_, f64>, into: &mut Tile) -> Option<()> {
    for_dtype!(into.dtype(), T => {
        Zip::from(into.view_mut::<T>()?).and(floats).for_each(|to, x| *to = x.as_());
    });
    Some(())
}

fn unfit<T>(done: Option<T>) -> Result<T, String> {
    done.ok_or_else(|| "a box that does not fit its type".to_owned())
}

impl Operator for As {
    fn result(&self, input: &Kind) -> Result<Kind, String> {
        Ok(Kind {
            dtype: self.0,
            shape: input.shape.clone(),
        })
    }

    fn needs(&self, _: &Kind, asked: &Region) -> Result<Region, String> {
        Ok(asked.clone())
    }

    fn apply(&self, input: &Input<'_>, into: &mut Tile) -> Result<(), String> {
        let converted = for_dtype!(input.dtype(), From => {
            let rows = unfit(input.view::<From>())?;
            for_dtype!(into.dtype(), To => convert::<From, To>(&rows, into))
        });
        unfit(converted)
    }
}

/// Converts row by row. There is one such function for each pair of types, so it is kept small: a
/// `Zip` of two arrays of any number of dimensions is a thousand lines of code each time.
fn convert<From: Element + AsPrimitive<To>, To: Element>(
    from: &ArrayViewD<'_, From>,
    into: &mut Tile,
) -> Option<()> {
    let row = from.shape().last().map_or(1, |&row| row.max(1));
    let mut to = into.view_mut::<To>()?;
    for (to, from) in to.as_slice_mut()?.chunks_exact_mut(row).zip(from.rows()) {
        let both = to.iter_mut().zip(from.as_slice()?);
        both.for_each(|(to, from)| *to = from.as_());
    }
    Some(())
}

impl Operator for Linear {
    fn result(&self, input: &Kind) -> Result<Kind, String> {
        Ok(Kind {
            dtype: computed(input.dtype),
            shape: input.shape.clone(),
        })
    }

    fn needs(&self, _: &Kind, asked: &Region) -> Result<Region, String> {
        Ok(asked.clone())
    }

    fn apply(&self, input: &Input<'_>, into: &mut Tile) -> Result<(), String> {
        let numbers = floats(input).map(|numbers| numbers * self.scale + self.offset);
        unfit(numbers.and_then(|numbers| put(&numbers.view(), into)))
    }
}

/// Maps each number.
impl<F: Fn(f64) -> f64 + Send + Sync> Operator for F {
    fn result(&self, input: &Kind) -> Result<Kind, String> {
        Ok(Kind {
            dtype: Dtype::F64,
            shape: input.shape.clone(),
        })
    }

    fn needs(&self, _: &Kind, asked: &Region) -> Result<Region, String> {
        Ok(asked.clone())
    }

    fn apply(&self, input: &Input<'_>, into: &mut Tile) -> Result<(), String> {
        let numbers = floats(input).map(|numbers| numbers.mapv_into(self));
        unfit(numbers.and_then(|numbers| put(&numbers.view(), into)))
    }
}

impl Operator for Stride {
    fn result(&self, input: &Kind) -> Result<Kind, String> {
        Ok(Kind {
            dtype: input.dtype,
            shape: fewer(&input.shape, self.0),
        })
    }

    fn needs(&self, _: &Kind, asked: &Region) -> Result<Region, String> {
        // It ends with the last selected element.
        let upper = asked.upper().iter().map(|upper| (upper - 1) * self.0 + 1);
        region(times(asked.lower(), self.0), upper.collect())
    }

    fn apply(&self, input: &Input<'_>, into: &mut Tile) -> Result<(), String> {
        let step = isize::try_from(self.0).unwrap_or(isize::MAX);
        unfit(for_dtype!(input.dtype(), T => {
            let both = input.view::<T>().zip(into.view_mut::<T>());
            both.map(|(mut from, mut to)| {
                for dim in 0..from.ndim() {
                    from.slice_axis_inplace(Axis(dim), Slice::new(0, None, step));
                }
                to.assign(&from);
            })
        }))
    }
}

impl Operator for Mean {
    fn result(&self, input: &Kind) -> Result<Kind, String> {
        Ok(Kind {
            dtype: computed(input.dtype),
            shape: fewer(&input.shape, self.0),
        })
    }

    fn needs(&self, input: &Kind, asked: &Region) -> Result<Region, String> {
        let upper = times(asked.upper(), self.0);
        let inside = upper
            .iter()
            .zip(&input.shape)
            .map(|(upper, end)| *upper.min(end));
        region(times(asked.lower(), self.0), inside.collect())
    }

    fn apply(&self, input: &Input<'_>, into: &mut Tile) -> Result<(), String> {
        let mut numbers = unfit(floats(input))?;
        for dim in 0..numbers.ndim() {
            numbers = self.along(&numbers, Axis(dim));
        }
        unfit(put(&numbers.view(), into))
    }
}

impl Mean {
    /// Computes the means along one dimension. Applied to each dimension, this gives the means of
    /// blocks, because all lines of a block have the same length.
    fn along(&self, numbers: &ArrayD<f64>, axis: Axis) -> ArrayD<f64> {
        let length = numbers.len_of(axis);
        let block = usize::try_from(self.0).unwrap_or(usize::MAX).min(length);
        let mut shape = numbers.shape().to_vec();
        shape[axis.0] = length.div_ceil(block.max(1));
        let mut means = ArrayD::zeros(shape);
        for (at, mut mean) in means.axis_iter_mut(axis).enumerate() {
            let lines = at * block..(at * block + block).min(length);
            let count = lines.len() as f64;
            // In order: the sum does not depend on the memory layout.
            lines.for_each(|line| mean += &numbers.index_axis(axis, line));
            mean /= count;
        }
        means
    }
}

fn fewer(shape: &Dims, n: u64) -> Dims {
    shape.iter().map(|extent| extent.div_ceil(n)).collect()
}

fn times(corner: &[u64], n: u64) -> Dims {
    corner.iter().map(|at| at.saturating_mul(n)).collect()
}

fn region(lower: Dims, upper: Dims) -> Result<Region, String> {
    Region::new(&lower, &upper).map_err(|error| error.to_string())
}
