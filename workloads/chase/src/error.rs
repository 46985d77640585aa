/// Errors of the program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Moved code.
    #[error(transparent)]
    Mobile(#[from] samite::mobile::Error),
    /// The fabric below.
    #[error(transparent)]
    Fabric(#[from] samite::Error),
    /// There is nobody to ask.
    #[error("a chase has a client and at least one server: run at least 2 units, not {0}")]
    Units(u32),
    /// The result is wrong.
    #[error("the verification failed: {0} chases ended at a wrong address")]
    Wrong(u64),
    /// The report could not be made.
    #[error(transparent)]
    Report(#[from] samite_report::Error),
    /// The output of the program cannot be written.
    #[error("the standard output could not be written")]
    Output(#[from] std::io::Error),
}
