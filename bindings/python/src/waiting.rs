//! Waits: other threads of the interpreter run meanwhile, and an exception of a signal handler
//! (Ctrl-C) ends them.

use crate::error::{Coded, raised};
use pyo3::prelude::*;
use samite::Fabric;
use std::cell::RefCell;

thread_local! {
    /// What a signal handler raised during a wait of this thread.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Runs the handlers of signals that have come. Returns whether one raised an exception.
///
/// The interpreter runs handlers in its main thread only, whose number on Linux is that of the
/// process. Other threads do not ask: they would wait for whatever keeps the interpreter, and for
/// ever when it is ending.
pub(crate) fn is_interrupted() -> bool {
    if rustix::thread::gettid() != rustix::process::getpid() {
        return false;
    }
    let raised = Python::try_attach(|py| match py.check_signals() {
        Ok(()) => false,
        Err(exception) => {
            RAISED.set(Some(exception));
            true
        }
    });
    raised.unwrap_or(false)
}

/// Raises what a signal handler has raised during a wait that has ended well nevertheless.
pub(crate) fn raised_meanwhile() -> PyResult<()> {
    RAISED.take().map_or(Ok(()), Err)
}

/// Runs `f`, which may wait. What it has got when a signal handler raises an exception is not lost:
/// it is returned, and the next wait raises the exception.
pub(crate) fn wait<T: Send, E: Coded + Send>(
    py: Python<'_>,
    fabric: &Fabric,
    f: impl FnOnce() -> Result<T, E> + Send,
) -> PyResult<T> {
    raised_meanwhile()?;
    let ended = py.detach(|| fabric.interruptible(is_interrupted, f));
    ended.or_else(|error| {
        raised_meanwhile()?;
        Err(raised(py, &error))
    })
}

/// A value that is dropped while other threads of the interpreter run: the end of the last use of a
/// fabric waits for its peers.
pub(crate) struct Detached<T: Send>(Option<T>);

impl<T: Send> Detached<T> {
    pub(crate) fn new(value: T) -> Detached<T> {
        Detached(Some(value))
    }
}

impl<T: Send> std::ops::Deref for Detached<T> {
    type Target = T;

    fn deref(&self) -> &T {
        let value = self.0.as_ref();
        value.expect("it is there until it is dropped")
    }
}

impl<T: Send> std::ops::DerefMut for Detached<T> {
    fn deref_mut(&mut self) -> &mut T {
        let value = self.0.as_mut();
        value.expect("it is there until it is dropped")
    }
}

impl<T: Send> Drop for Detached<T> {
    fn drop(&mut self) {
        let mut value = self.0.take();
        // When the process ends, there may be no interpreter any more: the value is dropped here.
        Python::try_attach(|py| {
            let value = value.take();
            py.detach(|| drop(value));
        });
    }
}
