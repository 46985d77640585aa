//! LAMMPS' C library (`src/library.h` there), found and loaded at run time. The file is long
//! because it contains all `unsafe` code of this crate, including that of the tests' substitute for
//! the library.
//!
//! # Invariants
//!
//! * F1: the functions of [`Functions`] have the types of `library.h` in builds with 32-bit atom
//!   ids and images (`smallbig`, the default); the sizes are checked before the first simulation is
//!   returned. The library is never unloaded.
//! * F2: a handle is not null and lives from `Lammps::open` until the drop of [`Lammps`], which is
//!   neither `Send` nor `Sync`; one exists in a process at a time.
//! * F3: `x` is one array of 3 `nlocal` doubles, with a table of pointers to its rows; `id` and
//!   `image` have `nlocal` numbers each. They do not move while the callback of `fix external`
//!   runs.
//! * F4: the argument of the callback is a [`Slot`], which lives until the simulation is closed:
//!   LAMMPS may continue to call it, since it may refuse to remove the callback. The slot contains
//!   the state of an `each_step` while that waits for its `run`, and nothing at other times;
//!   meanwhile, only the callback uses the state.

use std::any::Any;
use std::ffi::{CStr, CString, c_char, c_double, c_int, c_void};
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::rc::Rc;
use std::slice::from_raw_parts;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::error::{Error, Result};
use crate::library::{Installation, installations, remove_files_of_mpi};
use crate::snapshot::{Cell, Snapshot};

/// The name of our fix in the simulation.
const FIX: &str = "samite";
/// The fix adds the forces that we supply after this many steps; we supply none.
const NEVER: i32 = i32::MAX;

type Handle = *mut c_void;
type Callback =
    unsafe extern "C" fn(*mut c_void, i64, c_int, *mut c_int, *mut *mut f64, *mut *mut f64);

/// Declares the functions that we use, and looks them up by name.
macro_rules! functions {
    ($($name:ident: $type:ty),* $(,)?) => {
        struct Functions {
            $($name: $type,)*
        }

        impl Functions {
            fn of(library: &Library) -> Result<Self, libloading::Error> {
                Ok(Functions {
                    // SAFETY: F1.
                    $($name: *unsafe { library.get::<$type>(concat!("lammps_", stringify!($name)).as_bytes()) }?,)*
                })
            }
        }
    };
}

functions! {
    open_no_mpi: unsafe extern "C" fn(c_int, *mut *mut c_char, *mut Handle) -> Handle,
    close: unsafe extern "C" fn(Handle),
    config_has_exceptions: unsafe extern "C" fn() -> c_int,
    version: unsafe extern "C" fn(Handle) -> c_int,
    command: unsafe extern "C" fn(Handle, *const c_char) -> *mut c_char,
    has_error: unsafe extern "C" fn(Handle) -> c_int,
    get_last_error_message: unsafe extern "C" fn(Handle, *mut c_char, c_int) -> c_int,
    extract_setting: unsafe extern "C" fn(Handle, *const c_char) -> c_int,
    get_natoms: unsafe extern "C" fn(Handle) -> c_double,
    extract_box: unsafe extern "C" fn(
        Handle, *mut f64, *mut f64, *mut f64, *mut f64, *mut f64, *mut c_int, *mut c_int,
    ),
    extract_atom: unsafe extern "C" fn(Handle, *const c_char) -> *mut c_void,
    extract_compute: unsafe extern "C" fn(Handle, *const c_char, c_int, c_int) -> *mut c_void,
    set_fix_external_callback: unsafe extern "C" fn(Handle, *const c_char, Callback, *mut c_void),
    force_timeout: unsafe extern "C" fn(Handle),
}

impl Functions {
    /// Returns why this library cannot be used, if so.
    fn objection(&self) -> Option<&'static str> {
        // SAFETY: F1; it has no arguments.
        let throws = unsafe { (self.config_has_exceptions)() } != 0;
        (!throws).then_some("built without exceptions: an error would end the process")
    }
}

/// Returns the library, loading it when it is first needed.
fn functions() -> Result<&'static Functions> {
    static LOADED: OnceLock<Result<Functions>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        let mut tried = Vec::new();
        for place in installations() {
            let why = match load(&place) {
                Ok(functions) => match functions.objection() {
                    None => return Ok(functions),
                    Some(objection) => objection.to_owned(),
                },
                Err(error) => error.to_string(),
            };
            tried.push(format!("{}: {why}", place.library.display()));
        }
        Err(Error::Missing {
            tried: tried.join("; "),
        })
    });
    loaded.as_ref().map_err(Clone::clone)
}

