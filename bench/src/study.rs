//! `samite bench video --pages`: each way of Samite, and each peer, runs the clip once at each size
//! and says what the run was like. All have the same nodes and as many frames, and each compares
//! its results with those of a sequential run, as in the cases of the bench.
//!
//! A peer says it with the keys of `samite-video/1` (the figures of Samite's job), as far as they
//! are measured: `wall_s`, `decode_s`, `encode_s`, `messages_per_frame`, `checksum`, and `nodes`
//! with `frames`, `needs_s`, `processing_s`, `waiting_s`, `late_frames`. What follows from them is
//! computed by whoever reads them, for all systems in the same manner.

use crate::contestant::{Answer, Contestant, Launch};
use crate::peers::Peers;
use crate::plan::progress;
use crate::video::{RANKS, SIZES, Size, VIA};
use crate::{Failure, Options};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::time::Duration;

/// The bench whose peers take part.
const BENCH: &str = "video";
/// What a run may need beside its frames.
const SLACK: Duration = Duration::from_secs(120);

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Study<'s> {
    /// The names of Samite's ways.
    pub ways: &'s [String],
    /// Frames of a run, in place of those of the bench.
    pub frames: Option<u64>,
    /// Of these: `ours`, `quick`, and `only`, which is compared with SIZE/SYSTEM.
    pub options: &'s Options,
}

/// A run that has ended.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Ran {
    pub size: &'static str,
    pub width: u64,
    pub height: u64,
    pub frames: u64,
    pub system: String,
    pub is_ours: bool,
    /// What the run was like: a JSON object.
    pub said: String,
}

/// The systems that did not run.
#[derive(Clone, Debug, Default)]
pub struct Absent {
    /// Those that are not installed or cannot be built, with what to install or the error.
    pub missing: BTreeMap<String, String>,
    /// Those that failed; `case` is the size.
    pub failures: Vec<Failure>,
}

impl Study<'_> {
    /// Runs all, one after the other, and calls `each` after each run.
    ///
    /// # Errors
    /// Those of `each`; no run is asked for. Systems that fail are returned.
    pub fn run(&self, mut each: impl FnMut(&Ran) -> Result<()>) -> Result<Absent> {
        let is_any = |name: &str| SIZES.iter().any(|size| self.wants(size, name));
        let peers = Peers::of_ranks(BENCH, RANKS, is_any);
        let mut systems: Vec<(bool, u32, Launch)> = Vec::new();
        let ours = self.options.ours.iter();
        for (ours, way) in ours.flat_map(|ours| self.ways.iter().map(move |way| (ours, way))) {
            // One rank: it starts the job, which has ranks of its own.
            let launch = Launch {
                name: way.clone(),
                argv: ours.clone(),
                env: vec![(VIA.to_owned(), way.clone())],
                each_rank: false,
            };
            systems.push((true, 1, launch));
        }
        let launches = peers.launches(RANKS, &[]);
        systems.extend(launches.into_iter().map(|launch| (false, RANKS, launch)));
        let runs = SIZES.iter().flat_map(|size| {
            let wanted = systems.iter();
            let wanted = wanted.filter(|(_, _, launch)| self.wants(size, &launch.name));
            wanted.map(move |system| (size, system))
        });
        let runs: Vec<_> = runs.collect();
        let mut absent = Absent {
            missing: peers.missing,
            failures: Vec::new(),
        };
        ensure!(
            !runs.is_empty() || !absent.missing.is_empty(),
            "no run is called `{}`",
            self.options.only.as_deref().unwrap_or_default()
        );
        let progress = progress(runs.len() as u64);
        for (size, (is_ours, ranks, launch)) in runs {
            progress.set_message(format!("{}/{}", size.name, launch.name));
            match self.one(size, *ranks, launch) {
                Ok(said) => each(&Ran {
                    size: size.name,
                    width: size.width,
                    height: size.height,
                    frames: self.frames(size),
                    system: launch.name.clone(),
                    is_ours: *is_ours,
                    said,
                })?,
                Err(error) => absent.failures.push(Failure {
                    peer: launch.name.clone(),
                    case: size.name.to_owned(),
                    what: format!("{error:#}"),
                }),
            }
            progress.inc(1);
        }
        progress.finish_and_clear();
        Ok(absent)
    }

    fn wants(&self, size: &Size, system: &str) -> bool {
        let only = self.options.only.as_deref().unwrap_or_default();
        format!("{}/{system}", size.name).contains(only)
    }

    fn frames(&self, size: &Size) -> u64 {
        self.frames
            .unwrap_or_else(|| size.frames(self.options.quick))
    }

    fn one(&self, size: &Size, ranks: u32, launch: &Launch) -> Result<String> {
        let frames = self.frames(size);
        // Some ways give all nodes the same number of frames; the slowest one decides.
        let slowest = size.times.iter().max().context("no nodes")?;
        let equal = slowest.saturating_mul(frames) / size.times.len() as u64;
        let deadline = Duration::from_micros(equal.saturating_mul(3)) + SLACK;
        let mut contestant = Contestant::start(launch, ranks, &[])?;
        for figure in ["wall", "run"] {
            match contestant.ask(&size.command(figure, frames), deadline)? {
                Answer::Object(said) => return Ok(said),
                Answer::Value(_) => {}
                Answer::Unsupported => bail!("{} does not know the command", launch.name),
                Answer::Failed(text) => bail!("{text}"),
            }
        }
        bail!("{} does not say what the run was like", launch.name)
    }
}
