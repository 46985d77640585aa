//! Positions in a file, and suggestions for misspelt names.

use crate::Error;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// How many files of a folder are looked at for a near name.
const FILES_MAX: usize = 10_000;

/// The text of a file, kept for messages that state a line.
#[derive(Debug, Clone)]
pub(crate) struct SourceText {
    path: PathBuf,
    text: String,
}

impl SourceText {
    pub(crate) fn new(path: &Path, text: String) -> Self {
        Self {
            path: path.to_path_buf(),
            text,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Creates an error at `span` of this file.
    pub(crate) fn error(&self, span: Range<usize>, message: impl Into<String>) -> Error {
        let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        Error::Workflow {
            path: self.path.clone(),
            line,
            message: message.into(),
        }
    }

    /// Converts the error of a parser, with its line.
    pub(crate) fn parse_error(&self, error: &toml::de::Error) -> Error {
        self.error(error.span().unwrap_or(0..0), error.message())
    }
}

/// Returns the name of `known` that `name` was probably meant to be, if one is near enough.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (name.chars().count() / 3).max(2);
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit && *distance < name.chars().count())
        .min()
        .map(|(_, candidate)| candidate)
}

/// Returns the name of the file that was probably meant by a path that does not exist: one of the
/// same folder that `fits` and has a name near to it.
pub(crate) fn nearest_file(path: &Path, fits: impl Fn(&Path) -> bool) -> Option<String> {
    let name = path.file_name()?.to_string_lossy();
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let folder = folder.unwrap_or(Path::new("."));
    let files = folder.read_dir().ok()?.flatten().take(FILES_MAX);
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    // Few are near: only these are looked at.
    let near = names.filter(|known| nearest(&name, [&**known]).is_some());
    let near: Vec<String> = near.filter(|name| fits(&folder.join(name))).collect();
    nearest(&name, near.iter().map(String::as_str)).map(str::to_owned)
}

/// Returns "; did you mean `units`?", or the whole list if no name is near.
pub(crate) fn suggestion(name: &str, known: &[&str]) -> String {
    match nearest(name, known.iter().copied()) {
        Some(near) => format!("; did you mean `{near}`?"),
        None if known.is_empty() => String::new(),
        None => format!("; known here: {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_finds_its_neighbour() {
        assert_eq!(nearest("unit", ["name", "units", "args"]), Some("units"));
        assert_eq!(nearest("comand", ["name", "command"]), Some("command"));
        assert_eq!(nearest("zzzzzz", ["name", "units"]), None);
    }

    #[test]
    fn an_error_names_its_line() {
        let source = SourceText::new(Path::new("a.toml"), "one\ntwo\nthree\n".into());
        assert_eq!(source.error(4..5, "odd").to_string(), "a.toml:2: odd");
        assert_eq!(source.error(0..1, "odd").to_string(), "a.toml:1: odd");
    }
}
