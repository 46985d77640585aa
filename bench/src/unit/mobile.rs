//! Moved code, and the same by a function or by gets: [`crate::mobile`].

use super::Unit;
use super::native::{self, Form};
use super::newcomers;
use super::operations::{self, Operations, Parts};
use crate::control::Command;
use crate::mobile::{MANY, MOVED, WAY};
use anyhow::{Context, Result, bail, ensure};
use samite::mobile::operation::{Shards, Table, Way};
use samite::mobile::{Capsule, Function, Limits, Mobile, Registered, Rights};
use samite::variable::DOMAIN;
use samite::{Fabric, FabricConfig, Identity, Link, Match, PeerId, Remote, Segment, SegmentKey};
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::hint::black_box;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The tags of messages between the ranks.
const KEY: u64 = 16;
const READY: u64 = 17;
const END: u64 = 18;
/// Longer than any command takes.
const LONGEST: Duration = Duration::from_secs(3600);
/// Words of each server in a chase: 2 MiB, so that they are mapped into the memory of kernels.
const WORDS: u64 = 1 << 18;
/// The grants of the word that calls add to, of the words of chases, of those of `compute`.
const COUNT: usize = 0;
const CHAIN: usize = 1;
const DATA: usize = 2;
const DATA_BYTES: u64 = 64 << 20;
const PIECE: usize = 1 << 20;
/// Words of `compute` are below this by one in two.
const BOUND: u32 = 1 << 31;

/// Adds one to a word of its target, and replies with nothing.
/// The address of the word is asked for once: an instance is used for many calls.
pub(super) const ADD: &str = r#"(module
  (import "samite" "memory" (memory 1))
  (import "samite" "base" (func $base (param i32) (result i32)))
  (global $word (mut i32) (i32.const 0))
  (func (export "add") (param i32 i32) (result i32)
    (if (i32.eqz (global.get $word)) (then (global.set $word (call $base (i32.const 0)))))
    (drop (i64.atomic.rmw.add (global.get $word) (i64.const 1)))
    (i32.const 0)))"#;

/// The same as a function.
const ADD_FUNCTION: &str = "bench.add";

/// What rank 0 has besides.
struct Asks {
    table: Table,
    /// The word of rank 1 that calls add to.
    counted: Remote,
}

/// What a rank has for one delay.
struct Linked {
    /// `None`: the fabric of all commands.
    fabric: Option<Fabric>,
    members: Vec<PeerId>,
    mobile: Mobile,
    _count: Segment,
    _chain: Segment,
    data: OnceCell<Segment>,
    /// What other operations need: at servers, and at rank 0.
    parts: OnceCell<Parts>,
    operations: OnceCell<Operations>,
    asks: Option<Asks>,
    cycle: Vec<u64>,
    /// The depths of chases in mapped memory that have settled ([`settle`]).
    settled: RefCell<BTreeSet<u64>>,
    moved: Registered,
    function: Registered,
}

/// By the delay in microseconds: that of all commands (0), and that of one link. A process counts
/// once for each fabric, so those of earlier links are left.
#[derive(Default)]
pub(super) struct Mobiles {
    linked: HashMap<u64, Linked>,
    /// How many links there were: each has a job of its own.
    links: u64,
}

impl Unit {
    /// Runs a command; `None` if this way does not have it.
    pub(super) fn mobile(&self, command: &Command) -> Result<Option<f64>> {
        let way = std::env::var(WAY).unwrap_or_default();
        // Where `samite` chooses.
        let is_auto = way.is_empty();
        let is_moved = way == MOVED;
        let way = match way.as_str() {
            "" | MOVED => Way::Moved,
            "function" => Way::Function,
            "gets" => Way::Gets,
            other => bail!("there is no way `{other}`"),
        };
        let kind = match command.name() {
            "chain" => "mapped",
            _ => command.word(1),
        };
        let is_operation = operations::KINDS.contains(&kind);
        let has_delay = is_operation || kind.starts_with("chase");
        let is_mapped = kind == "mapped" || is_operation && command.number(2)? == 0;
        let delay = if has_delay { command.number(2)? } else { 0 };
        let has = match kind {
            _ if is_moved => is_mapped,
            "latency" | "rate" | "chase-function" | "filter-function" | "compute" => {
                way != Way::Gets
            }
            // A warm call of the function stands beside the first one after a prefetch.
            "first" if command.word(2) == "prefetched" => way != Way::Gets,
            "above" | "first" | "bytes" => way == Way::Moved,
            "chase" | "chases" | "filter" => way != Way::Function,
            "mapped" => true,
            _ => is_operation,
        };
        let is_in_c = kind == "compute" || command.word(2).ends_with("bitcode");
        if !has || is_in_c && !native::has_clang() {
            return Ok(None);
        }
        if let Some(form) = command.word(2).strip_prefix("new-") {
            let took = match self.rank {
                0 => newcomers::first_call(form)?,
                _ => 0.0,
            };
            return Ok(Some(took));
        }
        if kind.starts_with("filter") {
            return self.filtered(way).map(Some);
        }
        let mobiles = &mut *self.mobiles.borrow_mut();
        if !mobiles.linked.contains_key(&delay) {
            mobiles.linked.retain(|of, _| *of == 0);
            mobiles.links += 1;
            let linked = self.linked(delay, mobiles.links);
            mobiles
                .linked
                .insert(delay, linked.context("units over a link")?);
        }
        let Some(linked) = mobiles.linked.get(&delay) else {
            bail!("it was inserted above");
        };
        if self.rank != 0 {
            return linked.serve(kind, self.rank).map(|()| Some(0.0));
        }
        let took = linked.ask(way, is_auto && is_mapped, command);
        for member in &linked.members[1..] {
            linked.fabric(&self.fabric).send(*member, END, &[])?;
        }
        took.map(Some)
    }

