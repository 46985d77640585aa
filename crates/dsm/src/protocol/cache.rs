//! One chunk at one server: its copy, and the guards of the server's clients.
//!
//! ```text
//!   I  no copy              S  a copy, as others may have       E  the only copy
//!                                                               M  a client has a write guard
//!   clients      Acquire ──> queue ──> Give (a guard) ──> Release, or Commit
//!   the home     Ask ──> Grant        Recall ──> Recalled        Commit ──> Committed
//! ```
//! Guards are given first come, first served: readers together, a writer alone. What is granted by
//! the home may be used by all clients of the server, one after another, until the home recalls it;
//! then no guard is given any more, and the copy is given up when the guards that are out have
//! ended. A commit is written through to the home, so `M` only means "not committed yet".
//!
//! As long as nobody has to wait, the copy is *open*: clients that map the server's memory take
//! read guards themselves, without a message, by a word of shared memory that the server reads
//! before it lets anybody write ([`CacheAction::Close`]).
//!
//! A writer may become the *owner* of the copy ([`CacheEvent::Own`]): it commits again and again
//! under its guard, without asking, and looks itself at the words of the readers. So the copy is
//! open meanwhile.
//!
//! # Invariants
//! C1 While a write guard is out, no other guard is, and the copy is owned.
//! C2 While a read guard is out, the copy has the version that the guard was given, and stays.
//! C3 A recall is acknowledged exactly once, also by a server without a copy.
//! C4 A guard commits at most once, and only if it is out.
//! C5 While the copy is open, no write guard is out but that of an owner, here or at another
//!    server. It is closed only when no client has a read guard that it took itself.

use super::directory::Access;
use super::{GuardId, Process, Ticket, Version};
use std::collections::{BTreeMap, VecDeque};

/// What a guard is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Mode {
    /// Reading, together with others.
    Read,
    /// Writing, alone.
    Write,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CacheEvent {
    /// A client asks for a guard.
    Acquire {
        /// The client.
        from: Process,
        /// Its request.
        ticket: Ticket,
        /// What the guard is for.
        mode: Mode,
    },
    /// A client no longer waits for a guard.
    Cancel {
        /// The client.
        from: Process,
        /// Its request.
        ticket: Ticket,
    },
    /// A client ends a guard without a commit.
    Release {
        /// The client.
        from: Process,
        /// The guard.
        guard: GuardId,
    },
    /// A client commits what it has written under a guard, and ends the guard.
    Commit {
        /// The client.
        from: Process,
        /// Its request.
        ticket: Ticket,
        /// The guard.
        guard: GuardId,
        /// The tag of the new version.
        tag: u64,
    },
    /// A client is gone. All that it had sent has arrived.
    Gone {
        /// The client.
        client: Process,
    },
    /// The lease of a client is over: its guards end, except for a commit that is on its way. It
    /// may still wait for others.
    Fence {
        /// The client.
        client: Process,
    },
    /// The home has granted what was asked for.
    Granted {
        /// How the server has the chunk now.
        access: Access,
        /// The version that came with it.
        version: Version,
        /// Its tag.
        tag: u64,
        /// The epoch of the grant.
        epoch: u64,
    },
    /// The home recalls the copy, or leaves it for reading.
    Recall {
        /// What may be left.
        keeps: Option<Access>,
    },
    /// The client that has this write guard owns the copy from now on, until the guard ends.
    Own {
        /// The guard.
        guard: GuardId,
    },
    /// The owner has committed, up to this version.
    Adopted {
        /// The version.
        version: Version,
        /// Its tag.
        tag: u64,
    },
    /// The home has committed.
    Committed {
        /// The new version.
        version: Version,
    },
    /// The copy is closed: no client has a read guard that it took itself.
    Closed,
    /// The home has refused a commit, because the server does not own the chunk any more.
    Fenced,
    /// The lease of the server may be over: the copy is not valid any more. Guards end, except for
    /// a commit that is on its way, whose answer comes.
    Void,
    /// The home lets no other server own the chunk.
    AtHome,
    /// The memory of the copy is needed. It is given up if nobody uses it.
    Evict,
}

