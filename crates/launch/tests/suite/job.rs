//! Whole jobs of small shell programs: output, ends, failures, and that nothing stays behind.

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use samite_launch::{Error, Event, Exit, Interrupts, Plan, Program, Stream, run};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What a job did, as the caller of `run` saw it.
#[derive(Default)]
struct Seen {
    lines: Vec<String>,
    errors: Vec<String>,
    progress: Vec<(String, u64)>,
    pids: Vec<u32>,
    ends: Vec<(String, Exit)>,
}

fn plan(programs: impl IntoIterator<Item = Program>) -> Plan {
    let mut plan = Plan::new("test");
    plan.programs.extend(programs);
    plan.starter = Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/starter.sh"));
    plan
}

fn sh(name: &str, script: &str) -> Program {
    Program::new(name, "/bin/sh").args(["-c", script])
}

/// Runs a plan; `then` sees each event too, with the process id of its process where it has one.
fn watch(plan: &Plan, then: impl FnMut(&Event<'_>, &Seen)) -> (Result<(), Error>, Seen) {
    watch_with(plan, None, then)
}

fn watch_with(
    plan: &Plan,
    interrupts: Option<&Interrupts>,
    mut then: impl FnMut(&Event<'_>, &Seen),
) -> (Result<(), Error>, Seen) {
    let mut seen = Seen::default();
    let result = run(plan, interrupts, &mut |event| {
        match &event {
            Event::Started { pid, .. } => seen.pids.push(*pid),
            Event::Ended { name, exit, .. } => seen.ends.push((name.to_string(), *exit)),
            Event::Line(line) => {
                let mut text = Vec::new();
                line.write_to(&mut text).expect("a Vec takes everything");
                let text = String::from_utf8(text).expect("the scripts print ASCII");
                let to = if line.stream == Stream::Stdout {
                    &mut seen.lines
                } else {
                    &mut seen.errors
                };
                to.push(text);
            }
            Event::Progress { name, progress } => {
                seen.progress.push((name.to_string(), progress.step))
            }
            _ => {}
        }
        then(&event, &seen);
    });
    for &pid in &seen.pids {
        assert!(!exists(pid), "process {pid} is left");
    }
    (result, seen)
}

fn exists(pid: u32) -> bool {
    test_kill_process(pid_of(pid)).is_ok()
}

fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).expect("process ids are small")).expect("not zero")
}

#[test]
fn units_know_their_place() {
    let script =
        "echo $SAMITE_PROGRAM $SAMITE_RANK/$SAMITE_SIZE $SAMITE_UNIT/$SAMITE_UNITS $SAMITE_DOMAIN";
    let (result, mut seen) = watch(
        &plan([sh("a", script).units(2), sh("b", script)]),
        |_, _| {},
    );
    result.expect("all end well");
    seen.lines.sort();
    assert_eq!(
        seen.lines,
        [
            "[a.0] a 0/2 0/3 test\n",
            "[a.1] a 1/2 1/3 test\n",
            "[b.0] b 0/1 2/3 test\n"
        ]
    );
}

#[test]
fn streams_progress_and_unfinished_lines() {
    let script = r#"echo out; echo err >&2; printf '\036progress {"step":3,"of":4}\n'; printf end"#;
    let mut table = sh("table", "echo plain");
    table.prefix = false;
    let (result, mut seen) = watch(&plan([sh("a", script), table]), |_, _| {});
    result.expect("all end well");
    seen.lines.sort();
    assert_eq!(seen.lines, ["[a.0] end\n", "[a.0] out\n", "plain\n"]);
    assert_eq!(seen.errors, ["[a.0] err\n"]);
    assert_eq!(seen.progress, [("a.0".to_owned(), 3)]);
}

