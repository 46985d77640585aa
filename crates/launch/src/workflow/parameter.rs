//! The parameters of a workflow: which values a run may give them.
//!
//! ```toml
//! [parameters]
//! units = 2                                            # short for { default = 2 }
//! size = { default = 64, help = "rows", min = 1 }      # `max` likewise
//! input = { required = true, help = "the file" }       # no default: each run gives it
//! method = { default = "jacobi", choices = ["jacobi", "cg"] }
//! limit = { default = "1 GiB", type = "size" }         # integer, number, bool, text, size, time
//! ```
//!
//! Without `type`, a parameter whose default is a number is a number, and one whose default is true
//! or false is that.

use crate::source::{SourceText, suggestion};
use crate::{Error, Parameter};
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::Spanned;

/// The names of types, as the key `type` has them.
pub(super) const TYPES: &[&str] = &["integer", "number", "bool", "text", "size", "time"];

#[derive(Debug, Clone, Deserialize)]
#[serde(
    untagged,
    expecting = "write a value, or { default = VALUE, help = \"TEXT\" }, with `required = true` in place of a default"
)]
pub(super) enum Declared {
    Short(Value),
    Long(Long),
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Long {
    default: Option<Value>,
    #[serde(default)]
    help: String,
    #[serde(rename = "type")]
    kind: Option<Kind>,
    choices: Option<Vec<Value>>,
    min: Option<Value>,
    max: Option<Value>,
    #[serde(default)]
    required: bool,
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

/// The values that a parameter can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Integer,
    Number,
    Bool,
    Text,
    Size,
    Time,
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

impl Kind {
    /// Returns the form of a value, for messages.
    fn form(self) -> &'static str {
        match self {
            Self::Integer => "a whole number",
            Self::Number => "a number",
            Self::Bool => "true or false",
            Self::Text => "a text",
            Self::Size => "a size with its unit, like 8 KiB",
            Self::Time => "a time with its unit, like 50 ms",
        }
    }

    /// Returns the magnitude of a value, to compare it with others; `None` if it is none of this
    /// kind. Texts have the magnitude 0.
    fn magnitude(self, text: &str) -> Option<f64> {
        match self {
            Self::Integer => text.parse::<i64>().ok().map(|value| value as f64),
            Self::Number => text.parse().ok().filter(|value: &f64| !value.is_nan()),
            Self::Bool => text.parse::<bool>().ok().map(f64::from),
            Self::Text => Some(0.0),
            Self::Size => text
                .parse::<samite_mem::Bytes>()
                .ok()
                .map(|size| size.get() as f64),
            Self::Time => humantime::parse_duration(text)
                .ok()
                .map(|time| time.as_secs_f64()),
        }
    }

    /// Returns a value that stands alone in a text of `[config]` as TOML, if it is not text there.
    /// Rust parses numbers that TOML does not: `.5`, `007`.
    pub(super) fn plain(self, text: &str) -> Option<String> {
        let integer = || Some(text.parse::<i64>().ok()?.to_string());
        match self {
            Self::Integer => integer(),
            Self::Number => {
                let number = || Some(toml::Value::Float(text.parse().ok()?).to_string());
                integer().or_else(number)
            }
            Self::Bool => Some(text.to_owned()),
            Self::Text | Self::Size | Self::Time => None,
        }
    }
}

impl Declared {
    pub(super) fn default(&self) -> Option<&Value> {
        match self {
            Self::Short(value) => Some(value),
            Self::Long(long) => long.default.as_ref(),
        }
    }

    fn help(&self) -> &str {
        match self {
            Self::Short(_) => "",
            Self::Long(long) => &long.help,
        }
    }

    pub(super) fn kind(&self) -> Kind {
        let kind = match self {
            Self::Short(_) => None,
            Self::Long(long) => long.kind,
        };
        kind.unwrap_or(match self.default() {
            Some(Value::Integer(_) | Value::Float(_)) => Kind::Number,
            Some(Value::Bool(_)) => Kind::Bool,
            Some(Value::Text(_)) | None => Kind::Text,
        })
    }

