//! Opening streams at the coordinator: requests that wait for a name to appear, for their rank to
//! be free, or for the previous stream of that name to end.

use super::coordinator::Coordinator;
use super::ledger::Charge;
use super::queue::Queue;
use super::stream::Stream;
use super::{
    Answer, Fault, Interest, MOST_NEWS, Peer, Reader, Start, StreamConfig, StreamId, Ticket, unit,
};

/// A request to open a stream.
#[derive(Clone, Debug)]
pub(super) enum Opening {
    Writer {
        program: String,
        rank: u32,
        size: u32,
        config: Box<StreamConfig>,
        gives_up: bool,
    },
    Reader(Box<Reader>, bool),
    Watch {
        interest: Interest,
        start: Start,
        most: u32,
    },
}

impl Opening {
    /// Returns the name of the opener for messages.
    pub(super) fn who(&self) -> String {
        match self {
            Opening::Writer { program, rank, .. } => unit(program, rank),
            Opening::Reader(reader, _) => unit(&reader.group, reader.rank),
            Opening::Watch { interest, .. } => format!("the subscriber to {interest}"),
        }
    }

    /// Estimates the coordinator's memory for it once it is open, in bytes; rather too much than
    /// too little.
    fn cost(&self) -> u64 {
        let text = |text: &str| text.len() as u64;
        let ranks = |size: u32| RANK * u64::from(size.min(MOST_RANKS));
        THING
            + match self {
                Opening::Writer {
                    program,
                    size,
                    config,
                    ..
                } => {
                    let usual = config.limits.map_or(0, |limits| Queue::cost(limits, 0));
                    let expected = config.expected.iter();
                    let expected = expected.map(|expected| {
                        let queue = expected.limits.map(|limits| Queue::cost(limits, 0));
                        THING + text(&expected.group) + queue.unwrap_or(usual)
                    });
                    ranks(*size) + text(program) + usual + expected.sum::<u64>()
                }
                Opening::Reader(reader, _) => {
                    let only = reader.only.as_ref().map_or(0, Interest::cost);
                    ranks(reader.size) + text(&reader.group) + only
                }
                Opening::Watch { interest, most, .. } => {
                    (interest.cost() + RANK) * u64::from((*most).clamp(1, MOST_NEWS))
                }
            }
    }

    /// Checks its names, because every answer about it contains them.
    fn check_names(&self, stream: &str) -> Result<(), Fault> {
        let mut names = vec![stream];
        match self {
            Opening::Writer {
                program, config, ..
            } => {
                names.push(program);
                names.extend(config.expected.iter().map(|one| one.group.as_str()));
            }
            Opening::Reader(reader, _) => {
                names.push(&reader.group);
                names.extend(reader.only.iter().map(|only| only.variable.as_str()));
            }
            Opening::Watch { interest, .. } => names.push(&interest.variable),
        }
        match names.into_iter().find(|name| name.len() > MOST_NAME) {
            None => Ok(()),
            Some(name) => Err(Fault::NameTooLong {
                begins: name.chars().take(20).collect(),
                bytes: name.len() as u64,
                most: MOST_NAME as u64,
            }),
        }
    }

    fn check_ranks(&self) -> Result<(), Fault> {
        let (program, size) = match self {
            Opening::Writer { program, size, .. } => (program, *size),
            Opening::Reader(reader, _) => (&reader.group, reader.size),
            Opening::Watch { .. } => return Ok(()),
        };
        match size <= MOST_RANKS {
            true => Ok(()),
            false => Err(Fault::TooManyRanks {
                program: program.clone(),
                size,
                most: MOST_RANKS,
            }),
        }
    }
}

/// A request that waits for a name: for its stream to appear or to end, or for its rank to be free.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) from: Peer,
    ticket: Ticket,
    pub(super) until: u64,
    pub(super) since: u64,
    pub(super) name: String,
    pub(super) opening: Opening,
    /// The coordinator has no memory for it until readers take steps that are stored now.
    is_over: bool,
    /// Its cost once it is open.
    cost: u64,
    _charge: Charge,
}

impl Pending {
    fn no_stream(&self) -> Fault {
        Fault::NoStream {
            stream: self.name.clone(),
            open: None,
        }
    }

    /// Returns who opens, and by which request.
    fn by(&self) -> (Peer, Ticket) {
        (self.from, self.ticket)
    }

    /// Returns true if waiting may help.
    fn may_pass(&self, fault: &Fault) -> bool {
        match fault {
            Fault::NoStream { .. } | Fault::RankTaken { .. } | Fault::Over { .. } => true,
            Fault::TooMuchOpen { .. } => self.is_over,
            _ => false,
        }
    }
}

impl Coordinator {
    /// Takes a request to open a stream; [`Coordinator::open_pending`] admits or refuses it.
    pub(super) fn open(
        &mut self,
        from: Peer,
        ticket: Ticket,
        name: String,
        opening: Opening,
        timeout: u64,
    ) {
        let cost = opening.cost() + name.len() as u64;
        let is_over = match self.may_open(from, &name, &opening, cost + WAITS) {
            Ok(is_over) => is_over,
            Err(fault) => return self.answer(from, ticket, Answer::Failed(fault)),
        };
        let until = self.now.saturating_add(timeout);
        self.pending.push(Pending {
            from,
            ticket,
            until,
            since: self.now,
            name,
            opening,
            is_over,
            cost,
            _charge: self.ledger.charge(from, cost + WAITS),
        });
    }

