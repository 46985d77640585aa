//! A fully resolved job: the executables, the numbers of units, the configuration.

use crate::source::nearest_file;
use crate::{Backlog, Error, Setup};
use rustix::fs::Access;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Everything that [`crate::run`] needs. It can be sent to another machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// The name of the job, for people.
    pub job: String,
    /// The name of the job, for its units; unique among the runs in the domain.
    pub id: String,
    /// The name under which the processes find each other.
    pub domain: String,
    /// The programs, in the order in which their units are numbered.
    pub programs: Vec<Program>,
    /// The command of the agent. It prints `ready` and closes its standard output. `None`: no
    /// agent.
    pub agent: Option<Vec<OsString>>,
    /// The `samite` executable. Each process is started as
    /// `STARTER exec-unit --parent PID [--cpus LIST] -- COMMAND ARGS`, so that it dies with the
    /// launcher; `STARTER guard` ends the processes that it starts itself. `None`: processes are
    /// started directly, without regard to [`Program::cpus`], and outlive a launcher that is
    /// killed.
    pub starter: Option<PathBuf>,
    /// The resolved configuration, as TOML, the same for all units.
    pub config: String,
    /// How long a process may take to end after SIGTERM; see [`Program::grace`].
    pub grace: Duration,
    /// How long the job may run; then it is ended, with [`Error::TimedOut`].
    pub timeout: Option<Duration>,
    /// How long the launcher waits for the error of another unit, after one failed and what it said
    /// is a consequence; at most [`Plan::grace`].
    pub listen: Duration,
    /// What the caller has queued and not shown yet; without a queue, it has to show events
    /// quickly.
    #[serde(skip)]
    pub backlog: Option<Backlog>,
    /// The machines on which the units run, and agents, too; [`Plan::agent`] is ignored then. None:
    /// all run here.
    pub hosts: Vec<Host>,
    /// The secret of the agents of these machines.
    pub secret: String,
    /// The folder of the launcher, which these machines need, too.
    pub cwd: PathBuf,
}

/// A machine on which units run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Its address, at which the others reach it.
    pub address: String,
    /// The command that starts `samite host` there: its standard input and output are connected
    /// with the launcher.
    pub command: Vec<OsString>,
    /// Transports and devices of UCX between machines; `None`: chosen by UCX.
    pub transports: Option<String>,
    /// As above.
    pub devices: Option<String>,
}

impl Plan {
    /// Refuses a file that a program would read before it is complete.
    ///
    /// # Errors
    /// [`Error::InputIsOutput`].
    pub fn check_inputs(&self) -> Result<(), Error> {
        crate::files::check_inputs(self)
    }

    /// Returns a path of the plan that is not UTF-8 text: such a plan cannot be sent to another
    /// machine, so [`crate::run`] refuses it if it has [`Plan::hosts`].
    pub fn path_that_is_no_text(&self) -> Option<&Path> {
        let of_setup = |setup| {
            let Setup {
                cwd,
                stdin,
                stdout,
                stderr,
                ..
            }: &Setup = setup;
            [cwd, stdin, stdout, stderr].into_iter().flatten()
        };
        let programs = self.programs.iter();
        let of_programs = programs.flat_map(|program| {
            let setups = std::iter::once(&program.setup).chain(&program.setups);
            std::iter::once(&program.command).chain(setups.flat_map(of_setup))
        });
        let own = std::iter::once(&self.cwd).chain(&self.starter);
        let mut paths = own.chain(of_programs).map(PathBuf::as_path);
        paths.find(|path| path.to_str().is_none())
    }

    /// Creates a job without programs, in a domain of the same name.
    pub fn new(job: impl Into<String>) -> Self {
        let job = job.into();
        Self {
            domain: job.clone(),
            id: job.clone(),
            job,
            programs: Vec::new(),
            agent: None,
            starter: None,
            config: String::new(),
            grace: Duration::from_secs(5),
            // Far longer than a unit needs to print its error and end.
            listen: Duration::from_secs(1),
            timeout: None,
            backlog: None,
            hosts: Vec::new(),
            secret: String::new(),
            cwd: PathBuf::from("."),
        }
    }

    /// Returns the number of the host on which a unit runs: each host has as many units of each
    /// program as the others, or one more, in the order of their ranks. `None`: it runs here.
    pub(crate) fn host_of(&self, program: usize, rank: u32) -> Option<usize> {
        let (hosts, units) = (self.hosts.len() as u64, self.programs[program].units);
        let host = u64::from(rank) * hosts / u64::from(units.max(1));
        (hosts > 0).then_some(host as usize)
    }

