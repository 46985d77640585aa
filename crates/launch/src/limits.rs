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

/// Chooses for `units` units, and raises the soft limit to the hard one if that helps.
pub(crate) fn pipes_for(units: usize) -> Result<Pipes, Error> {
    let units = units as u64;
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(u64::MAX);
    let mut soft = limit.current.unwrap_or(u64::MAX);
    if 2 * units + SLACK > soft && hard > soft {
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            soft = hard;
        }
    }
    choose(units, soft)
}

fn choose(units: u64, limit: u64) -> Result<Pipes, Error> {
    if 2 * units + SLACK <= limit {
        Ok(Pipes::Separate)
    } else if units + SLACK <= limit {
        Ok(Pipes::Merged)
    } else {
        let needed = units + SLACK;
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
