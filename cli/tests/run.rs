//! `samite run` as a person meets it: whole processes, good days and bad ones.

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

fn samite() -> Command {
    isolated(Command::new(env!("CARGO_BIN_EXE_samite")))
}

/// Without the settings of whoever runs the tests.
fn isolated(mut command: Command) -> Command {
    command
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env_remove("SAMITE_LOG");
    command
}

fn output(arguments: &[&str]) -> Output {
    samite()
        .args(arguments)
        .output()
        .expect("samite can be started")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("units print ASCII")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("messages are text")
}

fn workflow(folder: &Path, text: &str) -> String {
    let path = folder.join("flow.toml");
    std::fs::write(&path, text).expect("a scratch folder can be written");
    path.display().to_string()
}

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

fn wait_until_gone(pids: &[Pid]) {
    for &pid in pids {
        // Killed processes of a dead launcher are reaped by the system, in its own time.
        let zombie = || {
            std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
                .is_ok_and(|stat| stat.contains(") Z "))
        };
        while test_kill_process(pid).is_ok() && !zombie() {
            std::thread::yield_now();
        }
    }
}

#[test]
fn units_of_a_program() {
    let output = output(&["run", "-n", "4", "/bin/echo", "hi", "--there"]);
    let mut lines: Vec<_> = stdout(&output).lines().map(str::to_owned).collect();
    lines.sort();
    let expected: Vec<_> = (0..4)
        .map(|rank| format!("[echo.{rank}] hi --there"))
        .collect();
    assert_eq!(lines, expected);
    assert!(output.status.success());
}

#[test]
fn lines_can_be_shown_without_names() {
    let output = output(&["run", "--tag-output", "no", "echo", "hi"]);
    assert_eq!(stdout(&output), "hi\n");
}

