//! How many pipes each unit gets under the limit of open files.

use crate::Error;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors of the launcher itself: standard streams, signals, agent, and the pipes that exist
/// briefly while a process is started.
const SLACK: u64 = 24;

/// How a unit's output reaches the launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pipes {
    /// Standard output and standard error separately: two descriptors.
    Separate,
    /// Both through one pipe.
    Merged,
}

/// Returns how many files the launcher of this many units has to be able to open.
pub fn files_needed(units: u64) -> u64 {
    units + SLACK
}

/// Returns how many files the launcher of this many units, and each process that it starts, may
/// open. The launcher raises the soft limit for its pipes, but no further: some programs close or
/// poll all descriptors that they may have.
pub fn files_allowed(units: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(u64::MAX);
    let soft = limit.current.unwrap_or(u64::MAX);
    soft.max(hard.min(2 * units + SLACK))
}

/// Chooses for `units` units, and raises the soft limit if that helps. `others`: how many files the
/// launcher has open for their output.
pub(crate) fn pipes_for(units: usize, others: usize) -> Result<Pipes, Error> {
    let (units, others) = (units as u64, others as u64);
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(u64::MAX);
    let soft = limit.current.unwrap_or(u64::MAX);
    let allowed = hard.min(files_allowed(units).saturating_add(others));
    let raised = Rlimit {
        current: Some(allowed),
        maximum: limit.maximum,
    };
    let is_raised = allowed > soft && setrlimit(Resource::Nofile, raised).is_ok();
    let limit = if is_raised { allowed } else { soft };
    choose(units, limit.saturating_sub(others))
}

fn choose(units: u64, limit: u64) -> Result<Pipes, Error> {
    if 2 * units + SLACK <= limit {
        Ok(Pipes::Separate)
    } else if files_needed(units) <= limit {
        Ok(Pipes::Merged)
    } else {
        let needed = files_needed(units);
        Err(Error::FileLimit {
            units: usize::try_from(units).unwrap_or(usize::MAX),
            needed,
            limit,
        })
    }
}

/// Returns the user's process limit, if there is one.
pub(crate) fn processes() -> Option<u64> {
    getrlimit(Resource::Nproc).current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixty_four_descriptors_suffice_for_thirty_two_units() {
        assert_eq!(choose(32, 1024).expect("plenty"), Pipes::Separate);
        assert_eq!(choose(32, 64).expect("enough"), Pipes::Merged);
        assert!(matches!(
            choose(64, 64),
            Err(Error::FileLimit {
                needed: 88,
                limit: 64,
                ..
            })
        ));
    }
}
