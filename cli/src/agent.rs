//! `samite agent`: the process that holds the memory of a domain.

use crate::join::PATIENCE;
use crate::network::NetworkArgs;
use crate::screen::size;
use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, getpid, kill_process};
use samite::agent::{self, AgentConfig, Starter};
use samite::config::{Config, Layers};
use samite::host::Host;
use samite_launch::Attendance;
use samite_mem::PEERS_MAX;
use signal_hook::low_level;
use std::backtrace::Backtrace;
use std::ffi::OsString;
use std::io::Write;
use std::panic::PanicHookInfo;
use std::path::Path;
use std::process::ExitCode;
use std::thread::Builder;
use std::time::Duration;

/// Shared memory that each process takes for its messages: the unit in which memory is granted.
const MESSAGES: u64 = 2 << 20;

/// How long the last message of an agent may take.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How often the first agent looks whether other nodes are still there, after its units have ended.
const LOOK_AT_OTHERS: Duration = Duration::from_millis(100);

/// Options of `samite agent`.
#[derive(clap::Args)]
pub(crate) struct AgentArgs {
    /// The domain
    #[arg(long)]
    domain: String,
    #[command(flatten)]
    network: NetworkArgs,
    /// End when this many units of this machine have ended (started by `samite join`)
    #[arg(long, hide = true, requires = "starter")]
    units: Option<u32>,
    /// The unit that has started this
    #[arg(long, hide = true)]
    starter: Option<i32>,
}

/// Returns the agent's command for `samite run`, or `None` if the domain has an agent, which the
/// job then joins.
///
/// # Errors
/// There is an agent of this name, but it cannot be reached.
pub(crate) fn command(executable: &Path, domain: &str) -> Result<Option<Vec<OsString>>> {
    let timeout = std::time::Duration::from_secs(2);
    match agent::facts(domain, timeout) {
        Ok(_) => return Ok(None),
        Err(error) if agent::domains().iter().any(|name| name == domain) => {
            return Err(error.into());
        }
        Err(_) => {}
    }
    Ok(Some(vec![
        executable.into(),
        "agent".into(),
        "--domain".into(),
        domain.into(),
    ]))
}