fn load(place: &Installation) -> Result<Functions, libloading::Error> {
    // Global, so that MPI finds its own symbols again when it loads its components.
    let flags = RTLD_NOW | RTLD_GLOBAL;
    if let Some(path) = &place.before {
        // SAFETY: the initialisers of an MPI library have no preconditions.
        std::mem::forget(unsafe { Library::open(Some(path), flags) }?);
    }
    // SAFETY: the initialisers of LAMMPS have no preconditions.
    let library = unsafe { Library::open(Some(&place.library), flags) }?;
    let functions = Functions::of(&library);
    // F1: never unloaded.
    std::mem::forget(library);
    functions
}

/// A simulation that runs in this process.
#[derive(Debug)]
pub struct Lammps {
    running: Running,
    _one_in_a_process: Only,
}

impl Lammps {
    /// Begins a simulation, with LAMMPS' own command line options. It writes neither to the
    /// terminal nor to a log file, unless the options say so.
    ///
    /// # Errors
    /// LAMMPS is missing ([`Error::Missing`] says what to install) or has integers of other sizes;
    /// this process already has a simulation; LAMMPS refuses an option.
    pub fn open(options: &[&str]) -> Result<Self> {
        let functions = functions()?;
        let only = Only::take()?;
        let quiet = ["lammps", "-screen", "none", "-log", "none", "-nocite"];
        let words: Vec<CString> = quiet
            .iter()
            .chain(options)
            .map(|word| text(word))
            .collect::<Result<_>>()?;
        let mut words: Vec<*mut c_char> =
            words.iter().map(|word| word.as_ptr().cast_mut()).collect();
        let count = words.len() as c_int;
        // SAFETY: F1; the words outlive the call, which writes to none of them.
        let handle =
            unsafe { (functions.open_no_mpi)(count, words.as_mut_ptr(), std::ptr::null_mut()) };
        remove_files_of_mpi();
        let Some(handle) = NonNull::new(handle) else {
            return Err(Error::Refused {
                command: options.join(" "),
                message: last_error(functions, std::ptr::null_mut()),
            });
        };
        let lammps = Lammps {
            running: Running {
                functions,
                handle,
                slot: Rc::default(),
                _this_thread: PhantomData,
            },
            _one_in_a_process: only,
        };
        for (what, expected) in [("bigint", 8), ("tagint", 4), ("imageint", 4)] {
            let bytes = lammps.running.setting(what)?;
            if bytes != expected {
                return Err(Error::Sizes {
                    what,
                    bytes,
                    expected,
                });
            }
        }
        Ok(lammps)
    }

    /// Returns the version of LAMMPS: its date as one number, `20250722`.
    pub fn version(&self) -> u32 {
        // SAFETY: F1, F2.
        unsafe { (self.running.functions.version)(self.running.handle.as_ptr()) }.unsigned_abs()
    }

    /// Executes one command of LAMMPS' input language.
    ///
    /// # Errors
    /// LAMMPS refuses it; the error contains its message.
    pub fn command(&mut self, command: &str) -> Result<()> {
        self.running.command(command)
    }

    /// Executes some commands in order.
    ///
    /// # Errors
    /// As [`command`](Self::command), for the first one that is refused.
    pub fn commands<C: AsRef<str>>(&mut self, commands: impl IntoIterator<Item = C>) -> Result<()> {
        let mut commands = commands.into_iter();
        commands.try_for_each(|command| self.command(command.as_ref()))
    }

    /// Returns the number of atoms of the simulation.
    pub fn atoms(&self) -> u64 {
        // SAFETY: F1, F2.
        unsafe { (self.running.functions.get_natoms)(self.running.handle.as_ptr()) as u64 }
    }

    /// Returns the value of a global vector compute, such as `compute msd`, at the current step.
    ///
    /// # Errors
    /// No compute has that name, or it has no vector.
    pub fn compute(&self, name: &str) -> Result<Vec<f64>> {
        self.running.compute(name)
    }

