//! Facts about this machine, for `samite info`, for reports and as the key of calibrated figures.

use std::fs;
use std::time::Duration;

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

/// Returns how long these processors have worked since the machine started, together: for any
/// process, for the kernel, or for another virtual machine. In steps of some 10 ms; `None` if the
/// system does not say.
pub fn busy_time(cpus: &[usize]) -> Option<Duration> {
    let per_second = rustix::param::clock_ticks_per_second();
    let ticks = busy_ticks(&fs::read_to_string("/proc/stat").ok()?, cpus)?;
    Some(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// Returns the processor time of all threads of this process.
pub fn own_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

/// Sums the time of some processors in `/proc/stat` that was neither idle nor waiting for a disk.
/// The fields: user, nice, system, idle, iowait, irq, softirq, steal; the rest is part of these.
fn busy_ticks(stat: &str, cpus: &[usize]) -> Option<u64> {
    let of = |cpu: &usize| -> Option<u64> {
        let name = format!("cpu{cpu}");
        let line = stat.lines().find_map(|line| {
            let (first, rest) = line.split_once(' ')?;
            (first == name).then_some(rest)
        })?;
        let fields = line.split_whitespace().take(8).enumerate();
        let busy = fields.filter(|(index, _)| ![3, 4].contains(index));
        busy.map(|(_, ticks)| ticks.parse::<u64>().ok()).sum()
    };
    cpus.iter().map(of).sum()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_busy_unless_it_is_idle() {
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 100 200 4 5 6 7 8\ncpu1 10 0 0 7 7 0 0 0 3 3\nintr 5\n";
        assert_eq!(busy_ticks(stat, &[0]), Some(21));
        assert_eq!(busy_ticks(stat, &[0, 1]), Some(31));
        assert_eq!(busy_ticks(stat, &[]), Some(0));
        assert_eq!(busy_ticks(stat, &[2]), None);
        assert_eq!(busy_ticks("cpu0 1 x", &[0]), None);
        assert!(own_time() > Duration::ZERO);
    }
}
