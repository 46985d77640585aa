//! The numeric types that an array may hold.

use serde::{Deserialize, Serialize};

/// Type of the elements of a variable. On the wire and in files it is its number, which never
/// changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
#[allow(missing_docs, reason = "each is the Rust type of the same name")]
pub enum Dtype {
    I8 = 0,
    I16 = 1,
    I32 = 2,
    I64 = 3,
    U8 = 4,
    U16 = 5,
    U32 = 6,
    U64 = 7,
    F32 = 8,
    F64 = 9,
}

impl Dtype {
    /// All types, in the order of their numbers.
    pub const ALL: [Dtype; 10] = [
        Dtype::I8,
        Dtype::I16,
        Dtype::I32,
        Dtype::I64,
        Dtype::U8,
        Dtype::U16,
        Dtype::U32,
        Dtype::U64,
        Dtype::F32,
        Dtype::F64,
    ];

    /// Returns the bytes of one element: 1, 2, 4 or 8.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::I8 | Dtype::U8 => 1,
            Dtype::I16 | Dtype::U16 => 2,
            Dtype::I32 | Dtype::U32 | Dtype::F32 => 4,
            Dtype::I64 | Dtype::U64 | Dtype::F64 => 8,
        }
    }

    /// Returns its name, as in Rust: `f64`.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::I8 => "i8",
            Dtype::I16 => "i16",
            Dtype::I32 => "i32",
            Dtype::I64 => "i64",
            Dtype::U8 => "u8",
            Dtype::U16 => "u16",
            Dtype::U32 => "u32",
            Dtype::U64 => "u64",
            Dtype::F32 => "f32",
            Dtype::F64 => "f64",
        }
    }

    /// Returns the type with this number on the wire and in files.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Returns the type of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that an array may hold. Sealed: only the types of [`Dtype`].
pub trait Element:
    bytemuck::Pod + PartialEq + std::fmt::Debug + Send + Sync + sealed::Sealed
{
    /// The type for messages and files.
    const DTYPE: Dtype;
}

macro_rules! element {
    ($($type:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;
        }
    )*};
}

element!(i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64, f32 => F32, f64 => F64);

/// Evaluates an expression with the Rust type of a [`Dtype`]: `for_dtype!(dtype, T => step.get::<T,
/// IxDyn>("u", ..))`.
#[macro_export]
macro_rules! for_dtype {
    ($dtype:expr, $T:ident => $do:expr) => {
        $crate::for_dtype!(@ $dtype, $T, $do, I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64, F32 f32, F64 f64)
    };
    (@ $dtype:expr, $T:ident, $do:expr, $($name:ident $type:ty),*) => {
        match $dtype {
            $($crate::Dtype::$name => {
                type $T = $type;
                $do
            })*
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Element>(number: u8) {
        assert_eq!(T::DTYPE.bytes(), size_of::<T>() as u64);
        assert_eq!(T::DTYPE.name(), std::any::type_name::<T>());
        assert_eq!(T::DTYPE as u8, number);
    }

    #[test]
    fn a_type_has_the_size_and_name_of_its_rust_type() {
        check::<i8>(0);
        check::<i16>(1);
        check::<i32>(2);
        check::<i64>(3);
        check::<u8>(4);
        check::<u16>(5);
        check::<u32>(6);
        check::<u64>(7);
        check::<f32>(8);
        check::<f64>(9);
    }

    #[test]
    fn numbers_and_names_lead_back() {
        for dtype in Dtype::ALL {
            assert_eq!(Dtype::from_number(dtype as u8), Some(dtype));
            assert_eq!(Dtype::from_name(dtype.name()), Some(dtype));
        }
        assert_eq!(Dtype::from_number(10), None);
        assert_eq!(Dtype::from_name("f16"), None);
    }
}
