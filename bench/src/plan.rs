//! The order of measurements: per case, every contestant is first calibrated alone, then all
//! take turns, each repeat beginning with another one. What disturbs the machine for a while
//! disturbs all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::Options;
use crate::case::Case;
use crate::contestant::{Answer, Contestant, Launch};
use crate::figures::{Figures, Row, median};
use crate::host::{Host, cores};
use crate::measure::{Measure, Pace};
use crate::overhead;
use crate::peers::Peers;
use crate::placement::Placement;
use crate::ucx::{self, Ucx};

/// A measurement lasts about this long: far above the noise of one interrupt, short enough
/// for many turns.
const TARGET: Duration = Duration::from_millis(30);
const TARGET_QUICK: Duration = Duration::from_millis(10);
/// No measurement of a case may take longer (besides the time that it is known to last).
const PATIENCE: Duration = Duration::from_secs(120);
const MOST_ITERS: u64 = 1 << 30;

/// The role of a contestant in the table.
#[derive(Clone, Debug, PartialEq)]
enum Role {
    Ours,
    Peer(String),
    Limit,
}

enum Runner {
    Standing(Contestant),
    Ucx(Ucx),
}

struct Entrant {
    role: Role,
    runner: Runner,
}

/// One contestant in one case.
struct Turn {
    entrant: usize,
    measure: Measure,
    iters: u64,
    figures: Vec<f64>,
}

pub(crate) fn measure(bench: &str, cases: Vec<Case>, options: &Options) -> Result<Figures> {
    let peers = Peers::find(bench, options.quick)?;
    let cpus = options.cpus.as_deref();
    let host = Host::here(Placement::Apart.cpus(cpus).unwrap_or_default());
    let total = cases
        .iter()
        .map(|case| u64::from(repeats(case, options)))
        .sum();
    let progress = progress(total);
    let (mut rows, mut points) = (Vec::new(), Vec::new());
    for group in cases.chunk_by(|a, b| (a.ranks, a.placement) == (b.ranks, b.placement)) {
        let Some(pinned) = group[0].placement.cpus(cpus) else {
            continue;
        };
        let mut entrants = start(&peers, group[0].ranks, &pinned, options)?;
        for case in group {
            progress.set_message(case.name.clone());
            let row = row(case, &mut entrants, options, &progress)?;
            match case.point {
                None => rows.push(row),
                Some(point) => points.push((point, case.placement, row)),
            }
        }
    }
    progress.finish_and_clear();
    Ok(Figures {
        bench: bench.to_owned(),
        host,
        rows,
        overheads: overhead::fit(&points),
        missing: peers.missing,
        peer_settings: peers.settings,
        repeats: options.repeats,
    })
}

fn start(peers: &Peers, ranks: u32, cpus: &[usize], options: &Options) -> Result<Vec<Entrant>> {
    let mut wanted: Vec<(Role, Launch)> = Vec::new();
    for (role, name, argv) in [
        (Role::Ours, "samite", &options.ours),
        (Role::Limit, "limit", &options.limit),
    ] {
        if let Some(argv) = argv {
            let (argv, env) = (argv.clone(), Vec::new());
            wanted.push((
                role,
                Launch {
                    name: name.to_owned(),
                    argv,
                    env,
                    each_rank: false,
                },
            ));
        }
    }
    for launch in peers.launches(ranks, cores()) {
        wanted.push((Role::Peer(launch.name.clone()), launch));
    }
    let mut entrants = Vec::new();
    for (role, launch) in wanted {
        let runner = Runner::Standing(Contestant::start(&launch, ranks, cpus)?);
        entrants.push(Entrant { role, runner });
    }
    if peers.has_ucx && ranks == 2 {
        let role = Role::Peer(ucx::NAME.to_owned());
        entrants.push(Entrant {
            role,
            runner: Runner::Ucx(Ucx::on(cpus)),
        });
    }
    Ok(entrants)
}

fn row(
    case: &Case,
    entrants: &mut [Entrant],
    options: &Options,
    progress: &ProgressBar,
) -> Result<Row> {
    let mut turns = Vec::new();
    for (entrant, contestant) in entrants.iter_mut().enumerate() {
        let measure = match contestant.role {
            Role::Limit => case.measure.limit.as_deref().cloned(),
            _ => Some(case.measure.clone()),
        };
        let Some(measure) = measure else { continue };
        let target = match case.point {
            None if !options.quick => TARGET,
            _ => TARGET_QUICK,
        };
        if let Some(iters) = contestant.calibrate(&measure, target)? {
            turns.push(Turn {
                entrant,
                measure,
                iters,
                figures: Vec::new(),
            });
        }
    }
    let count = turns.len();
    for repeat in 0..repeats(case, options) as usize {
        for place in 0..count {
            let turn = &mut turns[(repeat + place) % count];
            let asked = entrants[turn.entrant].ask(&turn.measure, turn.iters)?;
            if let Answer::Value(answer) = asked {
                turn.figures
                    .push(turn.measure.figure.of(answer, turn.iters));
            }
        }
        progress.inc(1);
    }
    Ok(summary(case, entrants, turns))
}

fn summary(case: &Case, entrants: &[Entrant], turns: Vec<Turn>) -> Row {
    let (mut ours, mut limit, mut peers) = (None, None, BTreeMap::new());
    for mut turn in turns {
        let Some(figure) = median(&mut turn.figures) else {
            continue;
        };
        match &entrants[turn.entrant].role {
            Role::Ours => ours = Some(figure),
            Role::Limit => limit = Some(figure),
            Role::Peer(name) => {
                peers.insert(name.clone(), figure);
            }
        }
    }
    Row::new(case, ours, peers, limit)
}

fn repeats(case: &Case, options: &Options) -> u32 {
    match case.measure.pace {
        Pace::Once(_) => 1,
        _ => options.repeats.max(1),
    }
}

impl Entrant {
    fn ask(&mut self, measure: &Measure, iters: u64) -> Result<Answer> {
        let patience = match measure.pace {
            Pace::Once(lasts) => PATIENCE + lasts,
            _ => PATIENCE,
        };
        let line = measure.line(iters);
        match &mut self.runner {
            Runner::Standing(contestant) => contestant.ask(&line, patience),
            Runner::Ucx(ucx) => ucx.ask(&line, patience),
        }
    }

    /// The iterations that take about the target time; `None` where the contestant does not
    /// have this measure.
    fn calibrate(&mut self, measure: &Measure, target: Duration) -> Result<Option<u64>> {
        if measure.pace != Pace::Iterations {
            return Ok(Some(1));
        }
        let target = target.as_secs_f64();
        let mut iters: u64 = 1;
        loop {
            let Answer::Value(seconds) = self.ask(measure, iters)? else {
                return Ok(None);
            };
            let wanted = iters as f64 * target / seconds.max(1e-9);
            // A first round pays for page faults and connections: believe only what took long.
            if seconds >= target / 4.0 || iters >= MOST_ITERS {
                return Ok(Some((wanted as u64).clamp(1, MOST_ITERS)));
            }
            iters = (wanted as u64).clamp(iters * 2, iters * 32).min(MOST_ITERS);
        }
    }
}

fn progress(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {eta:>4}  {msg}");
    let bar = ProgressBar::new(steps);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
