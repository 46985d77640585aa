//! The buffers of a log, and the thread that writes them to its file.
//!
//! ```text
//!   any thread: put ──> current ──(full)──> queue ──> the thread "dsm log" ──> file
//!                          ^                                  │
//!                          └────────── free <─────────────────┘
//! ```
//! The buffers are allocated at the beginning. If none is free, records are dropped and counted:
//! nobody waits for the file. What is in the current buffer is written after [`PERIOD`] at the
//! latest, so that a process that is killed loses little.

use super::Level;
use super::record::{Call, Kind, RECORD, Record};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Bytes of a buffer, and the number of buffers.
const BUFFER: usize = 256 << 10;
const BUFFERS: usize = 4;

/// How long records stay in a buffer that is not full.
const PERIOD: Duration = Duration::from_millis(50);

/// The most chunks and kinds that are counted apart; the others are counted together.
const MOST_COUNTS: usize = 1 << 12;

/// The most names that are remembered as written.
const MOST_NAMES: usize = 1 << 16;

/// The log of one process.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) level: Level,
    buffers: Mutex<Buffers>,
    /// Tells the thread that a buffer is full, or that the log ends.
    news: Condvar,
    /// `None` after an error: nothing more is written. Locked before the buffers.
    file: Mutex<Option<File>>,
}

#[derive(Debug)]
struct Buffers {
    current: Vec<u8>,
    queue: VecDeque<Vec<u8>>,
    free: Vec<Vec<u8>>,
    /// The number of the next record, and of those that were dropped.
    number: u32,
    dropped: u64,
    counts: HashMap<Counted, Count, foldhash::fast::FixedState>,
    named: HashSet<u64, foldhash::fast::FixedState>,
    has_ended: bool,
}

/// What is counted: kind, call and chunk.
type Counted = (Kind, u16, u64);

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    count: u64,
    sum: u64,
    most: u64,
    is_new: bool,
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pushed {
    Added,
    /// Added; a buffer is full for the first time since the last one.
    Full,
    /// There is no buffer for it.
    Dropped,
}

/// The thread that writes, which ends with the last handle of the log.
#[derive(Debug)]
pub(super) struct Writing {
    pub(super) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Writing {
    /// Starts to write to a file, which has its header.
    pub(super) fn start(level: Level, file: File) -> std::io::Result<Writing> {
        let shared = Arc::new(Shared::new(level, file));
        let of_thread = shared.clone();
        let thread = Builder::new().name("dsm log".to_owned());
        let thread = thread.spawn(move || of_thread.write_all())?;
        Ok(Writing {
            shared,
            thread: Some(thread),
        })
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.shared.buffers().has_ended = true;
        self.shared.news.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn new(level: Level, file: File) -> Shared {
        // Zeros, so that their pages are there before they are needed.
        let buffer = || {
            let mut buffer = vec![0; BUFFER];
            buffer.clear();
            buffer
        };
        Shared {
            level,
            buffers: Mutex::new(Buffers {
                current: buffer(),
                queue: VecDeque::with_capacity(BUFFERS),
                free: (1..BUFFERS).map(|_| buffer()).collect(),
                number: 0,
                dropped: 0,
                counts: HashMap::default(),
                named: HashSet::default(),
                has_ended: false,
            }),
            news: Condvar::new(),
            file: Mutex::new(Some(file)),
        }
    }

    /// Writes or counts a record.
    #[inline]
    pub(super) fn put(&self, record: Record) {
        let mut buffers = self.buffers();
        match self.level {
            Level::Full => {
                if buffers.push(record) == Pushed::Full {
                    self.news.notify_one();
                }
            }
            Level::Counters | Level::Off => buffers.count(&record),
        }
    }

    /// Writes a name, unless it was written.
    pub(super) fn put_name(&self, chunk: u64, name: &str) {
        let mut buffers = self.buffers();
        if buffers.named.contains(&chunk) {
            return;
        }
        let mut is_written = true;
        for record in Record::name(chunk, name) {
            is_written &= buffers.push(record) != Pushed::Dropped;
        }
        if is_written && buffers.named.len() < MOST_NAMES {
            buffers.named.insert(chunk);
        }
    }

    /// Writes to the file what there is.
    pub(super) fn flush(&self) {
        self.write(true);
    }

    fn buffers(&self) -> MutexGuard<'_, Buffers> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread's own loop.
    fn write_all(&self) {
        loop {
            let (is_due, has_ended) = {
                let waits = |buffers: &mut Buffers| buffers.queue.is_empty() && !buffers.has_ended;
                let waited = self
                    .news
                    .wait_timeout_while(self.buffers(), PERIOD, waits)
                    .unwrap_or_else(PoisonError::into_inner);
                (waited.1.timed_out(), waited.0.has_ended)
            };
            if has_ended {
                // First, so that there is a buffer for the end: it also says how many are missing.
                self.write(true);
                let mut buffers = self.buffers();
                let end = Record::new(Kind::Closed, super::now()).worth(buffers.dropped);
                buffers.push(end);
            }
            self.write(is_due || has_ended);
            if has_ended {
                return;
            }
        }
    }

    /// Writes full buffers; if `also_current`, the current one as well.
    fn write(&self, also_current: bool) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if also_current && !self.buffers().push_counts() {
            // There was no buffer for all of them: there is one when the others are written.
            self.write_buffers(&mut file, false);
            self.buffers().push_counts();
        }
        self.write_buffers(&mut file, also_current);
    }

    fn write_buffers(&self, file: &mut Option<File>, also_current: bool) {
        loop {
            let Some(mut buffer) = self.buffers().next(also_current) else {
                return;
            };
            let written = match file {
                Some(file) => file.write_all(&buffer),
                None => Ok(()),
            };
            let records = (buffer.len() / RECORD) as u64;
            buffer.clear();
            let mut buffers = self.buffers();
            buffers.free.push(buffer);
            if file.is_none() {
                buffers.dropped += records;
            }
            drop(buffers);
            if let Err(error) = written {
                tracing::warn!(%error, "the event log of chunks is not written any more");
                *file = None;
            }
        }
    }
}

impl Buffers {
    fn push(&mut self, record: Record) -> Pushed {
        let number = self.number;
        self.number = number.wrapping_add(1);
        let mut pushed = Pushed::Added;
        if self.current.len() + RECORD > BUFFER {
            let Some(next) = self.free.pop() else {
                self.dropped += 1;
                return Pushed::Dropped;
            };
            let full = std::mem::replace(&mut self.current, next);
            self.queue.push_back(full);
            pushed = Pushed::Full;
        }
        let record = Record { number, ..record };
        self.current.extend_from_slice(&record.to_bytes());
        pushed
    }

