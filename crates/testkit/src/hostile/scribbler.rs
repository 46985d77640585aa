//! Writes into tables that belong to others.

use crate::fuzz::{Rng, word};
use samite_fabric::Fabric;
use samite_fabric::testing::{Table, arena, tables};
use samite_mem::Arena;
use samite_mem::sync::Ordering;

/// The tables that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Tables that a correct process writes, too: its rings, its directory, its segments, its own
    /// words, and the doorbells of all. The others get no wrong bytes from each other.
    Own,
    /// Memory that others offer: segments, boards of collectives, locks, tables, steps.
    Segments,
    /// All tables: a reader may get an error, or other bytes than were written.
    All,
}

/// Writes words into tables of the arena.
#[derive(Debug)]
pub struct Scribbler {
    random: Rng,
    arena: Arena,
    tables: Vec<Table>,
    names: Vec<&'static str>,
    words: Vec<u64>,
    written: u64,
}

impl Scribbler {
    /// Creates a scribbler that writes to the tables of `reach`, as far as the first `peers` slots
    /// of the domain of `fabric` use them.
    pub fn new(seed: u64, fabric: &Fabric, peers: u32, reach: Reach) -> Scribbler {
        let random = Rng::with_seed(seed);
        let mut tables = tables(fabric, peers);
        let me = Some(fabric.me());
        match reach {
            Reach::Own => {
                tables.retain(|table| table.writer == me || table.name == "doorbells");
            }
            Reach::Segments => tables.retain(|table| table.name == "segment"),
            Reach::All => {}
        }
        let mut names: Vec<&str> = tables.iter().map(|table| table.name).collect();
        names.sort_unstable();
        names.dedup();
        Scribbler {
            random,
            arena: arena(fabric),
            tables,
            names,
            words: Vec::new(),
            written: 0,
        }
    }

    /// Returns the number of words that it has written.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Writes `count` words: random ones, changed ones, and copies of words elsewhere.
    pub fn scribble(&mut self, count: u32) {
        for _ in 0..count {
            let Some(at) = self.place() else { return };
            // Memory to which this process has references is not written.
            let Ok(word) = self.arena.bytes(at, 8) else {
                continue;
            };
            // ORDERING: Relaxed: no process can rely on what a scribbler writes.
            let old = word.u64(0).load(Ordering::Relaxed);
            let new = self.another(old);
            word.u64(0).store(new, Ordering::Relaxed);
            self.written += 1;
        }
    }

    /// Chooses a word of a table. Every kind of table is equally likely, because the most important
    /// kinds have few tables.
    fn place(&mut self) -> Option<u64> {
        let name = *self.random.choice(&self.names)?;
        let tables = self.tables.iter().filter(|table| table.name == name);
        let table = self.random.choice(tables.collect::<Vec<_>>())?;
        // The most important words of a table are at its beginning.
        let words = table.span.bytes / 8;
        let most = if self.random.bool() {
            words.min(48)
        } else {
            words
        };
        Some(table.span.offset + self.random.u64(..most.max(1)) * 8)
    }

    fn another(&mut self, old: u64) -> u64 {
        if old != 0 && self.words.len() < 1024 {
            self.words.push(old);
        }
        let known = self.random.choice(&self.words).copied().unwrap_or(0);
        let random = &mut self.random;
        match random.u32(..8) {
            0 => word(random),
            1 | 2 => old ^ 1 << random.u32(..64),
            3 => old.wrapping_add(random.u64(..9)).wrapping_sub(4),
            // The halves of many words have separate meanings.
            4 => old & !0xffff_ffff | word(random) & 0xffff_ffff,
            5 => old & 0xffff_ffff | word(random) << 32,
            6 => known,
            _ => 0,
        }
    }
}
