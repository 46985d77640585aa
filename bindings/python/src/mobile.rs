//! Moved code: capsules, grants, calls.

use crate::argument::{bytes, payload, seconds};
use crate::error::raised;
use crate::fabric::{Fabric, check};
use crate::segment::Segment;
use crate::waiting::{Detached, is_interrupted, raised_meanwhile, wait};
use pyo3::exceptions::{PyBaseException, PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};
use samite::mobile::{GRANTS_MAX, Limits, Part, Policy, Processor, Registered, Rights, Trust};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How often a unit that serves without a rest looks for signals.
const LOOK: Duration = Duration::from_millis(50);

/// Code in one or several forms, named by its hash.
#[pyclass(frozen, module = "samite")]
pub(crate) struct Capsule(samite::mobile::Capsule);

impl Capsule {
    fn of(
        py: Python<'_>,
        made: Result<samite::mobile::Capsule, samite::mobile::Error>,
    ) -> PyResult<Capsule> {
        made.map(Capsule).map_err(|error| raised(py, &error))
    }
}

#[pymethods]
impl Capsule {
    /// Makes one of a module of WebAssembly, and of bitcode for processors by their names.
    #[new]
    #[pyo3(signature = (entries, *, wasm=None, bitcode=None))]
    fn new(
        py: Python<'_>,
        entries: Vec<String>,
        wasm: Option<PyBackedBytes>,
        bitcode: Option<BTreeMap<String, PyBackedBytes>>,
    ) -> PyResult<Capsule> {
        let bitcode = bitcode.unwrap_or_default();
        if entries.is_empty() || (wasm.is_none() && bitcode.is_empty()) {
            return Err(PyValueError::new_err(
                "a capsule has at least one entry, and code: pass `wasm`, `bitcode`, or both",
            ));
        }
        let mut builder = samite::mobile::Capsule::builder(entries);
        for (processor, code) in bitcode {
            let known = [Processor::X86, Processor::Arm];
            let of = known.into_iter().find(|of| of.name() == processor);
            let of = of.ok_or_else(|| {
                PyValueError::new_err(format!("{processor} is neither x86-64 nor aarch64"))
            })?;
            let producer = Part::producer_of(&code).map_err(|error| raised(py, &error))?;
            builder = builder.bitcode(of, producer, code.to_vec());
        }
        if let Some(wasm) = wasm {
            builder = builder.wasm(wasm.to_vec());
        }
        Capsule::of(py, builder.build())
    }

    /// Makes one of a module of WebAssembly as text.
    #[staticmethod]
    fn from_wat(py: Python<'_>, text: &str) -> PyResult<Capsule> {
        Capsule::of(py, samite::mobile::Capsule::from_wat(text))
    }

    /// Reads one from its bytes.
    #[staticmethod]
    fn decode(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Capsule> {
        Capsule::of(py, samite::mobile::Capsule::decode(&bytes(data)?))
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.bytes())
    }

    /// Its name, in hexadecimal.
    #[getter]
    fn hash(&self) -> String {
        hexadecimal(&self.0.hash().0)
    }

    /// The names of its entries, by number.
    #[getter]
    fn entries(&self) -> Vec<String> {
        self.0.entries().to_vec()
    }

    /// The public key of its signer, in hexadecimal; None without a signature.
    #[getter]
    fn signer(&self) -> Option<String> {
        self.0.signer().map(|key| hexadecimal(key))
    }

    fn __repr__(&self) -> String {
        let parts = self.0.parts().iter();
        let parts: Vec<String> = parts
            .map(|part| format!("{:?} for {}", part.kind, part.processor.name()))
            .collect();
        format!("<samite.Capsule {}: {}>", self.0.hash(), parts.join(", "))
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads the 32 bytes of a public key or of a hash, as `bytes` or in hexadecimal. What is wrong is
/// not shown: it may be a secret.
fn of_32(given: &Bound<'_, PyAny>) -> PyResult<[u8; 32]> {
    let wrong = |len: usize, of: &str| {
        PyValueError::new_err(format!(
            "a public key or a hash has 32 bytes, or 64 hexadecimal digits, not {len} {of}"
        ))
    };
    let Ok(text) = given.extract::<String>() else {
        let bytes = bytes(given)?;
        return bytes[..]
            .try_into()
            .map_err(|_| wrong(bytes.len(), "bytes"));
    };
    let text = text.trim();
    if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(wrong(text.chars().count(), "such characters"));
    }
    let mut read = [0; 32];
    for (at, byte) in read.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap_or(0);
    }
    Ok(read)
}

/// Code that a unit has registered.
#[pyclass(frozen, module = "samite")]
pub(crate) struct Code(Registered);

#[pymethods]
impl Code {
    /// Its name, in hexadecimal.
    #[getter]
    fn hash(&self) -> String {
        hexadecimal(&self.0.hash().0)
    }

