//! `samite bench coherence`: guards of a chunk, and commits, of two processes and the agent, which
//! is the home of all chunks.

use crate::case::{Bar, Case};
use crate::measure::{Figure, Measure, size};

/// Bytes of a short chunk, whose content is in the messages, and of one in shared memory.
const SIZES: [u64; 2] = [64, 1 << 20];

pub(crate) fn cases() -> Vec<Case> {
    let each = |bytes| {
        let name = |what: &str| format!("{what}/{}", size(bytes));
        let command = |kind: &str, of: &str| format!("chunk {kind} {of} {bytes}");
        let us = |kind: &str| {
            Case::of(Measure::new(
                name(kind),
                command(kind, "seconds"),
                Figure::us(1.0),
            ))
        };
        let trips = |kind: &str, most: f64| {
            let figure = Figure::lower("round trips", 1.0);
            let name = name(&format!("{kind}/trips"));
            let measure = Measure::new(name, command(kind, "trips"), figure);
            Case::of(measure).bar(Bar::at_most(most))
        };
        let hit = Measure::new(
            name("acquire/hit"),
            command("hit", "seconds"),
            Figure::ns(1.0),
        );
        vec![
            Case::of(hit).bar(Bar::at_most(100.0)),
            us("miss"),
            trips("miss", 3.0),
            us("upgrade"),
            trips("upgrade", 3.0),
            us("commit"),
            us("event"),
            trips("event", 1.5),
        ]
    };
    SIZES.into_iter().flat_map(each).collect()
}
