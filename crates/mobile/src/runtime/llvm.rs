//! The engine for bitcode: it loads LLVM before the first bitcode is compiled.

use super::locked;
use crate::capsule::Part;
use samite_engines::bitcode::{self, LLVM};
use samite_engines::{Code, Engine, Kind, Refused};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Loads LLVM 22 into this process, as a unit does for bitcode: from this file or folder, or else
/// from where the system's loader finds it. Takes some 20 ms. Local.
///
/// # Errors
/// [`Refused::NoEngine`] says where it was looked for, and what to install.
pub fn find_llvm(at: Option<&Path>) -> Result<(), Refused> {
    bitcode::Bitcode::new(at).map(drop)
}

/// The engine; its clones share LLVM, and where it is looked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Bitcode(Arc<Mutex<Place>>);

#[derive(Debug, Default)]
struct Place {
    /// As in [`crate::Policy::llvm`].
    at: Option<PathBuf>,
    /// What came of it, once it was looked for there.
    loaded: Option<Result<bitcode::Bitcode, Refused>>,
}

impl Bitcode {
    /// Says where LLVM is looked for from now on. It is looked for again if it was not found there.
    pub(super) fn set_place(&self, at: Option<PathBuf>) {
        let mut place = locked(&self.0);
        if place.at != at || matches!(place.loaded, Some(Err(_))) {
            *place = Place { at, loaded: None };
        }
    }

    /// Loads LLVM, if it is not there yet. If that fails, it is tried again when bitcode comes.
    pub(super) fn warm_up(&self) {
        let loaded = self.llvm();
        tracing::debug!(?loaded, "LLVM for bitcode");
        let mut place = locked(&self.0);
        place.loaded = place.loaded.take().filter(Result::is_ok);
    }

    /// Returns LLVM. The lock is not held while it is loaded: that takes milliseconds.
    fn llvm(&self) -> Result<bitcode::Bitcode, Refused> {
        let at = {
            let place = locked(&self.0);
            if let Some(loaded) = &place.loaded {
                return loaded.clone();
            }
            place.at.clone()
        };
        let loaded = bitcode::Bitcode::new(at.as_deref());
        let mut place = locked(&self.0);
        if place.at == at {
            place.loaded = Some(loaded.clone());
        }
        loaded
    }
}

impl Engine for Bitcode {
    fn kind(&self) -> Kind {
        Kind::Bitcode
    }

    fn prepare(&self, code: &[u8], entries: &[String]) -> Result<Box<dyn Code>, Refused> {
        self.llvm()?.prepare(code, entries)
    }
}

/// Checks that LLVM can read a part, if it is bitcode: no LLVM reads that of a later one.
///
/// # Errors
/// Names both versions.
pub(crate) fn check_producer(part: &Part) -> Result<(), String> {
    match part.kind == Kind::Bitcode && part.producer > LLVM {
        true => Err(format!(
            "it was made by LLVM {}, and units take bitcode of LLVM {LLVM} and earlier: \
             compile it with {}",
            part.producer,
            samite_engines::clang::PROGRAM
        )),
        false => Ok(()),
    }
}
