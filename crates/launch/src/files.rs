//! The files that get the output of units.

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
    /// [`Error::OutputFile`] names the one that cannot be created.
    pub(crate) fn create(plan: &Plan) -> Result<Self, Error> {
        let mut files = BTreeMap::new();
        for path in paths(&plan.programs) {
            let file = check_unread(plan, path).and_then(|()| create(path));
            let file = file.map_err(|source| Error::OutputFile {
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

/// Refuses a file that a unit reads from the beginning of the job: it would be empty.
fn check_unread(plan: &Plan, path: &Path) -> io::Result<()> {
    let first = plan
        .programs
        .iter()
        .filter(|program| program.after.is_empty());
    for program in first {
        let mut setups = (0..program.units).map(|rank| program.setup_of(rank));
        if setups.any(|setup| setup.stdin.as_deref() == Some(path)) {
            let message = format!(
                "it is the standard input of {} as well, which would find it empty; use another file",
                program.name
            );
            return Err(io::Error::other(message));
        }
    }
    Ok(())
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
