//! One memory for many processes.
//!
//! This is the only crate that a program depends on: it re-exports the layers and resolves the
//! configuration once. A process started by `samite run` joins its domain by [`init`]. One started
//! by hand joins by name with [`join`], or is a domain of one.
//!
//! ```
//! let fabric = samite::init()?;
//! let segment = fabric.allocate(4096)?;          // shared memory, named by a key
//! let remote = fabric.attach(segment.key())?;    // any process of the domain can do this
//! remote.put(0, b"woven")?;
//! let old = remote.fetch_add(64, 1)?;
//! assert_eq!(old, 0);
//! # Ok::<(), samite::Error>(())
//! ```
//!
//! # Files
//! `unit` (how a process becomes a unit) · `config/` (layers of settings) · `calibration` (measured
//! rates of this host) · `program` (reports and results of a program) · `python` (the Python
//! environment)
#![forbid(unsafe_code)]

pub mod calibration;
pub mod config;
pub mod program;
pub mod python;
mod unit;

/// The array library of streams, in the version that they use.
pub use ndarray;
pub use samite_fabric::{
    Atomic, Config as FabricConfig, CostModel, Error, ErrorCode, Fabric, Handle, Identity, Late,
    Mask, Match, Named, PeerId, PeerInfo, Ptracer, Received, Remote, Result, Scope, Segment,
    SegmentKey, Sent, Status, View, Whom, Width, agent, test_all, transport, wait_all,
};
pub use samite_mem::{Pages, SharedBytes, host};
pub use samite_pgas as pgas;
pub use samite_stage as stage;
pub use unit::{fabric_config, init, init_with, join, variable};

/// Returns the services that an agent hosts, in the order in which it polls them.
pub fn services() -> Vec<agent::Starter> {
    vec![stage::service::STARTER]
}

/// Returns the folder for files that Samite can recreate: `samite` in `$XDG_CACHE_HOME`, otherwise
/// in `~/.cache`; `None` without a home directory.
pub fn cache_folder() -> Option<std::path::PathBuf> {
    let folder = |name| std::env::var_os(name).filter(|folder| !folder.is_empty());
    let cache = folder("XDG_CACHE_HOME").map(std::path::PathBuf::from);
    let cache = cache.or_else(|| Some(std::path::PathBuf::from(folder("HOME")?).join(".cache")));
    Some(cache?.join("samite"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_agent_serves_streams() {
        let names: Vec<&str> = super::services().iter().map(|one| one.name).collect();
        assert_eq!(names, ["staging"]);
    }
}
