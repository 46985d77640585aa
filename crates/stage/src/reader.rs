//! Takes steps of a stream, in order or by number; with the method `graph`, the tokens of its edge
//! come first.
//!
//! A step is held until its [`StepReader`] is dropped; until then its blocks do not move.

use crate::client::Client;
use crate::contents::{Contents, Counts};
use crate::method::graph::{Link, Passed};
use crate::method::{FileReading, StoredBytes};
use crate::protocol::{
    Answer, Attribute, EndOfStream, Fault, LayoutHash, Layouts, Policy, Reader as Options,
    ReaderId, Request, Step, StepRecord, Ticket,
};
use crate::step::StepReader;
use crate::step_buffers::Buffers;
use crate::{Error, Result};
use samite_fabric::rpc::Call;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// One rank of a program that reads a stream. Iteration returns its steps, and ends with the
/// stream; if the stream has failed, the last item is an error. Closed when dropped.
pub struct Reader {
    stream: String,
    source: Source,
    link: Arc<Link>,
    /// Tokens that have not been taken.
    tokens: u64,
    /// The result of the edge's operators for the last layout.
    passed: Option<(LayoutHash, Arc<Passed>)>,
    policy: Policy,
    end: Option<EndOfStream>,
    /// The stream has ended, and every step was taken: iteration ends.
    is_exhausted: bool,
}

/// Where the steps come from.
enum Source {
    Opened(Opened),
    /// A stream that does not exist yet; tokens are read until it does.
    Later(Arc<Client>, Options, Option<Duration>),
}

enum Opened {
    BlockStores(StoreReader),
    Files(FileReading),
}

/// Reads a stream whose steps are at block stores.
struct StoreReader {
    client: Arc<Client>,
    id: ReaderId,
    stream: String,
    /// The program that writes it.
    program: String,
    contents: Option<(Arc<Contents>, Counts)>,
    /// A request that was not answered in time.
    late: Option<(Call, Wanted)>,
    /// Its late answer, which comes next.
    ready: Option<Taken>,
    /// How long it waits for a step while the writers are alive; `None`: without limit.
    timeout: Option<Duration>,
}

/// The requested step.
#[derive(Clone, Copy)]
enum Wanted {
    Next,
    At(Step),
}

/// A step that this process holds, as it was written.
pub(crate) struct Given {
    pub(crate) stream: String,
    pub(crate) number: Step,
    pub(crate) contents: Arc<Contents>,
    pub(crate) attributes: Vec<(String, Attribute)>,
    pub(crate) bytes: Bytes,
}

/// Where the bytes of a step are.
pub(crate) enum Bytes {
    // Dropped in this order: detached before the release is sent, because the memory may be reused
    // at once.
    InStores(Buffers, StepLease),
    Stored(StoredBytes),
    /// A token has no bytes.
    Nowhere,
}

/// A hold on a step; its drop releases the step at the coordinator.
pub(crate) struct StepLease {
    client: Arc<Client>,
    reader: ReaderId,
    ticket: Ticket,
    /// Bytes of the boxes that were read, which the release tells the coordinator.
    read: AtomicU64,
}

