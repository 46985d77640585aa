//! The entry point of a process that writes or reads streams.

use crate::array::Selection;
use crate::client::Client;
use crate::clock::millis;
use crate::method::graph::{self, Edge, Link, Operator, Registered};
use crate::method::{Configuration, FileReading, Method, Settings};
use crate::protocol::{
    Answer, Expected, Figures, History, Limits, Policy, Reader as Options, Request, Retain, Start,
    StreamConfig, Unread, decode,
};
use crate::reader::Reader;
use crate::service::{BlockStoreRequest, Usage};
use crate::watch::Watching;
use crate::writer::Writer;
use crate::{Error, Result};
use samite_fabric::Fabric;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Opens streams. Thread: any.
///
/// ```no_run
/// # use samite_fabric::Fabric;
/// use ndarray::Array2;
/// use samite_stage::Stage;
///
/// # fn read(fabric: &Fabric) -> Result<(), Box<dyn std::error::Error>> {
/// let stage = Stage::join(&fabric)?;
/// for step in stage.reader("field")? { // waits until a program writes it; ends with the stream
///     let step = step?;
///     let part: Array2<f64> = step.get("u", [10..110, 20..70])?;
///     println!("step {}: {}", step.number(), part.sum());
/// }
/// # Ok(()) }
/// ```
pub struct Stage {
    client: Arc<Client>,
    configuration: Configuration,
    operators: Mutex<Registered>,
}

/// The state of all streams of a domain.
#[derive(Clone, Debug)]
pub struct Overview {
    /// The coordinator's report.
    pub figures: Figures,
    /// The report of each block store in `figures`; `None` if it did not answer in time.
    pub kept: Vec<Option<Usage>>,
}

/// How a stream is to be written; see [`Stage::write`].
pub struct Writing<'s> {
    stage: &'s Stage,
    stream: String,
    program: String,
    rank: (u32, u32),
    config: StreamConfig,
    settings: Settings,
}

/// How a stream is to be read; see [`Stage::read`].
pub struct Reading<'s> {
    stage: &'s Stage,
    stream: String,
    options: Options,
    /// The program's choice; otherwise the edge or the settings decide.
    policy: Option<Policy>,
    settings: Settings,
}

impl Stage {
    /// Finds the coordinator of the domain; in a domain of one process, that process is the
    /// coordinator. Streams are opened with the settings of the process
    /// ([`Configuration::make_default`]).
    ///
    /// # Errors
    /// [`crate::Error::NoCoordinator`]; [`crate::Error::SecondStage`].
    pub fn join(fabric: &Fabric) -> Result<Stage> {
        Stage::join_with(fabric, Configuration::of_process())
    }

    /// As [`Stage::join`], with settings for streams. What the program chooses when it opens a
    /// stream takes precedence.
    ///
    /// # Errors
    /// As [`Stage::join`].
    pub fn join_with(fabric: &Fabric, configuration: Configuration) -> Result<Stage> {
        let client = Arc::new(Client::new(fabric)?);
        Ok(Stage {
            client,
            configuration,
            operators: Mutex::default(),
        })
    }

    /// Opens a stream for writing, with the defaults. Returns when the coordinator knows this rank,
    /// without waiting for the others.
    pub fn writer(&self, stream: &str) -> Result<Writer> {
        self.write(stream).open()
    }

    /// Opens a stream for reading, with the defaults: every step from the oldest on. Waits for the
    /// stream to appear.
    pub fn reader(&self, stream: &str) -> Result<Reader> {
        self.read(stream).open()
    }

