//! What is measured: a case, its command, its unit, and the bar it is held against.

use serde::Serialize;

use crate::placement::Placement;

/// One row of the table.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) ranks: u32,
    pub(crate) placement: Placement,
    pub(crate) measure: Measure,
    pub(crate) bar: Bar,
}

impl Case {
    /// A case of two pinned ranks, named after its measure, without a bar.
    pub(crate) fn of(measure: Measure) -> Self {
        Case {
            name: measure.name(),
            ranks: 2,
            placement: Placement::Apart,
            measure,
            bar: Bar::default(),
        }
    }

    pub(crate) fn bar(self, bar: Bar) -> Self {
        Case { bar, ..self }
    }

    /// The same case elsewhere, reported without a bar.
    pub(crate) fn placed(&self, placement: Placement) -> Self {
        Case {
            name: format!("{}/{}", placement.name(), self.name),
            placement,
            bar: Bar::default(),
            ..self.clone()
        }
    }
}

/// Where the buffers of a bandwidth case come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Buffer {
    /// Private pages, used again and again.
    Malloc,
    /// Memory of the library: `MPI_Alloc_mem`, our segments (which the receiver reads in place).
    Segment,
    /// The same, copied once into private memory of the receiver; the peers copy in any case.
    SegmentCopy,
    /// Private memory for which huge pages were asked.
    HugePages,
    /// New buffers for every message.
    Cold,
}

impl Buffer {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Buffer::Malloc => "malloc",
            Buffer::Segment => "segment",
            Buffer::SegmentCopy => "segment-copy",
            Buffer::HugePages => "hugepages",
            Buffer::Cold => "cold",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Measure {
    Latency { bytes: u64 },
    Rate { bytes: u64, window: u64 },
    Bandwidth { buffer: Buffer, bytes: u64 },
    Stream { bytes: u64, window: u64 },
    Alltoall { ranks: u32, bytes: u64 },
    Barrier { ranks: u32 },
    Idle { seconds: u64 },
    Memory,
    Exchange,
    Memcpy { bytes: u64 },
}

impl Measure {
    pub(crate) fn name(&self) -> String {
        match self {
            Measure::Latency { bytes } => format!("latency/{}", size(*bytes)),
            Measure::Rate { bytes, .. } => format!("rate/{}", size(*bytes)),
            Measure::Bandwidth { buffer, bytes } => {
                format!("bandwidth/{}/{}", buffer.name(), size(*bytes))
            }
            Measure::Stream { bytes, .. } => format!("stream/{}", size(*bytes)),
            Measure::Alltoall { ranks, bytes } => format!("alltoall/{ranks}x{}", size(*bytes)),
            Measure::Barrier { ranks } => format!("barrier/{ranks}"),
            Measure::Idle { seconds } => format!("idle/{seconds}s"),
            Measure::Memory => "memory/pair".to_owned(),
            Measure::Exchange => "exchange".to_owned(),
            Measure::Memcpy { bytes } => format!("memcpy/{}", size(*bytes)),
        }
    }

    /// The line that every rank of a contestant reads.
    pub(crate) fn command(&self, iters: u64) -> String {
        let warmup = iters / 8 + 1;
        match self {
            Measure::Latency { bytes } => format!("latency {bytes} {iters} {warmup}"),
            Measure::Rate { bytes, window } => format!("rate {bytes} {window} {iters} {warmup}"),
            Measure::Bandwidth { buffer, bytes } => {
                format!("bandwidth {} {bytes} {iters} {warmup}", buffer.name())
            }
            Measure::Stream { bytes, window } => {
                format!("stream {bytes} {window} {iters} {warmup}")
            }
            Measure::Alltoall { bytes, .. } => format!("alltoall {bytes} {iters} {warmup}"),
            Measure::Barrier { .. } => format!("barrier {iters} {warmup}"),
            Measure::Idle { seconds } => format!("idle {seconds}"),
            Measure::Memory => "memory".to_owned(),
            Measure::Exchange => format!("exchange {iters}"),
            Measure::Memcpy { bytes } => format!("memcpy {bytes} {iters}"),
        }
    }

    /// Turns the answer to `command(iters)` into the figure of the table.
    pub(crate) fn figure(&self, answer: f64, iters: u64) -> f64 {
        let each = answer / iters as f64;
        match self {
            Measure::Latency { .. } | Measure::Exchange => each / 2.0 * 1e6,
            Measure::Rate { window, .. } => *window as f64 / each / 1e6,
            Measure::Bandwidth { bytes, .. } => *bytes as f64 / (each / 2.0) / 1e9,
            Measure::Stream { bytes, window } => (bytes * window) as f64 / each / 1e9,
            Measure::Alltoall { .. } | Measure::Barrier { .. } => each * 1e6,
            Measure::Idle { seconds } => answer / *seconds as f64 * 100.0,
            Measure::Memory => answer / 1024.0,
            Measure::Memcpy { bytes } => *bytes as f64 / each / 1e9,
        }
    }