#[test]
fn a_failure_ends_the_others_and_names_the_unit() {
    let failing = sh("bad", "echo so far so good; echo broken >&2; exit 3");
    let (result, _) = watch(
        &plan([sh("good", "sleep 1000").units(2), failing]),
        |_, _| {},
    );
    let error = result.expect_err("one failed");
    assert_eq!(error.exit_code(), 3);
    let Error::UnitFailed {
        unit, exit, said, ..
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(
        (unit.to_string(), exit),
        ("bad.0".to_owned(), Exit::Code(3))
    );
    assert!(said.contains(&"broken".to_owned()), "{said:?}");
}

/// Runs two programs, `hasty` and `culprit`; `culprit` begins when `hasty` has failed.
fn after_the_hasty(hasty: &str, culprit: &str, listen: Duration) -> String {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let gone = folder.path().join("gone");
    let wait = format!("until [ -e {} ]; do sleep 0.01; done; ", gone.display());
    let mut job = plan([sh("hasty", hasty), sh("culprit", &(wait + culprit))]);
    (job.grace, job.listen) = (Duration::MAX, listen);
    let (result, _) = watch(&job, |event, _| {
        if matches!(event, Event::Ended { name, .. } if name.program() == "hasty") {
            std::fs::write(&gone, "").expect("the folder is there");
        }
    });
    result.expect_err("one failed").to_string()
}

/// The launcher waits for the words of the unit whose end was the cause.
#[test]
fn the_cause_is_reported_although_a_consequence_came_first() {
    let lost = "echo 'Error: culprit.0 was lost during a barrier' >&2; exit 1";
    let error = after_the_hasty(
        lost,
        "echo 'Error: the disk is full' >&2; exit 3",
        Duration::MAX,
    );
    let sentence = "culprit.0 ended with exit code 3; the last thing it said: Error: the disk is full; the other units were ended";
    assert_eq!(error, sentence);
    // Nobody fails by itself: then it is said who had left.
    let error = after_the_hasty("exit 0", lost, Duration::MAX);
    let sentence =
        "culprit.0 ended with exit code 1, after hasty.0 had ended without an error; the last";
    assert!(error.starts_with(sentence), "{error}");
    // An error of its own is the cause at once: what comes later was asked to end.
    let error = after_the_hasty("echo full >&2; exit 3", "exit 4", Duration::MAX);
    assert!(
        error.starts_with("hasty.0 ended with exit code 3"),
        "{error}"
    );
}

/// A unit that writes a long backtrace is asked to end meanwhile, and its panic is the cause.
#[test]
fn a_panic_is_the_cause_also_when_it_comes_late() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (up, words) = (file("up"), file("words"));
    let frames: String = (0..50)
        .map(|at| format!("  {at:2}: f\n          at b.rs:1:2\n"))
        .collect();
    let panic = "thread 'main' panicked at a.rs:1:2:\nno\nstack backtrace:\n";
    std::fs::write(&words, panic.to_owned() + &frames).expect("the folder is there");
    let culprit = format!("trap 'cat {words} >&2; exit 101' TERM; : > {up}; sleep 1000 & wait");
    let hasty = format!("until [ -e {up} ]; do sleep 0.01; done; echo Error: PeerLost >&2; exit 1");
    let mut job = plan([sh("culprit", &culprit), sh("hasty", &hasty)]);
    (job.grace, job.listen) = (Duration::MAX, Duration::ZERO);
    let (result, _) = watch(&job, |_, _| {});
    let error = result.expect_err("one failed").to_string();
    let sentence = "culprit.0 ended with exit code 101; the last thing it said:\n    thread 'main' panicked at a.rs:1:2:\n    no\n";
    assert!(error.starts_with(sentence), "{error}");
}

#[test]
fn a_killed_unit_is_reported_with_its_signal() {
    let job = plan([sh("a", "echo up; sleep 1000; true").units(2)]);
    let (result, _) = watch(&job, |event, seen| {
        if matches!(event, Event::Line(line) if line.name.rank() == Some(1)) {
            kill_process(pid_of(seen.pids[1]), Signal::KILL).expect("it is alive");
        }
    });
    let error = result.expect_err("one was killed");
    assert_eq!(error.exit_code(), 137);
    assert!(
        error
            .to_string()
            .starts_with("a.1 was killed by signal 9 (SIGKILL)"),
        "{error}"
    );
}

#[test]
fn a_unit_that_ignores_the_request_is_killed_after_the_grace() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let up = folder.path().join("up").display().to_string();
    let stubborn = format!("trap '' TERM; : > {up}; while :; do sleep 1000; done");
    let bad = format!("while [ ! -e {up} ]; do sleep 0.01; done; exit 1");
    let mut job = plan([sh("stubborn", &stubborn), sh("bad", &bad)]);
    job.grace = Duration::from_millis(100);
    let (result, _) = watch(&job, |_, _| {});
    assert_eq!(result.expect_err("one failed").exit_code(), 1);
}

/// Signals go to the whole process of the tests: one test at a time sends some.
static SIGNALS: Mutex<()> = Mutex::new(());

