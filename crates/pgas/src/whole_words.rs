//! Values as whole words.

use crate::{Elem, bytes_of, bytes_of_mut};
use smallvec::{SmallVec, smallvec};

/// The words of one or a few values.
pub(crate) type Words = SmallVec<[u64; 14]>;

/// Returns the bytes of a value in whole words, padded with zeros.
pub(crate) fn to_words<T: Elem>(value: &T) -> Words {
    let bytes = bytes_of(std::slice::from_ref(value));
    let mut words: Words = smallvec![0; bytes.len().div_ceil(8)];
    bytes_of_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
    words
}

/// Returns the value that these words hold.
pub(crate) fn from_words<T: Elem>(words: &[u64]) -> T {
    let mut value = T::zeroed();
    let bytes = bytes_of_mut(std::slice::from_mut(&mut value));
    bytes.copy_from_slice(&bytes_of(words)[..bytes.len()]);
    value
}
