//! Diagrams, as SVG that uses the text colour of the surrounding page.

use std::ops::Range;

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use crate::{Error, representative};

/// The colour with which plotters draws. The finished SVG has `currentColor` in its place, so that
/// text and axes are readable on a light and on a dark page.
const INK: RGBColor = RGBColor(1, 2, 3);
const INK_SVG: &str = "#010203";
/// Drawn size; the SVG is scaled. plotters rounds to whole units, so they are small: about three
/// per pixel of the page.
const SIZE: (u32, u32) = (1680, 840);

/// The largest number that is drawn, and the smallest one on a logarithmic scale is its inverse:
/// the drawing library places marks up to the end of the scale, which it would not reach if a
/// factor made that infinite.
const MOST: f64 = 1e150;

/// Points of a line: more than its width in pixels.
const POINTS: usize = 800;

/// What a line shows, which determines its colour: readable on white and on near-black.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// A value of the result.
    Value,
    /// A difference that should become small.
    Difference,
}

impl Shown {
    fn colour(self) -> [u8; 3] {
        match self {
            Shown::Value => [0x2b, 0x7f, 0xd4],
            Shown::Difference => [0xd9, 0x6b, 0x27],
        }
    }
}

/// The scale of the vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal distances are equal differences.
    Linear,
    /// Equal distances are equal factors; values below 1e-150 are omitted.
    Log,
}

/// A line from point to point.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagram {
    /// Its title.
    pub title: String,
    /// The name of the horizontal axis.
    pub along: String,
    /// Where a point is on the horizontal axis, and its value. Points that are not finite, or
    /// beyond 1e150, are omitted, and of many points some: see [`representative`].
    pub points: Vec<(f64, f64)>,
    /// The scale of the values.
    pub scale: Scale,
    /// What they are.
    pub shown: Shown,
}

impl Diagram {
    /// Returns a diagram of values on a linear scale.
    pub fn new(title: &str, along: &str, points: Vec<(f64, f64)>) -> Diagram {
        Diagram {
            title: title.to_owned(),
            along: along.to_owned(),
            points,
            scale: Scale::Linear,
            shown: Shown::Value,
        }
    }

    /// Returns the diagram of differences.
    #[must_use]
    pub fn of_differences(self) -> Diagram {
        let shown = Shown::Difference;
        Diagram { shown, ..self }
    }

    /// Returns the diagram on a logarithmic scale.
    #[must_use]
    pub fn logarithmic(self) -> Diagram {
        let scale = Scale::Log;
        Diagram { scale, ..self }
    }

    /// Returns true if there is a point to draw.
    pub(crate) fn has_points(&self) -> bool {
        self.points.iter().any(|point| self.is_drawn(point))
    }

    fn is_drawn(&self, &(at, value): &(f64, f64)) -> bool {
        let is_shown = match self.scale {
            Scale::Linear => value.abs() <= MOST,
            Scale::Log => (1.0 / MOST..=MOST).contains(&value),
        };
        at.abs() <= MOST && is_shown
    }

    /// Draws the diagram.
    pub(crate) fn svg(&self) -> Result<String, Error> {
        let drawn = self.points.iter().filter(|point| self.is_drawn(point));
        let drawn: Vec<(f64, f64)> = drawn.copied().collect();
        let points = representative(drawn.len(), POINTS).into_iter();
        let mut points: Vec<_> = points.map(|at| drawn[at]).collect();
        let values = extent(&points, |point| point.1).unwrap_or(1.0..1.0);
        // The library takes differences of less than 2e-16 for none, so what it draws is around 1.
        let unit = match self.scale {
            Scale::Linear => decade(values.start.abs().max(values.end.abs())),
            Scale::Log => decade(values.start),
        };
        points.iter_mut().for_each(|(_, value)| *value /= unit);
        let values = values.start / unit..values.end / unit;
        let line = Line {
            title: &self.title,
            along: &self.along,
            points: &points,
            colour: self.shown.colour(),
        };
        match self.scale {
            Scale::Linear => {
                let values = widened(values);
                let tick = linear_tick(values.start * unit..values.end * unit);
                line.draw(values, |value| tick(value * unit))
            }
            Scale::Log => {
                // Slightly beyond the powers of ten, so that rounding removes no mark at the ends.
                let low = 10f64.powf(values.start.log10().floor()) * (1.0 - 1e-9);
                let high = 10f64.powf(above_decade(values.end)) * (1.0 + 1e-9);
                let tick = |value| format!("{:.0e}", value * unit);
                line.draw((low..high).log_scale(), tick)
            }
        }
    }
}

struct Line<'a> {
    title: &'a str,
    along: &'a str,
    points: &'a [(f64, f64)],
    colour: [u8; 3],
}

