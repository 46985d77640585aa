//! A command for a contestant, the meaning of its answer, and its physical limit.

use std::time::Duration;

use serde::Serialize;

/// Which direction is an improvement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Bandwidths and rates.
    Higher,
    /// Times, memory, processor time.
    Lower,
}

/// A command with the meaning of its answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measure {
    pub(crate) name: String,
    /// The command without its numbers of iterations.
    command: String,
    pub(crate) figure: Figure,
    pub(crate) pace: Pace,
    /// The physical floor or ceiling, measured in the same run.
    pub(crate) limit: Option<Box<Measure>>,
}

/// How often the command is given, and with which iterations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pace {
    /// In every repeat, with as many iterations as fill the target time.
    Iterations,
    /// In every repeat; the command itself determines the amount of work.
    Whole,
    /// Once, since repetition does not make it more precise; takes about this long.
    Once(Duration),
    /// In a few repeats, each of which takes about this long; the command itself determines the
    /// amount of work.
    Long(Duration),
}

/// How an answer becomes the figure of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
    /// The factor of one iteration: the figure is factor × answer for times, factor ÷ answer for
    /// rates.
    factor: f64,
}

impl Figure {
    /// Returns a time in microseconds; an iteration has `operations` of them.
    pub(crate) fn us(operations: f64) -> Self {
        Self::lower("us", 1e6 / operations)
    }

    /// Returns a time in nanoseconds; an iteration has `operations` of them.
    pub(crate) fn ns(operations: f64) -> Self {
        Self::lower("ns", 1e9 / operations)
    }

    /// Returns a figure of which less is better: `factor` times the answer.
    pub(crate) fn lower(unit: &'static str, factor: f64) -> Self {
        let better = Better::Lower;
        Figure {
            unit,
            better,
            factor,
        }
    }

    /// Returns bytes per second; an iteration moves `bytes`.
    pub(crate) fn bandwidth(bytes: u64) -> Self {
        Self::rate("GB/s", bytes as f64 / 1e9)
    }

    /// Returns a figure of which more is better: `amount` per iteration, over its seconds.
    pub(crate) fn rate(unit: &'static str, amount: f64) -> Self {
        Figure {
            unit,
            better: Better::Higher,
            factor: amount,
        }
    }

    /// Computes the figure from an answer to `iters` iterations.
    pub(crate) fn of(&self, answer: f64, iters: u64) -> f64 {
        let each = answer / iters as f64;
        match self.better {
            Better::Lower => self.factor * each,
            Better::Higher => self.factor / each,
        }
    }
}

impl Measure {
    /// Returns a measure that is repeated with many iterations.
    pub(crate) fn new(
        name: impl Into<String>,
        command: impl Into<String>,
        figure: Figure,
    ) -> Measure {
        Measure {
            name: name.into(),
            command: command.into(),
            figure,
            pace: Pace::Iterations,
            limit: None,
        }
    }

    pub(crate) fn at_pace(self, pace: Pace) -> Measure {
        Measure { pace, ..self }
    }

    /// Returns the same measure in another unit.
    pub(crate) fn figured(self, figure: Figure) -> Measure {
        Measure { figure, ..self }
    }

    pub(crate) fn limited_by(self, limit: Measure) -> Measure {
        Measure {
            limit: Some(Box::new(limit)),
            ..self
        }
    }

    /// Returns the line that every rank of a contestant reads.
    pub(crate) fn line(&self, iters: u64) -> String {
        match self.pace {
            Pace::Iterations => format!("{} {iters} {}", self.command, iters / 8 + 1),
            Pace::Whole | Pace::Once(_) | Pace::Long(_) => self.command.clone(),
        }
    }
}

/// One cache line that moves from one core to another: half a round trip.
pub(crate) fn exchange() -> Measure {
    Measure::new("exchange", "exchange", Figure::us(2.0))
}

/// Copies between warm private buffers.
pub(crate) fn memcpy(bytes: u64) -> Measure {
    Measure::new(
        format!("memcpy/{}", size(bytes)),
        format!("memcpy {bytes}"),
        Figure::bandwidth(bytes),
    )
}

/// Formats a number of bytes with its unit.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{}MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{}KiB", b >> 10),
        b => format!("{b}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_follow_from_answers() {
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9 * b, "{a} is not {b}");
        // A million round trips in a second are half a microsecond each way.
        close(Figure::us(2.0).of(1.0, 1_000_000), 0.5);
        close(Figure::ns(1.0).of(1.0, 1_000_000), 1000.0);
        close(Figure::bandwidth(2 << 20).of(2.0, 1000), 1.048_576);
        close(Figure::rate("M/s", 64e-6).of(1.0, 1_000_000), 64.0);
        close(Figure::lower("% of a core", 10.0).of(0.05, 1), 0.5);
    }

    #[test]
    fn lines_carry_iterations_where_they_count() {
        let put = Measure::new("put/8B", "put 8", Figure::ns(1.0));
        assert_eq!(put.line(16), "put 8 16 3");
        assert_eq!(put.at_pace(Pace::Whole).line(1), "put 8");
    }

    #[test]
    fn sizes_are_written_as_a_person_does() {
        let written = [8, 1 << 10, 3 << 10, 1 << 20, (1 << 20) + 1].map(size);
        assert_eq!(written, ["8B", "1KiB", "3KiB", "1MiB", "1048577B"]);
    }
}
