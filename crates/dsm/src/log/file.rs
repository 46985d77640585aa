//! Files of the event log: a header of 512 bytes, then records.
//!
//! ```text
//!   0 magic "SAMITEDL"   8 version   12 bytes of a record   16 level   20 role   24 peer
//!   28 incarnation   32 pid   36 length of the name   40 start, monotonic   48 start, since 1970
//!   56 boot id, 36 bytes   128 name, up to 384 bytes
//! ```
//! A file is read as far as it has whole records: a process that is killed may leave part of one,
//! or of the header.

use super::record::{Kind, RECORD, Record};
use super::{Level, Role};
use crate::error::{Error, Result};
use crate::protocol::Process;
use samite_fabric::PeerId;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// What the name of a file ends with.
pub const EXTENSION: &str = "dsmlog";

const MAGIC: &[u8; 8] = b"SAMITEDL";
const VERSION: u32 = 1;
const HEADER: usize = 512;
const BOOT: usize = 36;
const NAME: usize = 128;

/// Bytes that are read at a time.
const PIECE: u64 = 1 << 20;

/// Which process a log is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// What is recorded.
    pub level: Level,
    /// Whether it is a client's or a server's.
    pub role: Role,
    /// The process.
    pub process: Process,
    /// Its process id.
    pub pid: u32,
    /// Its name, like `worker.3`.
    pub name: String,
    /// When the log was begun: nanoseconds of the monotonic clock, and since 1970.
    pub start: u64,
    /// The same moment, in nanoseconds since 1970.
    pub start_since_1970: u64,
    /// The boot of the machine: times of different ones cannot be compared.
    pub boot: String,
}

/// The log of one process.
#[derive(Clone, Debug)]
pub struct Log {
    /// The file.
    pub path: PathBuf,
    /// Whose it is.
    pub header: Header,
    /// The records, the oldest first.
    pub records: Vec<Record>,
    /// The names of chunks and meetings.
    pub names: BTreeMap<u64, String>,
    /// The number of records that are missing, because no buffer was free.
    pub missing: u64,
    /// Whether the process closed the log; otherwise the last records may be missing.
    pub is_closed: bool,
    /// Whether the file ends inside a record.
    pub is_cut: bool,
}

/// The logs of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Those that were begun, by path.
    pub logs: Vec<Log>,
    /// The files that end inside their header: their processes were killed before they did anything
    /// with chunks.
    pub not_begun: Vec<PathBuf>,
}

impl Header {
    pub(super) fn encode(&self) -> Vec<u8> {
        let name = truncated(&self.name, HEADER - NAME);
        let mut bytes = MAGIC.to_vec();
        let words = [
            VERSION,
            RECORD as u32,
            self.level as u32,
            self.role as u32,
            self.process.peer.0,
            self.process.incarnation,
            self.pid,
            name.len() as u32,
        ];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(self.start.to_le_bytes());
        bytes.extend(self.start_since_1970.to_le_bytes());
        bytes.extend(truncated(&self.boot, BOOT).bytes());
        bytes.resize(NAME, 0);
        bytes.extend(name.bytes());
        bytes.resize(HEADER, 0);
        bytes
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// What is wrong with it, as the end of a sentence that begins with the file.
    pub fn decode(bytes: &[u8]) -> std::result::Result<Header, String> {
        let word = |at: usize| {
            let word = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
            word.map_or(0, |word| u32::from_le_bytes(*word))
        };
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if is_cut(bytes) {
            return Err("ends inside its header".to_owned());
        }
        if !bytes.starts_with(MAGIC) {
            return Err("is no event log of chunks".to_owned());
        }
        if (word(8), word(12)) != (VERSION, RECORD as u32) {
            return Err(format!(
                "has format {} with records of {} bytes, but this samite reads format {VERSION} \
                 with records of {RECORD}: use the samite that wrote it",
                word(8),
                word(12)
            ));
        }
        let text = |from: usize, length: usize| {
            let text = bytes.get(from..from.saturating_add(length));
            let text = text.and_then(|text| std::str::from_utf8(text).ok());
            text.map(|text| text.trim_end_matches('\0').to_owned())
        };
        let damaged = |what: &str| format!("has a damaged header: its {what} makes no sense");
        let name = match word(36) as usize {
            length if length > HEADER - NAME => None,
            length => text(NAME, length),
        };
        Ok(Header {
            level: Level::of_number(word(16)).ok_or_else(|| damaged("level"))?,
            role: match word(20) {
                0 => Role::Client,
                1 => Role::Server,
                _ => return Err(damaged("role")),
            },
            process: Process {
                peer: PeerId(word(24)),
                incarnation: word(28),
            },
            pid: word(32),
            start: long(40),
            start_since_1970: long(48),
            boot: text(56, BOOT).ok_or_else(|| damaged("boot id"))?,
            name: name.ok_or_else(|| damaged("name"))?,
        })
    }
}

impl Log {
    /// Reads a log.
    ///
    /// # Errors
    /// [`Error::LogUnreadable`]: the file cannot be read, is no log, or is damaged.
    pub fn read(path: &Path) -> Result<Log> {
        let wrong = |why: String| Error::LogUnreadable {
            path: path.to_owned(),
            why,
        };
        let broken = |error: std::io::Error| wrong(format!("cannot be read: {error}"));
        // Opening a pipe would wait for its writer.
        let facts = std::fs::metadata(path).map_err(broken)?;
        if !facts.is_file() {
            return Err(wrong("is no file".to_owned()));
        }
        let file = std::fs::File::open(path).map_err(broken)?;
        Log::of_bytes(path, file).map_err(|error| match error.kind() {
            ErrorKind::InvalidData => wrong(error.to_string()),
            _ => broken(error),
        })
    }

