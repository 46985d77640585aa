//! The event log: what this process does with chunks, as fixed-size binary records in a file.
//!
//! Clients and servers each have a log of their own. The times of all logs of a machine are of one
//! clock, so that the logs of a run, read together, are its history: `samite trace` shows it, and
//! [`history`](crate::history) checks it.
//!
//! ```text
//!   off       nothing
//!   counters  how often each thing happened to each chunk, and how long it took
//!   full      a record of 64 bytes for each thing that happened
//! ```
//! A record is written to a buffer in memory; a thread writes full buffers to the file. If the file
//! is too slow, records are dropped and counted, and the protocol does not wait. A process that is
//! killed loses the records of its last moments (50 ms).
//!
//! # Files
//! `record` (what a record says) · `buffer` (buffers and their thread) · `client` (what clients
//! record; `service/recorder` is its counterpart) · `file` (the format of a file, and its reader)

mod buffer;
mod client;
mod file;
mod record;

pub use self::file::{EXTENSION, Header, Log, Run};
pub(crate) use self::record::is_meeting;
pub use self::record::{Call, Kind, RECORD, Record};

pub(crate) use crate::clock::nanoseconds as now;

use self::buffer::{Shared, Writing};
use crate::error::{Error, Result};
use crate::protocol::Process;
use samite_fabric::Fabric;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

/// How many logs of a process may have the same name.
const MOST_SAME: u32 = 1000;

/// What is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Nothing.
    #[default]
    Off = 0,
    /// How often what happened.
    Counters = 1,
    /// Everything that happens.
    Full = 2,
}

impl Level {
    fn of_number(number: u32) -> Option<Level> {
        [Level::Off, Level::Counters, Level::Full]
            .into_iter()
            .find(|level| *level as u32 == number)
    }
}

/// Whose log it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A process that uses chunks.
    Client = 0,
    /// A server of chunks.
    Server = 1,
}

/// Whether a process records, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// What is recorded.
    pub level: Level,
    /// The folder in which each run has a folder, which is named after its domain.
    pub folder: PathBuf,
}

static OF_PROCESS: OnceLock<Settings> = OnceLock::new();

/// The logs of this process that are open.
static OPEN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

impl Settings {
    /// Makes these the settings of all clients and servers of this process. The code that resolves
    /// the settings of the process (`samite::init`) calls it once, before the first of them. Later
    /// calls have no effect.
    pub fn make_default(self) {
        let _ = OF_PROCESS.set(self);
    }

    /// Returns the folder of a run: of the processes of a domain.
    pub fn folder_of(&self, domain: &str) -> PathBuf {
        self.folder.join(plain(domain))
    }
}

/// Writes to their files what the logs of this process have recorded so far: before the process
/// ends in a way that drops nothing.
pub fn flush_all() {
    let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for log in open.iter().filter_map(Weak::upgrade) {
        log.flush();
    }
}

/// The log that a client or a server writes; without effect if it is off. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Writer(Option<Arc<Writing>>);

impl Writer {
    /// Opens the log of this process in this role, if its settings say so.
    ///
    /// # Errors
    /// [`Error::LogUnwritable`].
    pub(crate) fn open(fabric: &Fabric, role: Role) -> Result<Writer> {
        match OF_PROCESS.get() {
            Some(settings) if settings.level != Level::Off => {
                let domain = fabric
                    .domain()
                    .map_or_else(|| format!("alone-{}", std::process::id()), str::to_owned);
                let folder = settings.folder_of(&domain);
                let identity = fabric.identity();
                let header = Header {
                    level: settings.level,
                    role,
                    process: Process {
                        peer: fabric.me(),
                        incarnation: fabric.incarnation(),
                    },
                    pid: std::process::id(),
                    name: format!("{}.{}", identity.program, identity.rank),
                    start: now(),
                    start_since_1970: since_1970(),
                    boot: boot(),
                };
                Writer::create(&folder, &header)
            }
            _ => Ok(Writer::off()),
        }
    }

