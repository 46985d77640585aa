//! The project's Python environment, for tests that compare with external programs.

use crate::require;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

/// Returns its interpreter, if there is one: in the folder that `SAMITE_PYTHON` names, otherwise in
/// `samite/python` in the user's cache folder. `ci/setup` creates it. (`samite::python` implements
/// the same rule for programs; tests of lower floors cannot use it.)
pub fn python() -> Option<PathBuf> {
    let named = |name| std::env::var_os(name).filter(|folder| !folder.is_empty());
    let folder = match named("SAMITE_PYTHON") {
        Some(folder) => PathBuf::from(folder),
        None => {
            let cache = named("XDG_CACHE_HOME").map(PathBuf::from);
            let cache = cache.or_else(|| Some(PathBuf::from(named("HOME")?).join(".cache")))?;
            cache.join("samite").join("python")
        }
    };
    Some(folder.join("bin/python")).filter(|python| python.exists())
}

/// Runs a script with these arguments and returns its output. Returns `None` if there is no Python:
/// the test is skipped by name, or fails, as [`require`] decides. If the script fails, the test
/// fails.
pub fn run_python(test: &str, script: &str, args: &[&OsStr]) -> Option<String> {
    let Some(python) = python() else {
        require(
            test,
            false,
            "install the packages of ci/python.txt: ci/setup",
        );
        return None;
    };
    let mut command = Command::new(python);
    let ended = command.args(["-c", script]).args(args).output();
    let ended = ended.expect("the interpreter can be started");
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{test}: {errors}");
    Some(String::from_utf8_lossy(&ended.stdout).into_owned())
}