/// As systemd and batch systems do it, the launcher gets the signal as well: before it looks at the
/// units that it ended, or after.
#[test]
fn a_signal_to_all_processes_ends_the_job() {
    let _only = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
    let interrupts = Interrupts::install().expect("handlers");
    let raise = || signal_hook::low_level::raise(signal_hook::consts::SIGTERM).expect("to oneself");
    for is_late in [false, true] {
        let mut first = sh("first", "echo up; while :; do sleep 1000; done");
        first.restart = u32::from(!is_late);
        let other = sh("other", "while :; do sleep 0.01; done");
        let mut job = plan([first, other]);
        job.grace = Duration::MAX;
        let (result, seen) = watch_with(&job, Some(&interrupts), |event, seen| match event {
            Event::Line(_) => {
                kill_process(pid_of(seen.pids[0]), Signal::TERM).expect("it is alive");
                wait_for_end(seen.pids[0]);
                (!is_late).then(raise);
            }
            Event::Ended { name, again, .. } if name.program() == "first" => {
                assert!(!again, "the job ends");
                is_late.then(raise);
            }
            _ => {}
        });
        let error = result.expect_err("it was ended");
        let sentence = "the job was ended by signal 15 (SIGTERM)";
        assert_eq!(error.to_string(), sentence);
        assert_eq!(seen.pids.len(), 2);
    }
}

/// Units clean up after the failure of another one: the first Ctrl-C meanwhile is no second wish.
/// (When it is one is a question of time, which `job` answers for times that are given.)
#[test]
fn the_first_interrupt_after_a_failure_kills_nobody() {
    let _only = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = |name| folder.path().join(name).display().to_string();
    let (up, heard, end) = (file("up"), file("heard"), file("end"));
    let until = |file: &str| format!("while [ ! -e {file} ]; do sleep 0.01; done");
    let clean = format!(
        "echo cleaning; {}; echo still cleaning; {}; echo clean; exit 0",
        until(&heard),
        until(&end)
    );
    let careful = format!("trap '{clean}' TERM; : > {up}; sleep 1000 & wait");
    let bad = format!("{}; exit 3", until(&up));
    let mut job = plan([sh("careful", &careful), sh("bad", &bad)]);
    job.grace = Duration::from_secs(60);
    let interrupts = Interrupts::install().expect("handlers");
    let create = |file: &str| drop(std::fs::File::create(file).expect("the folder is there"));
    let (result, seen) = watch_with(&job, Some(&interrupts), |event, seen| {
        let said = seen.lines.last().map(String::as_str);
        match (event, said) {
            (Event::Line(_), Some("[careful.0] cleaning\n")) => {
                // Handled in this thread before it returns: the launcher hears it before it reads
                // the next line.
                signal_hook::low_level::raise(signal_hook::consts::SIGINT).expect("to oneself");
                create(&heard);
            }
            (Event::Line(_), Some("[careful.0] still cleaning\n")) => create(&end),
            _ => {}
        }
    });
    assert_eq!(result.expect_err("one failed").exit_code(), 3);
    let said = ["cleaning", "still cleaning", "clean"].map(|word| format!("[careful.0] {word}\n"));
    assert_eq!(seen.lines, said);
}

#[test]
fn units_have_files_and_folders_of_their_own() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("in"), "seen\n").expect("the folder is there");
    let mut cat = sh(
        "cat",
        "cat; pwd; echo odd >&2; printf '\\036progress {\"step\":1}\\n'",
    )
    .units(2);
    cat.setup.stdin = Some(file("in"));
    cat.setup.cwd = Some(file("made/here"));
    cat.setup.stdout = Some(file("logs/all"));
    cat.setups = vec![cat.setup.clone(), cat.setup.clone()];
    cat.setups[1].stderr = Some(file("errors"));
    let (result, seen) = watch(&plan([cat]), |_, _| {});
    result.expect("all end well");
    let read = |name| std::fs::read_to_string(file(name)).expect("it was written");
    let all = read("logs/all");
    assert_eq!(all.matches("seen\n").count(), 2, "{all}");
    assert_eq!(all.matches("made/here\n").count(), 2, "{all}");
    assert_eq!(read("errors"), "odd\n");
    assert_eq!(
        (seen.lines.len(), seen.errors),
        (0, vec!["[cat.0] odd\n".to_owned()])
    );
    assert_eq!(seen.progress.len(), 2);
    // The last words of a unit whose output goes to a file are known all the same.
    let mut bad = sh("bad", "echo broken >&2; exit 3");
    bad.setup.stderr = Some(file("errors"));
    let (result, _) = watch(&plan([bad]), |_, _| {});
    let error = result.expect_err("it failed").to_string();
    assert!(error.contains("the last thing it said: broken"), "{error}");
    // A file that cannot be created: nothing is started. One that cannot be written is an error.
    let mut full = sh("full", "echo lost");
    full.setup.stdout = Some("/dev/full".into());
    let (result, seen) = watch(&plan([full.clone()]), |_, _| {});
    let error = result.expect_err("the disk is full");
    assert!(error.to_string().contains("/dev/full"), "{error}");
    assert_eq!(seen.pids.len(), 1);
    full.setup.stdout = Some(file("in").join("out"));
    let (result, seen) = watch(&plan([full]), |_, _| {});
    let error = result.expect_err("the file is no folder");
    assert!(matches!(error, Error::CreateOutput { .. }), "{error}");
    assert_eq!((seen.pids.len(), error.exit_code()), (0, 2));
}

