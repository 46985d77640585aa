//! Describes what is wrong with a plan, or will be slow.

use super::plan::{Plan, ProgramPlan};
use super::stream::StreamPlan;
use super::{Finding, State};
use crate::builtin::{self, is_server};
use crate::screen::size;
use samite_launch::{Program, files_allowed};

/// A plan is N-to-1 if a process on one side moves this many times as many bytes as one on the
/// other: all others then wait for the few.
const UNEVEN: u64 = 4;

/// Returns the findings about a plan.
pub(super) fn findings(plan: &Plan, programs: &[Program]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for stream in &plan.streams {
        findings.extend(uneven(stream));
        findings.extend(servers(stream, programs));
        findings.extend(disk(stream, programs));
        findings.extend(unknown(stream));
    }
    findings.extend(capacity(plan));
    findings.push(files(plan, programs));
    findings.extend(libraries(programs));
    findings
}

/// Finds streams with few processes on one side and many on the other.
fn uneven(stream: &StreamPlan) -> Vec<Finding> {
    let readers = stream.readers.iter().filter(|reader| reader.each > 0);
    let readers = readers.filter_map(|reader| {
        let (sent, got) = (stream.most_put.max(1), reader.each);
        // Few readers: each gets much more than a writer puts.
        if got >= sent.saturating_mul(UNEVEN) {
            let found = format!(
                "each unit of {} gets {} of a step of {}, {} times what a unit of {} puts",
                reader.program,
                size(got),
                stream.name,
                got / sent,
                stream.writer
            );
            let remedy = format!("more units of {} would share it", reader.program);
            return Some(Finding::new("N-to-1", State::Note, found, remedy));
        }
        // Few writers: each puts much more than a reader gets.
        if sent >= got.saturating_mul(UNEVEN) {
            let found = format!(
                "a unit of {} puts {} of a step of {}, {} times what each unit of {} gets",
                stream.writer,
                size(sent),
                stream.name,
                sent / got,
                reader.program
            );
            let remedy = format!(
                "more units of {}, or smaller parts, would share it",
                stream.writer
            );
            return Some(Finding::new("N-to-1", State::Note, found, remedy));
        }
        None
    });
    readers.collect()
}

/// Checks the staging servers of a stream and their loads.
fn servers(stream: &StreamPlan, programs: &[Program]) -> Vec<Finding> {
    if stream.method != "server" {
        return Vec::new();
    }
    let all = programs.iter().filter(|program| is_server(program));
    let all: u64 = all.map(|program| u64::from(program.units)).sum();
    let Some(servers) = &stream.servers else {
        if all > 0 {
            return Vec::new(); // its sizes are not promised
        }
        let found = format!(
            "{} uses the method `server`, but no program is a staging server",
            stream.name
        );
        let remedy = "add a program with the command `stage-server` to the workflow";
        return vec![Finding::new("servers", State::Bad, found, remedy)];
    };
    let mut findings = Vec::new();
    if stream.replicas > all {
        let found = format!(
            "{} is to be kept by {} servers, but there are {all}",
            stream.name, stream.replicas
        );
        let remedy = "each server keeps one copy: start more servers, or lower stage.replicas";
        findings.push(Finding::new("servers", State::Note, found, remedy));
    }
    if servers.max_over_mean > 1.1 {
        let found = format!(
            "the fullest server has {:.2} times the mean of {}, because there are few pieces",
            servers.max_over_mean, stream.name
        );
        let remedy = "fewer servers, or larger steps, are shared more evenly";
        findings.push(Finding::new("servers", State::Note, found, remedy));
    }
    if servers.mean >= stream.most_put.saturating_mul(UNEVEN) {
        let found = format!(
            "each of {} servers takes {} of a step of {}, {} times what a unit of {} puts",
            servers.servers,
            size(servers.mean),
            stream.name,
            servers.mean / stream.most_put.max(1),
            stream.writer
        );
        findings.push(Finding::new(
            "N-to-1",
            State::Note,
            found,
            "more servers would share it",
        ));
    }
    findings
}

/// Checks the disk for steps that slow readers leave.
fn disk(stream: &StreamPlan, programs: &[Program]) -> Option<Finding> {
    if !stream.spills || stream.method == "file" {
        return None;
    }
    let block_stores = match stream.method {
        "server" => {
            let servers = programs.iter().filter(|program| is_server(program));
            servers.map(|program| u64::from(program.units)).sum()
        }
        _ => 1,
    };
    let folder = std::env::temp_dir();
    let there = rustix::fs::statvfs(&folder).map_or(0, |disk| disk.f_bavail * disk.f_frsize);
    let wanted = samite::stage::service::Capacity::SPILL.saturating_mul(block_stores);
    let state = match there >= wanted {
        true => State::Good,
        false => State::Note,
    };
    let found = format!(
        "{} spills up to {} to {}, which has {}",
        stream.name,
        size(wanted),
        folder.display(),
        size(there)
    );
    let remedy = "name a folder on a larger disk in TMPDIR";
    Some(Finding::new("disk", state, found, remedy))
}

