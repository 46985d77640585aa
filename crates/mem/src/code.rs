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

/// The `Debug` of an error: its sentence, those of its sources that it does not contain, and its
/// code. Rust prints this, and not the sentence, when `main` or a test returns the error or
/// unwraps it.
///
/// # Errors
/// The formatter's.
#[doc(hidden)]
pub fn debug_error(
    error: &dyn std::error::Error,
    code: ErrorCode,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    write!(f, "{text} [{code}]")
}

/// Gives an error enum its method `code`, and `CODES`, the codes of its own variants. A variant
/// that passes on an error of another enum, listed after `inner`, has the code of that error. A
/// variant without a number does not compile.
///
/// Its `Debug` prints the sentence of its `Display`, the sentences of its sources that the first
/// one does not contain, and the code: that is what a program prints whose `main` returns the
/// error.
///
/// ```
/// #[derive(thiserror::Error)]
/// enum Error {
///     #[error("peer {peer} was lost")]
///     Lost { peer: u32 },
///     #[error(transparent)]
///     Memory(samite_mem::Error),
/// }
/// samite_mem::error_codes!(Error, "example", { Lost = 1 }, inner: Memory);
/// let lost = Error::Lost { peer: 3 };
/// assert_eq!(lost.code().to_string(), "example.Lost (1)");
/// assert_eq!(format!("{lost:?}"), "peer 3 was lost [example.Lost (1)]");
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

        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $crate::debug_error(self, self.code(), f)
            }
        }
    };
}

#[cfg(test)]
#[allow(
    unreachable_pub,
    reason = "the macro makes methods for enums that are public"
)]
mod tests {
    use crate::Error;

    #[derive(thiserror::Error)]
    enum Outer {
        #[error("the file cannot be read")]
        File { source: Error },
        #[error("the file cannot be read: {source}")]
        Whole { source: Error },
        #[error(transparent)]
        Memory(Error),
    }

    crate::error_codes!(Outer, "outer", { File = 1, Whole = 2 }, inner: Memory);

    fn system() -> Error {
        Error::System {
            call: "mmap",
            source: std::io::Error::other("no memory"),
        }
    }

    #[test]
    fn debug_is_the_sentence_each_source_once_and_the_code() {
        let file = Outer::File { source: system() };
        let all = "the file cannot be read: mmap failed: no memory";
        assert_eq!(format!("{file:?}"), format!("{all} [outer.File (1)]"));
        let whole = Outer::Whole { source: system() };
        assert_eq!(format!("{whole:?}"), format!("{all} [outer.Whole (2)]"));
        let passed_on = Outer::Memory(system());
        let text = "mmap failed: no memory [mem.System (102)]";
        assert_eq!(format!("{passed_on:?}"), text);
        assert_eq!(format!("{:?}", system()), text);
        assert_eq!(Outer::CODES.len(), 2);
    }
}