/// What the server has to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CacheAction {
    /// Ask the home.
    Ask {
        /// For how the server wants to have the chunk.
        access: Access,
    },
    /// Tell the home that its recall was carried out.
    Recalled {
        /// Whether a copy is kept.
        keeps: bool,
    },
    /// Send the home what a client has written.
    Commit {
        /// The guard under which it was written.
        guard: GuardId,
        /// The epoch of the grant.
        epoch: u64,
        /// The tag of the new version.
        tag: u64,
        /// The client that wrote it.
        writer: Process,
    },
    /// Give a client its guard.
    Give {
        /// The client.
        to: Process,
        /// Its request.
        ticket: Ticket,
        /// The guard.
        guard: GuardId,
        /// What it is for.
        mode: Mode,
        /// The version of the copy.
        version: Version,
        /// The tag of that version.
        tag: u64,
    },
    /// Tell a client of its commit: the version, or that its guard was revoked before.
    Answer {
        /// The client.
        to: Process,
        /// Its request.
        ticket: Ticket,
        /// The new version; `None` if nothing was committed.
        version: Option<Version>,
    },
    /// Let clients take read guards of this version themselves.
    Open {
        /// The version.
        version: Version,
        /// Its tag.
        tag: u64,
    },
    /// Let clients take no more read guards themselves, and report when those that they took have
    /// ended ([`CacheEvent::Closed`]).
    Close,
    /// Make what was written under a guard the copy: it is committed.
    Adopt {
        /// The guard.
        guard: GuardId,
    },
    /// Drop what a client wrote under a guard that ended without a commit.
    Discard {
        /// The guard.
        guard: GuardId,
    },
    /// Tell a client that waits for a write guard to ask the home.
    Redirect {
        /// The client.
        to: Process,
        /// Its request.
        ticket: Ticket,
    },
    /// Drop the copy.
    Evicted,
}

/// A client that waits for a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    from: Process,
    ticket: Ticket,
    mode: Mode,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Writer {
    client: Process,
    guard: GuardId,
    commit: Option<Committing>,
    /// Whether it owns the copy.
    owns: bool,
}

/// A commit on its way to the home and back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Committing {
    /// `None` if the client is gone.
    answer: Option<Ticket>,
    tag: u64,
}

/// The state of a copy, for people and for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// No copy, and none was asked for.
    I,
    /// No copy; one for reading was asked for.
    IS,
    /// No copy; to own the chunk was asked for.
    IM,
    /// A copy, as others may have it.
    S,
    /// A copy for reading; to own the chunk was asked for.
    SM,
    /// A copy for reading that was recalled while guards are out.
    SI,
    /// As [`State::SI`], and to own the chunk was asked for again.
    SIM,
    /// The only copy.
    E,
    /// The only copy, recalled while read guards are out.
    EI,
    /// The only copy; a client has a write guard.
    M,
    /// As [`State::M`], and the copy may be kept for reading afterwards.
    MS,
    /// As [`State::M`], and the copy was recalled.
    MI,
}

/// A chunk at a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cache {
    held: Option<Access>,
    asked: Option<Access>,
    /// What the home has recalled, until it is carried out: what may be left.
    recall: Option<Option<Access>>,
    version: Version,
    tag: u64,
    epoch: u64,
    readers: BTreeMap<GuardId, Process>,
    writer: Option<Writer>,
    queue: VecDeque<Waiting>,
    opening: Opening,
    is_evicted: bool,
    /// Whether the copy is dropped as soon as a commit that is on its way has been answered.
    is_void: bool,
}

/// Whether clients may take read guards themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Opening {
    #[default]
    Closed,
    Open,
    /// Some may still have such guards.
    Closing,
}