/// A file that cannot be written is reported at once, and only once, also if the job fails because
/// of something else.
#[test]
fn output_that_cannot_be_written_is_reported_at_once() {
    let mut full = sh("full", "echo one; echo two; exit 3");
    full.setup.stdout = Some("/dev/full".into());
    let mut lost = Vec::new();
    let (result, _) = watch(&plan([full]), |event, seen| {
        if let Event::OutputLost { name, path, error } = event {
            assert_eq!(seen.ends, []);
            lost.push((name.to_string(), path.display().to_string(), error.kind()));
        }
    });
    assert_eq!(result.expect_err("the unit failed").exit_code(), 3);
    let once = (
        "full.0".to_owned(),
        "/dev/full".to_owned(),
        std::io::ErrorKind::StorageFull,
    );
    assert_eq!(lost, [once]);
}

/// One file under two paths has the lines of both streams.
#[test]
fn a_file_may_have_two_paths() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("log"), "old\n").expect("the folder is there");
    std::os::unix::fs::symlink(file("log"), file("link")).expect("the folder is there");
    let mut unit = sh("a", "echo one; echo two >&2; echo three; echo four >&2");
    unit.setup.stdout = Some(file("log"));
    unit.setup.stderr = Some(file("link"));
    watch(&plan([unit]), |_, _| {}).0.expect("it ends well");
    let log = std::fs::read_to_string(file("log")).expect("it was written");
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort();
    assert_eq!(lines, ["four", "one", "three", "two"]);
}

/// Nobody reads from the pipe: not when it is opened, and not when it is full.
#[test]
fn a_named_pipe_stops_no_launcher() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
        .expect("the folder is there");
    let script = "i=0; while [ $i -lt 300 ]; do printf '%01024d\\n' 0; i=$((i+1)); done";
    let mut unit = sh("a", script);
    unit.setup.stdout = Some(path.clone());
    let job = plan([unit]);
    let (result, seen) = watch(&job, |_, _| {});
    let error = result.expect_err("nobody reads");
    let Error::CreateOutput { path: of, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!((of, seen.pids.len()), (&path, 0));
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
    let _reader = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).expect("it is there");
    let error = watch(&job, |_, _| {}).0.expect_err("the pipe is full");
    let Error::OutputFile { path: of, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!((of, error.exit_code()), (&path, 1));
}

/// A launcher that waits for the writer of a named pipe hears no signal, and ends nothing in time.
#[test]
fn a_standard_input_is_a_regular_file() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
        .expect("the folder is there");
    let mut reader = sh("reader", "cat");
    reader.after = vec!["mesh".to_owned()];
    for path in [path.as_path(), folder.path()] {
        reader.setup.stdin = Some(path.to_owned());
        let (result, seen) = watch(&plan([sh("mesh", "true"), reader.clone()]), |_, _| {});
        let Err(Error::Spawn { name, source }) = result else {
            panic!("{result:?}")
        };
        let said = format!("{}: it is not a regular file", path.display());
        assert!(source.to_string().starts_with(&said), "{source}");
        assert_eq!((name.to_string(), seen.pids.len()), ("reader.0".into(), 1));
    }
}

/// A file that gets output is emptied before the job begins, so that only programs may read it that
/// come after those that write it. A program that reads what it writes would never end.
#[test]
fn standard_input_is_what_an_earlier_program_writes() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = folder.path().join("mesh");
    std::fs::write(&file, "old\n").expect("the folder is there");
    let mut mesh = sh("mesh", "echo made");
    mesh.setup.stdout = Some(file.clone());
    let mut solver = sh("solver", "cat");
    solver.setup.stdin = Some(file.clone());
    let refused = |programs: [&Program; 3], said: &str| {
        let (result, seen) = watch(&plan(programs.map(Program::clone)), |_, _| {});
        let error = result.expect_err("it is refused");
        let name = file.display();
        let said = format!("{name} is the standard input of solver, which would {said}");
        assert!(error.to_string().starts_with(&said), "{error}");
        assert_eq!((error.exit_code(), seen.pids.len()), (2, 0));
        assert_eq!(std::fs::read_to_string(&file).expect("kept"), "old\n");
    };
    let other = sh("other", "true");
    refused([&mesh, &solver, &other], "find it empty or incomplete");
    // It comes after a program that does not write the file.
    solver.after = vec!["other".to_owned()];
    refused([&mesh, &solver, &other], "find it empty or incomplete");
    // It writes the file itself, which a symbolic link does not hide.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&file, &link).expect("the folder is there");
    let mut both = solver.clone();
    both.setup.stderr = Some(link);
    refused([&sh("mesh", "true"), &both, &other], "read its own output");
    // Between the two there may be others.
    let mut other = other;
    other.after = vec!["mesh".to_owned()];
    let (result, seen) = watch(&plan([mesh, solver, other]), |_, _| {});
    result.expect("all end well");
    assert_eq!(seen.lines, ["[solver.0] made\n"]);
}

