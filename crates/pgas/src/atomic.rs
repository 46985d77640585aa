//! Atomic operations on elements in global memory.
//!
//! All are atomic with respect to each other on the same element, whichever unit issues them and by
//! whichever path. All units see them in one order (sequentially consistent). Integers of 32 and 64
//! bits have most operations natively: on mapped memory one instruction, else one message and its
//! answer. The rest (products, floats, signed minima, 8 and 16 bits) retry a compare-exchange of
//! the word that contains the element.

use crate::waited::Attempts;
use crate::{Elem, Result};
use samite_fabric::{Atomic, Error as Below, Fabric, Remote, Whom, Width};

/// What an update does to an element: `new = old op value`.
///
/// In memory that is not mapped, one message and its answer update an integer of 32 or 64 bits. The
/// exceptions are [`Update::Prod`], and minimum and maximum of signed integers: these read the
/// element first, and so do updates of floats except [`Update::Replace`].
///
/// ```
/// # use samite_fabric::{Config, Fabric, Identity};
/// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
/// # let pgas = samite_pgas::Pgas::new(&fabric)?;
/// # let world = pgas.world();
/// use samite_pgas::Update;
/// let counters = world.allocate::<u32>(10)?;
/// counters.fetch_op(0, 3, Update::Sum, 5)?; // element 3 at rank 0
/// counters.fetch_op(0, 3, Update::BitOr, 8)?;
/// assert_eq!(counters.fetch_op(0, 3, Update::Replace, 0)?, 13);
/// counters.accumulate(0, 4, &[1, 2, 3], Update::Max)?; // elements 4, 5 and 6
/// # counters.free()?;
/// # Ok::<(), samite_pgas::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Update {
    /// `old + value`; integers wrap.
    Sum,
    /// `old * value`; integers wrap.
    Prod,
    /// The smaller one.
    Min,
    /// The larger one.
    Max,
    /// Bits in both. Integers only.
    BitAnd,
    /// Bits in one or the other. Integers only.
    BitOr,
    /// Bits in exactly one. Integers only.
    BitXor,
    /// `value`.
    Replace,
}

/// Elements that updates are defined for: integers of all widths and floats. Sealed.
pub trait AtomicElem: Elem + PartialEq + sealed::Word {}
impl<T: Elem + PartialEq + sealed::Word> AtomicElem for T {}

pub(crate) mod sealed {
    use super::Update;
    use samite_fabric::Atomic;

    pub trait Word: Copy {
        /// Returns the element as the low bits of a word.
        fn to_word(self) -> u64;
        fn from_word(word: u64) -> Self;
        /// Returns the equivalent operation of the fabric on the whole word, if there is one.
        fn native(update: Update) -> Option<Atomic>;
        /// Returns the updated element, or `None` if the type has no such operation.
        fn apply(self, update: Update, value: Self) -> Option<Self>;
    }
}

macro_rules! integers {
    ($($int:ty, $unsigned:ty, $ordered:expr;)*) => {$(
        impl sealed::Word for $int {
            #[inline(always)]
            fn to_word(self) -> u64 {
                self as $unsigned as u64
            }
            #[inline(always)]
            fn from_word(word: u64) -> Self {
                word as $int
            }
            #[inline(always)]
            fn native(update: Update) -> Option<Atomic> {
                Some(match update {
                    _ if size_of::<$int>() < 4 => return None,
                    Update::Sum => Atomic::Add,
                    // The fabric compares words without a sign.
                    Update::Min if $ordered => Atomic::Min,
                    Update::Max if $ordered => Atomic::Max,
                    Update::BitAnd => Atomic::And,
                    Update::BitOr => Atomic::Or,
                    Update::BitXor => Atomic::Xor,
                    Update::Replace => Atomic::Swap,
                    _ => return None,
                })
            }
            #[inline(always)]
            fn apply(self, update: Update, value: Self) -> Option<Self> {
                Some(match update {
                    Update::Sum => self.wrapping_add(value),
                    Update::Prod => self.wrapping_mul(value),
                    Update::Min => self.min(value),
                    Update::Max => self.max(value),
                    Update::BitAnd => self & value,
                    Update::BitOr => self | value,
                    Update::BitXor => self ^ value,
                    Update::Replace => value,
                })
            }
        }
    )*};
}

integers! {
    u8, u8, true; u16, u16, true; u32, u32, true; u64, u64, true; usize, usize, true;
    i8, u8, false; i16, u16, false; i32, u32, false; i64, u64, false; isize, usize, false;
}

macro_rules! floats {
    ($($float:ty;)*) => {$(
        impl sealed::Word for $float {
            #[inline(always)]
            fn to_word(self) -> u64 {
                u64::from(self.to_bits())
            }
            #[inline(always)]
            fn from_word(word: u64) -> Self {
                Self::from_bits(word as _)
            }
            #[inline(always)]
            fn native(update: Update) -> Option<Atomic> {
                (update == Update::Replace).then_some(Atomic::Swap)
            }
            #[inline(always)]
            fn apply(self, update: Update, value: Self) -> Option<Self> {
                Some(match update {
                    Update::Sum => self + value,
                    Update::Prod => self * value,
                    Update::Min => self.min(value),
                    Update::Max => self.max(value),
                    Update::Replace => value,
                    Update::BitAnd | Update::BitOr | Update::BitXor => return None,
                })
            }
        }
    )*};
}

