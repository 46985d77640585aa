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
}
