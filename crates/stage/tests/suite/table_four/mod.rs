//! The study's Table IV, one row after another: what ended or hung its runs, and what happens here
//! in its place.
//!
//! | the study's row | here |
//! |---|---|
//! | out of RDMA memory, out of handles | [`memory`]: whoever asks waits, the disk takes over, or the answer names who has what |
//! | out of sockets | [`descriptors`]: 64 descriptors for each of 32 processes, with streams open |
//! | dimension overflow | [`sizes`]: dimensions above 2^32, a block above 2^32 bytes |
//! | out of main memory | [`memory`]: more than there is is an error that names the stream and the limit, never an abort; [`footprint`]: nothing takes a multiple of its bytes |
//! | no resilience | writers, readers and servers are killed: `tests/faults`; the agent: `cli/tests/agent.rs` |
//!
//! What the study calls the credential service has no counterpart: nobody asks a third party for a
//! pass.

#![allow(
    clippy::result_large_err,
    reason = "errors name boxes; they are rare, and never on the way of a byte"
)]

mod descriptors;
mod footprint;
mod memory;
mod sizes;
