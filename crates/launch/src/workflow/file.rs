//! The structure of a workflow file: its tables, their keys, and the values that they may have.

use super::parameter::{Declared, Value, check_declarations, check_type};
use super::sweep::Entry;
use crate::error::Error;
use crate::parameters::{OF_UNIT, is_name};
use crate::source::{SourceText, suggestion};
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

#[derive(Debug, Clone, Deserialize)]
pub(super) struct File {
    #[serde(default)]
    pub(super) job: Job,
    #[serde(default)]
    pub(super) parameters: BTreeMap<Spanned<String>, Declared>,
    #[serde(default)]
    pub(super) program: Vec<ProgramEntry>,
    #[serde(default)]
    pub(super) edge: Vec<toml::Table>,
    #[serde(default)]
    pub(super) sweep: BTreeMap<Spanned<String>, Entry>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Job {
    pub(super) name: Option<String>,
    pub(super) timeout: Option<Spanned<String>>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct ProgramEntry {
    pub(super) name: Spanned<String>,
    pub(super) command: Spanned<String>,
    #[serde(default)]
    pub(super) args: Vec<Spanned<ArgEntry>>,
    pub(super) units: Option<Spanned<Value>>,
    #[serde(default)]
    pub(super) env: BTreeMap<String, Spanned<String>>,
    pub(super) cpus: Option<Spanned<CpuEntry>>,
    pub(super) prefix: Option<bool>,
    pub(super) instances: Option<Spanned<Value>>,
    pub(super) cwd: Option<Spanned<String>>,
    pub(super) stdin: Option<Spanned<String>>,
    pub(super) stdout: Option<Spanned<String>>,
    pub(super) stderr: Option<Spanned<String>>,
    pub(super) grace: Option<Spanned<String>>,
    pub(super) stop_signal: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) after: Vec<Spanned<String>>,
    pub(super) ready: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) restart: u32,
    #[serde(default)]
    pub(super) optional: bool,
}

/// An argument, or several that depend on a condition.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    expecting = "write an argument, or { when = \"{PARAMETER}\", args = [\"ARGUMENT\"] }"
)]
pub(super) enum ArgEntry {
    Always(Value),
    When { when: Value, args: Vec<Value> },
}

#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    expecting = "write a list of processors like \"0-3,8\", or one such list per unit"
)]
pub(super) enum CpuEntry {
    Same(String),
    PerUnit(Vec<String>),
}

/// The version of the form of workflow files that this parser reads.
pub(super) const SCHEMA: i64 = 1;
pub(super) const KEYS: &[&str] = &[
    "schema",
    "job",
    "parameters",
    "program",
    "edge",
    "sweep",
    "config",
];
pub(super) const JOB_KEYS: &[&str] = &["name", "timeout"];
pub(super) const PARAMETER_KEYS: &[&str] = &[
    "default", "help", "type", "choices", "min", "max", "required",
];
pub(super) const ARG_KEYS: &[&str] = &["when", "args"];
pub(super) const PROGRAM_KEYS: &[&str] = &[
    "name",
    "command",
    "args",
    "units",
    "env",
    "cpus",
    "prefix",
    "instances",
    "cwd",
    "stdin",
    "stdout",
    "stderr",
    "grace",
    "stop_signal",
    "after",
    "ready",
    "restart",
    "optional",
];
/// The keys that `--set program.NAME.KEY=VALUE` can change.
const SETTABLE: &[&str] = &["command", "units", "cpus", "prefix", "env"];

impl File {
    /// Parses and checks the text; every error states its line.
    pub(super) fn parse(source: &SourceText) -> Result<Self, Error> {
        let table = DeTable::parse(source.text()).map_err(|error| source.parse_error(&error))?;
        check_keys(source, table.get_ref())?;
        let file: Self =
            toml::from_str(source.text()).map_err(|error| source.parse_error(&error))?;
        check_names(source, &file)?;
        check_declarations(source, &file.parameters)?;
        Ok(file)
    }
}