    /// Runs `steps` steps, and calls `see` for every one whose number is a multiple of `every`, as
    /// well as for the first one, which a previous run may have shown already. A `Break` from `see`
    /// ends the run.
    ///
    /// The simulation waits while `see` runs. Forces and neighbours are those of the step,
    /// velocities are half a step older.
    ///
    /// # Errors
    /// LAMMPS refuses to run, or its box is tilted.
    pub fn each_step(
        &mut self,
        every: u32,
        steps: u64,
        mut see: impl FnMut(Snapshot<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let every = every.clamp(1, NEVER as u32);
        self.command(&format!(
            "fix {FIX} all external pf/callback {every} {NEVER}"
        ))?;
        let mut watched = Watched {
            running: &self.running,
            see: &mut see,
            refused: None,
            panic: None,
            is_over: false,
        };
        let name = text(FIX)?;
        let slot = &self.running.slot;
        // SAFETY: F1, F2; F4: the slot is dropped after the simulation.
        unsafe {
            (self.running.functions.set_fix_external_callback)(
                self.running.handle.as_ptr(),
                name.as_ptr(),
                callback,
                Rc::as_ptr(slot).cast_mut().cast(),
            );
        }
        // F4: from here until it is emptied, nothing unwinds, and no other code uses `watched`.
        slot.set(NonNull::new((&raw mut watched).cast()));
        let ran = self.running.command(&format!("run {steps}"));
        slot.set(None);
        let unfixed = self.running.command(&format!("unfix {FIX}"));
        let Watched {
            refused,
            panic,
            is_over,
            ..
        } = watched;
        // The time limit that ended this run would end the next one, too.
        let freed = match is_over {
            true => self.running.command("timer timeout off"),
            false => Ok(()),
        };
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
        ran.and(refused.map_or(Ok(()), Err)).and(unfixed).and(freed)
    }
}

/// The handle, and the queries on it.
#[derive(Debug)]
pub(crate) struct Running {
    functions: &'static Functions,
    handle: NonNull<c_void>,
    /// Dropped after the handle was closed.
    slot: Rc<Slot>,
    _this_thread: PhantomData<*mut ()>,
}

/// The [`Watched`] of the running `each_step`, if any.
type Slot = std::cell::Cell<Option<NonNull<c_void>>>;

impl std::fmt::Debug for Functions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("liblammps")
    }
}

impl Running {
    fn command(&self, command: &str) -> Result<()> {
        let line = text(command)?;
        // SAFETY: F1, F2; the line outlives the call.
        unsafe { (self.functions.command)(self.handle.as_ptr(), line.as_ptr()) };
        self.check(command)
    }

    /// Checks for an error of the previous call.
    fn check(&self, command: &str) -> Result<()> {
        // SAFETY: F1, F2.
        if unsafe { (self.functions.has_error)(self.handle.as_ptr()) } == 0 {
            return Ok(());
        }
        Err(Error::Refused {
            command: command.to_owned(),
            message: last_error(self.functions, self.handle.as_ptr()),
        })
    }

    fn setting(&self, name: &str) -> Result<i32> {
        let name = text(name)?;
        // SAFETY: F1, F2; the name outlives the call.
        Ok(unsafe { (self.functions.extract_setting)(self.handle.as_ptr(), name.as_ptr()) })
    }

    pub(crate) fn compute(&self, name: &str) -> Result<Vec<f64>> {
        const GLOBAL: c_int = 0;
        const VECTOR: c_int = 1;
        const LENGTH: c_int = 3;
        let id = text(name)?;
        let extract = |what| {
            // SAFETY: F1, F2; the name outlives the call.
            let found = unsafe {
                (self.functions.extract_compute)(self.handle.as_ptr(), id.as_ptr(), GLOBAL, what)
            };
            let unknown = || Error::Unknown(format!("global vector compute `{name}`"));
            NonNull::new(found).ok_or_else(unknown)
        };
        let found = extract(LENGTH).and_then(|length| Ok((length, extract(VECTOR)?)));
        // An unknown name is also an error in LAMMPS, which must be cleared before the next
        // command.
        let checked = self.check(&format!("compute {name}"));
        let (length, vector) = found?;
        checked?;
        // SAFETY: F1: LENGTH is one `int`; VECTOR is that many doubles, which are copied before the
        // next call.
        let values = unsafe {
            let length = usize::try_from(length.cast::<c_int>().read()).unwrap_or(0);
            from_raw_parts(vector.cast::<f64>().as_ptr(), length)
        };
        Ok(values.to_vec())
    }

    fn cell(&self) -> Result<Cell> {
        let (mut lower, mut upper, mut tilt) = ([0.0; 3], [0.0; 3], [0.0; 3]);
        let (mut periodic, mut changes) = ([0; 3], 0);
        let [xy, yz, xz] = &mut tilt;
        // SAFETY: F1, F2; LAMMPS writes three, three, one, one, one doubles and three, one ints.
        unsafe {
            (self.functions.extract_box)(
                self.handle.as_ptr(),
                lower.as_mut_ptr(),
                upper.as_mut_ptr(),
                xy,
                yz,
                xz,
                periodic.as_mut_ptr(),
                &raw mut changes,
            );
        }
        Cell::new(lower, upper, tilt)
    }