    /// Prepares a rank for chases over a link with this delay. Collective.
    fn linked(&self, delay: u64, number: u64) -> Result<Linked> {
        let fabric = match delay {
            0 => None,
            _ => Some(self.over_link(delay, number)?),
        };
        let on = fabric.as_ref().unwrap_or(&self.fabric);
        let members = on.job()?;
        let servers = members.len() as u64 - 1;
        let mobile = Mobile::new(on)?;
        mobile.set_policy(native::policy());
        let count = on.allocate(2 << 20)?; // mapped into the memory of kernels
        mobile.grant(COUNT, count.bytes(), Rights::Write);
        // As the kernel, it knows its word.
        let word = count.bytes().clone();
        let add = Function::new(move |_, _| {
            // ORDERING: SeqCst, as the atomics of WebAssembly.
            word.u64(0).fetch_add(1, SeqCst);
            Ok(())
        });
        mobile.define(ADD_FUNCTION, add);
        Table::serve(&mobile);
        operations::define(&mobile);
        let chain = on.allocate(WORDS * 8)?;
        let cycle = cycle(WORDS * servers);
        if let Some(server) = self.rank.checked_sub(1) {
            let part = &cycle[server * WORDS as usize..][..WORDS as usize];
            let part: Vec<u8> = part.iter().flat_map(|word| word.to_le_bytes()).collect();
            chain.bytes().write(0, &part);
            mobile.grant(CHAIN, chain.bytes(), Rights::Read);
            for segment in [&count, &chain] {
                on.send(members[0], KEY, &segment.key().to_bytes())?;
            }
        }
        let asks = match self.rank {
            0 => {
                let mut counts = Vec::new();
                let mut chains = Vec::new();
                for server in &members[1..] {
                    for keys in [&mut counts, &mut chains] {
                        let mut key = [0; 24];
                        on.recv(Match::from(*server, KEY), &mut key)?;
                        keys.push(SegmentKey::from_bytes(&key));
                    }
                }
                Some(Asks {
                    table: Table::new(&Shards::new(&mobile, 1, CHAIN, WORDS, &chains)?)?,
                    counted: on.attach(*counts.first().context("a target")?)?,
                })
            }
            _ => None,
        };
        let moved = mobile.register(Capsule::from_wat(ADD)?)?;
        let function = mobile.register(Capsule::of_function(ADD_FUNCTION, ["add"])?)?;
        on.barrier(&members)?;
        Ok(Linked {
            members,
            mobile,
            _count: count,
            _chain: chain,
            data: OnceCell::new(),
            parts: OnceCell::new(),
            operations: OnceCell::new(),
            asks,
            cycle,
            settled: RefCell::default(),
            moved,
            function,
            fabric,
        })
    }

    /// Joins the domain once more, as a unit on a node of its own, over a link.
    fn over_link(&self, delay: u64, number: u64) -> Result<Fabric> {
        let mut config = FabricConfig::default();
        config.mask.nodes = 64;
        config.link = Some(Link {
            delay: Duration::from_micros(delay),
            ..Link::default()
        });
        let own = self.fabric.identity();
        let identity = Identity {
            job: format!("{}-{delay}us-{number}", own.job),
            ..own.clone()
        };
        let domain = std::env::var(DOMAIN).context("a unit of a domain")?;
        Ok(Fabric::join(&domain, identity, config)?)
    }
}

