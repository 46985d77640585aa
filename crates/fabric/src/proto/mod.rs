//! The protocols, one file each; every one is an `impl` of the engine.
//!
//! | file | for | messages |
//! |---|---|---|
//! | `eager` | small messages | EAGER |
//! | `rendezvous` | large messages: offer, match, choose who copies | RTS, ATS, WITHDRAW |
//! | `pull` | large messages: the receiver copies | ATS, REFUSED |
//! | `view` | messages that are read where they lie | (ATS at its end) |
//! | `stream` | large messages as fragments | STREAM, DATA |
//! | `cooperative` | large private messages: both sides copy | HELP |
//! | `active` | active messages | ACTIVE, ACTIVE_RTS, REPLY |
//! | `rma` | put, get and atomics by the transport | REMOTE_KEY |
//! | `rma_over_am` | put, get and atomics where memory is not mapped | PUT, GET, GET_REPLY, ATOMIC, ANSWER |
//! | `batch` | updates of many words, each by its owner | UPDATES |
//! | `barrier` | barriers of few members, by signals | SIGNAL |
//! | `cost` | which of these is cheapest, pure | |

pub(crate) mod active;
pub(crate) mod barrier;
pub(crate) mod batch;
mod cooperative;
pub(crate) mod cost;
mod eager;
mod pull;
pub(crate) mod rendezvous;
pub(crate) mod rma;
pub(crate) mod rma_over_am;
mod stream;
pub(crate) mod view;

pub(crate) use active::CREDITS;
pub(crate) use eager::payload;
