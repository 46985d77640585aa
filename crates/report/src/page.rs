//! The page: one self-contained HTML file, for a light or a dark page.

use std::ops::Range;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::picture::{LEVELS, palette};
use crate::{Bars, Diagram, Error, Picture, Table, representative};

const STYLE: &str = include_str!("page.css");
/// Rows of a table.
const TABLE_ROWS: usize = 25;
/// The longest side of the field's picture on the page, in CSS pixels.
const PICTURE_SIDE: f64 = 520.0;

/// A name and a value to display, such as a parameter or a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Its name.
    pub name: String,
    /// Its value, with its unit.
    pub value: String,
}

impl Fact {
    /// Returns a fact from anything that can be displayed.
    pub fn new(name: impl Into<String>, value: impl ToString) -> Self {
        Self {
            name: name.into(),
            value: value.to_string(),
        }
    }
}

/// A check of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was checked.
    pub name: String,
    /// Whether it succeeded; `None` for a figure without a bar.
    pub passed: Option<bool>,
    /// What was found.
    pub detail: String,
}

impl Check {
    /// Returns a check from anything that can be displayed.
    pub fn new(
        name: impl Into<String>,
        passed: impl Into<Option<bool>>,
        detail: impl ToString,
    ) -> Self {
        Self {
            name: name.into(),
            passed: passed.into(),
            detail: detail.to_string(),
        }
    }
}

/// A picture of a field, with its axes and a scale of its colours.
#[derive(Clone, Debug)]
pub struct Field<'a> {
    /// The picture.
    pub picture: &'a Picture,
    /// The values at the two ends of the scale.
    pub values: Range<f64>,
    /// What it shows.
    pub caption: &'a str,
    /// The names of the vertical and of the horizontal axis.
    pub axes: [&'a str; 2],
    /// A text at the upper side.
    pub side: &'a str,
    /// The first row of each part and its name, to mark where the parts of a field meet; a single
    /// part is not marked.
    pub parts: &'a [(usize, String)],
}

/// Diagrams and a table under one heading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// The diagrams; one without a point is left out.
    pub diagrams: Vec<Diagram>,
    /// The bar charts.
    pub bars: Vec<Bars>,
    /// Of many rows, the page shows some: see [`representative`] and [`Table::whole`].
    pub table: Option<Table>,
}

/// Everything that the report shows.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// The heading.
    pub title: &'a str,
    /// A sentence or two below it.
    pub summary: &'a str,
    /// The results of the checks.
    pub checks: &'a [Check],
    /// A picture of the result.
    pub field: Option<Field<'a>>,
    /// Parameters, times and the like, each list under a heading.
    pub facts: &'a [(&'a str, Vec<Fact>)],
    /// What follows below.
    pub sections: &'a [Section],
}

impl Report<'_> {
    /// Writes the report to a file, which is created, or [replaced](crate::replace) as a whole.
    ///
    /// # Errors
    /// [`Error::Write`] if the file cannot be written; those of [`Report::to_html`].
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        crate::replace(path, self.to_html()?).map_err(|source| Error::Write {
            path: path.to_path_buf(),
            source,
        })
    }

    /// Returns the report as the text of one HTML file.
    ///
    /// # Errors
    /// [`Error::Picture`] and [`Error::Plot`] if a picture cannot be drawn.
    pub fn to_html(&self) -> Result<String, Error> {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (self.title) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    main {
                        h1 { (self.title) }
                        p.summary { (self.summary) }
                        (self.checks())
                        div.overview {
                            @if let Some(field) = &self.field { (field.figure()?) }
                            div.facts {
                                @for (heading, facts) in self.facts {
                                    h2 { (heading) }
                                    dl { @for fact in facts { dt { (fact.name) } dd { (fact.value) } } }
                                }
                            }
                        }
                        @for section in self.sections {
                            h2 { (section.title) }
                            (section.content()?)
                        }
                    }
                }
            }
        };
        Ok(page.into_string())
    }

    fn checks(&self) -> Markup {
        html! {
            ul.checks {
                @for check in self.checks {
                    @let (class, sign, word) = match check.passed {
                        Some(true) => ("passed", "✓", "passed"),
                        Some(false) => ("failed", "✗", "failed"),
                        None => ("figure", "·", "figure"),
                    };
                    li class=(class) {
                        span.sign role="img" aria-label=(word) { (sign) }
                        div { strong { (check.name) } span.detail { (check.detail) } }
                    }
                }
            }
        }
    }
}