/// A program starts when those that it comes after are ready.
#[test]
fn programs_start_in_order() {
    let mesh = sh("mesh", "echo made").units(2);
    let mut server = sh(
        "server",
        "echo up; trap 'exit 0' TERM; while :; do sleep 0.01; done",
    );
    server.ready = Some("up".to_owned());
    server.after = vec!["mesh".to_owned()];
    let mut solver = sh("solver", "echo solved; exit 3");
    solver.after = ["server", "mesh", "nobody"].map(str::to_owned).to_vec();
    let (result, seen) = watch(&plan([solver, server, mesh]), |_, _| {});
    assert_eq!(result.expect_err("one failed").exit_code(), 3);
    let said = ["mesh.0] made", "server.0] up", "solver.0] solved"];
    let place = |text: &str| seen.lines.iter().position(|line| line.contains(text));
    let places = said.map(|text| place(text).expect(text));
    assert!(places.is_sorted(), "{:?}", seen.lines);
}

#[test]
fn a_unit_that_fails_is_started_again() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = folder.path().join("tries").display().to_string();
    let script = format!("echo try >> {file}; echo $SAMITE_RANK; [ $(wc -l < {file}) = 3 ]");
    let mut flaky = sh("flaky", &script);
    flaky.restart = 2;
    let (result, seen) = watch(&plan([flaky.clone()]), |_, _| {});
    result.expect("the third try ends well");
    assert_eq!(seen.lines, ["[flaky.0] 0\n"; 3]);
    std::fs::remove_file(&file).expect("it is there");
    flaky.restart = 1;
    let (result, seen) = watch(&plan([flaky]), |_, _| {});
    assert_eq!(result.expect_err("both tries fail").exit_code(), 1);
    assert_eq!(seen.lines.len(), 2);
}

/// Returns a unit that always fails at once, is started again each time, and counts its lives in
/// the lines of a file.
fn failing(lives: &Path) -> Program {
    let mut failing = sh("flaky", &format!("echo >> {}; exit 3", lives.display()));
    failing.restart = 100;
    failing
}

#[test]
fn a_unit_that_waits_for_its_restart_may_be_the_cause() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let lives = folder.path().join("lives");
    let (file, lost) = (lives.display(), "Error: flaky.0 was lost during a read");
    // The pause is 80 ms then.
    let script = format!(
        "until [ -e {file} ] && [ $(wc -l < {file}) -ge 4 ]; do sleep 0.01; done; echo {lost} >&2; \
         exit 1"
    );
    let (result, seen) = watch(&plan([failing(&lives), sh("reader", &script)]), |_, _| {});
    let error = result.expect_err("both fail").to_string();
    assert!(
        error.starts_with("flaky.0 ended with exit code 3"),
        "{error}"
    );
    assert_eq!(seen.pids.len(), seen.ends.len(), "each end is told");
}

#[test]
fn a_job_may_end_while_a_unit_waits_for_its_restart() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let mut job = plan([failing(&folder.path().join("lives"))]);
    job.timeout = Some(Duration::from_millis(300));
    let mut is_last = false;
    let (result, seen) = watch(&job, |event, _| {
        if let Event::Ended { again, .. } = event {
            assert!(!is_last, "an end after the last one");
            is_last = !again;
        }
    });
    assert_eq!(result.expect_err("it never ends well").exit_code(), 124);
    assert!(is_last, "the last life has no successor");
    assert_eq!(seen.pids.len(), seen.ends.len(), "each end is told");
}

/// Returns what a unit does that waits for a while, and says so when it is asked to end.
fn careful(up: &Path) -> String {
    let up = up.display();
    format!("trap 'echo asked; exit 0' TERM; : > {up}; sleep 1000 & wait")
}