    /// Subscribes to a variable of a stream, or to a box of it: the program is told when it was
    /// written, without holding or reading anything. `variable` need not exist yet.
    ///
    /// ```no_run
    /// # use samite_stage::{News, Stage};
    /// # fn watch(stage: &Stage) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let mut hot = stage.watch("field", "u").region([10..20, 0..5]).open()?;
    /// while let Some(news) = hot.next(Duration::from_secs(10))? {
    ///     match news {
    ///         News::Written(box_of) => println!("step {}: {}", box_of.step, box_of.region),
    ///         News::Missed { first, last } => println!("steps {first} to {last} were missed"),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn watch(&self, stream: &str, variable: &str) -> Watching {
        let settings = self.configuration.stream(stream);
        let program = &self.client.fabric.identity().program;
        let linked = match settings.method {
            Method::Graph => graph::linked_to(&self.configuration.edges, program, stream)
                .map(graph::stream_of)
                .map_err(Error::from),
            _ => Ok(stream.to_owned()),
        };
        Watching::new(self.client.clone(), linked, variable, settings)
    }

    /// Registers an operator for the edges that lead to this program, with the method `graph`,
    /// which call it `mine:NAME`. A closure `|x: f64| ...` changes each number. Call this before
    /// the stream is opened; another operator of that name replaces the first for streams that are
    /// opened later.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # use samite_stage::Stage;
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let stage = Stage::join(&fabric)?;
    /// stage.operator("celsius", |kelvin: f64| kelvin - 273.15);
    /// # Ok::<(), samite_stage::Error>(())
    /// ```
    pub fn operator(&self, name: &str, operator: impl Operator + 'static) {
        let operator = Arc::new(operator);
        self.operators().insert(name.to_owned(), operator);
    }

    fn operators(&self) -> MutexGuard<'_, Registered> {
        self.operators
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state of all streams of the domain, as the coordinator and the block stores
    /// report it now. `None` for a block store that does not answer within `timeout`, which holds
    /// for all of them together.
    ///
    /// # Errors
    /// The coordinator does not answer.
    pub fn overview(&self, timeout: Duration) -> Result<Overview> {
        let what = "how the streams stand";
        let question = |ticket| Request::Figures { ticket };
        let figures = match self.client.request_within(timeout, what, question)? {
            Answer::Figures(figures) => figures,
            other => return Err(Error::Nonsense(format!("{other:?}"))),
        };
        let block_stores = figures.block_stores.iter();
        let kept = self.client.request_block_stores(
            timeout,
            block_stores.map(|block_store| block_store.peer),
            &BlockStoreRequest::Figures,
        );
        let kept = kept.into_iter().map(|said| decode(&said?)).collect();
        Ok(Overview { figures, kept })
    }

    /// Returns a sentence for each edge of this process's configuration that no program of the
    /// domain has used so far, and for each subscription to a variable that no step had.
    ///
    /// # Errors
    /// The coordinator does not answer.
    pub fn unused(&self, timeout: Duration) -> Result<Vec<String>> {
        let history = self.history(timeout)?;
        Ok(graph::unused(&self.configuration, &history))
    }

    /// Returns the names of the streams that programs of the domain have opened so far, except for
    /// those of the method `file`. `None` if they were too many to remember all of them.
    ///
    /// # Errors
    /// The coordinator does not answer.
    pub fn opened(&self, timeout: Duration) -> Result<Option<BTreeSet<String>>> {
        Ok(self.history(timeout)?.opened())
    }

    fn history(&self, timeout: Duration) -> Result<Box<History>> {
        let what = "what was opened";
        let question = |ticket| Request::History { ticket };
        match self.client.request_within(timeout, what, question)? {
            Answer::History(history) => Ok(history),
            other => Err(Error::Nonsense(format!("{other:?}"))),
        }
    }

    /// Configures how a stream is written.
    ///
    /// ```
    /// # use samite_fabric::{Config, Fabric, Identity};
    /// # use samite_stage::Stage;
    /// # let fabric = Fabric::alone(Identity::by_hand("example"), Config::default())?;
    /// # let stage = Stage::join(&fabric)?;
    /// use std::time::Duration;
    /// let settings = stage.write("field").retain(10).lease(Duration::from_secs(60));
    /// let mut writer = settings.open()?;
    /// writer.close()?;
    /// # Ok::<(), samite_stage::Error>(())
    /// ```
    pub fn write(&self, stream: &str) -> Writing<'_> {
        let own = self.client.fabric.identity();
        let settings = self.configuration.stream(stream);
        Writing {
            stage: self,
            stream: stream.to_owned(),
            program: own.program.clone(),
            rank: (own.rank, own.size),
            config: settings.stream_config(),
            settings: settings.clone(),
        }
    }

    /// Configures how a stream is read. The group is the program of this process, with its ranks.
    ///
    /// ```no_run
    /// # fn read(stage: &samite_stage::Stage) -> samite_stage::Result<()> {
    /// use samite_stage::{Policy, Start};
    /// // Only the newest step, from now on; it never delays the writer.
    /// let reader = stage.read("field").start(Start::Latest).policy(Policy::Latest).open()?;
    /// // Only steps in which this box was written.
    /// let corner = stage.read("field").only("u", [0..10, 0..10])?.open()?;
    /// # Ok(()) }
    /// ```
    pub fn read(&self, stream: &str) -> Reading<'_> {
        let own = self.client.fabric.identity();
        let settings = self.configuration.stream(stream);
        Reading {
            stage: self,
            stream: stream.to_owned(),
            options: Options {
                group: own.program.clone(),
                rank: own.rank,
                size: own.size,
                start: settings.start,
                policy: settings.policy,
                limits: None,
                lease: millis(settings.lease),
                only: None,
            },
            policy: None,
            settings: settings.clone(),
        }
    }

    /// Returns the name in the domain of a stream that this program writes, and the edges that
    /// begin there.
    fn leaving(
        &self,
        program: &str,
        stream: &str,
        method: Method,
    ) -> Result<(String, Arc<[Edge]>)> {
        if method != Method::Graph {
            return Ok((stream.to_owned(), Arc::new([])));
        }
        let edges = graph::linked_from(&self.configuration.edges, program, stream)?;
        Ok((graph::stream_of(&edges[0]), edges.into()))
    }
}

