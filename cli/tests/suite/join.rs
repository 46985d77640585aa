//! Jobs that `mpirun` of Open MPI or `mpiexec` of MPICH starts: its processes become units.

use crate::domain::{output, samite};
use samite_testkit::{full_name, require};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

const SAMITE: &str = env!("CARGO_BIN_EXE_samite");
/// How a shell tells which job and domain it is in, besides its rank.
const SAYS: &str = "echo rank $SAMITE_RANK of $SAMITE_SIZE in $SAMITE_JOB at $SAMITE_DOMAIN";

/// A process manager, and what it needs to start processes of root on few cores.
#[derive(Clone, Copy)]
struct Manager {
    program: &'static str,
    options: &'static [&'static str],
}

const OPEN_MPI: Manager = Manager {
    program: "mpirun.openmpi",
    options: &[
        "--allow-run-as-root",
        "--oversubscribe",
        "--bind-to",
        "none",
    ],
};
const MPICH: Manager = Manager {
    program: "mpiexec.mpich",
    options: &[],
};

impl Manager {
    /// Runs processes by it. One that hangs is ended, and so has failed.
    fn run(self, options: &[&str], words: &[&str]) -> Output {
        let mut command = Command::new("timeout");
        command
            .args(["-k", "5", "120", self.program])
            .args(self.options)
            .args(options)
            .args([SAMITE, "join"])
            .args(words)
            .env("XDG_CONFIG_HOME", "/nonexistent")
            .env_remove("SAMITE_LOG");
        command.output().expect("timeout can be started")
    }

    fn succeeds(self, options: &[&str], words: &[&str]) -> String {
        let ran = self.run(options, words);
        let text = String::from_utf8_lossy(&ran.stdout).into_owned();
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{}: {text}{errors}", self.program);
        text
    }
}

fn is_there(test: &str, of: Manager) -> bool {
    let ran = Command::new(of.program).arg("--version").output();
    let is_there = ran.is_ok_and(|ran| ran.status.success());
    let hint = "install openmpi-bin and mpich: ci/packages.txt";
    require(&full_name(module_path!(), test), is_there, hint)
}

/// Returns what follows a word in each line that has it, in order.
fn after<'a>(text: &'a str, word: &str) -> Vec<&'a str> {
    let mut words = text.split_whitespace();
    let mut found = Vec::new();
    while let Some(one) = words.next() {
        if one == word {
            found.extend(words.next());
        }
    }
    found.sort_unstable();
    found
}

/// Returns once the agent of a domain has ended.
fn wait_for_the_end(domain: &str) {
    while output(&["info", "--domain", domain]).is_ok() {
        std::thread::yield_now();
    }
}

fn units_of(manager: Manager) {
    let text = manager.succeeds(&["-n", "3"], &["sh", "-c", SAYS]);
    assert_eq!(after(&text, "rank"), ["0", "1", "2"], "{text}");
    assert_eq!(after(&text, "of"), ["3"; 3], "{text}");
    let (jobs, domains) = (after(&text, "in"), after(&text, "at"));
    assert!(jobs == [jobs[0]; 3] && jobs == domains, "{text}");
    wait_for_the_end(domains[0]);
    // They see each other's memory.
    let text = manager.succeeds(&["-n", "3"], &["nas-is", "--class", "S"]);
    assert!(text.contains("SUCCESSFUL: 51 of 51 checks"), "{text}");
}

#[test]
fn processes_of_open_mpi_are_units() {
    if is_there("processes_of_open_mpi_are_units", OPEN_MPI) {
        units_of(OPEN_MPI);
    }
}

/// Ranks count in each program of a job, as they do in a workflow.
#[test]
fn several_programs_of_open_mpi_are_one_job() {
    if !is_there("several_programs_of_open_mpi_are_one_job", OPEN_MPI) {
        return;
    }
    let says = "echo unit $SAMITE_UNIT of $SAMITE_UNITS rank $SAMITE_RANK size $SAMITE_SIZE";
    let second = [":", "-n", "2", SAMITE, "join", "sh", "-c", says];
    let words = [&["sh", "-c", says][..], &second].concat();
    let text = OPEN_MPI.succeeds(&["-n", "1"], &words);
    assert_eq!(after(&text, "unit"), ["0", "1", "2"], "{text}");
    assert_eq!(after(&text, "of"), ["3"; 3], "{text}");
    assert_eq!(after(&text, "rank"), ["0", "0", "1"], "{text}");
    assert_eq!(after(&text, "size"), ["1", "2", "2"], "{text}");
}

/// The agent is nothing that a program meets: no child for which it would wait, and out of the way
/// of signals that the manager passes on.
#[test]
fn programs_do_not_meet_the_agent() {
    if !is_there("programs_do_not_meet_the_agent", OPEN_MPI) {
        return;
    }
    // The first signal reaches the unit; the agent is there afterwards.
    let script = format!(
        "read children < /proc/$$/task/$$/children; echo children [$children]; \
         trap 'there=$({SAMITE} ps | grep -c $SAMITE_DOMAIN)' USR1; \
         kill -USR1 -- -$$ 2>/dev/null || kill -USR1 0; echo domains [$there]"
    );
    let text = OPEN_MPI.succeeds(&["-n", "1"], &["sh", "-c", &script]);
    assert!(text.contains("children []"), "{text}");
    assert!(text.contains("domains [1]"), "{text}");
}

