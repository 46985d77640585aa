//! Moved code, and the same by a function or by gets: [`crate::mobile`].

use super::Unit;
use super::operations::{self, Operations, Parts};
use crate::control::Command;
use crate::mobile::WAY;
use anyhow::{Context, Result, bail, ensure};
use samite::mobile::operation::{Below, Shards, Table, Way};
use samite::mobile::{Capsule, Function, Limits, Mobile, Registered, Rights};
use samite::variable::DOMAIN;
use samite::{Fabric, FabricConfig, Identity, Link, Match, PeerId, Segment, SegmentKey};
use std::cell::OnceCell;
use std::collections::HashMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The tags of messages between the ranks.
const KEY: u64 = 16;
const END: u64 = 17;
/// Words of each server in a chase: 2 MiB, so that they are mapped into the memory of kernels.
const WORDS: u64 = 1 << 18;
/// The grants of the word that calls add to, of the words of chases, of those of `compute`.
const COUNT: usize = 0;
const CHAIN: usize = 1;
const DATA: usize = 2;
const DATA_BYTES: u64 = 64 << 20;
/// Words of `compute` are below this by one in two.
const BOUND: u32 = 1 << 31;

/// Adds one to a word of its target, and replies with nothing.
/// The address of the word is asked for once: an instance is used for many calls.
const ADD: &str = r#"(module
  (import "samite" "memory" (memory 1))
  (import "samite" "base" (func $base (param i32) (result i32)))
  (global $word (mut i32) (i32.const 0))
  (func (export "add") (param i32 i32) (result i32)
    (if (i32.eqz (global.get $word)) (then (global.set $word (call $base (i32.const 0)))))
    (drop (i64.atomic.rmw.add (global.get $word) (i64.const 1)))
    (i32.const 0)))"#;

/// The same as a function.
const ADD_FUNCTION: &str = "bench.add";

/// What a rank has for one delay.
struct Linked {
    /// `None`: the fabric of all commands.
    fabric: Option<Fabric>,
    members: Vec<PeerId>,
    mobile: Mobile,
    count: Segment,
    _chain: Segment,
    data: OnceCell<Segment>,
    /// What other operations need: at servers, and at rank 0.
    parts: OnceCell<Parts>,
    operations: OnceCell<Operations>,
    table: Option<Table>,
    cycle: Vec<u64>,
    moved: Registered,
    function: Registered,
}

/// Those of all delays so far, in microseconds.
#[derive(Default)]
pub(super) struct Mobiles(HashMap<u64, Linked>);