    fn choices(&self) -> Option<Vec<String>> {
        match self {
            Self::Short(_) => None,
            Self::Long(long) => {
                let choices = long.choices.as_ref()?;
                Some(choices.iter().map(Value::text).collect())
            }
        }
    }

    /// Returns the least and the greatest value, as they are written.
    fn bounds(&self) -> [Option<String>; 2] {
        match self {
            Self::Short(_) => [None, None],
            Self::Long(long) => [&long.min, &long.max].map(|bound| bound.as_ref().map(Value::text)),
        }
    }

    /// Checks a value of the parameter.
    ///
    /// # Errors
    /// A message that says what the parameter can be.
    pub(super) fn check(&self, name: &str, value: &str) -> Result<(), String> {
        let kind = self.kind();
        let Some(magnitude) = kind.magnitude(value) else {
            return Err(format!(
                "`{name}` is `{value}`, but has to be {}",
                kind.form()
            ));
        };
        if let Some(choices) = self.choices()
            && !choices.iter().any(|choice| choice == value)
        {
            let known: Vec<&str> = choices.iter().map(String::as_str).collect();
            let near = crate::nearest(value, known.iter().copied());
            let near = near.filter(|_| kind == Kind::Text);
            let near = near.map_or(String::new(), |near| format!("did you mean `{near}`? "));
            let hint = format!("{near}it can be {}", known.join(", "));
            return Err(format!("`{name}` cannot be `{value}`; {hint}"));
        }
        let [min, max] = self.bounds();
        let limit = |bound: Option<String>| {
            let magnitude = kind.magnitude(bound.as_deref()?)?;
            Some((bound?, magnitude))
        };
        if let Some((min, least)) = limit(min)
            && magnitude < least
        {
            return Err(format!("`{name}` is {value}, but has to be at least {min}"));
        }
        if let Some((max, most)) = limit(max)
            && magnitude > most
        {
            return Err(format!("`{name}` is {value}, but can be at most {max}"));
        }
        Ok(())
    }

    /// Checks the declaration itself.
    ///
    /// # Errors
    /// A message about a key that makes no sense.
    fn check_declaration(&self, name: &str) -> Result<(), String> {
        let Self::Long(long) = self else {
            return Ok(());
        };
        match (&long.default, long.required) {
            (None, false) => {
                return Err(format!(
                    "`{name}` has no default: add one, or `required = true` if each run has to give it"
                ));
            }
            (Some(_), true) => {
                return Err(format!(
                    "`{name}` has a default and is required: leave out one of the two"
                ));
            }
            _ => {}
        }
        let kind = self.kind();
        for (key, bound) in ["min", "max"].into_iter().zip(self.bounds()) {
            let Some(bound) = bound else { continue };
            if kind == Kind::Text || kind == Kind::Bool {
                return Err(format!(
                    "`{key}` is for numbers, sizes and times: give `{name}` such a `type`"
                ));
            }
            if kind.magnitude(&bound).is_none() {
                return Err(format!(
                    "`{key}` is `{bound}`, but has to be {}",
                    kind.form()
                ));
            }
        }
        let choices = self.choices().unwrap_or_default();
        if let Some(wrong) = choices
            .iter()
            .find(|choice| kind.magnitude(choice).is_none())
        {
            return Err(format!(
                "the choice `{wrong}` of `{name}` has to be {}",
                kind.form()
            ));
        }
        match &long.default {
            Some(default) => self.check(name, &default.text()),
            None => Ok(()),
        }
    }

