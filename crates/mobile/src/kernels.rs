//! What the attribute `mobile` adds to functions is written in terms of this.

use crate::{Capsule, Mobile, Result};
use samite_engines::Function;

/// Functions with the attribute [`mobile`](crate::mobile), as it describes them. A program uses the
/// items that the attribute adds.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Kernels {
    /// The name under which units have the functions: it has the hash of their source.
    pub name: &'static str,
    /// Their names, by number.
    pub entries: &'static [&'static str],
    /// The same source as WebAssembly, if it was compiled.
    pub wasm: Option<&'static [u8]>,
}

impl Kernels {
    /// Makes the capsule.
    ///
    /// # Errors
    /// [`Error::BadCapsule`](crate::Error::BadCapsule).
    pub fn capsule(self) -> Result<Capsule> {
        let named = Capsule::builder(self.entries.iter().copied()).function(self.name);
        let capsule = match self.wasm {
            Some(wasm) => named.wasm(wasm),
            None => named,
        };
        capsule.build()
    }

    /// Makes the functions known to a unit.
    pub fn define(self, mobile: &Mobile, functions: Function) {
        mobile.define(self.name, functions);
    }
}
