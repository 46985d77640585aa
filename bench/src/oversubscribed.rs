//! `samite bench oversubscribed`: more units than cores, and units that only wait.

use crate::case::{Bar, Case, Measure};
use crate::placement::Placement;

const RANKS: u32 = 8;

pub(crate) fn cases(quick: bool) -> Vec<Case> {
    let alltoall = crowded(Measure::Alltoall {
        ranks: RANKS,
        bytes: 1024,
    });
    let barrier = crowded(Measure::Barrier { ranks: RANKS });
    let idle = Case::of(Measure::Idle {
        seconds: if quick { 1 } else { 10 },
    });
    vec![
        alltoall.placed(Placement::Free),
        barrier.placed(Placement::Free),
        alltoall.bar(Bar::ratio(1.5)),
        barrier.bar(Bar::ratio(1.5)),
        idle.bar(Bar::at_most(1.0)),
    ]
}

fn crowded(measure: Measure) -> Case {
    let case = Case::of(measure);
    Case {
        name: format!("oversubscribed/{}", case.name),
        ranks: RANKS,
        ..case
    }
}
