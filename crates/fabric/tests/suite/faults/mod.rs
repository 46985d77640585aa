//! Fault injection, with real processes: death at any point, stopped peers, nonsense in shared
//! memory, a kernel that refuses, strangers, too little of everything. Each test also checks that
//! nothing is left behind.
//!
//! # Files
//! `fair` (who talks all the time) · `copies` (kill -9 in the middle of each copy path, both roles)
//! · `deaths` (of the agent, of whom somebody waits for, of a number that is used again) ·
//! `stopped` · `nonsense` (in a ring) · `panics` (of handlers) · `forks` (of a process that joined)
//! · `door` (the agent's: who says nothing there) · `refused` (the kernel copy, another user) ·
//! `scarce` (descriptors, memory) · `sentences` (what errors say) · `starting` (who has joined, who
//! may leave)

mod copies;
mod deaths;
mod door;
mod fair;
mod forks;
mod nonsense;
mod panics;
mod refused;
mod scarce;
mod sentences;
mod starting;
mod stopped;