    pub(crate) fn off() -> Writer {
        Writer(None)
    }

    fn create(folder: &Path, header: &Header) -> Result<Writer> {
        let wrong = |path: &Path, error: std::io::Error| Error::LogUnwritable {
            path: path.to_owned(),
            why: error.to_string(),
        };
        std::fs::create_dir_all(folder).map_err(|error| wrong(folder, error))?;
        let (path, mut file) = new_file(folder, header).map_err(|error| wrong(folder, error))?;
        let begun = file.write_all(&header.encode());
        let writing = begun.and_then(|()| Writing::start(header.level, file));
        let writing = writing.map_err(|error| wrong(&path, error))?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|log| log.strong_count() > 0);
        open.push(Arc::downgrade(&writing.shared));
        Ok(Writer(Some(Arc::new(writing))))
    }

    /// Returns the time; 0 if the log is off.
    #[inline]
    pub(crate) fn clock(&self) -> u64 {
        match &self.0 {
            None => 0,
            Some(_) => now(),
        }
    }

    /// Records what `record` returns.
    #[inline]
    pub(crate) fn put(&self, record: impl FnOnce() -> Record) {
        if let Some(writing) = &self.0 {
            writing.shared.put(record());
        }
    }

    /// Records the name of a chunk or a meeting, once.
    pub(crate) fn put_name(&self, chunk: u64, name: &str) {
        if let Some(writing) = &self.0 {
            writing.shared.put_name(chunk, name);
        }
    }

    /// Returns true if each call is recorded.
    pub(crate) fn is_full(&self) -> bool {
        let level = self.0.as_ref().map(|writing| writing.shared.level);
        level == Some(Level::Full)
    }
}

/// Creates a file that there was not: a process may join twice, and clients and servers have files
/// of their own.
fn new_file(folder: &Path, header: &Header) -> std::io::Result<(PathBuf, File)> {
    let Process { peer, incarnation } = header.process;
    let role = match header.role {
        Role::Client => "",
        Role::Server => "-server",
    };
    let name = plain(&header.name);
    for number in 1..MOST_SAME {
        let again = match number {
            1 => String::new(),
            number => format!("-{number}"),
        };
        let name = format!("{name}-{}.{incarnation}{role}{again}.{EXTENSION}", peer.0);
        let path = folder.join(name);
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => return opened.map(|file| (path, file)),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// Returns a text as the name of a file or folder: anything but letters, digits, `.`, `-` and `_`
/// is replaced.
fn plain(text: &str) -> String {
    let is_plain = |letter: &char| letter.is_alphanumeric() || ".-_".contains(*letter);
    let plain = text.chars().take(100);
    let plain: String = plain
        .map(|letter| if is_plain(&letter) { letter } else { '_' })
        .collect();
    match plain.trim_start_matches('.') {
        "" => "_".to_owned(),
        plain => plain.to_owned(),
    }
}

fn since_1970() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0))
}