    fn count(&mut self, record: &Record) {
        let call = if record.is_hit() {
            Call::None
        } else {
            record.call()
        };
        let mut key = (record.kind, call as u16, record.chunk);
        if self.counts.len() >= MOST_COUNTS && !self.counts.contains_key(&key) {
            key.2 = u64::MAX;
        }
        let count = self.counts.entry(key).or_default();
        count.count += 1;
        count.sum = count.sum.saturating_add(record.value);
        count.most = count.most.max(record.value);
        count.is_new = true;
    }

    /// Adds records of what was counted since the last time. Returns false if one was dropped: it
    /// stays new.
    fn push_counts(&mut self) -> bool {
        let new = self.counts.iter().filter(|(_, count)| count.is_new);
        let new: Vec<(Counted, Count)> = new.map(|(of, count)| (*of, *count)).collect();
        let time = super::now();
        let mut are_all_written = true;
        for (counted, count) in new {
            let (kind, call, chunk) = counted;
            let pushed = self.push(Record {
                chunk,
                version: u64::from(kind as u16),
                guard: count.count,
                tag: count.most,
                value: count.sum,
                call,
                ..Record::new(Kind::Count, time)
            });
            let is_written = pushed != Pushed::Dropped;
            are_all_written &= is_written;
            if let Some(count) = self.counts.get_mut(&counted) {
                count.is_new = !is_written;
            }
        }
        are_all_written
    }

    /// Returns the next buffer to write.
    fn next(&mut self, also_current: bool) -> Option<Vec<u8>> {
        if let Some(full) = self.queue.pop_front() {
            return Some(full);
        }
        if !also_current || self.current.is_empty() {
            return None;
        }
        let next = self.free.pop()?;
        Some(std::mem::replace(&mut self.current, next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ChunkId;

    /// Records until no buffer has room; nothing writes them.
    fn full(level: Level) -> Shared {
        let file = tempfile::tempfile().expect("a file");
        let shared = Shared::new(level, file);
        while shared.buffers().push(Record::new(Kind::Given, 1)) != Pushed::Dropped {}
        shared
    }

    /// Returns the records of that kind that are written now.
    fn written(shared: &Shared, kind: Kind) -> usize {
        let mut buffers = shared.buffers();
        let mut records = 0;
        while let Some(mut buffer) = buffers.next(true) {
            let all = buffer.as_chunks::<RECORD>().0.iter();
            records += all
                .filter_map(Record::from_bytes)
                .filter(|record| record.kind == kind)
                .count();
            buffer.clear();
            buffers.free.push(buffer);
        }
        records
    }

    #[test]
    fn a_name_that_was_dropped_is_written_later() {
        let shared = full(Level::Full);
        shared.put_name(4, "frame");
        assert_eq!(written(&shared, Kind::Name), 0);
        for _ in 0..2 {
            shared.put_name(4, "frame");
        }
        assert_eq!(written(&shared, Kind::Name), 1);
    }

    #[test]
    fn a_count_that_was_dropped_is_written_later() {
        let shared = full(Level::Counters);
        shared.put(Record::new(Kind::Given, 1).of(ChunkId(4)));
        assert!(!shared.buffers().push_counts());
        assert_eq!(written(&shared, Kind::Count), 0);
        assert!(shared.buffers().push_counts());
        assert_eq!(written(&shared, Kind::Count), 1);
        assert!(shared.buffers().push_counts());
        assert_eq!(written(&shared, Kind::Count), 0);
        // What is written at the end has a buffer, too.
        let shared = full(Level::Counters);
        shared.put(Record::new(Kind::Given, 1).of(ChunkId(4)));
        shared.write(true);
        assert!(shared.buffers().counts.values().all(|count| !count.is_new));
    }
}
