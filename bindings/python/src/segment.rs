//! Shared memory: segments of this process and of others, and arrays over them.

use crate::argument;
use crate::fabric::{Handle, check};
use crate::waiting::{Detached, wait};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PySlice};
use samite::SharedBytes;
use std::sync::Mutex;

/// Bytes that arrays are made of: NumPy keeps it as the base of each array, so the bytes stay
/// mapped while there is one.
#[pyclass(frozen, module = "samite")]
pub(crate) struct View {
    bytes: Detached<SharedBytes>,
}

#[pymethods]
impl View {
    /// How NumPy finds the bytes.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("shape", (self.bytes.len(),))?;
        interface.set_item("data", (self.bytes.address(), false))?;
        Ok(interface)
    }
}

/// Returns an array over a range, as `numpy.ndarray` makes one over a buffer.
fn array<'py>(
    py: Python<'py>,
    bytes: &SharedBytes,
    dtype: Option<&Bound<'py, PyAny>>,
    shape: Option<&Bound<'py, PyAny>>,
    offset: u64,
) -> PyResult<Bound<'py, PyAny>> {
    let numpy = py.import("numpy")?;
    let dtype = match dtype {
        Some(dtype) => numpy.call_method1("dtype", (dtype,))?,
        None => numpy.call_method1("dtype", ("u1",))?,
    };
    if dtype.getattr("hasobject")?.is_truthy()? {
        return Err(PyValueError::new_err(
            "objects of Python cannot lie in memory that other processes write",
        ));
    }
    let len = bytes.len();
    let left = len.checked_sub(offset).ok_or_else(|| {
        PyValueError::new_err(format!("a segment of {len} bytes has no byte {offset}"))
    })?;
    let view = View {
        bytes: Detached::new(bytes.clone()),
    };
    let all = numpy.call_method1("asarray", (view,))?;
    // NumPy would add an offset to the size of the array, and the sum may overflow.
    let rest = PySlice::new(py, offset as isize, len as isize, 1);
    let options = PyDict::new(py);
    options.set_item("dtype", &dtype)?;
    options.set_item("buffer", all.get_item(rest)?)?;
    match shape {
        Some(shape) => options.set_item("shape", shape)?,
        None => {
            let size: u64 = dtype.getattr("itemsize")?.extract()?;
            options.set_item("shape", left.checked_div(size).unwrap_or(0))?;
        }
    }
    numpy.call_method("ndarray", (), Some(&options))
}

/// Memory of this process that others reach by its key.
#[pyclass(frozen, module = "samite")]
pub(crate) struct Segment {
    segment: Mutex<Option<Detached<samite::Segment>>>,
    /// The process that has allocated it: in a fork, its memory is private.
    process: u32,
}

fn freed() -> PyErr {
    PyValueError::new_err("this segment was freed")
}

impl Segment {
    pub(crate) fn new(segment: samite::Segment) -> Segment {
        Segment {
            segment: Mutex::new(Some(Detached::new(segment))),
            process: std::process::id(),
        }
    }

    /// Lets `f` use the segment, unless this is a fork of its process.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&samite::Segment) -> R) -> PyResult<R> {
        check(self.process)?;
        self.look(f)
    }

    fn look<R>(&self, f: impl FnOnce(&samite::Segment) -> R) -> PyResult<R> {
        let segment = self.segment.lock().map_err(|_| freed())?;
        segment.as_ref().map(|segment| f(segment)).ok_or_else(freed)
    }
}

#[pymethods]
impl Segment {
    /// Its name for other processes: 24 bytes.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.with(|segment| PyBytes::new(py, &segment.key().to_bytes()))
    }

    /// Its length in bytes.
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        self.with(|segment| segment.bytes().len())
    }

    fn __len__(&self) -> PyResult<usize> {
        self.with(|segment| segment.bytes().len() as usize)
    }

    /// Returns the memory as an array, without a copy; by default the whole of it, as bytes. The
    /// array keeps the memory, also when the segment was freed. Others may write it at any time.
    #[pyo3(signature = (dtype=None, shape=None, *, offset=0))]
    fn array<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        shape: Option<&Bound<'py, PyAny>>,
        offset: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let bytes = self.with(|segment| segment.bytes().clone())?;
        array(py, &bytes, dtype, shape, offset)
    }

    /// Frees the segment. Its memory is reused when nobody is attached to it, and no array over it
    /// is left.
    fn free(&self) {
        let segment = self.segment.lock().map(|mut segment| segment.take());
        drop(segment);
    }

    fn __repr__(&self) -> String {
        match self.look(|segment| (segment.key(), segment.bytes().len())) {
            Ok((key, len)) => format!("<samite.Segment {} of {len} bytes>", key.segment),
            Err(_) => "<samite.Segment, freed>".to_owned(),
        }
    }
}

/// Memory of any process, reached by its key.
#[pyclass(frozen, module = "samite")]
pub(crate) struct Remote {
    fabric: Handle,
    remote: Detached<samite::Remote>,
    process: u32,
}

impl Remote {
    pub(crate) fn new(fabric: Handle, remote: samite::Remote) -> Remote {
        Remote {
            fabric,
            remote: Detached::new(remote),
            process: std::process::id(),
        }
    }
}

#[pymethods]
impl Remote {
    /// Its key: 24 bytes.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.remote.key().to_bytes())
    }

    /// Its length in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.remote.key().bytes
    }

    fn __len__(&self) -> usize {
        self.nbytes() as usize
    }

    /// Whether `array` works: the memory is on this node.
    #[getter]
    fn is_mapped(&self) -> bool {
        self.remote.mapped().is_some()
    }

    /// Returns the memory as an array, as `Segment.array` does, if it is on this node.
    #[pyo3(signature = (dtype=None, shape=None, *, offset=0))]
    fn array<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        shape: Option<&Bound<'py, PyAny>>,
        offset: u64,
    ) -> PyResult<Bound<'py, PyAny>> {
        check(self.process)?;
        match self.remote.mapped() {
            Some(bytes) => array(py, bytes, dtype, shape, offset),
            None => Err(PyValueError::new_err(
                "this segment is not mapped here: use get and put",
            )),
        }
    }

    /// Copies bytes out of it.
    fn get<'py>(&self, py: Python<'py>, offset: u64, bytes: u64) -> PyResult<Bound<'py, PyBytes>> {
        let remote = &*self.remote;
        let copied = wait(py, &self.fabric, || remote.get_nb(offset, bytes)?.wait())?;
        Ok(PyBytes::new(py, &copied))
    }

    /// Copies bytes, an array or another buffer into it. Returns when they have arrived.
    fn put(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let remote = &*self.remote;
        let data = argument::bytes(data)?;
        wait(py, &self.fabric, || remote.put(offset, &data))
    }

    /// Adds to an aligned word of 8 bytes, atomically; returns what was there.
    fn fetch_add(&self, py: Python<'_>, offset: u64, value: u64) -> PyResult<u64> {
        let remote = &*self.remote;
        wait(py, &self.fabric, || remote.fetch_add(offset, value))
    }

    /// Replaces a word if it is `expected`, atomically; returns what was there.
    fn compare_exchange(
        &self,
        py: Python<'_>,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> PyResult<u64> {
        let remote = &*self.remote;
        wait(py, &self.fabric, || {
            remote.compare_exchange(offset, expected, new)
        })
    }

    fn __repr__(&self) -> String {
        let key = self.remote.key();
        format!(
            "<samite.Remote {} of {}, {} bytes>",
            key.segment, key.peer, key.bytes
        )
    }
}