impl Writing<'_> {
    /// Writes as rank `rank` of `size` of a program other than this process.
    pub fn as_rank(mut self, program: &str, rank: u32, size: u32) -> Self {
        self.program = program.to_owned();
        self.rank = (rank, size);
        self
    }

    /// Sets the maximum that may wait for a reader: steps and bytes.
    pub fn limits(mut self, steps: u64, bytes: u64) -> Self {
        self.config.limits = Some(Limits { steps, bytes });
        self
    }

    /// Drops steps without readers, instead of waiting for the first reader.
    pub fn discard_unread(mut self) -> Self {
        self.config.unread = Unread::Discard;
        self
    }

    /// Keeps the newest steps, for readers that ask by number.
    pub fn retain(mut self, steps: u64) -> Self {
        self.config.retain = Retain { steps, bytes: 0 };
        self
    }

    /// Keeps the first step as long as the stream exists.
    pub fn precious_first(mut self) -> Self {
        self.config.precious_first = true;
        self
    }

    /// Sets how long a dead rank may take to return.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = millis(lease);
        self
    }

    /// Sets how long [`Writer::step`] waits for slow readers, and for the other ranks, while these
    /// are alive. Without it, there is no limit.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = Some(timeout);
        self
    }

    /// Opens the stream.
    pub fn open(self) -> Result<Writer> {
        let Writing {
            stage,
            stream,
            program,
            rank,
            mut config,
            settings,
        } = self;
        let client = stage.client.clone();
        let (stream, edges) = stage.leaving(&program, &stream, settings.method)?;
        let expected = edges.iter().map(|edge| Expected {
            group: graph::group_of(edge),
            policy: edge.policy.unwrap_or(settings.policy),
            limits: edge.limits().or(settings.limits()),
        });
        config.expected = expected.collect();
        let promised = (edges, rank.1);
        let mut writer = Writer::open(client, &stream, (program, rank), config, &settings)?;
        writer.promised = promised;
        Ok(writer)
    }
}

impl Reading<'_> {
    /// Reads as rank `rank` of `size` of a group other than this process.
    pub fn as_rank(mut self, group: &str, rank: u32, size: u32) -> Self {
        self.options.group = group.to_owned();
        self.options.rank = rank;
        self.options.size = size;
        self
    }

    /// Sets where it begins.
    pub fn start(mut self, start: Start) -> Self {
        self.options.start = start;
        self
    }

    /// Sets what happens if it is slower than the writer.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Sets the maximum that may wait for it: steps and bytes.
    pub fn limits(mut self, steps: u64, bytes: u64) -> Self {
        self.options.limits = Some(Limits { steps, bytes });
        self
    }

    /// Reads only the steps in which this box of a variable was written; the others never wait in
    /// its queue. A step whose array does not contain the box counts, so that reading reports the
    /// error.
    ///
    /// # Errors
    /// An invalid box.
    pub fn only(mut self, variable: &str, region: impl Selection) -> Result<Self> {
        self.options.only = Some(crate::watch::interest(variable, region)?);
        Ok(self)
    }

    /// Sets how long a dead rank may take to return.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = millis(lease);
        self
    }

    /// Sets how long the reader waits for a step while its writers are alive. Without it, there is
    /// no limit.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = Some(timeout);
        self
    }

    /// Opens the stream.
    ///
    /// # Errors
    /// With the method `graph`: no edge, or one with an operator that is not registered. No stream,
    /// or not in time.
    pub fn open(self) -> Result<Reader> {
        let Reading {
            stage,
            mut stream,
            mut options,
            policy,
            settings,
        } = self;
        let edges = &stage.configuration.edges;
        let rank = (options.rank, options.size);
        let (link, edge) = match settings.method {
            Method::Graph => {
                let edge = graph::linked_to(edges, &options.group, &stream)?;
                stream = graph::stream_of(edge);
                options.group = graph::group_of(edge);
                let link = Link::over(edge, rank, &stage.operators())?;
                (link, Some(edge))
            }
            _ => (
                Link::plain(rank),
                graph::edge_to(edges, &options.group, &stream),
            ),
        };
        // The program's choice comes before the edge's, and that before the settings.
        let policy = policy.or(edge.and_then(|edge| edge.policy));
        options.policy = policy.unwrap_or(settings.policy);
        let limits = options.limits.or(edge.and_then(Edge::limits));
        options.limits = limits.or(settings.limits());
        let client = stage.client.clone();
        if settings.method == Method::File {
            let files = FileReading::open(client, &settings, &stream, &options)?;
            return Ok(Reader::of_files(files, stream, link, options.policy));
        }
        Reader::open(client, stream, options, link, settings.timeout)
    }
}
