//! The table of moments on a terminal.

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, LineStyle, Table};

use crate::StepRecord;
use crate::record::representative;

/// The columns of the terminal's table and of the report's.
pub(crate) const COLUMNS: [&str; 8] = [
    "step",
    "mean",
    "2nd (variance)",
    "3rd",
    "4th",
    "skewness",
    "kurtosis",
    "to series (rms)",
];

/// Returns a table of the central moments per step. Of many records, it contains at most `shown`:
/// the first few, evenly spaced ones and the last.
pub fn moments_table(records: &[StepRecord], shown: usize) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_header(COLUMNS);
    table.style_mut().row_separator = LineStyle::none();
    for at in representative(records.len(), shown) {
        table.add_row(row(&records[at]));
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Returns the texts of one record, in the order of [`COLUMNS`].
pub(crate) fn row(record: &StepRecord) -> [String; COLUMNS.len()] {
    let moments = &record.moments;
    [
        record.step.to_string(),
        format!("{:.6}", moments.mean()),
        figure(moments.variance()),
        figure(moments.third()),
        figure(moments.fourth()),
        format!("{:.5}", moments.skewness()),
        format!("{:.5}", moments.kurtosis()),
        figure(record.distance.rms()),
    ]
}

/// Formats six significant digits, without an exponent if the number is short.
pub(crate) fn figure(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude == 0.0 {
        "0".into()
    } else if (1e-4..1e9).contains(&magnitude) {
        let before_point = magnitude.log10().floor() as i32 + 1;
        format!("{value:.*}", usize::try_from(6 - before_point).unwrap_or(0))
    } else {
        format!("{value:.5e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Distance, Moments};

    #[test]
    fn figures_keep_six_digits() {
        let texts = [0.0, 1234.5678, 0.012345678, -2.5, 1.5e12, 3e-9, 12345678.9].map(figure);
        let expected = [
            "0",
            "1234.57",
            "0.0123457",
            "-2.50000",
            "1.50000e12",
            "3.00000e-9",
            "12345679",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn the_table_has_the_first_and_the_last_step() {
        let record = |step: u64| StepRecord {
            step,
            moments: Moments::of(&[step as f64, 25.0]),
            distance: Distance::default(),
            max_change: None,
        };
        let records: Vec<_> = (0..=1000).map(record).collect();
        let table = moments_table(&records, 10);
        assert_eq!(table.row_iter().count(), 10);
        let text = table.to_string();
        for step in ["step", " 0 ", " 1 ", " 2 ", " 1000 ", "512.500000"] {
            assert!(text.contains(step), "{step} is not in\n{text}");
        }
    }
}