    /// The `Capsule` that was registered.
    #[getter]
    fn capsule(&self) -> Capsule {
        Capsule(self.0.capsule().clone())
    }

    fn __repr__(&self) -> String {
        format!("<samite.Code {}>", self.0.hash())
    }
}

/// Moved code, as this unit sends and runs it.
#[pyclass(frozen, module = "samite", subclass)]
pub(crate) struct Mobile {
    mobile: Detached<samite::mobile::Mobile>,
    /// The process that has made it.
    process: u32,
}

impl Mobile {
    /// Returns the runtime, unless this is a fork of its process.
    fn here(&self) -> PyResult<&samite::mobile::Mobile> {
        check(self.process).map(|()| &*self.mobile)
    }
}

/// Limits as Python passes them: what is `None` has its default.
struct GivenLimits {
    run: Option<f64>,
    time: Option<f64>,
    hops: Option<u16>,
    grants: Option<Vec<u32>>,
    may_spawn: Option<bool>,
    may_define: Option<bool>,
}

/// Returns one of the limits that were given. An error names it and keeps its kind.
fn given<'py, T>(limits: &Bound<'py, PyDict>, name: &str, what: &str) -> PyResult<Option<T>>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    let Some(value) = limits.get_item(name)? else {
        return Ok(None);
    };
    value.extract().map_err(|error: PyErr| {
        let text = format!("`{name}` is {what}, not {}", value.as_any());
        match error.is_instance_of::<PyOverflowError>(limits.py()) {
            true => PyOverflowError::new_err(text),
            false => PyTypeError::new_err(text),
        }
    })
}

impl GivenLimits {
    fn of(limits: &Bound<'_, PyDict>) -> PyResult<GivenLimits> {
        Ok(GivenLimits {
            run: given(limits, "run", "a time in seconds")?,
            time: given(limits, "time", "a time in seconds")?,
            hops: given(limits, "hops", "a number from 0 to 65535")?,
            grants: given(limits, "grants", "a list of numbers of grants")?,
            may_spawn: given(limits, "may_spawn", "True or False")?,
            may_define: given(limits, "may_define", "True or False")?,
        })
    }

    fn limits(self) -> PyResult<Limits> {
        let usual = Limits::default();
        let grants = self.grants.map(|grants| {
            let add = |bits, grant: &u32| -> PyResult<u16> { Ok(bits | 1 << number(*grant)?) };
            grants.iter().try_fold(0, add)
        });
        Ok(Limits {
            run: self.run.map_or(Ok(usual.run), seconds)?,
            time: self.time.map_or(Ok(usual.time), seconds)?,
            hops: self.hops.unwrap_or(usual.hops),
            grants: grants.unwrap_or(Ok(usual.grants))?,
            may_spawn: self.may_spawn.unwrap_or(usual.may_spawn),
            may_define: self.may_define.unwrap_or(usual.may_define),
        })
    }
}

/// Returns the number of a grant.
fn number(grant: u32) -> PyResult<usize> {
    let number = grant as usize;
    match number < GRANTS_MAX {
        true => Ok(number),
        false => Err(PyValueError::new_err(format!(
            "grants have numbers below {GRANTS_MAX}, not {grant}"
        ))),
    }
}

#[pymethods]
impl Mobile {
    #[new]
    fn new(py: Python<'_>, fabric: &Fabric) -> PyResult<Mobile> {
        let fabric = fabric.handle()?;
        let mobile = wait(py, &fabric, || samite::mobile::Mobile::new(&fabric))?;
        Ok(Mobile {
            mobile: Detached::new(mobile),
            process: std::process::id(),
        })
    }

    /// The number of units of the job.
    #[getter]
    fn units(&self, py: Python<'_>) -> PyResult<u32> {
        let mobile = self.here()?;
        Ok(py.detach(|| mobile.units()))
    }

    /// Registers a capsule, so that this unit can call it and give it to others: a `Code`.
    fn register(&self, py: Python<'_>, capsule: &Capsule) -> PyResult<Code> {
        let mobile = self.here()?;
        let registered = py.detach(|| mobile.register(capsule.0.clone()));
        registered.map(Code).map_err(|error| raised(py, &error))
    }

    /// Forgets code; returns whether it was there, and no call waited for it.
    #[pyo3(name = "_forget")]
    fn forget(&self, py: Python<'_>, capsule: &Capsule) -> PyResult<bool> {
        let mobile = self.here()?;
        Ok(py.detach(|| mobile.evict(capsule.0.hash())))
    }

