//! Stable error numbers, for languages that cannot match on an enum.

use std::fmt;

/// The stable number of an error, and its name. `docs/errors.md` lists all of them; the meaning of
/// a number never changes. 0 is unused, so that it can mean "no error".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErrorCode {
    number: u16,
    name: &'static str,
}

impl ErrorCode {
    /// For [`error_codes`](crate::error_codes).
    #[doc(hidden)]
    pub const fn new(number: u16, name: &'static str) -> Self {
        Self { number, name }
    }

    /// Returns the number.
    pub const fn number(self) -> u16 {
        self.number
    }

    /// Returns the name: `fabric.PeerLost`.
    pub const fn name(self) -> &'static str {
        self.name
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.number)
    }
}

/// Gives an error enum its method `code`, and `CODES`, the codes of its own variants. A variant
/// that passes on an error of another enum, listed after `inner`, has the code of that error. A
/// variant without a number does not compile.
///
/// ```
/// enum Error {
///     Lost { peer: u32 },
///     Memory(samite_mem::Error),
/// }
/// samite_mem::error_codes!(Error, "example", { Lost = 1 }, inner: Memory);
/// assert_eq!(Error::Lost { peer: 3 }.code().to_string(), "example.Lost (1)");
/// assert_eq!(Error::Memory(samite_mem::Error::Forked).code(), samite_mem::Error::Forked.code());
/// ```
#[macro_export]
macro_rules! error_codes {
    (
        $error:ident, $of:literal, { $($variant:ident = $number:literal),* $(,)? }
        $(, inner: $($inner:ident),+)?
    ) => {
        impl $error {
            /// The codes of its own variants.
            pub const CODES: &'static [$crate::ErrorCode] = &[$($crate::ErrorCode::new(
                $number,
                concat!($of, ".", stringify!($variant)),
            )),*];

            /// Returns the stable number and name of this error; if it passes on another error,
            /// those of the other.
            pub fn code(&self) -> $crate::ErrorCode {
                match self {
                    $(Self::$variant { .. } => $crate::ErrorCode::new(
                        $number,
                        concat!($of, ".", stringify!($variant)),
                    ),)*
                    $($(Self::$inner(inner) => inner.code(),)+)?
                }
            }
        }
    };
}
