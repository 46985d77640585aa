//! A peer that violates the protocol.
//!
//! * [`Liar`] runs any program but alters what it sends: frames with a changed field, sent twice,
//!   not at all or to another peer, replayed frames of others, unrequested answers, pure noise.
//! * [`Scribbler`] writes into the tables and rings of the arena.
//! * [`knock`] sends invalid requests to the agent.
//!
//! # Rules
//! * Whatever it does, the others get typed errors or timeouts: never a signal, a panic or an
//!   abort, and never a wrong byte from a correct peer whose rings and tables were not modified.
//! * Randomness comes from a seed. The actions of one process are repeatable; the interleaving of
//!   several is repeatable only on the simulated network.

mod knock;
mod liar;
mod scribbler;

pub use knock::knock;
pub use liar::Liar;
pub use scribbler::{Reach, Scribbler};
