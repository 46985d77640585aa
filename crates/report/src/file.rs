//! Files that are replaced as a whole.

use std::ffi::OsString;
use std::path::Path;

/// Writes a file, which is created or replaced. Whatever fails, or ends this process, it has all of
/// the new content, or stays what it was. A device or a pipe is written directly.
///
/// # Errors
/// The file cannot be written, or none can be made beside it.
pub fn replace(path: &Path, content: impl AsRef<[u8]>) -> std::io::Result<()> {
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        return std::fs::write(path, content);
    }
    // Not the link, but the file that it leads to.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let mut name = OsString::from(&path);
    name.push(".partial");
    let partial = Path::new(&name);
    let written = std::fs::write(partial, content).and_then(|()| std::fs::rename(partial, &path));
    if written.is_err() {
        _ = std::fs::remove_file(partial);
    }
    written
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
        // Nothing can be written beside it.
        std::fs::create_dir(folder.path().join("file.partial")).unwrap();
        assert!(replace(&file, "more").is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "by the link");
        assert!(replace(folder.path(), "a folder").is_err());
        replace(Path::new("/dev/null"), "a device").unwrap();
        assert!(Path::new("/dev/null").metadata().unwrap().len() == 0);
    }
}
