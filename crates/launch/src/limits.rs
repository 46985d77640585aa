//! How many pipes each unit gets under the limit of open files.

use crate::files;
use crate::plan::{Plan, Program};
use crate::{Error, Setup};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors of the launcher itself: standard streams, signals, agent, and the pipes that exist
/// briefly while a process is started.
const SLACK: u64 = 24;
/// Descriptors of the connection with a host: its orders, its reports, and what its start command
/// prints.
const OF_HOST: u64 = 3;
/// Linux's `O_CLOEXEC` on all processors, as `/proc` prints it.
const CLOSED_BY_EXEC: u64 = 0o2_000_000;

/// How a unit's output reaches the launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pipes {
    /// Standard output and standard error separately: two descriptors.
    Separate,
    /// Both through one pipe.
    Merged,
}

/// What the launcher of a job has to open, or a host of it.
#[derive(Debug, Clone, Copy)]
struct Needs {
    /// Descriptors that its parent left open in it.
    inherited: u64,
    units: u64,
    /// Units that it starts itself, and whose output it reads.
    own: u64,
    /// Files for the output of units.
    files: u64,
    /// Connections with hosts.
    hosts: u64,
    /// Whether a unit's standard error goes elsewhere than its standard output. Both then need a
    /// pipe of their own.
    is_split: bool,
}

impl Needs {
    /// Returns the needs of a launcher that starts all units itself.
    fn of(programs: &[Program]) -> Self {
        let is_elsewhere = |setup: &Setup| setup.stdout != setup.stderr;
        let units = programs.iter().map(|program| u64::from(program.units));
        let units = units.sum();
        Self {
            inherited: inherited(),
            units,
            own: units,
            files: files::paths(programs).len() as u64,
            hosts: 0,
            is_split: files::setups(programs).any(is_elsewhere),
        }
    }

    fn of_launcher(plan: &Plan) -> Self {
        let all = Self::of(&plan.programs);
        match plan.hosts.len() as u64 {
            0 => all,
            // The pipes of units are on their hosts.
            hosts => Self {
                own: 0,
                hosts,
                ..all
            },
        }
    }

    /// Returns the needs of a host on which these programs run. Their files are at the launcher.
    fn of_host(programs: &[Program]) -> Self {
        Self {
            files: 0,
            ..Self::of(programs)
        }
    }

    fn most(&self) -> u64 {
        2 * self.own + self.others()
    }

    fn least(&self) -> u64 {
        match self.is_split {
            true => self.most(),
            false => self.own + self.others(),
        }
    }

    fn others(&self) -> u64 {
        self.files + OF_HOST * self.hosts + self.inherited + SLACK
    }
}

/// Counts the descriptors, beyond the standard streams, that this process has from its parent: only
/// they stay open when a program is executed.
fn inherited() -> u64 {
    let Ok(descriptors) = std::fs::read_dir("/proc/self/fdinfo") else {
        return 0;
    };
    let stays_open = |info: &String| {
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u64::from_str_radix(flags.trim(), 8).ok());
        flags.is_some_and(|flags| flags & CLOSED_BY_EXEC == 0)
    };
    let beyond = descriptors.flatten().filter(|entry| {
        let number = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        number.is_some_and(|number: u32| number > 2)
    });
    let infos = beyond.filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    infos.filter(stays_open).count() as u64
}

/// Returns how many files the launcher of these programs has to be able to open.
pub fn files_needed(programs: &[Program]) -> u64 {
    Needs::of(programs).least()
}

/// Returns how many files the launcher of these programs, and each process that it starts, may
/// open. The launcher raises the soft limit for its pipes, but no further: some programs close or
/// poll all descriptors that they may have.
pub fn files_allowed(programs: &[Program]) -> u64 {
    allowed(Needs::of(programs), getrlimit(Resource::Nofile))
}

fn allowed(needs: Needs, limit: Rlimit) -> u64 {
    let hard = limit.maximum.unwrap_or(u64::MAX);
    let soft = limit.current.unwrap_or(u64::MAX);
    soft.max(hard.min(needs.most()))
}

/// Chooses for the launcher of a plan, and raises the soft limit if that helps.
pub(crate) fn pipes_of_launcher(plan: &Plan) -> Result<Pipes, Error> {
    pipes_for(Needs::of_launcher(plan))
}

/// As [`pipes_of_launcher`], for a host on which these programs run.
pub(crate) fn pipes_of_host(programs: &[Program]) -> Result<Pipes, Error> {
    pipes_for(Needs::of_host(programs))
}

