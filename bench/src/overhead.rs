//! The overhead model of the DART-MPI paper (section V): t = t_raw + c.
//!
//! An operation of b bytes takes the time of the plain copy of b bytes, plus a constant overhead c.
//! Both times are measured for all powers of two from 1 B to 2 MiB, interleaved, and c is the mean
//! of their differences. The error of each difference is that of its times, which is proportional
//! to t_raw, so its weight is 1 / t_raw². The deviation is that of the differences from c with the
//! same weights.

use std::collections::BTreeMap;

use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::Serialize;

use crate::case::Point;
use crate::figures::{Row, rounded, shown};
use crate::placement::Placement;

/// The constant of one contestant.
#[derive(Clone, Debug, Serialize)]
pub struct Overhead {
    /// `put` or `get`, both blocking.
    pub operation: &'static str,
    /// Where the two units ran.
    pub placement: &'static str,
    /// `samite`, or the name of the peer.
    pub contestant: String,
    /// c, in nanoseconds.
    pub overhead_ns: f64,
    /// Standard deviation of the differences, in nanoseconds.
    pub deviation_ns: f64,
    /// Bytes, time and time of the plain copy, in nanoseconds.
    pub points: Points,
}

/// Bytes, time and time of the plain copy.
type Points = Vec<(u64, f64, f64)>;

/// Fits all contestants. The rows are times in nanoseconds, with the plain copy as their limit.
pub(crate) fn fit(rows: &[(Point, Placement, Row)]) -> Vec<Overhead> {
    let mut series: BTreeMap<(&str, &str, String), Points> = BTreeMap::new();
    for (point, placement, row) in rows {
        let Some(raw) = row.limit else { continue };
        let ours = row.ours.map(|ours| ("samite".to_owned(), ours));
        let peers = row.peers.iter().map(|(name, time)| (name.clone(), *time));
        for (contestant, time) in ours.into_iter().chain(peers) {
            let key = (point.operation, placement.name(), contestant);
            series
                .entry(key)
                .or_default()
                .push((point.bytes, time, raw));
        }
    }
    let fitted = series
        .into_iter()
        .filter_map(|((operation, placement, contestant), points)| {
            let (overhead, deviation) = constant(&points)?;
            Some(Overhead {
                operation,
                placement,
                contestant,
                overhead_ns: rounded(overhead),
                deviation_ns: rounded(deviation),
                points,
            })
        });
    fitted.collect()
}

/// Returns c and its deviation.
fn constant(points: &[(u64, f64, f64)]) -> Option<(f64, f64)> {
    let weighted = |value: &dyn Fn(f64, f64) -> f64| -> f64 {
        points
            .iter()
            .map(|(_, time, raw)| value(*time, *raw) / (raw * raw))
            .sum()
    };
    let weights = weighted(&|_, _| 1.0);
    if !weights.is_normal() {
        return None;
    }
    let mean = weighted(&|time, raw| time - raw) / weights;
    let variance = weighted(&|time, raw| (time - raw - mean).powi(2)) / weights;
    Some((mean, variance.sqrt()))
}

/// Returns one line per operation and placement, one column per contestant.
pub(crate) fn table(overheads: &[Overhead]) -> Table {
    let mut names: Vec<&str> = overheads.iter().map(|o| o.contestant.as_str()).collect();
    // Samite is first, as in the table above.
    names.sort_unstable_by_key(|name| (*name != "samite", *name));
    names.dedup();
    let mut lines: Vec<(&str, &str)> = overheads
        .iter()
        .map(|o| (o.placement, o.operation))
        .collect();
    lines.sort_unstable();
    lines.dedup();
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    let head = ["c in t = t_raw + c, ns"]
        .into_iter()
        .chain(names.iter().copied());
    table.set_header(head);
    for (placement, operation) in lines {
        let mut cells = vec![Cell::new(format!("{operation}, {placement}"))];
        for name in &names {
            let found = overheads.iter().find(|o| {
                (o.placement, o.operation, o.contestant.as_str()) == (placement, operation, name)
            });
            let text = found.map(|o| {
                let (mean, deviation) = (Some(o.overhead_ns), Some(o.deviation_ns));
                format!("{} ± {}", shown(mean), shown(deviation))
            });
            let cell = Cell::new(text.unwrap_or_default());
            cells.push(cell.set_alignment(CellAlignment::Right));
        }
        table.add_row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_overhead_is_found() {
        let points = [1, 8, 64, 4096, 1 << 20].map(|bytes| {
            let raw = 2.0 + bytes as f64 / 20.0;
            (bytes, raw + 7.5, raw)
        });
        let (mean, deviation) = constant(&points).unwrap();
        assert!((mean - 7.5).abs() < 1e-6, "{mean}");
        assert!(deviation < 1e-4, "{deviation}");
    }

    #[test]
    fn what_scatters_has_a_deviation_and_large_sizes_count_little() {
        let points = [(1, 6.0, 2.0), (8, 10.0, 2.0), (1 << 20, 60_000.0, 50_000.0)];
        let (mean, deviation) = constant(&points).unwrap();
        assert!((mean - 6.0).abs() < 0.1, "{mean}");
        assert!((1.9..3.0).contains(&deviation), "{deviation}");
        assert_eq!(constant(&[]), None);
    }
}
