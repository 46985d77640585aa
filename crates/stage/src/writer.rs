//! Writes steps: blocks of arrays into buffers of block stores, and one commit.
//!
//! ```text
//!   step()    Begin ->          <- buffers, as many as the last step needed       back-pressure is felt here
//!   put()     copied once, into a buffer that this process maps (else put by messages)
//!   alloc()   no copy: the array lies in the buffer
//!   commit()  Commit ->         <- Committed: the step is there, whatever happens to this process
//!             commit_and_keep(): this rank goes on reading it while it writes the next one (`last`)
//!   close()   CloseWriter ->    <- Closed: this rank has written all that it wanted to write
//! ```
//!
//! A writer that is dropped without `close` has failed: by an error, a panic, or the end of its
//! process. Its rank may come back while its lease runs, and goes on at its first step that is not
//! committed; else the stream ends as failed.
//!
//! With the method `server` a block is cut into pieces that lie with different servers, so an
//! allocated array is copied, too: at the commit. With the method `file` blocks wait in the memory
//! of this process for the commit, which writes them.

use crate::client::Client;
use crate::last::WrittenStep;
use crate::method::graph::Edge;
use crate::method::{FileWriting, Method, Settings, Spread};
use crate::protocol::{
    Answer, BlockStoreInfo, Layout, LayoutHash, LayoutRef, Part, Peer, Request, Slot, Step,
    StreamConfig, WriterId,
};
use crate::put::StepWriter;
use crate::slots::{Needs, Slots, lost_block_store, wants};
use crate::{Error, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One rank of a program that writes a stream. The stream ends well when every rank has called
/// [`Writer::close`]; a writer that is dropped without it has failed, which readers learn after the
/// last committed step ([`Fault::WriterFailed`](crate::protocol::Fault::WriterFailed)).
#[must_use = "a writer that is dropped without `close` ends its stream as failed"]
pub struct Writer {
    pub(crate) to: Target,
    /// The edges that begin here, and among how many ranks their promises are kept.
    pub(crate) promised: (Arc<[Edge]>, u32),
    /// The step that was committed last, if this rank goes on reading it.
    pub(crate) kept: Option<Arc<WrittenStep>>,
}

/// Where the steps go.
pub(crate) enum Target {
    BlockStores(StoreWriter),
    Files(FileWriting),
}

/// A stream whose steps block stores get.
pub(crate) struct StoreWriter {
    pub(crate) client: Arc<Client>,
    id: WriterId,
    pub(crate) stream: String,
    next: Step,
    pub(crate) place: Destination,
    /// What the last step needed.
    pub(crate) needs: Needs,
    /// The layout that the coordinator knows.
    known: Option<LayoutHash>,
    /// How long it waits for readers and other ranks that live; `None`: as long as they take.
    timeout: Option<Duration>,
    is_closed: bool,
}

/// Which block stores get the blocks.
pub(crate) enum Destination {
    /// This one gets all.
    Near(Slot<Peer>),
    /// All servers get some.
    Servers {
        servers: Vec<BlockStoreInfo>,
        replicas: u32,
        ranks: u32,
        spread: Option<Spread>,
    },
}

impl Writer {
    pub(crate) fn open(
        client: Arc<Client>,
        stream: &str,
        (program, (rank, size)): (String, (u32, u32)),
        config: StreamConfig,
        settings: &Settings,
    ) -> Result<Writer> {
        if settings.method == Method::File {
            let who = (program.as_str(), (rank, size));
            let place = (settings.folder.as_path(), settings.durability);
            let files = FileWriting::open(&client, place, stream, who)?;
            return Ok(Writer {
                to: Target::Files(files),
                promised: (Arc::new([]), 0),
                kept: None,
            });
        }
        let servers = match settings.method {
            Method::Server => Some(client.await_servers(stream)?),
            _ => None,
        };
        let question = |ticket| Request::OpenWriter {
            ticket,
            stream: stream.to_owned(),
            program,
            rank,
            size,
            config: Box::new(config),
            timeout: client.timeout(),
            gives_up: settings.timeout.is_some(),
        };
        let answer = client.request("opening a stream for writing", question)?;
        let Answer::Writing {
            writer,
            next,
            block_stores,
            ..
        } = answer
        else {
            return Err(Error::Nonsense(format!("{answer:?}")));
        };
        let place = match servers {
            Some(servers) => Destination::Servers {
                spread: Spread::over(&servers, settings.replicas, (rank, size)),
                servers,
                replicas: settings.replicas,
                ranks: size,
            },
            None => {
                // That of the coordinator, where it keeps any.
                let near = block_stores
                    .iter()
                    .find(|block_store| block_store.peer == client.coordinator);
                let block_store = near.or(block_stores.first()).ok_or(Error::NoCoordinator)?;
                Destination::Near(Slot::from_slice(&[block_store.peer]))
            }
        };
        let kept = StoreWriter {
            client,
            id: writer,
            stream: stream.to_owned(),
            next,
            place,
            needs: Needs::new(),
            known: None,
            timeout: settings.timeout,
            is_closed: false,
        };
        Ok(Writer {
            to: Target::BlockStores(kept),
            promised: (Arc::new([]), 0),
            kept: None,
        })
    }

    /// Number of the step that comes next: after a restart, the first one that this rank has not
    /// committed.
    pub fn next_step(&self) -> Step {
        match &self.to {
            Target::BlockStores(kept) => kept.next,
            Target::Files(files) => files.next,
        }
    }

    /// Begins the next step. Waits while readers are too far behind, and for memory. Collective
    /// only in so far as a step begins when all ranks have committed the one before. A server that
    /// was lost gets nothing any more.
    ///
    /// # Errors
    /// At the deadline of the fabric a [`Fault`](crate::protocol::Fault) that says who never came,
    /// is gone or does not answer, or where memory is full. For readers and ranks that live it
    /// waits as long as they take, or up to the time-out of
    /// [`Writing::timeout`](crate::Writing::timeout). Afterwards it can be called again.
    pub fn step(&mut self) -> Result<StepWriter<'_>> {
        let slots = match &mut self.to {
            Target::BlockStores(kept) => Some(kept.begin()?),
            Target::Files(_) => None,
        };
        let number = self.next_step();
        // Where a commit was taken without an answer in time, what was kept is not the last step
        // any more.
        self.kept.take_if(|kept| kept.number + 1 != number);
        let kept = self.kept.clone();
        let mut step = StepWriter::new(self, number, slots);
        if let Some(kept) = kept {
            step.reach_last(kept)?;
        }
        Ok(step)
    }

    /// Ends the stream well, as far as this rank is concerned: every step that it wanted to write
    /// is committed. Once all ranks have closed, readers get the end of the stream after its last
    /// step. Local: it does not wait for the other ranks.
    ///
    /// # Errors
    /// The stream has failed meanwhile, because another rank did
    /// ([`Fault::WriterFailed`](crate::protocol::Fault::WriterFailed)); another rank has committed
    /// more steps ([`Fault::ClosesEarly`](crate::protocol::Fault::ClosesEarly); with the method
    /// `file` readers find it out:
    /// [`Failure::ClosedEarly`](crate::protocol::Failure::ClosedEarly)), and this one counts as
    /// failed; the coordinator is lost; the file could not be ended.
    pub fn close(self) -> Result<()> {
        match self.to {
            Target::BlockStores(kept) => kept.close(),
            Target::Files(files) => files.close(),
        }
    }
}

