//! A filter on staged data, by moved code, by a function, or by reading all of it: `stage/filter`
//! of [`crate::mobile`].
//!
//! Rank 0 reads. A thread of rank 1 keeps the blocks and runs what comes. Rank 2 has written them.
//! Each behaves as if it were on a node of its own, and they reach each other over a link of
//! 1 Gbit/s.

use super::Unit;
use anyhow::{Context, Result, ensure};
use samite::mobile::operation::Way;
use samite::mobile::{Capsule, Function, Mobile, Registered};
use samite::ndarray::{Array1, Ix1};
use samite::stage::method::Method;
use samite::stage::service::{BlockStoreService, Capacity};
use samite::stage::{Configuration, Settings, Stage, StepReader};
use samite::variable::DOMAIN;
use samite::{Fabric, FabricConfig, Identity, Link, Map};
use std::time::{Duration, Instant};

/// 1 Gbit/s, in bytes.
const RATE: u64 = 125_000_000;
/// Words of the variable: 64 MiB.
const WORDS: u64 = 16 << 20;
/// One word in a hundred is below this.
const BOUND: u32 = u32::MAX / 100;
/// The unit that has the blocks.
const SERVER: u32 = 1;
const FUNCTION: &str = "bench.below";

/// What rank 0 has for this command; `None` at the others.
pub(super) type Filtered = Option<Reader>;

pub(super) struct Reader {
    mobile: Mobile,
    /// The stream of the step.
    _stream: samite::stage::Reader,
    step: StepReader,
    moved: Registered,
    function: Registered,
    /// What every run has to find.
    found: u64,
}

fn word(at: u64) -> u32 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

impl Unit {
    /// Runs the filter once; collective.
    pub(super) fn filtered(&self, way: Way) -> Result<f64> {
        let filtered = &mut *self.filtered.borrow_mut();
        if filtered.is_none() {
            *filtered = Some(self.over_gigabit().context("units over a link")?);
        }
        match filtered {
            Some(Some(reader)) => reader.run(way),
            _ => Ok(0.0),
        }
    }

    fn over_gigabit(&self) -> Result<Filtered> {
        let mut config = FabricConfig::default();
        config.mask.nodes = 64;
        config.link = Some(Link {
            delay: Duration::from_micros(20),
            rate: Some(RATE),
            ..Link::default()
        });
        let own = self.fabric.identity();
        let identity = Identity {
            job: format!("{}-1gbit", own.job),
            ..own.clone()
        };
        let domain = std::env::var(DOMAIN).context("a unit of a domain")?;
        let fabric = Fabric::join(&domain, identity, config)?;
        let members = fabric.job()?;
        let stream = format!("filtered-{}", fabric.identity().job);
        let mobile = Mobile::new(&fabric)?;
        mobile.define(FUNCTION, Function::new(below));
        let settings = Configuration::of(Settings::of(Method::Server));
        let mut reader = None;
        match self.rank {
            0 => {
                fabric.barrier(&members)?; // The server is there.
                let stage = Stage::join_with(&fabric, settings)?;
                let mut stream = stage.read(&stream).as_rank("reader", 0, 1).open()?;
                let step = stream.next_step()?.context("a step was written")?;
                let code = Capsule::from_wat(include_str!("below.wat"))?;
                reader = Some(Reader {
                    moved: mobile.register(code)?,
                    function: mobile.register(Capsule::of_function(FUNCTION, ["below"])?)?,
                    mobile,
                    _stream: stream,
                    step,
                    found: (0..WORDS).filter(|at| word(*at) < BOUND).count() as u64,
                });
            }
            1 => {
                let mut store = BlockStoreService::join(&fabric, Capacity::of_memory(512 << 20))?;
                std::thread::spawn(move || {
                    let _runs_what_comes = mobile;
                    // Until the process ends.
                    if let Err(error) = store.run(|_| true) {
                        eprintln!("the block store has ended: {error}");
                    }
                });
                fabric.barrier(&members)?;
            }
            _ => {
                fabric.barrier(&members)?;
                let stage = Stage::join_with(&fabric, settings)?;
                let mut writer = stage.write(&stream).as_rank("writer", 0, 1).open()?;
                let mut step = writer.step()?;
                let words = Array1::from_iter((0..WORDS).map(word));
                step.put("words", [WORDS], [0], words.view())?;
                step.commit()?;
                writer.close()?;
            }
        }
        Ok(reader)
    }
}

impl Reader {
    fn run(&self, way: Way) -> Result<f64> {
        let begin = Instant::now();
        let found: Vec<u32> = match way {
            Way::Gets => {
                let all: Array1<u32> = self.step.get::<u32, Ix1>("words", ..)?;
                all.iter().copied().filter(|word| *word < BOUND).collect()
            }
            way => {
                let code = match way {
                    Way::Function => &self.function,
                    _ => &self.moved,
                };
                let map = Map::new(&self.mobile, code, "below");
                let map = map.argument(&BOUND.to_le_bytes()).at(&[SERVER]);
                let parts = map.run(&self.step, "words", ..)?;
                let bytes = parts.iter().flat_map(|part| part.bytes.as_chunks::<4>().0);
                bytes.map(|word| u32::from_le_bytes(*word)).collect()
            }
        };
        let took = begin.elapsed().as_secs_f64();
        let count = found.len() as u64;
        let is_right = count == self.found && found.iter().all(|word| *word < BOUND);
        ensure!(is_right, "{count} words in place of {}", self.found);
        Ok(took)
    }
}

/// The function: what `below.wat` does.
fn below(
    context: &mut samite::mobile::Context,
    payload: &[u8],
) -> Result<(), samite::mobile::Trap> {
    let Some((head, words)) = payload.split_first_chunk::<32>() else {
        return Ok(());
    };
    let bound = u32::from_le_bytes([head[16], head[17], head[18], head[19]]);
    let (words, _) = words.as_chunks::<4>();
    let is_kept = |word: &[u8; 4]| u32::from_le_bytes(*word) < bound;
    let mut kept = Vec::with_capacity(words.len() * 4);
    // 16 words at once: the compiler compares them by SIMD, and few of them have one that is kept.
    let (groups, rest) = words.as_chunks::<16>();
    let with_any = groups
        .iter()
        .filter(|group| group.iter().fold(false, |any, word| any | is_kept(word)));
    for word in with_any.flatten().chain(rest) {
        if is_kept(word) {
            kept.extend_from_slice(word);
        }
    }
    context.reply(&kept)
}