/// Finds streams whose sizes are not known.
fn unknown(stream: &StreamPlan) -> Option<Finding> {
    let missing = stream
        .variables
        .iter()
        .filter(|array| array.shape.is_empty());
    let missing: Vec<&str> = missing.map(|array| array.name.as_str()).collect();
    let found = match (stream.variables.is_empty(), missing.is_empty()) {
        (true, _) => format!("the edges of {} promise no variables", stream.name),
        (false, false) => format!("no edge promises the size of {}", missing.join(", ")),
        (false, true) => return None,
    };
    let remedy = "add `variables = [...]` to the [[edge]], so that the plan can count the bytes";
    Some(Finding::new("sizes", State::Note, found, remedy))
}

/// Compares steps with the memory for them.
fn capacity(plan: &Plan) -> Vec<Finding> {
    let in_memory = plan.streams.iter().filter(|stream| stream.memory > 0);
    let mut findings = Vec::new();
    for stream in in_memory {
        let step = stream.memory / stream.steps_in_memory.max(1);
        let mut remedy = format!(
            "raise memory.budget (now {}), or put less per step",
            size(plan.budget)
        );
        // `stage.memory` applies to one stream, so it is checked before the memory of the domain.
        if let Some(limit) = stream.limit_memory.filter(|limit| step > *limit) {
            let found = format!(
                "one step of {} needs {}, but stage.memory allows only {}",
                stream.name,
                size(step),
                size(limit)
            );
            let remedy = "raise stage.memory, or put less per step";
            findings.push(Finding::new("memory for steps", State::Bad, found, remedy));
        } else if step > plan.capacity {
            let found = format!(
                "one step of {} needs {}, but only {} are available for blocks",
                stream.name,
                size(step),
                size(plan.capacity)
            );
            findings.push(Finding::new("memory for steps", State::Bad, found, remedy));
        } else if stream.steps_in_memory < 2 || step.saturating_mul(2) > plan.capacity {
            let mut found = format!(
                "only one step of {} fits ({}): writers and readers take turns",
                stream.name,
                size(step)
            );
            if stream.limit_steps < 2 {
                found = format!(
                    "only one step of {} may wait: writers and readers take turns",
                    stream.name
                );
                remedy = "raise limit_steps".to_owned();
            }
            findings.push(Finding::new("memory for steps", State::Note, found, remedy));
        }
    }
    // Servers whose arguments set their memory have a limit of their own.
    for server in &plan.programs {
        if let Some(most) = server.most_kept.filter(|most| server.keeps > *most) {
            let steps = plan.streams.iter().map(|stream| stream.steps_in_memory);
            let one = server.keeps / steps.max().unwrap_or(1).max(1);
            let state = match one > most {
                true => State::Bad,
                false => State::Note,
            };
            let found = format!(
                "each unit of {} has --memory {}, and its part of one step is {}, of all that wait {}",
                server.name,
                size(most),
                size(one),
                size(server.keeps)
            );
            let remedy = "raise --memory, or start more servers";
            findings.push(Finding::new("memory for steps", state, found, remedy));
        }
    }
    if findings.is_empty() {
        let state = match plan.memory <= plan.capacity {
            true => State::Good,
            false => State::Note,
        };
        let found = format!("{} of {}", size(plan.memory), size(plan.capacity));
        let remedy =
            "all streams together do not fit: their writers will wait for each other's readers";
        findings.push(Finding::new("memory for steps", state, found, remedy));
    }
    findings
}

/// Compares open files with the limit that the launcher sets for itself and all that it starts. The
/// launcher and the agent have the most.
fn files(plan: &Plan, programs: &[Program]) -> Finding {
    let limit = files_allowed(programs);
    let of_units = plan
        .programs
        .iter()
        .map(|program: &ProgramPlan| (program.files, program.name.as_str()));
    let own = [
        (plan.launcher_files, "the launcher"),
        (plan.agent_files, "the agent"),
    ];
    let (most, who) = of_units.chain(own).max().unwrap_or((0, "nobody"));
    let state = match most <= limit {
        true => State::Good,
        false => State::Bad,
    };
    let found = format!("{who} opens {most}, of {limit} allowed");
    Finding::new("files per process", state, found, "raise `ulimit -n`")
}

/// Checks the libraries that built-in programs open at their start.
fn libraries(programs: &[Program]) -> Option<Finding> {
    let needs = |program: &&Program| {
        let name = builtin::name_of(program);
        name.is_some_and(|name| name == "lammps-melt")
    };
    programs.iter().find(needs)?;
    let places = samite_lammps::library::installations();
    Some(match places.iter().find(|place| place.is_there()) {
        Some(place) => Finding::new("LAMMPS", State::Good, place.to_string(), ""),
        None => Finding::new(
            "LAMMPS",
            State::Note,
            "not in the environment of this project",
            "only if the system's loader finds none either: install it with ci/setup, or name it in SAMITE_LAMMPS",
        ),
    })
}
