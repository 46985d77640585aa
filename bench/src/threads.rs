//! `samite bench threads`: the gain and the cost of a second thread of a unit. The other unit
//! serves, or sleeps.

use crate::case::Case;
use crate::measure::{Figure, Measure};

/// Operations of each thread in an iteration.
const PUTS: f64 = 1000.0;

pub(crate) fn cases() -> Vec<Case> {
    let all = [1, 2].map(|threads| {
        let puts = Figure::rate("M/s", f64::from(threads) * PUTS / 1e6);
        [
            // Mapped puts of eight bytes, each thread on a core of its own.
            measure("put", threads, puts),
            // Half a round trip of eight bytes, by the threads in turn; the handover between
            // threads is not measured.
            measure("turns", threads, Figure::us(2.0)),
        ]
    });
    all.into_iter().flatten().map(Case::of).collect()
}

fn measure(what: &str, threads: u32, figure: Figure) -> Measure {
    let command = format!("threads {what} {threads}");
    Measure::new(format!("threads/{what}/{threads}"), command, figure)
}
