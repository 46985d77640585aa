//! Predicts the needs of one stream of a workflow: arrays, bytes sent and received, memory,
//! servers.

use anyhow::{Context, Result};
use samite::stage::index::Index;
use samite::stage::method::graph::{Cut, Edge, Extent, Promise};
use samite::stage::placement::{Share, figures};
use samite::stage::protocol::{Limits, Policy};
use samite::stage::space::Grid;
use samite::stage::{Method, Region, Settings};
use serde::Serialize;

/// A stream.
#[derive(Serialize)]
pub(super) struct StreamPlan {
    pub(super) name: String,
    pub(super) method: &'static str,
    pub(super) writer: String,
    pub(super) writers: u64,
    pub(super) variables: Vec<Array>,
    /// Bytes that all writers put into a step that has all variables.
    pub(super) step_bytes: u64,
    /// Bytes of these that the writer with the largest part puts.
    pub(super) most_put: u64,
    pub(super) readers: Vec<ReaderPlan>,
    /// Maximum number of steps in memory at the same time.
    pub(super) steps_in_memory: u64,
    /// The configured limit of steps that wait for the slowest reader.
    pub(super) limit_steps: u64,
    /// The configured limit of its bytes in memory.
    pub(super) limit_memory: Option<u64>,
    /// Whether steps may be spilled to disk for a reader.
    pub(super) spills: bool,
    /// The number of servers that keep each byte.
    pub(super) replicas: u64,
    /// Bytes of shared memory that the steps in memory take, with all replicas.
    pub(super) memory: u64,
    /// Copies of a byte on its way: by `put` and `get`, and those that remain with `alloc` and
    /// `view`.
    pub(super) copies: Copies,
    /// Bytes of the index of its blocks, in each reading process.
    pub(super) index_bytes: u64,
    pub(super) servers: Option<ServerPlan>,
}

/// A variable.
#[derive(Serialize)]
pub(super) struct Array {
    pub(super) name: String,
    pub(super) dtype: String,
    /// Empty if it is not promised.
    pub(super) shape: Vec<u64>,
    pub(super) every: u64,
    pub(super) bytes: u64,
}

/// A program that reads.
#[derive(Serialize)]
pub(super) struct ReaderPlan {
    pub(super) program: String,
    pub(super) units: u64,
    /// Bytes of a step that each unit gets, if they share it evenly.
    pub(super) each: u64,
}

#[derive(Serialize)]
pub(super) struct Copies {
    pub(super) put: u64,
    pub(super) alloc: u64,
    pub(super) get: u64,
    /// For a box inside one block.
    pub(super) view: u64,
}

/// The load of staging servers.
#[derive(Serialize)]
pub(super) struct ServerPlan {
    pub(super) servers: u64,
    pub(super) replicas: u64,
    /// Bytes of a step at each, on average.
    pub(super) mean: u64,
    /// Bytes at the fullest server, relative to the mean.
    pub(super) max_over_mean: f64,
    pub(super) pieces: u64,
    /// Maximum number of servers that a writer and a reader talk to, and of writers and readers
    /// that talk to a server.
    pub(super) per_writer: u64,
    pub(super) per_reader: u64,
    pub(super) per_server: u64,
}

/// The programs around a stream: the writers, and each reading program with its units.
pub(super) struct Around<'a> {
    pub(super) writers: u64,
    pub(super) readers: Vec<(&'a Edge, u64)>,
    pub(super) servers: u64,
    /// Maximum bytes that may wait without a configured limit: a quarter of all memory for blocks.
    pub(super) quarter: u64,
}

/// A promised array, divided into the parts of the writers.
struct Parts {
    shape: Vec<u64>,
    grid: Grid,
    element: u64,
}