fn pipes_for(needs: Needs) -> Result<Pipes, Error> {
    let limit = getrlimit(Resource::Nofile);
    let soft = limit.current.unwrap_or(u64::MAX);
    let allowed = allowed(needs, limit);
    let raised = Rlimit {
        current: Some(allowed),
        maximum: limit.maximum,
    };
    let is_raised = allowed > soft && setrlimit(Resource::Nofile, raised).is_ok();
    choose(needs, if is_raised { allowed } else { soft })
}

fn choose(needs: Needs, limit: u64) -> Result<Pipes, Error> {
    if needs.most() <= limit {
        Ok(Pipes::Separate)
    } else if needs.least() <= limit {
        Ok(Pipes::Merged)
    } else {
        Err(Error::FileLimit {
            units: usize::try_from(needs.units).unwrap_or(usize::MAX),
            needed: needs.least(),
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
    use crate::plan::Host;

    fn needs(units: u64, files: u64, is_split: bool) -> Needs {
        Needs {
            inherited: 0,
            units,
            own: units,
            files,
            hosts: 0,
            is_split,
        }
    }

    #[test]
    fn sixty_four_descriptors_suffice_for_thirty_two_units() {
        let plain = |units| needs(units, 0, false);
        assert_eq!(choose(plain(32), 1024).expect("plenty"), Pipes::Separate);
        assert_eq!(choose(plain(32), 64).expect("enough"), Pipes::Merged);
        assert!(matches!(
            choose(plain(64), 64),
            Err(Error::FileLimit {
                needed: 88,
                limit: 64,
                ..
            })
        ));
    }

    /// Output files take descriptors as well, and one pipe cannot serve two files.
    #[test]
    fn streams_with_files_of_their_own_are_not_merged() {
        let same = needs(10, 10, false);
        assert_eq!(choose(same, 54).expect("plenty"), Pipes::Separate);
        assert_eq!(choose(same, 44).expect("enough"), Pipes::Merged);
        assert!(choose(same, 43).is_err());
        let split = needs(10, 10, true);
        assert_eq!(choose(split, 54).expect("enough"), Pipes::Separate);
        assert!(matches!(
            choose(split, 53),
            Err(Error::FileLimit { needed: 54, .. })
        ));
    }

    /// A launcher opens files and connections, and no pipes of units; a host opens only these.
    #[test]
    fn files_of_a_job_on_hosts_are_open_at_its_launcher() {
        let mut program = Program::new("a", "/bin/sh").units(10);
        let setup = |rank| Setup {
            stdout: Some(format!("out-{rank}").into()),
            ..Setup::default()
        };
        program.setups = (0..10).map(setup).collect();
        let host = |name: &str| Host {
            name: name.to_owned(),
            address: name.to_owned(),
            command: Vec::new(),
            transports: None,
            devices: None,
        };
        let mut plan = Plan::new("job");
        plan.programs.push(program.clone());
        plan.hosts = ["a", "b"].map(host).into();
        let launcher = Needs::of_launcher(&plan);
        let needed = 10 + 2 * 3 + SLACK + inherited();
        assert_eq!((launcher.least(), launcher.most()), (needed, needed));
        assert!(choose(launcher, needed).is_ok());
        let refused = choose(launcher, needed - 1);
        assert!(
            matches!(&refused, Err(Error::FileLimit { units: 10, needed: most, .. })
                if *most == needed),
            "{refused:?}"
        );
        // Each unit of a host has two pipes, since its streams go to different places.
        let here = Needs::of_host(&[program.units(5)]);
        assert_eq!(here.least(), 2 * 5 + SLACK + inherited());
    }

    #[test]
    fn descriptors_of_the_parent_are_counted() {
        let before = inherited();
        let file = std::fs::File::open("/dev/null").expect("it is there");
        assert_eq!(inherited(), before);
        let flags = rustix::io::FdFlags::empty();
        rustix::io::fcntl_setfd(&file, flags).expect("it is open");
        assert_eq!(inherited(), before + 1);
        let mut program = Program::new("a", "/bin/sh").units(3);
        program.setup.stdout = Some("out".into());
        let programs = [program.clone(), Program::new("b", "/bin/sh")];
        let own = SLACK + inherited();
        assert_eq!(files_needed(&programs), 2 * 4 + 1 + own);
        program.setup.stderr = Some("out".into());
        assert_eq!(files_needed(&[program]), 3 + 1 + own);
    }
}