    /// Returns the images of `count` atoms.
    ///
    /// # Safety
    /// LAMMPS has `count` atoms here, and moves none of them while they are borrowed.
    unsafe fn images(&self, count: usize) -> Result<&[i32]> {
        // SAFETY: F1, F2; the name is a constant that ends with NUL.
        let found =
            unsafe { (self.functions.extract_atom)(self.handle.as_ptr(), c"image".as_ptr()) };
        let found =
            NonNull::new(found).ok_or_else(|| Error::Unknown("images of its atoms".to_owned()))?;
        // SAFETY: F3, and what the caller promises.
        Ok(unsafe { from_raw_parts(found.cast::<i32>().as_ptr(), count) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: F2: the handle is not used after this.
        unsafe { (self.functions.close)(self.handle.as_ptr()) };
    }
}

/// The state of the callback of one `each_step`.
struct Watched<'a> {
    running: &'a Running,
    see: &'a mut dyn FnMut(Snapshot<'_>) -> ControlFlow<()>,
    refused: Option<Error>,
    panic: Option<Box<dyn Any + Send>>,
    is_over: bool,
}

/// Called by LAMMPS inside its loop.
///
/// # Safety
/// `slot` is that of a simulation (F4); the other arguments are as `library.h` says (F3).
unsafe extern "C" fn callback(
    slot: *mut c_void,
    step: i64,
    count: c_int,
    ids: *mut c_int,
    positions: *mut *mut f64,
    _forces: *mut *mut f64,
) {
    // SAFETY: F4: the slot lives as long as the simulation.
    let slot = unsafe { &*slot.cast::<Slot>() };
    let Some(watched) = slot.get() else {
        return; // no `each_step` is running
    };
    // SAFETY: F4: the content of the slot is alive, and no other code uses it.
    let watched = unsafe { watched.cast::<Watched<'_>>().as_mut() };
    if watched.is_over {
        return;
    }
    let running = watched.running;
    // No panic may unwind through LAMMPS, which is not written in Rust.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: F3; `see` cannot keep what it borrows.
        let snapshot = unsafe { snapshot(running, step, count, ids, positions) }?;
        Ok((watched.see)(snapshot))
    }));
    match outcome {
        Ok(Ok(ControlFlow::Continue(()))) => return,
        Ok(Ok(ControlFlow::Break(()))) => {}
        Ok(Err(error)) => watched.refused = Some(error),
        Err(panic) => watched.panic = Some(panic),
    }
    watched.is_over = true;
    // SAFETY: F1, F2. LAMMPS then ends the run after this step, as at the end of a time limit.
    unsafe { (running.functions.force_timeout)(running.handle.as_ptr()) };
}

/// Borrows the atoms of a step.
///
/// # Safety
/// F3 holds for the arguments until the end of `'a`.
unsafe fn snapshot<'a>(
    running: &'a Running,
    step: i64,
    count: c_int,
    ids: *mut c_int,
    positions: *mut *mut f64,
) -> Result<Snapshot<'a>> {
    let count = usize::try_from(count).unwrap_or(0);
    let (mut own_ids, mut own_positions, mut images): (&[i32], &[[f64; 3]], &[i32]) =
        (&[], &[], &[]);
    // Without atoms the pointers may be null.
    if count > 0 {
        // SAFETY: F3: the first row is the beginning of all rows.
        unsafe {
            own_ids = from_raw_parts(ids, count);
            own_positions = from_raw_parts((*positions).cast::<[f64; 3]>(), count);
            images = running.images(count)?;
        }
    }
    Ok(Snapshot {
        step: step.unsigned_abs(),
        ids: own_ids,
        positions: own_positions,
        images,
        cell: running.cell()?,
        running,
    })
}

/// The right to have the one simulation of this process: MPI inside LAMMPS does not allow two
/// threads.
#[derive(Debug)]
struct Only;

static IS_TAKEN: AtomicBool = AtomicBool::new(false);

impl Only {
    fn take() -> Result<Self> {
        // ORDERING: Acquire, pairs with the Release in drop: makes the writes of the last
        // simulation visible.
        match IS_TAKEN.swap(true, Ordering::Acquire) {
            true => Err(Error::InUse),
            false => Ok(Only),
        }
    }
}

impl Drop for Only {
    fn drop(&mut self) {
        // ORDERING: Release, pairs with the Acquire in take.
        IS_TAKEN.store(false, Ordering::Release);
    }
}