impl Field<'_> {
    fn figure(&self) -> Result<Markup, Error> {
        let png = self.picture.png(self.values.start, self.values.end)?;
        let png = BASE64_STANDARD.encode(png);
        let (rows, cols) = self.picture.field_size();
        let scale = PICTURE_SIDE / rows.max(cols) as f64;
        // A very thin field still gets a visible picture.
        let (width, height) = (
            (cols as f64 * scale).max(40.0),
            (rows as f64 * scale).max(40.0),
        );
        let (left, top) = (66.0, 26.0);
        let legend = left + width + 28.0;
        let (x, y) = (
            |col: f64| left + col / cols as f64 * width,
            |row: f64| top + row / rows as f64 * height,
        );
        let view_box = format!("0 0 {:.0} {:.0}", legend + 62.0, top + height + 46.0);
        Ok(html! {
            figure.field {
                svg viewBox=(view_box) width=(format!("{:.0}", legend + 62.0)) role="img"
                    aria-label=(self.caption) {
                    image x=(left) y=(top) width=(width) height=(height) preserveAspectRatio="none"
                        href={ "data:image/png;base64," (png) } {}
                    rect.frame x=(left) y=(top) width=(width) height=(height) {}
                    @for (part, (first_row, name)) in self.parts.iter().enumerate() {
                        @let border = y(*first_row as f64);
                        @if part > 0 {
                            line.border x1=(left) x2=(left + width) y1=(border) y2=(border) {}
                        }
                        @if self.parts.len() > 1 {
                            text.part x=(left + 8.0) y=(border + 20.0) { (name) }
                        }
                    }
                    text.side x=(left + width / 2.0) y=(top - 9.0) { (self.side) }
                    @for col in marks(cols) {
                        text.below x=(x(col as f64)) y=(top + height + 18.0) { (col) }
                    }
                    text.below x=(left + width / 2.0) y=(top + height + 38.0) { (self.axes[1]) }
                    @for row in marks(rows) {
                        text.beside x=(left - 8.0) y=(y(row as f64) + 4.0) { (row) }
                    }
                    text.below transform=(format!("translate(14 {:.1}) rotate(-90)", top + height / 2.0)) { (self.axes[0]) }
                    (colour_scale(&self.values, legend, top, height))
                }
                figcaption { (self.caption) }
            }
        })
    }
}

impl Section {
    fn content(&self) -> Result<Markup, Error> {
        let drawn = self.diagrams.iter().filter(|diagram| diagram.has_points());
        let drawn = drawn.map(|diagram| Ok((&diagram.title, diagram.svg()?)));
        let figures = drawn.collect::<Result<Vec<_>, Error>>()?;
        Ok(html! {
            @if !figures.is_empty() {
                div.diagrams {
                    @for (title, svg) in figures {
                        figure { figcaption { (title) } (PreEscaped(svg)) }
                    }
                }
            }
            @if !self.bars.is_empty() {
                div.diagrams { @for bars in &self.bars { (bars.markup()) } }
            }
            @if let Some(table) = &self.table { (table.markup()) }
        })
    }
}

impl Table {
    fn markup(&self) -> Markup {
        let most = if self.is_whole {
            usize::MAX
        } else {
            TABLE_ROWS
        };
        let places = representative(self.rows.len(), most);
        html! {
            @if places.len() < self.rows.len() {
                p.note { (places.len()) " of " (self.rows.len()) " rows." }
            }
            div.scroll {
                table {
                    thead { tr { @for name in &self.header { th scope="col" { (name) } } } }
                    tbody {
                        @for at in places {
                            tr { @for text in &self.rows[at] { td { (text) } } }
                        }
                    }
                }
            }
        }
    }
}

