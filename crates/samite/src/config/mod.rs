//! Settings: which there are, and how layers of them are merged into one [`Config`].
//!
//! From low to high precedence: default, user file, `[config]` of the workflow, environment,
//! `--config`. Names map mechanically: `eager_max` in `[fabric]` is `SAMITE_FABRIC_EAGER_MAX` in
//! the environment and `--config fabric.eager_max=…` on the command line. An unknown name is always
//! an error. The table `[stage.NAME]`, and `--config stage.NAME.…`, hold settings of `[stage]` for
//! the stream `NAME` alone.
//!
//! # Files
//! `layers` (where settings come from, and how they merge) · `file` (those of a file, with their
//! lines) · `names` (which exist) · `quantity` (sizes, times, rates) · `stage` (those of streams)
//!
//! The launcher resolves the settings once and passes the same text to every unit
//! ([`Resolved::to_units`] in `SAMITE_CONFIG`, read by [`Config::from_toml`]). A launcher that is
//! itself a unit takes over the explicit settings from it ([`Layers::outer`]).
//!
//! ```
//! use samite::config::Layers;
//!
//! let resolved = Layers::default()
//!     .environment([("SAMITE_FABRIC_DEADLINE".into(), "2 s".into())])?
//!     .assignment("fabric.eager_max=16 KiB")?
//!     .resolve()?;
//! assert_eq!(resolved.config.fabric.eager_max.set().map(|bytes| bytes.get()), Some(16 * 1024));
//! assert!(resolved.to_toml_with_origin().contains("SAMITE_FABRIC_DEADLINE"));
//! # Ok::<(), samite::config::ConfigError>(())
//! ```

mod file;
mod layers;
mod names;
mod quantity;
mod stage;

use samite_fabric::{Link, Mask};
use samite_stage::Configuration;
use samite_stage::method::graph::Edge;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use layers::{Layers, Resolved};
pub use quantity::{Auto, Rate, Span};
pub use samite_mem::Bytes;
pub use samite_stage::method::words::Steps;
pub use stage::{MethodName, StageConfig, StageTable, Worded};

/// All settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Communication between units.
    pub fabric: FabricConfig,
    /// The memory that they share.
    pub memory: MemoryConfig,
    /// The start and end of a job.
    pub launch: LaunchConfig,
    /// The staging of streams.
    pub stage: StageConfig,
    /// Coherent chunks.
    pub dsm: DsmConfig,
    /// Which program reads what from which. Not a setting: the launcher passes the edges of a
    /// workflow here to all units.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub edge: Vec<Edge>,
}

/// Deserialises a switch: `true`, `false`, and `1`, `0` in the environment.
fn flag<'de, D: serde::Deserializer<'de>>(value: D) -> Result<bool, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected true, false, 1 or 0")]
    enum Flag {
        Named(bool),
        Number(u64),
    }
    match Flag::deserialize(value)? {
        Flag::Named(on) => Ok(on),
        Flag::Number(number @ (0 | 1)) => Ok(number == 1),
        Flag::Number(_) => Err(serde::de::Error::custom("expected true, false, 1 or 0")),
    }
}

/// Communication between units.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FabricConfig {
    /// What carries messages between units.
    pub transport: TransportName,
    /// The longest message that is sent without asking the receiver first; `auto`: as measured.
    pub eager_max: Auto<Bytes>,
    /// The longest wait for another unit before the wait ends with an error.
    pub deadline: Span,
    /// How long a wait spins before it yields and then sleeps; `auto` depends on units and cores.
    pub spin: Auto<Span>,
    /// Abilities that are not used even if the machine has them.
    pub mask: BTreeSet<Ability>,
    /// The units of a job behave as if they were distributed over this many nodes in turn.
    pub nodes: u32,
    /// Which processes the kernel lets copy from a unit if only ancestors may do that.
    pub ptracer: PtracerName,
    /// Whether segments ask for huge pages.
    pub huge_pages: HugePages,
    /// Whether unordered conflicting accesses of two units are detected and reported; slow. In the
    /// environment it may also be called `SAMITE_CHECK`.
    #[serde(deserialize_with = "flag")]
    pub check: bool,
    /// A link with latency and rate between the units that share no memory.
    pub link: LinkConfig,
}

/// A link between units on one machine that share no memory, as a network would be. Without any of
/// these there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkConfig {
    /// How long each frame takes from its departure to its arrival.
    pub delay: Span,
    /// What is added to that: from nothing to this.
    pub jitter: Span,
    /// What the link carries per second, for each pair of units and direction.
    pub rate: Rate,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            delay: Span::new(Duration::ZERO),
            jitter: Span::new(Duration::ZERO),
            rate: Rate::default(),
        }
    }
}

impl LinkConfig {
    /// Returns the link, if there is one.
    pub fn link(&self) -> Option<Link> {
        let link = Link {
            delay: self.delay.get(),
            jitter: self.jitter.get(),
            rate: self.rate.get(),
        };
        (link != Link::default()).then_some(link)
    }
}

impl FabricConfig {
    /// Returns the abilities that are not used, in the form that a process needs.
    pub fn masked(&self) -> Mask {
        let hides = |ability| self.mask.contains(&ability);
        Mask {
            map: hides(Ability::Map),
            kernel_copy: hides(Ability::KernelCopy),
            cooperative: hides(Ability::Cooperative),
            rma: hides(Ability::Rma),
            nodes: self.nodes,
        }
    }
}

