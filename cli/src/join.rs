//! `samite join`: a process that `mpirun`, `mpiexec` or `srun` has started becomes a unit.

use crate::builtin;
use crate::hosts::{ANSWER, given, listening, secret_file};
use crate::screen;
use anyhow::{Context, Result, bail, ensure};
use rustix::process::Pid;
use samite::agent::{self, Secret};
use samite::variable;
use samite_launch::{Exchange, Place, attend, find_program};
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// How long the units of a job, and their agents, wait for each other at the start.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The word by which the first machine says where its agent is.
const FIRST: &str = "samite";

/// Options of `samite join`.
#[derive(clap::Args)]
pub(crate) struct JoinArgs {
    /// On several machines: an address in the network over which they reach each other, as
    /// 10.0.0.1. Each listens at its own address there [default: that of its name]
    #[arg(long, value_name = "ADDRESS")]
    network: Option<IpAddr>,
    /// Transports of UCX between machines, as in UCX_TLS [default: chosen by UCX]
    #[arg(long, value_name = "LIST")]
    transports: Option<String>,
    /// Network devices of UCX between machines, as in UCX_NET_DEVICES [default: chosen by UCX]
    #[arg(long, value_name = "LIST")]
    devices: Option<String>,
    /// The program, or one that comes with samite, and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Joins the job that the process manager has started, and becomes the program.
pub(crate) fn run(args: &JoinArgs) -> Result<ExitCode> {
    let executable = std::env::current_exe().context("samite does not find itself")?;
    let place = Place::of_environment()?;
    let mut program = program(&executable, &args.command)?;
    let node = Node {
        executable,
        place,
        args,
    };
    let job = match node.place.is_on_one_node() {
        true => node.join_alone()?,
        false => node.join_others()?,
    };
    let place = &node.place;
    let (rank, size) = place.of_program;
    for (variable, number) in [
        (variable::RANK, rank),
        (variable::UNIT, place.rank),
        (variable::SIZE, size),
        (variable::UNITS, place.size),
    ] {
        program.env(variable, number.to_string());
    }
    program.env(variable::DOMAIN, &place.job);
    program.env(variable::JOB, job);
    let name = Path::new(&args.command[0]);
    program.env(
        variable::PROGRAM,
        name.file_stem().unwrap_or(name.as_os_str()),
    );
    let error = program.exec(); // It returns only if it fails.
    Err(error).with_context(|| format!("{} cannot be started", name.display()))
}

/// Finds the program: one that comes with samite, or a file.
fn program(executable: &Path, words: &[OsString]) -> Result<Command> {
    let (name, rest) = words.split_first().context("a program is needed")?;
    let mut command = match builtin::is_one(name) {
        true => {
            let mut command = Command::new(executable);
            command.arg("unit").arg(name);
            command
        }
        false => Command::new(find_program("join", name, Path::new(""))?),
    };
    command.args(rest);
    Ok(command)
}

/// This process, as one of its machine.
struct Node<'a> {
    executable: PathBuf,
    place: Place,
    args: &'a JoinArgs,
}

