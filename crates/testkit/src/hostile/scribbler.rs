//! Words in tables that belong to others.

use crate::fuzz::{Rng, word};
use samite_fabric::Fabric;
use samite_fabric::testing::{Table, arena, tables};
use samite_mem::SharedBytes;
use samite_mem::sync::Ordering;

/// Which tables are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// What the scribbler itself would write if it were honest: its rings, its directory, its slot, and the doorbells of
    /// all. The others do not get a wrong byte of each other.
    Own,
    /// All of them: whoever reads what another one wrote may get something else, as an error or not.
    All,
}

/// Writes words into tables of the arena.
#[derive(Debug)]
pub struct Scribbler {
    random: Rng,
    arena: SharedBytes,
    tables: Vec<Table>,
    words: Vec<u64>,
}

impl Scribbler {
    /// One that writes what `reach` says, as far as the first `peers` slots of the domain of `fabric` use it.
    pub fn new(seed: u64, fabric: &Fabric, peers: u32, reach: Reach) -> Scribbler {
        let mut tables = tables(fabric, peers);
        if reach == Reach::Own {
            let me = Some(fabric.me());
            tables.retain(|table| table.writer == me || table.name == "doorbells");
        }
        Scribbler {
            random: Rng::with_seed(seed),
            arena: arena(fabric),
            tables,
            words: Vec::new(),
        }
    }

    /// Writes `count` words: random ones, changed ones, and copies of what stands elsewhere.
    pub fn scribble(&mut self, count: u32) {
        for _ in 0..count {
            let Some(at) = self.place() else { return };
            // ORDERING: Relaxed: nobody can rely on what a scribbler writes.
            let old = self.arena.u64(at).load(Ordering::Relaxed);
            let new = self.another(old);
            self.arena.u64(at).store(new, Ordering::Relaxed);
        }
    }

    /// A word of a table. Every table is as likely as any other: the small ones say more.
    fn place(&mut self) -> Option<u64> {
        let table = self.random.choice(&self.tables)?;
        // Most of what a table says is at its beginning.
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
            // The halves of many words say different things.
            4 => old & !0xffff_ffff | word(random) & 0xffff_ffff,
            5 => old & 0xffff_ffff | word(random) << 32,
            6 => known,
            _ => 0,
        }
    }
}