impl StoreWriter {
    fn begin(&mut self) -> Result<Slots> {
        self.forget_lost()?;
        let began = Instant::now();
        loop {
            let left = self.timeout.map(|all| all.saturating_sub(began.elapsed()));
            let question = |ticket| Request::Begin {
                ticket,
                writer: self.id,
                step: self.next,
                wants: wants(&self.needs),
                timeout: self.client.timeout_of(left),
            };
            let answer = self.client.request("a step of a stream to begin", question);
            let buffers = match answer {
                Ok(Answer::Begun { buffers }) => buffers,
                // A commit was taken whose answer did not come in time.
                Ok(Answer::Already { next }) if next > self.next => {
                    self.next = next;
                    continue;
                }
                // Everybody that it waits for lives.
                Ok(Answer::Waiting(_)) if left.is_none_or(|left| !left.is_zero()) => continue,
                Ok(Answer::Waiting(fault)) => {
                    // What block stores have made for it is for those who wait longer.
                    self.abort();
                    return Err(fault.into());
                }
                Ok(other) => return Err(Error::Nonsense(format!("{other:?}"))),
                Err(error) => {
                    if self.forget(&error)? {
                        continue;
                    }
                    // It may still be granted, to nobody.
                    self.abort();
                    return Err(error);
                }
            };
            let mut slots = Slots::new(self.client.clone(), self.id, self.timeout);
            let opened = slots.open(self.needs.clone(), buffers);
            return opened.map(|()| slots).inspect_err(|_| self.abort());
        }
    }

