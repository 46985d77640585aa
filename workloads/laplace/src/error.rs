/// Why a program of the job ends without its result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The problem cannot be solved, or the result differs from that of the sequential solver.
    #[error(transparent)]
    Problem(#[from] samite_relaxation::Error),
    /// An operation of the fabric failed.
    #[error("{doing}")]
    Fabric {
        /// The operation, and its peer.
        doing: String,
        /// Its error.
        source: samite::Error,
    },
    /// An operation on global memory failed.
    #[error(transparent)]
    Pgas(#[from] samite::pgas::Error),
    /// An operation on a stream failed.
    #[error(transparent)]
    Stage(Box<samite::stage::Error>),
    /// The step from which the next one is computed is not available any more.
    #[error(
        "step {step}, from which the next one is computed, is no longer available: start the job again"
    )]
    LastStep {
        /// Its number.
        step: u64,
    },
    /// The stream ended before its last step.
    #[error("{0}")]
    Ended(String),
    /// A step without an attribute of the solver.
    #[error(
        "step {step} has no attribute `{name}`: is its writer laplace-solver, of the same build?"
    )]
    NoAttribute {
        /// The step.
        step: u64,
        /// The missing attribute.
        name: &'static str,
    },
    /// A unit of the analysis cannot decode a message of another one.
    #[error("a message from another unit makes no sense: do all units come from the same build?")]
    Partial(#[from] postcard::Error),
    /// The analysis differs from that of the sequential solver's field.
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

/// Adds what a failed operation of the fabric was for.
pub(crate) trait Doing<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, Error>;
}

impl<T> Doing<T> for samite::Result<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, Error> {
        self.map_err(|source| Error::Fabric {
            doing: doing(),
            source,
        })
    }
}
