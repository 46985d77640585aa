//! How the steps of a stream get from those who write to those who read: chosen by settings, never
//! by the program.
//!
//! | [`Method`] | where a block lies | kept for `at` when all have read it | dies with |
//! |---|---|---|---|
//! | `Stream` (the default) | with the block store beside the coordinator, in its agent | nothing | the agent |
//! | `Local` | the same | the two newest steps | the agent |
//! | `Server` | split, and spread over all staging servers, as often as [`Settings::replicas`] says | nothing | its servers |
//! | `Graph` | as `Stream`; edges of a workflow say who reads what ([`graph`]) | nothing | the agent |
//! | `File` | a file for each writer rank ([`crate::file`]) | everything | the disk |
//!
//! The names are those of the systems that showed what each is good for: `Stream` is what Flexpath
//! does, `Local` DIMES, `Server` DataSpaces, `Graph` Decaf. In all of them readers fetch exactly
//! the boxes that they ask for.
//!
//! # Files
//! `mod` (the settings) · `spread` (which server gets which piece) · `files` (writing and reading
//! by files) · `run` (which files are of this run) · `words` (settings as people write them) ·
//! `graph/`

mod files;
pub mod graph;
mod run;
mod spread;
pub mod words;

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
    /// As `Stream`, between those whom an edge links.
    Graph,
    /// In files.
    File,
}

/// How a stream is written and read, as far as the program does not say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How its steps travel.
    pub method: Method,
    /// What happens when a reader group is slow.
    pub policy: Policy,
    /// Most steps that may wait for a reader group; `None`: 2.
    pub steps: Option<u64>,
    /// Most bytes that may wait for a reader group; `None`: a quarter of the memory of all block
    /// stores where no steps are given either, else as many as there is memory.
    pub bytes: Option<u64>,
    /// Most bytes that the stream may have in memory; `None`: all.
    pub memory: Option<u64>,
    /// Where a new reader group begins.
    pub start: Start,
    /// What is kept for readers that ask by number; `None`: what the method keeps.
    pub retain: Option<Retain>,
    /// The first step is kept as long as the stream lives.
    pub precious_first: bool,
    /// What happens to steps before the first reader has come.
    pub unread: Unread,
    /// How long a rank that died may take to come back.
    pub lease: Duration,
    /// How long whoever has not come yet may take: the other ranks of a program after its first
    /// one, and after the end of the stream the readers of steps that nobody has opened.
    pub linger: Duration,
    /// How long a reader waits for a step, and a writer for readers and its other ranks, while all
    /// that it waits for live; `None`: as long as they take. Who is gone, or does not answer, is
    /// waited for up to the deadline of the fabric.
    pub timeout: Option<Duration>,
    /// On how many servers a block lies, with the method `Server`; 1 or more.
    pub replicas: u32,
    /// Where the folders of streams are, with the method `File`.
    pub folder: PathBuf,
    /// When steps are on the disk, with the method `File`.
    pub durability: Durability,
}

/// The settings of all streams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// Of streams that have no own.
    pub all: Settings,
    /// By name of the stream.
    pub streams: BTreeMap<String, Settings>,
    /// Who reads what of whom, in the whole job.
    pub edges: Vec<graph::Edge>,
}

impl Configuration {
    /// The same for all streams.
    pub fn of(all: Settings) -> Configuration {
        Configuration {
            all,
            ..Configuration::default()
        }
    }

    /// From now on what [`Stage::join`](crate::Stage::join) takes in this process. Said once,
    /// before the first stage: by whoever resolves the settings of the process (`samite::init`).
    /// Later calls change nothing.
    pub fn make_default(self) {
        let _ = OF_PROCESS.set(self);
    }

    /// What was made the default of this process; else [`Configuration::default`].
    pub(crate) fn of_process() -> Configuration {
        OF_PROCESS.get().cloned().unwrap_or_default()
    }

    /// Those of a stream.
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
    /// What it keeps for readers that ask by number, where nobody says more.
    pub fn retain(self) -> Retain {
        match self {
            Method::Local => Retain { steps: 2, bytes: 0 },
            Method::Stream | Method::Server | Method::Graph | Method::File => Retain::default(),
        }
    }
}

impl Settings {
    /// Default settings with that method.
    pub fn of(method: Method) -> Settings {
        Settings {
            method,
            ..Settings::default()
        }
    }

    /// The limits, where there are any.
    pub(crate) fn limits(&self) -> Option<Limits> {
        limits(self.steps, self.bytes)
    }

    /// What the coordinator is told of the stream.
    pub(crate) fn stream_config(&self) -> StreamConfig {
        StreamConfig {
            limits: self.limits(),
            memory: self.memory,
            retain: self.retain.unwrap_or_else(|| self.method.retain()),
            precious_first: self.precious_first,
            unread: self.unread,
            lease: self.lease.as_millis() as u64,
            linger: self.linger.as_millis() as u64,
            expected: Vec::new(),
        }
    }
}

/// One of the limits without the other: two steps, as many bytes as there are.
pub(crate) fn limits(steps: Option<u64>, bytes: Option<u64>) -> Option<Limits> {
    (steps.is_some() || bytes.is_some()).then(|| Limits {
        steps: steps.unwrap_or(2),
        bytes: bytes.unwrap_or(u64::MAX),
    })
}