impl StepLease {
    /// Counts bytes that were read of the step.
    pub(crate) fn count(&self, bytes: u64) {
        // ORDERING: Relaxed: a number by itself; whoever drops the lease has it alone.
        self.read.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Reader {
    /// Waits for the stream to appear. If tokens come before its first step, it need not exist yet:
    /// in a cycle, it appears once all programs of the cycle have opened their inputs.
    pub(crate) fn open(
        client: Arc<Client>,
        stream: String,
        reader: Options,
        link: Link,
        timeout: Option<Duration>,
    ) -> Result<Reader> {
        let policy = reader.policy;
        let open = |open_timeout| {
            StoreReader::open(
                client.clone(),
                &stream,
                reader.clone(),
                timeout,
                open_timeout,
            )
        };
        let mut tokens = link.tokens();
        let opened = match tokens > 0 {
            true => match open(0) {
                // The death of the previous process of this rank was not noticed yet, or readers
                // have yet to take steps that use the coordinator's memory.
                Err(Error::Fault(Fault::RankTaken { .. } | Fault::TooMuchOpen { .. })) => {
                    open(client.timeout())
                }
                opened => opened,
            },
            false => open(client.timeout()),
        };
        let source = match opened {
            Ok((kept, taken)) => {
                if taken > 0 {
                    // This rank had its tokens before its restart.
                    tokens = 0;
                }
                Source::Opened(Opened::BlockStores(kept))
            }
            Err(Error::Fault(Fault::NoStream { .. })) if tokens > 0 => {
                Source::Later(client, reader, timeout)
            }
            Err(error) => return Err(error),
        };
        Ok(Reader {
            tokens,
            ..Reader::of(source, stream, link, policy)
        })
    }

    pub(crate) fn of_files(
        files: FileReading,
        stream: String,
        link: Link,
        policy: Policy,
    ) -> Reader {
        Reader::of(Source::Opened(Opened::Files(files)), stream, link, policy)
    }

    fn of(source: Source, stream: String, link: Link, policy: Policy) -> Reader {
        Reader {
            stream,
            source,
            link: Arc::new(link),
            tokens: 0,
            passed: None,
            policy,
            end: None,
            is_exhausted: false,
        }
    }

    /// Returns the step that the readers of this program take next; `None` after the last one of a
    /// stream that its writers have closed. Waits.
    ///
    /// # Errors
    /// After the last step of a failed stream, every time: [`Fault::WriterFailed`] names the writer
    /// rank that never came, died, or was dropped without [`Writer::close`](crate::Writer::close).
    /// No step within the deadline of the fabric, if a process does not answer, or is gone and may
    /// return until its lease ends. No step within [`Reading::timeout`](crate::Reading::timeout),
    /// if set: otherwise it waits as long as its writers are alive. A step that was lost with its
    /// block stores, or is not what its writer promised; then the next call returns the following
    /// one.
    pub fn next_step(&mut self) -> Result<Option<StepReader>> {
        if let Some(left) = self.tokens.checked_sub(1) {
            let token = Given::token(self.link.tokens() - self.tokens);
            self.tokens = left;
            return Ok(Some(StepReader::new(token, self.link.clone(), None)));
        }
        let taken = match self.opened()? {
            Opened::BlockStores(kept) => kept.next(),
            Opened::Files(files) => files.next_step(),
        }?;
        self.is_exhausted = matches!(taken, Taken::End(_));
        self.or_end(taken)
    }

    /// Returns the step with this number; waits for a future one. `None` if the stream was closed
    /// before it. [`Reader::next_step`] still returns the steps that it has not taken.
    ///
    /// # Errors
    /// As [`Reader::next_step`]; a step that is not stored any more.
    pub fn at(&mut self, step: Step) -> Result<Option<StepReader>> {
        let taken = match self.opened()? {
            Opened::BlockStores(kept) => kept.at(step),
            Opened::Files(files) => files.at(step),
        }?;
        self.or_end(taken)
    }

    /// Returns the open stream; first opens, and waits for, one that did not exist before.
    fn opened(&mut self) -> Result<&mut Opened> {
        if let Source::Later(client, reader, timeout) = &self.source {
            let open_timeout = client.timeout_of(*timeout);
            let (kept, _) = StoreReader::open(
                client.clone(),
                &self.stream,
                reader.clone(),
                *timeout,
                open_timeout,
            )?;
            self.source = Source::Opened(Opened::BlockStores(kept));
        }
        match &mut self.source {
            Source::Opened(opened) => Ok(opened),
            Source::Later(..) => unreachable!("it was opened just now"),
        }
    }

    /// Returns the policy with which it was opened: it says whether a missing step was dropped or
    /// lost.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Returns how the stream has ended, once this reader was told.
    pub fn end(&self) -> Option<EndOfStream> {
        self.end
    }

    fn or_end(&mut self, taken: Taken) -> Result<Option<StepReader>> {
        match taken {
            Taken::Step(given) => {
                self.link.check(given.number, &given.contents)?;
                let passed = self.link.pass(&given.contents, &mut self.passed);
                Ok(Some(StepReader::new(given, self.link.clone(), passed)))
            }
            Taken::End(end) => {
                self.end = Some(end);
                let writer = match &self.source {
                    Source::Opened(Opened::BlockStores(kept)) => Some(kept.program.as_str()),
                    Source::Opened(Opened::Files(_)) | Source::Later(..) => None,
                };
                match end.fault(&self.stream, writer) {
                    Some(fault) => Err(fault.into()),
                    None => Ok(None),
                }
            }
            Taken::Waiting(fault) => Err(fault.into()),
        }
    }
}

/// The result of a request for a step.
pub(crate) enum Taken {
    Step(Given),
    End(EndOfStream),
    /// No step yet, but the processes that it waits for are alive.
    Waiting(Fault),
}

impl StoreReader {
    /// Opens the stream. Returns how many steps this rank took before a restart.
    fn open(
        client: Arc<Client>,
        stream: &str,
        reader: Options,
        timeout: Option<Duration>,
        open_timeout: u64,
    ) -> Result<(StoreReader, u64)> {
        let question = |ticket| Request::OpenReader {
            ticket,
            stream: stream.to_owned(),
            reader: Box::new(reader),
            timeout: open_timeout,
            gives_up: timeout.is_some(),
        };
        let answer = client.open("opening a stream for reading", question)?;
        let Answer::Reading {
            reader: id,
            taken,
            program,
        } = answer
        else {
            return Err(Error::Nonsense(format!("{answer:?}")));
        };
        let kept = StoreReader {
            client,
            id,
            stream: stream.to_owned(),
            program,
            contents: None,
            late: None,
            ready: None,
            timeout,
        };
        Ok((kept, taken))
    }

    fn next(&mut self) -> Result<Taken> {
        self.catch_up()?;
        match self.ready.take() {
            Some(taken) => Ok(taken),
            None => self.ask(Wanted::Next),
        }
    }

    fn at(&mut self, step: Step) -> Result<Taken> {
        self.catch_up()?;
        self.ask(Wanted::At(step))
    }

    /// Waits for a request that the coordinator did not answer in time: its answer may be a step
    /// that this rank has taken, which must be neither skipped nor held forever. Also reports that
    /// the next step was lost.
    fn catch_up(&mut self) -> Result<()> {
        let Some((call, asked)) = self.late.take() else {
            return Ok(());
        };
        match (self.answer(call, asked), asked) {
            (Ok(Taken::Waiting(_)), _) => {}
            (Ok(taken), Wanted::Next) => self.ready = Some(taken),
            (Ok(_) | Err(Error::Fault(_)), Wanted::At(_))
            | (Err(Error::Fault(Fault::NoStep { .. })), Wanted::Next) => {}
            (Err(error), _) => return Err(error),
        }
        Ok(())
    }

    /// Repeats the request while the processes that it waits for are alive, up to the reader's
    /// time-out.
    fn ask(&mut self, asked: Wanted) -> Result<Taken> {
        let begin = Instant::now();
        loop {
            let left = self.timeout.map(|all| all.saturating_sub(begin.elapsed()));
            match self.ask_once(asked, left)? {
                Taken::Waiting(_) if left.is_none_or(|left| !left.is_zero()) => {}
                Taken::Waiting(fault) => return Err(fault.into()),
                taken => return Ok(taken),
            }
        }
    }

    /// Waits for `left`, but not longer than the fabric's deadline.
    fn ask_once(&mut self, asked: Wanted, left: Option<Duration>) -> Result<Taken> {
        let (reader, open_timeout) = (self.id, self.client.timeout_of(left));
        let call = self.client.request_later(|ticket| match asked {
            Wanted::Next => Request::Next {
                ticket,
                reader,
                timeout: open_timeout,
            },
            Wanted::At(step) => Request::At {
                ticket,
                reader,
                step,
                timeout: open_timeout,
            },
        })?;
        self.answer(call, asked)
    }

    fn answer(&mut self, mut call: Call, asked: Wanted) -> Result<Taken> {
        let ticket = Ticket(call.id());
        match self.client.answer("the next step of a stream", &mut call) {
            Ok(Answer::Step(record)) => self.hold(ticket, record).map(Taken::Step),
            Ok(Answer::End(end)) => Ok(Taken::End(end)),
            Ok(Answer::Waiting(fault)) => Ok(Taken::Waiting(fault)),
            Ok(other) => Err(Error::Nonsense(format!("{other:?}"))),
            Err(error) => {
                if matches!(&error, Error::Fabric(error) if error.is_given_up()) {
                    self.late = Some((call, asked));
                }
                Err(error)
            }
        }
    }

    fn hold(&mut self, ticket: Ticket, record: StepRecord) -> Result<Given> {
        // From here on the step is held, and released in any case.
        let hold = StepLease {
            client: self.client.clone(),
            reader: self.id,
            ticket,
            read: AtomicU64::new(0),
        };
        let contents = match &record.layouts {
            Layouts::New { hash, layouts } => {
                let contents = Arc::new(Contents::new(*hash, layouts)?);
                self.contents = Some((contents.clone(), Counts::of(layouts)));
                contents
            }
            Layouts::Same(hash) => {
                let last = self.contents.as_ref().map(|(last, _)| last.clone());
                let last = last.filter(|last| last.hash == *hash);
                last.ok_or_else(|| Error::Nonsense("a layout that was never sent".into()))?
            }
        };
        if let Some((_, counts)) = &self.contents {
            counts.check(&record)?;
        }
        let mut known = HashSet::new();
        let attributes = record.parts.iter().flat_map(|part| &*part.attributes);
        let attributes = attributes.filter(|(name, _)| known.insert(name.as_str()));
        let attributes = attributes.cloned().collect();
        Ok(Given {
            stream: self.stream.clone(),
            number: record.step,
            contents,
            attributes,
            bytes: Bytes::InStores(
                Buffers::reach(self.client.clone(), record, self.id.rank)?,
                hold,
            ),
        })
    }
}

impl Given {
    fn token(number: Step) -> Self {
        Given {
            stream: String::new(),
            number,
            contents: Arc::new(Contents::none()),
            attributes: Vec::new(),
            bytes: Bytes::Nowhere,
        }
    }
}

impl Iterator for Reader {
    type Item = Result<StepReader>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.is_exhausted {
            true => None,
            false => self.next_step().transpose(),
        }
    }
}

impl Drop for StoreReader {
    fn drop(&mut self) {
        let _ = self.client.tell(Request::CloseReader { reader: self.id });
    }
}

impl Drop for StepLease {
    fn drop(&mut self) {
        let _ = self.client.tell(Request::Release {
            reader: self.reader,
            hold: self.ticket,
            read: *self.read.get_mut(),
        });
    }
}
