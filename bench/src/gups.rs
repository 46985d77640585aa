//! `samite bench gups`: random updates of a table over two units, one by one and aggregated.
//! `samite bench is`: the integer sort of the NAS Parallel Benchmarks as a whole.

use crate::case::{Bar, Case};
use crate::measure::{Figure, Measure, Pace};

const RANKS: u32 = 2;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        updates("plain").bar(Bar::ratio(3.0)),
        updates("aggregated").bar(Bar::ratio(5.0)),
    ]
}

/// An iteration is one update of each unit; the figure counts all units.
fn updates(kind: &str) -> Case {
    let figure = Figure::rate("GUPS", f64::from(RANKS) * 1e-9);
    let name = format!("gups/{kind}/{RANKS}");
    Case::of(Measure::new(name, format!("gups {kind}"), figure))
}

/// The sort of NPB class A and B.
pub(crate) fn sorts() -> Vec<Case> {
    vec![sort("A"), sort("B").bar(Bar::ratio(1.2))]
}

fn sort(class: &str) -> Case {
    let figure = Figure::lower("s", 1.0);
    let name = format!("is/{class}/{RANKS}");
    let measure = Measure::new(name, format!("is {class}"), figure);
    Case::of(measure.at_pace(Pace::Whole))
}
