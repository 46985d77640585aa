//! The processes of a running test: their output, their ends, and which are killed when.

use crate::leftovers;
use crate::units::{HEAD, HOST, NAME, ROLE, Units};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

/// A process of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Who {
    /// The agent of the domain; of the first node, if it has [several](Units::hosts).
    Agent,
    /// The agent of a further node.
    AgentOf(u32),
    /// A unit, by its number in the job.
    Unit(u32),
    /// The process of a unit that was [started again](Cluster::start_again), before that.
    Former(u32),
}

impl Who {
    fn is_agent(self) -> bool {
        matches!(self, Who::Agent | Who::AgentOf(_))
    }
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Who::Agent => f.write_str("agent"),
            Who::AgentOf(host) => write!(f, "agent of node {host}"),
            Who::Unit(rank) => write!(f, "unit {rank}"),
            Who::Former(rank) => write!(f, "unit {rank}, before it was started again,"),
        }
    }
}

#[derive(Debug)]
struct Process {
    who: Who,
    child: Child,
    lines: Vec<String>,
    /// Points that were announced but not yet waited for.
    points: Vec<String>,
    closed: bool,
    ended: Option<ExitStatus>,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Cluster {
    name: String,
    domain: String,
    processes: Vec<Process>,
    /// How they are started.
    units: Units,
    killed: HashSet<Who>,
    lines: Receiver<(usize, Option<String>)>,
    send: Sender<(usize, Option<String>)>,
    bound: Instant,
}

/// The number of SIGKILL.
const KILLED: i32 = Signal::KILL.as_raw();

static RUNS: AtomicU32 = AtomicU32::new(0);

/// Between the name of a domain on the first node, and the number of another one.
const ON_HOST: &str = "-on-";

/// Returns the name of a test's domain on the first node, from that on any: the same for all units.
pub fn of_first_node(domain: &str) -> &str {
    domain
        .split_once(ON_HOST)
        .map_or(domain, |(first, _)| first)
}

impl Cluster {
    pub(crate) fn start(name: &str, units: &Units) -> Cluster {
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let domain = format!("test-{}-{run}", std::process::id());
        let (send, lines) = channel();
        let bound = Instant::now() + units.timeout;
        let (name, processes, killed) = (name.to_owned(), Vec::new(), HashSet::new());
        let mut cluster = Cluster {
            name,
            domain,
            processes,
            units: units.clone(),
            killed,
            lines,
            send,
            bound,
        };
        cluster.spawn(Who::Agent);
        cluster.wait_point(Who::Agent, "ready");
        for host in 1..units.hosts {
            cluster.spawn(Who::AgentOf(host));
        }
        for host in 1..units.hosts {
            cluster.wait_point(Who::AgentOf(host), "ready");
        }
        for rank in 0..units.count {
            cluster.spawn(Who::Unit(rank));
        }
        cluster
    }

    /// Starts the test binary again, with the environment that `samite run` gives to a unit.
    fn spawn(&mut self, who: Who) {
        let units = &self.units;
        let binary = std::env::current_exe().expect("a test binary has a path");
        let mut command = Command::new(binary);
        command
            .args([
                "--exact",
                &self.name,
                "--nocapture",
                "--include-ignored",
                "--test-threads=1",
            ])
            .env(NAME, &self.name)
            .env("SAMITE_DOMAIN", self.domain_of(who))
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        if let Some(seed) = units.seed {
            command.env(crate::fuzz::SEED, seed.to_string());
        }
        match who {
            Who::Agent | Who::AgentOf(_) => {
                if units.hosts > 1 {
                    command.env(HOST, self.domain_of(who));
                }
                if who != Who::Agent {
                    command.env(HEAD, self.address_of_head());
                }
                command.env(ROLE, "agent")
            }
            Who::Unit(unit) | Who::Former(unit) => {
                let (program, rank, size) = units.program_of(unit);
                command
                    .env(ROLE, "unit")
                    .env("SAMITE_JOB", &self.domain)
                    .env("SAMITE_PROGRAM", program)
                    .env("SAMITE_RANK", rank.to_string())
                    .env("SAMITE_SIZE", size.to_string())
                    .env("SAMITE_UNIT", unit.to_string())
                    .env("SAMITE_UNITS", units.count.to_string())
            }
        };
        let mut child = command.spawn().expect("a test binary can be started again");
        let output = child.stderr.take().expect("it was piped");
        let (index, send) = (self.processes.len(), self.send.clone());
        std::thread::spawn(move || {
            // Read to the end of the output, even if a line is not UTF-8: the end means that the
            // process is ending, and the wait for that has no watchdog.
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                let _ = send.send((index, Some(line)));
            }
            let _ = send.send((index, None));
        });
        let (lines, points) = (Vec::new(), Vec::new());
        self.processes.push(Process {
            who,
            child,
            lines,
            points,
            closed: false,
            ended: None,
        });
    }

