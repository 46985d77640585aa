//! `samite bench onesided`: one unit accesses the memory of another.
//!
//! Blocking operations are complete at both ends (DTCT in the DART-MPI paper). `put_nb` is started
//! and its handle awaited (DTIT).

use crate::case::{Bar, Case, Point};
use crate::measure::{Figure, Measure, size};
use crate::placement::Placement;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Nanoseconds that bookkeeping may add to a plain store or load.
const ADDED: f64 = 5.0;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![
        word("put", "raw store").bar(Bar::ratio(4.0).and_above_limit(ADDED)),
        word("get", "raw load").bar(Bar::ratio(4.0).and_above_limit(ADDED)),
        word("put_nb", "raw store").bar(Bar::ratio(4.0)),
        bandwidth("put", 64 * KIB).bar(Bar::of_limit(0.98)),
        bandwidth("put", MIB).bar(Bar::of_limit(0.98)),
        bandwidth("put", 16 * MIB).bar(Bar::of_limit(0.98)),
        bandwidth("get", MIB),
        strided(1024, 64).bar(Bar::ratio(3.0)),
        atomic("fetch_add", "single", 1).bar(Bar::ratio(4.0)),
        atomic("contended/2", "contended", 2).bar(Bar::ratio(1.5)),
    ];
    cases.extend(points(Placement::Apart));
    cases.extend(points(Placement::Siblings));
    cases
}

/// Eight bytes, compared with a plain access of the processor.
fn word(operation: &str, raw: &str) -> Case {
    let limit = Measure::new(raw, raw, Figure::ns(1.0));
    let measure = Measure::new(
        format!("{operation}/8B"),
        format!("{operation} 8"),
        Figure::ns(1.0),
    );
    Case::of(measure.limited_by(limit))
}

fn bandwidth(operation: &str, bytes: u64) -> Case {
    let measure = Measure::new(
        format!("bandwidth/{operation}/{}", size(bytes)),
        format!("{operation} {bytes}"),
        Figure::bandwidth(bytes),
    );
    Case::of(measure.limited_by(copy(operation, bytes, Figure::bandwidth(bytes))))
}

/// Blocks of `bytes`, contiguous at the source, to every second block of the target.
fn strided(blocks: u64, bytes: u64) -> Case {
    let measure = Measure::new(
        format!("strided/put/{blocks}x{}", size(bytes)),
        format!("strided {blocks} {bytes}"),
        Figure::us(1.0),
    );
    Case::of(measure)
}

fn atomic(name: &str, kind: &str, ranks: u64) -> Case {
    let measure = Measure::new(
        format!("atomic/{name}"),
        format!("atomic {kind}"),
        Figure::ns(ranks as f64),
    );
    // A single locked instruction on an uncontended line.
    let limit = Measure::new("raw add", "raw add", Figure::ns(1.0));
    Case::of(measure.limited_by(limit))
}

/// The plain copy between private memory and memory that other processes map.
fn copy(operation: &str, bytes: u64, figure: Figure) -> Measure {
    let command = format!("raw {operation} {bytes}");
    Measure::new(command.clone(), command, figure)
}

/// The points for the overhead model.
fn points(placement: Placement) -> impl Iterator<Item = Case> {
    let sizes = (0..=21).map(|power| 1 << power);
    let all = ["put", "get"]
        .into_iter()
        .flat_map(move |operation| sizes.clone().map(move |bytes| (operation, bytes)));
    all.map(move |(operation, bytes)| {
        let measure = Measure::new(
            format!("overhead/{operation}/{}", size(bytes)),
            format!("{operation} {bytes}"),
            Figure::ns(1.0),
        );
        let raw = copy(operation, bytes, Figure::ns(1.0));
        Case {
            placement,
            point: Some(Point { operation, bytes }),
            ..Case::of(measure.limited_by(raw))
        }
    })
}
