//! A process among the writers and readers of its domain.

use crate::array::Selection;
use crate::client::Client;
use crate::method::graph::{self, Edge, Link, Operator, Registered};
use crate::method::{Configuration, FileReading, Method, Settings};
use crate::protocol::{
    Answer, BlockStoreFigures, Expected, Figures, Limits, Policy, Reader as Options, Request,
    Retain, Start, StreamConfig, Unread, decode,
};
use crate::reader::Reader;
use crate::service::{BlockStoreRequest, Usage};
use crate::watch::Watching;
use crate::writer::Writer;
use crate::{Error, Result};
use samite_fabric::Fabric;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Opens streams. Thread: any.
pub struct Stage {
    client: Arc<Client>,
    configuration: Configuration,
    operators: Mutex<Registered>,
}

/// How all streams of a domain stand.
#[derive(Clone, Debug)]
pub struct Overview {
    /// What the coordinator says.
    pub figures: Figures,
    /// What each block store of it says of itself; nothing, if it did not in time.
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
    /// What the program says; else the edge does, or the settings.
    policy: Option<Policy>,
    settings: Settings,
}

impl Stage {
    /// Finds the coordinator of the domain; in a domain of one process, the process is its own.
    /// Streams are opened as the settings of the process say ([`Configuration::make_default`]).
    ///
    /// # Errors
    /// [`crate::Error::NoCoordinator`]; [`crate::Error::SecondStage`].
    pub fn join(fabric: &Fabric) -> Result<Stage> {
        Stage::join_with(fabric, Configuration::of_process())
    }

    /// As [`Stage::join`], with settings for streams. What the program says when it opens one comes
    /// before them.
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

    /// Opens a stream for writing, with the defaults. Returns when the coordinator knows this rank;
    /// it does not wait for the others.
    pub fn writer(&self, stream: &str) -> Result<Writer> {
        self.write(stream).open()
    }

    /// Opens a stream for reading, with the defaults: every step from the oldest on. Waits for the
    /// stream to appear.
    pub fn reader(&self, stream: &str) -> Result<Reader> {
        self.read(stream).open()
    }

    /// Subscribes to a variable of a stream, or to a box of it: to be told when it was written,
    /// without holding or reading anything. `variable` need not be there yet.
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

    /// Registers an operator for the edges that lead to this program, with the method `graph`: what
    /// they call `mine:NAME`. A closure `|x: f64| ...` changes each number. Said before the stream
    /// is opened; a second one of that name replaces the first, for streams that are opened later.
    pub fn operator(&self, name: &str, operator: impl Operator + 'static) {
        let operator = Arc::new(operator);
        self.operators().insert(name.to_owned(), operator);
    }

    fn operators(&self) -> MutexGuard<'_, Registered> {
        self.operators
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// How all streams of the domain stand, as the coordinator and the block stores say it now. A
    /// block store that does not answer within `timeout` has nothing to say.
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
        let kept = |block_store: &BlockStoreFigures| {
            let said = self.client.request_block_store(
                timeout,
                block_store.peer,
                BlockStoreRequest::Figures,
            );
            said.ok().and_then(|bytes| decode(&bytes))
        };
        let kept = figures.block_stores.iter().map(kept).collect();
        Ok(Overview { figures, kept })
    }

    /// How a stream is to be written.
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

    /// How a stream is to be read. The group is this process's program, and its ranks are the
    /// program's.
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
                lease: settings.lease.as_millis() as u64,
                only: None,
            },
            policy: None,
            settings: settings.clone(),
        }
    }

    /// What a stream that this program writes is called in the domain, and the edges that begin
    /// there.
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
    /// Writes as rank `rank` of `size` of a program, where that is not what this process is.
    pub fn as_rank(mut self, program: &str, rank: u32, size: u32) -> Self {
        self.program = program.to_owned();
        self.rank = (rank, size);
        self
    }

    /// Most that may wait for a reader: steps and bytes.
    pub fn limits(mut self, steps: u64, bytes: u64) -> Self {
        self.config.limits = Some(Limits { steps, bytes });
        self
    }

    /// Steps that nobody reads are dropped instead of waiting for a first reader.
    pub fn discard_unread(mut self) -> Self {
        self.config.unread = Unread::Discard;
        self
    }

    /// Keeps the newest steps, for readers that ask by number.
    pub fn retain(mut self, steps: u64) -> Self {
        self.config.retain = Retain { steps, bytes: 0 };
        self
    }

    /// Keeps the first step as long as the stream lives.
    pub fn precious_first(mut self) -> Self {
        self.config.precious_first = true;
        self
    }

    /// How long a rank that died may take to come back.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = lease.as_millis() as u64;
        self
    }

    /// How long [`Writer::step`] waits for readers that are slow, and for the other ranks, while
    /// these live. Without it: as long as they take.
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
    /// Reads as rank `rank` of `size` of a group, where that is not what this process is.
    pub fn as_rank(mut self, group: &str, rank: u32, size: u32) -> Self {
        self.options.group = group.to_owned();
        self.options.rank = rank;
        self.options.size = size;
        self
    }

    /// Where it begins.
    pub fn start(mut self, start: Start) -> Self {
        self.options.start = start;
        self
    }

    /// What happens when it is slow.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Most that may wait for it: steps and bytes.
    pub fn limits(mut self, steps: u64, bytes: u64) -> Self {
        self.options.limits = Some(Limits { steps, bytes });
        self
    }

    /// Only the steps in which this box of a variable was written; the others never wait in its
    /// queue. A step whose array has not got the box counts, so that reading says what is wrong.
    ///
    /// # Errors
    /// A box that cannot be.
    pub fn only(mut self, variable: &str, region: impl Selection) -> Result<Self> {
        self.options.only = Some(crate::watch::interest(variable, region)?);
        Ok(self)
    }

    /// How long a rank that died may take to come back.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease.as_millis() as u64;
        self
    }

    /// How long the reader waits for a step while those live who write it. Without it: as long as
    /// they take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = Some(timeout);
        self
    }

    /// Opens the stream.
    ///
    /// # Errors
    /// With the method `graph`: no edge, or an operator of it that is not registered. No stream, or
    /// none in time.
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
