//! `samite bench staging`: a writer and a reader, programs of their own, that hand on steps.

use crate::case::{Bar, Case};
use crate::measure::{Figure, Measure, Pace, memcpy, size};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Steps of a window, as in the peers' `staging.h`.
const STEPS: u64 = 4;

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
    cases.push(slab(128 * MIB).bar(Bar::ratio(50.0)));
    cases.push(store(16 * MIB).bar(Bar::ratio(10.0)));
    cases.push(memory("view", 128 * MIB).bar(Bar::at_most(1.05)));
    cases.push(memory("copy", 128 * MIB).bar(Bar::at_most(2.05)));
    cases.push(file("write", 128 * MIB).bar(Bar::of_limit(0.9)));
    cases.push(file("write-synced", 128 * MIB));
    cases.push(file("read", 128 * MIB));
    cases
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

/// Counted by the bytes that the reader asks for.
fn slab(bytes: u64) -> Case {
    let count = bytes / 8;
    let columns = (count as f64).sqrt().ceil().log2().ceil().exp2() as u64;
    let asked = count / columns * ((columns + 50) / 100) * 8;
    Case::of(Measure::new(
        format!("slab/column1%/{}", size(bytes)),
        format!("slab {bytes}"),
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

/// How many times the data all processes hold.
fn memory(kind: &str, bytes: u64) -> Case {
    // Two windows after one to warm up.
    let command = format!("peak {kind} {bytes} 2 1");
    let figure = Figure::lower("x data", 1.0 / bytes as f64);
    let measure = Measure::new(format!("memory/{kind}"), command, figure);
    Case::of(measure.at_pace(Pace::Once(Duration::from_secs(2))))
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
        let Case { measure, .. } = slab(128 * MIB);
        let gigabytes = (STEPS * 4096 * 41 * 8) as f64 / 1e9;
        assert!((measure.figure.of(1.0, 1) - gigabytes).abs() < 1e-12);
    }
}