    /// Returns the domain of the test; of the first node, if it has [several](Units::hosts).
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Returns the name of the domain on the node of a process: [`of_first_node`] is its reverse.
    fn domain_of(&self, who: Who) -> String {
        let host = match who {
            Who::Agent => 0,
            Who::AgentOf(host) => host,
            Who::Unit(unit) | Who::Former(unit) => unit % self.units.hosts,
        };
        match host {
            0 => self.domain.clone(),
            host => format!("{}{ON_HOST}{host}", self.domain),
        }
    }

    /// Returns the address at which the agents of further nodes join.
    fn address_of_head(&self) -> String {
        let facts = samite_fabric::agent::facts(&self.domain, std::time::Duration::from_secs(30));
        let nodes = facts.map(|facts| facts.nodes).unwrap_or_default();
        let head = nodes.first().expect("the first agent listens");
        head.address.clone()
    }

    fn index(&self, who: Who) -> usize {
        let found = self.processes.iter().position(|process| process.who == who);
        found.unwrap_or_else(|| panic!("there is no {who} in this test"))
    }

    /// Returns the process id.
    pub fn pid(&self, who: Who) -> i32 {
        self.processes[self.index(who)].child.id() as i32
    }

    /// Returns the lines that a process has printed so far.
    pub fn lines(&self, who: Who) -> &[String] {
        &self.processes[self.index(who)].lines
    }

    /// Waits until a process announces this point. Each announcement is found once.
    pub fn wait_point(&mut self, who: Who, name: &str) {
        let index = self.index(who);
        loop {
            if let Some(at) = self.processes[index]
                .points
                .iter()
                .position(|point| point == name)
            {
                self.processes[index].points.remove(at);
                return;
            }
            if self.processes[index].closed {
                self.give_up(&format!("{who} ended before it was at \"{name}\""));
            }
            self.listen(&format!("{who} to be at \"{name}\""));
        }
    }

    /// Waits until all units have announced this point.
    pub fn wait_all(&mut self, name: &str) {
        let asked = |who: &Who| matches!(who, Who::Unit(_)) && !self.killed.contains(who);
        let all: Vec<Who> = self
            .processes
            .iter()
            .map(|process| process.who)
            .filter(asked)
            .collect();
        for who in all {
            self.wait_point(who, name);
        }
    }

    /// Lets a unit continue that is in [`crate::pause`].
    pub fn release(&mut self, who: Who) {
        self.release_as(who, "");
    }

    /// Lets a unit continue, like [`Cluster::release`]; [`crate::pause`] returns `part`, which says
    /// what the unit does from here on.
    pub fn release_as(&mut self, who: Who, part: &str) {
        let index = self.index(who);
        if let Some(stdin) = self.processes[index].child.stdin.as_mut() {
            let line = format!("{part}\n");
            let _ = stdin
                .write_all(line.as_bytes())
                .and_then(|()| stdin.flush());
        }
    }

    fn signal(&mut self, who: Who, signal: Signal) {
        let pid = Pid::from_raw(self.pid(who)).expect("a process has an id");
        kill_process(pid, signal)
            .unwrap_or_else(|error| panic!("{who} could not be signalled: {error}"));
    }

    /// Sends `kill -9`.
    pub fn kill(&mut self, who: Who) {
        self.killed.insert(who);
        self.signal(who, Signal::KILL);
    }

    /// Starts a unit again that was killed: another process with the same place in the job. From
    /// now on, `who` is that one; how it ends is checked.
    pub fn start_again(&mut self, who: Who) {
        self.wait_gone(who);
        let before = self.index(who);
        let ended = self.processes[before].ended;
        let is_killed = ended.is_some_and(|status| status.signal() == Some(KILLED));
        if !self.killed.remove(&who) || !is_killed {
            self.give_up(&format!("{who} ended before it was killed"));
        }
        self.processes[before].who = match who {
            Who::Unit(rank) => Who::Former(rank),
            other => panic!("{other} is started once"),
        };
        self.spawn(who);
    }

    /// Excludes a unit from the check of how it ended: it kills itself.
    pub fn let_die(&mut self, who: Who) {
        self.killed.insert(who);
    }

    /// Sends `kill -STOP`; returns when the process is stopped.
    pub fn stop(&mut self, who: Who) {
        self.signal(who, Signal::STOP);
        while !all_are(self.pid(who), "stopped") {
            if Instant::now() > self.bound {
                self.give_up(&format!("{who} does not stop"));
            }
            std::thread::yield_now();
        }
    }

    /// Waits until a process sleeps in the kernel, as every long wait does.
    pub fn wait_asleep(&mut self, who: Who) {
        while !all_are(self.pid(who), "sleeping") {
            if Instant::now() > self.bound {
                self.give_up(&format!("{who} does not sleep"));
            }
            std::thread::yield_now();
        }
    }

    /// Waits until a process has ended.
    pub fn wait_gone(&mut self, who: Who) {
        let index = self.index(who);
        while !self.processes[index].closed {
            self.listen(&format!("{who} to end"));
        }
    }