    /// Lets kernels use a segment of this unit under a number from 0 to 15; `rights` are "read" or
    /// "write".
    fn grant(&self, py: Python<'_>, grant: u32, segment: &Segment, rights: &str) -> PyResult<()> {
        let grant = number(grant)?;
        let rights = match rights {
            "read" => Rights::Read,
            "write" => Rights::Write,
            other => {
                return Err(PyValueError::new_err(format!(
                    "the rights of a grant are \"read\" or \"write\", not \"{other}\""
                )));
            }
        };
        let bytes = segment.with(|segment| segment.bytes().clone())?;
        let mobile = self.here()?;
        py.detach(|| mobile.grant(grant, &bytes, rights));
        Ok(())
    }

    /// Revokes a grant, when no kernel runs any more.
    fn revoke(&self, py: Python<'_>, grant: u32) -> PyResult<()> {
        let grant = number(grant)?;
        let mobile = self.here()?;
        py.detach(|| mobile.revoke(grant));
        Ok(())
    }

    /// Says which code this unit runs: "nothing", "signed-wasm", "wasm" (the default),
    /// "listed-native" or "everything". `keys` are those whose signatures count, and `hashes` are
    /// those of capsules with native code: each has 32 bytes, or 64 hexadecimal digits. A call runs
    /// for `run_max` seconds at most. `llvm` is the file of the library of LLVM 22 that compiles
    /// bitcode, or its folder: by default, the system's loader finds it.
    #[pyo3(signature = (trust, keys=vec![], hashes=vec![], run_max=1.0, llvm=None))]
    fn set_policy(
        &self,
        py: Python<'_>,
        trust: &str,
        keys: Vec<Bound<'_, PyAny>>,
        hashes: Vec<Bound<'_, PyAny>>,
        run_max: f64,
        llvm: Option<PathBuf>,
    ) -> PyResult<()> {
        let trust = match trust {
            "nothing" => Trust::Nothing,
            "signed-wasm" => Trust::SignedWasm,
            "wasm" => Trust::Wasm,
            "listed-native" => Trust::ListedNative,
            "everything" => Trust::Everything,
            other => {
                return Err(PyValueError::new_err(format!(
                    "\"{other}\" is not one of \"nothing\", \"signed-wasm\", \"wasm\", \
                     \"listed-native\", \"everything\""
                )));
            }
        };
        let hashes = hashes
            .iter()
            .map(|hash| of_32(hash).map(samite::mobile::Hash));
        let policy = Policy {
            trust,
            keys: keys.iter().map(of_32).collect::<PyResult<_>>()?,
            hashes: hashes.collect::<PyResult<_>>()?,
            run_max: seconds(run_max)?,
            llvm,
        };
        let mobile = self.here()?;
        py.detach(|| mobile.set_policy(policy));
        Ok(())
    }

    /// Starts a call of an entry.
    #[pyo3(name = "_start")]
    fn start(
        &self,
        py: Python<'_>,
        unit: u32,
        code: &Code,
        entry: &str,
        given: &Bound<'_, PyAny>,
        limits: &Bound<'_, PyDict>,
    ) -> PyResult<Call> {
        let payload = payload(given)?;
        let limits = GivenLimits::of(limits)?.limits()?;
        let mobile = self.here()?;
        let started = wait(py, mobile.fabric(), || {
            mobile.call_within(unit, &code.0, entry, &payload, limits)
        })?;
        Ok(Call::new(self, started, entry.to_owned(), unit))
    }

    /// Starts a call without a result.
    #[pyo3(name = "_post")]
    fn post(
        &self,
        py: Python<'_>,
        unit: u32,
        code: &Code,
        entry: &str,
        given: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let payload = payload(given)?;
        let mobile = self.here()?;
        wait(py, mobile.fabric(), || {
            mobile.send(unit, &code.0, entry, &payload)
        })
    }

    /// Starts to bring code to units.
    #[pyo3(name = "_bring")]
    fn bring(&self, py: Python<'_>, code: &Code, units: Vec<u32>) -> PyResult<Call> {
        let first = units.first().copied().unwrap_or(0);
        let mobile = self.here()?;
        let started = wait(py, mobile.fabric(), || mobile.prefetch(&code.0, &units))?;
        Ok(Call::new(self, started, "prefetch".to_owned(), first))
    }

    /// Runs what others call, for so many seconds, or until Ctrl-C.
    #[pyo3(signature = (timeout=None))]
    fn serve(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let timeout = timeout.map(seconds).transpose()?;
        let mobile = self.here()?;
        let mut looked = Instant::now();
        wait(py, mobile.fabric(), || {
            let served = mobile.serve(timeout.unwrap_or(Duration::MAX), || {
                if looked.elapsed() < LOOK {
                    return None;
                }
                looked = Instant::now();
                is_interrupted().then_some(())
            });
            match served {
                Err(samite::mobile::Error::Fabric(samite::Error::Timeout { .. })) => Ok(()),
                served => served,
            }
        })?;
        raised_meanwhile()
    }

