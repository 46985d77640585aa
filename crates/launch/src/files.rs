//! The files that get the output of units, and those that are their standard input.

use crate::error::Error;
use crate::plan::{Plan, Program};
use crate::setup::Setup;
use rustix::fs::OFlags;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A file for lines of units. The first failure to write is kept, and nothing is written after it.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    file: File,
    failed: std::cell::OnceCell<io::Error>,
}

impl OutputFile {
    /// Appends a line, or a piece of one. Returns the error of the first write that fails.
    pub(crate) fn write(&self, text: &[u8], complete: bool) -> Option<&io::Error> {
        if self.failed.get().is_some() {
            return None;
        }
        let end: &[u8] = if complete { b"\n" } else { b"" };
        let error = (&self.file).write_all(&[text, end].concat()).err()?;
        Some(self.failed.get_or_init(|| error))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// All files of a job. Those with the same path are one.
#[derive(Debug, Default)]
pub(crate) struct OutputFiles {
    files: BTreeMap<PathBuf, Rc<OutputFile>>,
}

impl OutputFiles {
    /// Creates the files of all units, and the folders that they lie in.
    ///
    /// # Errors
    /// [`Error::CreateOutput`] names the one that cannot be created, [`Error::InputIsOutput`] one
    /// that a unit must not read.
    pub(crate) fn create(plan: &Plan) -> Result<Self, Error> {
        check_inputs(plan)?;
        let mut files = BTreeMap::new();
        for path in paths(&plan.programs) {
            let file = create(path).map_err(|source| Error::CreateOutput {
                path: path.clone(),
                source,
            })?;
            let file = OutputFile {
                path: path.clone(),
                file,
                failed: std::cell::OnceCell::new(),
            };
            files.insert(path.clone(), Rc::new(file));
        }
        Ok(Self { files })
    }

    /// Returns the file of this path, which is one of the plan.
    pub(crate) fn get(&self, path: Option<&PathBuf>) -> Option<Rc<OutputFile>> {
        self.files.get(path?).cloned()
    }

    /// Returns the first failure to write.
    pub(crate) fn failure(self) -> Option<Error> {
        let failed = |file: Rc<OutputFile>| {
            let source = file.failed.get()?;
            Some(Error::OutputFile {
                path: file.path.clone(),
                source: io::Error::new(source.kind(), source.to_string()),
            })
        };
        self.files.into_values().find_map(failed)
    }
}

/// Returns what the units of these programs are started with.
pub(crate) fn setups(programs: &[Program]) -> impl Iterator<Item = &Setup> {
    let programs = programs.iter();
    programs.flat_map(|program| (0..program.units).map(|rank| program.setup_of(rank)))
}

/// Returns the paths of the files for the output of these programs.
pub(crate) fn paths(programs: &[Program]) -> BTreeSet<&PathBuf> {
    let paths = setups(programs).flat_map(|setup| [&setup.stdout, &setup.stderr]);
    paths.flatten().collect()
}

/// Refuses a file that is the standard input of a program, and gets the output of one that the
/// program does not come after. It is emptied before the job begins, and a program that reads what
/// it writes itself may never come to the end of it.
pub(crate) fn check_inputs(plan: &Plan) -> Result<(), Error> {
    // Units mostly share their files, and each path is resolved once per program.
    let (mut inputs, mut outputs) = (BTreeSet::new(), BTreeSet::new());
    for program in &plan.programs {
        let with_name = |path| (path, program.name.as_str());
        for setup in setups(std::slice::from_ref(program)) {
            inputs.extend(setup.stdin.iter().map(with_name));
            let files = [&setup.stdout, &setup.stderr].into_iter().flatten();
            outputs.extend(files.map(with_name));
        }
    }
    if inputs.is_empty() {
        return Ok(());
    }
    let mut writers: BTreeMap<PathBuf, Vec<&str>> = BTreeMap::new();
    for (path, writer) in outputs {
        writers.entry(resolve(path)).or_default().push(writer);
    }
    for (path, reader) in inputs {
        let earlier = earlier(plan, reader);
        let mut writers = writers.get(&resolve(path)).into_iter().flatten();
        if let Some(writer) = writers.find(|writer| !earlier.contains(**writer)) {
            return Err(Error::InputIsOutput {
                path: path.clone(),
                reader: reader.to_owned(),
                writer: (*writer).to_owned(),
            });
        }
    }
    Ok(())
}

/// Returns the names of the programs that are ready before this one starts.
fn earlier<'p>(plan: &'p Plan, name: &'p str) -> BTreeSet<&'p str> {
    let (mut earlier, mut next) = (BTreeSet::new(), vec![name]);
    while let Some(name) = next.pop() {
        // A program without units waits for no other.
        let mut programs = plan.programs.iter().filter(|program| program.units > 0);
        let program = programs.find(|program| program.name == name);
        for before in program.into_iter().flat_map(|program| &program.after) {
            if earlier.insert(before.as_str()) {
                next.push(before);
            }
        }
    }
    earlier
}

/// Returns a path without symbolic links, as far as it exists.
fn resolve(path: &Path) -> PathBuf {
    path.canonicalize()
        .unwrap_or_else(|_| match (path.parent(), path.file_name()) {
            (Some(folder), Some(name)) => resolve(folder).join(name),
            _ => path.to_owned(),
        })
}

/// Opens the standard input of a unit. Opening a named pipe would wait for its writer, and the
/// launcher would hear no signal meanwhile.
///
/// # Errors
/// Those of the system; it is not a regular file.
pub(crate) fn open_input(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        let message = "it is not a regular file, so it cannot be a standard input";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(file)
}

/// Opens a file, and empties it. Nothing here waits for the reader of a named pipe.
fn create(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut options = OpenOptions::new();
    // Appending, because the same file may be open under another path, too.
    options.create(true).append(true);
    options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let file = options.open(path)?;
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}
