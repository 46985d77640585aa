//! The shape of a workflow file: its tables, their keys, and what may be in them.

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
    pub(super) edge: Vec<EdgeEntry>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Job {
    pub(super) name: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum Declared {
    Short(Value),
    Long {
        default: Value,
        #[serde(default)]
        help: String,
    },
}

/// A value that ends up as text anyway.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
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
#[serde(untagged)]
pub(super) enum CpuEntry {
    Same(String),
    PerUnit(Vec<String>),
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct EdgeEntry {
    pub(super) from: Spanned<String>,
    pub(super) stream: Spanned<String>,
    pub(super) to: Spanned<String>,
    #[serde(rename = "as")]
    pub(super) name: Option<Spanned<String>>,
    pub(super) redistribute: Option<Spanned<String>>,
    pub(super) rate: Option<Spanned<String>>,
    pub(super) limit_steps: Option<Spanned<String>>,
    pub(super) limit_bytes: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) operators: Vec<Spanned<OperatorEntry>>,
    pub(super) tokens: Option<Spanned<Value>>,
    #[serde(default)]
    pub(super) variables: Vec<Spanned<VariableEntry>>,
}

/// An operator for all variables, or for some.
#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    expecting = "an operator is a text, or { apply = \"…\", variables = [\"…\"] }"
)]
pub(super) enum OperatorEntry {
    All(String),
    Some {
        apply: String,
        variables: Option<Vec<String>>,
    },
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct VariableEntry {
    pub(super) name: Spanned<String>,
    pub(super) dtype: Spanned<String>,
    pub(super) block: Option<Spanned<Value>>,
    pub(super) shape: Option<Spanned<Value>>,
    pub(super) cut: Option<Spanned<String>>,
    pub(super) every: Option<Spanned<Value>>,
}

const KEYS: &[&str] = &["job", "parameters", "program", "edge", "config"];
const JOB_KEYS: &[&str] = &["name"];
const PARAMETER_KEYS: &[&str] = &["default", "help"];
const PROGRAM_KEYS: &[&str] = &["name", "command", "args", "units", "env", "cpus", "prefix"];
const EDGE_KEYS: &[&str] = &[
    "from",
    "stream",
    "to",
    "as",
    "redistribute",
    "rate",
    "limit_steps",
    "limit_bytes",
    "operators",
    "tokens",
    "variables",
];
const OPERATOR_KEYS: &[&str] = &["apply", "variables"];
const VARIABLE_KEYS: &[&str] = &["name", "dtype", "block", "shape", "cut", "every"];
/// What `--set program.NAME.KEY=VALUE` can change.
const SETTABLE: &[&str] = &["command", "units", "cpus", "prefix", "env"];
/// What `--set edge.PROGRAM.STREAM.KEY=VALUE` can change.
const SETTABLE_OF_EDGE: &[&str] = &[
    "as",
    "redistribute",
    "rate",
    "limit_steps",
    "limit_bytes",
    "operators",
    "tokens",
];

impl File {
    /// Reads and checks the text; every error names its line.
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
        // An overridden value keeps the place of the old one for messages.
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

impl EdgeEntry {
    /// As [`ProgramEntry::set`]. Operators are a list as in the file, or one operator; nothing is none.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let span = self.from.span();
        let text = Some(Spanned::new(span.clone(), value.to_owned()));
        match key {
            "as" => self.name = text,
            "redistribute" => self.redistribute = text,
            "rate" => self.rate = text,
            "limit_steps" => self.limit_steps = text,
            "limit_bytes" => self.limit_bytes = text,
            "operators" => {
                let operators = OperatorEntry::list(value)?.into_iter();
                self.operators = operators
                    .map(|operator| Spanned::new(span.clone(), operator))
                    .collect();
            }
            "tokens" => self.tokens = Some(Spanned::new(span, Value::Text(value.to_owned()))),
            key => {
                let hint = suggestion(key, SETTABLE_OF_EDGE);
                return Err(format!("`{key}` of an edge cannot be set{hint}"));
            }
        }
        Ok(())
    }
}

impl OperatorEntry {
    fn list(text: &str) -> Result<Vec<OperatorEntry>, String> {
        #[derive(Deserialize)]
        struct List {
            list: Vec<OperatorEntry>,
        }
        match text.trim() {
            "" => Ok(Vec::new()),
            list if list.starts_with('[') => toml::from_str(&format!("list = {list}"))
                .map(|List { list }| list)
                .map_err(|error| error.message().to_owned()),
            one => Ok(vec![OperatorEntry::All(one.to_owned())]),
        }
    }
}

/// Unknown keys are errors, wherever they are; `[config]` is checked by whoever reads it.
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
    for edge in tables(value("edge")) {
        check_table(source, edge, "[[edge]]", EDGE_KEYS)?;
        for operator in tables(edge.get("operators").map(Spanned::get_ref)) {
            check_table(source, operator, "an operator of an edge", OPERATOR_KEYS)?;
        }
        for variable in tables(edge.get("variables").map(Spanned::get_ref)) {
            check_table(source, variable, "a variable of an edge", VARIABLE_KEYS)?;
        }
    }
    Ok(())
}

/// The tables in an array of them.
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
                "`{}` cannot name a parameter: use small letters, digits, - and _",
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
