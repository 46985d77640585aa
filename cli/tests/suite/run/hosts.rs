//! Jobs on several machines: here all of them are this one, at several addresses, and `env` stands
//! for `ssh`.

use super::{samite, stderr, wait_until_gone};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const MODULE: &str = "suite::run::hosts";

/// The command line of a job on two hosts.
pub(super) fn on_two_hosts(start: &str, words: &[&str]) -> Command {
    let mut command = samite();
    command
        .args([
            "run",
            "--hosts",
            "127.0.0.1,b=127.0.0.2",
            "--host-start",
            start,
        ])
        .args(["--host-transports", "tcp", "--host-devices", "lo"])
        .args(words);
    command
}

pub(super) fn has_ucx(module: &str, test: &str) -> bool {
    let name = samite_testkit::full_name(module, test);
    let hint = "install libucx0: ci/packages.txt";
    samite_testkit::require(&name, samite::has_ucx(), hint)
}

/// Returns the process ids that units print, each at the end of a line.
fn printed(job: &mut Child, count: usize) -> Vec<Pid> {
    let lines = BufReader::new(job.stdout.take().expect("a pipe")).lines();
    let pids = lines.take(count).map(|line| {
        let line = line.expect("text");
        let number = line.rsplit(' ').next().and_then(|word| word.parse().ok());
        number.and_then(Pid::from_raw).expect("a process id")
    });
    pids.collect()
}

/// Returns the children of a process with this word in their command lines.
pub(super) fn children(of: u32, word: &str) -> Vec<Pid> {
    let children = format!("/proc/{of}/task/{of}/children");
    let children = std::fs::read_to_string(children).unwrap_or_default();
    let pids = children.split_whitespace().filter(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0)
            .any(|part| part == word.as_bytes())
    });
    pids.filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect()
}

/// The units of two hosts find each other, sort together, and agree on the result.
#[test]
fn units_of_two_hosts_are_one_job() {
    if !has_ucx(MODULE, "units_of_two_hosts_are_one_job") {
        return;
    }
    let output = on_two_hosts("env", &["-n", "4", "nas-is", "--class", "S"]).output();
    let output = output.expect("samite can be started");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", stderr(&output));
    assert!(said.contains("SUCCESSFUL: 51 of 51 checks"), "{said}");
}