impl Linked {
    fn fabric<'a>(&'a self, of_all: &'a Fabric) -> &'a Fabric {
        self.fabric.as_ref().unwrap_or(of_all)
    }

    /// Serves until rank 0 says that it has what it wanted.
    fn serve(&self, kind: &str, rank: usize) -> Result<()> {
        let fabric = self.mobile.fabric();
        if kind == "compute" && self.data.get().is_none() {
            let data = fabric.allocate(DATA_BYTES)?;
            for (at, piece) in (0_u64..).step_by(PIECE).zip(pieces()) {
                data.bytes().write(at, &piece);
            }
            self.mobile.grant(DATA, data.bytes(), Rights::Read);
            let _ = self.data.set(data);
        }
        if kind == "compute" {
            fabric.send(self.members[0], READY, &[])?;
        }
        if operations::KINDS.contains(&kind) && self.parts.get().is_none() {
            let parts = operations::offer(&self.mobile, &self.members, rank)?;
            let _ = self.parts.set(parts);
        }
        // However long rank 0 measures.
        let end = Match::from(self.members[0], END);
        fabric.within(LONGEST, || fabric.recv(end, &mut []))?;
        Ok(())
    }

    /// Runs a command at rank 0.
    fn ask(&self, way: Way, is_auto: bool, command: &Command) -> Result<f64> {
        let code = match way {
            Way::Function => &self.function,
            _ => &self.moved,
        };
        if command.name() == "chain" {
            return self.chases(way, is_auto, command, 1);
        }
        match command.word(1) {
            "latency" => self.latency(code, command.number(2)?, command.number(3)?),
            "rate" => self.rate(code, command.number(2)?, command.number(3)?),
            "above" => self.above(),
            "bytes" => self.bytes(command.number(2)?, command.number(3)?),
            "first" if way == Way::Function => self.adding(2, || {
                self.calls(code, 1)?;
                self.calls(code, 1)
            }),
            "first" => self.first(command.word(2)),
            "compute" => self.compute(match (way, command.word(2)) {
                (Way::Function, _) => Form::Ahead,
                (_, "bitcode") => Form::Bitcode,
                _ => Form::Wasm,
            }),
            kind if operations::KINDS.contains(&kind) => self.operate(way, is_auto, command),
            _ => self.chases(way, is_auto, command, 3),
        }
    }

    fn calls(&self, code: &Registered, count: u64) -> Result<f64> {
        let begin = Instant::now();
        for _ in 0..count {
            let call = self.mobile.call_entry(1, code, 0, &[], Limits::default())?;
            black_box(call.wait()?);
        }
        Ok(begin.elapsed().as_secs_f64())
    }

    fn asks(&self) -> Result<&Asks> {
        self.asks.as_ref().context("only rank 0 asks")
    }

