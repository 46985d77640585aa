//! `samite bench collectives`: two units on two cores, and eight units on the same two.
//!
//! We have each case twice: with its data in a segment, as OpenSHMEM's always are, and in private
//! memory (`…/private`). A peer is measured with the faster of its two kinds of memory in both.

use crate::case::{Bar, Case};
use crate::measure::{Figure, Measure, exchange, size};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const PAIR: u32 = 2;
const CROWD: u32 = 8;

pub(crate) fn cases() -> Vec<Case> {
    let small = Bar::ratio(1.0).and_of_limit(3.0);
    let mut cases = vec![
        barrier(PAIR).bar(small),
        on("allreduce", "segment", 8, PAIR).bar(small),
        on("allreduce", "segment", MIB, PAIR).bar(Bar::ratio(2.0)),
        on("bcast", "segment", MIB, PAIR).bar(Bar::ratio(2.0)),
        on("alltoall", "segment", 64 * KIB, PAIR).bar(Bar::ratio(1.5)),
        on("alltoall", "segment", MIB, PAIR).bar(Bar::ratio(2.0)),
    ];
    cases.extend(private(PAIR));
    let crowd = [
        barrier(CROWD),
        on("allreduce", "segment", 8, CROWD),
        on("allreduce", "segment", MIB, CROWD),
        on("bcast", "segment", MIB, CROWD),
        on("alltoall", "segment", 64 * KIB, CROWD),
        on("alltoall", "segment", MIB, CROWD),
    ];
    cases.extend(crowd.map(|case| case.bar(Bar::ratio(1.5))));
    cases.extend(private(CROWD));
    cases
}

/// The cases with data in private memory, reported without a bar.
fn private(ranks: u32) -> [Case; 5] {
    [
        on("allreduce", "private", 8, ranks),
        on("allreduce", "private", MIB, ranks),
        on("bcast", "private", MIB, ranks),
        on("alltoall", "private", 64 * KIB, ranks),
        on("alltoall", "private", MIB, ranks),
    ]
}

fn barrier(ranks: u32) -> Case {
    case(format!("barrier/{ranks}"), "barrier", "segment", 0, ranks)
}

fn on(operation: &str, memory: &str, bytes: u64, ranks: u32) -> Case {
    let more = if memory == "private" { "/private" } else { "" };
    let name = format!("{operation}/{}/{ranks}{more}", size(bytes));
    case(name, operation, memory, bytes, ranks)
}

fn case(name: String, operation: &str, memory: &str, bytes: u64, ranks: u32) -> Case {
    let command = format!("collective {operation} {memory} {bytes}");
    let mut measure = Measure::new(name, command, Figure::us(1.0));
    if bytes <= 8 && ranks == PAIR {
        measure = measure.limited_by(exchange());
    }
    if operation == "alltoall" && ranks == PAIR {
        // Each member copies two blocks, in any algorithm.
        let copy = format!("raw put {}", 2 * bytes);
        measure = measure.limited_by(Measure::new(copy.clone(), copy, Figure::us(1.0)));
    }
    Case {
        ranks,
        ..Case::of(measure)
    }
}
