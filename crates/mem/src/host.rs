//! Facts about this machine, for `samite info`, for reports and as the key of calibrated figures.

use std::fs;

/// Facts about a machine.
#[derive(Clone, Debug)]
pub struct Host {
    /// Name of the processor.
    pub cpu: String,
    /// Number of processors that this process may use.
    pub cores: usize,
    /// Release of the kernel.
    pub kernel: String,
    /// Size of a page in bytes.
    pub page_bytes: u64,
    /// Data and unified caches: level and bytes.
    pub caches: Vec<(u32, u64)>,
    /// Transparent huge pages for private memory: `always`, `madvise`, `never`.
    pub huge_private: String,
    /// Transparent huge pages for shared memory.
    pub huge_shared: String,
    /// Memory that could be allocated now, in bytes.
    pub memory_available: u64,
    /// Total memory of the machine, in bytes.
    pub memory_total: u64,
}

fn read(path: &str) -> String {
    fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

/// Returns the choice in brackets of a sysfs file such as `always [madvise] never`.
fn chosen(path: &str) -> String {
    let text = read(path);
    let choice = text
        .split('[')
        .nth(1)
        .and_then(|rest| rest.split(']').next());
    choice.unwrap_or("unknown").to_owned()
}

fn meminfo(key: &str) -> u64 {
    let text = read("/proc/meminfo");
    let line = text.lines().find(|line| line.starts_with(key));
    let kib = line
        .and_then(|line| line.split_whitespace().nth(1))
        .and_then(|n| n.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

impl Host {
    /// Reads the facts; a fact that cannot be read is empty or zero.
    pub fn read() -> Host {
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo
            .lines()
            .find(|l| l.starts_with("model name") || l.starts_with("CPU part"));
        let mut caches = Vec::new();
        for index in 0..8 {
            let at = |file: &str| {
                read(&format!(
                    "/sys/devices/system/cpu/cpu0/cache/index{index}/{file}"
                ))
            };
            let size = at("size");
            if size.is_empty() || at("type") == "Instruction" {
                continue;
            }
            let kib: u64 = size.trim_end_matches('K').parse().unwrap_or(0);
            caches.push((at("level").parse().unwrap_or(0), kib * 1024));
        }
        Host {
            cpu: model
                .and_then(|l| l.split(':').nth(1))
                .unwrap_or("unknown")
                .trim()
                .to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease"),
            page_bytes: rustix::param::page_size() as u64,
            caches,
            huge_private: chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
            huge_shared: chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
            memory_available: meminfo("MemAvailable:"),
            memory_total: meminfo("MemTotal:"),
        }
    }

    /// Returns a line that changes when calibrated figures are no longer valid.
    pub fn key(&self) -> String {
        format!("{}, {} cores, Linux {}", self.cpu, self.cores, self.kernel)
    }
}