    /// Runs calls, which have to add this much to the word of rank 1.
    fn adding(&self, sum: u64, calls: impl FnOnce() -> Result<f64>) -> Result<f64> {
        let word = || -> Result<u64> {
            let mut bytes = [0; 8];
            self.asks()?.counted.get(0, &mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        };
        let before = word()?;
        let took = calls()?;
        let added = word()?.wrapping_sub(before);
        ensure!(added == sum, "the calls added {added} instead of {sum}");
        Ok(took)
    }

    fn latency(&self, code: &Registered, iters: u64, warmup: u64) -> Result<f64> {
        self.adding(warmup + iters, || {
            self.calls(code, warmup)?;
            self.calls(code, iters)
        })
    }

    fn rate(&self, code: &Registered, iters: u64, warmup: u64) -> Result<f64> {
        let (iters, warmup) = (iters.max(1), warmup.min(1000));
        self.adding(warmup + iters, || {
            self.calls(code, warmup)?;
            let begin = Instant::now();
            for _ in 1..iters {
                self.mobile.send(1, code, "add", &[])?;
            }
            self.calls(code, 1)?; // Behind all others, and answered.
            Ok(begin.elapsed().as_secs_f64())
        })
    }

    /// The time of a call of moved code, without that of a call of the function. The difference
    /// says nothing about how many calls take long enough, so their number is fixed.
    fn above(&self) -> Result<f64> {
        const ROUNDS: u64 = 100;
        const AT_ONCE: u64 = 1000;
        let calls = ROUNDS * AT_ONCE;
        self.adding(2 * (AT_ONCE + calls), || {
            self.calls(&self.function, AT_ONCE)?;
            self.calls(&self.moved, AT_ONCE)?;
            let mut above = 0.0;
            // Each goes first in every second round.
            let [moved, function] = [&self.moved, &self.function];
            for round in 0..ROUNDS {
                let [first, second] = match round % 2 {
                    0 => [moved, function],
                    _ => [function, moved],
                };
                let difference = self.calls(first, AT_ONCE)? - self.calls(second, AT_ONCE)?;
                above += difference * if round % 2 == 0 { 1.0 } else { -1.0 };
            }
            Ok(above / calls as f64)
        })
    }

    /// The bytes that leave for a call, without those of its payload.
    fn bytes(&self, iters: u64, warmup: u64) -> Result<f64> {
        let fabric = self.mobile.fabric();
        self.adding(warmup + iters, || {
            self.calls(&self.moved, warmup)?;
            let before = fabric.upcall_bytes();
            self.calls(&self.moved, iters)?;
            // No bytes are in the payloads.
            Ok((fabric.upcall_bytes() - before) as f64)
        })
    }

    /// The first call of code that the target has never seen: some 110 bytes of WebAssembly, or
    /// bitcode.
    fn first(&self, kind: &str) -> Result<f64> {
        let number = unique();
        let capsule = match kind {
            "bitcode" => native::capsule(Form::Bitcode, native::ADD, &macros(number))?,
            _ => Capsule::from_wat(&never_seen(number))?,
        };
        let code = self.mobile.register(capsule)?;
        self.calls(&self.moved, 1)?; // The target has run other code.
        if kind == "prefetched" {
            self.mobile.prefetch(&code, &[1])?.wait()?;
            self.calls(&self.function, 1)?; // The target is awake.
        }
        let took = self.adding(number.into(), || self.calls(&code, 1))?;
        self.mobile.evict(code.hash());
        Ok(took)
    }

    /// The second run of a kernel in C over the data of rank 1.
    fn compute(&self, form: Form) -> Result<f64> {
        let limits = Limits {
            run: Duration::from_secs(10),
            ..Limits::default()
        };
        let fabric = self.mobile.fabric();
        fabric.recv(Match::from(self.members[1], READY), &mut [])?;
        let code = native::capsule(form, native::BELOW, &macros(0))?;
        let code = self.mobile.register(code)?;
        let below = || -> Result<[u64; 2]> {
            let bound = BOUND.to_le_bytes();
            let call = (self.mobile).call_entry(1, &code, 0, &bound, limits)?;
            let reply = call.wait()?;
            let (words, _) = reply.as_slice().as_chunks::<8>();
            let found = words.iter().map(|word| u64::from_le_bytes(*word));
            Ok(<[u64; 2]>::try_from(found.collect::<Vec<_>>()).unwrap_or_default())
        };
        let first = below()?;
        let begin = Instant::now();
        let found = below()?;
        let took = begin.elapsed().as_secs_f64();
        ensure!(found == first && found == right(), "a wrong sum: {found:?}");
        Ok(took)
    }

    /// Runs an operation. Its data are there after the first one.
    fn operate(&self, way: Way, is_auto: bool, command: &Command) -> Result<f64> {
        if self.operations.get().is_none() {
            let new = Operations::new(&self.mobile, &self.members)?;
            let _ = self.operations.set(new);
        }
        let operations = self.operations.get().context("it was set above")?;
        operations.ask(way, is_auto, command)
    }

    /// Chases, each of which begins where the end of the last one has a say: without that, a
    /// processor begins the next one before this one has ended.
    fn chases(&self, way: Way, is_auto: bool, command: &Command, at: usize) -> Result<f64> {
        let table = &self.asks()?.table;
        let depth = command.number(at)?;
        let (iters, warmup) = (command.number(at + 1)?, command.number(at + 2)?);
        ensure!(table.len().is_power_of_two(), "numbers of words are masked");
        let (mask, nothing) = (table.len() - 1, black_box(0));
        // The first chases bring the code to all servers; `chase_auto` tries all ways.
        let warmup = warmup.max(if is_auto { 12 } else { 2 });
        let (mut start, mut end) = (0, 0);
        if command.word(1) == "chases" {
            let apart = table.len() / MANY + 1;
            let starts = |start: u64| (0..MANY).map(move |at| (start + at * apart) & mask);
            let (took, ends) = timed(warmup, iters, || {
                start = (start + 7919 + (end & nothing)) & mask;
                let ends = table.chase_all(way, depth, &starts(start).collect::<Vec<_>>())?;
                end = *ends.first().context("an end")?;
                Ok(ends)
            })?;
            ensure!(ends.len() as u64 == MANY, "{} ends", ends.len());
            let mut chases = starts(start).zip(ends);
            chases.try_for_each(|(start, end)| self.verify(start, depth, end))?;
            return Ok(took);
        }
        let mut chase = || {
            start = (start + 7919 + (end & nothing)) & mask;
            end = match is_auto {
                true => table.chase_auto(depth, start)?,
                false => table.chase(way, depth, start)?,
            };
            Ok(end)
        };
        let is_mapped = self.fabric.is_none();
        if is_mapped && self.settled.borrow_mut().insert(depth) {
            settle(&mut chase)?;
        }
        let (took, end) = timed(warmup, iters, chase)?;
        self.verify(start, depth, end)?;
        Ok(took)
    }

    /// Follows the cycle once more, when the clock has stopped.
    fn verify(&self, start: u64, depth: u64, end: u64) -> Result<()> {
        let right = (0..depth).fold(start, |at, _| self.cycle[at as usize]);
        ensure!(end == right, "a chase ended at {end} instead of {right}");
        Ok(())
    }
}

/// How long an operation in mapped memory is repeated once, before it is timed at all: pages are
/// mapped, and one that chooses its way tries all of them. How often it is timed in each turn is
/// found out from its first times, and then holds.
const SETTLING: Duration = Duration::from_millis(100);

pub(super) fn settle<T>(mut once: impl FnMut() -> Result<T>) -> Result<()> {
    let begin = Instant::now();
    while begin.elapsed() < SETTLING {
        once()?;
    }
    Ok(())
}

/// Does something some times, and then as often as it is timed. Returns the seconds that this took,
/// and the last result.
fn timed<T>(warmup: u64, iters: u64, mut once: impl FnMut() -> Result<T>) -> Result<(f64, T)> {
    let mut last = once()?;
    for _ in 1..warmup {
        last = once()?;
    }
    let begin = Instant::now();
    for _ in 0..iters {
        last = once()?;
    }
    Ok((begin.elapsed().as_secs_f64(), last))
}

/// Returns another number at each call.
fn unique() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Relaxed) // ORDERING: Relaxed: nothing else depends on it.
}

