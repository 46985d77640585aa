//! The study's second workflow: LAMMPS' melt and the mean square displacement of its atoms ("MSD"),
//! with a stream between them.
//!
//! ```text
//!   melt units                          stream "melt"                        analysis units
//!   each a simulation of its own:  ->   ragged blocks of x, id, image   ->   each a share of the atoms, by
//!   positions in LAMMPS' memory         and the result of compute msd        position; unit 0 merges and compares
//! ```
//!
//! A step has the variables `x` (f64, atoms x 3, as in LAMMPS: wrapped), `id` and `image` (i32,
//! atoms). The block of each melt unit begins where that of the previous unit ends; their lengths
//! may differ, and the order of the atoms in them changes. Attributes are in `said`.
//!
//! # Promises
//! * Displacements equal those of LAMMPS' own `compute msd`, up to [`msd::TOLERANCE`]; a step that
//!   differs is an error.
//! * Atoms are copied once, from LAMMPS' memory to the step; a share inside one block is read in
//!   place.
//!
//! # Files
//! [`melt`] (the simulation; how much output slows it down) · [`msd`] (the analysis)

pub mod melt;
pub mod msd;

/// Name of the stream.
const STREAM: &str = "melt";

/// Attributes of a step.
mod said {
    /// Number of the step in the simulation; an integer.
    pub(super) const STEP: &str = "step";

    /// The box of a rank: reals, lower and upper corner.
    pub(super) fn cell(rank: u32) -> String {
        format!("box {rank}")
    }

    /// The result of `compute msd` of a rank: four reals, in each direction and in total; not at
    /// every step if slowdown is measured.
    pub(super) fn moved(rank: u32) -> String {
        format!("msd {rank}")
    }
}

/// Errors of the job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// LAMMPS is missing or refuses a command, or its atoms are invalid.
    #[error(transparent)]
    Lammps(#[from] crate::Error),
    /// The stream.
    #[error(transparent)]
    Stage(Box<samite::stage::Error>),
    /// The other units of a program.
    #[error(transparent)]
    Fabric(#[from] samite::Error),
    /// The stream was closed without a step.
    #[error("the melt closed its stream without a step")]
    Empty,
    /// The first step that arrived is not the one with the initial positions.
    #[error(
        "displacements are measured from step 0, but the first step that arrived is {0}: keep step 0 with stage.melt.precious_first=true, or use a policy that does not drop it"
    )]
    NoStart(u64),
    /// A step that was not dropped is missing.
    #[error("step {0} is missing, although the policy drops no steps")]
    Missing(u64),
    /// A unit cannot decode a message of another one.
    #[error("a message from another unit makes no sense: do all units come from the same build?")]
    Said(#[from] postcard::Error),
    /// A step without an attribute of the melt.
    #[error("step {step} has no attribute `{name}`: is its writer lammps-melt, of the same build?")]
    Untold {
        /// The step of the stream.
        step: u64,
        /// The missing attribute.
        name: String,
    },
    /// The result differs from that of LAMMPS.
    #[error(
        "step {step}: the displacement differs from the value of LAMMPS by {difference:.1e}, relatively"
    )]
    Wrong {
        /// The first step of the simulation that differs.
        step: u64,
        /// Relative difference.
        difference: f64,
    },
    /// There is no value of LAMMPS to compare with.
    #[error(
        "none of {0} steps could be compared with the value of LAMMPS: no step that every unit has carries it"
    )]
    Unchecked(usize),
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
