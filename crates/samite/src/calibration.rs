//! What this host measured of its copy engines, kept between runs.
//!
//! One small TOML file per user, `samite/calibration.toml` in `$XDG_CACHE_HOME` or `~/.cache`. It
//! names the host that it holds for: another processor or kernel measures anew.

use samite_fabric::{CostModel, Rate};
use samite_mem::copy::calibrate::{self, Measured};
use samite_mem::host::Host;
use std::path::PathBuf;

/// Where the figures are kept; `None` without a home.
pub fn path() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    cache.map(|cache| cache.join("samite").join("calibration.toml"))
}

/// The kept figures, if they are of this host.
pub fn load() -> Option<CostModel> {
    let text = std::fs::read_to_string(path()?).ok()?;
    let model: CostModel = toml::from_str(&text).ok()?;
    (model.host == Host::read().key()).then_some(model)
}

/// Measures the copy engines of this host: under a second. Not while the machine is busy.
pub fn measure() -> Result<CostModel, samite_mem::Error> {
    let measured = calibrate::measure()?;
    let rate = |m: &Measured| Rate {
        bytes: m.bytes,
        ring: m.ring,
        kernel: m.kernel,
        cooperative: m.cooperative,
    };
    let guess = CostModel::default();
    Ok(CostModel { host: Host::read().key(), rates: measured.iter().map(rate).collect(), ..guess })
}

/// Keeps figures for later runs.
pub fn save(model: &CostModel) -> std::io::Result<()> {
    let Some(path) = path() else { return Ok(()) };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let text = toml::to_string(model).map_err(std::io::Error::other)?;
    // Another unit may be reading: the file is replaced as a whole.
    let fresh = path.with_extension(format!("{}", std::process::id()));
    std::fs::write(&fresh, text)?;
    std::fs::rename(fresh, path)
}
