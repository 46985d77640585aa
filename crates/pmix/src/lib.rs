//! A client of PMIx, by which the processes of a job exchange words before they know each other.
//! `mpirun` of Open MPI serves it, and `srun --mpi=pmix`.
//!
//! The library is loaded at run time, so that a program that uses this crate is built and runs
//! without it; then [`Client::init`] says what to install. The functions are those of the PMIx
//! standard, version 2 and later.

#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "the functions of PMIx")]
mod ffi;

use ffi::{Library, Proc};
use std::ffi::CString;
use std::time::Duration;

/// What can go wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library is not here, or cannot be used.
    #[error("PMIx cannot be loaded ({0}): install libpmix2, as Open MPI does")]
    Missing(String),
    /// A call of the library failed.
    #[error("PMIx: {call}: {why}")]
    Failed {
        /// The call.
        call: &'static str,
        /// What it returned.
        why: String,
    },
    /// A key or a word cannot be passed to the library.
    #[error("PMIx: a key or a word has a byte 0, or more than 511 bytes")]
    Text,
}

/// The connection of this process to its process manager. A process has one at a time.
#[derive(Debug)]
pub struct Client {
    library: Library,
    me: Proc,
}

impl Client {
    /// Connects to the process manager that has started this process. Takes some 20 ms.
    ///
    /// # Errors
    /// [`Error::Missing`]; [`Error::Failed`]: nobody serves PMIx here.
    pub fn init() -> Result<Client, Error> {
        let library = Library::load()?;
        let me = library.init()?;
        Ok(Client { library, me })
    }

    /// Publishes a word. Others read it after the next [`Client::fence`].
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::Text`].
    pub fn put(&self, key: &str, word: &str) -> Result<(), Error> {
        self.library.put(&text(key)?, &text(word)?)
    }

    /// Waits until all processes of the job are here, at most this long, if the manager keeps to
    /// that. Collective over the job.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn fence(&self, patience: Duration) -> Result<(), Error> {
        let seconds = patience.as_secs().clamp(1, i32::MAX as u64);
        self.library.fence(seconds as i32)
    }

    /// Returns a word that a process has published before the last fence.
    ///
    /// # Errors
    /// [`Error::Failed`]: it has published none.
    pub fn get(&self, rank: u32, key: &str) -> Result<String, Error> {
        self.library.get(&self.me.of(rank), &text(key)?)
    }

    /// Ends the connection. Open MPI then serves this process no more, also if it becomes another
    /// program.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn finalize(self) -> Result<(), Error> {
        self.library.finalize()
    }
}

fn text(of: &str) -> Result<CString, Error> {
    match of.len() < ffi::KEY {
        true => CString::new(of).map_err(|_| Error::Text),
        false => Err(Error::Text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_passed_is_refused() {
        assert!(text("samite").is_ok());
        assert!(text(&"k".repeat(ffi::KEY - 1)).is_ok());
        for wrong in ["a\0b", &"k".repeat(ffi::KEY)] {
            assert_eq!(text(wrong), Err(Error::Text));
        }
    }
}
