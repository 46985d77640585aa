//! `samite bench video`.
//!
//! `video/raw`: frames that are in memory, to a worker that does nothing with them and back.
//! Samite's source copies each frame from its own memory (`copied`, which has the bar), or has it
//! where it is shared (`in-place`), as one that decodes there; its peers send it from their own
//! memory in both cases.
//!
//! `video/wall`, `video/ideal`, `video/deviation`: a source, a sink and eight nodes, each of which
//! computes the real kernel and then sleeps until the time of its kind of board for a frame is
//! over. Samite runs the job of its users; the peers have the frames of the source in memory, and
//! send them from there. All have the same nodes, and all results are compared with those of a
//! sequential run. The last two are figures of the runs of the first, when it was measured before.
//!
//! There are fewer frames than in the study's clip of 1306, so that a run takes about 20 s. The
//! slowest board needs 4.7 s for a frame of UHD-2: whoever gives it one of the last frames waits
//! for it, and with few frames that is a large part of the time. Samite's source plans the end: it
//! knows how many frames there are, and has measured the nodes. Most peers serve whoever comes
//! first, as users of these libraries do; two (`openmpi-planned`, `zmq-planned`) plan the end in
//! the same manner, and know the nodes from the beginning. Beside those, a ratio compares how
//! frames move; beside the others, also who gets them.
//!
//! `messages`: of the job, for each frame. `log`: the time of the job with the event log, over that
//! without it; workers do not sleep there.

use crate::case::{Bar, Case};
use crate::measure::{Figure, Measure, Pace};
use crate::placement::Placement;
use std::time::Duration;

/// How frames move: the variable for a contestant that has several ways.
pub(crate) const VIA: &str = "SAMITE_BENCH_VIDEO";

/// A size of grey frames.
pub(crate) struct Size {
    pub(crate) name: &'static str,
    pub(crate) width: u64,
    pub(crate) height: u64,
    /// The frames of a run.
    pub(crate) frames: u64,
    /// The microseconds of each node for a frame. Samite has them in its job, and compares.
    pub(crate) times: [u64; 8],
    /// The bar of frames in memory.
    raw: Option<f64>,
}

pub(crate) const SIZES: [Size; 3] = [
    Size {
        name: "HD",
        width: 1920,
        height: 1080,
        frames: 1306,
        times: [
            41_000, 135_633, 131_406, 131_406, 227_770, 227_770, 244_040, 341_656,
        ],
        raw: None,
    },
    Size {
        name: "UHD1",
        width: 3840,
        height: 2160,
        frames: 400,
        times: [
            126_294, 343_394, 378_882, 378_882, 673_567, 673_567, 713_189, 1_212_421,
        ],
        raw: None,
    },
    Size {
        name: "UHD2",
        width: 7680,
        height: 4320,
        frames: 130,
        times: [
            517_736, 1_284_504, 1_553_209, 1_553_209, 2_740_957, 2_740_957, 2_912_267, 4_659_627,
        ],
        raw: Some(3.0),
    },
];

/// A source, the nodes, and a sink.
pub(crate) const RANKS: u32 = 10;

impl Size {
    pub(crate) fn frames(&self, is_quick: bool) -> u64 {
        if is_quick {
            self.frames / 6
        } else {
            self.frames
        }
    }

    /// Returns the command for a figure of the pipeline.
    pub(crate) fn command(&self, figure: &str, frames: u64) -> String {
        let Size { width, height, .. } = self;
        let times: Vec<String> = self.times.iter().map(u64::to_string).collect();
        let times = times.join(",");
        format!("video {figure} {width} {height} {frames} {times}")
    }
}

pub(crate) fn cases(is_quick: bool) -> Vec<Case> {
    let mut cases: Vec<Case> = SIZES.iter().flat_map(raw).collect();
    cases.extend(messages());
    cases.extend([log("counters", 1.02), log("full", 1.05)]);
    cases.extend(SIZES.iter().flat_map(|size| pipeline(size, is_quick)));
    cases
}

fn raw(size: &Size) -> [Case; 2] {
    ["copied", "in-place"].map(|kind| {
        let measure = Measure::new(
            format!("video/raw/{}/{kind}", size.name),
            format!("frames {kind} {}", size.width * size.height),
            Figure::rate("frames/s", 1.0),
        );
        // Only what is copied is what the peers do.
        let bar = size.raw.filter(|_| kind == "copied");
        let bar = bar.map(Bar::ratio).unwrap_or_default();
        Case::of(measure).bar(bar)
    })
}

fn pipeline(size: &Size, is_quick: bool) -> [Case; 3] {
    let frames = size.frames(is_quick);
    let case = |what: &str, figure: Figure, bar: Bar| {
        let name = format!("video/{what}/{}", size.name);
        let measure = Measure::new(name, size.command(what, frames), figure);
        // The slowest way needs several times as long as the others.
        let lasts = Duration::from_secs(120);
        let measure = measure.at_pace(match what {
            "wall" => Pace::Long(lasts),
            _ => Pace::Once(lasts),
        });
        Case {
            ranks: RANKS,
            placement: Placement::Free,
            ..Case::of(measure).bar(bar)
        }
    };
    [
        case("wall", Figure::lower("s", 1.0), Bar::ratio(1.0)),
        case("ideal", Figure::rate("of wall", 1.0), Bar::at_least(0.95)),
        case("deviation", Figure::lower("of 2N", 1.0), Bar::at_most(0.03)),
    ]
}

/// The messages of the job, each way, without nodes that sleep.
fn messages() -> Vec<Case> {
    let case = |(name, via, most): (&str, &str, f64)| {
        let command =
            format!("workflow json:messages_per_frame video --via {via} --frames 1306 --workers 4");
        let figure = Figure::lower("per frame", 1.0);
        let measure = Measure::new(format!("messages/{name}"), command, figure);
        Case::of(measure.at_pace(Pace::Once(Duration::from_secs(60)))).bar(Bar::at_most(most))
    };
    let ways = [
        ("strict", "dsm-strict", 18.0),
        ("fused", "dsm-fused", 18.0),
        ("inline", "dsm", 8.0),
    ];
    ways.map(case).into()
}

/// The time of the job at a level of the event log, over that without the log. All is as fast as it
/// can be: nothing hides what the log costs.
fn log(level: &str, most: f64) -> Case {
    let run = |level: &str| {
        format!("video --frames 1306 --workers 2 --check false --config dsm.log={level}")
    };
    let command = format!("workflow json:wall_s {} vs {}", run(level), run("off"));
    let figure = Figure::lower("x off", 1.0);
    let measure = Measure::new(format!("log/{level}"), command, figure);
    Case::of(measure.at_pace(Pace::Once(Duration::from_secs(200)))).bar(Bar::at_most(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The speeds of all boards together, the slowest one being 1, are those of the study.
    #[test]
    fn the_nodes_are_those_of_the_study() {
        for (size, sum) in SIZES
            .iter()
            .zip([1306.0 / 60.88, 1306.0 / 50.56, 1306.0 / 53.03])
        {
            let slowest = *size.times.iter().max().unwrap() as f64;
            let speeds: f64 = size.times.iter().map(|time| slowest / *time as f64).sum();
            assert!((speeds / sum - 1.0).abs() < 1e-4, "{}: {speeds}", size.name);
        }
    }
}