fn text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::Nul(text.to_owned()))
}

/// Returns and clears the last error of a simulation, or, with a null handle, of an attempt to
/// begin one.
fn last_error(functions: &Functions, handle: Handle) -> String {
    let mut buffer = [0u8; 1024];
    // SAFETY: F1; a null handle is allowed here. The last byte is left for the NUL.
    unsafe {
        (functions.get_last_error_message)(
            handle,
            buffer.as_mut_ptr().cast(),
            buffer.len() as c_int - 1,
        );
    }
    let said = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
    said.to_string_lossy().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    thread_local! {
        /// The callback that was registered at the library below, and its argument.
        static CALLBACK: RefCell<Option<(Callback, *mut c_void)>> = const { RefCell::new(None) };
        static ERROR: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }

    /// A library that refuses to remove the callback, and calls it in each run.
    unsafe extern "C" fn command(_: Handle, line: *const c_char) -> *mut c_char {
        // SAFETY: F1: the line ends with NUL.
        let line = unsafe { CStr::from_ptr(line) }.to_string_lossy();
        if line.starts_with("unfix") {
            ERROR.set(true);
        }
        let known = CALLBACK.with_borrow(|known| *known);
        if let Some((call, with)) = known.filter(|_| line.starts_with("run")) {
            let (ids, rows) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: F3, of no atoms; F4.
            unsafe { call(with, 7, 0, ids, rows, rows) };
        }
        std::ptr::null_mut()
    }

    unsafe extern "C" fn set_callback(
        _: Handle,
        _: *const c_char,
        call: Callback,
        with: *mut c_void,
    ) {
        CALLBACK.set(Some((call, with)));
    }

    unsafe extern "C" fn has_error(_: Handle) -> c_int {
        c_int::from(ERROR.take())
    }

    unsafe extern "C" fn extract_box(
        _: Handle,
        _: *mut f64,
        upper: *mut f64,
        _: *mut f64,
        _: *mut f64,
        _: *mut f64,
        _: *mut c_int,
        _: *mut c_int,
    ) {
        // SAFETY: F1: three doubles.
        unsafe { upper.cast::<[f64; 3]>().write([1.0; 3]) };
    }

    unsafe extern "C" fn open(_: c_int, _: *mut *mut c_char, _: *mut Handle) -> Handle {
        std::ptr::null_mut()
    }
    unsafe extern "C" fn nothing(_: Handle) {}
    unsafe extern "C" fn number() -> c_int {
        1
    }
    unsafe extern "C" fn version(_: Handle) -> c_int {
        1
    }
    unsafe extern "C" fn error_message(_: Handle, _: *mut c_char, _: c_int) -> c_int {
        0
    }
    unsafe extern "C" fn setting(_: Handle, _: *const c_char) -> c_int {
        0
    }
    unsafe extern "C" fn atoms(_: Handle) -> c_double {
        0.0
    }
    unsafe extern "C" fn atom(_: Handle, _: *const c_char) -> *mut c_void {
        std::ptr::null_mut()
    }
    unsafe extern "C" fn compute(_: Handle, _: *const c_char, _: c_int, _: c_int) -> *mut c_void {
        std::ptr::null_mut()
    }

    static STUBBORN: Functions = Functions {
        open_no_mpi: open,
        close: nothing,
        config_has_exceptions: number,
        version,
        command,
        has_error,
        get_last_error_message: error_message,
        extract_setting: setting,
        get_natoms: atoms,
        extract_box,
        extract_atom: atom,
        extract_compute: compute,
        set_fix_external_callback: set_callback,
        force_timeout: nothing,
    };

    #[test]
    fn a_callback_that_lammps_does_not_forget_sees_nothing() {
        let mut lammps = Lammps {
            running: Running {
                functions: &STUBBORN,
                handle: NonNull::dangling(),
                slot: Rc::default(),
                _this_thread: PhantomData,
            },
            _one_in_a_process: Only::take().unwrap(),
        };
        let mut seen = Vec::new();
        let watched = lammps.each_step(1, 1, |atoms| {
            seen.push(atoms.step);
            ControlFlow::Continue(())
        });
        let said = watched.unwrap_err();
        assert!(
            matches!(&said, Error::Refused { command, .. } if command == "unfix samite"),
            "{said}"
        );
        // It is called again after its state is gone.
        lammps.command("run 1").unwrap();
        assert_eq!(seen, [7]);
        // The slot does not move when the simulation does.
        let mut moved = Box::new(lammps);
        moved.command("run 1").unwrap();
    }
}
