//! `samite bench staging`: a writer and a reader, programs of their own, that hand on steps.
//!
//! What has no peer (how much an index, a placement, a read of a slab costs beyond what it must) is a row of
//! ours alone.

use crate::case::{Bar, Case};
use crate::measure::{Figure, Measure, Pace, memcpy, size};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Steps of a window, as in the peers' `staging.h`.
const STEPS: u64 = 4;
/// Writers of the study's layouts in the rows for few servers, and readers.
const FEW: (u64, u64) = (64, 32);
/// Writers, readers and servers of its largest run.
const MANY: (u64, u64, u64) = (8192, 4096, 1024);

pub(crate) fn cases() -> Vec<Case> {
    let sizes = [MIB, 16 * MIB, 128 * MIB];
    let mut cases: Vec<Case> = sizes
        .map(|bytes| step("view", bytes).bar(Bar::ratio(20.0)))
        .into();
    cases.extend(sizes.map(|bytes| {
        let bar = Bar::ratio(5.0);
        let held_to_limit = bytes == 16 * MIB;
        step("copy", bytes).bar(if held_to_limit {
            bar.and_of_limit(0.9)
        } else {
            bar
        })
    }));
    cases.push(slab("get", 128 * MIB).bar(Bar::ratio(50.0)));
    cases.push(slab("copy", 128 * MIB));
    cases.push(store(16 * MIB).bar(Bar::ratio(10.0)));
    cases.push(memory("view", "view", 128 * MIB).bar(Bar::at_most(1.05)));
    cases.push(memory("copy", "put", 128 * MIB).bar(Bar::at_most(2.05)));
    cases.push(memory("two-copies", "copy", 128 * MIB));
    cases.push(file("write", 128 * MIB).bar(Bar::of_limit(0.9)));
    cases.push(file("write-synced", 128 * MIB));
    cases.push(file("read", 128 * MIB));
    cases.extend(figures());
    cases
}

/// What follows from a layout, or is counted: measured once, without peers.
fn figures() -> Vec<Case> {
    const BLOCKS: u64 = 100_000;
    // A cube of 100 or of 6400 points for each block.
    let index = |spread: u64| format!("index {BLOCKS} {spread}");
    let mut cases = vec![
        figure("slab/bytes", format!("moved {}", 128 * MIB), "x asked", 1.0)
            .bar(Bar::at_most(1.02)),
        figure("index/block", index(100), "B", 1.0 / BLOCKS as f64).bar(Bar::at_most(96.0)),
        figure("index/block/64x", index(6400), "B", 1.0 / BLOCKS as f64).bar(Bar::at_most(96.0)),
    ];
    for servers in [2, 4, 8, 16] {
        for shape in ["matched", "mismatched"] {
            let command = format!("layout {shape} {} {} {servers} balance", FEW.0, FEW.1);
            let name = format!("balance/{shape}/{servers}");
            cases.push(figure(&name, command, "x mean", 1.0).bar(Bar::at_most(1.10)));
        }
    }
    let (writers, readers, servers) = MANY;
    for shape in ["matched", "mismatched"] {
        let of = |what: &str, unit, factor| {
            let command = format!("layout {shape} {writers} {readers} {servers} {what}");
            figure(&format!("simulated/{shape}/{what}"), command, unit, factor)
        };
        cases.push(of("balance", "x mean", 1.0).bar(Bar::at_most(1.10)));
        cases.push(of("index", "KiB", 1.0 / 1024.0));
        cases.extend(["writer", "reader", "server"].map(|who| of(who, "peers", 1.0)));
    }
    cases
}

fn figure(name: &str, command: String, unit: &'static str, factor: f64) -> Case {
    let measure = Measure::new(name, command, Figure::lower(unit, factor));
    Case::of(measure.at_pace(Pace::Once(Duration::from_secs(1))))
}

fn step(kind: &str, bytes: u64) -> Case {
    let measure = Measure::new(
        format!("step/{kind}/{}", size(bytes)),
        format!("step {kind} {bytes}"),
        Figure::bandwidth(STEPS * bytes),
    );
    Case::of(measure.limited_by(two_copies(bytes)))
}

/// From the user's array into shared memory, and from there into the other user's.
fn two_copies(bytes: u64) -> Measure {
    memcpy(bytes).figured(Figure::rate("GB/s", bytes as f64 / 2e9))
}

/// Counted by the bytes that the reader asks for. The reader copies them out; the writer has its array in the step
/// (`get`) or puts it there (`copy`).
fn slab(kind: &str, bytes: u64) -> Case {
    let count = bytes / 8;
    let columns = (count as f64).sqrt().ceil().log2().ceil().exp2() as u64;
    let asked = count / columns * ((columns + 50) / 100) * 8;
    let more = if kind == "copy" { "/put" } else { "" };
    Case::of(Measure::new(
        format!("slab/column1%/{}{more}", size(bytes)),
        format!("slab {kind} {bytes}"),
        Figure::bandwidth(STEPS * asked),
    ))
}

fn store(bytes: u64) -> Case {
    Case::of(Measure::new(
        format!("store/{}", size(bytes)),
        format!("store {bytes}"),
        Figure::bandwidth(bytes),
    ))
}

/// How many times the data all processes hold: in place, with the array of a writer, with that of the reader, too.
fn memory(name: &str, kind: &str, bytes: u64) -> Case {
    // Two windows after one to warm up.
    let command = format!("peak {kind} {bytes} 2 1");
    let figure = Figure::lower("x data", 1.0 / bytes as f64);
    let measure = Measure::new(format!("memory/{name}"), command, figure);
    Case::of(measure.at_pace(Pace::Once(Duration::from_secs(5))))
}

fn file(operation: &str, bytes: u64) -> Case {
    let measure = Measure::new(
        format!("file/{operation}/{}", size(bytes)),
        format!("file {operation} {bytes}"),
        Figure::bandwidth(bytes),
    );
    let limit = measure.clone();
    Case::of(measure.limited_by(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_counts_the_bytes_of_its_columns() {
        // 4096 rows of 41 of 4096 columns.
        let Case { measure, .. } = slab("get", 128 * MIB);
        let gigabytes = (STEPS * 4096 * 41 * 8) as f64 / 1e9;
        assert!((measure.figure.of(1.0, 1) - gigabytes).abs() < 1e-12);
    }
}
