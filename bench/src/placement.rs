//! The cores of a case's ranks.

use std::collections::BTreeSet;
use std::fs;

/// Where the ranks of a case run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// In turn on two different cores, if there are.
    Apart,
    /// In turn on two hardware threads of one core.
    Siblings,
    /// Wherever the kernel schedules them.
    Free,
}

impl Placement {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Placement::Apart => "pinned",
            Placement::Siblings => "siblings",
            Placement::Free => "unpinned",
        }
    }

    /// Returns the processors of this placement: `None` if the machine does not have it, an empty
    /// list if nothing is pinned. `chosen` overrides the two cores.
    pub(crate) fn cpus(self, chosen: Option<&[usize]>) -> Option<Vec<usize>> {
        let allowed = allowed();
        match self {
            Placement::Free => Some(Vec::new()),
            Placement::Apart => Some(match chosen {
                Some(cpus) => cpus.to_vec(),
                None => apart(&allowed, siblings),
            }),
            Placement::Siblings => together(&allowed, siblings),
        }
    }
}

/// Returns two processors, of different cores if there are such; one if there is only one.
fn apart(allowed: &[usize], siblings: impl Fn(usize) -> BTreeSet<usize>) -> Vec<usize> {
    let Some(&first) = allowed.first() else {
        return Vec::new();
    };
    let near = siblings(first);
    let other = allowed
        .iter()
        .find(|cpu| !near.contains(cpu))
        .or(allowed.get(1));
    std::iter::once(first).chain(other.copied()).collect()
}

/// Returns two allowed processors of one core.
fn together(allowed: &[usize], siblings: impl Fn(usize) -> BTreeSet<usize>) -> Option<Vec<usize>> {
    allowed.iter().find_map(|&cpu| {
        let other = siblings(cpu)
            .into_iter()
            .find(|s| *s != cpu && allowed.contains(s))?;
        Some(vec![cpu, other])
    })
}

/// Returns the processors on which this process may run.
fn allowed() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else {
        return Vec::new();
    };
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect()
}

/// Returns the processor itself and those that share its core.
fn siblings(cpu: usize) -> BTreeSet<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let mut set = fs::read_to_string(path)
        .map(|text| cpu_list(&text))
        .unwrap_or_default();
    set.insert(cpu);
    set
}

/// Parses the kernel's notation of processor sets, `0-3,8`.
fn cpu_list(text: &str) -> BTreeSet<usize> {
    let mut set = BTreeSet::new();
    for part in text.trim().split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(from), Ok(to)) = (from.parse::<usize>(), to.parse::<usize>()) {
            set.extend(from..=to);
        }
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_read() {
        assert_eq!(cpu_list("0-2,5\n"), BTreeSet::from([0, 1, 2, 5]));
        assert_eq!(cpu_list(""), BTreeSet::new());
    }

    #[test]
    fn siblings_are_avoided_or_sought() {
        let pairs = |cpu: usize| BTreeSet::from([cpu & !1, cpu | 1]);
        assert_eq!(apart(&[0, 1, 2, 3], pairs), [0, 2]);
        assert_eq!(apart(&[0, 1], pairs), [0, 1]);
        assert_eq!(together(&[1, 2, 3], pairs), Some(vec![2, 3]));
        assert_eq!(together(&[1, 2], pairs), None);
    }
}
