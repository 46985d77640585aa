//! Ways to move many bytes between the private memories of two processes.
//!
//! | engine | who copies | what it costs |
//! |---|---|---|
//! | ring | both, through the bulk area of the pair's ring | two copies, pipelined through the cache |
//! | kernel | the receiver (`process_vm_readv`) | one copy, each page pinned before it |
//! | cooperative | receiver from the front, sender from the back | half of the kernel copy's time |
//! | direct | the receiver, from or to mapped memory | one copy at memory speed |
//!
//! The best one at each size is measured once per host ([`calibrate`]), never assumed.
//!
//! Within one process: [`aside`], for large blocks that are passed on.

pub mod aside;
#[cfg(not(loom))]
pub mod calibrate;
pub mod cooperative;
#[cfg(not(loom))]
pub mod kernel;
