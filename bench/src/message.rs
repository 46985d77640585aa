//! `samite bench message`: two units, one on each of two cores.

use crate::case::{Bar, Case};
use crate::measure::{Figure, Measure, Pace, exchange, memcpy, size};
use crate::placement::Placement;
use std::time::Duration;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Messages in flight, as in the OSU tests.
const WINDOW: u64 = 64;

/// Private pages that are reused.
const MALLOC: &str = "malloc";
/// Memory of the library: `MPI_Alloc_mem`, our segments (the receiver gets a view and does not read
/// it).
const SEGMENT: &str = "segment";
/// The same, copied once into private memory of the receiver; the peers always copy.
const SEGMENT_COPY: &str = "segment-copy";
/// Private memory with huge pages requested.
const HUGE_PAGES: &str = "hugepages";
/// New buffers for every message.
const COLD: &str = "cold";

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = held();
    cases.extend(reported());
    let elsewhere: Vec<Case> = [Placement::Siblings, Placement::Free]
        .into_iter()
        .flat_map(|placement| {
            [latency(8), bandwidth(MALLOC, MIB), viewed(MIB)].map(|case| case.placed(placement))
        })
        .collect();
    cases.extend(elsewhere);
    cases
}

/// The cases with a bar.
fn held() -> Vec<Case> {
    let rate = Measure::new(
        "rate/8B",
        format!("rate 8 {WINDOW}"),
        Figure::rate("M/s", WINDOW as f64 / 1e6),
    );
    vec![
        latency(8).bar(Bar::ratio(1.0).and_of_limit(1.5)),
        latency(256).bar(Bar::ratio(1.0).and_of_limit(1.5)),
        latency(4 * KIB).bar(Bar::ratio(2.0)),
        Case::of(rate).bar(Bar::ratio(1.5)),
        bandwidth(MALLOC, 64 * KIB).bar(Bar::ratio(1.5)),
        bandwidth(MALLOC, MIB).bar(Bar::ratio(2.0)),
        bandwidth(MALLOC, 16 * MIB).bar(Bar::ratio(2.0)),
        viewed(64 * KIB).bar(Bar::ratio(4.0)),
        viewed(MIB).bar(Bar::ratio(4.0)),
    ]
}

/// The cases that are reported without a bar.
fn reported() -> Vec<Case> {
    let memory = Measure::new("memory/pair", "memory", Figure::lower("KiB", 1.0 / 1024.0));
    vec![
        bandwidth(SEGMENT_COPY, 64 * KIB),
        bandwidth(SEGMENT_COPY, MIB),
        bandwidth(HUGE_PAGES, MIB),
        bandwidth(HUGE_PAGES, 16 * MIB),
        bandwidth(COLD, 64 * KIB),
        bandwidth(COLD, MIB),
        bandwidth(COLD, 16 * MIB),
        stream(64 * KIB, WINDOW),
        // 64 messages of this size would not fit into the caches of any known machine.
        stream(MIB, 16),
        Case::of(memory.at_pace(Pace::Once(Duration::ZERO))),
    ]
}

fn latency(bytes: u64) -> Case {
    let measure = Measure::new(
        format!("latency/{}", size(bytes)),
        format!("latency {bytes}"),
        Figure::us(2.0),
    );
    Case::of(measure.limited_by(exchange()))
}

fn bandwidth(buffer: &str, bytes: u64) -> Case {
    let measure = Measure::new(
        format!("bandwidth/{buffer}/{}", size(bytes)),
        format!("bandwidth {buffer} {bytes}"),
        Figure::bandwidth(2 * bytes),
    );
    Case::of(measure.limited_by(memcpy(bytes)))
}

/// A message that the receiver gets as a view. Samite copies nothing, so the figure is the time of
/// a message, and no copy is its limit.
fn viewed(bytes: u64) -> Case {
    Case::of(Measure::new(
        format!("latency/{SEGMENT}/{}", size(bytes)),
        format!("bandwidth {SEGMENT} {bytes}"),
        Figure::us(2.0),
    ))
}

fn stream(bytes: u64, window: u64) -> Case {
    let measure = Measure::new(
        format!("stream/{}", size(bytes)),
        format!("stream {bytes} {window}"),
        Figure::bandwidth(bytes * window),
    );
    Case::of(measure.limited_by(memcpy(bytes)))
}