/// Returns what names this boot of this machine.
fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map_or_else(|_| String::new(), |id| id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ChunkId;
    use samite_fabric::PeerId;

    fn header(level: Level) -> Header {
        Header {
            level,
            role: Role::Client,
            process: Process {
                peer: PeerId(1),
                incarnation: 2,
            },
            pid: 3,
            name: "../a program.0".to_owned(),
            start: now(),
            start_since_1970: since_1970(),
            boot: boot(),
        }
    }

    fn record(time: u64) -> Record {
        Record::new(Kind::Given, time).of(ChunkId(4)).worth(time)
    }

    /// Returns what several threads have written.
    fn written(level: Level, threads: u64, each: u64) -> Log {
        let folder = tempfile::tempdir().expect("a folder");
        let log = Writer::create(folder.path(), &header(level)).expect("it is written");
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let log = log.clone();
                scope.spawn(move || {
                    for time in 1..=each {
                        log.put(|| record(time));
                        log.put_name(4, "frame");
                    }
                });
            }
        });
        drop(log);
        let mut run = Log::read_run(folder.path()).expect("it is read");
        assert_eq!(run.logs.len(), 1);
        run.logs.remove(0)
    }

    #[test]
    fn what_is_written_is_read() {
        let log = written(Level::Full, 3, 20_000);
        // The buffers have place for 16384 records; what the thread was too slow for is counted.
        assert_eq!(log.records.len() as u64 + log.missing, 60_000);
        assert!(log.records.len() >= 4096, "{}", log.records.len());
        assert_eq!(log.names[&4], "frame");
        assert!(log.is_closed && !log.is_cut);
        assert_eq!(log.header.name, "../a program.0");
        let name = log.path.file_name().and_then(|name| name.to_str());
        assert_eq!(name, Some("_a_program.0-1.2.dsmlog"));
    }

    #[test]
    fn counters_are_the_sums() {
        let log = written(Level::Counters, 2, 1000);
        let last = log.records.last().expect("there are counters");
        assert_eq!(last.kind, Kind::Count);
        assert_eq!(last.counted(), Some(Kind::Given));
        let sum = 2 * (1000 * 1001 / 2);
        assert_eq!((last.guard, last.tag, last.value), (2000, 1000, sum));
    }

    #[test]
    fn a_second_log_has_a_file_of_its_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = || Writer::create(folder.path(), &header(Level::Full));
        let logs = [open().expect("the first"), open().expect("the second")];
        logs[0].put(|| record(1));
        flush_all();
        let read = Log::read_run(folder.path()).expect("they are read").logs;
        let lengths: Vec<usize> = read.iter().map(|log| log.records.len()).collect();
        assert_eq!(lengths, [0, 1]); // By name: `...-2.dsmlog` comes first.
        assert!(!read[1].is_closed);
    }

    #[test]
    fn logs_of_different_runs_are_not_mixed() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = header(Level::Full);
        let again = Header {
            pid: 4,
            ..first.clone()
        };
        for header in [&first, &again] {
            drop(Writer::create(folder.path(), header).expect("it is written"));
        }
        let error = Log::read_run(folder.path()).expect_err("they are of two runs");
        assert!(error.to_string().contains("different lives"), "{error}");
        let other = Header {
            boot: "another".to_owned(),
            ..first.clone()
        };
        let folder = tempfile::tempdir().expect("a folder");
        for header in [&first, &other] {
            drop(Writer::create(folder.path(), header).expect("it is written"));
        }
        let error = Log::read_run(folder.path()).expect_err("they are of two boots");
        assert!(error.to_string().contains("another boot"), "{error}");
    }

    /// A process that was killed as it began its log leaves an empty file, or part of a header. The
    /// logs of the others can be read, and its file is named. A file of something else is an error.
    #[test]
    fn a_log_that_was_not_begun_is_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let header = header(Level::Full);
        let bytes = header.encode();
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).expect("a file");
            path
        };
        let (empty, cut) = (file("a.dsmlog", b""), file("b.dsmlog", &bytes[..100]));
        let none = Log::read_run(folder.path()).expect_err("none was begun");
        let said = "that do not end inside their header";
        assert!(none.to_string().contains(said), "{none}");
        drop(Writer::create(folder.path(), &header).expect("it is written"));
        let run = Log::read_run(folder.path()).expect("the others are read");
        assert_eq!(run.logs.len(), 1);
        assert_eq!(run.logs[0].header, header);
        assert_eq!(run.not_begun, [empty, cut]);
        file("c.dsmlog", b"notes");
        let other = Log::read_run(folder.path()).expect_err("it is no log");
        let said = "c.dsmlog is no event log of chunks";
        assert!(other.to_string().contains(said), "{other}");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        std::fs::write(&file, b"").expect("a file");
        let failed = Writer::create(&file.join("below"), &header(Level::Full));
        let error = failed.expect_err("it is below a file").to_string();
        assert!(error.contains("file/below"), "{error}");
        let none = Log::read_run(folder.path()).expect_err("there is none");
        assert!(none.to_string().contains("has no event logs"), "{none}");
    }
}
