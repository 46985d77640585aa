use std::path::{Path, PathBuf};

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Global memory could not do what was needed of it.
    #[error(transparent)]
    Pgas(#[from] samite::pgas::Error),
    /// A file could not be read or written.
    #[error("{} could not be {doing}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// What was tried: "read", "written".
        doing: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
    /// Another unit failed first, and says why.
    #[error("another unit could not {0}; its own error says why")]
    Elsewhere(&'static str),
    /// The result is wrong.
    #[error("the verification failed: {0}")]
    Wrong(String),
    /// Nobody reads what the program prints.
    #[error("the standard output could not be written")]
    Output(#[from] std::io::Error),
}

impl Error {
    /// For `map_err` on what was done with a file.
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
