//! One memory for many processes.
//!
//! The one crate that a program depends on: it re-exports the layers and resolves the configuration
//! once. A process started by `samite run` joins its domain by [`init`]; one started by hand joins
//! by name with [`join`], or is a domain of one.
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
//! `unit` (what the launcher told a process) · `config/` (layers of settings) · `calibration` (what
//! this host measured) · `program` (what a program says of its run) · `python` (programs of others)
#![forbid(unsafe_code)]

pub mod calibration;
pub mod config;
pub mod program;
pub mod python;
mod unit;

/// The arrays that streams take and give, in the version that they do.
pub use ndarray;
pub use samite_fabric::{
    Atomic, Config as FabricConfig, CostModel, Error, ErrorCode, Fabric, Handle, Identity, Mask,
    Match, PeerId, PeerInfo, Ptracer, Received, Remote, Result, Scope, Segment, SegmentKey, Sent,
    Status, View, Whom, Width, agent, test_all, transport, wait_all,
};
pub use samite_mem::{Pages, SharedBytes, host};
pub use samite_pgas as pgas;
pub use samite_stage as stage;
pub use unit::{fabric_config, init, init_with, join, variable};

/// The services that an agent hosts, in the order in which it polls them.
pub fn services() -> Vec<agent::Starter> {
    vec![stage::service::STARTER]
}

/// Where Samite keeps what it can make anew: `samite` in `$XDG_CACHE_HOME`, else in `~/.cache`;
/// `None` without a home.
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
        assert_eq!(names, ["coordinator of streams", "block store"]);
    }
}
