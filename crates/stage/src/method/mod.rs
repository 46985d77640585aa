//! How the steps of a stream get from writers to readers: chosen by settings, never by the program.
//!
//! | [`Method`] | where a block is stored | kept for `at` after all have read it | lost with |
//! |---|---|---|---|
//! | `Stream` (the default) | at the block store beside the coordinator, in its agent | nothing | the agent |
//! | `Local` | the same | the two newest steps | the agent |
//! | `Server` | split, and distributed over all staging servers, with [`Settings::replicas`] copies | nothing | its servers |
//! | `Graph` | as `Stream`; edges of a workflow say which program reads what ([`graph`]) | nothing | the agent |
//! | `File` | a file for each writer rank ([`crate::file`]) | everything | the disk |
//!
//! The table follows the systems that showed what each method is good for: `Stream` corresponds to
//! Flexpath, `Local` to DIMES, `Server` to DataSpaces, `Graph` to Decaf. With all of them, readers
//! fetch exactly the boxes that they request.
//!
//! # Files
//! `mod` (the settings) · `spread` (which server gets which piece) · `files` (writing and reading
//! files) · `run` (which files are of this run) · `words` (the text form of settings) · `graph/`

mod files;
pub mod graph;
mod run;
mod spread;
pub mod words;

use crate::clock::millis;
use crate::file::Durability;
use crate::protocol::{Limits, Policy, Retain, Start, StreamConfig, Unread};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

pub(crate) use files::{FileReading, FileWriting, StoredBytes};
pub(crate) use spread::Spread;

static OF_PROCESS: OnceLock<Configuration> = OnceLock::new();

/// How steps get from writers to readers. See the module's table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// In the memory of the coordinator's agent, as long as readers need them.
    #[default]
    Stream,
    /// In the memory of the coordinator's agent, by number.
    Local,
    /// In the memory of staging servers.
    Server,
    /// As `Stream`, between programs that an edge links.
    Graph,
    /// In files.
    File,
}

/// How a stream is written and read, unless the program says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How its steps get to the readers.
    pub method: Method,
    /// What happens if a reader group is slower than the writer.
    pub policy: Policy,
    /// Maximum number of steps that may wait for a reader group; `None`: 2.
    pub steps: Option<u64>,
    /// Maximum bytes that may wait for a reader group. `None`: a quarter of the memory of all block
    /// stores if `steps` is `None` too, otherwise unlimited.
    pub bytes: Option<u64>,
    /// Maximum bytes of the stream in memory; `None`: no limit of its own.
    pub memory: Option<u64>,
    /// Where a new reader group begins.
    pub start: Start,
    /// What is kept for readers that ask by number; `None`: what the method keeps.
    pub retain: Option<Retain>,
    /// Keeps the first step as long as the stream exists.
    pub precious_first: bool,
    /// What happens to steps before the first reader has opened the stream.
    pub unread: Unread,
    /// How long a dead rank may take to return.
    pub lease: Duration,
    /// How long a process that has not opened the stream yet may take: the other ranks of a program
    /// after its first one, and after the end of the stream the readers of steps that no group has
    /// read.
    pub linger: Duration,
    /// How long a reader waits for a step, and a writer for readers and its other ranks, while all
    /// processes that it waits for are alive; `None`: without limit. It waits for a process that is
    /// gone, or does not answer, up to the deadline of the fabric.
    pub timeout: Option<Duration>,
    /// The number of servers that store each block, with the method `Server`; 1 or more.
    pub replicas: u32,
    /// Where the folders of streams are, with the method `File`.
    pub folder: PathBuf,
    /// When steps are on the disk, with the method `File`.
    pub durability: Durability,
}

/// The settings of all streams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// For streams without their own settings.
    pub all: Settings,
    /// By name of the stream.
    pub streams: BTreeMap<String, Settings>,
    /// The edges of the whole job.
    pub edges: Vec<graph::Edge>,
}

impl Configuration {
    /// Returns the same settings for all streams.
    pub fn of(all: Settings) -> Configuration {
        Configuration {
            all,
            ..Configuration::default()
        }
    }

    /// Makes this the configuration of [`Stage::join`](crate::Stage::join) in this process. The
    /// code that resolves the settings of the process (`samite::init`) calls it once, before the
    /// first stage. Later calls have no effect.
    pub fn make_default(self) {
        let _ = OF_PROCESS.set(self);
    }

    /// Returns the default of this process; if it has none, [`Configuration::default`].
    pub(crate) fn of_process() -> Configuration {
        OF_PROCESS.get().cloned().unwrap_or_default()
    }

    /// Returns the settings of a stream.
    pub fn stream(&self, name: &str) -> &Settings {
        self.streams.get(name).unwrap_or(&self.all)
    }
}

impl Default for Settings {
    fn default() -> Self {
        let stream = StreamConfig::default();
        Settings {
            method: Method::default(),
            policy: Policy::default(),
            steps: None,
            bytes: None,
            memory: stream.memory,
            start: Start::default(),
            retain: None,
            precious_first: stream.precious_first,
            unread: stream.unread,
            lease: Duration::from_millis(stream.lease),
            linger: Duration::from_millis(stream.linger),
            timeout: None,
            replicas: 1,
            folder: PathBuf::from("samite-streams"),
            durability: Durability::Close,
        }
    }
}

impl Method {
    /// Returns what it keeps for readers that ask by number, by default.
    pub fn retain(self) -> Retain {
        match self {
            Method::Local => Retain { steps: 2, bytes: 0 },
            Method::Stream | Method::Server | Method::Graph | Method::File => Retain::default(),
        }
    }
}

impl Settings {
    /// Returns default settings with that method.
    pub fn of(method: Method) -> Settings {
        Settings {
            method,
            ..Settings::default()
        }
    }

    /// Returns the limits, if any.
    pub(crate) fn limits(&self) -> Option<Limits> {
        limits(self.steps, self.bytes)
    }

    /// Returns the part of the settings that is sent to the coordinator.
    pub(crate) fn stream_config(&self) -> StreamConfig {
        StreamConfig {
            limits: self.limits(),
            memory: self.memory,
            retain: self.retain.unwrap_or_else(|| self.method.retain()),
            precious_first: self.precious_first,
            unread: self.unread,
            lease: millis(self.lease),
            linger: millis(self.linger),
            expected: Vec::new(),
        }
    }
}

/// Completes a pair of limits: two steps, or unlimited bytes.
pub(crate) fn limits(steps: Option<u64>, bytes: Option<u64>) -> Option<Limits> {
    (steps.is_some() || bytes.is_some()).then(|| Limits {
        steps: steps.unwrap_or(2),
        bytes: bytes.unwrap_or(u64::MAX),
    })
}
