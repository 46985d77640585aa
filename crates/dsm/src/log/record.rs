//! Records of the event log: 64 bytes each, little-endian.
//!
//! ```text
//!   0 time   8 chunk   16 version   24 guard   32 tag   40 value   48 peer   52 incarnation
//!   56 kind   58 call   60 number
//! ```
//! What a field means depends on the kind ([`Kind`]). A record of a name has 32 bytes of text
//! where others have version, guard, tag and value.

use crate::protocol::{ChunkId, GuardId, Process, Version};
use samite_fabric::PeerId;

/// Bytes of a record.
pub const RECORD: usize = 64;

/// Bytes of a name that fit into one record.
const TEXT: usize = 32;

/// In the number of a chunk: it is a meeting, which has no number of its own.
const MEETING: u64 = 1 << 63;

/// Defines an enum of words that are stored as numbers.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $word:ident = $number:literal $text:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$doc])* $word = $number,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &'static [$name] = &[$($name::$word,)*];

            fn of_number(number: u16) -> Option<$name> {
                match number {
                    $($number => Some($name::$word),)*
                    _ => None,
                }
            }

            /// Returns its word.
            pub fn word(self) -> &'static str {
                match self {
                    $($name::$word => $text,)*
                }
            }
        }
    };
}

words! {
    /// What a record tells of.
    Kind {
        /// Part of the name of a chunk or a meeting; the call is the number of the part, the peer
        /// the length of the whole.
        Name = 1 "name",
        /// A client has opened a chunk; value: its bytes.
        Opened = 2 "opened",
        /// A client begins a call that may wait.
        Asked = 3 "asked",
        /// A client was given a guard, or took one without a message (guard 0); value: how long it
        /// has waited.
        Given = 4 "given",
        /// A client ends a guard without a commit.
        Ended = 5 "ended",
        /// A client's commit was acknowledged; value: how long it took.
        Committed = 6 "committed",
        /// A client got a snapshot; value: how long it took.
        Got = 7 "got",
        /// A client has taken an event; guard: the subscription; peer: the writer; value: how long
        /// it has waited.
        Event = 8 "event",
        /// A client has subscribed; guard: the subscription; version: the one after which it
        /// begins; tag: 0 if it wants each event, 1 for the latest only.
        Subscribed = 9 "subscribed",
        /// A subscription has missed events; guard: the subscription; value: their number.
        Missed = 10 "missed",
        /// A client has met others; value: how long it has waited.
        Met = 11 "met",
        /// A call has failed; version: the number of the error; value: how long it took.
        Failed = 12 "failed",

        /// A server has heard a request of a client; guard: the number of the request.
        Request = 32 "request",
        /// A server gives a guard to a client.
        Grant = 33 "grant",
        /// A server makes a version the present one; peer: the client that wrote it. Nobody has
        /// seen the version before that.
        Adopt = 34 "adopt",
        /// A server ends the reading without messages, because somebody wants to write.
        Close = 35 "close",
        /// A server allows it.
        Open = 36 "open",
        /// A server tells a subscriber of events; version: the last one; guard: the subscription;
        /// value: their number.
        Told = 37 "told",
        /// A client that is stopped loses its guards.
        Fence = 38 "fence",
        /// A client is gone.
        Lost = 39 "lost",
        /// A client's wait for a guard is over without one.
        Late = 40 "late",
        /// A chunk was created; value: its bytes; version: the one that it begins with, where a
        /// server takes it over.
        Created = 41 "created",
        /// A chunk was removed.
        Removed = 42 "removed",

        /// With counters only: what happened to a chunk since the beginning. Version: the number
        /// of the kind that was counted; guard: how often; tag: the largest value; value: the sum.
        /// Read guards that were taken without a message have no call.
        Count = 60 "count",
        /// The log was closed; value: the number of records that were dropped.
        Closed = 62 "closed",
    }
}

