//! A program of a workflow, and its units.
//!
//! All paths are relative to the folder of the file. In a sweep, `cwd`, `stdout` and `stderr` are
//! relative to the folder of the run, which is the default of `cwd`; so is `stdin` of a program
//! with `after`, because an earlier program may write it. In `args`, `env`, `cwd`, `stdin`,
//! `stdout` and `stderr`, `{rank}` is the rank of the unit, `{instance}` the number of the
//! instance, and `{folder}` the folder of the file.

use super::condition::holds;
use super::file::{ArgEntry, CpuEntry, ProgramEntry};
use super::parameter::Value;
use super::{Builtins, Workflow};
use crate::error::Error;
use crate::exec::is_cpu_list;
use crate::parameters::{OF_UNIT, fill_in};
use crate::plan::{Cpus, Program, find_program};
use crate::setup::Setup;
use crate::source::suggestion;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// The maximum number of units of a program; ranks fit into every wire format.
const MOST_UNITS: u32 = 1 << 16;
/// The maximum number of instances of a program.
const MOST_INSTANCES: u32 = 1 << 10;
/// The signals that may ask a unit to end.
pub(super) const SIGNALS: &[(&str, Signal)] = &[
    ("TERM", Signal::TERM),
    ("INT", Signal::INT),
    ("HUP", Signal::HUP),
    ("QUIT", Signal::QUIT),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
];

/// The values for the texts of one unit.
struct Values<'w> {
    workflow: &'w Workflow,
    values: BTreeMap<String, String>,
}

impl Values<'_> {
    fn fill(&self, text: &Spanned<String>) -> Result<String, Error> {
        fill_in(text.get_ref(), &self.values)
            .map_err(|message| self.workflow.source.error(text.span(), message))
    }

    /// Returns the arguments of an entry; none if its condition does not hold.
    fn arguments(&self, entry: &Spanned<ArgEntry>) -> Result<Vec<OsString>, Error> {
        let fill_text = |text: &str| {
            fill_in(text, &self.values)
                .map_err(|message| self.workflow.source.error(entry.span(), message))
        };
        let fill = |value: &Value| fill_text(&value.text());
        let args = match entry.get_ref() {
            ArgEntry::Always(arg) => std::slice::from_ref(arg),
            ArgEntry::When { when, args } if holds(&when.text(), fill_text)? => args.as_slice(),
            ArgEntry::When { .. } => &[],
        };
        args.iter().map(|arg| Ok(fill(arg)?.into())).collect()
    }

    /// Returns the path of a file or folder that a unit of the job writes: in the folder of the
    /// run, if there is one.
    fn output(&self, text: Option<&Spanned<String>>) -> Result<Option<PathBuf>, Error> {
        let text = text.map(|text| self.fill(text)).transpose()?;
        let run = self.workflow.run_folder.clone();
        let folder = run.unwrap_or_else(|| self.workflow.folder());
        Ok(text.map(|text| folder.join(text)))
    }

    /// Returns the path of the standard input: an output of an earlier program if there is one, so
    /// that a run of a sweep does not read the file of another run.
    fn input(&self, entry: &ProgramEntry) -> Result<Option<PathBuf>, Error> {
        if !entry.after.is_empty() {
            return self.output(entry.stdin.as_ref());
        }
        let text = entry.stdin.as_ref().map(|text| self.fill(text));
        Ok(text
            .transpose()?
            .map(|text| self.workflow.folder().join(text)))
    }
}

impl ProgramEntry {
    /// Returns the name of one of its instances.
    pub(super) fn name_of(&self, instance: u32) -> String {
        match self.instances {
            Some(_) => format!("{}-{instance}", self.name.get_ref()),
            None => self.name.get_ref().clone(),
        }
    }

    /// Returns true if what its units are started with may depend on their ranks. It does not if
    /// `{{rank}}` is all that there is of it, but that is rare.
    fn names_rank(&self) -> bool {
        let has = |text: &str| text.contains("{rank}");
        let value = |value: &Value| has(&value.text());
        let args = self.args.iter().any(|arg| match arg.get_ref() {
            ArgEntry::Always(arg) => value(arg),
            ArgEntry::When { when, args } => value(when) || args.iter().any(value),
        });
        let paths = [&self.cwd, &self.stdin, &self.stdout, &self.stderr];
        let texts = paths.into_iter().flatten().chain(self.env.values());
        args || texts.into_iter().any(|text| has(text.get_ref()))
    }
}

impl Workflow {
    /// Returns the folder of the file, to which all of its paths are relative.
    pub fn folder(&self) -> PathBuf {
        let folder = self.path().parent().unwrap_or(Path::new(""));
        std::path::absolute(folder.join(".")).unwrap_or_else(|_| folder.to_owned())
    }