    /// Returns the parameter for people and for the command line.
    pub(super) fn parameter(&self, name: &str) -> Parameter {
        let mut help = self.help().to_owned();
        let mut add = |note: String| {
            if !help.is_empty() {
                help.push(' ');
            }
            help += &format!("[{note}]");
        };
        if let Self::Long(Long {
            kind: Some(kind), ..
        }) = self
            && *kind != Kind::Text
        {
            add(kind.form().to_owned());
        }
        if let Some(choices) = self.choices() {
            add(format!("choices: {}", choices.join(", ")));
        }
        match self.bounds() {
            [Some(min), Some(max)] => add(format!("{min} to {max}")),
            [Some(min), None] => add(format!("at least {min}")),
            [None, Some(max)] => add(format!("at most {max}")),
            [None, None] => {}
        }
        Parameter {
            name: name.to_owned(),
            default: self.default().map(Value::text),
            help,
        }
    }
}

/// Checks the declarations of all parameters.
pub(super) fn check_declarations(
    source: &SourceText,
    parameters: &BTreeMap<Spanned<String>, Declared>,
) -> Result<(), Error> {
    for (name, declared) in parameters {
        declared
            .check_declaration(name.get_ref())
            .map_err(|message| source.error(name.span(), message))?;
    }
    Ok(())
}

/// Checks the word after `type`, for a message with the nearest one: serde would only say that no
/// form of a parameter fits.
pub(super) fn check_type(
    source: &SourceText,
    word: &Spanned<toml::de::DeValue<'_>>,
) -> Result<(), Error> {
    let name = word.get_ref().as_str().unwrap_or_default();
    if TYPES.contains(&name) {
        return Ok(());
    }
    let message = format!("`{name}` is not a type{}", suggestion(name, TYPES));
    Err(source.error(word.span(), message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(text: &str) -> Declared {
        let table: BTreeMap<String, Declared> = toml::from_str(&format!("p = {text}")).expect(text);
        table.into_values().next().expect("one")
    }

    #[test]
    fn values_are_checked() {
        for (text, good, bad, said) in [
            ("2", "3", "x", "`p` is `x`, but has to be a number"),
            (
                "{ default = 2, type = 'integer' }",
                "3",
                "2.5",
                "has to be a whole number",
            ),
            ("true", "false", "ja", "has to be true or false"),
            (
                "{ default = 4, min = 1 }",
                "1",
                "0",
                "`p` is 0, but has to be at least 1",
            ),
            (
                "{ default = 4, max = 8 }",
                "8",
                "9",
                "`p` is 9, but can be at most 8",
            ),
            (
                "{ default = '1 KiB', type = 'size', max = '1 MiB' }",
                "1 MiB",
                "2 MiB",
                "can be at most 1 MiB",
            ),
            (
                "{ required = true, type = 'time' }",
                "50 ms",
                "50",
                "a time with its unit",
            ),
            (
                "{ default = 'red', choices = ['red', 'green'] }",
                "green",
                "gren",
                "`p` cannot be `gren`; did you mean `green`? it can be red, green",
            ),
            (
                "{ default = 1, choices = [1, 2] }",
                "2",
                "3",
                "it can be 1, 2",
            ),
        ] {
            let parameter = declared(text);
            assert_eq!(parameter.check_declaration("p"), Ok(()), "{text}");
            assert_eq!(parameter.check("p", good), Ok(()), "{text}");
            let error = parameter.check("p", bad).expect_err(text);
            assert!(error.contains(said), "{text}: {error}");
        }
        assert_eq!(declared("'text'").check("p", "anything"), Ok(()));
    }

    #[test]
    fn declarations_are_checked() {
        for (text, said) in [
            ("{ help = 'rows' }", "`p` has no default"),
            (
                "{ default = 1, required = true }",
                "leave out one of the two",
            ),
            ("{ default = 'a', min = 1 }", "`min` is for numbers"),
            ("{ default = 3, max = 2 }", "can be at most 2"),
            ("{ default = 3, max = 'many' }", "`max` is `many`"),
            ("{ default = 3, choices = ['a'] }", "the choice `a`"),
            ("{ default = 'a', choices = ['b'] }", "cannot be `a`"),
        ] {
            let error = declared(text).check_declaration("p").expect_err(text);
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn people_are_told_what_it_can_be() {
        let help = |text| declared(text).parameter("p").help;
        assert_eq!(
            help("{ default = 1, help = 'rows', min = 1, max = 9 }"),
            "rows [1 to 9]"
        );
        assert_eq!(
            help("{ required = true, type = 'integer' }"),
            "[a whole number]"
        );
        assert_eq!(help("{ default = 1, choices = [1, 2] }"), "[choices: 1, 2]");
    }
}
