//! Random input from a seed: repeatable rounds, words that are likely to cause trouble, mutated
//! bytes.
//!
//! A suite runs a fixed number of rounds, always the same ones. `SAMITE_FUZZ_MINUTES=N` runs others
//! for that long, starting at a random seed; `SAMITE_FUZZ_SEED=N` runs that one. A round that fails
//! prints its seed.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

pub use fastrand::Rng;

pub(crate) const SEED: &str = "SAMITE_FUZZ_SEED";
const MINUTES: &str = "SAMITE_FUZZ_MINUTES";

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable} is \"{text}\", which is not a number")))
}

/// Returns the duration of a long run, `None` if the run is not a long one.
pub fn minutes() -> Option<Duration> {
    number(MINUTES).map(|minutes| Duration::from_secs(60 * minutes))
}

/// Runs `body` for `rounds` seeds, or as the environment says; see the module documentation. `name`
/// is the full name of the test.
pub fn rounds(name: &str, rounds: u64, mut body: impl FnMut(u64, &mut Rng)) {
    let mut run = |seed: u64| {
        let mut random = Rng::with_seed(seed);
        let ran = catch_unwind(AssertUnwindSafe(|| body(seed, &mut random)));
        ran.unwrap_or_else(|panic| {
            let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
            eprintln!("seed {seed}; this round again: {SEED}={seed} cargo test -p {package} -- --exact {name}");
            resume_unwind(panic)
        });
    };
    if let Some(seed) = number(SEED) {
        return run(seed);
    }
    let Some(time) = minutes() else {
        (0..rounds).for_each(run);
        println!("{name}: {rounds} rounds from seed 0 on");
        return;
    };
    let first = fastrand::u64(..) >> 16;
    let start = Instant::now();
    let mut count = 0;
    while start.elapsed() < time {
        run(first + count);
        count += 1;
    }
    println!("{name}: {count} rounds from seed {first} on");
}

/// Returns a word, often one at a boundary of something.
pub fn word(random: &mut Rng) -> u64 {
    match random.u32(..10) {
        0 => random.u64(..),
        1 => random.u64(..16),
        2 => random.u64(..4096),
        3 => random.u32(..).into(),
        4 | 5 => (1u64 << random.u32(..64))
            .wrapping_add(random.u64(..3))
            .wrapping_sub(1),
        6 => u64::MAX - random.u64(..260),
        7 => (random.u64(..) >> 32) << 32,
        8 => random.u64(..64) * 64,
        _ => random.u64(..1 << 20) << 12,
    }
}

/// Returns up to `most` random bytes; sometimes none.
pub fn bytes(random: &mut Rng, most: usize) -> Vec<u8> {
    let length = match random.u32(..4) {
        0 => random.usize(..=most.min(16)),
        1 => most,
        _ => random.usize(..=most),
    };
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}

/// Changes some of the bytes, a few times.
pub fn mutate(random: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..1 << random.u32(..4) {
        mutate_once(random, bytes);
    }
}

fn mutate_once(random: &mut Rng, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return *bytes = self::bytes(random, 32);
    }
    let at = random.usize(..bytes.len());
    match random.u32(..9) {
        0 => bytes[at] ^= 1 << random.u32(..8),
        1 => bytes[at] = random.u8(..),
        2 => bytes[at] = *random.choice(&[0, 1, 0x7f, 0x80, 0xff]).unwrap_or(&0),
        // An aligned word.
        3 | 4 => {
            let width = 1 << random.u32(1..4);
            let at = at / width * width;
            let word = word(random).to_le_bytes();
            let end = bytes.len().min(at + width);
            bytes[at..end].copy_from_slice(&word[..end - at]);
        }
        // The largest number in a variable-length encoding.
        5 => {
            let end = bytes.len().min(at + random.usize(1..10));
            bytes[at..end].fill(0xff);
        }
        6 => bytes.truncate(at),
        7 => {
            let end = random.usize(at..bytes.len()).min(at + 64);
            let part = bytes[at..end].to_vec();
            let place = random.usize(..=bytes.len());
            bytes.splice(place..place, part);
        }
        _ => {
            let end = random.usize(at..bytes.len()).min(at + 64);
            bytes.drain(at..end);
        }
    }
}
