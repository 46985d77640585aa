//! Capsules: code in one or several forms, named by its hash.
//!
//! ```text
//!   "samitec1"                                        magic and version
//!   u8 entries, then each: u8 length, name            what can be called, by number: different
//!                                                     names of printable ASCII
//!   u8 parts, then each: u8 kind, u8 processor,       processor: 0 any, 1 x86-64, 2 aarch64
//!                        u16 producer, u32 length     producer: major version of LLVM, else 0
//!   the bytes of each part, in the same order         of a function: its name, up to 255 bytes of
//!                                                     printable ASCII
//!   [ "samites1", public key 32, signature 64 ]       of the hash; the hash does not cover it
//! ```
//! Numbers are little-endian. The name of a capsule is the BLAKE3 hash of everything but the
//! signature, so it does not change when it is signed. Encodings are unique: a capsule that is
//! decoded and encoded again has the same bytes.

use crate::Error;
use crate::runtime::llvm::check_producer;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use samite_engines::bitcode::Bitcode;
use samite_engines::{Kind, Refused, elf};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Longest capsule, in bytes.
pub const CAPSULE_MAX: u64 = 4 << 20;
/// The most entries.
pub(crate) const ENTRIES_MAX: usize = 64;
/// Longest name of a function, in bytes.
pub(crate) const FUNCTION_MAX: usize = 255;
/// The most parts.
pub(crate) const PARTS_MAX: usize = 8;

const MAGIC: &[u8; 8] = b"samitec1";
const SIGNED: &[u8; 8] = b"samites1";
const SIGNATURE: usize = 8 + 32 + 64;

/// The name of a capsule: its BLAKE3 hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// Returns the number by which messages name it: its first 8 bytes.
    pub fn id(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The processor that a part is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processor {
    /// Any.
    Any,
    /// x86-64.
    X86,
    /// aarch64.
    Arm,
}

impl Processor {
    /// The processor of this process.
    pub const HERE: Processor = match cfg!(target_arch = "aarch64") {
        true => Processor::Arm,
        false => Processor::X86,
    };

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Processor::Any => "any",
            Processor::X86 => "x86-64",
            Processor::Arm => "aarch64",
        }
    }

    /// Returns its name as in `std::env::consts::ARCH`, if it is not [`Processor::Any`].
    pub fn arch(self) -> Option<&'static str> {
        match self {
            Processor::Any => None,
            Processor::X86 => Some("x86_64"),
            Processor::Arm => Some("aarch64"),
        }
    }

    /// Returns the processor of a shared object, of which the headers are checked.
    ///
    /// # Errors
    /// [`Error::Refused`]: it is no complete shared object; [`Error::BadCapsule`]: it is for a
    /// processor that Samite does not run on.
    pub fn of_object(code: &[u8]) -> Result<Processor, Error> {
        let arch = samite_engines::elf::machine(code)?;
        let known = [Processor::X86, Processor::Arm];
        let known = known.into_iter().find(|known| known.arch() == Some(arch));
        match known {
            Some(processor) => Ok(processor),
            None => bad(format!(
                "it is for {arch}, and no unit of Samite runs there"
            )),
        }
    }

    /// Returns whether this process runs parts for it, if it has their engine.
    pub fn is_here(self) -> bool {
        self == Processor::Any || self == Processor::HERE
    }

    fn of(number: u8) -> Option<Processor> {
        [Processor::Any, Processor::X86, Processor::Arm]
            .get(number as usize)
            .copied()
    }
}

/// One form of the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which engine runs it.
    pub kind: Kind,
    /// The processor that it is for.
    pub processor: Processor,
    /// The major version of the LLVM that made bitcode, else 0.
    pub producer: u16,
    range: Range<usize>,
}

impl Part {
    /// Returns the major version of the LLVM that made bitcode, for [`Builder::bitcode`]; 0 if it
    /// does not say so, as that of other compilers.
    ///
    /// # Errors
    /// [`Error::Refused`]: it is no bitcode.
    pub fn producer_of(code: &[u8]) -> Result<u16, Error> {
        Ok(samite_engines::bitcode::producer(code)?)
    }
}

/// Code in one or several forms, its parts, with the names of its entries. It is named by the
/// BLAKE3 hash of everything but its signature. Clones share the code.
#[derive(Clone, PartialEq, Eq)]
pub struct Capsule {
    bytes: Arc<[u8]>,
    hash: Hash,
    entries: Vec<String>,
    parts: Vec<Part>,
    signer: Option<[u8; 32]>,
}

