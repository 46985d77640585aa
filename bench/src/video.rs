//! `samite bench video`: frames that are in memory, to a worker that does nothing with them and
//! back. Samite's source copies each frame from its own memory, or has written it in place; its
//! peers send it from their own memory in both cases.

use crate::case::{Bar, Case};
use crate::measure::{Figure, Measure};

/// Sizes of grey frames, and the bar.
const SIZES: [(&str, u64, Option<f64>); 3] = [
    ("HD", 1920 * 1080, None),
    ("UHD1", 3840 * 2160, None),
    ("UHD2", 7680 * 4320, Some(3.0)),
];

pub(crate) fn cases() -> Vec<Case> {
    let both = |(name, bytes, ratio): (&str, u64, Option<f64>)| {
        ["copied", "in-place"].map(|kind| {
            let measure = Measure::new(
                format!("video/raw/{name}/{kind}"),
                format!("frames {kind} {bytes}"),
                Figure::rate("frames/s", 1.0),
            );
            let case = Case::of(measure);
            match ratio {
                Some(ratio) => case.bar(Bar::ratio(ratio)),
                None => case,
            }
        })
    };
    SIZES.into_iter().flat_map(both).collect()
}
