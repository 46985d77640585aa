//! The files that get the output of units.

use crate::error::Error;
use crate::plan::Plan;
use crate::setup::Setup;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A file for lines of units. The first failure to write is kept, and nothing is written after it.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    file: File,
    failed: std::cell::OnceCell<std::io::Error>,
}

impl OutputFile {
    /// Appends a line, or a piece of one. If that fails, `failure` tells.
    pub(crate) fn write(&self, text: &[u8], complete: bool) {
        if self.failed.get().is_some() {
            return;
        }
        let end: &[u8] = if complete { b"\n" } else { b"" };
        if let Err(error) = (&self.file).write_all(&[text, end].concat()) {
            // It is set once.
            let _ = self.failed.set(error);
        }
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
        for setup in setups(plan) {
            for path in [&setup.stdout, &setup.stderr].into_iter().flatten() {
                if files.contains_key(path) {
                    continue;
                }
                let file = create(path).map_err(|source| Error::OutputFile {
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
        }
        Ok(Self { files })
    }

    pub(crate) fn count(&self) -> usize {
        self.files.len()
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
                source: std::io::Error::new(source.kind(), source.to_string()),
            })
        };
        self.files.into_values().find_map(failed)
    }
}

fn setups(plan: &Plan) -> impl Iterator<Item = &Setup> {
    let programs = plan.programs.iter();
    programs.flat_map(|program| (0..program.units).map(|rank| program.setup_of(rank)))
}

fn create(path: &Path) -> std::io::Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    File::create(path)
}
