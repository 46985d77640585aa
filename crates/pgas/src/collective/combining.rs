//! The loops of reductions, one for each element type and operator.

use crate::Elem;
use crate::collective::op::Operator;
use std::marker::PhantomData;

/// Bytes that are combined at a time: two such blocks stay in the first-level cache.
pub(super) const BLOCK: u64 = 8 << 10;

/// Combines bytes that hold elements of a type that the implementation knows.
pub(crate) trait Combiner {
    /// Sets `sum` to `sum` combined with `with`, in this order, element by element.
    fn append(&self, sum: &mut [u8], with: &[u8]);
}

/// An operator for elements of one type.
#[derive(Debug)]
pub(crate) struct Typed<T, O>(O, PhantomData<fn() -> T>);

impl<T: Elem, O: Operator<T>> Typed<T, O> {
    pub(crate) fn new(operator: O) -> Self {
        Typed(operator, PhantomData)
    }
}

impl<T: Elem, O: Operator<T>> Combiner for Typed<T, O> {
    #[inline]
    fn append(&self, sum: &mut [u8], with: &[u8]) {
        self.0.apply_bytes(sum, with);
    }
}

/// The combiner of collectives that combine nothing.
pub(super) const NONE: Option<&'static Typed<u8, super::op::BitOr>> = None;
