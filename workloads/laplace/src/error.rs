/// What can go wrong outside the arithmetic.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The rectangle has no cell inside its boundary, or more than memory can be addressed.
    #[error(
        "a field of {rows} x {cols} cells cannot be solved: use at least 1 x 1, and less memory than the machine can address"
    )]
    Size {
        /// Interior rows asked for.
        rows: usize,
        /// Interior columns asked for.
        cols: usize,
    },
    /// Over-relaxation does not converge with this factor.
    #[error("omega is {omega}, but over-relaxation converges only strictly between 0 and 2")]
    Omega {
        /// The factor asked for.
        omega: f64,
    },
    /// Every unit must own at least one row.
    #[error("{units} units cannot share {rows} rows: use between 1 and {rows} units")]
    Units {
        /// Units asked for.
        units: usize,
        /// Interior rows of the whole problem.
        rows: usize,
    },
    /// There is no such unit in the decomposition.
    #[error("unit {unit} does not exist: the {units} units of this problem count from 0")]
    Unit {
        /// The unit asked for.
        unit: usize,
        /// Units in the decomposition.
        units: usize,
    },
    /// The picture of the field could not be encoded.
    #[error("the picture of the field could not be encoded")]
    Picture(#[from] png::EncodingError),
    /// A diagram could not be drawn.
    #[error("the diagram '{title}' could not be drawn: {reason}")]
    Plot {
        /// The title of the diagram.
        title: String,
        /// What the drawing library says.
        reason: String,
    },
    /// The fabric could not do what the job needed of it.
    #[error("{doing}")]
    Fabric {
        /// What was being done, and with whom.
        doing: String,
        /// Why it ended.
        source: samite::Error,
    },
    /// Global memory could not do what the array needed of it.
    #[error(transparent)]
    Pgas(#[from] samite::pgas::Error),
    /// The stream between the solver and the analysis.
    #[error(transparent)]
    Stage(Box<samite::stage::Error>),
    /// The step that the next one is computed from is not there any more.
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
    /// A step without what the solver says of it.
    #[error(
        "step {step} has no attribute `{name}`: is its writer laplace-solver, of the same build?"
    )]
    Untold {
        /// The step.
        step: u64,
        /// What is missing.
        name: &'static str,
    },
    /// A unit of the analysis said something that another one does not understand.
    #[error("a message from another unit makes no sense: do all units come from the same build?")]
    Partial(#[from] postcard::Error),
    /// The analysis did not compute what it computes of the sequential solver's field.
    #[error("step {step}: {what}")]
    Figures {
        /// The step.
        step: u64,
        /// What differs.
        what: String,
    },
    /// The result is not that of the sequential solver.
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
    /// The report could not be written.
    #[error("the report {} could not be written", path.display())]
    Report {
        /// The file.
        path: std::path::PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// Nobody reads what the program prints.
    #[error("the standard output could not be written")]
    Output(#[from] std::io::Error),
}

impl From<samite::stage::Error> for Error {
    fn from(error: samite::stage::Error) -> Self {
        Error::Stage(Box::new(error))
    }
}

/// Says what a failed operation of the fabric was for.
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
