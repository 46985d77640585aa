//! The Lamellar contestant: its shared-memory backend, the executor without threads of its own, so
//! that it does not compute while another contestant is measured.
//!
//! Words go by `put_blocking` and `get`; other sizes and blocks by the unmanaged buffer operations,
//! the cheapest that it has; atomics and random updates by an `AtomicArray`, whose operations are
//! native on this backend; collected updates by its batches.

#![deny(unsafe_code)]

mod control;
#[allow(unsafe_code, reason = "all operations of Lamellar's regions are `unsafe`")]
mod ffi;

use control::Control;
use ffi::Regions;
use lamellar::array::prelude::*;
use std::path::Path;
use std::time::Instant;

const LOOK_AHEAD: usize = 1024;
const WORDS_LOG2: u32 = 23;
const MOST_BYTES: usize = 16 << 20;

fn main() {
    let folder = std::env::args().nth(1).expect("usage: peer-lamellar CONTROL_FOLDER");
    let number = |name: &str| -> usize {
        let text = std::env::var(name).unwrap_or_default();
        text.parse().unwrap_or(0)
    };
    let (rank, ranks) = (number("SAMITE_BENCH_RANK"), number("SAMITE_BENCH_RANKS"));
    // Before the library places its memory.
    pin(rank);
    let job = std::os::unix::process::parent_id();
    for (name, value) in [
        ("LAMELLAR_BACKEND", "shmem".to_owned()),
        ("LAMELLAR_EXECUTOR", "single_thread".to_owned()),
        ("LAMELLAR_THREADS", "1".to_owned()),
        ("LAMELLAR_HEAP_SIZE", (512 << 20).to_string()),
        ("LAMELLAR_PE_ID", rank.to_string()),
        ("LAMELLAR_NUM_PES", ranks.to_string()),
        ("LAMELLAR_JOB_ID", job.to_string()),
    ] {
        std::env::set_var(name, value);
    }
    let world = LamellarWorldBuilder::new().build();
    let mut control = Control::open(Path::new(&folder), rank).expect("the control folder");
    let mut bench = Bench {
        rank,
        ranks,
        regions: Regions::new(&world, 2 * MOST_BYTES),
        counter: AtomicArray::new(&world, ranks, Distribution::Block).block(),
        table: None,
        world,
    };
    bench.forget_names();
    control.answer("ready");
    while let Some(words) = control.next() {
        match bench.run(&words) {
            None => control.answer("unsupported"),
            Some((seconds, true)) => control.answer(&format!("{seconds:.9e}")),
            Some((_, false)) => {
                control.answer("error the data that arrived is not the data that was sent")
            }
        }
    }
}

/// Pins this process to the entry of its rank in `SAMITE_BENCH_CPUS` ("0,1"), if it is set.
fn pin(rank: usize) {
    let list = std::env::var("SAMITE_BENCH_CPUS").unwrap_or_default();
    let cpus: Vec<usize> = list.split(',').filter_map(|cpu| cpu.parse().ok()).collect();
    if let Some(&id) = cpus.get(rank % cpus.len().max(1)) {
        let core = core_affinity::CoreId { id };
        assert!(core_affinity::set_for_current(core), "cannot pin to core {id}");
    }
}

struct Bench {
    rank: usize,
    ranks: usize,
    // Dropped in this order: the world waits for what is in use.
    table: Option<AtomicArray<u64>>,
    counter: AtomicArray<u64>,
    regions: Regions,
    world: LamellarWorld,
}

type Answer = Option<(f64, bool)>;

impl Bench {
    fn run(&mut self, words: &[String]) -> Answer {
        let number = |index: usize| words.get(index)?.parse::<u64>().ok();
        match words.first()?.as_str() {
            "put" | "get" | "put_nb" if self.ranks == 2 => {
                self.one_sided(&words[0], number(1)? as usize, number(2)?, number(3)?)
            }
            "strided" if self.ranks == 2 => self.strided(
                number(1)? as usize,
                number(2)? as usize,
                number(3)?,
                number(4)?,
            ),
            "atomic" if self.ranks == 2 => self.atomic(&words[1], number(2)?, number(3)?),
            "gups" if self.ranks.is_power_of_two() => {
                self.gups(&words[1], number(2)? as usize, number(3)? as usize)
            }
            _ => None,
        }
    }

