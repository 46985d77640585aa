//! A peer that keeps to no rule.
//!
//! * [`Liar`] runs any program, and what it sends is another thing: frames with a field changed,
//!   sent twice, not at all or to somebody else, frames of others again, answers that nobody asked
//!   for, pure noise.
//! * [`Scribbler`] writes into the tables and rings of the arena.
//! * [`knock`] says nonsense to the agent.
//!
//! # Rules
//! * Whatever it does, the others get typed errors or timeouts: never a signal, a panic or an
//!   abort, and never a wrong byte from an honest peer whose rings and tables were not touched.
//! * Chance is a seed: what one process does repeats; how several interleave does only on the
//!   simulated network.

mod knock;
mod liar;
mod scribbler;

pub use knock::knock;
pub use liar::Liar;
pub use scribbler::{Reach, Scribbler};