impl Cache {
    /// Returns the state of the copy.
    ///
    /// # Panics
    /// An invariant is broken.
    pub fn state(&self) -> State {
        let is_recalled = self.recall.is_some();
        match (self.held, self.asked) {
            (None, None) => State::I,
            (None, Some(Access::Shared)) => State::IS,
            (None, Some(Access::Owned)) => State::IM,
            (Some(Access::Shared), None) if is_recalled => State::SI,
            (Some(Access::Shared), Some(_)) if is_recalled => State::SIM,
            (Some(Access::Shared), None) => State::S,
            (Some(Access::Shared), Some(_)) => State::SM,
            (Some(Access::Owned), asked) => {
                assert!(asked.is_none(), "there is nothing more to ask for");
                match (&self.writer, self.recall) {
                    (Some(_), Some(Some(_))) => State::MS,
                    (Some(_), Some(None)) => State::MI,
                    (Some(_), None) => State::M,
                    (None, Some(_)) => State::EI,
                    (None, None) => State::E,
                }
            }
        }
    }

    /// Returns the clients that have a guard.
    pub fn holders(&self) -> impl Iterator<Item = (Process, GuardId, Mode)> {
        let readers = self.readers.iter();
        let readers = readers.map(|(guard, client)| (*client, *guard, Mode::Read));
        let writer = self.writer.iter();
        readers.chain(writer.map(|writer| (writer.client, writer.guard, Mode::Write)))
    }

    /// Returns the number of clients that have, or wait for, a write guard.
    pub fn writers(&self) -> usize {
        let waits = self.queue.iter();
        let waits = waits.filter(|waiting| waiting.mode == Mode::Write);
        waits.count() + usize::from(self.writer.is_some())
    }

    /// Returns the number of clients that wait for a guard.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Returns true if the home was asked, and has not answered.
    pub fn asks(&self) -> bool {
        self.asked.is_some()
    }

    /// Returns the commit that is on its way to the home.
    pub fn committing(&self) -> Option<(Process, Ticket)> {
        let writer = self.writer.as_ref()?;
        let answer = writer.commit.as_ref()?.answer?;
        Some((writer.client, answer))
    }

    /// Returns the epoch of the last grant.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the version of the copy, if there is one.
    pub fn version(&self) -> Option<Version> {
        self.held.map(|_| self.version)
    }

    /// Handles an event, and adds what has to be done. `next` numbers guards.
    pub fn on_event(
        &mut self,
        event: CacheEvent,
        next: &mut GuardId,
        actions: &mut Vec<CacheAction>,
    ) {
        match event {
            CacheEvent::Acquire { from, ticket, mode } => {
                self.queue.push_back(Waiting { from, ticket, mode });
            }
            CacheEvent::Cancel { from, ticket } => {
                let is_it = |one: &Waiting| one.from == from && one.ticket == ticket;
                self.queue.retain(|one| !is_it(one));
            }
            CacheEvent::Release { from, guard } => self.release(from, guard, actions),
            CacheEvent::Commit {
                from,
                ticket,
                guard,
                tag,
            } => self.commit((from, ticket), guard, tag, actions),
            CacheEvent::Gone { client } => self.gone(client, actions),
            CacheEvent::Fence { client } => self.end_guards(client, actions),
            CacheEvent::Granted {
                access,
                version,
                tag,
                epoch,
            } => {
                (self.held, self.asked) = (Some(access), None);
                (self.version, self.tag, self.epoch) = (version, tag, epoch);
            }
            CacheEvent::Recall { keeps } => self.recall = Some(keeps),
            CacheEvent::Own { guard } => self.own(guard),
            CacheEvent::Adopted { version, tag } => {
                if self.writer.as_ref().is_some_and(|writer| writer.owns) {
                    (self.version, self.tag) = (version, tag);
                }
            }
            CacheEvent::Committed { version } => self.committed(Some(version), actions),
            CacheEvent::Fenced => self.committed(None, actions),
            CacheEvent::Closed => self.opening = Opening::Closed,
            CacheEvent::Void => {
                self.readers.clear();
                self.abort(|_| true, actions);
                // The home has forgotten what was asked for, and what it has recalled.
                (self.asked, self.recall) = (None, None);
                self.is_void = self.held.is_some();
            }
            CacheEvent::AtHome => {
                self.asked = None;
                let is_writer = |one: &Waiting| one.mode == Mode::Write;
                let writers = self.queue.iter().filter(|one| is_writer(one));
                actions.extend(writers.map(|writer| CacheAction::Redirect {
                    to: writer.from,
                    ticket: writer.ticket,
                }));
                self.queue.retain(|one| !is_writer(one));
            }
            CacheEvent::Evict => self.is_evicted = self.held.is_some(),
        }
        self.evict(actions);
        self.advance(next, actions);
        self.open(actions);
    }