impl StreamPlan {
    pub(super) fn new(name: &str, settings: &Settings, around: &Around<'_>) -> Result<StreamPlan> {
        let (first, _) = around.readers[0];
        let promises = promises(around);
        let mut plan = StreamPlan {
            name: name.to_owned(),
            method: method_name(settings.method),
            writer: first.from.clone(),
            writers: around.writers,
            variables: Vec::new(),
            step_bytes: 0,
            most_put: 0,
            readers: Vec::new(),
            steps_in_memory: 0,
            limit_steps: 0,
            limit_memory: settings.memory,
            spills: false,
            replicas: u64::from(settings.replicas),
            memory: 0,
            copies: copies(settings.method),
            index_bytes: 0,
            servers: None,
        };
        let mut loads = vec![0u64; around.writers as usize];
        for promise in promises {
            let parts = Parts::new(promise, around.writers)
                .with_context(|| format!("the variable {} of the stream {name}", promise.name))?;
            plan.add(promise, parts.as_ref(), &mut loads)?;
            // Only the method `server` spreads blocks over servers.
            if let (Method::Server, Some(parts)) = (settings.method, &parts) {
                plan.spread(parts, settings, around)?;
            }
        }
        plan.most_put = loads.into_iter().max().unwrap_or(0);
        plan.readers = around
            .readers
            .iter()
            .map(|(edge, units)| ReaderPlan {
                program: edge.to.clone(),
                units: *units,
                each: plan.step_bytes.div_ceil((*units).max(1)),
            })
            .collect();
        plan.remember(settings, around);
        Ok(plan)
    }

    fn add(&mut self, promise: &Promise, parts: Option<&Parts>, loads: &mut [u64]) -> Result<()> {
        let mut bytes = 0u64;
        if let Some(parts) = parts {
            let blocks: Vec<Region> = (0..parts.grid.parts())
                .map(|at| parts.grid.part(at))
                .collect();
            // Each block counts for its writer, over all variables.
            for (block, load) in blocks.iter().zip(loads) {
                let more = block.bytes(parts.element)?;
                *load = load
                    .checked_add(more)
                    .context("more bytes than can be counted")?;
                bytes = bytes
                    .checked_add(more)
                    .context("more bytes than can be counted")?;
            }
            self.index_bytes += Index::new(&blocks)?.bytes();
        }
        self.step_bytes = self
            .step_bytes
            .checked_add(bytes)
            .context("more bytes than can be counted")?;
        self.variables.push(Array {
            name: promise.name.clone(),
            dtype: promise.dtype.to_string(),
            shape: parts.map_or(Vec::new(), |parts| parts.shape.clone()),
            every: promise.every,
            bytes,
        });
        Ok(())
    }

    /// Computes the loads of the servers with the code that places blocks. The largest variable
    /// counts.
    fn spread(&mut self, parts: &Parts, settings: &Settings, around: &Around<'_>) -> Result<()> {
        let servers = around.servers;
        if servers == 0 {
            return Ok(());
        }
        let share = |block_store: u64| Share {
            block_store: block_store as u32,
            weight: 1,
        };
        let shares: Vec<Share> = (1..=servers).map(share).collect();
        let most = around.readers.iter().map(|(_, units)| *units).max();
        // The reads are unknown: assume that the largest program divides the first dimension.
        let readers = Grid::along(&parts.shape, 0, most.unwrap_or(1).max(1))?;
        let replicas = u64::from(settings.replicas.max(1)).min(servers);
        let of = figures::of(
            &parts.grid,
            &readers,
            parts.element,
            &shares,
            replicas as usize,
        )?;
        let bytes = Region::whole(&parts.shape)?.bytes(parts.element)?;
        let mean = bytes.saturating_mul(replicas) / servers;
        if self
            .servers
            .as_ref()
            .is_none_or(|before| before.mean < mean)
        {
            self.servers = Some(ServerPlan {
                servers,
                replicas,
                mean,
                max_over_mean: of.max_over_mean,
                pieces: of.pieces,
                per_writer: of.connections_per_writer,
                per_reader: of.connections_per_reader,
                per_server: of.connections_per_server,
            });
        }
        Ok(())
    }

    /// Computes how many steps are in memory, and how many bytes.
    fn remember(&mut self, settings: &Settings, around: &Around<'_>) {
        if settings.method == Method::File {
            return; // each writer buffers its own part until it is written
        }
        let by_method = match settings.method {
            Method::Local => 2,
            _ => 0,
        };
        let kept = settings.retain.map_or(by_method, |retain| {
            let by_bytes = retain.bytes.checked_div(self.step_bytes);
            retain.steps.max(by_bytes.unwrap_or(0))
        });
        let policy_of = |edge: &Edge| edge.policy.unwrap_or(settings.policy);
        let mut readers = around.readers.iter();
        self.spills = readers.any(|(edge, _)| policy_of(edge) == Policy::Spill);
        let readers = around.readers.iter();
        let limits = readers.map(|(edge, _)| self.limits(edge, settings, around.quarter).steps);
        self.limit_steps = limits.max().unwrap_or(0);
        let groups = around.readers.iter().map(|(edge, _)| {
            let policy = policy_of(edge);
            steps_of(
                policy,
                self.limits(edge, settings, around.quarter),
                self.step_bytes,
            )
        });
        // Retained steps are in addition to the step that is being written.
        self.steps_in_memory = groups.max().unwrap_or(1).max(kept.saturating_add(1));
        if settings.precious_first {
            self.steps_in_memory = self.steps_in_memory.saturating_add(1);
        }
        let copies = match settings.method {
            Method::Server => self.replicas.clamp(1, around.servers.max(1)),
            _ => 1,
        };
        let step = self.step_bytes.saturating_mul(copies);
        self.memory = step.saturating_mul(self.steps_in_memory);
    }