impl fmt::Debug for Capsule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capsule")
            .field("hash", &self.hash)
            .field("entries", &self.entries)
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}

/// Collects the parts of a capsule.
#[derive(Debug, Default)]
pub struct Builder {
    entries: Vec<String>,
    parts: Vec<(Kind, Processor, u16, Vec<u8>)>,
}

impl Builder {
    /// Adds a WebAssembly module.
    pub fn wasm(self, code: impl Into<Vec<u8>>) -> Builder {
        self.part(Kind::Wasm, Processor::Any, 0, code.into())
    }

    /// Adds bitcode of this major version of LLVM, or 0 if that is not known: units take that of
    /// LLVM 22 and earlier. [`Part::producer_of`] reads it.
    pub fn bitcode(self, of: Processor, producer: u16, code: impl Into<Vec<u8>>) -> Builder {
        self.part(Kind::Bitcode, of, producer, code.into())
    }

    /// Adds a shared object.
    pub fn elf(self, of: Processor, code: impl Into<Vec<u8>>) -> Builder {
        self.part(Kind::Elf, of, 0, code.into())
    }

    /// Adds the name of functions that the target may have itself.
    pub fn function(self, name: &str) -> Builder {
        self.part(Kind::Function, Processor::Any, 0, name.into())
    }

    fn part(mut self, kind: Kind, of: Processor, producer: u16, code: Vec<u8>) -> Builder {
        self.parts.push((kind, of, producer, code));
        self
    }

    /// Makes the capsule.
    ///
    /// # Errors
    /// [`Error::BadCapsule`]: too long, or too many parts or entries.
    pub fn build(self) -> Result<Capsule, Error> {
        let mut bytes = MAGIC.to_vec();
        let (entries, parts) = (self.entries.len(), self.parts.len());
        if entries > ENTRIES_MAX || parts > PARTS_MAX {
            return bad(format!(
                "it has {entries} entries and {parts} parts, and {ENTRIES_MAX} and {PARTS_MAX} are \
                 the most"
            ));
        }
        bytes.push(entries as u8);
        for entry in &self.entries {
            let Ok(len) = u8::try_from(entry.len()) else {
                return bad(format!("`{entry}` is longer than 255 bytes"));
            };
            bytes.push(len);
            bytes.extend_from_slice(entry.as_bytes());
        }
        bytes.push(parts as u8);
        for (kind, processor, producer, code) in &self.parts {
            bytes.push(*kind as u8);
            bytes.push(*processor as u8);
            bytes.extend_from_slice(&producer.to_le_bytes());
            bytes.extend_from_slice(&(code.len() as u32).to_le_bytes());
        }
        for (.., code) in &self.parts {
            bytes.extend_from_slice(code);
        }
        Capsule::decode(&bytes)
    }
}

/// Reads a capsule from its beginning.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(len)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.array::<1>()?[0])
    }
}

fn bad<T>(why: impl Into<String>) -> Result<T, Error> {
    Err(Error::BadCapsule(why.into()))
}

impl Capsule {
    /// Starts a capsule with these entries.
    pub fn builder<S: Into<String>>(entries: impl IntoIterator<Item = S>) -> Builder {
        Builder {
            entries: entries.into_iter().map(Into::into).collect(),
            parts: Vec::new(),
        }
    }

    /// Returns the names of the functions of a WebAssembly module that can be entries, which are
    /// those it exports of type `(i32, i32) -> i32`.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is no such module, or imports what no unit offers.
    #[cfg(feature = "wasm")]
    pub fn entries_of_wasm(code: &[u8]) -> Result<Vec<String>, Error> {
        Ok(samite_engines::wasm::entries(code)?)
    }

    /// Makes a capsule of a WebAssembly module: its exported functions of type `(i32, i32) -> i32`
    /// are the entries.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is no such module, or imports what no unit offers;
    /// [`Error::BadCapsule`] if it has no entry or is too long.
    #[cfg(feature = "wasm")]
    pub fn from_wasm(code: impl Into<Vec<u8>>) -> Result<Capsule, Error> {
        let code = code.into();
        let entries = Capsule::entries_of_wasm(&code)?;
        if entries.is_empty() {
            return bad("no exported function has the type of an entry, (i32, i32) -> i32");
        }
        Capsule::builder(entries).wasm(code).build()
    }

