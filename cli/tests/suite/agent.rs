//! The agent is the one process of a node that nothing replaces. When it is killed with streams
//! open, whoever waits gets an error at once, not at its deadline, and nothing is left.

use rustix::process::{Pid, Signal, kill_process};
use samite_testkit::{full_pipe, require};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Whatever has not ended after so long never does.
const WATCHDOG: Duration = Duration::from_secs(120);

/// A process that goes with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(domain: &str, arguments: &[&str]) -> Process {
    let child = Command::new(env!("CARGO_BIN_EXE_samite"))
        .args(arguments)
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env_remove("SAMITE_LOG")
        .env("SAMITE_DOMAIN", domain)
        // A test that waits for it has failed.
        .env("SAMITE_FABRIC_DEADLINE", "1h")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    Process(child.expect("samite can be started"))
}

/// Reads lines until one has the word.
fn wait_for(lines: &mut impl BufRead, word: &str) {
    let mut line = String::new();
    while !line.contains(word) {
        line.clear();
        let read = lines.read_line(&mut line).expect("it prints text");
        assert!(read > 0, "it ended before it said `{word}`");
    }
}

#[test]
fn everybody_hears_of_the_death_of_the_agent() {
    let domain = format!("agent-dies-{}", std::process::id());
    let mut agent = start(&domain, &["agent", "--domain", &domain]);
    let mut agent_said = BufReader::new(agent.0.stdout.take().expect("it was piped"));
    wait_for(&mut agent_said, "ready");
    // A writer that waits at the limit of two steps, since nobody reads.
    let mut writer = start(&domain, &["unit", "synthetic-writer", "--shape", "100,100"]);
    let mut said = BufReader::new(writer.0.stdout.take().expect("it was piped"));
    wait_for(&mut said, "\"step\":1,");
    let pid = Pid::from_child(&agent.0);
    kill_process(pid, Signal::KILL).expect("it runs");
    let mut words = String::new();
    let errors = writer.0.stderr.as_mut().expect("it was piped");
    errors.read_to_string(&mut words).expect("it prints text");
    let status = writer.0.wait().expect("it has been started");
    assert_eq!(status.code(), Some(1), "{words}");
    let said = ["lost", "gone", "the agent died"];
    assert!(said.iter().any(|said| words.contains(said)), "{words}");
}

/// Where the last words of an agent go.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Errors {
    Read,
    /// Nobody has the other end.
    Closed,
    /// A pipe that is full, whose reader stands still.
    Full,
}

/// An agent that has no descriptors for the service of its streams says so, also where nobody reads
/// it, and ends: no unit waits for streams that nobody serves.
#[test]
fn an_agent_without_services_ends() {
    let mut serving = 0;
    let kinds = [Errors::Read, Errors::Closed, Errors::Full];
    for (descriptors, errors) in (8..=10).flat_map(|most| kinds.map(|errors| (most, errors))) {
        let domain = format!("agent-{descriptors}-{errors:?}-{}", std::process::id());
        let samite = env!("CARGO_BIN_EXE_samite");
        let script = format!("ulimit -n {descriptors}; exec {samite} agent --domain {domain}");
        let full = (errors == Errors::Full).then(full_pipe);
        let (_reader, stderr) = match full {
            Some((reader, writer)) => (Some(reader), Stdio::from(writer)),
            None => (None, Stdio::piped()),
        };
        let agent = Command::new("sh")
            .args(["-c", &script])
            .env("XDG_CONFIG_HOME", "/nonexistent")
            .env_remove("SAMITE_LOG")
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .expect("sh can be started");
        let mut agent = Process(agent);
        if errors == Errors::Closed {
            drop(agent.0.stderr.take());
        }
        let began = Instant::now();
        let status = loop {
            if let Some(status) = agent.0.try_wait().expect("it has been started") {
                break status;
            }
            assert!(
                began.elapsed() < WATCHDOG,
                "it serves with {descriptors} descriptors, or its last words keep it: {errors:?}"
            );
            std::thread::yield_now();
        };
        let (mut printed, mut words) = (String::new(), String::new());
        let stdout = agent.0.stdout.as_mut().expect("it was piped");
        stdout.read_to_string(&mut printed).expect("it prints text");
        if let Some(stderr) = &mut agent.0.stderr {
            stderr.read_to_string(&mut words).expect("it prints text");
        }
        // No launcher starts units before its services have started.
        assert_eq!((status.code(), &printed[..]), (Some(1), ""), "{words}");
        let sentence =
            format!("the agent of domain {domain} ends because its services have stopped");
        serving += u32::from(words.contains(&sentence));
    }
    assert!(
        serving > 0,
        "no agent has got so far as to serve its domain"
    );
}

/// A process and an agent that have no process id for each other: each way it is said, and nobody
/// joins.
#[test]
fn processes_of_another_pid_namespace_are_refused() {
    const NAME: &str = "agent::processes_of_another_pid_namespace_are_refused";
    let inside = |program: &str, arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--kill-child", program])
            .args(arguments)
            .env("XDG_CONFIG_HOME", "/nonexistent")
            .env_remove("SAMITE_LOG")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    let allowed = inside("true", &[]).status();
    let otherwise =
        "it needs `unshare`, of util-linux, and the right to make a pid namespace (root)";
    if !require(
        NAME,
        allowed.is_ok_and(|status| status.success()),
        otherwise,
    ) {
        return;
    }
    let samite = env!("CARGO_BIN_EXE_samite");
    let sentence = "different pid namespaces";
    // The agent outside: for the process inside it has no number.
    let domain = format!("namespaces-out-{}", std::process::id());
    let mut agent = start(&domain, &["agent", "--domain", &domain]);
    let mut said = BufReader::new(agent.0.stdout.take().expect("it was piped"));
    wait_for(&mut said, "ready");
    let run = ["run", "--domain", &domain, "true"];
    let unit = ["unit", "synthetic-writer"];
    for arguments in [&run[..], &unit[..]] {
        let output = inside(samite, arguments)
            .env("SAMITE_DOMAIN", &domain)
            .output();
        let output = output.expect("unshare can be started");
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(words.contains(sentence), "{words}");
    }
    // The agent inside: for the agent the process outside has no number.
    let domain = format!("namespaces-in-{}", std::process::id());
    let agent = inside(samite, &["agent", "--domain", &domain]).spawn();
    let mut agent = Process(agent.expect("unshare can be started"));
    let mut said = BufReader::new(agent.0.stdout.take().expect("it was piped"));
    wait_for(&mut said, "ready");
    let mut unit = start(&domain, &unit);
    let mut words = String::new();
    let errors = unit.0.stderr.as_mut().expect("it was piped");
    errors.read_to_string(&mut words).expect("it prints text");
    assert!(words.contains(sentence), "{words}");
    assert!(!unit.0.wait().expect("it has been started").success());
}
