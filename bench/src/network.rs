//! `samite bench network`: two units, each on a host of its own, over UCX: TCP on the loopback
//! interface, which is what every machine has. `ucx_perftest` uses the same transport.

use crate::case::{Bar, Case};
use crate::measure::{Figure, Measure, Pace, size};
use std::time::Duration;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Messages in flight, as in the OSU tests.
const WINDOW: u64 = 64;
/// How long a unit waits whose processor time is measured.
const IDLE: u64 = 10;

/// The name of the bench.
pub(crate) const BENCH: &str = "network";
/// The transports of UCX, and its device.
pub(crate) const TRANSPORTS: &str = "tcp,self";
pub(crate) const DEVICE: &str = "lo";

pub(crate) fn cases(is_quick: bool) -> Vec<Case> {
    let seconds = if is_quick { 1 } else { IDLE };
    let idle = Measure::new(
        format!("ucx/idle/{seconds}s"),
        format!("idle {seconds}"),
        Figure::lower("%", 100.0 / seconds as f64),
    );
    let idle = idle.at_pace(Pace::Once(Duration::from_secs(seconds)));
    vec![
        latency(8).bar(Bar::ratio(0.9)),
        latency(4 * KIB),
        bandwidth(64 * KIB),
        bandwidth(MIB).bar(Bar::ratio(0.95)),
        bandwidth(16 * MIB).bar(Bar::ratio(0.95)),
        rate(),
        one_sided("put", "put 8").bar(Bar::ratio(0.9)),
        one_sided("get", "get 8"),
        one_sided("atomic", "atomic single").bar(Bar::ratio(0.9)),
        Case::of(idle).bar(Bar::at_most(1.0)),
    ]
}

fn latency(bytes: u64) -> Case {
    Case::of(Measure::new(
        format!("ucx/latency/{}", size(bytes)),
        format!("latency {bytes}"),
        Figure::us(2.0),
    ))
}

fn bandwidth(bytes: u64) -> Case {
    Case::of(Measure::new(
        format!("ucx/bandwidth/{}", size(bytes)),
        format!("bandwidth malloc {bytes}"),
        Figure::bandwidth(2 * bytes),
    ))
}

fn rate() -> Case {
    Case::of(Measure::new(
        "ucx/rate/8B",
        format!("rate 8 {WINDOW}"),
        Figure::rate("M/s", WINDOW as f64 / 1e6),
    ))
}

/// An access that is complete at its target, or has its value, when it returns: a round trip. The
/// owner waits, and so makes progress, with UCX as with Samite.
fn one_sided(operation: &str, command: &str) -> Case {
    Case::of(Measure::new(
        format!("ucx/{operation}/8B"),
        command.to_owned(),
        Figure::us(1.0),
    ))
}