/// The legend: the scale's colours from bottom to top, with their values.
fn colour_scale(values: &Range<f64>, left: f64, top: f64, height: f64) -> Markup {
    let stops = palette()
        .into_iter()
        .take(LEVELS)
        .enumerate()
        .step_by(32)
        .collect::<Vec<_>>();
    let [red, green, blue] = palette()[LEVELS - 1];
    html! {
        defs {
            linearGradient id="scale" x1="0" y1="1" x2="0" y2="0" {
                @for (at, [red, green, blue]) in stops {
                    stop offset=(at as f64 / (LEVELS - 1) as f64) stop-color={ "rgb(" (red) "," (green) "," (blue) ")" } {}
                }
                stop offset="1" stop-color={ "rgb(" (red) "," (green) "," (blue) ")" } {}
            }
        }
        rect.frame.scale x=(left) y=(top) width="14" height=(height) fill="url(#scale)" {}
        @for part in 0..=4 {
            @let share = f64::from(part) / 4.0;
            text.right x=(left + 21.0) y=(top + height * (1.0 - share) + 4.0) { (values.start + (values.end - values.start) * share) }
        }
    }
}

/// Returns positions on an axis of `length` cells: its ends and evenly spaced ones between.
fn marks(length: usize) -> Vec<usize> {
    let mut marks: Vec<_> = (0..=4).map(|part| part * length / 4).collect();
    marks.dedup();
    marks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(points: Vec<(f64, f64)>) -> String {
        let mut picture = Picture::new([8, 4], 100);
        (0..8).for_each(|row| picture.add_row(row, &[25.0; 4]));
        let mut table = Table::new(["step", "value"]);
        for (step, value) in &points {
            table.add([step.to_string(), value.to_string()]);
        }
        let diagram = |title| Diagram::new(title, "step", points.clone());
        let report = Report {
            title: "Laplace <b>",
            summary: "two units",
            checks: &[
                Check::new("exact", true, "32 cells"),
                Check::new("bounded", false, "no"),
            ],
            field: Some(Field {
                picture: &picture,
                values: 0.0..100.0,
                caption: "the field",
                axes: ["row", "column"],
                side: "hot",
                parts: &[(0, "unit 0".into()), (4, "unit 1".into())],
            }),
            facts: &[
                ("Parameters", vec![Fact::new("omega", 1.2)]),
                ("Time", vec![Fact::new("solver", "1 s")]),
            ],
            sections: &[Section {
                title: "Values".into(),
                diagrams: vec![diagram("Plain"), diagram("Steep").logarithmic()],
                bars: vec![Bars::default()],
                table: Some(table),
            }],
        };
        report.to_html().unwrap()
    }

    #[test]
    fn a_report_is_one_file_and_escapes_its_texts() {
        let points = (0..100).map(|step| (f64::from(step), 1.0 / f64::from(step + 1)));
        let html = report(points.collect());
        assert!(html.contains("Laplace &lt;b&gt;") && html.contains("data:image/png;base64,"));
        assert!(html.contains("unit 1") && html.contains("class=\"failed\""));
        // The field, two diagrams and a bar chart.
        assert_eq!(html.matches("<figcaption>").count(), 4);
        assert!(html.matches("<polyline").count() >= 2);
        assert!(html.contains("25 of 100 rows.") && html.contains("<td>99</td>"));
        for outside in ["http://", "https://", "<script", "<link"] {
            let found = html.replace("http://www.w3.org/2000/svg", "");
            assert!(!found.contains(outside), "{outside}");
        }
    }

    #[test]
    fn a_whole_table_has_all_rows() {
        let mut table = Table::new(["run"]);
        for run in 0..60 {
            table.add([format!("run {run}")]);
        }
        assert!(!table.markup().into_string().contains("run 30<"));
        let whole = table.whole().markup().into_string();
        assert_eq!(whole.matches("<td>").count(), 60);
        assert!(!whole.contains("of 60 rows"));
    }

    #[test]
    fn a_report_without_steps_is_a_page() {
        let html = report(Vec::new());
        assert!(html.contains("</html>") && !html.contains("<polyline"));
        let odd = report(vec![(0.0, f64::NAN), (1.0, f64::INFINITY)]);
        assert!(odd.contains("</html>") && !odd.contains("Steep"));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let report = Report {
            title: "a",
            summary: "",
            checks: &[],
            field: None,
            facts: &[],
            sections: &[],
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.html");
        report.write(&path).unwrap();
        assert!(
            std::fs::read_to_string(path)
                .unwrap()
                .contains("<h1>a</h1>")
        );
        let wrong = report.write(folder.path()).unwrap_err().to_string();
        assert!(
            wrong.contains(&folder.path().display().to_string()),
            "{wrong}"
        );
    }
}
