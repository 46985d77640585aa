//! The kernel's information about processes.

use samite::variable;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// A process.
#[derive(Serialize)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// The state as a word: running, asleep, stopped ...
    pub(crate) state: &'static str,
    /// Bytes of resident memory, including shared memory.
    pub(crate) resident: u64,
    /// How long it has been running.
    #[serde(rename = "age_seconds", serialize_with = "seconds")]
    pub(crate) age: Duration,
}

fn seconds<S: serde::Serializer>(age: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(age.as_millis() as f64 / 1e3)
}

impl Process {
    /// Reads it.
    pub(crate) fn read(pid: i32) -> Process {
        let stat = Stat::read(pid);
        let pages = read(pid, "statm");
        let pages = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok());
        // Both count from the start of the machine.
        let started = stat.number(19) as f64 / rustix::param::clock_ticks_per_second() as f64;
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
        let now: Option<f64> = uptime.split(' ').next().and_then(|now| now.parse().ok());
        let age = now.map_or(0.0, |now| (now - started).max(0.0));
        Process {
            pid,
            state: match stat.0.chars().next() {
                Some('R') => "running",
                Some('S') => "asleep",
                Some('D') => "in the kernel",
                Some('T' | 't') => "stopped",
                Some('Z' | 'X') => "dead",
                Some(_) => "other",
                None => "gone",
            },
            resident: pages.unwrap_or(0) * rustix::param::page_size() as u64,
            age: match stat.0.is_empty() {
                true => Duration::ZERO,
                false => Duration::from_secs_f64(age),
            },
        }
    }
}

fn read(pid: i32, file: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
}

/// The fields of a process after its name, which may contain anything; empty if it is gone.
struct Stat(String);

impl Stat {
    fn read(pid: i32) -> Stat {
        let text = read(pid, "stat");
        let fields = text.rsplit_once(") ").map(|(_, fields)| fields.to_owned());
        Stat(fields.unwrap_or_default())
    }

    /// Returns the field with this index; the state has index 0.
    fn number(&self, index: usize) -> u64 {
        let field = self.0.split(' ').nth(index);
        field.and_then(|field| field.parse().ok()).unwrap_or(0)
    }
}

/// A unit that a launcher has started, whether or not it has joined its domain.
pub(crate) struct Started {
    pub(crate) pid: i32,
    pub(crate) domain: String,
    pub(crate) job: String,
    pub(crate) program: String,
    pub(crate) rank: u32,
    pub(crate) size: u32,
}

/// Returns the units of this user on this machine whose launcher runs.
pub(crate) fn started() -> Vec<Started> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut units: Vec<Started> = pids.filter_map(Started::read).collect();
    units.sort_by(|a, b| (&a.program, a.rank).cmp(&(&b.program, b.rank)));
    units
}

impl Started {
    /// Reads the variables of a process. Returns `None` if it is not a unit, or of another user.
    fn read(pid: i32) -> Option<Started> {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let environ = String::from_utf8_lossy(&environ);
        let variables = environ.split('\0').filter_map(|line| line.split_once('='));
        let variables: BTreeMap<&str, &str> = variables.collect();
        let text = |name| variables.get(name).map(|text| (*text).to_owned());
        // What a unit starts has the same variables, but another parent.
        let launcher: u64 = variables.get(variable::LAUNCHER)?.parse().ok()?;
        let is_unit = Stat::read(pid).number(1) == launcher;
        is_unit.then_some(())?;
        Some(Started {
            pid,
            domain: text(variable::DOMAIN)?,
            job: text(variable::JOB)?,
            program: text(variable::PROGRAM)?,
            rank: variables.get(variable::RANK)?.parse().ok()?,
            size: variables.get(variable::SIZE)?.parse().ok()?,
        })
    }
}