words! {
    /// What a client asks for.
    Call {
        /// Nothing in particular.
        None = 0 "",
        /// A guard to read.
        Read = 1 "read",
        /// A guard to write.
        Write = 2 "write",
        /// A version that nobody else takes.
        Take = 3 "take",
        /// A commit.
        Commit = 4 "commit",
        /// A put.
        Put = 5 "put",
        /// A change of a word at the home.
        Change = 6 "delegate",
        /// A snapshot.
        Snapshot = 7 "snapshot",
        /// An event of a subscription.
        Event = 8 "event",
        /// A meeting with others.
        Meet = 9 "meet",
        /// A chunk by its name.
        Open = 10 "open",
        /// A subscription.
        Subscribe = 11 "subscribe",
        /// Memory for a draft.
        Draft = 12 "draft",
        /// The end of a guard or a draft.
        Release = 13 "release",
        /// The end of a chunk.
        Free = 14 "free",
        /// Anything else.
        Other = 15 "other",
    }
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it happened, or ended: nanoseconds of the monotonic clock, which is the same for all
    /// processes of a machine.
    pub time: u64,
    /// The chunk, or the meeting.
    pub chunk: u64,
    /// The version.
    pub version: u64,
    /// The guard.
    pub guard: u64,
    /// The tag of the version.
    pub tag: u64,
    /// A duration in nanoseconds, or an amount.
    pub value: u64,
    /// The other process.
    pub peer: u32,
    /// Its incarnation.
    pub incarnation: u32,
    /// What it tells of.
    pub kind: Kind,
    /// What was asked for; of a name, the number of the part.
    pub(super) call: u16,
    /// The number of the record in its log; wraps around.
    pub number: u32,
}

impl Record {
    /// Creates a record of a moment.
    pub fn new(kind: Kind, time: u64) -> Record {
        Record {
            time,
            chunk: u64::MAX,
            version: 0,
            guard: 0,
            tag: 0,
            value: 0,
            peer: u32::MAX,
            incarnation: 0,
            kind,
            call: 0,
            number: 0,
        }
    }

    /// The same, of a chunk.
    #[must_use]
    pub fn of(self, chunk: ChunkId) -> Record {
        let chunk = chunk.0;
        Record { chunk, ..self }
    }

    /// The same, of a meeting.
    #[must_use]
    pub fn of_meeting(self, name: &str) -> Record {
        let chunk = meeting(name);
        Record { chunk, ..self }
    }

    /// The same, of a version and its tag.
    #[must_use]
    pub fn at(self, version: Version, tag: u64) -> Record {
        let version = version.0;
        Record {
            version,
            tag,
            ..self
        }
    }

    /// The same, of a guard.
    #[must_use]
    pub fn under(self, guard: GuardId) -> Record {
        let guard = guard.0;
        Record { guard, ..self }
    }

    /// The same, with another process.
    #[must_use]
    pub fn with(self, process: Process) -> Record {
        Record {
            peer: process.peer.0,
            incarnation: process.incarnation,
            ..self
        }
    }

    /// The same, of a call.
    #[must_use]
    pub fn by(self, call: Call) -> Record {
        let call = call as u16;
        Record { call, ..self }
    }

    /// The same, with a value.
    #[must_use]
    pub fn worth(self, value: u64) -> Record {
        Record { value, ..self }
    }

    /// Returns what was asked for.
    pub fn call(&self) -> Call {
        match self.kind {
            Kind::Name => Call::None,
            _ => Call::of_number(self.call).unwrap_or(Call::None),
        }
    }

    /// Returns when it began; its value is a duration.
    pub fn began(&self) -> u64 {
        self.time.saturating_sub(self.value)
    }

    /// Returns true if it tells of a read guard that was taken without a message.
    pub fn is_hit(&self) -> bool {
        self.kind == Kind::Given && self.guard == 0
    }

    /// Returns the other process.
    pub fn process(&self) -> Process {
        Process {
            peer: PeerId(self.peer),
            incarnation: self.incarnation,
        }
    }

    /// Returns true if it tells of a meeting.
    pub fn is_of_meeting(&self) -> bool {
        is_meeting(self.chunk)
    }

    /// Returns the kind that a record of counters counts.
    pub fn counted(&self) -> Option<Kind> {
        u16::try_from(self.version).ok().and_then(Kind::of_number)
    }

    /// Returns the records of a name.
    pub fn name(chunk: u64, name: &str) -> impl Iterator<Item = Record> {
        let parts = name.as_bytes().chunks(TEXT).enumerate();
        parts.map(move |(part, text)| {
            let mut words = [0; 4];
            for (word, bytes) in words.iter_mut().zip(text.chunks(8)) {
                let mut whole = [0; 8];
                whole[..bytes.len()].copy_from_slice(bytes);
                *word = u64::from_le_bytes(whole);
            }
            let [version, guard, tag, value] = words;
            Record {
                chunk,
                version,
                guard,
                tag,
                value,
                peer: name.len() as u32,
                call: part as u16,
                ..Record::new(Kind::Name, 0)
            }
        })
    }