impl Node<'_> {
    /// Joins the other processes of this machine, which are all. Returns the name of the job.
    fn join_alone(&self) -> Result<String> {
        self.attend(&[])?;
        Ok(self.place.job.clone())
    }

    /// Joins the processes of all machines. Returns the name of the job.
    fn join_others(&self) -> Result<String> {
        let place = &self.place;
        ensure!(
            samite::has_ucx(),
            "units of several machines need UCX: install libucx0 (1.13 or newer) on each of them"
        );
        let _watched = watch();
        let mut others = Exchange::of(place, PATIENCE)?;
        if place.rank == 0 {
            let secret = Secret::generate().to_string();
            self.join_network(None, &secret)?;
            let facts = agent::facts(&place.job, ANSWER)?;
            let own = facts.nodes.into_iter().next();
            let address = own.context("the agent is not one of several")?.address;
            others.publish(FIRST, &format!("{address}/{secret}/{}", place.job))?;
        }
        others.barrier()?;
        let first = others.published(FIRST)?;
        let mut words = first.splitn(3, '/');
        let (Some(address), Some(secret), Some(job)) = (words.next(), words.next(), words.next())
        else {
            bail!("rank 0 is of another version of Samite: install the same on all machines");
        };
        if place.rank != 0 {
            self.join_network(Some(address), secret)?;
        }
        // No unit begins, and none ends, before all machines are there.
        others.barrier()?;
        others.end()?;
        Ok(job.to_owned())
    }

    /// Joins those of this machine, whose agent is one of several. `first`: where the first agent
    /// listens, if this is not its machine.
    fn join_network(&self, first: Option<&str>, secret: &str) -> Result<()> {
        if self.place.local_rank != 0 {
            return self.attend(&[]);
        }
        let own_name = || {
            let machine = rustix::system::uname();
            machine.nodename().to_string_lossy().into_owned()
        };
        let host = self.place.host.clone().unwrap_or_else(own_name);
        let name = self.place.node.clone().unwrap_or_else(|| host.clone());
        let listen = match self.args.network {
            Some(network) => own_address(network)?.to_string(),
            None => host,
        };
        // It has no name, and is there until the agent has read it.
        let (_file, secret) = secret_file(secret)?;
        let listen = listening(&listen, "samite join --network 10.0.0.1")?;
        let options: Vec<OsString> = given([
            ("--listen", Some(listen)),
            ("--node", Some(name)),
            ("--secret", Some(secret)),
            ("--join", first.map(str::to_owned)),
            ("--transports", self.args.transports.clone()),
            ("--devices", self.args.devices.clone()),
        ])
        .collect();
        self.attend(&options)
    }

    /// Says to the agent of this machine that this process is here, and starts that agent before if
    /// this is the first process.
    fn attend(&self, options: &[OsString]) -> Result<()> {
        let agent = match self.place.local_rank {
            0 => Some(self.start_agent(options)?),
            _ => None,
        };
        Ok(attend(&self.place.job, agent, PATIENCE)?)
    }

    /// Starts the agent of this machine, which ends after the units. What it says goes to standard
    /// error. It is no child of this process, whose program may wait for all of its children, and
    /// in a group of its own, as signals of the manager are for the units.
    fn start_agent(&self, options: &[OsString]) -> Result<Pid> {
        // Costs on this machine, which are measured once.
        samite::calibration::load_or_measure(|what| tracing::info!(what));
        let place = &self.place;
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "\"$0\" \"$@\" >/dev/null & echo $!"]);
        shell.arg(&self.executable);
        shell.args(["agent", "--domain", &place.job, "--units"]);
        shell.arg(place.local_size.to_string());
        let own = std::process::id().to_string();
        shell.args(["--starter", &own]).args(options);
        shell.stdin(Stdio::null()).stderr(Stdio::inherit());
        let said = shell.process_group(0).output();
        let said = said.context("the agent cannot be started")?;
        let number = String::from_utf8_lossy(&said.stdout).trim().parse().ok();
        let agent = number.and_then(Pid::from_raw);
        agent.context("the agent cannot be started: the shell does not say its process")
    }
}

/// Ends this process if the returned end is not dropped in time: a process manager may wait for
/// ever for processes that do not come.
fn watch() -> mpsc::Sender<()> {
    let (here, gone) = mpsc::channel();
    let wait = move || {
        if gone.recv_timeout(2 * PATIENCE) == Err(RecvTimeoutError::Timeout) {
            let waited = 2 * PATIENCE;
            screen::warn(format_args!(
                "not all processes of this job have come to `samite join` within {waited:?}: does \
                 each of them call it, once?"
            ));
            std::process::exit(1);
        }
    };
    // Without it, the process manager decides how long this process waits.
    let _ = std::thread::Builder::new().spawn(wait);
    here
}

/// Returns the address that this machine has on its way to another one.
fn own_address(to: IpAddr) -> Result<IpAddr> {
    let any = match to {
        IpAddr::V4(_) => "0.0.0.0:0",
        IpAddr::V6(_) => "[::]:0",
    };
    // Nothing is sent: the system chooses the way.
    let chosen = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(SocketAddr::new(to, 9))?;
        socket.local_addr()
    });
    let chosen = chosen.with_context(|| format!("this machine has no way to {to} (--network)"))?;
    Ok(chosen.ip())
}
