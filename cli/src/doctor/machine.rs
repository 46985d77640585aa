//! Checks the machine: system calls, limits, memory, processors, external programs.

use super::{Finding, State};
use bytesize::ByteSize;
use rustix::process::{Resource, getrlimit};
use samite::config::{Config, PtracerName};
use samite::mobile::{clang, find_llvm};
use samite_launch::{Program, files_needed, find_program};
use std::fs;
use std::path::Path;

/// Checks the machine for these programs with these settings.
pub(super) fn findings(programs: &[Program], settings: &Config) -> Vec<Finding> {
    let units = units_of(programs);
    let mut findings = required(programs, settings);
    findings.extend([membarrier(), kernel_copy(settings.fabric.ptracer)]);
    findings.extend(huge_pages());
    findings.push(processors(units));
    findings.extend(tools());
    findings
}

/// Checks what the units cannot run without. It starts no process, and takes no time.
pub(super) fn required(programs: &[Program], settings: &Config) -> Vec<Finding> {
    let units = units_of(programs);
    // `None`: the default rule applies.
    let budget = settings.memory.budget.set().map(|bytes| bytes.get());
    let mut findings = system_calls();
    findings.extend(limits(units, files_needed(programs)));
    findings.push(memory(budget));
    if let Some(why) = crate::agent::too_small(units, budget) {
        let remedy = "raise memory.budget, or start fewer units";
        findings.push(Finding::new("domain", State::Bad, why, remedy));
    }
    findings
}

fn units_of(programs: &[Program]) -> u64 {
    let units = programs.iter().map(|program| u64::from(program.units));
    units.sum()
}

/// Checks the features of the kernel that have no substitute.
fn system_calls() -> Vec<Finding> {
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

fn kernel_copy(ptracer: PtracerName) -> Finding {
    match crate::copy_probe::try_with(ptracer) {
        Ok(()) => Finding::new("kernel copy", State::Good, "works between processes", ""),
        Err(error) => {
            let remedy = "long messages from private memory take another path; to allow it, see fabric.ptracer, and \
                          give a container CAP_SYS_PTRACE";
            Finding::new("kernel copy", State::Note, error, remedy)
        }
    }
}

/// Checks whether the limits of this user allow `units` units, whose launcher opens `most` files.
fn limits(units: u64, most: u64) -> Vec<Finding> {
    let shown =
        |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let enough = |limit: Option<u64>, needed: u64| limit.is_none_or(|limit| limit >= needed);
    let state = |good: bool| if good { State::Good } else { State::Bad };
    let files = getrlimit(Resource::Nofile).maximum;
    let processes = getrlimit(Resource::Nproc).current;
    let locked = getrlimit(Resource::Memlock).current;
    // Too little lockable memory is only a note, because no local transport needs it.
    let lockable = if enough(locked, 64 << 20) {
        State::Good
    } else {
        State::Note
    };
    vec![
        Finding::new(
            "open files",
            state(enough(files, most)),
            format!("at most {}", shown(files)),
            format!("{units} units need {most}: raise `ulimit -Hn`"),
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

/// Compares memory with the budget.
fn memory(budget: Option<u64>) -> Finding {
    let available = meminfo("MemAvailable:");
    let shown = available.map_or("unknown".to_owned(), |bytes| ByteSize::b(bytes).to_string());
    let found = match budget {
        Some(budget) => format!("{shown} available, budget {}", ByteSize::b(budget)),
        None => format!("{shown} available, budget auto"),
    };
    let fits = budget.is_none_or(|budget| available.is_none_or(|available| budget <= available));
    let state = if fits { State::Good } else { State::Bad };
    let remedy = "the budget is more than there is: lower memory.budget, or free memory";
    Finding::new("memory", state, found, remedy)
}

fn huge_pages() -> Vec<Finding> {
    let mut findings = Vec::new();
    // The mode `madvise` is enough, because Samite asks for huge pages.
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

/// Returns the bytes of an entry of /proc/meminfo.
fn meminfo(entry: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(entry))?;
    line.split_whitespace()
        .next()?
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

/// Returns the word in brackets: "always [madvise] never".
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

/// Checks programs that only benches and further transports use.
fn tools() -> Vec<Finding> {
    let tools = [
        ("mpicc.openmpi", "benches", "libopenmpi-dev openmpi-bin"),
        ("mpicc.mpich", "benches", "libmpich-dev mpich"),
        ("ucx_perftest", "benches", "ucx-utils"),
        (clang::PROGRAM, "kernels in C", "clang-22"),
        ("wasm-ld-22", "kernels in C", "lld-22"),
    ];
    let missing = |what: &'static str, purpose: &str, packages: &str| {
        let remedy = format!("only for {purpose}: apt-get install {packages}");
        Finding::new(what, State::Note, "not installed", remedy)
    };
    let finding = |(tool, purpose, packages): (&'static str, &str, &str)| {
        let found = find_program("doctor", tool, Path::new(""));
        found.map_or_else(
            |_| missing(tool, purpose, packages),
            |path| Finding::new(tool, State::Good, path.display().to_string(), ""),
        )
    };
    let llvm = match find_llvm(None) {
        Ok(()) => Finding::new("libLLVM", State::Good, "can be loaded", ""),
        Err(_) => missing("libLLVM", "moved code as bitcode", "libllvm22"),
    };
    tools.into_iter().map(finding).chain([llvm]).collect()
}