    /// Adds what a record of a name says to the name. Returns true if the name is complete.
    pub fn add_name(&self, name: &mut Vec<u8>) -> bool {
        if name.len() != usize::from(self.call) * TEXT {
            name.clear(); // A part was dropped; the name begins again with its first part.
            if self.call != 0 {
                return false;
            }
        }
        let words = [self.version, self.guard, self.tag, self.value];
        let text = words.into_iter().flat_map(u64::to_le_bytes);
        let left = (self.peer as usize).saturating_sub(name.len());
        name.extend(text.take(left));
        name.len() == self.peer as usize
    }

    /// Encodes it.
    #[inline]
    pub fn to_bytes(&self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        let words = [
            self.time,
            self.chunk,
            self.version,
            self.guard,
            self.tag,
            self.value,
            u64::from(self.peer) | u64::from(self.incarnation) << 32,
            u64::from(self.kind as u16) | u64::from(self.call) << 16 | u64::from(self.number) << 32,
        ];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    /// Decodes one; `None` if it is of no known kind.
    pub fn from_bytes(bytes: &[u8; RECORD]) -> Option<Record> {
        let mut words = [0; RECORD / 8];
        for (word, from) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*from);
        }
        let [time, chunk, version, guard, tag, value, process, rest] = words;
        let (kind, call) = (Kind::of_number(rest as u16)?, (rest >> 16) as u16);
        let is_call = kind == Kind::Name || Call::of_number(call).is_some();
        is_call.then_some(Record {
            time,
            chunk,
            version,
            guard,
            tag,
            value,
            peer: process as u32,
            incarnation: (process >> 32) as u32,
            kind,
            call,
            number: (rest >> 32) as u32,
        })
    }
}

/// Returns true if that is the number of a meeting, and not of a chunk.
pub(crate) fn is_meeting(chunk: u64) -> bool {
    chunk != u64::MAX && chunk & MEETING != 0
}

/// Returns the number by which records name a meeting: a hash of its name (FNV-1a).
pub(super) fn meeting(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // The number of no chunk at all has all bits.
    (hash & !1) | MEETING
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_back() {
        for (at, kind) in Kind::ALL.iter().enumerate() {
            let process = Process {
                peer: PeerId(7),
                incarnation: 3,
            };
            let record = Record::new(*kind, u64::MAX - 5)
                .of(ChunkId(9))
                .at(Version(1 << 40), 77)
                .under(GuardId(5))
                .with(process)
                .by(Call::ALL[at % Call::ALL.len()])
                .worth(12);
            let record = Record {
                number: 0xffff_fff0,
                ..record
            };
            assert_eq!(Record::from_bytes(&record.to_bytes()), Some(record));
            assert_eq!(record.process(), process);
        }
        let mut bytes = Record::new(Kind::Open, 1).to_bytes();
        bytes[56] = 99;
        assert_eq!(Record::from_bytes(&bytes), None);
    }

    #[test]
    fn names_of_any_length_are_read_back() {
        for length in [1, 31, 32, 33, 64, 200, 256] {
            let name = "ä1".repeat(100)[..length / 3 * 3].to_owned() + &"x".repeat(length % 3);
            let mut read = Vec::new();
            let parts: Vec<_> = Record::name(4, &name).collect();
            let done: Vec<bool> = parts.iter().map(|part| part.add_name(&mut read)).collect();
            assert_eq!(String::from_utf8(read), Ok(name));
            assert_eq!(done.iter().filter(|done| **done).count(), 1);
            assert_eq!(done.last(), Some(&true));
        }
        // A part is missing, then all are there.
        let parts: Vec<_> = Record::name(4, &"y".repeat(100)).collect();
        let mut read = Vec::new();
        assert!(!parts[0].add_name(&mut read));
        assert!(!parts[2].add_name(&mut read));
        let done = parts.iter().map(|part| part.add_name(&mut read)).last();
        assert_eq!((done, read.len()), (Some(true), 100));
    }
}
