//! Diagrams over steps, as SVG that uses the text colour of the surrounding page.

use std::ops::Range;

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use crate::Error;

/// The colour with which plotters draws. The finished SVG has `currentColor` in its place, so that
/// text and axes are readable on a light and on a dark page.
const INK: RGBColor = RGBColor(1, 2, 3);
const INK_SVG: &str = "#010203";
/// Drawn size; the SVG is scaled. plotters rounds to whole units, so they are small: about three
/// per pixel of the page.
const SIZE: (u32, u32) = (1680, 840);

/// The scale of the vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Equal distances are equal differences.
    Linear,
    /// Equal distances are equal factors; values that are not above 0 are omitted.
    Log,
}

/// Draws `points` (step, value) as a line. Points that are not finite are omitted.
pub fn line_svg(
    title: &str,
    points: &[(f64, f64)],
    axis: Axis,
    colour: [u8; 3],
) -> Result<String, Error> {
    let drawable = |&(step, value): &(f64, f64)| {
        step.is_finite() && value.is_finite() && (axis == Axis::Linear || value > 0.0)
    };
    let points: Vec<_> = points.iter().copied().filter(drawable).collect();
    let values = extent(&points, |point| point.1).unwrap_or(1.0..1.0);
    let line = Line {
        title,
        points: &points,
        colour,
    };
    match axis {
        Axis::Linear => {
            let values = widened(values);
            let tick = linear_tick(&values);
            line.draw(values, tick)
        }
        Axis::Log => {
            // Slightly beyond the powers of ten, so that rounding removes no mark at the ends.
            let low = 10f64.powf(values.start.log10().floor()) * (1.0 - 1e-9);
            let high = 10f64.powf(above_decade(values.end)) * (1.0 + 1e-9);
            line.draw((low..high).log_scale(), |value| format!("{value:.0e}"))
        }
    }
}

struct Line<'a> {
    title: &'a str,
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
            .x_desc("step")
            .x_label_formatter(&|step| format!("{step:.0}"))
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

/// Returns the text of a mark on an axis: with enough digits to distinguish the marks, and an
/// exponent if all are long.
fn linear_tick(values: &Range<f64>) -> impl Fn(f64) -> String + use<> {
    let exponent = values.end.abs().max(values.start.abs()) >= 1e6;
    let between_marks = (values.end - values.start) / 5.0;
    let decimals = (-between_marks.log10().floor()).clamp(0.0, 9.0) as usize;
    move |value| match exponent {
        true if value != 0.0 => format!("{value:.1e}"),
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

    const BLUE: [u8; 3] = [0, 0, 255];

    #[test]
    fn lines_take_their_ink_from_the_page() {
        let points: Vec<_> = (0..50)
            .map(|step| (f64::from(step), 25.0 + f64::from(step)))
            .collect();
        for axis in [Axis::Linear, Axis::Log] {
            let svg = line_svg("mean <1>", &points, axis, BLUE).unwrap();
            assert!(
                svg.contains("<polyline")
                    && svg.contains("currentColor")
                    && svg.contains("#0000FF")
            );
            assert!(
                !svg.contains(INK_SVG) && svg.contains("aria-label=\"mean &lt;1>\""),
                "{svg}"
            );
        }
    }

    #[test]
    fn odd_series_are_drawn() {
        let odd: [&[(f64, f64)]; 5] = [
            &[],
            &[(0.0, 25.0)],
            &[(0.0, 0.0), (1.0, 0.0)],
            &[(0.0, f64::NAN), (1.0, -3.0), (2.0, 1e300)],
            &[(7.0, 1e-12), (8.0, 1e-12)],
        ];
        for points in odd {
            for axis in [Axis::Linear, Axis::Log] {
                assert!(
                    line_svg("odd", points, axis, BLUE)
                        .unwrap()
                        .contains("</svg>")
                );
            }
        }
    }
}
