//! The HTML report: one self-contained file, for a light or a dark page.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::picture::{LEVELS, palette};
use crate::plot::{Axis, line_svg};
use crate::problem::{BOTTOM, TOP};
use crate::record::representative;
use crate::table::{COLUMNS, row};
use crate::{Error, Picture, StepRecord};

const STYLE: &str = include_str!("report.css");
/// Steps in the report's table.
const TABLE_STEPS: usize = 25;
/// Steps in a diagram: more than its width in pixels.
const DIAGRAM_STEPS: usize = 800;
/// The longest side of the field's picture on the page, in CSS pixels.
const PICTURE_SIDE: f64 = 520.0;
/// The diagrams' lines: readable on white and on near-black.
const LINE: [u8; 3] = [0x2b, 0x7f, 0xd4];
const LINE_ERROR: [u8; 3] = [0xd9, 0x6b, 0x27];

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

/// Everything that the report shows.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// The heading.
    pub title: &'a str,
    /// One sentence below it.
    pub summary: &'a str,
    /// The parameters of the run.
    pub parameters: &'a [Fact],
    /// The results of the checks.
    pub checks: &'a [Check],
    /// The times of the run.
    pub timings: &'a [Fact],
    /// The last field.
    pub picture: &'a Picture,
    /// The first row of each unit, to mark the borders of the units in the picture.
    pub first_rows: &'a [usize],
    /// What the analysis saw, step by step.
    pub records: &'a [StepRecord],
}

impl Report<'_> {
    /// Returns the report as the text of one HTML file.
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
                            (self.field()?)
                            div.facts {
                                h2 { "Parameters" }
                                (facts(self.parameters))
                                h2 { "Time" }
                                (facts(self.timings))
                            }
                        }
                        h2 { "Moments over steps" }
                        (self.diagrams()?)
                        h2 { "Moments per step" }
                        (self.table())
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

    fn field(&self) -> Result<Markup, Error> {
        let png = BASE64_STANDARD.encode(self.picture.png(BOTTOM, TOP)?);
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
        let last = self.records.last().map_or(0, |record| record.step);
        let view_box = format!("0 0 {:.0} {:.0}", legend + 62.0, top + height + 46.0);
        Ok(html! {
            figure.field {
                svg viewBox=(view_box) width=(format!("{:.0}", legend + 62.0)) role="img"
                    aria-label={ "the field after step " (last) } {
                    image x=(left) y=(top) width=(width) height=(height) preserveAspectRatio="none"
                        href={ "data:image/png;base64," (png) } {}
                    rect.frame x=(left) y=(top) width=(width) height=(height) {}
                    @for (unit, &first_row) in self.first_rows.iter().enumerate() {
                        @let border = y(first_row as f64);
                        @if unit > 0 {
                            line.border x1=(left) x2=(left + width) y1=(border) y2=(border) {}
                        }
                        @if self.first_rows.len() > 1 {
                            text.unit x=(left + 8.0) y=(border + 20.0) { "unit " (unit) }
                        }
                    }
                    text.side x=(left + width / 2.0) y=(top - 9.0) { (TOP) }
                    @for col in marks(cols) {
                        text.below x=(x(col as f64)) y=(top + height + 18.0) { (col) }
                    }
                    text.below x=(left + width / 2.0) y=(top + height + 38.0) { "column" }
                    @for row in marks(rows) {
                        text.beside x=(left - 8.0) y=(y(row as f64) + 4.0) { (row) }
                    }
                    text.below transform=(format!("translate(14 {:.1}) rotate(-90)", top + height / 2.0)) { "row" }
                    (colour_scale(legend, top, height))
                }
                figcaption { "The field after step " (last) ", from 0 at the cold sides to 100 at the hot one." }
            }
        })
    }

    fn diagrams(&self) -> Result<Markup, Error> {
        type Value = fn(&StepRecord) -> f64;
        let diagrams: [(&str, Axis, [u8; 3], Value); 6] = [
            ("Mean", Axis::Linear, LINE, |record| record.moments.mean()),
            (
                "Second central moment (variance)",
                Axis::Linear,
                LINE,
                |record| record.moments.variance(),
            ),
            ("Third central moment", Axis::Linear, LINE, |record| {
                record.moments.third()
            }),
            ("Fourth central moment", Axis::Linear, LINE, |record| {
                record.moments.fourth()
            }),
            (
                "Distance to the analytic solution (rms)",
                Axis::Linear,
                LINE_ERROR,
                |record| record.distance.rms(),
            ),
            (
                "Largest change of a cell in a step",
                Axis::Log,
                LINE_ERROR,
                |record| record.max_change.unwrap_or(f64::NAN),
            ),
        ];
        // A diagram without any finite point is left out.
        let places = representative(self.records.len(), DIAGRAM_STEPS);
        let mut figures = Vec::new();
        for (title, axis, colour, value) in diagrams {
            let points: Vec<_> = places
                .iter()
                .map(|&at| (self.records[at].step as f64, value(&self.records[at])))
                .collect();
            if points.iter().any(|point| point.1.is_finite()) {
                figures.push((title, line_svg(title, &points, axis, colour)?));
            }
        }
        Ok(html! {
            div.diagrams {
                @for (title, svg) in figures {
                    figure { figcaption { (title) } (PreEscaped(svg)) }
                }
            }
        })
    }

    fn table(&self) -> Markup {
        let places = representative(self.records.len(), TABLE_STEPS);
        html! {
            @if places.len() < self.records.len() {
                p.note { (places.len()) " of " (self.records.len()) " steps." }
            }
            div.scroll {
                table {
                    thead { tr { @for column in COLUMNS { th scope="col" { (column) } } } }
                    tbody {
                        @for at in places {
                            tr { @for text in row(&self.records[at]) { td { (text) } } }
                        }
                    }
                }
            }
        }
    }
}