    /// Gives the copy up without a word to the home, if that is wanted and nobody uses it.
    fn evict(&mut self, actions: &mut Vec<CacheAction>) {
        let is_used = !self.queue.is_empty() || !self.readers.is_empty() || self.writer.is_some();
        self.is_evicted &= !is_used && self.held.is_some() && self.recall.is_none();
        if self.is_evicted && self.is_closed(actions) {
            (self.held, self.is_evicted) = (None, false);
            actions.push(CacheAction::Evicted);
        }
    }

    /// Opens the copy if nobody waits.
    fn open(&mut self, actions: &mut Vec<CacheAction>) {
        let is_idle = self.queue.is_empty() && self.recall.is_none() && self.writer.is_none();
        let is_idle = is_idle && !self.is_evicted && !self.is_void;
        if is_idle && self.held.is_some() && self.opening == Opening::Closed {
            self.opening = Opening::Open;
            let (version, tag) = (self.version, self.tag);
            actions.push(CacheAction::Open { version, tag });
        }
    }

    /// Returns true if the copy is closed, and closes it otherwise.
    fn is_closed(&mut self, actions: &mut Vec<CacheAction>) -> bool {
        if self.opening == Opening::Open {
            self.opening = Opening::Closing;
            actions.push(CacheAction::Close);
        }
        self.opening == Opening::Closed
    }

    fn release(&mut self, from: Process, guard: GuardId, actions: &mut Vec<CacheAction>) {
        if self.readers.get(&guard) == Some(&from) {
            self.readers.remove(&guard);
        }
        self.abort(
            |writer| (writer.client, writer.guard) == (from, guard),
            actions,
        );
    }

    /// The writer that has that guard owns the copy. As long as it does, the copy is open.
    fn own(&mut self, guard: GuardId) {
        if let Some(writer) = self.writer.as_mut().filter(|writer| writer.guard == guard) {
            writer.owns = true;
            self.opening = Opening::Open;
        }
    }

    /// Ends the write guard, unless its commit is on its way.
    fn abort(&mut self, is_it: impl Fn(&Writer) -> bool, actions: &mut Vec<CacheAction>) {
        let ended = self
            .writer
            .take_if(|writer| writer.commit.is_none() && is_it(writer));
        if let Some(Writer { guard, owns, .. }) = ended {
            actions.push(CacheAction::Discard { guard });
            if owns {
                // What the owner has opened, and nobody else can see.
                self.is_closed(actions);
            }
        }
    }

    fn commit(
        &mut self,
        (from, ticket): (Process, Ticket),
        guard: GuardId,
        tag: u64,
        actions: &mut Vec<CacheAction>,
    ) {
        let is_it = |writer: &&mut Writer| {
            let is_it = (writer.client, writer.guard) == (from, guard);
            is_it && writer.commit.is_none() && !writer.owns
        };
        match self.writer.as_mut().filter(is_it) {
            Some(writer) => {
                let answer = Some(ticket);
                writer.commit = Some(Committing { answer, tag });
                let epoch = self.epoch;
                actions.push(CacheAction::Commit {
                    guard,
                    epoch,
                    tag,
                    writer: from,
                });
            }
            None => actions.push(CacheAction::Answer {
                to: from,
                ticket,
                version: None,
            }),
        }
    }

