//! Files that are replaced as a whole.

use crate::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Checks that a file can be written there, so that a long run is not made for nothing. Writes
/// nothing.
///
/// # Errors
/// [`Error::Write`]: its folder does not exist, or is no folder, or the path names one.
pub fn check_target(path: &Path) -> Result<(), Error> {
    let fail = |source: std::io::Error| Error::Write {
        path: path.to_path_buf(),
        source,
    };
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let found = std::fs::metadata(folder).map_err(fail)?;
    if !found.is_dir() {
        return Err(fail(std::io::ErrorKind::NotADirectory.into()));
    }
    match path.is_dir() {
        true => Err(fail(std::io::ErrorKind::IsADirectory.into())),
        false => Ok(()),
    }
}

/// Returns the file that is replaced when `path` is written as a whole: not a link, but the file
/// that it leads to. Returns `None` for a device or a pipe, which is written directly.
pub fn target(path: &Path) -> Option<PathBuf> {
    let is_special = path.metadata().is_ok_and(|found| !found.is_file());
    (!is_special).then(|| path.canonicalize().unwrap_or_else(|_| path.to_path_buf()))
}

/// Writes a file, which is created or replaced. Whatever fails, or ends this process, it has all of
/// the new content, or stays what it was. If several processes write it, it has what one of them
/// wrote. A device or a pipe is written directly.
///
/// # Errors
/// The file cannot be written, or none can be made beside it.
pub fn replace(path: &Path, content: impl AsRef<[u8]>) -> std::io::Result<()> {
    let Some(path) = target(path) else {
        return std::fs::write(path, content);
    };
    let partial = partial_of(&path);
    let written = std::fs::write(&partial, content).and_then(|()| std::fs::rename(&partial, &path));
    if written.is_err() {
        _ = std::fs::remove_file(&partial);
    }
    written
}

/// Returns where this process writes the content of a file.
fn partial_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".partial-{}", std::process::id()));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let count = || folder.path().read_dir().unwrap().count();
        for content in ["new", "other"] {
            replace(&file, content).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), content);
        }
        replace(&link, "by the link").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "by the link");
        assert_eq!(count(), 2);
        // What another process writes stays.
        let other = folder.path().join("file.partial-0");
        std::fs::write(&other, "half").unwrap();
        replace(&file, "by the link").unwrap();
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "half");
        // Nothing can be written beside it.
        std::fs::create_dir(partial_of(&target(&file).unwrap())).unwrap();
        assert!(replace(&file, "more").is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "by the link");
        assert!(replace(folder.path(), "a folder").is_err());
        replace(Path::new("/dev/null"), "a device").unwrap();
        assert!(Path::new("/dev/null").metadata().unwrap().len() == 0);
    }
}