    /// As [`Log::read`], but returns `None` if the file ends inside its header.
    fn read_begun(path: &Path) -> Result<Option<Log>> {
        let read = |path: &Path| {
            let mut bytes = Vec::new();
            let file = std::fs::File::open(path)?;
            file.take(HEADER as u64).read_to_end(&mut bytes)?;
            Ok::<_, std::io::Error>(bytes)
        };
        // What is no file, or cannot be read, is left to the reader of all of it.
        match path.is_file() && read(path).is_ok_and(|bytes| is_cut(&bytes)) {
            true => Ok(None),
            false => Log::read(path).map(Some),
        }
    }

    fn of_bytes(path: &Path, mut file: impl Read) -> std::io::Result<Log> {
        let wrong = |why: String| std::io::Error::new(ErrorKind::InvalidData, why);
        let mut bytes = Vec::new();
        file.by_ref().take(HEADER as u64).read_to_end(&mut bytes)?;
        let mut log = Log {
            path: path.to_owned(),
            header: Header::decode(&bytes).map_err(wrong)?,
            records: Vec::new(),
            names: BTreeMap::new(),
            missing: 0,
            is_closed: false,
            is_cut: false,
        };
        let mut names = BTreeMap::new();
        let (mut at, mut next) = (HEADER as u64, 0);
        loop {
            bytes.clear();
            file.by_ref().take(PIECE).read_to_end(&mut bytes)?;
            let (whole, rest) = bytes.as_chunks::<RECORD>();
            for record in whole {
                let record = Record::from_bytes(record)
                    .filter(|record| record.number.wrapping_sub(next) < 1 << 31);
                let record = record.ok_or_else(|| {
                    wrong(format!("is damaged: what is at byte {at} is no record"))
                })?;
                at += RECORD as u64;
                log.missing += u64::from(record.number.wrapping_sub(next));
                next = record.number.wrapping_add(1);
                log.add(record, &mut names);
            }
            log.is_cut = !rest.is_empty();
            if (bytes.len() as u64) < PIECE {
                return Ok(log);
            }
        }
    }

    fn add(&mut self, record: Record, names: &mut BTreeMap<u64, Vec<u8>>) {
        match record.kind {
            Kind::Name => {
                let name = names.entry(record.chunk).or_default();
                if record.add_name(name) {
                    let name = String::from_utf8_lossy(name).into_owned();
                    self.names.insert(record.chunk, name);
                }
            }
            Kind::Closed => self.is_closed = true,
            _ => self.records.push(record),
        }
    }

    /// Reads the logs of a run: all in a folder. Those that were not begun are left out.
    ///
    /// # Errors
    /// [`Error::LogUnreadable`]: there is none that was begun; one is damaged; they are of different
    /// machines, or of different boots of one, so that their times cannot be compared; they are of
    /// different runs.
    pub fn read_run(folder: &Path) -> Result<Run> {
        let wrong = |path: &Path, why: String| Error::LogUnreadable {
            path: path.to_owned(),
            why,
        };
        let mut paths = paths_in(folder)?;
        paths.sort();
        let (mut logs, mut not_begun) = (Vec::new(), Vec::new());
        for path in paths {
            match Log::read_begun(&path)? {
                Some(log) => logs.push(log),
                None => not_begun.push(path),
            }
        }
        let Some(first) = logs.first() else {
            let beyond = match not_begun.len() {
                0 => "",
                _ => " that do not end inside their header",
            };
            let why = format!(
                "has no event logs (files *.{EXTENSION}){beyond}: run with --config dsm.log=full, \
                 and give the folder of the run"
            );
            return Err(wrong(folder, why));
        };
        let other = |log: &&Log| log.header.boot != first.header.boot;
        if let Some(other) = logs.iter().find(other) {
            let why = format!(
                "is of another machine, or another boot of it, than {}: their times cannot be \
                 compared; read them one by one",
                first.path.display()
            );
            return Err(wrong(&other.path, why));
        }
        // The agent of a domain was started again: chunks are numbered anew.
        let mut pids: BTreeMap<Process, &Log> = BTreeMap::new();
        for log in &logs {
            let same = pids.entry(log.header.process).or_insert(log);
            if same.header.pid != log.header.pid {
                let why = format!(
                    "and {} are of different lives of a domain of that name: remove the older ones",
                    same.path.display()
                );
                return Err(wrong(&log.path, why));
            }
        }
        Ok(Run { logs, not_begun })
    }
}

/// Returns the logs in a folder; of a file, the file.
fn paths_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let wrong = |error: std::io::Error| Error::LogUnreadable {
        path: folder.to_owned(),
        why: format!("cannot be read: {error}"),
    };
    if folder.is_file() {
        return Ok(vec![folder.to_owned()]);
    }
    let entries = std::fs::read_dir(folder).map_err(wrong)?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let paths: Vec<PathBuf> = paths.collect::<std::io::Result<_>>().map_err(wrong)?;
    let is_log = |path: &PathBuf| path.extension().is_some_and(|end| end == EXTENSION);
    Ok(paths.into_iter().filter(is_log).collect())
}

