//! The values that a workflow leaves open: `{size}` in an argument, `--size 512` on the command
//! line.

use crate::source::suggestion;
use std::collections::BTreeMap;

/// A value that a workflow declares in `[parameters]` and that a run may override.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name: `{name}` in the workflow, `--name` on the command line.
    pub name: String,
    /// Its value unless the run sets another; `None` if each run has to set it.
    pub default: Option<String>,
    /// Its description, for `--help`.
    pub help: String,
}

/// The names that have values of their own in each unit.
pub(crate) const OF_UNIT: &[&str] = &["rank", "instance", "folder"];

/// Returns true if `name` may be written in braces and after `--`.
pub(crate) fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_')
}

/// Replaces `{name}` by its value. `{{` and `}}` stand for braces; braces around anything that is
/// not a name are kept.
///
/// # Errors
/// A message about a name that is not among the values.
pub(crate) fn fill_in(text: &str, values: &BTreeMap<String, String>) -> Result<String, String> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        filled.push_str(&rest[..at]);
        rest = &rest[at..];
        let name = rest
            .strip_prefix('{')
            .and_then(|inner| inner.split_once('}'));
        // An escaped brace, a parameter, or a brace that is ordinary text.
        if rest.starts_with("{{") || rest.starts_with("}}") {
            filled.push_str(&rest[..1]);
            rest = &rest[2..];
        } else if let Some((name, after)) = name.filter(|(name, _)| is_name(name)) {
            let Some(value) = values.get(name) else {
                if OF_UNIT.contains(&name) {
                    return Err(format!(
                        "`{{{name}}}` has a value only in args, env, cwd, stdin, stdout and stderr, and `{{instance}}` in an edge of instances"
                    ));
                }
                let known: Vec<&str> = values.keys().map(String::as_str).collect();
                return Err(format!(
                    "`{{{name}}}` is not in [parameters]{} (`{{{{{name}}}}}` means the text itself)",
                    suggestion(name, &known)
                ));
            };
            filled.push_str(value);
            rest = after;
        } else {
            filled.push_str(&rest[..1]);
            rest = &rest[1..];
        }
    }
    filled.push_str(rest);
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_filled_in_and_other_braces_stay() {
        let values = BTreeMap::from([("size".to_owned(), "64".to_owned())]);
        let fill = |text| fill_in(text, &values);
        assert_eq!(fill("{size}x{size}"), Ok("64x64".into()));
        assert_eq!(fill("{{size}}"), Ok("{size}".into()));
        assert_eq!(fill("{ print $1 } {"), Ok("{ print $1 } {".into()));
        let error = fill("{sise}").expect_err("not a parameter");
        assert!(error.contains("did you mean `size`"), "{error}");
        let error = fill("run-{rank}").expect_err("it is the same for all units");
        assert!(
            error.starts_with("`{rank}` has a value only in args"),
            "{error}"
        );
    }
}