/// Runs a workflow on two hosts, with its parameters given as `--name value`: it ends well, and
/// says what is expected.
fn the_result_is_verified(test: &str, workflow: &str, parameters: &str, expected: &str) {
    if !has_ucx(MODULE, test) {
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workflows");
    let path = path.join(workflow).display().to_string();
    let words: Vec<&str> = std::iter::once(&*path)
        .chain(parameters.split_whitespace())
        .collect();
    let output = on_two_hosts("env", &words).output();
    let output = output.expect("samite can be started");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", stderr(&output));
    for expected in ["SUCCESSFUL", expected] {
        assert!(said.contains(expected), "{expected}? {said}");
    }
}

/// Steps of a stream stay on the host where they are written; readers of both hosts get them.
#[test]
fn a_stream_between_hosts() {
    let test = "a_stream_between_hosts";
    let small = "--shape 128,96 --steps 8 --writers 2 --readers 2";
    // Units alternate between the hosts: each reader finds half of its boxes on its own.
    for (more, expected) in [
        ("--pattern rows", "16 of 16 boxes"),
        ("--pattern columns", "elements are what was written"),
        (
            "--pattern boxes --way alloc",
            "elements are what was written",
        ),
        (
            "--pattern percent --servers 2 --config stage.method=server",
            "elements are what was written",
        ),
    ] {
        let parameters = format!("{small} {more}");
        the_result_is_verified(test, "synthetic.toml", &parameters, expected);
    }
}

#[test]
fn a_solver_and_its_analysis_on_two_hosts() {
    let test = "a_solver_and_its_analysis_on_two_hosts";
    let folder = tempfile::tempdir().expect("a folder for the report");
    let report = folder.path().join("report.html");
    let small = "--size 40 --steps 12 --units 2 --readers 3 --report";
    let parameters = format!("{small} {}", report.display());
    let expected = "3200 of 3200 cells are equal";
    the_result_is_verified(test, "laplace.toml", &parameters, expected);
}

#[test]
fn the_real_lammps_and_its_analysis_on_two_hosts() {
    let test = "the_real_lammps_and_its_analysis_on_two_hosts";
    if let Err(error) = samite_lammps::Lammps::open(&[]) {
        let name = samite_testkit::full_name(MODULE, test);
        samite_testkit::require(&name, false, &error.to_string());
        return;
    }
    let parameters = "--cells 5 --steps 20 --writers 2 --readers 3";
    let expected = "21 of 21 steps compared";
    the_result_is_verified(test, "lammps-msd.toml", parameters, expected);
}

/// Frames move by coherent chunks, which the first host serves, and by chunks that units serve.
#[test]
fn frames_are_filtered_on_two_hosts() {
    let test = "frames_are_filtered_on_two_hosts";
    let small = "--size 96x64 --frames 24 --workers 4";
    let expected = "24 of 24 frames";
    for via in ["dsm", "dsm-fused", "dsm-strict", "mp-async", "req-rep"] {
        let parameters = format!("{small} --via {via}");
        the_result_is_verified(test, "video.toml", &parameters, expected);
    }
    the_result_is_verified(test, "video-servers.toml", small, expected);
}

/// Programs that are steered by a stream in both directions.
#[test]
fn a_solver_is_steered_from_another_host() {
    let test = "a_solver_is_steered_from_another_host";
    let small = "--size 32 --sweeps 5";
    the_result_is_verified(test, "steering.toml", small, "cells");
}

#[test]
fn solvers_share_memory_on_two_hosts() {
    let test = "solvers_share_memory_on_two_hosts";
    let small = "--class S --units 4";
    the_result_is_verified(test, "cg.toml", small, "zeta is");
    the_result_is_verified(test, "is.toml", small, "51 of 51");
    let small = "--words-log2 8 --units 3";
    the_result_is_verified(test, "gups.toml", small, "0 words differ");
}

/// Each host has its part of the units, with its own agent; output and exit codes come back.
#[test]
fn a_unit_of_another_host_fails_like_any_other() {
    if !has_ucx(MODULE, "a_unit_of_another_host_fails_like_any_other") {
        return;
    }
    let script = r#"echo "in ${SAMITE_DOMAIN##*-}"
        [ $SAMITE_RANK = 3 ] && { echo bye >&2; exit 42; }; exec sleep 1000"#;
    let output = on_two_hosts("env", &["-n", "4", "sh", "-c", script]).output();
    let output = output.expect("samite can be started");
    assert_eq!(output.status.code(), Some(42), "{}", stderr(&output));
    // With its last words, from both of its streams.
    let errors = stderr(&output);
    let (_, message) = errors
        .split_once("samite: sh.3 ended with exit code 42; the last thing it said")
        .unwrap_or_else(|| panic!("{errors}"));
    assert!(message.contains("bye"), "{errors}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("[sh.3] in 1\n"), "{said}");
}

/// A reader that stops reading for a while loses nothing, and the job goes on when it reads.
#[test]
fn a_slow_reader_gets_all_output() {
    const LINES: usize = 200_000;
    if !has_ucx(MODULE, "a_slow_reader_gets_all_output") {
        return;
    }
    // More than is kept anywhere on its way.
    let script = format!("yes {} | head -n {LINES}; exec sleep 1000", "x".repeat(99));
    let mut job = on_two_hosts("env", &["-n", "2", "sh", "-c", &script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("samite can be started");
    // The writers are held up: each waits to write to a full pipe.
    let hosts = loop {
        let hosts = children(job.id(), "host");
        if hosts.len() == 2 {
            break hosts;
        }
        std::thread::yield_now();
    };
    for host in hosts {
        let host = host.as_raw_nonzero().get() as u32;
        let is_held = || {
            let units = children(host, "-c");
            let of_unit = |unit: &Pid| children(unit.as_raw_nonzero().get() as u32, "head");
            let heads: Vec<Pid> = units.iter().flat_map(of_unit).collect();
            let waits = |head: &Pid| {
                let place = format!("/proc/{}/wchan", head.as_raw_nonzero());
                std::fs::read_to_string(place).is_ok_and(|place| place.contains("pipe_write"))
            };
            heads.iter().any(waits)
        };
        while !is_held() {
            std::thread::yield_now();
        }
    }
    let lines = BufReader::new(job.stdout.take().expect("a pipe")).lines();
    let lines = lines.take(2 * LINES).map(|line| line.expect("text"));
    assert_eq!(
        lines.filter(|line| line.ends_with("xxx")).count(),
        2 * LINES
    );
    job.kill().expect("it runs");
    job.wait().expect("it was killed");
}

/// Ctrl-C ends the units of all hosts, also of one that does not answer.
#[test]
fn ctrl_c_ends_all_hosts_also_a_stopped_one() {
    if !has_ucx(MODULE, "ctrl_c_ends_all_hosts_also_a_stopped_one") {
        return;
    }
    for stops in [false, true] {
        let mut job = on_two_hosts("env", &["--config", "launch.grace=1 s", "-n", "2"])
            .args(["sh", "-c", "echo $$; exec sleep 1000"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("samite can be started");
        printed(&mut job, 2);
        let hosts = children(job.id(), "host");
        if stops {
            kill_process(hosts[1], Signal::STOP).expect("it runs");
        }
        kill_process(Pid::from_child(&job), Signal::INT).expect("it runs");
        let output = job.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
        for host in hosts {
            let _ = kill_process(host, Signal::CONT);
            wait_until_gone(&[host]);
        }
    }
}

/// A launcher that is killed leaves nothing behind on any host.
#[test]
fn nothing_stays_on_a_host_when_the_launcher_is_killed() {
    if !has_ucx(
        MODULE,
        "nothing_stays_on_a_host_when_the_launcher_is_killed",
    ) {
        return;
    }
    let script = "sleep 1000 & echo $!; echo $$; wait";
    let mut job = on_two_hosts("env", &["-n", "4", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("samite can be started");
    let mut pids = printed(&mut job, 8);
    let hosts = children(job.id(), "host");
    assert_eq!(hosts.len(), 2);
    for host in &hosts {
        pids.extend(children(host.as_raw_nonzero().get() as u32, "agent"));
    }
    assert_eq!(pids.len(), 8 + 2, "each host has an agent");
    pids.extend(hosts);
    let launcher = Pid::from_child(&job);
    kill_process(launcher, Signal::KILL).expect("it runs");
    job.wait().expect("it was killed");
    wait_until_gone(&pids);
}

/// A host that is lost ends the job, which names it.
#[test]
fn a_host_that_is_lost_ends_the_job() {
    if !has_ucx(MODULE, "a_host_that_is_lost_ends_the_job") {
        return;
    }
    let mut job = on_two_hosts("env", &["-n", "2", "sh", "-c", "echo $$; exec sleep 1000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("samite can be started");
    let pids = printed(&mut job, 2);
    let hosts = children(job.id(), "host");
    kill_process(hosts[1], Signal::KILL).expect("it runs");
    let output = job.wait_with_output().expect("it ends");
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("host b cannot take part, or was lost"),
        "{errors}"
    );
    wait_until_gone(&pids);
}

/// A host that goes when the job is ending already is not taken for its cause.
#[test]
fn a_host_that_goes_at_the_end_is_not_the_cause() {
    if !has_ucx(MODULE, "a_host_that_goes_at_the_end_is_not_the_cause") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let is_there = folder.path().join("is there").display().to_string();
    // Unit 1 ends its host when it is asked to end, since unit 0 has failed.
    let script = r#"if [ $SAMITE_RANK = 0 ]; then
            until [ -e "$0" ]; do :; done; exit 42
        fi
        trap 'kill -9 $PPID' TERM; : > "$0"; while :; do sleep 1; done"#;
    let output = on_two_hosts("env", &["-n", "2", "sh", "-c", script, &is_there]).output();
    let output = output.expect("samite can be started");
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(42), "{errors}");
    assert!(errors.contains("sh.0 ended with exit code 42"), "{errors}");
}

/// What goes wrong at the start of a host is said, with the words of its start command.
#[test]
fn a_host_that_cannot_begin_is_named() {
    if !has_ucx(MODULE, "a_host_that_cannot_begin_is_named") {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let script = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a file");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("a mode");
        path.display().to_string()
    };
    let refuses = script("refuses", "echo Permission denied >&2; exit 255");
    let talks = script("talks", "echo Welcome to this machine; exec \"$@\"");
    for (start, words) in [
        (
            refuses.as_str(),
            ["was lost: its start command has ended", "Permission denied"],
        ),
        (
            talks.as_str(),
            ["its shell prints something", "samite: host "],
        ),
        ("/nonexistent/ssh", ["host 127.0.0.1", "No such file"]),
    ] {
        let output = on_two_hosts(start, &["-n", "2", "true"]).output();
        let output = output.expect("samite can be started");
        let errors = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        for word in words {
            assert!(errors.contains(word), "{start}: {errors}");
        }
    }
    let output = samite()
        .args(["run", "--hosts", "a,a", "-n", "2", "true"])
        .output()
        .expect("samite can be started");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("a is named twice"),
        "{}",
        stderr(&output)
    );
}

/// A server of `ssh` on this machine, which ends with the test.
struct Sshd {
    server: Child,
    folder: tempfile::TempDir,
}

const SSHD: &str = "/usr/sbin/sshd";

impl Sshd {
    fn start() -> Sshd {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        for key in ["host", "user"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f", &path(key)])
                .status();
            assert!(made.expect("ssh-keygen can be started").success());
        }
        std::fs::copy(path("user.pub"), path("authorized")).expect("a key");
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let port = port.expect("a free port").port();
        let server = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\n\
             UsePAM no\nStrictModes no\nPasswordAuthentication no\n",
            path("host"),
            path("authorized")
        );
        let client = format!(
            "Host *\nHostName 127.0.0.1\nPort {port}\nIdentityFile {}\nIdentitiesOnly yes\n\
             StrictHostKeyChecking no\nUserKnownHostsFile {}\nLogLevel ERROR\n",
            path("user"),
            path("known")
        );
        std::fs::write(path("server"), server).expect("a file");
        std::fs::write(path("client"), client).expect("a file");
        // Where it runs as root, it wants this folder, which a service would have made.
        let _ = std::fs::create_dir_all("/run/sshd");
        let mut server = Command::new(SSHD)
            .args(["-D", "-e", "-f", &path("server")])
            .stderr(Stdio::piped())
            .spawn()
            .expect("sshd can be started");
        let mut said = BufReader::new(server.stderr.take().expect("a pipe")).lines();
        let listens = said.any(|line| line.expect("text").contains("Server listening"));
        assert!(listens, "sshd has ended");
        // It goes on talking.
        std::thread::spawn(move || said.for_each(drop));
        Sshd { server, folder }
    }

    /// Returns what starts a command on a host.
    fn command(&self) -> String {
        let config = self.folder.path().join("client").display().to_string();
        format!("ssh -F {config} -T -o BatchMode=yes {{host}}")
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Over real `ssh`: units of two hosts are one job, and a connection that breaks leaves nothing on
/// its host.
#[test]
fn a_job_runs_over_ssh() {
    if !has_ucx(MODULE, "a_job_runs_over_ssh") {
        return;
    }
    let name = samite_testkit::full_name(MODULE, "a_job_runs_over_ssh");
    let has_ssh = Path::new(SSHD).exists();
    let hint = "install openssh-server and openssh-client: ci/packages.txt";
    if !samite_testkit::require(&name, has_ssh, hint) {
        return;
    }
    let sshd = Sshd::start();
    let run = |words: &[&str]| {
        let mut command = samite();
        command
            .args(["run", "--hosts", "a=127.0.0.1,b=127.0.0.2"])
            .args(["--host-start", &sshd.command()])
            .args(["--host-transports", "tcp", "--host-devices", "lo"])
            .args(words);
        command
    };
    let output = run(&["-n", "4", "nas-is", "--class", "S"]).output();
    let output = output.expect("samite can be started");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", stderr(&output));
    assert!(said.contains("SUCCESSFUL: 51 of 51 checks"), "{said}");
    let mut job = run(&["-n", "2", "sh", "-c", "echo $$; exec sleep 1000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("samite can be started");
    let pids = printed(&mut job, 2);
    let connections = children(job.id(), "a");
    assert_eq!(connections.len(), 1);
    kill_process(connections[0], Signal::KILL).expect("it runs");
    let output = job.wait_with_output().expect("it ends");
    let errors = stderr(&output);
    assert!(
        errors.contains("host a cannot take part, or was lost"),
        "{errors}"
    );
    wait_until_gone(&pids);
}