    /// Returns true if it has to wait for memory first.
    fn may_open(
        &self,
        from: Peer,
        name: &str,
        opening: &Opening,
        cost: u64,
    ) -> Result<bool, Fault> {
        opening.check_names(name)?;
        self.ledger.check_beside_steps(from, cost)?;
        Ok(self.ledger.check(from, cost).is_err())
    }

    /// Answers the requests to open a stream that can succeed, and those that have failed. Returns
    /// true if there were any.
    pub(super) fn open_pending(&mut self) -> bool {
        let mut news = false;
        for pending in std::mem::take(&mut self.pending) {
            let answer = match self.try_open(&pending) {
                Ok(answer) => {
                    match &pending.opening {
                        Opening::Writer { .. } => self.history.wrote(&pending.name),
                        Opening::Reader(reader, _) => {
                            self.history.read(&pending.name, &reader.group);
                        }
                        Opening::Watch { .. } => self.history.watched(&pending.name),
                    }
                    answer
                }
                Err(fault) if pending.may_pass(&fault) && pending.until > self.now => {
                    self.pending.push(pending);
                    continue;
                }
                Err(Fault::NoStream { stream, .. }) => {
                    let open = Some(self.some_names());
                    Answer::Failed(Fault::NoStream { stream, open })
                }
                Err(fault) => Answer::Failed(fault),
            };
            news = true;
            self.answer(pending.from, pending.ticket, answer);
        }
        news
    }

    /// Ends a request to open something, or closes what it has opened: its process does not wait
    /// for the answer any more.
    pub(super) fn forget_opening(&mut self, from: Peer, ticket: Ticket) {
        let is_it = |pending: &Pending| (pending.from, pending.ticket) == (from, ticket);
        if let Some(at) = self.pending.iter().position(is_it) {
            self.pending.remove(at);
            return self.answer(from, ticket, Answer::Failed(Fault::NotOpen));
        }
        for stream in self.streams.values_mut() {
            stream.forget_opening(from, ticket);
        }
        self.left.retain(|_, left| {
            left.forget_opening(from, ticket);
            !left.is_empty()
        });
    }

    /// Returns the names of open streams, not too many of them, and none that is very long.
    fn some_names(&self) -> Vec<String> {
        let open = self
            .streams
            .values()
            .filter(|stream| stream.end().is_none());
        let names = open.map(Stream::name).filter(|name| name.len() <= 100);
        names.take(20).map(str::to_owned).collect()
    }

    fn try_open(&mut self, pending: &Pending) -> Result<Answer, Fault> {
        pending.opening.check_ranks()?;
        if pending.is_over {
            self.ledger.check(pending.from, 0)?;
        }
        let known = self.names.get(&pending.name).copied();
        match &pending.opening {
            Opening::Reader(reader, gives_up) => {
                let stream = known.and_then(|id| self.streams.get_mut(&id));
                let stream = stream.ok_or_else(|| pending.no_stream())?;
                stream.open_reader(pending.by(), reader, pending.cost, *gives_up)
            }
            Opening::Watch {
                interest,
                start,
                most,
            } => {
                let stream = known.and_then(|id| self.streams.get_mut(&id));
                let stream = stream.ok_or_else(|| pending.no_stream())?;
                stream.open_watch(pending.by(), interest, *start, *most, pending.cost)
            }
            Opening::Writer {
                program,
                rank,
                size,
                config,
                gives_up,
            } => {
                if rank >= size {
                    return Err(Fault::RankBeyond {
                        program: program.clone(),
                        rank: *rank,
                        size: *size,
                    });
                }
                // From here on, nothing prevents it from becoming the first writer of a new stream.
                let abandoned = known
                    .and_then(|id| self.streams.get_mut(&id))
                    .filter(|stream| stream.is_abandoned());
                if let Some(stream) = abandoned {
                    stream.abandon();
                    self.carry_out();
                    self.forget_over();
                }
                let id = match self.names.get(&pending.name) {
                    Some(&id) => id,
                    None => {
                        config.check(&pending.name)?;
                        self.new_stream(pending, program, *size, config)
                    }
                };
                let block_stores = self.block_stores();
                let stream = self.streams.get_mut(&id).ok_or(Fault::NotOpen)?;
                stream.open_writer(pending.by(), program, *rank, *size, block_stores, *gives_up)
            }
        }
    }

    fn new_stream(
        &mut self,
        pending: &Pending,
        program: &str,
        size: u32,
        config: &StreamConfig,
    ) -> StreamId {
        let name = &pending.name;
        let id = StreamId(self.next_stream);
        self.next_stream += 1;
        self.admission
            .stream(id, name, config.memory.unwrap_or(u64::MAX));
        let stream = Stream::new(
            self.now,
            id,
            name,
            program,
            size,
            config.clone(),
            self.admission.memory(),
        );
        let mut stream = stream.opened_by(pending.from, pending.cost, &self.ledger, &self.slow);
        stream.set_names(&self.block_store_names);
        self.streams.insert(id, stream);
        self.names.insert(name.clone(), id);
        id
    }
}

/// Maximum number of ranks of a program: a malformed number must not exhaust the memory.
const MOST_RANKS: u32 = 1 << 12;

/// Maximum bytes of a name.
const MOST_NAME: usize = 4 << 10;

/// The costs of a writer or reader rank, or of one entry that waits for a subscriber; and of a
/// stream, a group or a subscription in addition.
const RANK: u64 = 512;
const THING: u64 = 2048;

/// Every event looks at all requests that wait to open something. Each counts this much in addition
/// to what it opens, so that only few can wait.
const WAITS: u64 = 256 << 10;
