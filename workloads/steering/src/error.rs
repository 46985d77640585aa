/// Why a program of the job ends without its result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The problem cannot be solved, or the result differs from that of the sequential solver.
    #[error(transparent)]
    Problem(#[from] samite_relaxation::Error),
    /// An operation of the fabric failed.
    #[error(transparent)]
    Fabric(#[from] samite::Error),
    /// An operation on global memory failed.
    #[error(transparent)]
    Pgas(#[from] samite::pgas::Error),
    /// An operation on a stream failed.
    #[error(transparent)]
    Stage(Box<samite::stage::Error>),
    /// A stream ended before its last step.
    #[error("{0}")]
    Ended(String),
    /// A step is not what it should be.
    #[error("step {step}: {what}")]
    Figures {
        /// The step.
        step: u64,
        /// What differs.
        what: String,
    },
    /// There is no report.
    #[error(transparent)]
    Report(#[from] samite_report::Error),
    /// The output of the program cannot be written.
    #[error("the standard output could not be written")]
    Output(#[from] std::io::Error),
}

impl From<samite::stage::Error> for Error {
    fn from(error: samite::stage::Error) -> Self {
        Error::Stage(Box::new(error))
    }
}