    /// Returns what this unit has done for moved code since it began, by name.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mobile = self.here()?;
        let counters = py.detach(|| mobile.counters());
        let counted = PyDict::new(py);
        counted.set_item("calls", counters.calls)?;
        counted.set_item("traps", counters.traps)?;
        counted.set_item("forwards", counters.forwards)?;
        counted.set_item("spawns", counters.spawns)?;
        counted.set_item("misses", counters.misses)?;
        counted.set_item("compiled", counters.compiled)?;
        counted.set_item("code_sent", counters.code_sent)?;
        counted.set_item("code_received", counters.code_received)?;
        counted.set_item("unwaited_failures", counters.unwaited_failures)?;
        Ok(counted)
    }

    /// Returns how calls failed for which nobody waits, as a list of `Error`: calls of `send`, and
    /// those that kernels have started in the course of calls of this unit. Each failure is
    /// returned once. At most 64 are kept, the newest ones; `counters()["unwaited_failures"]`
    /// counts all.
    fn take_failures(&self, py: Python<'_>) -> PyResult<Vec<Py<PyBaseException>>> {
        let mobile = self.here()?;
        let failures = py.detach(|| mobile.take_failures()).into_iter();
        let exception = |failure| {
            let error = samite::mobile::Error::Failed(Box::new(failure));
            raised(py, &error).into_value(py)
        };
        Ok(failures.map(exception).collect())
    }
}

/// What became of a call, as far as this process knows.
enum State {
    Running(Detached<samite::mobile::Call>),
    /// A thread waits for it.
    Awaited,
    Ended(Result<Vec<u8>, samite::mobile::Error>),
}

/// A call under way.
#[pyclass(frozen, module = "samite", subclass)]
pub(crate) struct Call {
    mobile: Detached<samite::mobile::Mobile>,
    process: u32,
    state: Mutex<State>,
    entry: String,
    unit: u32,
}

impl Call {
    fn new(mobile: &Mobile, call: samite::mobile::Call, entry: String, unit: u32) -> Call {
        Call {
            mobile: Detached::new(samite::mobile::Mobile::clone(&mobile.mobile)),
            process: mobile.process,
            state: Mutex::new(State::Running(Detached::new(call))),
            entry,
            unit,
        }
    }

    fn set(&self, state: State) -> State {
        let mut now = self
            .state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        std::mem::replace(&mut now, state)
    }
}

#[pymethods]
impl Call {
    /// Whether the call has ended. Makes progress.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        check(self.process)?;
        Ok(match self.set(State::Awaited) {
            State::Running(mut call) => match py.detach(|| call.test()) {
                Some(ended) => {
                    self.set(State::Ended(ended));
                    true
                }
                None => {
                    self.set(State::Running(call));
                    false
                }
            },
            State::Awaited => false,
            ended => {
                self.set(ended);
                true
            }
        })
    }

    /// How long a wait for the reply takes that has no timeout of its own.
    #[getter]
    fn deadline(&self) -> PyResult<f64> {
        check(self.process)?;
        Ok(self.mobile.fabric().deadline().as_secs_f64())
    }

    /// Waits for the reply for the seconds that are left of a timeout.
    fn wait<'py>(&self, py: Python<'py>, left: f64, timeout: f64) -> PyResult<Bound<'py, PyBytes>> {
        check(self.process)?;
        let (left, timeout) = (seconds(left)?, seconds(timeout)?);
        let fabric = self.mobile.fabric();
        let ended = match self.set(State::Awaited) {
            State::Running(mut call) => {
                let waited = wait(py, fabric, || {
                    let test = || call.test();
                    match self.mobile.serve(left, test) {
                        Err(samite::mobile::Error::Fabric(samite::Error::Timeout { .. })) => {
                            Err(self.late(timeout))
                        }
                        waited => waited,
                    }
                });
                match waited {
                    Ok(ended) => ended,
                    Err(exception) => {
                        self.set(State::Running(call));
                        return Err(exception);
                    }
                }
            }
            // Another thread waits for it: that one has not ended in time.
            State::Awaited => return Err(raised(py, &self.late(timeout))),
            State::Ended(ended) => ended,
        };
        let reply = match &ended {
            Ok(reply) => Ok(PyBytes::new(py, reply)),
            Err(error) => Err(raised(py, error)),
        };
        self.set(State::Ended(ended));
        reply
    }

    fn __repr__(&self) -> String {
        format!("<samite call of {} at unit {}>", self.entry, self.unit)
    }
}

impl Call {
    fn late(&self, after: Duration) -> samite::mobile::Error {
        samite::mobile::Error::Late {
            entry: self.entry.clone(),
            to: format!("unit {}", self.unit),
            after,
        }
    }
}
