//! Bars: one per row, made of parts, with an optional mark.

use maud::{Markup, html};

/// The colours of the parts; more parts use them again.
const COLOURS: [&str; 4] = ["#2b7fd4", "#c9ced4", "#e08a2e", "#4a9d6f"];

/// A bar chart with horizontal bars on a common scale, which begins at 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bars {
    /// Its title.
    pub title: String,
    /// The unit of all values.
    pub unit: String,
    /// The names of the parts of a bar, in their order.
    pub parts: Vec<String>,
    /// What a mark shows.
    pub mark: Option<String>,
    /// The bars, from top to bottom.
    pub rows: Vec<Bar>,
}

/// A bar.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bar {
    /// Its name.
    pub name: String,
    /// The lengths of its parts. One that is not finite or below 0 is drawn as 0.
    pub parts: Vec<f64>,
    /// Where its mark is.
    pub mark: Option<f64>,
}

impl Bar {
    fn lengths(&self) -> impl Iterator<Item = f64> {
        self.parts.iter().map(|part| length(*part))
    }
}

fn length(value: f64) -> f64 {
    if value.is_finite() {
        value.max(0.0)
    } else {
        0.0
    }
}

impl Bars {
    pub(crate) fn markup(&self) -> Markup {
        let reach = |bar: &Bar| {
            let whole: f64 = bar.lengths().sum();
            whole.max(bar.mark.map_or(0.0, length))
        };
        let longest = self
            .rows
            .iter()
            .map(reach)
            .fold(f64::MIN_POSITIVE, f64::max);
        let percent = |value: f64| format!("{:.2}%", value / longest * 100.0);
        let colour = |at: usize| COLOURS[at % COLOURS.len()];
        html! {
            figure {
                figcaption { (self.title) }
                div.legend {
                    @if self.parts.len() > 1 || self.mark.is_some() {
                        @for (at, part) in self.parts.iter().enumerate() {
                            span { i style=(format!("background:{}", colour(at))) {} (part) }
                        }
                        @if let Some(mark) = &self.mark { span { i.mark {} (mark) } }
                    }
                }
                div.bars {
                    @for bar in &self.rows {
                        div.name { (bar.name) }
                        div.bar {
                            @for (at, part) in bar.lengths().enumerate() {
                                i style=(format!("width:{};background:{}", percent(part), colour(at))) {}
                            }
                            @if let Some(mark) = bar.mark {
                                i.mark style=(format!("left:{}", percent(length(mark)))) {}
                            }
                        }
                        div.value { (self.value(bar)) }
                    }
                }
            }
        }
    }

    /// Returns the values of a bar, as text.
    fn value(&self, bar: &Bar) -> String {
        let parts: Vec<String> = bar.lengths().map(short).collect();
        format!("{} {}", parts.join(" + "), self.unit)
    }
}

/// Returns a length with about three digits.
fn short(value: f64) -> String {
    let decimals = match value {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_share_a_scale() {
        let bar = |name: &str, parts: &[f64], mark| Bar {
            name: name.to_owned(),
            parts: parts.to_vec(),
            mark,
        };
        let bars = Bars {
            title: "wall <time>".to_owned(),
            unit: "s".to_owned(),
            parts: vec!["busy".to_owned(), "idle".to_owned()],
            mark: Some("ideal".to_owned()),
            rows: vec![
                bar("one", &[3.0, 1.0], Some(2.0)),
                bar("two", &[1.0, f64::NAN], None),
            ],
        };
        let text = bars.markup().into_string();
        for part in [
            "wall &lt;time&gt;",
            "width:75.00%",
            "left:50.00%",
            "3.00 + 1.00 s",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        // Nothing to draw is drawn as nothing.
        let empty = Bars::default().markup().into_string();
        assert!(empty.contains("<figure>"));
    }
}
