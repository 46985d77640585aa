//! `[stage]`: how streams are staged; `[stage.NAME]` for a single stream.

use super::quantity::{Auto, Form, FromText, Span};
use samite_mem::Bytes;
use samite_stage::file::Durability;
use samite_stage::method::words::{Steps, text};
use samite_stage::protocol::{Policy, Retain, Start, Unread};
use samite_stage::{Configuration, Method, Settings};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::str::FromStr;

/// The settings of all streams, and those of single ones. A stream whose name is that of a setting
/// cannot have its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageConfig {
    /// The values for streams whose own table does not set them. Every setting has a value here.
    pub all: StageTable,
    /// The settings that differ, by name of the stream.
    pub streams: BTreeMap<String, StageTable>,
}

/// A table of settings of streams; `None` means that it is not set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StageTable {
    /// How steps travel from writers to readers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<MethodName>,
    /// What happens if readers are slow: `block`, `drop_oldest`, `drop_newest`, `latest`,
    /// `every N`, `spill`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Worded<Policy>>,
    /// Maximum number of steps that wait for readers; `auto`: 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_steps: Option<Auto<Steps>>,
    /// Maximum bytes that wait for readers; `auto`: a quarter of the memory, or no limit if
    /// `limit_steps` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<Auto<Bytes>>,
    /// Maximum bytes of a stream in memory; `auto`: all memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Auto<Bytes>>,
    /// Where new readers begin: `earliest`, `latest`, `step N`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Worded<Start>>,
    /// How many of the newest steps are kept for readers that ask by number; `auto`: 2 with the
    /// method `local`, otherwise none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retain_steps: Option<Auto<Steps>>,
    /// How many bytes of the newest steps are kept for them.
    #[serde(with = "text", skip_serializing_if = "Option::is_none")]
    pub retain_bytes: Option<Bytes>,
    /// Whether the first step is kept as long as the stream lives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precious_first: Option<bool>,
    /// What happens to steps before the first reader: `wait`, `discard`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unread: Option<Worded<Unread>>,
    /// How long a dead process may take to return.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<Span>,
    /// How long a stream waits for processes that have not yet come: further ranks and, after its
    /// end, readers of steps that no reader has opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linger: Option<Span>,
    /// How long a reader waits for a step, and a writer for its readers and other ranks, while all
    /// of these live; `auto`: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Auto<Span>>,
    /// The number of servers that store each block, with the method `server`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// Where the folders of streams are created, with the method `file`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// When steps survive a crash of the machine, with the method `file`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<DurabilityName>,
}

/// When steps of files are on the disk, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DurabilityName {
    /// Whenever the system writes them.
    System,
    /// After the writer is closed.
    Close,
    /// After each commit.
    Step,
}

/// A method by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MethodName {
    /// In the memory of the writer's node, as long as readers need it.
    Stream,
    /// In the memory of the writer's node, by number.
    Local,
    /// In the memory of staging servers.
    Server,
    /// Like `stream`, between programs that edges link.
    Graph,
    /// In files.
    File,
}

/// A choice that is written in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Worded<T>(pub T);

impl Default for StageConfig {
    fn default() -> Self {
        let by = Settings::default();
        StageConfig {
            all: StageTable {
                method: Some(MethodName::Stream),
                policy: Some(Worded(by.policy)),
                limit_steps: Some(Auto::Auto),
                limit_bytes: Some(Auto::Auto),
                memory: Some(Auto::Auto),
                start: Some(Worded(by.start)),
                retain_steps: Some(Auto::Auto),
                retain_bytes: Some(Bytes::new(0)),
                precious_first: Some(by.precious_first),
                unread: Some(Worded(by.unread)),
                lease: Some(Span::new(by.lease)),
                linger: Some(Span::new(by.linger)),
                timeout: Some(Auto::Auto),
                replicas: Some(by.replicas),
                folder: Some(by.folder),
                durability: Some(DurabilityName::Close),
            },
            streams: BTreeMap::new(),
        }
    }
}

impl StageConfig {
    /// Returns the settings in the form that the streams of a process need.
    pub fn configuration(&self) -> Configuration {
        let of = |table: &StageTable| table.settings(&self.all);
        Configuration {
            all: of(&StageTable::default()),
            streams: self
                .streams
                .iter()
                .map(|(name, table)| (name.clone(), of(table)))
                .collect(),
            edges: Vec::new(),
        }
    }
}

