//! A workflow file: which programs make up a job.
//!
//! ```toml
//! [job]
//! name = "laplace"                  # default: the file's name
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
//! cpus = ["0", "1"]                 # one list per unit in turn, or one for all: "0-3"
//! env = { OMP_NUM_THREADS = "1" }
//! prefix = false                    # show its lines without the prefix `[solver.0]`; default true
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
//! `config` parameters in settings · `edge` · `number` whole numbers

mod condition;
mod config;
mod edge;
mod file;
mod number;
mod parameter;

use crate::error::Error;
use crate::exec::is_cpu_list;
use crate::parameters::{Parameter, fill_in};
use crate::plan::{Cpus, Program, find_program};
use crate::source::{SourceText, suggestion};
use file::{ArgEntry, CpuEntry, File, ProgramEntry};
use parameter::{Declared, Value};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// The maximum number of units of a program; ranks fit into every wire format.
const MOST_UNITS: u32 = 1 << 16;

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
}

impl Workflow {
    /// Reads a workflow file.
    ///
    /// # Errors
    /// [`Error::ReadWorkflow`], or [`Error::Workflow`] with the line that is wrong.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::ReadWorkflow {
            path: path.to_path_buf(),
            source,
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
        })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        self.source.path()
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
        self.file
            .program
            .iter()
            .map(|entry| self.program(entry, builtins))
            .filter(|program| !program.as_ref().is_ok_and(|program| program.units == 0))
            .collect()
    }

    fn program(&self, entry: &ProgramEntry, builtins: &Builtins<'_>) -> Result<Program, Error> {
        let name = entry.name.get_ref();
        let command = self.fill(&entry.command)?;
        let mut args: Vec<OsString> = Vec::new();
        // A built-in is the `samite` executable itself, called as `unit NAME`.
        let executable = if builtins.names.contains(&command.as_str()) {
            args.extend(["unit".into(), command.into()]);
            builtins.executable.clone()
        } else {
            let folder = self.path().parent().unwrap_or(Path::new("."));
            find_program(name, &command, folder).map_err(|error| self.with_hint(error, builtins))?
        };
        for arg in &entry.args {
            args.extend(self.arguments(arg)?);
        }
        if let Some((key, value)) = entry.env.iter().find(|(key, _)| key.starts_with("SAMITE_")) {
            let message = format!(
                "the launcher itself sets {key} for each unit: write settings into [config]"
            );
            return Err(self.source.error(value.span(), message));
        }
        let env = entry
            .env
            .iter()
            .map(|(key, value)| Ok((key.clone(), self.fill(value)?)))
            .collect::<Result<_, Error>>()?;
        let (units, cpus) = (self.units(entry)?, self.cpus(entry)?);
        let prefix = entry.prefix.unwrap_or(true);
        Ok(Program {
            name: name.clone(),
            command: executable,
            args,
            units,
            env,
            cpus,
            prefix,
        })
    }

    /// Returns the arguments of an entry, with parameters filled in; none if its condition does not
    /// hold.
    fn arguments(&self, entry: &Spanned<ArgEntry>) -> Result<Vec<OsString>, Error> {
        let fill = |value: &Value| {
            fill_in(&value.text(), &self.values)
                .map_err(|message| self.source.error(entry.span(), message))
        };
        let args = match entry.get_ref() {
            ArgEntry::Always(arg) => std::slice::from_ref(arg),
            ArgEntry::When { when, args } if condition::holds(&fill(when)?) => args.as_slice(),
            ArgEntry::When { .. } => &[],
        };
        args.iter().map(|arg| Ok(fill(arg)?.into())).collect()
    }

    /// Fills in the parameters of a text.
    fn fill(&self, text: &Spanned<String>) -> Result<String, Error> {
        fill_in(text.get_ref(), &self.values)
            .map_err(|message| self.source.error(text.span(), message))
    }

    fn units(&self, entry: &ProgramEntry) -> Result<u32, Error> {
        let Some(units) = &entry.units else {
            return Ok(1);
        };
        let error = |message| self.source.error(units.span(), message);
        let text = fill_in(&units.get_ref().text(), &self.values).map_err(error)?;
        text.parse()
            .ok()
            .filter(|units| *units <= MOST_UNITS)
            .ok_or_else(|| {
                error(format!(
                    "`{}` has `{text}` units; it can have 0 to {MOST_UNITS}",
                    entry.name.get_ref()
                ))
            })
    }

    fn cpus(&self, entry: &ProgramEntry) -> Result<Cpus, Error> {
        let Some(cpus) = &entry.cpus else {
            return Ok(Cpus::Any);
        };
        let error = |message| self.source.error(cpus.span(), message);
        let list = |text: &String| {
            let list = fill_in(text, &self.values).map_err(error)?;
            if !is_cpu_list(&list) {
                return Err(error(format!(
                    "`{list}` is not a list of processors; write it like 0-3,8"
                )));
            }
            Ok(list)
        };
        match cpus.get_ref() {
            CpuEntry::Same(text) => list(text).map(Cpus::Same),
            CpuEntry::PerUnit(texts) => texts
                .iter()
                .map(list)
                .collect::<Result<_, _>>()
                .map(Cpus::PerUnit),
        }
    }

    /// Adds a hint if a command is almost the name of a built-in.
    fn with_hint(&self, error: Error, builtins: &Builtins<'_>) -> Error {
        match error {
            Error::NoSuchProgram {
                program,
                command,
                looked,
            } => {
                let near = crate::nearest(&command, builtins.names.iter().copied());
                let hint = near.map_or(String::new(), |near| format!(", did you mean `{near}`?"));
                Error::NoSuchProgram {
                    program,
                    command,
                    looked: looked + &hint,
                }
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests;