    /// As [`Capsule::from_wasm`], of a module as text.
    ///
    /// # Errors
    /// As [`Capsule::from_wasm`]; [`Error::BadCapsule`] names the line of a mistake.
    #[cfg(feature = "wasm")]
    pub fn from_wat(text: &str) -> Result<Capsule, Error> {
        let code = wat::parse_str(text)
            .map_err(|error| Error::BadCapsule(format!("the text is no module: {error}")))?;
        Capsule::from_wasm(code)
    }

    /// Makes a capsule that carries no code: the target has functions of this name.
    ///
    /// # Errors
    /// [`Error::BadCapsule`].
    pub fn of_function<S: Into<String>>(
        name: &str,
        entries: impl IntoIterator<Item = S>,
    ) -> Result<Capsule, Error> {
        Capsule::builder(entries).function(name).build()
    }

    /// Decodes a capsule, and checks everything but the code itself. A signature is verified.
    ///
    /// # Errors
    /// [`Error::BadCapsule`], [`Error::BadSignature`].
    pub fn decode(bytes: &[u8]) -> Result<Capsule, Error> {
        if bytes.len() as u64 > CAPSULE_MAX {
            return bad(format!("{} bytes are more than {CAPSULE_MAX}", bytes.len()));
        }
        let mut reader = Reader { bytes, at: 0 };
        if reader.take(8) != Some(MAGIC) {
            return bad("it does not begin like one, or is of another version");
        }
        let Some((entries, parts)) = lists(&mut reader) else {
            return bad("it ends early, or has a number that means nothing: was it copied whole?");
        };
        // They are shown on terminals, and in errors.
        let is_name = |name: &String| name.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        if let Some(name) = entries.iter().find(|name| !is_name(name)) {
            let name = name.escape_default();
            return bad(format!(
                "its entry `{name}` is not named in printable ASCII"
            ));
        }
        let mut names: Vec<&String> = entries.iter().collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return bad(format!("it has two entries `{}`", pair[0]));
        }
        let functions = parts.iter().filter(|part| part.kind == Kind::Function);
        for part in functions {
            let name = &bytes[part.range.clone()];
            let is_name = name.iter().all(|byte| matches!(byte, b' '..=b'~'));
            if name.len() > FUNCTION_MAX || !is_name {
                return bad(format!(
                    "a function is not named by up to {FUNCTION_MAX} characters of printable ASCII"
                ));
            }
        }
        let end = reader.at;
        let hash = Hash(*blake3::hash(&bytes[..end]).as_bytes());
        let signer = match bytes.len() - end {
            0 => None,
            SIGNATURE => Some(signer(&hash, &bytes[end..])?),
            other => {
                return bad(format!(
                    "{other} bytes follow its parts, and a signature has {SIGNATURE}: was it copied whole?"
                ));
            }
        };
        Ok(Capsule {
            bytes: bytes.into(),
            hash,
            entries,
            parts,
            signer,
        })
    }

    /// Returns a signed one; an earlier signature is replaced.
    ///
    /// # Errors
    /// [`Error::BadCapsule`] if it becomes too long.
    pub fn sign(&self, key: &SigningKey) -> Result<Capsule, Error> {
        let mut bytes = self.code().to_vec();
        bytes.extend_from_slice(SIGNED);
        bytes.extend_from_slice(key.verifying_key().as_bytes());
        bytes.extend_from_slice(&key.sign(&self.hash.0).to_bytes());
        Capsule::decode(&bytes)
    }

    /// Everything but the signature.
    fn code(&self) -> &[u8] {
        let signature = self.signer.map_or(0, |_| SIGNATURE);
        &self.bytes[..self.bytes.len() - signature]
    }

    /// Returns its encoding.
    pub fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }

    /// Returns its name.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// Returns the names of its entries, by number.
    pub fn entries(&self) -> &[String] {
        &self.entries
    }

    /// Returns its parts.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns the code of one of its parts.
    pub fn part(&self, part: &Part) -> &[u8] {
        &self.bytes[part.range.clone()]
    }

    /// Checks the code of one of its parts, as far as that can be done without running it: that it
    /// is complete, what it is for and what it imports, and that it has the entries. What a unit
    /// runs, it checks itself.
    ///
    /// # Errors
    /// [`Error::Refused`]: no unit would run it; or, with [`Refused::NoEngine`], LLVM 22 is not
    /// here, which reads bitcode.
    pub fn check(&self, part: &Part) -> Result<(), Error> {
        let (code, entries) = (self.part(part), &self.entries);
        let processor = part.processor.arch().unwrap_or(std::env::consts::ARCH);
        match part.kind {
            Kind::Function => {}
            #[cfg(feature = "wasm")]
            Kind::Wasm => {
                let has = Capsule::entries_of_wasm(code)?;
                if let Some(missing) = entries.iter().find(|entry| !has.contains(entry)) {
                    return Err(Refused::Entry(missing.clone()).into());
                }
            }
            #[cfg(not(feature = "wasm"))]
            Kind::Wasm => {}
            Kind::Bitcode => {
                check_producer(part).map_err(Refused::Invalid)?;
                Bitcode::new(None)?.check(code, entries, processor)?;
            }
            Kind::Elf => {
                elf::check(code, entries)?;
                let machine = elf::machine(code)?;
                if machine != processor {
                    let why = format!("it is machine code for {machine}, not for {processor}");
                    return Err(Refused::Invalid(why).into());
                }
            }
        }
        Ok(())
    }

    /// Returns the public key of its signer: the signature has been verified.
    pub fn signer(&self) -> Option<&[u8; 32]> {
        self.signer.as_ref()
    }

    /// Returns the number of an entry.
    ///
    /// # Errors
    /// [`Error::NoEntry`].
    pub fn entry(&self, name: &str) -> Result<u8, Error> {
        let at = self.entries.iter().position(|entry| entry == name);
        at.map(|at| at as u8).ok_or_else(|| Error::NoEntry {
            entry: name.to_owned(),
            entries: self.entries.join(", "),
        })
    }
}