    pub(super) fn instances(&self, entry: &ProgramEntry) -> Result<std::ops::Range<u32>, Error> {
        let Some(instances) = &entry.instances else {
            return Ok(0..1);
        };
        let error = |message| self.source.error(instances.span(), message);
        let text = fill_in(&instances.get_ref().text(), &self.values).map_err(error)?;
        let number = text.parse().ok().filter(|number| *number <= MOST_INSTANCES);
        let number = number.ok_or_else(|| {
            let name = entry.name.get_ref();
            error(format!(
                "`{name}` has `{text}` instances; it can have 0 to {MOST_INSTANCES}"
            ))
        })?;
        Ok(0..number)
    }

    pub(super) fn program(
        &self,
        entry: &ProgramEntry,
        instance: u32,
        builtins: &Builtins<'_>,
    ) -> Result<Program, Error> {
        let name = entry.name_of(instance);
        let command = self.fill(&entry.command)?;
        let mut args: Vec<OsString> = Vec::new();
        // A built-in is the `samite` executable itself, called as `unit NAME`.
        let mut executable = if builtins.names.contains(&command.as_str()) {
            args.extend(["unit".into(), command.into()]);
            builtins.executable.clone()
        } else {
            let folder = self.path().parent().unwrap_or(Path::new("."));
            find_program(&name, &command, folder).map_err(|error| with_hint(error, builtins))?
        };
        if let Some((key, value)) = entry.env.iter().find(|(key, _)| key.starts_with("SAMITE_")) {
            let message = format!(
                "the launcher itself sets {key} for each unit: write settings into [config]"
            );
            return Err(self.source.error(value.span(), message));
        }
        let is_odd = |key: &str| key.is_empty() || key.contains(['=', '\0']);
        if let Some((key, value)) = entry.env.iter().find(|(key, _)| is_odd(key)) {
            let message =
                format!("{key:?} cannot name a variable: it is empty, or has = or a zero");
            return Err(self.source.error(value.span(), message));
        }
        if entry.cwd.is_some() || self.run_folder.is_some() {
            executable = std::path::absolute(&executable).unwrap_or(executable);
        }
        let units = self.units(entry)?;
        let setup = |rank| self.setup(entry, instance, rank, &args);
        let setups = match entry.names_rank() {
            true => (0..units).map(setup).collect::<Result<_, _>>()?,
            false => Vec::new(),
        };
        Ok(Program {
            name,
            command: executable,
            setup: setup(0)?,
            setups,
            units,
            cpus: self.cpus(entry)?,
            prefix: entry.prefix.unwrap_or(true),
            grace: self.time(entry.grace.as_ref())?,
            stop_signal: self.signal(entry)?,
            after: self.after(entry)?,
            ready: entry
                .ready
                .as_ref()
                .map(|text| self.fill(text))
                .transpose()?,
            restart: entry.restart,
            optional: entry.optional,
        })
    }

    /// Returns what a unit is started with; `args` come before its own arguments.
    fn setup(
        &self,
        entry: &ProgramEntry,
        instance: u32,
        rank: u32,
        args: &[OsString],
    ) -> Result<Setup, Error> {
        let mut values = self.values.clone();
        let folder = self.folder().to_string_lossy().into_owned();
        let own = [rank.to_string(), instance.to_string(), folder];
        values.extend(OF_UNIT.iter().map(|name| (*name).to_owned()).zip(own));
        let values = Values {
            workflow: self,
            values,
        };
        let mut args = args.to_vec();
        for arg in &entry.args {
            args.extend(values.arguments(arg)?);
        }
        let env = entry.env.iter();
        let env = env.map(|(key, value)| Ok((key.clone(), values.fill(value)?)));
        let stdin = values.input(entry)?;
        if let (Some(path), Some(text)) = (&stdin, &entry.stdin)
            && !path.is_file()
        {
            let shown = path.display();
            let message = match path.exists() {
                true => format!("{shown} is not a regular file: it cannot be a standard input"),
                false => format!("there is no file {shown} for the standard input"),
            };
            // A program that comes before this one may still write the file.
            if path.exists() || entry.after.is_empty() {
                return Err(self.source.error(text.span(), message));
            }
        }
        Ok(Setup {
            args,
            env: env.collect::<Result<_, Error>>()?,
            cwd: values
                .output(entry.cwd.as_ref())?
                .or_else(|| self.run_folder.clone()),
            stdin,
            stdout: values.output(entry.stdout.as_ref())?,
            stderr: values.output(entry.stderr.as_ref())?,
        })
    }

