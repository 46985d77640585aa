/// Errors outside the arithmetic.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The rectangle has no interior cell, or more than memory can be addressed.
    #[error(
        "a field of {rows} x {cols} cells cannot be solved: use at least 1 x 1, and less memory than the machine can address"
    )]
    Size {
        /// Requested interior rows.
        rows: usize,
        /// Requested interior columns.
        cols: usize,
    },
    /// Over-relaxation does not converge with this factor.
    #[error("omega is {omega}, but over-relaxation converges only strictly between 0 and 2")]
    Omega {
        /// The requested factor.
        omega: f64,
    },
    /// Every unit must own at least one row.
    #[error("{units} units cannot share {rows} rows: use between 1 and {rows} units")]
    Units {
        /// Requested units.
        units: usize,
        /// Interior rows of the whole problem.
        rows: usize,
    },
    /// The decomposition has no such unit.
    #[error("unit {unit} does not exist: the {units} units of this problem count from 0")]
    Unit {
        /// The requested unit.
        unit: usize,
        /// Units in the decomposition.
        units: usize,
    },
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
    /// The result differs from that of the sequential solver.
    #[error(
        "{different} of {cells} cells differ from the sequential solver, the first one in row {row}, column {col}"
    )]
    Wrong {
        /// Cells of which at least one bit differs.
        different: u64,
        /// Cells compared.
        cells: u64,
        /// Row of the first one.
        row: usize,
        /// Column of the first one.
        col: usize,
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
