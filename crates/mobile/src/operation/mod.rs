//! Operations on remote data that are built on moved code: what one get or put cannot do.
//!
//! Each exists in three forms with the same result: *gets* (the caller reads step by step), a
//! *function* that every unit of the program has, and *moved* code. [`Auto`] chooses by measured
//! cost: on one node, where the caller maps the data, gets are loads and win; between nodes a
//! chain of gets waits for the network twice per step.
//!
//! All of them find their data in [`Shards`]: words that are spread over units.
//!
//! | operation | result | one-way delays by gets | by calls |
//! |---|---|---|---|
//! | [`Table::chase`] | the address after D dependent loads | 2 D | 2 + (1 - 1/S) (D - 1) |
//! | [`Gather::gather`] | the words at a list of addresses | 2 | 2 |
//! | [`Lists::find`] | the value of a key in a linked list, after N nodes | 2 + 2 N | 2 + (1 - 1/S) N |
//! | [`Tree::get`], [`Tree::lower_bound`] | a value of a B-tree with H levels | 2 H | 2 + (1 - 1/S) (H - 1) |
//! | [`Graph::bfs`] | levels of a graph, of which there are N | 2 + 6 N | 2 + 2 N |
//! | [`Below::find`] | a sum of the words that are below a bound | 2, and all the data | 2 |
//!
//! S is the number of units over which data are spread at random. A call costs 0.6 us on one node;
//! a kernel takes about 0.1 us, and what its loads take. Function and moved code differ in the
//! first call, and in the time that it takes to enter WebAssembly.
//!
//! # Wrong addresses
//! Addresses that the caller names are checked before anything is sent. Addresses that are found in
//! the data are checked where they are used: by gets, a wrong one is [`Error::BadAddress`] or
//! [`Error::Damaged`]. By calls, it is [`Error::Failed`] with [`Cause::Failed`] and one of these
//! numbers, or with [`Cause::Grant`]:
//!
//! | number | a kernel found |
//! |---|---|
//! | 1 | a payload of another operation |
//! | 2 | an address outside of the shards |
//! | 3 | a structure that is damaged, or another one |
//! | 4 | marks of a newer run ([`Graph`]) |
//!
//! No operation writes, except [`Tree::build`] and the marks of [`Graph`].
//!
//! [`Error::BadAddress`]: crate::Error::BadAddress
//! [`Error::Damaged`]: crate::Error::Damaged
//! [`Error::Failed`]: crate::Error::Failed
//! [`Cause::Failed`]: crate::Cause::Failed
//! [`Cause::Grant`]: crate::Cause::Grant

mod auto;
mod chase;
mod gather;
mod graph;
mod list;
mod reduce;
mod shards;
mod tree;

pub use auto::{Auto, Way};
pub use chase::Table;
pub use gather::Gather;
pub use graph::{Graph, Reached};
pub use list::Lists;
pub use reduce::{Below, Found};
pub use shards::{END, Shards};
pub use tree::Tree;
