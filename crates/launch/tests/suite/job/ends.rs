//! How a job is ended: signals, time limits, and processes that do not want to.

use super::*;
use std::time::Instant;

#[test]
fn a_unit_that_ignores_the_request_is_killed_after_the_grace() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let up = folder.path().join("up").display().to_string();
    let stubborn = format!("trap '' TERM; : > {up}; while :; do sleep 1000; done");
    let bad = format!("while [ ! -e {up} ]; do sleep 0.01; done; exit 1");
    let mut job = plan([sh("stubborn", &stubborn), sh("bad", &bad)]);
    job.grace = Duration::from_millis(100);
    let started = Instant::now();
    let (result, seen) = watch(&job, |_, _| {});
    assert_eq!(result.expect_err("one failed").exit_code(), 1);
    assert!(started.elapsed() >= job.grace, "it had its grace");
    let killed = ("stubborn.0".to_owned(), Exit::Signal(9));
    assert!(seen.ends.contains(&killed), "{:?}", seen.ends);
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
    let test = "job::ends::a_unit_that_joins_another_group_is_ended_too";
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
