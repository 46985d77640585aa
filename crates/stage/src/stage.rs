//! A process among the writers and readers of its domain.

use crate::Result;
use crate::desk::Desk;
use crate::method::{Configuration, FileReading, Method, Settings};
use crate::protocol::{Limits, Policy, Reader as Options, Retain, Start, StreamConfig, Unread};
use crate::reader::Reader;
use crate::writer::Writer;
use samite_fabric::Fabric;
use std::rc::Rc;
use std::time::Duration;

/// Opens streams. One thread owns it, as it owns the fabric.
pub struct Stage<'f> {
    desk: Rc<Desk<'f>>,
    configuration: Configuration,
}

/// How a stream is to be written; see [`Stage::write`].
pub struct Writing<'s, 'f> {
    stage: &'s Stage<'f>,
    stream: String,
    program: String,
    rank: (u32, u32),
    config: StreamConfig,
    settings: Settings,
}

/// How a stream is to be read; see [`Stage::read`].
pub struct Reading<'s, 'f> {
    stage: &'s Stage<'f>,
    stream: String,
    options: Options,
    settings: Settings,
}

impl<'f> Stage<'f> {
    /// Finds the steward of the domain; in a domain of one process, the process is its own. Streams are opened as the
    /// settings of the process say ([`Configuration::make_default`]).
    ///
    /// # Errors
    /// [`crate::Error::NoSteward`].
    pub fn join(fabric: &'f Fabric) -> Result<Stage<'f>> {
        Stage::join_with(fabric, Configuration::of_process())
    }

    /// As [`Stage::join`], with settings for streams. What the program says when it opens one comes before them.
    ///
    /// # Errors
    /// As [`Stage::join`].
    pub fn join_with(fabric: &'f Fabric, configuration: Configuration) -> Result<Stage<'f>> {
        let desk = Rc::new(Desk::new(fabric)?);
        Ok(Stage {
            desk,
            configuration,
        })
    }

    /// Opens a stream for writing, with the defaults. Returns when the steward knows this rank; it does not wait for
    /// the others.
    pub fn writer(&self, stream: &str) -> Result<Writer<'f>> {
        self.write(stream).open()
    }

    /// Opens a stream for reading, with the defaults: every step from the oldest on. Waits for the stream to appear.
    pub fn reader(&self, stream: &str) -> Result<Reader<'f>> {
        self.read(stream).open()
    }

    /// How a stream is to be written.
    pub fn write(&self, stream: &str) -> Writing<'_, 'f> {
        let own = self.desk.fabric.identity();
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

    /// How a stream is to be read. The group is this process's program, and its ranks are the program's.
    pub fn read(&self, stream: &str) -> Reading<'_, 'f> {
        let own = self.desk.fabric.identity();
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
                limits: settings.limits(),
                lease: settings.lease.as_millis() as u64,
            },
            settings: settings.clone(),
        }
    }
}

impl<'f> Writing<'_, 'f> {
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

    /// Opens the stream.
    pub fn open(self) -> Result<Writer<'f>> {
        let Writing {
            stage,
            stream,
            program,
            rank,
            config,
            settings,
        } = self;
        let desk = stage.desk.clone();
        Writer::open(desk, &stream, (program, rank), config, &settings)
    }
}

impl<'f> Reading<'_, 'f> {
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
        self.options.policy = policy;
        self
    }

    /// Most that may wait for it: steps and bytes.
    pub fn limits(mut self, steps: u64, bytes: u64) -> Self {
        self.options.limits = Some(Limits { steps, bytes });
        self
    }

    /// How long a rank that died may take to come back.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease.as_millis() as u64;
        self
    }

    /// Opens the stream.
    pub fn open(self) -> Result<Reader<'f>> {
        if self.settings.method == Method::File {
            let desk = self.stage.desk.clone();
            let how = (self.options.start, self.options.policy);
            let files = FileReading::open(desk, &self.settings.folder, &self.stream, how)?;
            return Ok(Reader::of_files(files));
        }
        Reader::open(self.stage.desk.clone(), &self.stream, self.options)
    }
}