fn facts(facts: &[Fact]) -> Markup {
    html! {
        dl { @for fact in facts { dt { (fact.name) } dd { (fact.value) } } }
    }
}

/// The legend: the scale's colours from bottom to top, with their values.
fn colour_scale(left: f64, top: f64, height: f64) -> Markup {
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
            text.right x=(left + 21.0) y=(top + height * (1.0 - share) + 4.0) { (BOTTOM + (TOP - BOTTOM) * share) }
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
    use crate::{Distance, Moments, Problem};

    fn report(records: &[StepRecord]) -> String {
        let problem = Problem::new(8, 4).unwrap();
        let mut picture = Picture::new(&problem, 100);
        (0..8).for_each(|row| picture.add_row(row, &[25.0; 4]));
        let report = Report {
            title: "Laplace <b>",
            summary: "two units",
            parameters: &[Fact::new("omega", 1.2)],
            checks: &[
                Check::new("exact", true, "32 cells"),
                Check::new("bounded", false, "no"),
            ],
            timings: &[Fact::new("solver", "1 s")],
            picture: &picture,
            first_rows: &[0, 4],
            records,
        };
        report.to_html().unwrap()
    }

    #[test]
    fn a_report_is_one_file_and_escapes_its_texts() {
        let record = |step: u64| StepRecord {
            step,
            moments: Moments::of(&[25.0, 26.0 + step as f64]),
            distance: Distance::default(),
            max_change: Some(1.0 / (step + 1) as f64),
        };
        let html = report(&(0..100).map(record).collect::<Vec<_>>());
        assert!(html.contains("Laplace &lt;b&gt;") && html.contains("data:image/png;base64,"));
        assert!(html.contains("unit 1") && html.contains("class=\"failed\""));
        assert!(html.matches("<polyline").count() >= 6);
        for outside in ["http://", "https://", "<script", "<link"] {
            let found = html.replace("http://www.w3.org/2000/svg", "");
            assert!(!found.contains(outside), "{outside}");
        }
    }

    #[test]
    fn a_report_without_steps_is_a_page() {
        assert!(report(&[]).contains("</html>"));
    }
}