impl Line<'_> {
    fn draw<Y>(&self, values: Y, tick: impl Fn(f64) -> String) -> Result<String, Error>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let mut svg = String::new();
        let drawn = self
            .draw_into(&mut svg, values, tick)
            .map_err(|error| error.to_string());
        drawn.map_err(|reason| Error::Plot {
            title: self.title.into(),
            reason,
        })?;
        Ok(adapt(&svg, self.title))
    }

    fn draw_into<'s, Y>(
        &self,
        svg: &'s mut String,
        values: Y,
        tick: impl Fn(f64) -> String,
    ) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'s> as DrawingBackend>::ErrorType>>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let steps = extent(self.points, |point| point.0).unwrap_or(0.0..0.0);
        let steps = steps.start..steps.end.max(steps.start + 1.0);
        let decimals = decimals(&steps);
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin(18)
            .margin_right(72)
            .x_label_area_size(120)
            .y_label_area_size(228)
            .build_cartesian_2d(steps, values)?;
        let text = ("sans-serif", 42).into_font().color(&INK);
        chart
            .configure_mesh()
            .x_labels(6)
            .y_labels(5)
            .x_desc(self.along)
            .x_label_formatter(&|step| format!("{step:.decimals$}"))
            .y_label_formatter(&|value| tick(*value))
            .label_style(text.clone())
            .axis_desc_style(text)
            .axis_style(INK.mix(0.5).stroke_width(3))
            .bold_line_style(INK.mix(0.14).stroke_width(3))
            .set_all_tick_mark_size(15)
            .light_line_style(TRANSPARENT)
            .draw()?;
        // The line; a single point would be invisible, so it gets a circle.
        let [red, green, blue] = self.colour;
        let stroke = RGBColor(red, green, blue).stroke_width(6);
        chart.draw_series(LineSeries::new(self.points.iter().copied(), stroke))?;
        if let [only] = self.points {
            chart.draw_series([Circle::new(*only, 9, stroke.filled())])?;
        }
        root.present()
    }
}

/// Returns the smallest and the largest value of one coordinate.
fn extent(points: &[(f64, f64)], coordinate: impl Fn(&(f64, f64)) -> f64) -> Option<Range<f64>> {
    points
        .iter()
        .map(coordinate)
        .fold(None, |range: Option<Range<f64>>, at| {
            Some(range.map_or(at..at, |range| range.start.min(at)..range.end.max(at)))
        })
}

/// Returns a range with a margin above and below; around a single value, enough to show it in the
/// middle.
fn widened(values: Range<f64>) -> Range<f64> {
    let span = values.end - values.start;
    let least = values.end.abs().max(values.start.abs()) * 1e-9;
    let air = if span > least {
        span * 0.06
    } else {
        least.max(0.5)
    };
    values.start - air..values.end + air
}

/// Returns the exponent of the power of ten at or above a value, at least one decade above the
/// power below.
fn above_decade(value: f64) -> f64 {
    let exponent = value.log10();
    exponent.ceil().max(exponent.floor() + 1.0)
}

/// Returns the power of ten at or below a value; 1 for 0.
fn decade(value: f64) -> f64 {
    match value == 0.0 {
        true => 1.0,
        // Of the smallest numbers there is no power of ten below.
        false => 10f64.powf(value.log10().floor()).max(f64::MIN_POSITIVE),
    }
}

/// Returns a distance that the marks on an axis have at least, about.
fn between_marks(values: &Range<f64>) -> f64 {
    (values.end - values.start) / 5.0
}

/// Returns how many digits after the point distinguish the marks on an axis.
fn decimals(values: &Range<f64>) -> usize {
    (-between_marks(values).log10().floor()).clamp(0.0, 9.0) as usize
}

/// Returns the text of a mark on an axis: with enough digits to distinguish the marks, and an
/// exponent if all are long.
fn linear_tick(values: Range<f64>) -> impl Fn(f64) -> String {
    let largest = values.end.abs().max(values.start.abs());
    let has_exponent = !(1e-3..1e6).contains(&largest);
    let (between, decimals) = (between_marks(&values), decimals(&values));
    let digits = (decade(largest) / between).log10().ceil().clamp(1.0, 9.0) as usize;
    move |value| match has_exponent {
        // Rounded, it may be slightly beside 0.
        true if value.abs() > 1e-3 * between => format!("{value:.digits$e}"),
        true => "0".into(),
        false => format!("{value:.decimals$}"),
    }
}

