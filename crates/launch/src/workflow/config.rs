//! Parameters in `[config]`: `stage.folder = "out-{name}"`, `stage.replicas = "{copies}"`.

use super::Workflow;
use crate::error::Error;
use crate::parameters::fill_in;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

impl Workflow {
    /// Returns the text of the file with parameters filled in in the texts of `[config]`. A number
    /// or a switch that stands alone in a text is no text there. Lines keep their numbers.
    ///
    /// # Errors
    /// [`Error::Workflow`], with the line of a name that is not among the parameters, or of a
    /// parameter that the run has to give.
    pub fn settings_text(&self) -> Result<String, Error> {
        let text = self.source.text();
        let table = DeTable::parse(text).map_err(|error| self.source.parse_error(&error))?;
        let mut found = Vec::new();
        if let Some(config) = table.get_ref().get("config") {
            self.fill_value(config, &mut found)?;
        }
        // From the last one on, so that the positions of the others stay.
        found.sort_by_key(|(span, _)| std::cmp::Reverse(span.start));
        let mut filled = text.to_owned();
        for (span, value) in found {
            let lines = text[span.clone()].matches('\n').count();
            filled.replace_range(span, &(value + &"\n".repeat(lines)));
        }
        Ok(filled)
    }

    fn fill_value(
        &self,
        value: &Spanned<DeValue<'_>>,
        found: &mut Vec<(Range<usize>, String)>,
    ) -> Result<(), Error> {
        match value.get_ref() {
            DeValue::Table(table) => {
                let mut values = table.values();
                values.try_for_each(|value| self.fill_value(value, found))
            }
            DeValue::Array(array) => {
                let mut values = array.iter();
                values.try_for_each(|value| self.fill_value(value, found))
            }
            DeValue::String(text) if text.contains(['{', '}']) => {
                let filled = self
                    .known(text)
                    .and_then(|()| fill_in(text, &self.values))
                    .map_err(|message| self.source.error(value.span(), message))?;
                let name = text
                    .strip_prefix('{')
                    .and_then(|text| text.strip_suffix('}'));
                let plain = name
                    .and_then(|name| self.declared(name))
                    .and_then(|declared| declared.kind().plain(&filled));
                let written = plain.unwrap_or_else(|| toml::Value::String(filled).to_string());
                found.push((value.span(), written));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