impl Unit {
    /// Runs a command; `None` if this way does not have it.
    pub(super) fn mobile(&self, command: &Command) -> Result<Option<f64>> {
        let way = std::env::var(WAY).unwrap_or_default();
        let way = match way.as_str() {
            "" => Way::Moved,
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
        let delay = if has_delay { command.number(2)? } else { 0 };
        let has = match kind {
            "latency" | "rate" | "chase-function" | "filter-function" | "compute" => {
                way != Way::Gets
            }
            "above" | "first" => way == Way::Moved,
            "chase" | "filter" => way != Way::Function,
            "mapped" => true,
            _ => is_operation,
        };
        if !has {
            return Ok(None);
        }
        if kind.starts_with("filter") {
            return self.filtered(way).map(Some);
        }
        let mobiles = &mut *self.mobiles.borrow_mut();
        if !mobiles.0.contains_key(&delay) {
            let linked = self.linked(delay).context("units over a link")?;
            mobiles.0.insert(delay, linked);
        }
        let Some(linked) = mobiles.0.get_mut(&delay) else {
            bail!("it was inserted above");
        };
        if self.rank != 0 {
            return linked.serve(kind, self.rank).map(|()| Some(0.0));
        }
        let took = linked.ask(way, command);
        for member in &linked.members[1..] {
            linked.fabric(&self.fabric).send(*member, END, &[])?;
        }
        took.map(Some)
    }

    /// Prepares a rank for chases over a link with this delay. Collective.
    fn linked(&self, delay: u64) -> Result<Linked> {
        let fabric = match delay {
            0 => None,
            _ => Some(self.over_link(delay)?),
        };
        let on = fabric.as_ref().unwrap_or(&self.fabric);
        let members = on.job()?;
        let servers = members.len() as u64 - 1;
        let mobile = Mobile::new(on)?;
        let count = on.allocate(2 << 20)?; // mapped into the memory of kernels
        mobile.grant(COUNT, count.bytes(), Rights::Write);
        let add = Function::new(|context, _| context.fetch_add(COUNT as u32, 0, 1).map(|_| ()));
        mobile.define(ADD_FUNCTION, add);
        Table::serve(&mobile);
        Below::serve(&mobile);
        operations::define(&mobile);
        let chain = on.allocate(WORDS * 8)?;
        let cycle = cycle(WORDS * servers);
        if let Some(server) = self.rank.checked_sub(1) {
            let part = &cycle[server * WORDS as usize..][..WORDS as usize];
            let part: Vec<u8> = part.iter().flat_map(|word| word.to_le_bytes()).collect();
            chain.bytes().write(0, &part);
            mobile.grant(CHAIN, chain.bytes(), Rights::Read);
            on.send(members[0], KEY, &chain.key().to_bytes())?;
        }
        let table = match self.rank {
            0 => {
                let keys = members[1..].iter().map(|server| {
                    let mut key = [0; 24];
                    on.recv(Match::from(*server, KEY), &mut key)?;
                    Ok(SegmentKey::from_bytes(&key))
                });
                let keys = keys.collect::<Result<Vec<_>>>()?;
                Some(Table::new(&Shards::new(&mobile, 1, CHAIN, WORDS, &keys)?)?)
            }
            _ => None,
        };
        let moved = mobile.register(Capsule::from_wat(ADD)?)?;
        let function = mobile.register(Capsule::of_function(ADD_FUNCTION, ["add"])?)?;
        on.barrier(&members)?;
        Ok(Linked {
            members,
            mobile,
            count,
            _chain: chain,
            data: OnceCell::new(),
            parts: OnceCell::new(),
            operations: OnceCell::new(),
            table,
            cycle,
            moved,
            function,
            fabric,
        })
    }

    /// Joins the domain once more, as a unit on a node of its own, over a link.
    fn over_link(&self, delay: u64) -> Result<Fabric> {
        let mut config = FabricConfig::default();
        config.mask.nodes = 64;
        config.link = Some(Link {
            delay: Duration::from_micros(delay),
            ..Link::default()
        });
        let own = self.fabric.identity();
        let identity = Identity {
            job: format!("{}-{delay}us", own.job),
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
            let mut random = 1_u64;
            let mut piece = vec![0; 1 << 20];
            for at in (0..DATA_BYTES).step_by(piece.len()) {
                for word in piece.chunks_exact_mut(4) {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    word.copy_from_slice(&((random >> 32) as u32).to_le_bytes());
                }
                data.bytes().write(at, &piece);
            }
            self.mobile.grant(DATA, data.bytes(), Rights::Read);
            let _ = self.data.set(data);
        }
        if let ("compute", Some(data)) = (kind, self.data.get()) {
            fabric.send(self.members[0], KEY, &data.key().to_bytes())?;
        }
        if operations::KINDS.contains(&kind) && self.parts.get().is_none() {
            let parts = operations::offer(&self.mobile, &self.members, rank)?;
            let _ = self.parts.set(parts);
        }
        fabric.recv(Match::from(self.members[0], END), &mut [])?;
        Ok(())
    }

    /// Runs a command at rank 0.
    fn ask(&self, way: Way, command: &Command) -> Result<f64> {
        let code = match way {
            Way::Function => &self.function,
            _ => &self.moved,
        };
        if command.name() == "chain" {
            return self.chases(way, true, command, 1);
        }
        match command.word(1) {
            "latency" => self.latency(code, command.number(2)?, command.number(3)?),
            "rate" => self.rate(code, command.number(2)?, command.number(3)?),
            "above" => self.above(command.number(2)?, command.number(3)?),
            "first" => self.first(command.word(2) == "prefetched"),
            "compute" => self.compute(way),
            kind if operations::KINDS.contains(&kind) => self.operate(way, command),
            _ => self.chases(way, false, command, 3),
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

    fn latency(&self, code: &Registered, iters: u64, warmup: u64) -> Result<f64> {
        self.calls(code, warmup)?;
        self.calls(code, iters)
    }

    fn rate(&self, code: &Registered, iters: u64, warmup: u64) -> Result<f64> {
        self.calls(code, warmup.min(1000))?;
        let begin = Instant::now();
        for _ in 1..iters {
            self.mobile.send(1, code, "add", &[])?;
        }
        self.calls(code, 1)?; // Behind all others, and answered.
        Ok(begin.elapsed().as_secs_f64())
    }

    /// The time of calls of moved code, without that of as many calls of the function.
    fn above(&self, iters: u64, warmup: u64) -> Result<f64> {
        const AT_ONCE: u64 = 1000;
        self.calls(&self.function, warmup)?;
        self.calls(&self.moved, warmup)?;
        let (mut above, mut done) = (0.0, 0);
        while done < iters {
            let now = AT_ONCE.min(iters - done);
            above += self.calls(&self.moved, now)? - self.calls(&self.function, now)?;
            done += now;
        }
        Ok(above)
    }

    /// The first call of code that the target has never seen, 83 bytes of it.
    fn first(&self, prefetched: bool) -> Result<f64> {
        let number = self.mobile.counters().calls ^ Instant::now().elapsed().as_nanos() as u64;
        let unique = format!(
            "(i64.const {})",
            (number ^ u64::from(std::process::id())) << 8 | unique()
        );
        let code = ADD.replacen("(i64.const 1)", &unique, 1);
        let code = self.mobile.register(Capsule::from_wat(&code)?)?;
        if prefetched {
            self.mobile.prefetch(&code, &[1])?.wait()?;
        }
        let took = self.calls(&code, 1)?;
        self.mobile.evict(code.hash());
        Ok(took)
    }

    fn compute(&self, way: Way) -> Result<f64> {
        let (mut key, words) = ([0; 24], DATA_BYTES / 8);
        let fabric = self.mobile.fabric();
        fabric.recv(Match::from(self.members[1], KEY), &mut key)?;
        let key = SegmentKey::from_bytes(&key);
        let below = Below::new(&Shards::new(&self.mobile, 1, DATA, words, &[key])?)?;
        let first = below.find(way, 0..words, BOUND)?;
        let begin = Instant::now();
        let found = below.find(way, 0..words, BOUND)?;
        let took = begin.elapsed().as_secs_f64();
        let halves = 2 * words;
        let is_half = found.count.abs_diff(halves / 2) < halves / 100;
        ensure!(found == first && is_half, "a wrong sum: {found:?}");
        Ok(took)
    }

    /// Runs an operation. Its data are there after the first one.
    fn operate(&self, way: Way, command: &Command) -> Result<f64> {
        if self.operations.get().is_none() {
            let new = Operations::new(&self.mobile, &self.members)?;
            let _ = self.operations.set(new);
        }
        let operations = self.operations.get().context("it was set above")?;
        operations.ask(way, command.number(2)? == 0, command)
    }

    fn chases(&self, way: Way, is_auto: bool, command: &Command, at: usize) -> Result<f64> {
        let table = self.table.as_ref().context("rank 0 has the table")?;
        let depth = command.number(at)?;
        let (iters, warmup) = (command.number(at + 1)?, command.number(at + 2)?);
        let mut start = 0;
        let mut chase = || -> Result<()> {
            start = (start + 7919) % table.len();
            let found = match is_auto && way == Way::Moved {
                true => table.chase_auto(depth, start)?,
                false => table.chase(way, depth, start)?,
            };
            if start % 16 == 0 {
                let right = (0..depth).fold(start, |at, _| self.cycle[at as usize]);
                ensure!(
                    found == right,
                    "a chase ended at {found} instead of {right}"
                );
            }
            Ok(())
        };
        // The first chases bring the code to all servers; `chase_auto` tries all ways.
        let least = 12;
        (0..warmup.max(least)).try_for_each(|_| chase())?;
        let begin = Instant::now();
        (0..iters).try_for_each(|_| chase())?;
        let took = begin.elapsed().as_secs_f64();
        ensure!(self.count.bytes().len() >= 8, "the counted word");
        Ok(took)
    }
}

/// Returns another number at each call.
fn unique() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Relaxed) // ORDERING: Relaxed: nothing else depends on it.
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
