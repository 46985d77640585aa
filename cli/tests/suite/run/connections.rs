//! The connections between a launcher and its hosts, at their beginning and their end. Some of the
//! hosts are played by scripts, which keep what they are told.

use super::ends::{state, wait_for_state};
use super::hosts::{children, has_ucx, on_two_hosts};
use super::{isolated, samite, stderr, wait_until_gone, workflow};
use crate::domain::inherited_descriptors;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MODULE: &str = "suite::run::connections";

/// What a launcher tells its hosts, as bytes: the first of an order is its kind.
const BEGIN: u8 = 0;
const BEAT: &[u8] = &[5];
const HOLD: &[u8] = &[6, 1];
const GO_ON: &[u8] = &[6, 0];

/// Writes a script to be given to `--host-start`; its first argument is the name of the host.
fn script(folder: &Path, text: &str) -> String {
    let path = folder.join("start");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a file");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("a mode");
    format!("{} {{host}}", path.display())
}

/// Returns the messages that a file has, each with 4 bytes of length before it.
fn messages(path: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap_or_default();
    let (mut all, mut rest) = (Vec::new(), &*bytes);
    while let Some((length, next)) = rest.split_first_chunk::<4>() {
        let Some((message, next)) = next.split_at_checked(u32::from_le_bytes(*length) as usize)
        else {
            break;
        };
        all.push(message.to_vec());
        rest = next;
    }
    all
}

/// Waits for something that happens in another process.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "{what}?");
        std::thread::yield_now();
    }
}

fn piped(command: &mut Command) -> Child {
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("samite can be started")
}

/// Hosts that start, or have yet to begin, hear that the launcher is there, and when it is stopped:
/// they would give it up otherwise.
#[test]
fn hosts_that_start_hear_of_ctrl_z() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = |name: &str| folder.path().join(name);
    // Not by `exec`: it would close the pipe of the reports.
    let text = format!("cat > {}/$1; exit", folder.path().display());
    let start = script(folder.path(), &text);
    let job = piped(&mut on_two_hosts(&start, &["-n", "2", "true"]));
    let launcher = Pid::from_child(&job);
    let files = [file("127.0.0.1"), file("b")];
    let has = |path: &PathBuf, message: &[u8]| messages(path).iter().any(|one| one == message);
    wait_until("the first host begins", || {
        let first = messages(&files[0]);
        first.first().is_some_and(|order| order[0] == BEGIN)
    });
    kill_process(launcher, Signal::TSTP).expect("it runs");
    wait_for_state(launcher, |state| state == "T");
    for file in &files {
        wait_until("the hosts are told", || has(file, HOLD));
    }
    let is_last = |path: &PathBuf| messages(path).last().is_some_and(|last| last == HOLD);
    assert!(files.iter().all(is_last));
    kill_process(launcher, Signal::CONT).expect("it is stopped");
    for file in &files {
        wait_until("the hosts are told", || has(file, GO_ON));
    }
    let beats = |path: &PathBuf| messages(path).iter().filter(|one| *one == BEAT).count();
    // The first beat comes at once, and the second some seconds later.
    for file in &files {
        wait_until("the launcher says that it is there", || beats(file) >= 2);
    }
    kill_process(launcher, Signal::INT).expect("it runs");
    let output = job.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
}

/// A job whose second host has an agent that starts as long as the test lasts: the first host,
/// which is played by a script, names a head that says nothing.
struct Starting {
    job: Child,
    folder: tempfile::TempDir,
    host: Pid,
    agent: Pid,
    _head: (TcpListener, Option<(TcpStream, SocketAddr)>),
}

impl Starting {
    fn begin() -> Starting {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let head = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = head.local_addr().expect("an address").to_string();
        // Its report, which says that the agent of the first host is ready.
        let report = [&[0, address.len() as u8], address.as_bytes()].concat();
        let report = [&(report.len() as u32).to_le_bytes(), &*report].concat();
        let ready = folder.path().join("ready");
        std::fs::write(&ready, report).expect("a file");
        let temporary = folder.path().join("temporary");
        std::fs::create_dir(&temporary).expect("a folder");
        let text = format!(
            "[ $1 = b ] || {{ cat {}; cat > /dev/null; exit; }}; shift; exec \"$@\"",
            ready.display()
        );
        let start = script(folder.path(), &text);
        let mut command = on_two_hosts(&start, &["-n", "2", "true"]);
        let mut job = piped(command.env("TMPDIR", &temporary));
        // The agent has read its secret, and waits for the head.
        head.set_nonblocking(true).expect("it is a socket");
        let mut connected = None;
        wait_until("the agent connects", || {
            let ended = job.try_wait().expect("a child");
            assert!(ended.is_none(), "{ended:?}");
            connected = head.accept().ok();
            connected.is_some()
        });
        let hosts = children(job.id(), "host");
        let number = |pid: Pid| pid.as_raw_nonzero().get() as u32;
        let agents = |host: &Pid| children(number(*host), "agent");
        let with_agent = hosts
            .iter()
            .find_map(|host| Some((*host, *agents(host).first()?)));
        let (host, agent) = with_agent.expect("a host has an agent");
        Starting {
            job,
            folder,
            host,
            agent,
            _head: (head, connected),
        }
    }
}

/// The secret of a job is in no folder, so a host that is killed does not leave it behind.
#[test]
fn a_host_that_is_killed_leaves_no_secret() {
    let test = "a_host_that_is_killed_leaves_no_secret";
    if !has_ucx(MODULE, test) {
        return;
    }
    let starting = Starting::begin();
    kill_process(starting.host, Signal::KILL).expect("it runs");
    wait_until_gone(&[starting.host, starting.agent]);
    let output = starting.job.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let left = std::fs::read_dir(starting.folder.path().join("temporary"));
    let left = left.expect("a folder").flatten();
    let left: Vec<PathBuf> = left.map(|entry| entry.path()).collect();
    assert_eq!(left, [] as [PathBuf; 0]);
}