    /// Returns the names of all units, in order.
    pub(crate) fn names(&self) -> Vec<Name> {
        let names = |program: &Program| {
            let ranks = 0..program.units;
            let names = ranks.map(|rank| Name::unit(&program.name, rank));
            names.collect::<Vec<Name>>()
        };
        self.programs.iter().flat_map(names).collect()
    }

    /// Returns the number of units of the whole job.
    pub fn units(&self) -> usize {
        self.programs
            .iter()
            .map(|program| program.units as usize)
            .sum()
    }
}

/// One program of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Program {
    /// Its name in the job; units are called `name.rank`.
    pub name: String,
    /// The executable.
    pub command: PathBuf,
    /// What its units are started with.
    pub setup: Setup,
    /// What each unit is started with, by rank, if they differ.
    pub setups: Vec<Setup>,
    /// How many processes run it.
    pub units: u32,
    /// The processors that its units may use; needs [`Plan::starter`].
    pub cpus: Cpus,
    /// Whether its lines are shown with the unit's name as a prefix.
    pub prefix: bool,
    /// How long its units may take to end after they were asked to; `None`: [`Plan::grace`].
    pub grace: Option<Duration>,
    /// The signal that asks its units to end.
    #[serde(with = "signal")]
    pub stop_signal: Signal,
    /// The programs that have to be ready before this one starts.
    pub after: Vec<String>,
    /// A unit is ready when it prints a line that contains this text; `None`: when it has ended.
    pub ready: Option<String>,
    /// How often each of its units is started again after it failed.
    pub restart: u32,
    /// Whether the job goes on when one of its units fails.
    pub optional: bool,
}

impl Program {
    /// Creates a program with one unit of `command`, without arguments.
    pub fn new(name: impl Into<String>, command: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            command: command.into(),
            setup: Setup::default(),
            setups: Vec::new(),
            units: 1,
            cpus: Cpus::Any,
            prefix: true,
            grace: None,
            stop_signal: Signal::TERM,
            after: Vec::new(),
            ready: None,
            restart: 0,
            optional: false,
        }
    }

    /// Sets the number of units.
    pub fn units(mut self, units: u32) -> Self {
        self.units = units;
        self
    }

    /// Sets the arguments.
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.setup.args = args.into_iter().map(Into::into).collect();
        self
    }

    /// Returns what the unit with this rank is started with.
    pub fn setup_of(&self, rank: u32) -> &Setup {
        self.setups.get(rank as usize).unwrap_or(&self.setup)
    }
}

/// A signal, as its number.
mod signal {
    use super::Signal;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(signal: &Signal, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i32(signal.as_raw())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Signal, D::Error> {
        let number = i32::deserialize(from)?;
        Signal::from_named_raw(number).ok_or_else(|| D::Error::custom("no signal"))
    }
}

/// The processors that the units of a program may use, as lists like `0-3,8`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cpus {
    /// All that the launcher may use.
    Any,
    /// The same processors for all units.
    Same(String),
    /// One list per unit, reused in turn if there are more units than lists.
    PerUnit(Vec<String>),
}

impl Cpus {
    /// Returns the list of the unit with this rank.
    pub(crate) fn of(&self, rank: u32) -> Option<&str> {
        match self {
            Self::Any => None,
            Self::Same(list) => Some(list),
            Self::PerUnit(lists) if lists.is_empty() => None,
            Self::PerUnit(lists) => Some(&lists[rank as usize % lists.len()]),
        }
    }
}

/// The name of a process of the job: `solver.0`, or `agent`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    program: String,
    rank: Option<u32>,
}

impl Name {
    /// Creates the name of the unit of `program` with this rank.
    pub fn unit(program: &str, rank: u32) -> Self {
        Self {
            program: program.to_owned(),
            rank: Some(rank),
        }
    }

    /// Creates the name of the agent.
    pub fn agent() -> Self {
        Self {
            program: "agent".to_owned(),
            rank: None,
        }
    }

    /// Creates the name of a host.
    pub(crate) fn host(name: &str) -> Self {
        Self {
            program: format!("host {name}"),
            rank: None,
        }
    }

    /// Returns the program's name in the job.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// Returns the unit's index in its program; `None` for the agent.
    pub fn rank(&self) -> Option<u32> {
        self.rank
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank {
            Some(rank) => write!(f, "{}.{rank}", self.program),
            None => f.write_str(&self.program),
        }
    }
}

