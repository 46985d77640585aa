//! Code that runs inside a process of a test: the agent, or a unit that runs the test's closure.

use crate::units::{HEAD, HOST};
use crate::{Failed, Outcome};
use samite_fabric::agent::{self, AgentConfig, FarTransport, Network, Secret, Starter};
use samite_fabric::{Config, Fabric, Identity, Ptracer};
use std::io::{BufRead, Write};
use std::process::{Command, ExitStatus, Stdio};

/// Announces to the test that this process has reached a point.
pub fn point(name: &str) {
    tell("point", name);
}

/// Announces a point, like [`point`], then waits until the test calls [`crate::Cluster::release`]
/// or [`crate::Cluster::release_as`]. Returns the line of the latter.
pub fn pause(name: &str) -> String {
    tell("point", name);
    let mut line = String::new();
    let _ = std::io::stdin().lock().read_line(&mut line);
    line.trim_end().to_owned()
}

/// Prints a line in the output of the test (a measured figure).
pub fn say(text: &str) {
    tell("say", text);
}

/// Ends this process like `kill -9`: without destructors or a message to any peer.
pub fn die() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    unreachable!("nothing keeps a process from killing itself")
}

const LIFE: &str = "SAMITE_TEST_LIFE";

/// Returns the number that [`live_once`] gave to this process, if it started it.
pub fn life() -> Option<u64> {
    std::env::var(LIFE).ok()?.parse().ok()
}

/// Runs the body of this unit in a separate process, in which [`life`] returns this number, and
/// waits until it has ended. For a process that is to [`die`].
pub fn live_once(life: u64) -> std::io::Result<ExitStatus> {
    Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(LIFE, life.to_string())
        .stdin(Stdio::null())
        .status()
}

/// Sends one line to the parent. It is a single write, so lines of several threads do not mix.
pub(crate) fn tell(what: &str, text: &str) {
    let line = format!("\n@{what} {}\n", text.replace('\n', "\n@more "));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// A unit that has not joined.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Its index among all units; its rank, if there is one program.
    pub rank: u32,
    /// Number of units.
    pub size: u32,
    /// Its program, its rank there, and the number of units of the program.
    program: (String, u32, u32),
    /// The domain of the test, on the node of this unit.
    pub domain: String,
    job: String,
    /// Its settings; they may be changed before it joins.
    pub config: Config,
}

impl Unit {
    /// Returns the identity of this unit.
    pub fn identity(&self) -> Identity {
        let (program, rank, size) = self.program.clone();
        Identity {
            job: self.job.clone(),
            program,
            rank,
            size,
            unit: self.rank,
            units: self.size,
        }
    }

    /// Joins the domain of the test.
    pub fn join(&self) -> Outcome<Fabric> {
        Ok(Fabric::join(
            &self.domain,
            self.identity(),
            self.config.clone(),
        )?)
    }
}

fn number(variable: &str) -> u32 {
    let text = std::env::var(variable).unwrap_or_default();
    text.parse()
        .unwrap_or_else(|_| panic!("{variable} is \"{text}\": a unit is started by its test"))
}

/// Makes this process end with its parent, so that a killed test leaves nothing behind.
fn die_with_parent() {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    if rustix::process::getppid().is_none_or(|parent| parent.is_init()) {
        std::process::exit(1);
    }
}

pub(crate) fn run_agent(budget: u64, services: Vec<Starter>, before: impl FnOnce()) -> ! {
    die_with_parent();
    before();
    // A panic in any of its threads counts as a panic of the agent.
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::abort();
    }));
    let domain = std::env::var("SAMITE_DOMAIN").unwrap_or_default();
    let network = std::env::var(HOST).ok().map(|name| Network {
        name,
        listen: ([127, 0, 0, 1], 0).into(),
        join: std::env::var(HEAD).ok(),
        secret: Secret::of("the secret of a test").expect("it is long enough"),
        transport: FarTransport {
            transports: Some("tcp".into()),
            devices: Some("lo".into()),
        },
    });
    let config = AgentConfig {
        domain,
        budget,
        network,
    };
    let ended = agent::run(&config, || {
        let config = config.clone();
        std::thread::spawn(move || {
            let ended = agent::host(&config, &services, || point("ready"));
            assert!(
                services.is_empty(),
                "the services of the agent ended: {ended:?}"
            );
        });
    });
    tell("fail", &format!("the agent ended: {ended:?}"));
    std::process::exit(1);
}

pub(crate) fn run_unit(config: Config, body: impl FnOnce(&Unit) -> Outcome) -> ! {
    die_with_parent();
    let unit = Unit {
        rank: number("SAMITE_UNIT"),
        size: number("SAMITE_UNITS"),
        program: (
            std::env::var("SAMITE_PROGRAM").unwrap_or_default(),
            number("SAMITE_RANK"),
            number("SAMITE_SIZE"),
        ),
        domain: std::env::var("SAMITE_DOMAIN").unwrap_or_default(),
        job: std::env::var("SAMITE_JOB").unwrap_or_default(),
        config: Config {
            // The process that runs the test, as with a launcher.
            ptracer: Ptracer::Process(std::os::unix::process::parent_id() as i32),
            ..config
        },
    };
    match body(&unit) {
        Ok(()) => {
            tell("done", "");
            std::process::exit(0);
        }
        Err(Failed(why)) => {
            tell("fail", &why);
            std::process::exit(1);
        }
    }
}