impl ProgramEntry {
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        // For messages, an overridden value keeps the position of the old one.
        let text = |span| Spanned::new(span, value.to_owned());
        match key.split_once('.').unwrap_or((key, "")) {
            ("command", "") => self.command = text(self.command.span()),
            ("units", "") => {
                let span = self
                    .units
                    .as_ref()
                    .unwrap_or(&Spanned::new(self.name.span(), Value::Integer(1)))
                    .span();
                self.units = Some(Spanned::new(span, Value::Text(value.to_owned())));
            }
            ("cpus", "") => {
                self.cpus = Some(Spanned::new(
                    self.name.span(),
                    CpuEntry::Same(value.to_owned()),
                ));
            }
            ("prefix", "") => {
                self.prefix = Some(
                    value
                        .parse()
                        .map_err(|_| "it is true or false".to_owned())?,
                );
            }
            ("env", variable) if !variable.is_empty() => {
                self.env.insert(variable.to_owned(), text(self.name.span()));
            }
            (key, _) => {
                return Err(format!(
                    "`{key}` cannot be set{}",
                    suggestion(key, SETTABLE)
                ));
            }
        }
        Ok(())
    }
}

/// Checks that there are no unknown keys. `[config]` and `[[edge]]` are checked by the code that
/// reads them.
fn check_keys(source: &SourceText, table: &DeTable<'_>) -> Result<(), Error> {
    // A newer file may have keys that are unknown here, so its version is compared first.
    if let Some(schema) = table.get("schema")
        && schema
            .get_ref()
            .as_integer()
            .and_then(|number| number.as_str().parse().ok())
            != Some(SCHEMA)
    {
        let message = format!(
            "this file is of another form: `samite {}` reads `schema = {SCHEMA}`",
            env!("CARGO_PKG_VERSION")
        );
        return Err(source.error(schema.span(), message));
    }
    check_table(source, table, "a workflow", KEYS)?;
    let value = |key: &str| table.get(key).map(Spanned::get_ref);
    if let Some(DeValue::Table(job)) = value("job") {
        check_table(source, job, "[job]", JOB_KEYS)?;
    }
    if let Some(DeValue::Table(parameters)) = value("parameters") {
        for parameter in parameters.values() {
            if let DeValue::Table(parameter) = parameter.get_ref() {
                check_table(source, parameter, "a parameter", PARAMETER_KEYS)?;
                if let Some(kind) = parameter.get("type") {
                    check_type(source, kind)?;
                }
            }
        }
    }
    for program in tables(value("program")) {
        check_table(source, program, "[[program]]", PROGRAM_KEYS)?;
        for arg in tables(program.get("args").map(Spanned::get_ref)) {
            check_table(source, arg, "an argument with a condition", ARG_KEYS)?;
        }
    }
    Ok(())
}

/// Iterates over the tables in an array of tables.
fn tables<'t, 'a>(value: Option<&'t DeValue<'a>>) -> impl Iterator<Item = &'t DeTable<'a>> {
    let array = match value {
        Some(DeValue::Array(array)) => Some(array),
        _ => None,
    };
    array
        .into_iter()
        .flat_map(|array| array.iter())
        .filter_map(|entry| match entry.get_ref() {
            DeValue::Table(table) => Some(table),
            _ => None,
        })
}

fn check_table(
    source: &SourceText,
    table: &DeTable<'_>,
    what: &str,
    known: &[&str],
) -> Result<(), Error> {
    for key in table.keys() {
        let name = key.get_ref();
        if !known.contains(&name.as_ref()) {
            let message = format!("{what} has no key `{name}`{}", suggestion(name, known));
            return Err(source.error(key.span(), message));
        }
    }
    Ok(())
}

fn check_names(source: &SourceText, file: &File) -> Result<(), Error> {
    for name in file.parameters.keys() {
        if !is_name(name.get_ref()) {
            let message = format!(
                "`{}` cannot name a parameter: use lower-case letters, digits, - and _",
                name.get_ref()
            );
            return Err(source.error(name.span(), message));
        }
        if OF_UNIT.contains(&name.get_ref().as_str()) {
            let message = format!(
                "`{{{}}}` has a value of its own in each unit: give the parameter another name",
                name.get_ref()
            );
            return Err(source.error(name.span(), message));
        }
    }
    if file.program.is_empty() {
        return Err(source.error(
            0..0,
            "the workflow has no [[program]], so there is nothing to run",
        ));
    }
    // The name is part of unit names, output prefixes and keys of `--set`.
    for (index, entry) in file.program.iter().enumerate() {
        let name = entry.name.get_ref();
        if name.is_empty()
            || name.contains(['.', '[', ']', '/'])
            || name.contains(char::is_whitespace)
        {
            let message = format!("`{name}` cannot name a program: leave out spaces and . / [ ]");
            return Err(source.error(entry.name.span(), message));
        }
        if file.program[..index]
            .iter()
            .any(|earlier| earlier.name.get_ref() == name)
        {
            let message = format!("there are two programs called `{name}`; give one another name");
            return Err(source.error(entry.name.span(), message));
        }
    }
    Ok(())
}
