//! The order of measurements: for each case, every contestant is first calibrated alone. Then all
//! take turns, each repeat beginning with another one, so that a temporary disturbance of the
//! machine affects all of them.
//!
//! A peer that fails in a case is left out of the case and named; one that dies or does not answer
//! is ended, and left out from then on. Ours must neither fail nor lack a case, unless that needs
//! a program which is not installed.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};

use crate::Options;
use crate::case::Case;
use crate::contestant::{Answer, Contestant, Launch};
use crate::figures::{Failure, Figures, Row, median};
use crate::host::Host;
use crate::measure::{Measure, Pace};
use crate::mobile;
use crate::overhead;
use crate::peers::Peers;
use crate::placement::Placement;
use crate::ucx::{self, Ucx};

/// Target duration of a measurement: far above the noise of one interrupt, short enough for many
/// turns.
const TARGET: Duration = Duration::from_millis(30);
const TARGET_QUICK: Duration = Duration::from_millis(10);
/// Maximum duration of a measurement (in addition to the time that it is known to take).
const TIMEOUT: Duration = Duration::from_secs(120);
const MOST_ITERS: u64 = 1 << 30;
/// The most repeats of a long measurement.
const MOST_LONG: u32 = 3;

/// The role of a contestant in the table.
#[derive(Clone, Debug, PartialEq)]
enum Role {
    Ours,
    Peer(String),
    Limit,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Ours => "samite",
            Role::Peer(name) => name,
            Role::Limit => "limit",
        })
    }
}

enum Runner {
    Standing(Contestant),
    Ucx(Ucx),
    /// It died or did not answer. What was left of it was ended, so that the others are not
    /// measured beside it.
    Lost,
}

struct Entrant {
    role: Role,
    runner: Runner,
}

/// Those that take part in cases with the same ranks.
struct Field {
    entrants: Vec<Entrant>,
    /// Whether all peers are among them.
    is_full: bool,
}

/// One contestant in one case.
struct Turn {
    entrant: usize,
    measure: Measure,
    iters: u64,
    figures: Vec<f64>,
    has_failed: bool,
}

/// What the table does not show, and why.
struct Gaps {
    missing: BTreeMap<String, String>,
    failures: Vec<Failure>,
}

pub(crate) fn measure(bench: &str, cases: Vec<Case>, options: &Options) -> Result<Figures> {
    let mut peers = Peers::find(bench, options.quick);
    let cpus = options.cpus.as_deref();
    let host = Host::here(Placement::Apart.cpus(cpus).unwrap_or_default());
    let total = cases
        .iter()
        .map(|case| u64::from(repeats(case, options)))
        .sum();
    let progress = progress(total);
    let (mut rows, mut points) = (Vec::new(), Vec::new());
    let mut gaps = Gaps {
        missing: std::mem::take(&mut peers.missing),
        failures: Vec::new(),
    };
    // Contestants are started once for all cases with the same ranks and placement.
    for group in cases.chunk_by(|a, b| (a.ranks, a.placement) == (b.ranks, b.placement)) {
        let placement = group[0].placement;
        let Some(pinned) = placement.cpus(cpus) else {
            let reason = "no core has two hardware threads on which this process may run";
            gaps.missing
                .insert(placement.name().to_owned(), reason.to_owned());
            continue;
        };
        let ways: &[&str] = if bench == "mobile" {
            &mobile::WAYS
        } else {
            &[]
        };
        let ranks = group[0].ranks;
        let mut field = start(bench, &peers, ways, ranks, &pinned, options, &mut gaps)?;
        for case in group {
            progress.set_message(case.name.clone());
            let row = row(case, &mut field, options, &progress, &mut gaps)?;
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
        missing: gaps.missing,
        failures: gaps.failures,
        peer_settings: peers.settings,
        repeats: options.repeats,
    })
}

