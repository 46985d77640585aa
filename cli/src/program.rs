//! Finds the workflow or the program among the words after `samite run` or `samite doctor`.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Returns the first word of `run`'s arguments that is neither an option nor an option's value.
/// Returns `None` after `-n`: the word is then a program, whatever its name.
pub(crate) fn first_word(arguments: &[OsString]) -> Option<PathBuf> {
    let mut after_option = false;
    for argument in arguments {
        let text = argument.to_string_lossy();
        if text == "--" || is_short(&text) {
            return None;
        }
        if text.starts_with("--") || text == "-h" {
            let is_flag = ["-h", "--help", "--json", "--force"].contains(&&*text);
            after_option = !text.contains('=') && !is_flag;
        } else if after_option {
            after_option = false;
        } else {
            return Some(argument.into());
        }
    }
    None
}

fn is_short(text: &str) -> bool {
    text.starts_with("-n") && !text.starts_with("--")
}

/// Returns true if a word names a workflow file rather than a program.
pub(crate) fn is_workflow(word: &OsStr) -> bool {
    std::path::Path::new(word)
        .extension()
        .is_some_and(|extension| extension == "toml")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(arguments: &str) -> Option<String> {
        let arguments: Vec<OsString> = arguments.split_whitespace().map(Into::into).collect();
        first_word(&arguments).map(|path| path.display().to_string())
    }

    #[test]
    fn the_workflow_is_found_among_options() {
        assert_eq!(word("w.toml --size 5"), Some("w.toml".into()));
        assert_eq!(word("--size 5 w.toml"), Some("w.toml".into()));
        assert_eq!(word("--size=5 w.toml"), Some("w.toml".into()));
        assert_eq!(word("--help w.toml"), Some("w.toml".into()));
        assert_eq!(word("-h w.toml"), Some("w.toml".into()));
        assert_eq!(word("--json w.toml"), Some("w.toml".into()));
        assert_eq!(word("--force w.toml"), Some("w.toml".into()));
        assert_eq!(word("program w.toml"), Some("program".into()));
        assert_eq!(word("-n 4 w.toml"), None);
        assert_eq!(word("-n4 w.toml"), None);
        assert_eq!(word(""), None);
        assert!(is_workflow(OsStr::new("a/w.toml")) && !is_workflow(OsStr::new("toml")));
    }
}
