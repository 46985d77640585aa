//! Every interleaving of the ring, the doorbell, the claim word, the lease, the biased lock and the
//! threads that wait under it, within a bound on preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p samite-mem --release --test loom`
//!
//! Bytes lie in loom's `UnsafeCell`: a read that is not ordered after the write of the same bytes
//! fails the model, not only one that sees wrong bytes.

#![cfg(loom)]

mod biased;
mod claim;
mod doorbell;
mod lease;
mod ring;
mod waiters;

/// Runs a model with at most so many preemptions per execution.
fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}