/// Starts all contestants. A peer that cannot be started takes no part; Samite must start.
fn start(
    bench: &str,
    peers: &Peers,
    ways: &[&str],
    ranks: u32,
    cpus: &[usize],
    options: &Options,
    gaps: &mut Gaps,
) -> Result<Field> {
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
    // Other ways of Samite itself, in this bench.
    for (way, argv) in ways
        .iter()
        .filter_map(|way| Some((way, options.ours.clone()?)))
    {
        let env = vec![(mobile::WAY.to_owned(), (*way).to_owned())];
        let launch = Launch {
            name: (*way).to_owned(),
            argv,
            env,
            each_rank: false,
        };
        wanted.push((Role::Peer(launch.name.clone()), launch));
    }
    for launch in peers.launches(ranks, cpus) {
        wanted.push((Role::Peer(launch.name.clone()), launch));
    }
    // A contestant that cannot be started is left out, unless it is ours.
    let mut entrants = Vec::new();
    let has_ucx = ranks != 2 || !peers.missing_ucx;
    let mut is_full = peers.are_all_here(ranks) && has_ucx;
    for (role, launch) in wanted {
        match Contestant::start(&launch, ranks, cpus) {
            Ok(contestant) => entrants.push(Entrant {
                role,
                runner: Runner::Standing(contestant),
            }),
            Err(error) => {
                role.bear(&format!("{ranks} ranks"), error, gaps)?;
                is_full = false;
            }
        }
    }
    // `ucx_perftest` is started for each measurement, always as a pair.
    if peers.has_ucx && ranks == 2 {
        let role = Role::Peer(ucx::NAME.to_owned());
        entrants.push(Entrant {
            role,
            runner: Runner::Ucx(Ucx::on(cpus, ucx::Networks::of(bench))),
        });
    }
    Ok(Field { entrants, is_full })
}

fn row(
    case: &Case,
    field: &mut Field,
    options: &Options,
    progress: &ProgressBar,
    gaps: &mut Gaps,
) -> Result<Row> {
    let entrants = &mut field.entrants;
    let mut turns = Vec::new();
    let mut is_full = field.is_full;
    for (entrant, contestant) in entrants.iter_mut().enumerate() {
        is_full &= !matches!(contestant.runner, Runner::Lost);
        let measure = match contestant.role {
            Role::Limit => case.measure.limit.as_deref().cloned(),
            _ => Some(case.measure.clone()),
        };
        let Some(measure) = measure else {
            continue;
        };
        let target = match case.point {
            None if !options.quick => TARGET,
            _ => TARGET_QUICK,
        };
        match contestant.calibrate(&measure, target) {
            Ok(None) => contestant.role.lack(case, gaps)?,
            Ok(Some(iters)) => turns.push(Turn {
                entrant,
                measure,
                iters,
                figures: Vec::new(),
                has_failed: false,
            }),
            Err(error) => {
                contestant.role.bear(&case.name, error, gaps)?;
                is_full = false;
            }
        }
    }
    for repeat in 0..repeats(case, options) as usize {
        let count = turns.len();
        for place in 0..count {
            let which = (repeat + place) % count;
            let turn = &mut turns[which];
            let contestant = &mut entrants[turn.entrant];
            match contestant.ask(&turn.measure, turn.iters) {
                Ok(Some(answer)) => {
                    let figure = turn.measure.figure.of(answer, turn.iters);
                    turn.figures.push(figure);
                }
                Ok(None) => contestant.role.lack(case, gaps)?,
                Err(error) => {
                    contestant.role.bear(&case.name, error, gaps)?;
                    turn.has_failed = true;
                    is_full = false;
                }
            }
        }
        turns.retain(|turn| !turn.has_failed);
        progress.inc(1);
    }
    Ok(summary(case, entrants, turns, options).decided(case, is_full))
}

impl Role {
    /// Records the failure of a peer; a failure of Samite, or of the limit, ends the bench.
    fn bear(&self, case: &str, error: anyhow::Error, gaps: &mut Gaps) -> Result<()> {
        let Role::Peer(peer) = self else {
            return Err(error);
        };
        gaps.failures.push(Failure {
            peer: peer.clone(),
            case: case.to_owned(),
            what: format!("{error:#}"),
        });
        Ok(())
    }

    /// Accepts that a peer does not know the command of a case. Samite and the limit must know it,
    /// unless the case needs a program which is not installed.
    fn lack(&self, case: &Case, gaps: &mut Gaps) -> Result<()> {
        match (self, case.needs) {
            (Role::Peer(_), _) => {}
            (_, Some((program, install))) => {
                gaps.missing.insert(program.to_owned(), install.to_owned());
            }
            _ => bail!("{self} does not know the command of {}", case.name),
        }
        Ok(())
    }
}

fn summary(case: &Case, entrants: &[Entrant], turns: Vec<Turn>, options: &Options) -> Row {
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
    let is_usual = matches!(case.measure.pace, Pace::Iterations | Pace::Whole);
    let repeats = (!is_usual).then(|| repeats(case, options));
    Row::new(case, ours, peers, limit, repeats)
}