/// Checks that a unit could not be started because of this path, and that `careful` was asked to
/// end.
fn check_start(result: Result<(), Error>, seen: &Seen, unit: &str, path: &Path) {
    let Err(Error::Spawn { name, source }) = result else {
        panic!("{result:?}")
    };
    assert_eq!(name.to_string(), unit);
    let path = path.display().to_string();
    assert!(source.to_string().starts_with(&path), "{source}");
    assert_eq!(seen.lines, ["[careful.0] asked\n"]);
    let ended = ("careful.0".to_owned(), Exit::Code(0));
    assert!(seen.ends.contains(&ended), "{:?}", seen.ends);
}

/// The units of a job that runs have their grace, whatever ends it.
#[test]
fn a_unit_that_cannot_be_started_later_ends_the_job_as_a_failure_does() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let file = |name: &str| folder.path().join(name);
    let up = file("up");
    let wait = format!("until [ -e {} ]; do sleep 0.01; done", up.display());
    let mut late = sh("late", "true").units(2);
    late.after = vec!["mesh".to_owned()];
    // The first unit of the program can be started.
    late.setups = vec![late.setup.clone(), late.setup.clone()];
    late.setups[1].stdin = Some(file("missing"));
    let mut job = plan([sh("careful", &careful(&up)), sh("mesh", &wait), late]);
    job.grace = Duration::MAX;
    let (result, seen) = watch(&job, |_, _| {});
    check_start(result, &seen, "late.1", &file("missing"));
    assert_eq!((seen.pids.len(), seen.ends.len()), (3, 3));
    // The same for a unit that is started again, in a folder that cannot be created by then.
    std::fs::remove_file(&up).expect("it is there");
    let made = file("made").display().to_string();
    let script = format!("{wait}; cd /; rmdir {made}; : > {made}; exit 3");
    let mut flaky = sh("flaky", &script);
    flaky.setup.cwd = Some(file("made"));
    flaky.restart = 1;
    let mut job = plan([sh("careful", &careful(&up)), flaky]);
    job.grace = Duration::MAX;
    let (result, seen) = watch(&job, |event, _| {
        assert!(!matches!(event, Event::Ended { again: true, .. }));
    });
    check_start(result, &seen, "flaky.0", &file("made"));
}

/// Waits until a process has ended; it is not reaped yet.
fn wait_for_end(pid: u32) {
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("not reaped");
    while !state().contains(") Z ") {
        std::thread::yield_now();
    }
}

/// A unit is killed that would be started again, or is optional, but another one has failed because
/// of that before the launcher heard of either.
#[test]
fn a_failure_that_would_be_pardoned_may_be_the_cause() {
    for (restart, optional) in [(1, false), (0, true)] {
        let mut writer = sh("writer", "echo up; while :; do sleep 1000; done");
        (writer.restart, writer.optional) = (restart, optional);
        check_cause(writer);
    }
}

/// Kills the unit `writer.0`, and the one that waits for it, and checks that the first is reported.
fn check_cause(writer: Program) {
    let lost = "echo Error: writer.0 was lost during a read >&2; exit 1";
    let script = format!("trap '{lost}' USR1; echo up; while :; do sleep 0.01; done");
    let mut job = plan([sh("reader", &script), writer]);
    job.grace = Duration::MAX;
    let (result, seen) = watch(&job, |event, seen| {
        assert!(!matches!(event, Event::Ended { again: true, .. }));
        assert!(!matches!(event, Event::Missed { .. }), "the job ends");
        if matches!(event, Event::Line(line) if line.stream == Stream::Stdout)
            && seen.lines.len() == 2
        {
            for (pid, signal) in [(seen.pids[1], Signal::KILL), (seen.pids[0], Signal::USR1)] {
                kill_process(pid_of(pid), signal).expect("it is alive");
                wait_for_end(pid);
            }
        }
    });
    let error = result.expect_err("both failed").to_string();
    assert!(
        error.starts_with("writer.0 was killed by signal 9 (SIGKILL)"),
        "{error}"
    );
    assert_eq!(seen.ends.len(), 2);
}

#[test]
fn the_job_goes_on_without_an_optional_unit() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let gone = folder.path().join("gone");
    let mut viewer = sh("viewer", "echo no screen >&2; exit 3");
    viewer.optional = true;
    let wait = format!("until [ -e {} ]; do sleep 0.01; done", gone.display());
    let mut missed = Vec::new();
    let (result, _) = watch(&plan([viewer, sh("solver", &wait)]), |event, _| {
        if let Event::Missed { name, exit, said } = event {
            missed.push((name.to_string(), *exit, said.clone()));
            std::fs::write(&gone, "").expect("the folder is there");
        }
    });
    result.expect("the solver ends well");
    let viewer = (
        "viewer.0".to_owned(),
        Exit::Code(3),
        vec!["no screen".to_owned()],
    );
    assert_eq!(missed, [viewer]);
}

