/// Problems that cannot be solved, and results that are wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
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
}
