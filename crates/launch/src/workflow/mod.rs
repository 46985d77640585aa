//! A workflow file: which programs make up a job.
//!
//! ```toml
//! [job]
//! name = "laplace"                  # default: the file's name
//! timeout = "2 h"                   # default: none
//!
//! [parameters]                      # `{size}` below; `samite run FILE --size 512` overrides
//! size = { default = 2048, help = "rows and columns of each unit's part" }
//! units = 2                         # short for { default = 2 }; see `parameter`
//! plot = { default = "", help = "a file for the picture" }
//!
//! [[program]]
//! name = "solver"                   # units are called solver.0, solver.1 …
//! command = "laplace-solver"        # a built-in, a name in PATH, or a path relative to this file
//! args = ["--size", "{size}", { when = "{plot}", args = ["--plot", "{plot}"] }]
//! units = "{units}"                 # default 1; 0: it is not started
//! instances = 1                     # with 3: the programs solver-0, solver-1 and solver-2
//! cpus = ["0", "1"]                 # one list per unit in turn, or one for all: "0-3"
//! env = { OMP_NUM_THREADS = "1" }
//! prefix = false                    # show its lines without the prefix `[solver.0]`; default true
//! cwd = "run-{rank}"                # its working directory; created if it does not exist
//! stdin = "input.txt"               # default: none
//! stdout = "logs/{rank}.out"        # in place of the terminal; `stderr` likewise
//! grace = "1 min"                   # as `launch.grace`, for this program
//! stop_signal = "INT"               # in place of TERM
//! ready = "listening"               # a unit is ready when it has printed this; default: ended
//! after = ["mesh"]                  # it starts when all units of these programs are ready
//! restart = 3                       # a unit that fails is started again, up to this often
//! optional = true                   # the job goes on when a unit fails
//!
//! [[edge]]                          # which program reads what: see [`Workflow::edges`]
//! from = "solver"
//! stream = "field"
//! to = "analysis"
//!
//! [config]                          # settings, as in the user's configuration file
//! fabric.eager_max = "8 KiB"
//! ```
//!
//! # Files
//! `file` its structure · `parameter` which values parameters can have · `condition` of arguments ·
//! `program` a program and its units · `config` parameters in settings · `edge` · `number` whole
//! numbers · `sweep` runs with other values · `schema` the form of the file, for editors

mod condition;
mod config;
mod edge;
mod file;
mod number;
mod parameter;
mod program;
mod schema;
mod sweep;

use crate::error::Error;
use crate::parameters::Parameter;
use crate::plan::Program;
use crate::source::{SourceText, nearest_file, suggestion};
use file::File;
use parameter::Declared;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

pub use schema::workflow_schema;
pub use sweep::Run;

/// The programs that are part of an executable: `EXECUTABLE unit NAME ARGS`.
#[derive(Debug, Clone)]
pub struct Builtins<'a> {
    /// The executable.
    pub executable: PathBuf,
    /// The names.
    pub names: &'a [&'a str],
}

/// A workflow file that was read and is well-formed.
#[derive(Debug, Clone)]
pub struct Workflow {
    source: SourceText,
    file: File,
    values: BTreeMap<String, String>,
    /// The parameters that were set.
    given: BTreeSet<String>,
    /// The folder of this run, if it is one of a sweep.
    run_folder: Option<PathBuf>,
}

