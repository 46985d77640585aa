//! `samite bench message`: two units, one on each of two cores.

use crate::case::{Bar, Buffer, Case, Measure};
use crate::placement::Placement;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Messages in flight, as in the OSU tests.
const WINDOW: u64 = 64;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = held();
    cases.extend(reported());
    let elsewhere: Vec<Case> = [Placement::Siblings, Placement::Free]
        .into_iter()
        .flat_map(|placement| {
            [
                latency(8),
                bandwidth(Buffer::Malloc, MIB),
                bandwidth(Buffer::Segment, MIB),
            ]
            .map(|case| case.placed(placement))
        })
        .collect();
    cases.extend(elsewhere);
    cases
}

/// The cases with a bar.
fn held() -> Vec<Case> {
    vec![
        latency(8).bar(Bar::ratio(1.0).and_of_limit(1.5)),
        latency(256).bar(Bar::ratio(1.0).and_of_limit(1.5)),
        latency(4 * KIB).bar(Bar::ratio(2.0)),
        Case::of(Measure::Rate {
            bytes: 8,
            window: WINDOW,
        })
        .bar(Bar::ratio(1.5)),
        bandwidth(Buffer::Malloc, 64 * KIB).bar(Bar::ratio(1.5)),
        bandwidth(Buffer::Malloc, MIB).bar(Bar::ratio(2.0)),
        bandwidth(Buffer::Malloc, 16 * MIB).bar(Bar::ratio(2.0)),
        bandwidth(Buffer::Segment, 64 * KIB).bar(Bar::ratio(4.0)),
        bandwidth(Buffer::Segment, MIB).bar(Bar::ratio(4.0)),
    ]
}

/// The cases that are reported without a bar.
fn reported() -> Vec<Case> {
    vec![
        bandwidth(Buffer::SegmentCopy, 64 * KIB),
        bandwidth(Buffer::SegmentCopy, MIB),
        bandwidth(Buffer::HugePages, MIB),
        bandwidth(Buffer::HugePages, 16 * MIB),
        bandwidth(Buffer::Cold, 64 * KIB),
        bandwidth(Buffer::Cold, MIB),
        bandwidth(Buffer::Cold, 16 * MIB),
        Case::of(Measure::Stream {
            bytes: 64 * KIB,
            window: WINDOW,
        }),
        // 64 messages of this size would not fit the caches of any machine we know.
        Case::of(Measure::Stream {
            bytes: MIB,
            window: 16,
        }),
        Case::of(Measure::Memory),
    ]
}

fn latency(bytes: u64) -> Case {
    Case::of(Measure::Latency { bytes })
}

fn bandwidth(buffer: Buffer, bytes: u64) -> Case {
    Case::of(Measure::Bandwidth { buffer, bytes })
}
