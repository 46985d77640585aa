//! `samite doctor`: is this machine ready, and what to do about what is not.

use crate::{builtin, settings};
use anyhow::Result;
use bytesize::ByteSize;
use comfy_table::{ContentArrangement, Table, presets};
use rustix::process::{Resource, getrlimit};
use samite_launch::{Builtins, Workflow, find_program};
use std::fs;
use std::path::Path;
use std::process::ExitCode;

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq)]
enum State {
    /// As it should be.
    Good,
    /// Samite runs, but slower or without something optional.
    Note,
    /// Samite cannot run like this.
    Bad,
}

struct Finding {
    state: State,
    what: &'static str,
    found: String,
    /// What to do; empty when nothing is to be done.
    remedy: String,
}

impl Finding {
    fn new(
        what: &'static str,
        state: State,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let remedy = if state == State::Good {
            String::new()
        } else {
            remedy.into()
        };
        Self {
            state,
            what,
            found: found.into(),
            remedy,
        }
    }
}

/// Checks the machine, and whether it can run the workflow `file`.
pub(crate) fn doctor(file: Option<&Path>) -> Result<ExitCode> {
    let workflow = file.map(Workflow::read).transpose()?;
    let units = match &workflow {
        Some(workflow) => units_of(workflow)?,
        None => 2,
    };
    let settings = settings::resolve(workflow.as_ref(), &[])?;
    let budget = settings.config.memory.budget.set().map(|bytes| bytes.get());
    let mut findings = kernel();
    findings.extend(limits(units));
    findings.extend(memory(budget));
    findings.push(processors(units));
    findings.extend(tools());
    print_table(&findings);
    let bad = findings
        .iter()
        .filter(|finding| finding.state == State::Bad)
        .count();
    match (bad, file) {
        (0, None) => println!("This machine is ready."),
        (0, Some(file)) => println!(
            "This machine is ready for {} ({units} units).",
            file.display()
        ),
        _ => println!("{bad} of these keep Samite from running here; what to do is beside them."),
    }
    Ok(if bad == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn units_of(workflow: &Workflow) -> Result<u64> {
    let executable = std::env::current_exe()?;
    let programs = workflow.programs(&Builtins {
        executable,
        names: builtin::BUILTINS,
    })?;
    Ok(programs
        .iter()
        .map(|program| u64::from(program.units))
        .sum())
}

fn print_table(findings: &[Finding]) {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    for finding in findings {
        let state = match finding.state {
            State::Good => "ok",
            State::Note => "note",
            State::Bad => "BAD",
        };
        table.add_row([state, finding.what, &finding.found, &finding.remedy]);
    }
    for line in table.lines() {
        println!("{}", line.trim_end());
    }
}

/// What the kernel has to offer.
fn kernel() -> Vec<Finding> {
    let has = |what, answer: rustix::io::Result<()>, remedy: &str| match answer {
        Ok(()) => Finding::new(what, State::Good, "works", ""),
        Err(error) => Finding::new(what, State::Bad, error.to_string(), remedy),
    };
    let memfd = rustix::fs::memfd_create("doctor", rustix::fs::MemfdFlags::ALLOW_SEALING).map(drop);
    let flags = rustix::process::PidfdFlags::empty();
    let pidfd = rustix::process::pidfd_open(rustix::process::getpid(), flags).map(drop);
    let word = std::sync::atomic::AtomicU32::new(0);
    let futex =
        rustix::thread::futex::wake(&word, rustix::thread::futex::Flags::empty(), 1).map(drop);
    let newer = "use Linux 5.4 or newer, and a container that does not filter this call";
    vec![
        has("memfd", memfd, newer),
        has("pidfd", pidfd, newer),
        has("futex", futex, newer),
        membarrier(),
        kernel_copy(),
    ]
}

fn membarrier() -> Finding {
    use rustix::thread::{MembarrierQuery, membarrier_query};
    let needed = MembarrierQuery::GLOBAL_EXPEDITED | MembarrierQuery::REGISTER_GLOBAL_EXPEDITED;
    if membarrier_query().contains(needed) {
        Finding::new("membarrier", State::Good, "works", "")
    } else {
        let remedy = "a message costs a fence more; use Linux 4.16 or newer to save it";
        Finding::new("membarrier", State::Note, "not available", remedy)
    }
}

fn kernel_copy() -> Finding {
    match crate::info::copies_by_kernel() {
        Ok(()) => Finding::new("kernel copy", State::Good, "works", ""),
        Err(error) => {
            let remedy = "long messages from private memory take another path; to allow it, give the \
                          container CAP_SYS_PTRACE or set kernel.yama.ptrace_scope to 0";
            Finding::new("kernel copy", State::Note, error, remedy)
        }
    }
}

/// Whether the limits of this user leave room for `units` units.
fn limits(units: u64) -> Vec<Finding> {
    let shown =
        |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let enough = |limit: Option<u64>, needed: u64| limit.is_none_or(|limit| limit >= needed);
    let state = |good: bool| if good { State::Good } else { State::Bad };
    let files = getrlimit(Resource::Nofile).maximum;
    let processes = getrlimit(Resource::Nproc).current;
    let locked = getrlimit(Resource::Memlock).current;
    let lockable = if enough(locked, 64 << 20) {
        State::Good
    } else {
        State::Note
    };
    vec![
        Finding::new(
            "open files",
            state(enough(files, units + 32)),
            format!("at most {}", shown(files)),
            format!("{units} units need {}: raise `ulimit -Hn`", units + 32),
        ),
        Finding::new(
            "processes",
            state(enough(processes, units + 1)),
            format!("at most {}", shown(processes)),
            format!(
                "{units} units and the agent need {}: raise `ulimit -u`",
                units + 1
            ),
        ),
        Finding::new(
            "locked memory",
            lockable,
            locked.map_or("unlimited".to_owned(), |bytes| {
                ByteSize::b(bytes).to_string()
            }),
            "only networks need it: raise `ulimit -l` before you use several machines",
        ),
    ]
}

/// Memory against the budget, and huge pages.
fn memory(budget: Option<u64>) -> Vec<Finding> {
    let available = meminfo("MemAvailable:");
    let shown = available.map_or("unknown".to_owned(), |bytes| ByteSize::b(bytes).to_string());
    let found = match budget {
        Some(budget) => format!("{shown} available, budget {}", ByteSize::b(budget)),
        None => format!("{shown} available, budget auto"),
    };
    let fits = budget.is_none_or(|budget| available.is_none_or(|available| budget <= available));
    let state = if fits { State::Good } else { State::Bad };
    let mut findings = vec![Finding::new(
        "memory",
        state,
        found,
        "the budget is more than there is: lower memory.budget, or free memory",
    )];
    let base = Path::new("/sys/kernel/mm/transparent_hugepage");
    for (what, file, good) in [
        ("huge pages", "enabled", ["always", "madvise"].as_slice()),
        (
            "huge pages, shared",
            "shmem_enabled",
            &["always", "within_size", "advise", "force"],
        ),
    ] {
        let chosen = chosen_word(&base.join(file));
        let state = if good.contains(&chosen.as_str()) {
            State::Good
        } else {
            State::Note
        };
        let remedy = format!(
            "long copies are slower without: echo {} | sudo tee {}",
            good[good.len().min(3) - 1].replace("within_size", "advise"),
            base.join(file).display()
        );
        findings.push(Finding::new(what, state, chosen, remedy));
    }
    findings
}

/// Bytes of an entry of /proc/meminfo.
fn meminfo(entry: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(entry))?;
    line.split_whitespace()
        .next()?
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

/// The word in brackets: "always [madvise] never".
fn chosen_word(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let word = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    word.map_or("not available".to_owned(), |(word, _)| word.to_owned())
}

fn processors(units: u64) -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let state = if units <= cores {
        State::Good
    } else {
        State::Note
    };
    let remedy = "units take turns, which works; with a core for each they would not wait";
    Finding::new(
        "processors",
        state,
        format!("{cores} for {units} units"),
        remedy,
    )
}

/// Programs that only benches and further transports use.
fn tools() -> Vec<Finding> {
    let tools = [
        ("mpicc.openmpi", "libopenmpi-dev openmpi-bin"),
        ("mpicc.mpich", "libmpich-dev mpich"),
        ("ucx_perftest", "ucx-utils"),
    ];
    let finding = |(tool, packages): (&'static str, &str)| match find_program(
        "doctor",
        tool,
        Path::new(""),
    ) {
        Ok(path) => Finding::new(tool, State::Good, path.display().to_string(), ""),
        Err(_) => {
            let remedy = format!("only for benches: apt-get install {packages}");
            Finding::new(tool, State::Note, "not installed", remedy)
        }
    };
    tools.into_iter().map(finding).collect()
}
