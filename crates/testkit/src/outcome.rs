//! How the body of a unit fails: with a message and a location, so that it can use `?`.

use std::panic::Location;

/// The reason for a failure.
#[derive(Clone, Debug)]
pub struct Failed(pub String);

/// The result of a body.
pub type Outcome<T = ()> = Result<T, Failed>;

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Failed {
    /// Creates a failure at the caller's line.
    #[track_caller]
    pub fn new(why: impl std::fmt::Display) -> Failed {
        let at = Location::caller();
        Failed(format!("{}:{}: {why}", at.file(), at.line()))
    }
}

impl<E: std::error::Error> From<E> for Failed {
    #[track_caller]
    fn from(error: E) -> Failed {
        Failed::new(error)
    }
}

/// Fails the body unless the condition holds.
#[macro_export]
macro_rules! check {
    ($condition:expr) => {
        if !$condition {
            return Err($crate::Failed::new(concat!("not so: ", stringify!($condition))));
        }
    };
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::Failed::new(format!($($text)+)));
        }
    };
}

/// Fails the body unless both are equal.
#[macro_export]
macro_rules! same {
    ($left:expr, $right:expr $(,)?) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            return Err($crate::Failed::new(format!(
                "{} is {left:?}, {} is {right:?}",
                stringify!($left),
                stringify!($right)
            )));
        }
    }};
}

/// Fails the body unless the value matches the pattern.
#[macro_export]
macro_rules! matches_or_fail {
    ($value:expr, $pattern:pat $(if $guard:expr)? $(,)?) => {
        match &$value {
            $pattern $(if $guard)? => {}
            other => {
                return Err($crate::Failed::new(format!(
                    "{} is {other:?}, expected {}", stringify!($value), stringify!($pattern)
                )));
            }
        }
    };
}