/// Runs the agent of a domain until it is told to stop. Prints `ready` once it can be reached.
pub(crate) fn run(args: &AgentArgs) -> Result<ExitCode> {
    if args.units.is_some()
        && let Ok(inherited) = std::env::var("PMI_FD")
        && let Ok(descriptor) = inherited.parse::<i32>()
    {
        // It belongs to the first unit, whose end its process manager notices by that.
        let _ = nix::unistd::close(descriptor);
    }
    let settings = match std::env::var_os(samite::variable::CONFIG) {
        Some(text) => Config::from_toml(&text.to_string_lossy())?,
        None => {
            Layers::default()
                .user_file()?
                .own_environment()?
                .resolve()?
                .config
        }
    };
    settings.dsm.log_settings().make_default();
    let budget = settings
        .memory
        .budget
        .set()
        .map_or_else(budget_by_rule, |bytes| bytes.get());
    let config = AgentConfig {
        domain: args.domain.clone(),
        budget,
        network: args.network.network()?,
    };
    flush_at_the_end()?;
    let ended = run_with(&config, samite::services(), args.units.zip(args.starter));
    samite::dsm::log::flush_all();
    ended.with_context(|| format!("the agent of domain {}", args.domain))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the event log, and then ends as usual, when this process is told to end. A thread waits
/// for that: descriptors are counted here. It must be called before other threads are started.
fn flush_at_the_end() -> Result<()> {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    signals.thread_block()?;
    let thread = Builder::new().name("end".to_owned());
    thread.spawn(move || {
        if let Ok(signal) = signals.wait() {
            samite::dsm::log::flush_all();
            let _ = low_level::emulate_default_handler(signal as i32);
        }
    })?;
    Ok(())
}

/// Runs the agent and, in a separate thread, its services. If that thread ends, so does the
/// process, and all members of the domain learn of it.
fn run_with(
    config: &AgentConfig,
    services: Vec<Starter>,
    units: Option<(u32, i32)>,
) -> Result<(), samite::Error> {
    let hosting = config.clone();
    agent::run(config, || {
        std::panic::set_hook(Box::new(say_panic));
        let domain = hosting.domain.clone();
        let thread = Builder::new().name("services".to_owned());
        let hosting = thread.spawn(move || {
            let is_ready = || {
                say_ready();
                if let Some(units) = units {
                    let is_first = (hosting.network.as_ref()).is_some_and(|of| of.join.is_none());
                    end_with(&hosting.domain, units, is_first);
                }
            };
            let why = match agent::host(&hosting, &services, is_ready) {
                Ok(()) => "they have ended".to_owned(),
                Err(error) => error.to_string(),
            };
            end(&hosting.domain, &why)
        });
        if let Err(error) = hosting {
            end(&domain, &format!("no thread for them: {error}"));
        }
    })
}

/// Says that the agent and its services can be reached. The launcher may be gone.
fn say_ready() {
    let mut out = std::io::stdout();
    let _ = out.write_all(b"ready\n").and_then(|()| out.flush());
}

/// Returns when no other node belongs to the domain, of which this is the first agent: the others
/// end when it does.
fn wait_for_others(domain: &str) {
    // An agent that gives back the memory of its units answers late.
    let mut errors = 0;
    while errors < 3 {
        match agent::facts(domain, LAST_WORDS) {
            Ok(facts) if facts.nodes.len() < 2 => return,
            Ok(_) => errors = 0,
            Err(_) => errors += 1,
        }
        std::thread::sleep(LOOK_AT_OTHERS);
    }
}

/// Has this process end when so many units have ended, one of which has started it. They may come
/// from now on. The first agent of several ends last.
fn end_with(domain: &str, (units, starter): (u32, i32), is_first: bool) {
    let attendance = Attendance::open(domain, units);
    let name = domain.to_owned();
    let wait = move || {
        let ended =
            attendance.and_then(|attendance| attendance.wait(Pid::from_raw(starter), PATIENCE));
        if let Err(error) = ended {
            say(format!("the agent of domain {name} ends: {error}"));
        }
        if is_first {
            wait_for_others(&name);
        }
        // As when it is told to end by others.
        let _ = kill_process(getpid(), rustix::process::Signal::TERM);
    };
    if let Err(error) = Builder::new().name("attendance".to_owned()).spawn(wait) {
        end(domain, &format!("no thread for its units: {error}"));
    }
}

/// Ends the process: the data of its services are gone, and no unit should wait for them until its
/// deadline.
fn end(domain: &str, why: &str) -> ! {
    say(format!(
        "the agent of domain {domain} ends because its services have stopped: {why}"
    ));
    std::process::exit(1);
}

/// Prints a panic of any thread. The default hook would block on a reader that does not read.
fn say_panic(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("<unnamed>");
    say(format!(
        "thread '{thread}' {panic}\n{}",
        Backtrace::capture()
    ));
}

/// Prints a last message. The reader may be gone or stopped, and starting a thread may fail: the
/// agent ends in any case.
fn say(words: String) {
    let (said, is_said) = std::sync::mpsc::channel();
    let saying = Builder::new().spawn(move || {
        let _ = writeln!(std::io::stderr(), "{words}");
        let _ = said.send(());
    });
    if saying.is_ok() {
        let _ = is_said.recv_timeout(LAST_WORDS);
    }
}

/// Returns why this many units cannot run in one domain, if so. `budget`: the configured budget.
pub(crate) fn too_small(units: u64, budget: Option<u64>) -> Option<String> {
    // The units, the agent, and its peer that hosts services.
    let processes = units + 2;
    if processes > PEERS_MAX as u64 {
        return Some(format!(
            "{units} units are too many: a domain has room for {} beside its agent",
            PEERS_MAX - 2
        ));
    }
    let least = (units + 1) * MESSAGES;
    let budget = budget.filter(|budget| *budget < least)?;
    Some(format!(
        "memory.budget is {}, but {units} units and the agent need {} for their messages alone",
        size(budget),
        size(least)
    ))
}

/// Returns half of the memory that could be allocated now. The programs need the other half.
pub(crate) fn budget_by_rule() -> u64 {
    (Host::read().memory_available / 2).max(64 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use samite::agent::{Lost, Owned, Service};
    use samite::{Fabric, FabricConfig, Identity, Match};
    use samite_testkit::full_pipe;
    use std::process::{Command, Stdio};

    const DOMAIN: &str = "SAMITE_TEST_PANICKING_AGENT";
    const TIMEOUT: Duration = Duration::from_secs(60);

    /// Panics when its input ends.
    struct Panicking;

    impl Service for Panicking {
        fn name(&self) -> &'static str {
            "panicking"
        }
        fn owns(&self) -> Vec<Owned> {
            Vec::new()
        }
        fn poll(&mut self) -> bool {
            let _ = std::io::stdin().read_line(&mut String::new());
            panic!("as in a test");
        }
        fn next(&mut self) -> Duration {
            Duration::ZERO
        }
        fn has_news(&self) -> bool {
            false
        }
        fn peers_lost(&mut self, _: Lost<'_>) {}
        fn end(&mut self) {}
    }

    const PANICKING: Starter = Starter {
        name: "panicking",
        start: |_, _| vec![Box::new(Panicking)],
    };

    /// If a service of the agent panics, the agent says so and ends, and a waiting member gets that
    /// error before its deadline.
    #[test]
    fn an_agent_whose_service_panics_ends() {
        if let Ok(domain) = std::env::var(DOMAIN) {
            let budget = 16 << 20;
            let config = AgentConfig {
                domain,
                budget,
                network: None,
            };
            let ended = run_with(&config, vec![PANICKING], None);
            panic!("the agent ended: {ended:?}");
        }
        let domain = format!("panicking-{}", std::process::id());
        let words = panicking(&domain, Stdio::piped());
        let sentence = format!(
            "the agent of domain {domain} ends because its services have stopped: \
             the agent's service \"panicking\" panicked"
        );
        assert!(words.contains(&sentence), "{words}");
        assert!(words.contains("panicked at cli/src/agent.rs"), "{words}");
        assert!(words.contains("as in a test"), "{words}");
        // The reader of its output has stopped reading.
        let (_reader, full) = full_pipe();
        panicking(&format!("{domain}-full"), Stdio::from(full));
    }

    /// Returns the output of an agent whose service panics when it has a member.
    fn panicking(domain: &str, stderr: Stdio) -> String {
        let name = "agent::tests::an_agent_whose_service_panics_ends";
        let mut agent = Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(DOMAIN, domain)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .expect("a test binary can be started again");
        agent::join_retrying(domain, TIMEOUT).expect("the agent answers");
        let config = FabricConfig {
            deadline: TIMEOUT,
            ..FabricConfig::default()
        };
        let member = Fabric::join(domain, Identity::by_hand("member"), config);
        let member = member.expect("the agent takes members");
        // The service panics when its input ends.
        let agent_ends = agent.stdin.take();
        drop(agent_ends);
        let lost = member.recv(Match::any(1), &mut []);
        if !matches!(lost, Err(samite::Error::AgentLost(_))) {
            // Otherwise it would outlive the test.
            let _ = agent.kill();
            panic!("{lost:?}");
        }
        let ended = agent.wait_with_output().expect("it has been started");
        let words = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(1), "{words}");
        words
    }
}
