//! The figures of a bench: one JSON object, one table.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Result;
use comfy_table::{Cell, CellAlignment, Color, Table, presets};
use serde::Serialize;

use crate::case::{Bar, Case};
use crate::host::Host;
use crate::measure::{Better, Figure};
use crate::overhead::{self, Overhead};

/// Marks a row that was measured once, or a few times.
const FEW: &str = "*";

/// The result of a bench. Prints as a table.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Name of the bench.
    pub bench: String,
    /// Where it ran.
    pub host: Host,
    /// One row per case.
    pub rows: Vec<Row>,
    /// The overhead of operations beside the copy of their bytes, if the bench models it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overheads: Vec<Overhead>,
    /// What did not take part: peers and programs, each with what to install, and placements, each
    /// with the reason.
    pub missing: BTreeMap<String, String>,
    /// Failures of peers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// How each peer was built and started.
    pub peer_settings: BTreeMap<String, String>,
    /// Interleaved repeats behind each median.
    pub repeats: u32,
}

/// A peer that failed and was left out.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// Its name.
    pub peer: String,
    /// The case, or the ranks with which it could not be started.
    pub case: String,
    /// Its error.
    pub what: String,
}

/// The medians of one case.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the case.
    pub case: String,
    /// Unit of all figures of the row.
    pub unit: &'static str,
    /// Which direction is an improvement.
    pub better: Better,
    /// Our figure.
    pub ours: Option<f64>,
    /// Figures of the peers that have this case.
    pub peers: BTreeMap<String, f64>,
    /// Physical floor or ceiling, measured in the same run.
    pub limit: Option<f64>,
    /// How many times better ours is than the best peer.
    pub ratio: Option<f64>,
    /// The ratio that a model predicts, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<f64>,
    /// Interleaved repeats behind each median, if they may differ from those of the bench: a figure
    /// that follows from a layout, or that interleaves its own runs, is measured once, and a long
    /// one a few times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeats: Option<u32>,
    /// The expectation; absent if the case is only reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar: Option<Bar>,
    /// Whether the bar was met; absent as well if it needs a ratio, and a peer that could have this
    /// case is missing or has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub met: Option<bool>,
}

impl Row {
    pub(crate) fn new(
        case: &Case,
        ours: Option<f64>,
        peers: BTreeMap<String, f64>,
        limit: Option<f64>,
        repeats: Option<u32>,
    ) -> Self {
        let Figure { unit, better, .. } = case.measure.figure;
        let ratio = ratio(better, ours, peers.values().copied());
        Row {
            case: case.name.clone(),
            unit,
            better,
            met: case.bar.met(better, ours, ratio, limit),
            bar: (case.bar != Bar::default()).then_some(case.bar),
            ours: ours.map(rounded),
            peers: peers
                .into_iter()
                .map(|(name, figure)| (name, rounded(figure)))
                .collect(),
            limit: limit.map(rounded),
            ratio: ratio.map(rounded),
            model: case.model.map(rounded),
            repeats,
        }
    }
}

impl Row {
    /// Returns it undecided where a ratio decides and not all peers have taken part.
    pub(crate) fn decided(self, case: &Case, is_full: bool) -> Row {
        let needs_all = case.bar.ratio.is_some() && !is_full;
        // A bar that is missed beside some peers is missed beside all of them.
        let met = self.met.filter(|met| !needs_all || !*met);
        Row { met, ..self }
    }
}