/// Uses the text colour of the page, makes the picture scalable and names it for screen readers.
fn adapt(svg: &str, title: &str) -> String {
    let (width, height) = SIZE;
    let title = title
        .replace('&', "&amp;")
        .replace('"', "&quot;")
        .replace('<', "&lt;");
    svg.replace(INK_SVG, "currentColor")
        .replace(&format!("width=\"{width}\" height=\"{height}\" "), "")
        .replacen(
            "<svg ",
            &format!("<svg role=\"img\" aria-label=\"{title}\" "),
            1,
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_take_their_ink_from_the_page() {
        let points: Vec<_> = (0..50)
            .map(|step| (f64::from(step), 25.0 + f64::from(step)))
            .collect();
        let diagram = Diagram::new("mean <1>", "step", points);
        for diagram in [diagram.clone(), diagram.logarithmic()] {
            let svg = diagram.svg().unwrap();
            assert!(
                svg.contains("<polyline")
                    && svg.contains("currentColor")
                    && svg.contains("#2B7FD4")
            );
            assert!(
                !svg.contains(INK_SVG) && svg.contains("aria-label=\"mean &lt;1>\""),
                "{svg}"
            );
        }
    }

    #[test]
    fn odd_series_are_drawn() {
        let (huge, tiny) = (f64::MAX, f64::MIN_POSITIVE);
        let odd: [&[(f64, f64)]; 14] = [
            &[],
            &[(0.0, 25.0)],
            &[(0.0, 0.0), (1.0, 0.0)],
            &[(0.0, f64::NAN), (1.0, -3.0), (2.0, 1e300)],
            &[(7.0, 1e-12), (8.0, 1e-12)],
            // As of a simulation that diverges.
            &[(0.0, 1.0), (1.0, 1e150), (2.0, 1.7e308)],
            &[(0.0, -huge), (1.0, huge)],
            &[(0.0, -1e150), (1.0, 1e150)],
            &[(0.0, 1e-150), (1.0, 1e150)],
            &[(0.0, tiny), (1.0, 5e-324)],
            &[(0.0, 5e-324)],
            &[(0.0, 0.0), (1.0, 5e-324)],
            &[(-huge, 1.0), (huge, 2.0)],
            &[(-1e150, 1.0), (1e150, 2.0)],
        ];
        for points in odd {
            let diagram = Diagram::new("odd", "step", points.into()).of_differences();
            for diagram in [diagram.clone(), diagram.logarithmic()] {
                assert!(diagram.svg().unwrap().contains("</svg>"));
            }
        }
    }

    /// Returns the texts along the vertical and the horizontal axis.
    fn marks(diagram: &Diagram) -> (Vec<String>, Vec<String>) {
        let svg = diagram.svg().unwrap();
        let texts = svg.split("<text ").skip(1).map(|text| {
            let body = text.split('>').nth(1).unwrap_or_default();
            let body = body.split('<').next().unwrap_or_default().trim();
            (text.contains("text-anchor=\"end\""), body.to_owned())
        });
        let numbers = texts.filter(|(_, text)| text.parse::<f64>().is_ok());
        let (vertical, horizontal): (Vec<_>, Vec<_>) = numbers.partition(|(at_end, _)| *at_end);
        let texts = |marks: Vec<(bool, String)>| marks.into_iter().map(|(_, text)| text).collect();
        (texts(vertical), texts(horizontal))
    }

    #[test]
    fn marks_differ() {
        let ranges = [
            (0.0, 3.0),
            (0.0, 1e-12),
            (1e-20, 3e-20),
            (-2e-20, 3e-20),
            (1e6, 1e6 + 5.0),
            (-4e7, 3e7),
            (999_999.0, 999_999.5),
            (1e140, 2e140),
        ];
        for (low, high) in ranges {
            let points = vec![(0.0, low), (0.5, high), (3.0, low)];
            let (vertical, horizontal) = marks(&Diagram::new("marks", "step", points));
            for marks in [vertical, horizontal] {
                let mut numbers: Vec<f64> =
                    marks.iter().map(|mark| mark.parse().unwrap()).collect();
                numbers.sort_by(f64::total_cmp);
                numbers.dedup();
                let all = marks.len();
                assert!(
                    all >= 2 && numbers.len() == all,
                    "{low} to {high}: {marks:?}"
                );
            }
        }
        let points = vec![(0.0, 1e-22), (1.0, 1e-18)];
        let (vertical, _) = marks(&Diagram::new("marks", "step", points).logarithmic());
        assert!(vertical.contains(&"1e-20".to_owned()), "{vertical:?}");
    }

    #[test]
    fn what_can_be_drawn_is_drawn() {
        // One point in a thousand is finite, and it is none of those that would represent all.
        let shown = representative(1000, POINTS);
        let only = (0..1000).find(|at| !shown.contains(at));
        let value = |at| if Some(at) == only { 1.0 } else { f64::NAN };
        let points = (0..1000).map(|at| (at as f64, value(at))).collect();
        let diagram = Diagram::new("one", "step", points);
        assert!(diagram.has_points() && diagram.svg().unwrap().contains("<circle"));
    }
}