#[test]
fn a_job_that_takes_too_long_is_ended() {
    let mut job = plan([sh("a", "sleep 1000").units(2)]);
    job.timeout = Some(Duration::from_millis(10));
    let (result, _) = watch(&job, |_, _| {});
    let error = result.expect_err("it was too long");
    assert_eq!(error.exit_code(), 124);
    assert!(error.to_string().contains("timeout of 10ms"), "{error}");
}

/// Each program is asked to end in its own way, and has its own time for it.
#[test]
fn programs_have_their_own_signal_and_grace() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let up = |name: &str| folder.path().join(name).display().to_string();
    let script = |name: &str, trap: &str| format!("{trap} : > {}; sleep 1000 & wait", up(name));
    let mut careful = sh(
        "careful",
        &script("a", "trap 'echo asked; exit 0' INT; trap '' TERM;"),
    );
    careful.stop_signal = Signal::INT;
    let stubborn = format!(
        "trap '' TERM; : > {}; while :; do sleep 1000; done",
        up("b")
    );
    let mut stubborn = sh("stubborn", &stubborn);
    stubborn.grace = Some(Duration::from_millis(10));
    let bad = format!(
        "until [ -e {} ] && [ -e {} ]; do sleep 0.01; done; exit 3",
        up("a"),
        up("b")
    );
    let mut job = plan([careful, stubborn, sh("bad", &bad)]);
    job.grace = Duration::MAX;
    let (result, seen) = watch(&job, |_, _| {});
    assert_eq!(result.expect_err("one failed").exit_code(), 3);
    assert_eq!(seen.lines, ["[careful.0] asked\n"]);
    let killed = ("stubborn.0".to_owned(), Exit::Signal(Signal::KILL.as_raw()));
    assert!(seen.ends.contains(&killed), "{:?}", seen.ends);
}

#[test]
fn a_stopped_unit_is_ended_too() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let stopped = folder.path().join("stopped").display().to_string();
    let state = format!("/proc/$(cat {stopped})/stat");
    let mut job = plan([
        sh(
            "a",
            &format!("echo $$ > {stopped}; kill -STOP $$; sleep 1000"),
        ),
        sh(
            "bad",
            &format!("until grep -q ') T ' {state}; do sleep 0.01; done 2>/dev/null; exit 1"),
        ),
    ]);
    // Longer than any clock counts: it is not killed.
    job.grace = Duration::MAX;
    let (result, seen) = watch(&job, |_, _| {});
    assert_eq!(result.expect_err("one failed").exit_code(), 1);
    let asked = ("a.0".to_owned(), Exit::Signal(Signal::TERM.as_raw()));
    assert!(seen.ends.contains(&asked), "{:?}", seen.ends);
}

/// As a shell with job control does it.
#[test]
fn a_unit_that_joins_another_group_is_ended_too() {
    const MOVED: &str = "SAMITE_TEST_MOVED";
    let test = "job::a_unit_that_joins_another_group_is_ended_too";
    if let Some(moved) = std::env::var_os(MOVED) {
        let launcher = rustix::process::getppid();
        let group = rustix::process::getpgid(launcher).expect("our parent");
        rustix::process::setpgid(None, Some(group)).expect("a group of this session");
        std::fs::write(moved, "").expect("the folder is there");
        loop {
            std::thread::park();
        }
    }
    let own = std::env::current_exe().expect("a test binary has a path");
    let own = own.to_str().expect("its path is text");
    for (grace, trap, signal) in [
        (Duration::MAX, "", Signal::TERM),
        (Duration::ZERO, "trap '' TERM;", Signal::KILL),
    ] {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let moved = folder.path().join("moved").display().to_string();
        let script = format!("{trap} exec \"$0\" --exact {test}");
        let mut unit = Program::new("a", "/bin/sh").args(["-c", &script, own]);
        unit.setup.env.insert(MOVED.to_owned(), moved.clone());
        let bad = format!("while [ ! -e {moved} ]; do sleep 0.01; done; exit 1");
        let mut job = plan([unit, sh("bad", &bad)]);
        job.grace = grace;
        let (result, seen) = watch(&job, |_, _| {});
        assert_eq!(result.expect_err("one failed").exit_code(), 1);
        let ended = ("a.0".to_owned(), Exit::Signal(signal.as_raw()));
        assert!(seen.ends.contains(&ended), "{:?}", seen.ends);
    }
}

