//! The method `graph`: programs are tasks, and edges say who reads what of whom.
//!
//! What Decaf does (a dataflow of tasks with links that redistribute), over the core of this crate.
//! The program text is that of the other methods: a writer writes a stream, a reader reads one. The
//! workflow says in [`Edge`]s which stream of which program that is, and what happens on the way:
//!
//! ```text
//!   solver                    edge                                     analysis
//!   stage.writer("field") --> rate, limits --> operators --> part --> stage.reader("input")
//!        promises checked                     (when a box is asked for)
//! ```
//!
//! # Objects
//! * [`Edge`]: two programs, what each calls the stream, and what is agreed. [`Promise`]: an array
//!   that the writer promises.
//! * [`check_cycles`], [`check_operators`]: what can be known before any unit starts.
//! * [`Redistribution`]: which part of an array is a reader's own ([`crate::StepReader::mine`]):
//!   `count`, `round`, `block`.
//! * [`Operator`]: what is done to an array on its way, lazily.
//!
//! # Rules
//! * G1 A stream belongs to the program that writes it: two programs may call theirs alike. In the
//!   domain it is called `program/stream`, and the group of readers at the end of an edge
//!   `program/name`.
//! * G2 Blocks lie where the method `stream` puts them, and are not copied for an edge: operators
//!   and redistribution are pulled by the reader, box by box. So a fan-out costs no memory, and a
//!   reader that asks for less moves less.
//! * G3 The writer tells the coordinator which groups will come. Steps wait for each of them from
//!   step 0 on, whichever program starts first. What the reading program says about rate and limits
//!   comes before what the edge says, and that before the settings.
//! * G4 The first `tokens` steps of a reader are empty, and come at once; then comes step 0. In a
//!   cycle one edge has tokens: its reader can write its own first step before it has read one. A
//!   rank that comes back after a crash gets no tokens, if it had taken a step.
//! * G5 What is promised is checked at the writer before the commit (its own part), and at the
//!   reader when it takes a step (the whole): a broken promise is an error that names the edge,
//!   both programs, what was promised and what came.
//!
//! With the other methods edges describe the graph: rate and limits count, promises are not
//! checked, and what only a graph does ([`Edge::needs_graph`]) is refused by whoever starts the
//! programs.
//!
//! # Not guaranteed
//! * A program that opens its streams in an order that its edges do not allow (it reads before it
//!   writes, and has no token) waits until its deadline, and is told whom it waits for.
//! * A cycle is as fast as its slowest program: with n tokens at most n + 1 steps are under way.
//!
//! # Files
//! `edge` (the types) · `plan` (cycles, who is linked) · `share` (redistribution) · `operator`,
//! `builtin`, `numbers`, `chain` (operators) · `promise` (what is checked) · `link` (a reader's end
//! of an edge) · `error`

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

/// What a stream of a program is called in the domain.
pub(crate) fn stream_of(edge: &Edge) -> String {
    format!("{}/{}", edge.from, edge.stream)
}

/// What the readers at the end of an edge are called.
pub(crate) fn group_of(edge: &Edge) -> String {
    format!("{}/{}", edge.to, edge.name)
}
