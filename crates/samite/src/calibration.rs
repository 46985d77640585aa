//! Measured rates of this host's copy engines, kept between runs.
//!
//! They are stored in one small TOML file per user, `calibration.toml` in Samite's [cache
//! folder](crate::cache_folder). It names the host for which it is valid: on another processor or
//! kernel, the rates are measured again.
//!
//! Other programs must not decide how messages are sent. So a measurement has several rounds, of
//! half a second each. A round counts only if other programs, and other virtual machines, used
//! little of the processors meanwhile. Of those that count, the best rates are taken, and there are
//! no figures unless the last round changes none of the decisions that follow from them.

use samite_fabric::{CostModel, Rate};
use samite_mem::copy::calibrate::{self, Measured};
use samite_mem::host::{self, Host};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Returns the path of the stored figures; `None` without a home directory.
pub fn path() -> Option<PathBuf> {
    Some(crate::cache_folder()?.join("calibration.toml"))
}

/// Loads the stored figures, if they are of this host.
pub fn load() -> Option<CostModel> {
    let text = std::fs::read_to_string(path()?).ok()?;
    let model: CostModel = toml::from_str(&text).ok()?;
    (model.host == Host::read().key()).then_some(model)
}

/// Why there are no figures of this host.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// Memory or threads to measure with cannot be had.
    #[error("the copy engines cannot be measured: {0}")]
    Memory(#[from] samite_mem::Error),
    /// Other programs disturbed the measurement.
    #[error("other programs use the processors for {:.0} % of the time: nothing was stored; calibrate when the machine is idle", 100.0 * used)]
    Busy {
        /// The part of the time of the processors that others used, at least.
        used: f64,
    },
    /// The rounds disagree.
    #[error(
        "{rounds} measurements disagree: nothing was stored; calibrate when the machine is idle"
    )]
    Unsteady {
        /// The rounds.
        rounds: u32,
    },
}

/// How long the load of the machine is looked at before anything is measured.
const GLANCE: Duration = Duration::from_millis(100);
/// The most rounds of a measurement.
const ROUNDS: u32 = 6;
/// The part of the time of the processors that others may use during a round that counts.
const OTHERS: f64 = 0.1;

/// Measures the copy engines of this host. This takes a second, or three if other programs disturb
/// it.
///
/// # Errors
/// [`CalibrationError`] if the machine is too busy for figures that mean anything.
pub fn measure() -> Result<CostModel, CalibrationError> {
    let round = || {
        let before = Load::read();
        let measured = calibrate::measure()?;
        let rate = |m: &Measured| Rate {
            bytes: m.bytes,
            ring: m.ring,
            kernel: m.kernel,
            cooperative: m.cooperative,
        };
        Ok((measured.iter().map(rate).collect(), before.used_since()))
    };
    let rates = settle(round)?;
    Ok(CostModel {
        host: Host::read().key(),
        eager_max: eager_max(&rates).unwrap_or(CostModel::default().eager_max),
        rates,
        ..CostModel::default()
    })
}

/// Repeats `round`, which returns rates and how much of the processors others used meanwhile, until
/// a round decides nothing anew. Returns the best rates: other activity only slows down.
fn settle(
    mut round: impl FnMut() -> Result<(Vec<Rate>, f64), CalibrationError>,
) -> Result<Vec<Rate>, CalibrationError> {
    let mut best: Option<Vec<Rate>> = None;
    let mut least = f64::INFINITY;
    for _ in 0..ROUNDS {
        let (rates, used) = round()?;
        least = least.min(used);
        if used > OTHERS {
            continue;
        }
        let Some(before) = best.take() else {
            best = Some(rates);
            continue;
        };
        let now = better(&before, &rates);
        if decisions(&now) == decisions(&before) {
            return Ok(now);
        }
        best = Some(now);
    }
    Err(match best {
        Some(_) => CalibrationError::Unsteady { rounds: ROUNDS },
        None => CalibrationError::Busy { used: least },
    })
}

fn better(a: &[Rate], b: &[Rate]) -> Vec<Rate> {
    let both = a.iter().zip(b);
    both.map(|(a, b)| Rate {
        bytes: a.bytes,
        ring: a.ring.max(b.ring),
        kernel: a.kernel.max(b.kernel),
        cooperative: a.cooperative.max(b.cooperative),
    })
    .collect()
}

