use std::path::{Path, PathBuf};

/// Errors of the programs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on global memory failed.
    #[error(transparent)]
    Pgas(#[from] samite::pgas::Error),
    /// A file could not be read or written.
    #[error("{} could not be {doing}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The operation: "read", "written".
        doing: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Another unit failed first, and reports the error.
    #[error("another unit could not {0}; its own error says why")]
    Elsewhere(&'static str),
    /// The result is wrong.
    #[error("the verification failed: {0}")]
    Wrong(String),
    /// The output of the program cannot be written.
    #[error("the standard output could not be written")]
    Output(#[from] std::io::Error),
}

impl Error {
    /// Returns a function for `map_err` after an operation on a file.
    pub(crate) fn file<'a>(
        path: &'a Path,
        doing: &'static str,
    ) -> impl FnOnce(std::io::Error) -> Error + 'a {
        move |source| Error::File {
            path: path.to_path_buf(),
            doing,
            source,
        }
    }
}