impl StageTable {
    /// Resolves this table, then `all`, then the defaults.
    fn settings(&self, all: &StageTable) -> Settings {
        let by = Settings::default();
        let auto = |value: Option<Auto<Bytes>>| value.and_then(Auto::set).map(Bytes::get);
        let method = match self.method.or(all.method) {
            None | Some(MethodName::Stream) => Method::Stream,
            Some(MethodName::Local) => Method::Local,
            Some(MethodName::Server) => Method::Server,
            Some(MethodName::Graph) => Method::Graph,
            Some(MethodName::File) => Method::File,
        };
        let retain_steps = self.retain_steps.or(all.retain_steps).and_then(Auto::set);
        let retain_bytes = self.retain_bytes.or(all.retain_bytes);
        let retain_bytes = retain_bytes.map_or(0, Bytes::get);
        // The limit that keeps more applies: bytes do not replace what the method keeps by itself.
        let retain = (retain_steps.is_some() || retain_bytes > 0).then(|| Retain {
            steps: retain_steps.map_or(method.retain().steps, |steps| steps.0),
            bytes: retain_bytes,
        });
        let steps = self.limit_steps.or(all.limit_steps).and_then(Auto::set);
        let lease = self.lease.or(all.lease);
        let linger = self.linger.or(all.linger);
        let timeout = self.timeout.or(all.timeout);
        Settings {
            method,
            policy: self.policy.or(all.policy).map_or(by.policy, |word| word.0),
            steps: steps.map(|steps| steps.0),
            bytes: auto(self.limit_bytes.or(all.limit_bytes)),
            memory: auto(self.memory.or(all.memory)),
            start: self.start.or(all.start).map_or(by.start, |word| word.0),
            retain,
            precious_first: self
                .precious_first
                .or(all.precious_first)
                .unwrap_or(by.precious_first),
            unread: self.unread.or(all.unread).map_or(by.unread, |word| word.0),
            lease: lease.map_or(by.lease, Span::get),
            linger: linger.map_or(by.linger, Span::get),
            timeout: timeout.and_then(Auto::set).map(Span::get),
            replicas: self.replicas.or(all.replicas).unwrap_or(by.replicas),
            folder: self
                .folder
                .clone()
                .or_else(|| all.folder.clone())
                .unwrap_or(by.folder),
            durability: match self.durability.or(all.durability) {
                None | Some(DurabilityName::Close) => Durability::Close,
                Some(DurabilityName::System) => Durability::System,
                Some(DurabilityName::Step) => Durability::Step,
            },
        }
    }
}

impl Serialize for StageConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Flat<'a> {
            #[serde(flatten)]
            all: &'a StageTable,
            #[serde(flatten)]
            streams: &'a BTreeMap<String, StageTable>,
        }
        let StageConfig { all, streams } = self;
        Flat { all, streams }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for StageConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Sections)
    }
}

#[derive(Deserialize)]
struct Size(#[serde(with = "text")] Option<Bytes>);

/// Separates settings of all streams from tables of single ones, key by key, so that an error names
/// its key.
struct Sections;

impl<'de> Visitor<'de> for Sections {
    type Value = StageConfig;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("settings of streams")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<StageConfig, M::Error> {
        let mut config = StageConfig::default();
        let all = &mut config.all;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "method" => all.method = Some(map.next_value()?),
                "policy" => all.policy = Some(map.next_value()?),
                "limit_steps" => all.limit_steps = Some(map.next_value()?),
                "limit_bytes" => all.limit_bytes = Some(map.next_value()?),
                "memory" => all.memory = Some(map.next_value()?),
                "start" => all.start = Some(map.next_value()?),
                "retain_steps" => all.retain_steps = Some(map.next_value()?),
                "retain_bytes" => all.retain_bytes = map.next_value::<Size>()?.0,
                "precious_first" => all.precious_first = Some(map.next_value()?),
                "unread" => all.unread = Some(map.next_value()?),
                "lease" => all.lease = Some(map.next_value()?),
                "linger" => all.linger = Some(map.next_value()?),
                "timeout" => all.timeout = Some(map.next_value()?),
                "replicas" => all.replicas = Some(map.next_value()?),
                "folder" => all.folder = Some(map.next_value()?),
                "durability" => all.durability = Some(map.next_value()?),
                _ => {
                    config.streams.insert(key, map.next_value()?);
                }
            }
        }
        Ok(config)
    }
}

impl Form for Steps {
    const FORM: &'static str = Steps::FORM;
}

/// A choice that can be written in words.
trait Words: Sized {
    const FORM: &'static str;

    fn of_words(text: &str) -> Option<Self>;
    fn words(&self) -> String;
}

impl Words for Policy {
    const FORM: &'static str = Policy::FORM;

    fn of_words(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn words(&self) -> String {
        self.to_string()
    }
}

impl Words for Start {
    const FORM: &'static str = "earliest, latest or step N";

    fn of_words(text: &str) -> Option<Self> {
        Some(match text {
            "earliest" => Start::Earliest,
            "latest" => Start::Latest,
            other => Start::Step(other.strip_prefix("step ")?.trim().parse().ok()?),
        })
    }

    fn words(&self) -> String {
        match self {
            Start::Earliest => "earliest".into(),
            Start::Latest => "latest".into(),
            Start::Step(step) => format!("step {step}"),
        }
    }
}

impl Words for Unread {
    const FORM: &'static str = "wait or discard";

    fn of_words(text: &str) -> Option<Self> {
        match text {
            "wait" => Some(Unread::Block),
            "discard" => Some(Unread::Discard),
            _ => None,
        }
    }

    fn words(&self) -> String {
        match self {
            Unread::Block => "wait".into(),
            Unread::Discard => "discard".into(),
        }
    }
}

impl<T: Words> FromStr for Worded<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = T::of_words(text);
        found
            .map(Worded)
            .ok_or_else(|| format!("`{text}` is not one of {}", T::FORM))
    }
}

impl<T: Words> Serialize for Worded<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.words())
    }
}

impl<'de, T: Words> Deserialize<'de> for Worded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(FromText(T::FORM, PhantomData))
    }
}