/// Returns true for the beginning of a log that ends inside its header.
fn is_cut(bytes: &[u8]) -> bool {
    let (begin, _) = bytes.split_at(bytes.len().min(MAGIC.len()));
    bytes.len() < HEADER && MAGIC.starts_with(begin)
}

/// Returns the beginning of a text, of at most `most` bytes.
fn truncated(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite_testkit::fuzz::{self, mutate};

    fn header() -> Header {
        Header {
            level: Level::Full,
            role: Role::Server,
            process: Process {
                peer: PeerId(3),
                incarnation: 9,
            },
            pid: 77,
            name: "worker.3".to_owned(),
            start: 5,
            start_since_1970: 6,
            boot: "0a1b".to_owned(),
        }
    }

    fn whole() -> Vec<u8> {
        let mut bytes = header().encode();
        let mut number = 0;
        let mut add = |record: Record| {
            bytes.extend(Record { number, ..record }.to_bytes());
            number += 1;
        };
        Record::name(7, &"frame ".repeat(9)).for_each(&mut add);
        for time in 0..40 {
            let mut record = Record::new(Kind::ALL[time % Kind::ALL.len()], time as u64);
            if record.kind == Kind::Name || record.kind == Kind::Closed {
                record.kind = Kind::Open;
            }
            add(record);
        }
        add(Record::new(Kind::Closed, 99));
        bytes
    }

    fn read(bytes: &[u8]) -> std::io::Result<Log> {
        Log::of_bytes(Path::new("a.dsmlog"), bytes)
    }

    #[test]
    fn a_log_is_read_as_far_as_it_has_whole_records() {
        let bytes = whole();
        let log = read(&bytes).expect("it is whole");
        assert_eq!(log.header, header());
        assert_eq!(log.names[&7], "frame ".repeat(9));
        assert_eq!((log.records.len(), log.missing), (40, 0));
        assert!(log.is_closed && !log.is_cut);
        let log = read(&bytes[..bytes.len() - RECORD - 1]).expect("part of it is there");
        assert_eq!(
            (log.records.len(), log.is_cut, log.is_closed),
            (39, true, false)
        );
        // Records were dropped.
        let mut short = bytes.clone();
        short.drain(HEADER + 5 * RECORD..HEADER + 8 * RECORD);
        let log = read(&short).expect("the rest is there");
        assert_eq!((log.records.len(), log.missing), (37, 3));
    }

    #[test]
    fn what_is_no_log_is_said() {
        let said = |bytes: &[u8]| read(bytes).expect_err("it is no log").to_string();
        assert_eq!(said(b""), "ends inside its header");
        assert_eq!(said(b"SAMITEX"), "is no event log of chunks");
        assert_eq!(said(&[7; 1000]), "is no event log of chunks");
        assert_eq!(said(&whole()[..100]), "ends inside its header");
        let changed = |at: usize, to: u8| {
            let mut bytes = whole();
            bytes[at] = to;
            said(&bytes)
        };
        assert!(changed(8, 2).contains("format 2"));
        assert!(changed(12, 32).contains("records of 32 bytes"));
        assert!(changed(16, 9).contains("level"));
        assert!(changed(20, 2).contains("role"));
        assert!(changed(39, 200).contains("name"));
        let third = HEADER + 2 * RECORD;
        let damaged = format!("is damaged: what is at byte {third} is no record");
        assert_eq!(changed(third + 56, 99), damaged);
        assert_eq!(changed(third + 63, 0x90), damaged);
    }

    #[test]
    fn nothing_in_a_file_breaks_its_reader() {
        let name = "log::file::tests::nothing_in_a_file_breaks_its_reader";
        fuzz::rounds(name, 3000, |_, random| {
            let mut bytes = whole();
            if random.bool() {
                let at = HEADER + random.usize(..bytes.len() - HEADER);
                bytes[at] = random.u8(..);
            } else {
                mutate(random, &mut bytes);
            }
            if let Ok(log) = read(&bytes) {
                let records = bytes.len() / RECORD;
                assert!(log.records.len() <= records && log.names.len() <= records);
                crate::history::check(&[log]);
            }
        });
    }
}