impl Figures {
    /// Returns them as a JSON object.
    pub fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    fn peers(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .rows
            .iter()
            .flat_map(|row| row.peers.keys().map(String::as_str))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The table, its legend, and then what is missing from it.
        let peers = self.peers();
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        let head = ["case", "unit", "ours"]
            .into_iter()
            .chain(peers.iter().copied());
        let has_model = self.rows.iter().any(|row| row.model.is_some());
        let model = has_model.then_some("model");
        let head = head.chain(["limit", "ratio"]).chain(model);
        table.set_header(head.chain(["bar", "met"]));
        for row in &self.rows {
            table.add_row(cells(row, &peers, has_model));
        }
        writeln!(f, "{table}")?;
        if !self.overheads.is_empty() {
            writeln!(f, "{}", overhead::table(&self.overheads))?;
        }
        writeln!(
            f,
            "{}, {} cores, Linux {}, load {} at the start; medians of {} interleaved repeats",
            self.host.cpu, self.host.cores, self.host.kernel, self.host.load, self.repeats
        )?;
        if self.rows.iter().any(|row| row.repeats.is_some()) {
            writeln!(f, "{FEW}: asked for once, or a few times (n)")?;
        }
        for (peer, install) in &self.missing {
            writeln!(f, "without {peer}: {install}")?;
        }
        for Failure { peer, case, what } in &self.failures {
            writeln!(f, "{case} without {peer}: {what}")?;
        }
        Ok(())
    }
}

fn cells(row: &Row, peers: &[&str], has_model: bool) -> Vec<Cell> {
    let number = |figure: Option<f64>| Cell::new(shown(figure)).set_alignment(CellAlignment::Right);
    let name = match row.repeats {
        Some(1) => format!("{} {FEW}", row.case),
        Some(few) => format!("{} {FEW} ({few})", row.case),
        None => row.case.clone(),
    };
    let mut cells = vec![Cell::new(name), Cell::new(row.unit), number(row.ours)];
    cells.extend(
        peers
            .iter()
            .map(|&peer| number(row.peers.get(peer).copied())),
    );
    cells.extend([number(row.limit), number(row.ratio)]);
    cells.extend(has_model.then(|| number(row.model)));
    let expected = row.bar.map(|bar| expectation(bar, row.better));
    cells.push(Cell::new(expected.unwrap_or_default()));
    cells.push(match row.met {
        Some(true) => Cell::new("yes").fg(Color::Green),
        Some(false) => Cell::new("no").fg(Color::Red),
        None => Cell::new(""),
    });
    cells
}

fn expectation(bar: Bar, better: Better) -> String {
    let ratio = bar.ratio.map(|ratio| format!("ratio ≥ {ratio}"));
    let limit = bar.of_limit.map(|factor| match better {
        Better::Lower => format!("≤ {factor} × limit"),
        Better::Higher => format!("≥ {factor} × limit"),
    });
    let above = bar.above_limit.map(|more| format!("≤ limit + {more}"));
    let most = bar.at_most.map(|figure| format!("≤ {figure}"));
    let least = bar.at_least.map(|figure| format!("≥ {figure}"));
    [ratio, limit, above, most, least]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(", ")
}

/// Formats a figure with three significant digits.
pub(crate) fn shown(figure: Option<f64>) -> String {
    let Some(x) = figure else {
        return String::new();
    };
    let digits = if x == 0.0 {
        2.0
    } else {
        2.0 - x.abs().log10().floor()
    };
    format!("{x:.*}", digits.clamp(0.0, 9.0) as usize)
}

/// Rounds to four significant digits; more would exceed the precision of a median of a few repeats.
pub(crate) fn rounded(x: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let digits = (3 - x.abs().log10().floor() as i32).clamp(-300, 300);
    // Scale by an integer power of ten, so that the result prints short.
    let scale = 10f64.powi(digits.abs());
    if digits >= 0 {
        (x * scale).round() / scale
    } else {
        (x / scale).round() * scale
    }
}

fn ratio(better: Better, ours: Option<f64>, peers: impl Iterator<Item = f64>) -> Option<f64> {
    let ours = ours?;
    match better {
        Better::Higher => peers.reduce(f64::max).map(|best| ours / best),
        // A cost of zero would give an infinite ratio, which says nothing.
        Better::Lower if ours <= 0.0 => None,
        Better::Lower => peers.reduce(f64::min).map(|best| best / ours),
    }
}