    /// Fills in the parameters of a text that is the same for all units.
    fn fill(&self, text: &Spanned<String>) -> Result<String, Error> {
        fill_in(text.get_ref(), &self.values)
            .map_err(|message| self.source.error(text.span(), message))
    }

    /// Parses a time.
    pub(super) fn time(&self, text: Option<&Spanned<String>>) -> Result<Option<Duration>, Error> {
        let Some(text) = text else {
            return Ok(None);
        };
        let filled = self.fill(text)?;
        humantime::parse_duration(&filled).map(Some).map_err(|_| {
            let message = format!("`{filled}` is not a time with its unit, like \"50 ms\"");
            self.source.error(text.span(), message)
        })
    }

    /// Returns the names of the programs that have to be ready before a program starts.
    fn after(&self, entry: &ProgramEntry) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        for name in &entry.after {
            names.extend(self.named(name)?.1);
        }
        Ok(names)
    }

    /// Finds what a name in `after` means: an entry, and all of its instances or the one that is
    /// named.
    fn named(&self, name: &Spanned<String>) -> Result<(&ProgramEntry, Vec<String>), Error> {
        let programs = &self.file.program;
        let names = |entry: &ProgramEntry| {
            let instances = self.instances(entry)?;
            Ok(instances.map(|instance| entry.name_of(instance)).collect())
        };
        let mut same = programs.iter();
        if let Some(entry) = same.find(|entry| entry.name.get_ref() == name.get_ref()) {
            return Ok((entry, names(entry)?));
        }
        for entry in programs {
            let names: Vec<String> = names(entry)?;
            if names.contains(name.get_ref()) {
                return Ok((entry, vec![name.get_ref().clone()]));
            }
        }
        let known = programs.iter().map(|other| other.name.get_ref().as_str());
        let hint = suggestion(name.get_ref(), &known.collect::<Vec<&str>>());
        let message = format!("there is no program `{}`{hint}", name.get_ref());
        Err(self.source.error(name.span(), message))
    }

    /// Checks that no program waits for itself.
    pub(super) fn check_order(&self) -> Result<(), Error> {
        let programs = &self.file.program;
        let mut befores: Vec<Vec<&str>> = Vec::new();
        for entry in programs {
            let before = entry.after.iter();
            let before = before.map(|name| Ok(self.named(name)?.0.name.get_ref().as_str()));
            befores.push(before.collect::<Result<_, Error>>()?);
        }
        let mut started: Vec<&str> = Vec::new();
        while started.len() < programs.len() {
            let is_started = |name: &&str| started.contains(name);
            let mut entries = programs.iter().zip(&befores);
            let next = entries.find(|(entry, before)| {
                !is_started(&entry.name.get_ref().as_str()) && before.iter().all(is_started)
            });
            let Some((next, _)) = next else {
                let stuck = programs.iter();
                let stuck = stuck.filter(|entry| !is_started(&entry.name.get_ref().as_str()));
                let stuck: Vec<&ProgramEntry> = stuck.collect();
                let names = stuck.iter().map(|entry| entry.name.get_ref().as_str());
                let names = names.collect::<Vec<&str>>().join(" and ");
                let message = format!("{names} would wait for each other: change `after`");
                return Err(self.source.error(stuck[0].name.span(), message));
            };
            started.push(next.name.get_ref());
        }
        Ok(())
    }

    fn signal(&self, entry: &ProgramEntry) -> Result<Signal, Error> {
        let Some(text) = &entry.stop_signal else {
            return Ok(Signal::TERM);
        };
        let filled = self.fill(text)?;
        let name = filled.strip_prefix("SIG").unwrap_or(&filled);
        let known = SIGNALS.iter().find(|(known, _)| *known == name);
        known.map(|(_, signal)| *signal).ok_or_else(|| {
            let names: Vec<&str> = SIGNALS.iter().map(|(name, _)| *name).collect();
            let message = format!(
                "`{filled}` is not a signal that asks to end; known here: {}",
                names.join(", ")
            );
            self.source.error(text.span(), message)
        })
    }

    pub(super) fn units(&self, entry: &ProgramEntry) -> Result<u32, Error> {
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
}

/// Adds a hint if a command is almost the name of a built-in.
fn with_hint(error: Error, builtins: &Builtins<'_>) -> Error {
    match error {
        Error::NoSuchProgram {
            program,
            command,
            looked,
        } => {
            // A hint that is already there names a file.
            let builtins = builtins.names.iter().copied();
            let near = crate::nearest(&command, builtins).filter(|_| !looked.contains("did you"));
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
