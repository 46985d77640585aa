//! Bytes and times that Python passes.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyMemoryView};
use std::time::Duration;

/// Returns the bytes of an object: `bytes` themselves, those of an array or another buffer as a
/// copy.
pub(crate) fn bytes(of: &Bound<'_, PyAny>) -> PyResult<PyBackedBytes> {
    if let Ok(bytes) = of.cast::<PyBytes>() {
        return Ok(bytes.clone().into());
    }
    let holds_objects = match of.getattr_opt("dtype")? {
        Some(dtype) => match dtype.getattr_opt("hasobject")? {
            Some(has) => has.is_truthy()?,
            None => false,
        },
        None => false,
    };
    if holds_objects {
        return Err(PyTypeError::new_err(
            "an array of Python objects has no bytes that mean anything elsewhere: convert it \
             (`astype`)",
        ));
    }
    // `bytes` would also take a list of numbers, for one byte each.
    let copied = match of.getattr_opt("tobytes")? {
        Some(method) => Some(method.call0()?),
        None => {
            let view = PyMemoryView::from(of);
            view.and_then(|view| view.call_method0("tobytes")).ok()
        }
    };
    let copied = copied.and_then(|copied| copied.cast_into::<PyBytes>().ok());
    match copied {
        Some(bytes) => Ok(bytes.into()),
        None => Err(PyTypeError::new_err(format!(
            "bytes, an array or another buffer are needed, not {}",
            of.get_type().name()?
        ))),
    }
}

/// Returns the bytes of the payload of a call, which may be left out.
pub(crate) fn payload(of: &Bound<'_, PyAny>) -> PyResult<PyBackedBytes> {
    match of.is_none() {
        true => Ok(PyBytes::new(of.py(), &[]).into()),
        false => bytes(of),
    }
}

/// Returns a time that is given in seconds.
pub(crate) fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).or_else(|_| match seconds > 0.0 {
        true => Ok(Duration::MAX),
        false => Err(PyValueError::new_err(format!(
            "{seconds} is not a time in seconds"
        ))),
    })
}
