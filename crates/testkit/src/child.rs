//! Inside a process of a test: the agent, or a unit that runs the test's closure.

use crate::{Failed, Outcome};
use samite_fabric::agent::{self, AgentConfig, Starter};
use samite_fabric::{Config, Fabric, Identity, Ptracer};
use std::io::{BufRead, Write};
use std::process::{Command, ExitStatus, Stdio};

/// Says to the test that this process has got somewhere.
pub fn point(name: &str) {
    tell("point", name);
}

/// As [`point`], then waits until the test says [`crate::Cluster::release`], or
/// [`crate::Cluster::release_as`]: what as.
pub fn pause(name: &str) -> String {
    tell("point", name);
    let mut line = String::new();
    let _ = std::io::stdin().lock().read_line(&mut line);
    line.trim_end().to_owned()
}

/// Shows a line in the output of the test (a measured figure).
pub fn say(text: &str) {
    tell("say", text);
}

/// Ends this process as `kill -9` does: without destructors, and without a word to any peer.
pub fn die() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    unreachable!("nothing keeps a process from killing itself")
}

const LIFE: &str = "SAMITE_TEST_LIFE";

/// Which of [`live_once`]'s lives this process is, if it is one.
pub fn life() -> Option<u64> {
    std::env::var(LIFE).ok()?.parse().ok()
}

/// Runs the body of this unit in a process of its own, in which [`life`] is this number, and waits
/// until it has ended: for one that is to [`die`].
pub fn live_once(life: u64) -> std::io::Result<ExitStatus> {
    Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(LIFE, life.to_string())
        .stdin(Stdio::null())
        .status()
}

/// One line to the parent. Its own write: lines of several threads do not mix.
pub(crate) fn tell(what: &str, text: &str) {
    let line = format!("\n@{what} {}\n", text.replace('\n', "\n@more "));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// A unit that has not joined yet.
#[derive(Debug)]
pub struct Unit {
    /// Its index; rank and unit are the same, there is one program.
    pub rank: u32,
    /// How many units there are.
    pub size: u32,
    /// The domain of the test.
    pub domain: String,
    /// Settings, before it joins.
    pub config: Config,
}

impl Unit {
    /// Who this unit says it is.
    pub fn identity(&self) -> Identity {
        Identity {
            job: self.domain.clone(),
            program: "unit".to_owned(),
            rank: self.rank,
            size: self.size,
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

/// Ends with the parent: a test that was killed leaves nothing behind.
fn die_with_parent() {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    if rustix::process::getppid().is_none_or(|parent| parent.is_init()) {
        std::process::exit(1);
    }
}

pub(crate) fn run_agent(budget: u64, services: Vec<Starter>, before: impl FnOnce()) -> ! {
    die_with_parent();
    before();
    // A panic in any of its threads is one of the agent.
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::abort();
    }));
    let domain = std::env::var("SAMITE_DOMAIN").unwrap_or_default();
    let config = AgentConfig { domain, budget };
    let ended = agent::run(&config, || {
        let config = config.clone();
        std::thread::spawn(move || {
            if !services.is_empty() {
                let ended = agent::host(&config, &services);
                panic!("the services of the agent ended: {ended:?}");
            }
        });
        point("ready");
    });
    tell("fail", &format!("the agent ended: {ended:?}"));
    std::process::exit(1);
}

pub(crate) fn run_unit(config: Config, body: impl FnOnce(&Unit) -> Outcome) -> ! {
    die_with_parent();
    let unit = Unit {
        rank: number("SAMITE_UNIT"),
        size: number("SAMITE_UNITS"),
        domain: std::env::var("SAMITE_DOMAIN").unwrap_or_default(),
        config: Config {
            // The process that runs the test, as a launcher would.
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
