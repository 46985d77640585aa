//! The facts about the machine that a figure needs.

use std::fs;
use std::thread;

use serde::Serialize;

/// Where the figures were measured.
#[derive(Clone, Debug, Serialize)]
pub struct Host {
    /// Model of the processor, as the kernel names it.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// Release of the kernel.
    pub kernel: String,
    /// Bytes of a page.
    pub page_size: usize,
    /// When private memory gets huge pages: `always`, `madvise` or `never`.
    pub thp: String,
    /// When shared memory gets huge pages.
    pub thp_shmem: String,
    /// The processors of the pinned cases.
    pub pinned_to: Vec<usize>,
    /// Runnable processes in the last minute, before the bench began: much above 0 means that other
    /// programs were running.
    pub load: f64,
}

impl Host {
    pub(crate) fn here(pinned_to: Vec<usize>) -> Self {
        Host {
            cpu: cpu_model(),
            cores: cores(),
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            page_size: rustix::param::page_size(),
            thp: chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
            thp_shmem: chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
            pinned_to,
            load: load(),
        }
    }
}

fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ')
        .next()
        .and_then(|first| first.parse().ok())
        .unwrap_or(f64::NAN)
}

pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

pub(crate) fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    // Only x86 has a name; aarch64 gives the part number.
    field("model name")
        .or_else(|| field("CPU part"))
        .unwrap_or_else(|| "unknown".to_owned())
}

/// Returns the word in brackets, as in `always [madvise] never`.
fn chosen(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let word = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    word.map_or("unknown", |(word, _)| word).to_owned()
}
