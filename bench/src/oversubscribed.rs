//! `samite bench oversubscribed`: more units than cores, and units that only wait.

use crate::case::{Bar, Case};
use crate::measure::{Figure, Measure, Pace};
use crate::placement::Placement;
use std::time::Duration;

const RANKS: u32 = 8;

pub(crate) fn cases(quick: bool) -> Vec<Case> {
    let alltoall = oversubscribed("alltoall/8x1KiB", "alltoall 1024");
    let barrier = oversubscribed("barrier/8", "barrier");
    let seconds = if quick { 1 } else { 10 };
    let idle = Measure::new(
        format!("idle/{seconds}s"),
        format!("idle {seconds}"),
        Figure::lower("% of a core", 100.0 / seconds as f64),
    );
    let idle = idle.at_pace(Pace::Once(Duration::from_secs(seconds)));
    vec![
        alltoall.placed(Placement::Free),
        barrier.placed(Placement::Free),
        alltoall.bar(Bar::ratio(1.5)),
        barrier.bar(Bar::ratio(1.5)),
        Case::of(idle).bar(Bar::at_most(1.0)),
    ]
}

fn oversubscribed(name: &str, command: &str) -> Case {
    Case {
        ranks: RANKS,
        ..Case::of(Measure::new(
            format!("oversubscribed/{name}"),
            command,
            Figure::us(1.0),
        ))
    }
}