pub(crate) fn median(figures: &mut [f64]) -> Option<f64> {
    figures.sort_unstable_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() {
        0 => None,
        n if n % 2 == 1 => Some(figures[middle]),
        _ => Some((figures[middle - 1] + figures[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Measure;

    #[test]
    fn the_ratio_is_taken_to_the_best_peer() {
        assert_eq!(
            ratio(Better::Higher, Some(30.0), [10.0, 15.0].into_iter()),
            Some(2.0)
        );
        assert_eq!(
            ratio(Better::Lower, Some(0.1), [0.2, 0.5].into_iter()),
            Some(2.0)
        );
        assert_eq!(ratio(Better::Lower, Some(0.1), std::iter::empty()), None);
        assert_eq!(ratio(Better::Lower, None, [0.2].into_iter()), None);
    }

    #[test]
    fn a_bar_is_not_met_beside_some_of_the_peers() {
        let row = |bar, theirs| {
            let case = Case::of(Measure::new("a", "a", Figure::us(1.0))).bar(bar);
            let peers = BTreeMap::from([("openmpi".to_owned(), theirs)]);
            let row = Row::new(&case, Some(1.0), peers, None, None);
            [true, false].map(|is_full| row.clone().decided(&case, is_full).met)
        };
        assert_eq!(row(Bar::ratio(1.0), 2.0), [Some(true), None]);
        assert_eq!(row(Bar::ratio(1.0), 0.5), [Some(false), Some(false)]);
        assert_eq!(row(Bar::at_most(1.0), 2.0), [Some(true), Some(true)]);
    }

    /// The ratio of a model stands beside the one that was measured, in tables that have such rows.
    #[test]
    fn a_model_is_shown_beside_the_ratio() {
        let figures = |model| {
            let case = Case::of(Measure::new("a", "a", Figure::us(1.0)));
            let peers = BTreeMap::from([("gets".to_owned(), 3.0)]);
            let row = Row::new(&Case { model, ..case }, Some(1.0), peers, None, None);
            Figures {
                bench: "mobile".into(),
                host: Host::here(Vec::new()),
                rows: vec![row],
                overheads: Vec::new(),
                missing: BTreeMap::new(),
                failures: Vec::new(),
                peer_settings: BTreeMap::new(),
                repeats: 1,
            }
        };
        let shown = figures(Some(3.87)).to_string();
        assert!(
            shown.contains(" ratio   model ") && shown.contains(" 3.87 "),
            "{shown}"
        );
        assert!(!figures(None).to_string().contains("model"));
    }

    #[test]
    fn medians() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn figures_are_shown_with_three_digits() {
        let shown = [20_345.6, 33.123, 1.0, 0.123_456, 0.000_412_3, 0.0].map(|x| shown(Some(x)));
        assert_eq!(
            shown,
            ["20346", "33.1", "1.00", "0.123", "0.000412", "0.00"]
        );
        assert_eq!(super::shown(None), "");
    }

    #[test]
    fn figures_are_rounded_to_four_digits() {
        assert_eq!(rounded(0.123_456), 0.1235);
        assert_eq!(rounded(33.123_456), 33.12);
        assert_eq!(rounded(20_345.6), 20_350.0);
        assert_eq!(rounded(0.0), 0.0);
    }

    #[test]
    fn the_json_has_the_fields_that_readers_rely_on() {
        let case =
            Case::of(Measure::new("latency/8B", "latency 8", Figure::us(2.0))).bar(Bar::ratio(1.0));
        let peers = BTreeMap::from([("openmpi".to_owned(), 0.2)]);
        let row =
            serde_json::to_value(Row::new(&case, Some(0.1), peers, Some(0.08), None)).unwrap();
        let expected = serde_json::json!({
            "case": "latency/8B", "unit": "us", "better": "lower", "ours": 0.1,
            "peers": {"openmpi": 0.2}, "limit": 0.08, "ratio": 2.0,
            "bar": {"ratio": 1.0}, "met": true,
        });
        assert_eq!(row, expected);
    }
}