fn repeats(case: &Case, options: &Options) -> u32 {
    match case.measure.pace {
        Pace::Once(_) => 1,
        Pace::Long(_) => options.repeats.clamp(1, MOST_LONG),
        _ => options.repeats.max(1),
    }
}

impl Entrant {
    /// Returns the answer; `None` if the contestant does not support this measure.
    fn ask(&mut self, measure: &Measure, iters: u64) -> Result<Option<f64>> {
        let timeout = match measure.pace {
            Pace::Once(lasts) | Pace::Long(lasts) => TIMEOUT + lasts,
            _ => TIMEOUT,
        };
        let line = measure.line(iters);
        let asked = match &mut self.runner {
            Runner::Standing(contestant) => contestant.ask(&line, timeout),
            Runner::Ucx(ucx) => ucx.ask(&line, timeout),
            Runner::Lost => Ok(Answer::Unsupported),
        };
        match asked {
            Ok(Answer::Value(value)) => Ok(Some(value)),
            Ok(Answer::Unsupported) => Ok(None),
            Ok(Answer::Object(text)) => bail!("{} said `{text}` to `{line}`", self.role),
            Ok(Answer::Failed(text)) => bail!("{} failed in `{line}`: {text}", self.role),
            Err(error) => {
                // A later answer could be to this command.
                self.runner = Runner::Lost;
                Err(error)
            }
        }
    }

    /// Returns the iterations that take about the target time; `None` if the contestant does not
    /// support this measure.
    fn calibrate(&mut self, measure: &Measure, target: Duration) -> Result<Option<u64>> {
        if measure.pace != Pace::Iterations {
            return Ok(Some(1));
        }
        let target = target.as_secs_f64();
        let mut iters: u64 = 1;
        loop {
            let Some(seconds) = self.ask(measure, iters)? else {
                return Ok(None);
            };
            let wanted = iters as f64 * target / seconds.max(1e-9);
            // The first round includes page faults and connections: trust only long rounds.
            if seconds >= target / 4.0 || iters >= MOST_ITERS {
                return Ok(Some((wanted as u64).clamp(1, MOST_ITERS)));
            }
            iters = (wanted as u64).clamp(iters * 2, iters * 32).min(MOST_ITERS);
        }
    }
}

pub(crate) fn progress(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {eta:>4}  {msg}");
    let bar = ProgressBar::new(steps);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Figure;
    use std::path::Path;

    #[test]
    fn only_a_peer_may_lack_a_case() {
        let mut gaps = Gaps {
            missing: BTreeMap::new(),
            failures: Vec::new(),
        };
        let plain = Case::of(Measure::new("barrier", "barrier", Figure::us(1.0)));
        let peer = Role::Peer("half".to_owned());
        assert!(peer.lack(&plain, &mut gaps).is_ok());
        let error = Role::Ours.lack(&plain, &mut gaps).unwrap_err().to_string();
        assert_eq!(error, "samite does not know the command of barrier");
        let needs = Some(("lammps", "ci/setup"));
        let lammps = Case { needs, ..plain };
        assert!(Role::Ours.lack(&lammps, &mut gaps).is_ok());
        assert_eq!(gaps.missing["lammps"], "ci/setup");
    }

    /// Rank 1 ends at its first command, rank 0 does not answer.
    #[test]
    fn what_is_left_of_a_lost_peer_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let number = folder.path().join("number");
        let script = r#"exec 3<"$0/ctl.$SAMITE_BENCH_RANK"
            if test $SAMITE_BENCH_RANK = 0; then echo $$ >"$NUMBER"; echo ready >"$0/out"; fi
            read -r line <&3; test $SAMITE_BENCH_RANK = 0 || exit 3; read -r line <&3"#;
        let launch = Launch {
            name: "half".to_owned(),
            argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
            env: vec![("NUMBER".to_owned(), number.display().to_string())],
            each_rank: true,
        };
        let mut half = Entrant {
            role: Role::Peer("half".to_owned()),
            runner: Runner::Standing(Contestant::start(&launch, 2, &[]).unwrap()),
        };
        let number = std::fs::read_to_string(number).unwrap();
        let process = format!("/proc/{}", number.trim());
        assert!(Path::new(&process).exists());
        let barrier = Measure::new("barrier", "barrier", Figure::us(1.0));
        let error = half.ask(&barrier, 1).unwrap_err().to_string();
        assert!(error.contains("exit status: 3"), "{error}");
        assert!(!Path::new(&process).exists(), "rank 0 still runs");
        assert_eq!(half.ask(&barrier, 1).unwrap(), None);
    }
}
