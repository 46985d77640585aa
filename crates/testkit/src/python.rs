//! The project's Python environment, which tests compare with programs of others.

use std::path::PathBuf;

/// Its interpreter, where there is one: in the folder that `SAMITE_PYTHON` names, else in `samite/python` in the user's
/// cache folder. `ci/setup` makes it. (`samite::python` is the same rule for programs; tests of lower floors cannot use it.)
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