    /// Runs a loop on rank 0, or on all; the seconds of the timed part.
    fn timed(&self, everyone: bool, iters: u64, warmup: u64, mut often: impl FnMut(u64)) -> f64 {
        let works = everyone || self.rank == 0;
        self.world.barrier();
        if works {
            often(warmup);
        }
        self.world.barrier();
        let start = Instant::now();
        if works {
            often(iters);
        }
        if everyone {
            self.world.barrier();
        }
        let seconds = start.elapsed().as_secs_f64();
        self.world.barrier();
        seconds
    }

    fn one_sided(&self, operation: &str, bytes: usize, iters: u64, warmup: u64) -> Answer {
        let regions = &self.regions;
        let often = |n: u64| match (operation, bytes) {
            ("put", 8) => regions.put_words(1, n),
            ("put_nb", 8) => regions.put_words_nb(1, n),
            ("put", _) => regions.put(1, bytes, n),
            ("get", 8) => {
                std::hint::black_box(regions.get_words(1, n));
            }
            _ => regions.get(1, bytes, n),
        };
        let seconds = self.timed(false, iters, warmup, often);
        let good = match (operation, bytes, self.rank) {
            ("put" | "put_nb", 8, 1) => regions.word() == iters - 1,
            (_, 8, _) => true,
            _ => self.one_sided_is_whole(operation, bytes),
        };
        Some((seconds, self.all(good)))
    }

    fn one_sided_is_whole(&self, operation: &str, bytes: usize) -> bool {
        let regions = &self.regions;
        let (mut good, gets) = (true, operation == "get");
        regions.own(|own| fill(&mut own[..bytes], if gets { 1 + self.rank } else { 9 }));
        regions.origin(|origin| fill(&mut origin[..bytes], if gets { 9 } else { 1 }));
        self.world.barrier();
        if self.rank == 0 && gets {
            regions.get(1, bytes, 1);
            regions.origin(|origin| good = is_filled(&origin[..bytes], 2));
        } else if self.rank == 0 {
            regions.put(1, bytes, 1);
        }
        self.world.barrier();
        if self.rank == 1 && !gets {
            regions.own(|own| good = is_filled(&own[..bytes], 1));
        }
        good
    }

    fn strided(&self, blocks: usize, bytes: usize, iters: u64, warmup: u64) -> Answer {
        let regions = &self.regions;
        let size = 2 * blocks * bytes;
        regions.own(|own| own[..size].fill(0));
        regions.origin(|origin| fill(&mut origin[..size], 1));
        let seconds = self.timed(false, iters, warmup, |n| {
            regions.put_strided(1, blocks, bytes, n)
        });
        let mut good = true;
        regions.own(|own| {
            let expected = |at: usize| match (at / bytes, at % bytes) {
                (block, _) if block % 2 == 1 => 0,
                (block, within) => pattern(block / 2 * bytes + within, 1),
            };
            good = self.rank != 1 || (0..size).all(|at| own[at] == expected(at));
        });
        Some((seconds, self.all(good)))
    }

    fn atomic(&self, kind: &str, iters: u64, warmup: u64) -> Answer {
        let everyone = kind == "contended";
        if self.rank == 1 {
            self.counter.store(1, 0).block();
        }
        let often = |n: u64| {
            for _ in 0..n {
                self.counter.fetch_add(1, 1).block();
            }
        };
        let seconds = self.timed(everyone, iters, warmup, often);
        let expected = (iters + warmup) * if everyone { self.ranks as u64 } else { 1 };
        let good = self.counter.load(1).block() == expected;
        Some((seconds, self.all(good)))
    }

