//! Predicts the needs of a workflow before it runs: its streams, what each process sends, receives
//! and opens, its memory.

use super::stream::{Around, StreamPlan};
use crate::agent::budget_by_rule;
use crate::builtin::is_server;
use anyhow::{Context, Result};
use samite::config::{Bytes, Config};
use samite::stage::Method;
use samite::stage::method::graph::Edge;
use samite::stage::service::Capacity;
use samite_launch::{Program, files_needed};
use serde::Serialize;

/// Open files of a unit: its three streams, the pipe of its launcher, the memory of the domain, its
/// agent, and one to spare.
const OF_UNIT: u64 = 7;
/// Open files of an agent, besides one for each process of its domain.
const OF_AGENT: u64 = 10;

/// The plan of a workflow.
#[derive(Serialize)]
pub(super) struct Plan {
    pub(super) units: u64,
    /// Bytes that the processes may share.
    pub(super) budget: u64,
    /// Bytes of these that blocks of streams may have.
    pub(super) capacity: u64,
    /// Bytes of these that the streams need at the same time.
    pub(super) memory: u64,
    pub(super) streams: Vec<StreamPlan>,
    pub(super) programs: Vec<ProgramPlan>,
    /// Open files that the launcher needs, and those of the agent.
    pub(super) launcher_files: u64,
    pub(super) agent_files: u64,
}

/// The needs of one unit of a program.
#[derive(Serialize)]
pub(super) struct ProgramPlan {
    pub(super) name: String,
    pub(super) units: u64,
    /// Maximum bytes that it puts into one step of each of its streams.
    pub(super) sends: u64,
    /// Bytes that it gets of one step of each stream that it reads, if the units share evenly.
    pub(super) receives: u64,
    /// Bytes of blocks that it keeps, as a staging server.
    pub(super) keeps: u64,
    /// Maximum private memory for copies: what it gets without reading in place and, with the
    /// method `file`, what it puts.
    pub(super) copies: u64,
    /// Maximum bytes of arrays at a time: its own arrays that it puts, copies, and what it keeps.
    pub(super) holds: u64,
    /// The limit of what it may keep, if its arguments set one.
    pub(super) most_kept: Option<u64>,
    pub(super) files: u64,
}

impl Plan {
    /// Plans these programs, linked by these edges, with these settings.
    ///
    /// # Errors
    /// The size of an array overflows.
    pub(super) fn new(programs: &[Program], edges: &[Edge], config: &Config) -> Result<Plan> {
        let budget = config.memory.budget.set();
        let budget = budget.map_or_else(budget_by_rule, |bytes| bytes.get());
        let servers = programs.iter().filter(|program| is_server(program));
        let servers = servers.map(|program| u64::from(program.units)).sum();
        let capacity = Capacity::part_of(budget);
        let units = programs
            .iter()
            .map(|program| u64::from(program.units))
            .sum();
        let settings = config.stage.configuration();
        let mut streams: Vec<StreamPlan> = Vec::new();
        for (at, edge) in edges.iter().enumerate() {
            let same = |other: &&Edge| (&other.from, &other.stream) == (&edge.from, &edge.stream);
            if edges[..at].iter().any(|other| same(&other)) {
                continue;
            }
            let units_of = |name: &str| {
                let program = programs.iter().find(|program| program.name == *name);
                program.map_or(0, |program| u64::from(program.units))
            };
            let of_stream = settings.stream(&edge.stream);
            // With servers, both they and the agent keep blocks. A quarter of the total may wait.
            let all = match servers {
                0 => capacity,
                _ => capacity.saturating_mul(2),
            };
            let around = Around {
                writers: units_of(&edge.from),
                readers: edges
                    .iter()
                    .filter(same)
                    .map(|edge| (edge, units_of(&edge.to)))
                    .collect(),
                servers,
                quarter: all / 4,
            };
            let plan = StreamPlan::new(&edge.stream, of_stream, &around);
            streams.push(plan.with_context(|| format!("the stream {}", edge.stream))?);
        }
        let mut plan = Plan {
            units,
            budget,
            capacity,
            memory: total(streams.iter().map(|stream| stream.memory)),
            streams,
            programs: Vec::new(),
            launcher_files: files_needed(programs),
            agent_files: OF_AGENT + units,
        };
        plan.programs = programs
            .iter()
            .map(|program| plan.program(program, servers))
            .collect();
        Ok(plan)
    }

    fn program(&self, program: &Program, servers: u64) -> ProgramPlan {
        // Streams in files differ: writers buffer their part, and readers open one file per writer.
        let in_files = |stream: &&StreamPlan| stream.method == method_of_files();
        let writes = || {
            let streams = self.streams.iter();
            streams.filter(|stream| stream.writer == program.name)
        };
        let reads = || {
            self.streams.iter().flat_map(|stream| {
                let readers = stream.readers.iter();
                let own = readers.filter(|reader| reader.program == program.name);
                own.map(move |reader| (stream, reader))
            })
        };
        let receives = total(reads().map(|(_, reader)| reader.each));
        let own_files = total(writes().filter(in_files).map(|stream| stream.most_put));
        let read_files = reads().filter(|(stream, _)| in_files(stream));
        let read_files: u64 = read_files.map(|(stream, _)| stream.writers).sum();
        let keeps = match is_server(program) {
            true => {
                let in_servers = self
                    .streams
                    .iter()
                    .filter(|stream| stream.servers.is_some());
                total(in_servers.map(|stream| stream.memory)) / servers.max(1)
            }
            false => 0,
        };
        let sends = total(writes().map(|stream| stream.most_put));
        ProgramPlan {
            name: program.name.clone(),
            units: u64::from(program.units),
            sends,
            receives,
            keeps,
            copies: total([receives, own_files]),
            holds: total([sends, receives, own_files, keeps]),
            most_kept: is_server(program).then(|| memory_of(program)).flatten(),
            files: OF_UNIT + writes().filter(in_files).count() as u64 + read_files,
        }
    }
}

/// Adds bytes; if there are more than can be counted, returns the largest number.
fn total(bytes: impl IntoIterator<Item = u64>) -> u64 {
    bytes.into_iter().fold(0, u64::saturating_add)
}

fn method_of_files() -> &'static str {
    super::stream::method_name(Method::File)
}

/// Returns the memory that the arguments of a server set.
fn memory_of(server: &Program) -> Option<u64> {
    let mut args = server.setup.args.iter().map(|arg| arg.to_string_lossy());
    while let Some(arg) = args.next() {
        let value = match arg.strip_prefix("--memory=") {
            Some(value) => Some(value.to_owned()),
            None if arg == "--memory" => args.next().map(Into::into),
            None => None,
        };
        if let Some(value) = value {
            return value.parse::<Bytes>().ok().map(Bytes::get);
        }
    }
    None
}
