//! `samite bench lock`: the time to acquire and release a lock, with a counter increased under it.

use crate::case::{Bar, Case};
use crate::measure::{Figure, Measure, exchange};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case("uncontended", "uncontended", 2),
        case("contended/2", "contended", 2),
        case("contended/8", "contended", 8),
    ]
}

fn case(name: &str, kind: &str, ranks: u32) -> Case {
    // Every holder takes the lock as often as an iteration says.
    let holders = if kind == "contended" { ranks } else { 1 };
    let mut measure = Measure::new(
        format!("lock/{name}"),
        format!("lock {kind}"),
        Figure::ns(f64::from(holders)),
    );
    if ranks == 2 && holders == 2 {
        measure = measure.limited_by(exchange().figured(Figure::ns(2.0)));
    }
    Case {
        ranks,
        ..Case::of(measure).bar(Bar::ratio(2.0))
    }
}
