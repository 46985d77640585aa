//! What can go wrong with chunks, as messages for the user.

use crate::protocol::{LONGEST_NAME, Mode, Process, Version};
use samite_fabric::Named;
use std::path::PathBuf;
use std::time::Duration;

/// Failures of the world, and calls that do not fit the chunk they are for.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The fabric below: a lost peer, a deadline.
    #[error(transparent)]
    Fabric(#[from] samite_fabric::Error),
    /// No process of the domain serves chunks.
    #[error(
        "this domain has no server of chunks: start its agent (`samite agent`), or the program with `samite run`"
    )]
    NoServer,
    /// A second [`Dsm`](crate::Dsm) in a process that is a domain of its own.
    #[error(
        "this process is a domain of its own and already serves chunks: clone the `Dsm` that it has"
    )]
    SecondDsm,
    /// Nobody has allocated a chunk of that name.
    #[error(
        "no process allocated a chunk called \"{chunk}\" within {after:?}: is the name right, and does its owner run?"
    )]
    NotFound {
        /// The name.
        chunk: String,
        /// The time that was waited.
        after: Duration,
    },
    /// A chunk of that name has another type or length.
    #[error(
        "the chunk \"{chunk}\" has {len} elements of type {kind}, but {asked} was asked for: use its type and length, or another name"
    )]
    Differs {
        /// The name.
        chunk: String,
        /// The type of its elements.
        kind: String,
        /// The number of its elements.
        len: u64,
        /// What was asked for.
        asked: String,
    },
    /// A name that is empty or too long.
    #[error(
        "\"{0}\" is no name for a chunk: use one of at least one and at most {LONGEST_NAME} bytes"
    )]
    BadName(String),
    /// A guard was revoked.
    #[error(
        "a guard of the chunk \"{chunk}\" was revoked, because this process was stopped and kept others waiting; what was written under it is not committed: write it again"
    )]
    Fenced {
        /// The chunk.
        chunk: String,
    },
    /// The chunk was removed.
    #[error("the chunk \"{chunk}\" was freed: allocate it again, or do not use it any more")]
    Freed {
        /// The chunk.
        chunk: String,
    },
    /// What is to be changed at the home of a chunk is no word of it.
    #[error(
        "the chunk \"{chunk}\" of {bytes} bytes has no word at element {index} that can be changed at its home: use one of at most 4096 bytes, and an index at least 8 bytes before its end"
    )]
    NotAWord {
        /// The chunk.
        chunk: String,
        /// The element.
        index: u64,
        /// Bytes of the chunk.
        bytes: u64,
    },
    /// A process that belongs to a meeting is lost.
    #[error(
        "the meeting \"{meeting}\" is broken: {lost} belongs to it, and died or left; meet under another name"
    )]
    Broken {
        /// The name.
        meeting: String,
        /// The process.
        lost: Named<Process>,
    },
    /// Not all have come to a meeting in time.
    #[error(
        "only {} of {count} processes came to the meeting \"{meeting}\" within {after:?}{}{}: do all of them run, and give the same number?",
        here.len() + 1,
        and_who(here),
        and_not(absent)
    )]
    Missing {
        /// The name.
        meeting: String,
        /// The number that was to come.
        count: u64,
        /// The time that was waited.
        after: Duration,
        /// The others that had come.
        here: Vec<Named<Process>>,
        /// Those that had come before, and not this time.
        absent: Vec<Named<Process>>,
    },
    /// Others meet in another number.
    #[error(
        "{count} processes meet under the name \"{meeting}\", not {asked}: give the same number everywhere"
    )]
    OtherCount {
        /// The name.
        meeting: String,
        /// The number that others have given.
        count: u64,
        /// The number that this process gave.
        asked: u64,
    },
    /// The deadline has passed while others had guards.
    #[error(
        "no guard to {mode} the chunk \"{chunk}\" within {after:?}: {}; drop guards earlier, or raise the deadline",
        said_of(mode, holders, *before, full)
    )]
    Late {
        /// The chunk.
        chunk: String,
        /// What the guard was for.
        mode: &'static str,
        /// The time that was waited.
        after: Duration,
        /// The processes that have guards, and what for.
        holders: Vec<(Named<Process>, Mode)>,
        /// The number of requests that wait before this one.
        before: u64,
        /// The subscribers that let writers wait, and have as many events to take as they may.
        full: Vec<Named<Process>>,
    },
    /// Nothing was committed in time.
    #[error(
        "nothing was committed to the chunk \"{chunk}\" within {after:?}{}",
        and_why(holders, last)
    )]
    NoEvent {
        /// The chunk.
        chunk: String,
        /// The time that was waited.
        after: Duration,
        /// The processes that have guards, and what for. Not known after a wait that was short.
        holders: Vec<(Named<Process>, Mode)>,
        /// The process that has committed last.
        last: Option<Named<Process>>,
    },
    /// A subscription is further behind than its server remembers.
    #[error(
        "{missed} commits to the chunk \"{chunk}\" were missed: the subscription goes on with the next one; take events more often, or subscribe to the latest only"
    )]
    Lagged {
        /// The chunk.
        chunk: String,
        /// The number of commits.
        missed: u64,
    },
    /// The length of what is put.
    #[error("{has} elements do not fill the chunk \"{chunk}\" of {len}: give as many as it has")]
    Length {
        /// The chunk.
        chunk: String,
        /// The number of elements that were given.
        has: u64,
        /// The number that the chunk has.
        len: u64,
    },
    /// A range that is not in an array.
    #[error("the array \"{chunk}\" of {len} elements has no elements {begin}..{end}")]
    OutOfRange {
        /// The array.
        chunk: String,
        /// The first element of the range.
        begin: u64,
        /// The one after its last.
        end: u64,
        /// The number of elements of the array.
        len: u64,
    },
    /// The memory of the domain.
    #[error(
        "there is no memory for {bytes} bytes of the chunk \"{chunk}\": {why}; drop snapshots of old versions"
    )]
    NoMemory {
        /// The chunk.
        chunk: String,
        /// The number of bytes.
        bytes: u64,
        /// What the memory said.
        why: String,
    },
    /// A limit of the server.
    #[error(
        "the server of chunks serves at most {most} of them, or of waiting requests of one process: use fewer, larger chunks, or fewer threads"
    )]
    TooMany {
        /// The limit.
        most: u64,
    },
    /// A topology that cannot be used.
    #[error("the topology of servers of chunks: {0}")]
    Topology(String),
    /// A chunk that is written once.
    #[error("the chunk \"{chunk}\" is immutable, and was written: allocate another one")]
    Immutable {
        /// The chunk.
        chunk: String,
    },
    /// The home of the chunk is lost, and with it the content.
    #[error(
        "the chunk \"{chunk}\" is lost with its server \"{server}\"; {last} is the last one known here: allocate it again"
    )]
    Lost {
        /// The chunk.
        chunk: String,
        /// The name of the server in the topology.
        server: String,
        /// The last version that this process knows of; 0 if none.
        last: Version,
    },
    /// The home of a chunk with replicas was lost before it answered to a commit. Another server
    /// takes the chunk over.
    #[error(
        "the server \"{server}\" of the chunk \"{chunk}\" was lost before it answered to a commit: {}",
        match is_known {
            true => "nothing was committed; write it again",
            false => "whether it was committed is unknown; read the chunk, and look at its version and tag",
        }
    )]
    Interrupted {
        /// The chunk.
        chunk: String,
        /// The name of the server in the topology.
        server: String,
        /// Whether it is known that nothing was committed.
        is_known: bool,
    },
    /// The event log of this process cannot be written.
    #[error(
        "the event log {} cannot be written: {why}; give another folder with dsm.log_dir, or set dsm.log to off",
        path.display()
    )]
    LogUnwritable {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// A file or folder is no event log.
    #[error("{} {why}", path.display())]
    LogUnreadable {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// An unexpected answer.
    #[error("an unexpected answer of the server of chunks: {0}")]
    Nonsense(String),
}

samite_mem::error_codes!(Error, "dsm", {
    NoServer = 500, SecondDsm = 501, NotFound = 502, Differs = 503, BadName = 504, Fenced = 505,
    Late = 506, NoEvent = 507, Lagged = 508, Length = 509, NoMemory = 510, Nonsense = 511, TooMany = 512,
    Freed = 513, NotAWord = 514, Broken = 515, Missing = 516, OtherCount = 517, Topology = 518,
    Immutable = 519, Lost = 520, LogUnwritable = 521, LogUnreadable = 522, OutOfRange = 523,
    Interrupted = 524,
}, inner: Fabric);

/// The result of an operation on chunks.
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn and_who(here: &[Named<Process>]) -> String {
    let named: Vec<String> = here.iter().map(Named::to_string).collect();
    match named.is_empty() {
        true => String::new(),
        false => format!(" (this one and {})", named.join(", ")),
    }
}

fn and_not(absent: &[Named<Process>]) -> String {
    let named: Vec<String> = absent.iter().map(Named::to_string).collect();
    match named.is_empty() {
        true => String::new(),
        false => format!(", and not {}, as before", named.join(", ")),
    }
}

fn and_why(holders: &[(Named<Process>, Mode)], last: &Option<Named<Process>>) -> String {
    let mut all: Vec<String> = holders.iter().map(said).collect();
    all.extend(last.iter().map(|who| format!("{who} has committed last")));
    match all.is_empty() {
        true => String::new(),
        false => format!(": {}", all.join(", ")),
    }
}

fn said((who, mode): &(Named<Process>, Mode)) -> String {
    match mode {
        Mode::Read => format!("{who} reads it"),
        Mode::Write => format!("{who} writes it"),
    }
}

fn said_of(
    wanted: &str,
    holders: &[(Named<Process>, Mode)],
    before: u64,
    full: &[Named<Process>],
) -> String {
    let mut all: Vec<String> = holders.iter().map(said).collect();
    all.extend(
        full.iter()
            .map(|who| format!("{who} has not taken its events")),
    );
    if before > 0 {
        all.push(format!("{before} requests wait before"));
    }
    match all.is_empty() {
        true if wanted == "take" => "nobody committed a version that is left to take".to_owned(),
        true => "others had it until then".to_owned(),
        false => all.join(", "),
    }
}