impl Workflow {
    /// Reads a workflow file.
    ///
    /// # Errors
    /// [`Error::ReadWorkflow`], or [`Error::Workflow`] with the line that is wrong.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| {
            let is_toml = |file: &Path| file.extension().is_some_and(|end| end == "toml");
            let is_workflow = |file: &Path| is_toml(file) && file.is_file();
            let is_missing = source.kind() == std::io::ErrorKind::NotFound;
            Error::ReadWorkflow {
                path: path.to_path_buf(),
                near: nearest_file(path, is_workflow)
                    .filter(|_| is_missing)
                    .map(|near| path.with_file_name(near)),
                source,
            }
        })?;
        Self::parse(path, text)
    }

    /// Parses the text of a workflow; `path` is where it would be stored.
    ///
    /// # Errors
    /// [`Error::Workflow`] with the line that is wrong.
    pub fn parse(path: &Path, text: String) -> Result<Self, Error> {
        let source = SourceText::new(path, text);
        let file = File::parse(&source)?;
        // A parameter without a default has no value until the run gives it one.
        let value = |(name, declared): (&Spanned<String>, &Declared)| {
            Some((name.get_ref().clone(), declared.default()?.text()))
        };
        let values = file.parameters.iter().filter_map(value).collect();
        Ok(Self {
            source,
            file,
            values,
            given: BTreeSet::new(),
            run_folder: None,
        })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        self.source.path()
    }

    /// Returns the folder of this run, if it is one of a sweep.
    pub fn run_folder(&self) -> Option<&Path> {
        self.run_folder.as_deref()
    }

    /// Returns its text; the table `[config]` in it holds settings.
    pub fn text(&self) -> &str {
        self.source.text()
    }

    /// Returns the name of the job: the one in the file, or the file's own name.
    pub fn job(&self) -> String {
        let stem = || {
            self.path()
                .file_stem()
                .map(|stem| stem.to_string_lossy().into_owned())
        };
        self.file
            .job
            .name
            .clone()
            .or_else(stem)
            .unwrap_or_else(|| "job".to_owned())
    }

    /// Returns how long the job may run, if the file says so.
    ///
    /// # Errors
    /// [`Error::Workflow`] if that is not a time.
    pub fn timeout(&self) -> Result<Option<Duration>, Error> {
        self.time(self.file.job.timeout.as_ref())
    }

    /// Returns the declared parameters with the values of the file.
    pub fn parameters(&self) -> Vec<Parameter> {
        let parameters = self.file.parameters.iter();
        parameters
            .map(|(name, declared)| declared.parameter(name.get_ref()))
            .collect()
    }

    /// Checks that the run has given all parameters that have no default.
    ///
    /// # Errors
    /// [`Error::Workflow`], with the line of the parameter.
    pub fn check_given(&self) -> Result<(), Error> {
        for (name, declared) in &self.file.parameters {
            let key = name.get_ref();
            if !self.values.contains_key(key) {
                let message = self.not_given(key, declared);
                return Err(self.source.error(name.span(), message));
            }
        }
        Ok(())
    }

    fn not_given(&self, name: &str, declared: &Declared) -> String {
        let help = declared.parameter(name).help;
        let help = match help.is_empty() {
            true => help,
            false => format!(" ({help})"),
        };
        format!("the parameter `{name}`{help} has no default: give it by --{name} VALUE")
    }

    fn declared(&self, name: &str) -> Option<&Declared> {
        let mut parameters = self.file.parameters.iter();
        let (_, declared) = parameters.find(|(known, _)| known.get_ref() == name)?;
        Some(declared)
    }

    /// Checks that all parameters in a text have values.
    fn known(&self, text: &str) -> Result<(), String> {
        for (name, declared) in &self.file.parameters {
            let name = name.get_ref();
            if !self.values.contains_key(name) && text.contains(&format!("{{{name}}}")) {
                return Err(self.not_given(name, declared));
            }
        }
        Ok(())
    }

    /// Overrides a value: `NAME=VALUE` for a parameter, `program.NAME.KEY=VALUE` for `units`,
    /// `cpus`, `command`, `prefix` or `env.VARIABLE` of a program, or
    /// `edge.PROGRAM.STREAM.KEY=VALUE` for `as`, `redistribute`, `rate`, `limit_steps`,
    /// `limit_bytes`, `operators` or `tokens` of the edge to that program, which reads the stream
    /// under that name.
    ///
    /// # Errors
    /// [`Error::Setting`] if there is no such parameter, program, edge or key.
    pub fn set(&mut self, assignment: &str) -> Result<(), Error> {
        self.try_set(assignment)
            .map_err(|reason| Error::Setting(format!("--set {assignment}: {reason}")))
    }

    fn try_set(&mut self, assignment: &str) -> Result<(), String> {
        let (key, value) = assignment.split_once('=').ok_or(
            "write it as NAME=VALUE, program.NAME.KEY=VALUE or edge.PROGRAM.STREAM.KEY=VALUE",
        )?;
        if let Some(key) = key.strip_prefix("edge.") {
            return self.set_edge(key, value);
        }
        // Without `program.` it is a parameter, which must be declared in the file.
        let Some((name, key)) = key
            .strip_prefix("program.")
            .and_then(|key| key.split_once('.'))
        else {
            let names = self.file.parameters.keys();
            let known: Vec<&str> = names.map(|name| name.get_ref().as_str()).collect();
            let hint = suggestion(key, &known);
            let declared = self.declared(key).ok_or_else(|| {
                format!(
                    "{} has no parameter `{key}`{hint}",
                    self.source.path().display()
                )
            })?;
            declared.check(key, value)?;
            self.values.insert(key.to_owned(), value.to_owned());
            self.given.insert(key.to_owned());
            return Ok(());
        };
        // Otherwise it is a key of a program.
        let known: Vec<&str> = self
            .file
            .program
            .iter()
            .map(|entry| entry.name.get_ref().as_str())
            .collect();
        let hint = suggestion(name, &known);
        let entry = self
            .file
            .program
            .iter_mut()
            .find(|entry| entry.name.get_ref() == name)
            .ok_or_else(|| format!("there is no program `{name}`{hint}"))?;
        entry.set(key, value)
    }

    /// Returns the programs of the job that have units, with their executables found.
    ///
    /// # Errors
    /// [`Error::Workflow`], [`Error::NoSuchProgram`] or [`Error::NotExecutable`].
    pub fn programs(&self, builtins: &Builtins<'_>) -> Result<Vec<Program>, Error> {
        self.check_given()?;
        let mut programs = Vec::new();
        for entry in &self.file.program {
            for instance in self.instances(entry)? {
                let name = entry.name_of(instance);
                if programs.iter().any(|other: &Program| other.name == name) {
                    let message = format!(
                        "there are two programs called `{name}`, one of them an instance; give one another name"
                    );
                    return Err(self.source.error(entry.name.span(), message));
                }
                programs.push(self.program(entry, instance, builtins)?);
            }
        }
        self.check_order()?;
        programs.retain(|program| program.units > 0);
        Ok(programs)
    }
}

#[cfg(test)]
mod tests;
