//! A safe worker on UCX: messages to the workers of other processes, on other nodes.
//!
//! UCX is the library that clusters have for their networks: InfiniBand, RoCE, TCP and others. It
//! is loaded at run time, so that a program that uses this crate is built and runs without it; then
//! [`Worker::new`] says what to install.
//!
//! ```text
//!   Worker::send(endpoint, header, body)            Worker::progress
//!     UCX has a copy until it is sent                 UCX calls `arrived`: to the inbox, or straight
//!     Full above the limit of the caller              to the function of `progress_into`
//!                                                   Worker::next: messages in the order of arrival
//! ```
//!
//! A message is an active message of at most [`MESSAGE_MAX`] bytes, always sent eagerly. Messages
//! on one endpoint arrive once and whole; whether they arrive in order depends on the network (on
//! one connection of TCP they do), so users must not rely on it.
//!
//! # Pitfalls of UCX, and what is done about them
//! * Its constructors install handlers for SIGSEGV, SIGBUS, SIGILL and SIGFPE: those that were
//!   there are put back (`signals`).
//! * 1.13 leaks descriptors of deferred messages: nothing is deferred here.
//! * With handling of peers' errors it does not use shared memory, which is not wanted here anyway:
//!   workers of one node talk by other means.
//! * Closing an endpoint gracefully needs the peer's progress: endpoints are closed by force. A
//!   worker is destroyed only when nothing is under way, and leaked otherwise.
//! * What is granted of the thread mode is not asked for: calls are serialized by `&mut`.
//! * Versions do not understand each other: compare [`Worker::version`].
//! * A peer that is stopped, or a link that is cut, is not noticed. [`Worker::is_broken`] says only
//!   what UCX has noticed.

#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "the functions of UCX")]
mod ffi;
#[allow(unsafe_code, reason = "puts signal handlers back")]
mod signals;
#[allow(unsafe_code, reason = "calls UCX")]
mod worker;

pub use worker::{EndpointId, LIMIT, MESSAGE_MAX, Sent, Settings, Worker, is_here};

/// What can go wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library is not here, or cannot be used.
    #[error("UCX cannot be loaded ({0}): install libucx0 (1.13 or newer)")]
    Missing(String),
    /// A call of the library failed.
    #[error("UCX: {call}: {why}{}", hint(call))]
    Failed {
        /// The call.
        call: &'static str,
        /// What it returned.
        why: &'static str,
    },
}

fn hint(call: &str) -> &'static str {
    match call {
        "ucp_worker_create" | "ucp_init" => {
            " (are the interface, UCX_TLS and UCX_NET_DEVICES right? `ucx_info -d` lists what is there)"
        }
        _ => "",
    }
}
