//! Measured rates of this host's copy engines, kept between runs.
//!
//! They are stored in one small TOML file per user, `calibration.toml` in Samite's [cache
//! folder](crate::cache_folder). It names the host for which it is valid: on another processor or
//! kernel, the rates are measured again.

use samite_fabric::{CostModel, Rate};
use samite_mem::copy::calibrate::{self, Measured};
use samite_mem::host::Host;
use std::path::PathBuf;

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

/// Measures the copy engines of this host, which takes under a second. Not to be used while the
/// machine is busy.
pub fn measure() -> Result<CostModel, samite_mem::Error> {
    let measured = calibrate::measure()?;
    let rate = |m: &Measured| Rate {
        bytes: m.bytes,
        ring: m.ring,
        kernel: m.kernel,
        cooperative: m.cooperative,
    };
    let rates: Vec<Rate> = measured.iter().map(rate).collect();
    let guess = CostModel::default();
    let eager_max = eager_max(&rates).unwrap_or(guess.eager_max);
    Ok(CostModel {
        host: Host::read().key(),
        eager_max,
        rates,
        ..guess
    })
}

/// The cost of asking the receiver first: two more small messages, in microseconds.
const HANDSHAKE: f64 = 0.5;

/// Returns the largest measured size at which sending at once is faster than asking first.
fn eager_max(rates: &[Rate]) -> Option<u64> {
    let at_once = |rate: &&Rate| {
        let asked = rate.kernel.max(rate.cooperative);
        let bytes = rate.bytes as f64;
        asked == 0.0 || bytes / rate.ring <= bytes / asked + HANDSHAKE
    };
    rates
        .iter()
        .take_while(at_once)
        .map(|rate| rate.bytes)
        .last()
}

/// Loads the stored figures; if there are none, measures and stores them. `said` is called with a
/// message about it.
pub fn load_or_measure(said: impl FnOnce(&str)) -> CostModel {
    if let Some(model) = load() {
        return model;
    }
    said("measuring the copy engines of this host, once");
    match measure() {
        Ok(model) => {
            if let Err(error) = save(&model) {
                tracing::warn!(%error, "the figures could not be kept; they are measured again next time");
            }
            model
        }
        Err(error) => {
            tracing::warn!(%error, "the copy engines could not be measured; guessed rates are used");
            CostModel::default()
        }
    }
}

/// Stores figures for later runs.
pub fn save(model: &CostModel) -> std::io::Result<()> {
    let Some(path) = path() else { return Ok(()) };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let text = toml::to_string(model).map_err(std::io::Error::other)?;
    // Another unit may be reading the file, so it is replaced as a whole.
    let fresh = path.with_extension(format!("{}", std::process::id()));
    let stored = std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, path));
    if stored.is_err() {
        let _ = std::fs::remove_file(fresh);
    }
    stored
}