impl Default for FabricConfig {
    fn default() -> Self {
        Self {
            transport: TransportName::Shm,
            eager_max: Auto::Auto,
            deadline: Span::from_secs(30),
            spin: Auto::Auto,
            mask: BTreeSet::new(),
            nodes: 1,
            ptracer: PtracerName::Launcher,
            huge_pages: HugePages::Auto,
            check: false,
            link: LinkConfig::default(),
        }
    }
}

/// The memory that units share.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryConfig {
    /// The maximum shared memory of the domain on this node, in bytes; `auto` depends on the
    /// machine.
    pub budget: Auto<Bytes>,
}

/// The start and end of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LaunchConfig {
    /// How long a unit may take to end after it was asked to.
    pub grace: Span,
}

impl Default for LaunchConfig {
    fn default() -> Self {
        Self {
            grace: Span::from_secs(5),
        }
    }
}

/// Coherent chunks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DsmConfig {
    /// What processes record of their chunks, for `samite trace`: `off`, `counters`, `full`.
    pub log: LogLevel,
    /// The folder of these records. Each run has a folder in it, which is named after its domain.
    pub log_dir: PathBuf,
    /// A file that says which servers have chunks, who uses them, and how chunks are kept coherent;
    /// empty: the agent has all.
    pub topology: PathBuf,
}

impl Default for DsmConfig {
    fn default() -> Self {
        Self {
            log: LogLevel::Off,
            log_dir: "samite-log".into(),
            topology: PathBuf::new(),
        }
    }
}

impl DsmConfig {
    /// Returns the settings of event logs in the form that a process needs.
    pub fn log_settings(&self) -> samite_dsm::log::Settings {
        use samite_dsm::log::{Level, Settings};
        Settings {
            level: match self.log {
                LogLevel::Off => Level::Off,
                LogLevel::Counters => Level::Counters,
                LogLevel::Full => Level::Full,
            },
            folder: self.log_dir.clone(),
        }
    }
}

impl DsmConfig {
    /// Reads the topology, if there is one.
    ///
    /// # Errors
    /// The file cannot be read, or is no topology.
    pub fn topology(&self) -> std::io::Result<Option<samite_dsm::Topology>> {
        let file = self.topology.as_path();
        if file.as_os_str().is_empty() {
            return Ok(None);
        }
        let wrong = |what: String| std::io::Error::other(format!("{}: {what}", file.display()));
        let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
        let topology = samite_dsm::Topology::parse(&text);
        topology.map(Some).map_err(|error| wrong(error.to_string()))
    }
}

/// What is recorded of chunks, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// How often what happened to each chunk.
    Counters,
    /// Everything.
    Full,
}

/// A transport by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransportName {
    /// Shared memory of one machine.
    Shm,
}

/// An ability of a transport that configuration can hide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ability {
    /// Mapping another unit's segments.
    Map,
    /// Copying from another unit's private memory through the kernel.
    KernelCopy,
    /// Copying one message from both ends at once.
    Cooperative,
    /// Reading and writing memory of another node through the transport.
    Rma,
}

/// Which processes may copy from and to a unit, and so debug it, if Yama restricts that to
/// ancestors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PtracerName {
    /// The launcher and the processes that it started: the units of the job.
    Launcher,
    /// Every process of the user.
    Any,
    /// No other process.
    Unchanged,
}

/// Whether segments ask for huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HugePages {
    /// If the kernel provides them.
    Auto,
    /// Never.
    Never,
}

/// Why settings cannot be used.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file exists, but cannot be read.
    #[error("cannot read the settings in {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A file is not TOML.
    #[error("{origin}: {message}")]
    Syntax {
        /// File and line.
        origin: String,
        /// The parser's message.
        message: String,
    },
    /// A name that is not a setting.
    #[error("{origin}: there is no setting `{name}`{hint}")]
    Unknown {
        /// Where it occurs.
        origin: String,
        /// The name, as written there.
        name: String,
        /// The nearest name, or how to list all of them.
        hint: String,
    },
    /// Settings of a stream that the workflow does not have.
    #[error("{origin}: the workflow has no stream `{name}`{hint}")]
    Stream {
        /// Where it occurs.
        origin: String,
        /// The name, as written there.
        name: String,
        /// The nearest name, or all names.
        hint: String,
    },
    /// A value that the setting cannot have.
    #[error("{origin}: {name}: {message}")]
    Value {
        /// Where it occurs.
        origin: String,
        /// The setting.
        name: String,
        /// What is wrong, and what to write instead.
        message: String,
    },
    /// A `--config` that is not `NAME=VALUE`.
    #[error("--config {0}: write it as NAME=VALUE, for example fabric.deadline=2s")]
    Assignment(String),
}

samite_mem::error_codes!(ConfigError, "config", {
    Read = 800, Syntax = 801, Unknown = 802, Stream = 803, Value = 804, Assignment = 805,
});

impl Config {
    /// Returns all settings as TOML, each with its value.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("settings are tables of texts and lists of texts")
    }

    /// Reads a text that [`Config::to_toml`] or [`Resolved::to_units`] has written.
    ///
    /// # Errors
    /// Those of a file with the same text.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let path = Path::new("SAMITE_CONFIG");
        let layers::Shipped {
            settings, edges, ..
        } = layers::Shipped::parse(path, text)?;
        let layers = Layers::default().file(path, &settings.to_string())?;
        Ok(Self {
            edge: edges,
            ..layers.resolve()?.config
        })
    }

    /// Returns the settings of streams in the form that a process needs.
    pub fn streams(&self) -> Configuration {
        Configuration {
            edges: self.edge.clone(),
            ..self.stage.configuration()
        }
    }
}

#[cfg(test)]
mod tests;