    fn gups(&mut self, kind: &str, iters: usize, warmup: usize) -> Answer {
        let words = self.ranks << WORDS_LOG2;
        let new = || AtomicArray::new(&self.world, words, Distribution::Block).block();
        let table = self.table.get_or_insert_with(new).clone();
        self.forget_names();
        let base = self.rank << WORDS_LOG2;
        for (at, word) in table.local_data().iter().enumerate() {
            word.store((base + at) as u64);
        }
        let update = |random: u64, n: usize| match kind {
            "plain" => plain(&table, random, n),
            _ => collected(&table, random, n),
        };
        let first = random_at((self.rank as i64) << 50);
        self.world.barrier();
        let next = update(first, warmup);
        self.world.barrier();
        let start = Instant::now();
        update(next, iters);
        table.wait_all();
        self.world.barrier();
        let seconds = start.elapsed().as_secs_f64();
        // The same updates again restore the table, unless one was lost.
        let next = update(first, warmup);
        update(next, iters);
        table.wait_all();
        self.world.barrier();
        let own = table.local_data();
        let good = own
            .iter()
            .enumerate()
            .all(|(at, word)| word.load() == (base + at) as u64);
        Some((seconds, self.all(good)))
    }

    /// Unlinks the files of the shared memory, which all ranks have mapped: the library leaves them
    /// behind when it is ended from outside.
    fn forget_names(&self) {
        self.world.barrier();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        for line in maps.lines().filter(|_| self.rank == 0) {
            if let Some(at) = line.find("/dev/shm/lamellar_") {
                // It may have gone with an earlier line.
                let _ = std::fs::remove_file(&line[at..]);
            }
        }
        self.world.barrier();
    }

    /// Whether all say so.
    fn all(&self, good: bool) -> bool {
        self.world.barrier();
        if self.rank == 0 {
            self.counter.store(0, 0).block();
        }
        self.world.barrier();
        if !good {
            self.counter.add(0, 1).block();
        }
        self.world.barrier();
        let all = self.counter.load(0).block() == 0;
        self.world.barrier();
        all
    }
}

/// One by one, and waited for every [`LOOK_AHEAD`].
fn plain(table: &AtomicArray<u64>, mut random: u64, n: usize) -> u64 {
    let mask = table.len() as u64 - 1;
    for done in 0..n {
        random = next_random(random);
        table.bit_xor((random & mask) as usize, random).block();
        if done % LOOK_AHEAD == LOOK_AHEAD - 1 {
            table.wait_all();
        }
    }
    random
}

fn collected(table: &AtomicArray<u64>, mut random: u64, n: usize) -> u64 {
    let mask = table.len() as u64 - 1;
    for start in (0..n).step_by(LOOK_AHEAD) {
        let count = LOOK_AHEAD.min(n - start);
        let (mut places, mut values) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for _ in 0..count {
            random = next_random(random);
            places.push((random & mask) as usize);
            values.push(random);
        }
        table.batch_bit_xor(places, values).block();
    }
    random
}

fn next_random(x: u64) -> u64 {
    x << 1 ^ if (x as i64) < 0 { 7 } else { 0 }
}

/// The word at position n of HPCC's sequence.
fn random_at(n: i64) -> u64 {
    const PERIOD: i64 = 1_317_624_576_693_539_401;
    let n = n % PERIOD;
    if n == 0 {
        return 1;
    }
    let mut powers = [0; 64];
    let mut x = 1;
    for power in &mut powers {
        *power = x;
        x = next_random(next_random(x));
    }
    let top = 63 - n.leading_zeros();
    x = 2;
    for bit in (0..top).rev() {
        let square = (0..64)
            .filter(|j| x >> j & 1 == 1)
            .fold(0, |sum, j| sum ^ powers[j]);
        x = if n >> bit & 1 == 1 {
            next_random(square)
        } else {
            square
        };
    }
    x
}

fn pattern(at: usize, seed: usize) -> u8 {
    ((at ^ at >> 8 ^ at >> 16) * 31 + seed * 17 + 1) as u8
}

fn fill(bytes: &mut [u8], seed: usize) {
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = pattern(at, seed);
    }
}

fn is_filled(bytes: &[u8], seed: usize) -> bool {
    bytes
        .iter()
        .enumerate()
        .all(|(at, byte)| *byte == pattern(at, seed))
}
