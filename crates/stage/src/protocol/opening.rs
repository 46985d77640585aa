//! Opening streams at the steward: who waits for a name to be there, for its rank to be free, or for the stream before to be
//! over.

use super::steward::Steward;
use super::stream::Stream;
use super::{Answer, Fault, Interest, Peer, Reader, Start, StreamConfig, StreamId, Ticket};

/// A stream is to be opened.
#[derive(Clone, Debug)]
pub(super) enum Opening {
    Writer {
        program: String,
        rank: u32,
        size: u32,
        config: StreamConfig,
    },
    Reader(Reader),
    Watch {
        interest: Interest,
        start: Start,
        most: u32,
    },
}

impl Opening {
    /// Who opens, as a person says it.
    pub(super) fn who(&self) -> String {
        match self {
            Opening::Writer { program, rank, .. } => format!("rank {rank} of {program}"),
            Opening::Reader(reader) => format!("rank {} of {}", reader.rank, reader.group),
            Opening::Watch { interest, .. } => format!("the subscriber to {interest}"),
        }
    }

    fn check_ranks(&self) -> Result<(), Fault> {
        let (program, size) = match self {
            Opening::Writer { program, size, .. } => (program, *size),
            Opening::Reader(reader) => (&reader.group, reader.size),
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

/// Somebody waits for a name: for its stream to appear or to be over, or for its rank to be free.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) from: Peer,
    ticket: Ticket,
    pub(super) until: u64,
    pub(super) since: u64,
    pub(super) name: String,
    pub(super) opening: Opening,
}

impl Pending {
    fn no_stream(&self) -> Fault {
        Fault::NoStream {
            stream: self.name.clone(),
        }
    }
}

impl Steward {
    /// Somebody wants to open a stream; it is let in, or turned away, in [`Steward::open_pending`].
    pub(super) fn open(
        &mut self,
        from: Peer,
        ticket: Ticket,
        name: String,
        opening: Opening,
        patience: u64,
    ) {
        let until = self.now.saturating_add(patience);
        self.pending.push(Pending {
            from,
            ticket,
            until,
            since: self.now,
            name,
            opening,
        });
    }

    /// Lets those in who wait to open a stream and can, turns those away who cannot; says whether there were any.
    pub(super) fn open_pending(&mut self) -> bool {
        let mut news = false;
        for pending in std::mem::take(&mut self.pending) {
            let answer = match self.try_open(&pending) {
                Ok(answer) => answer,
                Err(fault) if may_pass(&fault) && pending.until > self.now => {
                    self.pending.push(pending);
                    continue;
                }
                Err(fault) => Answer::Failed(fault),
            };
            news = true;
            self.answer(pending.from, pending.ticket, answer);
        }
        news
    }

    fn try_open(&mut self, pending: &Pending) -> Result<Answer, Fault> {
        pending.opening.check_ranks()?;
        let known = self.names.get(&pending.name).copied();
        match &pending.opening {
            Opening::Reader(reader) => {
                let stream = known.and_then(|id| self.streams.get_mut(&id));
                let stream = stream.ok_or_else(|| pending.no_stream())?;
                stream.open_reader(pending.from, reader)
            }
            Opening::Watch {
                interest,
                start,
                most,
            } => {
                let stream = known.and_then(|id| self.streams.get_mut(&id));
                let stream = stream.ok_or_else(|| pending.no_stream())?;
                stream.open_watch(pending.from, interest, *start, *most)
            }
            Opening::Writer {
                program,
                rank,
                size,
                config,
            } => {
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
                    None if rank < size => self.new_stream(&pending.name, program, *size, config),
                    None => {
                        return Err(Fault::RankBeyond {
                            program: program.clone(),
                            rank: *rank,
                            size: *size,
                        });
                    }
                };
                let keepers = self.keepers();
                let stream = self.streams.get_mut(&id).ok_or(Fault::NotOpen)?;
                stream.open_writer(pending.from, program, *rank, *size, keepers)
            }
        }
    }

    fn new_stream(
        &mut self,
        name: &str,
        program: &str,
        size: u32,
        config: &StreamConfig,
    ) -> StreamId {
        let id = StreamId(self.next_stream);
        self.next_stream += 1;
        self.governor
            .stream(id, name, config.memory.unwrap_or(u64::MAX));
        let stream = Stream::new(
            self.now,
            id,
            name,
            program,
            size,
            config.clone(),
            self.governor.memory(),
        );
        self.streams.insert(id, stream);
        self.names.insert(name.to_owned(), id);
        id
    }
}

/// Most ranks that a program may have: a word of nonsense must not cost all memory.
const MOST_RANKS: u32 = 1 << 12;

/// Whether waiting may help.
fn may_pass(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::NoStream { .. } | Fault::RankTaken { .. } | Fault::Over { .. }
    )
}
