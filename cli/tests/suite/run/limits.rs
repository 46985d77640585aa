//! What the system allows: descriptors, processes, processors.

use super::{isolated, output, stderr, stdout, workflow};
use crate::domain::inherited_descriptors;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Output};

#[test]
fn thirty_two_units_fit_into_sixty_four_descriptors() {
    let limit = 64 + inherited_descriptors();
    let script =
        format!(r#"ulimit -n {limit}; exec "$0" run -n 32 sh -c 'echo out; echo err >&2'"#);
    let mut command = isolated(Command::new("sh"));
    let output = command
        .args(["-c", &script, env!("CARGO_BIN_EXE_samite")])
        .output()
        .expect("sh can be started");
    assert!(output.status.success(), "{}", stderr(&output));
    let lines = stdout(&output) + &stderr(&output);
    for rank in 0..32 {
        for text in ["out", "err"] {
            assert!(
                lines.contains(&format!("[sh.{rank}] {text}\n")),
                "{rank} {text} in {lines}"
            );
        }
    }
}

#[test]
fn more_units_than_descriptors_are_refused() {
    let mut command = isolated(Command::new("sh"));
    command.args(["-c", r#"ulimit -n 64; exec "$0" run -n 64 true"#]);
    let output = command
        .arg(env!("CARGO_BIN_EXE_samite"))
        .output()
        .expect("sh can be started");
    assert_eq!(output.status.code(), Some(1));
    let needed = 88 + inherited_descriptors();
    let said = stderr(&output);
    let expected = format!("64 units need {needed} file descriptors, but the limit is 64");
    assert!(said.contains(&expected), "{said}");
}

/// Some programs close, or poll, all descriptors that they may have.
#[test]
fn no_more_descriptors_than_pipes_need_are_passed_on() {
    let mut command = isolated(Command::new("sh"));
    command.args([
        "-c",
        r#"ulimit -Sn 40; exec "$0" run --tag-output no -n 16 sh -c 'ulimit -Sn'"#,
    ]);
    let output = command
        .arg(env!("CARGO_BIN_EXE_samite"))
        .output()
        .expect("sh can be started");
    let limits = format!("{}\n", 56 + inherited_descriptors()).repeat(16);
    assert_eq!(stdout(&output), limits, "{}", stderr(&output));
}

/// Files for output need descriptors, too: the limit is raised for them before they are opened. One
/// pipe cannot serve a file and the terminal.
#[test]
fn files_for_output_are_counted() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let run = |limit: &str, text: &str, force: &str| {
        let file = workflow(folder.path(), text);
        let script = format!("ulimit {limit}; exec \"$0\" run {force} \"$1\"");
        let mut command = isolated(Command::new("sh"));
        command.args(["-c", &script, env!("CARGO_BIN_EXE_samite"), &file]);
        command.output().expect("sh can be started")
    };
    let program = "[[program]]\nname = 'a'\ncommand = 'sh'\nargs = ['-c', 'echo {rank} >&2']\n";
    let text = format!("{program}units = 40\nstderr = 'logs/{{rank}}'\n");
    let output = run("-Sn 40", &text, "");
    assert!(output.status.success(), "{}", stderr(&output));
    let written = std::fs::read_to_string(folder.path().join("logs/39"));
    assert_eq!(written.expect("each unit has a file"), "39\n");
    let text = format!("{program}units = 20\nstderr = 'errors'\n");
    let output = run("-n 64", &text, "");
    assert_eq!(output.status.code(), Some(2));
    let needed = 65 + inherited_descriptors();
    let said = stderr(&output);
    let expected = format!("20 units need {needed}: raise `ulimit");
    assert!(said.contains(&expected), "{said}");
    let output = run("-n 64", &text, "--force");
    let said = stderr(&output);
    let expected = format!("20 units need {needed} file descriptors");
    assert!(said.contains(&expected), "{said}");
}

/// What `samite run` does while its user may have so many threads. The limit does not bind root, so
/// root runs it as `user`, who is nobody else.
fn run_within(limit: usize, user: u32, arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let everybody = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), everybody).expect("it is ours");
    // Where the build folder is, another user may not look.
    let copy = folder.path().join("samite");
    // By `cp`: a file that this process has open for writing may not be executed.
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_samite"))
        .arg(&copy)
        .status();
    assert!(copied.expect("cp can be started").success());
    // The figures of the host, which it takes threads to measure.
    let cache = folder.path().join("cache");
    let figures = isolated(Command::new(&copy))
        .arg("info")
        .env("XDG_CACHE_HOME", &cache)
        .output();
    assert!(figures.expect("samite can be started").status.success());
    let mut command = isolated(Command::new("prlimit"));
    command.arg(format!("--nproc={limit}"));
    if rustix::process::getuid().is_root() {
        let id = user.to_string();
        command.args(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"]);
    }
    let command = command.arg(&copy).arg("run").args(arguments);
    let command = command.env("XDG_CACHE_HOME", &cache).current_dir("/");
    let output = command.output();
    output.expect("prlimit, of util-linux, can be started")
}

/// The threads of this user.
fn own_threads() -> usize {
    let own = rustix::process::getuid().as_raw();
    let processes = std::fs::read_dir("/proc")
        .expect("/proc is there")
        .flatten();
    let processes = processes.filter(|one| one.metadata().is_ok_and(|data| data.uid() == own));
    let tasks = processes.filter_map(|one| std::fs::read_dir(one.path().join("task")).ok());
    tasks.map(Iterator::count).sum()
}

#[test]
fn a_launcher_without_a_thread_for_its_output_says_so() {
    let output = run_within(1, 54_322, &["true"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("samite: cannot start the thread that shows the output: "),
        "{}",
        stderr(&output)
    );
}

#[test]
fn more_units_than_processes_are_refused_and_none_stays() {
    const NOBODY_ELSE: u32 = 54_321;
    let root = rustix::process::getuid().is_root();
    let limit = if root { 9 } else { own_threads() + 100 };
    let output = run_within(limit, NOBODY_ELSE, &["-n", "400", "sleep", "1000"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("the system allowed no more processes after "),
        "{}",
        stderr(&output)
    );
    if root {
        let left = std::fs::read_dir("/proc")
            .expect("/proc is there")
            .flatten();
        let left =
            left.filter(|entry| entry.metadata().is_ok_and(|data| data.uid() == NOBODY_ELSE));
        assert_eq!(left.count(), 0, "processes are left");
    }
}

#[test]
fn a_unit_stays_on_its_processors() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let text = "[[program]]\nname = \"a\"\ncommand = \"sh\"\nprefix = false\ncpus = \"0\"\n\
                args = [\"-c\", \"grep Cpus_allowed_list /proc/self/status\"]\n";
    let output = output(&["run", &workflow(folder.path(), text)]);
    assert_eq!(
        stdout(&output).split_whitespace().last(),
        Some("0"),
        "{}",
        stderr(&output)
    );
}