/// Reads the lists of entries and parts, and skips the code.
fn lists(reader: &mut Reader<'_>) -> Option<(Vec<String>, Vec<Part>)> {
    let count = reader
        .byte()
        .filter(|count| *count as usize <= ENTRIES_MAX)?;
    let mut entries = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let len = reader.byte()? as usize;
        let name = std::str::from_utf8(reader.take(len)?).ok()?;
        entries.push(name.to_owned());
    }
    let count = reader.byte().filter(|count| *count as usize <= PARTS_MAX)?;
    let mut heads = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let kind = reader.byte()?;
        let kind = Kind::ALL.into_iter().find(|known| *known as u8 == kind)?;
        let processor = Processor::of(reader.byte()?)?;
        let producer = u16::from_le_bytes(reader.array()?);
        let len = u32::from_le_bytes(reader.array()?) as usize;
        heads.push((kind, processor, producer, len));
    }
    let mut parts = Vec::with_capacity(heads.len());
    for (kind, processor, producer, len) in heads {
        let start = reader.at;
        reader.take(len)?;
        parts.push(Part {
            kind,
            processor,
            producer,
            range: start..reader.at,
        });
    }
    Some((entries, parts))
}

/// Verifies a signature, and returns the key of its signer.
fn signer(hash: &Hash, bytes: &[u8]) -> Result<[u8; 32], Error> {
    let mut reader = Reader { bytes, at: 0 };
    let fields = (reader.take(8), reader.array::<32>(), reader.array::<64>());
    let (Some(magic), Some(key), Some(signature)) = fields else {
        return bad("its signature is not complete");
    };
    if magic != SIGNED {
        return bad("what follows its parts is no signature");
    }
    let verified = VerifyingKey::from_bytes(&key)
        .and_then(|key| key.verify_strict(&hash.0, &Signature::from_bytes(&signature)));
    match verified {
        Ok(()) => Ok(key),
        Err(_) => Err(Error::BadSignature(*hash)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_testkit::fuzz;

    fn capsule() -> Capsule {
        let builder = Capsule::builder(["run", "then"]).wasm(*b"\0asm");
        let builder = builder.bitcode(Processor::Arm, 22, *b"BC").function("sum");
        builder.build().unwrap()
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let capsule = capsule();
        assert_eq!(Capsule::decode(capsule.bytes()).unwrap(), capsule);
        assert_eq!(capsule.entries(), ["run", "then"]);
        let codes: Vec<_> = capsule
            .parts()
            .iter()
            .map(|part| capsule.part(part))
            .collect();
        assert_eq!(codes, [&b"\0asm"[..], b"BC", b"sum"]);
        assert_eq!(
            (capsule.entry("then").unwrap(), capsule.signer()),
            (1, None)
        );
        let error = capsule.entry("last").unwrap_err().to_string();
        assert!(error.contains("run, then"), "{error}");
    }

    #[test]
    fn entries_are_named_in_printable_ascii() {
        assert!(Capsule::builder(["is it ~ 1?"]).build().is_ok());
        for name in ["\u{1b}[31m", "a\nb", "\u{202e}", "\0", "\u{7f}"] {
            let refused = Capsule::builder(["run", name]).build().unwrap_err();
            let text = refused.to_string();
            assert!(text.contains("printable ASCII"), "{text}");
            assert!(
                text.bytes().all(|byte| matches!(byte, b' '..=b'~')),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_signature_is_verified_and_does_not_change_the_name() {
        let key = SigningKey::from_bytes(&[7; 32]);
        let signed = capsule().sign(&key).unwrap();
        assert_eq!(signed.hash(), capsule().hash());
        assert_eq!(signed.signer(), Some(key.verifying_key().as_bytes()));
        let decoded = Capsule::decode(signed.bytes()).unwrap();
        assert_eq!(decoded.sign(&key).unwrap(), signed);
        for at in [0, 1, 40, 103] {
            let mut bytes = signed.bytes().to_vec();
            let end = bytes.len();
            bytes[end - 1 - at] ^= 1;
            assert!(Capsule::decode(&bytes).is_err(), "byte {at} from the end");
        }
    }

    /// What no unit can start makes no capsule.
    #[cfg(feature = "wasm")]
    #[test]
    fn a_module_that_no_unit_runs_makes_no_capsule() {
        let entry = r#"(func (export "run") (param i32 i32) (result i32) (i32.const 0))"#;
        assert!(Capsule::from_wat(&format!("(module {entry})")).is_ok());
        for (item, says) in [
            (
                r#"(import "wasi" "fd_write" (func))"#,
                "imports wasi.fd_write",
            ),
            (r#"(import "samite" "nope" (func))"#, "imports samite.nope"),
            (
                r#"(import "samite" "hops" (func))"#,
                "samite.hops as () -> ()",
            ),
            ("(memory 1)", "a memory of its own"),
        ] {
            let made = match item.starts_with("(memory") {
                true => Capsule::from_wat(&format!("(module {entry} {item})")),
                false => Capsule::from_wat(&format!("(module {item} {entry})")),
            };
            let error = made.unwrap_err();
            assert!(matches!(error, Error::Refused(_)), "{error:?}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn names_are_different_and_short() {
        let twice = Capsule::builder(["run", "then", "run"])
            .wasm(*b"\0asm")
            .build();
        let why = twice.unwrap_err().to_string();
        assert!(why.contains("two entries `run`"), "{why}");
        for (name, is_name) in [
            ("f".repeat(FUNCTION_MAX), true),
            ("f".repeat(FUNCTION_MAX + 1), false),
            ("\u{1b}[2J".to_owned(), false),
        ] {
            let capsule = Capsule::of_function(&name, ["run"]);
            assert_eq!(capsule.is_ok(), is_name, "{name:?}");
        }
    }

    #[test]
    fn truncated_and_changed_capsules_are_refused() {
        let whole = capsule();
        for len in 0..whole.bytes().len() {
            assert!(
                Capsule::decode(&whole.bytes()[..len]).is_err(),
                "{len} bytes"
            );
        }
        // A signed one, changed anywhere. Whatever is still a capsule either has another name,
        // or the same code; then it is signed by the same signer, or not at all.
        let key = SigningKey::from_bytes(&[7; 32]);
        let signed = whole.sign(&key).unwrap();
        let end = whole.bytes().len();
        assert_eq!(Capsule::decode(&signed.bytes()[..end]).unwrap(), whole);
        fuzz::rounds(
            "capsule::tests::truncated_and_changed_capsules_are_refused",
            4_000,
            |_, random| {
                // Half of the changes are behind the code, in the signature.
                let mut bytes = signed.bytes().to_vec();
                match random.bool() {
                    true => {
                        let mut behind = bytes.split_off(end);
                        fuzz::mutate(random, &mut behind);
                        bytes.extend(behind);
                    }
                    false => fuzz::mutate(random, &mut bytes),
                }
                let Ok(changed) = Capsule::decode(&bytes) else {
                    return;
                };
                assert_eq!(changed.bytes()[..], bytes[..]);
                match changed.hash() == whole.hash() {
                    true => {
                        assert_eq!(changed.code(), &whole.bytes()[..]);
                        let signer = changed.signer();
                        assert!(signer.is_none() || signer == signed.signer());
                    }
                    false => assert!(changed.signer().is_none(), "a signature of other code"),
                }
            },
        );
        let long = Capsule::builder(["run"]).wasm(vec![0; CAPSULE_MAX as usize]);
        assert!(long.build().is_err());
    }
}