    pub(crate) fn abort(&self) {
        // Who does not hear of it hears of the end of this process.
        let _ = self.client.tell(Request::Abort { writer: self.id });
    }

    /// Spreads over those servers that are left from now on.
    ///
    /// # Errors
    /// None is left.
    fn forget_lost(&mut self) -> Result<()> {
        let fabric = self.client.fabric.clone();
        let lives = |server: Peer| {
            let lost = fabric.lost_life(server.id(), server.incarnation());
            lost.is_none()
        };
        self.keep_servers(lives)?;
        Ok(())
    }

    /// As [`StoreWriter::forget_lost`], for the one whose loss an error tells of; `false` for other
    /// errors, and for the loss of somebody who is none of the servers: that of the coordinator.
    pub(crate) fn forget(&mut self, error: &Error) -> Result<bool> {
        match lost_block_store(error) {
            Some(lost) => self.keep_servers(|server| server != lost),
            None => Ok(false),
        }
    }

    /// Whether there is one less.
    fn keep_servers(&mut self, lives: impl Fn(Peer) -> bool) -> Result<bool> {
        let Destination::Servers {
            servers,
            replicas,
            ranks,
            spread,
        } = &mut self.place
        else {
            return Ok(false);
        };
        if servers.iter().all(|server| lives(server.peer)) {
            return Ok(false);
        }
        servers.retain(|server| lives(server.peer));
        self.needs.clear();
        *spread = Spread::over(servers, *replicas, (self.id.rank, *ranks));
        match spread {
            Some(_) => Ok(true),
            None => Err(Error::NoServers {
                stream: self.stream.clone(),
            }),
        }
    }

    /// What a step needed, the next one asks for at its begin: of servers that are left.
    pub(crate) fn remember(&mut self, mut needs: Needs) {
        if let Destination::Servers { servers, .. } = &self.place {
            let is_left =
                |block_store: &Peer| servers.iter().any(|server| server.peer == *block_store);
            needs.retain(|(block_stores, _)| block_stores.iter().all(is_left));
        }
        self.needs = needs;
    }

    pub(crate) fn commit(&mut self, mut part: Part, layout: Layout, keep: bool) -> Result<()> {
        let hash = layout.hash();
        if self.known != Some(hash) {
            part.layout = LayoutRef::New(Arc::new(layout));
            // Without an answer it is not known which one the coordinator knows.
            self.known = None;
        }
        let question = |ticket| Request::Commit {
            ticket,
            writer: self.id,
            part,
            keep,
        };
        match self.client.request("a step to be committed", question)? {
            Answer::Committed => {}
            other => return Err(Error::Nonsense(format!("{other:?}"))),
        }
        self.known = Some(hash);
        self.next += 1;
        Ok(())
    }

    fn close(mut self) -> Result<()> {
        let writer = self.id;
        let question = |ticket| Request::CloseWriter { ticket, writer };
        match self.client.request("a stream to be closed", question)? {
            Answer::Closed => {}
            other => return Err(Error::Nonsense(format!("{other:?}"))),
        }
        self.is_closed = true;
        Ok(())
    }
}

impl Drop for StoreWriter {
    fn drop(&mut self) {
        if !self.is_closed {
            // If the message does not arrive, the coordinator learns of the end of this process.
            let _ = self.client.tell(Request::LeaveWriter { writer: self.id });
        }
    }
}
