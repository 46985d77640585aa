//! The published sizes of the benchmarks.

use clap::ValueEnum;

/// A size of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "upper")]
pub enum Class {
    /// Sample: a first look, milliseconds.
    S,
    /// Workstation of the nineties.
    W,
    /// A small machine.
    A,
    /// About four times A.
    B,
    /// About four times B.
    C,
}

impl Class {
    /// All classes, by size.
    pub const ALL: [Class; 5] = [Class::S, Class::W, Class::A, Class::B, Class::C];
}

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}
