//! The C interface of PMIx, as far as it is used, loaded at run time.
//!
//! # Invariants
//! F1 The declarations below are those of the PMIx standard (`pmix.h`, `pmix_common.h`), which have
//!    been the same since version 2: `libpmix.so.2` has that version of the interface.
//! F2 The library stays loaded until the process ends: it has threads and exit handlers.
//! F3 The library keeps no pointer that a call was given: it copies keys, words and directives.
//! F4 A word that it returns belongs to the caller, and is leaked: it is one, and short.

use crate::Error;
use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::{null, null_mut};

/// The names under which the library is looked for.
const NAMES: [&str; 1] = ["libpmix.so.2"];
/// Longest key or word, with the byte 0 that ends it.
pub(crate) const KEY: usize = 512;
const NAMESPACE: usize = 256;

type Status = i32;
const SUCCESS: Status = 0;
const STRING: u16 = 3;
const INT: u16 = 6;
const GLOBAL: u8 = 3;
/// `PMIX_TIMEOUT`: an integer, in seconds.
const TIMEOUT: &CStr = c"pmix.timeout";

/// A process: its job and its rank.
#[repr(C)]
#[derive(Clone)]
pub(crate) struct Proc {
    job: [c_char; NAMESPACE],
    rank: u32,
}

impl Proc {
    /// Returns another process of the same job.
    pub(crate) fn of(&self, rank: u32) -> Proc {
        Proc {
            rank,
            ..self.clone()
        }
    }
}

impl fmt::Debug for Proc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.rank)
    }
}

/// A value with its type; which member of the union `data` is used, the type says.
#[repr(C)]
struct Value {
    kind: u16,
    data: Data,
}

#[repr(C)]
union Data {
    text: *mut c_char,
    number: i32,
    /// The longest member has three words.
    all: [u64; 3],
}

#[repr(C)]
struct Info {
    key: [c_char; KEY],
    flags: u32,
    value: Value,
}

/// The functions.
pub(crate) struct Library {
    init: unsafe extern "C" fn(*mut Proc, *mut Info, usize) -> Status,
    put: unsafe extern "C" fn(u8, *const c_char, *mut Value) -> Status,
    commit: unsafe extern "C" fn() -> Status,
    fence: unsafe extern "C" fn(*const Proc, usize, *const Info, usize) -> Status,
    get: unsafe extern "C" fn(
        *const Proc,
        *const c_char,
        *const Info,
        usize,
        *mut *mut Value,
    ) -> Status,
    finalize: unsafe extern "C" fn(*const Info, usize) -> Status,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    _library: ManuallyDrop<Loaded>, // F2
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PMIx")
    }
}

impl Library {
    pub(crate) fn load() -> Result<Library, Error> {
        let mut why = String::new();
        for name in NAMES {
            // SAFETY: a library of the system, whose constructors are trusted.
            match unsafe { Loaded::open(Some(name), RTLD_NOW | RTLD_LOCAL) } {
                Ok(library) => return Library::of(library),
                Err(error) => why = error.to_string(),
            }
        }
        Err(Error::Missing(why))
    }

    fn of(library: Loaded) -> Result<Library, Error> {
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: F1.
                *unsafe { library.get($name) }.map_err(|error| Error::Missing(error.to_string()))?
            };
        }
        Ok(Library {
            init: symbol!(b"PMIx_Init\0"),
            put: symbol!(b"PMIx_Put\0"),
            commit: symbol!(b"PMIx_Commit\0"),
            fence: symbol!(b"PMIx_Fence\0"),
            get: symbol!(b"PMIx_Get\0"),
            finalize: symbol!(b"PMIx_Finalize\0"),
            error_string: symbol!(b"PMIx_Error_string\0"),
            _library: ManuallyDrop::new(library),
        })
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), Error> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: F1: a string that is static, or null.
        let why = unsafe {
            let text = (self.error_string)(status);
            match text.is_null() {
                true => format!("error {status}"),
                false => CStr::from_ptr(text).to_string_lossy().into_owned(),
            }
        };
        Err(Error::Failed { call, why })
    }

    pub(crate) fn init(&self) -> Result<Proc, Error> {
        let mut me = Proc {
            job: [0; NAMESPACE],
            rank: 0,
        };
        // SAFETY: F1, F3.
        let status = unsafe { (self.init)(&mut me, null_mut(), 0) };
        self.check("PMIx_Init", status).map(|()| me)
    }

    pub(crate) fn put(&self, key: &CString, word: &CString) -> Result<(), Error> {
        let mut value = Value {
            kind: STRING,
            data: Data { all: [0; 3] },
        };
        value.data.text = word.as_ptr().cast_mut();
        // SAFETY: F1, F3: the text is not changed.
        let status = unsafe { (self.put)(GLOBAL, key.as_ptr(), &mut value) };
        self.check("PMIx_Put", status)?;
        // SAFETY: F1.
        self.check("PMIx_Commit", unsafe { (self.commit)() })
    }

    pub(crate) fn fence(&self, seconds: i32) -> Result<(), Error> {
        let mut timeout = Info {
            key: [0; KEY],
            flags: 0,
            value: Value {
                kind: INT,
                data: Data { all: [0; 3] },
            },
        };
        timeout.value.data.number = seconds;
        for (to, from) in timeout.key.iter_mut().zip(TIMEOUT.to_bytes()) {
            *to = *from as c_char;
        }
        // SAFETY: F1, F3: no processes are named, which means all of the job; one directive.
        let status = unsafe { (self.fence)(null(), 0, &timeout, 1) };
        self.check("PMIx_Fence", status)
    }

    pub(crate) fn get(&self, of: &Proc, key: &CString) -> Result<String, Error> {
        let mut value: *mut Value = null_mut();
        // SAFETY: F1, F3.
        let status = unsafe { (self.get)(of, key.as_ptr(), null(), 0, &mut value) };
        self.check("PMIx_Get", status)?;
        // SAFETY: F1, F4: the library has made this value; its type says whether it is a text.
        let text = unsafe {
            let is_text = !value.is_null() && (*value).kind == STRING;
            let text = if is_text {
                (*value).data.text
            } else {
                null_mut()
            };
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        text.ok_or_else(|| Error::Failed {
            call: "PMIx_Get",
            why: "the value is no text".to_owned(),
        })
    }

    pub(crate) fn finalize(&self) -> Result<(), Error> {
        // SAFETY: F1.
        self.check("PMIx_Finalize", unsafe { (self.finalize)(null(), 0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F1: the sizes that a compiler of C computes.
    #[test]
    fn the_structures_have_the_sizes_of_the_standard() {
        assert_eq!(size_of::<Proc>(), 260);
        assert_eq!(size_of::<Value>(), 32);
        assert_eq!(std::mem::offset_of!(Value, data), 8);
        assert_eq!(std::mem::offset_of!(Info, value), 520);
    }
}