/// Finds the executable of `command`: a path (relative to `folder`), or a name that is searched for
/// in `PATH`.
///
/// # Errors
/// [`Error::NoSuchProgram`] and [`Error::NotExecutable`], which name `program`.
pub fn find_program(
    program: &str,
    command: impl AsRef<OsStr>,
    folder: &Path,
) -> Result<PathBuf, Error> {
    let command = command.as_ref();
    let name = command.to_string_lossy();
    let missing = |looked: String| Error::NoSuchProgram {
        program: program.to_owned(),
        command: name.clone().into_owned(),
        looked,
    };
    if command.as_encoded_bytes().contains(&b'/') {
        let path = folder.join(command);
        if !path.is_file() {
            let looked = format!("looked at {}", path.display());
            return Err(missing(match nearest_file(&path, is_executable) {
                Some(near) => {
                    let near = Path::new(command).with_file_name(near);
                    format!("{looked}; did you mean `{}`?", near.display())
                }
                None => looked,
            }));
        }
        if !is_executable(&path) {
            return Err(Error::NotExecutable {
                program: program.to_owned(),
                remedy: match interpreter(&path) {
                    Some(by) => format!("write `{by} {name}`"),
                    None => "run `chmod +x` on it".to_owned(),
                },
                path,
            });
        }
        return Ok(path);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join(command))
        .find(|candidate| is_executable(candidate))
        .ok_or_else(|| {
            let is_here = folder.join(command).is_file();
            missing(match (is_here, interpreter(Path::new(command))) {
                (true, Some(by)) => format!("looked in PATH; did you mean `{by} {name}`?"),
                (true, None) => format!("looked in PATH; did you mean `./{name}`?"),
                (false, _) => "looked in PATH".to_owned(),
            })
        })
}

/// Returns the program that runs such a file, as its name says.
fn interpreter(path: &Path) -> Option<&'static str> {
    path.extension()
        .filter(|end| *end == "py")
        .map(|_| "python")
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name_and_by_path() {
        let here = Path::new("/");
        assert!(find_program("a", "sh", here).is_ok());
        assert_eq!(
            find_program("a", "/bin/sh", here).expect("sh exists"),
            Path::new("/bin/sh")
        );
        assert_eq!(
            find_program("a", "bin/sh", here).expect("sh exists"),
            Path::new("/bin/sh")
        );
        let error = find_program("solver", "no-such-thing", here).expect_err("does not exist");
        assert!(error.to_string().contains("no-such-thing"), "{error}");
        let error = find_program("shell", "/bin/shh", here).expect_err("does not exist");
        assert!(
            error.to_string().contains("did you mean `/bin/s"),
            "{error}"
        );
        assert!(matches!(
            find_program("a", "/etc/passwd", here),
            Err(Error::NotExecutable { .. })
        ));
    }

    /// A program in Python is an argument of the interpreter.
    #[test]
    fn a_file_that_is_no_program_is_run_by_another_one() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        for name in ["solve.py", "solve"] {
            std::fs::write(folder.path().join(name), "print(1)").expect("it can be written");
        }
        for (command, remedy) in [
            ("solve.py", "did you mean `python solve.py`?"),
            ("./solve.py", "write `python ./solve.py`"),
            ("solve", "did you mean `./solve`?"),
            ("./solve", "run `chmod +x` on it"),
        ] {
            let error = find_program("a", command, folder.path()).expect_err("it is no program");
            assert!(error.to_string().contains(remedy), "{error}");
        }
    }

    /// Each path of a plan is looked at before the plan is sent, which fails for these.
    #[test]
    fn a_path_that_cannot_be_sent_is_found() {
        use std::os::unix::ffi::OsStrExt;
        let odd = Path::new(OsStr::from_bytes(b"/scratch/\xff")).to_owned();
        let change = |which: usize| {
            let mut plan = Plan::new("job");
            let mut program = Program::new("a", "/bin/a").args(["b"]);
            program.setups = vec![Setup::default()];
            match which {
                0 => plan.cwd.clone_from(&odd),
                1 => plan.starter = Some(odd.clone()),
                2 => program.command.clone_from(&odd),
                3 => program.setup.cwd = Some(odd.clone()),
                4 => program.setup.stdin = Some(odd.clone()),
                5 => program.setups[0].stdout = Some(odd.clone()),
                6 => program.setups[0].stderr = Some(odd.clone()),
                // Arguments may be anything.
                _ => program.setup.args.push(odd.clone().into()),
            }
            plan.programs.push(program);
            plan
        };
        for which in 0..7 {
            let plan = change(which);
            assert_eq!(plan.path_that_is_no_text(), Some(&*odd), "{which}");
            assert!(postcard::to_stdvec(&plan).is_err());
        }
        let plan = change(7);
        assert_eq!(plan.path_that_is_no_text(), None);
        assert!(postcard::to_stdvec(&plan).is_ok());
    }

    #[test]
    fn lists_of_processors_are_used_in_turn() {
        let cpus = Cpus::PerUnit(vec!["0".into(), "1".into()]);
        assert_eq!(
            (cpus.of(0), cpus.of(1), cpus.of(2)),
            (Some("0"), Some("1"), Some("0"))
        );
        assert_eq!(Cpus::Any.of(3), None);
    }
}
