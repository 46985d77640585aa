//! `samite bench mobile`: code that travels to the data, against functions that the units have, and
//! against reading the data.
//!
//! All contestants of this bench but MPI are units of Samite, in one of several [`WAYS`]: `samite`
//! moves code (WebAssembly), `function` calls a function that the target has (an active message of
//! the same layer), `gets` reads step by step. They share the transport, so a row compares nothing
//! but the ways. In mapped memory, where `samite` chooses, `moved` moves code all the same.
//!
//! What is compared is what one would write. The kernel of `tsi`, `call` and `first-call` asks once
//! for the address of its word and adds to it by an atomic instruction, which its sandbox checks
//! without a cost; the function knows its word, too. All results are verified, after the clock has
//! stopped: what calls added, sums, and the end of the last chase.
//!
//! `compute` is one loop in C, a filter and a sum over 64 MiB of the target: as WebAssembly, as
//! bitcode, and, as `function`, as a shared object that clang has compiled for this very processor
//! (`-O3 -march=native`). The first of two runs, with compilation and page faults, is not timed.
//!
//! `call/bytes-on-the-wire`: what the layer hands to its transport for a call, counted by the
//! fabric: the word that names the code (8 bytes), and the head of the call (24). The transport
//! adds a head to each frame, which does not count: 8 bytes besides the word in shared memory, 24
//! over UCX.
//!
//! `first-call`: the target has run other code before. `first-call/prefetched` is beside a warm
//! call of a function; the target has run that function just before, so that it is awake, as it is
//! for `function`. `first-call-new-process`: caller and target are started for this one call,
//! and have never loaded an engine.
//!
//! In rows over a link, each process is in two jobs, and counts as two for the rule that processes
//! wait without spinning where they outnumber the cores.
//!
//! `chase/S/L/D`: D dependent reads through the memory of S servers, over a link with a one-way
//! delay of L microseconds (`fabric.link.delay`). The model: a read takes 2 L, and code moves in
//! (1 - 1/S) L; `model` is the ratio that follows from it, with the call and its reply.
//! `stage/filter`: one word in a hundred of 64 MiB of staged data, over a link of
//! 1 Gbit/s: `gets` reads all of it. `chase-function` is the same row beside `function`, and
//! `chases` are [`MANY`] chases at once, the gets of a step in one request to each server.
//! `chase/mapped/D`, and `chase/S/mapped/D` through S servers: without a delay, in mapped memory:
//! `samite` chooses (`chase_auto`); MPI reads by `MPI_Get`, flushed, and in a shared window
//! (`-shared`) by loads. MPI has no link with a delay, so rows over a link have no figure of it.
//!
//! `gather`, `list`, `btree`, `bfs`, each `/S/L/N` or `/mapped/N`: N words at random places; the
//! N-th node of a list; a value in a B-tree of N pairs; a breadth-first search of a graph of N
//! vertices. All ways are beside each other; in mapped memory, `samite` chooses.

use crate::case::{Bar, Case};
use crate::measure::{Figure, Measure, Pace};
use crate::placement::Placement;
use samite::mobile::clang;

/// The variable that says in which way a contestant works.
pub(crate) const WAY: &str = "SAMITE_BENCH_WAY";
/// The ways of contestants beside `samite`, which moves code.
pub(crate) const WAYS: [&str; 3] = ["function", "gets", MOVED];
/// Moved code where `samite` chooses.
pub(crate) const MOVED: &str = "moved";

