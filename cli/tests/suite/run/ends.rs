//! How jobs end: by a failure, by signals, with a launcher that is killed, while nobody reads.

use super::{isolated, output, samite, stderr, wait_until_gone};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

/// A running job whose units have each printed their process id.
fn start(units: &str, script: &str) -> (Child, Vec<Pid>, impl Read) {
    let mut child = samite()
        .args([
            "run",
            "--config",
            "launch.grace=60 s",
            "-n",
            units,
            "sh",
            "-c",
            script,
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("samite can be started");
    let mut lines = BufReader::new(child.stdout.take().expect("it is a pipe"));
    let pid = |_| {
        let mut line = String::new();
        lines.read_line(&mut line).expect("units print");
        let number = line
            .rsplit(' ')
            .next()
            .expect("a word")
            .trim()
            .parse()
            .expect("a process id");
        Pid::from_raw(number).expect("not zero")
    };
    let count: usize = units.parse().expect("a number");
    let pids = (0..count).map(pid).collect();
    (child, pids, lines)
}

fn send(child: &Child, signal: Signal) {
    send_to(child.id(), signal);
}

fn send_to(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a process id"), signal).expect("samite is running");
}

#[test]
fn the_exit_code_is_that_of_the_unit_that_failed() {
    let output = output(&[
        "run",
        "-n",
        "3",
        "sh",
        "-c",
        "[ $SAMITE_RANK = 1 ] && { echo bye >&2; exit 42; }; exec sleep 1000",
    ]);
    assert_eq!(output.status.code(), Some(42));
    let message = "samite: sh.1 ended with exit code 42; the last thing it said: bye; the other units were ended";
    assert!(stderr(&output).contains(message), "{}", stderr(&output));
}

#[test]
fn a_killed_unit_is_named_with_its_signal() {
    let (child, pids, _lines) = start("2", "echo $$; exec sleep 1000");
    kill_process(pids[0], Signal::KILL).expect("the unit is running");
    let output = child.wait_with_output().expect("samite ends");
    assert_eq!(output.status.code(), Some(137));
    assert!(
        stderr(&output).contains("was killed by signal 9 (SIGKILL)"),
        "{}",
        stderr(&output)
    );
    wait_until_gone(&pids);
}

#[test]
fn ctrl_c_asks_and_a_second_one_kills() {
    let (child, pids, _lines) = start(
        "2",
        "trap 'exit 0' TERM; echo $$; while :; do sleep 0.01; done",
    );
    send(&child, Signal::INT);
    let output = child.wait_with_output().expect("samite ends");
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    wait_until_gone(&pids);

    let (child, pids, mut lines) = start(
        "1",
        "trap 'echo no' TERM; echo $$; while :; do sleep 0.01; done",
    );
    send(&child, Signal::INT);
    // The unit has heard the first one and stays, for all of the grace of a minute.
    let mut heard = [0; 9];
    lines.read_exact(&mut heard).expect("the unit prints");
    assert_eq!(&heard, b"[sh.0] no");
    assert_eq!(interrupt_until_it_ends(child), Some(130));
    wait_until_gone(&pids);
}

/// A signal that comes soon after another one is the same wish: this one comes again and again.
fn interrupt_until_it_ends(mut child: Child) -> Option<i32> {
    loop {
        if let Some(status) = child.try_wait().expect("it was started") {
            return status.code();
        }
        send(&child, Signal::INT);
        std::thread::yield_now();
    }
}

/// `timeout` signals the process, and then its group.
#[test]
fn two_signals_at_once_are_one_wish() {
    let (child, pids, mut lines) = start(
        "2",
        "trap 'sleep 0.1; echo clean; exit 0' TERM; echo $$; while :; do sleep 0.01; done",
    );
    send(&child, Signal::TERM);
    send(&child, Signal::INT);
    let mut said = String::new();
    lines.read_to_string(&mut said).expect("units print text");
    assert_eq!(said.matches("clean").count(), 2, "{said}");
    child.wait_with_output().expect("samite ends");
    wait_until_gone(&pids);
}

/// Nobody reads what a unit prints without end, and the unit does not want to end.
#[test]
fn a_stalled_reader_does_not_keep_a_job_from_ending() {
    let flood = "trap '' TERM; echo $$; while :; do echo a line that nobody reads; done";
    let (child, pids, lines) = start("1", flood);
    assert_eq!(interrupt_until_it_ends(child), Some(130));
    wait_until_gone(&pids);
    drop(lines);
    let mut child = samite()
        .args(["run", "--config", "launch.grace=10 ms", "sh", "-c", flood])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("samite can be started");
    let mut first = String::new();
    let stdout = child.stdout.as_mut().expect("it is a pipe");
    let mut lines = BufReader::new(stdout);
    lines.read_line(&mut first).expect("units print");
    send_to(child.id(), Signal::INT);
    let output = child.wait().expect("samite ends");
    assert_eq!(output.code(), Some(130));
}

/// What a unit left behind prints on, out of its group.
#[test]
fn a_daemon_that_prints_holds_nobody() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let up = folder.path().join("up").display().to_string();
    let daemon = format!(
        "setsid sh -c 'echo $$; : > {up}; exec yes noise' & \
         while [ ! -e {up} ]; do sleep 0.01; done; exit 0"
    );
    let (child, pids, mut lines) = start("1", &daemon);
    let mut said = Vec::new();
    lines.read_to_end(&mut said).expect("units print text");
    let output = child.wait_with_output().expect("samite ends");
    assert!(output.status.success(), "{}", stderr(&output));
    // Nobody reads its pipe any more.
    wait_until_gone(&pids);
}

/// As `nohup` does it.
#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let go_on = folder.path().join("go-on");
    let script = format!(
        "echo up; while [ ! -e {} ]; do sleep 0.01; done; echo down",
        go_on.display()
    );
    let mut command = isolated(Command::new("sh"));
    command.args(["-c", r#"trap '' HUP; exec "$0" run sh -c "$1""#]);
    command
        .args([env!("CARGO_BIN_EXE_samite"), &script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("sh can be started");
    let mut lines = BufReader::new(child.stdout.take().expect("it is a pipe"));
    let mut line = String::new();
    lines.read_line(&mut line).expect("units print");
    for _ in 0..3 {
        send(&child, Signal::HUP);
    }
    std::fs::write(&go_on, "").expect("it can be written");
    lines.read_to_string(&mut line).expect("units print");
    let output = child.wait_with_output().expect("samite ends");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(line.contains("down"), "{line}");
}

/// The message of its state, as `ps` shows it.
pub(super) fn state(pid: Pid) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let stat = stat.unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.get(..1));
    state.unwrap_or("gone").to_owned()
}

pub(super) fn wait_for_state(pid: Pid, wanted: impl Fn(&str) -> bool) {
    while !wanted(&state(pid)) {
        assert!(!["gone", "Z"].contains(&state(pid).as_str()));
        std::thread::yield_now();
    }
}

#[test]
fn ctrl_z_stops_all_and_they_go_on_together() {
    // Without children: a shell whose child is stopped before it is a program waits for it and is
    // not stopped itself.
    let (child, pids, _lines) = start("2", "echo $$; while :; do :; done");
    let all = || pids.iter().copied().chain([Pid::from_child(&child)]);
    for _ in 0..3 {
        send(&child, Signal::TSTP);
        all().for_each(|pid| wait_for_state(pid, |state| state == "T"));
        send(&child, Signal::CONT);
        all().for_each(|pid| wait_for_state(pid, |state| state != "T"));
    }
    send(&child, Signal::TERM);
    let output = child.wait_with_output().expect("samite ends");
    assert_eq!(output.status.code(), Some(143), "{}", stderr(&output));
    wait_until_gone(&pids);
}

/// Ctrl-Z while a pager has not read all output of a job that has ended.
#[test]
fn ctrl_z_after_the_end_loses_no_output() {
    let flood = "echo $$; i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done";
    let (child, _, mut lines) = start("1", flood);
    let launcher = Pid::from_child(&child);
    // The job has ended when the launcher has neither units nor guard nor agent.
    while has_children(launcher) {
        std::thread::yield_now();
    }
    send(&child, Signal::TSTP);
    wait_for_state(launcher, |state| state == "T");
    send(&child, Signal::CONT);
    let mut said = String::new();
    lines.read_to_string(&mut said).expect("units print text");
    assert!(said.ends_with("[sh.0] line 19999\n"), "{}", said.len());
    let output = child.wait_with_output().expect("samite ends");
    assert!(output.status.success(), "{}", stderr(&output));
}

fn has_children(parent: Pid) -> bool {
    let parent = format!(" {} ", parent.as_raw_nonzero());
    let processes = std::fs::read_dir("/proc")
        .expect("/proc is there")
        .flatten();
    let mut stats = processes.map(|entry| std::fs::read_to_string(entry.path().join("stat")));
    stats.any(|stat| {
        // After the name: the state, then the parent.
        let rest = stat.as_deref().ok().and_then(|stat| stat.rsplit_once(") "));
        rest.is_some_and(|(_, rest)| rest[1..].starts_with(&parent))
    })
}

/// A result on a full disk is not complete, and that is an error.
#[test]
fn output_that_cannot_be_written_is_an_error() {
    let full = || {
        std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .expect("Linux has it")
    };
    let run = |script: &str, command: &mut Command| {
        let command = command.args(["run", "sh", "-c", script]);
        command.output().expect("samite can be started")
    };
    let output = run("echo hi", samite().stdout(full()));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("cannot write the output of the units: No space left"),
        "{said}"
    );
    // The cause of a failure is not replaced by a message that cannot be written.
    let output = run("exit 42", samite().stderr(full()));
    assert_eq!(output.status.code(), Some(42));
}

/// Its parent may wait for its children by `signalfd`.
#[test]
fn a_parent_that_blocks_sigchld_keeps_no_job_from_ending() {
    let mut command = isolated(Command::new("env"));
    command.args([
        "--block-signal=CHLD",
        env!("CARGO_BIN_EXE_samite"),
        "run",
        "true",
    ]);
    let output = command.output().expect("env, of coreutils, can be started");
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn grandchildren_die_with_a_launcher_that_is_killed() {
    let (mut child, pids, _lines) = start("4", "sleep 1000 & echo $!; wait");
    send(&child, Signal::KILL);
    child.wait().expect("it was killed");
    wait_until_gone(&pids);
}

#[test]
fn units_die_with_a_launcher_that_is_killed() {
    let (mut child, pids, _lines) = start("4", "echo $$; exec sleep 1000");
    send(&child, Signal::KILL);
    child.wait().expect("it was killed");
    wait_until_gone(&pids);
}

#[test]
fn a_command_ends_when_nobody_reads_it() {
    let (mine, theirs) = std::io::pipe().expect("a pipe");
    drop(mine);
    let output = samite()
        .args(["config", "show"])
        .stdout(theirs)
        .stderr(Stdio::piped())
        .output()
        .expect("samite can be started");
    assert_eq!(stderr(&output), "");
    assert!(output.status.success());
}