    fn committed(&mut self, version: Option<Version>, actions: &mut Vec<CacheAction>) {
        let Some(Writer {
            client,
            guard,
            commit: Some(Committing { answer, tag }),
            ..
        }) = self.writer.take_if(|writer| writer.commit.is_some())
        else {
            return; // Only a home that does not follow the protocol.
        };
        match version {
            Some(version) => {
                (self.version, self.tag) = (version, tag);
                actions.push(CacheAction::Adopt { guard });
            }
            None => {
                (self.held, self.is_void) = (None, false);
                actions.push(CacheAction::Discard { guard });
                actions.push(CacheAction::Evicted);
            }
        }
        if let Some(ticket) = answer {
            actions.push(CacheAction::Answer {
                to: client,
                ticket,
                version,
            });
        }
    }

    fn gone(&mut self, client: Process, actions: &mut Vec<CacheAction>) {
        self.queue.retain(|waiting| waiting.from != client);
        self.end_guards(client, actions);
        if let Some(Writer {
            client: writer,
            commit: Some(commit),
            ..
        }) = &mut self.writer
            && *writer == client
        {
            commit.answer = None;
        }
    }

    fn end_guards(&mut self, client: Process, actions: &mut Vec<CacheAction>) {
        self.readers.retain(|_, reader| *reader != client);
        self.abort(|writer| writer.client == client, actions);
    }

    /// Returns true if clients are kept waiting by guards.
    pub fn is_blocked(&self) -> bool {
        self.recall.is_some() || (!self.queue.is_empty() && self.asked.is_none())
    }

    /// Carries out a recall, and gives guards, as far as possible.
    fn advance(&mut self, next: &mut GuardId, actions: &mut Vec<CacheAction>) {
        if self.is_void {
            if self.writer.is_some() || !self.is_closed(actions) {
                return;
            }
            (self.held, self.is_void) = (None, false);
            actions.push(CacheAction::Evicted);
        }
        if let Some(keeps) = self.recall {
            let is_read = keeps.is_none() && !self.readers.is_empty();
            let is_closed = keeps.is_some() || self.is_closed(actions);
            if self.writer.is_some() || is_read || !is_closed {
                return;
            }
            self.held = self.held.and(keeps);
            self.recall = None;
            let keeps = self.held.is_some();
            actions.push(CacheAction::Recalled { keeps });
        }
        while let Some(waiting) = self.queue.front().copied() {
            let wants = match waiting.mode {
                Mode::Read => Access::Shared,
                Mode::Write => Access::Owned,
            };
            if self.held.is_none_or(|held| held < wants) {
                if self.asked.is_none() {
                    self.asked = Some(wants);
                    actions.push(CacheAction::Ask { access: wants });
                }
                return;
            }
            let is_free = match waiting.mode {
                Mode::Read => true,
                Mode::Write => self.is_closed(actions) && self.readers.is_empty(),
            };
            if self.writer.is_some() || !is_free {
                return;
            }
            self.queue.pop_front();
            let Waiting { from, ticket, mode } = waiting;
            let guard = *next;
            next.0 += 1;
            match mode {
                Mode::Read => _ = self.readers.insert(guard, from),
                Mode::Write => {
                    self.writer = Some(Writer {
                        client: from,
                        guard,
                        commit: None,
                        owns: false,
                    });
                }
            }
            actions.push(CacheAction::Give {
                to: from,
                ticket,
                guard,
                mode,
                version: self.version,
                tag: self.tag,
            });
        }
    }
}