floats! { f32; f64; }

/// Stores `old op value` at a byte offset of a segment. Returns the old value.
#[inline]
pub(crate) fn fetch_op<T: AtomicElem>(
    fabric: &Fabric,
    remote: &Remote,
    offset: u64,
    update: Update,
    value: T,
) -> Result<T> {
    if let Some(op) = T::native(update) {
        let old = remote.atomic(offset, op, width::<T>(), value.to_word(), 0)?;
        return Ok(T::from_word(old));
    }
    exchange(fabric, remote, offset, |old: T| old.apply(update, value))
}

/// Replaces the element if it is bitwise equal to `expected`. Returns the old value.
#[inline]
pub(crate) fn compare_swap<T: AtomicElem>(
    fabric: &Fabric,
    remote: &Remote,
    offset: u64,
    expected: T,
    new: T,
) -> Result<T> {
    let (expected, new) = (expected.to_word(), new.to_word());
    if size_of::<T>() >= 4 {
        let op = Atomic::CompareExchange;
        let old = remote.atomic(offset, op, width::<T>(), expected, new)?;
        return Ok(T::from_word(old));
    }
    exchange(fabric, remote, offset, |old: T| {
        Some(if old.to_word() == expected {
            T::from_word(new)
        } else {
            old
        })
    })
}

/// Returns the element, as one value that it had at some time.
#[inline]
pub(crate) fn load<T: AtomicElem>(remote: &Remote, offset: u64) -> Result<T> {
    let (at, shift) = place::<T>(offset)?;
    let word = remote.atomic(at, Atomic::Load, width::<T>(), 0, 0)?;
    Ok(T::from_word(word >> shift))
}

/// Replaces the element by the result of `change`, and retries if another access interfered.
/// Returns the old value. Errors: the deadline, because units closer to the memory may interfere
/// every time.
fn exchange<T: AtomicElem>(
    fabric: &Fabric,
    remote: &Remote,
    offset: u64,
    change: impl Fn(T) -> Option<T>,
) -> Result<T> {
    let (at, shift) = place::<T>(offset)?;
    let width = width::<T>();
    let mask = u64::MAX >> (64 - 8 * size_of::<T>()) << shift;
    let mut word = remote.atomic(at, Atomic::Load, width, 0, 0)?;
    let mut attempts = Attempts::default();
    loop {
        let old = T::from_word(word >> shift);
        let new = change(old).ok_or(crate::Error::NoSuchUpdate(std::any::type_name::<T>()))?;
        let wanted = word & !mask | new.to_word() << shift & mask;
        let found = remote.atomic(at, Atomic::CompareExchange, width, word, wanted)?;
        if found == word {
            return Ok(old);
        }
        word = found;
        let whom = || Whom::Peer(remote.key().peer);
        attempts.again(fabric, "an element that others change", whom)?;
    }
}

/// Returns the offset of the word that contains an element, and the element's shift in it.
#[inline(always)]
fn place<T>(offset: u64) -> Result<(u64, u64)> {
    if !offset.is_multiple_of(size_of::<T>() as u64) {
        return Err(Below::Misaligned(offset).into());
    }
    let word = (size_of::<T>() as u64).max(4);
    let at = offset / word * word;
    // Numbers are little endian, in memory and in messages.
    Ok((at, (offset - at) * 8))
}

/// Loads the word that contains an element.
#[inline(always)]
pub(crate) fn width<T>() -> Width {
    if size_of::<T>() == 8 {
        Width::W64
    } else {
        Width::W32
    }
}

#[cfg(test)]
mod tests {
    use crate::tampered::Lies;
    use crate::{Error, Pgas};
    use samite_fabric::Error as Below;
    use samite_testkit::{check, simulate};
    use std::time::Duration;

    /// The element changes at each read.
    #[test]
    fn an_element_that_changes_all_the_time() {
        let lies = &Lies::new();
        let name = "atomic::tests::an_element_that_changes_all_the_time";
        simulate(name, 2, 0..1, |fabric, _| {
            let pgas = Pgas::new(fabric)?;
            let world = pgas.world();
            let numbers = world.allocate::<f64>(1)?;
            if world.rank() == 1 {
                lies.tell(fabric, |count, _| count);
            }
            world.barrier()?;
            if world.rank() == 0 {
                let short = Duration::from_millis(20);
                lies.begin();
                let ended = fabric.within(short, || numbers.fetch_add(1, 0, 1.0));
                check!(!lies.end(), "it has no deadline");
                let is_late = matches!(ended, Err(Error::Fabric(Below::Timeout { .. })));
                check!(is_late, "{ended:?}");
            }
            Ok(world.barrier()?)
        });
    }
}