/// One-way delays, in microseconds.
const DELAYS: [u64; 3] = [1, 5, 20];
/// Chases of a row `chases`.
pub(crate) const MANY: u64 = 16;
const SERVERS: [u32; 3] = [2, 4, 8];
const DEPTHS: [u64; 6] = [4, 16, 64, 256, 1024, 4096];
/// Those in mapped memory.
const MAPPED: [u64; 3] = [4, 64, 4096];
/// Other operations, and their sizes.
const OPERATIONS: [(&str, u64); 4] = [
    ("gather", 1024),
    ("list", 64),
    ("btree", 1 << 16),
    ("bfs", 1 << 14),
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![
        // Half a round trip of a call that adds one to a word of its target.
        call("tsi/latency", "latency", Figure::us(2.0)).bar(Bar::ratio(0.95)),
        call("tsi/rate", "rate", Figure::rate("M/s", 1e-6)).bar(Bar::ratio(0.95)),
        // Wasm above a function, in the same process, alternately.
        long("call/above-function", "above", "ns", 1e9).bar(Bar::at_most(50.0)),
        // What leaves for a call of code that the target has, beyond its payload.
        call("call/bytes-on-the-wire", "bytes", Figure::lower("B", 1.0)).bar(Bar::at_most(32.0)),
        long("first-call/wasm", "first cold", "ms", 1e3).bar(Bar::at_most(1.0)),
        long("first-call/prefetched", "first prefetched", "ms", 1e3).bar(Bar::ratio(0.95)),
        in_c("first-call/bitcode", "first bitcode").bar(Bar::at_most(20.0)),
        long("first-call-new-process/wasm", "first new-wasm", "ms", 1e3).bar(Bar::at_most(1.0)),
        in_c("first-call-new-process/bitcode", "first new-bitcode").bar(Bar::at_most(20.0)),
        in_c("compute/wasm/64MiB", "compute wasm").bar(Bar::ratio(0.6)),
        in_c("compute/bitcode/64MiB", "compute bitcode").bar(Bar::ratio(0.98)),
    ];
    cases.extend([filter("filter", 30.0), filter("filter-function", 0.6)]);
    for depth in MAPPED {
        let name = format!("chase/mapped/{depth}");
        let measure = Measure::new(name, format!("chain {depth}"), Figure::us(1.0));
        cases.push(Case::of(measure).bar(Bar::ratio(0.98)));
    }
    for (operation, size) in OPERATIONS {
        let name = format!("{operation}/mapped/{size}");
        let line = format!("mobile {operation} 0 {size}");
        let case = Case::of(Measure::new(name, line, Figure::us(1.0)));
        cases.push(case.bar(Bar::ratio(0.9)));
    }
    for servers in SERVERS {
        for depth in MAPPED {
            let name = format!("chase/{servers}/mapped/{depth}");
            let line = format!("mobile mapped 0 {depth}");
            let case = Case::of(Measure::new(name, line, Figure::us(1.0)));
            cases.push(Case {
                ranks: servers + 1,
                placement: Placement::Apart,
                ..case.bar(Bar::ratio(0.98))
            });
        }
        for delay in DELAYS {
            for depth in DEPTHS {
                cases.extend(chase(servers, delay, depth));
            }
        }
        let many = |delay| Case {
            // Of many chases the slowest one counts, for which there is no such formula.
            model: None,
            ..over_link("chases", servers, delay, 64, 1.7)
        };
        cases.extend(DELAYS.map(many));
        for (operation, size) in OPERATIONS.into_iter().filter(|_| servers == 4) {
            cases.extend([1, 20].map(|delay| over_link(operation, servers, delay, size, 0.95)));
        }
    }
    cases
}

fn call(name: &str, command: &str, figure: Figure) -> Case {
    Case::of(Measure::new(name, format!("mobile {command}"), figure))
}

fn long(name: &str, command: &str, unit: &'static str, factor: f64) -> Case {
    let figure = Figure::lower(unit, factor);
    let measure = Measure::new(name, format!("mobile {command}"), figure);
    Case::of(measure.at_pace(Pace::Whole))
}

/// A case with a kernel in C.
fn in_c(name: &str, command: &str) -> Case {
    let needs = Some((clang::PROGRAM, "ci/setup"));
    Case {
        needs,
        ..long(name, command, "ms", 1e3)
    }
}

/// A filter on staged data, beside reading all of it, and beside the function.
fn filter(name: &str, bar: f64) -> Case {
    let case = long(&format!("stage/{name}/64MiB"), name, "ms", 1e3);
    Case {
        ranks: 3,
        placement: Placement::Apart,
        ..case.bar(Bar::ratio(bar))
    }
}

/// A chase beside gets, and beside the function.
fn chase(servers: u32, delay: u64, depth: u64) -> [Case; 2] {
    let of = |name: &str, bar: f64| over_link(name, servers, delay, depth, bar);
    let by_gets = Case {
        model: Some(model(servers, depth)),
        ..of("chase", 1.7)
    };
    [by_gets, of("chase-function", 0.95)]
}

/// Returns how many times longer than moved code gets take, if delays are all that takes time: a
/// read takes two; a call and its reply take two, and each step but the last one if it leads to
/// another server. For deep chases this is 2 / (1 - 1/S).
fn model(servers: u32, depth: u64) -> f64 {
    let (servers, depth) = (f64::from(servers), depth as f64);
    2.0 * depth / (2.0 + (1.0 - 1.0 / servers) * (depth - 1.0))
}

/// An operation on the data of some servers, over a link.
fn over_link(name: &str, servers: u32, delay: u64, size: u64, bar: f64) -> Case {
    let line = format!("mobile {name} {delay} {size}");
    let name = format!("{name}/{servers}/{delay}us/{size}");
    let case = Case::of(Measure::new(name, line, Figure::us(1.0))).bar(Bar::ratio(bar));
    Case {
        ranks: servers + 1,
        placement: Placement::Apart,
        ..case
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_that_of_delays() {
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-3 * b, "{a} is not {b}");
        // Eight delays against the call, its reply, and two servers' half of four steps.
        close(model(2, 4), 8.0 / 3.5);
        close(model(4, 1 << 20), 2.0 / (1.0 - 1.0 / 4.0));
    }
}