#[test]
fn a_workflow_takes_its_parameters_as_options() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = workflow(
        folder.path(),
        r#"
        parameters = { size = { default = 8, help = "rows" }, units = 1 }
        [[program]]
        name = "a"
        command = "sh"
        args = ["-c", "echo $SAMITE_SIZE {size}; echo \"$SAMITE_CONFIG\" | grep deadline"]
        units = "{units}"
        prefix = false
        [config.fabric]
        deadline = "7s"
        "#,
    );
    let shown = |arguments: &[&str]| {
        let arguments: Vec<_> = ["run"].iter().chain(arguments).copied().collect();
        let output = output(&arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let from_file = "deadline = \"7s\"\n";
    assert_eq!(shown(&[&file]), format!("1 8\n{from_file}"));
    assert_eq!(shown(&[&file, "--size", "9"]), format!("1 9\n{from_file}"));
    assert_eq!(shown(&["--size=9", &file]), format!("1 9\n{from_file}"));
    assert_eq!(
        shown(&[&file, "--set", "size=10"]),
        format!("1 10\n{from_file}")
    );
    // The last word counts.
    let (set, size) = (["--set", "size=10"], ["--size", "9"]);
    let both = |first: [&'static str; 2], then: [&'static str; 2]| {
        shown(&[&[file.as_str()], &first[..], &then[..]].concat())
    };
    assert_eq!(both(set, size), format!("1 9\n{from_file}"));
    assert_eq!(both(size, set), format!("1 10\n{from_file}"));
    assert_eq!(
        shown(&[&file, "--config", "fabric.deadline=9s"]),
        "1 8\ndeadline = \"9s\"\n"
    );
    assert!(shown(&[&file, "--units", "2"]).contains("2 8\n"));
    assert!(shown(&[&file, "--help"]).contains("rows [default: 8]"));
    let wrong = output(&["run", &file, "--sise", "9"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("--size"), "{}", stderr(&wrong));
}

#[test]
fn mistakes_in_files_and_names_are_explained() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let refused = |text: &str, expected: &str| {
        let file = workflow(folder.path(), text);
        let output = output(&["run", &file]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
        assert!(stdout(&output).is_empty());
    };
    let program = "[[program]]\nname = \"a\"\ncommand = \"echo\"\n";
    refused(
        &format!("{program}unit = 2\n"),
        "flow.toml:4: [[program]] has no key `unit`; did you mean `units`?",
    );
    refused(
        &format!("{program}[config.fabric]\ndeadlin = \"1s\"\n"),
        "flow.toml:5: there is no setting `fabric.deadlin`; did you mean `fabric.deadline`?",
    );
    // The first program must not run when the second does not exist.
    refused(
        &format!("{program}[[program]]\nname = \"b\"\ncommand = \"laplace-solvr\"\n"),
        "b: there is no program `laplace-solvr` (looked in PATH, did you mean `laplace-solver`?); nothing was started",
    );
    let missing = output(&["run", "nowhere.toml"]);
    assert!(
        stderr(&missing).contains("cannot read the workflow nowhere.toml"),
        "{}",
        stderr(&missing)
    );
    assert_eq!(missing.status.code(), Some(2));
    let variable = samite()
        .args(["run", "true"])
        .env("SAMITE_FABRIC_EAGER", "1 KiB")
        .output();
    let variable = variable.expect("samite can be started");
    assert_eq!(variable.status.code(), Some(2));
    assert!(
        stderr(&variable).contains("SAMITE_FABRIC_EAGER"),
        "{}",
        stderr(&variable)
    );
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
    let daemon = "setsid sh -c 'echo $$; exec yes noise' & sleep 0.05; exit 0";
    let (child, pids, mut lines) = start("1", daemon);
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

/// The letter of its state, as `ps` shows it.
fn state(pid: Pid) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let stat = stat.unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.get(..1));
    state.unwrap_or("gone").to_owned()
}

fn wait_for_state(pid: Pid, wanted: impl Fn(&str) -> bool) {
    while !wanted(&state(pid)) {
        assert_ne!(state(pid), "gone");
        std::thread::yield_now();
    }
}

#[test]
fn ctrl_z_stops_all_and_they_go_on_together() {
    // Without children: a shell whose child is stopped before it is a program waits for it and is not stopped itself.
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
fn thirty_two_units_fit_into_sixty_four_descriptors() {
    let mut command = isolated(Command::new("sh"));
    command.args([
        "-c",
        r#"ulimit -n 64; exec "$0" run -n 32 sh -c 'echo out; echo err >&2'"#,
    ]);
    let output = command
        .arg(env!("CARGO_BIN_EXE_samite"))
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
    assert!(
        stderr(&output).contains("64 units need 88 file descriptors and the limit is 64"),
        "{}",
        stderr(&output)
    );
}

/// The process limit does not bind root, so root runs this as a user that nobody else is.
#[test]
fn more_units_than_processes_are_refused_and_none_stays() {
    const NOBODY_ELSE: u32 = 54_321;
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
    let root = rustix::process::getuid().is_root();
    let mut command = isolated(Command::new("prlimit"));
    if root {
        let id = NOBODY_ELSE.to_string();
        command.args([
            "--nproc=9",
            "setpriv",
            "--reuid",
            &id,
            "--regid",
            &id,
            "--clear-groups",
        ]);
    } else {
        command.arg("--nproc=1");
    }
    command
        .arg(&copy)
        .args(["run", "-n", "40", "sleep", "1000"])
        .current_dir("/");
    let output = command
        .output()
        .expect("prlimit, of util-linux, can be started");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("the system allows no further process after "),
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

#[test]
fn settings_are_shown_with_their_origin_and_read_back() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let show = |home: &Path| {
        let mut command = samite();
        command.args(["config", "show", "--origin", "--config", "launch.grace=3s"]);
        let output = command
            .env("XDG_CONFIG_HOME", home)
            .env("SAMITE_FABRIC_EAGER_MAX", "16 KiB")
            .output()
            .expect("samite can be started");
        stdout(&output)
    };
    let shown = show(folder.path());
    assert!(
        shown.contains("# SAMITE_FABRIC_EAGER_MAX") && shown.contains("# --config"),
        "{shown}"
    );
    std::fs::create_dir(folder.path().join("samite")).expect("a scratch folder can be written");
    std::fs::write(folder.path().join("samite/config.toml"), &shown).expect("it can be written");
    let values = |text: &str| -> Vec<String> {
        text.lines()
            .map(|line| line.split('#').next().unwrap_or("").trim().to_owned())
            .collect()
    };
    assert_eq!(values(&show(folder.path())), values(&shown));
}

/// A launcher that is a unit has the settings of its own launcher, where neither its workflow nor its options say more.
#[test]
fn a_nested_command_keeps_the_outer_settings() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let text = "[[program]]\nname = 'a'\ncommand = 'true'\n[config.fabric]\ndeadline = '7s'\nspin = '3us'\n";
    let file = workflow(folder.path(), text);
    let command = [
        "run",
        "--tag-output=no",
        "--config=fabric.deadline=9s",
        "--config=stage.field.method=local",
        "sh",
        "-c",
        r#""$0" config show --origin --config launch.grace=3s "$1""#,
        env!("CARGO_BIN_EXE_samite"),
        &file,
    ];
    let output = output(&command);
    let shown = stdout(&output);
    let has = |key: &str, value: &str, origin: &str| {
        let mut lines = shown.lines();
        lines.any(|line| line.starts_with(&format!("{key} = \"{value}\"")) && line.contains(origin))
    };
    assert!(has("deadline", "9s", "# SAMITE_CONFIG"), "{shown}");
    assert!(has("method", "local", "# SAMITE_CONFIG"), "{shown}");
    assert!(has("spin", "3us", "flow.toml"), "{shown}");
    assert!(has("grace", "3s", "# --config"), "{shown}");
    assert!(has("transport", "shm", "# default"), "{shown}");
    let nested = [
        "run",
        "--tag-output=no",
        "--config=fabric.deadline=9s",
        env!("CARGO_BIN_EXE_samite"),
        "run",
        "--tag-output=no",
        "sh",
        "-c",
        r#"echo "$SAMITE_CONFIG" | grep deadline"#,
    ];
    let output = self::output(&nested);
    assert_eq!(
        stdout(&output),
        "deadline = \"9s\"\n",
        "{}",
        stderr(&output)
    );
}

#[test]
fn without_arguments_there_is_help() {
    let output = output(&[]);
    assert!(output.status.success());
    assert!(stdout(&output).contains("samite run workflows/laplace.toml"));
}

/// What a command that is refused says; it is a mistake of whoever typed it.
fn refused(arguments: &[&str]) -> String {
    let output = output(arguments);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    said
}

#[test]
fn words_that_mean_nothing_are_refused() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let program = "[[program]]\nname = 'a'\ncommand = 'true'\n";
    let reader = "[[program]]\nname = 'b'\ncommand = 'true'\n";
    let edge = "[[edge]]\nfrom = 'a'\nstream = 'synthetic'\nto = 'b'\n";
    let flow = workflow(folder.path(), &[program, reader, edge].concat());
    let said = refused(&["run", &flow, "extra", "words"]);
    assert!(said.contains("extra"), "{said}");
    let said = refused(&["run", &flow, &flow]);
    assert!(said.contains("flow.toml"), "{said}");
    let said = refused(&["run", &flow, "-n", "4"]);
    assert!(said.contains("-n is for a program"), "{said}");
    let said = refused(&["run", "-n", "4", &flow]);
    assert!(said.contains("leave out -n"), "{said}");
    for (setting, word) in [
        ("stage.synthetc.method=local", "did you mean `synthetic`?"),
        (
            "stage.synthetic.methd=local",
            "did you mean `stage.synthetic.method`?",
        ),
        (
            "stage.method=locl",
            "`locl` is not one of stream, local, server, graph, file; did you mean `local`?",
        ),
        ("stage.replicas=0", "1 server or more"),
        ("stage.limit_steps=0 steps", "1 step"),
        ("fabric.deadline=0s", "write a time"),
        ("memory.budget=1 MiB", "2 units and the agent need 6.0 MiB"),
    ] {
        let said = refused(&["run", &flow, "--config", setting]);
        assert!(said.contains(word), "{setting}: {said}");
    }
    let said = refused(&["run", "-n", "447", "true"]);
    assert!(said.contains("has room for 446"), "{said}");
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