    /// Waits until the agent counts this many members and has reclaimed what the others had.
    pub fn wait_members(&mut self, count: usize) {
        let members = || {
            let facts =
                samite_fabric::agent::facts(&self.domain, std::time::Duration::from_secs(5));
            facts.map(|facts| (facts.peers.len(), facts.reclaiming))
        };
        while members().ok() != Some((count, 0)) {
            if Instant::now() > self.bound {
                self.give_up(&format!("the agent does not come to count {count} members"));
            }
            std::thread::yield_now();
        }
    }

    /// Sends `kill -CONT`.
    pub fn go_on(&mut self, who: Who) {
        self.signal(who, Signal::CONT);
    }

    /// Receives one line from any process. This is where the watchdog runs.
    fn listen(&mut self, wanted: &str) {
        let left = self.bound.saturating_duration_since(Instant::now());
        let heard = self.lines.recv_timeout(left);
        let Ok((index, line)) = heard else {
            self.give_up(&format!(
                "nothing happened for too long; the test waits for {wanted}"
            ));
        };
        let process = &mut self.processes[index];
        let Some(line) = line else {
            process.closed = true;
            process.ended = process.child.wait().ok();
            return;
        };
        if let Some(point) = line.strip_prefix("@point ") {
            process.points.push(point.to_owned());
        } else if let Some(text) = line.strip_prefix("@say ") {
            println!("{}: {}: {text}", self.name, process.who);
        }
        if !line.is_empty() {
            process.lines.push(line);
        }
    }

    /// Waits until every unit has ended. Units that were not killed must have succeeded. The agent
    /// is checked at the end of the test.
    pub fn all_end(&mut self) {
        while self
            .processes
            .iter()
            .any(|p| !p.who.is_agent() && !p.closed)
        {
            self.listen("all units to end");
        }
        let failed = self
            .processes
            .iter()
            .find(|p| !p.who.is_agent() && !self.well(p));
        if let Some(who) = failed.map(|process| process.who) {
            self.give_up(&format!("{who} failed"));
        }
    }

    fn well(&self, process: &Process) -> bool {
        // An exit status of 0 is not enough: with a misspelt name, no test runs at all, which is a
        // success.
        let done = process.lines.iter().any(|line| line.starts_with("@done"));
        let is_former = matches!(process.who, Who::Former(_));
        self.killed.contains(&process.who)
            || is_former
            || (done && process.ended.is_some_and(|status| status.success()))
    }

    /// Ends the agent and checks that nothing is left behind.
    pub(crate) fn close(&mut self) {
        let agents: Vec<Who> = self.processes.iter().map(|process| process.who).collect();
        // The first agent last: it decides about the others.
        for who in agents.into_iter().rev().filter(|who| who.is_agent()) {
            let agent = self.index(who);
            if self.processes[agent].closed && !self.killed.contains(&who) {
                self.give_up(&format!("the {who} ended before the test"));
            }
            if !self.processes[agent].closed {
                let _ = self.processes[agent].child.kill();
                while !self.processes[agent].closed {
                    self.listen("the agent to end");
                }
            }
            let left = leftovers::of(&self.domain_of(who));
            assert!(left.is_empty(), "{}: left behind: {left:?}", self.name);
        }
    }

    /// Prints the state of every process, ends them all and fails the test.
    fn give_up(&mut self, why: &str) -> ! {
        while let Ok((index, line)) = self.lines.try_recv() {
            self.processes[index]
                .lines
                .extend(line.filter(|line| !line.is_empty()));
        }
        let mut report = format!("{}: {why}\n", self.name);
        for process in &mut self.processes {
            report += &describe(process);
        }
        for process in &mut self.processes {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
        panic!("{report}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in &mut self.processes {
            if process.ended.is_none() {
                let _ = process.child.kill();
                let _ = process.child.wait();
            }
        }
    }
}

/// Returns, for each thread of a process, its state and where in the kernel it waits.
fn threads(pid: i32) -> Vec<(String, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    tasks
        .map(|task| {
            let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
            let status = read("status");
            let line = status.lines().find_map(|line| line.strip_prefix("State:"));
            (line.unwrap_or("gone").trim().to_owned(), read("wchan"))
        })
        .collect()
}

fn all_are(pid: i32, state: &str) -> bool {
    let threads = threads(pid);
    !threads.is_empty() && threads.iter().all(|(is, _)| is.contains(state))
}

fn describe(process: &mut Process) -> String {
    const LAST: usize = 48;
    let pid = process.child.id() as i32;
    let ended = process
        .ended
        .or_else(|| process.child.try_wait().ok().flatten());
    let now = match ended {
        Some(status) => status.to_string(),
        None => {
            let threads: Vec<String> = threads(pid)
                .into_iter()
                .map(|(state, place)| format!("{state} in {place}"))
                .collect();
            format!("alive, threads: {}", threads.join(", "))
        }
    };
    let mut text = format!("  {} (pid {pid}): {now}\n", process.who);
    for line in process
        .lines
        .iter()
        .skip(process.lines.len().saturating_sub(LAST))
    {
        text += &format!("    | {line}\n");
    }
    text
}
