//! Settings in the text of a file, each with its line.

use super::ConfigError;
use super::layers::{Layer, Source};
use super::names::{hint, is_known, known_names, like};
use figment::value::Dict;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A file with settings, for messages that state a line.
pub(super) struct File<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

/// Returns whether a setting is in this section or group.
fn is_in(setting: &str, group: &str) -> bool {
    let rest = setting.strip_prefix(group);
    rest.is_some_and(|rest| rest.starts_with('.'))
}

impl File<'_> {
    pub(super) fn at(&self, offset: usize) -> String {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        format!("{}:{line}", self.path.display())
    }

    pub(super) fn parse(&self) -> Result<Spanned<DeTable<'_>>, ConfigError> {
        DeTable::parse(self.text).map_err(|error| self.syntax(&error))
    }

    pub(super) fn syntax(&self, error: &toml::de::Error) -> ConfigError {
        ConfigError::Syntax {
            origin: self.at(error.span().map_or(0, |span| span.start)),
            message: error.message().to_owned(),
        }
    }

    /// Returns the settings of `table` as a layer. Errors: a setting that does not exist.
    pub(super) fn layer(&self, table: &DeTable<'_>) -> Result<Layer, ConfigError> {
        let mut origins = BTreeMap::new();
        let known = known_names();
        for (section, keys) in table {
            let name = section.get_ref().to_string();
            let at = section.span().start;
            match keys.get_ref() {
                DeValue::Table(keys) => {
                    for (key, value) in keys {
                        let name = format!("{name}.{}", key.get_ref());
                        let is_group = known.iter().any(|known| is_in(known, &name));
                        // A group of settings, or those of one stream.
                        if let DeValue::Table(own) = value.get_ref()
                            && (is_group || section.get_ref() == "stage")
                            && !known.contains(&name)
                        {
                            for key in own.keys() {
                                let full = format!("{name}.{}", key.get_ref());
                                if !is_known(&full, &known) {
                                    return Err(self.unknown(&full, &known, key.span().start));
                                }
                                origins.insert(full, self.at(key.span().start));
                            }
                            continue;
                        }
                        self.check(&name, &known, key.span().start)?;
                        origins.insert(name, self.at(key.span().start));
                    }
                    if keys.is_empty() && !known.iter().any(|known| is_in(known, &name)) {
                        self.check(&name, &known, at)?;
                    }
                }
                _ => self.check(&name, &known, at)?,
            }
        }
        // The spans are evaluated; the values are deserialised like those of other layers.
        let deserializer =
            toml::de::ValueDeserializer::from(Spanned::new(0..0, DeValue::Table(table.clone())));
        let values = Dict::deserialize(deserializer).map_err(|error| self.syntax(&error))?;
        Ok(Layer {
            values,
            origins,
            source: Source::File,
        })
    }

    fn check(&self, name: &str, known: &[String], offset: usize) -> Result<(), ConfigError> {
        if known.iter().any(|known| known == name) {
            return Ok(());
        }
        Err(self.unknown(name, known, offset))
    }

    fn unknown(&self, name: &str, known: &[String], offset: usize) -> ConfigError {
        let hint = hint(name, like(name, known).iter().map(String::as_str));
        ConfigError::Unknown {
            origin: self.at(offset),
            name: name.to_owned(),
            hint,
        }
    }
}
