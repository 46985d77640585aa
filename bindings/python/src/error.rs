//! The exception that errors of all layers become.

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use samite::ErrorCode;

pyo3::create_exception!(
    samite,
    Error,
    PyException,
    "What went wrong, as a sentence.\n\n\
     code: a number that never changes (docs/errors.md).\n\
     name: its name, such as fabric.PeerLost.\n\
     cause, path: of a call of moved code that failed, why (Time, Grant, ...), and the units that it\n\
     went through; the last one is that at which it failed."
);

/// An error of one of the layers.
pub(crate) trait Coded: std::fmt::Display {
    fn code(&self) -> ErrorCode;
    /// Returns what the exception has besides, by name.
    fn failure(&self) -> Option<&samite::mobile::Failure> {
        None
    }
}

impl Coded for samite::Error {
    fn code(&self) -> ErrorCode {
        self.code()
    }
}

impl Coded for samite::mobile::Error {
    fn code(&self) -> ErrorCode {
        self.code()
    }

    fn failure(&self) -> Option<&samite::mobile::Failure> {
        match self {
            samite::mobile::Error::Failed(failure) => Some(failure),
            _ => None,
        }
    }
}

/// What messages name as Rust does, and what programs in Python write.
/// A text that is a part of another one comes after it.
const WORDS: [(&str, &str); 11] = [
    (
        "`Limits::run` and `time` of the call",
        "`run` and `time` of `Mobile.call`",
    ),
    (
        "`Limits::run` and `time`",
        "`run` and `time` of `Mobile.call`",
    ),
    ("`Mobile::grant`", "`Mobile.grant`"),
    ("`Limits::grants` of the call", "`grants` of `Mobile.call`"),
    ("`Policy::llvm`", "`llvm` of `Mobile.set_policy`"),
    ("`Policy::run_max`", "`run_max` of `Mobile.set_policy`"),
    ("`Policy::trust`", "`trust` of `Mobile.set_policy`"),
    ("clone the `Mobile`", "use the `Mobile`"),
    ("`Mobile::serve`", "`Mobile.serve`"),
    ("`Mobile::evict`", "`Mobile.evict`"),
    (
        "`Mobile::define`",
        "only a program in Rust defines functions",
    ),
];

/// Returns a message in the words of Python.
fn in_python(message: String) -> String {
    let say = |message: String, (rust, python): &(&str, &str)| message.replace(rust, python);
    WORDS.iter().fold(message, say)
}

/// Returns the exception of an error.
pub(crate) fn raised(py: Python<'_>, error: &impl Coded) -> PyErr {
    let exception = Error::new_err(in_python(error.to_string()));
    let fill = |value: &Bound<'_, _>| {
        let code = error.code();
        value.setattr("code", code.number())?;
        value.setattr("name", code.name())?;
        if let Some(failure) = error.failure() {
            value.setattr("cause", format!("{:?}", failure.cause))?;
            value.setattr("path", failure.path.clone())?;
        }
        Ok(())
    };
    match fill(exception.value(py).as_any()) {
        Ok(()) => exception,
        Err(other) => other,
    }
}