#[test]
fn settings_that_do_not_fit_into_the_environment_are_refused() {
    let mut job = plan([sh("a", "[ ${#SAMITE_CONFIG} -gt 131000 ]")]);
    let most = 32 * rustix::param::page_size() - "SAMITE_CONFIG=\0".len();
    job.config = "#".repeat(most);
    watch(&job, |_, _| {}).0.expect("they just fit");
    job.config += "#";
    let (result, seen) = watch(&job, |_, _| {});
    assert!(
        matches!(result, Err(Error::SettingsTooLong { .. })),
        "{result:?}"
    );
    assert_eq!(seen.pids, [0; 0]);
}

#[test]
fn grandchildren_go_with_their_unit() {
    let (result, seen) = watch(&plan([sh("a", "sleep 1000 & echo $!")]), |_, _| {});
    result.expect("the unit itself ends well");
    let grandchild: u32 = seen.lines[0]
        .trim_start_matches("[a.0] ")
        .trim()
        .parse()
        .expect("a process id");
    // It was killed before `run` returned; it ends, and is reaped by whoever adopted it, soon
    // after.
    let state = || std::fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap_or_default();
    while !state().is_empty() && !state().contains(") Z ") {
        std::thread::yield_now();
    }
}

#[test]
fn a_flood_of_lines_is_never_interleaved() {
    let script = r#"i=0; while [ $i -lt 2000 ]; do echo "$SAMITE_RANK line $i of a flood"; i=$((i+1)); done"#;
    let (result, seen) = watch(&plan([sh("a", script).units(4)]), |_, _| {});
    result.expect("all end well");
    assert_eq!(seen.lines.len(), 8000);
    for rank in 0..4 {
        let start = format!("[a.{rank}] ");
        let own: Vec<_> = seen
            .lines
            .iter()
            .filter(|line| line.starts_with(&start))
            .collect();
        for (index, line) in own.iter().enumerate() {
            assert_eq!(
                **line,
                format!("[a.{rank}] {rank} line {index} of a flood\n")
            );
        }
        assert_eq!(own.len(), 2000);
    }
}

#[test]
fn the_agent_comes_first_and_goes_last() {
    let mut job = plan([sh("a", "echo unit")]);
    let script = "echo up >&2; echo ready; exec >&-; trap 'echo down >&2; exit 0' TERM; while :; do sleep 0.01; done";
    job.agent = Some(["/bin/sh", "-c", script].map(Into::into).to_vec());
    let (result, seen) = watch(&job, |_, _| {});
    result.expect("all end well");
    assert_eq!(
        seen.errors.first().map(String::as_str),
        Some("[agent] up\n")
    );
    assert_eq!(
        seen.errors.last().map(String::as_str),
        Some("[agent] down\n")
    );
    assert_eq!(seen.lines, ["[a.0] unit\n"]);
}

#[test]
fn an_agent_that_cannot_start_is_reported_and_no_unit_starts() {
    let mut job = plan([sh("a", "echo unit")]);
    job.agent = Some(
        ["/bin/sh", "-c", "echo the domain is taken >&2; exit 1"]
            .map(Into::into)
            .to_vec(),
    );
    let (result, seen) = watch(&job, |_, _| {});
    let error = result.expect_err("there is no agent").to_string();
    assert!(
        error.contains("the last thing it said: the domain is taken"),
        "{error}"
    );
    assert_eq!(seen.lines, [""; 0]);
}

#[test]
fn the_loss_of_the_agent_ends_the_job_and_is_the_cause() {
    // The unit notices the loss and fails by itself: still it is the agent that is reported.
    let mut job = plan([sh(
        "a",
        "trap 'exit 7' USR1; echo up; while :; do sleep 0.01; done",
    )]);
    job.agent = Some(
        ["/bin/sh", "-c", "echo ready; exec >&-; sleep 1000"]
            .map(Into::into)
            .to_vec(),
    );
    let (result, _) = watch(&job, |event, seen| {
        if matches!(event, Event::Line(_)) {
            kill_process(pid_of(seen.pids[0]), Signal::KILL).expect("the agent is alive");
            kill_process(pid_of(seen.pids[1]), Signal::USR1).expect("the unit is alive");
        }
    });
    let error = result.expect_err("the agent is gone");
    assert!(
        matches!(
            error,
            Error::AgentLost {
                exit: Exit::Signal(9),
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_program_that_cannot_be_executed_ends_what_was_started() {
    let mut job = plan([
        sh("a", "sleep 1000").units(3),
        Program::new("b", "/does/not/exist"),
    ]);
    job.starter = None;
    let (result, seen) = watch(&job, |_, _| {});
    assert!(matches!(result, Err(Error::Spawn { .. })), "{result:?}");
    assert_eq!(seen.pids.len(), 3);
}

#[test]
fn a_job_without_units_is_refused() {
    assert!(matches!(
        run(&plan([]), None, &mut |_| {}),
        Err(Error::NothingToRun { .. })
    ));
}
