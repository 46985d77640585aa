//! Tables for the page and for the terminal.

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, LineStyle};

/// A table of texts, in general one row for each step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub(crate) header: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
    pub(crate) is_whole: bool,
}

impl Table {
    /// Returns a table without rows.
    pub fn new<T: Into<String>>(header: impl IntoIterator<Item = T>) -> Table {
        Table {
            header: header.into_iter().map(Into::into).collect(),
            rows: Vec::new(),
            is_whole: false,
        }
    }

    /// Lets the page show all rows, however many there are.
    pub fn whole(self) -> Table {
        Table {
            is_whole: true,
            ..self
        }
    }

    /// Adds a row.
    pub fn add<T: Into<String>>(&mut self, row: impl IntoIterator<Item = T>) {
        self.rows.push(row.into_iter().map(Into::into).collect());
    }

    /// Returns the table as text for a terminal, with at most `shown` rows: see [`representative`].
    pub fn text(&self, shown: usize) -> String {
        let mut table = comfy_table::Table::new();
        table
            .load_style(UTF8_HORIZONTAL_ONLY)
            .set_header(&self.header);
        table.style_mut().row_separator = LineStyle::none();
        for at in representative(self.rows.len(), shown) {
            table.add_row(&self.rows[at]);
        }
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }
}

/// Formats six significant digits, without an exponent if the number is short.
pub fn figure(value: f64) -> String {
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

/// Returns at most `shown` of `length` indices (at least 4): the first three, then evenly spaced
/// ones including the last.
pub fn representative(length: usize, shown: usize) -> Vec<usize> {
    let shown = shown.max(4);
    if length <= shown {
        return (0..length).collect();
    }
    // From the third index to the last one in equal strides, rounded.
    let (first, last) = (2, length - 1);
    let strides = shown - 3;
    let spaced = (0..=strides).map(|at| first + (at * (last - first) + strides / 2) / strides);
    [0, 1].into_iter().chain(spaced).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_places_represent_many() {
        assert_eq!(representative(0, 8), [0usize; 0]);
        assert_eq!(representative(5, 8), [0, 1, 2, 3, 4]);
        assert_eq!(representative(1001, 7), [0, 1, 2, 252, 501, 751, 1000]);
        for length in 0..200 {
            for shown in 0..30 {
                let places = representative(length, shown);
                assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
                assert_eq!(places.len(), length.min(shown.max(4)));
                assert_eq!(places.last().copied(), length.checked_sub(1));
            }
        }
    }

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
    fn the_text_has_the_first_and_the_last_row() {
        let mut table = Table::new(["step", "mean"]);
        for step in 0..=1000 {
            table.add([step.to_string(), figure(f64::from(step) / 2.0)]);
        }
        let text = table.text(10);
        for part in ["step", " 0 ", " 1 ", " 2 ", " 1000 ", " 500.000 "] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let rows = text.lines().filter(|line| line.contains(char::is_numeric));
        assert_eq!(rows.count(), 10);
    }
}