#[test]
fn processes_of_mpich_are_units() {
    if is_there("processes_of_mpich_are_units", MPICH) {
        units_of(MPICH);
    }
}

/// Stands for `ssh`: the command runs on this machine, whatever host is named.
fn starter(folder: &Path) -> String {
    let script =
        "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nshift\nexec sh -c \"$*\"\n";
    let file = folder.join("start");
    std::fs::write(&file, script).expect("a file");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&file, mode).expect("it is ours");
    file.display().to_string()
}

/// Two machines, each with its agent, are one job over the network. `options` put four processes
/// on two of them, in turn or not.
fn is_one_job(test: &str, manager: Manager, options: &[&str]) {
    let hint = "install libucx0: ci/packages.txt";
    let has_ucx = require(&full_name(module_path!(), test), samite::has_ucx(), hint);
    if !is_there(test, manager) || !has_ucx {
        return;
    }
    let network = [
        "--network",
        "127.0.0.1",
        "--transports",
        "tcp",
        "--devices",
        "lo",
    ];
    let run = |words: &[&str]| manager.succeeds(options, &[&network[..], words].concat());
    let text = run(&["sh", "-c", SAYS]);
    assert_eq!(after(&text, "rank"), ["0", "1", "2", "3"], "{text}");
    let (jobs, domains) = (after(&text, "in"), after(&text, "at"));
    assert_eq!(jobs, [jobs[0]; 4], "{text}");
    assert!(
        domains[0] == domains[1] && domains[2] == domains[3],
        "{text}"
    );
    assert_ne!(domains[0], domains[3], "{text}");
    for domain in [domains[0], domains[3]] {
        wait_for_the_end(domain);
    }
    let text = run(&["nas-is", "--class", "S"]);
    assert!(text.contains("SUCCESSFUL: 51 of 51 checks"), "{text}");
}

/// By PMI-1.
#[test]
fn mpich_on_several_machines_is_one_job() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let start = starter(folder.path());
    let hosts = "127.0.0.1,127.0.0.2";
    let start = ["-launcher", "ssh", "-launcher-exec", &start];
    let options = [&start[..], &["-hosts", hosts, "-ppn", "2", "-n", "4"]].concat();
    is_one_job("mpich_on_several_machines_is_one_job", MPICH, &options);
}

/// By PMIx.
#[test]
fn open_mpi_on_several_machines_is_one_job() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let start = starter(folder.path());
    let hosts = "127.0.0.1:2,127.0.0.2:2";
    let start = ["--mca", "plm_rsh_agent", &start];
    let options = [
        &start[..],
        &["--host", hosts, "--map-by", "node", "-n", "4"],
    ]
    .concat();
    is_one_job(
        "open_mpi_on_several_machines_is_one_job",
        OPEN_MPI,
        &options,
    );
}

/// A unit that is killed leaves nothing behind: the manager ends the others, and the agent ends.
#[test]
fn the_agent_ends_with_killed_units() {
    for manager in [OPEN_MPI, MPICH] {
        if !is_there("the_agent_ends_with_killed_units", manager) {
            return;
        }
        let folder = tempfile::tempdir().expect("a scratch folder");
        let file = folder.path().join("domain");
        // Rank 0, which has started the agent, waits until it is ended by others.
        let script = format!(
            "echo $SAMITE_DOMAIN > {0}.$SAMITE_RANK; [ $SAMITE_RANK = 1 ] && kill -9 $$; sleep 600",
            file.display()
        );
        let ran = manager.run(&["-n", "2"], &["sh", "-c", &script]);
        assert!(!ran.status.success(), "{}", manager.program);
        assert_ne!(
            ran.status.code(),
            Some(124),
            "{}: too late",
            manager.program
        );
        let name = std::fs::read_to_string(folder.path().join("domain.1")).expect("it began");
        wait_for_the_end(name.trim());
    }
}

#[test]
fn what_cannot_join_says_why() {
    let alone = samite(&["join", "true"])
        .env_remove("OMPI_COMM_WORLD_RANK")
        .env_remove("PMI_RANK")
        .env_remove("SLURM_PROCID")
        .output()
        .expect("samite can be started");
    let said = String::from_utf8_lossy(&alone.stderr).into_owned();
    assert!(!alone.status.success());
    assert!(said.contains("mpirun -n 4 samite join PROGRAM"), "{said}");
    if !is_there("what_cannot_join_says_why", OPEN_MPI) {
        return;
    }
    let ran = OPEN_MPI.run(&["-n", "2"], &["no-such-program"]);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(!ran.status.success());
    assert!(
        said.contains("there is no program `no-such-program`"),
        "{said}"
    );
}
