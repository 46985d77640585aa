//! The form of workflow files as a JSON schema, for editors.

/// Returns the JSON schema of workflow files.
pub fn workflow_schema() -> &'static str {
    include_str!("schema.json")
}

#[cfg(test)]
mod tests {
    use super::super::file::{ARG_KEYS, JOB_KEYS, KEYS, PARAMETER_KEYS, PROGRAM_KEYS, SCHEMA};
    use super::super::parameter::TYPES;
    use super::super::program::SIGNALS;
    use super::*;
    use serde_json::Value;

    fn keys(table: &Value) -> Vec<&str> {
        let properties = table["properties"].as_object().expect("a table");
        let mut keys: Vec<&str> = properties.keys().map(String::as_str).collect();
        keys.sort();
        keys
    }

    fn sorted<'a>(keys: &[&'a str]) -> Vec<&'a str> {
        let mut keys = keys.to_vec();
        keys.sort();
        keys
    }

    /// The schema has exactly the keys and words that the parser takes.
    #[test]
    fn the_schema_is_what_the_parser_reads() {
        let schema: Value = serde_json::from_str(workflow_schema()).expect("JSON");
        let part = |name: &str| &schema["definitions"][name];
        for (table, known) in [
            (&schema, KEYS),
            (&schema["properties"]["job"], JOB_KEYS),
            (part("parameter"), PARAMETER_KEYS),
            (part("argument"), ARG_KEYS),
            (part("program"), PROGRAM_KEYS),
        ] {
            assert_eq!(keys(table), sorted(known));
        }
        assert_eq!(schema["properties"]["schema"]["const"], SCHEMA);
        let words = |table: &Value| {
            let words = table["enum"].as_array().expect("a list").iter();
            let words = words.map(|word| word.as_str().expect("a word").to_owned());
            words.collect::<Vec<_>>()
        };
        assert_eq!(words(&part("parameter")["properties"]["type"]), TYPES);
        let signals: Vec<&str> = SIGNALS.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            words(&part("program")["properties"]["stop_signal"]),
            signals
        );
    }
}
