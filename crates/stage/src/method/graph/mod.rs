//! The method `graph`: programs are tasks, and edges say which program reads which stream.
//!
//! This is the model of Decaf (a dataflow of tasks with links that redistribute), on the core of
//! this crate. The program text is the same as with other methods: a writer writes a stream, a
//! reader reads one. The [`Edge`]s of the workflow say which stream of which program that is, and
//! what happens on the way:
//!
//! ```text
//!   solver                    edge                                     analysis
//!   stage.writer("field") --> rate, limits --> operators --> part --> stage.reader("input")
//!        promises checked                     (when a box is requested)
//! ```
//!
//! # Objects
//! * [`Edge`]: two programs, the name of the stream in each, and what they agree on. [`Promise`]:
//!   an array that the writer promises.
//! * [`check_cycles`], [`check_operators`]: checks that are possible before any unit starts.
//! * [`Redistribution`]: which part of an array is a reader's own ([`crate::StepReader::mine`]):
//!   `count`, `round`, `block`.
//! * [`Operator`]: a lazy transformation of an array on its way.
//!
//! # Rules
//! * G1 A stream belongs to the program that writes it, so two programs may use the same name. In
//!   the domain it is called `program/stream`, and the group of readers at the end of an edge
//!   `program/name`.
//! * G2 Blocks are stored as with the method `stream`, and are not copied for an edge: the reader
//!   applies operators and redistribution, box by box. So a fan-out costs no memory, and a reader
//!   that requests less moves less.
//! * G3 The writer tells the coordinator which groups to expect. Steps wait for each of them from
//!   step 0 on, whichever program starts first. For rate and limits, the reading program takes
//!   precedence over the edge, and the edge over the settings.
//! * G4 The first `tokens` steps of a reader are empty, and come at once; then comes step 0. In a
//!   cycle, one edge has tokens: its reader can write its own first step before it has read one. A
//!   rank that returns after a crash gets no tokens if it had taken a step.
//! * G5 Promises are checked at the writer before the commit (its own part), and at the reader when
//!   it takes a step (the whole). The error for a broken promise names the edge, both programs,
//!   what was promised and what was written.
//!
//! With the other methods, edges describe the graph: rate and limits apply, promises are not
//! checked, and the launcher refuses what only a graph supports ([`Edge::needs_graph`]).
//!
//! # Not guaranteed
//! * A program that opens its streams in an order that its edges do not allow (it reads before it
//!   writes, and has no token) waits until its deadline; the error names the program that it waits
//!   for.
//! * A cycle is as fast as its slowest program: with n tokens, at most n + 1 steps are in flight.
//!
//! # Files
//! `edge` (the types) · `plan` (cycles, the edges of a program) · `share` (redistribution) ·
//! `operator`, `builtin`, `numbers`, `chain` (operators) · `promise` (checks) · `link` (a reader's
//! end of an edge) · `error`

mod builtin;
mod chain;
mod edge;
mod error;
mod link;
mod numbers;
mod operator;
mod plan;
mod promise;
mod share;
mod unused;

pub use edge::{Applied, Cut, Edge, Extent, Promise, Redistribution};
pub use error::GraphError;
pub use numbers::{Input, Kind, Tile};
pub use operator::{Operator, check_operators};
pub use plan::check_cycles;
pub use share::{Share, regions};

pub(crate) use chain::{Chain, Source};
pub(crate) use link::{Link, Passed};
pub(crate) use operator::Registered;
pub(crate) use plan::{edge_to, linked_from, linked_to};
pub(crate) use promise::check_part;
pub(crate) use unused::unused;

/// Returns the name of a program's stream in the domain.
pub(crate) fn stream_of(edge: &Edge) -> String {
    format!("{}/{}", edge.from, edge.stream)
}

/// Returns the name of the group of readers at the end of an edge.
pub(crate) fn group_of(edge: &Edge) -> String {
    format!("{}/{}", edge.to, edge.name)
}
