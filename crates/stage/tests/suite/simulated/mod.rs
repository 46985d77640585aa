//! Random runs of the protocol: writers, readers and block stores of all kinds against one
//! coordinator, with deaths at any moment.
//!
//! A seed is a run, event by event. `SAMITE_SIM_SEED=N` repeats one; `SAMITE_SIM_SEEDS=N` makes it
//! N instead of 1,000.
//!
//! What is checked in every run: no answer comes after its deadline; every byte of every step that
//! a reader holds is right, from when it gets the step until it lets it go; every group gets the
//! steps that its policy promises, all ranks the same ones; every subscriber is told of every step
//! that touches its box, once and in order, or that it missed it; every step of which all ranks
//! were told that it is committed is; no block store has more than its budget; every buffer is
//! freed once and never under a reader; nothing is left at the end.

mod plan;
mod reader;
mod sequence;
mod watcher;
mod world;
mod writer;

use plan::Plan;
use samite_stage::protocol::Fault;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use world::Seen;

/// A short name for a fault, to count them.
fn name_of(fault: &Fault) -> &'static str {
    match fault {
        Fault::NobodyReads { .. } => "nobody reads",
        Fault::ReadersBehind { .. } => "readers behind",
        Fault::WriterBehind { .. } => "writer behind",
        Fault::NoMemory { .. } => "no memory",
        Fault::NoBuffer { .. } => "no buffer",
        Fault::BlockStoreFull { .. } => "block store full",
        Fault::NumbersUsedUp { .. } => "numbers used up",
        Fault::TooLarge { .. } => "too large",
        Fault::TooManyBuffers { .. } => "too many buffers",
        Fault::NoBlockStore { .. } => "no block store",
        Fault::BlockStoreLost { .. } => "block store lost",
        Fault::RankClosed { .. } => "rank closed",
        Fault::ClosesEarly { .. } => "closes early",
        Fault::WriterFailed { .. } => "writer failed",
        Fault::Damaged { .. } => "damaged",
        Fault::Gone { .. } => "gone",
        Fault::Circle { .. } => panic!("nobody in a run waits for who waits: {fault}"),
        Fault::NoStep { .. } => "no step",
        Fault::NoStream { .. } => "no stream",
        Fault::Over { .. } => "over",
        Fault::RankTaken { .. } => "rank taken",
        Fault::NotOpen => "not open",
        Fault::NothingWritten { .. } => "nothing written",
        Fault::NoSuchBox { .. } => "no such box",
        _ => "another fault",
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is not a number: {text}")),
    )
}

fn one(seed: u64) -> Seen {
    let plan = Plan::new(seed);
    let shown = plan.clone();
    catch_unwind(AssertUnwindSafe(|| world::run(plan))).unwrap_or_else(|panic| {
        eprintln!("{shown:#?}\nthis run again: SAMITE_SIM_SEED={seed} cargo test -p samite-stage --test simulated");
        resume_unwind(panic)
    })
}

#[test]
fn a_thousand_seeds() {
    if let Some(seed) = number("SAMITE_SIM_SEED") {
        println!("{:#?}", one(seed).0);
        return;
    }
    let seeds = number("SAMITE_SIM_SEEDS").unwrap_or(1000);
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let seen = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = Seen::default();
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= seeds {
                            return seen;
                        }
                        seen.merge(one(seed));
                    }
                })
            })
            .collect();
        let mut all = Seen::default();
        for thread in threads {
            all.merge(thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        all
    });
    println!("{:#?}", seen.0);
    if seeds >= 1000 {
        everything_happened(&seen);
    }
}

/// The runs get where the rules are: each of these happened many times.
fn everything_happened(seen: &Seen) {
    for what in [
        "step",
        "step by number",
        "layouts by hash",
        "spilled",
        "read from disk",
        "aborted",
        "writer came back",
        "reader came back",
        "killed writer",
        "killed reader",
        "killed block store",
        "end of stream",
        "wrote all",
        "nobody reads",
        "readers behind",
        "writer behind",
        "no memory",
        "no buffer",
        "block store full",
        "block store lost",
        "silent block store",
        "writer failed",
        "told to wait on",
        "closed well",
        "closed early",
        "never came",
        "died",
        "gave up",
        "rank closed",
        "closes early",
        "damaged",
        "gone",
        "too large",
        "kept step read",
        "written",
        "missed",
        "nothing written",
        "no such box",
        "killed subscriber",
        "subscriber came back",
        "end of a subscription",
    ] {
        let times = seen.0.get(what).copied().unwrap_or(0);
        assert!(
            times >= 2,
            "{what} happened {times} times in all runs: {:#?}",
            seen.0
        );
    }
}

#[test]
fn a_seed_is_a_run() {
    for seed in 0..20 {
        assert_eq!(
            one(seed).0,
            one(seed).0,
            "seed {seed} gave two different runs"
        );
    }
    assert!(
        (1..20).any(|seed| one(seed).0 != one(0).0),
        "all seeds gave the same run"
    );
}
