//! The report of a run: one self-contained HTML file, for a light or a dark page, with the checks
//! of the result, parameters and times, a picture of a field, diagrams over steps, and tables.
//!
//! The crate knows nothing of the programs that report, and does not use the fabric: a program
//! gives it names, numbers and texts.
//!
//! # Objects
//!
//! | file | holds |
//! |---|---|
//! | `page` | [`Report`]: the page, with its [`Fact`]s, [`Check`]s and [`Section`]s; [`Field`]: a picture with its axes |
//! | `picture` | [`Picture`]: averages of a field over small squares, as colours |
//! | `plot` | [`Diagram`]: a line over steps |
//! | `bars` | [`Bars`]: values of several things, made of parts |
//! | `table` | [`Table`]: for the page and for the terminal; [`figure`]: a number with six digits |
//! | `file` | [`replace`]: writes a file as a whole, or not at all |
//!
//! # Rules
//!
//! * A report needs no other file and no network: pictures are part of it, and it has no scripts.
//! * All texts are escaped, so they may contain anything.
//!
//! # Example
//!
//! ```
//! use samite_report::{Check, Diagram, Fact, Report, Section, Table, figure};
//!
//! let distances = [(0.0, 10.0), (1.0, 4.0), (2.0, 1.6)];
//! let mut table = Table::new(["step", "distance"]);
//! for (step, distance) in distances {
//!     table.add([step.to_string(), figure(distance)]);
//! }
//! println!("{}", table.text(14));
//! let report = Report {
//!     title: "A fall",
//!     summary: "Two steps of a run.",
//!     checks: &[Check::new("falls", true, "each distance is smaller than the one before")],
//!     field: None,
//!     facts: &[("Parameters", vec![Fact::new("factor", 0.4)])],
//!     sections: &[Section {
//!         title: "Distance over steps".into(),
//!         diagrams: vec![Diagram::new("Distance", "step", distances.into())],
//!         table: Some(table),
//!         ..Section::default()
//!     }],
//! };
//! assert!(report.to_html()?.contains("each distance is smaller"));
//! # Ok::<(), samite_report::Error>(())
//! ```

#![forbid(unsafe_code)]

mod bars;
mod file;
mod page;
mod picture;
mod plot;
mod table;

pub use bars::{Bar, Bars};
pub use file::{check_target, replace, target};
pub use page::{Check, Fact, Field, Report, Section};
pub use picture::Picture;
pub use plot::{Diagram, Scale, Shown};
pub use table::{Table, figure, representative};

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The picture of the field could not be encoded.
    #[error("the picture of the field could not be encoded")]
    Picture(#[from] png::EncodingError),
    /// A diagram could not be drawn.
    #[error("the diagram '{title}' could not be drawn: {reason}")]
    Plot {
        /// The title of the diagram.
        title: String,
        /// The error of the drawing library.
        reason: String,
    },
    /// The file could not be written.
    #[error("the report {} could not be written", path.display())]
    Write {
        /// The file.
        path: std::path::PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
}
