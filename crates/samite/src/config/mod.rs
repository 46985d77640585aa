//! Settings: what there is to set, and how layers of them become one [`Config`].
//!
//! From low to high: default, user file, `[config]` of the workflow, environment, `--config`. Names
//! map mechanically: `eager_max` in `[fabric]` is `SAMITE_FABRIC_EAGER_MAX` in the environment and
//! `--config fabric.eager_max=…` on the command line. An unknown name is an error wherever it is.
//! The table `[stage.NAME]`, and `--config stage.NAME.…`, have settings of `[stage]` for the stream
//! `NAME` alone.
//!
//! # Files
//! `layers` (where settings come from, and how they merge) · `file` (those of a file, with their
//! lines) · `names` (which there are) · `quantity` (sizes and times) · `stage` (those of streams)
//!
//! The launcher resolves once and gives every unit the same text ([`Resolved::to_units`] in
//! `SAMITE_CONFIG`, read back by [`Config::from_toml`]; a launcher that is a unit takes from it
//! what was said, [`Layers::outer`]).
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

use samite_stage::Configuration;
use samite_stage::method::graph::Edge;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub use layers::{Layers, Resolved};
pub use quantity::{Auto, Span};
pub use samite_mem::Bytes;
pub use samite_stage::method::words::Steps;
pub use stage::{MethodName, StageConfig, StageTable, Worded};

/// All settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How units talk.
    pub fabric: FabricConfig,
    /// How much memory they share.
    pub memory: MemoryConfig,
    /// How a job starts and ends.
    pub launch: LaunchConfig,
    /// How streams are staged.
    pub stage: StageConfig,
    /// Who reads what of whom. No setting: the launcher puts the edges of a workflow here, for all
    /// units.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub edge: Vec<Edge>,
}

/// A switch, as people write it: `true`, `false`, and `1`, `0` in the environment.
fn flag<'de, D: serde::Deserializer<'de>>(value: D) -> Result<bool, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
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

/// How units talk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FabricConfig {
    /// What carries messages between units.
    pub transport: TransportName,
    /// Longest message that is sent without asking the receiver first; `auto`: as measured.
    pub eager_max: Auto<Bytes>,
    /// Longest wait for another unit before the wait ends with an error.
    pub deadline: Span,
    /// How long a wait spins before it yields and then sleeps; `auto` follows units and cores.
    pub spin: Auto<Span>,
    /// Abilities that are not used even where the machine has them.
    pub mask: BTreeSet<Ability>,
    /// The units of a job behave as if they were on so many nodes, by turns.
    pub nodes: u32,
    /// Whom the kernel lets copy from a unit where only ancestors may do that.
    pub ptracer: PtracerName,
    /// Whether segments ask for huge pages.
    pub huge_pages: HugePages,
    /// Whether accesses of two units that nothing orders are looked for and reported; slow. In the
    /// environment it may be called `SAMITE_CHECK`.
    #[serde(deserialize_with = "flag")]
    pub check: bool,
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
        }
    }
}

/// How much memory units share.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryConfig {
    /// Most bytes of shared memory in the domain on this node; `auto` follows the machine.
    pub budget: Auto<Bytes>,
}

/// How a job starts and ends.
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
    /// Copying from another unit's private memory by the kernel.
    KernelCopy,
    /// Copying one message from both ends at once.
    Cooperative,
    /// Reading and writing memory of another node by the transport.
    Rma,
}

/// Whom the kernel lets copy from and to a unit, and so debug it, where Yama restricts that to
/// ancestors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PtracerName {
    /// The launcher and what it started: the units of the job.
    Launcher,
    /// Every process of the user.
    Any,
    /// Nobody else.
    Unchanged,
}

/// Whether segments ask for huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HugePages {
    /// Where the kernel gives them.
    Auto,
    /// Not at all.
    Never,
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file is there, but cannot be read.
    #[error("cannot read the settings in {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file is not TOML.
    #[error("{origin}: {message}")]
    Syntax {
        /// File and line.
        origin: String,
        /// What the parser says.
        message: String,
    },
    /// A name that is no setting.
    #[error("{origin}: there is no setting `{name}`{hint}")]
    Unknown {
        /// Where it stands.
        origin: String,
        /// The name, as written there.
        name: String,
        /// The nearest name, or what to do to see all.
        hint: String,
    },
    /// Settings of a stream that the workflow has not.
    #[error("{origin}: the workflow has no stream `{name}`{hint}")]
    Stream {
        /// Where it stands.
        origin: String,
        /// The name, as written there.
        name: String,
        /// The nearest name, or all.
        hint: String,
    },
    /// A value that the setting cannot have.
    #[error("{origin}: {name}: {message}")]
    Value {
        /// Where it stands.
        origin: String,
        /// The setting.
        name: String,
        /// What is wrong and what to write instead.
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
    /// The settings as TOML, each with its value.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("settings are tables of texts and lists of texts")
    }

    /// Reads what [`Config::to_toml`] or [`Resolved::to_units`] wrote.
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

    /// As the streams of a process take it.
    pub fn streams(&self) -> Configuration {
        Configuration {
            edges: self.edge.clone(),
            ..self.stage.configuration()
        }
    }
}

#[cfg(test)]
mod tests;