/// Returns what follows from rates: up to which size messages are sent at once, and for each larger
/// one the engines that are as good as the best, within a tenth.
fn decisions(rates: &[Rate]) -> (Option<u64>, Vec<u64>) {
    let large = rates.iter().filter(|rate| rate.bytes > EAGER_MOST);
    let fastest = large.map(|rate| {
        let rates = [rate.ring, rate.kernel, rate.cooperative];
        let best = rates.into_iter().fold(0.0, f64::max);
        let first = rates.iter().position(|rate| *rate >= 0.9 * best);
        first.unwrap_or(0) as u64
    });
    (eager_max(rates), fastest.collect())
}

/// The time that was used of the processors on which is measured, and by this process.
struct Load {
    cpus: Vec<usize>,
    at: Instant,
    busy: Duration,
    own: Duration,
}

impl Load {
    fn read() -> Load {
        let cpus = calibrate::cpus();
        Load {
            at: Instant::now(),
            busy: host::busy_time(&cpus).unwrap_or_default(),
            own: host::own_time(),
            cpus,
        }
    }

    /// Returns the part of the time of the processors that others have used since.
    fn used_since(&self) -> f64 {
        let now = Load::read();
        let busy = now.busy.saturating_sub(self.busy);
        let others = busy.saturating_sub(now.own.saturating_sub(self.own));
        let all = now.at.duration_since(self.at) * self.cpus.len() as u32;
        others.as_secs_f64() / all.as_secs_f64().max(1e-3)
    }
}

/// The largest message that is sent at once: more does not fit into one body of a ring.
const EAGER_MOST: u64 = 64 << 10;

/// The cost of asking the receiver first: two more small messages, in microseconds.
const HANDSHAKE: f64 = 0.5;

/// Returns the largest measured size at which sending at once is faster than asking first.
fn eager_max(rates: &[Rate]) -> Option<u64> {
    let at_once = |rate: &&Rate| {
        let asked = rate.kernel.max(rate.cooperative);
        let bytes = rate.bytes as f64;
        asked == 0.0 || bytes / rate.ring <= bytes / asked + HANDSHAKE
    };
    let small = rates.iter().filter(|rate| rate.bytes <= EAGER_MOST);
    small.take_while(at_once).map(|rate| rate.bytes).last()
}

/// Loads the stored figures; if there are none, measures and stores them. On a busy machine, and
/// where figures cannot be stored, it returns guessed rates, and the next call tries again. `said`
/// is called with a message before it measures.
pub fn load_or_measure(said: impl FnOnce(&str)) -> CostModel {
    if let Some(model) = load() {
        return model;
    }
    // Only what is stored has an effect, since units load it.
    if let Err(error) = check_place() {
        tracing::warn!(%error, "guessed rates are used, as figures of this host could not be kept");
        return CostModel::default();
    }
    let before = Load::read();
    std::thread::sleep(GLANCE);
    let used = before.used_since();
    let measured = match used > OTHERS {
        true => Err(CalibrationError::Busy { used }),
        false => {
            said("measuring the copy engines of this host, once");
            measure()
        }
    };
    match measured {
        Ok(model) => {
            if let Err(error) = save(&model) {
                tracing::warn!(%error, "the figures could not be kept; they are measured again next time");
            }
            return model;
        }
        Err(error @ CalibrationError::Memory(_)) => {
            tracing::warn!(%error, "guessed rates are used");
        }
        // A later run will find the machine idle.
        Err(error) => tracing::info!(%error, "guessed rates are used"),
    }
    CostModel::default()
}

/// Returns where to write figures before they replace those of [`path`].
fn place() -> std::io::Result<(PathBuf, PathBuf)> {
    let no_home = || std::io::Error::other("neither XDG_CACHE_HOME nor HOME is set");
    let path = path().ok_or_else(no_home)?;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let fresh = path.with_extension(format!("{}", std::process::id()));
    Ok((fresh, path))
}

/// Finds out whether figures can be stored.
fn check_place() -> std::io::Result<()> {
    let (fresh, _) = place()?;
    std::fs::write(&fresh, "")?;
    std::fs::remove_file(fresh)
}

