//! Operators of reductions: the predefined ones, those on a value and its place, and user-defined
//! ones.
//!
//! An operator must be associative. The members' elements are combined in the order of their ranks,
//! in groups that depend on the size and the team. So sums of floating-point numbers may differ in
//! the last bits between teams and sizes, but all members of one call get the same bits.

use crate::Elem;

/// An associative operation on two elements. It must not use the fabric or call collectives.
pub trait Operator<T: Elem> {
    /// Combines two elements. `left` comes from the lower ranks.
    fn apply(&self, left: T, right: T) -> T;

    /// Combines many elements: sets each one of `left` to itself combined with the one of `right`
    /// at its place. Both are the bytes of as many elements, not aligned. An operator that has less
    /// work with many elements at once does it here.
    #[inline]
    fn apply_bytes(&self, left: &mut [u8], right: &[u8]) {
        let size = size_of::<T>();
        if size == 0 {
            return;
        }
        for (left, right) in left.chunks_exact_mut(size).zip(right.chunks_exact(size)) {
            let (one, two): (T, T) = (
                bytemuck::pod_read_unaligned(left),
                bytemuck::pod_read_unaligned(right),
            );
            left.copy_from_slice(bytemuck::bytes_of(&self.apply(one, two)));
        }
    }

    /// Returns true if the operator commutes. Otherwise elements are combined strictly by rank.
    fn commutes(&self) -> bool {
        true
    }

    /// Returns a code, so that members detect that they call with different operators. All
    /// user-defined operators have the same code.
    fn code(&self) -> u8 {
        USER
    }
}

const USER: u8 = 0xff;

