//! Checks that nothing is left behind: no process, no socket, and (a memfd has no name) hence no
//! memory.

use std::fs;

/// Returns what is left of a domain; empty if nothing is.
pub(crate) fn of(domain: &str) -> Vec<String> {
    let mut found = processes(domain);
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let ours = format!("/{domain}");
    found.extend(
        sockets
            .lines()
            .filter(|line| {
                line.split_whitespace()
                    .last()
                    .is_some_and(|name| name.ends_with(&ours))
            })
            .map(|line| format!("socket {line}")),
    );
    found
}

/// Returns the processes whose environment names the domain. When they end, the mappings and
/// descriptors of the arena do, too: it is in no file system.
fn processes(domain: &str) -> Vec<String> {
    let ours = format!("SAMITE_DOMAIN={domain}");
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == ours.as_bytes())
    })
    .map(|pid| format!("process {pid}"))
    .collect()
}