/// A host notices that its launcher is gone before its agent is ready.
#[test]
fn a_host_does_not_start_an_agent_for_nobody() {
    let test = "a_host_does_not_start_an_agent_for_nobody";
    if !has_ucx(MODULE, test) {
        return;
    }
    let mut starting = Starting::begin();
    // It does not give up by itself, so only its host can end it: in half a minute, or at once.
    kill_process(starting.agent, Signal::STOP).expect("it runs");
    starting.job.kill().expect("it runs");
    let killed = Instant::now();
    starting.job.wait().expect("it was killed");
    wait_until_gone(&[starting.host, starting.agent]);
    let took = killed.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}");
}

/// The time for which the launcher is stopped is not part of the grace of its hosts.
#[test]
fn a_host_that_ends_during_ctrl_z_has_all_its_grace() {
    const GRACE: Duration = Duration::from_secs(3);
    let test = "a_host_that_ends_during_ctrl_z_has_all_its_grace";
    if !has_ucx(MODULE, test) {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = |name: &str| folder.path().join(name);
    let text = r#"[ $1 = b ] || { shift; exec "$@"; }
        shift; "$@"; : > FOLDER/ended
        until [ -e FOLDER/end ]; do sleep 0.01; done; : > FOLDER/whole"#;
    let text = text.replace("FOLDER", &folder.path().display().to_string());
    let start = script(folder.path(), &text);
    let grace = format!("launch.grace={} s", GRACE.as_secs());
    let words = ["--config", &grace, "-n", "2", "true"];
    let job = piped(&mut on_two_hosts(&start, &words));
    let launcher = Pid::from_child(&job);
    // All but the start command of the second host has ended.
    wait_until("the host ends", || file("ended").exists());
    kill_process(launcher, Signal::TSTP).expect("it runs");
    wait_for_state(launcher, |state| state == "T");
    // The grace passes, on the clock.
    std::thread::sleep(GRACE);
    kill_process(launcher, Signal::CONT).expect("it is stopped");
    let waits = || {
        let place = format!("/proc/{}/wchan", launcher.as_raw_nonzero());
        let place = std::fs::read_to_string(place).unwrap_or_default();
        state(launcher) == "S" && place.contains("poll")
    };
    let is_over = || ["Z", "gone"].contains(&state(launcher).as_str());
    wait_until("the launcher goes on", || waits() || is_over());
    std::fs::write(file("end"), "").expect("a file");
    let output = job.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(file("whole").exists(), "it was killed");
}

/// A path that cannot be sent to another machine is refused before anything happens.
#[test]
fn paths_that_cannot_be_sent_are_refused() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let odd = folder.path().join(OsStr::from_bytes(b"odd-\xff"));
    std::fs::create_dir(&odd).expect("a folder");
    let output_file = odd.join("out");
    std::fs::write(&output_file, "of the last run").expect("a file");
    let program = "[[program]]\nname = 'a'\ncommand = 'true'\nstdout = 'out'\n";
    workflow(&odd, program);
    let started = folder.path().join("started");
    let start = script(folder.path(), &format!(": > {}", started.display()));
    let output = samite()
        .args(["run", "--hosts", "a", "--host-start", &start])
        .arg(odd.join("flow.toml"))
        .output()
        .expect("samite can be started");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("is not UTF-8 text"), "{said}");
    let kept = std::fs::read_to_string(&output_file).expect("a file");
    assert_eq!(kept, "of the last run");
    assert!(!started.exists());
}

/// Files for output are open at the launcher, which counts them with its connections, and are not
/// counted at hosts.
#[test]
fn descriptors_are_counted_where_they_are_open() {
    const UNITS: usize = 30;
    let test = "descriptors_are_counted_where_they_are_open";
    let folder = tempfile::tempdir().expect("a scratch folder");
    let text = format!(
        "[[program]]\nname = 'a'\ncommand = 'sh'\nargs = ['-c', 'echo {{rank}}']\n\
         units = {UNITS}\nstdout = 'out/{{rank}}'\n"
    );
    let file = workflow(folder.path(), &text);
    let run = |limit: usize| {
        let start = "--host-start env --host-transports tcp --host-devices lo";
        let script = format!(
            "ulimit -n {limit}; exec \"$0\" run --hosts 127.0.0.1,b=127.0.0.2 {start} \"$1\""
        );
        let mut command = isolated(Command::new("sh"));
        command.args(["-c", &script, env!("CARGO_BIN_EXE_samite"), &file]);
        command.output().expect("sh can be started")
    };
    let needed = UNITS + 2 * 3 + 24 + inherited_descriptors();
    let output = run(needed - 1);
    let said = stderr(&output);
    let expected = format!(
        "{UNITS} units need {needed} file descriptors, but the limit is {}",
        needed - 1
    );
    assert!(said.contains(&expected), "{said}");
    assert!(!folder.path().join("out").exists());
    if !has_ucx(MODULE, test) {
        return;
    }
    // A host has the pipes of half of the units, which would not fit with as many files.
    let output = run(needed + 4);
    assert!(output.status.success(), "{}", stderr(&output));
    for rank in 0..UNITS {
        let written = std::fs::read_to_string(folder.path().join(format!("out/{rank}")));
        assert_eq!(written.expect("each unit has a file"), format!("{rank}\n"));
    }
}