    pub(crate) fn unit(&self) -> &'static str {
        match self {
            Measure::Latency { .. } | Measure::Exchange => "us",
            Measure::Alltoall { .. } | Measure::Barrier { .. } => "us",
            Measure::Rate { .. } => "M/s",
            Measure::Bandwidth { .. } | Measure::Stream { .. } | Measure::Memcpy { .. } => "GB/s",
            Measure::Idle { .. } => "% of a core",
            Measure::Memory => "KiB",
        }
    }

    pub(crate) fn better(&self) -> Better {
        match self.unit() {
            "M/s" | "GB/s" => Better::Higher,
            _ => Better::Lower,
        }
    }

    /// Whether the answer is a time that grows with the number of iterations. What is not is
    /// measured once: it does not get better by repeating.
    pub(crate) fn repeats(&self) -> bool {
        !matches!(self, Measure::Idle { .. } | Measure::Memory)
    }

    /// The physical floor or ceiling of this measure, measured in the same run.
    pub(crate) fn limit(&self) -> Option<Measure> {
        match self {
            Measure::Latency { .. } => Some(Measure::Exchange),
            Measure::Bandwidth { bytes, .. } | Measure::Stream { bytes, .. } => {
                Some(Measure::Memcpy { bytes: *bytes })
            }
            _ => None,
        }
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{}MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{}KiB", b >> 10),
        b => format!("{b}B"),
    }
}

/// Which direction is an improvement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Bandwidths and rates.
    Higher,
    /// Times, memory, processor time.
    Lower,
}

/// What is expected of our figure; a bar without conditions is only reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bar {
    /// At least this many times better than the best peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// At most this many times the limit of the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_limit: Option<f64>,
    /// At most this, whatever the peers do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
}

impl Bar {
    pub(crate) fn ratio(ratio: f64) -> Self {
        Bar {
            ratio: Some(ratio),
            ..Bar::default()
        }
    }

    pub(crate) fn at_most(figure: f64) -> Self {
        Bar {
            at_most: Some(figure),
            ..Bar::default()
        }
    }

    pub(crate) fn and_of_limit(self, factor: f64) -> Self {
        Bar {
            of_limit: Some(factor),
            ..self
        }
    }

    /// Whether the bar is met; `None` where nothing is expected or something to compare with
    /// was not measured.
    pub(crate) fn met(
        &self,
        ours: Option<f64>,
        ratio: Option<f64>,
        limit: Option<f64>,
    ) -> Option<bool> {
        let ours = ours?;
        let mut verdict = None;
        let mut hold = |condition: bool| verdict = Some(verdict.unwrap_or(true) && condition);
        if let Some(bar) = self.ratio {
            hold(ratio? >= bar);
        }
        if let Some(factor) = self.of_limit {
            hold(ours <= limit? * factor);
        }
        if let Some(bar) = self.at_most {
            hold(ours <= bar);
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_follow_from_answers() {
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9 * b, "{a} is not {b}");
        close(Measure::Latency { bytes: 8 }.figure(1.0, 1_000_000), 0.5);
        close(
            Measure::Rate {
                bytes: 8,
                window: 64,
            }
            .figure(1.0, 1_000_000),
            64.0,
        );
        let bandwidth = Measure::Bandwidth {
            buffer: Buffer::Malloc,
            bytes: 1 << 20,
        };
        close(bandwidth.figure(2.0, 1000), 1.048_576);
        close(Measure::Idle { seconds: 10 }.figure(0.05, 1), 0.5);
    }

    #[test]
    fn names_and_commands_carry_the_sizes() {
        let measure = Measure::Bandwidth {
            buffer: Buffer::Segment,
            bytes: 64 << 10,
        };
        assert_eq!(measure.name(), "bandwidth/segment/64KiB");
        assert_eq!(measure.command(16), "bandwidth segment 65536 16 3");
        assert_eq!(
            Measure::Alltoall {
                ranks: 8,
                bytes: 1024
            }
            .name(),
            "alltoall/8x1KiB"
        );
        assert_eq!(Measure::Latency { bytes: 8 }.name(), "latency/8B");
    }

    #[test]
    fn a_bar_is_met_only_when_all_its_conditions_are() {
        let bar = Bar::ratio(1.0).and_of_limit(1.5);
        assert_eq!(bar.met(Some(0.14), Some(1.2), Some(0.1)), Some(true));
        assert_eq!(bar.met(Some(0.16), Some(1.2), Some(0.1)), Some(false));
        assert_eq!(bar.met(Some(0.14), Some(0.9), Some(0.1)), Some(false));
        assert_eq!(bar.met(Some(0.14), None, Some(0.1)), None);
        assert_eq!(Bar::default().met(Some(1.0), Some(2.0), None), None);
        assert_eq!(Bar::at_most(1.0).met(Some(0.3), None, None), Some(true));
    }
}
