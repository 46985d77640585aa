//! A process and its peers: joining, barriers, messages.

use crate::argument::{bytes, seconds};
use crate::error::raised;
use crate::segment::{Remote, Segment};
use crate::units::Units;
use crate::waiting::{Detached, wait};
use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use samite::{FabricConfig, Match, PeerId, SegmentKey, Status};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A clone of the fabric.
pub(crate) type Handle = Detached<samite::Fabric>;

/// What a unit is in its job.
#[pyclass(frozen, get_all, module = "samite")]
pub(crate) struct Identity {
    /// The name of the job.
    job: String,
    /// The name of the program in the job.
    program: String,
    /// The number of this unit in its program, from 0.
    rank: u32,
    /// The number of units of the program.
    size: u32,
    /// The number of this unit in its job, from 0.
    unit: u32,
    /// The number of units of the job.
    units: u32,
}

#[pymethods]
impl Identity {
    fn __repr__(&self) -> String {
        format!(
            "<samite.Identity {}.{} of {}, unit {} of {} of job {}>",
            self.program, self.rank, self.size, self.unit, self.units, self.job
        )
    }
}

/// This process as a member of a domain.
#[pyclass(frozen, module = "samite", weakref)]
pub(crate) struct Fabric {
    fabric: Mutex<Option<Handle>>,
    /// The units of the job as last seen, once all have joined.
    units: Mutex<Option<Arc<Units>>>,
}

fn closed() -> PyErr {
    PyRuntimeError::new_err("this fabric was closed: close it, or leave `with`, after its last use")
}

/// Refuses to go on in a fork of a process, which has no part in its fabric.
pub(crate) fn check(process: u32) -> PyResult<()> {
    match process == std::process::id() {
        true => Ok(()),
        false => Err(PyRuntimeError::new_err(
            "this object belongs to the process that this one is a fork of: start processes with \
             the method \"spawn\" of multiprocessing",
        )),
    }
}

impl Fabric {
    fn new(fabric: samite::Fabric) -> Fabric {
        Fabric {
            fabric: Mutex::new(Some(Detached::new(fabric))),
            units: Mutex::new(None),
        }
    }

    /// Returns a clone of the fabric.
    pub(crate) fn handle(&self) -> PyResult<Handle> {
        let fabric = self.fabric.lock().map_err(|_| closed())?;
        let fabric = fabric.as_ref().ok_or_else(closed)?;
        Ok(Detached::new(samite::Fabric::clone(fabric)))
    }

    /// Returns the units of the job as they are now. Waits until all have joined, at most this
    /// long, but not again for one that was lost later.
    fn units_now(&self, py: Python<'_>, fabric: &Handle, time: Time) -> PyResult<Arc<Units>> {
        let seen = || self.units.lock().unwrap_or_else(PoisonError::into_inner);
        let before = seen().clone();
        let now = match before {
            None => wait(py, fabric, || {
                time.within(fabric, || Units::wait_for(fabric))
            })?,
            Some(before) => match py.detach(|| before.renewed(fabric)) {
                None => return Ok(before),
                Some(renewed) => renewed,
            },
        };
        let now = Arc::new(now);
        *seen() = Some(now.clone());
        Ok(now)
    }

    fn peer(&self, py: Python<'_>, fabric: &Handle, unit: u32, time: Time) -> PyResult<PeerId> {
        let units = self.units_now(py, fabric, time)?;
        match units.peer(unit) {
            Some(Ok(peer)) => Ok(*peer),
            Some(Err(error)) => Err(raised(py, error)),
            None => Err(PyIndexError::new_err(format!(
                "this job has no unit {unit}: it has {}",
                units.len()
            ))),
        }
    }
}

/// How long an operation may take, which may be several waits.
#[derive(Clone, Copy)]
struct Time(Option<Until>);

#[derive(Clone, Copy)]
struct Until {
    begin: Instant,
    timeout: Duration,
}

impl Time {
    /// Reads a timeout in seconds; without one, each wait has the deadline of the fabric.
    fn of(timeout: Option<f64>) -> PyResult<Time> {
        let timeout = timeout.map(seconds).transpose()?;
        let begin = Instant::now();
        Ok(Time(timeout.map(|timeout| Until { begin, timeout })))
    }

    /// Runs `f`, whose waits take what is left of the time.
    fn within<T>(self, fabric: &samite::Fabric, f: impl FnOnce() -> T) -> T {
        match self.0 {
            Some(Until { begin, timeout }) => {
                fabric.within(timeout.saturating_sub(begin.elapsed()), f)
            }
            None => f(),
        }
    }
}

/// Receives a message.
fn receive(
    py: Python<'_>,
    fabric: &Handle,
    wanted: Match,
    time: Time,
) -> PyResult<(Status, Vec<u8>)> {
    wait(py, fabric, || {
        time.within(fabric, || fabric.recv_vec(wanted))
    })
}

#[pymethods]
impl Fabric {
    /// What this unit is in its job: an `Identity`.
    #[getter]
    fn identity(&self) -> PyResult<Identity> {
        let fabric = self.handle()?;
        let identity = fabric.identity();
        Ok(Identity {
            job: identity.job.clone(),
            program: identity.program.clone(),
            rank: identity.rank,
            size: identity.size,
            unit: identity.unit,
            units: identity.units,
        })
    }

    /// The number of this unit in its job, from 0.
    #[getter]
    fn unit(&self) -> PyResult<u32> {
        Ok(self.handle()?.identity().unit)
    }

    /// The number of units of the job.
    #[getter]
    fn units(&self) -> PyResult<u32> {
        Ok(self.handle()?.identity().units)
    }

