//! Which code a unit runs.

use crate::capsule::{Capsule, Hash, Part};
use samite_engines::Kind;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Which code a unit accepts, from little to much. Functions of the program itself are always
/// accepted: the unit has them already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trust {
    /// None that moves.
    Nothing,
    /// WebAssembly that is signed by a listed key, or whose hash is listed.
    SignedWasm,
    /// WebAssembly from units of this job.
    #[default]
    Wasm,
    /// Also machine code and bitcode that is signed by a listed key, or whose hash is listed.
    ListedNative,
    /// All code from units of this job. Machine code can do whatever the unit can.
    Everything,
}

impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Trust::Nothing => "no moved code",
            Trust::SignedWasm => "signed or listed WebAssembly only",
            Trust::Wasm => "WebAssembly only",
            Trust::ListedNative => "WebAssembly, and native code that is signed or listed",
            Trust::Everything => "all code",
        })
    }
}

/// What a unit trusts.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Which kinds of code it accepts.
    pub trust: Trust,
    /// Public keys (ed25519) of trusted signers.
    pub keys: Vec<[u8; 32]>,
    /// Trusted capsules.
    pub hashes: Vec<Hash>,
    /// How long a call may run here at once, whatever its own limit.
    pub run_max: Duration,
    /// Which LLVM 22 compiles bitcode here: the file of its library, or the folder of that. `None`:
    /// the one that the system's loader finds. It is loaded in the background once this unit
    /// trusts native code of anybody.
    pub llvm: Option<PathBuf>,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            trust: Trust::default(),
            keys: Vec::new(),
            hashes: Vec::new(),
            run_max: Duration::from_secs(1),
            llvm: None,
        }
    }
}

impl Policy {
    /// Returns whether a part of a capsule may run.
    pub fn allows(&self, capsule: &Capsule, part: &Part) -> bool {
        let is_listed = self.hashes.contains(&capsule.hash());
        self.allows_if(part, self.trusts_signer(capsule) || is_listed)
    }

    /// Returns whether some native code may run.
    pub(crate) fn allows_native(&self) -> bool {
        let has_list = !self.keys.is_empty() || !self.hashes.is_empty();
        match self.trust {
            Trust::Nothing | Trust::SignedWasm | Trust::Wasm => false,
            Trust::ListedNative => has_list,
            Trust::Everything => true,
        }
    }

    /// Returns whether a listed key has signed a capsule.
    pub(crate) fn trusts_signer(&self, capsule: &Capsule) -> bool {
        capsule.signer().is_some_and(|key| self.keys.contains(key))
    }

    fn allows_if(&self, part: &Part, is_listed: bool) -> bool {
        match part.kind {
            Kind::Function => true,
            Kind::Wasm => match self.trust {
                Trust::Nothing => false,
                Trust::SignedWasm => is_listed,
                Trust::Wasm | Trust::ListedNative | Trust::Everything => true,
            },
            Kind::Bitcode | Kind::Elf => match self.trust {
                Trust::Nothing | Trust::SignedWasm | Trust::Wasm => false,
                Trust::ListedNative => is_listed,
                Trust::Everything => true,
            },
        }
    }

    /// Returns whether no code of a capsule may run, and some may if a listed key has signed it.
    pub(crate) fn wants_signature(&self, capsule: &Capsule) -> bool {
        let code = || {
            capsule
                .parts()
                .iter()
                .filter(|part| part.kind != Kind::Function)
        };
        let is_signable = !self.keys.is_empty() && code().any(|part| self.allows_if(part, true));
        is_signable && !code().any(|part| self.allows(capsule, part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capsule::Processor;
    use ed25519_dalek::SigningKey;

    /// For each level: whether plain wasm, signed wasm, plain native, signed native and listed
    /// native code may run.
    #[test]
    fn each_level_of_trust() {
        let key = SigningKey::from_bytes(&[1; 32]);
        let other = SigningKey::from_bytes(&[2; 32]);
        let wasm = Capsule::builder(["run"]).wasm(*b"w").build().unwrap();
        let native = Capsule::builder(["run"]).elf(Processor::HERE, *b"n");
        let native = native.build().unwrap();
        let listed = Capsule::builder(["run"]).elf(Processor::HERE, *b"l");
        let listed = listed.build().unwrap();
        let policy = |trust| Policy {
            trust,
            keys: vec![*key.verifying_key().as_bytes()],
            hashes: vec![listed.hash()],
            ..Policy::default()
        };
        let levels = [
            (Trust::Nothing, [false; 5]),
            (Trust::SignedWasm, [false, true, false, false, false]),
            (Trust::Wasm, [true, true, false, false, false]),
            (Trust::ListedNative, [true, true, false, true, true]),
            (Trust::Everything, [true; 5]),
        ];
        for (trust, expected) in levels {
            let policy = policy(trust);
            let allows = |capsule: &Capsule| policy.allows(capsule, &capsule.parts()[0]);
            let signed = |capsule: &Capsule| capsule.sign(&key).unwrap();
            let found = [
                allows(&wasm),
                allows(&signed(&wasm)),
                allows(&native),
                allows(&signed(&native)),
                allows(&listed),
            ];
            assert_eq!(found, expected, "{trust}");
            let wants = [&wasm, &native].map(|capsule| policy.wants_signature(capsule));
            let expected = [trust == Trust::SignedWasm, trust == Trust::ListedNative];
            assert_eq!(wants, expected, "{trust}");
            assert!(!policy.wants_signature(&signed(&wasm)), "{trust}");
            let by_other = native.sign(&other).unwrap();
            assert_eq!(allows(&by_other), trust == Trust::Everything, "{trust}");
        }
    }
}