/// Stores figures for later runs.
///
/// # Errors
/// There is no home directory, or the file cannot be written.
pub fn save(model: &CostModel) -> std::io::Result<()> {
    let (fresh, path) = place()?;
    let text = toml::to_string(model).map_err(std::io::Error::other)?;
    // Another unit may be reading the file, so it is replaced as a whole.
    let stored = std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, path));
    if stored.is_err() {
        let _ = std::fs::remove_file(fresh);
    }
    stored
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates of which the ring is the best up to a size.
    fn rates(ring_up_to: u64, speed: f64) -> Vec<Rate> {
        let sizes = [4, 16, 64, 256, 1024].map(|kib: u64| kib << 10);
        let rate = |bytes| Rate {
            bytes,
            ring: speed * if bytes <= ring_up_to { 9e3 } else { 1e3 },
            kernel: speed * 4e3,
            cooperative: speed * 8e3,
        };
        sizes.map(rate).to_vec()
    }

    fn settled(rounds: &[(Vec<Rate>, f64)]) -> Result<Vec<Rate>, CalibrationError> {
        let mut rounds = rounds.iter();
        settle(|| Ok(rounds.next().cloned().expect("not so many rounds")))
    }

    #[test]
    fn two_rounds_that_agree_are_enough() {
        let quiet = [(rates(16 << 10, 0.9), 0.0), (rates(16 << 10, 1.0), 0.05)];
        let all = settled(&quiet).expect("they agree");
        assert_eq!(all, rates(16 << 10, 1.0));
        assert_eq!(eager_max(&all), Some(16 << 10));
    }

    #[test]
    fn a_neighbour_decides_nothing() {
        // While a neighbour runs, the ring seems to be the best at all sizes, or at none.
        let busy = |up_to| (rates(up_to, 3.0), 0.8);
        let calm = (rates(16 << 10, 1.0), 0.0);
        let mixed = [busy(1 << 20), calm.clone(), busy(0), calm.clone()];
        assert_eq!(settled(&mixed).expect("two agree"), calm.0);
        let all = vec![busy(1 << 20); ROUNDS as usize];
        let error = settled(&all).expect_err("no round counts");
        assert!(matches!(error, CalibrationError::Busy { .. }), "{error}");
        let once = [vec![calm], vec![busy(0); ROUNDS as usize - 1]].concat();
        assert!(matches!(
            settled(&once),
            Err(CalibrationError::Unsteady { rounds: ROUNDS })
        ));
    }

    #[test]
    fn rounds_that_disagree_give_no_figures() {
        // In each round, the ring is the best at one more size.
        let sizes = [0, 4, 16, 64, 256, 1024].map(|kib: u64| kib << 10);
        let mut rounds: Vec<_> = sizes.iter().map(|size| (rates(*size, 1.0), 0.0)).collect();
        assert!(matches!(
            settled(&rounds),
            Err(CalibrationError::Unsteady { rounds: ROUNDS })
        ));
        rounds[5] = rounds[4].clone();
        assert_eq!(settled(&rounds).expect("the last two agree"), rounds[4].0);
    }

    /// More never fits into one body of a ring, whatever was measured.
    #[test]
    fn no_rate_makes_messages_beyond_a_body_eager() {
        assert_eq!(eager_max(&rates(1 << 20, 1.0)), Some(EAGER_MOST));
        assert_eq!(eager_max(&rates(0, 1.0)), None);
    }

    #[test]
    fn the_load_of_others_is_seen() {
        let before = Load::read();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(300) {
            std::hint::spin_loop();
        }
        let own = host::own_time() - before.own;
        assert!(own >= Duration::from_millis(100), "{own:?}");
        // A neighbour, on the processors on which is measured: the kernel ends it when it has used
        // a second.
        let cpus: Vec<String> = before.cpus.iter().map(usize::to_string).collect();
        let spin = "ulimit -t 1; while :; do :; done";
        let before = Load::read();
        let ended = std::process::Command::new("taskset")
            .args(["-c", &cpus.join(","), "sh", "-c", spin])
            .status()
            .expect("taskset, of util-linux, can be started");
        assert_eq!(ended.code(), None, "a signal ended it");
        let all = before.at.elapsed() * before.cpus.len() as u32;
        // Less the time of this process, in which other tests run. The kernel counts in ticks.
        let seen = all.mul_f64(before.used_since()) + (host::own_time() - before.own);
        assert!(seen >= Duration::from_millis(900), "{seen:?} of a second");
    }
}