/// The words of `compute`, in pieces of [`PIECE`] bytes.
fn pieces() -> impl Iterator<Item = Vec<u8>> {
    let mut random = 1_u64;
    (0..DATA_BYTES).step_by(PIECE).map(move |_| {
        let words = (0..PIECE / 4).flat_map(|_| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            ((random >> 32) as u32).to_le_bytes()
        });
        words.collect()
    })
}

/// The sum and the number of these words that are below the bound.
fn right() -> [u64; 2] {
    static RIGHT: OnceLock<[u64; 2]> = OnceLock::new();
    *RIGHT.get_or_init(|| {
        let mut found = [0, 0];
        for piece in pieces() {
            let (words, _) = piece.as_chunks::<4>();
            let words = words.iter().map(|word| u32::from_le_bytes(*word));
            for word in words.filter(|word| *word < BOUND) {
                found = [found[0] + u64::from(word), found[1] + 1];
            }
        }
        found
    })
}

/// The macros of the kernels in C, for a kernel that adds this number, and that no other process
/// has.
pub(super) fn macros(added: u32) -> [(&'static str, u32); 4] {
    let process = std::process::id() | 1 << 31; // Never 0: the kernel returns it as an error.
    [
        ("COUNT", COUNT as u32),
        ("DATA", DATA as u32),
        ("ADDED", added),
        ("PROCESS", process),
    ]
}

/// Returns code that adds this number, and that no other process has made: its globals are the id
/// of this one, and when it made the first.
fn never_seen(number: u32) -> String {
    static SINCE: OnceLock<u128> = OnceLock::new();
    let since = SINCE.get_or_init(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.unwrap_or_default().as_nanos()
    });
    let adds = ADD.replacen("(i64.const 1)", &format!("(i64.const {number})"), 1);
    let (since, process) = (*since as u64, std::process::id());
    let globals = format!("(global i64 (i64.const {since})) (global i32 (i32.const {process})))");
    format!("{}{globals}", adds.strip_suffix(')').unwrap_or(&adds))
}

/// One random cycle through all words (Sattolo's algorithm), the same in all ranks.
fn cycle(words: u64) -> Vec<u64> {
    let mut next: Vec<u64> = (0..words).collect();
    let mut random = 1_u64;
    for at in (1..next.len()).rev() {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        next.swap(at, (random >> 33) as usize % at);
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn code_that_was_never_seen_differs() {
        let hash = |_| Capsule::from_wat(&never_seen(unique())).unwrap().hash();
        let hashes: HashSet<_> = (0..1000).map(hash).collect();
        assert_eq!(hashes.len(), 1000);
    }
}
