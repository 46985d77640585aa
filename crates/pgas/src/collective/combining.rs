//! The loops of reductions, for one element type and operator each.

use crate::Elem;
use crate::collective::op::Operator;
use samite_mem::SharedBytes;
use std::marker::PhantomData;

/// Bytes that are combined at a time: two of them stay in the first-level cache.
pub(super) const BLOCK: usize = 8 << 10;

/// Combines bytes that are elements of a type it knows.
pub(crate) trait Combiner {
    /// `into` becomes both combined, element by element; `with_first`: `with` is of lower ranks.
    fn combine(&self, with: &SharedBytes, into: &SharedBytes, with_first: bool);
}

/// An operator for elements of one type.
#[derive(Debug)]
pub(crate) struct Typed<T, O>(pub(crate) O, PhantomData<fn() -> T>);

impl<T: Elem, O: Operator<T>> Typed<T, O> {
    pub(crate) fn new(operator: O) -> Self {
        Typed(operator, PhantomData)
    }

    /// Room for a block of elements, at least one.
    pub(crate) fn scratch(&self) -> Vec<T> {
        vec![T::zeroed(); (BLOCK / size_of::<T>().max(1)).max(1)]
    }

    /// `sum` becomes `sum` and then `with`.
    #[inline]
    pub(crate) fn append(&self, sum: &mut [T], with: &[T]) {
        for (sum, with) in sum.iter_mut().zip(with) {
            *sum = self.0.apply(*sum, *with);
        }
    }

    /// `sum` becomes `with` and then `sum`.
    #[inline]
    fn prepend(&self, sum: &mut [T], with: &[T]) {
        for (sum, with) in sum.iter_mut().zip(with) {
            *sum = self.0.apply(*with, *sum);
        }
    }

    /// The same for bytes that are few and lie anywhere.
    #[inline]
    pub(crate) fn append_bytes(&self, sum: &mut [u8], with: &[u8]) {
        let size = size_of::<T>();
        if size == 0 {
            return;
        }
        for (sum, with) in sum.chunks_exact_mut(size).zip(with.chunks_exact(size)) {
            let left: T = bytemuck::pod_read_unaligned(sum);
            let right: T = bytemuck::pod_read_unaligned(with);
            sum.copy_from_slice(bytemuck::bytes_of(&self.0.apply(left, right)));
        }
    }
}

impl<T: Elem, O: Operator<T>> Combiner for Typed<T, O> {
    fn combine(&self, with: &SharedBytes, into: &SharedBytes, with_first: bool) {
        let (mut sum, mut more) = (self.scratch(), self.scratch());
        let size = size_of::<T>() as u64;
        let (mut at, block) = (0, sum.len() as u64 * size);
        while at < into.len() {
            let len = block.min(into.len() - at);
            let count = (len / size) as usize;
            let (sum, more) = (&mut sum[..count], &mut more[..count]);
            into.read(at, crate::bytes_of_mut(sum));
            with.read(at, crate::bytes_of_mut(more));
            match with_first {
                true => self.prepend(sum, more),
                false => self.append(sum, more),
            }
            into.write(at, crate::bytes_of(sum));
            at += len;
        }
    }
}
