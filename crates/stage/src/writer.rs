//! Writes steps: blocks of arrays into buffers of block stores, and one commit.
//!
//! ```text
//!   step()    Begin ->          <- buffers, as many as the last step needed       back-pressure applies here
//!   put()     copied once, into a buffer that this process maps (else put by messages)
//!   alloc()   no copy: the array is in the buffer
//!   commit()  Commit ->         <- Committed: the step outlives this process
//!             commit_and_keep(): this rank can still read it while it writes the next one (`last`)
//!   close()   CloseWriter ->    <- Closed: this rank has written everything
//! ```
//!
//! A writer that is dropped without `close` has failed: by an error, a panic, or the end of its
//! process. Its rank may return until its lease ends, and continues at its first step that is not
//! committed; otherwise the stream ends as failed.
//!
//! With the method `server`, a block is cut into pieces that are stored on different servers, so an
//! allocated array is copied, too: at the commit. With the method `file`, blocks stay in the memory
//! of this process until the commit writes them.

use crate::client::Client;
use crate::last::WrittenStep;
use crate::method::graph::Edge;
use crate::method::{FileWriting, Method, Settings, Spread};
use crate::protocol::{
    Answer, BlockStoreInfo, Layout, LayoutHash, LayoutRef, Part, Peer, Request, Slot, Step,
    StreamConfig, WriterId,
};
use crate::put::StepWriter;
use crate::service::find_near_store;
use crate::slots::{Needs, Slots, lost_block_store, wants};
use crate::{Error, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One rank of a program that writes a stream. The stream ends well if every rank has called
/// [`Writer::close`]. A writer that is dropped without it has failed, which readers learn after the
/// last committed step ([`Fault::WriterFailed`](crate::protocol::Fault::WriterFailed)).
#[must_use = "a writer that is dropped without `close` ends its stream as failed"]
pub struct Writer {
    pub(crate) to: Target,
    /// The edges that begin here, and the number of ranks that share their promises.
    pub(crate) promised: (Arc<[Edge]>, u32),
    /// The step that was committed last, if this rank can still read it.
    pub(crate) kept: Option<Arc<WrittenStep>>,
    /// The last step that was dropped with content, neither committed nor aborted. `None` once the
    /// program commits or aborts it, or learns why it cannot.
    pub(crate) dropped: Option<Step>,
}

/// The destination of the steps.
pub(crate) enum Target {
    BlockStores(StoreWriter),
    Files(FileWriting),
}

/// Writes a stream whose steps are stored at block stores.
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
    /// How long it waits for living readers and other ranks; `None`: without limit.
    timeout: Option<Duration>,
    is_closed: bool,
}

/// The block stores that get the blocks.
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
                dropped: None,
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
        let answer = client.open("opening a stream for writing", question)?;
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
                // That of this node, otherwise the one beside the coordinator.
                let near = find_near_store(&client.fabric);
                let find = |peer| block_stores.iter().find(|store| store.peer == peer);
                let store = near.and_then(find).or(find(client.coordinator));
                let block_store = store.or(block_stores.first()).ok_or(Error::NoCoordinator)?;
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
            dropped: None,
        })
    }

    /// Returns the number of the next step: after a restart, the first one that this rank has not
    /// committed.
    pub fn next_step(&self) -> Step {
        match &self.to {
            Target::BlockStores(kept) => kept.next,
            Target::Files(files) => files.next,
        }
    }

    /// Begins the next step. Waits while readers are too far behind, and for memory. It is
    /// collective only in that a step begins when all ranks have committed the previous one. A lost
    /// server gets nothing any more.
    ///
    /// # Errors
    /// At the deadline of the fabric, a [`Fault`](crate::protocol::Fault) that names the process
    /// that never came, is gone or does not answer, or says where memory is full. For living
    /// readers and ranks it waits without limit, or up to
    /// [`Writing::timeout`](crate::Writing::timeout). Afterwards it can be called again.
    pub fn step(&mut self) -> Result<StepWriter<'_>> {
        let slots = match &mut self.to {
            Target::BlockStores(kept) => Some(kept.begin()?),
            Target::Files(_) => None,
        };
        let number = self.next_step();
        // If a commit was accepted but not answered in time, what was kept is not the last step any
        // more.
        self.kept.take_if(|kept| kept.number + 1 != number);
        let kept = self.kept.clone();
        let mut step = StepWriter::new(self, number, slots);
        if let Some(kept) = kept {
            step.reach_last(kept)?;
        }
        Ok(step)
    }

    /// Closes this rank's part of the stream: it has committed every step that it wanted to write.
    /// Once all ranks have closed, readers get the end of the stream after its last step. Local: it
    /// does not wait for the other ranks.
    ///
    /// # Errors
    /// The stream has failed in the meantime, because another rank did
    /// ([`Fault::WriterFailed`](crate::protocol::Fault::WriterFailed)); another rank has committed
    /// more steps ([`Fault::ClosesEarly`](crate::protocol::Fault::ClosesEarly); with the method
    /// `file`, readers detect it: [`Failure::ClosedEarly`](crate::protocol::Failure::ClosedEarly)),
    /// and this one counts as failed; the coordinator is lost; the end of the file could not be
    /// written. [`Error::NeverCommitted`]: the step that was begun last was dropped, although
    /// something was put into it; this rank counts as failed.
    pub fn close(self) -> Result<()> {
        if let Some(step) = self.dropped {
            let stream = match &self.to {
                Target::BlockStores(kept) => kept.stream.clone(),
                Target::Files(files) => files.stream.clone(),
            };
            return Err(Error::NeverCommitted { stream, step });
        }
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
                // A commit was accepted, but its answer did not come in time.
                Ok(Answer::Already { next }) if next > self.next => {
                    self.next = next;
                    continue;
                }
                // All processes that it waits for are alive.
                Ok(Answer::Waiting(_)) if left.is_none_or(|left| !left.is_zero()) => continue,
                Ok(Answer::Waiting(fault)) => {
                    // Buffers allocated so far are useful only to a writer that waits longer.
                    self.abort();
                    return Err(fault.into());
                }
                Ok(other) => return Err(Error::Nonsense(format!("{other:?}"))),
                Err(error) => {
                    if self.forget(&error)? {
                        continue;
                    }
                    // It may still be granted, but is not needed any more.
                    self.abort();
                    return Err(error);
                }
            };
            let mut slots = Slots::new(self.client.clone(), self.id, self.timeout);
            let Err(error) = slots.open(self.needs.clone(), buffers) else {
                return Ok(slots);
            };
            drop(slots);
            self.abort();
            // A server that died since then gave some of them.
            if !self.forget(&error)? {
                return Err(error);
            }
        }
    }

    pub(crate) fn abort(&self) {
        // If the message does not arrive, the coordinator learns of the end of this process.
        let _ = self.client.tell(Request::Abort { writer: self.id });
    }

    /// From now on, uses only the servers that are not lost.
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

    /// As [`StoreWriter::forget_lost`], for the server whose loss caused `error`. Returns false for
    /// other errors, and for the loss of a process that is not a server: the coordinator.
    pub(crate) fn forget(&mut self, error: &Error) -> Result<bool> {
        match lost_block_store(error) {
            Some(lost) => self.keep_servers(|server| server != lost),
            None => Ok(false),
        }
    }

    /// Returns true if any server was removed.
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

    /// Remembers what a step needed, on the remaining servers: the next one requests it when it
    /// begins.
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
            // Without an answer, it is unknown which layout the coordinator knows.
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