/// Defines the predefined operators, which have no state.
macro_rules! usual {
    ($($(#[$text:meta])* $name:ident;)+) => {
        $($(#[$text])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name;)+
    };
}

usual! {
    /// Sum. Integers wrap around.
    Sum;
    /// Product. Integers wrap around.
    Prod;
    /// Minimum. Of a number and a NaN, the number.
    Min;
    /// Maximum. Of a number and a NaN, the number.
    Max;
    /// Bits that are set in all.
    BitAnd;
    /// Bits that are set in any.
    BitOr;
    /// Bits that are set in an odd number.
    BitXor;
    /// 1 if none is 0, else 0.
    LogicalAnd;
    /// 0 if all are 0, else 1.
    LogicalOr;
    /// Minimum with its place; of equal values, the lowest place. On [`Located`].
    MinLoc;
    /// Maximum with its place; of equal values, the lowest place. On [`Located`].
    MaxLoc;
}

/// A value and its place: a rank, an index or any other number that the user chooses.
///
/// ```
/// # use samite_fabric::{Config, Fabric, Identity};
/// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
/// # let pgas = samite_pgas::Pgas::new(&fabric)?;
/// # let world = pgas.world();
/// use samite_pgas::{Located, MinLoc};
/// let mut coldest = [Located::new(0.0, 0)];
/// let own = Located::new(-3.5, u64::from(world.rank())); // a value, and where it is
/// world.all_reduce(&[own], &mut coldest, MinLoc)?;
/// assert_eq!((coldest[0].value(), coldest[0].place()), (-3.5, 0));
/// # Ok::<(), samite_pgas::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, packed)]
pub struct Located<V> {
    value: V,
    place: u64,
}

impl<V: Copy> Located<V> {
    /// Returns a value at a place.
    pub fn new(value: V, place: u64) -> Self {
        Located { value, place }
    }

    /// Returns the value.
    pub fn value(&self) -> V {
        self.value
    }

    /// Returns the place.
    pub fn place(&self) -> u64 {
        self.place
    }
}

/// A user-defined operator.
///
/// ```
/// # use samite_fabric::{Config, Fabric, Identity};
/// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
/// # let pgas = samite_pgas::Pgas::new(&fabric)?;
/// # let world = pgas.world();
/// use samite_pgas::Op;
/// // The longer of two vectors; the same, whichever comes first.
/// let length = |of: [f64; 2]| of[0].hypot(of[1]);
/// let longer = Op::new(move |a, b| if length(a) < length(b) { b } else { a });
/// let mut longest = [[0.0; 2]];
/// world.all_reduce(&[[3.0, 4.0]], &mut longest, longer)?;
/// assert_eq!(longest, [[3.0, 4.0]]);
/// # Ok::<(), samite_pgas::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Op<F> {
    apply: F,
    commutes: bool,
}

impl<F> Op<F> {
    /// Returns an operator that commutes.
    pub fn new<T: Elem>(apply: F) -> Self
    where
        F: Fn(T, T) -> T,
    {
        Op {
            apply,
            commutes: true,
        }
    }

    /// Returns an operator whose left argument must come from the lower ranks.
    pub fn ordered<T: Elem>(apply: F) -> Self
    where
        F: Fn(T, T) -> T,
    {
        Op {
            apply,
            commutes: false,
        }
    }
}

impl<T: Elem, F: Fn(T, T) -> T> Operator<T> for Op<F> {
    #[inline(always)]
    fn apply(&self, left: T, right: T) -> T {
        (self.apply)(left, right)
    }
    fn commutes(&self) -> bool {
        self.commutes
    }
}

/// Returns the name of the operator with this code, for an error.
pub(crate) fn name_of(code: u64) -> &'static str {
    const NAMES: [&str; 11] = [
        "Sum",
        "Prod",
        "Min",
        "Max",
        "BitAnd",
        "BitOr",
        "BitXor",
        "LogicalAnd",
        "LogicalOr",
        "MinLoc",
        "MaxLoc",
    ];
    if code == u64::from(USER) {
        return "an operator of the program";
    }
    let index = usize::try_from(code)
        .ok()
        .and_then(|code| code.checked_sub(1));
    let name = index.and_then(|index| NAMES.get(index));
    name.copied().unwrap_or("none")
}

/// Implements operators, each given as `operator for types: code, expression`.
macro_rules! operators {
    ($($operator:ty, $code:expr, for $($t:ty)+: |$a:ident, $b:ident| $value:expr;)+) => {
        $($(impl Operator<$t> for $operator {
            #[inline(always)]
            fn apply(&self, $a: $t, $b: $t) -> $t {
                $value
            }
            fn code(&self) -> u8 {
                $code
            }
        })+)+
    };
}

operators! {
    Sum, 1, for i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize: |a, b| a.wrapping_add(b);
    Sum, 1, for f32 f64: |a, b| a + b;
    Prod, 2, for i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize: |a, b| a.wrapping_mul(b);
    Prod, 2, for f32 f64: |a, b| a * b;
    Min, 3, for i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize f32 f64: |a, b| a.min(b);
    Max, 4, for i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize f32 f64: |a, b| a.max(b);
    BitAnd, 5, for i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize: |a, b| a & b;
    BitOr, 6, for i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize: |a, b| a | b;
    BitXor, 7, for i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize: |a, b| a ^ b;
    LogicalAnd, 8, for i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize:
        |a, b| (a != 0 && b != 0).into();
    LogicalOr, 9, for i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize:
        |a, b| (a != 0 || b != 0).into();
}

macro_rules! with_place {
    ($($operator:ident, $code:expr, $better:tt;)+) => {
        $(impl<V: PartialOrd + Copy + 'static> Operator<Located<V>> for $operator
        where
            Located<V>: Elem,
        {
            #[inline(always)]
            fn apply(&self, a: Located<V>, b: Located<V>) -> Located<V> {
                let as_good = a.value() == b.value() && b.place() < a.place();
                if b.value() $better a.value() || as_good { b } else { a }
            }
            fn code(&self) -> u8 {
                $code
            }
        })+
    };
}

with_place! {
    MinLoc, 10, <;
    MaxLoc, 11, >;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_ones() {
        assert_eq!(Sum.apply(u8::MAX, 2), 1);
        assert_eq!(Prod.apply(i32::MAX, 2), -2);
        assert_eq!(Min.apply(f64::NAN, 2.0), 2.0);
        assert_eq!(Max.apply(-3i8, 2), 2);
        assert_eq!(BitAnd.apply(6u64, 3), 2);
        assert_eq!(BitOr.apply(6u64, 3), 7);
        assert_eq!(BitXor.apply(6u64, 3), 5);
        assert_eq!(
            (LogicalAnd.apply(6i32, 3), LogicalAnd.apply(6i32, 0)),
            (1, 0)
        );
        assert_eq!((LogicalOr.apply(0u8, 3), LogicalOr.apply(0u8, 0)), (1, 0));
    }

    #[test]
    fn of_equal_values_the_lowest_place() {
        fn at<V: Copy>(value: V, place: u64) -> Located<V> {
            Located::new(value, place)
        }
        assert_eq!(MinLoc.apply(at(1.5, 7), at(1.5, 3)), at(1.5, 3));
        assert_eq!(MinLoc.apply(at(1.0, 7), at(1.5, 3)), at(1.0, 7));
        assert_eq!(MaxLoc.apply(at(1, 7), at(2, 9)), at(2, 9));
        assert_eq!(MaxLoc.apply(at(2u8, 7), at(2, 9)), at(2, 7));
    }

    #[test]
    fn users_say_whether_order_matters() {
        let first = Op::ordered(|left: u32, _: u32| left);
        assert_eq!(Operator::<u32>::apply(&first, 1, 2), 1);
        assert!(!Operator::<u32>::commutes(&first));
        let larger = Op::new(|a: u32, b: u32| a.max(b));
        assert!(Operator::<u32>::commutes(&larger));
        assert_eq!(Operator::<u32>::code(&larger), USER);
    }

    #[test]
    fn errors_name_operators() {
        macro_rules! check {
            ($($operator:ident of $t:ty),+) => {
                $(let code = Operator::<$t>::code(&$operator);
                assert_eq!(name_of(code.into()), stringify!($operator));)+
            };
        }
        check!(Sum of u8, Sum of f32, Prod of i64, Prod of f64, Min of f32, Max of u32);
        check!(BitAnd of u8, BitOr of u8, BitXor of u8, LogicalAnd of u8, LogicalOr of u8);
        check!(MinLoc of Located<f64>, MaxLoc of Located<u8>);
        let own = Op::new(|a: u32, b: u32| a.max(b));
        let code = Operator::<u32>::code(&own);
        assert_eq!(name_of(code.into()), "an operator of the program");
        assert_eq!(name_of(0), "none");
    }
}
