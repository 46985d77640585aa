//! The structure of a workflow file: its tables, their keys, and the values that they may have.

use crate::error::Error;
use crate::parameters::is_name;
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
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Job {
    pub(super) name: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    expecting = "write a value, or { default = VALUE, help = \"TEXT\" }"
)]
pub(super) enum Declared {
    Short(Value),
    Long {
        default: Value,
        #[serde(default)]
        help: String,
    },
}

/// A value that is converted to text in any case.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    expecting = "write a number, a text in quotes, true or false"
)]
pub(super) enum Value {
    Integer(i64),
    Float(f64),
    Bool(bool),
    Text(String),
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct ProgramEntry {
    pub(super) name: Spanned<String>,
    pub(super) command: Spanned<String>,
    #[serde(default)]
    pub(super) args: Vec<Spanned<String>>,
    pub(super) units: Option<Spanned<Value>>,
    #[serde(default)]
    pub(super) env: BTreeMap<String, Spanned<String>>,
    pub(super) cpus: Option<Spanned<CpuEntry>>,
    pub(super) prefix: Option<bool>,
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

const KEYS: &[&str] = &["job", "parameters", "program", "edge", "config"];
const JOB_KEYS: &[&str] = &["name"];
const PARAMETER_KEYS: &[&str] = &["default", "help"];
const PROGRAM_KEYS: &[&str] = &["name", "command", "args", "units", "env", "cpus", "prefix"];
/// The keys that `--set program.NAME.KEY=VALUE` can change.
const SETTABLE: &[&str] = &["command", "units", "cpus", "prefix", "env"];
impl File {
    /// Parses and checks the text; every error states its line.
    pub(super) fn parse(source: &SourceText) -> Result<Self, Error> {
        let table = DeTable::parse(source.text()).map_err(|error| source.parse_error(&error))?;
        check_keys(source, table.get_ref())?;
        let file = toml::from_str(source.text()).map_err(|error| source.parse_error(&error))?;
        check_names(source, &file)?;
        Ok(file)
    }
}

impl Declared {
    pub(super) fn default(&self) -> &Value {
        match self {
            Self::Short(value) | Self::Long { default: value, .. } => value,
        }
    }

    pub(super) fn help(&self) -> &str {
        match self {
            Self::Short(_) => "",
            Self::Long { help, .. } => help,
        }
    }
}

impl Value {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Integer(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Bool(value) => value.to_string(),
            Self::Text(value) => value.clone(),
        }
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
    check_table(source, table, "a workflow", KEYS)?;
    let value = |key: &str| table.get(key).map(Spanned::get_ref);
    if let Some(DeValue::Table(job)) = value("job") {
        check_table(source, job, "[job]", JOB_KEYS)?;
    }
    if let Some(DeValue::Table(parameters)) = value("parameters") {
        for parameter in parameters.values() {
            if let DeValue::Table(parameter) = parameter.get_ref() {
                check_table(source, parameter, "a parameter", PARAMETER_KEYS)?;
            }
        }
    }
    for program in tables(value("program")) {
        check_table(source, program, "[[program]]", PROGRAM_KEYS)?;
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