    /// The name of the domain; None in a domain of one process.
    #[getter]
    fn domain(&self) -> PyResult<Option<String>> {
        Ok(self.handle()?.domain().map(str::to_owned))
    }

    /// How long a wait takes at most, in seconds, unless it has a timeout of its own.
    #[getter]
    fn deadline(&self) -> PyResult<f64> {
        Ok(self.handle()?.deadline().as_secs_f64())
    }

    #[setter]
    fn set_deadline(&self, deadline: f64) -> PyResult<()> {
        self.handle()?.set_deadline(seconds(deadline)?);
        Ok(())
    }

    /// Waits until all units of the job are here, for `timeout` seconds, or as long as `deadline`.
    /// Collective.
    #[pyo3(signature = (timeout=None))]
    fn barrier(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let fabric = self.handle()?;
        let time = Time::of(timeout)?;
        let units = self.units_now(py, &fabric, time)?;
        let members = units.peers().map_err(|error| raised(py, &error))?;
        wait(py, &fabric, || {
            time.within(&fabric, || fabric.barrier(&members))
        })
    }

    /// Takes what has arrived, and runs what others call here. Does not wait.
    fn progress(&self, py: Python<'_>) -> PyResult<usize> {
        let fabric = self.handle()?;
        Ok(py.detach(|| fabric.progress()))
    }

    /// Allocates zeroed shared memory: a `Segment`. Local.
    fn allocate(&self, py: Python<'_>, bytes: u64) -> PyResult<Segment> {
        let fabric = self.handle()?;
        Ok(Segment::new(wait(py, &fabric, || fabric.allocate(bytes))?))
    }

    /// Prepares access to a segment of any process, by its key: a `Remote`. Local on one node.
    fn attach(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Remote> {
        let fabric = self.handle()?;
        let key = bytes(key)?;
        let key: &[u8; 24] = key[..].try_into().map_err(|_| {
            PyValueError::new_err(format!(
                "a key of a segment has 24 bytes, not {}",
                key.len()
            ))
        })?;
        let key = SegmentKey::from_bytes(key);
        let remote = wait(py, &fabric, || fabric.attach(key))?;
        Ok(Remote::new(fabric, remote))
    }

    /// Sends a message: bytes, an array or another buffer. Returns when it may be changed.
    #[pyo3(signature = (unit, data, tag=0, *, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        unit: u32,
        data: &Bound<'_, PyAny>,
        tag: u64,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let fabric = self.handle()?;
        let (time, data) = (Time::of(timeout)?, bytes(data)?);
        let to = self.peer(py, &fabric, unit, time)?;
        wait(py, &fabric, || {
            time.within(&fabric, || fabric.send(to, tag, &data))
        })
    }

    /// Receives a message of a unit, or of any, with this tag; returns its bytes.
    #[pyo3(signature = (unit=None, tag=0, *, timeout=None))]
    fn recv<'py>(
        &self,
        py: Python<'py>,
        unit: Option<u32>,
        tag: u64,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (fabric, time) = (self.handle()?, Time::of(timeout)?);
        let wanted = match unit {
            Some(unit) => Match::from(self.peer(py, &fabric, unit, time)?, tag),
            None => Match::any(tag),
        };
        let (_, message) = receive(py, &fabric, wanted, time)?;
        Ok(PyBytes::new(py, &message))
    }

    /// Receives a message of any unit with this tag; returns the unit and the bytes. The unit is
    /// None if the sender is not of this job, or is a former life of a unit that was started again.
    #[pyo3(signature = (tag=0, *, timeout=None))]
    fn recv_from<'py>(
        &self,
        py: Python<'py>,
        tag: u64,
        timeout: Option<f64>,
    ) -> PyResult<(Option<usize>, Bound<'py, PyBytes>)> {
        let (fabric, time) = (self.handle()?, Time::of(timeout)?);
        let before = self.units_now(py, &fabric, time)?;
        let (status, message) = receive(py, &fabric, Match::any(tag), time)?;
        // The sender may have been started again, or lost, during the wait.
        let now = self.units_now(py, &fabric, time)?;
        let unit = now.unit(status.from).or_else(|| before.unit(status.from));
        Ok((unit, PyBytes::new(py, &message)))
    }

    /// Gives the handle back. The process leaves when its last `Segment`, `Remote`, `Mobile` and
    /// `Future` is gone, too.
    fn close(&self) {
        let fabric = self.fabric.lock().map(|mut fabric| fabric.take());
        drop(fabric);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, _raised: &Bound<'_, pyo3::types::PyTuple>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        match self.identity() {
            Ok(identity) => format!(
                "<samite.Fabric: unit {} of {}>",
                identity.unit, identity.units
            ),
            Err(_) => "<samite.Fabric, closed>".to_owned(),
        }
    }
}

fn joined(
    py: Python<'_>,
    join: impl FnOnce() -> samite::Result<samite::Fabric> + Send,
) -> PyResult<Fabric> {
    let fabric = py.detach(join);
    fabric.map(Fabric::new).map_err(|error| raised(py, &error))
}

/// Joins as `samite run` says.
#[pyfunction]
pub(crate) fn init(py: Python<'_>) -> PyResult<Fabric> {
    joined(py, samite::init)
}

/// Joins a running domain by name.
#[pyfunction]
pub(crate) fn join(py: Python<'_>, domain: &str) -> PyResult<Fabric> {
    joined(py, || samite::join(domain))
}

/// Creates a domain of one process.
#[pyfunction]
#[pyo3(signature = (name="python"))]
pub(crate) fn alone(py: Python<'_>, name: &str) -> PyResult<Fabric> {
    let identity = samite::Identity::by_hand(name);
    joined(py, || {
        samite::Fabric::alone(identity, FabricConfig::default())
    })
}