    fn limits(&self, edge: &Edge, settings: &Settings, quarter: u64) -> Limits {
        let bytes = match settings.steps {
            None => quarter,
            Some(_) => u64::MAX,
        };
        edge.limits().unwrap_or(Limits {
            steps: settings.steps.unwrap_or(2),
            bytes: settings.bytes.unwrap_or(bytes),
        })
    }
}

/// Returns the maximum number of steps in memory for a group: waiting, held, and being written.
fn steps_of(policy: Policy, limits: Limits, step: u64) -> u64 {
    let by_bytes = limits.bytes.checked_div(step).unwrap_or(u64::MAX).max(1);
    let limit = limits.steps.min(by_bytes);
    match policy {
        // The step to be written counts before it begins.
        Policy::Block | Policy::Spill => limit,
        Policy::Every(_) => limit.saturating_add(1),
        // One waits, one is held, one is being written.
        Policy::Latest => 3,
        Policy::DropOldest | Policy::DropNewest => limit.saturating_add(2),
    }
}

pub(super) fn method_name(method: Method) -> &'static str {
    match method {
        Method::Stream => "stream",
        Method::Local => "local",
        Method::Server => "server",
        Method::Graph => "graph",
        Method::File => "file",
    }
}

fn copies(method: Method) -> Copies {
    let (alloc, view) = match method {
        Method::Server => (1, 0),
        Method::File => (1, 1),
        _ => (0, 0),
    };
    Copies {
        put: 1,
        alloc,
        get: 1,
        view,
    }
}

/// Returns the promises of a stream's edges, each variable once.
fn promises<'a>(around: &Around<'a>) -> Vec<&'a Promise> {
    let mut known: Vec<&Promise> = Vec::new();
    for promise in around.readers.iter().flat_map(|(edge, _)| &edge.variables) {
        match known.iter_mut().find(|there| there.name == promise.name) {
            None => known.push(promise),
            Some(there) if there.extent.is_none() => *there = promise,
            Some(_) => {}
        }
    }
    known
}

impl Parts {
    /// Returns the parts of `writers` units, or `None` if the extent is not promised.
    fn new(promise: &Promise, writers: u64) -> Result<Option<Parts>> {
        let cut = promise.cut.unwrap_or(Cut::Rows);
        let (shape, grid) = match &promise.extent {
            None => return Ok(None),
            Some(Extent::Shape(shape)) => {
                let grid = match cut {
                    Cut::Rows => Grid::along(shape, 0, writers)?,
                    Cut::Columns => Grid::along(shape, shape.len() - 1, writers)?,
                    Cut::Blocks => Grid::cubic(shape, writers)?,
                };
                (shape.to_vec(), grid)
            }
            Some(Extent::Block(block)) => {
                let mut shape = block.to_vec();
                let mut parts = vec![1; block.len()];
                let along = |dim: usize, parts: &mut Vec<u64>| parts[dim] = writers;
                match cut {
                    Cut::Rows => along(0, &mut parts),
                    Cut::Columns => along(block.len() - 1, &mut parts),
                    Cut::Blocks => {
                        // As cubic as possible: the same number of blocks in each direction, as far
                        // as possible.
                        let whole: Vec<u64> = block.iter().map(|_| 1 << 20).collect();
                        parts = Grid::cubic(&whole, writers)?.divisions().to_vec();
                    }
                }
                for (extent, parts) in shape.iter_mut().zip(&parts) {
                    *extent = extent
                        .checked_mul(*parts)
                        .context("a shape beyond 64 bits")?;
                }
                let grid = Grid::new(&shape, &parts)?;
                (shape, grid)
            }
        };
        Ok(Some(Parts {
            shape,
            grid,
            element: promise.dtype.bytes(),
        }))
    }
}
